"""Machines with known alpha, beta and ports, to be profiled blind."""

from dataclasses import replace

from taccl_py.discover.node_link import read_node_link
from taccl_py.topology.machines import formula_topology
from taccl_py.topology.model import Link, Port, Topology
from taccl_py.topology.template import (
    AlphaBeta,
    NetworkReach,
    Nic,
    NodeLink,
    NodeNetwork,
    NodePort,
    NodeSwitch,
    NodeTemplate,
    PortSide,
    Side,
    instantiate,
)

IB = AlphaBeta(2.6, 105.0)
NVLINK, HALF_NVLINK, NVSWITCH, PCIE = (
    AlphaBeta(0.7, 23.0),
    AlphaBeta(0.7, 46.0),
    AlphaBeta(0.7, 8.0),
    AlphaBeta(1.5, 80.0),
)
RAIL_SWITCH, RAIL_NIC = AlphaBeta(0.5, 4.0), AlphaBeta(3.0, 40.0)
LEAF, UPLINK = AlphaBeta(1.0, 40.0), AlphaBeta(0.5, 20.0)
PROCESSOR = AlphaBeta(2.5, 40.0)
RING, TORUS = AlphaBeta(2.0, 30.0), AlphaBeta(0.9, 25.0)


def ndv2_like(fast=NVLINK, slow=HALF_NVLINK, nic=IB):
    """2 nodes of 4: a square of NVLink of two rates, one NIC for all."""
    return instantiate(NodeTemplate("ndv2-like", "", "", 4, links=square(fast, slow), nics=(one_nic(nic),)), 2)


def square(fast, slow):
    pairs = {(0, 1): fast, (2, 3): fast, (0, 2): slow, (1, 3): slow}
    return tuple(NodeLink(*ends, cost) for (a, b), cost in pairs.items() for ends in ((a, b), (b, a)))


def one_nic(cost):
    return Nic("ib", (0, 1, 2, 3), cost)


def ndv2_pcie(fast=NVLINK, slow=HALF_NVLINK, nic=IB, pcie=PCIE):
    """2 nodes of 4: a square of NVLink, and its diagonals over two PCIe switches of two GPUs, whose uplinks they share."""
    diagonals = tuple(
        NodeLink(a, b, pcie, ports=(PortSide(f"up{a // 2}", Side.OUT), PortSide(f"up{b // 2}", Side.IN)))
        for a, b in ((0, 3), (3, 0), (1, 2), (2, 1))
    )
    ports = tuple(NodePort(f"up{i}", AlphaBeta(0.0, pcie.beta_us_per_mb)) for i in range(2))
    links = square(fast, slow) + diagonals
    return instantiate(NodeTemplate("ndv2-pcie", "", "", 4, links=links, nics=(one_nic(nic),), ports=ports), 2)


def pcie_shared(cost=PCIE):
    """One node of 4: two PCIe switches of two GPUs, whose uplinks carry what leaves them."""
    links = []
    for a in range(4):
        for b in range(4):
            if a != b:
                way = ()
                if a // 2 != b // 2:
                    way = (PortSide(f"up{a // 2}", Side.OUT), PortSide(f"up{b // 2}", Side.IN))
                links.append(NodeLink(a, b, cost, ports=way))
    ports = tuple(NodePort(f"up{i}", AlphaBeta(0.0, cost.beta_us_per_mb)) for i in range(2))
    return instantiate(NodeTemplate("pcie-shared", "", "", 4, links=tuple(links), ports=ports))


def dgx2_like(switch=NVSWITCH, nic=IB):
    """2 nodes of 4 on a switch, each two ranks with a NIC."""
    nics = (Nic("ib0", (0, 1), nic), Nic("ib1", (2, 3), nic))
    return instantiate(
        NodeTemplate("dgx2-like", "", "", 4, switches=(NodeSwitch("nvs", (0, 1, 2, 3), switch),), nics=nics), 2
    )


def wide_nics(times_a_link):
    """2 nodes of 4 on a switch, each two ranks with a NIC that is so many times as fast as a link through it."""
    machine = dgx2_like()
    wide = AlphaBeta(IB.alpha_us / times_a_link, IB.beta_us_per_mb / times_a_link)
    ports = tuple(
        Port(port.name, wide.alpha_us, wide.beta_us_per_mb) if "ib" in port.name else port for port in machine.ports
    )
    return replace(machine, ports=ports)


def rails(switch=RAIL_SWITCH, nic=RAIL_NIC):
    """2 nodes of 8 on a switch; every rank has a NIC of its own and reaches only its peer."""
    ranks = tuple(range(8))
    return instantiate(
        NodeTemplate(
            "rails", "", "", 8, switches=(NodeSwitch("nvs", ranks, switch),),
            nics=tuple(Nic(f"ib{r}", (r,), nic) for r in ranks), network=NodeNetwork(NetworkReach.RAIL),
        ),
        2,
    )  # fmt: skip


def tree(edge=LEAF, up=UPLINK):
    """8 ranks, four on each of two leaf switches; uplinks at half the rate of what is below them."""
    nodes = [{"id": i, "node": i} for i in range(8)] + [{"id": f"leaf{i}", "type": "switch"} for i in range(2)]
    edges = [{"source": i, "target": f"leaf{i // 4}", **written(edge)} for i in range(8)]
    edges.append({"source": "leaf0", "target": "leaf1", **written(up)})
    return read_node_link({"nodes": nodes, "links": edges}, "tree.json", "tree")


def written(cost):
    return {"alpha_us": cost.alpha_us, "beta_us_per_mb": cost.beta_us_per_mb}


def small_nodes(nodes):
    """Nodes of 2 ranks with a link and a NIC each."""
    links = (NodeLink(0, 1, AlphaBeta(0.5, 8.0)), NodeLink(1, 0, AlphaBeta(0.5, 8.0)))
    return instantiate(NodeTemplate("small", "", "", 2, links=links, nics=(Nic("ib", (0, 1), IB),)), nodes)


def racks():
    """4 nodes of 2 ranks, two nodes on each of two leaf switches; a third of what is below goes up."""
    nodes = [{"id": i, "node": i // 2} for i in range(8)] + [{"id": f"leaf{i}", "type": "switch"} for i in range(2)]
    edges = [{"source": i, "target": f"leaf{i // 4}", "alpha_us": 1.0, "beta_us_per_mb": 40.0} for i in range(8)]
    edges.append({"source": "leaf0", "target": "leaf1", "alpha_us": 0.5, "beta_us_per_mb": 30.0})
    return read_node_link({"nodes": nodes, "links": edges}, "racks.json", "racks")


def processors(cost=PROCESSOR):
    """4 processes of one computer: a message keeps the processor of its sender busy, and then that of its receiver as long."""
    ranks = range(4)
    pairs = [(src, dst) for src in ranks for dst in ranks if src != dst]
    links = tuple(Link(*ends, 2 * cost.alpha_us, 2 * cost.beta_us_per_mb, ports=ends) for ends in pairs)
    ports = tuple(Port(f"processor {rank}", cost.alpha_us, cost.beta_us_per_mb) for rank in ranks)
    return Topology("processors", "", (0,) * len(ranks), ports, links)


def ring(cost=RING):
    return formula_topology(f"ring:8,alpha_us={cost.alpha_us:g},beta_us_per_mb={cost.beta_us_per_mb:g}")


def torus(cost=TORUS):
    return formula_topology(f"torus:3x4,alpha_us={cost.alpha_us:g},beta_us_per_mb={cost.beta_us_per_mb:g}")


MACHINES = {
    make.__name__: make for make in (ndv2_like, ndv2_pcie, pcie_shared, dgx2_like, rails, tree, processors, ring, torus)
}  # fmt: skip

# The same shapes in milliseconds, for processes of one computer, which cannot keep microseconds apart.
FAST, SLOW, NIC = AlphaBeta(1000.0, 900.0), AlphaBeta(1000.0, 1500.0), AlphaBeta(1200.0, 1100.0)
SLOW_MACHINES = {
    "ndv2_pcie": lambda: ndv2_pcie(FAST, SLOW, NIC, AlphaBeta(1200.0, 1700.0)),
    "dgx2_like": lambda: dgx2_like(FAST, NIC),
    "rails": lambda: rails(FAST, NIC),
    "ring": lambda: ring(FAST),
    "torus": lambda: torus(FAST),
    "tree": lambda: tree(SLOW, AlphaBeta(500.0, 800.0)),
}

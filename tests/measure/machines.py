"""Machines with known alpha, beta and ports, to be profiled blind."""

from taccl_py.discover.graphs import read_node_link
from taccl_py.topology.machines import formula_topology
from taccl_py.topology.template import (
    Cost,
    Network,
    Nic,
    NodeLink,
    NodePort,
    NodeSwitch,
    NodeTemplate,
    PortSide,
    Reach,
    Side,
    instantiate,
)

IB = Cost(2.6, 105.0)


def ndv2_like():
    """2 nodes of 4: a square of NVLink of two rates, one NIC for all."""
    fast, slow = Cost(0.7, 23.0), Cost(0.7, 46.0)
    pairs = {(0, 1): fast, (2, 3): fast, (0, 2): slow, (1, 3): slow}
    links = tuple(NodeLink(*ends, cost) for (a, b), cost in pairs.items() for ends in ((a, b), (b, a)))
    return instantiate(NodeTemplate("ndv2-like", "", "", 4, links=links, nics=(Nic("ib", (0, 1, 2, 3), IB),)), 2)


def pcie_shared():
    """One node of 4: two PCIe switches of two GPUs, whose uplinks carry what leaves them."""
    cost = Cost(1.5, 80.0)
    links = []
    for a in range(4):
        for b in range(4):
            if a != b:
                way = ()
                if a // 2 != b // 2:
                    way = (PortSide(f"up{a // 2}", Side.OUT), PortSide(f"up{b // 2}", Side.IN))
                links.append(NodeLink(a, b, cost, ports=way))
    ports = tuple(NodePort(f"up{i}", Cost(0.0, 80.0)) for i in range(2))
    return instantiate(NodeTemplate("pcie-shared", "", "", 4, links=tuple(links), ports=ports))


def dgx2_like():
    """2 nodes of 4 on a switch, each two ranks with a NIC."""
    nics = (Nic("ib0", (0, 1), IB), Nic("ib1", (2, 3), IB))
    return instantiate(
        NodeTemplate("dgx2-like", "", "", 4, switches=(NodeSwitch("nvs", (0, 1, 2, 3), Cost(0.7, 8.0)),), nics=nics), 2
    )


def rails():
    """2 nodes of 8 on a switch; every rank has a NIC of its own and reaches only its peer."""
    ranks = tuple(range(8))
    return instantiate(
        NodeTemplate(
            "rails", "", "", 8, switches=(NodeSwitch("nvs", ranks, Cost(0.5, 4.0)),),
            nics=tuple(Nic(f"ib{r}", (r,), Cost(3.0, 40.0)) for r in ranks), network=Network(Reach.RAIL),
        ),
        2,
    )  # fmt: skip


def tree():
    """8 ranks, four on each of two leaf switches; uplinks at half the rate of what is below them."""
    nodes = [{"id": i, "node": i} for i in range(8)] + [{"id": f"leaf{i}", "type": "switch"} for i in range(2)]
    edges = [{"source": i, "target": f"leaf{i // 4}", "alpha_us": 1.0, "beta_us_per_mb": 40.0} for i in range(8)]
    edges.append({"source": "leaf0", "target": "leaf1", "alpha_us": 0.5, "beta_us_per_mb": 20.0})
    return read_node_link({"nodes": nodes, "links": edges}, "tree.json", "tree")


def small_nodes(nodes):
    """Nodes of 2 ranks with a link and a NIC each."""
    links = (NodeLink(0, 1, Cost(0.5, 8.0)), NodeLink(1, 0, Cost(0.5, 8.0)))
    return instantiate(NodeTemplate("small", "", "", 2, links=links, nics=(Nic("ib", (0, 1), IB),)), nodes)


def racks():
    """4 nodes of 2 ranks, two nodes on each of two leaf switches; a third of what is below goes up."""
    nodes = [{"id": i, "node": i // 2} for i in range(8)] + [{"id": f"leaf{i}", "type": "switch"} for i in range(2)]
    edges = [{"source": i, "target": f"leaf{i // 4}", "alpha_us": 1.0, "beta_us_per_mb": 40.0} for i in range(8)]
    edges.append({"source": "leaf0", "target": "leaf1", "alpha_us": 0.5, "beta_us_per_mb": 30.0})
    return read_node_link({"nodes": nodes, "links": edges}, "racks.json", "racks")


def ring():
    return formula_topology("ring:8,alpha_us=2,beta_us_per_mb=30")


def torus():
    return formula_topology("torus:3x4,alpha_us=0.9,beta_us_per_mb=25")


MACHINES = {
    make.__name__: make for make in (ndv2_like, pcie_shared, dgx2_like, rails, tree, ring, torus)
}  # fmt: skip

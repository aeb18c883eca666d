"""One server as dumps describe it: GPUs, NICs, and the switches, CPUs and wires between them; and the node that it makes.

* GPU links (NVLink, xGMI) become links; where they lead to a switch, a switch.
* GPUs that GPU links do not join, over whatever other GPUs, reach each other through PCIe and the CPUs: links that share a
  port for each wire on their path. Where GPU links join them, PCIe paths between them are left out, as NCCL does.
* A GPU uses the NICs that the widest path leads to, and of those the nearest, as NCCL does (``ncclTopoGetLocal``). Equal NICs
  are dealt out among the GPUs that are equally near; where there are more GPUs than NICs, they share. What lies between is a
  port.
* A port that cannot bind, because another one is shared by the same and is as slow, is left out.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from enum import StrEnum

from taccl_py.discover.node_symmetry import node_symmetry
from taccl_py.discover.pruning import prune_ports
from taccl_py.discover.rates import GPU_LINK_ALPHA_US, NETWORK_ALPHA_US, PCI_ALPHA_US
from taccl_py.errors import InputError
from taccl_py.topology.model import Medium
from taccl_py.topology.template import AlphaBeta, Nic, NodeLink, NodePort, NodeSwitch, NodeTemplate, PortSide, Side


class DeviceKind(StrEnum):
    """Kinds of devices that a wire can end at."""

    GPU = "gpu"
    NIC = "nic"
    INNER = "inner"  # a PCIe switch: messages pass
    CPU = "cpu"  # messages pass too


_PASSED = (DeviceKind.INNER, DeviceKind.CPU)


@dataclass(frozen=True, slots=True)
class DeviceLink:
    """A full duplex wire between two devices; `PortSide` out is from `low` to `high`.

    Attributes
    ----------
    name
        Unique name.
    low, high
        Devices; of a PCIe slot, the device and what it is plugged into.
    gbps
        Bandwidth of one direction.
    """

    name: str
    low: str
    high: str
    gbps: float


@dataclass(frozen=True, slots=True)
class GpuLink:
    """A direct connection from one GPU to another, all its parallel links together."""

    src: str
    dst: str
    gbps: float


@dataclass(frozen=True, slots=True)
class NetPort:
    """A network port: the NIC device that it belongs to, its rate, the latency that its driver states, and whether it has GPUDirect RDMA."""

    device: str
    gbps: float
    latency_us: float = 0.0
    gpudirect: bool = False


@dataclass
class Box:
    """Server or rack, as a reader found it.

    Attributes
    ----------
    gpus
        GPUs, in the order of their ranks.
    kinds
        Kind of each device.
    wires
        PCIe and what joins CPUs.
    gpu_links
        Direct NVLink or xGMI; of graph dumps whatever joins the GPUs.
    switched_gbps
        GPUs on the NVLink switch, each with its rate.
    nets
        Network ports.
    inside
        Medium that joins the GPUs, where the file says it; None: as `gpu_links` and `wires` tell.
    model
        Name of the GPU in `taccl_py.discover.gpus.GPU_MODELS`, empty where nothing says it.
    guess
        How the model was guessed, as a sentence for the user; empty where the user or the file names it.
    """

    gpus: list[str] = field(default_factory=list)
    kinds: dict[str, DeviceKind] = field(default_factory=dict)
    wires: list[DeviceLink] = field(default_factory=list)
    gpu_links: list[GpuLink] = field(default_factory=list)
    switched_gbps: dict[str, float] = field(default_factory=dict)
    nets: list[NetPort] = field(default_factory=list)
    inside: Medium | None = None
    model: str = ""
    guess: str = ""

    def add(self, name: str, kind: DeviceKind) -> None:
        """Add a device.

        Raises
        ------
        InputError
            If there is one of this name.
        """
        if name in self.kinds:
            raise InputError(f"the device {name} stands twice; dump the machine again")
        self.kinds[name] = kind

    def wire(self, low: str, high: str, gbps: float, name: str = "") -> None:
        """Join two devices; without a name the wire is called after its lower end."""
        self.wires.append(DeviceLink(name or _port_name(low), low, high, gbps))

    def join_cpus(self, cpus: list[str], gbps: float) -> None:
        """Join every two CPUs."""
        for index, low in enumerate(cpus):
            for high in cpus[index + 1 :]:
                self.wire(low, high, gbps, f"{_port_name(low)}-{_port_name(high)}")


def _port_name(device: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", device)
    return name if name[:1].isalpha() else f"pci-{name}"


def node_of_box(box: Box, name: str, description: str, source: str) -> NodeTemplate:
    """Return the node that a server makes.

    Parameters
    ----------
    box
        The server.
    name, description, source
        Of the topology.

    Raises
    ------
    InputError
        If it has no GPU.
    """
    if not box.gpus:
        raise InputError("holds no GPU; dump the topology on a node with GPUs, and with all of them in the job")
    paths = {gpu: _paths_from(box, gpu) for gpu in box.gpus}
    nics = _nics(box, paths)
    pci_links = _pci_links(box, paths)
    links = [*_gpu_links(box), *pci_links]
    ports = tuple(NodePort(wire.name, AlphaBeta(0.0, 1000 / wire.gbps)) for wire in box.wires)
    switches: tuple[NodeSwitch, ...] = ()
    if len(box.switched_gbps) > 1:
        switches = (_switch(box),)
    node = NodeTemplate(
        name, description, source, len(box.gpus), tuple(links), switches, tuple(nics), ports,
        inside=_inside(box, bool(pci_links)), gpu=box.model, near_nics=_are_near(box, paths),
    )  # fmt: skip
    node = prune_ports(node)
    return replace(node, symmetry=node_symmetry(node))


def _switch(box: Box) -> NodeSwitch:
    """The NVLink switch: NCCL merges all of them into one. The rate that most GPUs have is the switch's."""
    rates = [(rank, box.switched_gbps[gpu]) for rank, gpu in enumerate(box.gpus) if gpu in box.switched_gbps]
    counts = Counter(gbps for _, gbps in rates)
    usual = max(counts, key=lambda gbps: (counts[gbps], gbps))
    costs = {gbps: AlphaBeta(GPU_LINK_ALPHA_US, 1000 / gbps) for gbps in counts}
    others = tuple((rank, costs[gbps]) for rank, gbps in rates if gbps != usual)
    return NodeSwitch("nvswitch", tuple(rank for rank, _ in rates), costs[usual], rank_costs=others)


def _inside(box: Box, over_pci: bool) -> Medium:
    if box.inside is not None:
        return box.inside
    if over_pci:
        return Medium.PCIE
    return Medium.NVLINK if box.gpu_links or box.switched_gbps else Medium.UNKNOWN


@dataclass(frozen=True, slots=True)
class _DevicePath:
    """Wires from a GPU to another device, each with the direction in which it is passed, and the kinds of what lies between."""

    uses: tuple[tuple[DeviceLink, Side], ...]
    passed: tuple[DeviceKind, ...] = ()

    @property
    def gbps(self) -> float:
        return min(wire.gbps for wire, _ in self.uses)

    @property
    def distance(self) -> int:
        """Nearness of the other device, in NCCL's order: behind one PCIe switch, behind several, at one CPU, at another CPU."""
        cpus = self.passed.count(DeviceKind.CPU)
        return 1 + min(cpus, 2) if cpus else int(len(self.passed) > 1)

    @property
    def sides(self) -> tuple[PortSide, ...]:
        return tuple(PortSide(wire.name, side) for wire, side in self.uses)


def _paths_from(box: Box, gpu: str) -> dict[str, _DevicePath]:
    """Shortest path from a GPU to every device, through switches and CPUs only."""
    beside: dict[str, list[tuple[str, DeviceLink, Side]]] = {}
    for wire in box.wires:
        beside.setdefault(wire.low, []).append((wire.high, wire, Side.OUT))
        beside.setdefault(wire.high, []).append((wire.low, wire, Side.IN))
    for ends in beside.values():
        ends.sort(key=lambda end: -end[1].gbps)  # of two paths of one length the one that starts wider
    paths = {gpu: _DevicePath(())}
    waiting = deque([gpu])
    while waiting:
        here = waiting.popleft()
        for there, wire, side in beside.get(here, []):
            if there in paths:
                continue
            between = (*paths[here].passed, box.kinds[here]) if here != gpu else ()
            paths[there] = _DevicePath((*paths[here].uses, (wire, side)), between)
            if box.kinds[there] in _PASSED:
                waiting.append(there)
    del paths[gpu]
    return paths


def _gpu_links(box: Box) -> list[NodeLink]:
    rank_of = {gpu: rank for rank, gpu in enumerate(box.gpus)}
    rates: dict[tuple[int, int], float] = {}
    for link in box.gpu_links:
        if link.src in rank_of and link.dst in rank_of:  # others are not in the job
            pair = rank_of[link.src], rank_of[link.dst]
            rates[pair] = rates.get(pair, 0.0) + link.gbps
    alpha_us = PCI_ALPHA_US if box.inside is Medium.PCIE else GPU_LINK_ALPHA_US
    return [NodeLink(*pair, AlphaBeta(alpha_us, 1000 / gbps)) for pair, gbps in sorted(rates.items())]


def _islands(box: Box) -> dict[str, int]:
    """For every GPU a number that it shares with those that GPU links join it to."""
    island = {gpu: index for index, gpu in enumerate(box.gpus)}
    switched = list(box.switched_gbps)
    pairs = [(link.src, link.dst) for link in box.gpu_links]
    pairs += [(switched[0], other) for other in switched[1:]]
    for src, dst in pairs:
        if src in island and dst in island:
            old, new = island[dst], island[src]
            island = {gpu: new if number == old else number for gpu, number in island.items()}
    return island


def _pci_links(box: Box, paths: dict[str, dict[str, _DevicePath]]) -> list[NodeLink]:
    island = _islands(box)
    links = []
    for src, gpu in enumerate(box.gpus):
        for dst, other in enumerate(box.gpus):
            if island[gpu] == island[other] or other not in paths[gpu]:
                continue
            path = paths[gpu][other]
            links.append(NodeLink(src, dst, AlphaBeta(PCI_ALPHA_US, 1000 / path.gbps), ports=path.sides))
    return links


def _nics(box: Box, paths: dict[str, dict[str, _DevicePath]]) -> list[Nic]:
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, gpu in enumerate(box.gpus):
        groups.setdefault(_nearest(box, paths[gpu]), []).append(rank)
    serving: dict[int, list[int]] = {}
    for nets, ranks in groups.items():
        if not nets:
            continue
        for place in range(max(len(nets), len(ranks))):
            if len(nets) >= len(ranks):
                net, rank = nets[place], ranks[place * len(ranks) // len(nets)]
            else:
                net, rank = nets[place * len(nets) // len(ranks)], ranks[place]
            serving.setdefault(net, []).append(rank)
    nics = []
    for number, index in enumerate(sorted(serving)):
        port, served = box.nets[index], tuple(sorted(serving[index]))
        via = {rank: paths[box.gpus[rank]][port.device].sides for rank in served}
        cost = AlphaBeta(NETWORK_ALPHA_US + port.latency_us, 1000 / port.gbps)
        nics.append(Nic(f"net{number}", served, cost, via))
    return nics


def _are_near(box: Box, paths: dict[str, dict[str, _DevicePath]]) -> bool:
    """True if every GPU's nearest NICs write into its memory themselves, and without a CPU between."""
    return bool(box.nets) and all(
        box.nets[net].gpudirect and DeviceKind.CPU not in paths[gpu][box.nets[net].device].passed
        for gpu in box.gpus
        for net in _nearest(box, paths[gpu])
    )


def _nearest(box: Box, paths: dict[str, _DevicePath]) -> tuple[int, ...]:
    """Network ports with the widest path, and the nearest of those."""
    reached = [(index, paths[net.device]) for index, net in enumerate(box.nets) if net.device in paths]
    ranking = {index: (-min(path.gbps, box.nets[index].gbps), path.distance) for index, path in reached}
    best = min(ranking.values(), default=None)
    return tuple(index for index, place in ranking.items() if place == best)

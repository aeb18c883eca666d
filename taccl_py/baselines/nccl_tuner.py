"""NCCL's own model of time, by which it chooses an algorithm and a protocol for every call.

All formulas and constants are those of NCCL 2.30.7 (``src/graph/tuning.cc``). They are tuning constants, not measurements,
and their times are on another scale than a schedule's: use them to see what NCCL would choose, and compare schedules with
schedules.

    time_us(size) = latency_us + size / bandwidth        size in bytes as nccl-tests counts it
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from taccl_py.collective import Kind
from taccl_py.lowering.program import Protocol


class GpuGeneration(StrEnum):
    """Generations of GPUs that NCCL tells apart."""

    VOLTA = "volta"
    AMPERE = "ampere"
    HOPPER = "hopper"
    BLACKWELL = "blackwell"


class NcclAlgorithm(StrEnum):
    """NCCL's algorithms, spelled as in ``NCCL_ALGO``."""

    RING = "Ring"
    TREE = "Tree"
    NVLS = "NVLS"
    NVLS_TREE = "NVLSTree"
    PAT = "PAT"


@dataclass(frozen=True, slots=True)
class Graph:
    """Result of NCCL's search for channels (``NCCL_GRAPH_DUMP_FILE`` writes it).

    Attributes
    ----------
    channels
        Before NCCL doubles them.
    intra_gbps, inter_gbps
        Of one channel, inside nodes and between them.
    inter_latency_us
        Of the network, as NICs state it.
    """

    channels: int
    intra_gbps: float
    inter_gbps: float
    inter_latency_us: float = 0.0


@dataclass(frozen=True, slots=True)
class NcclRanks:
    """Machine as NCCL's tuner knows it.

    Attributes
    ----------
    gpu
        Generation.
    num_ranks, num_nodes
        Of the communicator.
    graph
        Of rings.
    tree
        Of trees, or None for the same.
    nvls
        Of NVLS, or None where the switch cannot.
    nvlink
        Whether NVLink joins the GPUs of a node; PCI does otherwise.
    amd_cpu
        Whether CPUs are AMD's or mixed.
    mixed
        Whether GPUs are of several models; NCCL leaves out LL128 then.
    """

    gpu: GpuGeneration
    num_ranks: int
    num_nodes: int
    graph: Graph
    nvls: Graph | None = None
    tree: Graph | None = None
    nvlink: bool = True
    amd_cpu: bool = False
    mixed: bool = False

    @property
    def ranks_per_node(self) -> float:
        """Mean number."""
        return self.num_ranks / self.num_nodes


@dataclass(frozen=True, slots=True)
class NcclPrediction:
    """One line of NCCL's model."""

    algorithm: NcclAlgorithm
    protocol: Protocol
    latency_us: float
    bandwidth_gbps: float

    def time_us(self, size_bytes: float) -> float:
        """Time of a size, without the corrections that depend on it."""
        return self.latency_us + size_bytes / (1000 * self.bandwidth_gbps)


@dataclass(frozen=True, slots=True)
class NcclChoice:
    """NCCL's choice for a size, and the time that it expects."""

    algorithm: NcclAlgorithm
    protocol: Protocol
    time_us: float


@dataclass(frozen=True, slots=True)
class _Three:
    """A figure for every protocol."""

    ll: float
    ll128: float
    simple: float

    def of(self, protocol: Protocol) -> float:
        """The protocol's."""
        return {Protocol.LL: self.ll, Protocol.LL128: self.ll128, Protocol.SIMPLE: self.simple}[protocol]


@dataclass(frozen=True, slots=True)
class _Rates:
    """GB/s on one node, on two, and on more: all of LL together, and what one channel can do."""

    ll: tuple[float, float, float]
    ring_ll128: tuple[float, float, float]
    tree_ll128: tuple[float, float, float]
    tree: tuple[float, float, float]
    nvls_tree: tuple[float, float, float]


_BASE_US = {
    NcclAlgorithm.TREE: _Three(6.8, 14, 8.4),
    NcclAlgorithm.RING: _Three(6.6, 14, 8.4),
    NcclAlgorithm.PAT: _Three(8, 8, 8),
}
_NVLINK_US = {
    NcclAlgorithm.TREE: _Three(0.6, 1.25, 4.0),
    NcclAlgorithm.RING: _Three(0.6, 1.9, 3.4),
    NcclAlgorithm.NVLS: _Three(25, 25, 25),
    NcclAlgorithm.NVLS_TREE: _Three(25, 25, 25),
    NcclAlgorithm.PAT: _Three(4.0, 4.0, 4.0),
}
_PCI_US = {
    NcclAlgorithm.TREE: _Three(1.0, 1.9, 4.0),
    NcclAlgorithm.RING: _Three(1.0, 2.5, 5.7),
    NcclAlgorithm.NVLS: _Three(0, 0, 0),
    NcclAlgorithm.NVLS_TREE: _Three(0, 0, 0),
    NcclAlgorithm.PAT: _Three(4.0, 4.0, 4.0),
}
_NET_US = {
    NcclAlgorithm.TREE: _Three(5.0, 8.5, 14),
    NcclAlgorithm.RING: _Three(2.7, 4.0, 14),
    NcclAlgorithm.NVLS: _Three(18, 18, 18),
    NcclAlgorithm.NVLS_TREE: _Three(20.9, 20.9, 20.9),
    NcclAlgorithm.PAT: _Three(14, 14, 14),
}
_RATES = {
    GpuGeneration.VOLTA: _Rates((39, 39, 20.4), (20, 20, 20), (20, 20, 20), (26.5, 18.5, 10), (26.5, 18.5, 10)),
    GpuGeneration.AMPERE: _Rates((87.7, 22.5, 19), (20, 20, 20), (20, 20, 20), (24, 23.6, 17.8), (24, 23.6, 17.8)),
    GpuGeneration.HOPPER: _Rates(
        (141, 45, 35), (36.7, 36.7, 36.7), (36.7, 36.7, 29), (38.7, 41.4, 36), (0, 57.7, 45.5)
    ),
    GpuGeneration.BLACKWELL: _Rates((282, 90, 70), (40, 40, 40), (55.6, 31.67, 20), (70, 42.8, 24), (0, 96, 80)),
}
_NVLS_EFFICIENCY = {GpuGeneration.HOPPER: 0.85, GpuGeneration.BLACKWELL: 0.74}
# Part of a tree's bandwidth that is left at 64 bytes, 128, 256, ...
_TREE_CORRECTION = {
    Protocol.LL: (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    Protocol.LL128: (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    Protocol.SIMPLE: (
        0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9,
    ),
}  # fmt: skip
_GATHERS = (Kind.ALLGATHER, Kind.REDUCESCATTER)


def predictions(nccl: NcclRanks, kind: Kind) -> tuple[NcclPrediction, ...]:
    """Candidates of NCCL for a collective; none for those that it makes of single sends and receives."""
    found = []
    for algorithm, protocol in _possible(nccl, kind):
        bus_gbps = _bus_gbps(nccl, kind, algorithm, protocol)
        if bus_gbps > 0:
            bandwidth_gbps = bus_gbps * _share(nccl, kind, algorithm)
            latency_us = _latency_us(nccl, kind, algorithm, protocol)
            found.append(NcclPrediction(algorithm, protocol, latency_us, bandwidth_gbps))
    return tuple(found)


def expected_us(nccl: NcclRanks, kind: Kind, prediction: NcclPrediction, size_bytes: float) -> float:
    """Time that NCCL expects of a line of its model at a size, with its corrections."""
    latency_us, bandwidth_gbps = prediction.latency_us, prediction.bandwidth_gbps
    if prediction.algorithm is NcclAlgorithm.TREE and kind is Kind.ALLREDUCE:
        place = (int(size_bytes) // 64).bit_length() - 1
        correction = _TREE_CORRECTION[prediction.protocol]
        bandwidth_gbps *= correction[place] if 0 <= place < len(correction) else 1
    is_plain_ring = prediction.algorithm is NcclAlgorithm.RING and prediction.protocol is Protocol.SIMPLE
    per_channel = size_bytes / (nccl.graph.channels * nccl.num_ranks)
    if is_plain_ring and kind is Kind.ALLREDUCE and nccl.num_nodes > 1 and per_channel >= 64:
        latency_us *= 1.9 if nccl.gpu is GpuGeneration.VOLTA else 1.4
    return latency_us + size_bytes / (1000 * bandwidth_gbps)


def choose(nccl: NcclRanks, kind: Kind, size_bytes: float) -> NcclChoice | None:
    """NCCL's choice for a size; None for collectives that it makes of single sends and receives."""
    choices = [
        NcclChoice(p.algorithm, p.protocol, expected_us(nccl, kind, p, size_bytes)) for p in predictions(nccl, kind)
    ]
    return min(choices, key=lambda choice: choice.time_us, default=None)


def _possible(nccl: NcclRanks, kind: Kind) -> list[tuple[NcclAlgorithm, Protocol]]:
    """Pairs that NCCL allows without anybody's asking: LL128 where NVLink joins the GPUs of a node, all of one model."""
    if kind in (Kind.ALLTOALL, Kind.GATHER, Kind.SCATTER):
        return []
    protocols = [p for p in Protocol if p is not Protocol.LL128 or (nccl.nvlink and not nccl.mixed)]
    found = [(NcclAlgorithm.RING, protocol) for protocol in protocols]
    if kind is Kind.ALLREDUCE:
        found += [(NcclAlgorithm.TREE, protocol) for protocol in protocols]
    if nccl.nvls is not None and nccl.gpu in _NVLS_EFFICIENCY and kind in (Kind.ALLREDUCE, *_GATHERS):
        if nccl.num_nodes == 1:
            found.append((NcclAlgorithm.NVLS, Protocol.SIMPLE))
        elif kind is Kind.ALLREDUCE:
            found.append((NcclAlgorithm.NVLS_TREE, Protocol.SIMPLE))
    if kind in _GATHERS and nccl.num_ranks == nccl.num_nodes:
        found.append((NcclAlgorithm.PAT, Protocol.SIMPLE))
    return found


def _graph(nccl: NcclRanks, algorithm: NcclAlgorithm) -> Graph:
    """The algorithm's own graph where there is one."""
    if algorithm is NcclAlgorithm.TREE and nccl.tree is not None:
        return nccl.tree
    if algorithm in (NcclAlgorithm.NVLS, NcclAlgorithm.NVLS_TREE) and nccl.nvls is not None:
        return nccl.nvls
    return nccl.graph


def _place(nccl: NcclRanks) -> int:
    """Column of the tables by number of nodes."""
    return min(nccl.num_nodes, 3) - 1


def _bus_gbps(nccl: NcclRanks, kind: Kind, algorithm: NcclAlgorithm, protocol: Protocol) -> float:
    if algorithm in (NcclAlgorithm.NVLS, NcclAlgorithm.NVLS_TREE):
        return _nvls_gbps(nccl, kind, algorithm)
    graph, place = _graph(nccl, algorithm), _place(nccl)
    rates = _RATES[nccl.gpu]
    bus_gbps = graph.channels * (graph.intra_gbps if nccl.num_nodes <= 2 else graph.inter_gbps)
    # On several nodes it is the CPU that limits LL, and NCCL keeps its figures in rows of other names.
    of_cpu = _RATES[GpuGeneration.AMPERE if nccl.amd_cpu else GpuGeneration.VOLTA]
    most_ll_gbps = (rates if nccl.num_nodes == 1 else of_cpu).ll[place]
    if algorithm is NcclAlgorithm.PAT:
        return 0.75 * bus_gbps
    if algorithm is NcclAlgorithm.RING:
        match protocol:
            case Protocol.LL:
                return min(most_ll_gbps, bus_gbps / 2)
            case Protocol.LL128:
                return min(0.92 * bus_gbps, graph.channels * rates.ring_ll128[place])
            case Protocol.SIMPLE:
                return bus_gbps
    bus_gbps = min(0.92 * bus_gbps, graph.channels * rates.tree[place])
    match protocol:
        case Protocol.LL:
            return min(bus_gbps / 3.8, most_ll_gbps)
        case Protocol.LL128:
            part = 7 / 9 if nccl.num_nodes == 1 else 120 / 128
            return min(bus_gbps * part, graph.channels * rates.tree_ll128[place])
        case Protocol.SIMPLE:
            return bus_gbps


def _nvls_gbps(nccl: NcclRanks, kind: Kind, algorithm: NcclAlgorithm) -> float:
    graph, ranks = nccl.nvls, nccl.ranks_per_node
    if graph is None or graph.channels < 2:
        return 0.0
    gain = 2 if kind is Kind.ALLREDUCE else (ranks - 1) / ranks
    channel_gbps = graph.intra_gbps * _NVLS_EFFICIENCY[nccl.gpu] * (graph.channels - 1) / graph.channels * gain
    if algorithm is NcclAlgorithm.NVLS_TREE:
        inter_gbps = graph.inter_gbps * (2 if nccl.num_nodes <= 2 else 1)
        channel_gbps = min(channel_gbps, inter_gbps, _RATES[nccl.gpu].nvls_tree[_place(nccl)])
    return graph.channels * channel_gbps


def _num_steps(nccl: NcclRanks, kind: Kind) -> int:
    """Steps of a ring."""
    n = nccl.num_ranks
    return 2 * (n - 1) if kind is Kind.ALLREDUCE else n - 1 if kind in _GATHERS else n


def _share(nccl: NcclRanks, kind: Kind, algorithm: NcclAlgorithm) -> float:
    """Algorithm bandwidth over the bandwidth of the channels."""
    if algorithm is not NcclAlgorithm.RING and kind in _GATHERS:
        return 1.0
    if algorithm in (NcclAlgorithm.RING, NcclAlgorithm.NVLS, NcclAlgorithm.NVLS_TREE):
        return nccl.num_ranks / _num_steps(nccl, kind)
    return 0.5


def _latency_us(nccl: NcclRanks, kind: Kind, algorithm: NcclAlgorithm, protocol: Protocol) -> float:
    local = _NVLINK_US if nccl.nvlink else _PCI_US
    intra_us = local[algorithm].of(protocol)
    network = NcclAlgorithm.TREE if nccl.ranks_per_node == 1 else algorithm
    times = 2 if protocol is Protocol.SIMPLE else 1
    inter_us = _NET_US[network].of(protocol) + times * _graph(nccl, algorithm).inter_latency_us
    base_us = _BASE_US[algorithm].of(protocol) if algorithm in _BASE_US else 0.0
    doublings = nccl.num_nodes.bit_length() - 1
    match algorithm:
        case NcclAlgorithm.RING if kind in (Kind.BROADCAST, Kind.REDUCE):
            return base_us + (intra_us if nccl.num_nodes == 1 else _NET_US[NcclAlgorithm.RING].of(protocol))
        case NcclAlgorithm.RING:
            num_inter = 0 if nccl.num_nodes == 1 else (nccl.num_nodes - 1) * (2 if kind is Kind.ALLREDUCE else 1)
            overhead_us = 0.0 if nccl.num_nodes == 1 else (2.0 if nccl.amd_cpu else 1.0)
            overhead_us *= 3 if protocol is Protocol.SIMPLE else 1
            num_intra = _num_steps(nccl, kind) - num_inter
            return base_us + num_intra * max(intra_us, overhead_us) + num_inter * inter_us
        case NcclAlgorithm.TREE:
            return base_us + 2 * ((nccl.ranks_per_node - 1) * intra_us + doublings * inter_us)
        case NcclAlgorithm.NVLS:
            return intra_us + (inter_us if nccl.num_nodes > 1 else 0.0)
        case NcclAlgorithm.NVLS_TREE:
            return intra_us + 2 * doublings * inter_us
        case NcclAlgorithm.PAT:
            return base_us + doublings * inter_us / 3.5 + 2.8 * nccl.num_ranks

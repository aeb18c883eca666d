"""NCCL's graph of a machine, predicted as far as a topology tells.

NCCL tries channel speeds from a table, the fastest first, and keeps as many channels as fit. That is repeated here with the
node's bandwidths; a dump of the real search is better where there is one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from taccl_py.baselines.nccl_tuner import GpuGeneration, Graph, NcclRanks
from taccl_py.discover.gpus import GPU_MODELS, GpuModel
from taccl_py.errors import InputError
from taccl_py.tolerances import RELATIVE
from taccl_py.topology.model import GPUS_TOGETHER, Medium, Topology

# GB/s of one channel that NCCL tries inside a node and between nodes, in its order (``src/graph/search.cc``).
_INTRA_GBPS: dict[GpuGeneration, tuple[float, ...]] = {
    GpuGeneration.AMPERE: (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3),
    GpuGeneration.HOPPER: (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3),
    GpuGeneration.BLACKWELL: (90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18),
}
_INTER_GBPS: dict[GpuGeneration, tuple[float, ...]] = {
    GpuGeneration.AMPERE: (48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2, 0.24, 0.12),
    GpuGeneration.HOPPER: (48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12),
    GpuGeneration.BLACKWELL: (
        96, 86, 80, 48, 45.1, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2, 0.24, 0.12,
    ),
}  # fmt: skip
# What NCCL counts of a link's nominal bandwidth (``src/graph/topo.h``): 20 of 25 GB/s, 20.6 of 25, 40.1 of 50.
_COUNTED = {
    GpuGeneration.VOLTA: 20 / 25,
    GpuGeneration.AMPERE: 20 / 25,
    GpuGeneration.HOPPER: 20.6 / 25,
    GpuGeneration.BLACKWELL: 40.1 / 50,
}
# Channels of at least this rate are cut in two, except on the newest machines.
_CUT_GBPS, _UNCUT_GBPS, _UNCUT_CHANNELS = 25.0, 50.0, 4
# GPUs and CPUs of the shipped machines.
_GPU_OF = {
    "ndv2": GpuGeneration.VOLTA,
    "dgx1": GpuGeneration.VOLTA,
    "dgx2": GpuGeneration.VOLTA,
    "ndv4": GpuGeneration.AMPERE,
    "ndv5": GpuGeneration.HOPPER,
}
_AMD_CPUS = ("ndv4",)


def gpu_of(topology: Topology) -> GpuGeneration | None:
    """Generation of a machine's GPUs, by their model, or by the name of a shipped machine; None where neither tells, or AMD's."""
    return generation_of(topology.gpu) or _GPU_OF.get(_base(topology))


def generation_of(gpu: str) -> GpuGeneration | None:
    """Generation whose constants NCCL takes for a model of GPU, or for several as a topology names them: the oldest, as NCCL does.

    None where NCCL does not run on one of them, or it is not known.
    """
    models = [GPU_MODELS.get(name) for name in gpu.split(GPUS_TOGETHER)]
    known = [tuned_as(model) for model in models if model and model.generation in {*GpuGeneration, "pascal"}]
    return min(known, key=list(GpuGeneration).index) if len(known) == len(models) else None


def tuned_as(model: GpuModel) -> GpuGeneration:
    """The generation whose constants NCCL takes for a GPU: of those before Ampere all are Volta's (``graph/tuning.cc``).

    Raises
    ------
    InputError
        If NCCL does not run on it.
    """
    if model.generation == "pascal":
        return GpuGeneration.VOLTA
    if model.generation not in set(GpuGeneration):
        raise InputError(
            f"NCCL does not run on {model.name}, so it has no choice to compare with; leave it out",
            path="command line",
            field="--gpu",
        )
    return GpuGeneration(model.generation)


def has_amd_cpu(topology: Topology) -> bool:
    """True if a shipped machine has AMD CPUs."""
    return _base(topology) in _AMD_CPUS


def nccl_ranks_of(topology: Topology, gpu: GpuGeneration, *, amd_cpu: bool) -> NcclRanks:
    """Facts about the machine that NCCL's tuner uses.

    Parameters
    ----------
    topology
        The machine.
    gpu
        Generation of its GPUs.
    amd_cpu
        Whether its CPUs are AMD's.
    """
    family = GpuGeneration.AMPERE if gpu is GpuGeneration.VOLTA else gpu
    rank_gbps = sending_gbps(topology) * _COUNTED[gpu]
    num_ranks, num_nodes = topology.num_ranks, topology.num_nodes
    if num_nodes == 1:
        graph = _fitted(rank_gbps, gpu, _INTRA_GBPS[family])
    else:
        nics_gbps = nics_of_node(topology)
        inter_gbps = _at_most(_INTER_GBPS[family], max(nics_gbps))
        channels = max(1, sum(int(nic / inter_gbps + RELATIVE) for nic in nics_gbps))
        intra_gbps = min(inter_gbps, rank_gbps / channels) if len(topology.node_ranks[0]) > 1 else inter_gbps
        graph = Graph(channels, intra_gbps, inter_gbps)
    nvls = None
    local = len(topology.node_ranks[0])
    # Where nothing says what joins the GPUs, NCCL is counted at its best.
    nvlink = topology.inside in (Medium.NVLINK, Medium.UNKNOWN)
    if gpu in (GpuGeneration.HOPPER, GpuGeneration.BLACKWELL) and nvlink and local > 1 and _all_linked(topology):
        rate = _at_most(_INTRA_GBPS[family], rank_gbps / local)
        nvls = Graph(local, rate, rate if num_nodes == 1 else graph.inter_gbps)
    return NcclRanks(
        gpu, num_ranks, num_nodes, graph, nvls, amd_cpu=amd_cpu, nvlink=nvlink, mixed=len(topology.gpu_models) > 1
    )


def _base(topology: Topology) -> str:
    return topology.name.split("-", maxsplit=1)[0]


def _fitted(rank_gbps: float, gpu: GpuGeneration, speeds_gbps: Sequence[float]) -> Graph:
    """As many of the fastest channels as fit into a rank's bandwidth."""
    speed = _at_most(speeds_gbps, rank_gbps)
    channels = math.floor(rank_gbps / speed + RELATIVE)
    newest = gpu in (GpuGeneration.HOPPER, GpuGeneration.BLACKWELL)
    stays = newest and speed < _UNCUT_GBPS and channels > _UNCUT_CHANNELS
    if speed >= _CUT_GBPS and not stays:
        channels, speed = 2 * channels, speed / 2
    return Graph(channels, speed, speed)


def _at_most(speeds_gbps: Sequence[float], limit_gbps: float) -> float:
    """The fastest speed of a table within a limit, or the limit."""
    return max((each for each in speeds_gbps if each <= limit_gbps * (1 + RELATIVE)), default=limit_gbps)


def sending_gbps(topology: Topology) -> float:
    """GB/s that the rank that can send least can send inside its node, each port that its links share counted once.

    Two ranks share what they can send to the others, where links have no ports: a ring comes through every part of a node.
    """
    return min((_least_sent_gbps(topology, ranks) for ranks in topology.node_ranks), default=0.0)


def _least_sent_gbps(topology: Topology, ranks: Sequence[int]) -> float:
    """The same of one node."""
    rates: dict[int, dict[int, float]] = {rank: {} for rank in ranks}
    between: dict[tuple[int, int], float] = {}
    has_ports = False
    for index, link in enumerate(topology.links):
        if link.src in rates and link.dst in rates:
            resource, gbps = _sending(topology, index)
            rates[link.src][resource] = gbps
            between[link.src, link.dst] = between.get((link.src, link.dst), 0.0) + gbps
            has_ports = has_ports or bool(link.ports)
    sent = {rank: sum(each.values()) for rank, each in rates.items()}
    least = min(sent.values())
    if has_ports or len(ranks) < 3 or math.isinf(max(sent.values())):
        return least
    pairs = (sent[a] + sent[b] - gbps - between.get((b, a), 0.0) for (a, b), gbps in between.items())
    # Two ranks that are linked with each other alone reach the others of their node by other ways.
    return min([least, *(gbps for gbps in pairs if gbps > RELATIVE * least)])


def nics_of_node(topology: Topology) -> list[float]:
    """Rate in GB/s of every NIC through which the node that can send least sends to others; NCCL takes the least of all ranks, too."""
    rates: list[dict[int, float]] = [{} for _ in topology.node_ranks]
    for index, link in enumerate(topology.links):
        if not topology.is_inside(link):
            rates[topology.node_of[link.src]].update([_sending(topology, index)])
    return min(([*each.values()] for each in rates), key=sum) or [0.12]


def _sending(topology: Topology, link: int) -> tuple[int, float]:
    """Resource that limits a link on its sender's side, and its rate in GB/s; the link itself where it has no ports."""
    resources = topology.resources_of[link]
    sender = resources[1 : 1 + len(resources) // 2] or resources[:1]
    slowest = max(sender, key=lambda each: topology.resource_cost[each][1])
    beta = topology.resource_cost[slowest][1]
    return slowest, 1000 / beta if beta > 0 else math.inf


def _all_linked(topology: Topology) -> bool:
    return all(
        (a, b) in topology.links_between for ranks in topology.node_ranks for a in ranks for b in ranks if a != b
    )

"""Time of NCCL's algorithms under a runtime profile: ring, tree, NVLS, NVLSTree, and single sends and receives.

`taccl_py.baselines.nccl_tuner` is NCCL's own model, by which it chooses; this is how long what it may choose takes:

    time = launch + steps * (operation + hop) + the largest of   bytes of a GPU  / usable rate of its links,
                                                                 bytes of a node / usable rate of its NICs,
                                                                 bytes of a channel / rate of its threadblock

Steps within a node and over NICs (near and far) have hops of their own; bytes count with the protocol's flags. NCCL takes
fewer channels for small sizes, because "a channel must have bytes" (``src/enqueue.cc``: at least 8 per thread for LL and LL128, 64
for Simple, and rings of LL as often as there are ranks). RCCL's rings and trees are timed alike, without LL128.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from taccl_py.baselines.nccl_graph import Graphs
from taccl_py.baselines.nccl_ranks import gpu_of, has_amd_cpu, nccl_ranks_of, nics_of_node, sending_gbps
from taccl_py.baselines.nccl_tuner import GpuGeneration, NcclAlgorithm, NcclRanks
from taccl_py.collective import Kind
from taccl_py.errors import InputError
from taccl_py.lowering.program import Protocol
from taccl_py.profiles.model import ProtocolCosts, RuntimeProfile
from taccl_py.profiles.view import usable_shares
from taccl_py.topology.model import Medium, Topology

DIRECT = "send and receive"
ALGORITHMS = (
    *(str(each) for each in (NcclAlgorithm.RING, NcclAlgorithm.TREE, NcclAlgorithm.NVLS, NcclAlgorithm.NVLS_TREE)),
    DIRECT,
)

_GB_PER_S_US = 1000.0  # a rate of 1 GB/s is 1000 bytes per microsecond
# NCCL makes two channels of each that its search finds (``src/graph/connect.cc``), at most so many; RCCL has as many as this.
_MOST_CHANNELS, _DOUBLED = 32, 2
# Threads of a channel, and the least bytes that each of them must have (NCCL 2.23, ``src/enqueue.cc``).
_THREADS = {Protocol.LL: 512, Protocol.LL128: 640, Protocol.SIMPLE: 512}
_LEAST_BYTES = {Protocol.LL: 8, Protocol.LL128: 8, Protocol.SIMPLE: 64}
# Bytes to one peer up to which single sends use LL, and what a channel passes on at once in Broadcast and Reduce.
_DIRECT_LL_BYTES, _PIECE_BYTES = 16384, 524288
# Part of a tree's bandwidth that NCCL counts (``src/graph/tuning.cc``).
_TREE_EFFICIENCY = 0.92
_GATHERS = (Kind.ALLGATHER, Kind.REDUCESCATTER)
_CHAINS = (Kind.BROADCAST, Kind.REDUCE)


@dataclass(frozen=True)
class NcclMachine:
    """A machine as NCCL uses it.

    Attributes
    ----------
    topology
        The machine.
    channels
        Channels of rings and trees.
    nvls
        Whether NVLink SHARP is used.
    ll128
        Whether LL128 is used.
    rank_gbps, nic_gbps
        Nominal rate of a GPU's links inside its node, and of all NICs of a node, in one direction; 0 for NICs on one node.
    fabric
        Network that needs a term of its own, by its name in the profile's ``fabric_us``; empty for InfiniBand and RoCE.
    gpus_per_process
        GPUs that one process drives.
    """

    topology: Topology
    channels: int
    nvls: bool
    ll128: bool
    rank_gbps: float
    nic_gbps: float
    fabric: str = ""
    gpus_per_process: int = 1

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return self.topology.num_ranks

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.topology.num_nodes

    @property
    def per_node(self) -> float:
        """Mean number of ranks of a node."""
        return self.num_ranks / self.num_nodes


def nccl_machine(
    topology: Topology,
    *,
    gpu: GpuGeneration | None = None,
    graphs: Graphs | None = None,
    fabric: str = "",
    gpus_per_process: int = 1,
) -> NcclMachine:
    """Machine as NCCL or RCCL uses it.

    Parameters
    ----------
    topology
        The machine.
    gpu
        Generation of its GPUs, or None for what the topology tells.
    graphs
        Result of NCCL's search on the machine, or None to estimate it.
    fabric
        Name of the network, such as ``efa``; empty for none that needs a term of its own.
    gpus_per_process
        GPUs that one process drives: N of ``-g N``.
    """
    generation = gpu or gpu_of(topology)
    nccl: NcclRanks | None = None
    channels = _MOST_CHANNELS
    if generation is not None:
        nccl = nccl_ranks_of(topology, generation, amd_cpu=has_amd_cpu(topology))
        graph = graphs.ring if graphs is not None else nccl.graph
        channels = max(1, min(_MOST_CHANNELS, _DOUBLED * graph.channels))
    nvls = nccl is not None and (nccl.nvls is not None if graphs is None else graphs.nvls is not None)
    nic_gbps = sum(nics_of_node(topology)) if topology.num_nodes > 1 else 0.0
    ll128 = nccl is not None and topology.inside is Medium.NVLINK and not nccl.mixed
    return NcclMachine(
        topology, channels, nvls, ll128, sending_gbps(topology), nic_gbps, fabric, max(1, gpus_per_process)
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class AlgorithmRun:
    """One algorithm in one protocol at one size, before a profile says what its parts cost.

    Attributes
    ----------
    algorithm, protocol
        Name of the algorithm, one of `ALGORITHMS`, and the protocol.
    near_steps, far_steps
        Steps that follow on each other, inside nodes and over NICs.
    operations
        Operations of one threadblock beside those of the steps.
    near_bytes, far_bytes, block_bytes
        Bytes of data that the busiest GPU sends inside its node, a node sends over its NICs, and one channel moves.
    switched
        Whether switches multicast and add up.
    """

    algorithm: str
    protocol: Protocol
    near_steps: float
    far_steps: float
    operations: float
    near_bytes: float
    far_bytes: float
    block_bytes: float
    switched: bool = False


@dataclass(frozen=True, slots=True)
class TimeParts:
    """Time of a run under a profile, by what limits it, in us.

    Attributes
    ----------
    fixed_us
        Launch, and steps inside nodes.
    far_us
        Steps over NICs.
    block_us
        Time that the bytes of a channel take its threadblock.
    near_link_us, far_link_us
        Times that the bytes take a GPU's links, and a node's NICs.
    """

    fixed_us: float
    far_us: float
    block_us: float
    near_link_us: float
    far_link_us: float

    @property
    def time_us(self) -> float:
        """Time of the run."""
        return self.fixed_us + self.far_us + max(self.block_us, self.near_link_us, self.far_link_us)


@dataclass(frozen=True, slots=True)
class NcclTime:
    """Predicted time of one algorithm in its best protocol."""

    algorithm: str
    protocol: Protocol
    time_us: float


class NcclTimes:
    """Times of NCCL's algorithms on a machine under a profile.

    Parameters
    ----------
    machine
        The machine as NCCL uses it.
    profile
        The runtime profile; under the neutral one only bytes on links take time.

    Raises
    ------
    InputError
        If the profile knows nothing of the machine's fabric.
    """

    def __init__(self, machine: NcclMachine, profile: RuntimeProfile) -> None:
        if machine.fabric and machine.fabric not in profile.fabric_us and not profile.is_neutral:
            known = ", ".join(sorted(profile.fabric_us)) or "none"
            raise InputError(
                f"runtime profile {profile.name} has no fabric {machine.fabric!r}, only {known}; leave it out for InfiniBand and RoCE",
                path="command line", field="--fabric",
            )  # fmt: skip
        self._machine, self._profile = machine, profile
        usable = usable_shares(machine.topology, profile)
        self._near_gbps = machine.rank_gbps * usable.near
        far = (
            profile.shares[machine.fabric].factor(machine.nic_gbps) if machine.fabric in profile.shares else usable.far
        )
        self._far_gbps = machine.nic_gbps * far
        self._switch_gbps = self._near_gbps
        if "nvls" in profile.shares:
            self._switch_gbps = machine.rank_gbps * profile.shares["nvls"].factor(machine.rank_gbps)
        if machine.num_nodes > 1 and "nvlstree" in profile.shares:
            self._switch_gbps *= profile.shares["nvlstree"].factor(0)

    def at(self, kind: Kind, size_bytes: float) -> tuple[NcclTime, ...]:
        """Every algorithm that NCCL has for a collective, in its fastest protocol, in the order of `ALGORITHMS`.

        Parameters
        ----------
        kind
            The collective.
        size_bytes
            Size as nccl-tests counts it.
        """
        best: dict[str, NcclTime] = {}
        for run in runs_of(self._machine, kind, size_bytes):
            time_us = self.parts(run).time_us
            if run.algorithm not in best or time_us < best[run.algorithm].time_us:
                best[run.algorithm] = NcclTime(run.algorithm, run.protocol, time_us)
        return tuple(best.values())

    def best(self, kind: Kind, size_bytes: float) -> NcclTime:
        """The fastest of `at`: what NCCL does if its tuner chooses well."""
        return min(self.at(kind, size_bytes), key=lambda each: each.time_us)

    def sendrecv_us(self, size_bytes: float) -> float:
        """Time of nccl-tests' sendrecv, where each rank sends to the next one, in its fastest protocol."""
        return min(self.parts(run).time_us for run in _sendrecv(self._machine, size_bytes))

    def parts(self, run: AlgorithmRun) -> TimeParts:
        """Time of a run by its parts."""
        machine, profile = self._machine, self._profile
        costs = profile.costs_of(str(run.protocol))
        fabric_us = profile.fabric_us.get(machine.fabric, 0.0)
        fixed_us = costs.launch_us + profile.launch_per_gpu_us * (machine.gpus_per_process - 1)
        fixed_us += run.near_steps * (costs.op_us + costs.hop_near_us) + run.operations * costs.op_us
        if run.switched:
            fixed_us += profile.nvls_us
        near_gbps = self._switch_gbps if run.switched else self._near_gbps
        return TimeParts(
            fixed_us,
            run.far_steps * (costs.op_us + costs.hop_far_us + fabric_us),
            run.block_bytes / (_GB_PER_S_US * costs.tb_gbps),
            _link_us(run.near_bytes, near_gbps, costs),
            _link_us(run.far_bytes, self._far_gbps, costs),
        )


def _link_us(num_bytes: float, gbps: float, costs: ProtocolCosts) -> float:
    return costs.wire * num_bytes / (_GB_PER_S_US * gbps) if num_bytes > 0 and gbps > 0 else 0.0


def runs_of(machine: NcclMachine, kind: Kind, size_bytes: float, algorithm: str = "") -> tuple[AlgorithmRun, ...]:
    """Everything that NCCL may choose for a call.

    Parameters
    ----------
    machine, kind, size_bytes
        The machine, the collective, and the size as nccl-tests counts it.
    algorithm
        The only algorithm of `ALGORITHMS` to take, as ``NCCL_ALGO`` does; empty for all.

    Raises
    ------
    InputError
        If NCCL does not have the algorithm for this collective on this machine.
    """
    if kind in (Kind.ALLTOALL, Kind.GATHER, Kind.SCATTER):
        found: Sequence[AlgorithmRun] = list(_direct(machine, kind, size_bytes))
    else:
        found = [*_rings(machine, kind, size_bytes)]
        if kind is Kind.ALLREDUCE:
            found += _trees(machine, size_bytes)
        found += _switched(machine, kind, size_bytes)
    if algorithm:
        found = [run for run in found if run.algorithm == algorithm]
        if not found:
            raise InputError(f"NCCL has no {algorithm} for {kind} on {machine.topology.name}; name another algorithm")
    return tuple(found)


def _protocols(machine: NcclMachine) -> Iterator[Protocol]:
    return (protocol for protocol in Protocol if protocol is not Protocol.LL128 or machine.ll128)


def _channels(machine: NcclMachine, protocol: Protocol, size_bytes: float, times: int = 1) -> int:
    """Channels for a size, each of which must have bytes."""
    least = _THREADS[protocol] * _LEAST_BYTES[protocol] * times
    return max(1, min(machine.channels, int(size_bytes // least)))


def _rings(machine: NcclMachine, kind: Kind, size_bytes: float) -> Iterator[AlgorithmRun]:
    n, nodes = machine.num_ranks, machine.num_nodes
    if n == 1:
        yield AlgorithmRun(str(NcclAlgorithm.RING), Protocol.LL, 0, 0, 1, 0, 0, size_bytes)
        return
    rounds = 2 if kind is Kind.ALLREDUCE else 1
    far = rounds * (nodes - 1)
    near = rounds * (n - 1) - far
    # A ring hands on all but one of n parts, a chain everything.
    part = 1.0 if kind in _CHAINS else rounds * (n - 1) / n
    for protocol in _protocols(machine):
        channels = _channels(machine, protocol, size_bytes, n if protocol is Protocol.LL else 1)
        moved = part * size_bytes
        if kind in _CHAINS:
            moved += (n - 1) * min(size_bytes, channels * _PIECE_BYTES / n)
        yield AlgorithmRun(
            str(NcclAlgorithm.RING), protocol, near, far, 0, moved, moved if nodes > 1 else 0.0, moved / channels
        )  # fmt: skip


def _trees(machine: NcclMachine, size_bytes: float) -> Iterator[AlgorithmRun]:
    """Chains inside nodes, and two trees over them, up and down; a node of two sends half in each direction."""
    n, nodes = machine.num_ranks, machine.num_nodes
    if n == 1:
        return
    doublings = math.log2(nodes)
    near = 2 * (n - 1) / n * size_bytes
    far = (1 if nodes == 2 else 2) * size_bytes if nodes > 1 else 0.0
    for protocol in _protocols(machine):
        channels = _channels(machine, protocol, size_bytes)
        yield AlgorithmRun(
            str(NcclAlgorithm.TREE), protocol, 2 * (machine.per_node - 1), 2 * doublings, 0,
            near / _TREE_EFFICIENCY, far / _TREE_EFFICIENCY, near / channels,
        )  # fmt: skip


def _switched(machine: NcclMachine, kind: Kind, size_bytes: float) -> Iterator[AlgorithmRun]:
    """NVLS on one node, and NVLSTree, whose trees over nodes carry what switches have added up; their rate is that of AllReduce."""
    n, nodes = machine.num_ranks, machine.num_nodes
    if not machine.nvls or n == 1:
        return
    if nodes == 1 and kind in (Kind.ALLREDUCE, *_GATHERS):
        # An AllGather gains nothing of what is added up: NCCL counts (n-1)/n where AllReduce has n/(n-1).
        moved = size_bytes if kind is Kind.ALLREDUCE else size_bytes * (n / (n - 1)) ** 2
        yield AlgorithmRun(str(NcclAlgorithm.NVLS), Protocol.SIMPLE, 0, 0, 0, moved, 0, 0, switched=True)
    if nodes > 1 and kind is Kind.ALLREDUCE:
        far = (1 if nodes == 2 else 2) * size_bytes
        steps = 2 * math.log2(nodes)
        yield AlgorithmRun(
            str(NcclAlgorithm.NVLS_TREE), Protocol.SIMPLE, 0, steps, 0, size_bytes, far, 0, switched=True
        )


def _direct(machine: NcclMachine, kind: Kind, size_bytes: float) -> Iterator[AlgorithmRun]:
    n, per_node = machine.num_ranks, machine.per_node
    near, far = size_bytes * (per_node - 1) / n, size_bytes * (n - per_node) / n
    if kind is Kind.ALLTOALL:
        far *= per_node  # all ranks of a node send
    peer_bytes = size_bytes / n
    operations = max(0, math.ceil((n - 1) / machine.channels) - 1)
    steps = (0, 1) if machine.num_nodes > 1 else (1, 0)
    moved = size_bytes * (n - 1) / n / min(machine.channels, max(1, n - 1) * 2)
    for protocol in (Protocol.LL, Protocol.SIMPLE):
        if protocol is Protocol.SIMPLE or peer_bytes <= _DIRECT_LL_BYTES:
            yield AlgorithmRun(DIRECT, protocol, *steps, operations, near, far, moved)


def _sendrecv(machine: NcclMachine, size_bytes: float) -> Iterator[AlgorithmRun]:
    """To the next rank: one rank of a node sends over a NIC, the others inside; a peer has two channels."""
    nic_part = machine.per_node  # one rank's share of the NICs
    far = size_bytes * nic_part if machine.num_nodes > 1 else 0.0
    steps = (0, 1) if machine.num_nodes > 1 else (1, 0)
    for protocol in (Protocol.LL, Protocol.SIMPLE):
        if protocol is Protocol.SIMPLE or size_bytes <= _DIRECT_LL_BYTES:
            yield AlgorithmRun(DIRECT, protocol, *steps, 0, size_bytes, far, size_bytes / 16)


def with_processes(machine: NcclMachine, gpus_per_process: int) -> NcclMachine:
    """The same machine, so many of whose GPUs one process drives."""
    return replace(machine, gpus_per_process=max(1, gpus_per_process))

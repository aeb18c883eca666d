"""Replay of a lowered program under a runtime profile: launch, operations, threadblock rates, hops, slots, loop iterations.

A program runs as the runtimes run it (``taccl_py/runtimes.py``): the bytes of each chunk are walked in slices of at most the
payload of one operation, and all steps run once for each slice. Within one such iteration a threadblock runs its steps in
order. With ``c`` bytes of a chunk in a slice, a step of ``count`` chunks moves ``count * c`` bytes in ``k`` operations, as many as
the payload needs:

* A send begins when its threadblock is free, what it depends on is done and the connection has a slot. It takes
  ``k * op + bytes / rate of a threadblock``, and ends no earlier than its link and ports have carried what was asked of them:
  each resource takes ``wire * bytes * beta / usable share`` after what came before it, and NICs and PCIe an alpha more
  (`taccl_py.profiles.view.serial_alphas`). Resources are served in the order
  in which sends begin, and several threadblocks may fill one link at the same time. Parallel connections between two ranks
  share the link's alpha.
* A receive takes as long as a send, and ends no earlier than one hop after the end of the send, plus the part of the last
  slice that is still to be copied.
* A fused step does both in the time of one, and begins when the first half of what it forwards has arrived.
* A local copy takes ``k * op + bytes / copy rate``. Sums that the runtime fuses into one operation take ``k * reduce + read bytes /
  reduce rate``.
* A slot is free again when the receiving step is done.

After a few iterations the rest follow at the pace of the last ones, which is how thousands of iterations are predicted. Rank
symmetry is used: threadblocks that do the same with equal neighbours are replayed once.
"""

from __future__ import annotations

import copy
import heapq
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from taccl_py.errors import InputError, InvalidArtifact, Violation
from taccl_py.lowering.program import Op, Program, Step, chunks_of_size
from taccl_py.profiles.model import ProtocolCosts, RuntimeProfile
from taccl_py.profiles.view import Usable, far_resources, is_far, serial_alphas, usable_shares
from taccl_py.runtimes import MAX_COUNT, MAX_REDUCE_CHAIN
from taccl_py.simulate.alike import NOBODY, ReplayedBlock, ShapeLoad, StepWork, merge_alike
from taccl_py.tolerances import RELATIVE
from taccl_py.topology.model import Topology
from taccl_py.units import BYTES_PER_MB

# So many iterations are replayed; the rest keep the pace by which these take longer than half of them.
_REPLAYED = 8
# Copies of a program that are replayed each by itself, where there are so many; each stands for as many others. Copies that others stand for
# are served one behind the other at ports, and what follows waits for all of them: of 118 programs of 2 to 16 instances, lowered in
# earnest, 50 % are within 3 % of what is replayed of one copy, 71 % of two (`scripts/bench copies`).
_APART = 2


class RuntimeReplay:
    """Replays of one program on one machine under one profile, at any size.

    Parameters
    ----------
    program
        A program to which the verifier does not object.
    topology
        Machine with the program's ranks.
    profile
        The runtime profile.

    Raises
    ------
    InputError
        If the machine has other ranks, or lacks a link that the program uses, or the profile lacks the program's protocol.
    """

    def __init__(self, program: Program, topology: Topology, profile: RuntimeProfile) -> None:
        _require_fit(program, topology)
        self._program, self._profile = program, profile
        self._structure = _Structure(program, topology)

    def under(self, profile: RuntimeProfile) -> RuntimeReplay:
        """Return replays of the same program on the same machine under another profile, which costs nothing to make."""
        other = copy.copy(self)
        other._profile = profile
        return other

    def time_us(self, size_bytes: float, *, protocol: str | None = None, instances: int = 1) -> float:
        """Time of a call.

        Parameters
        ----------
        size_bytes
            Size as nccl-tests counts it.
        protocol
            Protocol to replay the program under; None is its own.
        instances
            As if so many copies of the program ran side by side, each with its part of every chunk.

        Raises
        ------
        InputError
            If the size is not positive or the profile lacks the protocol.
        InvalidArtifact
            If the program comes to a stop before its end.
        """
        if not (math.isfinite(size_bytes) and size_bytes > 0):
            raise InputError(f"a size of {size_bytes} bytes cannot be replayed; it must be finite and above 0")
        name = protocol or str(self._program.protocol)
        costs = self._profile.costs_of(name)
        cell_bytes = size_bytes / chunks_of_size(self._program) / instances
        return self._structure.run(costs, self._profile, cell_bytes, instances)


def runtime_us(program: Program, topology: Topology, profile: RuntimeProfile, size_bytes: float) -> float:
    """Time of a program at one size under a profile; see `RuntimeReplay`."""
    return RuntimeReplay(program, topology, profile).time_us(size_bytes)


def _require_fit(program: Program, topology: Topology) -> None:
    if len(program.gpus) != topology.num_ranks:
        raise InputError(
            f"program {program.name} is for {len(program.gpus)} ranks, topology {topology.name} has {topology.num_ranks}; "
            "replay it on the machine that it was made for"
        )


class _Structure:
    """Threadblocks of a program with the links that they use, those that are alike replaced by one."""

    def __init__(self, program: Program, topology: Topology) -> None:
        self._name = program.name
        self._connections: dict[tuple[int, int, int], int] = {}
        blocks = self._build(program, topology)
        self._blocks, self._num_connections = merge_alike(blocks, len(self._connections))
        self._topology = topology
        self._ends_us: dict[tuple[_ReplayCase, int], float] = {}

    def _build(self, program: Program, topology: Topology) -> list[ReplayedBlock]:
        firsts, total = [], 0
        for gpu in program.gpus:
            firsts.append(total)
            total += len(gpu.threadblocks)
        parallel: dict[tuple[int, int], int] = defaultdict(int)
        for gpu in program.gpus:
            for block in gpu.threadblocks:
                if any(step.op.sends for step in block.steps):
                    parallel[gpu.rank, block.send_peer] += 1
        nature, blocks = _Nature(far_resources(topology), serial_alphas(topology)), []
        for rank, gpu in enumerate(program.gpus):
            lengths = [len(block.steps) for block in gpu.threadblocks]
            awaited = {step.depends_on for block in gpu.threadblocks for step in block.steps}
            for number, block in enumerate(gpu.threadblocks):
                sends = any(step.op.sends for step in block.steps)
                receives = any(step.op.receives for step in block.steps)
                link = _link(program, topology, rank, number) if sends else NOBODY
                loads = _loads(topology, nature, link, parallel[rank, block.send_peer]) if sends else ()
                blocks.append(ReplayedBlock(
                    rank,
                    _works(block.steps, firsts[rank], lengths, {wait[1] for wait in awaited if wait and wait[0] == number}),
                    self._connection(block.recv_peer, rank, block.channel) if receives else NOBODY,
                    self._connection(rank, block.send_peer, block.channel) if sends else NOBODY,
                    receives and is_far(topology, block.recv_peer, rank),
                    loads,
                    topology.links[link].latency_us if sends else 0.0,
                ))  # fmt: skip
        return blocks

    def _connection(self, src: int, dst: int, channel: int) -> int:
        return self._connections.setdefault((src, dst, channel), len(self._connections))

    def run(self, costs: ProtocolCosts, profile: RuntimeProfile, cell_bytes: float, instances: int) -> float:
        """Time of a call whose chunks (of one instance) have so many bytes."""
        iterations = max(1, math.ceil(cell_bytes / costs.payload_bytes - RELATIVE))
        apart = _APART if instances % _APART == 0 else 1
        case = _ReplayCase(
            costs,
            cell_bytes / iterations,
            instances // apart,
            apart,
            usable_shares(self._topology, profile),
            profile.nic_message_us,
            profile.gpu_gbps,
        )
        replayed = min(iterations, _REPLAYED)
        total_us = self._end_us(case, replayed)
        if iterations > replayed:
            half = replayed // 2
            total_us += (iterations - replayed) * (total_us - self._end_us(case, half)) / (replayed - half)
        return costs.launch_us + total_us

    def _end_us(self, case: _ReplayCase, iterations: int) -> float:
        """End of so many iterations, which large sizes have in common."""
        if (case, iterations) not in self._ends_us:
            run = _ReplayRun(self._blocks, self._num_connections, case, iterations)
            self._ends_us[case, iterations] = run.end_us(self._name)
        return self._ends_us[case, iterations]


@dataclass(frozen=True, slots=True)
class _ReplayCase:
    """Setting of one replay: bytes of a chunk in an iteration, usable parts of bandwidth, limits of NICs and GPUs.

    The program is replayed `apart` times side by side, and each of these stands for so many `copies` that do the same at the same time.
    """

    costs: ProtocolCosts
    cell_bytes: float
    copies: int
    apart: int
    usable: Usable
    nic_message_us: float
    gpu_gbps: float


@dataclass(slots=True, eq=False)
class _MessageTimes:
    """Messages of a connection in order: when sent and when seen by the other side; operations received, and when.

    `ready` has the moments in which the receiving block came to its steps. `receiver` and `sender` wait for the other side.
    """

    started: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    seen: list[float] = field(default_factory=list)
    operations: int = 0
    received: list[tuple[int, float]] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)
    taken: int = 0
    receiver: int = NOBODY
    sender: int = NOBODY


class _ReplayRun:
    """One replay. A block goes on until what it waits for is not known yet; sends begin in the order of time."""

    def __init__(
        self, blocks: Sequence[ReplayedBlock], num_connections: int, case: _ReplayCase, iterations: int
    ) -> None:
        self._case, self._iterations, apart = case, iterations, case.apart
        self._blocks = [*blocks] * apart
        # By block, those of each copy after those of the one before: its copy's first block, and its connections.
        self._first = [copy * len(blocks) for copy in range(apart) for _ in blocks]
        self._into, self._out = (
            [NOBODY if each == NOBODY else copy * num_connections + each for copy in range(apart) for each in ends]
            for ends in ([block.receives_from for block in blocks], [block.sends_to for block in blocks])
        )
        costs = case.costs
        mb = case.cell_bytes / BYTES_PER_MB
        per_operation = max(1, min(MAX_COUNT, int(costs.payload_bytes / case.cell_bytes + RELATIVE))) if (
            math.isfinite(costs.payload_bytes)
        ) else MAX_COUNT  # fmt: skip
        self._durations = [
            [self._duration(work, mb, per_operation) for work in block.works] for block in blocks
        ] * apart
        self._operations = [[-(-work.count // per_operation) for work in block.works] for block in blocks] * apart
        # Bytes that a receiver still copies when the last bytes of the last operation of a step have arrived.
        self._tails = [
            [costs.tail * time_us / max(1, number) for time_us, number in zip(*of_block, strict=True)]
            for of_block in zip(self._durations, self._operations, strict=True)
        ]
        self._loads = [
            [_asked(load, case, mb) for load in block.loads if not load.gpu or math.isfinite(case.gpu_gbps)]
            for block in blocks
        ] * apart
        self._connections = [_MessageTimes() for _ in range(num_connections * apart)]
        self._receiver_hops = [0.0] * len(self._connections)
        for block, connection in zip(self._blocks, self._into, strict=True):
            if connection != NOBODY:
                self._receiver_hops[connection] = costs.hop_far_us if block.far_in else costs.hop_near_us
        resources = 1 + max((load.resource for block in blocks for load in block.loads), default=-1)
        self._free_us = [0.0] * resources
        self._finished: list[list[float]] = [[] for _ in self._blocks]
        self._waiters: dict[tuple[int, int], list[int]] = {}
        self._heap: list[tuple[float, int, int]] = []
        self._ready: list[int] = []

    def _duration(self, work: StepWork, mb: float, per_operation: int) -> float:
        """Time of a threadblock for a step of which nothing is missing."""
        costs, operations = self._case.costs, -(-work.count // per_operation)
        kb = work.count * mb * 1000  # kilobytes over GB/s are microseconds
        if work.receives or work.sends:
            return operations * costs.op_us + kb / costs.tb_gbps
        if work.copies:
            return operations * costs.op_us + kb / costs.copy_gbps
        if work.sources:
            return operations * costs.reduce_us + kb * work.sources / costs.reduce_gbps
        return 0.0

    def end_us(self, name: str) -> float:
        """Time at which the last block is done."""
        self._ready = list(range(len(self._blocks)))[::-1]
        while self._ready or self._heap:
            while self._ready:
                self._advance(self._ready.pop())
            if self._heap:
                start_us, _, index = heapq.heappop(self._heap)
                self._send(index, start_us)
        for block, finished in zip(self._blocks, self._finished, strict=True):
            if len(finished) < self._iterations * len(block.works):
                what = f"stops at step {len(finished) % len(block.works)} of one of its threadblocks"
                raise InvalidArtifact(name, [Violation(f"gpu {block.rank}", "deadlock", what)])
        return max((finished[-1] for finished in self._finished if finished), default=0.0)

    def _advance(self, index: int) -> None:
        """Let a block go on until it waits for something that is not known, or is about to send."""
        block, done = self._blocks[index], self._finished[index]
        works, number, first = block.works, len(block.works), self._first[index]
        while len(done) < self._iterations * number:
            iteration, position = divmod(len(done), number)
            work = works[position]
            at_us = done[-1] if done else 0.0
            for awaited, target in work.waits:
                other = first + awaited
                place = iteration * len(self._blocks[other].works) + target
                known = self._finished[other]
                if len(known) <= place:
                    self._waiters.setdefault((other, place), []).append(index)
                    return
                at_us = max(at_us, known[place])
            if work.receives:
                connection = self._connections[self._into[index]]
                if len(connection.ready) == connection.taken:
                    connection.ready.append(at_us)
                    self._wake_sender(connection)
                if len(connection.seen) == connection.taken:
                    connection.receiver = index
                    return
            if work.sends:
                begin_us = self._may_send(index, position, at_us)
                if begin_us is None:
                    return
                heapq.heappush(self._heap, (begin_us, index, index))
                return
            if work.receives:
                self._receive(index, position, at_us)
            else:
                self._finish(index, at_us + self._durations[index][position])

    def _may_send(self, index: int, position: int, at_us: float) -> float | None:
        """Time at which a send can begin: its connection has slots, and of what it forwards the first half is there; None if not known yet."""
        block, slots = self._blocks[index], self._case.costs.slots
        connection, operations = self._connections[self._out[index]], self._operations[index][position]
        if block.works[position].receives:
            into = self._connections[self._into[index]]
            half = (into.ended[into.taken] - into.started[into.taken]) / 2
            at_us = max(at_us, into.seen[into.taken] - half)
        needed = connection.operations + min(operations, slots) - slots
        if operations > slots and len(connection.ready) <= len(connection.started):
            connection.sender = index
            return None
        if needed > 0:
            place = bisect_left(connection.received, (needed,))
            if place == len(connection.received):
                connection.sender = index
                return None
            at_us = max(at_us, connection.received[place][1])
        return at_us

    def _send(self, index: int, start_us: float) -> None:
        block = self._blocks[index]
        position = len(self._finished[index]) % len(block.works)
        work, duration_us = block.works[position], self._durations[index][position]
        end_us = start_us + duration_us
        for resource, alpha_us, occupied_us, queued_us, chunk_us in self._loads[index]:
            served_us = max(self._free_us[resource], start_us) + queued_us + chunk_us * work.count
            self._free_us[resource] = served_us + occupied_us
            end_us = max(end_us, served_us + alpha_us)
        connection, operations = self._connections[self._out[index]], self._operations[index][position]
        slots = self._case.costs.slots
        if operations > slots:
            end_us = max(end_us, connection.ready[len(connection.started)] + (1 - slots / operations) * duration_us)
        if work.receives:
            into = self._connections[self._into[index]]
            end_us = max(end_us, into.seen[into.taken] + self._tails[index][position])
        connection.started.append(start_us)
        connection.ended.append(end_us)
        connection.seen.append(end_us + self._receiver_hops[self._out[index]] + block.latency_us)
        connection.operations += operations
        if work.receives:
            self._take(index, position, end_us)
        if connection.receiver != NOBODY:
            self._ready.append(connection.receiver)
            connection.receiver = NOBODY
        self._finish(index, end_us)
        self._ready.append(index)

    def _receive(self, index: int, position: int, at_us: float) -> None:
        connection, duration_us = self._connections[self._into[index]], self._durations[index][position]
        seen_us = connection.seen[connection.taken]
        end_us = max(at_us + duration_us, seen_us + self._tails[index][position])
        self._take(index, position, end_us)
        self._finish(index, end_us)

    def _take(self, index: int, position: int, end_us: float) -> None:
        """Note that a message was taken out of its connection."""
        connection = self._connections[self._into[index]]
        total = (connection.received[-1][0] if connection.received else 0) + self._operations[index][position]
        connection.received.append((total, end_us))
        connection.taken += 1
        self._wake_sender(connection)

    def _wake_sender(self, connection: _MessageTimes) -> None:
        if connection.sender != NOBODY:
            self._ready.append(connection.sender)
            connection.sender = NOBODY

    def _finish(self, index: int, end_us: float) -> None:
        done = self._finished[index]
        done.append(end_us)
        waiting = self._waiters.pop((index, len(done) - 1), None)
        if waiting:
            self._ready.extend(waiting)


def _link(program: Program, topology: Topology, rank: int, number: int) -> int:
    block = program.gpus[rank].threadblocks[number]
    links = topology.links_between.get((rank, block.send_peer))
    if links is None:
        raise InputError(
            f"program {program.name} sends from rank {rank} to rank {block.send_peer} (gpu {rank} tb {number}), but topology "
            f"{topology.name} has no such link; replay it on the machine that it was made for"
        )
    return links[block.channel % len(links)]


@dataclass(frozen=True, slots=True)
class _Nature:
    """For every resource, links first, whether only messages between nodes use it, and whether alphas follow each other there."""

    far: tuple[bool, ...]
    serial: tuple[bool, ...]


def _loads(topology: Topology, nature: _Nature, link: int, parallel: int) -> tuple[ShapeLoad, ...]:
    """Loads of a message on each of its resources, and on its GPU where it stays inside the node."""
    costs = topology.resource_cost
    loads = [
        ShapeLoad(each, *costs[each], nature.far[each], nature.serial[each], parallel)
        for each in topology.resources_of[link]
    ]
    if not nature.far[link]:
        gpu = topology.num_resources + topology.links[link].src
        loads.append(ShapeLoad(gpu, 0.0, 0.0, far=False, serial=False, parallel=parallel, gpu=True))
    return tuple(loads)


def _asked(load: ShapeLoad, case: _ReplayCase, mb: float) -> tuple[int, float, float, float, float]:
    """Resource, latency of a message, its part that occupies the resource, that of the copies before it, and the time of a chunk, in us.

    Copies of the program are connections that run in parallel too, and the last one of them counts.
    """
    alpha_us = load.alpha_us + (case.nic_message_us if load.far else 0.0)
    share = case.usable.far if load.far else case.usable.near
    beta = 1000 / case.gpu_gbps if load.gpu else load.beta_us_per_mb / share
    chunk_us = beta * case.costs.wire * mb * case.copies * load.together
    occupied_us = alpha_us / (load.parallel * case.copies * case.apart) if load.serial else 0.0
    return load.resource, alpha_us, occupied_us, (case.copies - 1) * occupied_us, chunk_us


def _works(steps: Sequence[Step], first: int, lengths: Sequence[int], awaited: Set[int]) -> list[StepWork]:
    """Steps as they are timed; sums that follow each other are fused as the runtimes fuse them.

    The last of a fused chain does all the work, the others take no time. The wait of a step without work for which nobody waits is
    one of the next step.
    """
    works = []
    chain = 0
    waits: list[tuple[int, int]] = []
    for position, step in enumerate(steps):
        following = steps[position + 1] if position + 1 < len(steps) else None
        if step.op is Op.REDUCE:
            chain += 1
            fuses = following is not None and _fuses(step, following) and chain < MAX_REDUCE_CHAIN
        sources = 0
        if step.op is Op.REDUCE and not fuses:
            sources, chain = chain, 0
        if step.depends_on is not None:
            block, target = step.depends_on
            if not (0 <= block < len(lengths) and 0 <= target < lengths[block]):
                raise InputError(f"step {position} depends on tb {block} step {target}, which does not exist")
            waits.append((first + block, target))
        moved = step.op is Op.NOP and following is not None and position not in awaited
        now = () if moved else tuple(sorted(set(waits)))
        waits = waits if moved else []
        works.append(StepWork(step.op.receives, step.op.sends, step.op is Op.COPY, sources, step.count, now))
    return works


def _fuses(step: Step, following: Step) -> bool:
    """True if the parser of the runtimes fuses two sums that follow each other."""
    return (
        following.op is Op.REDUCE
        and following.dst == step.dst
        and following.src.buffer == step.src.buffer
        and following.depends_on is None
        and not step.has_dependent
    )

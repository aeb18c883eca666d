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
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field

from taccl_py.errors import InputError, InvalidArtifact, Violation
from taccl_py.lowering.program import Op, Program, Step, chunks_of_size
from taccl_py.profiles.model import ProtocolCosts, RuntimeProfile
from taccl_py.profiles.view import Usable, far_resources, is_far, serial_alphas, usable_shares
from taccl_py.runtimes import MAX_COUNT, MAX_REDUCE_CHAIN
from taccl_py.simulate.alike import NOBODY, ReplayedBlock, ShapeLoad, StepKind, StepWork, merge_alike
from taccl_py.simulate.timeline import RuntimeStep, RuntimeSteps
from taccl_py.tolerances import RELATIVE
from taccl_py.topology.model import Topology
from taccl_py.units import BYTES_PER_MB

# So many iterations are replayed; the rest keep the pace by which these take longer than half of them.
_REPLAYED = 8
# Copies of a program that are replayed each by itself, where there are so many; each stands for as many others. Copies that others stand for
# are served one behind the other at ports, and what follows waits for all of them: of 84 programs of 2 to 16 copies 62 % are within 3 % of
# what is replayed of one copy, 93 % of two (`scripts/bench copies`).
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
        self._program, self._profile, self._topology = program, profile, topology
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

    def steps(self, size_bytes: float) -> RuntimeSteps:
        """Steps of all threadblocks in the first iterations of a call; raises as `time_us` does."""
        costs, program = self._profile.costs_of(str(self._program.protocol)), self._program
        structure = _Structure(program, self._topology, merges=False)
        case, iterations = structure.case(costs, self._profile, size_bytes / chunks_of_size(program), 1)
        run = _ReplayRun(structure, case, shown := min(iterations, _REPLAYED))
        run.end_us()
        places = [(gpu.rank, number) for gpu in program.gpus for number in range(len(gpu.threadblocks))]
        found = [
            RuntimeStep(
                rank,
                threadblock,
                step,
                iteration,
                costs.launch_us + start_us,
                costs.launch_us + end_us,
                count * case.cell_bytes,
            )
            for (rank, threadblock), block in zip(places, run.blocks, strict=True)
            for iteration, step, start_us, end_us, count in block.moves()
        ]
        return RuntimeSteps(tuple(found), costs.launch_us, iterations, shown)


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
    """Threadblocks of a program with the links that they use, those that are alike replaced by one.

    Attributes
    ----------
    name
        The program's.
    blocks, num_connections
        Threadblocks, and the number of connections between them.
    kinds, kinds_of
        Kinds of steps, and for every block those of its steps, by their numbers.
    awaited
        For every block its steps for which others wait.
    """

    def __init__(self, program: Program, topology: Topology, *, merges: bool = True) -> None:
        self.name = program.name
        self._connections: dict[tuple[int, int, int], int] = {}
        blocks = self._build(program, topology)
        number = len(self._connections)
        self.blocks, self.num_connections = merge_alike(blocks, number) if merges else (blocks, number)
        numbers: dict[StepKind, int] = {}
        self.kinds_of = [[numbers.setdefault(work.kind, len(numbers)) for work in block.works] for block in self.blocks]
        self.kinds = list(numbers)
        self.awaited: list[set[int]] = [set() for _ in self.blocks]
        for other, target in (wait for block in self.blocks for work in block.works for wait in work.waits):
            self.awaited[other].add(target)
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
        case, iterations = self.case(costs, profile, cell_bytes, instances)
        replayed = min(iterations, _REPLAYED)
        total_us = self._end_us(case, replayed)
        if iterations > replayed:
            half = replayed // 2
            total_us += (iterations - replayed) * (total_us - self._end_us(case, half)) / (replayed - half)
        return costs.launch_us + total_us

    def case(
        self, costs: ProtocolCosts, profile: RuntimeProfile, cell_bytes: float, instances: int
    ) -> tuple[_ReplayCase, int]:
        """Setting of the replays of such a call, and its iterations."""
        iterations = max(1, math.ceil(cell_bytes / costs.payload_bytes - RELATIVE))
        apart, usable = _APART if instances % _APART == 0 else 1, usable_shares(self._topology, profile)
        cell_bytes, copies = cell_bytes / iterations, instances // apart
        return _ReplayCase(
            costs, cell_bytes, copies, apart, usable, profile.nic_message_us, profile.gpu_gbps
        ), iterations

    def _end_us(self, case: _ReplayCase, iterations: int) -> float:
        """End of so many iterations, which large sizes have in common."""
        found_us = self._ends_us.get((case, iterations))
        if found_us is None:
            found_us = self._ends_us[case, iterations] = _ReplayRun(self, case, iterations).end_us()
        return found_us


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
class _ConnectionRun:
    """Messages of a connection in order: when sent and when seen by the other side; operations received so far, and when.

    `ready` has the moments in which the receiving block came to its steps, `freed` the message that freed the slots of the last send.
    `receiver` and `sender` wait for the other side.
    """

    hop_us: float = 0.0
    started: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    seen: list[float] = field(default_factory=list)
    operations: int = 0
    received: list[int] = field(default_factory=list)
    received_us: list[float] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)
    freed: int = 0
    receiver: _BlockRun | None = None
    sender: _BlockRun | None = None

    def slots_free_us(self, needed: float) -> float | None:
        """When so many operations had been received, no fewer than were asked for before; None if not known yet."""
        received, freed = self.received, self.freed
        while freed < len(received) and received[freed] < needed:
            freed += 1
        self.freed = freed
        return self.received_us[freed] if freed < len(received) else None


@dataclass(frozen=True, slots=True)
class _StepTimes:
    """Time of a threadblock for a step of which nothing is missing, and in how many operations.

    The tail is what a receiver takes to copy the rest of the last operation once all has arrived.
    """

    duration_us: float
    operations: int
    tail_us: float


# Load of a message on a resource: which, latency, its part that occupies the resource, that of the copies before it, and time of a chunk;
# a tuple, as loads are taken apart millions of times.
_AskedLoad = tuple[int, float, float, float, float]


@dataclass(slots=True, eq=False)
class _BlockRun:
    """A block that is replayed: what it does, the end of every step that it has finished, and the one that it is at.

    `first` is the place of the first block of its copy of the program; a connection that it lacks is one that nobody uses, the same for all. `waiters` are
    blocks by the finished step that they wait for.
    """

    replayed: ReplayedBlock
    index: int
    first: int
    works: Sequence[StepWork]
    times: Sequence[_StepTimes]
    loads: Sequence[_AskedLoad]
    awaited: Set[int]
    into: _ConnectionRun
    out: _ConnectionRun
    finished: list[float] = field(default_factory=list)
    iteration: int = 0
    position: int = 0
    waiters: dict[int, list[_BlockRun]] = field(default_factory=dict)

    def moves(self) -> Iterator[tuple[int, int, float, float, int]]:
        """Finished steps that move data: iteration, step, beginning and end in microseconds, and chunks."""
        sent = iter(self.out.started)
        for number, end_us in enumerate(self.finished):
            iteration, step = divmod(number, len(self.works))
            work, duration_us = self.works[step], self.times[step].duration_us
            start_us = next(sent) if work.sends else end_us - duration_us
            if work.sends or work.receives or duration_us > 0:
                yield iteration, step, start_us, end_us, work.count


class _ReplayRun:
    """One replay. A block goes on until what it waits for is not known yet; sends begin in the order of time."""

    def __init__(self, structure: _Structure, case: _ReplayCase, iterations: int) -> None:
        self._name, self._iterations, self._slots = structure.name, iterations, case.costs.slots
        blocks, number = structure.blocks, structure.num_connections
        connections = [_ConnectionRun() for _ in range(number * case.apart)]
        unused = _ConnectionRun()
        mb = case.cell_bytes / BYTES_PER_MB
        kinds = [_step_times(kind, case, mb) for kind in structure.kinds]
        times = [[kinds[kind] for kind in of_block] for of_block in structure.kinds_of]
        loads = [
            [_asked(load, case, mb) for load in block.loads if not load.gpu or math.isfinite(case.gpu_gbps)]
            for block in blocks
        ]
        self.blocks: list[_BlockRun] = []
        for copy_ in range(case.apart):
            first = len(self.blocks)
            for place, block in enumerate(blocks):
                into, out = (
                    unused if each == NOBODY else connections[copy_ * number + each]
                    for each in (block.receives_from, block.sends_to)
                )
                into.hop_us = case.costs.hop_far_us if block.far_in else case.costs.hop_near_us
                self.blocks.append(_BlockRun(
                    block, len(self.blocks), first, block.works, times[place], loads[place], structure.awaited[place],
                    into, out,
                ))  # fmt: skip
        self._free_us = [0.0] * (1 + max((load.resource for block in blocks for load in block.loads), default=-1))
        self._heap: list[tuple[float, int]] = []
        self._ready: list[_BlockRun] = []

    def end_us(self) -> float:
        """Time at which the last block is done.

        Raises
        ------
        InvalidArtifact
            If one does not come to its end.
        """
        ready, heap, blocks = self._ready, self._heap, self.blocks
        ready += blocks[::-1]
        while ready or heap:
            while ready:
                self._advance(ready.pop())
            if heap:
                start_us, index = heapq.heappop(heap)
                self._send(blocks[index], start_us)
        for block in blocks:
            if block.works and block.iteration < self._iterations:
                what = f"stops at step {block.position} of one of its threadblocks"
                raise InvalidArtifact(self._name, [Violation(f"gpu {block.replayed.rank}", "deadlock", what)])
        return max((block.finished[-1] for block in blocks if block.finished), default=0.0)

    def _advance(self, block: _BlockRun) -> None:
        """Let a block go on until it waits for something that is not known, or is about to send."""
        works, finished, into = block.works, block.finished, block.into
        while works and block.iteration < self._iterations:
            work = works[block.position]
            at_us = finished[-1] if finished else 0.0
            for awaited, target in work.waits:
                other = self.blocks[block.first + awaited]
                place = block.iteration * len(other.works) + target
                known = other.finished
                if len(known) <= place:
                    other.waiters.setdefault(place, []).append(block)
                    return
                if known[place] > at_us:
                    at_us = known[place]
            if work.receives and not self._is_there(block, into, at_us):
                return
            if work.sends:
                begin_us = self._may_send(block, at_us)
                if begin_us is not None:
                    heapq.heappush(self._heap, (begin_us, block.index))
                return
            times = block.times[block.position]
            end_us = at_us + times.duration_us
            if work.receives:
                copied_us = into.seen[len(into.received)] + times.tail_us
                if copied_us > end_us:
                    end_us = copied_us
                self._take(into, times.operations, end_us)
            self._finish(block, end_us)

    def _is_there(self, block: _BlockRun, into: _ConnectionRun, at_us: float) -> bool:
        """True if it is known when a block sees the next message, for which it is ready; else it waits for that."""
        taken = len(into.received)
        if len(into.ready) == taken:
            into.ready.append(at_us)
            self._wake_sender(into)
        if len(into.seen) > taken:
            return True
        into.receiver = block
        return False

    def _may_send(self, block: _BlockRun, at_us: float) -> float | None:
        """Time at which a send can begin: its connection has slots, and of what it forwards the first half is there; None if not known yet."""
        connection, into, slots = block.out, block.into, self._slots
        operations = block.times[block.position].operations
        if block.works[block.position].receives:
            taken = len(into.received)
            half = (into.ended[taken] - into.started[taken]) / 2
            if into.seen[taken] - half > at_us:
                at_us = into.seen[taken] - half
        if operations > slots and len(connection.ready) <= len(connection.started):
            connection.sender = block
            return None
        needed = connection.operations + (operations if operations < slots else slots) - slots
        if needed > 0:
            free_us = connection.slots_free_us(needed)
            if free_us is None:
                connection.sender = block
                return None
            if free_us > at_us:
                at_us = free_us
        return at_us

    def _send(self, block: _BlockRun, start_us: float) -> None:
        connection, into, times = block.out, block.into, block.times[block.position]
        work = block.works[block.position]
        end_us, count, free_from_us = start_us + times.duration_us, work.count, self._free_us
        for resource, alpha_us, occupied_us, queued_us, chunk_us in block.loads:
            free_us = free_from_us[resource]
            served_us = (free_us if free_us > start_us else start_us) + queued_us + chunk_us * count
            free_from_us[resource] = served_us + occupied_us
            if served_us + alpha_us > end_us:
                end_us = served_us + alpha_us
        operations = times.operations
        if operations > self._slots:
            rest = 1 - self._slots / operations
            end_us = max(end_us, connection.ready[len(connection.started)] + rest * times.duration_us)
        if work.receives and into.seen[len(into.received)] + times.tail_us > end_us:
            end_us = into.seen[len(into.received)] + times.tail_us
        connection.started.append(start_us)
        connection.ended.append(end_us)
        connection.seen.append(end_us + connection.hop_us + block.replayed.latency_us)
        connection.operations += operations
        if work.receives:
            self._take(into, operations, end_us)
        if connection.receiver is not None:
            self._ready.append(connection.receiver)
            connection.receiver = None
        self._finish(block, end_us)
        self._ready.append(block)

    def _take(self, connection: _ConnectionRun, operations: int, end_us: float) -> None:
        """Note that a message was taken out of its connection."""
        received = connection.received
        received.append((received[-1] if received else 0) + operations)
        connection.received_us.append(end_us)
        self._wake_sender(connection)

    def _wake_sender(self, connection: _ConnectionRun) -> None:
        if connection.sender is not None:
            self._ready.append(connection.sender)
            connection.sender = None

    def _finish(self, block: _BlockRun, end_us: float) -> None:
        block.finished.append(end_us)
        if block.position in block.awaited:
            self._ready.extend(block.waiters.pop(len(block.finished) - 1, ()))
        block.position += 1
        if block.position == len(block.works):
            block.iteration, block.position = block.iteration + 1, 0


def _step_times(kind: StepKind, case: _ReplayCase, mb: float) -> _StepTimes:
    """Times of a kind of step whose chunks have so many megabytes in an iteration."""
    costs = case.costs
    fitting = costs.payload_bytes / case.cell_bytes + RELATIVE
    per_operation = max(1, min(MAX_COUNT, int(fitting))) if math.isfinite(fitting) else MAX_COUNT
    operations = -(-kind.count // per_operation)
    kb = kind.count * mb * 1000  # kilobytes over GB/s are microseconds
    duration_us = 0.0
    if kind.receives or kind.sends:
        duration_us = operations * costs.op_us + kb / costs.tb_gbps
    elif kind.copies:
        duration_us = operations * costs.op_us + kb / costs.copy_gbps
    elif kind.sources:
        duration_us = operations * costs.reduce_us + kb * kind.sources / costs.reduce_gbps
    return _StepTimes(duration_us, operations, costs.tail * duration_us / max(1, operations))


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


def _asked(load: ShapeLoad, case: _ReplayCase, mb: float) -> _AskedLoad:
    """Load of a message on a resource; copies of the program are connections that run in parallel too, and the last one of them counts."""
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

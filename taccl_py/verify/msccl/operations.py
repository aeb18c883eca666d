"""Steps to operations: what the kernel runs after the runtime has dropped nops and fused reductions.

The parser of the runtimes keeps a list of dependencies that nops have collected for the next step; it merges a ``re`` into
the one before when both have the same destination and source buffer, the later one has no dependency of its own and
the earlier one does not raise the flag; and it stops merging when a threadblock's sixteenth ``re`` has been read, and only
then. The kernel counts steps again while it runs. A flag holds that count, so the place where it can differ from ``s``
matters: a nop without dependency is not counted, and a dependency that a fused reduction swallowed is counted later.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

from taccl_py.collective import Address
from taccl_py.verify.msccl.geometry import operations_of
from taccl_py.verify.msccl.grammar import NOP, REDUCE, AlgoElement, Dependency, Step, Threadblock

FUSION_LIMIT = 16  # MSCCL_MAX_REDUCE_FUSION


@dataclass(frozen=True, slots=True)
class FusedStep:
    """One operation of a threadblock, still in the words of the file.

    Attributes
    ----------
    steps
        The step, or the chain of ``re`` steps that became one.
    collected
        Dependencies of the nops before it and its own, in file order.
    swallowed
        Nops with a dependency inside a chain; the operation does not wait for them.
    flag
        Value that the kernel writes into the threadblock's flag when it is done: its own count of steps.
    """

    steps: tuple[Step, ...]
    collected: tuple[Dependency, ...]
    swallowed: tuple[Step, ...]
    flag: int

    @property
    def last(self) -> Step:
        """The step whose count and flag bit the operation keeps."""
        return self.steps[-1]


@dataclass(frozen=True, slots=True)
class FusedThreadblock:
    """Operations of one threadblock, and the dependencies of trailing nops, which nobody waits for."""

    operations: tuple[FusedStep, ...]
    dropped: tuple[Dependency, ...]


@dataclass(frozen=True, slots=True)
class DependencyWait:
    """A dependency of an operation: `operation` is the first one whose flag ends the wait, None when there is none."""

    block: int
    step: int
    operation: int | None


@dataclass(frozen=True, slots=True)
class KernelOperation:
    """One operation of the kernel.

    Attributes
    ----------
    index, block
        Position among all operations of the file, and the threadblock's among all threadblocks.
    step
        The step of the file (the last of a chain).
    chain
        Sources of a reduction chain, otherwise empty.
    reads, writes
        First cells of the ranges that it reads, and of those that it writes.
    inbound, outbound
        Connection that a message is taken from, or given to; None without one.
    """

    index: int
    block: int
    step: Step
    chain: tuple[Address, ...]
    reads: tuple[Address, ...]
    writes: tuple[Address, ...]
    waits: tuple[DependencyWait, ...]
    inbound: int | None
    outbound: int | None

    @property
    def carries(self) -> bool:
        """True if the operation receives messages from a connection, or sends some over one."""
        return self.inbound is not None or self.outbound is not None


@dataclass(frozen=True, slots=True)
class KernelBlock:
    """One threadblock with its operations; `gpu` and `id` as in the file."""

    gpu: int
    id: int
    operations: tuple[KernelOperation, ...]


@dataclass(frozen=True, slots=True, order=True)
class Fifo:
    """One FIFO."""

    src: int
    dst: int
    channel: int


@dataclass(frozen=True, slots=True)
class Wires:
    """FIFOs that a threadblock fills and empties.

    Attributes
    ----------
    root, mirror
        Where some ranks stand for all: rank r does what rank ``root[r]`` does, under other names, and what it sends to rank g, one of
        these, is the image of what ``root[r]`` sends to ``mirror[r][g]``, and is called so. None where all ranks are there.
    """

    root: Sequence[int] | None = None
    mirror: Sequence[Sequence[int]] | None = None

    def filled_by(self, gpu: int, tb: Threadblock) -> Fifo | None:
        """FIFO that a threadblock sends to."""
        return Fifo(gpu, tb.send_peer, tb.channel) if tb.send_peer >= 0 else None

    def emptied_by(self, gpu: int, tb: Threadblock) -> Fifo | None:
        """FIFO that a threadblock receives from."""
        if tb.recv_peer < 0:
            return None
        if self.root is not None and self.mirror is not None:
            return Fifo(self.root[tb.recv_peer], self.mirror[tb.recv_peer][gpu], tb.channel)
        return Fifo(tb.recv_peer, gpu, tb.channel)


ALL_RANKS = Wires()


@dataclass(frozen=True, slots=True)
class KernelProgram:
    """Everything that runs.

    Attributes
    ----------
    blocks
        All threadblocks, by GPU and id.
    operations
        All operations, numbered along the threadblocks.
    connections, senders, receivers
        The FIFOs and the threadblock at each end.
    """

    blocks: tuple[KernelBlock, ...]
    operations: tuple[KernelOperation, ...]
    connections: tuple[Fifo, ...]
    senders: tuple[int, ...]
    receivers: tuple[int, ...]


def fuse(threadblock: Threadblock) -> FusedThreadblock:
    """Operations that the runtime makes of a threadblock's steps."""
    growing: list[_GrowingStep] = []
    pending: list[Dependency] = []
    nops: list[Step] = []
    last_reduction: Step | None = None
    num_reductions = 0
    for step in threadblock.steps:
        if step.depends_on is not None:
            pending.append(step.depends_on)
        if step.type == NOP:
            nops += [step] if step.depends_on is not None else []
            continue
        if last_reduction is not None and step.depends_on is None and _same_chain(last_reduction, step):
            growing[-1].steps.append(step)
            growing[-1].swallowed.extend(nops)
        else:
            growing.append(_GrowingStep([step], pending, []))
            pending = []
        nops = []
        last_reduction = None
        if step.type == REDUCE:
            num_reductions += 1
            last_reduction = None if step.flags or num_reductions == FUSION_LIMIT else step
    operations = []
    counter = 0
    for grown in growing:
        counter += max(len(grown.collected) - 1, 0) + len(grown.steps) - 1
        operations.append(FusedStep(tuple(grown.steps), tuple(grown.collected), tuple(grown.swallowed), counter))
        counter += 1
    return FusedThreadblock(tuple(operations), tuple(pending))


@dataclass(frozen=True, slots=True)
class _GrowingStep:
    """A `FusedStep` that still grows."""

    steps: list[Step]
    collected: list[Dependency]
    swallowed: list[Step]


def make_plan(algorithm: AlgoElement, wires: Wires = ALL_RANKS) -> KernelProgram:
    """Plan of an algorithm whose threadblocks, peers and dependencies have been found to exist."""
    gpus = sorted(algorithm.gpus, key=lambda gpu: gpu.id)
    owners = [(gpu.id, tb) for gpu in gpus for tb in sorted(gpu.threadblocks, key=lambda tb: tb.id)]
    numbers = _PlanNumbers(owners, wires)
    blocks = tuple(KernelBlock(gpu, tb.id, numbers.operations(block)) for block, (gpu, tb) in enumerate(owners))
    return KernelProgram(
        blocks=blocks,
        operations=tuple(operation for block in blocks for operation in block.operations),
        connections=numbers.connections,
        senders=tuple(numbers.sending[connection] for connection in numbers.connections),
        receivers=tuple(numbers.receiving[connection] for connection in numbers.connections),
    )


def split_plan(plan: KernelProgram, chunks: int) -> KernelProgram:
    """The same plan with an operation for every message of at most `chunks` chunks, in the order in which the kernel moves them.

    Only the first one of a step waits, and only after the last one is the flag raised.
    """
    ends = _ends_of_parts(plan, chunks)
    blocks = tuple(
        replace(block, operations=tuple(part for each in block.operations for part in _parts(each, chunks, ends)))
        for block in plan.blocks
    )
    return replace(plan, blocks=blocks, operations=tuple(part for block in blocks for part in block.operations))


def _parts(operation: KernelOperation, chunks: int, ends: Sequence[int]) -> Iterator[KernelOperation]:
    step, end = operation.step, ends[operation.index]
    starts = range(0, step.count, chunks if operation.carries else step.count)
    for number, start in enumerate(starts):
        shift = partial(_shifted, by=start)
        waits = () if number else operation.waits
        yield replace(
            operation,
            index=end - len(starts) + number,
            step=replace(
                step,
                source=shift(step.source),
                target=shift(step.target),
                count=min(starts.step, step.count - start),
            ),
            chain=tuple(map(shift, operation.chain)),
            reads=tuple(map(shift, operation.reads)),
            writes=tuple(map(shift, operation.writes)),
            waits=tuple(
                replace(wait, operation=None if wait.operation is None else ends[wait.operation] - 1) for wait in waits
            ),
        )


def _shifted(address: Address, by: int) -> Address:
    return replace(address, offset=address.offset + by)


def split_order(order: Sequence[int], plan: KernelProgram, chunks: int) -> tuple[int, ...]:
    """An order of a plan's operations as one of those that `split_plan` makes of them."""
    ends = _ends_of_parts(plan, chunks)
    return tuple(part for index in order for part in range(ends[index - 1] if index else 0, ends[index]))


def _ends_of_parts(plan: KernelProgram, chunks: int) -> list[int]:
    """For every operation, the number after that of its last part; parts are numbered along the operations."""
    return list(accumulate(operations_of(op.step.count, chunks) if op.carries else 1 for op in plan.operations))


class _PlanNumbers:
    """Numbers of everything that a plan refers to."""

    def __init__(self, owners: list[tuple[int, Threadblock]], wires: Wires) -> None:
        self.owners = owners
        self._filled = [wires.filled_by(gpu, tb) for gpu, tb in owners]
        self._emptied = [wires.emptied_by(gpu, tb) for gpu, tb in owners]
        self.sending = {found: block for block, found in enumerate(self._filled) if found is not None}
        self.receiving = {found: block for block, found in enumerate(self._emptied) if found is not None}
        self.connections = tuple(sorted(connection for connection in self.sending if connection in self.receiving))
        self._number = {connection: index for index, connection in enumerate(self.connections)}
        self._block_of = {(gpu, tb.id): block for block, (gpu, tb) in enumerate(owners)}
        self._fused = [fuse(tb).operations for _, tb in owners]
        self._first: list[int] = []
        self._flagged: list[list[int]] = []
        self._flags: list[list[int]] = []
        total = 0
        for operations in self._fused:
            flagged = [index for index, operation in enumerate(operations) if operation.last.flags]
            self._first.append(total)
            self._flagged.append([total + index for index in flagged])
            self._flags.append([operations[index].flag for index in flagged])
            total += len(operations)

    def operations(self, block: int) -> tuple[KernelOperation, ...]:
        """Operations of one threadblock with their waits and connections."""
        gpu, _ = self.owners[block]
        filled, emptied = self._filled[block], self._emptied[block]
        inbound = None if emptied is None else self._number.get(emptied)
        outbound = None if filled is None else self._number.get(filled)
        found = []
        for index, fused in enumerate(self._fused[block]):
            step, does = fused.last, fused.last.does
            chain = tuple(each.source for each in fused.steps) if step.type == REDUCE else ()
            reads = (step.target, *chain) if chain else (step.source,) if does.reads else ()
            found.append(
                KernelOperation(
                    index=self._first[block] + index,
                    block=block,
                    step=step,
                    chain=chain,
                    reads=reads,
                    writes=(step.target,) if does.writes else (),
                    waits=tuple(self._wait(gpu, dependency) for dependency in fused.collected),
                    inbound=inbound if does.receives else None,
                    outbound=outbound if does.sends else None,
                )
            )
        return tuple(found)

    def _wait(self, gpu: int, dependency: Dependency) -> DependencyWait:
        target = self._block_of[gpu, dependency.threadblock]
        position = bisect_left(self._flags[target], dependency.step)
        flagged = self._flagged[target]
        return DependencyWait(target, dependency.step, flagged[position] if position < len(flagged) else None)


def _same_chain(first: Step, second: Step) -> bool:
    return second.type == REDUCE and first.target == second.target and first.source.buffer == second.source.buffer

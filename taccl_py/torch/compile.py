"""Algorithm file -> compiled program: traced, what joins made one, scratch shared out, and the result proved right."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from taccl_py.collective import Buffer
from taccl_py.execute.plan import ExecutablePlan
from taccl_py.torch.proof import require_right
from taccl_py.torch.steps import ChunkRun, CompiledProgram, LocalOperation, PeerMessage, RankRound
from taccl_py.torch.trace import TracedMessage, TracedProgram, trace_program

# Operations among which one is looked for that joins the next one.
_LOOK_BACK = 64


def compile_program(plan: ExecutablePlan, *, in_place: bool) -> CompiledProgram:
    """Compile a program for all ranks, and prove that what was compiled does what the collective promises.

    Raises
    ------
    InvalidArtifact
        If it comes to a stop, does what cannot be done, leaves messages behind, or gives a wrong result.
    """
    traced = trace_program(plan, in_place=in_place)
    _join_messages(traced)
    _join_operations(traced)
    scratch = [_ScratchLayout(traced, rank) for rank in range(plan.num_ranks)]
    compiled = CompiledProgram(
        name=plan.name,
        kind=plan.collective,
        root=plan.root,
        in_place=in_place,
        input_chunks=plan.input_chunks,
        output_chunks=plan.output_chunks,
        scratch_chunks=tuple(each.length for each in scratch),
        rounds=tuple(tuple(_rounds_of(traced, rank, each)) for rank, each in enumerate(scratch)),
    )
    require_right(compiled)
    return compiled


# What joins


def _join_messages(traced: TracedProgram) -> None:
    """Make one message of those of a round and a pair that join at both ends; those that land in scratch are laid side by side.

    What lands in scratch is used whole until then, so its new place is found by the offset of the old one.
    """
    moved: list[dict[int, int]] = [{} for _ in traced.own_scratch]
    for one in traced.rounds:
        one.operations = [
            [_moved_operation(operation, moved[rank]) for operation in operations]
            for rank, operations in enumerate(one.operations)
        ]
        for message in one.messages:
            message.source = _moved(message.source, moved[message.src])
        joined: list[TracedMessage] = []
        for run in _runs(one.messages):
            first, rank = run[0], run[0].dst
            if first.lands_in_scratch and len(run) > 1:
                for message in run:
                    moved[rank][message.target.offset] = traced.used_scratch[rank]
                    message.target = _moved(message.target, moved[rank])
                    traced.used_scratch[rank] += message.target.chunks
            for message in run[1:]:
                first.source = first.source.with_next(message.source)
                first.target = first.target.with_next(message.target)
            joined.append(first)
        one.messages = joined


def _runs(messages: Iterable[TracedMessage]) -> Iterator[list[TracedMessage]]:
    """Messages of a round by pairs and sources, those that join together."""
    run: list[TracedMessage] = []
    for message in sorted(messages, key=lambda each: (each.src, each.dst, each.source, each.target)):
        if run and not _joins(run[-1], message):
            yield run
            run = []
        run.append(message)
    if run:
        yield run


def _joins(one: TracedMessage, other: TracedMessage) -> bool:
    alike = (one.src, one.dst, one.lands_in_scratch) == (other.src, other.dst, other.lands_in_scratch)
    return alike and one.source.joins(other.source) and (one.lands_in_scratch or one.target.joins(other.target))


def _moved(region: ChunkRun, moved: dict[int, int]) -> ChunkRun:
    if region.buffer is not Buffer.SCRATCH:
        return region
    return region._replace(offset=moved.get(region.offset, region.offset))


def _moved_operation(operation: LocalOperation, moved: dict[int, int]) -> LocalOperation:
    target, first, second = operation
    return LocalOperation(
        _moved(target, moved), _moved(first, moved), None if second is None else _moved(second, moved)
    )


def _join_operations(traced: TracedProgram) -> None:
    """Make one operation of those of a round that join in all they touch."""
    for one in traced.rounds:
        for rank, operations in enumerate(one.operations):
            joined: list[LocalOperation] = []
            for operation in operations:
                if not _join_earlier(joined, operation):
                    joined.append(operation)
            one.operations[rank] = joined


def _join_earlier(joined: list[LocalOperation], operation: LocalOperation) -> bool:
    """Join an operation with an earlier one, if those between the two may as well come after it; whether there was one."""
    for index in range(len(joined) - 1, max(-1, len(joined) - 1 - _LOOK_BACK), -1):
        earlier = joined[index]
        if _must_follow(operation, earlier):
            return False
        both = _joined(earlier, operation) or _joined(operation, earlier)
        if both is not None:
            joined[index] = both
            return True
    return False


def _must_follow(later: LocalOperation, earlier: LocalOperation) -> bool:
    """True if one reads what the other writes, or both write the same."""
    return any(region.overlaps(earlier.target) for region in later if region is not None) or any(
        region.overlaps(later.target) for region in earlier[1:] if region is not None
    )


def _joined(one: LocalOperation, other: LocalOperation) -> LocalOperation | None:
    """Two that do not touch each other's targets as one, where the second goes on in memory where the first ends."""
    if not (one.target.joins(other.target) and one.first.joins(other.first)):
        return None
    target, first = one.target.with_next(other.target), one.first.with_next(other.first)
    if one.second is None and other.second is None:
        return LocalOperation(target, first)
    if one.second is None or other.second is None or not one.second.joins(other.second):
        return None
    return LocalOperation(target, first, one.second.with_next(other.second))


# Scratch


@dataclass(slots=True)
class _ScratchUse:
    """Scratch that is used together, and from when to when: operations of round k at 2 k, its exchange at 2 k + 1."""

    offset: int
    end: int
    first_use: int
    last_use: int
    place: int = 0

    @property
    def length(self) -> int:
        """Chunks."""
        return self.end - self.offset


class _ScratchLayout:
    """Places of scratch of one rank such that blocks that are not needed at the same time share it; the program's own stays where it is.

    Attributes
    ----------
    length
        Chunks of all of it.
    """

    def __init__(self, traced: TracedProgram, rank: int) -> None:
        self._own = self.length = traced.own_scratch[rank]
        self._blocks = _blocks_of(traced, rank)
        self._starts = [block.offset for block in self._blocks]
        placed: list[_ScratchUse] = []
        for block in sorted(self._blocks, key=lambda each: (each.first_use, each.offset)):
            placed = [other for other in placed if other.last_use >= block.first_use]
            block.place = _lowest_place(block.length, placed, self._own)
            placed.append(block)
            self.length = max(self.length, block.place + block.length)

    def place(self, region: ChunkRun) -> ChunkRun:
        """Place of a region at last."""
        if region.buffer is not Buffer.SCRATCH or region.offset < self._own:
            return region
        block = self._blocks[bisect_right(self._starts, region.offset) - 1]
        return region._replace(offset=block.place + region.offset - block.offset)


def _blocks_of(traced: TracedProgram, rank: int) -> list[_ScratchUse]:
    """Scratch beyond the program's own, by offset; regions that overlap are one block."""
    blocks: list[_ScratchUse] = []
    uses = [
        (region.offset, region.end, time)
        for region, time in _scratch_uses(traced, rank)
        if region.offset >= traced.own_scratch[rank]
    ]
    for offset, end, time in sorted(uses):
        last = blocks[-1] if blocks else None
        if last is None or offset >= last.end:
            blocks.append(_ScratchUse(offset, end, time, time))
        else:
            last.end = max(last.end, end)
            last.first_use, last.last_use = min(last.first_use, time), max(last.last_use, time)
    return blocks


def _scratch_uses(traced: TracedProgram, rank: int) -> Iterator[tuple[ChunkRun, int]]:
    for number, one in enumerate(traced.rounds):
        used = [
            (region, 2 * number) for operation in one.operations[rank] for region in operation if region is not None
        ]
        used += [(message.source, 2 * number + 1) for message in one.messages if message.src == rank]
        used += [(message.target, 2 * number + 1) for message in one.messages if message.dst == rank]
        yield from (use for use in used if use[0].buffer is Buffer.SCRATCH)


def _lowest_place(length: int, placed: Sequence[_ScratchUse], lowest: int) -> int:
    """First place from `lowest` on that is long enough between blocks that are there."""
    for start, end in sorted((block.place, block.place + block.length) for block in placed):
        if start - lowest >= length:
            break
        lowest = max(lowest, end)
    return lowest


def _rounds_of(traced: TracedProgram, rank: int, layout: _ScratchLayout) -> Iterator[RankRound]:
    for one in traced.rounds:
        operations = [
            LocalOperation(*(layout.place(region) for region in operation if region is not None))
            for operation in one.operations[rank]
        ]
        sends = [PeerMessage(each.dst, layout.place(each.source)) for each in one.messages if each.src == rank]
        receives = [PeerMessage(each.src, layout.place(each.target)) for each in one.messages if each.dst == rank]
        yield RankRound(tuple(operations), tuple(sends), tuple(receives))

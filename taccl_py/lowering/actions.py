"""Actions: what ranks do, before it is decided which threadblock does it.

An *action* becomes one step; a forward (an arrival and a send) may become one step out of two actions. Actions are kept in
one list for all ranks, in the order of time of `taccl_py.lowering.order`; `RankAction.order` is the place in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from taccl_py.lowering.cells import CellRange, nearly_equal_runs
from taccl_py.lowering.program import Op
from taccl_py.runtimes import MAX_COUNT

NONE = -1


@dataclass(frozen=True, slots=True)
class RankAction:
    """Something that one rank does.

    Attributes
    ----------
    order
        Place in the order of time of all ranks.
    rank
        Who.
    op
        The step that it becomes.
    reads
        Cells read in memory (the local operand of a reducing receive), or None.
    writes
        Cells written, or None. `Op.REDUCE` reads them too.
    arrives, leaves
        Transfer that it takes from and gives to a connection, or `NONE`.
    beside
        Transfer whose receiving threadblock must do this too, or `NONE` for local work that may be done anywhere.
    ready_us
        By the schedule, when it can be done at the earliest; for an arrival, when the last byte is there.
    busy_us
        By the schedule, how long its threadblock is busy with it: while the message leaves; for an arrival, while it comes
        in, which ends with `ready_us` at the earliest.
    """

    order: int
    rank: int
    op: Op
    reads: CellRange | None
    writes: CellRange | None
    arrives: int = NONE
    leaves: int = NONE
    beside: int = NONE
    ready_us: float = 0.0
    busy_us: float = 0.0

    @property
    def count(self) -> int:
        """Number of cells that it works on."""
        cells = self.writes or self.reads
        return cells.count if cells else 0

    @property
    def is_local(self) -> bool:
        """True if the step neither takes nor gives a transfer."""
        return self.arrives == NONE and self.leaves == NONE

    def at(self, order: int, ready_us: float) -> RankAction:
        """Return the same action at another place in the order of time."""
        if (order, ready_us) == (self.order, self.ready_us):
            return self
        # Not `replace`, which takes five times as long: large programs have hundreds of thousands of actions.
        return RankAction(
            order, self.rank, self.op, self.reads, self.writes, self.arrives, self.leaves, self.beside, ready_us, self.busy_us
        )  # fmt: skip

    def on(self, reads: CellRange | None, writes: CellRange | None) -> RankAction:
        """Return the same action on other cells."""
        return RankAction(
            self.order, self.rank, self.op, reads, writes, self.arrives, self.leaves, self.beside, self.ready_us, self.busy_us
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class StepTransfer:
    """Data that one sending step gives to one receiving step: a message, or one instance's part or a piece of it.

    Attributes
    ----------
    message
        Index into ``schedule.messages``.
    instance
        Which of the instances carries it.
    link, src, dst
        The link and its ends.
    count
        Cells.
    start_us
        When the message starts.
    """

    message: int
    instance: int
    link: int
    src: int
    dst: int
    count: int
    start_us: float


@dataclass(frozen=True, slots=True)
class RankWork:
    """All that the ranks do, in cells of the final size.

    Attributes
    ----------
    actions
        In the order of time.
    transfers
        Numbered as in `RankAction.arrives` and `RankAction.leaves`.
    """

    actions: tuple[RankAction, ...]
    transfers: tuple[StepTransfer, ...]


@dataclass(frozen=True, slots=True)
class _Slice:
    """One instance's part of a run of cells, or a piece of it."""

    instance: int
    offset: int
    count: int


def cut_actions(
    actions: tuple[RankAction, ...], messages: tuple[StepTransfer, ...], instances: int, most: int = MAX_COUNT
) -> RankWork:
    """Cut every chunk into `instances` cells, and every action into one for each instance and at most `most` cells.

    A message's cells are cut into as many neighbouring parts as there are instances, equal at both ends, so that each
    part is still one transfer. Local work is cut likewise.

    Parameters
    ----------
    actions
        Actions whose transfers are whole messages and whose cells are chunks.
    messages
        One transfer for each message, in chunks.
    instances
        Number of instances, at least 1.
    most
        Cells of an action.
    """
    transfers: list[StepTransfer] = []
    first_of: list[int] = []
    for message in messages:
        first_of.append(len(transfers))
        transfers.extend(
            replace(message, instance=part.instance, count=part.count)
            for part in _parts(message.count, instances, most)
        )
    cut: list[RankAction] = []
    for action in actions:
        for index, piece in enumerate(_parts(action.count, instances, most)):
            cut.append(_slice_of(action, piece, len(cut), instances, first_of, index))
    return RankWork(tuple(cut), tuple(transfers))


def _slice_of(
    action: RankAction, piece: _Slice, order: int, instances: int, first_of: list[int], index: int
) -> RankAction:
    def cells(whole: CellRange | None) -> CellRange | None:
        return whole.scaled(instances).part(piece.offset, piece.count) if whole else None

    def transfer(message: int) -> int:
        return first_of[message] + index if message != NONE else NONE

    return RankAction(
        order, action.rank, action.op, cells(action.reads), cells(action.writes), transfer(action.arrives),
        transfer(action.leaves), transfer(action.beside), action.ready_us, action.busy_us,
    )  # fmt: skip


def _parts(count: int, instances: int, most: int) -> list[_Slice]:
    """Instances' parts of ``count * instances`` cells, each in pieces that a step can carry."""
    return [
        _Slice(instance, instance * count + piece.offset, piece.count)
        for instance in range(instances)
        for piece in _pieces(count, most)
    ]


def _pieces(count: int, most: int) -> list[_Slice]:
    """Nearly equal pieces of at most `most` cells."""
    return [_Slice(0, first, end - first) for first, end in nearly_equal_runs(count, -(-count // most))]

"""Users of an action's result: forwards, readers, and until when a receive can wait without holding anybody up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taccl_py.lowering.actions import NONE, RankAction, RankWork
from taccl_py.lowering.cells import CellRange
from taccl_py.lowering.contiguous import Stretches
from taccl_py.lowering.program import Op


@dataclass(frozen=True, slots=True)
class DataFlow:
    """Facts about every action, by `RankAction.order`.

    Attributes
    ----------
    source
        For a send: the one action that made exactly the cells that it sends, or `NONE`.
    readers
        Actions that read in memory what it writes; ``len(actions)`` stands for the user, who reads the output at the end.
    deadline_us
        Time up to which it may be put off by the schedule: a send must not wait; a receive may until somebody needs the
        data or the next message of its link is there.
    """

    source: tuple[int, ...]
    readers: tuple[tuple[int, ...], ...]
    deadline_us: tuple[float, ...]


def trace_flow(work: RankWork, makespan_us: float) -> DataFlow:
    """Follow the data through the memories of all ranks.

    Parameters
    ----------
    work
        Actions of the ranks.
    makespan_us
        Time at which the schedule ends.
    """
    tracer = _WriterTracer(work.actions)
    for action in work.actions:
        tracer.follow(action)
    tracer.finish()
    deadline_us = [makespan_us if action.arrives != NONE else action.ready_us for action in work.actions]
    last_on: dict[tuple[int, int], int] = {}
    for action in work.actions:
        for reader in tracer.readers[action.order]:
            if reader < len(work.actions):
                deadline_us[action.order] = min(deadline_us[action.order], work.actions[reader].ready_us)
        if action.arrives != NONE:
            transfer = work.transfers[action.arrives]
            before = last_on.get((transfer.link, transfer.instance))
            if before is not None:
                deadline_us[before] = min(deadline_us[before], action.ready_us)
            last_on[transfer.link, transfer.instance] = action.order
    return DataFlow(tuple(tracer.source), tuple(map(tuple, tracer.readers)), tuple(deadline_us))


class _WriterTracer:
    """Last writer of every cell."""

    def __init__(self, actions: Sequence[RankAction]) -> None:
        self.source = [NONE] * len(actions)
        self.readers: list[list[int]] = [[] for _ in actions]
        self._user = len(actions)
        self._stretches = Stretches(actions)
        self._writer = [NONE] * self._stretches.count
        self._extent: list[CellRange | None] = [None] * len(actions)

    def follow(self, action: RankAction) -> None:
        """Take in one action, in the order of time."""
        if action.reads is not None:
            makers = self._read(action, action.reads)
            if action.op is Op.SEND and len(makers) == 1 and NONE not in makers:
                (maker,) = makers
                if self._extent[maker] == action.reads:
                    self.source[action.order] = maker
        if action.writes is not None:
            if action.op is Op.REDUCE:
                self._read(action, action.writes)
            self._extent[action.order] = action.writes
            for place in self._stretches.of(action.rank, action.writes):
                self._writer[place] = action.order

    def finish(self) -> None:
        """Let the user read the output."""
        for maker in dict.fromkeys(self._writer[place] for place in self._stretches.outputs()):
            if maker != NONE:
                self.readers[maker].append(self._user)

    def _read(self, action: RankAction, cells: CellRange) -> dict[int, None]:
        """Note the reading, and return the actions that wrote the cells (in order, without repetition)."""
        makers = dict.fromkeys(self._writer[place] for place in self._stretches.of(action.rank, cells))
        for maker in makers:
            if maker != NONE and (not self.readers[maker] or self.readers[maker][-1] != action.order):
                self.readers[maker].append(action.order)
        return makers

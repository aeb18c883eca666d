"""Whether a program comes to its end when connections hold only so many operations.

A step of n cells is one operation when the data are small, and up to n when they are large. A send waits while its
connection is full, so a plan that sends before it receives can stop for large data only. All waits are for things that stay
true, so one run in any order decides.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from taccl_py.lowering.actions import NONE, Action, Transfer
from taccl_py.lowering.threadblocks import Draft


@dataclass(frozen=True, slots=True)
class FifoModel:
    """How steps become operations.

    Attributes
    ----------
    slots
        Operations that a connection holds.
    cells_per_operation
        Cells that one operation carries.
    """

    slots: int
    cells_per_operation: int

    def operations(self, action: Action) -> int:
        """Operations of a step."""
        return max(1, -(-action.count // self.cells_per_operation))


@dataclass(slots=True, eq=False)
class _Block:
    """State of a threadblock: operations done of the step at `position`."""

    draft: Draft
    position: int = 0
    operations: int = 0
    queued: bool = True


@dataclass(slots=True, eq=False)
class _Connection:
    """State of a connection, and the blocks at its ends that may wait for it."""

    filled: int = 0
    ends: list[_Block] = field(default_factory=list)


def find_stuck(
    drafts: tuple[tuple[Draft, ...], ...],
    waits: dict[int, tuple[int, ...]],
    transfers: tuple[Transfer, ...],
    model: FifoModel,
) -> tuple[Action, ...]:
    """Return the actions at which threadblocks stop for ever; none if the program ends.

    Parameters
    ----------
    drafts
        Threadblocks by rank.
    waits
        Actions of other threadblocks that must be done before, by `Action.order`.
    transfers
        For the ends of connections.
    model
        How steps become operations.
    """
    return _Run(drafts, waits, transfers, model).stuck()


class _Run:
    """One execution."""

    def __init__(
        self,
        drafts: tuple[tuple[Draft, ...], ...],
        waits: dict[int, tuple[int, ...]],
        transfers: tuple[Transfer, ...],
        model: FifoModel,
    ) -> None:
        self._waits = waits
        self._transfers = transfers
        self._model = model
        self._blocks = [_Block(draft) for rank in drafts for draft in rank]
        self._connections: dict[tuple[int, int, int], _Connection] = {}
        self._done: set[int] = set()
        self._waiting: dict[int, list[_Block]] = {}
        self._queue = deque(self._blocks)

    def stuck(self) -> tuple[Action, ...]:
        """Run to the end, or to where nothing moves."""
        while self._queue:
            block = self._queue.popleft()
            block.queued = False
            while block.position < len(block.draft.actions) and self._finish_step(block):
                block.position += 1
                block.operations = 0
        return tuple(b.draft.actions[b.position] for b in self._blocks if b.position < len(b.draft.actions))

    def _finish_step(self, block: _Block) -> bool:
        """Do as much of the step as can be done; whether it is finished."""
        action = block.draft.actions[block.position]
        for target in self._waits.get(action.order, ()):
            if target not in self._done:
                self._waiting.setdefault(target, []).append(block)
                return False
        if not action.is_local and not self._move(block, action):
            return False
        self._done.add(action.order)
        for waiting in self._waiting.pop(action.order, ()):
            self._wake(waiting)
        return True

    def _move(self, block: _Block, action: Action) -> bool:
        """Take and give operations until the step is finished or something is missing."""
        source = self._connection(block, action.arrives)
        target = self._connection(block, action.leaves)
        todo = self._model.operations(action) - block.operations
        possible = todo
        if source is not None:
            possible = min(possible, source.filled)
        if target is not None:
            possible = min(possible, self._model.slots - target.filled)
        block.operations += possible
        if possible and source is not None:
            source.filled -= possible
            self._wake_ends(source)
        if possible and target is not None:
            target.filled += possible
            self._wake_ends(target)
        return possible == todo

    def _connection(self, block: _Block, transfer: int) -> _Connection | None:
        if transfer == NONE:
            return None
        ends = self._transfers[transfer]
        found = self._connections.setdefault((ends.src, ends.dst, block.draft.channel), _Connection())
        if block not in found.ends:
            found.ends.append(block)
        return found

    def _wake_ends(self, connection: _Connection) -> None:
        for block in connection.ends:
            self._wake(block)

    def _wake(self, block: _Block) -> None:
        if not block.queued:
            block.queued = True
            self._queue.append(block)

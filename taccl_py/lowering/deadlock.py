"""Deadlock check of a program whose connections hold only a few operations.

A step of n cells is one operation when the data are small, and up to n when they are large. A send waits while its
connection is full, so a plan that sends before it receives can stop for large data only. All waits are for things that stay
true, so one run in any order decides.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from taccl_py.lowering.actions import NONE, RankAction, StepTransfer
from taccl_py.lowering.threadblocks import UnfinishedThreadblock


@dataclass(frozen=True, slots=True)
class FifoModel:
    """Model of how steps become operations.

    Attributes
    ----------
    slots
        Operations that a connection holds.
    cells_per_operation
        Cells that one operation carries.
    """

    slots: int
    cells_per_operation: int

    def operations(self, count: int) -> int:
        """Operations of a step of so many cells."""
        return max(1, -(-count // self.cells_per_operation))


@dataclass(frozen=True, slots=True)
class _FifoStep:
    """An action with the numbers of the connections that it takes from and gives to, or `NONE`."""

    action: RankAction
    waits: tuple[int, ...]
    count: int
    source: int
    target: int


class Fifos:
    """Threadblocks and the connections between them.

    Parameters
    ----------
    blocks
        Threadblocks by rank.
    waits
        Actions of other threadblocks that must be done before, by `RankAction.order`.
    transfers
        For the ends of connections.
    """

    def __init__(
        self,
        blocks: Sequence[Sequence[UnfinishedThreadblock]],
        waits: Mapping[int, tuple[int, ...]],
        transfers: Sequence[StepTransfer],
    ) -> None:
        number: dict[tuple[int, int, int], int] = {}

        def connection(transfer: int, channel: int) -> int:
            if transfer == NONE:
                return NONE
            ends = transfers[transfer]
            return number.setdefault((ends.src, ends.dst, channel), len(number))

        self._blocks = [
            [
                _FifoStep(
                    a,
                    waits.get(a.order, ()),
                    a.count,
                    connection(a.arrives, d.channel),
                    connection(a.leaves, d.channel),
                )
                for a in d.actions
            ]
            for rank in blocks
            for d in rank
        ]
        self._connections = len(number)
        moving = (step for steps in self._blocks for step in steps if step.source != NONE or step.target != NONE)
        self._counts = sorted({step.count for step in moving})
        # By the slots and the operations of steps of each count: models with the same of these are one.
        self._known: dict[tuple[int, ...], tuple[RankAction, ...]] = {}

    def stuck(self, model: FifoModel) -> tuple[RankAction, ...]:
        """Return the actions at which threadblocks stop for ever; none if the program ends.

        Parameters
        ----------
        model
            How steps become operations.
        """
        if self.passes_hand_to_hand:
            return ()
        alike = (model.slots, *map(model.operations, self._counts))
        if alike not in self._known:
            self._known[alike] = self.start(model).stuck()
        return self._known[alike]

    @cached_property
    def passes_hand_to_hand(self) -> bool:
        """True if the program ends whatever connections hold, as it does even where they hold nothing and a transfer needs both its ends at once.

        Steps that a transfer joins, over steps that pass on what they receive, then happen together; if no such group waits for itself through
        the order of threadblocks or through flags, groups can happen one after the other, and in each what is sent is taken at once.
        """
        steps = [step for block in self._blocks for step in block]
        receiver = {step.action.arrives: step.action for step in steps if step.action.arrives != NONE}
        sent = {step.action.leaves for step in steps} - {NONE}
        group: dict[int, int] = {}
        for step in steps:
            if step.action.arrives == NONE:
                action: RankAction | None = step.action
                while action is not None:
                    group[action.order] = step.action.order
                    action = receiver.get(action.leaves)
        # What nobody sends, and what is passed on in a circle, which nobody begins, is in no group.
        if (
            len(group) < len(steps)
            or sent != receiver.keys()
            or any(not group.keys() >= {*step.waits} for step in steps)
        ):
            return False
        before = defaultdict[int, set[int]](set)
        for block in self._blocks:
            for one, two in pairwise(block):
                before[group[two.action.order]].add(group[one.action.order])
        for step in steps:
            before[group[step.action.order]].update(group[other] for other in step.waits)
        with suppress(CycleError):
            TopologicalSorter(before).prepare()
            return True
        return False

    def start(self, model: FifoModel) -> ResumableExecution:
        """Return an execution that has not begun."""
        return ResumableExecution(self._blocks, self._connections, model)


class ResumableExecution:
    """One that can be gone on with; lists are indexed by threadblock or by connection."""

    def __init__(self, blocks: Sequence[Sequence[_FifoStep]], connections: int, model: FifoModel) -> None:
        self._blocks, self._model = blocks, model
        self._position = [0] * len(blocks)
        self._operations = [0] * len(blocks)
        self._filled = [0] * connections
        self._stopped: list[set[int]] = [set() for _ in range(connections)]
        self._queued = [True] * len(blocks)
        self._done: set[int] = set()
        self._released: set[int] = set()
        # Released receives whose copies wait for an action.
        self._copying: dict[int, list[_FifoStep]] = {}
        self._waiting: dict[int, list[int]] = {}
        self._queue = deque(range(len(blocks)))

    def stuck(self) -> tuple[RankAction, ...]:
        """Run to the end, or to where nothing moves."""
        while self._queue:
            block = self._queue.popleft()
            self._queued[block] = False
            steps, position = self._blocks[block], self._position[block]
            while position < len(steps) and self._finish_step(block, steps[position]):
                position += 1
                self._operations[block] = 0
            self._position[block] = position
        stops = zip(self._blocks, self._position, strict=True)
        return tuple(steps[position].action for steps, position in stops if position < len(steps))

    def release(self, orders: Iterable[int]) -> None:
        """Let these receives, by `RankAction.order`, no longer wait for memory, as if what comes were copied there when that is free."""
        self._released.update(orders)
        for block, steps in enumerate(self._blocks):
            position = self._position[block]
            if position < len(steps) and steps[position].action.order in self._released:
                self._wake([block])

    def _finish_step(self, block: int, step: _FifoStep) -> bool:
        """Do as much of the step as can be done; whether it is finished."""
        if step.waits and step.action.order not in self._released:
            for target in step.waits:
                if target not in self._done:
                    self._waiting.setdefault(target, []).append(block)
                    return False
        if (step.source != NONE or step.target != NONE) and not self._move(block, step):
            return False
        self._finish(step)
        return True

    def _finish(self, step: _FifoStep) -> None:
        """Note that an action is done, or will be when what a released receive has brought can be copied; and what follows from it."""
        moved = [step]
        while moved:
            step = moved.pop()
            if self._released and step.waits:  # others begin when all that they wait for is done
                missing = next((target for target in step.waits if target not in self._done), None)
                if missing is not None:
                    self._copying.setdefault(missing, []).append(step)
                    continue
            order = step.action.order
            self._done.add(order)
            if order in self._waiting:
                self._wake(self._waiting.pop(order))
            if order in self._copying:
                moved += self._copying.pop(order)

    def _move(self, block: int, step: _FifoStep) -> bool:
        """Take and give operations until the step is finished or something is missing."""
        source, target, filled = step.source, step.target, self._filled
        todo = possible = self._model.operations(step.count) - self._operations[block]
        if source != NONE and filled[source] < possible:
            possible = filled[source]
        if target != NONE and self._model.slots - filled[target] < possible:
            possible = self._model.slots - filled[target]
        self._operations[block] += possible
        is_finished = possible == todo
        if source != NONE:
            filled[source] -= possible
            if not is_finished or self._stopped[source]:
                self._pass_on(block, source, possible, stops=not is_finished)
        if target != NONE:
            filled[target] += possible
            if not is_finished or self._stopped[target]:
                self._pass_on(block, target, possible, stops=not is_finished)
        return is_finished

    def _pass_on(self, block: int, connection: int, moved: int, *, stops: bool) -> None:
        """Wake the threadblock stopped at a connection that has changed, and note the one that stops there now."""
        stopped = self._stopped[connection]
        if moved and stopped:
            self._wake(stopped if len(stopped) == 1 else sorted(stopped))
            stopped.clear()
        if stops:
            stopped.add(block)

    def _wake(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if not self._queued[block]:
                self._queued[block] = True
                self._queue.append(block)

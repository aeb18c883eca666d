"""All ranks in one process: threadblocks take turns, messages lie in queues of the runtime's length."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

from taccl_py.errors import InvalidArtifact
from taccl_py.execute.arithmetic import Array
from taccl_py.execute.engine import ExecutedBlock, MessageQueue, ThreadblockEngine, Transport
from taccl_py.execute.plan import ExecutablePlan
from taccl_py.execute.trouble import Trouble, explain_deadlock, explain_left_over


class LocalQueues(Transport):
    """Connections between ranks of one process, each with so many slots."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._queues: dict[MessageQueue, deque[Array]] = {}

    def has_room(self, connection: MessageQueue) -> bool:
        """True if a slot is free."""
        return len(self._queues.setdefault(connection, deque())) < self._slots

    def push(self, connection: MessageQueue, message: Array) -> None:
        """Take a slot."""
        self._queues[connection].append(message)

    def has_message(self, connection: MessageQueue) -> bool:
        """True if a slot is taken."""
        return bool(self._queues.get(connection))

    def pop(self, connection: MessageQueue) -> Array:
        """Free the oldest slot."""
        return self._queues[connection].popleft()

    def left_over(self) -> list[MessageQueue]:
        """Connections in which something was left."""
        return sorted(connection for connection, queue in self._queues.items() if queue)


def run_all(
    engine: ThreadblockEngine, queues: LocalQueues, plan: ExecutablePlan, order: random.Random | None = None
) -> None:
    """Run until all threadblocks have ended.

    Parameters
    ----------
    order
        Draws whose turn it is, one operation each, so that what nobody has ordered happens in any order; None: in the order
        of rank and number, each as far as it gets.

    Raises
    ------
    InvalidArtifact
        If the program comes to a stop, does what cannot be done, or leaves messages behind.
    """
    active = engine.blocks
    try:
        while active:
            if not _take_turns(engine, active, order):
                raise InvalidArtifact(plan.name, explain_deadlock(engine.waits(active)))
            active = engine.blocks
    except Trouble as trouble:
        raise InvalidArtifact(plan.name, [trouble.violation]) from None
    left = queues.left_over()
    if left:
        raise InvalidArtifact(plan.name, [explain_left_over(*one) for one in left])


def _take_turns(engine: ThreadblockEngine, active: Sequence[ExecutedBlock], order: random.Random | None) -> bool:
    """True if any threadblock advanced; some of them are tried in any order, or if they cannot, all."""
    if order is not None:
        some = order.sample(active, order.randint(1, len(active)))
        if any([engine.advance(block, 1) for block in some]):
            return True
    return any([engine.advance(block) for block in active])

"""A program as rounds: what every rank sends in one group, then what all may do with it.

In a round each threadblock goes on as far as what has arrived lets it; everything sent in a round is exchanged at its end, as one
group that no library can lock up. All ranks find the same rounds without any data, so whether the program stops, and where,
is known before anything is sent.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from taccl_py.collective import Address
from taccl_py.errors import InvalidArtifact
from taccl_py.execute.arithmetic import NumpyCells
from taccl_py.execute.engine import MessageQueue, ThreadblockEngine, Transport
from taccl_py.execute.memory import lengths_of, require_cells
from taccl_py.execute.plan import DataType, ExecutablePlan, Operator, SizeCut
from taccl_py.execute.trouble import Trouble, explain_deadlock, explain_left_over


@dataclass(frozen=True, slots=True)
class Parcel:
    """A message of a round and its length."""

    connection: MessageQueue
    elements: int


@dataclass(frozen=True, slots=True)
class Round:
    """Messages exchanged when a round ends, in an order that is the same on all ranks, and the slots that are free then."""

    parcels: tuple[Parcel, ...]
    freed: tuple[MessageQueue, ...]


class Mailbox(Transport):
    """Connections whose messages arrive, and whose slots are free again, when a round ends."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._arrived: dict[MessageQueue, deque[Any]] = {}
        self._open: dict[MessageQueue, int] = {}
        self._staged: list[tuple[MessageQueue, Any]] = []
        self._popped: list[MessageQueue] = []

    def has_room(self, connection: MessageQueue) -> bool:
        """True if a slot is free."""
        return self._open.get(connection, 0) < self._slots

    def push(self, connection: MessageQueue, message: Any) -> None:
        """Take a slot; the message travels when the round ends."""
        self._open[connection] = self._open.get(connection, 0) + 1
        self._staged.append((connection, message))

    def has_message(self, connection: MessageQueue) -> bool:
        """True if a message has arrived."""
        return bool(self._arrived.get(connection))

    def pop(self, connection: MessageQueue) -> Any:
        """Take the oldest message."""
        self._popped.append(connection)
        return self._arrived[connection].popleft()

    def free(self, connection: MessageQueue) -> None:
        """Let a slot be free again."""
        self._open[connection] = self._open.get(connection, 0) - 1

    def take_popped(self) -> list[MessageQueue]:
        """Return where messages were popped in this round."""
        popped, self._popped = self._popped, []
        return popped

    def take_staged(self) -> list[tuple[MessageQueue, Any]]:
        """Return what was pushed in this round, in order, and begin the next one."""
        staged, self._staged = self._staged, []
        return staged

    def deliver(self, connection: MessageQueue, message: Any) -> None:
        """Let a message arrive."""
        self._arrived.setdefault(connection, deque()).append(message)

    def left_over(self) -> list[MessageQueue]:
        """Connections in which something was left."""
        return sorted(connection for connection, queue in self._arrived.items() if queue)


class _Ghost(ThreadblockEngine):
    """An engine without data: messages have a length and nothing in them."""

    def __init__(self, plan: ExecutablePlan, cut: SizeCut, mailbox: Mailbox, *, in_place: bool) -> None:
        nowhere: dict[int, Any] = dict.fromkeys(range(plan.num_ranks))
        super().__init__(plan, cut, nowhere, mailbox, Operator.SUM, NumpyCells(DataType.INT8))
        self._lengths = [lengths_of(plan, rank, in_place=in_place) for rank in range(plan.num_ranks)]

    def _local(self, rank: int, address: Address, count: int, part: slice, where: str) -> Any:
        require_cells(self._lengths[rank], address, count, where)
        return np.broadcast_to(np.int8(0), (count, part.stop - part.start))

    def _combine(self, own: Any, other: Any) -> Any:  # noqa: ARG002
        return own

    def _combine_to(self, target: Any, own: Any, other: Any) -> None:
        """There is nowhere to store it."""

    def _copy(self, values: Any) -> Any:
        return values

    def _store(self, cells: Any, values: Any) -> None:
        """There is nowhere to store it."""


def find_rounds(plan: ExecutablePlan, cut: SizeCut, slots: int, *, in_place: bool) -> list[Round]:
    """All rounds of a program.

    Raises
    ------
    InvalidArtifact
        If the program comes to a stop, does what cannot be done, or leaves messages behind.
    """
    mailbox = Mailbox(slots)
    ghost = _Ghost(plan, cut, mailbox, in_place=in_place)
    rounds: list[Round] = []
    active = ghost.blocks
    try:
        while active:
            if not any([ghost.advance(block) for block in active]):
                raise InvalidArtifact(plan.name, explain_deadlock(ghost.waits(active)))
            staged = mailbox.take_staged()
            for connection, message in staged:
                mailbox.deliver(connection, message)
            freed = mailbox.take_popped()
            for connection in freed:
                mailbox.free(connection)
            parcels = tuple(Parcel(connection, message.size) for connection, message in staged)
            rounds.append(Round(parcels, tuple(freed)))
            active = ghost.blocks
    except Trouble as trouble:
        raise InvalidArtifact(plan.name, [trouble.violation]) from None
    left = mailbox.left_over()
    if left:
        raise InvalidArtifact(plan.name, [explain_left_over(*one) for one in left])
    return rounds

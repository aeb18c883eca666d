"""The order of time of a schedule: starts and arrivals of its messages.

It decides what a message carries and what must not be overwritten yet. An arrival comes before a start of the same moment: the message that starts carries what has arrived. Two times are
the same moment if they differ by less than `SAME_MOMENT` of the duration of the message that arrives.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from taccl_py.errors import InputError
from taccl_py.lowering.subject import CellSchedule
from taccl_py.schedule.ir import Message
from taccl_py.tolerances import SAME_MOMENT, ULPS


@dataclass(frozen=True, slots=True)
class Event:
    """A message starts, or arrives.

    Attributes
    ----------
    message
        Index into ``schedule.messages``.
    arrives
        True when the receiver gets it, False when the sender starts it.
    time_us
        The schedule's time of that.
    """

    message: int
    arrives: bool
    time_us: float


def order_events(schedule: CellSchedule) -> tuple[Event, ...]:
    """Return the starts and arrivals of all messages in the order of time.

    Raises
    ------
    InputError
        If a message does not exist as it stands: no such link or chunk, no chunks, times that are no times.
    """
    if len(schedule.scratch) != schedule.collective.num_ranks:
        raise InputError(f"the schedule has {len(schedule.scratch)} scratch lists; give one to each rank")
    if schedule.collective.num_ranks != schedule.topology.num_ranks:
        raise InputError(
            f"the collective has {schedule.collective.num_ranks} ranks and the topology "
            f"{schedule.topology.num_ranks}; they must be equal"
        )
    keys: list[tuple[float, bool, int]] = []
    for index, message in enumerate(schedule.messages):
        _require_sound(schedule, index, message)
        keys.append((message.start_us, True, index))
        keys.append((_arrival_us(message), False, index))
    keys.sort()
    _require_no_overtaking(schedule, keys)
    return tuple(
        Event(index, not is_start, schedule.messages[index].start_us if is_start else schedule.messages[index].end_us)
        for _, is_start, index in keys
    )


def _arrival_us(message: Message) -> float:
    """Earliest time that counts as the arrival, still after the start."""
    slack_us = SAME_MOMENT * (message.end_us - message.start_us) + ULPS * math.ulp(message.end_us)
    return max(message.end_us - slack_us, math.nextafter(message.start_us, math.inf))


def _require_no_overtaking(schedule: CellSchedule, keys: list[tuple[float, bool, int]]) -> None:
    """Refuse messages that arrive in another order than they start on their link: connections are queues."""
    started: dict[int, deque[int]] = {}
    for _, is_start, index in keys:
        queue = started.setdefault(schedule.messages[index].link, deque())
        if is_start:
            queue.append(index)
        elif queue.popleft() != index:
            raise InputError(
                f"message {index} overtakes another one on {schedule.topology.resource_name(schedule.messages[index].link)}; "
                "check the schedule"
            )


def _require_sound(schedule: CellSchedule, index: int, message: Message) -> None:
    """Refuse a message that nothing can be made of."""
    collective = schedule.collective
    if not 0 <= message.link < len(schedule.topology.links):
        raise InputError(f"message {index} uses link {message.link}, which does not exist; check the schedule")
    if not message.chunks or len(set(message.chunks)) < len(message.chunks):
        raise InputError(f"message {index} carries no chunk, or one twice; check the schedule")
    if min(message.chunks) < 0 or max(message.chunks) >= collective.num_chunks:
        raise InputError(f"message {index} carries a chunk that does not exist; check the schedule")
    times = (message.start_us, message.end_us)
    if not all(map(math.isfinite, times)) or not message.start_us < message.end_us:
        raise InputError(f"message {index} does not arrive after its start; check the schedule")
    if message.reduce and not collective.reduces:
        raise InputError(
            f"message {index} is added, but {collective.kind or 'the demand'} sums nothing; check the schedule"
        )

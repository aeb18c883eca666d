"""Sums: whether a schedule adds every contribution exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from taccl_py.schedule.ir import Message, Schedule
from taccl_py.tolerances import SAME_MOMENT
from taccl_py.topology.model import Topology


def adds_up(schedule: Schedule) -> bool:
    """True if exact times leave every sum sound: exchanged sums must cross each other.

    A template says who sends at the same time; where ports serve one message after the other, the second one could carry what
    has arrived meanwhile.
    """
    return add_up(schedule.topology, schedule.messages, schedule.collective.wanted)


def add_up(topology: Topology, messages: Sequence[Message], wanted: Sequence[Sequence[int]]) -> bool:
    """The same of messages, given the ranks that want each chunk."""
    held: dict[tuple[int, int], int] = {}
    carried: dict[int, tuple[int, ...]] = {}
    for index in _starts_and_ends(messages):
        message = messages[index]
        link = topology.links[message.link]
        if index not in carried:
            carried[index] = tuple(held.get((chunk, link.src), 1 << link.src) for chunk in message.chunks)
            continue
        for chunk, arriving in zip(message.chunks, carried[index], strict=True):
            here = held.get((chunk, link.dst), 1 << link.dst)
            if message.reduce and arriving & here:
                return False
            held[chunk, link.dst] = (arriving | here) if message.reduce else arriving
    complete = (1 << topology.num_ranks) - 1
    return all(held.get((chunk, rank)) == complete for chunk, ranks in enumerate(wanted) for rank in ranks)


def _starts_and_ends(messages: Sequence[Message]) -> Iterator[int]:
    """Every message at its start and again at its end, ends before starts of the same moment."""
    ends = [(m.end_us - SAME_MOMENT * (m.end_us - m.start_us), 0, i) for i, m in enumerate(messages)]
    starts = [(m.start_us, 1, i) for i, m in enumerate(messages)]
    return (index for _, _, index in sorted(ends + starts))

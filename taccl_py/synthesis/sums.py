"""Sums: whether a schedule adds every contribution exactly once."""

from __future__ import annotations

from collections.abc import Iterator

from taccl_py.schedule.ir import Message, Schedule

# Times that differ by this part of a message's duration are one moment.
_SAME_MOMENT = 1e-6


def adds_up(schedule: Schedule) -> bool:
    """Whether exact times leave every sum sound: exchanged sums must cross each other.

    A template says who sends at the same time; where ports serve one message after the other, the second one could carry what
    has arrived meanwhile.
    """
    links = schedule.topology.links
    held: dict[tuple[int, int], int] = {}
    carried: dict[int, tuple[int, ...]] = {}
    for index, message in _starts_and_ends(schedule):
        link = links[message.link]
        if index not in carried:
            carried[index] = tuple(held.get((chunk, link.src), 1 << link.src) for chunk in message.chunks)
            continue
        for chunk, arriving in zip(message.chunks, carried[index], strict=True):
            here = held.get((chunk, link.dst), 1 << link.dst)
            if message.reduce and arriving & here:
                return False
            held[chunk, link.dst] = (arriving | here) if message.reduce else arriving
    complete = (1 << schedule.collective.num_ranks) - 1
    wanted = [(chunk, rank) for chunk, ranks in enumerate(schedule.collective.wanted) for rank in ranks]
    return all(held.get(key) == complete for key in wanted)


def _starts_and_ends(schedule: Schedule) -> Iterator[tuple[int, Message]]:
    """Every message at its start and again at its end, ends before starts of the same moment."""
    ends = [(m.end_us - _SAME_MOMENT * (m.end_us - m.start_us), 0, i) for i, m in enumerate(schedule.messages)]
    starts = [(m.start_us, 1, i) for i, m in enumerate(schedule.messages)]
    for _, _, index in sorted(ends + starts):
        yield index, schedule.messages[index]

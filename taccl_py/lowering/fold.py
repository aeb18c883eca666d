"""Folding: chunks of an AllReduce that always travel with the same neighbours become one.

A step carries at most `MAX_COUNT` chunks, however small they are, so a message of more takes several steps and pays for each. An
AllReduce has at least as many chunks as ranks, but they belong to none of them, so a program may have any number of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from taccl_py.collective import Kind
from taccl_py.lowering.coarse import run_ends
from taccl_py.runtimes import MAX_COUNT
from taccl_py.schedule.ir import Schedule


def folded(schedule: Schedule) -> Schedule:
    """The same schedule in larger chunks, the smallest of which steps carry whole messages; itself if there is no need, or it is impossible."""
    collective = schedule.collective
    most = max((len(message.chunks) for message in schedule.messages), default=0)
    if collective.kind is not Kind.ALLREDUCE or most <= MAX_COUNT:
        return schedule
    number = _number(
        collective.num_chunks, most, {message.chunks for message in schedule.messages} | {*schedule.scratch}
    )
    if number == 1:
        return schedule

    def fold(chunks: Sequence[int]) -> tuple[int, ...]:
        return tuple(chunk // number for chunk in chunks[::number])

    return replace(
        schedule,
        collective=replace(collective, together=collective.together * number),
        chunk_bytes=schedule.chunk_bytes * number,
        messages=tuple(replace(message, chunks=fold(message.chunks)) for message in schedule.messages),
        scratch=tuple(map(fold, schedule.scratch)),
    )


def sent_steps(schedule: Schedule) -> list[list[tuple[int, ...]]]:
    """Chunks of the steps that send each message, [message][step]: more than one where it has more chunks than a step carries.

    The schedule is one that `folded` returned.
    """
    return [
        [message.chunks[first : first + MAX_COUNT] for first in range(0, len(message.chunks), MAX_COUNT)]
        for message in schedule.messages
    ]


def _number(num_chunks: int, most: int, lists: set[tuple[int, ...]]) -> int:
    """Number of chunks that become one: as few as shorten lists of so many to `MAX_COUNT`, or else as many as can."""
    together = math.gcd(num_chunks, *(end for chunks in lists for end in run_ends(chunks)))
    enough = (number for number in range(1, together) if together % number == 0 and most <= MAX_COUNT * number)
    return next(enough, together)

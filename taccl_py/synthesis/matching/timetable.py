"""Timetable: which chunk crosses which link when, and when every link and port is free in between.

Chunks cross links alone. Messages can be taken out and put where there is room, so that a search changes a few and leaves the others
where they are.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from taccl_py.schedule.ir import Message, sort_messages
from taccl_py.synthesis.matching.fabric import Fabric
from taccl_py.tolerances import RELATIVE

_SOON = 1 + RELATIVE


class Delivery(NamedTuple):
    """Delivery of a chunk to a rank; a tuple, as very many are put in order."""

    chunk: int
    rank: int


class EnteredLink(NamedTuple):
    """A link and when it is entered."""

    link: int
    start_us: float


class _Turn(NamedTuple):
    """Use of a link or a port by a delivery."""

    start_us: float
    until_us: float
    delivery: Delivery


_NOBODY = Delivery(-1, -1)


class Timetable:
    """Deliveries of chunks, each by one message.

    Attributes
    ----------
    entries
        For every chunk, how it comes to each rank.
    message_us
        Of every link.
    """

    def __init__(self, fabric: Fabric, sources: Sequence[int], grown: Iterable[Message]) -> None:
        """Enter messages of one chunk each, of which none brings a chunk to a rank that has it."""
        self._fabric, self._sources = fabric, sources
        self._claims = [
            [(claim.orbit, claim.time_us) for claim in fabric.sorts[sort].claims] for sort in fabric.sort_of
        ]
        self._turns: list[list[_Turn]] = [[] for _ in range(fabric.topology.num_resources)]
        self.message_us = [fabric.sorts[sort].message_us for sort in fabric.sort_of]
        self.entries: list[dict[int, EnteredLink]] = [{} for _ in sources]
        for message in grown:
            self.put(message.chunks[0], EnteredLink(message.link, message.start_us))

    def put(self, chunk: int, entry: EnteredLink) -> Delivery:
        """Enter a message; there has to be room for it."""
        delivery = Delivery(chunk, self._fabric.dst[entry.link])
        self.entries[chunk][delivery.rank] = entry
        for resource, time_us in self._claims[entry.link]:
            insort(self._turns[resource], _Turn(entry.start_us, entry.start_us + time_us, delivery))
        return delivery

    def take(self, delivery: Delivery) -> EnteredLink:
        """Take a message out."""
        entry = self.entries[delivery.chunk].pop(delivery.rank)
        for resource, time_us in self._claims[entry.link]:
            turns = self._turns[resource]
            del turns[bisect_left(turns, _Turn(entry.start_us, entry.start_us + time_us, delivery))]
        return entry

    def earliest_us(self, link: int, ready_us: float) -> float:
        """Earliest time at which a message that is ready then can enter a link without delaying any other."""
        start_us, settled = ready_us, False
        while not settled:
            settled = True
            for resource, time_us in self._claims[link]:
                free_us = _free_us(self._turns[resource], start_us, time_us)
                if free_us > start_us:
                    start_us, settled = free_us, False
        return start_us

    def end_us(self, delivery: Delivery) -> float:
        """Time when a chunk arrives."""
        link, start_us = self.entries[delivery.chunk][delivery.rank]
        return start_us + self.message_us[link]

    def last(self) -> tuple[float, list[Delivery]]:
        """Time when everything has arrived, and what arrives then."""
        ends = [
            (start_us + self.message_us[link], Delivery(chunk, rank))
            for chunk, entries in enumerate(self.entries)
            for rank, (link, start_us) in entries.items()
        ]
        end_us = max((end_us for end_us, _ in ends), default=0.0)
        return end_us, [delivery for at_us, delivery in ends if at_us * _SOON >= end_us]

    def reasons(self, delivery: Delivery) -> list[Delivery]:
        """Deliveries after which a message starts without delay: the chunk's own, and those on its link and ports before."""
        link, start_us = self.entries[delivery.chunk][delivery.rank]
        found = []
        before = Delivery(delivery.chunk, self._fabric.src[link])
        if before.rank in self.entries[before.chunk] and self.end_us(before) * _SOON >= start_us:
            found.append(before)
        for resource, time_us in self._claims[link]:
            turns = self._turns[resource]
            place = bisect_left(turns, _Turn(start_us, start_us + time_us, delivery))
            # What starts at the same time, on a port that costs nothing, is no reason.
            if place and turns[place - 1].start_us < start_us <= turns[place - 1].until_us * _SOON:
                found.append(turns[place - 1].delivery)
        return found

    def close_up(self) -> None:
        """Start every message as soon as what it waits for in the present order lets it."""
        order = sorted(
            (start_us, link, chunk) for chunk, entries in enumerate(self.entries) for link, start_us in entries.values()
        )
        for turns in self._turns:
            turns.clear()
        for entries in self.entries:
            entries.clear()
        fabric, free_us = self._fabric, [0.0] * len(self._turns)
        for _, link, chunk in order:
            entries, src = self.entries[chunk], fabric.src[link]
            start_us = (
                0.0 if src == self._sources[chunk] else entries[src].start_us + self.message_us[entries[src].link]
            )
            start_us = max(start_us, *[free_us[resource] for resource, _ in self._claims[link]])
            delivery = Delivery(chunk, fabric.dst[link])
            entries[delivery.rank] = EnteredLink(link, start_us)
            for resource, time_us in self._claims[link]:
                free_us[resource] = start_us + time_us
                # What costs nothing serves many at the same time, which are kept in order too.
                insort(self._turns[resource], _Turn(start_us, free_us[resource], delivery))

    def grown(self) -> tuple[Message, ...]:
        """All messages in order."""
        return sort_messages(
            Message(link, (chunk,), start_us, start_us + self.message_us[link])
            for chunk, entries in enumerate(self.entries)
            for link, start_us in entries.values()
        )


def _free_us(turns: list[_Turn], ready_us: float, time_us: float) -> float:
    """Earliest time, not before a given one, from which on a resource is free for so long."""
    soon = ready_us * _SOON
    if not turns or turns[-1].until_us <= soon:
        return ready_us
    place = bisect_left(turns, _Turn(soon, 0.0, _NOBODY))
    free_us = ready_us
    if place and turns[place - 1].until_us > soon:
        free_us = turns[place - 1].until_us
    while place < len(turns) and turns[place].start_us * _SOON < free_us + time_us:
        free_us = max(free_us, turns[place].until_us)
        place += 1
    return free_us

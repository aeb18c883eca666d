"""List scheduling of messages on links and ports.

At every moment, of the messages whose data have arrived and whose link and ports are all free, the first by priority starts. The first one of a
link that cannot start is kept with one of the resources that it lacks and looked at again when that becomes free, so that a hundred thousand
messages take seconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence

from taccl_py.topology.model import Topology

# A resource that a message occupies, and for how many microseconds, or of any other unit that all times are in.
Use = tuple[int, float]


def followers(waits_for: Sequence[Iterable[int]]) -> list[list[int]]:
    """For each of some things, numbered from 0 on and each with those that it waits for, the ones that wait for it, in their order."""
    found: list[list[int]] = [[] for _ in waits_for]
    for number, earlier in enumerate(waits_for):
        for before in earlier:
            found[before].append(number)
    return found


def tails_us(
    lasts_us: Sequence[float], waits_for: Sequence[Iterable[int]], order: Sequence[int] | None = None
) -> list[float]:
    """Longest path from the start of each of some messages to the end of what waits for it, in microseconds.

    Parameters
    ----------
    lasts_us
        How long each takes.
    waits_for
        Those that each waits for.
    order
        Their numbers, none before one that it waits for; None for the order of numbers.
    """
    tails = list(lasts_us)
    behind_us = [0.0] * len(tails)
    for i in reversed(range(len(tails)) if order is None else order):
        tails[i] += behind_us[i]
        for before in waits_for[i]:
            if tails[i] > behind_us[before]:
                behind_us[before] = tails[i]
    return tails


def longest_first(
    lasts_us: Sequence[float], waits_for: Sequence[Iterable[int]], order: Sequence[int] | None = None
) -> list[int]:
    """Numbers of messages, those with the longest path to the end first; see `tails_us`."""
    tails = tails_us(lasts_us, waits_for, order)
    return sorted(range(len(tails)), key=lambda i: (-tails[i], i))


class OccupationTimes:
    """Times for which messages, each a link and its bytes, occupy their link and ports, and until they arrive; many are alike.

    Attributes
    ----------
    uses, message_us
        Of every message.
    """

    def __init__(self, topology: Topology, messages: Iterable[tuple[int, float]]) -> None:
        known: dict[tuple[int, float], tuple[tuple[Use, ...], float]] = {}
        self.uses: list[tuple[Use, ...]] = []
        self.message_us: list[float] = []
        for message in messages:
            times = known.get(message)
            if times is None:
                link, size_bytes = message
                uses = tuple((r, topology.occupancy_us(r, size_bytes)) for r in topology.resources_of[link])
                times = known[message] = (uses, topology.message_us(link, size_bytes))
            self.uses.append(times[0])
            self.message_us.append(times[1])


class Dispatch:
    """State of a dispatch: what is free, what waits for data, and what waits for a resource.

    Parameters
    ----------
    num_resources
        Links and ports that can be occupied are numbered below it.
    links, uses, message_us
        Of every message: its link, what it occupies for how long, and the time until it arrives. Messages of one link occupy the same.
    waits_for
        Messages, by number, that must have arrived before each; they wait for each other nowhere in a circle.
    order
        Numbers of all messages, those first that go first where there is a choice.
    users
        Messages that wait for each, where that is known.
    """

    def __init__(
        self,
        num_resources: int,
        links: Sequence[int],
        uses: Sequence[Sequence[Use]],
        message_us: Sequence[float],
        waits_for: Sequence[Collection[int]],
        order: Sequence[int],
        users: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self._links, self._uses, self._message_us = links, list(uses), list(message_us)
        self._place = [0] * len(order)
        for place, i in enumerate(order):
            self._place[i] = place
        self._at_place = order
        self._missing = [len(before) for before in waits_for]
        self._users = followers(waits_for) if users is None else users
        self._free_us = [0.0] * num_resources
        # Messages of each link whose data have arrived, and links, by their first message, that wait for a resource.
        self._ready: dict[int, list[int]] = {link: [] for link in links}
        self._waiting: list[list[tuple[int, int]]] = [[] for _ in range(num_resources)]
        self._start_us = [-1.0] * len(order)
        # Events: (time, resource that becomes free) and (time, number of resources + message that arrives).
        self._events: list[tuple[float, int]] = []
        self._first_message = num_resources

    def starts_us(self, rounding: float = 0.0) -> list[float]:
        """Start all messages, once; when each does, in microseconds. Moments that differ by this part are one, the last of them."""
        first = [i for i, missing in enumerate(self._missing) if not missing]
        self._serve(0.0, self._enter(first), [])
        while self._events:
            soon = self._events[0][0] * (1 + rounding)
            now = 0.0
            ready: list[int] = []
            freed: list[int] = []
            while self._events and self._events[0][0] <= soon:
                now, event = heapq.heappop(self._events)
                if event < self._first_message:
                    freed.append(event)
                else:
                    ready += self._arrive(event - self._first_message)
            self._serve(now, ready, freed)
        return self._start_us

    def _arrive(self, i: int) -> list[int]:
        """Places of the messages that have waited for this one alone."""
        complete = []
        for user in self._users[i]:
            self._missing[user] -= 1
            if not self._missing[user]:
                complete.append(user)
        return self._enter(complete)

    def _enter(self, complete: list[int]) -> list[int]:
        """Places of messages whose data have arrived."""
        return [self._place[i] for i in complete]

    def _serve(self, now: float, ready: list[int], freed: list[int]) -> None:
        """Start what can start: of what is ready, and of what waits for resources that are free now."""
        heapq.heapify(ready)
        heads = [(self._waiting[r][0], r) for r in freed if self._waiting[r]]
        heapq.heapify(heads)
        while ready or heads:
            if heads and (not ready or heads[0][0][0] < ready[0]):
                _, resource = heapq.heappop(heads)
                if self._free_us[resource] > now or not self._waiting[resource]:
                    continue
                place, link = heapq.heappop(self._waiting[resource])
                if self._ready[link] and self._ready[link][0] == place:
                    self._start_or_park(link, now)
                if self._free_us[resource] <= now and self._waiting[resource]:
                    heapq.heappush(heads, (self._waiting[resource][0], resource))
            else:
                place = heapq.heappop(ready)
                link = self._links[self._at_place[place]]
                heapq.heappush(self._ready[link], place)
                if self._ready[link][0] == place:
                    self._start_or_park(link, now)

    def _start_or_park(self, link: int, now: float) -> None:
        """Start the first message of a link, and the next ones where that takes no time of the link."""
        free_us, ready = self._free_us, self._ready[link]
        while ready:
            i = self._at_place[ready[0]]
            if self._start_us[i] < 0:
                for resource, _ in self._uses[i]:
                    if free_us[resource] > now:
                        heapq.heappush(self._waiting[resource], (ready[0], link))
                        return
                self._start(i, now)
            heapq.heappop(ready)

    def _start(self, i: int, now: float) -> None:
        """Start a message."""
        free_us, events = self._free_us, self._events
        self._start_us[i] = now
        for resource, occupied_us in self._uses[i]:
            free_us[resource] = until_us = now + occupied_us
            heapq.heappush(events, (until_us, resource))
        heapq.heappush(events, (now + self._message_us[i], self._first_message + i))

"""The verifier of schedules of demands: decides from topology and demand alone whether the messages bring what is wanted.

What the schedule claims is not believed: message times are computed again from the cost model, and what every rank holds from the messages
that have arrived. Of every chunk a rank holds a set of terms of its sum, at first the one that is its own, if any; a chunk that is only copied
has one term. A message carries the set as it stands when the message starts. One that reduces is added to the receiver's set, which must not
have any of it yet; any other takes its place. In the end those who want a chunk hold all of its terms, each counted once.

Times as in `taccl_py.verify.schedule`: what starts in the moment in which something else ends comes after it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from operator import itemgetter

from taccl_py.demand import DataChunk, DataDemand
from taccl_py.errors import Violation
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.verify.moments import arrival_us, slack_us

# Order of the errors: the whole, messages, ranks at the end.
_WHOLE, _MESSAGE, _RANK = range(3)

_Found = tuple[int, int, str, str]


def verify_demand_schedule(schedule: DemandSchedule, asked: DataDemand | None = None) -> tuple[Violation, ...]:
    """Return all errors to a schedule; none means that it is correct.

    Parameters
    ----------
    schedule
        The schedule.
    asked
        Demand that it is meant for, where that is known; the schedule's own may cut its chunks finer.

    Rules: ``rank-count``, ``demand``, ``no-such-link``, ``no-chunks``, ``no-such-chunk``, ``chunk-twice``, ``bad-time``,
    ``wrong-duration``, ``overlap``, ``nothing-to-reduce``, ``not-held``, ``redundant``, ``double-count``, ``missing``, ``incomplete-sum``.
    """
    found: list[_Found] = (
        [] if asked is None else [(_WHOLE, 0, "demand", what) for what in _differences(schedule.demand, asked)]
    )
    if schedule.demand.num_ranks != schedule.topology.num_ranks:
        what = f"the demand has {schedule.demand.num_ranks} ranks and the topology {schedule.topology.num_ranks}; they must be equal"
        found.append((_WHOLE, 0, "rank-count", what))
    else:
        usable = list(_usable(schedule, found))
        _check_times(schedule, usable, found)
        _Ranks(schedule, found).follow(usable)
    return tuple(
        Violation(_place(schedule, part, number), rule, what) for part, number, rule, what in sorted(set(found))
    )


def _place(schedule: DemandSchedule, part: int, number: int) -> str:
    if part == _WHOLE:
        return ""
    if part == _RANK:
        return f"rank {number}"
    link, links = schedule.messages[number].link, schedule.topology.links
    ends = f" ({links[link].src}->{links[link].dst})" if 0 <= link < len(links) else ""
    return f"message {number}{ends}"


def _differences(own: DataDemand, asked: DataDemand) -> list[str]:
    """Differences between a demand and another one with its chunks in parts."""
    if own.num_ranks != asked.num_ranks:
        return [f"the schedule is for {own.num_ranks} ranks, and the demand has {asked.num_ranks}"]
    if own.dtype != asked.dtype:
        return [f"the schedule's elements are {own.dtype}, and those of the demand {asked.dtype}"]
    if (own.input_bytes, own.output_bytes) != (asked.input_bytes, asked.output_bytes):
        return ["the schedule's buffers are not as long as those of the demand"]
    # A place in an output belongs to one chunk at most, so it tells whose part something is.
    whole: dict[int, list[tuple[int, int]]] = {}
    for number, chunk in enumerate(asked.chunks):
        rank, offset = chunk.wants[0]
        whole.setdefault(rank, []).append((offset, number))
    starts = {rank: sorted(each) for rank, each in whole.items()}
    covered: dict[int, list[tuple[int, int]]] = {}
    for number, chunk in enumerate(own.chunks):
        part = _part_of(chunk, asked, starts)
        if part is None:
            return [f"chunk {number} of the schedule is no part of a chunk of the demand"]
        covered.setdefault(part[0], []).append((part[1], part[1] + chunk.size_bytes))
    for number, chunk in enumerate(asked.chunks):
        parts = sorted(covered.get(number, []))
        if [0, *(end for _, end in parts)] != [*(first for first, _ in parts), chunk.size_bytes]:
            return [f"the schedule's chunks do not cover chunk {number} of the demand once"]
    return []


def _part_of(chunk: DataChunk, asked: DataDemand, starts: dict[int, list[tuple[int, int]]]) -> tuple[int, int] | None:
    """Number of the chunk of which this is a part, and its first byte in there; None if there is none."""
    for rank, offset in chunk.wants:
        below = starts.get(rank, [])
        place = bisect_right(below, offset, key=itemgetter(0))
        if place == 0:
            continue
        at, number = below[place - 1]
        whole, first = asked.chunks[number], offset - at
        if first + chunk.size_bytes > whole.size_bytes:
            continue
        same_terms = [[(r, o + first) for r, o in term] for term in whole.terms] == [
            [(r, o) for r, o in term] for term in chunk.terms
        ]
        if same_terms and [(r, o + first) for r, o in whole.wants] == [(r, o) for r, o in chunk.wants]:
            return number, first
    return None


def _usable(schedule: DemandSchedule, found: list[_Found]) -> Iterable[int]:
    """Numbers of the messages that name existing links and chunks and have possible times."""
    num_links, num_chunks = len(schedule.topology.links), len(schedule.demand.chunks)
    for index, message in enumerate(schedule.messages):
        errors = []
        if not 0 <= message.link < num_links:
            errors.append(("no-such-link", f"uses link {message.link}, but links are 0..{num_links - 1}"))
        if not message.chunks:
            errors.append(("no-chunks", "carries no chunk; leave the message out"))
        if any(not 0 <= chunk < num_chunks for chunk in message.chunks):
            errors.append(("no-such-chunk", f"carries a chunk that does not exist, chunks are 0..{num_chunks - 1}"))
        if len(set(message.chunks)) < len(message.chunks):
            errors.append(("chunk-twice", "carries a chunk twice"))
        if not (math.isfinite(message.start_us) and math.isfinite(message.end_us)):
            errors.append(("bad-time", f"goes from {message.start_us} to {message.end_us} us; times are finite"))
        elif message.start_us < 0:
            errors.append(("bad-time", f"starts at {message.start_us:.9g} us; a schedule starts at 0"))
        found += [(_MESSAGE, index, *error) for error in errors]
        if not errors:
            yield index


def _check_times(schedule: DemandSchedule, usable: list[int], found: list[_Found]) -> None:
    """A message takes what the cost model says, and links and ports serve one at a time."""
    topology = schedule.topology
    free: dict[int, tuple[float, int]] = {}
    for index in usable:
        message = schedule.messages[index]
        size = sum(schedule.demand.chunks[chunk].size_bytes for chunk in message.chunks)
        right, took = topology.message_us(message.link, size), message.end_us - message.start_us
        if not math.isfinite(right) or abs(took - right) > slack_us(right, message.end_us):
            what = f"takes {took:.9g} us; {size} bytes take {right:.9g} us on this link"
            found.append((_MESSAGE, index, "wrong-duration", what))
        for resource in dict.fromkeys(topology.resources_of[message.link]):
            until_us, holder = free.get(resource, (-math.inf, -1))
            if message.start_us < until_us:
                what = (
                    f"starts at {message.start_us:.9g} us, when {topology.resource_name(resource)} is busy with message {holder} until "
                    f"{until_us:.9g} us; start it then or later"
                )
                found.append((_MESSAGE, index, "overlap", what))
            occupancy_us = topology.occupancy_us(resource, size)
            end_us = message.start_us + occupancy_us
            free[resource] = max(free.get(resource, (-math.inf, -1)), (end_us - slack_us(occupancy_us, end_us), index))


class _Ranks:
    """Terms that every rank holds of every chunk, as bit masks, while messages start and arrive."""

    def __init__(self, schedule: DemandSchedule, found: list[_Found]) -> None:
        self._schedule, self._found = schedule, found
        self._complete = [(1 << len(chunk.terms)) - 1 for chunk in schedule.demand.chunks]
        self._held: dict[tuple[int, int], int] = {}
        for number, chunk in enumerate(schedule.demand.chunks):
            for term, regions in enumerate(chunk.terms):
                for rank, _ in regions:
                    self._held[number, rank] = 1 << term
        self._carried: dict[int, tuple[int, ...]] = {}

    def follow(self, usable: list[int]) -> None:
        """Let the messages start and arrive in the order of time, then look at what ranks hold."""
        events = []
        for index in usable:
            message = self._schedule.messages[index]
            events.append((message.start_us, True, index))
            events.append((arrival_us(message), False, index))
        for _, is_start, index in sorted(events):
            if is_start:
                self._start(index)
            else:
                self._arrive(index)
        for number, chunk in enumerate(self._schedule.demand.chunks):
            for rank, _ in chunk.wants:
                held = self._held.get((number, rank), 0)
                name = self._schedule.demand.describe_chunk(number)
                if not held:
                    self._found.append((_RANK, rank, "missing", f"{name} never arrives; some message must bring it"))
                elif held != self._complete[number]:
                    absent = _terms(self._complete[number] & ~held)
                    self._found.append(
                        (
                            _RANK,
                            rank,
                            "incomplete-sum",
                            f"{name} ends without term {absent}; some message must bring it",
                        )
                    )

    def _start(self, index: int) -> None:
        message = self._schedule.messages[index]
        src = self._schedule.topology.links[message.link].src
        carried = tuple(self._held.get((chunk, src), 0) for chunk in message.chunks)
        for chunk, terms in zip(message.chunks, carried, strict=True):
            if not terms:
                name = self._schedule.demand.describe_chunk(chunk)
                what = f"starts at {message.start_us:.9g} us with {name}, of which rank {src} holds nothing then; start it later"
                self._found.append((_MESSAGE, index, "not-held", what))
            if message.reduce and not self._schedule.demand.chunks[chunk].is_sum:
                what = f"reduces {self._schedule.demand.describe_chunk(chunk)}, which is no sum; it must copy"
                self._found.append((_MESSAGE, index, "nothing-to-reduce", what))
        self._carried[index] = carried

    def _arrive(self, index: int) -> None:
        message = self._schedule.messages[index]
        dst = self._schedule.topology.links[message.link].dst
        carried = self._carried.get(index)
        if carried is None:  # it takes no time, or less: it is over before it starts, and brings what its sender holds
            self._start(index)
            carried = self._carried[index]
        for chunk, terms in zip(message.chunks, carried, strict=True):
            held = self._held.get((chunk, dst), 0)
            name = f"{self._schedule.demand.describe_chunk(chunk)} on rank {dst}"
            if message.reduce and terms & held:
                what = f"adds to {name} term {_terms(terms & held)}, which is in it already and would count twice"
                self._found.append((_MESSAGE, index, "double-count", what))
            if not message.reduce and held in (self._complete[chunk], terms) and held:
                what = f"stores {name}, which holds as much already; leave it out"
                self._found.append((_MESSAGE, index, "redundant", what))
            self._held[chunk, dst] = held | terms if message.reduce else terms


def _terms(mask: int) -> str:
    return ", ".join(str(term) for term in range(mask.bit_length()) if mask >> term & 1)

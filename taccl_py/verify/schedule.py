"""The verifier of schedules: decides from topology and collective alone whether a schedule's messages do the job.

Nothing that the schedule claims is believed: message times are computed again from the cost model, places in the
buffers from the collective and the scratch lists, and what every rank holds from the messages that have arrived.

Rules of time. A message that starts in the moment in which another one ends comes after it: it may use the link, and it
carries what has arrived. Two times are the same moment if they differ by less than `SAME_MOMENT` of the duration that
separates them (and a few units in the last place, for schedules of many hours).

Rules of data. In a routed collective a rank holds a chunk from its arrival on. In a combining collective a rank holds
for every chunk a set of contributions, at first only its own; a message carries the set as it stands when the message
starts, a reduce message adds it to the receiver's, any other message puts it in the place of the receiver's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress

from taccl_py.collective import ROOTED, Address, Buffer, Kind
from taccl_py.errors import Violation
from taccl_py.schedule.ir import Schedule
from taccl_py.units import format_ranks
from taccl_py.verify.moments import arrival_us, slack_us


def verify_schedule(schedule: Schedule, *, kind: Kind | None = None, root: int | None = None) -> tuple[Violation, ...]:
    """Return all errors to a schedule; none means that it is correct.

    Parameters
    ----------
    schedule
        The schedule.
    kind, root
        Collective and root rank that it is meant for; compared where given.

    Errors to the whole come first, then those to messages in their order, then what is missing at the end. The
    first one is therefore the nearest to the cause. A message that another error made unusable (a link that does
    not exist, say) is left out of the later checks; a message whose sender does not hold a chunk is taken to deliver
    it all the same, so that one mistake does not draw a tail of others.

    Rules: ``collective``, ``wrong-root``, ``rank-count``, ``chunk-size``, ``scratch-shape``, ``scratch-chunk``, ``scratch-twice``,
    ``no-such-link``, ``no-chunks``, ``no-such-chunk``, ``chunk-twice``, ``bad-time``, ``wrong-duration``, ``overlap``,
    ``no-place``, ``not-contiguous``, ``not-held``, ``redundant``, ``nothing-to-reduce``, ``double-count``, ``missing``,
    ``incomplete-sum``.
    """
    report = _Violations(schedule)
    for violation in verify_purpose(schedule, kind, root):
        report.whole(violation.rule, violation.what)
    _check_scratch(schedule, report)
    if _check_frame(schedule, report):
        usable = _usable_messages(schedule, report)
        _check_durations(schedule, usable, report)
        _check_overlaps(schedule, usable, report)
        _check_places(schedule, usable, report)
        _check_data(schedule, usable, report)
    return report.violations()


@dataclass(frozen=True, slots=True, order=True)
class _PlacedViolation:
    """One error and its place in the order of all: 0 the whole, 1 a message, 2 a rank at the end."""

    part: int
    number: int
    rule: str
    what: str


class _Violations:
    """Collects errors; saying the same thing twice is saying it once."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._found: set[_PlacedViolation] = set()

    def whole(self, rule: str, what: str) -> None:
        self._found.add(_PlacedViolation(0, 0, rule, what))

    def message(self, index: int, rule: str, what: str) -> None:
        self._found.add(_PlacedViolation(1, index, rule, what))

    def rank(self, rank: int, rule: str, what: str) -> None:
        self._found.add(_PlacedViolation(2, rank, rule, what))

    def name(self, index: int) -> str:
        """Name of a message for people."""
        links = self._schedule.topology.links
        link = self._schedule.messages[index].link
        return (
            f"message {index} ({links[link].src}->{links[link].dst})" if 0 <= link < len(links) else f"message {index}"
        )

    def violations(self) -> tuple[Violation, ...]:
        return tuple(Violation(self._where(o), o.rule, o.what) for o in sorted(self._found))

    def _where(self, violation: _PlacedViolation) -> str:
        if violation.part == 0:
            return ""
        return self.name(violation.number) if violation.part == 1 else f"rank {violation.number}"


def verify_purpose(schedule: Schedule, kind: Kind | None, root: int | None) -> tuple[Violation, ...]:
    """Return errors if a schedule is not for the collective and the root that were asked for; None is any."""
    collective = schedule.collective
    found = []
    if kind is not None and kind is not collective.kind:
        found.append(("collective", f"the schedule is for {collective.kind}, and {kind} was asked for"))
    if root is not None and collective.kind not in ROOTED:
        found.append(("wrong-root", f"{collective.kind} has no root, and root {root} was asked for"))
    elif root is not None and root != collective.root:
        found.append(("wrong-root", f"the schedule is for root {collective.root}, and root {root} was asked for"))
    return tuple(Violation("", rule, what) for rule, what in found)


def _check_frame(schedule: Schedule, report: _Violations) -> bool:
    """Topology, collective, chunk size and scratch lists fit each other; False if nothing more can be checked."""
    collective, topology = schedule.collective, schedule.topology
    usable = True
    if collective.num_ranks != topology.num_ranks:
        usable = False
        report.whole(
            "rank-count",
            f"the collective has {collective.num_ranks} ranks and the topology {topology.num_ranks}; they must be equal",
        )
    size = schedule.chunk_bytes
    if not (math.isfinite(size) and size > 0):
        usable = False
        report.whole("chunk-size", f"a chunk has {size} bytes; the size must be finite and above 0")
    if len(schedule.scratch) != collective.num_ranks:
        usable = False
        report.whole(
            "scratch-shape",
            f"there are {len(schedule.scratch)} scratch lists; each of the {collective.num_ranks} ranks has one",
        )
    return usable


def _check_scratch(schedule: Schedule, report: _Violations) -> None:
    """Scratch lists name chunks that exist, each once."""
    num_chunks = schedule.collective.num_chunks
    for rank, chunks in enumerate(schedule.scratch):
        for chunk, times in Counter(chunks).items():
            if not 0 <= chunk < num_chunks:
                report.whole(
                    "scratch-chunk", f"rank {rank} keeps chunk {chunk} in scratch, but chunks are 0..{num_chunks - 1}"
                )
            if times > 1:
                report.whole("scratch-twice", f"rank {rank} lists chunk {chunk} in scratch {times} times; list it once")


def _usable_messages(schedule: Schedule, report: _Violations) -> tuple[int, ...]:
    """Indices of the messages that name existing links and chunks and have possible times."""
    num_links, num_chunks = len(schedule.topology.links), schedule.collective.num_chunks
    usable: list[int] = []
    for index, message in enumerate(schedule.messages):
        sound = True
        if not 0 <= message.link < num_links:
            sound = False
            report.message(index, "no-such-link", f"uses link {message.link}, but links are 0..{num_links - 1}")
        if not message.chunks:
            sound = False
            report.message(index, "no-chunks", "carries no chunk; leave the message out")
        for chunk in message.chunks:
            if not 0 <= chunk < num_chunks:
                sound = False
                report.message(index, "no-such-chunk", f"carries chunk {chunk}, but chunks are 0..{num_chunks - 1}")
        if len(set(message.chunks)) < len(message.chunks):
            sound = False
            report.message(index, "chunk-twice", f"carries a chunk twice: {_numbers(message.chunks)}")
        if not (math.isfinite(message.start_us) and math.isfinite(message.end_us)):
            sound = False
            report.message(index, "bad-time", f"goes from {message.start_us} to {message.end_us} us; times are finite")
        elif message.start_us < 0:
            report.message(index, "bad-time", f"starts at {_time(message.start_us)}; a schedule starts at 0")
        if sound:
            usable.append(index)
    return tuple(usable)


def _check_durations(schedule: Schedule, usable: tuple[int, ...], report: _Violations) -> None:
    """A message takes what the cost model says, no less and no more."""
    for index in usable:
        message = schedule.messages[index]
        right = schedule.topology.message_us(message.link, len(message.chunks) * schedule.chunk_bytes)
        found = message.end_us - message.start_us
        if slack_us(0.0, message.end_us) > right / 2:
            report.message(
                index,
                "bad-time",
                f"ends at {_time(message.end_us)}, so late that times cannot show the {_time(right)} that it takes",
            )
            continue
        # A cost too large for a float is infinite, and so would be the slack.
        if not math.isfinite(right) or abs(found - right) > slack_us(right, message.end_us):
            report.message(
                index,
                "wrong-duration",
                f"takes {_time(found)} from {_time(message.start_us)} to {_time(message.end_us)}; "
                f"{len(message.chunks)} x {schedule.chunk_bytes:g} bytes take {_time(right)} on this link",
            )


def _check_overlaps(schedule: Schedule, usable: tuple[int, ...], report: _Violations) -> None:
    """A link and a port serve one message at a time, each for its own occupancy from the start of the message."""
    topology = schedule.topology
    users: dict[int, list[int]] = {}
    for index in usable:
        # A set would do, were it not for its order.
        for resource in dict.fromkeys(topology.resources_of[schedule.messages[index].link]):
            users.setdefault(resource, []).append(index)
    for resource in sorted(users):
        holder, busy_until_us, free_from_us = -1, 0.0, -math.inf
        for index in users[resource]:
            message = schedule.messages[index]
            if message.start_us < free_from_us:
                report.message(
                    index,
                    "overlap",
                    f"starts at {_time(message.start_us)}, when {topology.resource_name(resource)} is busy with "
                    f"{report.name(holder)} until {_time(busy_until_us)}; start it then or later",
                )
            occupancy_us = topology.occupancy_us(resource, len(message.chunks) * schedule.chunk_bytes)
            end_us = message.start_us + occupancy_us
            if end_us - slack_us(occupancy_us, end_us) > free_from_us:
                holder, busy_until_us = index, end_us
                free_from_us = end_us - slack_us(occupancy_us, end_us)


def _check_places(schedule: Schedule, usable: tuple[int, ...], report: _Violations) -> None:
    """Every chunk that arrives has a place to be stored; the chunks of a message are neighbours at both ends, or packed."""
    ranks = [_ChunkPlaces(schedule, rank) for rank in range(len(schedule.scratch))]
    for index in usable:
        message = schedule.messages[index]
        link = schedule.topology.links[message.link]
        without_place, _ = ranks[link.dst].verdict(message.chunks)
        for chunk in without_place:
            report.message(
                index,
                "no-place",
                f"brings {schedule.collective.describe_chunk(chunk)} to rank {link.dst}, which does not want it and "
                f"has no place for it; list it in scratch[{link.dst}]",
            )
        if message.packed or len(message.chunks) == 1:
            continue
        for rank, end in ((link.src, "sender"), (link.dst, "receiver")):
            _, are_neighbours = ranks[rank].verdict(message.chunks)
            if not are_neighbours:
                found = ranks[rank].of(message.chunks)
                lie = ", ".join("nowhere" if a is None else f"{a.buffer.value}[{a.offset}]" for a in found)
                report.message(
                    index,
                    "not-contiguous",
                    f"carries chunks {_numbers(message.chunks)}, which lie at {lie} on the {end} (rank {rank}); chunks of "
                    "one message must be neighbours in its order, or go in messages of their own",
                )


class _ChunkPlaces:
    """Places of chunks on a rank: in scratch if listed there, else in the output if wanted, else in the input."""

    def __init__(self, schedule: Schedule, rank: int) -> None:
        self._collective, self._rank = schedule.collective, rank
        self._places: dict[int, Address | None] = {
            chunk: Address(Buffer.SCRATCH, at) for at, chunk in enumerate(schedule.scratch[rank])
        }
        self._verdicts: dict[tuple[int, ...], tuple[tuple[int, ...], bool]] = {}

    def of(self, chunks: tuple[int, ...]) -> list[Address | None]:
        """Place of every chunk; None if the rank never has it."""
        return [self._place(chunk) for chunk in chunks]

    def verdict(self, chunks: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
        """Chunks that cannot be stored there, and whether the places of all follow each other in one buffer.

        Several are looked at once: most that arrive also leave.
        """
        found = self._verdicts.get(chunks)
        if found is None:
            places = self.of(chunks)
            is_lost = [place is None or place.buffer is Buffer.INPUT for place in places]
            found = tuple(compress(chunks, is_lost)), _are_neighbours(places)
            if len(chunks) > 1:
                self._verdicts[chunks] = found
        return found

    def _place(self, chunk: int) -> Address | None:
        if chunk not in self._places:
            output = self._collective.output_address(chunk, self._rank)
            self._places[chunk] = output or self._collective.input_address(chunk, self._rank)
        return self._places[chunk]


def _are_neighbours(places: list[Address | None]) -> bool:
    """True if the places follow each other in one buffer; other rules report a place that does not exist."""
    known = [place for place in places if place is not None]
    if len(known) < len(places) or not known:
        return True
    buffer, first = known[0].buffer, known[0].offset
    return [place.offset for place in known] == list(range(first, first + len(known))) and all(
        place.buffer is buffer for place in known
    )


@dataclass(frozen=True, slots=True)
class _CheckedEvent:
    """Something that changes or uses what ranks hold; arrivals come before starts of the same moment."""

    time_us: float
    is_start: bool
    index: int


def _events(schedule: Schedule, usable: tuple[int, ...]) -> Iterator[_CheckedEvent]:
    """Starts and arrivals in the order of time."""
    found: list[_CheckedEvent] = []
    for index in usable:
        message = schedule.messages[index]
        found.append(_CheckedEvent(message.start_us, True, index))
        found.append(_CheckedEvent(arrival_us(message), False, index))
    return iter(sorted(found, key=lambda event: (event.time_us, event.is_start, event.index)))


@dataclass(frozen=True, slots=True)
class _CheckedChunks:
    """Chunks that are looked at: which, and those of them that every message carries."""

    chunks: Sequence[int]
    carried: Sequence[Sequence[int]]


def _check_data(schedule: Schedule, usable: tuple[int, ...], report: _Violations) -> None:
    """Ranks hold what they should at all times; of chunks to which exactly the same happens one is looked at, and all if that one is wrong."""
    check = _check_sums if schedule.collective.reduces else _check_copies
    found = _Violations(schedule)
    check(schedule, usable, found, _different_chunks(schedule, usable))
    if found.violations():
        every = range(schedule.collective.num_chunks)
        check(schedule, usable, report, _CheckedChunks(every, [message.chunks for message in schedule.messages]))


def _different_chunks(schedule: Schedule, usable: tuple[int, ...]) -> _CheckedChunks:
    """One of all chunks that begin at the same rank, are wanted by the same ranks, and go in the same messages."""
    collective = schedule.collective
    taken: list[list[int]] = [[] for _ in range(collective.num_chunks)]
    for index in usable:
        for chunk in schedule.messages[index].chunks:
            taken[chunk].append(index)
    first: dict[tuple[object, ...], int] = {}
    for chunk, messages in enumerate(taken):
        source, wanting = None if collective.reduces else collective.source[chunk], collective.wanted[chunk]
        # Where all ranks want chunks, they are named in one object, which is compared sooner than they are.
        first.setdefault((source, wanting if len(wanting) == 1 else id(wanting), *messages), chunk)
    kept = set(first.values())
    carried = [[chunk for chunk in message.chunks if chunk in kept] for message in schedule.messages]
    return _CheckedChunks(sorted(kept), carried)


def _check_copies(schedule: Schedule, usable: tuple[int, ...], report: _Violations, checked: _CheckedChunks) -> None:
    """Routed: a rank sends only what it holds, receives nothing twice, and ends with all that it wants."""
    collective = schedule.collective
    held: list[set[int]] = [set() for _ in range(collective.num_ranks)]
    for chunk in checked.chunks:
        held[collective.source[chunk]].add(chunk)
    arrivals = _arrivals(schedule, usable, checked)
    for event in _events(schedule, usable):
        message = schedule.messages[event.index]
        link = schedule.topology.links[message.link]
        if event.is_start:
            if message.reduce:
                report.message(
                    event.index,
                    "nothing-to-reduce",
                    f"is a reduce message; {collective.kind} sums nothing, it must copy",
                )
            for chunk in checked.carried[event.index]:
                if chunk not in held[link.src]:
                    later = [t for t in arrivals.get((chunk, link.src), ()) if t > message.start_us]
                    when = f"gets it only at {_time(min(later))}; start it then or later" if later else "never gets it"
                    report.message(
                        event.index,
                        "not-held",
                        f"starts at {_time(message.start_us)} with {collective.describe_chunk(chunk)}, "
                        f"which rank {link.src} does not hold then: it {when}",
                    )
            continue
        for chunk in checked.carried[event.index]:
            if chunk in held[link.dst]:
                report.message(
                    event.index,
                    "redundant",
                    f"brings {collective.describe_chunk(chunk)} to rank {link.dst} at {_time(message.end_us)}, "
                    "which holds it already; leave it out",
                )
            held[link.dst].add(chunk)
    for chunk in checked.chunks:
        for rank in collective.wanted[chunk]:
            if chunk not in held[rank]:
                report.rank(
                    rank, "missing", f"{collective.describe_chunk(chunk)} never arrives; some message must bring it"
                )


def _arrivals(
    schedule: Schedule, usable: tuple[int, ...], checked: _CheckedChunks
) -> dict[tuple[int, int], list[float]]:
    """Times at which each chunk arrives at each rank, by (chunk, rank)."""
    found: dict[tuple[int, int], list[float]] = {}
    for index in usable:
        message = schedule.messages[index]
        for chunk in checked.carried[index]:
            found.setdefault((chunk, schedule.topology.links[message.link].dst), []).append(message.end_us)
    return found


class _Contributions:
    """Contributions that every rank holds of every chunk, as bit masks of ranks."""

    def __init__(self, num_ranks: int) -> None:
        self.complete = (1 << num_ranks) - 1
        self._held: list[dict[int, int]] = [{} for _ in range(num_ranks)]
        self._carried: dict[int, tuple[int, ...]] = {}

    def held(self, chunk: int, rank: int) -> int:
        """Return what the rank holds; at first its own contribution."""
        return self._held[rank].get(chunk, 1 << rank)

    def store(self, chunk: int, rank: int, contributions: int) -> None:
        self._held[rank][chunk] = contributions

    def load(self, index: int, chunks: Sequence[int], src: int) -> tuple[int, ...]:
        """Return what a message carries of its chunks: what its sender held when first asked, which is at its start."""
        carried = self._carried.get(index)
        if carried is None:
            carried = self._carried[index] = tuple(self.held(chunk, src) for chunk in chunks)
        return carried


def _check_sums(schedule: Schedule, usable: tuple[int, ...], report: _Violations, checked: _CheckedChunks) -> None:
    """Combining: no contribution is counted twice, and ranks that want a sum end with every contribution in it."""
    collective = schedule.collective
    sums = _Contributions(collective.num_ranks)
    for event in _events(schedule, usable):
        message = schedule.messages[event.index]
        link = schedule.topology.links[message.link]
        chunks = checked.carried[event.index]
        carried = sums.load(event.index, chunks, link.src)
        if event.is_start:
            continue
        for chunk, contributions in zip(chunks, carried, strict=True):
            held = sums.held(chunk, link.dst)
            if message.reduce:
                if contributions & held:
                    where = f"{collective.describe_chunk(chunk)} on rank {link.dst} at {_time(message.end_us)}"
                    report.message(
                        event.index,
                        "double-count",
                        f"adds to {where} the contributions of {_ranks(contributions)}; those of "
                        f"{_ranks(contributions & held)} are in it already and would count twice",
                    )
                sums.store(chunk, link.dst, held | contributions)
                continue
            if held in (sums.complete, contributions):
                where = f"{collective.describe_chunk(chunk)} on rank {link.dst} at {_time(message.end_us)}"
                state = "complete" if held == sums.complete else "the same partial sum"
                report.message(event.index, "redundant", f"stores {where}, which is {state} already; leave it out")
            sums.store(chunk, link.dst, contributions)
    for chunk in checked.chunks:
        for rank in collective.wanted[chunk]:
            absent = sums.complete & ~sums.held(chunk, rank)
            if absent:
                report.rank(
                    rank,
                    "incomplete-sum",
                    f"{collective.describe_chunk(chunk)} ends without the contributions of {_ranks(absent)}; "
                    "some message must bring them",
                )


def _time(time_us: float) -> str:
    return f"{time_us:.9g} us"


def _numbers(chunks: Iterable[int]) -> str:
    return ", ".join(map(str, chunks))


def _ranks(mask: int) -> str:
    found = [rank for rank in range(mask.bit_length()) if mask >> rank & 1]
    return f"rank{'s' if len(found) > 1 else ''} {format_ranks(found)}"

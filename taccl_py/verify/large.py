"""The verifier of schedules with very many messages: all at once, as arrays, and nothing chunk by chunk.

Chunks that only ever travel together (a *bundle*) have one fate, so one of each is looked at. Of sums it accepts those that
are formed along a tree: of each chunk every rank but one sends what it has added up once, after all that it is sent has arrived. Then
the one that does not send has the whole sum, as a rank whose sum goes astray would have had to send later than whoever it sent
to. Copies spread from there: whoever sends one has had it before, and nobody gets two. A right schedule that sums otherwise
is rejected (``not-a-tree``); `taccl_py.verify.schedule` may verify it where there is time.

Nothing is taken from the code that makes schedules. Times are compared as in `taccl_py.verify.schedule`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
from numpy.typing import NDArray

from taccl_py.collective import Kind
from taccl_py.errors import Violation
from taccl_py.schedule.ir import Schedule
from taccl_py.tolerances import SAME_MOMENT, ULPS
from taccl_py.topology.ends import ends_of
from taccl_py.units import BYTES_PER_MB

# Pairs of a message and a chunk that are too many to be looked at one by one.
LARGE = 6_000_000
# Everyone wants everything in the output, where chunks lie in order.
KINDS = (Kind.ALLGATHER, Kind.ALLREDUCE, Kind.BROADCAST)
# Pairs of a message and a bundle that are looked at together, and errors that are named.
_BATCH = 4_000_000
_MOST_NAMED = 20

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


def is_for_large(schedule: Schedule) -> bool:
    """True if a schedule is so large that it has to be verified here, and of a kind that can be."""
    if schedule.collective.kind not in KINDS or any(schedule.scratch):
        return False
    return sum(len(message.chunks) for message in schedule.messages) > LARGE


def verify_large(schedule: Schedule) -> tuple[Violation, ...]:
    """Return errors to a schedule, at most some of each sort; none means that it is correct.

    Parameters
    ----------
    schedule
        A schedule of one of `KINDS` without scratch.

    Rules: ``collective``, ``rank-count``, ``chunk-size``, ``scratch-shape``, ``no-such-link``, ``no-such-chunk``, ``bad-time``, ``wrong-duration``,
    ``overlap``, ``not-contiguous``, ``wrong-reduce``, ``not-a-tree``, ``double-count``, ``incomplete-sum``, ``redundant``,
    ``not-held``, ``missing``.
    """
    found = list(_check_frame(schedule))
    if found:
        return tuple(found)
    table = _Table.of(schedule)
    found = list(_check_possible(table))
    if found:
        return tuple(found)
    for check in (_check_times, _check_overlaps, _check_data):
        found += check(schedule, table)
    return tuple(found)


def _check_frame(schedule: Schedule) -> Iterator[Violation]:
    collective, topology = schedule.collective, schedule.topology
    if collective.kind not in KINDS:
        yield Violation("", "collective", f"{collective.kind} is not one that can be verified at this size")
    if collective.num_ranks != topology.num_ranks:
        yield Violation("", "rank-count", "collective and topology differ in the number of ranks")
    if not (math.isfinite(schedule.chunk_bytes) and schedule.chunk_bytes > 0):
        yield Violation("", "chunk-size", f"a chunk has {schedule.chunk_bytes} bytes")
    if any(schedule.scratch) or len(schedule.scratch) != topology.num_ranks:
        yield Violation("", "scratch-shape", "scratch is not empty for every rank")
    num_links, num_chunks = len(topology.links), collective.num_chunks
    good: set[int] = set()  # by identity: the schedule keeps the tuples alive, and messages share them
    for number, message in enumerate(schedule.messages):
        if not 0 <= message.link < num_links:
            yield Violation(f"message {number}", "no-such-link", f"uses link {message.link}, which does not exist")
        chunks = message.chunks
        if id(chunks) in good:
            continue
        if not chunks or min(chunks) < 0 or max(chunks) >= num_chunks:
            yield Violation(f"message {number}", "no-such-chunk", "carries no chunk, or one that does not exist")
        else:
            good.add(id(chunks))


@dataclass(frozen=True)
class _Runs:
    """Chunks of a message as intervals: the first one of each, and one after the last."""

    firsts: tuple[int, ...]
    ends: tuple[int, ...]

    @staticmethod
    def of(chunks: Sequence[int]) -> _Runs:
        # Most messages carry neighbours, which one comparison finds out.
        if chunks[-1] - chunks[0] == len(chunks) - 1 and chunks == tuple(range(chunks[0], chunks[-1] + 1)):
            return _Runs((chunks[0],), (chunks[-1] + 1,))
        breaks = [place for place, (one, two) in enumerate(pairwise(chunks), start=1) if two != one + 1]
        starts = [0, *breaks]
        return _Runs(
            tuple(chunks[place] for place in starts), tuple(chunks[place - 1] + 1 for place in [*breaks, len(chunks)])
        )


@dataclass(frozen=True)
class _Table:
    """All messages as arrays.

    Attributes
    ----------
    link, src, dst, size, start_us, end_us, arrival_us, reduce
        Of every message; `size` in chunks.
    apart
        Messages whose chunks are not neighbours though they are not packed.
    bundle
        First chunk of every bundle.
    pair_message, pair_bundle
        Messages and the bundles that they carry, in order of bundles.
    """

    link: IntArray
    src: IntArray
    dst: IntArray
    size: IntArray
    start_us: FloatArray
    end_us: FloatArray
    arrival_us: FloatArray
    reduce: BoolArray
    apart: tuple[int, ...]
    bundle: IntArray
    pair_message: IntArray
    pair_bundle: IntArray

    @staticmethod
    def of(schedule: Schedule) -> _Table:
        """Fill the arrays."""
        messages, links = schedule.messages, schedule.topology.links
        known: dict[int, _Runs] = {}  # by identity: the schedule keeps the tuples alive, and messages share them
        runs = [known.setdefault(id(m.chunks), _Runs.of(m.chunks)) if id(m.chunks) not in known else known[id(m.chunks)]
                for m in messages]  # fmt: skip
        apart = (n for n, (m, r) in enumerate(zip(messages, runs, strict=True)) if len(r.firsts) > 1)
        link = np.array([message.link for message in messages], dtype=np.int64)
        start_us = np.array([message.start_us for message in messages], dtype=np.float64)
        end_us = np.array([message.end_us for message in messages], dtype=np.float64)
        arrival_us = np.maximum(end_us - _slack_us(np.abs(end_us - start_us), end_us), start_us)
        edges = {0, *_where_chunks_differ(schedule)}
        for each in known.values():
            edges.update(each.firsts)
            edges.update(each.ends)
        bundle = np.array(sorted(edge for edge in edges if edge < schedule.collective.num_chunks), dtype=np.int64)
        owner, pair_bundle = _pairs(runs, bundle)
        src, dst = ends_of(links)
        return _Table(
            link, src[link], dst[link],
            np.array([len(message.chunks) for message in messages], dtype=np.int64),
            start_us, end_us, np.asarray(arrival_us, dtype=np.float64),
            np.array([message.reduce for message in messages], dtype=bool),
            tuple(n for n in apart if not messages[n].packed), bundle, owner, pair_bundle,
        )  # fmt: skip


def _where_chunks_differ(schedule: Schedule) -> Iterable[int]:
    """Chunks that start at another rank than the one before."""
    collective = schedule.collective
    return range(0, collective.num_chunks, collective.chunks_per_rank) if collective.kind is Kind.ALLGATHER else ()


def _pairs(runs: Sequence[_Runs], bundle: IntArray) -> tuple[IntArray, IntArray]:
    """Messages and their bundles, in order of bundles and then messages."""
    counts = np.array([len(each.firsts) for each in runs], dtype=np.int64)
    first = np.searchsorted(bundle, np.array([f for each in runs for f in each.firsts], dtype=np.int64))
    end = np.searchsorted(bundle, np.array([e for each in runs for e in each.ends], dtype=np.int64))
    width = end - first
    message = np.repeat(np.repeat(np.arange(len(runs)), counts), width)
    offset = np.arange(int(width.sum())) - np.repeat(np.cumsum(width) - width, width)
    number = np.repeat(first, width) + offset
    order = np.argsort(number, kind="stable")
    return message[order], number[order]


def _named(numbers: IntArray, rule: str, what: str) -> Iterator[Violation]:
    """Errors to the first of some messages."""
    for number in islice(sorted(set(numbers.tolist())), _MOST_NAMED):
        yield Violation(f"message {number}", rule, what)


def _check_possible(table: _Table) -> Iterator[Violation]:
    """Times are finite, and none is before 0."""
    bad = ~np.isfinite(table.start_us) | ~np.isfinite(table.end_us) | (table.start_us < 0)
    yield from _named(np.flatnonzero(bad), "bad-time", "starts before 0, or has a time that is not finite")


def _check_times(schedule: Schedule, table: _Table) -> Iterator[Violation]:
    """Durations are those of the cost model, and chunks of a message neighbours."""
    topology = schedule.topology
    megabytes = table.size * schedule.chunk_bytes / BYTES_PER_MB
    right_us = np.zeros(len(table.link))
    alpha_us, beta = _costs(schedule)
    for message, resource in _uses(schedule, table):
        np.maximum.at(right_us, message, alpha_us[resource] + beta[resource] * megabytes[message])
    right_us += np.array([k.latency_us for k in topology.links], dtype=np.float64)[table.link]
    found_us = table.end_us - table.start_us
    wrong = ~(np.abs(found_us - right_us) <= _slack_us(right_us, table.end_us))
    wrong |= _slack_us(np.zeros(len(right_us)), table.end_us) > right_us / 2
    yield from _named(
        np.flatnonzero(wrong), "wrong-duration", "does not take the time that its chunks take on its link"
    )
    yield from _named(
        np.array(table.apart, dtype=np.int64), "not-contiguous", "carries chunks that do not lie next to each other"
    )


def _costs(schedule: Schedule) -> tuple[FloatArray, FloatArray]:
    """Alpha and beta of every resource."""
    costs = np.array(schedule.topology.resource_cost, dtype=np.float64).reshape(-1, 2)
    return costs[:, 0], costs[:, 1]


def _uses(schedule: Schedule, table: _Table) -> Iterator[tuple[IntArray, IntArray]]:
    """Messages and a resource that each occupies: the links, then the first ports, and so on."""
    used, place = np.unique(table.link, return_inverse=True)
    resources = [schedule.topology.resources_of[link] for link in used.tolist()]
    for column in range(max(map(len, resources), default=0)):
        per_link = np.array([each[column] if column < len(each) else -1 for each in resources], dtype=np.int64)
        message = np.flatnonzero(per_link[place] >= 0)
        yield message, per_link[place][message]


def _check_overlaps(schedule: Schedule, table: _Table) -> Iterator[Violation]:
    """A link and a port serve one message at a time."""
    alpha_us, beta = _costs(schedule)
    uses = list(_uses(schedule, table))
    if not uses:
        return
    message, resource = (np.concatenate(columns) for columns in zip(*uses, strict=True))
    order = np.lexsort((message, table.start_us[message], resource))
    message, resource = message[order], resource[order]
    occupied_us = alpha_us[resource] + beta[resource] * table.size[message] * schedule.chunk_bytes / BYTES_PER_MB
    until_us = table.start_us[message] + occupied_us
    free_us = until_us - _slack_us(occupied_us, until_us)
    # The first message at a resource is not too early there, and in a legal order the one before ends last.
    early = (resource[1:] == resource[:-1]) & (table.start_us[message][1:] < free_us[:-1])
    yield from _named(message[1:][early], "overlap", "starts while its link or a port is busy with the message before")


def _check_data(schedule: Schedule, table: _Table) -> Iterator[Violation]:
    """Sums are formed along trees, and copies spread along trees, bundle by bundle."""
    if schedule.collective.kind is not Kind.ALLREDUCE:
        yield from _named(np.flatnonzero(table.reduce), "wrong-reduce", "adds, but the collective sums nothing")
    edges = np.searchsorted(table.pair_bundle, np.arange(len(table.bundle) + 1))
    begin = 0
    while begin < len(table.bundle):
        end = int(np.searchsorted(edges, edges[begin] + _BATCH, side="right")) - 1
        end = min(max(end, begin + 1), len(table.bundle))
        yield from _MessageBundle(schedule, table, begin, end, slice(int(edges[begin]), int(edges[end]))).check()
        begin = end


class _MessageBundle:
    """Some bundles and the messages that carry them; cells are bundles times ranks."""

    def __init__(self, schedule: Schedule, table: _Table, begin: int, end: int, pairs: slice) -> None:
        self._schedule, self._table = schedule, table
        self._ranks, self._bundles = schedule.topology.num_ranks, table.bundle[begin:end]
        self._message = table.pair_message[pairs]
        row = (table.pair_bundle[pairs] - begin) * self._ranks
        self._from, self._to = row + table.src[self._message], row + table.dst[self._message]
        self._adds = table.reduce[self._message]

    def check(self) -> Iterator[Violation]:
        holds_us = np.full(len(self._bundles) * self._ranks, np.inf)
        if self._schedule.collective.kind is Kind.ALLREDUCE:
            yield from self._check_sums(holds_us)
        else:
            sources = np.array(self._schedule.collective.source, dtype=np.int64)[self._bundles]
            holds_us[np.arange(len(self._bundles)) * self._ranks + sources] = 0.0
        yield from self._check_copies(holds_us)

    def _check_sums(self, holds_us: FloatArray) -> Iterator[Violation]:
        """Fill in when the rank with the whole sum has it."""
        message, sender, receiver = (column[self._adds] for column in (self._message, self._from, self._to))
        ready_us = np.zeros(len(holds_us))
        np.maximum.at(ready_us, receiver, self._table.arrival_us[message])
        times_sent = np.bincount(sender, minlength=len(holds_us))
        twice = times_sent[sender] > 1
        yield from _named(message[twice], "double-count", "adds what its sender has added elsewhere too")
        early = self._table.start_us[message] < ready_us[sender]
        yield from _named(message[early], "not-a-tree", "adds a sum to which something is added later")
        silent = (times_sent == 0).reshape(-1, self._ranks)
        # A rank that nothing is added to and that adds nothing keeps its own contribution, so one rank may be silent.
        for number in np.flatnonzero(silent.sum(axis=1) != 1)[:_MOST_NAMED].tolist():
            ranks = ", ".join(map(str, np.flatnonzero(silent[number])[:5].tolist())) or "none"
            chunk = int(self._bundles[number])
            yield Violation(f"chunk {chunk}", "incomplete-sum", f"is not sent on by ranks {ranks}; all but one have to")
        whole = np.flatnonzero(silent.ravel())
        holds_us[whole] = ready_us[whole]

    def _check_copies(self, holds_us: FloatArray) -> Iterator[Violation]:
        message, sender, receiver = (column[~self._adds] for column in (self._message, self._from, self._to))
        brought = np.bincount(receiver, minlength=len(holds_us)) + np.isfinite(holds_us)
        twice = brought[receiver] > 1
        yield from _named(message[twice], "redundant", "brings a chunk to a rank that has it or gets it otherwise")
        holds_us[receiver] = np.where(twice, holds_us[receiver], self._table.arrival_us[message])
        early = self._table.start_us[message] < holds_us[sender]
        yield from _named(message[early], "not-held", "starts before its sender has a chunk")
        for cell in np.flatnonzero(~np.isfinite(holds_us))[:_MOST_NAMED].tolist():
            chunk = int(self._bundles[cell // self._ranks])
            yield Violation(f"rank {cell % self._ranks}", "missing", f"chunk {chunk} never arrives whole")


def _slack_us(duration_us: FloatArray, at_us: FloatArray) -> FloatArray:
    """Difference up to which two times, `duration_us` after one another, count as one moment."""
    slack: FloatArray = SAME_MOMENT * duration_us + ULPS * np.spacing(np.abs(at_us))
    return slack

"""All chunks of all roots at once, moment by moment, on machines that need no symmetry.

At every moment each free link may take one of the chunks that its sender has and its receiver neither has nor is about to get.
All links choose at once, with vectors of bits; where two of them want to bring one chunk to one rank, or share a port, the one
that arrives first wins (then chance decides) and the others choose again. A slow link is left alone where faster ones would bring
everything that its receiver lacks sooner than it could bring one chunk.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from taccl_py.arrays import BoolArray, FloatArray, IntArray
from taccl_py.grouping import by_number
from taccl_py.schedule.ir import Message
from taccl_py.synthesis.matching.fabric import Fabric
from taccl_py.tolerances import RELATIVE
from taccl_py.work import count_work

_BITS = 64

BitArray = NDArray[np.uint64]


class ChunkPriority(StrEnum):
    """Choice of a link among the chunks that it could take: at random, or the one that the fewest ranks have."""

    CHANCE = "chance"
    RAREST = "rarest"


@dataclass(frozen=True, slots=True)
class FloodRule:
    """Rule by which links choose chunks.

    Attributes
    ----------
    choice
        Among the chunks that a link could take.
    thrifty
        Whether a chunk goes into a node once, and the ranks there give it to each other.
    seed
        Of the choices among equals.
    """

    choice: ChunkPriority
    thrifty: bool
    seed: int


def flood(
    fabric: Fabric, sources: Sequence[int], rule: FloodRule, over: Callable[[], bool]
) -> tuple[Message, ...] | None:
    """Return messages that bring every chunk to every rank, or None if time was over before.

    Parameters
    ----------
    fabric
        The machine.
    sources
        Rank that has each chunk at the start; everyone wants it.
    rule
        How links choose.
    over
        Asked now and then whether to give up.
    """
    return _ChunkFlood(fabric, sources, rule).run(over)


class _ChunkFlood:
    def __init__(self, fabric: Fabric, sources: Sequence[int], rule: FloodRule) -> None:
        topology = fabric.topology
        self._choice, self._thrifty = rule.choice, rule.thrifty and topology.num_nodes > 1
        self._random = np.random.default_rng(rule.seed)
        self._ranks, self._chunks = topology.num_ranks, len(sources)
        words = -(-self._chunks // _BITS)
        # Rows are ranks, bits are chunks: what a rank has, and what it has or is about to get.
        self._has: BitArray = np.zeros((self._ranks, words), dtype=np.uint64)
        for chunk, rank in enumerate(sources):
            self._has[rank, chunk // _BITS] |= np.uint64(1 << chunk % _BITS)
        self._due = self._has.copy()
        self._lacks = np.full(self._ranks, self._chunks, dtype=np.int64)
        self._lacks -= np.bincount(np.array(sources, dtype=np.int64), minlength=self._ranks)
        self._src = np.array(fabric.src, dtype=np.int64)
        self._dst = np.array(fabric.dst, dtype=np.int64)
        sorts = [fabric.sorts[sort] for sort in fabric.sort_of]
        self._node_of = np.array(topology.node_of, dtype=np.int64)
        self._crosses = self._node_of[self._src] != self._node_of[self._dst]
        # Chunks that some rank of a node has or is about to get.
        self._inside: BitArray = np.zeros((int(self._node_of.max()) + 1, words), dtype=np.uint64)
        np.bitwise_or.at(self._inside, self._node_of, self._has)
        self._message_us: FloatArray = np.array([sort.message_us for sort in sorts])
        width = max(len(sort.claims) for sort in sorts)
        # The last resource is nobody's: it fills rows of links that claim fewer than others.
        spare = topology.num_resources
        self._claims = np.full((len(sorts), width), spare, dtype=np.int64)
        self._claim_us: FloatArray = np.zeros((len(sorts), width))
        for link, sort in enumerate(sorts):
            for place, claim in enumerate(sort.claims):
                self._claims[link, place] = claim.orbit
                self._claim_us[link, place] = claim.time_us
        self._spare = spare
        self._free_us: FloatArray = np.zeros(spare + 1)
        self._rivals = _rivals(self._dst, self._ranks)
        self._is_even = bool(np.ptp(self._message_us) <= RELATIVE * float(self._message_us.max()))
        self._times: list[float] = [0.0]
        self._arrivals: dict[float, list[tuple[IntArray, IntArray]]] = {}
        self._log: list[tuple[IntArray, IntArray, float]] = []

    def run(self, over: Callable[[], bool]) -> tuple[Message, ...] | None:
        while self._times:
            now = heapq.heappop(self._times)
            self._receive(now)
            while self._times and self._times[0] <= now * (1 + RELATIVE):
                self._receive(heapq.heappop(self._times))
            if not self._lacks.any():
                break
            self._match(now, frugal=not self._is_even)
            if not self._times:  # everyone waits for a link that has nothing to send
                self._thrifty = False
                self._match(now, frugal=False)
            if over():
                return None
        grown: list[Message] = []
        for links, chunks, start_us in self._log:
            for link, chunk in zip(links.tolist(), chunks.tolist(), strict=True):
                grown.append(Message(link, (chunk,), start_us, start_us + float(self._message_us[link])))
        return tuple(grown)

    def _receive(self, time_us: float) -> None:
        for ranks, chunks in self._arrivals.pop(time_us, ()):
            _set_bits(self._has, ranks, chunks)

    def _match(self, now: float, *, frugal: bool) -> None:
        """Rounds in which every free link chooses a chunk, until no choice is left."""
        soon = now * (1 + RELATIVE)
        free = (self._free_us[self._claims] <= soon).all(axis=1) & (self._lacks[self._dst] > 0)
        links: IntArray = np.flatnonzero(free)
        while len(links):
            if frugal:
                links = links[self._is_worth(links, now)]
            offers = self._has[self._src[links]] & ~self._due[self._dst[links]]
            if self._thrifty:
                crosses = self._crosses[links]
                offers[crosses] &= ~self._inside[self._node_of[self._dst[links[crosses]]]]
            kept = offers.any(axis=1)
            links = np.asarray(links[kept])
            offers = np.asarray(offers[kept])
            if not len(links):
                return
            count_work("matched", offers.size)
            chunks = self._any_of(offers) if self._choice is ChunkPriority.CHANCE else self._rarest_of(offers)
            won = self._winners(links, chunks)
            self._send(links[won], chunks[won], now)
            links = links[~won]
            links = links[(self._free_us[self._claims[links]] <= soon).all(axis=1)]

    def _any_of(self, offers: BitArray) -> IntArray:
        """One of the offered chunks for every link: the first one from a random place on, around the end."""
        count, words = offers.shape
        first: IntArray = self._random.integers(0, words, size=(count,), dtype=np.int64)
        turned: BitArray = np.take_along_axis(offers, (first[:, None] + np.arange(words)) % words, axis=1)
        place: IntArray = np.asarray((turned != 0).argmax(axis=1), dtype=np.int64)
        word: BitArray = turned[np.arange(count), place]
        shift = self._random.integers(0, _BITS, count).astype(np.uint64)
        rest = (np.uint64(_BITS) - shift) % np.uint64(_BITS)
        rolled = (word >> shift) | (word << rest)
        lowest = rolled & (~rolled + np.uint64(1))
        bit = (np.log2(lowest.astype(np.float64)).astype(np.int64) + shift.astype(np.int64)) % _BITS
        found: IntArray = (first + place) % words * _BITS + bit
        return found

    def _rarest_of(self, offers: BitArray) -> IntArray:
        """The chunk that the fewest ranks have or are about to get, for every link; chance decides between equals."""
        bits = np.unpackbits(offers.view(np.uint8), axis=1, bitorder="little")
        copies = np.unpackbits(self._due.view(np.uint8), axis=1, bitorder="little").sum(axis=0, dtype=np.int64)
        rank = np.where(bits, copies + self._random.random(bits.shape), np.inf)
        found: IntArray = rank.argmin(axis=1)
        return found

    def _winners(self, links: IntArray, chunks: IntArray) -> BoolArray:
        """Links of which none shares a port with an earlier one, nor brings the same chunk to the same rank (or node)."""
        order = np.lexsort((self._random.random(len(links)), self._message_us[links]))
        turn = np.empty(len(links), dtype=np.int64)
        turn[order] = np.arange(len(links))
        target = np.where(
            self._crosses[links] & self._thrifty, self._ranks + self._node_of[self._dst[links]], self._dst[links]
        )
        _, first = np.unique((target * self._chunks + chunks)[order], return_index=True)
        won = np.zeros(len(links), dtype=bool)
        won[order[first]] = True
        claims = self._claims[links]
        earliest = np.full(self._spare + 1, len(links), dtype=np.int64)
        np.minimum.at(earliest, claims[won], turn[won, None])
        leads = (earliest[claims] == turn[:, None]) | (claims == self._spare)
        return np.asarray(won & leads.all(axis=1))

    def _send(self, links: IntArray, chunks: IntArray, now: float) -> None:
        dst = self._dst[links]
        _set_bits(self._due, dst, chunks)
        _set_bits(self._inside, self._node_of[dst], chunks)
        np.subtract.at(self._lacks, dst, 1)
        until = now + self._claim_us[links]
        self._free_us[self._claims[links]] = until
        self._free_us[self._spare] = 0.0
        self._log.append((links, chunks, now))
        for time_us in np.unique(until[self._claims[links] != self._spare]).tolist():
            self._wake(time_us)
        ends = now + self._message_us[links]
        for end in np.unique(ends).tolist():
            self._wake(end)
            at = ends == end
            self._arrivals.setdefault(end, []).append((dst[at], chunks[at]))

    def _wake(self, time_us: float) -> None:
        if time_us not in self._arrivals:
            self._arrivals[time_us] = []
            heapq.heappush(self._times, time_us)

    def _is_worth(self, links: IntArray, now: float) -> BoolArray:
        """Mask of the links that are worth using: faster links to the same rank would not bring all that it lacks sooner."""
        rivals = self._rivals[self._dst[links]]
        mine = self._message_us[links][:, None]
        theirs = np.append(self._message_us, np.inf)[rivals]
        begin = np.append(self._free_us[self._claims].max(axis=1), 0.0)[rivals]
        span = np.maximum(now + mine - np.maximum(begin, now), 0.0)
        could = np.where(theirs < mine, np.floor(span / theirs * (1 + RELATIVE)), 0.0)
        enough: BoolArray = could.sum(axis=1) < self._lacks[self._dst[links]]
        return enough


def _set_bits(rows: BitArray, ranks: IntArray, chunks: IntArray) -> None:
    np.bitwise_or.at(rows, (ranks, chunks // _BITS), np.uint64(1) << (chunks % _BITS).astype(np.uint64))


def _rivals(dst: IntArray, ranks: int) -> IntArray:
    """Links into every rank, [rank, position]; rows are filled with the number of links."""
    into = by_number(ranks, ((rank, link) for link, rank in enumerate(dst.tolist())))
    width = max(len(links) for links in into)
    rows = np.full((ranks, width), len(dst), dtype=np.int64)
    for rank, links in enumerate(into):
        rows[rank, : len(links)] = links
    return rows

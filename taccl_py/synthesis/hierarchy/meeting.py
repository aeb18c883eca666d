"""Sums and copies inside nodes, where ranks whose numbers differ in one digit meet in each step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple


class ChunkSpan(NamedTuple):
    """Chunks from one number to before another; a tuple, as spans are sorted."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class ExchangeMessage:
    """Chunks that one rank sends to another.

    Attributes
    ----------
    src, dst
        Ranks.
    spans
        Chunks.
    adds
        Whether the receiver adds them to what it has.
    """

    src: int
    dst: int
    spans: tuple[ChunkSpan, ...]
    adds: bool


Step = tuple[ExchangeMessage, ...]
# Chunks by sender, receiver, and whether they are added.
Sent = dict[tuple[int, int, bool], list[ChunkSpan]]


@dataclass(frozen=True, slots=True)
class NodeShard:
    """Data of a node.

    Attributes
    ----------
    span
        Chunks.
    held
        Lanes whose sums of it, added up, are the node's.
    early
        Those of them that have theirs before the others.
    """

    span: ChunkSpan
    held: frozenset[int]
    early: frozenset[int] = frozenset()

    def within(self, span: ChunkSpan) -> NodeShard | None:
        """Part of it that lies in some chunks."""
        common = ChunkSpan(max(self.span.low, span.low), min(self.span.high, span.high))
        return NodeShard(common, self.held, self.early) if common.low < common.high else None


@dataclass(frozen=True, slots=True)
class Want:
    """A shard that some lanes want to have summed up."""

    shard: NodeShard
    lanes: frozenset[int]


def sliced(span: ChunkSpan, index: int, number: int) -> ChunkSpan:
    """One of so many nearly equal parts of some chunks."""
    low, high = span
    return ChunkSpan(low + (high - low) * index // number, low + (high - low) * (index + 1) // number)


@dataclass(frozen=True)
class NodeExchange:
    """Exchange of the ranks of a node.

    Attributes
    ----------
    carriers
        Ranks of every node, by lanes.
    fans
        How many ranks meet in each step; the first step is for the first digit, which counts most.
    """

    carriers: Sequence[Sequence[int]]
    fans: tuple[int, ...]

    @property
    def _strides(self) -> list[int]:
        strides, stride = [], len(self.carriers[0])
        for fan in self.fans:
            stride //= fan
            strides.append(stride)
        return strides

    def steps(self, wants: Mapping[int, Sequence[Want]], *, upwards: bool) -> list[Step]:
        """Every node's wants fulfilled, from the first digit to the last or upwards."""
        held = {node: [want.shard.held for want in listed] for node, listed in wants.items()}
        digits = list(zip(self._strides, self.fans, strict=True))
        found = []
        for stride, fan in reversed(digits) if upwards else digits:
            sent: Sent = {}
            for node, listed in wants.items():
                each = zip(held[node], listed, strict=True)
                held[node] = [_meet(self.carriers[node], has, want, (stride, fan), sent) for has, want in each]
            found.append(_step(sent))
        return found

    def early_steps(self, shards: Mapping[int, Sequence[NodeShard]]) -> tuple[list[Step], dict[int, list[NodeShard]]]:
        """Steps that add what lanes have early to what others will have, so that they cannot meet at different times; and the rest.

        For lanes that meet in pairs.
        """
        left = {node: list(listed) for node, listed in shards.items()}
        found = []
        for stride in self._strides:
            sent: Sent = {}
            for node, listed in left.items():
                ranks = self.carriers[node]
                for number, shard in enumerate(listed):
                    gone = frozenset(
                        lane
                        for lane in shard.early
                        if lane ^ stride in shard.held and (lane & stride or lane ^ stride not in shard.early)
                    )
                    for lane in sorted(gone):
                        sent.setdefault((ranks[lane], ranks[lane ^ stride], True), []).append(shard.span)
                    listed[number] = replace(shard, held=shard.held - gone, early=shard.early - gone)
            found.append(_step(sent))
        return found, left


def _meet(ranks: Sequence[int], held: frozenset[int], want: Want, digit: tuple[int, int], sent: Sent) -> frozenset[int]:
    """Let lanes that differ in a digit (its weight, its values) meet, note what they send, and return who has a sum then."""
    encounter = _encounter(held, want.lanes, *digit)
    for one in encounter.passings:
        sent.setdefault((ranks[one.src], ranks[one.dst], one.adds), []).append(want.shard.span)
    return encounter.after


class _Passing(NamedTuple):
    """A lane that sends, to which, and whether that is added."""

    src: int
    dst: int
    adds: bool


@dataclass(frozen=True, slots=True)
class _Encounter:
    """Messages of lanes in a step of an exchange, and the ranks that have a sum then."""

    passings: tuple[_Passing, ...]
    after: frozenset[int]


# The same few lanes meet in every node, for every piece.
@lru_cache(maxsize=4096)
def _encounter(held: frozenset[int], wanted: frozenset[int], stride: int, fan: int) -> _Encounter:
    values = sorted({lane // stride % fan for lane in wanted})
    passings, after = [], set()
    for base in sorted({lane - lane // stride % fan * stride for lane in held}):
        others = [base + value * stride for value in range(fan) if base + value * stride in held]
        for lane in (base + value * stride for value in values):
            after.add(lane)
            has = lane in others
            for other in (other for other in others if other != lane):
                passings.append(_Passing(other, lane, has))
                has = True
    return _Encounter(tuple(passings), frozenset(after))


def _step(sent: Sent) -> Step:
    return tuple(ExchangeMessage(src, dst, joined(spans), adds) for (src, dst, adds), spans in sent.items())


def joined(spans: Iterable[ChunkSpan]) -> tuple[ChunkSpan, ...]:
    """The same chunks in as few runs as there are."""
    found: list[ChunkSpan] = []
    for span in sorted(spans):
        if found and found[-1].high == span.low:
            found[-1] = ChunkSpan(found[-1].low, span.high)
        elif span.low < span.high:
            found.append(span)
    return tuple(found)

"""Sums and copies inside nodes, where ranks whose numbers differ in one digit meet in each step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

# Chunks from one number to before another.
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Sending:
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
    spans: tuple[Span, ...]
    adds: bool


Step = tuple[Sending, ...]


@dataclass(frozen=True, slots=True)
class Share:
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

    span: Span
    held: frozenset[int]
    early: frozenset[int] = frozenset()

    def within(self, span: Span) -> Share | None:
        """What of it lies in some chunks."""
        low, high = max(self.span[0], span[0]), min(self.span[1], span[1])
        return replace(self, span=(low, high)) if low < high else None


@dataclass(frozen=True, slots=True)
class Want:
    """A share that some lanes want to have summed up."""

    share: Share
    lanes: frozenset[int]


def sliced(span: Span, index: int, number: int) -> Span:
    """One of so many nearly equal parts of some chunks."""
    low, high = span
    return low + (high - low) * index // number, low + (high - low) * (index + 1) // number


@dataclass(frozen=True)
class Meeting:
    """How the ranks of a node meet.

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
        held = {node: [want.share.held for want in listed] for node, listed in wants.items()}
        digits = list(zip(self._strides, self.fans, strict=True))
        found = []
        for stride, fan in reversed(digits) if upwards else digits:
            sent: dict[tuple[int, int, bool], list[Span]] = {}
            for node, listed in wants.items():
                ranks = self.carriers[node]
                for number, want in enumerate(listed):
                    meets = list(_meets(held[node][number], want.lanes, stride, fan))
                    for lane, other, adds in meets:
                        if other >= 0:
                            sent.setdefault((ranks[other], ranks[lane], adds), []).append(want.share.span)
                    held[node][number] = frozenset(lane for lane, _, _ in meets)
            found.append(_step(sent))
        return found

    def early_steps(self, shares: Mapping[int, Sequence[Share]]) -> tuple[list[Step], dict[int, list[Share]]]:
        """What lanes have early is added to what others will have, so that they cannot meet at different times; and what is left.

        For lanes that meet in pairs.
        """
        left = {node: list(listed) for node, listed in shares.items()}
        found = []
        for stride in self._strides:
            sent: dict[tuple[int, int, bool], list[Span]] = {}
            for node, listed in left.items():
                ranks = self.carriers[node]
                for number, share in enumerate(listed):
                    gone = frozenset(
                        lane
                        for lane in share.early
                        if lane ^ stride in share.held and (lane & stride or lane ^ stride not in share.early)
                    )
                    for lane in sorted(gone):
                        sent.setdefault((ranks[lane], ranks[lane ^ stride], True), []).append(share.span)
                    listed[number] = replace(share, held=share.held - gone, early=share.early - gone)
            found.append(_step(sent))
        return found, left


def _meets(held: frozenset[int], wanted: frozenset[int], stride: int, fan: int) -> Iterable[tuple[int, int, bool]]:
    """Who has a sum after a step, from whom each of them gets something (-1: it has it), and whether that is added."""
    digits = sorted({lane // stride % fan for lane in wanted})
    for base in sorted({lane - lane // stride % fan * stride for lane in held}):
        lanes = [base + digit * stride for digit in range(fan)]
        for digit in digits:
            has = lanes[digit] in held
            if has:
                yield lanes[digit], -1, False
            for other in lanes:
                if other in held and other != lanes[digit]:
                    yield lanes[digit], other, has
                    has = True


def _step(sent: Mapping[tuple[int, int, bool], Sequence[Span]]) -> Step:
    return tuple(Sending(src, dst, joined(spans), adds) for (src, dst, adds), spans in sent.items())


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same chunks in as few runs as there are."""
    found: list[Span] = []
    for low, high in sorted(spans):
        if found and found[-1][1] == low:
            found[-1] = (found[-1][0], high)
        elif low < high:
            found.append((low, high))
    return tuple(found)

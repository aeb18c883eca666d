"""AllGather over many nodes in three messages of every lane, for shares so small that a lane's messages are mostly alpha.

First every lane hears what another node has: in nodes of w lanes a node then knows w others, half of them on either side of it on
a ring of nodes. Inside the nodes this doubles, until half the lanes know all that came from one side, and with one more message as
much of the other side as they need for the second round. In it the lanes bring what is left, each from a node of its own, but for a
part that all lanes bring, third, while what came in the second round is handed out: what comes last needs no handing out.

The parts of the three messages are balanced: the third messages and the handing out end together. What goes together lies together, in
the order of the ring, so that sums backwards can do the same.

Runtimes carry so many chunks in a message, and every shard is one, so that handing out may take more messages than the plan has. There
is another plan for that, which is as slow as its program; the first one is for what has no such limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from taccl_py.synthesis.hierarchy.cluster import LaneCluster
from taccl_py.synthesis.hierarchy.gather import Numbering
from taccl_py.synthesis.hierarchy.params import PARAMS
from taccl_py.synthesis.templates.messages import TemplateMessage, TemplateMessages, in_order


@dataclass(frozen=True, slots=True)
class LanePart:
    """Shards that a lane brings to a node, by their ranks on the ring as the node sees it, and their sender.

    Share ``q`` is that of lane ``q mod w`` of the node ``q div w`` places on.

    Attributes
    ----------
    low, high
        First share, and the one after the last.
    ahead
        So many places on is the node that sends it.
    other
        Shares that the sender's lane must have got of the other side before.
    """

    low: int
    high: int
    ahead: int
    other: int

    @property
    def size(self) -> int:
        """Number of shares."""
        return self.high - self.low


@dataclass(frozen=True)
class Triples:
    """The three messages of every lane.

    Attributes
    ----------
    second
        What each lane brings in the second round.
    third
        What all lanes bring in the third one.
    end_us
        When all should be done.
    is_third_last
        Whether the third round is not done before.
    most
        Shares in a message, at most; None if any number goes together.
    """

    second: tuple[LanePart, ...]
    third: LanePart
    end_us: float
    is_third_last: bool
    most: int | None = None

    @staticmethod
    def of(cluster: LaneCluster, shard_bytes: float, most: int | None = None) -> Triples | None:
        """The best ones with so many shares in a message; None where nodes are too few or too many, or not of the sort."""
        width, nodes = cluster.width, len(cluster.nodes)
        if not cluster.is_full or width < 2 or width & (width - 1) or nodes < width + 2:
            return None
        return _LaneClock.of(cluster, shard_bytes, most).best()


@dataclass(frozen=True)
class _LaneClock:
    """Times of the three messages of lanes, in nodes of w lanes.

    Attributes
    ----------
    width, left
        Lanes of a node, and shares that are left for the second and third rounds.
    inside_us, lane_us
        Times of 0, 1, 2, ... shares.
    doubled_us
        When lanes have their own node's shares and those of one side.
    most
        See `Triples`.
    """

    width: int
    left: int
    inside_us: tuple[float, ...]
    lane_us: tuple[float, ...]
    doubled_us: float
    most: int | None

    @staticmethod
    def of(cluster: LaneCluster, shard_bytes: float, most: int | None) -> _LaneClock:
        """Look at a cluster."""
        width = cluster.width
        total = width * len(cluster.nodes)
        inside_us, lane_us = (
            tuple(
                message_us(shard_bytes * number) + (_messages(number, most) - 1) * message_us(0.0)
                for number in range(total + 1)
            )
            for message_us in (cluster.node_us, cluster.lane_us)
        )
        steps = [1 << step for step in range(width.bit_length() - 1)]
        first_us = sum(inside_us[number] for number in steps) + lane_us[width]
        doubled_us = first_us + sum(inside_us[width * number] for number in steps[:-1])
        return _LaneClock(width, total - width * (width + 1), inside_us, lane_us, doubled_us, most)

    @property
    def stock(self) -> int:
        """Shares that a node has after the first round."""
        return self.width * (self.width + 1)

    @property
    def side(self) -> int:
        """Shares on either side of a node after the first round."""
        return self.width * self.width // 2

    def best(self) -> Triples | None:
        """The more there is in the third round, the later it ends, and the sooner the second one is handed out."""
        low, high = 0, min(self.stock, self.left)
        best = self.triples(high)
        while best is not None and low < high:
            middle = (low + high) // 2
            found = self.triples(middle)
            if found is not None and found.end_us < best.end_us:
                best = found
            low, high = (low, middle) if found is not None and found.is_third_last else (middle + 1, high)
        return best

    def triples(self, third: int) -> Triples | None:
        """Triples with so many shards in the third round; None if the second one cannot bring the others."""
        wanted = self.left - third
        least_us = self.doubled_us
        low_us, high_us = least_us, least_us + self.inside_us[self.side] + self.lane_us[self.stock]
        if wanted > 0 and self._brought(high_us, wanted) is None:
            return None
        for _ in range(PARAMS.triple_halvings):
            middle_us = (low_us + high_us) / 2
            low_us, high_us = (low_us, middle_us) if self._brought(middle_us, wanted) else (middle_us, high_us)
        second = self._brought(high_us, wanted)
        if second is None:
            return None
        first = self.width + self.side + wanted
        ahead = (first + self.side) // self.width
        if first + third - self.width * ahead > self.width + self.side:
            return None
        others = [part.other for part in second]
        told_us = self.doubled_us + (self.inside_us[max(others)] if max(others) else 0.0)
        start_us = max(high_us, told_us + self.inside_us[self.side - min(others)])
        ends = [start_us + self.lane_us[third] if third else 0.0, start_us + self._handed_us(second)]
        return Triples(second, LanePart(first, first + third, ahead, 0), max(ends), ends[0] >= ends[1], self.most)

    def _handed_us(self, parts: Sequence[LanePart]) -> float:
        """Time in which the second round is handed out."""
        total, together = 0.0, 1
        while together < self.width and parts[0].size:
            groups = (parts[first : first + together] for first in range(0, self.width, together))
            total += self.inside_us[max(sum(part.size for part in group) for group in groups)]
            together *= 2
        return total

    def _brought(self, end_us: float, wanted: int) -> tuple[LanePart, ...] | None:
        """Parts that lanes bring by a time, one after the other as much as they can; None if that is not enough."""
        low = self.width + self.side
        last, parts = low + wanted, list[LanePart]()
        for lane in range(self.width):
            sizes = range(min(self.stock, last - low), -1, -1)
            parts.append(next(part for part in self._parts(lane, low, sizes) if self._fits(part, end_us)))
            low = parts[-1].high
        return tuple(parts) if low == last else None

    def _parts(self, lane: int, low: int, sizes: Sequence[int]) -> Iterator[LanePart]:
        """Parts that a lane may bring from some shard on, most of which the sender has from its own side."""
        for size in sizes:
            high = low + size
            if lane < self.width // 2:
                ahead = -(-(high - self.width - self.side) // self.width)
                other = self.width * ahead - low
            else:
                ahead = (low + self.side) // self.width
                other = high - self.width * (ahead + 1)
            if size == 0 or other <= self.side:
                yield LanePart(low, high, ahead, max(0, other) if size else 0)

    def _fits(self, part: LanePart, end_us: float) -> bool:
        """True if it arrives by a time."""
        if not part.size:
            return True
        before_us = self.inside_us[part.other] if part.other else 0.0
        return self.doubled_us + before_us + self.lane_us[part.size] <= end_us


def triple_messages(
    cluster: LaneCluster, triples: Triples, shard_bytes: float, numbering: Numbering
) -> TemplateMessages:
    """Messages of an AllGather of one piece; see `taccl_py.synthesis.hierarchy.gather.allgather_messages`."""
    writer = _TripleWriter(cluster, triples, _LaneClock.of(cluster, shard_bytes, triples.most), numbering)
    for node in range(len(cluster.nodes)):
        writer.write(node)
    return in_order(writer.messages)


def _messages(shards: int, most: int | None) -> int:
    """Messages that so many shares need."""
    return 1 if most is None else max(1, -(-shards // most))


class _TripleWriter:
    """Messages of all nodes."""

    def __init__(self, cluster: LaneCluster, triples: Triples, clock: _LaneClock, numbering: Numbering) -> None:
        self.messages: list[TemplateMessage] = []
        self._carriers, self._triples, self._clock = cluster.carriers, triples, clock
        self._width, self._half = cluster.width, cluster.width // 2
        self._numbered = [[numbering(rank, 0) for rank in ranks] for ranks in cluster.carriers]
        inside, others = clock.inside_us, [part.other for part in triples.second]
        self._doubled_us = clock.doubled_us
        self._told_us = self._doubled_us + (inside[max(others)] if max(others) else 0.0)
        arrivals = [self._second_us(part)[1] for part in triples.second]
        self._second_end_us = max(*arrivals, self._told_us + inside[clock.side - min(others)])

    def write(self, node: int) -> None:
        """Write the messages of one node."""
        now = self._exchange(node, 0.0, [(lane, lane + 1) for lane in range(self._width)])
        self._first(node, now)
        now += self._clock.lane_us[self._width]
        for side in (range(self._half), range(self._half, self._width)):
            self._exchange(node, now, [self._near(lane) for lane in side], lanes=side)
        self._tell(node)
        for lane, part in enumerate(self._triples.second):
            start, end = self._second_us(part)
            self._cross(node, lane, part, start, end)
        third, start = self._triples.third, self._second_end_us
        for lane in range(self._width):
            self._cross(node, lane, third, start, start + self._clock.lane_us[third.size])
        self._exchange(node, start, [(part.low, part.high) for part in self._triples.second])

    def _chunks(self, node: int, low: int, high: int) -> tuple[int, ...]:
        """Chunks of some shares as a node sees them."""
        number, width = len(self._numbered), self._width
        return tuple(
            chunk
            for shard in range(low, high)
            for chunk in self._numbered[(node + shard // width) % number][shard % width]
        )

    def _add(self, src: int, dst: int, chunks: tuple[int, ...], start: float, end: float) -> None:
        number = _messages(len(chunks), self._triples.most)
        for part in range(number if chunks else 0):
            low, high = (len(chunks) * place // number for place in (part, part + 1))
            self.messages.append(TemplateMessage(src, dst, chunks[low:high], start, end))

    def _near(self, lane: int) -> tuple[int, int]:
        """Shares that a lane brings in the first round."""
        ahead = lane + 1 if lane < self._half else self._half - lane - 1
        return ahead * self._width, (ahead + 1) * self._width

    def _exchange(self, node: int, start: float, has: Sequence[tuple[int, int]], lanes: range | None = None) -> float:
        """Lanes whose numbers are next to each other get what the others have, twice as many in each step; when that is done."""
        ranks = [self._carriers[node][lane] for lane in lanes or range(self._width)]
        together = 1
        while together < len(ranks):
            groups = [has[first : first + together] for first in range(0, len(ranks), together)]
            end = start + self._clock.inside_us[max(sum(high - low for low, high in group) for group in groups)]
            for place, rank in enumerate(ranks):
                runs = sorted(groups[place // together])
                chunks = tuple(chunk for low, high in runs for chunk in self._chunks(node, low, high))
                self._add(rank, ranks[place ^ together], chunks, start, end)
            start, together = end, 2 * together
        return start

    def _first(self, node: int, start: float) -> None:
        """A node's own shares to the nodes near it."""
        for lane in range(self._width):
            low, high = self._near(lane)
            ahead = low // self._width
            self._cross(node, lane, LanePart(low, high, ahead, 0), start, start + self._clock.lane_us[self._width])

    def _tell(self, node: int) -> None:
        """Send what one half of the lanes knows to the other one: first what that needs for its second messages."""
        ranks, side, width = self._carriers[node], self._clock.side, self._width
        rest_us = self._second_end_us
        for lane, part in enumerate(self._triples.second):
            rank, from_rank, other = ranks[lane], ranks[lane ^ self._half], part.other
            first, rest = ((-other, 0), (-side, -other)) if lane < self._half else (
                (width, width + other), (width + other, width + side)
            )  # fmt: skip
            self._add(from_rank, rank, self._chunks(node, *first), self._doubled_us, self._second_us(part)[0])
            self._add(from_rank, rank, self._chunks(node, *rest), self._told_us, rest_us)

    def _second_us(self, part: LanePart) -> tuple[float, float]:
        """Times when a second message leaves and arrives."""
        start = self._doubled_us + (self._clock.inside_us[part.other] if part.other else 0.0)
        return start, start + self._clock.lane_us[part.size]

    def _cross(self, node: int, lane: int, part: LanePart, start: float, end: float) -> None:
        """A message to the node that has this one so many places ahead of it."""
        to = (node - part.ahead) % len(self._carriers)
        chunks = self._chunks(to, part.low, part.high)
        self._add(self._carriers[node][lane], self._carriers[to][lane], chunks, start, end)

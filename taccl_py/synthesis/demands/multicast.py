"""One copy a node: what several ranks of a node want crosses to it once and is handed out there; sums take the same way backwards.

Each piece takes one lane between nodes, for all nodes that want it: the lane of its own rank as long as that has no more than its part of what the
node has for any of them, else the emptiest. So all lanes carry the same, and on each nodes meet one to one in the same order, by Birkhoff's
decomposition of what they have for each other or in rotation, which takes fewer messages. Each keeps its order: who goes ahead keeps two others
from meeting. A sum is added up inside a node by the rank of its lane and crosses
once: the plan of the reversed machine, turned around. (As DeepEP dispatches tokens to experts, with lanes evened out.)
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from taccl_py.demand import DataDemand
from taccl_py.grouping import grouped
from taccl_py.synthesis.demands.balance import Lanes, slots_of
from taccl_py.synthesis.demands.classes import ChunkClass, Part
from taccl_py.synthesis.demands.dispatch import PlannedMessage
from taccl_py.synthesis.demands.params import PARAMS
from taccl_py.synthesis.demands.plan import DemandPlan, UnfinishedPlan
from taccl_py.topology.model import Topology
from taccl_py.work import count_work


@dataclass(frozen=True, slots=True)
class _MulticastPiece:
    """A piece and where it goes: its number, which is its place among all pieces, its rank, who wants it, and its parts of chunks."""

    number: int
    source: int
    wants: tuple[int, ...]
    parts: tuple[Part, ...]
    size_bytes: int


class _Meeting(NamedTuple):
    """Items that go from a node to another on a lane at once, and the meeting's place in the order."""

    rank: float
    node: int
    far: int
    lane: int
    items: tuple[int, ...]


def multicast_plans(
    topology: Topology, demand: DataDemand, classes: Sequence[ChunkClass], *, is_matched: bool
) -> Iterator[DemandPlan]:
    """Plans with nodes that meet in Birkhoff's matchings or in rotation, where all pieces go from one rank to several, or all come from several to one; none on one node or where NICs are not alike."""
    if topology.num_nodes < 2:
        return
    is_backwards = any(each.is_sum for each in classes)
    ends = [_ends(each, is_backwards=is_backwards) for each in classes]
    machine = topology.reversed() if is_backwards else topology
    lanes = Lanes.of(machine)
    found = [one for one in ends if one is not None]
    if lanes is None or len(found) < len(ends):
        return
    if all(topology.node_of[source] == topology.node_of[want] for source, wants in found for want in wants):
        return
    items = _items(machine, demand, classes, found, lanes)
    for longest in PARAMS.longest_copies:
        plan = _Multicast(machine, demand, lanes, items).plan(longest, is_matched=is_matched, is_paced=is_backwards)
        if plan is None:
            return
        yield DemandPlan(topology, plan.demand, _turned(machine, plan)) if is_backwards else plan
        if len(plan.messages) > PARAMS.enough_messages:
            return


def _ends(each: ChunkClass, *, is_backwards: bool) -> tuple[int, tuple[int, ...]] | None:
    """The one rank of a class and the several ones, backwards for sums; None if there are several at both ends."""
    if any(len(term) > 1 for term in each.terms):
        return None
    if not is_backwards:
        return each.terms[0][0], each.wants
    if len(each.wants) > 1:
        return None
    want = each.wants[0]
    return want, tuple(term[0] for term in each.terms if term[0] != want)


def _items(
    topology: Topology,
    demand: DataDemand,
    classes: Sequence[ChunkClass],
    ends: Sequence[tuple[int, tuple[int, ...]]],
    lanes: Lanes,
) -> list[_MulticastPiece]:
    """Pieces, each at most a small part of what crosses; those of all classes of a rank side by side, sums first."""
    crossing = sum(
        each.size_bytes * len({topology.node_of[want] for want in wants} - {topology.node_of[source]})
        for each, (source, wants) in zip(classes, ends, strict=True)
    )
    most = max(1, crossing // (topology.num_nodes * len(lanes.us_per_mb) * PARAMS.lane_pieces))
    cuts = [
        (each, end, index, parts, -(-each.size_bytes // most))
        for each, end in zip(classes, ends, strict=True)
        for index, parts in enumerate(each.cut(demand, -(-each.size_bytes // most)))
    ]
    cuts.sort(key=lambda cut: (not cut[0].is_sum, cut[2] / cut[4]))
    return [
        _MulticastPiece(number, source, wants, parts, sum(size for *_, size in parts))
        for number, (_, (source, wants), _, parts, _) in enumerate(cuts)
    ]


class _Multicast:
    """One plan in the making: forwards, whatever will be turned around."""

    def __init__(self, topology: Topology, demand: DataDemand, lanes: Lanes, items: Sequence[_MulticastPiece]) -> None:
        self._topology, self._lanes, self._items = topology, lanes, items
        self._unfinished = UnfinishedPlan(topology, demand)
        self._chunks = [self._unfinished.cut.number(item.parts) for item in items]
        node_of = topology.node_of
        self._far = [sorted({node_of[want] for want in i.wants} - {node_of[i.source]}) for i in items]

    def plan(self, longest: float, *, is_matched: bool, is_paced: bool = False) -> DemandPlan | None:
        """The plan; None if links are missing.

        Parameters
        ----------
        longest, is_matched
            See `slots_of`.
        is_paced
            Whether data are handed out before the next but one message comes, so that backwards what leaves first is collected first.
        """
        count_work("routed", len(self._items))
        lane_of = self._choose_lanes()
        brought, begun = self._bring(lane_of, longest)
        inside = self._inside(brought, longest)
        for lane in range(len(self._lanes.us_per_mb)):
            last: dict[tuple[int, bool], tuple[int, ...]] = {}
            handed: defaultdict[int, list[tuple[int, ...]]] = defaultdict(lambda: [(), ()])
            meetings = self._meetings(lane_of, lane, longest, is_matched=is_matched)
            ends = {meeting.node: number for number, meeting in enumerate(meetings)} if is_paced else {}
            for number, meeting in enumerate(meetings):
                after = [*last.get((meeting.node, True), ()), *last.get((meeting.far, False), ())]
                if is_paced:
                    after += handed[meeting.far][-2]
                if ends.get(meeting.node) == number:
                    after += [one for rank in self._lanes.senders[meeting.node][lane] for one in inside[rank]]
                crossings, handed_out = self._cross(meeting, begun, tuple(after))
                last[meeting.node, True] = last[meeting.far, False] = crossings
                handed[meeting.far].append(handed_out)
        return self._unfinished.plan()

    def _choose_lanes(self) -> list[int]:
        """Lane of every item, such that each carries its part of what a node has for each other; that of its own rank where it can."""
        widths = self._lanes.widths()
        own = [{rank: lane for lane, ranks in enumerate(by_lane) for rank in ranks} for by_lane in self._lanes.senders]
        amounts: defaultdict[tuple[int, int], int] = defaultdict(int)
        for item in self._items:
            for far in self._far[item.number]:
                amounts[self._topology.node_of[item.source], far] += item.size_bytes
        filled = {pair: [0] * len(widths) for pair in amounts}
        found = []
        for item in self._items:
            pairs = [(self._topology.node_of[item.source], far) for far in self._far[item.number]]
            lane = own[self._topology.node_of[item.source]].get(item.source, -1)

            def fullness(lane: int, pairs: list[tuple[int, int]] = pairs, size: int = item.size_bytes) -> float:
                return max((filled[pair][lane] + size) / (amounts[pair] * widths[lane]) for pair in pairs)

            if pairs and (lane < 0 or fullness(lane) > 1):
                lane = min(range(len(widths)), key=fullness)
            found.append(lane)
            for pair in pairs:
                filled[pair][lane] += item.size_bytes
        return found

    def _meetings(self, lane_of: Sequence[int], lane: int, longest: float, *, is_matched: bool) -> list[_Meeting]:
        """Meetings on a lane, in order."""
        nodes = self._topology.num_nodes
        streams: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        matrix = [[0.0] * nodes for _ in range(nodes)]
        for item in self._items:
            if lane_of[item.number] == lane:
                node = self._topology.node_of[item.source]
                for far in self._far[item.number]:
                    streams[node, far].append(item.number)
                    matrix[node][far] += item.size_bytes
        slots = slots_of(matrix, longest, is_matched=is_matched)
        found = []
        for (node, far), stream in streams.items():
            # A pair with too little for the matchings comes last.
            turns = slots[node, far] or [(float(nodes * nodes), matrix[node][far])]
            found += [_Meeting(rank, node, far, lane, tuple(group)) for group, rank in self._turns(stream, turns)]
        return sorted(found)

    def _bring(self, lane_of: Sequence[int], longest: float) -> tuple[set[tuple[int, int]], dict[int, tuple[int, int]]]:
        """Messages to senders of other lanes: what came to which rank by them, and for every item its sender and message."""
        waiting: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        begun: dict[int, tuple[int, int]] = {}
        for item in self._items:
            if not self._far[item.number]:
                continue
            senders = self._lanes.senders[self._topology.node_of[item.source]][lane_of[item.number]]
            if item.source in senders:
                begun[item.number] = (item.source, -1)
                continue
            wanting = [rank for rank in senders if rank in item.wants]
            sender = wanting[0] if wanting else senders[item.number % len(senders)]
            waiting[item.source, sender].append(item.number)
        brought: set[tuple[int, int]] = set()
        for (source, sender), numbers in waiting.items():
            for group, rank in self._parted(numbers, longest):
                message = self._send(source, sender, group, (), self._within(rank - 1.0, source, sender))
                begun.update(dict.fromkeys(group, (sender, message)))
            brought.update((number, sender) for number in numbers)
        return brought, begun

    def _turns(self, stream: list[int], turns: list[tuple[float, float]]) -> Iterator[tuple[list[int], float]]:
        """Items of a stream in the turns of its nodes, each with the turn's place in the order."""
        size = sum(self._items[number].size_bytes for number in stream)
        amount = sum(each for _, each in turns)
        at, done, taken = 0, 0.0, 0.0
        for place, (rank, each) in enumerate(turns):
            done += each
            first = at
            while at < len(stream) and (place == len(turns) - 1 or taken * amount < done * size):
                taken += self._items[stream[at]].size_bytes
                at += 1
            if at > first:
                yield stream[first:at], rank

    def _parted(self, numbers: list[int], longest: float) -> Iterator[tuple[list[int], float]]:
        """Items in as many messages as one takes of the whole, with the place of each, as a part of all items."""
        count = min(len(numbers), max(1, round(1 / longest)))
        for i in range(count):
            group = numbers[len(numbers) * i // count : len(numbers) * (i + 1) // count]
            yield group, group[0] / len(self._items)

    def _cross(
        self, meeting: _Meeting, begun: dict[int, tuple[int, int]], after: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Messages of a meeting, and those that hand out what they bring."""
        node_of, far, rank = self._topology.node_of, meeting.far, meeting.rank
        receivers = self._lanes.receivers[far][meeting.lane]
        by_ends: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for number in meeting.items:
            wanting = [one for one in receivers if one in self._items[number].wants]
            receiver = wanting[0] if wanting else receivers[self._items[number].source % len(receivers)]
            by_ends[begun[number][0], receiver].append(number)
        crossings, handed_out = [], []
        for (sender, receiver), group in by_ends.items():
            before = sorted({begun[number][1] for number in group} - {-1})
            crossing = self._send(sender, receiver, group, (*after, *before), rank)
            crossings.append(crossing)
            wants = ((want, number) for number in group for want in self._items[number].wants)
            handed = grouped((want, number) for want, number in wants if want != receiver and node_of[want] == far)
            for want, numbers in handed.items():
                handed_out.append(self._send(receiver, want, numbers, (crossing,), self._within(rank, receiver, want)))
        return tuple(crossings), tuple(handed_out)

    def _inside(self, brought: set[tuple[int, int]], longest: float) -> defaultdict[int, list[int]]:
        """Messages for the ranks of an item's own node, last; by the item's rank."""
        found: defaultdict[int, list[int]] = defaultdict(list)
        node_of = self._topology.node_of
        waiting = grouped(
            ((item.source, want), item.number)
            for item in self._items
            for want in item.wants
            if node_of[want] == node_of[item.source] and (item.number, want) not in brought
        )
        for (source, want), numbers in waiting.items():
            for group, _ in self._parted(numbers, longest):
                found[source].append(self._send(source, want, group, (), math.inf))
        return found

    def _within(self, rank: float, src: int, dst: int) -> float:
        """Place of a message inside a node: ranks begin with different ones, so that they do not meet."""
        ranks = self._topology.num_ranks
        return rank + (dst - src) % ranks / ranks**2

    def _send(self, src: int, dst: int, numbers: Sequence[int], after: tuple[int, ...], rank: float) -> int:
        chunks = tuple(chunk for number in numbers for chunk in self._chunks[number])
        size = sum(self._items[number].size_bytes for number in numbers)
        return self._unfinished.send(src, dst, chunks, size, after, rank)


def _turned(machine: Topology, plan: DemandPlan) -> tuple[PlannedMessage, ...]:
    """Messages of a plan of the reversed machine the other way, last first; those with sums and copies as two."""
    chunks, links = plan.demand.chunks, machine.reversed_link()
    behind: defaultdict[int, list[int]] = defaultdict(list)
    latest = max((message.rank for message in plan.messages if message.rank < math.inf), default=0.0)
    found: list[PlannedMessage] = []
    for number in reversed(range(len(plan.messages))):
        message = plan.messages[number]
        after, numbers = tuple(sorted(behind.pop(number, ()))), []
        rank = latest - message.rank if message.rank < math.inf else math.inf
        for adds in (True, False):
            carried = tuple(chunk for chunk in message.chunks if chunks[chunk].is_sum is adds)
            if carried:
                size = sum(chunks[chunk].size_bytes for chunk in carried)
                numbers.append(len(found))
                found.append(PlannedMessage(links[message.link], carried, size, after, adds, rank))
        for before in message.after:
            behind[before] += numbers
    return tuple(found)

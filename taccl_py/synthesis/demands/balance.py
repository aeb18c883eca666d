"""AllToAllv between nodes: even out inside a node, cross one to one, hand out.

What one node has for another is spread over the lanes of the nodes, each a NIC of the one and a NIC of the other, in proportion to their rates,
so that every lane carries the same part of each pair of nodes: then the fullest NIC is as full as its node makes it at the least. Where that would be
many short messages, each pair takes only some of the lanes, in rotation, so that each lane carries the same number of pairs. What lies at
the rank of its lane already crosses from there; the rest is passed to a rank of the lane first. Nodes meet in the order of a Birkhoff
decomposition of what they have for each other, or in rotation where there are many. Behind a lane data are handed out to those who want them.
(As FAST does, arXiv 2505.09764.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from taccl_py.demand import DataDemand
from taccl_py.grouping import grouped
from taccl_py.synthesis.demands.birkhoff import birkhoff
from taccl_py.synthesis.demands.classes import ChunkClass, Part, cut_stream
from taccl_py.synthesis.demands.params import PARAMS
from taccl_py.synthesis.demands.plan import DemandPlan, UnfinishedPlan
from taccl_py.topology.model import Topology
from taccl_py.units import BYTES_PER_MB


@dataclass(frozen=True)
class Lanes:
    """NICs that all nodes have, in order.

    Attributes
    ----------
    senders, receivers
        For every node and lane the ranks whose links to other nodes leave, or enter, by it.
    us_per_mb
        For every lane, how long a megabyte takes at its slowest.
    alpha_us
        Largest alpha of any lane.
    """

    senders: tuple[tuple[tuple[int, ...], ...], ...]
    receivers: tuple[tuple[tuple[int, ...], ...], ...]
    us_per_mb: tuple[float, ...]
    alpha_us: float

    @staticmethod
    def of(topology: Topology) -> Lanes | None:
        """Lanes of a machine; None if nodes have none in common, or a rank has several lanes, or ranks of one lane are not joined."""
        by_port: list[dict[int, set[int]]] = [defaultdict(set) for _ in range(2 * topology.num_nodes)]
        cost: dict[int, float] = {}
        for index, link in enumerate(topology.links):
            nodes = topology.node_of[link.src], topology.node_of[link.dst]
            if nodes[0] == nodes[1]:
                continue
            resources = topology.resources_of[index]
            if len(resources) < 3:  # a link of its own is no NIC
                return None
            slowest = topology.us_per_mb(index)
            for resource, node, rank in (
                (resources[1], nodes[0], link.src),
                (resources[-1], topology.num_nodes + nodes[1], link.dst),
            ):
                by_port[node][resource].add(rank)
                cost[resource] = min(cost.get(resource, slowest), slowest)
        sides = [_by_place(topology, ports) for ports in by_port]
        common = [place for place in sides[0] if all(place in side for side in sides)]
        ranks = [tuple(tuple(sorted(by_port[n][side[place]])) for place in common) for n, side in enumerate(sides)]
        if not common or any(sum(map(len, lanes)) != len({rank for lane in lanes for rank in lane}) for lanes in ranks):
            return None
        us_per_mb = tuple(max(cost[side[place]] for side in sides) for place in common)
        alpha_us = max(topology.resource_cost[resource][0] for resource in cost)
        return Lanes(tuple(ranks[: topology.num_nodes]), tuple(ranks[topology.num_nodes :]), us_per_mb, alpha_us)

    def widths(self) -> list[float]:
        """Part of what a node has for another that each lane carries."""
        rates = [1 / each if each else 1.0 for each in self.us_per_mb]
        return [rate / sum(rates) for rate in rates]

    def taken(self, pair: tuple[int, int], count: int, nodes: int) -> range:
        """Lanes of a pair of nodes where each takes so many: pairs of each distance in turn, and all lanes where distances are left over."""
        groups, place = len(self.us_per_mb) // count, (pair[1] - pair[0]) % nodes - 1
        if place >= (nodes - 1) // groups * groups:
            return range(len(self.us_per_mb))
        return range(place % groups * count, (place % groups + 1) * count)

    def rotation(
        self, sizes: Mapping[tuple[int, int], int], nodes: int, inside_us_per_mb: float
    ) -> tuple[int, float] | None:
        """Lanes that each pair of nodes takes so that a rotation ends soonest, and when that is; None where lanes are not alike.

        In a rotation each lane serves its pairs in the order of their distances, each message with its alpha.

        Parameters
        ----------
        sizes
            Bytes of each pair.
        nodes
            How many there are.
        inside_us_per_mb
            Time of a megabyte that is passed on inside a node, as the first and the last message are.
        """
        every = len(self.us_per_mb)
        if len(set(self.us_per_mb)) > 1:
            return None
        largest_mb = max(sizes.values()) / BYTES_PER_MB

        def time_us(count: int) -> float:
            out_us: defaultdict[tuple[int, int], float] = defaultdict(float)
            in_us: defaultdict[tuple[int, int], float] = defaultdict(float)
            for (a, b), size in sorted(sizes.items(), key=lambda each: (each[0][1] - each[0][0]) % nodes):
                taken = self.taken((a, b), count, nodes)
                for lane in taken:
                    end_us = max(out_us[a, lane], in_us[b, lane]) + self._message_us(size / len(taken))
                    out_us[a, lane] = in_us[b, lane] = end_us
            passed = 1 if count == every else 2
            return max(out_us.values()) + passed * largest_mb / count * inside_us_per_mb

        count = min((count for count in range(every, 0, -1) if every % count == 0), key=time_us)
        return count, time_us(count)

    def fullest_us(self, sizes: Mapping[tuple[int, int], int]) -> float:
        """Time of the fullest lane, each pair of nodes over all lanes."""
        out_us: defaultdict[int, float] = defaultdict(float)
        in_us: defaultdict[int, float] = defaultdict(float)
        for (a, b), size in sizes.items():
            out_us[a] += self._message_us(size / len(self.us_per_mb))
            in_us[b] += self._message_us(size / len(self.us_per_mb))
        return max((*out_us.values(), *in_us.values()))

    def _message_us(self, size_bytes: float) -> float:
        return self.alpha_us + size_bytes / BYTES_PER_MB * max(self.us_per_mb)


def _by_place(topology: Topology, ports: Mapping[int, set[int]]) -> dict[tuple[int, int], int]:
    """Ports of one side of a node by the place of their first rank in it, and a number among those of the same; in order."""
    found: dict[tuple[int, int], int] = {}
    for first, port in sorted((topology.local_rank[min(ranks)], port) for port, ranks in ports.items()):
        found[first, sum(place == first for place, _ in found)] = port
    return found


@dataclass(frozen=True, slots=True)
class _Load:
    """Parts of chunks that go from one rank to another."""

    source: int
    target: int
    parts: tuple[Part, ...]
    size_bytes: int


def balanced_plans(
    topology: Topology,
    demand: DataDemand,
    classes: Sequence[ChunkClass],
    *,
    is_ordered: bool,
    unit_bytes: int | None = None,
) -> Iterator[DemandPlan]:
    """Plans for what goes from one rank to one other on a machine of several nodes; none where that is not so.

    Parameters
    ----------
    topology, demand, classes
        The machine and what must move.
    is_ordered
        Whether each lane keeps the order of a rotation, which is only done where pairs of nodes are nearly alike; else whatever is first ready
        goes, which is only done where little is asked for or they are not.
    unit_bytes
        What data are cut into, of which all chunks are multiples; None is an element.
    """
    if topology.num_nodes < 2 or any(each.is_sum or len(each.terms[0]) > 1 or len(each.wants) > 1 for each in classes):
        return
    lanes = Lanes.of(topology)
    if lanes is None:
        return
    loads: defaultdict[tuple[int, int], list[_Load]] = defaultdict(list)
    for each in classes:
        source, target = each.terms[0][0], each.wants[0]
        load = _Load(source, target, each.parts(demand), each.size_bytes)
        loads[topology.node_of[source], topology.node_of[target]].append(load)
    if all(a == b for a, b in loads):
        return
    sizes = {pair: sum(load.size_bytes for load in each) for pair, each in loads.items() if pair[0] != pair[1]}
    rotation = lanes.rotation(sizes, topology.num_nodes, _inside_us_per_mb(topology))
    is_even = rotation is not None and rotation[1] <= lanes.fullest_us(sizes) * (1 + PARAMS.even)
    if is_ordered > is_even or (is_even and not is_ordered and len(classes) > PARAMS.enough_messages):
        return
    count = rotation[0] if is_ordered and rotation is not None else len(lanes.us_per_mb)
    for longest in PARAMS.longest:
        unit = demand.element_bytes if unit_bytes is None else unit_bytes
        plan = _Balance(topology, demand, lanes, loads, count, is_ordered=is_ordered, unit=unit).plan(longest)
        if plan is None:
            return
        yield plan
        if len(plan.messages) > PARAMS.enough_messages:
            return


def _inside_us_per_mb(topology: Topology) -> float:
    """Time of a megabyte on the slowest link inside a node; 0 if there is none."""
    inside = (topology.us_per_mb(index) for index, link in enumerate(topology.links) if topology.is_inside(link))
    return max(inside, default=0.0)


class _Balance:
    """One plan in the making, in which each pair of nodes takes so many lanes."""

    def __init__(
        self,
        topology: Topology,
        demand: DataDemand,
        lanes: Lanes,
        loads: dict[tuple[int, int], list[_Load]],
        count: int,
        *,
        is_ordered: bool,
        unit: int,
    ) -> None:
        self._topology, self._lanes, self._loads = topology, lanes, loads
        self._count, self._is_ordered, self._unit = count, is_ordered, unit
        self._unfinished = UnfinishedPlan(topology, demand)

    def plan(self, longest: float) -> DemandPlan | None:
        """The plan; None if links are missing."""
        streams = {
            nodes: self._spread(loads, *nodes, self._widths(nodes))
            for nodes, loads in self._loads.items()
            if nodes[0] != nodes[1]
        }
        meetings = [
            (rank, place, loads)
            for place, stream, edges, ranks in self._turns(streams, longest)
            for loads, rank in zip(_cut_loads(stream, edges), ranks, strict=True)
        ]
        if self._is_ordered:
            meetings.sort(key=lambda meeting: meeting[:2])
        served: defaultdict[tuple[int, int, bool], list[tuple[int, ...]]] = defaultdict(lambda: [(), ()])
        for rank, (source, target, lane), loads in meetings:
            if not self._is_ordered:
                self._cross((source, target, lane), loads, rank)
                continue
            sent, got = served[source, lane, True], served[target, lane, False]
            # All lanes begin at once, so the place in the order is that on the lane; nothing is brought earlier than the next but one.
            crossings = self._cross((source, target, lane), loads, float(len(sent)), (*sent[-1], *got[-1]), sent[-2])
            sent.append(crossings)
            got.append(crossings)
        inside = [load for (a, b), loads in self._loads.items() if a == b for load in loads]
        for load in inside:
            chunks = self._unfinished.cut.number(load.parts)
            self._unfinished.send(load.source, load.target, chunks, load.size_bytes, (), None)
        return self._unfinished.plan(is_ordered=self._is_ordered)

    def _widths(self, pair: tuple[int, int]) -> list[float]:
        """Part of what one node has for another that each lane carries."""
        widths = self._lanes.widths()
        if self._count == len(widths):
            return widths
        taken = self._lanes.taken(pair, self._count, self._topology.num_nodes)
        return [1 / len(taken) if lane in taken else 0.0 for lane in range(len(widths))]

    def _spread(self, loads: Sequence[_Load], source: int, target: int, widths: Sequence[float]) -> list[list[_Load]]:
        """Loads of each lane of a pair of nodes: first what lies at its own ranks, then what others have too much of."""
        unit = self._unit
        total = sum(load.size_bytes for load in loads) // unit
        edges = [round(total * sum(widths[:lane])) * unit for lane in range(len(widths))] + [total * unit]
        room = [edges[lane + 1] - edges[lane] for lane in range(len(widths))]
        lane_of = {rank: lane for lane, ranks in enumerate(self._lanes.senders[source]) for rank in ranks}
        into = {rank: lane for lane, ranks in enumerate(self._lanes.receivers[target]) for rank in ranks}
        found: list[list[_Load]] = [[] for _ in widths]
        waiting = list(loads)
        for prefer in (lane_of, into, None):
            rest = []
            for load in sorted(waiting, key=lambda one: (-one.size_bytes, one.source, one.target)):
                left: _Load | None = load
                own = None if prefer is None else prefer.get(load.source if prefer is lane_of else load.target)
                for lane in range(len(widths)) if prefer is None else [] if own is None else [own]:
                    taken, left = _take(left, room[lane]) if left is not None else (None, None)
                    if taken is not None:
                        found[lane].append(taken)
                        room[lane] -= taken.size_bytes
                if left is not None:
                    rest.append(left)
            waiting = rest
        return found

    def _turns(
        self, streams: dict[tuple[int, int], list[list[_Load]]], longest: float
    ) -> Iterator[tuple[tuple[int, int, int], list[_Load], list[int], list[float]]]:
        """For every pair of nodes and lane: its stream, where it is cut into messages, and the place of each in the order."""
        nodes, unit = self._topology.num_nodes, self._unit
        sizes = {pair: sum(load.size_bytes for lane in lanes for load in lane) for pair, lanes in streams.items()}
        matrix = [[float(sizes.get((a, b), 0)) for b in range(nodes)] for a in range(nodes)]
        slots = slots_of(matrix, longest, is_matched=nodes <= PARAMS.most_matched and not self._is_ordered)
        for pair, lanes in streams.items():
            if not sizes[pair]:
                continue
            # A pair with too little for the matchings comes last.
            turns = slots[pair] or [(float(nodes * nodes), float(sizes[pair]))]
            for lane, stream in enumerate(lanes):
                size, at = sum(load.size_bytes for load in stream), 0.0
                edges, ranks = [0], []
                for rank, amount in turns:
                    at += amount
                    edge = min(size, round(size * at / sizes[pair] / unit) * unit)
                    if edge > edges[-1]:
                        edges.append(edge)
                        ranks.append(rank)
                if edges[-1] < size:
                    edges, ranks = (
                        ([*edges, size], [*ranks, turns[-1][0]]) if len(edges) == 1 else ([*edges[:-1], size], ranks)
                    )
                if size:
                    yield (*pair, lane), stream, edges, ranks

    def _cross(
        self,
        ends: tuple[int, int, int],
        loads: Sequence[_Load],
        rank: float,
        after: tuple[int, ...] = (),
        brought_after: tuple[int, ...] = (),
    ) -> tuple[int, ...]:
        """Messages between nodes, what brings their data to their senders, and what hands them out; the first are returned.

        Parameters
        ----------
        ends
            Nodes from and to which it goes, and the lane.
        loads, rank
            Data, and the place in the order.
        after, brought_after
            Messages that the crossing waits for, and those that what is brought waits for.
        """
        source, target, lane = ends
        senders, receivers = self._lanes.senders[source][lane], self._lanes.receivers[target][lane]
        by_ends: defaultdict[tuple[int, int], list[_Load]] = defaultdict(list)
        for load in loads:
            sender = load.source if load.source in senders else senders[load.target % len(senders)]
            receiver = load.target if load.target in receivers else receivers[load.source % len(receivers)]
            by_ends[sender, receiver].append(load)
        crossings = []
        for (sender, receiver), group in by_ends.items():
            numbered = [(load, self._unfinished.cut.number(load.parts)) for load in group]
            before = self._grouped(numbered, sender, sender=True, after=brought_after, rank=rank - 1.0)
            chunks = tuple(chunk for _, each in numbered for chunk in each)
            size = sum(load.size_bytes for load in group)
            crossing = self._unfinished.send(sender, receiver, chunks, size, (*after, *before), rank)
            self._grouped(numbered, receiver, sender=False, after=(crossing,), rank=rank)
            crossings.append(crossing)
        return tuple(crossings)

    def _grouped(
        self,
        numbered: Sequence[tuple[_Load, tuple[int, ...]]],
        end: int,
        *,
        sender: bool,
        after: tuple[int, ...],
        rank: float,
    ) -> list[int]:
        """Messages inside a node to the sender, or from the receiver, one for each other rank."""
        by_rank = grouped((each[0].source if sender else each[0].target, each) for each in numbered)
        found = []
        for other, group in by_rank.items():
            if other != end:
                ends = (other, end) if sender else (end, other)
                chunks = tuple(chunk for _, each in group for chunk in each)
                size = sum(load.size_bytes for load, _ in group)
                found.append(self._unfinished.send(*ends, chunks, size, after, self._within(rank, *ends)))
        return found

    def _within(self, rank: float, src: int, dst: int) -> float:
        """Place of a message inside a node: ranks begin with different ones, so that they do not meet."""
        ranks = self._topology.num_ranks
        return rank + (dst - src) % ranks / ranks if self._is_ordered else rank


def slots_of(
    matrix: list[list[float]], longest: float, *, is_matched: bool
) -> defaultdict[tuple[int, int], list[tuple[float, float]]]:
    """For every pair of nodes when, and how much at a time, they meet, as (place in the order, amount).

    Parameters
    ----------
    matrix
        What every node has for every other.
    longest
        Largest amount at a time, as a part of what the busiest node has for all others, or all others for it.
    is_matched
        Whether they meet in Birkhoff's matchings, or in rotation.
    """
    found: defaultdict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    nodes = len(matrix)
    most = longest * max([sum(row) for row in matrix] + [sum(column) for column in zip(*matrix, strict=True)])
    if is_matched:
        turns = [(matching.duration, matching.pairs) for matching in birkhoff(matrix)]
        for number, (duration, pairs) in enumerate(turns):
            count = max(1, -int(-duration // most))
            for pair in pairs:
                found[pair] += [(number + i / count, duration / count) for i in range(count)]
        return found
    for a in range(nodes):
        for b in range(nodes):
            if matrix[a][b]:
                count = max(1, -int(-matrix[a][b] // most))
                found[a, b] = [(((b - a) % nodes) + i * nodes, matrix[a][b] / count) for i in range(count)]
    return found


def _take(load: _Load, most_bytes: int) -> tuple[_Load | None, _Load | None]:
    """The first bytes of a load, and the rest."""
    if most_bytes <= 0:
        return None, load
    if most_bytes >= load.size_bytes:
        return load, None
    first, rest = cut_stream(load.parts, [0, most_bytes, load.size_bytes])
    return (
        _Load(load.source, load.target, first, most_bytes),
        _Load(load.source, load.target, rest, load.size_bytes - most_bytes),
    )


def _cut_loads(stream: Sequence[_Load], edges: Sequence[int]) -> Iterator[list[_Load]]:
    """A stream of loads, cut at these bytes of it."""
    waiting = list(reversed(stream))
    for low, high in pairwise(edges):
        room, found = high - low, []
        while room and waiting:
            taken, rest = _take(waiting.pop(), room)
            if rest is not None:
                waiting.append(rest)
            if taken is not None:
                found.append(taken)
                room -= taken.size_bytes
        yield found

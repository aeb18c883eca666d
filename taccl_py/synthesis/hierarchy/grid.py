"""AllReduce over nodes that form a grid: along each of its sides, nodes share out what they sum up, or exchange sums.

A node reaches as many others at the same time as it has lanes, so one message of every lane serves a whole row of nodes. In a
*scatter* every node of a row becomes responsible for a part and is sent the others' sums of it; in an *exchange* everyone is
sent everyone's sums. Scatters come first, and are undone backwards after the exchanges: many messages for little data, or few
for much, and anything between. In rows of more nodes a lane sends several messages, of which the first ones leave while others
are still summed up.

Between two such legs nodes sum up inside, or hand out. What a node is responsible for stays on all its ranks, and others' sums
are added to it there, until the next leg.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, pairwise, product, starmap

from taccl_py.schedule.dispatch import followers
from taccl_py.synthesis.hierarchy.cluster import LaneCluster
from taccl_py.synthesis.hierarchy.meeting import ChunkSpan, ExchangeMessage, NodeExchange, NodeShard, Step, Want, sliced
from taccl_py.synthesis.hierarchy.outline import ACROSS, INSIDE
from taccl_py.synthesis.hierarchy.params import PARAMS
from taccl_py.synthesis.hierarchy.stages import Stage, schedule_stages
from taccl_py.synthesis.templates.messages import TemplateMessage, TemplateMessages, in_order

# What lanes occupy that serve one node less than others.
ASIDE = 2


@dataclass(frozen=True, slots=True)
class Leg:
    """One side of the grid.

    Attributes
    ----------
    nodes
        Nodes of a row.
    lanes
        Lanes that serve the nodes of a row together; others do the same with other parts of the data.
    scatters
        Whether nodes share out what they sum up, or exchange sums.
    """

    nodes: int
    lanes: int
    scatters: bool

    @property
    def turns(self) -> int:
        """Messages of a lane."""
        return 1 + self.turn(self.nodes - 1)

    def turn(self, slot: int) -> int:
        """In which of its messages a lane serves a node of the row."""
        return slot // self.lanes if self.is_even else (slot - 1) // self.lanes

    @property
    def is_even(self) -> bool:
        """True if lanes serve equally many nodes of a row, where the first one serves its own."""
        return self.nodes % self.lanes == 0 and self.lanes > 1

    def resource(self, slot: int) -> int:
        """Kind of resource that the message to a node of the row occupies: the first lane has one less, if it serves its own node."""
        return ASIDE if self.is_even and slot % self.lanes == 0 else ACROSS


@dataclass(frozen=True, slots=True)
class LaneGrid:
    """Legs over a grid of nodes, and exchanges inside them.

    Attributes
    ----------
    legs
        Sides of the grid, scatters first.
    fans
        How many ranks of a node meet in each step inside it.
    dealt
        Whether sums that several lanes need are dealt out to them and handed out, or exchanged by them.
    pieces
        Chunks of every piece that a rank's data is cut into.
    """

    legs: tuple[Leg, ...]
    fans: tuple[int, ...]
    dealt: bool
    pieces: tuple[int, ...]


@dataclass(frozen=True)
class GridTimes:
    """Stages of every piece, and when all is done."""

    stages: tuple[tuple[Stage, ...], ...]
    end_us: float


def grids(cluster: LaneCluster, pieces: tuple[int, ...]) -> Iterator[LaneGrid]:
    """Grids of as many nodes as there are; none if nodes have lanes that several ranks share, or not 2^n of them."""
    width = cluster.width
    if not cluster.is_full or width & (width - 1):
        return
    doubling = (2,) * (width.bit_length() - 1)
    variants = [(doubling, False), (doubling, True), *([((width,), True)] if cluster.at_once > 1 else [])]
    for scatters, left in _scatters(len(cluster.nodes), width, PARAMS.most_grid_scatters):
        for exchanges in _exchanges(left, left, width):
            yield from (LaneGrid((*scatters, *exchanges), fans, dealt, pieces) for fans, dealt in variants)


def _scatters(nodes: int, width: int, most: int) -> Iterator[tuple[tuple[Leg, ...], int]]:
    """At most so many scatters over some nodes, and how many nodes are left to each of them."""
    yield (), nodes
    for row in _divisors(nodes) if most else ():
        for lanes in _lane_counts(row, width):
            for rest, left in _scatters(nodes // row, width, most - 1):
                yield (Leg(row, lanes, True), *rest), left


def _exchanges(nodes: int, most: int, width: int) -> Iterator[tuple[Leg, ...]]:
    """Exchanges over all of some nodes, long rows first."""
    if nodes == 1:
        yield ()
    for row in _divisors(nodes):
        if row <= min(most, width + 1):
            for rest in _exchanges(nodes // row, row, width):
                yield (Leg(row, _fewest_lanes(row), False), *rest)


def _divisors(number: int) -> list[int]:
    return [factor for factor in range(2, number + 1) if number % factor == 0]


def _fewest_lanes(row: int) -> int:
    """Lanes of which each sends one message: a power of two."""
    return 1 << (row - 2).bit_length()


def _lane_counts(row: int, width: int) -> list[int]:
    """Lanes that may serve a row: as many as there are nodes, or all, or half of them."""
    counts = {min(_fewest_lanes(row), width), width, max(1, width // 2)}
    return sorted(lanes for lanes in counts if lanes <= row <= PARAMS.most_grid_turns * lanes + 1)


def grid_times(cluster: LaneCluster, grid: LaneGrid, chunk_bytes: float) -> GridTimes:
    """Times of all stages at node 0, where every rank has its pieces of so many bytes a chunk."""
    stages: list[Stage] = []
    rows, books = [], _at_first_node(cluster, grid)
    most = _most_chunks(cluster, books)
    lasting = {
        piece: [
            tuple(_step_us(cluster, act.resource, step, chunk_bytes, most) for step in act.steps)
            for act in books[piece]
        ]
        for piece in books
    }
    for piece in grid.pieces:
        first = len(stages)
        for act, steps in zip(books[piece], lasting[piece], strict=True):
            stages.append(Stage(steps, act.resource, tuple(first + before for before in act.after)))
        rows.append(tuple(stages[first:]))
    return GridTimes(tuple(rows), schedule_stages(stages))


def _most_chunks(cluster: LaneCluster, books: Mapping[int, Sequence[_GridStage]]) -> int:
    """Chunks that runtimes carry together, where as many neighbours count as one as all steps of a node keep together."""
    steps = (step for acts in books.values() for act in acts for step in act.steps)
    ends = {end for step in steps for transfer in step for span in transfer.spans for end in span}
    return cluster.site.message_chunks * max(1, math.gcd(cluster.site.topology.num_ranks, *ends))


def _step_us(cluster: LaneCluster, resource: int, step: Step, chunk_bytes: float, most: int) -> float:
    """Time for which the rank sends that has most to send, if a message has so many chunks at most."""
    message_us = cluster.node_us if resource == INSIDE else cluster.lane_us
    more_us = message_us(0.0)
    busy_us: dict[int, float] = {}
    for transfer in step:
        size = sum(high - low for low, high in transfer.spans) * chunk_bytes
        one_us = message_us(size) + max(0, len(_messages(transfer.spans, most)) - 1) * more_us
        busy_us[transfer.src] = busy_us.get(transfer.src, 0.0) + one_us
    at_once = cluster.at_once if resource == INSIDE else 1
    return max(busy_us.values(), default=0.0) / at_once


def grid_messages(cluster: LaneCluster, grid: LaneGrid, times: GridTimes) -> TemplateMessages:
    """Messages of a grid at its times; the chunks of a piece follow each other, and those of a part do in it."""
    carriers, num_ranks = cluster.carriers, cluster.site.topology.num_ranks
    messages, most = [], _most_chunks(cluster, _at_first_node(cluster, grid))
    for acts, row in zip(_books(carriers, num_ranks, grid, range(len(carriers))), times.stages, strict=True):
        for act, stage in zip(acts, row, strict=True):
            for step, start, lasts in zip(act.steps, stage.starts_us(), stage.step_us, strict=True):
                messages += [
                    TemplateMessage(transfer.src, transfer.dst, _chunks(message), start, start + lasts, transfer.adds)
                    for transfer in step
                    for message in _messages(transfer.spans, most)
                ]
    return in_order(messages)


def _messages(spans: Sequence[ChunkSpan], most: int) -> list[tuple[ChunkSpan, ...]]:
    """Runs of each message: runtimes carry no more than so many together, and sums are not as fast as they look otherwise."""
    runs = [span for span in spans if span.low < span.high]
    if sum(high - low for low, high in runs) <= most:
        return [tuple(runs)] if runs else []
    parts = [(run, -(-(run.high - run.low) // most)) for run in runs]
    return [(sliced(run, part, number),) for run, number in parts for part in range(number)]


def _chunks(spans: Sequence[ChunkSpan]) -> tuple[int, ...]:
    return tuple(chain.from_iterable(starmap(range, spans)))


_Carriers = tuple[tuple[int, ...], ...]


def _books(
    carriers: _Carriers, num_ranks: int, grid: LaneGrid, nodes: Sequence[int]
) -> Iterator[tuple[_GridStage, ...]]:
    """Stages of each piece at some nodes."""
    ends = [sum(grid.pieces[:number]) * num_ranks for number in range(len(grid.pieces) + 1)]
    for low, high in pairwise(ends):
        book = _Book(carriers, grid, nodes)
        book.write(ChunkSpan(low, high))
        yield tuple(book.acts)


def _at_first_node(cluster: LaneCluster, grid: LaneGrid) -> dict[int, tuple[_GridStage, ...]]:
    """Stages at node 0 of a piece of each length, as if it were the first one."""
    carriers, num_ranks = cluster.carriers, cluster.site.topology.num_ranks
    return {piece: _of_first_piece(carriers, num_ranks, replace(grid, pieces=(piece,))) for piece in {*grid.pieces}}


# The same grids are asked for at every size, and in many cuts.
@lru_cache(maxsize=1024)
def _of_first_piece(carriers: _Carriers, num_ranks: int, grid: LaneGrid) -> tuple[_GridStage, ...]:
    return next(_books(carriers, num_ranks, grid, [0]))


@dataclass(frozen=True, slots=True)
class _GridStage:
    """Steps that are done at the same time, and the stages that they wait for."""

    resource: int
    steps: Sequence[Step]
    after: tuple[int, ...]


Shards = Mapping[int, Sequence[NodeShard]]
Wants = Mapping[int, Sequence[Want]]


@dataclass
class _Book:
    """All that some nodes do to one piece.

    Attributes
    ----------
    carriers, grid, nodes
        Ranks of every node, by lanes, and who does what.
    acts
        The acts so far.
    last, before
        Acts that those wait for which come next; and which what is early waits for.
    """

    carriers: _Carriers
    grid: LaneGrid
    nodes: Sequence[int]
    acts: list[_GridStage] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)

    @property
    def _width(self) -> int:
        return len(self.carriers[0])

    def write(self, span: ChunkSpan) -> None:
        """Do everything."""
        everyone = frozenset(range(self._width))
        spans = dict.fromkeys(self.nodes, span)
        shards: Shards = {node: [NodeShard(span, everyone)] for node in self.nodes}
        stride, outer = 1, None
        for leg in self.grid.legs:
            if leg.scatters:
                spans, shards = self._scatter(leg, stride, spans, shards)
                stride, outer = stride * leg.nodes, leg
        scattered = len(self.acts)
        for leg in self.grid.legs:
            if not leg.scatters:
                shards = self._exchange(leg, stride, spans, shards)
                stride *= leg.nodes
        # Lanes that serve a row with their part need that first.
        groups = self._width // outer.lanes if outer else 1
        needed = {node: self._by_group(span, groups) for node, span in spans.items()}
        self._sum_up(shards, needed, upwards=True)
        ready = self.last
        if groups > 1:
            wants = {node: list(self._from_groups(span, groups)) for node, span in spans.items()}
            self._add(INSIDE, self._meeting.steps(wants, upwards=True), self.last)
        self._go_back(scattered, ready)

    def _add(self, resource: int, steps: Sequence[Step], after: Sequence[int]) -> int:
        self.acts.append(_GridStage(resource, steps, tuple(after)))
        return len(self.acts) - 1

    @property
    def _meeting(self) -> NodeExchange:
        return NodeExchange(self.carriers, self.grid.fans)

    def _by_group(self, span: ChunkSpan, groups: int) -> list[Want]:
        """Parts of some chunks, each wanted by all lanes of a group."""
        lanes = self._width // groups
        return [
            Want(
                NodeShard(sliced(span, group, groups), frozenset()),
                frozenset(range(group * lanes, (group + 1) * lanes)),
            )
            for group in range(groups)
        ]

    def _from_groups(self, span: ChunkSpan, groups: int) -> Iterator[Want]:
        """Data of every group that the lanes of the same place in other groups want."""
        lanes = self._width // groups
        for group, lane in product(range(groups), range(lanes)):
            shard = NodeShard(sliced(span, group, groups), frozenset([group * lanes + lane]))
            yield Want(shard, frozenset(range(lane, self._width, lanes)))

    def _peer(self, leg: Leg, stride: int, node: int, slot: int) -> int:
        """The node of a slot: those of a row whose numbers differ in the same bits, or by as much."""
        own = node // stride % leg.nodes
        other = own ^ slot if leg.nodes & (leg.nodes - 1) == 0 else (own + slot) % leg.nodes
        return node + (other - own) * stride

    def _scatter(
        self, leg: Leg, stride: int, spans: Mapping[int, ChunkSpan], shards: Shards
    ) -> tuple[dict[int, ChunkSpan], dict[int, list[NodeShard]]]:
        """Every node sends the others of its row their parts; what it has then of its own, and where."""
        groups, carriers = self._width // leg.lanes, self.carriers
        wants: list[dict[int, list[Want]]] = [{node: [] for node in self.nodes} for _ in range(leg.turns)]
        crossing: list[dict[int, list[ExchangeMessage]]] = [{ASIDE: [], ACROSS: []} for _ in range(leg.turns)]
        for node in self.nodes:
            for slot, group in product(range(1, leg.nodes), range(groups)):
                peer, turn = self._peer(leg, stride, node, slot), leg.turn(slot)
                lane = group * leg.lanes + slot % leg.lanes
                part = sliced(sliced(spans[node], peer // stride % leg.nodes, leg.nodes), group, groups)
                wants[turn][node] += [Want(shard, frozenset([lane])) for shard in _within(shards[node], part)]
                crossing[turn][leg.resource(slot)].append(
                    ExchangeMessage(carriers[node][lane], carriers[peer][lane], (part,), True)
                )
        ready, sent = self.last, dict[int, list[int]]({ASIDE: [], ACROSS: []})
        for wanted, by_resource in zip(wants, crossing, strict=True):
            summed = self._add(INSIDE, self._meeting.steps(wanted, upwards=False), ready)
            for resource, transfers in by_resource.items():
                sent[resource] += [self._add(resource, [tuple(transfers)], [summed])] if transfers else []
        self.last = [*sent[ASIDE], *sent[ACROSS]]
        self.before = sent[ASIDE] or sent[ACROSS][:-1] or ready
        own = {node: sliced(spans[node], node // stride % leg.nodes, leg.nodes) for node in self.nodes}
        return own, {node: list(self._received(leg, own[node], shards[node])) for node in self.nodes}

    def _received(self, leg: Leg, own: ChunkSpan, shards: Sequence[NodeShard]) -> Iterator[NodeShard]:
        """A node's own part, which lanes hold as before; those that get nothing in the last turn have it early."""
        groups = self._width // leg.lanes
        for group in range(groups):
            last = {
                group * leg.lanes + slot % leg.lanes
                for slot in range(1, leg.nodes)
                if leg.turn(slot) == leg.turns - 1 and leg.resource(slot) == ACROSS
            }
            for shard in _within(shards, sliced(own, group, groups)):
                yield NodeShard(shard.span, shard.held, shard.held - last)

    def _exchange(
        self, leg: Leg, stride: int, spans: Mapping[int, ChunkSpan], shards: Shards
    ) -> dict[int, list[NodeShard]]:
        """Every node sends the others of its row its sums; what it has then, and where."""
        groups, carriers = self._width // leg.lanes, self.carriers
        needed = {node: self._by_group(span, groups) for node, span in spans.items()}
        self._sum_up(shards, needed, upwards=False)
        sent, held = [], {}
        for node in self.nodes:
            for group, want in enumerate(needed[node]):
                for slot in range(1, leg.nodes):
                    lane = group * leg.lanes + slot % leg.lanes
                    peer = self._peer(leg, stride, node, slot)
                    # The first lane keeps the node's own sum; the others', which are the same, make room for what comes.
                    adds = slot % leg.lanes == 0
                    sent.append(ExchangeMessage(carriers[node][lane], carriers[peer][lane], (want.shard.span,), adds))
            held[node] = [
                NodeShard(want.shard.span, frozenset(sorted(want.lanes)[slot % leg.lanes] for slot in range(leg.nodes)))
                for want in needed[node]
            ]
        self.last = [self._add(ACROSS, [tuple(sent)], self.last)]
        self.before = self.last
        return held

    def _sum_up(self, shards: Shards, needed: Wants, *, upwards: bool) -> None:
        """Bring the sums of what nodes hold to the lanes that need them."""
        if not self.grid.dealt and any(shard.early for listed in shards.values() for shard in listed):
            steps, shards = self._meeting.early_steps(shards)
            self.last = [*self.last, self._add(INSIDE, steps, self.before)]
        wants = {
            node: [Want(shard, want.lanes) for want in listed for shard in _within(shards[node], want.shard.span)]
            for node, listed in needed.items()
        }
        if self.grid.dealt:
            dealt, handed = _dealt(wants)
            steps = [*self._meeting.steps(dealt, upwards=False), *self._meeting.steps(handed, upwards=True)]
        else:
            steps = self._meeting.steps(wants, upwards=upwards)
        self.last = [self._add(INSIDE, steps, self.last)]

    def _go_back(self, number: int, ready: Sequence[int]) -> None:
        """The first so many acts backwards: what was added up is handed out."""
        users = followers([act.after for act in self.acts[:number]])
        place: dict[int, int] = {}
        for index in reversed(range(number)):
            act = self.acts[index]
            steps = [
                tuple(ExchangeMessage(transfer.dst, transfer.src, transfer.spans, False) for transfer in step)
                for step in reversed(act.steps)
            ]
            place[index] = self._add(act.resource, steps, [place[user] for user in users[index]] or ready)


def _within(shards: Sequence[NodeShard], span: ChunkSpan) -> Iterator[NodeShard]:
    """Parts of shards that lie in some chunks."""
    for shard in shards:
        part = shard.within(span)
        if part is not None:
            yield part


def _dealt(wants: Wants) -> tuple[dict[int, list[Want]], dict[int, list[Want]]]:
    """Every lane that wants a shard gets a part of it summed up, and then hands it to the others that want it."""
    dealt: dict[int, list[Want]] = {node: [] for node in wants}
    handed: dict[int, list[Want]] = {node: [] for node in wants}
    for node, listed in wants.items():
        for want in listed:
            if len(want.shard.held) == 1:
                handed[node].append(want)
                continue
            for number, lane in enumerate(sorted(want.lanes)):
                span = sliced(want.shard.span, number, len(want.lanes))
                dealt[node].append(Want(NodeShard(span, want.shard.held), frozenset([lane])))
                handed[node].append(Want(NodeShard(span, frozenset([lane])), want.lanes))
    return dealt, handed

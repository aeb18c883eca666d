"""A plan as blocks of chunks with their routes, and what routes become where other ranks of a node stand in for damaged ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property

from taccl_py.collective import Kind
from taccl_py.grouping import by_number, grouped
from taccl_py.schedule.ir import Schedule
from taccl_py.synthesis.damage.healing import costs_of, link_images, same_lane
from taccl_py.synthesis.damage.params import PARAMS
from taccl_py.topology.model import Topology

# Ranks that change their parts: both ways round.
Exchange = Mapping[int, int]


class ExchangePartners(Enum):
    """Who stands in for damaged ranks: nobody, others of their nodes, or in every node who has the place of such another one."""

    NONE = auto()
    IN_ITS_NODE = auto()
    IN_ALL_NODES = auto()


@dataclass(frozen=True, slots=True)
class ChunkBlock:
    """Chunks that follow each other and go the same way.

    Attributes
    ----------
    chunks
        Their numbers.
    group
        Number of the data of which they are a part, and among whose blocks data can be moved.
    messages
        The messages that carry them, by number.
    """

    chunks: range
    group: int
    messages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JoinedMessage:
    """A message of a block on the damaged machine: what of the plan it is a part of, by number, its link and its planned times."""

    number: int
    link: int
    start_us: float
    end_us: float
    reduce: bool


@dataclass(frozen=True)
class Damage:
    """A plan of the whole machine on a damaged one.

    Attributes
    ----------
    plan
        Schedule on the whole machine.
    topology
        The damaged machine.
    spares_slow
        True if links that are slow now are not used, as if they were gone.
    """

    plan: Schedule
    topology: Topology
    spares_slow: bool = False

    @cached_property
    def blocks(self) -> tuple[ChunkBlock, ...]:
        """All chunks as blocks."""
        every, messages = self.plan.collective.num_chunks, self.plan.messages
        carried = by_number(every, ((chunk, i) for i, message in enumerate(messages) for chunk in message.chunks))
        size = every if self.plan.collective.kind is Kind.ALLREDUCE else self.plan.collective.chunks_per_rank
        found: list[ChunkBlock] = []
        first = 0
        for chunk in range(1, every + 1):
            if chunk == every or chunk % size == 0 or carried[chunk] != carried[first]:
                found.append(ChunkBlock(range(first, chunk), first // size, tuple(carried[first])))
                first = chunk
        return tuple(found)

    @cached_property
    def images(self) -> tuple[int | None, ...]:
        """For every link of the whole machine what is left of it."""
        left = link_images(self.plan.topology, self.topology)
        if not self.spares_slow:
            return left
        return tuple(image if self._is_as_before(link, image) else None for link, image in enumerate(left))

    @cached_property
    def changed(self) -> frozenset[int]:
        """Links of the whole machine that are gone, or take longer now."""
        return frozenset(link for link, image in enumerate(self.images) if not self._is_as_before(link, image))

    def _is_as_before(self, link: int, image: int | None) -> bool:
        return image is not None and costs_of(self.plan.topology, link) == costs_of(self.topology, image)

    @cached_property
    def damaged_ranks(self) -> tuple[int, ...]:
        """Ranks that have all changed links between them, those with most of them first; none where they are too many."""
        left = {(self.plan.topology.links[link].src, self.plan.topology.links[link].dst) for link in self.changed}
        found: list[int] = []
        while left:
            if len(found) == PARAMS.most_ranks_avoided:
                return ()
            uses = Counter(rank for pair in left for rank in pair)
            worst = min(uses, key=lambda rank: (-uses[rank], rank))
            found.append(worst)
            left = {pair for pair in left if worst not in pair}
        return tuple(found)

    def rate(self, block: ChunkBlock) -> float:
        """Part of the bandwidth of a block's links that is left, where that is least; 0 where one is gone."""
        whole, left = self.plan.topology, self.topology
        found = 1.0
        for link in self._crossed(block):
            image = self.images[link]
            if image is None:
                return 0.0
            before, now = whole.us_per_mb(link), left.us_per_mb(image)
            found = min(found, before / now if now else 1.0)
        return found

    def met_ranks(self, block: ChunkBlock) -> set[int]:
        """Ranks at both ends of the changed links that a block crosses."""
        links = self.plan.topology.links
        return {rank for link in self._crossed(block) for rank in (links[link].src, links[link].dst)}

    def _crossed(self, block: ChunkBlock) -> set[int]:
        """Changed links that a block crosses."""
        return {self.plan.messages[number].link for number in block.messages} & self.changed

    def exchanges(self, block: ChunkBlock, partners: ExchangePartners) -> Iterator[Exchange]:
        """Ways to let others stand in for the damaged ranks that a block meets; none where it meets none."""
        if partners is ExchangePartners.NONE:
            return
        met = self.met_ranks(block)
        avoided = [rank for rank in self.damaged_ranks if rank in met]
        topology = self.topology
        if partners is ExchangePartners.IN_ALL_NODES:
            yield from self._lane_exchanges(avoided)
            return
        sizes = [len(topology.node_ranks[topology.node_of[rank]]) for rank in avoided]
        for step in range(1, max(sizes, default=1)):
            exchange: dict[int, int] = {}
            for rank, size in zip(avoided, sizes, strict=True):
                other = topology.node_ranks[topology.node_of[rank]][(topology.local_rank[rank] + step) % size]
                if rank not in exchange and other not in exchange and other != rank:
                    exchange.update({rank: other, other: rank})
            if exchange:
                yield exchange

    def _lane_exchanges(self, avoided: Sequence[int]) -> Iterator[Exchange]:
        """Ways to let other lanes carry what avoided ranks' lanes would: in every node the ranks at two places, which all nodes have, change parts."""
        topology = self.topology
        smallest = min(len(ranks) for ranks in topology.node_ranks)
        places = sorted({place for place in map(topology.local_rank.__getitem__, avoided) if place < smallest})
        for step in range(1, smallest if places else 1):
            pairs: dict[int, int] = {}
            for place in places:
                other = (place + step) % smallest
                if place not in pairs and other not in pairs:
                    pairs.update({place: other, other: place})
            yield {ranks[one]: ranks[other] for ranks in topology.node_ranks for one, other in pairs.items()}

    def route(self, block: ChunkBlock, exchange: Exchange) -> list[tuple[int, int]] | None:
        """Messages of a block and their links on the damaged machine; None if there is no link.

        What a rank would get that has it from the beginning is left out, and so is what one would send that only wants it.
        """
        source, target = ends_of(self.plan, block)
        if exchange and self.by_lanes:
            return self._lane_route(block, exchange)
        found = []
        for number in block.messages:
            link = self.plan.messages[number].link
            image: int | None = self.images[link]
            ends = self.plan.topology.links[link]
            src, dst = exchange.get(ends.src, ends.src), exchange.get(ends.dst, ends.dst)
            if (src, dst) != (ends.src, ends.dst):
                if dst == source and source in exchange:
                    continue
                image = same_lane(self.plan.topology, link, self.topology, src, dst)
            if image is None:
                return None
            found.append((number, image))
        if target is None or not exchange:
            return found
        known = [place for place, (_, link) in enumerate(found) if self.topology.links[link].dst == target]
        return found[: known[0] + 1] if known else (found or None)

    @cached_property
    def by_lanes(self) -> bool:
        """True if lanes stand in for lanes, as all ranks of a node have its data sooner or later, and nothing inside a node is damaged."""
        links = self.plan.topology.links
        across = not any(self.topology.is_inside(links[link]) for link in self.changed)
        return across and self.plan.collective.kind is Kind.ALLGATHER

    def _lane_route(self, block: ChunkBlock, exchange: Exchange) -> list[tuple[int, int]] | None:
        """Messages inside the block's first node as they are, from there on those of other lanes; None if there is no link, or no data.

        What brings a rank the block comes before what it sends on. A plan that brings some rank of the first node the block from another node has
        no such route: where that becomes another rank, this one has the block already.
        """
        source, _ = ends_of(self.plan, block)
        node_of = self.topology.node_of
        home = -1 if source is None else node_of[source]
        mapped = []
        for number in block.messages:
            link = self.plan.messages[number].link
            ends = self.plan.topology.links[link]
            image: int | None = self.images[link]
            if not node_of[ends.src] == node_of[ends.dst] == home:
                src, dst = exchange.get(ends.src, ends.src), exchange.get(ends.dst, ends.dst)
                image = same_lane(self.plan.topology, link, self.topology, src, dst)
            if image is None:
                return None
            mapped.append((number, image))
        found, known = list[tuple[int, int]](), {source}
        while mapped:
            following = next((each for each in mapped if self.topology.links[each[1]].src in known), None)
            if following is None or self.topology.links[following[1]].dst in known:
                return None
            mapped.remove(following)
            found.append(following)
            known.add(self.topology.links[following[1]].dst)
        return found

    def joined(self, route: Sequence[tuple[int, int]]) -> list[JoinedMessage]:
        """The route with times, where what a lane carries for another one goes with its own: with the next message of the plan over the link.

        So it neither takes an alpha of its own nor meets at a port what the plan sends there at that time.
        """
        messages = self.plan.messages
        arrival_us: dict[int, float] = {}
        found = []
        for number, link in route:
            ends, message = self.topology.links[link], messages[number]
            ready_us = arrival_us.get(ends.src, message.start_us)
            joins = number
            if self.by_lanes and self.images[message.link] != link:
                joins = next((i for i in self._over.get(link, ()) if self._can_join(number, i, ready_us)), number)
            late_us = max(0.0, ready_us - messages[joins].start_us)
            start_us, end_us = messages[joins].start_us + late_us, messages[joins].end_us + late_us
            arrival_us.setdefault(ends.dst, end_us)
            found.append(JoinedMessage(joins, link, start_us, end_us, message.reduce))
        return found

    def _can_join(self, number: int, other: int, ready_us: float) -> bool:
        """True if what a message carries can go with another one, when it is ready then."""
        messages = self.plan.messages
        return messages[other].start_us >= ready_us and messages[other].reduce == messages[number].reduce

    @cached_property
    def _over(self) -> dict[int, list[int]]:
        """Messages of the plan over each link of the damaged machine, in order of time."""
        images = ((self.images[message.link], number) for number, message in enumerate(self.plan.messages))
        found = grouped((image, number) for image, number in images if image is not None)
        return {link: sorted(numbers, key=lambda i: self.plan.messages[i].start_us) for link, numbers in found.items()}

    def detours(self, block: ChunkBlock, exchange: Exchange) -> tuple[int | None, int | None] | None:
        """Links from a block's source to who stands in for it, and from who stands in for its only target to that; None if there is none."""
        source, target = ends_of(self.plan, block)
        if not exchange or (source is None and target is None) or self.by_lanes:
            return None, None
        links, between = self.topology.links, self.topology.links_between
        route = self.route(block, exchange)
        if not route:
            return None
        found: list[int | None] = []
        arrives = any(links[link].dst == target for _, link in route)
        for rank, forth in ((source, True), (None if arrives else target, False)):
            if rank is None or rank not in exchange:
                found.append(None)
                continue
            pair = (rank, exchange[rank]) if forth else (exchange[rank], rank)
            if pair not in between:
                return None
            found.append(between[pair][0])
        return found[0], found[1]


def ends_of(plan: Schedule, block: ChunkBlock) -> tuple[int | None, int | None]:
    """The rank that has a block at first, and the only one that wants it; None where there are several."""
    collective, chunk = plan.collective, block.chunks[0]
    if collective.reduces:
        return None, None
    wanted: Sequence[int] = collective.wanted[chunk]
    return collective.source[chunk], wanted[0] if len(wanted) == 1 else None

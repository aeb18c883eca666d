"""A plan as blocks of chunks with their routes, and what routes become where other ranks of a node stand in for damaged ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from taccl_py.collective import Kind
from taccl_py.schedule.ir import Schedule
from taccl_py.synthesis.damage.healing import link_images
from taccl_py.synthesis.damage.params import PARAMS
from taccl_py.topology.model import Topology

# Ranks that change their parts: both ways round.
Exchange = Mapping[int, int]


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


@dataclass(frozen=True)
class Damage:
    """A plan of the whole machine on a damaged one.

    Attributes
    ----------
    plan
        Schedule on the whole machine.
    topology
        The damaged machine.
    """

    plan: Schedule
    topology: Topology

    @cached_property
    def blocks(self) -> tuple[ChunkBlock, ...]:
        """All chunks as blocks."""
        carried: list[list[int]] = [[] for _ in range(self.plan.collective.num_chunks)]
        for number, message in enumerate(self.plan.messages):
            for chunk in message.chunks:
                carried[chunk].append(number)
        every = self.plan.collective.num_chunks
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
        return link_images(self.plan.topology, self.topology)

    @cached_property
    def changed(self) -> frozenset[int]:
        """Links of the whole machine that are gone, or take longer now."""
        whole, left = self.plan.topology, self.topology
        return frozenset(
            link
            for link, image in enumerate(self.images)
            if image is None or _costs(whole, link) != _costs(left, image)
        )

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
        for link in {self.plan.messages[number].link for number in block.messages} & self.changed:
            image = self.images[link]
            if image is None:
                return 0.0
            before, now = (
                max(machine.resource_cost[resource][1] for resource in machine.resources_of[index])
                for machine, index in ((whole, link), (left, image))
            )
            found = min(found, before / now if now else 1.0)
        return found

    def exchanges(self, block: ChunkBlock) -> Iterator[Exchange]:
        """Ways to let others stand in for the damaged ranks that a block meets; none where it meets none."""
        links = self.plan.topology.links
        met = {rank for i in block.messages if self.plan.messages[i].link in self.changed
               for rank in (links[self.plan.messages[i].link].src, links[self.plan.messages[i].link].dst)}  # fmt: skip
        avoided = [rank for rank in self.damaged_ranks if rank in met]
        topology = self.topology
        sizes = [len(topology.node_ranks[topology.node_of[rank]]) for rank in avoided]
        for step in range(1, max(sizes, default=1)):
            exchange: dict[int, int] = {}
            for rank, size in zip(avoided, sizes, strict=True):
                other = topology.node_ranks[topology.node_of[rank]][(topology.local_rank[rank] + step) % size]
                if rank not in exchange and other not in exchange and other != rank:
                    exchange.update({rank: other, other: rank})
            if exchange:
                yield exchange

    def route(self, block: ChunkBlock, exchange: Exchange) -> list[tuple[int, int]] | None:
        """Messages of a block and their links on the damaged machine; None if there is no link.

        What a rank would get that has it from the beginning is left out, and so is what one would send that only wants it.
        """
        source, target = ends_of(self.plan, block)
        found = []
        for number in block.messages:
            link = self.plan.messages[number].link
            image: int | None = self.images[link]
            ends = self.plan.topology.links[link]
            src, dst = exchange.get(ends.src, ends.src), exchange.get(ends.dst, ends.dst)
            if (src, dst) != (ends.src, ends.dst):
                if dst == source and source in exchange:
                    continue
                links = self.topology.links_between.get((src, dst), ())
                image = links[self.plan.topology.lane[link] % len(links)] if links else None
            if image is None:
                return None
            found.append((number, image))
        if target is None or not exchange:
            return found
        known = [place for place, (_, link) in enumerate(found) if self.topology.links[link].dst == target]
        return found[: known[0] + 1] if known else (found or None)

    def detours(self, block: ChunkBlock, exchange: Exchange) -> tuple[int | None, int | None] | None:
        """Links from a block's source to who stands in for it, and from who stands in for its only target to that; None if there is none."""
        source, target = ends_of(self.plan, block)
        if not exchange or (source is None and target is None):
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


def _costs(topology: Topology, link: int) -> tuple[object, ...]:
    return (topology.links[link].latency_us, *sorted(topology.resource_cost[r] for r in topology.resources_of[link]))

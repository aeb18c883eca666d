"""Trees for pieces of data: each piece gets paths from one of its holders to all who want it, chosen by how full links and ports are.

A tree grows from the ranks that have the piece by the cheapest path to the next one that lacks it. A path costs what it adds to the sum of the
resources' loads to the power of `Params.power`, which fills them evenly (as in online routing with convex prices), plus a weight times its length in
time, which keeps trees short where alphas count. A sum of which one rank wants the result is such a tree backwards; one that several want is a
tree backwards to some rank, and one forwards from there.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from taccl_py.errors import Infeasible
from taccl_py.grouping import by_number
from taccl_py.synthesis.demands.classes import ChunkClass
from taccl_py.synthesis.demands.params import PARAMS
from taccl_py.topology.model import Topology
from taccl_py.work import count_work


@dataclass(frozen=True, slots=True)
class TreeEdge:
    """A message of a piece: over a link, behind the messages of the piece with these numbers."""

    link: int
    after: tuple[int, ...]
    reduce: bool = False


# Time that the messages of a piece add to resources.
ExtraLoad = dict[int, float]


@dataclass(frozen=True)
class TreePrices:
    """Prices that trees are to keep low.

    Attributes
    ----------
    link
        Price of a message: its link, its bytes, and the time that other messages of its piece add to resources.
    owner
        Price of a rank as the one at which a sum is completed.
    depth
        Price of a place in a tree that is so many microseconds from its root.
    """

    link: Callable[[int, int, ExtraLoad], float]
    owner: Callable[[int], float]
    depth: Callable[[float], float]


class TreeBuilder:
    """Trees of low price for pieces.

    Parameters
    ----------
    topology
        The machine.
    prices
        Prices of messages.
    """

    def __init__(self, topology: Topology, prices: TreePrices) -> None:
        self._topology, self._prices = topology, prices

    def build(self, each: ChunkClass, size_bytes: int) -> tuple[TreeEdge, ...]:
        """Messages of a piece of a class, in an order in which each comes behind those that it waits for.

        Raises
        ------
        Infeasible
            If some rank cannot be reached.
        """
        if not each.is_sum:
            return self._grow(each.terms[0], each.wants, size_bytes, {})
        if len(each.wants) == 1:
            return self._gather(each, each.wants[0], size_bytes)
        return self._all_reduce(each, size_bytes)

    @cached_property
    def leaving(self) -> list[list[tuple[int, int]]]:
        """Of each rank the ranks that its links lead to, and these links."""
        links = self._topology.links
        return by_number(self._topology.num_ranks, ((k.src, (k.dst, index)) for index, k in enumerate(links)))

    @cached_property
    def entering(self) -> list[list[tuple[int, int]]]:
        """Of each rank the ranks that links lead from, and these links."""
        links = self._topology.links
        return by_number(self._topology.num_ranks, ((k.dst, (k.src, index)) for index, k in enumerate(links)))

    def _grow(
        self, sources: Sequence[int], wants: Sequence[int], size_bytes: int, extra: ExtraLoad
    ) -> tuple[TreeEdge, ...]:
        """A tree forwards."""
        # For every rank with the piece, the message that brought it, and when the path of prices began there.
        brought: dict[int, int | None] = dict.fromkeys(sources)
        depth_us: dict[int, float] = dict.fromkeys(sources, 0.0)
        left = set(wants)
        edges: list[TreeEdge] = []
        while left:
            path = self._cheapest(depth_us, left, self.leaving, size_bytes, extra)
            for link in path:
                one = self._topology.links[link]
                before = brought[one.src]
                edges.append(TreeEdge(link, () if before is None else (before,)))
                brought[one.dst] = len(edges) - 1
                depth_us[one.dst] = depth_us[one.src] + self._topology.message_us(link, size_bytes)
                left.discard(one.dst)
                self._add(extra, link, size_bytes)
        return tuple(edges)

    def _gather(self, each: ChunkClass, owner: int, size_bytes: int) -> tuple[TreeEdge, ...]:
        """A tree backwards: terms are added on the path to one rank."""
        depth_us = {owner: 0.0}
        unmet = {number: frozenset(holders) for number, holders in enumerate(each.terms) if owner not in holders}
        chosen = {owner}
        # Edges towards the owner, the nearest first.
        links: list[int] = []
        extra: ExtraLoad = {}
        while unmet:
            left = frozenset().union(*unmet.values())
            path = self._cheapest(depth_us, left, self.entering, size_bytes, extra)
            for link in path:
                one = self._topology.links[link]
                links.append(link)
                depth_us[one.src] = depth_us[one.dst] + self._topology.message_us(link, size_bytes)
                self._add(extra, link, size_bytes)
            last = self._topology.links[path[-1]].src
            unmet.pop(next(number for number, holders in unmet.items() if last in holders))
            chosen.add(last)
        # A rank whose own term is taken from elsewhere only passes on: what comes first takes the place of its own.
        passing = {rank for holders in each.terms for rank in holders} - chosen
        numbers: dict[int, list[int]] = {}
        edges: list[TreeEdge] = []
        for link in reversed(links):
            one = self._topology.links[link]
            before = numbers.setdefault(one.dst, [])
            first = tuple(before[:1]) if one.dst in passing else ()
            edges.append(
                TreeEdge(link, (*numbers.get(one.src, ()), *first), reduce=one.dst not in passing or bool(before))
            )
            before.append(len(edges) - 1)
        return tuple(edges)

    def owners_of(self, each: ChunkClass) -> list[int]:
        """Ranks at which a sum that several want may be completed, the likeliest first, a few."""
        holders = dict.fromkeys(rank for term in each.terms for rank in term)
        prices = {rank: self._prices.owner(rank) for rank in dict.fromkeys([*each.wants, *holders])}
        return sorted(prices, key=lambda rank: (rank not in holders, prices[rank], rank))[: PARAMS.most_owners]

    def _all_reduce(self, each: ChunkClass, size_bytes: int) -> tuple[TreeEdge, ...]:
        """A tree backwards to some rank and one forwards from there, the cheapest of a few."""
        best: tuple[float, tuple[TreeEdge, ...]] | None = None
        for owner in self.owners_of(each):
            try:
                edges = self.through(each, owner, size_bytes)
            except Infeasible:
                continue
            cost = self._cost(edges, size_bytes)
            if best is None or cost < best[0]:
                best = (cost, edges)
        if best is None:
            raise _unreachable(self._topology, each.terms[0][0], each.wants[0])
        return best[1]

    def through(self, each: ChunkClass, owner: int, size_bytes: int) -> tuple[TreeEdge, ...]:
        """Trees of a sum to one rank and from there.

        Raises
        ------
        Infeasible
            If there are none.
        """
        first = self._gather(each, owner, size_bytes)
        complete = self.complete(each, owner, first)
        wants = [rank for rank in each.wants if rank not in complete]
        second = self._grow(tuple(complete), wants, size_bytes, self._extra_of(first, size_bytes))
        begun = [complete.get(self._topology.links[edge.link].src, ()) for edge in second]
        shifted = [
            TreeEdge(e.link, tuple(i + len(first) for i in e.after) or done)
            for e, done in zip(second, begun, strict=True)
        ]
        return (*first, *shifted)

    def complete(self, each: ChunkClass, owner: int, edges: Sequence[TreeEdge]) -> dict[int, tuple[int, ...]]:
        """Ranks that hold all of a sum once messages have brought it to its owner, and the last ones of these: the owner, and who only passed it on."""
        contributors = {rank for holders in each.terms for rank in holders}
        found: dict[int, tuple[int, ...]] = {}
        rank = owner
        while True:
            into = tuple(i for i, edge in enumerate(edges) if self._topology.links[edge.link].dst == rank)
            found[rank] = into
            if len(into) != 1 or (rank in contributors and edges[into[0]].reduce):
                return found
            rank = self._topology.links[edges[into[0]].link].src

    def _cost(self, edges: Sequence[TreeEdge], size_bytes: int) -> float:
        """Price of all messages of a piece."""
        extra: ExtraLoad = {}
        cost = 0.0
        for edge in edges:
            cost += self._prices.link(edge.link, size_bytes, extra)
            self._add(extra, edge.link, size_bytes)
        return cost

    def _extra_of(self, edges: Sequence[TreeEdge], size_bytes: int) -> ExtraLoad:
        """Time that some messages add to resources."""
        extra: ExtraLoad = {}
        for edge in edges:
            self._add(extra, edge.link, size_bytes)
        return extra

    def _add(self, extra: ExtraLoad, link: int, size_bytes: int) -> None:
        for resource in self._topology.resources_of[link]:
            extra[resource] = extra.get(resource, 0.0) + self._topology.occupancy_us(resource, size_bytes)

    def _cheapest(
        self,
        depth_us: dict[int, float],
        targets: Collection[int],
        adjacent: list[list[tuple[int, int]]],
        size_bytes: int,
        extra: ExtraLoad,
    ) -> list[int]:
        """Links of the cheapest path from the tree to a target, as it is walked."""
        far = {rank: self._prices.depth(depth) for rank, depth in depth_us.items()}
        queue = [(cost, rank) for rank, cost in far.items()]
        heapq.heapify(queue)
        through: dict[int, int] = {}
        before: dict[int, int] = {}
        done: set[int] = set()
        prices: dict[int, float] = {}
        while queue:
            cost, rank = heapq.heappop(queue)
            if rank in done:
                continue
            done.add(rank)
            if rank in targets:
                path = []
                while rank not in depth_us:
                    path.append(through[rank])
                    rank = before[rank]
                return path[::-1]
            for other, link in adjacent[rank]:
                if other in depth_us or other in done:
                    continue
                price = prices.get(link)
                if price is None:
                    count_work("routed", 1)
                    price = prices[link] = self._prices.link(link, size_bytes, extra)
                if cost + price < far.get(other, math.inf):
                    far[other] = cost + price
                    through[other], before[other] = link, rank
                    heapq.heappush(queue, (cost + price, other))
        raise _unreachable(self._topology, next(iter(depth_us)), min(targets))


class TreeRouter:
    """Trees for one piece after another, on links and ports that fill up.

    Parameters
    ----------
    topology
        The machine.
    whole_us
        Time to which loads are compared, such as a lower bound.
    shortness
        Weight of a path's length in time.
    """

    def __init__(self, topology: Topology, whole_us: float, shortness: float) -> None:
        self._topology = topology
        self._whole_us = max(whole_us, 1e-9)
        self._now_us = self._whole_us
        self._shortness = shortness
        self._loads_us = [0.0] * topology.num_resources
        self._builder = TreeBuilder(topology, TreePrices(self._link_price, self._load_at, self._depth_price))

    def route(self, each: ChunkClass, size_bytes: int, progress: float = 1.0) -> tuple[TreeEdge, ...]:
        """Messages of a piece, which fill links and ports, in an order in which each comes behind those that it waits for.

        Parameters
        ----------
        each, size_bytes
            Class and size of the piece.
        progress
            Part of all data that is routed when this piece is, to which loads are compared.

        Raises
        ------
        Infeasible
            If some rank cannot be reached.
        """
        self._now_us = self._whole_us * progress
        edges = self._builder.build(each, size_bytes)
        self._fill(edges, size_bytes, 1.0)
        return edges

    def unroute(self, edges: Sequence[TreeEdge], size_bytes: int) -> None:
        """Take a piece's messages away again."""
        self._fill(edges, size_bytes, -1.0)

    def _fill(self, edges: Sequence[TreeEdge], size_bytes: int, sign: float) -> None:
        for edge in edges:
            for resource in self._topology.resources_of[edge.link]:
                self._loads_us[resource] += sign * self._topology.occupancy_us(resource, size_bytes)

    def _link_price(self, link: int, size_bytes: int, extra: ExtraLoad) -> float:
        """Growth of the sum of the loads' powers, and the message's length."""
        price = 0.0
        for resource in self._topology.resources_of[link]:
            added = self._topology.occupancy_us(resource, size_bytes) / self._now_us
            before = (self._loads_us[resource] + extra.get(resource, 0.0)) / self._now_us
            price += (before + added) ** PARAMS.power - before**PARAMS.power
        return price + self._depth_price(self._topology.message_us(link, size_bytes))

    def _depth_price(self, depth_us: float) -> float:
        """A length in time, with its weight."""
        return self._shortness * depth_us / self._whole_us

    def _load_at(self, rank: int) -> float:
        """Load of the fullest link or port at a rank."""
        links = (*self._builder.leaving[rank], *self._builder.entering[rank])
        resources = {r for _, link in links for r in self._topology.resources_of[link]}
        return max((self._loads_us[resource] for resource in resources), default=0.0)


def direct_edges(topology: Topology, each: ChunkClass, size_bytes: int) -> tuple[TreeEdge, ...] | None:
    """Messages of a piece straight from a holder to each rank that wants it, a sum by way of one of them; None where a link is missing."""
    owner = each.wants[0]
    found: list[TreeEdge] = []
    if each.is_sum:
        for holders in each.terms:
            if owner not in holders:
                link = _quickest(topology, holders, owner, size_bytes)
                if link is None:
                    return None
                found.append(TreeEdge(link, (), reduce=True))
    done, sources = tuple(range(len(found))), (owner,) if each.is_sum else each.terms[0]
    for want in each.wants[1:] if each.is_sum else each.wants:
        link = _quickest(topology, sources, want, size_bytes)
        if link is None:
            return None
        found.append(TreeEdge(link, done))
    return tuple(found)


def _quickest(topology: Topology, sources: Sequence[int], want: int, size_bytes: int) -> int | None:
    """The quickest link from one of some ranks to a rank; sources take turns where they are equal."""
    links = [link for source in sources for link in topology.links_between.get((source, want), ())]
    turned = links[want % len(links) :] + links[: want % len(links)] if links else []
    return min(turned, key=lambda link: topology.message_us(link, size_bytes), default=None)


def _unreachable(topology: Topology, source: int, rank: int) -> Infeasible:
    what = f"no path of links of {topology.name} joins rank {source} and rank {rank}"
    return Infeasible(what, chunk=0, source=source, rank=rank, restriction="topology")

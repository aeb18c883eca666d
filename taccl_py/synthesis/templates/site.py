"""Machine as templates see it: links of ranks and their costs, orders of ranks, trees, rings."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from taccl_py.grouping import by_number
from taccl_py.runtimes import MAX_COUNT
from taccl_py.synthesis.templates.params import PARAMS
from taccl_py.tolerances import RELATIVE
from taccl_py.topology.model import Topology


def is_small(topology: Topology, link: int, num_bytes: float) -> bool:
    """True if the bytes of a message take no longer than an empty one, so that copies may keep it whole."""
    few = topology.num_ranks <= PARAMS.most_small_ranks
    return few and topology.message_us(link, num_bytes) <= PARAMS.small_message_factor * topology.message_us(link, 0.0)


@dataclass(frozen=True, slots=True)
class Edge:
    """A step of a tree: who informs whom, from when to when."""

    src: int
    dst: int
    start_us: float
    end_us: float


# Whether a template is of use that takes at least so many microseconds.
IsUsefulAt = Callable[[float], bool]


@dataclass(frozen=True)
class TemplateSite:
    """A machine at one size.

    Attributes
    ----------
    topology
        The machine.
    chunk_bytes
        Size of the messages by which links are compared.
    message_chunks
        Chunks that one message can carry in the runtime.
    """

    topology: Topology
    chunk_bytes: float
    message_chunks: int = MAX_COUNT

    @cached_property
    def cost_us(self) -> dict[tuple[int, int], float]:
        """Time of a message between every two ranks that are linked."""
        topology = self.topology
        return {
            pair: min(topology.message_us(link, self.chunk_bytes) for link in links)
            for pair, links in topology.links_between.items()
        }

    @cached_property
    def least_message_us(self) -> float:
        """Least time in which a message can follow another on a link."""
        topology = self.topology
        return min(
            (
                max(topology.occupancy_us(resource, 0.0) for resource in resources)
                for resources in topology.resources_of
            ),
            default=0.0,
        )

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """Ranks that each rank has a link to, the cheapest first."""
        found = by_number(self.topology.num_ranks, self.cost_us)
        return tuple(tuple(sorted(dsts, key=lambda d: (self.cost_us[src, d], d))) for src, dsts in enumerate(found))

    def linked(self, src: int, dst: int) -> bool:
        """True if there is a link."""
        return (src, dst) in self.topology.links_between

    def all_small(self, num_bytes: float) -> bool:
        """True if so many bytes are a small message on every link."""
        return all(is_small(self.topology, link, num_bytes) for link in range(len(self.topology.links)))

    @cached_property
    def linked_inside_nodes(self) -> bool:
        """True if every two ranks of a node have a link."""
        return all(self.linked(a, b) for ranks in self.topology.node_ranks for a in ranks for b in ranks if a != b)

    @cached_property
    def all_linked(self) -> bool:
        """True if every two ranks have a link."""
        return len(self.topology.links_between) == self.topology.num_ranks * (self.topology.num_ranks - 1)

    @cached_property
    def uniform(self) -> bool:
        """True if every two ranks have one link, all at one cost, and share no port with others: any order of ranks is as good."""
        own = all(min(map(len, ends)) == 1 for ends in self._ends_of_ports.values())
        return (
            own
            and self.all_linked
            and len(self.topology.links) == len(self.cost_us)
            and len(set(self.cost_us.values())) == 1
        )

    @cached_property
    def one_ported(self) -> bool:
        """True if every rank has a port for all that it sends and one for all that it receives."""
        ends, others = self._ends_of_ports.values(), self.topology.num_ranks - 1
        out = {rank for senders, receivers in ends for rank in senders if (len(senders), len(receivers)) == (1, others)}
        into = {
            rank for senders, receivers in ends for rank in receivers if (len(senders), len(receivers)) == (others, 1)
        }
        return len(out) == len(into) == self.topology.num_ranks

    @cached_property
    def _ends_of_ports(self) -> dict[int, tuple[set[int], set[int]]]:
        """For every port, the ranks that send through it, and those that receive."""
        found: dict[int, tuple[set[int], set[int]]] = {}
        for link in self.topology.links:
            for port in link.ports:
                senders, receivers = found.setdefault(port, (set(), set()))
                senders.add(link.src)
                receivers.add(link.dst)
        return found

    def both_linked(self, one: int, other: int) -> bool:
        """True if there are links in both directions."""
        return self.linked(one, other) and self.linked(other, one)

    @cached_property
    def inside(self) -> TemplateSite:
        """The same machine without the links between nodes."""
        links = tuple(link for link in self.topology.links if self.topology.is_inside(link))
        return replace(self, topology=replace(self.topology, links=links))

    def tree(
        self, roots: Sequence[int], ranks: Sequence[int], num_bytes: float, *, one_entry: bool = False
    ) -> tuple[Edge, ...] | None:
        """Trees by which a message reaches the ranks from those that have it: always the rank is next that can have it first.

        Links and ports serve one message at a time. With ``one_entry`` a node is entered once, which leaves time for more nodes.
        None if some rank cannot be reached.
        """
        topology = self.topology
        free_us = [0.0] * topology.num_resources
        node_of = topology.node_of
        entered = {node_of[root] for root in roots}
        wanted = set(ranks) - set(roots)
        waiting: list[tuple[float, int, int, int]] = []
        holds_us = dict.fromkeys(roots, 0.0)

        def offer(src: int) -> None:
            for dst in self.neighbours[src]:
                if dst in wanted:
                    for link in topology.links_between[src, dst]:
                        heapq.heappush(waiting, (arrival(link), src, dst, link))

        def begin(link: int) -> float:
            return max(holds_us[topology.links[link].src], *(free_us[r] for r in topology.resources_of[link]))

        def arrival(link: int) -> float:
            return begin(link) + topology.message_us(link, num_bytes)

        for root in roots:
            offer(root)
        edges: list[Edge] = []
        while wanted and waiting:
            promised_us, src, dst, link = heapq.heappop(waiting)
            if dst not in wanted or (one_entry and node_of[src] != node_of[dst] and node_of[dst] in entered):
                continue
            if (end_us := arrival(link)) > promised_us:
                heapq.heappush(waiting, (end_us, src, dst, link))
                continue
            start_us = begin(link)
            for resource in topology.resources_of[link]:
                free_us[resource] = start_us + topology.occupancy_us(resource, num_bytes)
            edges.append(Edge(src, dst, start_us, end_us))
            wanted.discard(dst)
            entered.add(node_of[dst])
            holds_us[dst] = end_us
            offer(dst)
        return None if wanted else tuple(edges)

    def path_parents(self, root: int) -> list[int]:
        """The rank before each rank on a quickest path from the root; the root and what cannot be reached have -1.

        Among equally quick ones those are taken that spread the paths over more ranks.
        """
        far_us = [math.inf] * self.topology.num_ranks
        far_us[root] = 0.0
        parent = [-1] * self.topology.num_ranks
        children = [0] * self.topology.num_ranks
        queue = [(0.0, root)]
        while queue:
            far, rank = heapq.heappop(queue)
            if far > far_us[rank]:
                continue
            for other in self.neighbours[rank]:
                through = far + self.cost_us[rank, other]
                slack = RELATIVE * through
                fewer = parent[other] >= 0 and children[rank] < children[parent[other]] - 1
                if through < far_us[other] - slack or (abs(through - far_us[other]) <= slack and fewer):
                    if parent[other] >= 0:
                        children[parent[other]] -= 1
                    parent[other] = rank
                    children[rank] += 1
                    if through < far_us[other] - slack:
                        far_us[other] = through
                        heapq.heappush(queue, (through, other))
        return parent

    def cube(self, ranks: Sequence[int]) -> tuple[int, ...] | None:
        """Order of 2^d ranks in which those whose positions differ in one bit are linked in both directions; None if not found."""
        size = len(ranks)
        if size & (size - 1):
            return None

        def fits(order: list[int], rank: int) -> bool:
            position = len(order)
            bits = (1 << b for b in range(position.bit_length()))
            return all(self.both_linked(order[position ^ bit], rank) for bit in bits if position & bit)

        return _ordered(ranks, fits, lambda _one, _other: 0.0)

    def path(self, ranks: Sequence[int], first: int) -> tuple[int, ...] | None:
        """Order of the ranks, from the first one, in which each is linked to the next; None if not found."""
        rest = (first, *(rank for rank in ranks if rank != first))
        cost_us = self._costs_us([0] * self.topology.num_resources)
        return _ordered(rest, lambda order, rank: self.linked(order[-1], rank), self._preference(rest, cost_us))

    def cycle(self, ranks: Sequence[int], load: Sequence[int]) -> tuple[int, ...] | None:
        """Order of the ranks in which each is linked to the next and the last to the first; None if not found.

        The slowest link on the cycle, beside a load (messages on every link and port), is as quick as it can be made easily.
        """
        cost_us = self._costs_us(load)
        members = set(ranks)
        quickest_us = {(rank, end): math.inf for rank in ranks for end in (0, 1)}
        for pair, us in cost_us.items():
            if members.issuperset(pair):
                for end, rank in enumerate(pair):
                    quickest_us[rank, end] = min(quickest_us[rank, end], us)
        least_us = max(quickest_us.values())
        limits_us = sorted({us for us in cost_us.values() if us >= least_us})
        for limit_us in dict.fromkeys((*limits_us[: PARAMS.slowest_link_limits], *limits_us[-1:])):
            found = self._cycle_within(ranks, cost_us, limit_us)
            if found is not None:
                return found
        return None

    def _cycle_within(
        self, ranks: Sequence[int], cost_us: Mapping[tuple[int, int], float], limit_us: float
    ) -> tuple[int, ...] | None:
        def leads_to(order: list[int], rank: int) -> bool:
            return cost_us.get((order[-1], rank), math.inf) <= limit_us

        return _ordered(ranks, leads_to, self._preference(ranks, cost_us), lambda order: leads_to(order, order[0]))

    def _preference(
        self, ranks: Sequence[int], cost_us: Mapping[tuple[int, int], float]
    ) -> Callable[[int, int], float]:
        """Cost of going on to a rank: that of the link, and a little for ranks that many others lead to."""
        members = set(ranks)
        num_neighbours = {rank: sum(other in members for other in self.neighbours[rank]) for rank in ranks}
        most = 1 + max(num_neighbours.values())
        return lambda src, dst: cost_us[src, dst] * (1 + 0.01 * num_neighbours[dst] / most)

    def _costs_us(self, load: Sequence[int]) -> dict[tuple[int, int], float]:
        """Of linked ranks, for how long the quickest link between them is busy beside a load."""
        link_us = [max(busy_us * (1 + load[resource]) for resource, busy_us in busy) for busy in self._busy_us]
        return {pair: min(link_us[link] for link in links) for pair, links in self.topology.links_between.items()}

    @cached_property
    def _busy_us(self) -> tuple[tuple[tuple[int, float], ...], ...]:
        """For every link its resources, and for how long a chunk occupies each."""
        topology = self.topology
        return tuple(
            tuple((resource, topology.occupancy_us(resource, self.chunk_bytes)) for resource in resources)
            for resources in topology.resources_of
        )


def others_in_turn(rank: int, ranks: Sequence[int]) -> list[int]:
    """The others, from the next one on, so that not everyone begins with the same one."""
    place = ranks.index(rank)
    return [*ranks[place + 1 :], *ranks[:place]]


def _ordered(
    ranks: Sequence[int],
    fits: Callable[[list[int], int], bool],
    preference: Callable[[int, int], float],
    closes: Callable[[list[int]], bool] = lambda _: True,
) -> tuple[int, ...] | None:
    """Order of ranks, the first one given, found by trying and going back; None if there is none or it takes too long.

    Among ranks that are liked equally the one that is given earlier is tried first.
    """
    order = [ranks[0]]
    left = set(ranks[1:])
    place = {rank: position for position, rank in enumerate(ranks)}

    def choices() -> list[int]:
        """Ranks that may come next, the best last."""
        return sorted(
            (r for r in left if fits(order, r)), key=lambda r: (preference(order[-1], r), place[r]), reverse=True
        )

    open_choices = [choices()]
    for _ in range(PARAMS.order_tries):
        if not left and closes(order):
            return tuple(order)
        while open_choices and not open_choices[-1]:
            open_choices.pop()
            if len(order) == 1:
                return None
            left.add(order.pop())
        rank = open_choices[-1].pop()
        order.append(rank)
        left.discard(rank)
        open_choices.append(choices())
    return None

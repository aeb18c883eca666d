"""Stage 2: in which order links and switch ports serve what stage 1 sends over them.

A greedy rule places one hop after the other. Which rule is not the user's choice:

* with switches: the hop with the longest path still to go; the order is that of stage 1's times, the rule breaks ties;
* between nodes without switches: the hop that is ready first, of these the own node's, of these the longest path to go;
* in one node without switches: from the end, the hop with the shortest path to go last;
* sums: the hop behind which most is still to be added, wherever it is.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from taccl_py.baselines.taccl.routing import RoutedChunk
from taccl_py.baselines.taccl.view import TacclView
from taccl_py.schedule.dispatch import followers
from taccl_py.sketch.model import Strategy


class OrderingRule(Enum):
    """Rule by which hops are chosen."""

    LONGEST_WAY = "longest path first"
    SOONEST = "soonest ready first"
    FROM_THE_END = "shortest path last"
    SUMS = "longest path of sums first"


def rule_of(view: TacclView) -> OrderingRule:
    """Return the rule that TACCL applies to a routed collective."""
    if view.sketch.strategy is Strategy.SWITCH:
        return OrderingRule.LONGEST_WAY
    return OrderingRule.SOONEST if view.topology.num_nodes > 1 else OrderingRule.FROM_THE_END


@dataclass(frozen=True)
class OrderedRouting:
    """Hops in one order, which links and ports keep.

    Attributes
    ----------
    view
        Their costs.
    hops
        In order.
    after
        Hops (positions) that bring what a hop sends, [hop].
    sums
        Whether receivers add; then only parts of one rank's shard go together.
    """

    view: TacclView
    hops: tuple[RoutedChunk, ...]
    after: tuple[tuple[int, ...], ...]
    sums: bool = False


def order_hops(
    view: TacclView, hops: Sequence[RoutedChunk], after: Sequence[Sequence[int]], rule: OrderingRule
) -> OrderedRouting:
    """Put hops into the order in which a rule serves them.

    Parameters
    ----------
    view
        Costs of hops.
    hops, after
        Hops, and for each the positions of those that it waits for.
    rule
        How to choose.
    """
    distances = _HopDistances.of(view, hops, after)
    picked = (
        _backwards(view, hops, after, distances)
        if rule is OrderingRule.FROM_THE_END
        else _forwards(view, hops, after, distances, rule)
    )
    if rule is OrderingRule.LONGEST_WAY:
        place = {hop: position for position, hop in enumerate(picked)}
        picked.sort(key=lambda hop: (round(hops[hop].start_us, 9), place[hop]))
    position_of = {hop: position for position, hop in enumerate(picked)}
    return OrderedRouting(
        view,
        tuple(hops[hop] for hop in picked),
        tuple(tuple(sorted(position_of[before] for before in after[hop])) for hop in picked),
        sums=rule is OrderingRule.SUMS,
    )


def order_sums(gather: TacclView, hops: Sequence[RoutedChunk]) -> OrderedRouting:
    """Order the hops of an AllGather run backwards: a rank sends its sum on once it has all parts.

    Parameters
    ----------
    gather
        View of the AllGather.
    hops
        Its hops.

    Raises
    ------
    Infeasible
        If a link that is used has no link back.
    """
    view = gather.backwards()
    turned = tuple(replace(hop, link=gather.reverse_link(hop.chunk, hop.link)) for hop in hops)
    links = view.topology.links
    into: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i, hop in enumerate(turned):
        into[hop.chunk, links[hop.link].dst].append(i)
    after = [into[hop.chunk, links[hop.link].src] for hop in turned]
    return order_hops(view, turned, after, OrderingRule.SUMS)


def find_parents(view: TacclView, hops: Sequence[RoutedChunk]) -> tuple[tuple[int, ...], ...]:
    """For every hop of a routed collective the one that brings its chunk, if it is not there from the start."""
    links = view.topology.links
    brings = {(hop.chunk, links[hop.link].dst): i for i, hop in enumerate(hops)}
    source = view.collective.source
    return tuple(
        () if links[hop.link].src == source[hop.chunk] else (brings[hop.chunk, links[hop.link].src],) for hop in hops
    )


@dataclass(frozen=True)
class _HopDistances:
    """Path of a hop's chunk so far and still to go, this hop included, and all that waits for the hop, in us, [hop]."""

    travelled_us: list[float]
    longest_us: list[float]
    total_us: list[float]

    @staticmethod
    def of(view: TacclView, hops: Sequence[RoutedChunk], after: Sequence[Sequence[int]]) -> _HopDistances:
        cost = [view.cost_us(hop.link) for hop in hops]
        users = followers(after)
        order = _topological(after, users)
        travelled, longest, total = [0.0] * len(hops), [0.0] * len(hops), [0.0] * len(hops)
        for i in order:
            travelled[i] = max((travelled[j] + cost[j] for j in after[i]), default=0.0)
        for i in reversed(order):
            longest[i] = cost[i] + max((longest[user] for user in users[i]), default=0.0)
            total[i] = cost[i] + sum(total[user] for user in users[i])
        return _HopDistances(travelled, longest, total)


def _topological(after: Sequence[Sequence[int]], users: Sequence[Sequence[int]]) -> list[int]:
    missing = [len(before) for before in after]
    order = [i for i, count in enumerate(missing) if not count]
    for i in order:
        for user in users[i]:
            missing[user] -= 1
            if not missing[user]:
                order.append(user)
    return order


def _forwards(
    view: TacclView,
    hops: Sequence[RoutedChunk],
    after: Sequence[Sequence[int]],
    distances: _HopDistances,
    rule: OrderingRule,
) -> list[int]:
    """List scheduling: of the hops whose chunks have come, always the one that the rule likes best."""
    free_us: dict[int, float] = defaultdict(float)
    end_us: dict[int, float] = {}
    waiting = [set(before) for before in after]
    users = followers(after)
    picked: list[int] = []

    def entry(i: int) -> tuple[tuple[float, ...], int]:
        ready_us = _ready_us(view, hops[i], after[i], free_us, end_us)
        return _preference(view, hops[i], distances, i, ready_us, rule), i

    queue = [entry(i) for i, before in enumerate(waiting) if not before]
    heapq.heapify(queue)
    while queue:
        known = heapq.heappop(queue)
        best = known[1]
        now = entry(best)
        if now > known:  # its link or ports have been taken meanwhile; nobody becomes ready sooner
            heapq.heappush(queue, now)
            continue
        picked.append(best)
        ready_us = _ready_us(view, hops[best], after[best], free_us, end_us)
        end_us[best] = ready_us + view.cost_us(hops[best].link)
        for resource in view.resources(hops[best].link):
            free_us[resource] = end_us[best]
        for user in users[best]:
            waiting[user].discard(best)
            if not waiting[user]:
                heapq.heappush(queue, entry(user))
    return picked


def _ready_us(
    view: TacclView, hop: RoutedChunk, before: Sequence[int], free_us: dict[int, float], end_us: dict[int, float]
) -> float:
    return max([0.0, *(end_us[j] for j in before), *(free_us[resource] for resource in view.resources(hop.link))])


def _preference(
    view: TacclView, hop: RoutedChunk, distances: _HopDistances, index: int, ready_us: float, rule: OrderingRule
) -> tuple[float, ...]:
    """Sort key, the smallest first; what comes after times only makes the choice definite."""
    topology = view.topology
    src, dst = topology.links[hop.link].src, topology.links[hop.link].dst
    local = topology.local_rank
    rest = ((src - dst) % topology.num_ranks, local[dst], local[src], topology.node_of[dst], hop.chunk, hop.link)
    longest_us = round(distances.longest_us[index], 9)
    ready_us = round(ready_us, 9)
    if rule is OrderingRule.SOONEST:
        home = topology.node_of[view.collective.source[hop.chunk]]
        return (ready_us, home != topology.node_of[src], -longest_us, *rest)
    if rule is OrderingRule.SUMS:
        return (-round(distances.total_us[index], 9), ready_us, *rest)
    return (-longest_us, ready_us, *rest)


def _backwards(
    view: TacclView, hops: Sequence[RoutedChunk], after: Sequence[Sequence[int]], distances: _HopDistances
) -> list[int]:
    """From the last hop to the first: the shortest path to go is last, of equals what has come the farthest."""
    users = [set(waiting) for waiting in followers(after)]
    open_hops = {i for i, waiting in enumerate(users) if not waiting}
    picked = []
    while open_hops:
        last = min(open_hops, key=lambda i: _last_first(view, hops[i], distances, i))
        open_hops.remove(last)
        picked.append(last)
        for j in after[last]:
            users[j].discard(last)
            if not users[j]:
                open_hops.add(j)
    return picked[::-1]


def _last_first(view: TacclView, hop: RoutedChunk, distances: _HopDistances, index: int) -> tuple[float, ...]:
    link = view.topology.links[hop.link]
    return (
        round(distances.longest_us[index], 9),
        -round(distances.travelled_us[index], 9),
        link.src,
        link.dst,
        hop.chunk,
    )

"""Growth of what is known: how fast it spreads in several classes of ranks at the same time.

The growth of `taccl_py.synthesis.bounds.spread` treats all ranks alike, so whoever knows could be told by the quick links
inside a node and tell by the slow ones between nodes. Here ranks fall into classes, the nodes, and a rank that learns at t
can tell new members of each class from ``t + profile[i]`` on, with the best profile of its class for that class. Besides, the
i-th arrival from one class in another is not before the i-th place at the ports between the two: a node's NIC sends one message
per alpha, however many of the node's ranks know.

Whatever is counted more than once (a port that serves several classes) makes the result smaller, so it stays a bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from taccl_py.arrays import IntArray
from taccl_py.synthesis.bounds.bound import Bound, best_of
from taccl_py.synthesis.bounds.net import Net
from taccl_py.synthesis.bounds.spread import (
    Profile,
    elementwise_best,
    group_profiles,
    last_told,
    links_by_port,
    profiles_by,
)

# Larger machines are left to the coarser bounds, which are nearly as good where bandwidth counts.
_MOST_LINKS, _MOST_NODES = 70_000, 64
# How many ranks are tried as the start.
_MOST_STARTS = 32


@dataclass(frozen=True, slots=True)
class LearningEvent:
    """When one more rank of a class knows."""

    time_us: float
    group: int


@dataclass(frozen=True)
class Classes:
    """Ranks in classes.

    Attributes
    ----------
    sizes
        Ranks of every class.
    tell
        Best profile of a rank of each class for each class, [teller, told].
    places
        Times after the first of a class knows at which its messages can have arrived in another class, [teller, told].
    of_rank
        Profiles of every rank for each class, [rank, told].
    """

    sizes: tuple[int, ...]
    tell: tuple[tuple[Profile, ...], ...]
    places: tuple[tuple[Profile, ...], ...]
    of_rank: tuple[tuple[Profile, ...], ...]

    @staticmethod
    def of(net: Net, class_of: IntArray) -> Classes:
        """Classes of a machine, numbered from 0."""
        number = int(class_of.max()) + 1
        to = class_of[net.dst]
        everything = np.arange(net.num_links)
        ranks = profiles_by(net, net.src * number + to, everything, net.dst)
        crossing = np.flatnonzero(class_of[net.src] != to)
        gates = profiles_by(net, class_of[net.src] * number + to, crossing, net.dst)
        of_rank = tuple(tuple(ranks.get(r * number + c, ()) for c in range(number)) for r in range(net.num_ranks))
        tell = tuple(
            tuple(elementwise_best(of_rank[r][c] for r in np.flatnonzero(class_of == one)) for c in range(number))
            for one in range(number)
        )
        places = tuple(tuple(gates.get(one * number + c, ()) for c in range(number)) for one in range(number))
        return Classes(tuple(np.bincount(class_of, minlength=number).tolist()), tell, places, of_rank)

    def grown(
        self, start: int, own: Sequence[Profile] | None = None, inside: frozenset[int] | None = None
    ) -> list[LearningEvent]:
        """Times at which each class can know, the start's own class at time 0.

        Parameters
        ----------
        start
            Class of the rank that knows first.
        own
            Profiles of that rank; by default the best ones of its class.
        inside
            Classes that count; by default all.
        """
        growth = _KnowledgeGrowth(self, inside if inside is not None else frozenset(range(len(self.sizes))))
        return growth.run(start, own if own is not None else self.tell[start])


class _KnowledgeGrowth:
    """Events of one growth: a rank learns, or a rank that knows can have told one more."""

    def __init__(self, classes: Classes, inside: frozenset[int]) -> None:
        self._classes = classes
        number = len(classes.sizes)
        self._left = [size if group in inside else 0 for group, size in enumerate(classes.sizes)]
        self._since = [float("inf")] * number
        self._used = [[0] * number for _ in range(number)]
        # (time, teller's class or -1 if somebody of the class told learns now, class told, place, since, profile)
        self._events: list[tuple[float, int, int, int, float, Profile]] = []
        self._learned: list[LearningEvent] = []

    def run(self, start: int, own: Sequence[Profile]) -> list[LearningEvent]:
        self._learn(0.0, start, own)
        while self._events and any(self._left):
            now, teller, group, place, since, profile = heapq.heappop(self._events)
            if not self._left[group]:
                continue
            if teller < 0:
                self._learn(now, group, self._classes.tell[group])
                continue
            if place + 1 < len(profile):
                heapq.heappush(
                    self._events, (since + profile[place + 1], teller, group, place + 1, since, profile)
                )  # fmt: skip
            arrival = now if teller == group else self._through_ports(now, teller, group)
            if arrival <= now:
                self._learn(now, group, self._classes.tell[group])
            elif np.isfinite(arrival):
                heapq.heappush(self._events, (arrival, -1, group, 0, 0.0, ()))
        return self._learned

    def _through_ports(self, now: float, teller: int, group: int) -> float:
        """When what could arrive now has passed the ports between two classes."""
        places, used = self._classes.places[teller][group], self._used[teller][group]
        self._used[teller][group] += 1
        return max(now, self._since[teller] + places[used]) if used < len(places) else float("inf")

    def _learn(self, now: float, group: int, profiles: Sequence[Profile]) -> None:
        self._learned.append(LearningEvent(now, group))
        self._left[group] -= 1
        self._since[group] = min(self._since[group], now)
        for told, profile in enumerate(profiles):
            if profile and self._left[told]:
                heapq.heappush(self._events, (now + profile[0], group, told, 0, now, profile))


# Several bounds ask for those of a machine and of the machine turned around.
@lru_cache(maxsize=2)
def node_classes(net: Net) -> Classes:
    """Nodes of a machine as classes."""
    return Classes.of(net, net.node_of)


def growth_bound(net: Net, starts: Sequence[int], inward: bool) -> Bound:
    """Time until all ranks can know something that one of the starts has, node by node.

    Parameters
    ----------
    net
        The machine; for `inward`, with its links turned around.
    starts
        Ranks of which everyone must know something (or, for `inward`, that must know something of everyone).
    inward
        Whether the machine is turned around; only for the text.
    """
    topology = net.topology
    if not fits(net):
        return best_of([])
    what = "fan-in: ports can bring together" if inward else "fan-out: ports can tell"
    node_of = net.node_of
    by_node = node_classes(net)
    apart: dict[int, Classes] = {}
    found = [_last_node(net, by_node, node_of, sorted({int(node_of[rank]) for rank in starts}))]
    for rank in starts[:_MOST_STARTS]:
        node = int(node_of[rank])
        found.append(_time_of_all(by_node, node, rank))
        if topology.num_nodes > 2:
            if node not in apart:
                apart[node] = Classes.of(net, (node_of != node).astype(np.int64))
            found.append(_time_of_all(apart[node], 0, rank))
    how = f"{topology.num_ranks} ranks of {topology.num_nodes} nodes no faster"
    return Bound(max(found), f"{what} {how}")


def fits(net: Net) -> bool:
    """True if a machine has several nodes, and not too many."""
    return 1 < net.topology.num_nodes <= _MOST_NODES and net.num_links <= _MOST_LINKS


def _time_of_all(classes: Classes, group: int, rank: int) -> float:
    learned = classes.grown(group, classes.of_rank[rank])
    return learned[-1].time_us if len(learned) == sum(classes.sizes) else float("inf")


def _last_node(net: Net, by_node: Classes, node_of: IntArray, starts: list[int]) -> float:
    """Nodes are entered one after the other, and then the last one still has to be told as a whole."""
    profiles = group_profiles(net, node_of)
    inside = {node: _told(net, by_node, node_of, node) for node in range(len(by_node.sizes))}
    slowest = 0.0
    for start in starts:
        entered_us = last_told(profiles, [start])
        slowest = max(slowest, entered_us + min(us for node, us in inside.items() if node != start))
    return slowest


def _told(net: Net, by_node: Classes, node_of: IntArray, node: int) -> float:
    """Time in which a node can know, from when the first message into it could have arrived if it were empty.

    Messages into the node are not started sooner, so those that follow through one port come an alpha later each; less what
    an earlier one may take longer than a later one.
    """
    entering = np.flatnonzero((node_of[net.src] != node) & (node_of[net.dst] == node))
    entries: list[float] = []
    for key, links in links_by_port(net, node_of[net.dst], entering).items():
        least_us = net.least_message_us[links]
        ahead = float(least_us.max() - least_us.min())
        apart = float(net.alpha_us[key]) if key >= 0 else 0.0
        entries += [max(0.0, place * apart - ahead) for place in range(len(links))]
    arrivals = tuple(sorted(entries))
    size = by_node.sizes[node]
    one = Classes((1, size), (((), arrivals), ((), by_node.tell[node][node])), (((), arrivals), ((), ())), ())
    learned = one.grown(0)
    return learned[-1].time_us if len(learned) == size + 1 else float("inf")

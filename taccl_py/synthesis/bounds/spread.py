"""Bounds on how fast a piece of data, however small, can become known: distance and fan-out.

What one rank has must get to others (or what they have to one rank: the same, backwards). At best every rank tells others as
fast as the best rank could: links behind one port start one after the other, at least the port's alpha apart; links that share
nothing start together. The number of ranks that know grows by that rule alone; 16 ranks behind single ports of alpha a need
4 a. The same holds for nodes: a node knows something when one of its ranks does.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from itertools import zip_longest

import numpy as np

from taccl_py.arrays import BoolArray, IntArray
from taccl_py.grouping import grouped
from taccl_py.synthesis.bounds.bound import Bound, best_of
from taccl_py.synthesis.bounds.net import Net

# Times after which a rank or node, from when it knows something, has told its first, second, ... other one.
Profile = tuple[float, ...]


def distance_bound(net: Net, starts: list[int], wanted: BoolArray, backwards: bool) -> Bound:
    """Quickest way of the smallest message from one of the starts to the farthest rank that wants something of it.

    Parameters
    ----------
    net
        The machine; for `backwards`, with its links turned around.
    starts
        Ranks that have something.
    wanted
        Whether a rank wants something of a start, [start, rank].
    backwards
        Whether the machine is turned around; only for the text.
    """
    times = np.where(wanted, net.quickest_from(starts), 0.0)
    row, rank = np.unravel_index(int(times.argmax()), times.shape)
    ends = (int(rank), starts[int(row)]) if backwards else (starts[int(row)], int(rank))
    return Bound(float(times[row, rank]), f"latency: quickest path from rank {ends[0]} to rank {ends[1]}")


def fan_out_bound(net: Net, starts: list[int], inward: bool) -> Bound:
    """Time until all ranks, and all nodes, can know something that one of the starts has.

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
    what = "fan-in: ports can bring together" if inward else "fan-out: ports can tell"
    ranks = np.arange(topology.num_ranks)
    found = [Bound(last_told(group_profiles(net, ranks), starts), f"{what} {topology.num_ranks} ranks no faster")]
    if topology.num_nodes > 1:
        nodes = sorted({topology.node_of[rank] for rank in starts})
        found.append(
            Bound(last_told(group_profiles(net, net.node_of), nodes), f"{what} {topology.num_nodes} nodes no faster")
        )
    return best_of(found)


def told_after_first(net: Net, group_of: IntArray, start: int) -> float:
    """Least time until all groups know something of one of them, from when it first arrives in another one.

    Parameters
    ----------
    net
        The machine.
    group_of
        Group of every rank.
    start
        The group that has it, for as long as it likes: by then a message through each of its ports may be about to arrive.
    """
    profiles = group_profiles(net, group_of)
    leaving = np.flatnonzero((group_of[net.src] == start) & (group_of[net.dst] != start))
    arrivals: list[float] = []
    for key, links in links_by_port(net, group_of[net.src], leaving).items():
        apart_us = _apart(net, key, links)
        arrivals += [place * apart_us for place in range(len(np.unique(group_of[net.dst[links]])))]
    best = elementwise_best(profile for group, profile in enumerate(profiles) if group != start)
    return _grown(tuple(sorted(arrivals)), best, len(profiles))


def _apart(net: Net, port: int, links: list[int]) -> float:
    """Least time between arrivals over links that share a port, whatever is sent; 0 if something else may hold messages up longer."""
    if port < 0:
        return 0.0
    used = net.use_resource[np.isin(net.use_link, links)]
    slowest = bool(
        (net.alpha_us[used] <= net.alpha_us[port]).all()
        and (net.beta_us_per_mb[used] <= net.beta_us_per_mb[port]).all()
    )
    return max(0.0, float(net.least_message_us[links].min() - net.latency_us[links].max())) if slowest else 0.0


def elementwise_best(profiles: Iterable[Profile]) -> Profile:
    """Best that several tellers could do, place by place."""
    return tuple(min(times) for times in zip_longest(*profiles, fillvalue=float("inf")))


def group_profiles(net: Net, group_of: IntArray) -> list[Profile]:
    """Profile of every group of ranks."""
    src = group_of[net.src]
    leaving = np.flatnonzero(src != group_of[net.dst])
    found = profiles_by(net, src, leaving, group_of[net.dst])
    return [found.get(group, ()) for group in range(int(group_of.max()) + 1)]


def profiles_by(net: Net, teller: IntArray, links: IntArray, told: IntArray) -> dict[int, Profile]:
    """Profile of every teller that has some of the links.

    Parameters
    ----------
    net
        The machine.
    teller
        Who sends over each link, [link].
    links
        Links that count.
    told
        Who learns by each link, [link]; nobody is told twice.
    """
    tellers: dict[int, dict[int, list[int]]] = {}
    for link, key in zip(links.tolist(), shared_port(net, teller, links).tolist(), strict=True):
        tellers.setdefault(int(teller[link]), {}).setdefault(key, []).append(link)
    return {each: _profile(net, behind, told) for each, behind in tellers.items()}


def shared_port(net: Net, src: IntArray, links: IntArray) -> IntArray:
    """The port of each link that costs most alpha if all links of the same group use it once; ``-1 - link`` without one.

    Between two nodes the senders' ports often cost as much as the receivers'. Then the one with more senders is taken, a receiver's,
    throughout: half of these and half of those would be more ports than there are on either side.
    """
    first_port = net.num_links
    is_leaving = np.zeros(net.num_links, dtype=bool)
    is_leaving[links] = True
    uses = np.flatnonzero((net.use_resource >= first_port) & is_leaving[net.use_link])
    link, resource = net.use_link[uses], net.use_resource[uses]
    _, pair, count = np.unique(src[link] * len(net.alpha_us) + resource, return_inverse=True, return_counts=True)
    cost = net.alpha_us[resource] * count[pair]
    senders = np.bincount(np.unique(pair * net.num_ranks + net.src[link]) // net.num_ranks)[pair]
    chosen = -1 - np.arange(net.num_links)
    order = np.lexsort((-resource, senders, cost))
    chosen[link[order]] = resource[order]  # the last one, which costs most
    return chosen[links]


def links_by_port(net: Net, src: IntArray, links: IntArray) -> dict[int, list[int]]:
    """Some links by the port that they share; see `shared_port`."""
    return grouped(zip(shared_port(net, src, links).tolist(), links.tolist(), strict=True))


def _profile(net: Net, behind: dict[int, list[int]], dst: IntArray) -> Profile:
    times: list[float] = []
    for key, links in behind.items():
        first = float(net.least_message_us[links].min())
        apart = float(net.alpha_us[key]) if key >= 0 else 0.0
        told = len(set(dst[links].tolist()))
        times += [first + place * apart for place in range(told)]
    return tuple(sorted(times))


def last_told(profiles: list[Profile], starts: list[int]) -> float:
    """Least time until everyone knows, for the start that takes longest; the others have the best profile among them."""
    if len(profiles) < 2:
        return 0.0
    table = np.array(list(zip_longest(*profiles, fillvalue=np.inf))).reshape(-1, len(profiles))
    two_best = np.partition(table, 1, axis=1)[:, :2]
    slowest = 0.0
    for start in starts:
        # Nobody is told twice, so nobody else can do as the start does.
        others = np.where(table[:, start] <= two_best[:, 0], two_best[:, 1], two_best[:, 0])
        able = tuple(others[np.isfinite(others)].tolist())
        slowest = max(slowest, _grown(profiles[start], able, len(profiles)))
    return slowest


def _grown(first: Profile, others: Profile, total: int) -> float:
    """Time at which the last of so many knows."""
    coming = [(first[0], 0.0, 0, first)] if first else []
    known, now = 1, 0.0
    while coming and known < total:
        now, since, place, profile = heapq.heappop(coming)
        known += 1
        if place + 1 < len(profile):
            heapq.heappush(coming, (since + profile[place + 1], since, place + 1, profile))
        if others:
            heapq.heappush(coming, (now + others[0], now, 0, others))
    return now if known == total else float("inf")

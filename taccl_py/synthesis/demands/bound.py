"""Lower bounds for demands: what must cross a cut, how far the farthest rank is, and the flow of all that is wanted.

For a set of ranks S, whatever is wanted in S and has a term that nobody in S holds must come in, at least its own size of it, for a sum as for a
copy. Resources that cover the links into S let through at most 1 / beta bytes each; the best of a few covers (the sender's ports, the
receiver's, the links) is taken. S is a rank, a node, or some nodes together, or all others. Before and between all that is at least one alpha.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

import numpy as np

from taccl_py.demand import DataDemand
from taccl_py.errors import Infeasible
from taccl_py.synthesis.bounds.bound import Bound, best_of, raised
from taccl_py.synthesis.demands.classes import ChunkClass, classes_of
from taccl_py.synthesis.demands.packing import pack_demand
from taccl_py.synthesis.demands.params import PARAMS
from taccl_py.topology.model import Topology
from taccl_py.units import BYTES_PER_MB, format_ranks


def bound_of_demand(topology: Topology, demand: DataDemand) -> Bound:
    """Best bound for a demand on a machine, whatever the pieces.

    Raises
    ------
    Infeasible
        If some rank cannot be reached by what it wants.
    """
    classes = classes_of(demand)
    bound = cut_bound(topology, classes)
    packing = pack_demand(topology, classes)
    return bound if packing is None else raised(bound, [packing.bound])


def cut_bound(topology: Topology, classes: Sequence[ChunkClass]) -> Bound:
    """Best bound of distances and of a few cuts.

    Raises
    ------
    Infeasible
        If some rank cannot be reached by what it wants.
    """
    return best_of([_latency(topology, classes), *_cuts(topology, classes)])


def _latency(topology: Topology, classes: Sequence[ChunkClass]) -> Bound:
    """Alphas and latencies on the shortest path from the nearest holder to the farthest rank that wants it."""
    least_us = _distances(topology)
    worst = Bound(0.0, "nothing has to move")
    for each in classes:
        for want in each.wants:
            to_want = least_us[want]
            for holders in each.terms:
                time_us, holder = min((to_want[holder], holder) for holder in holders)
                if math.isinf(time_us):
                    raise Infeasible(
                        f"no path of links of {topology.name} leads from rank {holder} to rank {want}, which wants chunk {each.chunks[0]}",
                        chunk=each.chunks[0], source=holder, rank=want, restriction="topology",
                    )  # fmt: skip
                if time_us > worst.time_us:
                    worst = Bound(time_us, f"latency: rank {want} is that far from rank {holder}")
    return worst


def _distances(topology: Topology) -> list[list[float]]:
    """Alphas and latencies on the shortest path, [to, from] (Floyd and Warshall)."""
    found = np.full((topology.num_ranks, topology.num_ranks), np.inf)
    np.fill_diagonal(found, 0.0)
    for index, link in enumerate(topology.links):
        found[link.dst, link.src] = min(found[link.dst, link.src], topology.message_us(index, 0))
    for middle in range(topology.num_ranks):
        np.minimum(found, found[:, middle, None] + found[None, middle, :], out=found)
    rows: list[list[float]] = found.tolist()
    return rows


def _cuts(topology: Topology, classes: Sequence[ChunkClass]) -> Iterator[Bound]:
    """A bound for every set of ranks that is looked at: each rank, each node, and unions of a few of them."""
    each_rank = [(rank,) for rank in range(topology.num_ranks)]
    yield from _group_cuts(topology, classes, each_rank)
    if topology.num_nodes > 1:
        yield from _group_cuts(topology, classes, topology.node_ranks)
    groups = topology.node_ranks if topology.num_nodes > 1 else each_rank
    yield from _union_cuts(topology, classes, groups)


def _group_cuts(
    topology: Topology, classes: Sequence[ChunkClass], groups: Sequence[tuple[int, ...]]
) -> Iterator[Bound]:
    """Into and out of each of some groups that part the ranks."""
    group_of = _group_of(topology, groups)
    into, out = [0] * len(groups), [0] * len(groups)
    for each in classes:
        wants = {group_of[rank] for rank in each.wants}
        for group in wants:
            into[group] += each.size_bytes * any(group not in {group_of[rank] for rank in term} for term in each.terms)
        alone = {group_of[term[0]] for term in each.terms if len({group_of[rank] for rank in term}) == 1}
        for group in alone:
            out[group] += each.size_bytes * (wants != {group})
    entering: list[list[int]] = [[] for _ in groups]
    leaving: list[list[int]] = [[] for _ in groups]
    for index, link in enumerate(topology.links):
        if group_of[link.src] != group_of[link.dst]:
            entering[group_of[link.dst]].append(index)
            leaving[group_of[link.src]].append(index)
    for ranks, size, links in zip(groups, into, entering, strict=True):
        if size:
            yield _cut_bound(topology, links, size, f"into {_named(ranks)}")
    for ranks, size, links in zip(groups, out, leaving, strict=True):
        if size:
            yield _cut_bound(topology, links, size, f"out of {_named(ranks)}")


def _union_cuts(
    topology: Topology, classes: Sequence[ChunkClass], groups: Sequence[tuple[int, ...]]
) -> Iterator[Bound]:
    """Into every union of two or more groups, but not all, where these are few."""
    if len(groups) > PARAMS.most_groups or len(classes) << len(groups) > PARAMS.most_unions:
        return
    group_of = _group_of(topology, groups)
    sizes: dict[tuple[tuple[int, ...], int], int] = {}
    for each in classes:
        key = (
            tuple(_mask(group_of[rank] for rank in term) for term in each.terms),
            _mask(group_of[rank] for rank in each.wants),
        )
        sizes[key] = sizes.get(key, 0) + each.size_bytes
    for count in range(2, len(groups)):
        for chosen in combinations(range(len(groups)), count):
            union = _mask(chosen)
            size = sum(
                size
                for (terms, wants), size in sizes.items()
                if wants & union and any(not term & union for term in terms)
            )
            if size:
                links = [
                    i
                    for i, k in enumerate(topology.links)
                    if union >> group_of[k.dst] & 1 and not union >> group_of[k.src] & 1
                ]
                ranks = sorted(rank for group in chosen for rank in groups[group])
                yield _cut_bound(topology, links, size, f"into {_named(ranks)}")


def _group_of(topology: Topology, groups: Sequence[tuple[int, ...]]) -> list[int]:
    found = [0] * topology.num_ranks
    for number, ranks in enumerate(groups):
        for rank in ranks:
            found[rank] = number
    return found


def _mask(numbers: Iterable[int]) -> int:
    return sum({1 << number for number in numbers})


def _cut_bound(topology: Topology, links: Sequence[int], size_bytes: int, where: str) -> Bound:
    """Bound for so many bytes that must cross some links."""
    best = 0.0
    for position in (0, 1, -1):
        cover = {topology.resources_of[i][0 if len(topology.resources_of[i]) == 1 else position] for i in links}
        costs = [topology.resource_cost[resource] for resource in sorted(cover)]
        if costs and all(beta > 0 for _, beta in costs):
            rate = sum(1 / beta for _, beta in costs)
            best = max(best, min(alpha for alpha, _ in costs) + size_bytes / BYTES_PER_MB / rate)
    return Bound(best + min((topology.links[i].latency_us for i in links), default=0.0), f"bandwidth {where}")


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {format_ranks(ranks)}"

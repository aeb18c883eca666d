"""AllReduce templates.

Partial sums are exchanged at one place: a rank holds one sum of every chunk, and what it sends is the sum as it stands. So
two ranks can add each other's sums if both send before either arrives, and more than two if all of their links work at the
same time; where a port makes them take turns, doubling is the quicker way anyway.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from taccl_py.synthesis.templates.delegates import Delegates
from taccl_py.synthesis.templates.grids import RankGrid, Walk, grids, walks
from taccl_py.synthesis.templates.messages import (
    TemplateMessages,
    TemplatePlan,
    cut,
    in_order,
    in_pieces,
    in_turn,
    turned,
)
from taccl_py.synthesis.templates.params import PARAMS
from taccl_py.synthesis.templates.patterns import DIRECT, DOUBLING, Groups, exchange, spread
from taccl_py.synthesis.templates.roots import broadcast_plans, center
from taccl_py.synthesis.templates.site import IsUsefulAt, TemplateSite
from taccl_py.synthesis.templates.spreading import Camp, along, camps, handed_out, sparse_plans
from taccl_py.synthesis.templates.torus import torus_plans


def allreduce_plans(
    site: TemplateSite, back: TemplateSite, chunks_per_rank: int | None, is_useful_at: IsUsefulAt
) -> Iterator[TemplatePlan]:
    """Every AllReduce template that the machine's links allow.

    Parameters
    ----------
    site, back
        The machine and the reversed machine.
    chunks_per_rank
        None leaves it to the templates.
    is_useful_at
        Whether a template is of use that takes at least so long.
    """
    chunks = chunks_per_rank or 1
    yield from torus_plans(site, chunks_per_rank)
    yield from _exchanges(site, chunks)
    for walk in walks(site):
        for summed in range(len(walk.axes)):
            messages = _halved(site, walk, summed, chunks)
            if messages is not None:
                after = f", {summed} exchanged" if summed else ""
                yield TemplatePlan(chunks, messages, f"{walk.name}{after}")
    for camp in camps(site):
        gathered = _camp_sums(camp, site, chunks)
        if gathered is not None:
            yield TemplatePlan(chunks, gathered, camp.name)
    delegates = Delegates.of(site)
    delegated = delegates.allreduce(site, _everything(site, chunks)) if delegates is not None else None
    if delegated is not None:
        yield TemplatePlan(chunks, delegated, "delegates")
    yield from _meetings(site, chunks)
    yield from _both_directions(site, back, chunks_per_rank, is_useful_at)
    yield from _to_a_root_and_back(site, back, chunks, is_useful_at)


def _everything(site: TemplateSite, chunks_per_rank: int) -> tuple[int, ...]:
    return tuple(range(site.topology.num_ranks * chunks_per_rank))


def _exchanges(site: TemplateSite, chunks_per_rank: int) -> Iterator[TemplatePlan]:
    """Everything exchanged along all axes: least latency, most data."""
    for grid in grids(site.topology):
        for name in (DOUBLING, DIRECT):
            parts = [_exchanged(site, groups, name, _everything(site, chunks_per_rank)) for groups in grid.axes]
            found = [part for part in parts if part is not None]
            if len(found) == len(parts):
                yield TemplatePlan(chunks_per_rank, in_turn(*found), f"exchange {name} {grid.name}")
        yield from _crosswise(site, grid, chunks_per_rank)


def _crosswise(site: TemplateSite, grid: RankGrid, chunks_per_rank: int) -> Iterator[TemplatePlan]:
    """Two halves exchanged along two axes in either order, so that both axes' links are busy all the time."""
    if len(grid.axes) == 2:
        halves = cut(site.topology.num_ranks * chunks_per_rank, 2)
        both = [
            [_exchanged(site, groups, DIRECT, half) for groups in axes]
            for half, axes in zip(halves, (grid.axes, grid.axes[::-1]), strict=True)
        ]
        found = [in_turn(*(part for part in parts if part is not None)) for parts in both if None not in parts]
        if len(found) == len(halves):
            messages = in_order(message for each in found for message in each)
            yield TemplatePlan(chunks_per_rank, messages, f"exchange crosswise {grid.name}")


def _exchanged(site: TemplateSite, groups: Groups, name: str, chunks: tuple[int, ...]) -> TemplateMessages | None:
    """Exchange by a pattern, else by the other one."""
    other = DOUBLING if name == DIRECT else DIRECT
    messages = exchange(site, groups, name, chunks)
    return messages if messages is not None else exchange(site, groups, other, chunks)


def _halved(site: TemplateSite, walk: Walk, summed: int, chunks_per_rank: int) -> TemplateMessages | None:
    """ReduceScatter along the last axes, exchange along the first `summed` ones, AllGather along the last ones.

    Which part a rank sums up is free, so parts are numbered in the order of the axes and stay neighbours.
    """
    axes = walk.axes[summed:]
    sides = [len(axis.groups[0]) for axis in axes]
    num_parts = prod(sides)
    part_of = dict.fromkeys(range(site.topology.num_ranks), 0)
    stride = 1
    for axis, side in zip(axes, sides, strict=True):
        for group in axis.groups:
            for position, rank in enumerate(group):
                part_of[rank] += position * stride
        stride *= side
    parts = cut(site.topology.num_ranks * chunks_per_rank, num_parts)
    gather = spread(axes, {rank: parts[part] for rank, part in part_of.items()})
    middle: list[TemplateMessages] = []
    for axis in walk.axes[:summed]:
        found: list[TemplateMessages] = []
        for part, chunks in enumerate(parts):
            groups = tuple(group for group in axis.groups if part_of[group[0]] == part)
            messages = _exchanged(site, groups, axis.name, chunks)
            if messages is None:
                return None
            found.append(messages)
        middle.append(in_order(m for messages in found for m in messages))
    return in_turn(turned(gather, reduce=True), *middle, gather)


def _camp_sums(camp: Camp, site: TemplateSite, chunks_per_rank: int) -> TemplateMessages | None:
    """Sum in camps to the leader, exchange among leaders, hand out in camps."""
    chunks = _everything(site, chunks_per_rank)
    outward = [
        handed_out(site, leader, ranks, chunks) for leader, ranks in zip(camp.leaders, camp.members, strict=True)
    ]
    between = [_exchanged(site, axis.groups, axis.name, chunks) for axis in camp.between]
    if any(part is None for part in (*outward, *between)):
        return None
    out = in_order(m for part in outward for m in part or ())
    return in_turn(turned(out, reduce=True), *(part for part in between if part is not None), out)


def _meetings(site: TemplateSite, chunks_per_rank: int) -> Iterator[TemplatePlan]:
    """Reduce to the nearest of a few ranks that are linked, exchange among them, Broadcast from them: for sparse machines."""
    chunks = _everything(site, chunks_per_rank)
    everyone = range(site.topology.num_ranks)
    num_bytes = len(chunks) * site.chunk_bytes / chunks_per_rank
    best: dict[int, tuple[float, TemplateMessages]] = {}
    for hosts in _hosts(site):
        edges = site.tree(hosts, everyone, num_bytes)
        among = exchange(site, (hosts,), DOUBLING, chunks)
        # Without edges all ranks are hosts, and the exchange alone is the whole algorithm.
        if not edges or among is None:
            continue
        end_us = max(edge.end_us for edge in edges)
        if len(hosts) not in best or end_us < best[len(hosts)][0]:
            out = along(edges, chunks)
            best[len(hosts)] = (end_us, in_turn(turned(out, reduce=True), among, out))
    for number, (_, messages) in sorted(best.items()):
        yield TemplatePlan(chunks_per_rank, messages, f"meeting of {number}")


def _hosts(site: TemplateSite) -> Iterator[tuple[int, ...]]:
    """Pairs of linked ranks, and cycles of four."""
    if max(len(others) for others in site.neighbours) > PARAMS.most_meeting_links:
        return
    for one in range(site.topology.num_ranks):
        near = [rank for rank in site.neighbours[one] if rank > one and site.linked(rank, one)]
        for other in near:
            yield one, other
            for third in near:
                if third > other:
                    yield from (
                        (one, other, third, fourth)
                        for fourth in site.neighbours[other]
                        if fourth > one and fourth != third and site.both_linked(fourth, third)
                    )


def _both_directions(
    site: TemplateSite, back: TemplateSite, chunks_per_rank: int | None, is_useful_at: IsUsefulAt
) -> Iterator[TemplatePlan]:
    """ReduceScatter and AllGather on rings and on quickest paths."""
    backward = {plan.name: plan for plan in sparse_plans(back, chunks_per_rank, is_useful_at)}
    for plan in sparse_plans(site, chunks_per_rank, is_useful_at):
        other = backward.get(plan.name)
        if other is not None:
            messages = in_turn(turned(other.messages, reduce=True), plan.messages)
            yield TemplatePlan(plan.chunks_per_rank, messages, plan.name)


def _to_a_root_and_back(
    site: TemplateSite, back: TemplateSite, chunks_per_rank: int, is_useful_at: IsUsefulAt
) -> Iterator[TemplatePlan]:
    """Reduce to a rank in the middle, then Broadcast, both in pieces."""
    num_chunks = site.topology.num_ranks * chunks_per_rank
    root = center(site)
    backward = {plan.name: plan for plan in broadcast_plans(back, root, None, is_useful_at)}
    for plan in broadcast_plans(site, root, None, is_useful_at):
        other = backward.get(plan.name)
        if other is not None and plan.chunks_per_rank <= num_chunks:
            pieces = cut(num_chunks, plan.chunks_per_rank)
            messages = in_turn(turned(in_pieces(other.messages, pieces), reduce=True), in_pieces(plan.messages, pieces))
            yield TemplatePlan(chunks_per_rank, messages, f"{plan.name} to rank {root} and back")

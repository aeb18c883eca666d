"""Strategies: everything that the engine could do on a machine, with estimates, and how to write it out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from taccl_py.collective import Kind
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.hierarchy.alltoall import Shuttle, alltoall_messages, shuttle_us
from taccl_py.synthesis.hierarchy.bundles import Bundles
from taccl_py.synthesis.hierarchy.cluster import LaneCluster
from taccl_py.synthesis.hierarchy.delegates import Delegation, delegate_messages, delegate_times, spreads
from taccl_py.synthesis.hierarchy.exchange import exchange_messages, exchange_stages
from taccl_py.synthesis.hierarchy.gather import allgather_messages, by_piece, by_shard
from taccl_py.synthesis.hierarchy.grid import LaneGrid, grid_messages, grid_times, grids
from taccl_py.synthesis.hierarchy.halving import halving_messages, halvings
from taccl_py.synthesis.hierarchy.outline import PATHS, Outline, OutlineTimeline, insides, rounds_to_hear, timeline
from taccl_py.synthesis.hierarchy.owners import NodeOwners
from taccl_py.synthesis.hierarchy.params import PARAMS
from taccl_py.synthesis.hierarchy.relays import Relays
from taccl_py.synthesis.hierarchy.rooted import (
    CHAIN,
    CIRCULANT,
    TREE,
    BroadcastVariant,
    broadcast_messages,
    course_times,
)
from taccl_py.synthesis.hierarchy.shards import shard_messages
from taccl_py.synthesis.hierarchy.stripes import striped, stripes_pipeline
from taccl_py.synthesis.hierarchy.sums import SumExchange
from taccl_py.synthesis.hierarchy.taper import taper_messages, tapers
from taccl_py.synthesis.hierarchy.triples import Triples, triple_messages
from taccl_py.synthesis.templates.messages import TemplateMessages, TemplatePlan, end_of, in_turn, turned
from taccl_py.synthesis.templates.site import TemplateSite
from taccl_py.synthesis.uneven import usable_counts
from taccl_py.units import MAX_CHUNK_COPIES


@dataclass(frozen=True, slots=True)
class HierarchyStrategy:
    """Something that the engine could do.

    Attributes
    ----------
    estimate_us
        Time that it should take.
    plan
        Writes it out; None if that turns out to be impossible.
    """

    estimate_us: float
    plan: Callable[[], TemplatePlan | None]


def strategies(demand: Demand, limits: Limits) -> Iterator[HierarchyStrategy]:
    """Every strategy to serve a demand; none if the machine's nodes are not linked as needed. The limits are for what solvers find.

    A Reduce has none of its own: it is made from a Broadcast.
    """
    topology = demand.topology
    shard_bytes = demand.chunk_bytes(demand.collective(1))
    forth, back = (
        LaneCluster.of(TemplateSite(machine, shard_bytes, demand.message_chunks))
        for machine in (topology, topology.reversed())
    )
    if forth is None or back is None:
        return
    match demand.kind:
        case Kind.ALLGATHER | Kind.REDUCESCATTER:
            cluster = forth if demand.kind is Kind.ALLGATHER else back
            yield from _gathers(demand, cluster, cluster)
            yield from _tapers(demand, cluster, cluster)
            yield from _triples(demand, cluster, cluster)
            yield from _bundles(demand, cluster, limits)
            yield from _relays(demand, cluster, limits)
        case Kind.ALLREDUCE:
            yield from _gathers(demand, forth, back)
            yield from _tapers(demand, forth, back)
            yield from _triples(demand, forth, back)
            yield from _exchanges(demand, forth, back)
            yield from _grids(demand, forth)
            # These take solvers, and time may be over first.
            yield from _halvings(demand, forth, back, limits)
            yield from _sums(demand, forth, limits)
        case Kind.BROADCAST:
            yield from _broadcasts(demand, forth)
        case Kind.ALLTOALL:
            yield from _shuttles(demand, forth)
            yield from _delegations(demand, forth)
            yield from _relays(demand, forth, limits)


def owner_strategies(demand: Demand) -> list[HierarchyStrategy]:
    """AllReduce over nodes that differ, each of which owns what suits it, in several numbers of pieces, the fastest estimates first."""
    owners = NodeOwners.of(demand.topology) if demand.kind is Kind.ALLREDUCE else None
    if owners is None:
        return []
    lanes, ranks = len(owners.collector[0]), demand.topology.num_ranks
    most = PARAMS.most_owner_messages / (lanes * owners.messages_of_piece)
    possible = [pieces for pieces in PARAMS.owner_pieces if pieces <= most]
    # Pieces that differ in size do not meet at ports as planned, and wait for each other.
    even = [pieces for pieces in possible if any(count * ranks % (lanes * pieces) == 0 for count in _counts(demand))]
    found = [
        HierarchyStrategy(owners.time_us(demand.size_bytes, pieces), partial(owners.plan, demand, pieces))
        for pieces in even or possible
    ]
    return sorted(found, key=lambda strategy: strategy.estimate_us)[: PARAMS.most_owner_plans]


def _pieces(demand: Demand, unit: int = 1, known: Sequence[tuple[int, ...]] = PARAMS.cuts) -> Iterator[tuple[int, ...]]:
    """Cuts with at most as many chunks as can be written down; each piece has so many chunks for each unit of its length."""
    ranks = demand.topology.num_ranks
    for pieces in known:
        count = sum(pieces) * unit
        copies = count * (ranks if demand.kind in (Kind.BROADCAST, Kind.REDUCE) else ranks * ranks)
        if demand.chunks_per_rank not in (None, count) or copies > MAX_CHUNK_COPIES:
            continue
        if copies <= PARAMS.most_copies or count == unit:
            yield pieces
    wanted = demand.chunks_per_rank
    if wanted is not None and wanted % unit == 0 and not any(sum(pieces) * unit == wanted for pieces in known):
        yield (wanted // unit,)


def _outlines(demand: Demand, cluster: LaneCluster) -> Iterator[tuple[Outline, OutlineTimeline]]:
    """Outlines of an AllGather with their times."""
    lanes = cluster.width if cluster.is_even else 1
    for inside, rounds in product(insides(cluster), rounds_to_hear(len(cluster.nodes), lanes)):
        for spread, pieces in product(_spreads(cluster, inside, max(map(len, rounds))), _pieces(demand)):
            outline = Outline(rounds, spread, inside, pieces)
            yield outline, timeline(cluster, outline, cluster.site.chunk_bytes / sum(pieces))


def _spreads(cluster: LaneCluster, inside: str, widest: int) -> list[int]:
    """Numbers of lanes that may share out at most so many nodes of a round."""
    if not cluster.is_even or inside == PATHS:
        return [1]
    return [lanes for lanes in PARAMS.lane_counts if cluster.width % lanes == 0 and lanes < 2 * widest]


def _strategy(
    estimate_us: float, chunks_per_rank: int, write: Callable[[], TemplateMessages | None], *, reduce: bool = False
) -> HierarchyStrategy:
    """Messages that are written out when they are asked for, turned around for sums."""

    def plan() -> TemplatePlan | None:
        messages = write()
        if messages is None:
            return None
        return TemplatePlan(chunks_per_rank, turned(messages, reduce=True) if reduce else messages)

    return HierarchyStrategy(estimate_us, plan)


def _gathered(
    demand: Demand,
    gather_us: float,
    chunks_per_rank: int,
    write: Callable[[LaneCluster], TemplateMessages | None],
    forth: LaneCluster,
    back: LaneCluster,
) -> HierarchyStrategy:
    """The messages of an AllGather, those of one backwards for a ReduceScatter, or both in turn for an AllReduce."""

    def both() -> TemplateMessages | None:
        spread, gathered = write(back), write(forth)
        if spread is None or gathered is None:
            return None
        return in_turn(turned(spread, reduce=True), gathered)

    if demand.kind is Kind.ALLREDUCE:
        return _strategy(2 * gather_us, chunks_per_rank, both)
    return _strategy(gather_us, chunks_per_rank, partial(write, forth), reduce=demand.kind is Kind.REDUCESCATTER)


def _gathers(demand: Demand, forth: LaneCluster, back: LaneCluster) -> Iterator[HierarchyStrategy]:
    """AllGather in rounds, ReduceScatter as that backwards, AllReduce as both."""

    def write(cluster: LaneCluster, outline: Outline, times: OutlineTimeline) -> TemplateMessages | None:
        # Chunks of an AllReduce may lie anywhere: where lanes carry whole nodes, nodes that follow each other together; else what a lane carries.
        nodes = outline.spread == forth.width and len(outline.pieces) == 1
        by_lane = demand.kind is Kind.ALLREDUCE and not nodes
        numbering = by_piece(forth, outline.pieces) if by_lane else by_shard(outline.pieces)
        return allgather_messages(cluster, outline, times, numbering)

    for outline, times in _outlines(demand, forth):
        messages = partial(write, outline=outline, times=times)
        yield _gathered(demand, times.end_us, sum(outline.pieces), messages, forth, back)


def _triples(demand: Demand, forth: LaneCluster, back: LaneCluster) -> Iterator[HierarchyStrategy]:
    """AllGather in three messages of every lane, ReduceScatter as that backwards, AllReduce as both."""
    if demand.chunks_per_rank not in (None, 1):
        return
    shard_bytes = forth.site.chunk_bytes
    free, limited = (Triples.of(forth, shard_bytes, most) for most in (None, demand.message_chunks))
    for triples in (free, limited):
        # Where so little goes together both are the same.
        if triples is not None and (triples is free or free is None or triples.end_us > free.end_us):
            write = partial(triple_messages, triples=triples, shard_bytes=shard_bytes, numbering=by_shard((1,)))
            yield _gathered(demand, triples.end_us, 1, write, forth, back)


def _exchanges(demand: Demand, forth: LaneCluster, back: LaneCluster) -> Iterator[HierarchyStrategy]:
    """AllReduce by exchange of sums between nodes."""
    for inside in insides(forth):
        for pieces in _pieces(demand):
            rows = exchange_stages(forth, inside, pieces, forth.site.chunk_bytes / sum(pieces))
            if rows:
                end_us = max(stage.end_us for row in rows for stage in row)
                write = partial(exchange_messages, forth, back, inside, rows, by_piece(forth, pieces))
                yield _strategy(end_us, sum(pieces), write)


def _halvings(demand: Demand, forth: LaneCluster, back: LaneCluster, limits: Limits) -> Iterator[HierarchyStrategy]:
    """AllReduce by halving and doubling in messages of unequal size."""
    if not forth.site.linked_inside_nodes:
        return
    for halving in halvings(forth, insides(forth), forth.site.chunk_bytes, _counts(demand), limits):
        write = partial(halving_messages, forth, back, halving)
        yield _strategy(halving.end_us, halving.chunks_per_rank, write)


def _counts(demand: Demand) -> tuple[int, ...]:
    """Chunks that a rank's shard may be cut into."""
    wanted = demand.chunks_per_rank
    return usable_counts(demand) if wanted is None else (wanted,)


def _tapers(demand: Demand, forth: LaneCluster, back: LaneCluster) -> Iterator[HierarchyStrategy]:
    """AllGather to one node after the other, ReduceScatter as that backwards, AllReduce as both."""
    shard_bytes = forth.site.chunk_bytes
    for taper in tapers(forth, insides(forth), shard_bytes, _counts(demand)):
        write = partial(taper_messages, taper=taper, shard_bytes=shard_bytes)
        yield _gathered(demand, taper.end_us, taper.chunks_per_rank, write, forth, back)


def _grids(demand: Demand, cluster: LaneCluster) -> Iterator[HierarchyStrategy]:
    """AllReduce over a grid of nodes: all grids in one piece, and the most promising ones in several."""

    def found(grid: LaneGrid) -> HierarchyStrategy:
        times = grid_times(cluster, grid, cluster.site.chunk_bytes / sum(grid.pieces))
        return _strategy(times.end_us, sum(grid.pieces), partial(grid_messages, cluster, grid, times))

    first, *others = [*_pieces(demand)] or [()]
    whole = [(found(grid), grid) for grid in grids(cluster, first)] if first else []
    whole.sort(key=lambda each: each[0].estimate_us)
    yield from (strategy for strategy, _ in whole[: PARAMS.most_grids])
    cut = [found(replace(grid, pieces=pieces)) for _, grid in whole[: PARAMS.most_grids] for pieces in others]
    yield from sorted(cut, key=lambda strategy: strategy.estimate_us)[: PARAMS.most_grids]


def _broadcasts(demand: Demand, cluster: LaneCluster) -> Iterator[HierarchyStrategy]:
    for inside in insides(cluster):
        # Between two nodes all are the same.
        for between in (CHAIN, TREE, CIRCULANT)[: 3 if len(cluster.nodes) > 2 else 1]:
            cuts = PARAMS.cuts if between == TREE else (*PARAMS.cuts, *PARAMS.chain_cuts)
            for pieces in _pieces(demand, cluster.width, cuts):
                course = BroadcastVariant(between, inside, pieces)
                count = sum(pieces) * cluster.width
                times = course_times(cluster, course, demand.size_bytes / count, demand.root)
                write = partial(broadcast_messages, cluster, course, times, demand.root)
                yield _strategy(times.end_us, count, write)
    for stripes in striped(cluster):
        pipeline = stripes_pipeline(cluster, stripes, demand.root, demand.size_bytes).best(demand.chunks_per_rank)
        if pipeline is not None:
            yield _strategy(pipeline.end_us, pipeline.num_chunks, pipeline.messages)
    places = len(cluster.nodes[0])
    if demand.chunks_per_rank in (None, places) and demand.topology.has_even_nodes and striped(cluster):
        for inside in insides(cluster):
            messages = shard_messages(cluster, inside, demand.root, demand.size_bytes)
            yield HierarchyStrategy(end_of(messages), partial(TemplatePlan, places, messages))


def _shuttles(demand: Demand, cluster: LaneCluster) -> Iterator[HierarchyStrategy]:
    if demand.chunks_per_rank not in (None, 1) or not cluster.is_full:
        return
    pair_bytes = cluster.site.chunk_bytes
    others = len(cluster.nodes) - 1
    units = others * cluster.width
    behinds = sorted({0, units // 2, -(-others // 2) * cluster.width, units})
    togethers = sorted({min(t, others) for t in (1, 2, -(-others // 8), -(-others // 4), -(-others // 2), others)})
    bits = (False, True)[: 1 + (cluster.width & (cluster.width - 1) == 0)]
    for behind, together, doubling in product(behinds, togethers, bits):
        # One message bit by bit is one message straight where a node has two lanes.
        if not doubling or cluster.width > 2:
            shuttle = Shuttle(behind, together, doubling)
            write = partial(alltoall_messages, cluster, shuttle, pair_bytes)
            yield _strategy(shuttle_us(cluster, shuttle, pair_bytes), 1, write)


def _delegations(demand: Demand, cluster: LaneCluster) -> Iterator[HierarchyStrategy]:
    """AllToAll by delegates; lanes that serve all nodes themselves shuttle where every rank is one."""
    if demand.chunks_per_rank not in (None, 1) or max(map(len, cluster.nodes)) > PARAMS.most_delegate_ranks:
        return
    pair_bytes = cluster.site.chunk_bytes
    others = len(cluster.nodes) - 1
    least = 2 if cluster.is_full else 1
    for spread in spreads(cluster, least):
        turns = -(-others // spread)
        togethers = sorted({min(t, turns) for t in (1, 2, -(-turns // 4), -(-turns // 2), turns)})
        for together, inside in product(togethers, insides(cluster)):
            delegation = Delegation(spread, together, inside, inside)
            times = delegate_times(cluster, delegation, pair_bytes)
            yield _strategy(times.end_us, 1, partial(delegate_messages, cluster, delegation, times))


def _bundles(demand: Demand, cluster: LaneCluster, limits: Limits) -> Iterator[HierarchyStrategy]:
    """AllGather over sparse nodes, ReduceScatter as that backwards."""
    bundles = Bundles.of(cluster, limits.deadline().over) if demand.chunks_per_rank in (None, 1) else None
    if bundles is not None:
        messages = bundles.messages()
        yield _strategy(bundles.end_us, 1, lambda: messages, reduce=demand.kind is Kind.REDUCESCATTER)


def _is_small(demand: Demand, site: TemplateSite) -> bool:
    """True if everything in one chunk a rank is a small message, and nodes are sparse."""
    whole_bytes = demand.size_bytes if demand.kind is Kind.ALLREDUCE else site.chunk_bytes * site.topology.num_ranks
    return demand.chunks_per_rank in (None, 1) and not site.linked_inside_nodes and site.all_small(whole_bytes)


def _relays(demand: Demand, cluster: LaneCluster, limits: Limits) -> Iterator[HierarchyStrategy]:
    """Small messages between sparse nodes."""
    relays = Relays.of(cluster.site.topology, limits) if _is_small(demand, cluster.site) else None
    if relays is not None:
        messages = relays.alltoall(demand.message_chunks) if demand.kind is Kind.ALLTOALL else relays.allgather()
        if messages is not None:
            yield _strategy(relays.end_us, 1, lambda: messages, reduce=demand.kind is Kind.REDUCESCATTER)


def _sums(demand: Demand, cluster: LaneCluster, limits: Limits) -> Iterator[HierarchyStrategy]:
    """Small sums of sparse nodes."""
    exchange = SumExchange.of(cluster.site.topology, limits) if _is_small(demand, cluster.site) else None
    if exchange is not None:
        yield HierarchyStrategy(exchange.end_us, partial(TemplatePlan, 1, exchange.messages(demand.topology.num_ranks)))

"""Rings, and rings at two levels: inside nodes and across them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from taccl_py.collective import Kind
from taccl_py.synthesis.templates.messages import TemplateMessage, TemplateMessages, TemplatePlan, in_turn, turned
from taccl_py.synthesis.templates.patterns import Axis, Pass, spread
from taccl_py.synthesis.templates.site import TemplateSite
from taccl_py.synthesis.templates.spreading import ring_sets

# Into how many pieces a broadcast on a ring may be cut.
_PIECES = (1, 2, 4, 8, 16, 32, 64)


def ring_plans(site: TemplateSite, kind: Kind, root: int) -> Iterator[TemplatePlan]:
    """Every rank hands on to the next one what it got from the one before; one ring for every channel.

    Reduce is not among them: it is a Broadcast turned around, which is its caller's business.
    """
    for rings in ring_sets(site):
        num_rings = len(rings)
        if kind is Kind.BROADCAST:
            for pieces in _PIECES:
                messages = [_down(ring, root, channel, num_rings, pieces) for channel, ring in enumerate(rings)]
                yield TemplatePlan(num_rings * pieces, _together(messages), f"{num_rings} rings, {pieces} pieces")
            continue
        gather = _together(_around(ring, channel, num_rings) for channel, ring in enumerate(rings))
        if kind is Kind.ALLGATHER:
            yield TemplatePlan(num_rings, gather, f"{num_rings} rings")
        elif kind is Kind.ALLREDUCE:
            collect = _together(_around(ring[::-1], channel, num_rings) for channel, ring in enumerate(rings))
            yield TemplatePlan(num_rings, in_turn(turned(collect, reduce=True), gather), f"{num_rings} rings")


def _around(ring: Sequence[int], channel: int, num_rings: int) -> TemplateMessages:
    """AllGather of every rank's chunk of this channel."""
    size = len(ring)
    return tuple(
        TemplateMessage(ring[i], ring[(i + 1) % size], (ring[(i - step) % size] * num_rings + channel,), step, step + 1)
        for step in range(size - 1)
        for i in range(size)
    )


def _down(ring: Sequence[int], root: int, channel: int, num_rings: int, pieces: int) -> TemplateMessages:
    """Broadcast of this channel's pieces along the ring, which is cut open before the root."""
    start = ring.index(root)
    chain = [*ring[start:], *ring[:start]]
    return tuple(
        TemplateMessage(chain[i], chain[i + 1], (piece * num_rings + channel,), piece + i, piece + i + 1)
        for piece in range(pieces)
        for i in range(len(chain) - 1)
    )


def _together(parts: Iterable[TemplateMessages]) -> TemplateMessages:
    return tuple(sorted((message for part in parts for message in part), key=lambda message: message.start))


def hierarchical_plans(site: TemplateSite, back: TemplateSite, kind: Kind) -> Iterator[TemplatePlan]:
    """Rings across nodes, every rank with those of its own local number, and rings inside nodes.

    Parameters
    ----------
    site, back
        The machine and the reversed machine.
    kind
        AllGather or AllReduce; AllToAll takes one step inside nodes and one across.
    """
    if kind is Kind.ALLTOALL:
        yield from _two_steps(site)
        return
    axes, back_axes = _levels(site), _levels(back)
    if axes is None or back_axes is None:
        return
    own = {rank: (rank,) for rank in range(site.topology.num_ranks)}
    gather = spread(axes, own)
    name, messages = "rings across nodes, then inside", gather
    if kind is Kind.ALLREDUCE:
        collect = turned(spread(back_axes, own), reduce=True)
        name, messages = "rings inside nodes, across and inside", in_turn(collect, gather)
    if kind in (Kind.ALLGATHER, Kind.ALLREDUCE):
        yield TemplatePlan(1, messages, name)
        yield TemplatePlan(1, _one_by_one(messages), f"{name}, chunk by chunk")


def _one_by_one(messages: TemplateMessages) -> TemplateMessages:
    """Every chunk in a message of its own; of those that could go together, what the sender had first goes first."""
    arrived: dict[tuple[int, int], float] = {}
    alone = []
    for message in sorted(messages, key=lambda each: each.start):
        ready = sorted(message.chunks, key=lambda chunk: (arrived.get((chunk, message.src), 0.0), chunk))
        alone += [replace(message, chunks=(chunk,)) for chunk in ready]
        arrived.update({(chunk, message.dst): message.end for chunk in ready})
    return tuple(alone)


def _rails(site: TemplateSite) -> tuple[tuple[int, ...], ...] | None:
    """Ranks of one local number, for every number; None on one node, or where nodes differ in size."""
    nodes = site.topology.node_ranks
    if len(nodes) == 1 or not site.topology.has_even_nodes:
        return None
    return tuple(zip(*nodes, strict=True))


def _levels(site: TemplateSite) -> tuple[Axis, ...] | None:
    """Rings across nodes and rings inside them, or None where there are none."""
    rails = _rails(site)
    if rails is None:
        return None
    across, inside = _ring_axis(site, rails), _ring_axis(site, site.topology.node_ranks)
    return None if across is None or inside is None else (across, inside)


def _ring_axis(site: TemplateSite, groups: tuple[tuple[int, ...], ...]) -> Axis | None:
    size = len(groups[0])
    if size == 1:
        return Axis("alone", groups, ())
    load = [0] * site.topology.num_resources
    rings = [site.cycle(group, load) for group in groups]
    found = tuple(ring for ring in rings if ring is not None)
    if len(found) < len(groups):
        return None
    steps = tuple(tuple(Pass(i, (i + 1) % size, ((i - step) % size,)) for i in range(size)) for step in range(size - 1))
    return Axis("ring", found, steps)


def _two_steps(site: TemplateSite) -> Iterator[TemplatePlan]:
    """AllToAll: inside the node to the rank with the destination's local number, then across; together what goes together."""
    rails = _rails(site)
    if rails is None:
        return
    topology, num_ranks = site.topology, site.topology.num_ranks
    first: dict[tuple[int, int], list[int]] = {}
    second: dict[tuple[int, int], list[int]] = {}
    for src in range(num_ranks):
        for dst in range(num_ranks):
            rail = topology.node_ranks[topology.node_of[src]][topology.local_rank[dst]]
            if src != rail:
                first.setdefault((src, rail), []).append(src * num_ranks + dst)
            if rail != dst:
                second.setdefault((rail, dst), []).append(src * num_ranks + dst)
    if all(site.linked(*pair) for pair in (*first, *second)):
        steps = [_staggered(sends, num_ranks) for sends in (first, second)]
        yield TemplatePlan(1, in_turn(*steps), "inside nodes, then across")


def _staggered(sends: dict[tuple[int, int], list[int]], num_ranks: int) -> TemplateMessages:
    """Messages of one step, ranks beginning with different receivers so that nobody is sent to by all at once."""
    messages = [
        TemplateMessage(src, dst, tuple(chunks), (dst - src) % num_ranks, num_ranks)
        for (src, dst), chunks in sends.items()
    ]
    return tuple(
        sorted(
            (replace(message, end=message.start + 1) for message in messages),
            key=lambda message: (message.start, message.src),
        )
    )

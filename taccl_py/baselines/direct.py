"""Direct algorithms, where everybody sends to everybody, and PAT, which needs a logarithmic number of steps."""

from __future__ import annotations

from collections.abc import Iterator

from taccl_py.collective import Kind
from taccl_py.synthesis.templates.messages import TemplateMessage, TemplateMessages, TemplatePlan, in_turn, turned
from taccl_py.synthesis.templates.site import TemplateSite


def direct_plans(site: TemplateSite, back: TemplateSite, kind: Kind, root: int) -> Iterator[TemplatePlan]:
    """Everything straight to where it is wanted; nothing where links are missing."""
    num_ranks = site.topology.num_ranks
    if kind in (Kind.BROADCAST, Kind.SCATTER):
        others = [rank for rank in range(num_ranks) if rank != root]
        messages = tuple(
            TemplateMessage(root, rank, (0 if kind is Kind.BROADCAST else rank,), i, i + 1)
            for i, rank in enumerate(others)
        )
        if _linked(site, messages):
            yield TemplatePlan(1, messages, "from the root")
        return
    for name, steps in _orders(site):
        gather = _all_pairs(steps, num_ranks, per_pair=kind is Kind.ALLTOALL)
        if not _linked(site, gather):
            return
        if kind in (Kind.ALLGATHER, Kind.ALLTOALL):
            yield TemplatePlan(1, gather, name)
        elif kind is Kind.ALLREDUCE and _linked(back, gather):
            yield TemplatePlan(1, in_turn(turned(gather, reduce=True), gather), f"{name}, twice")


# Whom every rank sends to at a step.
_Step = tuple[int, ...]


def _orders(site: TemplateSite) -> Iterator[tuple[str, tuple[_Step, ...]]]:
    """Orders in which nobody is sent to by two at the same step: around all ranks, and around nodes and in them.

    In the second one all ranks use their NICs at the same time.
    """
    num_ranks, nodes = site.topology.num_ranks, site.topology.node_ranks
    yield "all pairs", tuple(tuple((src + by) % num_ranks for src in range(num_ranks)) for by in range(1, num_ranks))
    if len(nodes) == 1 or not site.topology.has_even_nodes:
        return
    node_of, local_of = site.topology.node_of, site.topology.local_rank
    per_node = len(nodes[0])
    shifts = [(far, near) for far in range(len(nodes)) for near in range(per_node) if far or near]
    yield "all pairs, node by node", tuple(
        tuple(
            nodes[(node_of[src] + far) % len(nodes)][(local_of[src] + near) % per_node]
            for src in range(num_ranks)
        )
        for far, near in shifts
    )  # fmt: skip


def _all_pairs(steps: tuple[_Step, ...], num_ranks: int, *, per_pair: bool) -> TemplateMessages:
    """At every step each rank sends its own chunk to one other rank, or its chunk for that rank."""
    return tuple(
        TemplateMessage(src, dst, (src * num_ranks + dst if per_pair else src,), time, time + 1)
        for time, step in enumerate(steps)
        for src, dst in enumerate(step)
    )


def pat_plans(site: TemplateSite) -> Iterator[TemplatePlan]:
    """AllGather by parallel aggregated trees: the farthest rank first, and at every step half as far with twice as much.

    A chunk that has `offset` ranks to go takes the bits of that number from the largest to the smallest, so every rank gets
    it once, whatever the number of ranks. (S. Jeaugey, "PAT: a new algorithm for all-gather and reduce-scatter operations at
    scale", 2025.)
    """
    num_ranks = site.topology.num_ranks
    messages = []
    bits = [1 << i for i in reversed(range((num_ranks - 1).bit_length()))]
    # In the order in which they come, which is one that keeps what is sent together together in scratch.
    held = [0]
    for time, bit in enumerate(bits):
        offsets = [offset for offset in held if offset + bit < num_ranks]
        for rank in range(num_ranks):
            chunks = tuple((rank - offset) % num_ranks for offset in offsets)
            messages.append(TemplateMessage(rank, (rank + bit) % num_ranks, chunks, time, time + 1))
        held += [offset + bit for offset in offsets]
    if _linked(site, messages):
        yield TemplatePlan(1, tuple(messages), "parallel aggregated trees")


def _linked(site: TemplateSite, messages: tuple[TemplateMessage, ...] | list[TemplateMessage]) -> bool:
    return all(site.linked(message.src, message.dst) for message in messages)

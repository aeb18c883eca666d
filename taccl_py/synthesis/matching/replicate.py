"""Solve one root, replicate: group schedules on machines that translations take from any rank to any other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from taccl_py.collective import Kind
from taccl_py.errors import InputError
from taccl_py.schedule.group import GROUP_KINDS, GroupSchedule
from taccl_py.schedule.ir import Message
from taccl_py.solvers.limits import Deadline, Limits
from taccl_py.synthesis.bounds import Bound
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.matching.exchange import exchange, rail_exchange
from taccl_py.synthesis.matching.fabric import Fabric, resource_orbits
from taccl_py.synthesis.matching.growth import Hop, grow_trees
from taccl_py.synthesis.symmetry import IntArray
from taccl_py.topology.model import Topology
from taccl_py.topology.translations import Translations, translations_of

# How often trees are grown, with other choices among equally good ones; and numbers of chunks that are tried. The search ends
# sooner where it cannot get better.
_STARTS = 3
_CUTS = (1, 2, 4, 8, 16)
_MOST_PLACES = 50_000
# Chunks that share a message to a node.
_MOST_TOGETHER = 16
# Ways are looked for from one root to all others, link by link.
MOST_EXCHANGED = 20_000_000
_NEAR = 1 + 1e-6


def why_not(demand: Demand) -> str | None:
    """A sentence that says why a demand has no group schedule, or None if it may have one."""
    if demand.kind not in GROUP_KINDS:
        return f"{demand.kind} has a root, which a symmetry would move"
    if demand.sketch is not None:
        return "a sketch's restrictions are not looked at when one root is solved for all"
    if demand.topology.chunk_costs:
        return "costs for chunks of an unstated size are of no use here"
    return None


def replicate(demand: Demand, limits: Limits, bound: Bound) -> GroupSchedule | None:
    """Best group schedule found; None if the machine has no translations that keep links and ports apart.

    Parameters
    ----------
    demand
        What is asked for; see `why_not`.
    limits
        Time and seed.
    bound
        The search ends when it gets there.

    Raises
    ------
    InputError
        If there are too many links to choose the ways of an AllToAll.
    """
    topology, kind = demand.topology, demand.kind
    translations = translations_of(topology)
    orbits = resource_orbits(topology, translations) if translations is not None else None
    if translations is None or orbits is None:
        return None
    if kind is Kind.ALLTOALL and topology.num_ranks * len(topology.links) > MOST_EXCHANGED:
        raise InputError(
            f"{topology.name} has {topology.num_ranks} ranks and {len(topology.links)} links, too many to choose the ways of an "
            "AllToAll; use --engine templates"
        )
    best = _by_rails(demand, translations, orbits)
    deadline = Deadline(limits.seconds)
    for parts in _numbers_of_chunks(demand):
        before = best
        grower = _Grower(topology, demand.size_bytes / topology.num_ranks / parts, kind, orbits)
        for start in range(1 if kind is Kind.ALLTOALL else _STARTS):
            found = _schedule(demand, translations, parts, grower.grown(parts, limits.seed + start))
            if best is None or found.makespan_us < best.makespan_us:
                best = found
            if best.makespan_us <= bound.time_us * _NEAR or not deadline.left or limits.stop.is_set():
                return best
        if best is before or (best is not None and best.chunks_per_rank < parts):
            break
    return best


def _by_rails(demand: Demand, translations: Translations, orbits: IntArray) -> GroupSchedule | None:
    """Best AllToAll in which what a rank has for a node goes there together; None where nodes are not such."""
    topology = demand.topology
    sizes = {len(ranks) for ranks in topology.node_ranks}
    if demand.kind is not Kind.ALLTOALL or demand.chunks_per_rank not in (None, 1) or topology.num_nodes == 1:
        return None
    if len(sizes) > 1 or max(sizes) > _MOST_TOGETHER:
        return None
    chunk_bytes = demand.size_bytes / topology.num_ranks
    fabrics = [Fabric.of(topology, chunk_bytes * count, orbits) for count in range(1, max(sizes) + 1)]
    best: GroupSchedule | None = None
    for together in sorted({max(sizes), -(-max(sizes) // 2), -(-max(sizes) // 4)}):
        hops = rail_exchange(fabrics, together)
        if hops is None:
            return None
        messages = [Message(h.link, h.chunks, h.start_us, h.end_us, packed=len(h.chunks) > 1) for h in hops]
        found = _schedule(demand, translations, 1, messages)
        if best is None or found.makespan_us < best.makespan_us:
            best = found
    return best


def _numbers_of_chunks(demand: Demand) -> list[int]:
    """Numbers of chunks per rank to try, the fewest first."""
    if demand.chunks_per_rank is not None:
        return [demand.chunks_per_rank]
    return [cuts for cuts in _CUTS if cuts == 1 or cuts * demand.topology.num_ranks <= _MOST_PLACES]


def _schedule(demand: Demand, translations: Translations, parts: int, messages: Sequence[Message]) -> GroupSchedule:
    chunk_bytes = demand.size_bytes / demand.topology.num_ranks / parts
    return GroupSchedule(demand.topology, demand.kind, parts, chunk_bytes, translations.generators, tuple(messages))


def _end_us(messages: Sequence[Message]) -> float:
    return max((message.end_us for message in messages), default=0.0)


class _Grower:
    """Grows the trees of a collective on a machine and, for sums, on the machine turned around."""

    def __init__(self, topology: Topology, chunk_bytes: float, kind: Kind, orbits: IntArray) -> None:
        self._kind = kind
        self._fabric = Fabric.of(topology, chunk_bytes, orbits)
        self._backward: Fabric | None = None
        if kind in (Kind.REDUCESCATTER, Kind.ALLREDUCE):
            link_of = topology.reversed_link()
            self._original = [0] * len(link_of)
            for link, turned in enumerate(link_of):
                self._original[turned] = link
            # Ports keep their numbers, and links their orbits.
            turned_orbits = np.concatenate([orbits[self._original], orbits[len(link_of) :]])
            self._backward = Fabric.of(topology.reversed(), chunk_bytes, turned_orbits)

    def grown(self, chunks: int, seed: int) -> list[Message]:
        """Messages of one attempt."""
        if self._kind is Kind.ALLTOALL:
            hops = exchange(self._fabric, chunks)
            return [Message(h.link, h.chunks, h.start_us, h.end_us) for h in hops]
        messages: list[Message] = []
        if self._backward is not None:
            messages = self._summed(grow_trees(self._backward, chunks, seed))
        after_us = _end_us(messages)
        if self._kind is not Kind.REDUCESCATTER:
            hops = grow_trees(self._fabric, chunks, seed)
            messages += [Message(h.link, h.chunks, h.start_us + after_us, h.end_us + after_us) for h in hops]
        return messages

    def _summed(self, hops: Sequence[Hop]) -> list[Message]:
        """The tree backwards: every rank sends on when all that is added to it has come and its orbits are free."""
        fabric, free_us = self._fabric, dict[int, float]()
        ready_us: dict[tuple[int, int], float] = {}
        messages = []
        for hop in sorted(hops, key=lambda h: (-h.end_us, h.link)):
            link = self._original[hop.link]
            sort = fabric.sorts[fabric.sort_of[link]]
            (chunk,) = hop.chunks
            here, there = (chunk, fabric.src[link]), (chunk, fabric.dst[link])
            start = max(ready_us.get(here, 0.0), *(free_us.get(c.orbit, 0.0) for c in sort.claims))
            for claim in sort.claims:
                free_us[claim.orbit] = start + claim.time_us
            end = start + sort.message_us
            ready_us[there] = max(ready_us.get(there, 0.0), end)
            messages.append(Message(link, hop.chunks, start, end, reduce=True))
        return messages

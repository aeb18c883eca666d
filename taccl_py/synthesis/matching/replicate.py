"""Solve one root, or one of each role, and replicate: group schedules on machines with translations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from taccl_py.arrays import IntArray
from taccl_py.collective import Kind
from taccl_py.errors import InputError
from taccl_py.schedule.group import GROUP_KINDS, GroupSchedule
from taccl_py.schedule.ir import Message
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import Bound
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.matching.delegated import delegated
from taccl_py.synthesis.matching.exchange import exchange, rail_exchange
from taccl_py.synthesis.matching.fabric import Fabric, resource_orbits
from taccl_py.synthesis.matching.growth import grow_trees
from taccl_py.synthesis.matching.params import PARAMS
from taccl_py.synthesis.matching.regrow import RegrowTask, regrown
from taccl_py.tolerances import BOUND_REACHED
from taccl_py.topology.automorphism import LinkImages
from taccl_py.topology.model import Topology
from taccl_py.topology.translations import Translations


def why_not(demand: Demand) -> str | None:
    """A sentence that says why a demand has no group schedule, or None if it may have one."""
    if demand.kind not in GROUP_KINDS:
        return f"{demand.kind} has a root, which a symmetry would move"
    if demand.sketch is not None:
        return "a sketch's restrictions are not looked at when one root is solved for all"
    return None


def replicate(demand: Demand, limits: Limits, bound: Bound) -> GroupSchedule | None:
    """Best group schedule found; None if the machine has no translations that take links and ports to others.

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
        If there are too many links to choose the paths of an AllToAll.
    """
    topology, kind = demand.topology, demand.kind
    symmetry = _symmetry(topology)
    if symmetry is None:
        return None
    roots = symmetry.translations.roots
    if kind is Kind.ALLTOALL and len(roots) * topology.num_ranks * len(topology.links) > PARAMS.most_exchanged:
        raise InputError(
            f"{topology.name} has {topology.num_ranks} ranks and {len(topology.links)} links, too many to choose the paths of an "
            "AllToAll; use --engine templates"
        )
    found_first = [_by_rails(demand, symmetry), delegated(demand) if kind is Kind.ALLTOALL else None]
    best = min(filter(None, found_first), key=lambda found: found.makespan_us, default=None)
    deadline = limits.deadline()
    for parts in _numbers_of_chunks(demand, symmetry.translations):
        before = best
        grower = _Grower(topology, demand.size_bytes / topology.num_ranks / parts, kind, symmetry)
        leader, leader_us = None, math.inf
        starts: list[_Start | None] = [*_starts(demand, limits.seed, symmetry.translations)]
        # The fastest one is improved in the end; where ranks are all alike that has never gained anything but in AllToAll.
        starts += [] if symmetry.translations.is_regular and kind is not Kind.ALLTOALL else [None]
        for given in starts:
            start = given or leader
            messages = None if start is None else grower.grown(parts, start, deadline.over if given is None else None)
            if messages is None:
                continue
            found = _schedule(demand, symmetry.translations, parts, messages)
            if found.makespan_us < leader_us:
                leader, leader_us = start, found.makespan_us
            if best is None or found.makespan_us < best.makespan_us:
                best = found
            if best.makespan_us <= bound.time_us * (1 + BOUND_REACHED) or deadline.over():
                return best
        if best is before or (best is not None and best.chunks_per_rank < parts):
            break
    return best


@dataclass(frozen=True)
class _Symmetry:
    """Translations, and the orbits of links and ports under them."""

    translations: Translations
    orbits: IntArray


def _symmetry(topology: Topology) -> _Symmetry | None:
    """The largest group of translations that takes links and ports to others: of all generators, or of some."""
    images = LinkImages(topology)
    good = [image for image in topology.symmetry if not isinstance(images.of(image), str)]
    found = []
    for number in range(len(good), max(0, len(good) - PARAMS.most_left_out - 1), -1):
        for some in combinations(good, number):
            group = Translations.of(some, topology.num_ranks)
            orbits = resource_orbits(topology, group) if group is not None else None
            if group is not None and orbits is not None:
                found.append(_Symmetry(group, orbits))
        # Fewer generators make no larger group.
        if found:
            break
    return max(found, key=lambda symmetry: symmetry.translations.size, default=None)


@dataclass(frozen=True, slots=True)
class _Start:
    """Choices among equally good ones, and whether a chunk goes into a node once."""

    seed: int
    thrifty: bool


def _starts(demand: Demand, seed: int, translations: Translations) -> list[_Start]:
    """Attempts of growing trees."""
    if demand.kind is Kind.ALLTOALL:
        return [_Start(seed, thrifty=False)]
    # Where ranks of a node have unequal links out, what comes through one of them is for all.
    thrifts = (False,) if translations.is_regular or demand.topology.num_nodes == 1 else (True, False)
    starts = PARAMS.starts if translations.is_regular else PARAMS.starts_of_roles
    return [_Start(seed + number, thrifty) for number in range(starts) for thrifty in thrifts]


def _by_rails(demand: Demand, symmetry: _Symmetry) -> GroupSchedule | None:
    """Best AllToAll in which what a rank has for a node goes there together; None where nodes are not such."""
    topology = demand.topology
    sizes = {len(ranks) for ranks in topology.node_ranks}
    if demand.kind is not Kind.ALLTOALL or demand.chunks_per_rank not in (None, 1) or topology.num_nodes == 1:
        return None
    if len(sizes) > 1 or max(sizes) > PARAMS.most_together:
        return None
    chunk_bytes = demand.size_bytes / topology.num_ranks
    fabrics = [Fabric.of(topology, chunk_bytes * count, symmetry.orbits) for count in range(1, max(sizes) + 1)]
    best: GroupSchedule | None = None
    for together in sorted({max(sizes), -(-max(sizes) // 2), -(-max(sizes) // 4)}):
        grown = rail_exchange(fabrics, together, symmetry.translations.roots)
        if grown is None:
            return None
        messages = [Message(h.link, h.chunks, h.start_us, h.end_us, packed=len(h.chunks) > 1) for h in grown]
        found = _schedule(demand, symmetry.translations, 1, messages)
        if best is None or found.makespan_us < best.makespan_us:
            best = found
    return best


def _numbers_of_chunks(demand: Demand, translations: Translations) -> list[int]:
    """Numbers of chunks per rank to try, the fewest first."""
    if demand.chunks_per_rank is not None:
        return [demand.chunks_per_rank]
    places = demand.topology.num_ranks * len(translations.roots)
    return [cuts for cuts in PARAMS.replicated_cuts if cuts == 1 or cuts * places <= PARAMS.most_replicated_places]


def _schedule(demand: Demand, translations: Translations, parts: int, messages: Sequence[Message]) -> GroupSchedule:
    chunk_bytes = demand.size_bytes / demand.topology.num_ranks / parts
    return GroupSchedule(demand.topology, demand.kind, parts, chunk_bytes, translations.generators, tuple(messages))


def _end_us(messages: Sequence[Message]) -> float:
    return max((message.end_us for message in messages), default=0.0)


class _Grower:
    """Grows the trees of a collective on a machine and, for sums, on the machine turned around."""

    def __init__(self, topology: Topology, chunk_bytes: float, kind: Kind, symmetry: _Symmetry) -> None:
        self._kind, self._roots = kind, symmetry.translations.roots
        self._fabric = Fabric.of(topology, chunk_bytes, symmetry.orbits)
        self._backward: Fabric | None = None
        if kind in (Kind.REDUCESCATTER, Kind.ALLREDUCE):
            link_of = topology.reversed_link()
            self._original = [0] * len(link_of)
            for link, turned in enumerate(link_of):
                self._original[turned] = link
            # Ports keep their numbers, and links their orbits.
            orbits = symmetry.orbits
            turned_orbits = np.concatenate([orbits[self._original], orbits[len(link_of) :]])
            self._backward = Fabric.of(topology.reversed(), chunk_bytes, turned_orbits)

    def grown(self, parts: int, start: _Start, over: Callable[[], bool] | None) -> list[Message] | None:
        """Messages of one attempt; None if thrift leaves a rank without a chunk.

        Parameters
        ----------
        parts
            Chunks of a rank's share.
        start
            Where to begin.
        over
            Asked whether to give up improving it; None leaves it as it is.
        """
        if self._kind is Kind.ALLTOALL:
            return self._exchange(parts, start.seed, over)
        messages: list[Message] = []
        if self._backward is not None:
            backward = self._trees(self._backward, parts, start, over)
            if backward is None:
                return None
            messages = self._summed(backward)
        if self._kind is not Kind.REDUCESCATTER:
            forward = self._trees(self._fabric, parts, start, over)
            if forward is None:
                return None
            after_us = _end_us(messages)
            messages += [Message(h.link, h.chunks, h.start_us + after_us, h.end_us + after_us) for h in forward]
        return messages

    def _trees(
        self, fabric: Fabric, parts: int, start: _Start, over: Callable[[], bool] | None
    ) -> list[Message] | None:
        """Trees of all roots' chunks, which have the numbers that they have in the collective."""
        sources = [root for root in self._roots for _ in range(parts)]
        grown: Sequence[Message] | None = grow_trees(fabric, sources, start.seed, thrifty=start.thrifty)
        if grown is None:
            return None
        if over is not None:
            everyone = range(fabric.topology.num_ranks)
            task = RegrowTask(sources, [everyone] * len(sources), 0.0)
            effort = PARAMS.one_node_effort if fabric.topology.num_nodes == 1 else 1
            grown = regrown(fabric, task, grown, start.seed, over, effort=effort)
        chunks = [root * parts + part for root in self._roots for part in range(parts)]
        return [replace(message, chunks=(chunks[message.chunks[0]],)) for message in grown]

    def _exchange(self, parts: int, seed: int, over: Callable[[], bool] | None) -> list[Message]:
        """Paths of all roots' chunks."""
        grown = exchange(self._fabric, parts, self._roots)
        if over is None:
            return list(grown)
        size = self._fabric.topology.num_ranks
        chunks = sorted({message.chunks[0] for message in grown})
        number = {chunk: index for index, chunk in enumerate(chunks)}
        ends = [divmod(chunk // parts, size) for chunk in chunks]
        task = RegrowTask([root for root, _ in ends], [(rank,) for _, rank in ends], 0.0)
        numbered = [replace(message, chunks=(number[message.chunks[0]],)) for message in grown]
        better = regrown(self._fabric, task, numbered, seed, over)
        return [replace(message, chunks=(chunks[message.chunks[0]],)) for message in better]

    def _summed(self, grown: Sequence[Message]) -> list[Message]:
        """The tree backwards: every rank sends on when all that is added to it has come and its orbits are free."""
        fabric, free_us = self._fabric, dict[int, float]()
        ready_us: dict[tuple[int, int], float] = {}
        messages = []
        for message in sorted(grown, key=lambda h: (-h.end_us, h.link)):
            link = self._original[message.link]
            sort = fabric.sorts[fabric.sort_of[link]]
            (chunk,) = message.chunks
            here, there = (chunk, fabric.src[link]), (chunk, fabric.dst[link])
            start = max(ready_us.get(here, 0.0), *(free_us.get(c.orbit, 0.0) for c in sort.claims))
            for claim in sort.claims:
                free_us[claim.orbit] = start + claim.time_us
            end = start + sort.message_us
            ready_us[there] = max(ready_us.get(there, 0.0), end)
            messages.append(Message(link, message.chunks, start, end, reduce=True))
        return messages

"""AllReduce over nodes of several sorts: each node owns sums in proportion to what its NICs have time for.

Data is cut into lanes, one for each rank of the largest node. In every node one rank collects a lane: it adds up what the others of its
node have, sends that straight to the rank of the owner's node, hears the sum from there, and hands it out inside. A linear program
says how much each node owns: among two fast nodes and two at half the rate the slow ones own nothing, so that each only tells its own sums once
and hears all once. Data goes in pieces, which follow each other through these four stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from operator import attrgetter

import numpy as np

from taccl_py.arrays import FloatArray
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.apportion import apportion
from taccl_py.synthesis.bounds.net import Net
from taccl_py.synthesis.damage.healing import has_alike_nodes
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.hierarchy.cluster import ranks_of_places
from taccl_py.synthesis.hierarchy.params import PARAMS
from taccl_py.synthesis.templates.messages import TemplateMessage, TemplatePlan
from taccl_py.synthesis.uneven import usable_counts
from taccl_py.synthesis.weights import PlanPart, best_weights
from taccl_py.tolerances import RELATIVE
from taccl_py.topology.model import Topology
from taccl_py.units import BYTES_PER_MB


class OwnerStage(IntEnum):
    """Stages of a piece: sums inside nodes, to the owner, from the owner, copies inside nodes."""

    SUM = 0
    TO_OWNER = 1
    FROM_OWNER = 2
    COPY = 3


@dataclass(frozen=True)
class NodeOwners:
    """Parts of all sums that nodes own, and the ranks that collect.

    Attributes
    ----------
    net
        The machine.
    collector
        Rank of every lane in every node, [node][lane].
    share
        Part of every node, [node].
    load_us
        Time that each link or port is busy for each megabyte of the data, [resource].
    turn_us
        Time that it is busy with each piece of all lanes, however small, [resource].
    """

    net: Net
    collector: tuple[tuple[int, ...], ...]
    share: tuple[float, ...]
    load_us: FloatArray
    turn_us: FloatArray

    @staticmethod
    def of(topology: Topology) -> NodeOwners | None:
        """Shares for which the busiest link or port is busy for the shortest time; None if all are as large, or lanes differ."""
        nodes = topology.node_ranks
        if len(nodes) == 1 or has_alike_nodes(topology):
            return None
        collector = ranks_of_places(nodes)
        net = Net.of(topology)
        if not _has_even_lanes(topology, collector):
            return None
        usage = [_usage(topology, collector, owner) for owner in range(len(nodes))]
        loads = [net.sum_over_resources(used) * net.beta_us_per_mb for used in usage]
        # Inside a node loads are the same, whoever owns; they say nothing, and would hide what NICs could be spared.
        across = np.ptp(loads, axis=0) > RELATIVE * np.max(loads)
        weights = best_weights([PlanPart(0, 1.0, load[across]) for load in loads], {0: 1.0}, Limits())
        if weights is None or max(weights) * len(nodes) <= 1 + PARAMS.least_owner_difference:
            return None
        share = [weight if weight * len(nodes) >= PARAMS.least_owner_share else 0.0 for weight in weights]
        share = [weight / sum(share) for weight in share]
        # What crosses a link inside is one message, whoever owns; between nodes there is one for each owner.
        inside = np.array([topology.is_inside(k) for k in topology.links])
        owned = [used for used, weight in zip(usage, share, strict=True) if weight]
        number = np.where(inside, usage[0], np.sum(owned, axis=0)) * len(collector[0])
        load_us = np.sum([load * weight for load, weight in zip(loads, share, strict=True)], axis=0)
        return NodeOwners(net, collector, tuple(share), load_us, net.sum_over_resources(number) * net.alpha_us)

    @cached_property
    def owners(self) -> list[int]:
        """Nodes that own something."""
        return [node for node, share in enumerate(self.share) if share]

    @property
    def messages_of_piece(self) -> int:
        """Messages of one piece of one lane."""
        return 2 * (self.net.num_ranks - len(self.collector)) + 2 * len(self.owners) * (len(self.collector) - 1)

    def time_us(self, size_bytes: float, pieces: int) -> float:
        """About how long so many pieces of each lane take: the busiest link or port, and one piece through all stages."""
        topology = self.net.topology
        piece_bytes = size_bytes / len(self.collector[0]) / pieces
        size_of = {True: piece_bytes, False: piece_bytes / len(self.owners)}
        slowest_us = {True: 0.0, False: 0.0}
        for index, link in enumerate(topology.links):
            inside = topology.is_inside(link)
            slowest_us[inside] = max(slowest_us[inside], topology.message_us(index, size_of[inside]))
        turns = max(map(len, topology.node_ranks)) - 1
        busy_us = float((self.load_us * (size_bytes / BYTES_PER_MB) + pieces * self.turn_us).max())
        return busy_us + 2 * (turns * slowest_us[True] + slowest_us[False])

    def plan(self, demand: Demand, pieces: int) -> TemplatePlan | None:
        """The plan in so many pieces of each lane; None if the data cannot be cut so finely."""
        lanes, owners = len(self.collector[0]), self.owners
        ranks = demand.topology.num_ranks
        wanted = PARAMS.owner_chunks * lanes * pieces * len(owners)
        counts = (demand.chunks_per_rank,) if demand.chunks_per_rank is not None else usable_counts(demand)
        fine = [count for count in counts if lanes * pieces * len(owners) <= count * ranks]
        count = next((count for count in fine if count * ranks >= wanted), None) or next(reversed(fine), None)
        if count is None:
            return None
        found: list[TemplateMessage] = []
        at = 0
        share = [self.share[owner] for owner in owners]
        # What is left over of one piece goes to the next one.
        sizes = apportion([1.0] * (lanes * pieces), count * ranks)
        for piece in range(pieces):
            for lane in range(lanes):
                size = sizes[piece * lanes + lane]
                parts = []
                for part in apportion(share, size):
                    parts.append(tuple(range(at, at + part)))
                    at += part
                found += self._of_piece(piece, lane, parts)
        return TemplatePlan(count, tuple(sorted(found, key=attrgetter("start"))))

    def _of_piece(self, piece: int, lane: int, parts: Sequence[tuple[int, ...]]) -> Iterator[TemplateMessage]:
        """Messages of a piece of a lane, whose parts are the owners'."""
        whole = tuple(chunk for part in parts for chunk in part)
        lanes = len(self.collector[0])
        for node, ranks in enumerate(self.net.topology.node_ranks):
            middle = self.collector[node][lane]
            for place, rank in enumerate(ranks):
                if rank != middle:
                    # Every rank begins with another receiver.
                    turn = piece + ((lane - place) % lanes) / lanes
                    yield _staged(rank, middle, whole, turn, OwnerStage.SUM)
                    yield _staged(middle, rank, whole, turn, OwnerStage.COPY)
            for owner, part in zip(self.owners, parts, strict=True):
                if node != owner and part:
                    turn = piece + ((node - owner) % len(self.collector)) / len(self.collector)
                    there = self.collector[owner][lane]
                    yield _staged(middle, there, part, turn, OwnerStage.TO_OWNER)
                    yield _staged(there, middle, part, turn, OwnerStage.FROM_OWNER)


def _staged(src: int, dst: int, chunks: tuple[int, ...], turn: float, stage: OwnerStage) -> TemplateMessage:
    """Message of a stage, which begins when all of the stage before has arrived."""
    start = turn + 2 * stage
    return TemplateMessage(src, dst, chunks, start, start + 1, reduce=stage in (OwnerStage.SUM, OwnerStage.TO_OWNER))


def _pairs(topology: Topology, collector: Sequence[Sequence[int]], owner: int) -> Iterator[tuple[int, int]]:
    """Ranks that exchange sums of a lane each, both ways, if one node owns all."""
    for node, ranks in enumerate(topology.node_ranks):
        yield from ((rank, middle) for middle in collector[node] for rank in ranks if rank != middle)
        if node != owner:
            yield from zip(collector[node], collector[owner], strict=True)


def _has_even_lanes(topology: Topology, collector: Sequence[Sequence[int]]) -> bool:
    """True if all these ranks are linked, whoever owns, and between two nodes all lanes have one rate: damage is for `mending`."""
    rates: dict[tuple[int, int], set[float]] = {}
    for owner in range(len(collector)):
        for pair in _pairs(topology, collector, owner):
            for src, dst in (pair, pair[::-1]):
                links = topology.links_between.get((src, dst))
                if links is None:
                    return False
                rates.setdefault((topology.node_of[src], topology.node_of[dst]), set()).add(
                    topology.us_per_mb(links[0])
                )
    return all(len(found) == 1 for (here, there), found in rates.items() if here != there)


def _usage(topology: Topology, collector: Sequence[Sequence[int]], owner: int) -> FloatArray:
    """Part of the data that crosses each link if one node owns all."""
    used = np.zeros(len(topology.links))
    for pair in _pairs(topology, collector, owner):
        for ends in (pair, pair[::-1]):
            used[topology.links_between[ends][0]] += 1 / len(collector[0])
    return used

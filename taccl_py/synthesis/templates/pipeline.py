"""Pipelines: Broadcast of many pieces, stripe by stripe down trees of their own, everything again with every piece.

A stripe is a part of the buffer that goes down one tree; a piece is a chunk of every stripe. A move's planned time is that of its
piece's turn, which comes as often as the busiest link or port allows, and that of the path down the tree.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from taccl_py.synthesis.templates.messages import TemplateMessage, TemplateMessages, in_order
from taccl_py.synthesis.templates.params import PARAMS
from taccl_py.synthesis.templates.site import Edge, TemplateSite
from taccl_py.tolerances import DIGITS
from taccl_py.units import BYTES_PER_MB

# Whom each rank of a tree tells, in this order.
Tells = Mapping[int, Sequence[int]]


@dataclass(frozen=True)
class Pipeline:
    """A Broadcast down trees.

    Attributes
    ----------
    site
        The machine.
    root
        The root.
    size_bytes
        Size of the buffer.
    trees
        A tree for each stripe, [turn][stripe]; turns repeat.
    pieces
        Of every stripe.
    end_us
        Time that it should take.
    """

    site: TemplateSite
    root: int
    size_bytes: float
    trees: tuple[Sequence[Tells], ...]
    pieces: int = 1
    end_us: float = math.inf

    @property
    def num_chunks(self) -> int:
        """One for each piece of each stripe."""
        return self.pieces * len(self.trees[0])

    def best(self, num_chunks: int | None) -> Self | None:
        """The same in the number of pieces that suits it, or in so many chunks; None if that is no whole number of pieces."""
        stripes = len(self.trees[0])
        if num_chunks is not None:
            return None if num_chunks % stripes else self._cut(num_chunks // stripes)
        messages = stripes * (self.site.topology.num_ranks - 1)
        cut = [self._cut(1)]
        for number in PARAMS.pipeline_pieces[1:]:
            # Time falls with the number of pieces until alphas outweigh what is gained.
            if (
                number * stripes > PARAMS.most_pipeline_chunks
                or number * messages > PARAMS.most_pipeline_messages
                or (len(cut) > 1 and cut[-1].end_us > cut[-2].end_us)
            ):
                break
            cut.append(self._cut(number))
        least_us = min(each.end_us for each in cut)
        return next(each for each in cut if each.end_us <= least_us * (1 + PARAMS.least_pipeline_gain))

    def messages(self) -> TemplateMessages:
        """The plan in full; chunks are numbered piece by piece."""
        firsts = [self.alone(trees) for trees in self.trees[: self.pieces]]
        found = []
        for piece in range(self.pieces):
            first = firsts[piece % len(firsts)]
            for stripe, edges in enumerate(first):
                chunks = (piece * len(first) + stripe,)
                later_us = piece * self.period_us
                for e in edges:
                    # Of what is to start at the same time, rounding aside, the older piece goes first.
                    start_us, end_us = (round(time_us + later_us, DIGITS) for time_us in (e.start_us, e.end_us))
                    found.append(TemplateMessage(e.src, e.dst, chunks, start_us, end_us))
        return in_order(found)

    @property
    def chunk_bytes(self) -> float:
        """Size of a piece of a stripe."""
        return self.size_bytes / self.num_chunks

    def _cut(self, pieces: int) -> Self:
        """The same in so many pieces, with its time."""
        plan = replace(self, pieces=pieces)
        first_us = max(edge.end_us for edges in plan.alone(plan.trees[0]) for edge in edges)
        return replace(plan, end_us=first_us + (pieces - 1) * plan.period_us)

    @cached_property
    def period_us(self) -> float:
        """Time for which the busiest link or port is busy with a piece."""
        cost, piece_mb = self.site.topology.resource_cost, self.chunk_bytes / BYTES_PER_MB
        return max(number * (cost[r][0] + cost[r][1] * piece_mb) for r, number in self._uses.items())

    @cached_property
    def _uses(self) -> dict[int, float]:
        """Messages of a piece over each link and port, on average over the trees that repeat."""
        topology = self.site.topology
        uses: Counter[int] = Counter()
        for tree in (tree for trees in self.trees for tree in trees):
            uses.update(topology.links_between[src, dst][0] for src, dsts in tree.items() for dst in dsts)
        found: Counter[int] = Counter()
        for link, number in uses.items():
            for resource in topology.resources_of[link]:
                found[resource] += number
        return {resource: number / len(self.trees) for resource, number in found.items()}

    def alone(self, trees: Sequence[Tells]) -> list[list[Edge]]:
        """Every tree's edges with their times if there were this piece only: what can start first does."""
        topology, num_bytes = self.site.topology, self.chunk_bytes
        free_us = [0.0] * topology.num_resources
        found: list[list[Edge]] = [[] for _ in trees]
        # Of what can start at the same time, the next message of every rank goes before the one after that.
        waiting: list[tuple[float, int, int, int, int]] = []

        def offer(ready_us: float, stripe: int, src: int) -> None:
            for turn, dst in enumerate(trees[stripe].get(src, ())):
                heapq.heappush(waiting, (ready_us, turn, stripe, src, dst))

        for stripe in range(len(trees)):
            offer(0.0, stripe, self.root)
        while waiting:
            ready_us, turn, stripe, src, dst = heapq.heappop(waiting)
            link = topology.links_between[src, dst][0]
            start_us = max(ready_us, *(free_us[resource] for resource in topology.resources_of[link]))
            if start_us > ready_us:
                heapq.heappush(waiting, (start_us, turn, stripe, src, dst))
                continue
            for resource in topology.resources_of[link]:
                free_us[resource] = start_us + topology.occupancy_us(resource, num_bytes)
            end_us = start_us + topology.message_us(link, num_bytes)
            found[stripe].append(Edge(src, dst, start_us, end_us))
            offer(end_us, stripe, dst)
        return found

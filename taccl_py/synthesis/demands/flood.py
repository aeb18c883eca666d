"""Flooding: where all want the same pieces, each rank passes on what is rarest, to whoever lacks it, whenever it can.

No tree is fixed before: at every moment, of the messages that could start, those that complete a sum go first, then the pieces that the fewest
ranks have. Two ranks that hold the two parts of a sum exchange them, and both have it then. Of ranks that could receive a piece, or take part
in an exchange, the one that nobody waits for comes first: of what it has, others have most. (As BitTorrent's rarest first; on a switch with one
late rank it finds pairings like StragglAR's, arXiv 2505.23523: who gets a rare piece is whoever has only common ones.)
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from taccl_py.demand import DataDemand
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.schedule.ir import Message
from taccl_py.synthesis.demands.classes import ChunkClass, DemandCut
from taccl_py.topology.model import Topology
from taccl_py.work import count_work


@dataclass(frozen=True, slots=True)
class _FloodPiece:
    """Chunks that move together, and which terms of their sum each rank holds at first."""

    chunks: tuple[int, ...]
    size_bytes: int
    complete: int
    held: dict[int, int]


def can_flood(classes: Sequence[ChunkClass]) -> bool:
    """True if several ranks want everything that anyone wants, but for what they hold."""
    everyone = {rank for each in classes for rank in each.wants}
    lacking = [everyone - set(each.wants) for each in classes]
    return len(everyone) > 2 and all(
        not missing or (not each.is_sum and missing <= set(each.terms[0]))
        for missing, each in zip(lacking, classes, strict=True)
    )


def flooded(topology: Topology, demand: DataDemand, classes: Sequence[ChunkClass], count: int) -> DemandSchedule | None:
    """Schedule by flooding, with so many pieces of each class; None if some rank does not get all."""
    demand_cut = DemandCut(demand)
    pieces = []
    for each in classes:
        complete = (1 << len(each.terms)) - 1
        held = {rank: 1 << term for term, holders in enumerate(each.terms) for rank in holders}
        for cut in each.cut(demand, count):
            pieces.append(_FloodPiece(demand_cut.number(cut), sum(size for *_, size in cut), complete, held))
    wants = tuple(sorted({rank for each in classes for rank in each.wants}))
    messages = _Flood(topology, pieces, wants).run()
    return None if messages is None else DemandSchedule(topology, demand_cut.demand(), messages)


class _Flood:
    """State of a flood: what ranks have, what is on its path, what is free."""

    def __init__(self, topology: Topology, pieces: Sequence[_FloodPiece], wants: Sequence[int]) -> None:
        self._topology, self._pieces, self._wants = topology, pieces, wants
        self._held = [dict(piece.held) for piece in pieces]
        # Sets of pieces as bit masks: whole at a rank, not coming to it yet, and by how many ranks have them.
        self._whole = [0] * topology.num_ranks
        self._open = [0] * topology.num_ranks
        self._rarity = [0] * (topology.num_ranks + 1)
        self._holders = [0] * len(pieces)
        for number, piece in enumerate(pieces):
            owners = [rank for rank, terms in piece.held.items() if terms == piece.complete]
            self._holders[number] = len(owners)
            self._rarity[len(owners)] |= 1 << number
            for rank in owners:
                self._whole[rank] |= 1 << number
            for rank in wants:
                self._open[rank] |= 0 if rank in owners else 1 << number
        self._free_us = [0.0] * topology.num_resources
        self._events: list[tuple[float, int]] = [(0.0, -1)]
        self._arriving: dict[int, tuple[int, int, int]] = {}
        self._messages: list[Message] = []
        # When a part of a sum began to come to a rank, and until when a rank gives one away.
        self._coming_us: dict[tuple[int, int], float] = {}
        self._given_until_us: dict[tuple[int, int], float] = {}

    def run(self) -> tuple[Message, ...] | None:
        """All messages, or None if the flood comes to an end before all have everything."""
        while self._events:
            now = self._events[0][0]
            while self._events and self._events[0][0] <= now:
                self._arrive(heapq.heappop(self._events)[1])
            self._start_all(now)
        everything = (1 << len(self._pieces)) - 1
        return tuple(self._messages) if all(self._whole[rank] == everything for rank in self._wants) else None

    def _arrive(self, message: int) -> None:
        if message not in self._arriving:
            return
        piece, rank, terms = self._arriving.pop(message)
        held = self._held[piece]
        held[rank] = held.get(rank, 0) | terms
        if held[rank] == self._pieces[piece].complete:
            self._whole[rank] |= 1 << piece
            self._rarity[self._holders[piece]] &= ~(1 << piece)
            self._holders[piece] += 1
            self._rarity[self._holders[piece]] |= 1 << piece
        else:
            self._open[rank] |= 1 << piece

    def _start_all(self, now: float) -> None:
        """Start messages until none can, the most urgent first."""
        candidates = []
        spare = [self._rarest_kept(rank) for rank in range(self._topology.num_ranks)]
        for link, (one, resources) in enumerate(zip(self._topology.links, self._topology.resources_of, strict=True)):
            if self._open[one.dst] and all(self._free_us[resource] <= now for resource in resources):
                choice = self._choose(link, now)
                if choice is not None:
                    candidates.append(
                        (
                            choice[0],
                            -spare[one.src] - spare[one.dst] if choice[0] < 0 else -spare[one.dst],
                            -self._open[one.dst].bit_count(),
                            (one.dst - one.src) % self._topology.num_ranks,
                            link,
                        )
                    )
        count_work("matched", len(candidates))
        carried = [dict(held) for held in self._held] if any(choice[0] < 0 for choice in candidates) else self._held
        for *_, link in sorted(candidates):
            one, resources = self._topology.links[link], self._topology.resources_of[link]
            if any(self._free_us[resource] > now for resource in resources):
                continue
            choice = self._choose(link, now)
            if choice is not None:
                self._start(link, choice[1], carried[choice[1]][one.src], now)

    def _rarest_kept(self, rank: int) -> int:
        """Number of ranks that have the rarest piece that a rank has and others lack; more than all of them if there is none."""
        kept = self._whole[rank]
        for rarity, pieces in enumerate(self._rarity[: len(self._wants)]):
            if kept & pieces:
                return rarity
        return len(self._wants)

    def _choose(self, link: int, now: float) -> tuple[int, int] | None:
        """The most urgent piece for a link, with its rarity; below 0 if it completes a sum."""
        src, dst = self._topology.links[link].src, self._topology.links[link].dst
        unfinished = self._unfinished(link, src, dst, now)
        if unfinished is not None:
            return -1, unfinished
        useful = self._whole[src] & self._open[dst]
        if not useful:
            return None
        for rarity, pieces in enumerate(self._rarity):
            found = useful & pieces
            if found:
                # Ranks begin at different places, so that not all pass on the same.
                turned = found >> (dst * len(self._pieces) // self._topology.num_ranks)
                lowest = turned & -turned if turned else found & -found
                shift = found.bit_length() - turned.bit_length() if turned else 0
                return rarity, lowest.bit_length() - 1 + shift
        return None

    def _unfinished(self, link: int, src: int, dst: int, now: float) -> int | None:
        """A piece of which the two ranks hold all between them, and neither holds all.

        Nothing may come to its sender while it is on its path, unless both began together, nor change what its receiver gives away.
        """
        partial = self._open[dst] & ~self._whole[src]
        while partial:
            piece = (partial & -partial).bit_length() - 1
            partial &= partial - 1
            one, other = self._held[piece].get(src, 0), self._held[piece].get(dst, 0)
            if not one or not other or one & other or one | other != self._pieces[piece].complete:
                continue
            end_us = now + self._topology.message_us(link, self._pieces[piece].size_bytes)
            if self._coming_us.get((piece, src), now) >= now and self._given_until_us.get((piece, dst), 0.0) <= end_us:
                return piece
        return None

    def _start(self, link: int, piece: int, terms: int, now: float) -> None:
        one, whole = self._topology.links[link], self._pieces[piece]
        size = whole.size_bytes
        for resource in self._topology.resources_of[link]:
            self._free_us[resource] = now + self._topology.occupancy_us(resource, size)
            heapq.heappush(self._events, (self._free_us[resource], -1))
        end_us = now + self._topology.message_us(link, size)
        adds = terms != whole.complete
        if adds:
            self._coming_us[piece, one.dst] = now
            self._given_until_us[piece, one.src] = end_us
        self._open[one.dst] &= ~(1 << piece)
        self._arriving[len(self._messages)] = (piece, one.dst, terms)
        heapq.heappush(self._events, (end_us, len(self._messages)))
        self._messages.append(Message(link, whole.chunks, now, end_us, adds, len(whole.chunks) > 1))

"""AllReduce between unequal nodes: everything is summed in the nodes, then at its owner, and goes back along the same paths.

Who owns what and who stands for it in each node is for `taccl_py.synthesis.matching.owner_shards`. Shares are cut into pieces that go one
after the other, so that a slow node's contributions come in time for the others to go on, and the last piece is small. Nodes send
to the node after them first, so that not all of them begin with the same receiver.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from taccl_py.collective import Collective, Kind
from taccl_py.schedule.ir import Schedule
from taccl_py.synthesis.matching.dispatch import Barrier, QueuedMessage, dispatch
from taccl_py.synthesis.matching.owner_shards import OwnerShards
from taccl_py.synthesis.matching.params import PARAMS
from taccl_py.synthesis.templates.site import others_in_turn
from taccl_py.topology.model import Topology
from taccl_py.units import BYTES_PER_MB, MAX_CHUNK_COPIES

_TURN = 1e-6


def owner_schedule(topology: Topology, size_bytes: float, chunks_per_rank: int | None) -> Schedule | None:
    """AllReduce by owners; None if nodes have no links out, or ranks that need a link have none.

    Parameters
    ----------
    topology
        The machine.
    size_bytes
        Size as nccl-tests counts it.
    chunks_per_rank
        How finely data is cut; None for what is fine enough.
    """
    if topology.num_nodes == 1:
        return None
    pieces = min(_pieces(topology, size_bytes), chunks_per_rank or PARAMS.owner_pieces[0])
    # Powers of two, which divide the sizes that are asked for.
    fine = 1 << (PARAMS.owner_chunks * pieces - 1).bit_length()
    most = 1 << max(0, (MAX_CHUNK_COPIES // topology.num_ranks**2).bit_length() - 1)
    collective = Collective(Kind.ALLREDUCE, topology.num_ranks, chunks_per_rank or min(fine, most))
    shards = OwnerShards.of(topology, collective.num_chunks)
    if shards is None:
        return None
    chunk_bytes = collective.chunk_bytes(size_bytes)
    with _uncollected():
        plan = _OwnerPlan(topology, shards, pieces, chunk_bytes / BYTES_PER_MB)
        if not plan.build():
            return None
        messages = tuple(dispatch(topology, plan.first, plan.opening))
        return Schedule(topology, collective, chunk_bytes, messages, ((),) * topology.num_ranks)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without looking for garbage, which would go through millions of messages again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _pieces(topology: Topology, size_bytes: float) -> int:
    """Into how many pieces what a rank owns is cut."""
    messages = 2 * topology.num_ranks * topology.num_nodes
    crossing = next(k for k in topology.links if not topology.is_inside(k))
    data_us = crossing.beta_us_per_mb * size_bytes / topology.num_ranks / BYTES_PER_MB
    for pieces in PARAMS.owner_pieces:
        if (
            pieces * messages <= PARAMS.most_owner_messages
            and pieces * crossing.alpha_us <= PARAMS.most_alpha_part * data_us
        ):
            return pieces
    return 1


@dataclass(frozen=True, slots=True)
class _OwnerSpan:
    """Owners that lie next to each other in a piece of a rail and have one gate in a node.

    Attributes
    ----------
    gate
        The rank.
    owners
        In the order of the buffer.
    turn
        Part of the others of the rail that come before them.
    """

    gate: int
    owners: tuple[int, ...]
    turn: float


class _OwnerPlan:
    """Messages of an AllReduce by owners and what they wait for."""

    def __init__(self, topology: Topology, shards: OwnerShards, pieces: int, chunk_mb: float) -> None:
        self._topology, self._shards, self._chunk_mb = topology, shards, chunk_mb
        self._nodes = topology.node_ranks
        self._node_of = topology.node_of
        self._pieces = pieces
        self._chunks = self._placed()
        rates = shards.rate[shards.rate > 0]
        self._is_slow: list[bool] = (shards.rate < PARAMS.slow_gate_rate * float(np.median(rates))).tolist()
        self._parts = [self._groups(ranks) for ranks in self._nodes]
        self._is_whole = True
        self.first: list[QueuedMessage] = []
        self.opening: list[Barrier] = []

    def build(self) -> bool:
        """Plan all messages; False if a link is missing."""
        for piece in range(self._pieces):
            for rail in self._shards.rails:
                self._add_piece(rail, piece)
                if not self._is_whole:
                    return False
        return True

    def _placed(self) -> list[list[tuple[int, ...]]]:
        """Chunks of every owner's pieces, [piece][rank]: rail after rail, in each piece after piece, owner after owner."""
        found: list[list[tuple[int, ...]]] = [[()] * len(self._node_of) for _ in range(self._pieces)]
        at = 0
        for rail in self._shards.rails:
            for piece in range(self._pieces):
                for owner in rail:
                    owned = int(self._shards.owned[owner])
                    size = owned * (piece + 1) // self._pieces - owned * piece // self._pieces
                    found[piece][owner] = tuple(range(at, at + size))
                    at += size
        return found

    def _add_piece(self, rail: Sequence[int], piece: int) -> None:
        """A piece of what a rail owns; times are counted in times that it takes to sum everything."""
        length = 1 / self._pieces
        # Sums are one piece ahead of handing out: first, second, first handed out, third, second handed out, and so on.
        sum_at = length * (piece + max(piece - 1, 0))
        hand_out_at = length * (min(piece + 2, self._pieces) + piece) - PARAMS.hand_out_ahead
        summed = {owner: Barrier() for owner in rail if self._chunks[piece][owner]}
        for node in range(len(self._nodes)):
            for span in self._spans(node, rail, piece):
                first_at, last_at = sum_at + length * span.turn, hand_out_at + length * (1 - span.turn)
                ready = self._sum_inside(node, span, piece, first_at)
                came = Barrier()
                self._hand_out_inside(node, span, piece, last_at, came)
                for owner in span.owners:
                    ahead = (self._node_of[owner] - node) % len(self._nodes) / len(self._nodes)
                    if owner == span.gate:
                        summed[owner].after(ready)
                        came.after(summed[owner])
                        continue
                    chunks = self._chunks[piece][owner]
                    # A slow gate is at it all the time, and is let go first.
                    is_slow = self._is_slow[span.gate]
                    at = 2 * length * (piece + ahead) if is_slow else sum_at + length * ahead
                    self._send(span.gate, owner, chunks, True, at, ready, summed[owner])
                    at = hand_out_at + (0.0 if is_slow else length * (1 - ahead))
                    self._send(owner, span.gate, chunks, False, at, summed[owner], came)

    def _spans(self, node: int, rail: Sequence[int], piece: int) -> Iterator[_OwnerSpan]:
        """Owners of a rail from the node after this one on, around the end, in groups."""
        order = sorted(
            (owner for owner in rail if self._chunks[piece][owner]),
            key=lambda owner: ((self._node_of[owner] - node - 1) % len(self._nodes), owner),
        )
        few = PARAMS.group_ends if piece in (0, self._pieces - 1) else PARAMS.few_group_ends
        parts = max(self._parts[node], few, key=len)
        edges = {0} | {round(part * len(order)) for part in parts}
        gate = self._shards.gate_of[node]
        for place, (one, two) in enumerate(pairwise(order), start=1):
            if two < one or gate[one] != gate[two]:
                edges.add(place)
        for begin, end in pairwise(sorted(edges)):
            owners = tuple(order[begin:end])
            yield _OwnerSpan(int(gate[owners[0]]), owners, begin / len(order))

    def _groups(self, ranks: Sequence[int]) -> tuple[float, ...]:
        """Ends of groups of receivers in a node with a slow gate, as many as alphas inside the node allow; none elsewhere."""
        if not any(self._is_slow[rank] for rank in ranks):
            return ()
        inside = [self._topology.links_between.get((one, two), ()) for one in ranks for two in ranks]
        slowest = max((link for lanes in inside for link in lanes), key=lambda link: self._us(link, 1.0), default=None)
        if slowest is None:
            return ()
        piece_mb = float(self._shards.owned.sum()) * self._chunk_mb / len(ranks) / self._pieces
        alpha_us = self._us(slowest, 0.0)
        most = (
            PARAMS.most_alpha_part * (self._us(slowest, piece_mb) - alpha_us) / alpha_us
            if alpha_us > 0
            else PARAMS.most_groups
        )
        number = int(min(PARAMS.most_groups, most))
        return tuple(place / number for place in range(1, number + 1))

    def _us(self, link: int, megabytes: float) -> float:
        return self._topology.message_us(link, megabytes * BYTES_PER_MB)

    def _sum_inside(self, node: int, span: _OwnerSpan, piece: int, urgency: float) -> Barrier:
        """Everyone in a node adds what it has to the gate."""
        ready = Barrier()
        chunks = self._together(span, piece)
        for turn, rank in enumerate(others_in_turn(span.gate, self._nodes[node])):
            self._send(rank, span.gate, chunks, True, urgency + _TURN * turn, None, ready)
        if not ready.missing:
            self.opening.append(ready)
        return ready

    def _hand_out_inside(self, node: int, span: _OwnerSpan, piece: int, urgency: float, came: Barrier) -> None:
        chunks = self._together(span, piece)
        for turn, rank in enumerate(others_in_turn(span.gate, self._nodes[node])):
            self._send(span.gate, rank, chunks, False, urgency + _TURN * turn, came, None)

    def _together(self, span: _OwnerSpan, piece: int) -> tuple[int, ...]:
        """Chunks of neighbouring owners."""
        own = self._chunks[piece]
        return tuple(range(own[span.owners[0]][0], own[span.owners[-1]][-1] + 1))

    def _send(
        self, src: int, dst: int, chunks: tuple[int, ...], reduce: bool, urgency: float,
        after: Barrier | None, tells: Barrier | None,
    ) -> None:  # fmt: skip
        lanes = self._topology.links_between.get((src, dst))
        if lanes is None:
            self._is_whole = False
            return
        message = QueuedMessage(lanes[0], chunks, reduce, len(chunks) * self._chunk_mb, urgency, tells)
        if tells is not None:
            tells.missing += 1
        if after is None:
            self.first.append(message)
        else:
            message.wait(after)

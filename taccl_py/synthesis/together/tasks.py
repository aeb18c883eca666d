"""Tasks of process groups, and how much of it must go from some of their ranks to the others."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from taccl_py.collective import Collective, Kind
from taccl_py.demand import DataDemand
from taccl_py.demand.variable import of_collective
from taccl_py.synthesis.demands import KnownDemand
from taccl_py.synthesis.demands.classes import ChunkClass, classes_of
from taccl_py.units import ALIGNED_BYTES


@dataclass(frozen=True)
class GroupTask:
    """A process group and what it does.

    Attributes
    ----------
    ranks
        Ranks of the machine, in the group's order.
    what
        One of the eight collectives, or a demand between as many ranks.
    release_us
        When it may start.
    """

    ranks: tuple[int, ...]
    what: KnownDemand | DataDemand
    release_us: float = 0.0

    @cached_property
    def demand(self) -> DataDemand:
        """Its task as a demand; of a collective whose chunks are no whole units of bytes a little more."""
        if isinstance(self.what, DataDemand):
            return self.what
        known = self.what
        collective = Collective(known.kind, len(self.ranks), 1, known.root)
        chunk_bytes = math.ceil(known.size_bytes / collective.chunks_per_size / ALIGNED_BYTES) * ALIGNED_BYTES
        return of_collective(collective, chunk_bytes, "float32" if collective.reduces else "uint8")

    @cached_property
    def _classes(self) -> tuple[ChunkClass, ...]:
        return classes_of(self.demand)

    def crossing_bytes(self, near: Collection[int]) -> float:
        """Bytes that must go from ranks of the machine to all its other ranks: what is wanted there and has a term only here."""
        is_near = [rank in near for rank in self.ranks]
        if all(is_near) or not any(is_near):
            return 0.0
        if isinstance(self.what, KnownDemand):
            return self.what.size_bytes * _crossing(self.what.kind, is_near, self.what.root)
        return float(
            sum(
                each.size_bytes
                for each in self._classes
                if any(not is_near[want] for want in each.wants)
                and any(all(is_near[holder] for holder in term) for term in each.terms)
            )
        )

    def transfer_bytes(self, node_of: Sequence[int]) -> float:
        """Least number of bytes that go from node to node, each as often as it does.

        What a rank has must get into every other node that wants it; a sum must be gathered from as many and handed out to as many.

        Parameters
        ----------
        node_of
            Node of every rank of the machine.
        """
        nodes = [node_of[rank] for rank in self.ranks]
        if isinstance(self.what, KnownDemand):
            return self.what.size_bytes * _transfers(self.what.kind, nodes, self.what.root)
        return float(sum(each.size_bytes * _least_transfers(each, nodes) for each in self._classes))


def _least_transfers(each: ChunkClass, node_of: Sequence[int]) -> int:
    """Nodes that must get a class from others, or give it to others, whichever are more."""
    terms = [{node_of[rank] for rank in term} for term in each.terms]
    wants = {node_of[rank] for rank in each.wants}
    into = sum(any(node not in term for term in terms) for node in wants)
    out_of = {next(iter(term)) for term in terms if len(term) == 1}
    return max(into, sum(bool(wants - {node}) for node in out_of))


def _transfers(kind: Kind, node_of: Sequence[int], root: int) -> float:
    """Least multiple of a group's size that goes from node to node."""
    members = np.unique(np.array(node_of), return_counts=True)[1]
    size, others = len(node_of), len(members) - 1
    if kind in (Kind.GATHER, Kind.SCATTER):
        return sum(node != node_of[root] for node in node_of) / size
    if kind is Kind.ALLTOALL:
        return (size * size - int((members * members).sum())) / size
    return (2.0 if kind is Kind.ALLREDUCE else 1.0) * others


def _crossing(kind: Kind, is_near: Sequence[bool], root: int) -> float:
    """Part of its size that a group with ranks on both sides has to send from its near ranks to the others."""
    near, size = sum(is_near), len(is_near)
    far = size - near
    shares = {
        Kind.ALLREDUCE: 1.0,
        Kind.ALLGATHER: near / size,
        Kind.REDUCESCATTER: far / size,
        Kind.ALLTOALL: near * far / size,
        Kind.BROADCAST: float(is_near[root]),
        Kind.REDUCE: float(not is_near[root]),
        Kind.SCATTER: far / size * is_near[root],
        Kind.GATHER: near / size * (not is_near[root]),
    }
    return shares[kind]

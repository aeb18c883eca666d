"""Translations: commuting symmetries of a machine that take any rank to any other in exactly one way.

A group of commuting permutations that takes some rank to every other one is *regular*: it has as many elements as there are
ranks, and only its identity leaves a rank in place. So an element is known by what it does to one rank, and none of them has to
be written down: ranks get coordinates, one for each generator, and an element adds to them. Shifts of rings and tori (twisted
ones too), exchanges of bits of a hypercube, rotations of nodes and of the ranks in all nodes are such groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taccl_py.topology.automorphism import LinkImages
from taccl_py.topology.model import Topology

IntArray = NDArray[np.int64]

# Entries of the table of coordinates; generators that are no basis make it larger than the number of ranks.
_MOST_ENTRIES = 1 << 24


@dataclass(frozen=True, eq=False)
class Translations:
    """A regular group of commuting rank permutations.

    Attributes
    ----------
    generators
        Permutations that generate it.
    orders
        How often each has to be applied to change nothing.
    place
        Coordinates of every rank: how often each generator takes rank 0 there, [rank, generator].
    rank_at
        Rank at every combination of coordinates, the last one running fastest.
    """

    generators: tuple[tuple[int, ...], ...]
    orders: tuple[int, ...]
    place: IntArray
    rank_at: IntArray

    @staticmethod
    def of(images: Sequence[tuple[int, ...]], num_ranks: int) -> Translations | None:
        """Return the group of those permutations that commute with the ones before them; None if it is not regular."""
        kept: list[IntArray] = []
        for image in images:
            array = np.array(image, dtype=np.int64)
            if all(np.array_equal(array[other], other[array]) for other in kept):
                kept.append(array)
        rank_at = np.zeros(1, dtype=np.int64)
        orders = []
        for array in kept:
            order = _cycle(array)
            if order * len(rank_at) > _MOST_ENTRIES:
                return None
            rows = [rank_at]
            for _ in range(order - 1):
                rows.append(array[rows[-1]])
            rank_at = np.stack(rows, axis=1).reshape(-1)
            orders.append(order)
        ranks, first = np.unique(rank_at, return_index=True)
        if len(ranks) < num_ranks:
            return None
        place = np.stack(np.unravel_index(first, tuple(orders)), axis=1).astype(np.int64)
        return Translations(tuple(tuple(array.tolist()) for array in kept), tuple(orders), place, rank_at)

    def carried(self, start: IntArray | int, end: IntArray | int, ranks: IntArray | int) -> IntArray:
        """Where ranks go under the elements that take each `start` to its `end`; arguments are broadcast."""
        there = (self.place[end] - self.place[start] + self.place[ranks]) % np.array(self.orders, dtype=np.int64)
        index = np.ravel_multi_index(tuple(np.moveaxis(there, -1, 0)), self.orders)
        found: IntArray = self.rank_at[index]
        return found


def _cycle(image: IntArray) -> int:
    """How often a permutation has to be applied to take rank 0 back to where it was."""
    rank, order = int(image[0]), 1
    while rank:
        rank, order = int(image[rank]), order + 1
    return order


def translations_of(topology: Topology) -> Translations | None:
    """Translations among the symmetries that the machine is believed to have, those that fail the test left out."""
    images = LinkImages(topology)
    return Translations.of([g for g in topology.symmetry if not isinstance(images.of(g), str)], topology.num_ranks)

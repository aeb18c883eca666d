"""Translations: commuting symmetries of a machine that leave no rank in place.

A group of commuting permutations of which only the identity leaves some rank in place is *free*: every rank can be taken to as many
others as there are elements, by one of them each. Ranks that can be taken to each other have the same *role*. If all have, the group
is *regular*: shifts of rings and tori (twisted ones too), exchanges of bits of a hypercube, rotations of nodes and of the ranks in
all nodes. Where nodes are equal and the ranks of a node are not, rotations of nodes are free: ranks have as many roles as a node
has ranks.

An element is known by what it does to one rank, and none of them has to be written down: ranks get a role and coordinates, one for
each generator, and an element adds to the coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from taccl_py.arrays import IntArray
from taccl_py.topology.automorphism import LinkImages
from taccl_py.topology.model import Topology

# Entries of the table of coordinates; generators that are no basis make it larger than the number of ranks.
_MOST_ENTRIES = 1 << 24


@dataclass(frozen=True, eq=False)
class Translations:
    """A free group of commuting rank permutations.

    Attributes
    ----------
    generators
        Permutations that generate it.
    orders
        How often each has to be applied to change nothing.
    roots
        Smallest rank of every role.
    role
        Number of every rank's role.
    place
        Coordinates of every rank: how often each generator takes the root of its role there, [rank, generator].
    rank_at
        Rank of every role at every combination of coordinates, the last one running fastest, [role, combination].
    """

    generators: tuple[tuple[int, ...], ...]
    orders: tuple[int, ...]
    roots: tuple[int, ...]
    role: IntArray
    place: IntArray
    rank_at: IntArray

    @property
    def size(self) -> int:
        """Number of its elements."""
        return len(self.role) // len(self.roots)

    @property
    def is_regular(self) -> bool:
        """True if all ranks have the same role."""
        return len(self.roots) == 1

    @staticmethod
    def of(images: Sequence[tuple[int, ...]], num_ranks: int) -> Translations | None:
        """Return the group of those permutations that commute with the ones before them; None if it is not free, or trivial."""
        kept: list[IntArray] = []
        for image in images:
            array = np.array(image, dtype=np.int64)
            if all(np.array_equal(array[other], other[array]) for other in kept):
                kept.append(array)
        orders = tuple(_cycle(array, 0) for array in kept)
        entries = math.prod(orders)
        if entries == 1 or entries > _MOST_ENTRIES:
            return None
        reached = _walk(kept, orders, 0)
        # Coordinates that lead to one rank in one role have to do so in all of them.
        ranks, first, same = np.unique(reached, return_index=True, return_inverse=True)
        role = np.full(num_ranks, -1, dtype=np.int64)
        index = np.zeros(num_ranks, dtype=np.int64)
        roots: list[int] = []
        rows: list[IntArray] = []
        while (role < 0).any():
            root = int(np.argmax(role < 0))
            if len(rows) * entries > _MOST_ENTRIES or orders != tuple(_cycle(array, root) for array in kept):
                return None
            reached = _walk(kept, orders, root)
            members = reached[first]
            if len(np.unique(members)) < len(ranks) or not np.array_equal(members[same.reshape(-1)], reached):
                return None
            role[members], index[members] = len(roots), first
            roots.append(root)
            rows.append(reached)
        place = np.stack(np.unravel_index(index, orders), axis=1).astype(np.int64)
        generators = tuple(tuple(array.tolist()) for array in kept)
        return Translations(generators, orders, tuple(roots), role, place, np.stack(rows))

    def carried(self, start: IntArray | int, end: IntArray | int, ranks: IntArray | int) -> IntArray:
        """Images of ranks under the elements that take each `start` to its `end`, of the same role; arguments are broadcast."""
        there = (self.place[end] - self.place[start] + self.place[ranks]) % np.array(self.orders, dtype=np.int64)
        index = np.ravel_multi_index(tuple(np.moveaxis(there, -1, 0)), self.orders)
        found: IntArray = self.rank_at[self.role[ranks], index]
        return found


def _cycle(image: IntArray, start: int) -> int:
    """Number of times that a permutation has to be applied to take a rank back to where it was."""
    rank, order = int(image[start]), 1
    while rank != start:
        rank, order = int(image[rank]), order + 1
    return order


def _walk(images: Sequence[IntArray], orders: Sequence[int], root: int) -> IntArray:
    """Images of a rank under each combination of the permutations, the last one running fastest."""
    ranks: IntArray = np.array([root], dtype=np.int64)
    for image, order in zip(images, orders, strict=True):
        rows = [ranks]
        for _ in range(order - 1):
            rows.append(image[rows[-1]])
        ranks = np.stack(rows, axis=1).reshape(-1)
    return ranks


# Kept on a topology, which never changes.
_KNOWN = "_translations"


def translations_of(topology: Topology) -> Translations | None:
    """Translations among the symmetries that the machine is believed to have, those that fail the test left out."""
    known = vars(topology)
    if _KNOWN not in known:
        images = LinkImages(topology)
        sound = [g for g in topology.symmetry if not isinstance(images.of(g), str)]
        known[_KNOWN] = Translations.of(sound, topology.num_ranks)
    found: Translations | None = known[_KNOWN]
    return found

"""Estimates of the time that data takes down trees in pieces that follow each other, before they are put in order."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.rounding import TreeSet
from taccl_py.synthesis.trees.transfers import downwards


@dataclass(frozen=True)
class Promise:
    """Time of trees if their fullest link only waits for the first piece to come and the last one to pass on.

    Attributes
    ----------
    time_us
        The time.
    pieces
        Equal pieces of the data of a root with which it is that short.
    """

    time_us: float
    pieces: float


def promise_of(
    network: CapacityNetwork, tree_set: TreeSet, shard_mb: float, most_pieces: float, *, both_directions: bool
) -> Promise:
    """Look at the fullest link and the farthest rank.

    Parameters
    ----------
    network, tree_set
        The machine, and trees that meet in links only.
    shard_mb
        What every root has.
    most_pieces
        There can be no more.
    both_directions
        Whether sums go up the trees before results come down, over links that have to carry both.
    """
    uses = np.zeros(len(network.src))
    hop_us, hop_us_per_mb = network.least_message_us, network.beta.max(axis=1)
    path_us = path_us_per_mb = 0.0
    for tree in tree_set.trees:
        uses[tree.used()] += 1
        reached = {network.roots[tree.root]: (0.0, 0.0)}
        for link in downwards(network, tree.links.tolist(), network.roots[tree.root]):
            fixed_us, us_per_mb = reached[int(network.src[link])]
            reached[int(network.dst[link])] = (fixed_us + float(hop_us[link]), us_per_mb + float(hop_us_per_mb[link]))
        path_us = max(path_us, *(fixed_us for fixed_us, _ in reached.values()))
        path_us_per_mb = max(path_us_per_mb, *(us_per_mb for _, us_per_mb in reached.values()))
    if both_directions:
        uses += uses[np.array(network.problem.topology.reversed_link())]
        path_us, path_us_per_mb = 2 * path_us, 2 * path_us_per_mb
    # With every piece the fullest link takes longer, and data is on its way for a shorter time.
    dearer_us = float((uses * hop_us).max()) / tree_set.parts
    best = math.sqrt(path_us_per_mb * shard_mb / dearer_us) if dearer_us else math.inf
    pieces = max(float(tree_set.parts), min(best, most_pieces))
    time_us = tree_set.load_us * shard_mb + path_us + path_us_per_mb * shard_mb / pieces + dearer_us * pieces
    return Promise(time_us, pieces)

"""Estimates of the time that data takes down trees in pieces that follow each other, before they are put in order."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from taccl_py.synthesis.trees.jobs import downwards
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.rounding import TreeSet


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
    network: CapacityNetwork, forest: TreeSet, share_mb: float, most_pieces: float, *, both_ways: bool
) -> Promise:
    """Look at the fullest link and the farthest rank.

    Parameters
    ----------
    network, forest
        The machine, and trees that meet in links only.
    share_mb
        What every root has.
    most_pieces
        There can be no more.
    both_ways
        Whether sums go up the trees before results come down, over links that have to carry both.
    """
    uses = np.zeros(len(network.src))
    hop_us, hop_us_per_mb = network.least_message_us, network.beta.max(axis=1)
    way_us = way_us_per_mb = 0.0
    for tree in forest.trees:
        uses[tree.used()] += 1
        reached = {network.roots[tree.root]: (0.0, 0.0)}
        for link in downwards(network, tree.links.tolist(), network.roots[tree.root]):
            fixed_us, us_per_mb = reached[int(network.src[link])]
            reached[int(network.dst[link])] = (fixed_us + float(hop_us[link]), us_per_mb + float(hop_us_per_mb[link]))
        way_us = max(way_us, *(fixed_us for fixed_us, _ in reached.values()))
        way_us_per_mb = max(way_us_per_mb, *(us_per_mb for _, us_per_mb in reached.values()))
    if both_ways:
        uses += uses[np.array(network.problem.topology.reversed_link())]
        way_us, way_us_per_mb = 2 * way_us, 2 * way_us_per_mb
    # With every piece the fullest link takes longer, and data is under way less long.
    dearer_us = float((uses * hop_us).max()) / forest.parts
    best = math.sqrt(way_us_per_mb * share_mb / dearer_us) if dearer_us else math.inf
    pieces = max(float(forest.parts), min(best, most_pieces))
    time_us = forest.load_us * share_mb + way_us + way_us_per_mb * share_mb / pieces + dearer_us * pieces
    return Promise(time_us, pieces)

"""Whole trees from a hub that share the links of a machine in both directions, as sums on their way in and results on their way out do.

A tree then loads a link and the one back alike, so what counts is how many trees take either. Such trees are disjoint branchings
(see `disjoint`) once it is settled how many of them take each direction, and it can be settled whenever the trees exist at all
(Frank, "On disjoint trees and arborescences", 1978): every set of ranks without the hub must be entered by as many links as there
are trees. That is a submodular flow (Edmonds and Giles, 1977), a linear program whose corners are whole numbers; its rows are cuts,
found by maximum flows as they are needed. Of all directions those are taken that lead away from the hub by the shortest paths.
"""

from __future__ import annotations

import numpy as np

from taccl_py.arrays import FloatArray, IntArray
from taccl_py.solvers.limits import Limits, Over
from taccl_py.solvers.max_flow import min_cut
from taccl_py.solvers.sparse import Coefficients, SparseProgram
from taccl_py.synthesis.trees.disjoint import grow
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.packing import hops_from
from taccl_py.synthesis.trees.params import PARAMS
from taccl_py.synthesis.trees.rounding import TreeSet
from taccl_py.tolerances import ROUNDED


class HubTrees:
    """Trees from the only root of a machine that costs the same in both directions, and on which trees meet in links only.

    Parameters
    ----------
    network
        The machine.
    limits
        For every program.
    over
        Whether time is up; there are no trees then.
    """

    def __init__(self, network: CapacityNetwork, limits: Limits, over: Over) -> None:
        self._network, self._limits, self._over = network, limits, over
        (self._hub,) = network.roots
        back = network.problem.topology.reversed_link()
        self._pairs = np.array([(link, other) for link, other in enumerate(back) if link < other])
        self._beta = network.beta.max(axis=1)[self._pairs[:, 0]]
        self._others = [rank for rank in range(network.num_ranks) if rank != self._hub]
        # Links that enter sets of ranks; first those that enter one rank.
        self._cuts = [np.flatnonzero(network.dst == rank) for rank in self._others]
        self._least_us: float | None = None

    def least_load_us(self, parts: int | None = None) -> float:
        """Load of the fullest link in us per megabyte that trees cannot be below, or so many trees with equal parts of the data cannot.

        It is infinite if time is up before it is known.
        """
        if self._least_us is None:
            self._least_us = self._fractional_load_us()
        if parts is None:
            return self._least_us
        loads = self._loads(parts)
        return float(loads[0]) if len(loads) else self._least_us

    def grown(self, parts: int, seed: int = 0) -> TreeSet | None:
        """So many whole trees, if time suffices; others by other seeds."""
        self.least_load_us(parts)
        loads = self._loads(parts).tolist()
        # Nearly always the least is enough; all that is above what is enough is so, too.
        low, high, capacities = 0, min(1, len(loads)), None
        while low < high:
            middle = (low + high) // 2
            found = self._directed(self._capacities(loads[middle], parts), parts, seed)
            if found is not None:
                high, capacities = middle, found
            else:
                low, high = middle + 1, len(loads) if capacities is None else high
        if capacities is None or self._over():
            return None
        trees = grow(self._network, capacities, parts, self._over, seed)
        return None if trees is None else TreeSet(trees, parts, loads[high])

    def _loads(self, parts: int) -> FloatArray:
        """Multiples of a part's time on some link that are not below what any trees need."""
        least_us = self._least_us or 0.0
        beta = np.unique(self._beta[self._beta > 0])
        loads = np.unique(np.outer(np.arange(1, parts + 1), beta / parts))
        return np.asarray(loads[loads >= least_us * (1 - ROUNDED)], dtype=np.float64)

    def _capacities(self, load_us: float, parts: int) -> FloatArray:
        """Trees that a pair of links can carry in that time, [pair]."""
        fitting = np.full(len(self._beta), float(parts))
        np.divide(load_us * parts * (1 + ROUNDED), self._beta, out=fitting, where=self._beta > 0)
        whole: FloatArray = np.minimum(np.floor(fitting), parts)
        return whole

    def _fractional_load_us(self) -> float:
        """Least load if trees may be of any weight."""
        links, pairs = len(self._network.src), len(self._pairs)
        cost = np.zeros(links + 1)
        cost[links] = 1.0
        # The last column is the load: what goes in either direction is at most what is carried in that time.
        per_us = np.divide(1.0, self._beta, out=np.zeros(pairs), where=self._beta > 0)
        most = np.where(self._beta > 0, 0.0, 2.0)
        rows = np.arange(pairs)
        load = Coefficients(rows, np.full(pairs, links), -per_us)
        amounts = self._solved(self._program(cost, np.full(pairs, -np.inf), most, load), 1)
        return float("inf") if amounts is None else float(amounts[links])

    def _directed(self, capacities: FloatArray, parts: int, seed: int) -> IntArray | None:
        """Numbers of trees that can take each link so that all can be completed, [link]; None if no division over directions is enough."""
        network = self._network
        hops = hops_from(network, 0)
        # How much longer a path is for taking this link, in hops.
        detour = np.maximum(0.0, hops[network.src] + 1 - hops[network.dst])
        cost = detour + PARAMS.path_noise * np.random.default_rng(seed).random(len(detour))
        amounts = self._solved(self._program(cost, capacities, capacities), parts)
        if amounts is None:
            return None
        whole = np.rint(amounts).astype(np.int64)
        return whole if np.allclose(whole, amounts, atol=1e-4) else None

    def _program(
        self, cost: FloatArray, low: FloatArray, high: FloatArray, more: Coefficients | None = None
    ) -> SparseProgram:
        """Program for amounts on links that are so much, both directions together."""
        rows = np.repeat(np.arange(len(self._pairs)), 2)
        both = Coefficients(rows, self._pairs.reshape(-1), np.ones(len(rows)))
        parts = [both] if more is None else [both, more]
        matrix = Coefficients(
            *(np.concatenate([getattr(p, name) for p in parts]) for name in ("row", "column", "value"))
        )
        program = SparseProgram(cost, matrix, low, high)
        for link in np.flatnonzero(~self._network.permitted.any(axis=0)).tolist():
            program.set_upper(link, 0.0)
        return program

    def _solved(self, program: SparseProgram, wanted: int) -> FloatArray | None:
        """Best amounts with which so much gets from the hub to every rank; None if there are none, or no time."""
        network = self._network
        for cut in self._cuts:
            program.add_row(cut, wanted)
        while not self._over():
            optimum = program.solve(self._limits)
            if optimum is None:
                return None
            amounts = np.maximum(0.0, optimum.values[: len(network.src)])
            new = self._narrow_cuts(amounts, wanted)
            if not new:
                return optimum.values
            for cut in new:
                program.add_row(cut, wanted)
            self._cuts += new
        return None

    def _narrow_cuts(self, amounts: FloatArray, wanted: int) -> list[IntArray]:
        """Links that enter sets of ranks to which less gets."""
        network = self._network
        found: dict[bytes, IntArray] = {}
        for rank in self._others:
            cut = min_cut(network.src, network.dst, amounts, self._hub, rank)
            if cut.flow < wanted * (1 - ROUNDED):
                links = np.flatnonzero(cut.near[network.src] & ~cut.near[network.dst])
                found[links.tobytes()] = links
        return list(found.values())

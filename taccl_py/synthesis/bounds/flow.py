"""Bandwidth of AllToAll: the multicommodity flow that every schedule would have to be.

A schedule sends what source s has over links; that is a flow from s which leaves at every rank what it wants from s. The
least possible largest load of a link or port is a linear program. Its dual gives weights y of the resources: with
``sum of y_r * beta_r`` as the length of a link, all that has to move, times its shortest path, is a lower bound on the weighted
load of every flow, and hence (`taccl_py.synthesis.bounds.charge`) on the time. The program is solved by generating columns of shortest
ways; each round's weights are a bound of their own, whatever the solver's tolerances are.

Sources that a symmetry exchanges are one, and so are resources (averaging a flow over the group keeps it a flow), so the
program of a large symmetric machine is tiny, and the bound holds for all schedules, symmetric or not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taccl_py.arrays import BoolArray, FloatArray, IntArray
from taccl_py.collective import Kind
from taccl_py.solvers.columns import ColumnProgram
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds.bound import Bound
from taccl_py.synthesis.bounds.charge import Charge, idle_times
from taccl_py.synthesis.bounds.net import Net, OrbitMembers
from taccl_py.synthesis.problem import Problem

_REASON = "bandwidth: the flow of everything from everyone to everyone over all links and ports"
# Pairs of a source and a link, summed over all rounds, that are looked at; a round costs about a microsecond for each.
_MOST_WORK = 2_000_000
_MOST_ROUNDS = 150
# The program is solved when the bound has come this close to the objective.
_CLOSE = 1e-8
# Length added to every link, as a share of the longest, so that of equally short ways one with few links is taken.
_HOP = 1e-11
# Ways that are longer by this share still count as short.
_TIGHT = 1e-13


@dataclass(frozen=True)
class FlowTraffic:
    """Data that have to move, up to symmetry.

    Attributes
    ----------
    net, orbits
        The machine and what a symmetry of machine and traffic exchanges.
    wants
        Megabytes that a rank wants from each of ``orbits.ranks()``, [source, rank].
    usable
        Links that the data of these sources may use, [source, link]; all if None.
    """

    net: Net
    orbits: OrbitMembers
    wants: FloatArray
    usable: BoolArray | None = None


def flow_bound(problem: Problem, limits: Limits) -> Bound | None:
    """Bound of an AllToAll's chunks under the sketch's restrictions, or None for other collectives."""
    if problem.collective.kind is not Kind.ALLTOALL:
        return None
    orbits = OrbitMembers.of_images(problem.topology, [(g.rank, g.resource) for g in problem.generators])
    wants, usable = problem.amounts_by_source(1.0)
    traffic = FlowTraffic(Net.of(problem.topology), orbits, wants[orbits.ranks()], usable[orbits.ranks()])
    return flow_charge(traffic, limits).at(problem.chunk_bytes)


def alltoall_charge(net: Net, orbits: OrbitMembers, limits: Limits) -> Charge:
    """Bound on the bandwidth of every AllToAll on a machine, for each megabyte of size."""
    wants = np.full((len(orbits.ranks()), net.num_ranks), 1 / net.num_ranks)
    return flow_charge(FlowTraffic(net, orbits, wants), limits)


def flow_charge(traffic: FlowTraffic, limits: Limits) -> Charge:
    """Solve the program and return the best weights found by the end of the limits."""
    net = traffic.net
    solving = _Solving(traffic)
    orbits = traffic.orbits
    best = solving.ways(orbits.shared(orbits.size / len(orbits.number)))
    program = ColumnProgram([1.0] * len(traffic.wants), len(orbits.size))
    deadline = limits.deadline()
    ways = best
    rounds = min(_MOST_ROUNDS, _MOST_WORK // max(1, len(traffic.wants) * net.num_links))
    for _ in range(rounds):
        for source, load in enumerate(ways.loads):
            program.add(source, load)
        master = program.solve()
        if best.amount >= master.objective * (1 - _CLOSE) or deadline.over():
            break
        ways = solving.ways(orbits.shared(master.prices))
        best = max(best, ways, key=lambda one: one.amount)
    everywhere = np.zeros(net.num_ranks)
    idle_us = idle_times(net, everywhere, everywhere)
    return Charge(best.weights, idle_us, solving.amount(solving.lengths(best.weights)), _REASON)


@dataclass(frozen=True)
class _ShortestPaths:
    """Shortest paths for some weights.

    Attributes
    ----------
    weights
        Of every resource; they add up to 1.
    amount
        All that has to move, times its shortest path (up to `_HOP`).
    loads
        Load of every orbit of resources if the traffic of a source takes these ways, [source, orbit].
    """

    weights: FloatArray
    amount: float
    loads: FloatArray


class _Solving:
    """Shortest-path trees of a traffic."""

    def __init__(self, traffic: FlowTraffic) -> None:
        self.traffic, self.net = traffic, traffic.net
        sources = np.array(traffic.orbits.ranks(), dtype=np.int64)
        self.starts = np.arange(self.net.num_ranks)[None, :] == sources[:, None]
        _, self.members = np.unique(traffic.orbits.rank, return_counts=True)
        self.wants = np.where(self.starts, 0.0, traffic.wants)

    def lengths(self, weights: FloatArray) -> FloatArray:
        """Length of every link."""
        return self.net.sum_over_links(weights * self.net.beta_us_per_mb)

    def amount(self, lengths: FloatArray) -> float:
        """All that has to move, times its shortest path."""
        return self._amount(self.net.quickest(self.starts, lengths, self.traffic.usable))

    def _amount(self, distance: FloatArray) -> float:
        return float((np.where(self.wants > 0, distance, 0.0) * self.wants).sum(axis=1) @ self.members)

    def ways(self, weights: FloatArray) -> _ShortestPaths:
        """Shortest paths of all traffic when links have the lengths that the weights give them."""
        lengths = self.lengths(weights)
        lengths += _HOP * float(lengths.max(initial=1e-30))
        distance = self.net.quickest(self.starts, lengths, self.traffic.usable)
        flow = self._even_flow(distance, lengths)
        busy = (self.net.sum_over_resources(one) * self.net.beta_us_per_mb for one in flow)
        loads = np.stack([self.traffic.orbits.load(one) for one in busy]) * self.members[:, None]
        return _ShortestPaths(weights, self._amount(distance), np.asarray(loads, dtype=np.float64))

    def _even_flow(self, distance: FloatArray, lengths: FloatArray) -> FloatArray:
        """Flow over every link when all shortest paths into a rank share what it needs, [source, link]."""
        net = self.net
        before, after = distance[:, net.src], distance[:, net.dst]
        tight = (before < after) & (before + lengths <= after * (1 + _TIGHT))
        if self.traffic.usable is not None:
            tight &= self.traffic.usable
        share = tight / np.maximum(1, _sums(tight.astype(np.float64), net.dst, net.num_ranks))[:, net.dst]
        through = self.wants
        while True:
            flow = share * through[:, net.dst]
            more = self.wants + _sums(flow, net.src, net.num_ranks)
            if np.array_equal(more, through):
                return np.asarray(flow, dtype=np.float64)
            through = more


def _sums(values: FloatArray, key: IntArray, size: int) -> FloatArray:
    """Sums of the columns with the same key, [row, key]."""
    rows = len(values)
    index = np.arange(rows)[:, None] * size + key[None, :]
    summed = np.bincount(index.reshape(-1), weights=values.reshape(-1), minlength=rows * size)
    return np.asarray(summed.reshape(rows, size), dtype=np.float64)

"""Bandwidth of AllToAll: the multicommodity flow that every schedule would have to be.

A schedule sends what source s has over links; that is a flow from s which leaves at every rank what it wants from s. The
least possible largest load of a link or port is a linear program. Its dual gives weights y of the resources: with
``sum of y_r * beta_r`` as the length of a link, all that has to move, times its shortest way, is a lower bound on the weighted
load of every flow, and hence (`taccl_py.synthesis.bounds.charge`) on the time. The program is solved by generating shortest-path
trees; each round's weights are a bound of their own, whatever the solver's tolerances are.

Sources that a symmetry exchanges are one, and so are resources (averaging a flow over the group keeps it a flow), so the
program of a large symmetric machine is tiny, and the bound holds for all schedules, symmetric or not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taccl_py.collective import Kind
from taccl_py.solvers.columns import ColumnProgram
from taccl_py.solvers.limits import Deadline, Limits
from taccl_py.synthesis.bounds.bound import Bound
from taccl_py.synthesis.bounds.charge import Charge, idle_times
from taccl_py.synthesis.bounds.net import BoolArray, FloatArray, Net, OrbitImage, Orbits
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.symmetry import IntArray

_REASON = "bandwidth: the flow of everything from everyone to everyone over all links and ports"
# Pairs of a source and a link, summed over all rounds, that are looked at: about as many nanoseconds, times ten.
_MOST_WORK = 100_000_000
_FEWEST_ROUNDS, _MOST_ROUNDS = 3, 150
# The program is solved when the bound has come this close to the objective.
_CLOSE = 1e-10
# Length added to every link, as a share of the longest, so that of equally short ways one with few links is taken.
_HOP = 1e-11


@dataclass(frozen=True)
class Traffic:
    """What has to move, up to symmetry.

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
    orbits: Orbits
    wants: FloatArray
    usable: BoolArray | None = None


def flow_bound(problem: Problem, limits: Limits) -> Bound | None:
    """Bound of an AllToAll's chunks under the sketch's restrictions, or None for other collectives."""
    collective, topology = problem.collective, problem.topology
    if collective.kind is not Kind.ALLTOALL:
        return None
    images = [OrbitImage.of(topology, g.rank, g.link, g.port) for g in problem.generators]
    orbits = Orbits.of_images(topology, images)
    source = np.array(collective.source, dtype=np.int64)
    usable = np.zeros((topology.num_ranks, len(topology.links)), dtype=bool)
    np.logical_or.at(usable, source, problem.permitted)
    wants = np.zeros((topology.num_ranks, topology.num_ranks))
    sink = np.array([ranks[0] for ranks in collective.wanted], dtype=np.int64)
    np.add.at(wants, (source, sink), 1.0)
    traffic = Traffic(Net.of(topology), orbits, wants[orbits.ranks()], usable[orbits.ranks()])
    return flow_charge(traffic, limits).at(problem.chunk_bytes)


def alltoall_charge(net: Net, orbits: Orbits, limits: Limits) -> Charge:
    """Bound on the bandwidth of every AllToAll on a machine, for each megabyte of size."""
    wants = np.full((len(orbits.ranks()), net.num_ranks), 1 / net.num_ranks)
    return flow_charge(Traffic(net, orbits, wants), limits)


def flow_charge(traffic: Traffic, limits: Limits) -> Charge:
    """Solve the program and return the best weights found by the end of the limits."""
    net = traffic.net
    solving = _Solving(traffic)
    best = solving.ways(solving.weights_of(np.bincount(solving.orbit) / len(solving.orbit)))
    program = ColumnProgram(len(traffic.wants), solving.num_orbits)
    deadline = Deadline(limits.seconds)
    ways = best
    rounds = max(_FEWEST_ROUNDS, min(_MOST_ROUNDS, _MOST_WORK // max(1, len(traffic.wants) * net.num_links)))
    for _ in range(rounds):
        for source, load in enumerate(ways.loads):
            program.add(source, load)
        master = program.solve()
        if best.amount >= master.objective * (1 - _CLOSE) or deadline.left <= 0 or limits.stop.is_set():
            break
        ways = solving.ways(solving.weights_of(master.prices))
        best = max(best, ways, key=lambda one: one.amount)
    everywhere = np.zeros(net.num_ranks)
    return Charge(best.weights, idle_times(net, everywhere, everywhere), best.amount, _REASON)


@dataclass(frozen=True)
class _Ways:
    """Shortest ways for some weights.

    Attributes
    ----------
    weights
        Of every resource; they add up to 1.
    amount
        All that has to move, times its shortest way.
    loads
        Load of every orbit of resources if the traffic of a source takes these ways, [source, orbit].
    """

    weights: FloatArray
    amount: float
    loads: FloatArray


class _Solving:
    """Shortest-path trees of a traffic."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic, self.net = traffic, traffic.net
        _, self.orbit = np.unique(traffic.orbits.resource, return_inverse=True)
        self.orbit_size = np.bincount(self.orbit).astype(np.float64)
        self.num_orbits = len(self.orbit_size)
        sources = np.array(traffic.orbits.ranks(), dtype=np.int64)
        self.starts = np.arange(self.net.num_ranks)[None, :] == sources[:, None]
        _, self.members = np.unique(traffic.orbits.rank, return_counts=True)
        self.wants = np.where(self.starts, 0.0, traffic.wants)

    def weights_of(self, prices: FloatArray) -> FloatArray:
        """Weights of the resources when each orbit shares its price."""
        found: FloatArray = (prices / self.orbit_size)[self.orbit]
        return found

    def ways(self, weights: FloatArray) -> _Ways:
        """Shortest ways of all traffic when links have the lengths that the weights give them."""
        net = self.net
        lengths = net.sum_over_links(weights * net.beta_us_per_mb)
        hop = _HOP * float(lengths.max(initial=1e-30))
        distance = net.quickest(self.starts, lengths + hop, self.traffic.usable)
        certain = np.maximum(0.0, distance - hop * (net.num_ranks - 1))
        amount = float((np.where(self.wants > 0, certain, 0.0) * self.wants).sum(axis=1) @ self.members)
        flow = self._tree_flow(distance, lengths + hop)
        loads = np.stack([self._orbit_loads(one) for one in flow]) * self.members[:, None]
        return _Ways(weights, amount, np.asarray(loads, dtype=np.float64))

    def _orbit_loads(self, flow: FloatArray) -> FloatArray:
        load = self.net.sum_over_resources(flow) * self.net.beta_us_per_mb
        found: FloatArray = np.bincount(self.orbit, weights=load, minlength=self.num_orbits) / self.orbit_size
        return found

    def _tree_flow(self, distance: FloatArray, lengths: FloatArray) -> FloatArray:
        """Flow over every link when each source sends along one tree of shortest ways, [source, link]."""
        parent = self._parents(distance, lengths)
        flow = np.zeros((len(distance), self.net.num_links))
        carried = self.wants.copy()
        every = np.arange(len(distance))
        for rank in np.argsort(-np.where(np.isfinite(distance), distance, -1.0), axis=1, kind="stable").T:
            link = parent[every, rank]
            below = every[link >= 0]
            flow[below, link[below]] += carried[below, rank[below]]
            np.add.at(carried, (below, self.net.src[link[below]]), carried[below, rank[below]])
        return flow

    def _parents(self, distance: FloatArray, lengths: FloatArray) -> IntArray:
        """Last link of a shortest way to every rank, -1 at the source and where there is none, [source, rank]."""
        parent = np.full(distance.shape, -1, dtype=np.int64)
        net, usable = self.net, self.traffic.usable
        for source in range(len(distance)):
            far = distance[source]
            tight = np.isfinite(far[net.src]) & (far[net.src] + lengths == far[net.dst])
            if usable is not None:
                tight &= usable[source]
            links = np.flatnonzero(tight)[::-1]
            parent[source, net.dst[links]] = links  # of several, the first
        parent[self.starts] = -1
        return parent

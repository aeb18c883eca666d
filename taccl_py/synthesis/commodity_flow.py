"""Concurrent multicommodity flow: the least load of the fullest link or port when data may be split at will.

The data of one source is one commodity, whoever wants it (two parts of it never get in each other's way)::

    min T    f >= 0,  inflow - outflow of s's data at rank v = what v wants from s
             sum of beta_r * f over links behind resource r <= T

Averaging a solution over the machine's symmetry keeps it a solution, so one source of every orbit has variables and loads
are averages over the orbits of links and ports; the optimum is that of all flows, symmetric or not. With ``w_s`` sources in
the orbit of s and ``n_R`` members in the orbit of a resource its load is ``sum over s, l of w_s / n_R * beta_R * f[s, l]``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taccl_py.arrays import BoolArray, FloatArray, IntArray, places_in_runs
from taccl_py.solvers.limits import Limits
from taccl_py.solvers.sparse import Coefficients, Optimum, SparseProgram
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.symmetry import Generator, orbits_of_ranks, orbits_of_resources
from taccl_py.tolerances import LP_GAP, RELATIVE
from taccl_py.topology.ends import ends_of
from taccl_py.topology.model import Topology
from taccl_py.units import BYTES_PER_MB


@dataclass(frozen=True)
class Commodities:
    """Commodities of a multicommodity flow: the data of each source, and the links that it may use.

    Attributes
    ----------
    topology
        The machine.
    generators
        Symmetry of machine, amounts and permitted links.
    wanted_mb
        What a rank wants from a source, [source, rank].
    permitted
        Links that a source's data may use, [source, link].
    """

    topology: Topology
    generators: tuple[Generator, ...]
    wanted_mb: FloatArray
    permitted: BoolArray

    @staticmethod
    def of(problem: Problem) -> Commodities:
        """Commodities of a routed collective whose chunks are each wanted by one rank."""
        wanted_mb, permitted = problem.amounts_by_source(problem.chunk_bytes / BYTES_PER_MB)
        np.fill_diagonal(wanted_mb, 0.0)
        return Commodities(problem.topology, problem.generators, wanted_mb, permitted)


@dataclass(frozen=True)
class CommodityFlow:
    """An optimal flow, with few hops.

    Attributes
    ----------
    load_us
        Time of the fullest resource, without alpha; no schedule is faster.
    sources
        One source of every orbit.
    flow_mb
        Their data on every link, [source, link].
    prices
        Weight of every resource in the bound, [resource]: whatever the flow, the loads of the resources, weighted with their
        prices (which add up to 1), add up to at least ``load_us``.
    """

    load_us: float
    sources: tuple[int, ...]
    flow_mb: FloatArray
    prices: FloatArray

    @staticmethod
    def unknown(topology: Topology) -> CommodityFlow:
        """Nothing is known: no source, no flow, no price."""
        return CommodityFlow(0.0, (), np.zeros((0, len(topology.links))), np.zeros(topology.num_resources))


def solve_flow(commodities: Commodities, limits: Limits) -> CommodityFlow | None:
    """Optimal flow with the fewest hops in total, or None if the time ran out or the permitted links do not lead everywhere.

    Parameters
    ----------
    commodities
        What has to flow.
    limits
        Time and interrupt.
    """
    deadline = limits.deadline()
    layout = _Layout.of(commodities)
    if not len(layout.link):
        return None
    program = layout.program()
    optimum = program.solve(limits.within(deadline.left))
    if optimum is None:
        return None
    shorter = layout.fewest_hops(program, optimum, limits.within(deadline.left))
    return layout.flow(optimum, shorter or optimum)


@dataclass(frozen=True)
class _Layout:
    """Columns: flow of source ``sources[owner]`` over ``link``, then T. Rows: conservation, then loads."""

    commodities: Commodities
    sources: IntArray
    weight: FloatArray
    owner: IntArray
    link: IntArray
    resource_orbit: IntArray

    @staticmethod
    def of(commodities: Commodities) -> _Layout:
        topology = commodities.topology
        ranks = topology.num_ranks
        label = orbits_of_ranks(topology, commodities.generators)
        senders = np.flatnonzero(commodities.wanted_mb.any(axis=1))
        sources = senders[label[senders] == senders]
        weight = np.bincount(label, minlength=ranks)[sources].astype(float)
        _, dst = ends_of(topology.links)
        owner, link = np.nonzero(commodities.permitted[sources] & (dst[None, :] != sources[:, None]))
        return _Layout(commodities, sources, weight, owner, link, orbits_of_resources(topology, commodities.generators))

    def program(self) -> SparseProgram:
        """The program that minimizes T."""
        topology, count = self.commodities.topology, len(self.link)
        ranks, conserved = topology.num_ranks, len(self.sources) * topology.num_ranks
        src, dst = (ends[self.link] for ends in ends_of(topology.links))
        columns, first = np.arange(count), self.owner * ranks
        outflow = np.flatnonzero(src != self.sources[self.owner])
        orbits = int(self.resource_orbit.max()) + 1
        row, column, value = self._loads()
        ones = np.ones(count)
        matrix = Coefficients(
            np.concatenate([first + dst, (first + src)[outflow], conserved + row, conserved + np.arange(orbits)]),
            np.concatenate([columns, columns[outflow], column, np.full(orbits, count)]),
            np.concatenate([ones, -ones[outflow], value, np.full(orbits, -1.0)]),
        )
        wanted = self.commodities.wanted_mb[self.sources].reshape(-1)
        low = np.concatenate([wanted, np.full(orbits, -np.inf)])
        high = np.concatenate([wanted, np.zeros(orbits)])
        return SparseProgram(np.append(np.zeros(count), 1.0), matrix, low, high)

    def _loads(self) -> tuple[IntArray, IntArray, FloatArray]:
        """Row (resource orbit), column and coefficient of every resource that a column loads."""
        topology = self.commodities.topology
        members = np.bincount(self.resource_orbit)
        beta = np.array([cost[1] for cost in topology.resource_cost])
        width = np.array([len(resources) for resources in topology.resources_of], dtype=np.int64)
        start = np.concatenate([[0], np.cumsum(width)])
        flat = np.array([r for resources in topology.resources_of for r in resources], dtype=np.int64)
        column = np.repeat(np.arange(len(self.link)), width[self.link])
        resource = flat[start[self.link][column] + places_in_runs(width[self.link])]
        orbit = self.resource_orbit[resource]
        return orbit, column, self.weight[self.owner[column]] / members[orbit] * beta[resource]

    def fewest_hops(self, program: SparseProgram, optimum: Optimum, limits: Limits) -> Optimum | None:
        """Among flows with the same T, one with the fewest hops."""
        program.set_upper(len(self.link), optimum.objective * (1 + RELATIVE))
        program.set_costs(np.append(self.weight[self.owner], 0.0))
        return program.solve(limits)

    def flow(self, optimum: Optimum, shorter: Optimum) -> CommodityFlow:
        topology = self.commodities.topology
        flow_mb = np.zeros((len(self.sources), len(topology.links)))
        flow_mb[self.owner, self.link] = np.maximum(0.0, shorter.values[:-1])
        by_orbit = np.maximum(0.0, -optimum.prices[len(self.sources) * topology.num_ranks :])
        prices = by_orbit[self.resource_orbit] / np.bincount(self.resource_orbit)[self.resource_orbit]
        total = prices.sum()
        # The solver's tolerance must not lift the bound above what is true.
        load_us = optimum.objective * (1 - LP_GAP)
        return CommodityFlow(load_us, tuple(self.sources.tolist()), flow_mb, prices / total if total > 0 else prices)

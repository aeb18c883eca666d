"""Bandwidth bound for AllToAll: the multicommodity flow that every schedule would have to be.

A schedule sends the chunks of source s over links; counted in chunks that is a flow f[s, l] from s that leaves one chunk at
every destination for each part. Every link and port carries its share in the makespan, alpha at least once::

    min T    f >= 0,  inflow - outflow of s's chunks at rank v = number of chunks that v wants from s
             alpha_min + beta_r * sum of f over links behind resource r <= T

The flows of one source are one commodity, and sources of one symmetry orbit share their variables (averaging a solution over
the group keeps it a solution), so the bound holds for all schedules, symmetric or not.
"""

from __future__ import annotations

import numpy as np

from taccl_py.collective import Kind
from taccl_py.solvers.cp_sat import Status
from taccl_py.solvers.limits import Limits
from taccl_py.solvers.linear import LinearModel
from taccl_py.synthesis.bounds import Bound
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.symmetry import IntArray, orbit_labels
from taccl_py.units import BYTES_PER_MB

# More variables than this make the program slower than it is worth here.
_MOST_VARIABLES = 30_000


def flow_bound(problem: Problem, limits: Limits) -> Bound | None:
    """Bound of an AllToAll, or None for other collectives, for too large ones, and when the time runs out."""
    if problem.collective.kind is not Kind.ALLTOALL:
        return None
    flows = _Flows(problem)
    if flows.count > _MOST_VARIABLES:
        return None
    model = LinearModel("flow")
    f = {orbit: model.real(f"f_{orbit}", 0.0, None) for orbit in flows.orbits}
    load = model.real("load", 0.0, None)
    model.minimize([(load, 1.0)])
    flows.conserve(model, f)
    flows.limit(model, f, load)
    outcome = model.solve("highs", limits)
    if outcome.status is not Status.OPTIMAL or outcome.objective is None:
        return None
    first = min(problem.topology.links[link].alpha_us for link in flows.links)
    # The solver's tolerance must not lift the bound above what is true.
    return Bound(first + outcome.objective * (1 - 1e-7), "bandwidth: the flow of all chunks over all links and ports")


class _Flows:
    """Orbits of (source, link) pairs and what they mean."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        topology = problem.topology
        self.num_links, ranks = len(topology.links), topology.num_ranks
        images = [
            (np.array(g.rank)[:, None] * self.num_links + g.link[None, :]).reshape(-1) for g in problem.generators
        ]
        self.label: IntArray = orbit_labels(ranks * self.num_links, images)
        self.allowed = np.zeros((ranks, self.num_links), dtype=bool)
        for chunk, source in enumerate(problem.collective.source):
            self.allowed[source] |= problem.permitted[chunk]
        pairs = np.flatnonzero(self.allowed.reshape(-1))
        self.orbits: list[int] = np.unique(self.label[pairs]).tolist()
        self.links = sorted(set((pairs % self.num_links).tolist()))
        rank_label = orbit_labels(ranks, [np.array(g.rank, dtype=np.int64) for g in problem.generators])
        self.sources: list[int] = np.unique(rank_label).tolist()

    @property
    def count(self) -> int:
        """Number of variables."""
        return len(self.orbits)

    def _orbit(self, source: int, link: int) -> int:
        return int(self.label[source * self.num_links + link])

    def conserve(self, model: LinearModel, f: dict[int, object]) -> None:
        """Every rank keeps what it wants of the flow of a representative source."""
        topology, collective = self.problem.topology, self.problem.collective
        wants = np.zeros((topology.num_ranks, topology.num_ranks))
        for chunk, source in enumerate(collective.source):
            for rank in collective.wanted[chunk]:
                wants[source, rank] += rank != source
        for source in self.sources:
            rows: dict[int, list[tuple[object, float]]] = {}
            for link in np.flatnonzero(self.allowed[source]).tolist():
                variable = f[self._orbit(source, link)]
                rows.setdefault(topology.links[link].dst, []).append((variable, 1.0))
                rows.setdefault(topology.links[link].src, []).append((variable, -1.0))
            for rank, terms in sorted(rows.items()):
                if rank != source:
                    model.equal(terms, float(wants[source, rank]))

    def limit(self, model: LinearModel, f: dict[int, object], load: object) -> None:
        """Load of every link and port, one for each orbit."""
        topology = self.problem.topology
        megabytes = self.problem.chunk_bytes / BYTES_PER_MB
        images = [np.concatenate([g.link, self.num_links + g.port]) for g in self.problem.generators]
        representative = set(orbit_labels(topology.num_resources, images).tolist())
        behind: dict[int, list[int]] = {}
        for link in self.links:
            for resource in topology.resources_of[link]:
                if resource in representative:
                    behind.setdefault(resource, []).append(link)
        for resource, links in sorted(behind.items()):
            beta = topology.resource_cost[resource][1] * megabytes
            users = [(source, link) for link in links for source in np.flatnonzero(self.allowed[:, link]).tolist()]
            terms = [(f[self._orbit(source, link)], -beta) for source, link in users]
            model.at_least([(load, 1.0), *terms], 0.0)

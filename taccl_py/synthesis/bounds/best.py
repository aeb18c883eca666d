"""Best of all bounds for what an engine is asked."""

from __future__ import annotations

from taccl_py.collective import Collective, Kind
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds.bound import Bound, best_of
from taccl_py.synthesis.bounds.chunked import farthest_pair, lower_bound
from taccl_py.synthesis.bounds.demand import demand_bound
from taccl_py.synthesis.bounds.flow import flow_bound
from taccl_py.synthesis.problem import Problem
from taccl_py.topology.model import Topology


def best_bound(problem: Problem, limits: Limits, known: Bound | None = None) -> Bound:
    """Best lower bound for the schedules of a problem, of those for its chunks and those for every algorithm.

    Parameters
    ----------
    problem
        The problem.
    limits
        Time; what is proved by then is returned.
    known
        Bound that holds for every algorithm, if there is one already.
    """
    collective, over = problem.collective, limits.countdown()
    size_bytes = problem.chunk_bytes * collective.chunks_per_size
    chunked = flow_bound(problem, limits)
    free = known or demand_bound(problem.topology, collective.kind, collective.root, size_bytes, limits)
    return best_of(bound for bound in (lower_bound(problem, over), chunked, free) if bound is not None)


def allreduce_bound(topology: Topology, gather: Collective, chunk_bytes: float, limits: Limits | None = None) -> Bound:
    """Best lower bound for AllReduce with the chunks of an AllGather: one chunk's way, or that of every algorithm."""
    size_bytes = chunk_bytes * gather.num_chunks
    farthest = farthest_pair(topology, chunk_bytes)
    return best_of([farthest, demand_bound(topology, Kind.ALLREDUCE, 0, size_bytes, limits)])

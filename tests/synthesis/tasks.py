"""Searches and tasks for tests of models and stages, begun as the engine begins them."""

from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import lower_bound
from taccl_py.synthesis.engine import Events
from taccl_py.synthesis.greedy import urgent_plan
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.quotient import Quotient
from taccl_py.synthesis.search import Search


def empty_search(problem, limits=None, events=None):
    limits = limits or Limits(seconds=60.0)
    return Search.of(Quotient.of(problem), lower_bound(problem), limits, limits.deadline(), events or Events())


def search_for(drawn, symmetric=True, limits=None):
    """A search with its first greedy plan (an `Instance` or `Drawn`)."""
    problem = Problem.build(drawn.topology, drawn.collective, drawn.sketch, drawn.chunk_bytes)
    search = empty_search(problem if symmetric else problem.without_symmetry(), limits)
    search.offer(urgent_plan(search.quotient, search.grid, search.routes))
    return search

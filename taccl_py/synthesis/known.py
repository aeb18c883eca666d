"""The bound of a demand: the one that is known already, or one that is computed now, which may take longer than a search."""

from __future__ import annotations

from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import Bound, demand_bound
from taccl_py.synthesis.engine import Demand, Options


def known_bound(demand: Demand, options: Options) -> Bound:
    """Bound that holds for every algorithm for a demand, the options' if they have one, else one that takes their time.

    Raises
    ------
    InputError, Infeasible
        See `taccl_py.synthesis.bounds.DemandBounds.of`.
    """
    return options.bound or bound_of(demand, options.limits)


def bound_of(demand: Demand, limits: Limits) -> Bound:
    """Bound for a demand, computed in this time; see `taccl_py.synthesis.bounds.demand_bound`."""
    return demand_bound(demand.topology, demand.kind, demand.root, demand.size_bytes, limits)

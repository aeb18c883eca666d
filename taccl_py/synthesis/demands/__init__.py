"""Engines and bounds for demands: what must move is data, and no formula of a collective helps."""

from __future__ import annotations

from taccl_py.synthesis.demands.bound import bound_of_demand
from taccl_py.synthesis.demands.engine import DemandSynthesis, is_planned_first, solve_demand
from taccl_py.synthesis.demands.families import AUTO, is_large
from taccl_py.synthesis.demands.recognize import KnownDemand, as_demand_schedule, recognized

__all__ = [
    "AUTO",
    "DemandSynthesis",
    "KnownDemand",
    "as_demand_schedule",
    "bound_of_demand",
    "is_large",
    "is_planned_first",
    "recognized",
    "solve_demand",
]

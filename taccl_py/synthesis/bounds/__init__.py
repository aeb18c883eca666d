"""Lower bounds on the time of any schedule, each with its reason in words.

``lower_bound`` and ``flow_bound`` are for a `Problem`: fixed, indivisible chunks and a sketch's restrictions.
``demand_bound`` is for a machine and a size: it holds for every algorithm, however it cuts its data. ``best_bound`` takes
the best of all.
"""

from taccl_py.synthesis.bounds.best import allreduce_bound, best_bound
from taccl_py.synthesis.bounds.bound import Bound, raised
from taccl_py.synthesis.bounds.chunked import lower_bound
from taccl_py.synthesis.bounds.demand import DemandBounds, demand_bound, message_bound, require_ways
from taccl_py.synthesis.bounds.flow import flow_bound
from taccl_py.synthesis.bounds.in_network import helpful_switches
from taccl_py.synthesis.bounds.net import quickest
from taccl_py.synthesis.bounds.relays import relay_bound

__all__ = [
    "Bound",
    "DemandBounds",
    "allreduce_bound",
    "best_bound",
    "demand_bound",
    "flow_bound",
    "helpful_switches",
    "lower_bound",
    "message_bound",
    "quickest",
    "raised",
    "relay_bound",
    "require_ways",
]

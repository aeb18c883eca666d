"""The bound of a large machine, computed on another processor while this one searches."""

from __future__ import annotations

import multiprocessing
from contextlib import ExitStack
from dataclasses import replace

from taccl_py.solvers.limits import Limits
from taccl_py.solvers.processes import BackgroundCall
from taccl_py.synthesis.bounds import Bound
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.known import bound_of
from taccl_py.synthesis.matching.params import PARAMS


def bound_beside(demand: Demand, limits: Limits, stack: ExitStack) -> BackgroundCall[Bound] | None:
    """Call of `taccl_py.synthesis.known.bound_of` in another process, which ends with the stack; None where that would save nothing."""
    # In a process of a race the other processors are busy too.
    alone = limits.workers == 1 or multiprocessing.parent_process() is not None
    if alone or demand.topology.num_ranks < PARAMS.least_bound_ranks:
        return None
    return BackgroundCall(stack, bound_of, demand, replace(limits, workers=1))

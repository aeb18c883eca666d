"""The bound of a large machine, computed on another processor while this one searches."""

from __future__ import annotations

import multiprocessing
from contextlib import ExitStack
from dataclasses import replace

from taccl_py.solvers.limits import Limits
from taccl_py.solvers.processes import BackgroundCall
from taccl_py.synthesis.bounds import Bound, demand_bound
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.matching.params import PARAMS


class BackgroundBound:
    """Computes a bound in another process, which ends with the stack."""

    def __init__(
        self, demand: Demand, limits: Limits, stack: ExitStack, *, needed_soon: bool, known: Bound | None = None
    ) -> None:
        """Start the other process, if that pays.

        Parameters
        ----------
        demand, limits
            Question, and limits of the computation.
        stack
            Ends the process.
        needed_soon
            Whether the caller waits for it at once, so that another process would save nothing.
        known
            The bound, if it is known already.
        """
        self._demand, self._limits = demand, limits
        self._found = known
        self._call: BackgroundCall[Bound] | None = None
        # In a process of a race the other processors are busy too.
        alone = limits.workers == 1 or multiprocessing.parent_process() is not None
        if known is None and not (needed_soon or alone or demand.topology.num_ranks < PARAMS.least_bound_ranks):
            self._call = BackgroundCall(stack, _bound, demand, replace(limits, workers=1))

    @property
    def is_known(self) -> bool:
        """True if it has been asked for."""
        return self._found is not None

    def get(self) -> Bound:
        """Return the bound, for which this may wait."""
        if self._found is None:
            found = None if self._call is None else self._call.result(self._limits.stop)
            self._found = found or _bound(self._demand, self._limits)
        return self._found


def _bound(demand: Demand, limits: Limits) -> Bound:
    return demand_bound(demand.topology, demand.kind, demand.root, demand.size_bytes, limits)

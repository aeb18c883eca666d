"""One-sided plans for MSCCL++: the same schedules as puts, signals and waits.

::

    make_tasks       messages -> puts into the receiver's memory, arrivals, local copies and reductions
    share_out        tasks -> threadblocks
    find_signals     who tells whom what, so that nothing is read too early or overwritten too early
    emit_plan        operations, channels, remote buffers, JSON
"""

from taccl_py.lowering.mscclpp.lower import LoweredPlan, PlanOptions, lower_plan

__all__ = ["LoweredPlan", "PlanOptions", "lower_plan"]

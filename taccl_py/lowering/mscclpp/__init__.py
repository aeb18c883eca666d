"""One-sided plans for MSCCL++: the same schedules as puts, signals and waits.

::

    make_tasks       messages -> puts into the receiver's memory, arrivals, local copies and reductions
    share_out        tasks -> threadblocks
    find_signals     signals between threadblocks, so that nothing is read or overwritten too early
    emit_plan        operations, channels, remote buffers, JSON

What switches multicast and add up is written down instead (`switch_gpus`, and over several nodes `rails_gpus`).
"""

from taccl_py.lowering.mscclpp.lower import LoweredPlan, PlanOptions, lower_plan
from taccl_py.lowering.mscclpp.rails import NodeRails
from taccl_py.lowering.mscclpp.switch import needs_rails, serving_switches

__all__ = ["LoweredPlan", "NodeRails", "PlanOptions", "lower_plan", "needs_rails", "serving_switches"]

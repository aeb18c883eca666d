"""Several process groups that share a machine: their schedules at once, relays through ranks of none of them, and a bound for all."""

from __future__ import annotations

from taccl_py.synthesis.together.bound import together_bound
from taccl_py.synthesis.together.orders import GroupMember, in_turn, makespan_us, orders
from taccl_py.synthesis.together.relay import planned_jointly, relayed
from taccl_py.synthesis.together.tasks import GroupTask

__all__ = [
    "GroupMember",
    "GroupTask",
    "in_turn",
    "makespan_us",
    "orders",
    "planned_jointly",
    "relayed",
    "together_bound",
]

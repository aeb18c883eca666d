"""AllToAll between nodes of which some lanes are slow or gone: the balance of lanes that engine demands makes, in equal chunks."""

from __future__ import annotations

from taccl_py.collective import Kind
from taccl_py.demand import DataDemand
from taccl_py.demand.variable import of_collective
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.schedule.ir import Schedule
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.damage.healing import healed
from taccl_py.synthesis.damage.params import PARAMS
from taccl_py.synthesis.demands.balance import balanced_plans
from taccl_py.synthesis.demands.classes import classes_of
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.templates.fitting import fitted
from taccl_py.synthesis.templates.messages import TemplateMessage, TemplatePlan


def balanced_exchanges(demand: Demand, limits: Limits) -> list[Schedule]:
    """Schedules of an AllToAll that load the lanes of damaged nodes as they can carry; none for other collectives, or where nothing is damaged.

    Parameters
    ----------
    demand
        What is wanted, on the machine as it is.
    limits
        Time, and the user's interrupt.
    """
    ranks = demand.topology.num_ranks
    if demand.kind is not Kind.ALLTOALL or ranks > PARAMS.most_exchanging_ranks or healed(demand.topology) is None:
        return []
    over = limits.countdown()
    found: list[Schedule] = []
    for count in PARAMS.exchanged_chunks if demand.chunks_per_rank is None else (demand.chunks_per_rank,):
        collective = demand.collective(count)
        # A whole number of bytes for the planner; times of the schedule are found from the true size.
        unit_bytes = max(1, round(demand.chunk_bytes(collective)))
        moved = of_collective(collective, unit_bytes)
        for plan in balanced_plans(demand.topology, moved, classes_of(moved), is_ordered=False, unit_bytes=unit_bytes):
            messages = _in_chunks(plan.timed(), moved)
            schedule = fitted(demand, TemplatePlan(count, messages), over)
            if schedule is not None:
                found.append(schedule)
            if over():
                return found
    return found


def _in_chunks(schedule: DemandSchedule, moved: DataDemand) -> tuple[TemplateMessage, ...]:
    """Messages of a schedule that has the chunks of a collective in any order, with their numbers in that."""
    number_of = {chunk: number for number, chunk in enumerate(moved.chunks)}
    numbers = [number_of[chunk] for chunk in schedule.demand.chunks]
    links = schedule.topology.links
    return tuple(
        TemplateMessage(
            links[each.link].src, links[each.link].dst, tuple(sorted(numbers[c] for c in each.chunks)),
            each.start_us, each.end_us,
        )
        for each in schedule.messages
    )  # fmt: skip

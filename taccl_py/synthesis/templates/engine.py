"""Engine ``templates``: the known algorithm that fits best; no search, so it is quick at any number of ranks."""

from __future__ import annotations

import math
import time

from taccl_py.errors import InputError, LimitReached
from taccl_py.schedule.ir import Schedule
from taccl_py.synthesis.engine import Demand, Events, Options, Synthesis, unlike
from taccl_py.synthesis.known import known_bound
from taccl_py.synthesis.templates.library import template_schedules
from taccl_py.synthesis.templates.params import PARAMS
from taccl_py.synthesis.uneven import fit_to_size

SOLVER = "none"


def synthesize_templates(demand: Demand, options: Options, events: Events) -> Synthesis:
    """Engine entry point; see `taccl_py.synthesis.engine.Engine`. The chunk count is the template's unless it is given.

    Raises
    ------
    InputError
        If there is a sketch for sums, or one that does not fit the machine; if more chunks are asked for than can be timed.
    LimitReached
        If no template fits the machine's links.
    Infeasible
        If the machine falls apart.
    """
    _require_few(demand)
    begun = time.monotonic()
    deadline = options.limits.deadline()
    events.stage("templates")
    bound = known_bound(demand, options)
    events.bound(bound.time_us)
    found: list[Schedule] = []
    fastest_us = math.inf
    for named in template_schedules(demand, PARAMS.runner_up_factor):
        found.append(named.schedule)
        if named.schedule.makespan_us < fastest_us:
            fastest_us = named.schedule.makespan_us
            events.incumbent(fastest_us)
        if deadline.over():
            break
    if not found:
        raise LimitReached(
            f"no known algorithm for {demand.kind} fits the links of {demand.topology.name}; use --engine milp"
        )
    near = [schedule for schedule in found if schedule.makespan_us <= fastest_us * PARAMS.runner_up_factor]
    near = unlike(sorted(near, key=lambda schedule: schedule.makespan_us))
    seconds = {"templates": time.monotonic() - begun}
    answer = Synthesis.of(near[: PARAMS.most_runners_up + 1], bound, SOLVER, seconds)
    return fit_to_size(answer, demand, options.limits.within(deadline.left))


def _require_few(demand: Demand) -> None:
    """Refuse chunk counts at which one template takes longer than any time limit, before the first is made."""
    chunks = demand.chunks_per_rank or 1
    arrivals = demand.collective(chunks).num_arrivals
    if chunks > 1 and arrivals > PARAMS.most_arrivals:
        raise InputError(
            f"{chunks} chunks a rank are {arrivals} arrivals of chunks, and engine templates times {PARAMS.most_arrivals} at most; "
            "ask for fewer chunks (--chunks, or chunks_per_rank of the sketch)"
        )

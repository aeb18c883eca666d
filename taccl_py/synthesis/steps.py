"""Engine ``steps``: SCCL's method for one size, the point of its Pareto front that is fastest there.

The front is that of k-synchronous algorithms (Cai et al., SCCL, PPoPP'21); see `taccl_py.synthesis.pareto`. Its schedules are then
timed without steps: a message starts when what it carries is there and its link and ports are free.
"""

from __future__ import annotations

import time
from dataclasses import replace

from taccl_py.errors import LimitReached
from taccl_py.schedule.ir import Schedule
from taccl_py.schedule.transform import resized
from taccl_py.solvers.choice import CP_SAT
from taccl_py.synthesis.engine import Demand, Events, Options, Synthesis
from taccl_py.synthesis.known import known_bound
from taccl_py.synthesis.pareto import WalkLimits, pareto_front


def synthesize_steps(demand: Demand, options: Options, events: Events) -> Synthesis:
    """Engine entry point; see `taccl_py.synthesis.engine.Engine`.

    Raises
    ------
    InputError
        If bandwidths are not multiples of the smallest one.
    LimitReached
        If the time was too short for the first point.
    """
    begun = time.monotonic()
    walk = WalkLimits.usual(demand.kind)
    if demand.chunks_per_rank is not None:
        walk = replace(walk, min_chunks=demand.chunks_per_rank, max_chunks=demand.chunks_per_rank)
    front = pareto_front(demand, walk, options.limits, events)
    schedules = sorted((_at_size(demand, point.schedule) for point in front.points), key=lambda s: s.makespan_us)
    if not schedules:
        raise LimitReached("no schedule was found in steps; give more time with --time-limit or use another --engine")
    events.incumbent(schedules[0].makespan_us)
    bound = known_bound(demand, options)
    seconds = {"front": time.monotonic() - begun}
    return Synthesis.of(schedules, bound, CP_SAT, seconds)


def _at_size(demand: Demand, schedule: Schedule) -> Schedule:
    return resized(schedule, demand.chunk_bytes(schedule.collective))

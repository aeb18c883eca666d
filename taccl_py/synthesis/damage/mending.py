"""Schedules for a damaged machine, made of those of the whole machine behind it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from taccl_py.collective import Kind
from taccl_py.schedule.ir import Schedule
from taccl_py.schedule.transform import combining
from taccl_py.solvers.limits import Limits, always, until
from taccl_py.synthesis.bounds import Bound
from taccl_py.synthesis.damage.healing import healed
from taccl_py.synthesis.damage.params import PARAMS
from taccl_py.synthesis.damage.reweigh import WeighedPlan, weighed_plans
from taccl_py.synthesis.damage.routes import Damage
from taccl_py.synthesis.engine import Demand, Events
from taccl_py.synthesis.justify import justified_schedule, searched_schedule
from taccl_py.synthesis.templates.fitting import fitted
from taccl_py.synthesis.templates.messages import TemplatePlan
from taccl_py.synthesis.uneven import FinerChunks, recut
from taccl_py.topology.model import Topology

# Writes schedules for a demand, given a bound, limits and where to report to.
Writer = Callable[[Demand, Bound, Limits, Events], Sequence[Schedule]]


def mended_schedules(
    demand: Demand,
    bound: Bound,
    limits: Limits,
    events: Events,
    writer: Writer,
    known_us: float = math.inf,
    heal: Callable[[Topology], Topology | None] = healed,
) -> list[Schedule]:
    """Plans that a writer finds for the whole machine, each as fast as it can be on the damaged one; none where nothing is damaged.

    Parameters
    ----------
    demand, bound
        What is wanted, and what no algorithm is faster than.
    limits
        Time, and the user's interrupt.
    events
        For what is found.
    writer
        Finds plans for a machine without damage.
    known_us
        Plans that are estimated to take as long, or longer, are not written out.
    heal
        Finds the whole machine behind a damaged one.

    Raises
    ------
    PackageMissing
        If highspy is not installed.
    """
    if demand.kind is Kind.REDUCESCATTER:
        there = replace(demand, kind=Kind.ALLGATHER, topology=demand.topology.reversed())
        gathers = mended_schedules(there, bound, limits, Events(), writer, known_us, heal)
        return [justified_schedule(combining(schedule, demand.topology)) for schedule in gathers]
    whole = heal(demand.topology)
    if whole is None:
        return []
    deadline = limits.deadline()
    wanted = replace(demand, topology=whole, chunks_per_rank=None, size_bytes=demand.size_bytes * _more(demand, whole))
    seeking = limits.within(PARAMS.whole_part * deadline.left)
    # Of many plans one that is not the fastest there may be so here.
    plans = writer(wanted, replace(bound, time_us=0.0), seeking, Events())
    found: list[Schedule] = []
    best: WeighedPlan | None = None
    for plan in _promising(plans, demand, limits.within(deadline.left)):
        if plan.time_us >= known_us:
            break
        schedule = _cut(plan, limits.within(deadline.left))
        if schedule is not None:
            found.append(schedule)
            if schedule.makespan_us <= min(each.makespan_us for each in found):
                events.incumbent(schedule.makespan_us)
                best = plan
        if found and (bound.is_reached_by(found[-1].makespan_us) or limits.within(deadline.left).countdown()()):
            break
    if best is not None and not deadline.over():
        found += _for_steps(best, found)
    return _with_best_searched(found, limits.within(deadline.left))


def _for_steps(plan: WeighedPlan, found: Sequence[Schedule]) -> list[Schedule]:
    """The plan in so few chunks that a step of the runtime carries any message, where messages of what was found have more."""
    most = plan.demand.message_chunks
    if all(len(message.chunks) <= most for schedule in found for message in schedule.messages):
        return []
    cut = plan.cut_for_steps()
    coarse = None if cut is None else _fastest(_fitted(plan.demand, cut.plan()))
    return [] if coarse is None else [coarse]


def _with_best_searched(found: list[Schedule], limits: Limits) -> list[Schedule]:
    """The schedules, and a faster one of the same messages as the best one if other starts make it that, which they seldom do for sums."""
    best = _fastest(found)
    if best is None or best.collective.reduces or len(best.messages) > PARAMS.most_justified_messages:
        return found
    faster = searched_schedule(best, limits.seed, limits.countdown())
    return found if faster is best else [faster, *found]


def mended(plan: Schedule, demand: Demand, limits: Limits) -> Schedule | None:
    """A plan of the whole machine, as fast as it can be on the damaged one; None where it cannot be mended, or the limits came first.

    Parameters
    ----------
    plan
        Schedule on the whole machine, of a collective other than a ReduceScatter or Reduce, which are others backwards.
    demand
        What is wanted, on the machine as it is.
    limits
        Time, and the user's interrupt.

    Raises
    ------
    PackageMissing
        If highspy is not installed.
    """
    deadline = limits.deadline()
    found: list[Schedule] = []
    for each in _promising([plan], demand, limits):
        schedule = _cut(each, limits.within(deadline.left))
        found += [] if schedule is None else [schedule]
        if limits.within(deadline.left).countdown()():
            break
    return _fastest(found)


def _promising(plans: Sequence[Schedule], demand: Demand, limits: Limits) -> list[WeighedPlan]:
    """Plans of the whole machine with weights, those that should be fastest on the damaged one."""
    over = limits.within(PARAMS.weighing_part * limits.seconds).countdown()
    ordered = sorted(plans, key=lambda plan: (plan.makespan_us, len(plan.messages)))
    # Those that take exactly as long are mostly one plan with other numbers of chunks.
    different = {plan.makespan_us: plan for plan in reversed(ordered)}
    near = [different[us] for us in sorted(different) if us <= PARAMS.plan_factor * min(different)]
    if demand.kind is not Kind.ALLREDUCE:
        # What goes in fewer blocks has fewer messages that take a detour or are parted, and time may be over before all are weighed.
        near.sort(key=lambda plan: len(Damage(plan, demand.topology).blocks))
    found: list[WeighedPlan] = []
    # The simplest weights of all plans first; the time may not be enough for the others.
    waiting = deque(weighed_plans(plan, demand, limits) for plan in near)
    while waiting and not (found and over()):
        each = next(waiting[0], None)
        if each is None:
            waiting.popleft()
        else:
            found.append(each)
            waiting.rotate(-1)
    # Of several weights of a plan that come to the same one is enough.
    unlike = {(plan.time_us, len(plan.damage.plan.messages)): plan for plan in reversed(found)}
    fastest = sorted(unlike.values(), key=lambda plan: plan.time_us)
    if demand.kind is Kind.ALLREDUCE:
        return fastest[: PARAMS.most_plans]
    # Of those about as fast, what has fewer parts first: it has fewer messages that wait for each other.
    limit_us = fastest[0].time_us * PARAMS.alike if fastest else 0.0
    fastest.sort(key=lambda plan: (plan.time_us > limit_us, len(plan.parts) if plan.time_us <= limit_us else 0))
    return fastest[: PARAMS.most_other_plans]


def _sized(plan: WeighedPlan, limits: Limits) -> Schedule | None:
    """The plan with each part as one chunk of the size that suits it, where all data is one root's; None elsewhere, or if time is over."""
    if plan.demand.kind is not Kind.BROADCAST or plan.demand.chunks_per_rank is not None:
        return None
    own = fitted(plan.demand, plan.whole_parts().plan(), always)
    return None if own is None else recut(own, FinerChunks.of(plan.demand), limits)


def _cut(plan: WeighedPlan, limits: Limits) -> Schedule | None:
    """The plan in the fewest chunks that are about as good as any number."""
    sized = _sized(plan, limits)
    if sized is not None:
        return sized
    tried = list(until(limits.countdown(), plan.cuts()))
    limit_us = min((time_us for time_us, _ in tried), default=0.0) * (1 + PARAMS.least_gain)
    for time_us, cut in sorted(tried, key=lambda each: each[1].chunks_per_rank):
        found = _fastest(_fitted(plan.demand, cut.plan())) if time_us <= limit_us else None
        if found is not None:
            return found
    return None


def _fastest(found: Sequence[Schedule]) -> Schedule | None:
    return min(found, key=lambda schedule: schedule.makespan_us, default=None)


def _fitted(demand: Demand, plan: TemplatePlan) -> list[Schedule]:
    """The plan on the machine in the better of two orders, however late it is, and justified in its own one.

    Detours meet other messages at ports where the whole plan had none and hold up what is behind them, which a dispatcher mends in part. What
    justification makes of the plan's own order is mostly better: there, all but the detours are in their places already.
    """
    dispatched = fitted(demand, plan)
    if dispatched is None or dispatched.collective.reduces:
        return [] if dispatched is None else [dispatched]
    if len(dispatched.messages) > PARAMS.most_justified_messages:
        return [dispatched]
    own = fitted(demand, plan, always)
    return [dispatched] if own is None else [dispatched, justified_schedule(own)]


def _more(demand: Demand, whole: Topology) -> float:
    """Times as much as healthy lanes carry where an AllReduce leaves out what is lost: so large messages of the plan will be."""
    if demand.kind not in (Kind.ALLREDUCE, Kind.BROADCAST):
        return 1.0
    left, before = lane_rates(demand.topology), lane_rates(whole)
    kept: list[float] = []
    for place in range(max(map(len, whole.node_ranks))):
        there = [ranks[place] for ranks in whole.node_ranks if place < len(ranks)]
        kept.append(min(left[rank] / before[rank] if before[rank] else 1.0 for rank in there))
    return len(kept) / sum(kept) if sum(kept) else 1.0


def lane_rates(topology: Topology) -> list[float]:
    """Rate of the best link that leads out of each rank's node, or into it, whichever is less, in MB a microsecond."""
    out, into = [0.0] * topology.num_ranks, [0.0] * topology.num_ranks
    for index, link in enumerate(topology.links):
        if not topology.is_inside(link):
            beta = topology.us_per_mb(index)
            rate = 1 / beta if beta else float("inf")
            out[link.src], into[link.dst] = max(out[link.src], rate), max(into[link.dst], rate)
    return [min(pair) for pair in zip(out, into, strict=True)]

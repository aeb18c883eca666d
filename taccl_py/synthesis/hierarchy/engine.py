"""Engine ``hierarchy``: nodes and what joins them are looked at apart, and put together as one pipeline.

Many strategies are estimated on one node and one lane, which stand for all; the most promising ones are written out for the
whole machine, timed exactly, and the fastest one is kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from taccl_py.collective import ROOTED, Kind
from taccl_py.errors import InputError
from taccl_py.schedule.ir import Schedule
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import Bound, relay_bound
from taccl_py.synthesis.bounds.bound import best_of
from taccl_py.synthesis.damage.exchange import balanced_exchanges
from taccl_py.synthesis.damage.healing import has_whole_sorts, healed, healed_by_sort
from taccl_py.synthesis.damage.mending import Writer, mended_schedules
from taccl_py.synthesis.damage.params import PARAMS as DAMAGE
from taccl_py.synthesis.damage.simpler import levelled_lanes, on_simpler_machines, simpler_demands
from taccl_py.synthesis.engine import Demand, Events, Options, Synthesis
from taccl_py.synthesis.hierarchy.params import PARAMS
from taccl_py.synthesis.hierarchy.strategies import HierarchyStrategy, owner_strategies, strategies
from taccl_py.synthesis.known import bound_of, known_bound
from taccl_py.synthesis.params import COMMON
from taccl_py.synthesis.reversal import reduce_by_broadcast
from taccl_py.synthesis.templates.fitting import fitted
from taccl_py.synthesis.templates.messages import TemplatePlan
from taccl_py.synthesis.uneven import fit_to_size
from taccl_py.tolerances import CLOSE_TO_BOUND
from taccl_py.work import work_seconds


def synthesize_hierarchy(demand: Demand, options: Options, events: Events) -> Synthesis:
    """Engine entry point; see `taccl_py.synthesis.engine.Engine`. The chunk count is the engine's unless it is given.

    Raises
    ------
    InputError
        If the collective is Gather or Scatter, there is a sketch, or the machine's nodes are not linked as the engine needs it.
    """
    _check(demand)
    if demand.kind is Kind.REDUCE:
        return reduce_by_broadcast(synthesize_hierarchy, demand, options, events)
    begun = time.monotonic()
    deadline = options.limits.deadline()
    events.stage("bound")
    bound = known_bound(demand, options)
    events.bound(bound.time_us)

    def elsewhere(there: Demand, its_bound: Bound, limits: Limits) -> Synthesis:
        return synthesize_hierarchy(there, replace(options, limits=limits, bound=its_bound), Events())

    simpler = simpler_demands(demand, options.limits)
    near_us = DAMAGE.simpler_bound_factor * bound.time_us
    first = [each for each in simpler if each[1].time_us <= near_us]
    later = [each for each in simpler if each[1].time_us > near_us]
    # Where nodes are slow as a whole, plans for slow ones everywhere may be ahead although they use less of the machine.
    if later and levelled_lanes(demand.topology) is None:
        later = []
    beside = on_simpler_machines(demand, first, options.limits, elsewhere)
    events.stage("strategies")
    part = 1 - DAMAGE.levelled_part if later else 1.0
    found, uneven = _planned(demand, bound, options.limits.within(part * deadline.left), events, beside, elsewhere)
    best_us = min((schedule.makespan_us for schedule in found), default=math.inf)
    later = [each for each in later if each[1].time_us < DAMAGE.levelled_promise * best_us]
    levelled = on_simpler_machines(demand, later, options.limits.within(deadline.left), elsewhere)
    found += levelled
    if not found:
        count = demand.chunks_per_rank
        chunks = "" if count is None else f", or its lanes cannot share {count} chunks a rank (leave --chunks out)"
        raise InputError(
            f"{demand.topology.name} is no cluster of nodes whose lanes are linked as {demand.kind} needs it here{chunks}; use "
            "--engine templates or trees"
        )
    best, *others = sorted(found, key=lambda schedule: schedule.makespan_us)
    if best.makespan_us > bound.time_us * (1 + CLOSE_TO_BOUND):
        events.stage("relays")
        limits = options.limits.within(deadline.left)
        bound = best_of([bound, relay_bound(demand.topology, demand.kind, bound.time_us, limits)])
        events.bound(bound.time_us)
    near = tuple(s for s in others if s.makespan_us <= best.makespan_us * COMMON.runner_up_factor)
    seconds = {"hierarchy": time.monotonic() - begun}
    # Among very many pieces passed on from node to node unequal ones gain little, and nothing in programs, which cut them again. Fewer
    # pieces may become faster than they.
    passed_on = [each for each in found if demand.kind in ROOTED and len(each.messages) > PARAMS.many_messages]
    fewer = [
        each for each in near[COMMON.most_runners_up :] if passed_on and len(each.messages) <= PARAMS.many_messages
    ]
    schedules = [best, *near[: COMMON.most_runners_up], *fewer[: PARAMS.most_coarser]]
    answer = Synthesis.of(schedules, bound, "none", seconds)
    return fit_to_size(
        answer, demand, options.limits.within(deadline.left), sized=[*passed_on, *beside, *levelled, *uneven]
    )


def _planned(
    demand: Demand,
    bound: Bound,
    limits: Limits,
    events: Events,
    beside: Sequence[Schedule],
    elsewhere: Callable[[Demand, Bound, Limits], Synthesis],
) -> tuple[list[Schedule], list[Schedule]]:
    """Schedules of all strategies, with those that are known beside them, and which of them have the sizes that nodes and damage ask for.

    Those need no others.
    """
    deadline = limits.deadline()
    uneven = _write_out(owner_strategies(demand), demand, bound, limits, events, beside)
    uneven += balanced_exchanges(demand, limits.within(deadline.left))
    direct: list[Schedule] = []
    if _is_planned_as_it_is(demand):
        direct = written(demand, bound, limits.within(DAMAGE.direct_part * deadline.left), events)
    if demand.kind is not Kind.ALLTOALL or not uneven:  # plans with detours are far from balanced lanes
        known_us = min((schedule.makespan_us for schedule in (*beside, *uneven, *direct)), default=math.inf)
        kept = DAMAGE.sizing_part * limits.seconds if direct else 0.0
        if not direct and healed_by_sort(demand.topology) is not None:
            part = limits.within(DAMAGE.inside_part * (deadline.left - kept))
            uneven += mended_schedules(demand, bound, part, events, _all_of(elsewhere), known_us, healed_by_sort)
            known_us = min((known_us, *(schedule.makespan_us for schedule in uneven)))
        writer = partial(written, most_messages=DAMAGE.whole_messages_a_second * limits.seconds)
        uneven += mended_schedules(demand, bound, limits.within(deadline.left - kept), events, writer, known_us)
    known = [*beside, *uneven, *direct]
    found = known if direct else [*known, *written(demand, bound, limits.within(deadline.left), events, known)]
    return found, uneven


def _is_planned_as_it_is(demand: Demand) -> bool:
    """True if nodes differ, and plans of the machine as it is are near the best all the same.

    One root's data leaves out lanes that are slow or gone. Where whole nodes are slow, each lane takes as long as the slow nodes do.
    """
    if demand.kind is Kind.BROADCAST:
        return healed(demand.topology) is not None
    return demand.kind in (Kind.ALLGATHER, Kind.REDUCESCATTER) and has_whole_sorts(demand.topology)


def _all_of(elsewhere: Callable[[Demand, Bound, Limits], Synthesis]) -> Writer:
    """A writer of what the engine finds for other machines."""

    def writer(demand: Demand, _bound: Bound, limits: Limits, _events: Events) -> list[Schedule]:
        # The engine compares its bound with those of simpler machines.
        found = elsewhere(demand, bound_of(demand, limits), limits)
        return [found.schedule, *found.runners_up]

    return writer


def written(
    demand: Demand,
    bound: Bound,
    limits: Limits,
    events: Events,
    known: Sequence[Schedule] = (),
    most_messages: float = math.inf,
) -> list[Schedule]:
    """Schedules of the strategies that promise most.

    Parameters
    ----------
    demand, bound
        What is wanted, and what no algorithm is faster than.
    limits
        Time, and the user's interrupt; without anything known, one schedule is written out in any case.
    events
        For what is found.
    known
        Schedules that are there already.
    most_messages
        Plans of more messages are left out, but for the one with fewest where all have more.
    """
    deadline = limits.deadline()
    chosen = _promising(demand, limits.within(PARAMS.estimation_part * deadline.left))
    return _write_out(chosen, demand, bound, limits.within(deadline.left), events, known, most_messages)


def _write_out(
    chosen: Iterable[HierarchyStrategy],
    demand: Demand,
    bound: Bound,
    limits: Limits,
    events: Events,
    known: Sequence[Schedule],
    most_messages: float = math.inf,
) -> list[Schedule]:
    """Schedules of strategies, the fastest estimates first, as long as they promise something."""
    over = limits.countdown()
    written_out = _WrittenOut(known)
    tried, large = set[int](), list[TemplatePlan]()
    for strategy in chosen:
        is_last = bound.is_reached_by(written_out.best_us) or over() or len(tried) >= PARAMS.most_written
        if (known or written_out.found or large) and (is_last or written_out.makes_needless(strategy.estimate_us)):
            break
        plan = strategy.plan()
        if plan is not None and len(plan.messages) > most_messages:
            large.append(plan)
            continue
        # Several strategies come to the same where nodes or lanes are few.
        same = 0 if plan is None else _order_of(plan)
        is_new = plan is not None and same not in tried
        schedule = fitted(demand, plan, over, promised_us=strategy.estimate_us) if plan is not None and is_new else None
        tried.add(same)
        if schedule is not None and written_out.take(schedule):
            events.incumbent(schedule.makespan_us)
    found = written_out.found
    if large and not found and not known:
        smallest = fitted(demand, min(large, key=lambda plan: len(plan.messages)), over)
        found += [] if smallest is None else [smallest]
    return found


class _WrittenOut:
    """Schedules of strategies so far, beside those that were there already."""

    def __init__(self, known: Sequence[Schedule]) -> None:
        self.found: list[Schedule] = []
        self.best_us = min((schedule.makespan_us for schedule in known), default=math.inf)
        self._deliveries = self._in_vain = 0
        self._begun_s = work_seconds()

    def take(self, schedule: Schedule) -> bool:
        """Add one; whether it is the best so far."""
        is_better = schedule.makespan_us < self.best_us
        self.found.append(schedule)
        self.best_us = min(self.best_us, schedule.makespan_us)
        self._in_vain = 0 if is_better else self._in_vain + 1
        self._deliveries += sum(len(message.chunks) for message in schedule.messages)
        return is_better

    def makes_needless(self, estimate_us: float) -> bool:
        """True if a strategy with such an estimate, and all those behind it, are not worth the time."""
        factor = PARAMS.estimate_factor
        if self._in_vain >= PARAMS.most_in_vain and work_seconds() - self._begun_s > PARAMS.patient_seconds:
            factor = PARAMS.estimate_factor_in_vain
        return estimate_us > factor * self.best_us or self._deliveries > PARAMS.most_deliveries


def _order_of(plan: TemplatePlan) -> int:
    """Hash of what a plan sends, in its order: from that, times follow."""
    ordered = sorted(plan.messages, key=lambda each: (each.start, each.src, each.dst))
    return hash((plan.chunks_per_rank, tuple((each.src, each.dst, each.chunks, each.reduce) for each in ordered)))


def _check(demand: Demand) -> None:
    if demand.kind in ROOTED and demand.kind not in (Kind.BROADCAST, Kind.REDUCE):
        raise InputError(f"engine hierarchy is not for {demand.kind}; use --engine milp or templates")
    if demand.sketch is not None:
        raise InputError("engine hierarchy does not look at sketches; use --engine milp or trees", field="sketch")


def _promising(demand: Demand, limits: Limits) -> Iterator[HierarchyStrategy]:
    """The most promising strategies first, of those that can be estimated in time, and a moment it is always."""
    over = limits.countdown(least_seconds=PARAMS.least_estimation_seconds)
    found: list[HierarchyStrategy] = []
    for strategy in strategies(demand, limits):
        found.append(strategy)
        if over():
            break
    yield from sorted(found, key=lambda strategy: strategy.estimate_us)[: PARAMS.most_made]

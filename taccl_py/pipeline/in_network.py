"""Plans that let switches multicast and add up: verified, replayed, and compared with lower bounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, permutations

from taccl_py.collective import Collective, Kind
from taccl_py.errors import InputError, LoweringError
from taccl_py.lowering.mscclpp import LoweredPlan, NodeRails, PlanOptions, lower_plan, needs_rails, serving_switches
from taccl_py.lowering.plan import Plan
from taccl_py.pipeline.deliver import lower_plan_and_verify
from taccl_py.pipeline.plan_choice import WORTH, doubled
from taccl_py.profiles.model import RuntimeProfile
from taccl_py.schedule.ir import Schedule
from taccl_py.simulate.plan_replay import RuntimePlanReplay, replay_plan
from taccl_py.simulate.timeline import Timeline
from taccl_py.synthesis.bounds import Bound, DemandBounds, helpful_switches
from taccl_py.topology.model import Topology
from taccl_py.units import BYTES_PER_MB, relative_gap

_PIECES = (1, 2, 3, 4, 6, 8, 12, 16)
# Ranks up to which a search asks by itself what switches could do.
_MOST_RANKS = 64
# Collectives in which nodes can pass on what several others need.
_RELAYED = frozenset({Kind.ALLREDUCE, Kind.BROADCAST})


@dataclass(frozen=True)
class SwitchPlan:
    """A plan that the verifier accepts.

    Attributes
    ----------
    lowered
        The plan and its text.
    options
        Options that it was made with: the fastest number of owners or of pieces was searched.
    replay
        How long it takes at the schedule's size.
    bound
        Lower bound for any algorithm on that machine, with sums and multicast in its switches.
    runtime_us
        Its time at that size under the runtime profile; None under the neutral one.
    """

    lowered: LoweredPlan
    options: PlanOptions
    replay: Timeline
    bound: Bound
    runtime_us: float | None = None

    @property
    def gap(self) -> float:
        """Relative distance from the bound."""
        return relative_gap(self.replay.makespan_us, self.bound.time_us)

    @property
    def unit_bytes(self) -> int:
        """Of what a size must be a multiple for the runtime to run the plan."""
        return self.lowered.plan.unit_bytes

    @property
    def is_run(self) -> bool:
        """True if the runtime accepts the plan at the schedule's size."""
        return round(self.replay.size_bytes) % self.unit_bytes == 0


def lower_by_switch(
    schedule: Schedule, options: PlanOptions, profile: RuntimeProfile | None = None, instances: int | None = None
) -> SwitchPlan:
    """Make, verify and replay the plan that does by switch what the messages of a schedule do.

    Parameters
    ----------
    schedule, options
        Collective, machine and size; placement, sizes and name.
    profile
        The runtime profile under which the cut is the fastest; None or the neutral one: by links and ports alone.
    instances
        Threadblocks of every kind on every rank; None is whatever is fastest under the profile, or what the options say without one.

    Raises
    ------
    InputError
        If no switch of the machine can do it.
    LoweringError
        If a limit of the runtime cannot be kept.
    InvalidArtifact
        If the verifier rejects the text.
    """
    collective, topology = schedule.collective, schedule.topology
    nodes = topology.node_ranks if needs_rails(schedule) else (tuple(range(topology.num_ranks)),)
    for ranks in nodes:
        _require_links(topology, collective.kind, ranks)
    best = _fastest_of(schedule, replace(options, switch=True, instances=instances or options.instances), None).options
    runtime_us = None
    if profile is not None and not profile.is_neutral:
        best, runtime_us = _fastest_runtime_cut(schedule, replace(options, switch=True), profile, instances)
    lowered = lower_plan_and_verify(schedule, best)
    replay = replay_plan(lowered.plan, collective.kind, topology, schedule.size_bytes / lowered.plan.chunks_per_size)
    bounds = DemandBounds.by_switch(topology, collective.kind, collective.root)
    return SwitchPlan(lowered, best, replay, bounds.at(schedule.size_bytes), runtime_us)


def _require_links(topology: Topology, kind: Kind, ranks: Sequence[int]) -> None:
    """Refuse a switch without links between all these ranks: what it does for them takes its time from those links."""
    unlinked = next((pair for pair in permutations(ranks, 2) if pair not in topology.links_between), None)
    if unlinked is None:
        return
    src, dst = unlinked
    name = serving_switches(topology, kind, ranks)[0].name
    raise InputError(
        f"switch {name} joins ranks {src} and {dst}, and there is no link {src}->{dst}; add all links through the switch, whose "
        "costs are its own, or leave --switch out",
        field="topology.links",
    )


def switch_times_us(topology: Topology, kind: Kind, root: int, sizes: Sequence[float]) -> list[float | None]:
    """Predicted times of plans by switch at some sizes; None where there is no plan, or none whose chunks divide the size.

    Parameters
    ----------
    topology
        The machine.
    kind, root
        The collective.
    sizes
        Sizes as nccl-tests counts them, in bytes.
    """
    none: list[float | None] = [None] * len(sizes)
    if topology.num_ranks > _MOST_RANKS or not helpful_switches(topology, kind):
        return none
    collective = Collective(kind, topology.num_ranks, 1, root)
    schedule = Schedule(topology, collective, float(BYTES_PER_MB), (), ((),) * topology.num_ranks)
    best = [math.inf] * len(sizes)
    try:
        for cuts in _cuts_by_rails(schedule, PlanOptions(switch=True)):
            before = [math.inf] * len(sizes)
            for cut in cuts:
                times = [cut.time_us(schedule, size) for size in sizes]
                whole = [time if cut.divides(size) else math.inf for time, size in zip(times, sizes, strict=True)]
                best = [min(pair) for pair in zip(best, whole, strict=True)]
                if all(now >= earlier for now, earlier in zip(times, before, strict=True)):
                    break
                before = times
    except (InputError, LoweringError):
        return none
    return [time if math.isfinite(time) else None for time in best]


def switch_runtime_us(schedule: Schedule, options: PlanOptions, profile: RuntimeProfile) -> float | None:
    """Time of the fastest plan by switch under a runtime profile at a schedule's size; None where there is none."""
    topology, kind = schedule.topology, schedule.collective.kind
    if profile.is_neutral or topology.num_ranks > _MOST_RANKS or not helpful_switches(topology, kind):
        return None
    with suppress(InputError, LoweringError):
        _, time_us = _fastest_runtime_cut(schedule, replace(options, switch=True), profile, None)
        return time_us
    return None


@dataclass(frozen=True, slots=True)
class _CutPlan:
    """A plan and what it was made with; its times are under a runtime profile if there is one."""

    options: PlanOptions
    plan: Plan
    profile: RuntimeProfile | None = None

    def time_us(self, schedule: Schedule, size_bytes: float) -> float:
        """Predicted time at a size."""
        kind = schedule.collective.kind
        if self.profile is not None:
            return RuntimePlanReplay(self.plan, kind, schedule.topology, self.profile).time_us(size_bytes)
        chunk_bytes = size_bytes / self.plan.chunks_per_size
        return replay_plan(self.plan, kind, schedule.topology, chunk_bytes).makespan_us

    def divides(self, size_bytes: float) -> bool:
        """True if a size is a multiple of the plan's chunks; the runtime runs no other."""
        return round(size_bytes) % self.plan.unit_bytes == 0


def _rails(schedule: Schedule) -> tuple[NodeRails, ...]:
    """Paths between nodes that are worth trying: of two nodes none has to relay anything."""
    several = schedule.topology.num_nodes > 2 and schedule.collective.kind in _RELAYED and needs_rails(schedule)
    return tuple(NodeRails) if several else (NodeRails.DIRECT,)


def _cuts_by_rails(
    schedule: Schedule, options: PlanOptions, profile: RuntimeProfile | None = None
) -> Iterator[Iterator[_CutPlan]]:
    """Cuts for each path between nodes that does not go beyond a limit of the runtime; LoweringError if all of them do."""
    failures: list[LoweringError] = []
    choices = _rails(schedule)
    for rails in choices:
        cuts = _cuts(schedule, replace(options, rails=rails), profile)
        try:
            first = next(cuts)
        except LoweringError as error:
            failures.append(error)
        else:
            yield chain([first], cuts)
    if len(failures) == len(choices):
        raise failures[0]


def _cuts(schedule: Schedule, options: PlanOptions, profile: RuntimeProfile | None) -> Iterator[_CutPlan]:
    """Plans by more and more owners and then of more and more pieces, until a limit of the runtime is reached."""
    kind, several = schedule.collective.kind, needs_rails(schedule)
    most = len(schedule.topology.node_ranks[0]) if several else schedule.topology.num_ranks
    fewer = [1 << power for power in range(most.bit_length()) if 1 << power < most]
    shared = kind is Kind.ALLREDUCE or (kind is Kind.BROADCAST and several)
    wanted = [replace(options, owners=owners) for owners in ([*fewer, most] if shared else [most])]
    if several:
        wanted += [replace(options, owners=most, pieces=pieces) for pieces in _PIECES[1:]]
    for number, tried in enumerate(wanted):
        try:
            plan = lower_plan(schedule, tried).plan
        except LoweringError:
            if number == 0:
                raise
            return
        yield _CutPlan(tried, plan, profile)


def _fastest_runtime_cut(
    schedule: Schedule, options: PlanOptions, profile: RuntimeProfile, instances: int | None
) -> tuple[PlanOptions, float]:
    """Options whose cut is fastest under a runtime profile at the schedule's size, and the time."""
    best: _TimedCut | None = None
    for number in doubled() if instances is None else [instances]:
        try:
            found = _fastest_of(schedule, replace(options, instances=number), profile)
        except LoweringError:
            if best is None:
                raise
            break
        if best is not None and (found.left_over, found.time_us) > (best.left_over, WORTH * best.time_us):
            break
        best = found
    if best is None:
        raise ValueError("a plan by switch with no instance")
    return best.options, best.time_us


@dataclass(frozen=True, slots=True, order=True)
class _TimedCut:
    """Result of a cut: whether its chunks do not divide the size, its time, and what it was made with."""

    left_over: bool
    time_us: float
    options: PlanOptions = field(compare=False)


def _fastest_of(schedule: Schedule, options: PlanOptions, profile: RuntimeProfile | None) -> _TimedCut:
    """The fastest cut at the schedule's size, of those whose chunks divide it if there are any.

    More pieces follow each other more closely, more owners share the load, and both pay alpha more often; so trying ends when more
    of them are slower.
    """
    best = _TimedCut(True, math.inf, options)
    for cuts in _cuts_by_rails(schedule, options, profile):
        before_us = math.inf
        for cut in cuts:
            time_us = cut.time_us(schedule, schedule.size_bytes)
            best = min(best, _TimedCut(not cut.divides(schedule.size_bytes), time_us, cut.options))
            if time_us > before_us:
                break
            before_us = time_us
    return best

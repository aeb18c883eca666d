"""Stages for several process groups at once: each group's schedule, all of them together, the verifier, the bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from taccl_py.collective import ROOTED, Kind
from taccl_py.demand import DataDemand
from taccl_py.errors import Infeasible, InputError, InvalidArtifact, LimitReached
from taccl_py.pipeline.demands import require_machine, synthesize_demand
from taccl_py.pipeline.resolve import Request, make_demand
from taccl_py.pipeline.search import synthesize
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.schedule.ir import Schedule
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import Bound
from taccl_py.synthesis.demands import KnownDemand
from taccl_py.synthesis.engine import Events, Proof
from taccl_py.synthesis.reversal import ROUTED
from taccl_py.synthesis.together import (
    GroupMember,
    GroupTask,
    in_turn,
    makespan_us,
    orders,
    planned_jointly,
    relayed,
    together_bound,
)
from taccl_py.topology.degrade import Degradation
from taccl_py.topology.model import Topology
from taccl_py.units import ALIGNED_BYTES, format_ranks, relative_gap
from taccl_py.verify.together import TimedGroup, verify_together

# Engines where none is named: one that is quick, one that is tried where that ends well behind the bound, as where latency counts, and one for
# the collectives that they do not know. Measured: AllReduce of 1 KiB by two groups of four ranks of ndv4, 1.81 -> 0.61 us.
_QUICK, _OTHER, _ANY = "greedy", "templates", "auto"
# Gap from which on groups are also planned so that they leave each other room, and engines for that where none is named. Measured: AllReduce
# of 64 MiB, groups that share two ranks, ndv4 674.7 -> 586.2 us, dgx1 1937 -> 1544 us, both in two seconds; by engine auto 628.8 in a minute.
_WORTH_ROOM, _ROOMY = 0.05, ("greedy", "templates")
# Collectives whose size is that of one chunk; of the others it is spread over all ranks.
_WHOLE = frozenset({Kind.BROADCAST, Kind.REDUCE})


@dataclass(frozen=True, slots=True)
class AskedGroup:
    """A process group, and what it does in place of what the request says.

    Attributes
    ----------
    ranks
        Ranks of the machine, in the group's order.
    what
        Its collective, or a demand between as many ranks; None for the collective of the request.
    size_bytes, root
        Size and root (a number within the group) of its collective, or None for those of the request.
    release_us
        When it may start.
    """

    ranks: tuple[int, ...]
    what: Kind | DataDemand | None = None
    size_bytes: int | None = None
    root: int | None = None
    release_us: float = 0.0


@dataclass(frozen=True)
class GroupsSynthesis:
    """Schedules of several groups, that the verifier accepts.

    Attributes
    ----------
    machine
        Machine that they share.
    tasks
        The groups, and what each does when.
    ranks
        For each group its ranks, and behind them those outside of it that pass its data on.
    schedules
        Of each group, on the machine that these ranks see, on one clock.
    alone_us
        Time of each group's best schedule where the others are silent.
    one_after_another_us
        Time of all these in turn, in the order of the releases.
    bound
        Best proven lower bound for all of them together.
    """

    machine: Topology
    tasks: tuple[GroupTask, ...]
    ranks: tuple[tuple[int, ...], ...]
    schedules: tuple[Schedule | DemandSchedule, ...]
    alone_us: tuple[float, ...]
    one_after_another_us: float
    bound: Bound

    @property
    def makespan_us(self) -> float:
        """Time at which the last group is done."""
        return makespan_us(self.schedules)

    @property
    def gap(self) -> float:
        """Relative distance from the bound."""
        return relative_gap(self.makespan_us, self.bound.time_us)

    def demand_of(self, group: int) -> DataDemand:
        """Demand of a group, between its ranks and those that pass its data on, which have nothing and want nothing."""
        ranks = self.ranks[group]
        return self.tasks[group].demand.placed(range(len(self.tasks[group].ranks)), len(ranks))


def synthesize_groups(
    request: Request, groups: Sequence[AskedGroup], events: Events, *, relay: bool = False
) -> GroupsSynthesis:
    """Find schedules for several groups at once; groups that do the same on machines that look the same are solved once.

    Parameters
    ----------
    request
        Request of each group but for what the group says; its ``ranks`` are left out. Without an engine each collective gets a quick one.
    groups
        The groups; a rank may be in several.
    events
        Progress.
    relay
        Whether data may also pass through ranks outside of their group. Sizes of collectives are then rounded up to whole chunks of 16 bytes.

    Raises
    ------
    TacclError
        Input, synthesis and package errors; InvalidArtifact if the verifier rejects everything that was found.
    """
    if len(groups) < 2 and not relay:
        raise InputError(
            "give --group at least twice; one group alone is for taccl synth --ranks, or with --relay",
            path="command line",
            field="--group",
        )
    machine = make_demand(replace(request, ranks=None, root=0, chunks_per_rank=None), expanded=False).topology
    deadline = request.options.limits.deadline()
    events.stage("bound")
    if relay:
        groups = [_whole_chunks(machine, request, group) for group in groups]
    tasks = [_task(machine, request, group, relay=relay) for group in groups]
    if relay:
        require_machine(machine, tasks[0].demand.placed(tasks[0].ranks, machine.num_ranks))
    bound = together_bound(machine, tasks, relay=relay)
    events.bound(bound.time_us)
    is_quick = not request.engine and bool(_kinds(request, groups) & ROUTED.keys())
    by_engine = [_own_members(machine, request, groups, tasks, events, relay=relay)]
    if is_quick and any(member is not None and _is_late(member, bound) for member in by_engine[0]):
        asked = _within(request, deadline.left)
        with suppress(Infeasible, LimitReached):
            other = _own_members(machine, asked, groups, tasks, events, relay=relay, quick=_OTHER)
            by_engine.insert(0, [_sooner(*pair) for pair in zip(by_engine[0], other, strict=True)])
    own = by_engine[0]
    inside = [member for member in own if member is not None]
    plans = [[m for m in each if m is not None] for each in by_engine] if len(inside) == len(tasks) else []
    if relay:
        plans = [*_relayed_plans(machine, tasks, own, request.options.limits, events), *plans]
    events.stage("together")
    found = _verified(machine, tasks, plans, bound)
    crowded = _crowded(machine, tasks)
    if found.gap <= _WORTH_ROOM or len(inside) < len(tasks) or crowded == machine:
        return found
    for quick in _ROOMY if is_quick else _ROOMY[:1]:
        asked = replace(_within(request, deadline.left), topology=crowded, nodes=None, degradation=Degradation())
        with suppress(Infeasible, LimitReached):
            own = _own_members(crowded, asked, groups, tasks, events, relay=False, quick=quick)
            plans.append([member.on(machine) for member in own if member is not None])
    return _verified(machine, tasks, plans, bound)


def _kinds(request: Request, groups: Sequence[AskedGroup]) -> set[Kind]:
    """Collectives of all groups that have one."""
    return {_request(request, group).kind for group in groups if not isinstance(group.what, DataDemand)}


def _within(request: Request, seconds: float) -> Request:
    """The request with no more than so much time."""
    return replace(request, options=replace(request.options, limits=request.options.limits.within(seconds)))


def _is_late(member: GroupMember, bound: Bound) -> bool:
    """True if a group by itself already ends well behind the bound of all."""
    return relative_gap(member.end_us, bound.time_us) > _WORTH_ROOM


def _sooner(one: GroupMember | None, other: GroupMember | None) -> GroupMember | None:
    """That of two schedules of a group that ends first; the first one if both do."""
    return min((each for each in (one, other) if each is not None), key=lambda each: each.end_us, default=None)


def _crowded(machine: Topology, tasks: Sequence[GroupTask]) -> Topology:
    """The machine as each group would see it if all who share a link or port took turns: as many times slower as it has groups."""
    users: Counter[int] = Counter()
    for task in tasks:
        own = [number for number, link in enumerate(machine.links) if {link.src, link.dst} <= set(task.ranks)]
        users.update({resource for number in own for resource in machine.resources_of[number]})
    if max(users.values(), default=1) == 1:
        return machine
    links = tuple(
        replace(link, beta_us_per_mb=link.beta_us_per_mb * max(1, users[number]))
        for number, link in enumerate(machine.links)
    )
    ports = tuple(
        replace(port, beta_us_per_mb=port.beta_us_per_mb * max(1, users[number]))
        for number, port in enumerate(machine.ports, len(links))
    )
    return replace(machine, links=links, ports=ports, symmetry=(), switches=())


def _request(request: Request, group: AskedGroup, quick: str = _QUICK) -> Request:
    """Request of one group with a collective; without an engine by `quick`, or by auto if that one does not know the collective."""
    kind = group.what if isinstance(group.what, Kind) else request.kind
    root = request.root if group.root is None and kind in ROOTED else group.root or 0
    size = request.size_bytes if group.size_bytes is None else group.size_bytes
    engine = request.engine or (quick if kind in ROUTED else _ANY)
    return replace(request, ranks=group.ranks, kind=kind, size_bytes=size, root=root, engine=engine)


def _whole_chunks(machine: Topology, request: Request, group: AskedGroup) -> AskedGroup:
    """The group with the size of its collective rounded up to whole chunks of aligned bytes, as data that pass through others are a demand."""
    if isinstance(group.what, DataDemand):
        return group
    own = _request(request, group)
    chunks = 1 if own.kind in _WHOLE else len(group.ranks)
    size = machine.default_bytes(chunks) if own.size_bytes is None else own.size_bytes
    unit = chunks * ALIGNED_BYTES
    return replace(group, size_bytes=-(-size // unit) * unit)


def _task(machine: Topology, request: Request, group: AskedGroup, *, relay: bool) -> GroupTask:
    """Task of a group, if it is possible."""
    if isinstance(group.what, DataDemand):
        if len(group.ranks) != group.what.num_ranks:
            raise InputError(
                f"the group {format_ranks(group.ranks)} has {len(group.ranks)} ranks, and the {group.what.title} is for "
                f"{group.what.num_ranks}; name as many ranks",
                path="command line", field="--group",
            )  # fmt: skip
        with _about_groups():
            require_machine(machine.subset(group.ranks), group.what)
        return GroupTask(group.ranks, group.what, group.release_us)
    own = _request(request, group)
    with _about_groups(), suppress(*((Infeasible,) if relay else ())):
        demand = make_demand(own)
        return GroupTask(group.ranks, KnownDemand(own.kind, own.root, int(demand.size_bytes)), group.release_us)
    return GroupTask(group.ranks, KnownDemand(own.kind, own.root, own.size_bytes or 0), group.release_us)


@contextmanager
def _about_groups() -> Iterator[None]:
    """Turn errors about the options of a process group into those about ``--group``."""
    try:
        yield
    except InputError as error:
        if error.field not in ("--ranks", "--root", "ranks"):
            raise
        raise InputError(error.what, path="command line", field="--group") from None


def _own_members(
    machine: Topology,
    request: Request,
    groups: Sequence[AskedGroup],
    tasks: Sequence[GroupTask],
    events: Events,
    *,
    relay: bool,
    quick: str = _QUICK,
) -> list[GroupMember | None]:
    """Schedule of each group over its own ranks alone; None where these have no paths, if data may pass through others."""
    seen = [machine.subset(task.ranks) for task in tasks]
    found: list[GroupMember | None] = []
    for number, (group, task) in enumerate(zip(groups, tasks, strict=True)):
        like = next((i for i in range(number) if _look_alike(tasks[i], seen[i], task, seen[number])), None)
        earlier = found[like] if like is not None else None
        if earlier is not None:
            schedule: Schedule | DemandSchedule = replace(earlier.schedule, topology=seen[number])
            found.append(GroupMember(task.ranks, schedule, task.release_us))
            continue
        try:
            if isinstance(task.what, DataDemand):
                schedule = synthesize_demand(seen[number], task.what, request.options.limits, events).schedule
            else:
                schedule = synthesize(_request(request, group, quick), events).schedule
        except Infeasible:
            if not relay:
                raise
            found.append(None)
        else:
            found.append(GroupMember(task.ranks, schedule, task.release_us))
    return found


def _relayed_plans(
    machine: Topology,
    tasks: Sequence[GroupTask],
    own: Sequence[GroupMember | None],
    limits: Limits,
    events: Events,
) -> list[list[GroupMember]]:
    """Members of plans in which data pass through others: each group's best by itself, and all from one plan."""
    events.stage("relays")
    best = []
    for member, task in zip(own, tasks, strict=True):
        other = (
            relayed(machine, task, limits, events) if len(task.ranks) < machine.num_ranks or member is None else None
        )
        candidates = [each for each in (member, other) if each is not None]
        best.append(min(candidates, key=lambda each: each.schedule.makespan_us))
    joint = planned_jointly(machine, tasks, limits, events) if len(tasks) > 1 else None
    return [best] if joint is None else [best, joint]


def _verified(
    machine: Topology, tasks: Sequence[GroupTask], plans: Sequence[list[GroupMember]], bound: Bound
) -> GroupsSynthesis:
    """The best order of the best plan that the verifier accepts; times alone are those of the first plan."""
    found = [(schedules, plan) for plan in plans for schedules in orders(machine, plan)]
    violations = None
    for schedules, plan in sorted(found, key=lambda each: makespan_us(each[0])):
        parts = [
            TimedGroup(
                member.ranks, schedule, task.release_us, task.demand if isinstance(schedule, DemandSchedule) else None
            )
            for member, schedule, task in zip(plan, schedules, tasks, strict=True)
        ]
        wrong = verify_together(machine, parts)
        if not wrong:
            return GroupsSynthesis(
                machine,
                tuple(tasks),
                tuple(member.ranks for member in plan),
                tuple(_named(schedule, bound) for schedule in schedules),
                tuple(member.schedule.makespan_us for member in plans[0]),
                makespan_us(in_turn(plans[0])),
                bound,
            )
        violations = violations or wrong
    raise InvalidArtifact(f"schedules of {len(tasks)} groups", violations or ())


def _named(schedule: Schedule | DemandSchedule, bound: Bound) -> Schedule | DemandSchedule:
    """The schedule with the bound of all groups together in its provenance; what was proved of it alone holds no more."""
    origin = schedule.origin
    if origin is None:
        return schedule
    own = replace(origin, status=str(Proof.FEASIBLE), bound_us=bound.time_us, bound_reason=bound.reason)
    return schedule.with_origin(own)


def _look_alike(one: GroupTask, seen: Topology, two: GroupTask, other: Topology) -> bool:
    """True if two groups do the same on machines that they see alike but for the names of ports."""
    costs = [[(port.alpha_us, port.beta_us_per_mb) for port in each.ports] for each in (seen, other)]
    return one.what == two.what and seen.links == other.links and seen.node_of == other.node_of and costs[0] == costs[1]

"""Stages for several process groups at once: each group's schedule, all of them together, the verifier, the bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from taccl_py.collective import ROOTED, Kind
from taccl_py.errors import InputError, InvalidArtifact
from taccl_py.pipeline.resolve import Request, make_demand
from taccl_py.pipeline.search import synthesize
from taccl_py.schedule.ir import Schedule
from taccl_py.synthesis.bounds import Bound
from taccl_py.synthesis.engine import Demand, Events, Proof
from taccl_py.synthesis.together import GroupMember, GroupTask, in_turn, makespan_us, orders, together_bound
from taccl_py.topology.model import Topology
from taccl_py.units import relative_gap
from taccl_py.verify.together import TimedGroup, verify_together


@dataclass(frozen=True, slots=True)
class AskedGroup:
    """A process group, and what it does in place of what the request says.

    Attributes
    ----------
    ranks
        Ranks of the machine, in the group's order.
    kind, size_bytes
        Its collective and size, or None for those of the request.
    release_us
        When it may start.
    """

    ranks: tuple[int, ...]
    kind: Kind | None = None
    size_bytes: int | None = None
    release_us: float = 0.0


@dataclass(frozen=True)
class GroupsSynthesis:
    """Schedules of several groups, that the verifier accepts.

    Attributes
    ----------
    groups
        Ranks of each group.
    schedules
        Of each group, on the machine that it sees, on one clock.
    alone_us, release_us
        Time of each group's schedule where the others are silent, and when it may start.
    one_after_another_us
        Time of all schedules in turn, in the order of the releases.
    bound
        Best proven lower bound for all of them together.
    """

    groups: tuple[tuple[int, ...], ...]
    schedules: tuple[Schedule, ...]
    alone_us: tuple[float, ...]
    release_us: tuple[float, ...]
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


def synthesize_groups(request: Request, groups: Sequence[AskedGroup], events: Events) -> GroupsSynthesis:
    """Find schedules for several groups at once; groups that do the same on machines that look the same are solved once.

    Parameters
    ----------
    request
        Request of each group but for what the group says; its ``ranks`` are left out.
    groups
        The groups; a rank may be in several.
    events
        Progress.

    Raises
    ------
    TacclError
        Input, synthesis and package errors; InvalidArtifact if the verifier rejects everything that was found.
    """
    _require_several(request, groups)
    machine = make_demand(replace(request, ranks=None, chunks_per_rank=None), expanded=False).topology
    events.stage("bound")
    requests = [_request(request, group) for group in groups]
    demands = [_demand(own) for own in requests]
    tasks = [
        GroupTask(group.ranks, demand.kind, demand.size_bytes, group.release_us)
        for group, demand in zip(groups, demands, strict=True)
    ]
    bound = together_bound(machine, tasks)
    events.bound(bound.time_us)
    members: list[GroupMember] = []
    for number, (group, demand) in enumerate(zip(groups, demands, strict=True)):
        like = next((i for i in range(number) if _look_alike(demands[i], demand)), None)
        if like is not None:
            schedule = replace(members[like].schedule, topology=demand.topology)
        else:
            schedule = synthesize(requests[number], events).schedule
        members.append(GroupMember(group.ranks, schedule, group.release_us))
    events.stage("together")
    return _verified(machine, members, demands, bound)


def _request(request: Request, group: AskedGroup) -> Request:
    """Request of one group."""
    size = request.size_bytes if group.size_bytes is None else group.size_bytes
    return replace(request, ranks=group.ranks, kind=group.kind or request.kind, size_bytes=size)


def _demand(request: Request) -> Demand:
    try:
        return make_demand(request)
    except InputError as error:
        if error.field != "--ranks":
            raise
        raise InputError(error.what, path=error.path, field="--group") from None


def _verified(
    machine: Topology, members: Sequence[GroupMember], demands: Sequence[Demand], bound: Bound
) -> GroupsSynthesis:
    """The best order that the verifier accepts."""
    groups = tuple(member.ranks for member in members)
    violations = None
    for schedules in orders(machine, members):
        parts = [
            TimedGroup(member.ranks, schedule, member.release_us)
            for member, schedule in zip(members, schedules, strict=True)
        ]
        violations = verify_together(machine, parts)
        if not violations:
            schedules = tuple(_named(schedule, bound) for schedule in schedules)
            alone_us = tuple(member.schedule.makespan_us for member in members)
            release_us = tuple(member.release_us for member in members)
            return GroupsSynthesis(groups, schedules, alone_us, release_us, makespan_us(in_turn(members)), bound)
        violations = violations or violations
    raise InvalidArtifact(f"schedules of {len(demands)} groups", violations or ())


def _named(schedule: Schedule, bound: Bound) -> Schedule:
    """The schedule with the bound of all groups together in its provenance; what was proved of it alone holds no more."""
    origin = schedule.origin
    if origin is None:
        return schedule
    own = replace(origin, status=str(Proof.FEASIBLE), bound_us=bound.time_us, bound_reason=bound.reason)
    return schedule.with_origin(own)


def _require_several(request: Request, groups: Sequence[AskedGroup]) -> None:
    if len(groups) < 2:
        raise InputError(
            "give --group at least twice; one group alone is for taccl synth --ranks",
            path="command line",
            field="--group",
        )
    for group in groups:
        kind = group.kind or request.kind
        if kind in ROOTED:
            raise InputError(f"{kind} has a root; groups are for collectives without one", path="command line")


def _look_alike(one: Demand, two: Demand) -> bool:
    """True if two groups do the same on the same machine but for the names of ports."""
    machines = (one.topology, two.topology)
    costs = [[(port.alpha_us, port.beta_us_per_mb) for port in each.ports] for each in machines]
    return (
        (one.kind, one.size_bytes) == (two.kind, two.size_bytes)
        and machines[0].links == machines[1].links
        and machines[0].node_of == machines[1].node_of
        and costs[0] == costs[1]
    )

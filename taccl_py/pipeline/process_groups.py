"""Stages for several process groups at once: each group's schedule, all of them together, the verifier, the bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from taccl_py.collective import ROOTED
from taccl_py.errors import InputError, InvalidArtifact
from taccl_py.pipeline.resolve import Request, make_demand
from taccl_py.pipeline.search import synthesize
from taccl_py.schedule.ir import Schedule
from taccl_py.synthesis.bounds import Bound
from taccl_py.synthesis.engine import Demand, Events, Proof
from taccl_py.synthesis.together import GroupMember, makespan_us, orders, together_bound
from taccl_py.topology.model import Topology
from taccl_py.units import format_ranks, relative_gap
from taccl_py.verify.together import TimedGroup, verify_together


@dataclass(frozen=True)
class GroupsSynthesis:
    """Schedules of several groups, that the verifier accepts.

    Attributes
    ----------
    groups
        Ranks of each group.
    schedules
        Of each group, on the machine that it sees, on one clock.
    alone_us
        Time of each group's schedule where the others are silent.
    bound
        Best proven lower bound for all of them together.
    """

    groups: tuple[tuple[int, ...], ...]
    schedules: tuple[Schedule, ...]
    alone_us: tuple[float, ...]
    bound: Bound

    @property
    def makespan_us(self) -> float:
        """Time at which the last group is done."""
        return makespan_us(self.schedules)

    @property
    def gap(self) -> float:
        """Relative distance from the bound."""
        return relative_gap(self.makespan_us, self.bound.time_us)


def synthesize_groups(request: Request, groups: Sequence[tuple[int, ...]], events: Events) -> GroupsSynthesis:
    """Find schedules of one collective for several groups at once; groups that see the same machine are solved once.

    Parameters
    ----------
    request
        Request of each group; its ``ranks`` are left out.
    groups
        Ranks of each group.
    events
        Progress.

    Raises
    ------
    TacclError
        Input, synthesis and package errors; InvalidArtifact if the verifier rejects everything that was found.
    """
    _require_apart(request, groups)
    machine = make_demand(replace(request, ranks=None, chunks_per_rank=None), expanded=False).topology
    events.stage("bound")
    demands = [_demand(request, ranks) for ranks in groups]
    bound = together_bound(machine, groups, request.kind, demands[0].size_bytes)
    events.bound(bound.time_us)
    members: list[GroupMember] = []
    for number, (ranks, demand) in enumerate(zip(groups, demands, strict=True)):
        like = next((i for i in range(number) if _look_alike(demands[i].topology, demand.topology)), None)
        if like is not None:
            members.append(GroupMember(ranks, replace(members[like].schedule, topology=demand.topology)))
        else:
            members.append(GroupMember(ranks, synthesize(replace(request, ranks=ranks), events).schedule))
    events.stage("together")
    return _verified(machine, members, demands, bound)


def _demand(request: Request, ranks: tuple[int, ...]) -> Demand:
    try:
        return make_demand(replace(request, ranks=ranks))
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
        parts = [TimedGroup(ranks, schedule) for ranks, schedule in zip(groups, schedules, strict=True)]
        violations = verify_together(machine, parts)
        if not violations:
            schedules = tuple(_named(schedule, bound) for schedule in schedules)
            alone_us = tuple(member.schedule.makespan_us for member in members)
            return GroupsSynthesis(groups, schedules, alone_us, bound)
        violations = violations or violations
    raise InvalidArtifact(f"schedules of {len(demands)} groups", violations or ())


def _named(schedule: Schedule, bound: Bound) -> Schedule:
    """The schedule with the bound of all groups together in its provenance; what was proved of it alone holds no more."""
    origin = schedule.origin
    if origin is None:
        return schedule
    own = replace(origin, status=str(Proof.FEASIBLE), bound_us=bound.time_us, bound_reason=bound.reason)
    return schedule.with_origin(own)


def _require_apart(request: Request, groups: Sequence[tuple[int, ...]]) -> None:
    if len(groups) < 2:
        raise InputError(
            "give --group at least twice; one group alone is for taccl synth --ranks",
            path="command line",
            field="--group",
        )
    if request.kind in ROOTED:
        raise InputError(f"{request.kind} has a root; groups are for collectives without one", path="command line")
    for one, two in combinations(groups, 2):
        common = sorted(set(one) & set(two))
        if common:
            raise InputError(
                f"ranks {format_ranks(common)} are in two groups; groups that run at once have no common ranks",
                path="command line",
                field="--group",
            )


def _look_alike(one: Topology, two: Topology) -> bool:
    """True if two groups see the same machine but for the names of ports."""
    costs = [[(port.alpha_us, port.beta_us_per_mb) for port in each.ports] for each in (one, two)]
    return one.links == two.links and one.node_of == two.node_of and costs[0] == costs[1]

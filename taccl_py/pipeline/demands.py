"""Search for demands: those that are one of the eight collectives go to its engines, the others to the engine for demands.

What leaves here has passed the verifier of schedules for demands.
"""

from __future__ import annotations

from dataclasses import dataclass

from taccl_py.answer import Ended
from taccl_py.collective import Kind
from taccl_py.demand import DataDemand
from taccl_py.errors import InputError, require_verdict
from taccl_py.pipeline.views import search
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.schedule.ir import Origin
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import Bound, demand_bound
from taccl_py.synthesis.catalog import DEMAND_ENGINES
from taccl_py.synthesis.demands import (
    AUTO,
    DemandSynthesis,
    KnownDemand,
    as_demand_schedule,
    bound_of_demand,
    is_planned_first,
    recognized,
    solve_demand,
)
from taccl_py.synthesis.engine import Demand, Events, Options, Proof
from taccl_py.topology.model import Topology
from taccl_py.verify.demand import verify_demand_schedule


@dataclass(frozen=True)
class DemandAnswer:
    """Verified answer to a demand.

    Attributes
    ----------
    synthesis
        Schedule, bound, proof.
    known
        The collective that the demand is, or None.
    ended
        How the search ended.
    """

    synthesis: DemandSynthesis
    known: KnownDemand | None
    ended: Ended

    @property
    def schedule(self) -> DemandSchedule:
        """The schedule that was found."""
        return self.synthesis.schedule

    @property
    def schedules(self) -> tuple[DemandSchedule, ...]:
        """The schedule, and those of other planners, whose programs may be faster."""
        return (self.schedule, *self.synthesis.runners_up)

    @property
    def time_us(self) -> float:
        """Predicted time of the schedule on links and ports, in microseconds."""
        return self.schedule.makespan_us

    @property
    def bound(self) -> Bound:
        """Lower bound on the time of any algorithm."""
        return self.synthesis.bound

    @property
    def gap(self) -> float:
        """Distance of the schedule from the bound, as a part of the bound."""
        return self.synthesis.gap

    @property
    def proof(self) -> Proof:
        """Proof that nothing faster exists, if there is one."""
        return self.synthesis.proof


def require_machine(topology: Topology, demand: DataDemand) -> None:
    """Refuse a machine that the demand is not for.

    Raises
    ------
    InputError
        If the ranks differ in number.
    """
    if topology.num_ranks != demand.num_ranks:
        raise InputError(
            f"{topology.name} has {topology.num_ranks} ranks, and the {demand.title} is for {demand.num_ranks}; choose the machine's "
            "size, or --ranks",
            path="command line", field="TOPOLOGY",
        )  # fmt: skip


def synthesize_demand(
    topology: Topology, demand: DataDemand, limits: Limits, events: Events, engine: str = AUTO
) -> DemandAnswer:
    """Find and verify a schedule for a demand.

    Parameters
    ----------
    topology, demand
        The machine and what must move on it.
    limits, events
        When to stop, and who is told of progress.
    engine
        One for demands, or one for the eight collectives, if the demand is one of those; ``auto`` is both.

    Raises
    ------
    TacclError
        Input and synthesis errors; InvalidArtifact if the verifier rejects what an engine made.
    """
    require_machine(topology, demand)
    known = None if engine in DEMAND_ENGINES and engine != AUTO else recognized(demand)
    if known is None:
        if engine not in DEMAND_ENGINES:
            raise InputError(
                f"engine {engine} is for the eight collectives, and the {demand.title} is none; use one of: {', '.join(DEMAND_ENGINES)}",
                path="command line", field="--engine",
            )  # fmt: skip
        synthesis = solve_demand(topology, demand, limits, events, engine)
    elif engine != AUTO:
        synthesis = _as_collective(topology, demand, known, limits, events, engine)
    elif known.kind is Kind.ALLTOALL and is_planned_first(topology.num_ranks * (topology.num_ranks - 1)):
        synthesis = _large_exchange(topology, demand, known, limits, events)
    else:
        synthesis = _as_collective(topology, demand, known, limits, events)
    require_verdict("schedule", verify_demand_schedule(synthesis.schedule, demand))
    ended = Ended.of(limits, is_proved=synthesis.proof is not Proof.FEASIBLE)
    return DemandAnswer(synthesis, known, ended)


def _large_exchange(
    topology: Topology, demand: DataDemand, known: KnownDemand, limits: Limits, events: Events
) -> DemandSynthesis:
    """Answer of the engine for demands, or, where that is not near the bound, the better one of it and those of the collective."""
    found = solve_demand(topology, demand, limits, events)
    if found.is_near:
        return found
    other = _as_collective(topology, demand, known, limits, events)
    return other if other.schedule.makespan_us <= found.schedule.makespan_us else found


def _as_collective(
    topology: Topology, demand: DataDemand, known: KnownDemand, limits: Limits, events: Events, engine: str = AUTO
) -> DemandSynthesis:
    """Answer of an engine of a collective."""
    asked = Demand(topology, known.kind, known.size_bytes, known.root)
    found = search(asked, engine, Options(limits=limits), None, events)
    schedule: DemandSchedule = as_demand_schedule(found.schedule, demand)
    origin = found.schedule.origin
    proof = Proof.of(schedule.makespan_us, found.bound)
    own = Origin(
        engine, found.solver, "", limits.seed, str(proof), found.bound.time_us, found.bound.reason,
        found_by=origin.found_by if origin is not None else "",
    )  # fmt: skip
    return DemandSynthesis(schedule.with_origin(own), found.bound, proof)


def demand_lower_bound(topology: Topology, demand: DataDemand, limits: Limits) -> tuple[Bound, KnownDemand | None]:
    """Lower bound on the time of any schedule for a demand, and the collective that it is, if it is one.

    Raises
    ------
    InputError
        If the machine is not for the demand.
    Infeasible
        If some rank cannot be reached.
    """
    require_machine(topology, demand)
    known = recognized(demand)
    if known is None:
        return bound_of_demand(topology, demand), None
    return demand_bound(topology, known.kind, known.root, known.size_bytes, limits), known

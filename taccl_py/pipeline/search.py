"""Search: engine and bounds answer a demand; what leaves here has passed the verifier of schedules."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from taccl_py.answer import OF_FIXED_CHUNKS
from taccl_py.errors import InputError, LimitReached, require_verdict
from taccl_py.pipeline.resolve import AUTO_SKETCH, Request, make_demand
from taccl_py.pipeline.views import search
from taccl_py.schedule.group import GroupSchedule
from taccl_py.schedule.ir import ANY_ALGORITHM, Origin, Schedule
from taccl_py.sketch.model import Sketch
from taccl_py.synthesis.bounds import Bound
from taccl_py.synthesis.engine import Events, Proof, Synthesis
from taccl_py.synthesis.known import bound_of
from taccl_py.synthesis.matching.replicate import replicate, why_not
from taccl_py.synthesis.race import Racer
from taccl_py.synthesis.suggest import Suggestion, suggest_sketches
from taccl_py.units import format_count, relative_gap
from taccl_py.verify.any_size import verify_any
from taccl_py.verify.group import verify_group

_SUGGEST_SECONDS = 7.0


def synthesize(request: Request, events: Events) -> Synthesis:
    """Find and verify a schedule.

    Raises
    ------
    TacclError
        Input, synthesis and package errors; InvalidArtifact if the verifier rejects what the engine made.
    """
    sketch: Sketch | None
    if request.sketch == AUTO_SKETCH:
        best = suggest(request, events)[0]
        sketch, synthesis = best.sketch, best.synthesis
    else:
        demand = make_demand(request)
        sketch, synthesis = demand.sketch, search(demand, request.engine, request.options, request.profile, events)
    origin = Origin(
        engine=request.engine,
        solver=synthesis.solver,
        sketch=sketch.name if sketch else "",
        seed=request.options.limits.seed,
        status=str(synthesis.proof),
        bound_us=synthesis.bound.time_us,
        bound_reason=synthesis.bound.reason,
        found_by=synthesis.schedule.finder,
        holds_for=restriction(synthesis.schedule, request, sketch.name if sketch else "") or ANY_ALGORITHM,
    )
    schedule = synthesis.schedule.with_origin(origin)
    require_valid(schedule)
    return replace(synthesis, schedule=schedule)


def restriction(schedule: Schedule, request: Request, sketch: str) -> str:
    """Schedules for which the bound of an answer holds, if it is of the chunks or the sketch that its engine was given; else empty."""
    if not (sketch or request.engine in OF_FIXED_CHUNKS):
        return ""
    chunks = f"{format_count(schedule.collective.chunks_per_rank, 'chunk')} per rank"
    return f"{chunks}, sketch {sketch}" if sketch else chunks


def suggest(request: Request, events: Events) -> list[Suggestion]:
    """Sketches for what the user asks for, found by search and solved; the fastest first.

    Raises
    ------
    TacclError
        Input errors; LimitReached if no sketch led to a schedule in time.
    """
    demand = make_demand(replace(request, sketch=""))
    if request.ranks is not None:
        raise InputError("--ranks cannot be combined with a sketch, which is written for all ranks; leave one out")
    with Racer(request.options, _SUGGEST_SECONDS, request.options.limits.workers).running() as racer:
        found = suggest_sketches(demand, racer, events)
    if not found:
        raise LimitReached("no sketch led to a schedule; give more time with --time-limit")
    return found


@dataclass(frozen=True)
class GroupSynthesis:
    """A group schedule that the verifier accepts.

    Attributes
    ----------
    schedule
        Base messages and symmetry.
    bound
        Best proven lower bound.
    stage_seconds
        Wall-clock time of every stage.
    """

    schedule: GroupSchedule
    bound: Bound
    stage_seconds: Mapping[str, float]

    @property
    def gap(self) -> float:
        """Relative distance from the bound."""
        return relative_gap(self.schedule.makespan_us, self.bound.time_us)


def synthesize_group(request: Request, events: Events) -> GroupSynthesis:
    """Solve one root, or one of each role, and replicate it, verified without ever writing down the whole.

    Raises
    ------
    TacclError
        Input errors; LimitReached if the machine has no symmetry that takes all ranks to others; InvalidArtifact if the verifier
        objects.
    """
    seconds: dict[str, float] = {}
    with _timed(seconds, "machine", events):
        demand = make_demand(request, expanded=False)
    refusal = why_not(demand)
    if refusal is not None:
        raise InputError(f"{refusal}; use taccl synth", path="command line")
    with _timed(seconds, "bound", events):
        bound = bound_of(demand, request.options.limits)
        events.bound(bound.time_us)
    with _timed(seconds, "search", events):
        schedule = replicate(demand, request.options.limits, bound)
    if schedule is None:
        raise LimitReached(
            f"{demand.topology.name} has no commuting symmetries that take every rank, link and port to others; use taccl synth"
        )
    status = str(Proof.of(schedule.makespan_us, bound))
    origin = Origin("replicate", "none", "", request.options.limits.seed, status, bound.time_us, bound.reason)
    schedule = replace(schedule, origin=origin)
    with _timed(seconds, "judge", events):
        require_verdict("group schedule", verify_group(schedule))
    return GroupSynthesis(schedule, bound, seconds)


@contextmanager
def _timed(seconds: dict[str, float], stage: str, events: Events) -> Iterator[None]:
    events.stage(stage)
    begun = time.monotonic()
    yield
    seconds[stage] = time.monotonic() - begun


# Kept on a schedule, which never changes, and on its copies with other provenance.
_ACCEPTED = "_accepted"


def require_valid(schedule: Schedule, name: str = "schedule") -> None:
    """Raise InvalidArtifact, which calls the schedule by this name, if the verifier rejects it; one that it has accepted stays accepted."""
    if _ACCEPTED in vars(schedule):
        return
    require_verdict(name, verify_any(schedule))
    vars(schedule)[_ACCEPTED] = True


def chosen_instead(synthesis: Synthesis, schedule: Schedule) -> Synthesis:
    """The synthesis with another schedule as its answer, of which nothing is proven but that its time is at the bound, if it is."""
    origin, proof = synthesis.schedule.origin, Proof.of(schedule.makespan_us, synthesis.bound)
    if origin is not None:
        schedule = schedule.with_origin(replace(origin, status=str(proof), found_by=schedule.finder))
    return replace(synthesis, schedule=schedule, proof=proof)

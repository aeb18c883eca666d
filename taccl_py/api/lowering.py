"""Programs of schedules, and files of other tools made ready for a runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from taccl_py.answer import Answer, Scope
from taccl_py.api.arguments import kind_of, names_arguments, path_of
from taccl_py.api.files import LoweredFile
from taccl_py.api.policy import AUTO, known_runtime, placement_of, runtime_named
from taccl_py.api.search import with_own_bound
from taccl_py.api.subject import demand_program_replay
from taccl_py.collective import Kind
from taccl_py.errors import InputError
from taccl_py.jsonio import read_text
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.lowering.mscclpp import PlanOptions
from taccl_py.lowering.plan import PACKETS, SIMPLE
from taccl_py.lowering.program import Protocol
from taccl_py.pipeline.conversion import Conversion, convert_and_verify
from taccl_py.pipeline.deliver import Lowered, lower_and_verify, lower_best
from taccl_py.pipeline.demand_programs import DEMAND_TARGETS, refuse_runtime
from taccl_py.pipeline.demands import DemandAnswer
from taccl_py.pipeline.plan_choice import PlanChoice, PlanWishes, choose_among
from taccl_py.pipeline.search import chosen_instead, require_valid
from taccl_py.pipeline.select import LoweringEnds, choose_for, lower_under
from taccl_py.profiles.catalog import load_profile, neutral_profile, select_profile
from taccl_py.profiles.model import RuntimeProfile
from taccl_py.runtimes import MSCCLPP, RUNTIMES
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.schedule.ir import Schedule
from taccl_py.simulate.plan_replay import replay_plan
from taccl_py.solvers.limits import Over, never
from taccl_py.synthesis.bounds import Bound
from taccl_py.synthesis.engine import Synthesis


@dataclass(frozen=True)
class Choice:
    """A lowered schedule, and how its program was chosen.

    Attributes
    ----------
    schedule, lowered
        The schedule and its verified program.
    instances
        Parts of every chunk.
    runtime_us
        Time under the runtime profile in microseconds; None under the neutral one.
    """

    schedule: Schedule
    lowered: Lowered
    instances: int
    runtime_us: float | None

    @property
    def best_us(self) -> float:
        """Time under the runtime profile if there is one, else that on links and ports."""
        return self.lowered.replay.makespan_us if self.runtime_us is None else self.runtime_us


def lower_schedule(
    schedule: Schedule, options: LoweringOptions, profile: RuntimeProfile, instances: int | None
) -> Choice:
    """Lower one schedule: as the options say under the neutral profile, else with the protocol and the instances that are fastest.

    Parameters
    ----------
    schedule
        A valid schedule.
    options
        Runtime, placement and sizes; protocol and instances if they are asked for.
    profile
        Runtime profile.
    instances
        Parts of every chunk that are asked for, or None.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept.
    """
    if profile.is_neutral:
        return Choice(schedule, lower_and_verify(schedule, options), options.instances, None)
    chosen = choose_for(schedule, options, profile, instances)
    return Choice(chosen.schedule, chosen.lowered, chosen.setting.instances, chosen.runtime_us)


@dataclass(frozen=True)
class Delivered:
    """An answer with its program.

    Attributes
    ----------
    answer
        The answer whose schedule was lowered: the one that was given, or with a runner-up whose program is faster. Its restricted bound
        may be one for the messages that the runtime carries.
    choice
        The program, and how it was chosen.
    """

    answer: Answer
    choice: Choice


def deliver(
    answer: Answer, options: LoweringOptions, instances: int | None, ends: LoweringEnds | None = None
) -> Delivered:
    """Lower the schedule of an answer, or a runner-up, whose program is fastest under the answer's profile.

    Parameters
    ----------
    answer
        Schedule that was found.
    options, instances
        As for `lower_schedule`.
    ends
        Tests for the end; None is as long as it takes.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept by any schedule.
    """
    ends, profile, found = ends or LoweringEnds(), answer.profile, _as_synthesis(answer)
    if profile.is_neutral:
        best, lowered = lower_best(found, options, ends.over, ends.stopped)
        choice = Choice(best.schedule, lowered, options.instances, None)
    else:
        best, chosen = lower_under(found, options, profile, instances, fixed_chunks=answer.fixed_chunks, ends=ends)
        choice = Choice(chosen.schedule, chosen.lowered, chosen.setting.instances, chosen.runtime_us)
    return Delivered(_with_schedule(answer, best), choice)


def delivered_instead(answer: Answer, choice: Choice) -> Delivered:
    """The answer with another program and its schedule, for the same machine."""
    answer = with_other_schedule(answer, choice.schedule)
    return Delivered(answer, replace(choice, schedule=answer.schedule))


def with_other_schedule(answer: Answer, schedule: Schedule) -> Answer:
    """The answer with another schedule for the same machine, of which nothing is proved but that it is at the bound, if it is."""
    return _with_schedule(answer, chosen_instead(_as_synthesis(answer), schedule))


def _with_schedule(answer: Answer, best: Synthesis) -> Answer:
    """The answer with the schedule that was lowered, and what is proved of that."""
    physical, *others = answer.bounds
    restricted = with_own_bound(physical, best)[1:]
    runtime = [each for each in others if each.scope is Scope.RUNTIME]
    origin = best.schedule.origin
    found_by = (origin.found_by if origin is not None else "") or answer.provenance.engine
    return replace(
        answer, schedule=best.schedule, bounds=(physical, *restricted, *runtime), proof=best.proof,
        provenance=replace(answer.provenance, found_by=found_by),
    )  # fmt: skip


@names_arguments
def lower(
    found: Answer | Schedule | DemandAnswer | DemandSchedule,
    *,
    runtime: str = AUTO,
    runtime_profile: str = AUTO,
    placement: str = "both",
    protocol: str = AUTO,
    instances: int | None = None,
) -> LoweredFile:
    """Lower a schedule to MSCCL XML or an MSCCL++ plan and verify the text.

    Parameters
    ----------
    found
        An answer, of whose schedules the one with the fastest program is taken, or a schedule; also of a demand.
    runtime
        ``executor``, ``rccl``, ``legacy``, or ``mscclpp`` for a plan; ``auto``: that of the answer, or the one for the machine's GPUs. Of a
        demand ``mscclpp``, which is its ``auto``, or ``legacy``; what follows is not for demands.
    runtime_profile
        Shipped name or file, or ``neutral`` for links and ports alone; ``auto``: that of the answer, or of the runtime on the machine's GPUs.
    placement
        ``in``, ``out`` or ``both``: how the user's buffers may lie. An MSCCL++ plan knows one; ``both`` is in place there, and out of place
        for AllToAll.
    protocol
        ``Simple``, ``LL`` or, for XML, ``LL128``; ``auto``: the fastest one.
    instances
        Parts of every chunk, with threadblocks of their own. None: what is fastest under the profile, and 1 without one.

    Returns
    -------
    LoweredFile
        The text, with times in microseconds.

    Raises
    ------
    InputError
        If an argument is wrong.
    LoweringError
        If a limit of the runtime cannot be kept.
    InvalidArtifact
        If the verifier reports errors in the schedule or in the text.
    """
    if isinstance(found, DemandAnswer | DemandSchedule):
        asked: dict[str, tuple[object, object]] = {
            "runtime_profile": (runtime_profile, AUTO),
            "placement": (placement, "both"),
            "protocol": (protocol, AUTO),
            "instances": (instances, None),
        }
        return _lower_demand((found,) if isinstance(found, DemandSchedule) else found.schedules, runtime, asked)
    schedule = found.schedule if isinstance(found, Answer) else found
    if not isinstance(schedule, Schedule):
        raise InputError(
            f"found {type(found).__name__}, an answer or a schedule is needed", path="arguments", field="found"
        )
    require_valid(schedule)
    topology = schedule.topology
    if runtime == AUTO and isinstance(found, Answer):
        runtime = found.runtime.name
    name = known_runtime(runtime, topology).name
    if runtime_profile == AUTO and isinstance(found, Answer) and found.profile.runtime in ("", name):
        profile = found.profile
    else:
        profile = select_profile(runtime_profile, name, topology).profile
    if name == MSCCLPP.name:
        schedules = [schedule, *found.runners_up] if isinstance(found, Answer) else [schedule]
        return _lower_plan(schedules, profile, placement, protocol, instances)
    options = LoweringOptions(
        RUNTIMES[name], placement_of(placement), _protocol(protocol), _instances(instances)
    )  # fmt: skip
    if isinstance(found, Answer):
        choice = deliver(replace(found, profile=profile), options, instances).choice
    else:
        choice = lower_schedule(schedule, options, profile, instances)
    lowered = choice.lowered
    return LoweredFile(
        lowered.text, choice.schedule, lowered.program, name, profile, choice.instances, lowered.replay.makespan_us,
        choice.runtime_us,
    )  # fmt: skip


def _lower_demand(
    schedules: Sequence[DemandSchedule], runtime: str, asked: dict[str, tuple[object, object]]
) -> LoweredFile:
    for field, (value, default) in asked.items():
        if value != default:
            raise InputError(
                "is for the eight collectives, and this is the schedule of a demand; leave it out",
                path="arguments", field=field,
            )  # fmt: skip
    name = MSCCLPP.name if runtime == AUTO else known_runtime(runtime, schedules[0].topology).name
    target = next((each for each in DEMAND_TARGETS if each.runtime == name), None)
    if target is None:
        raise refuse_runtime(name)
    demand = schedules[0].demand.joined()
    schedule, made = target.lower_best(target.soon_lowered(schedules) or schedules[:1], demand)
    time_us = demand_program_replay(made.program, schedule.topology, "the program", demand)(None).makespan_us
    profile = neutral_profile() if made.profile is None else load_profile(made.profile)
    return LoweredFile(made.text, schedule, made.program, name, profile, 1, time_us, made.runtime_us)


def deliver_plan(
    answer: Answer, options: PlanOptions, wishes: PlanWishes, *, over: Over = never
) -> tuple[Answer, PlanChoice]:
    """Plan for MSCCL++ of an answer's schedule, or of a runner-up whose plan is faster under its profile, and the answer with that.

    Parameters
    ----------
    answer
        Schedule that was found.
    options, wishes
        As for `taccl_py.pipeline.plan_choice.choose_plan`.
    over
        True once time is up.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept by any schedule.
    """
    schedule, choice = choose_among([answer.schedule, *answer.runners_up], options, answer.profile, wishes, over)
    if schedule is answer.schedule:
        return answer, choice
    require_valid(schedule)
    return with_other_schedule(answer, schedule), choice


def _as_synthesis(answer: Answer) -> Synthesis:
    """The answer as its engine gave it."""
    own = answer.own_bound
    return Synthesis(
        answer.schedule, Bound(own.time_us, own.reason), answer.proof, answer.provenance.solver, answer.stage_seconds,
        answer.runners_up, answer.kept,
    )  # fmt: skip


def _lower_plan(
    schedules: Sequence[Schedule], profile: RuntimeProfile, placement: str, protocol: str, instances: int | None
) -> LoweredFile:
    if protocol not in (AUTO, SIMPLE, PACKETS):
        raise InputError(
            f"plans for {MSCCLPP.title} have protocol {SIMPLE} or {PACKETS}, found {protocol}; leave it out",
            path="command line", field="--protocol",
        )  # fmt: skip
    _instances(instances)
    asked = None if protocol == AUTO else protocol
    options, wishes = PlanOptions(placement_of(placement)), PlanWishes(asked, instances)
    schedule, choice = choose_among(schedules, options, profile, wishes)
    made = choice.lowered
    replay = replay_plan(made.plan, schedule.collective.kind, schedule.topology, schedule.chunk_bytes)
    return LoweredFile(
        made.text,
        schedule,
        made.plan,
        MSCCLPP.name,
        profile,
        choice.options.instances,
        replay.makespan_us,
        choice.runtime_us,
    )


def _protocol(name: str) -> Protocol | None:
    if name not in (AUTO, *Protocol):
        known = ", ".join((AUTO, *Protocol))
        raise InputError(f"found {name!r}, use one of: {known}", path="command line", field="--protocol")
    return None if name == AUTO else Protocol(name)


def _instances(number: int | None) -> int:
    if number is not None and (not isinstance(number, int) or not 1 <= number <= 32):
        raise InputError(f"found {number!r}, a number from 1 to 32 is needed", path="command line", field="--instances")
    return number or 1


@names_arguments
def convert(
    path: str | Path,
    runtime: str = "executor",
    *,
    kind: Kind | str | None = None,
    placement: str | None = None,
) -> Conversion:
    """Make MSCCL XML of any tool, or a schedule of TE-CCL, ready for a runtime, and verify it.

    Parameters
    ----------
    path
        The file.
    runtime
        ``executor``, ``rccl`` or ``legacy``.
    kind
        Collective of a file that does not say it.
    placement
        ``in``, ``out`` or ``both``; None: as the file says, and both for files that can only name one if they are right for both.

    Returns
    -------
    Conversion
        ``text``, ``program``, ``verdict``, and ``notes`` on what was changed.

    Raises
    ------
    InputError
        If the file cannot be read or an argument is wrong.
    LoweringError
        If a limit of the runtime cannot be kept.
    InvalidArtifact
        If the verifier reports errors, whatever is tried.
    """
    target = runtime_named(runtime, None)
    file = path_of(path)
    return convert_and_verify(
        read_text(file), str(file), target, kind=None if kind is None else kind_of(kind),
        placement=None if placement is None else placement_of(placement),
    )  # fmt: skip

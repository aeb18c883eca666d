"""Portfolio of a machine and a collective: probe, race, envelope, and one verified program for every span of sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

from taccl_py.collective import Collective, Kind
from taccl_py.errors import LimitReached, LoweringError
from taccl_py.lowering.limits import NO_CALL, no_call
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.lowering.program import Protocol
from taccl_py.lowering.protocol import flag_is_early, possible_protocols
from taccl_py.pipeline.deliver import Lowered, ReplayedProgram, replay_at, verified
from taccl_py.pipeline.resolve import Request, make_demand
from taccl_py.pipeline.select import require_chosen
from taccl_py.pipeline.trials import Trial, in_some_arrangement, preferred_us
from taccl_py.pipeline.views import engines_of_wholes, retimed
from taccl_py.portfolio.by_replay import LOWEST, ReplayedCover, Stretch, TrialChoice, in_rising_order
from taccl_py.portfolio.candidates import Candidate, Probe, race_candidates
from taccl_py.portfolio.cover import cover_sizes, divisor_of, file_of, lower_with, up_to
from taccl_py.portfolio.envelope import SizeSpan
from taccl_py.portfolio.rows import PortfolioFile, SizeRow, UnverifiedFile, make_rows, unmade_rows
from taccl_py.portfolio.variants import SizedCandidate, at_size, lower_variants
from taccl_py.profiles.model import RuntimeProfile
from taccl_py.profiles.view import machine_under
from taccl_py.runtimes import MAX_COUNT, Runtime
from taccl_py.schedule.ir import Origin
from taccl_py.schedule.transform import reduce_of
from taccl_py.simulate.cost_curve import cost_curve
from taccl_py.simulate.runtime_replay import RuntimeReplay
from taccl_py.solvers.limits import STOP, Over
from taccl_py.synthesis.bounds import Bound, DemandBounds
from taccl_py.synthesis.bounds.runtime import likely_views
from taccl_py.synthesis.engine import Demand, Events, Proof
from taccl_py.synthesis.race import EngineRun, RaceOutcome, Racer
from taccl_py.tolerances import RELATIVE
from taccl_py.units import SizeRange
from taccl_py.verify.any_size import verify_any
from taccl_py.verify.msccl import ProgramVerdict
from taccl_py.work import work_set_aside

# Sizes at which engines run are this far apart at most.
_PROBE_FACTOR = 2.0
# Part of the time limit that bounds may take, and seconds that they, and the race, may take in any case.
_BOUNDS, _LEAST_SECONDS = 0.25, 1.0
# Part of the time that is kept for lowering: schedules whose programs are slower are of no use.
_LOWERING = 0.25
# The same under a runtime profile, where programs are replayed in all settings. Guess.
_REPLAYING = 0.45
# Most seconds for bounds under a runtime profile.
_BOUNDS_UNDER_SECONDS = 5.0
# Choices that are lowered for one file under a runtime profile.
_MOST_LOWERED = 3
# Part of the time for searches under a runtime profile that is for the machine itself.
_OWN_SHARE = 0.6
# Longest run of one engine; a range races many.
_RUN_SECONDS = 12.0


@dataclass(frozen=True)
class Portfolio:
    """Files for a range of sizes, and a row for every probe size.

    Attributes
    ----------
    demand
        The demand of the largest size.
    members
        In order of size; their ranges are disjoint and leave nothing out.
    rows
        In order of size.
    num_candidates
        Algorithms that none of the others clearly beat at every size.
    profile
        Runtime profile under which files were chosen; None is links and ports alone.
    """

    demand: Demand
    members: tuple[PortfolioFile, ...]
    rows: tuple[SizeRow, ...]
    num_candidates: int
    profile: RuntimeProfile | None = None


def synthesize_portfolio(
    request: Request,
    sizes: SizeRange,
    options: LoweringOptions,
    workers: int,
    events: Events,
    *,
    instances: int | None = None,
) -> Portfolio:
    """Best algorithms for all sizes of a range.

    Parameters
    ----------
    request
        Request, its size aside.
    sizes
        Smallest and largest size in bytes, both included.
    options
        Runtime and placement; protocol and instances are chosen for every file unless they are given.
    workers
        Processes that engines run in.
    events
        Progress.
    instances
        Number of instances under a runtime profile; None chooses it by replay.

    Raises
    ------
    TacclError
        Input and synthesis errors; LoweringError if for some sizes no algorithm can be lowered.
    """
    profile = request.profile if request.profile is not None and not request.profile.is_neutral else None
    low, demand = sizes.low_bytes, range_demand(request, sizes)
    limits = request.options.limits
    deadline, over, stopped = limits.deadline(), limits.to_lower(), limits.stop.is_set
    events.stage("bounds")
    demands = [replace(demand, size_bytes=float(size)) for size in sizes.stepped(_PROBE_FACTOR)]
    searching, share = 1 - (_LOWERING if profile is None else _REPLAYING), 1.0 if profile is None else _OWN_SHARE
    searching_s = limits.seconds * searching
    own_end, end = (limits.clock_share(part).ends_at_s for part in (searching * share, searching))
    soon = limits.share(_BOUNDS)
    bounding = soon.countdown(least_seconds=_LEAST_SECONDS)
    bounds = DemandBounds.of(demand.topology, demand.kind, demand.root, soon, relays_from=float(low))
    with Racer(request.options, _RUN_SECONDS, workers).running() as racer:
        probes = racer.spread(_bounded, (_Bounding(bounds, each, bounding()) for each in demands))
        racing = racer.within((deadline.left - limits.seconds + searching_s) * share, _LEAST_SECONDS, own_end)
        candidates = race_candidates(probes, racing, events)
        if profile is not None and not limits.stop.is_set():
            racing = racer.within(deadline.left - limits.seconds + searching_s, _LEAST_SECONDS, end)
            candidates += _candidates_under(profile, probes, racing, events)
            candidates += _parts_of_allreduces(profile, probes, racer, searching_s * (1 - share), end, events)
        if not candidates:
            loosened = " or loosen the sketch" if request.sketch else ""
            raise LimitReached(f"no schedule was found; give more time with --time-limit{loosened}")
        events.stage("lowering")
        sizes_bytes = [round(probe.demand.size_bytes) for probe in probes]
        if profile is None:
            variants = lower_variants(candidates, sizes_bytes, options, racer, over)
            chosen = cover_sizes(variants, sizes, options, racer, over, stopped)
        else:
            cover = ReplayedCover(candidates, sizes_bytes, options, profile, instances, racer, over)
            chosen = _members_by_replay(cover, sizes, _LoweringInTime(options, over, stopped), racer)
        ends = (replace(demand, size_bytes=float(file.max_bytes)) for file in chosen)
        # Bounds under the profile may take time of their own, but not beyond a limit of the clock.
        bounding_under = limits.within(
            _BOUNDS_UNDER_SECONDS if limits.by_work else min(_BOUNDS_UNDER_SECONDS, deadline.left)
        )
        longest = sorted(chosen, key=lambda file: -file.found.program.num_steps)
        proved, texts, made = racer.spread_together(
            (_bounded, (_Bounding(bounds, each, over()) for each in ends)),
            (_verified_text, (_UnverifiedProgram.of(file, options.runtime) for file in longest)),
            (make_rows, unmade_rows(chosen, probes, options, profile, bounding_under)),
        )
        written = {file.min_bytes: each.of(file.found) for file, each in zip(longest, texts, strict=True)}
        members = [
            _with_origin(file.with_program(written[file.min_bytes]), demand, request, each.bound)
            for file, each in zip(chosen, proved, strict=True)
        ]
        rows = sorted((row for some in made for row in some), key=lambda row: row.size_bytes)
    return Portfolio(demand, tuple(members), tuple(rows), len(candidates), profile)


def _candidates_under(
    profile: RuntimeProfile, probes: Sequence[Probe], racer: Racer, events: Events
) -> list[Candidate]:
    """Candidates found on the machine as the likeliest protocol of each size sees it, with the times of the machine itself."""
    low, high = probes[0].demand.size_bytes, probes[-1].demand.size_bytes
    found: list[Candidate] = []
    for candidate in race_candidates([_viewed(probe, profile) for probe in probes], racer, events):
        for schedule in retimed(candidate.schedule, probes[0].demand.topology):
            curve = cost_curve(schedule, low, high)
            found.append(replace(candidate, schedule=schedule, curve=curve))
    return found


@dataclass(frozen=True)
class _PartExamination:
    """Makes candidates for a Reduce of the outcome for an AllReduce on a machine as a protocol sees it."""

    reduce: Demand
    min_bytes: float
    max_bytes: float

    def __call__(self, outcome: RaceOutcome) -> list[Candidate]:
        """The parts that serve the root, with the times of the machine itself; none where there is no answer."""
        run, answer = outcome.run, outcome.synthesis
        wholes = () if answer is None else (answer.schedule, *answer.runners_up)
        found = []
        for whole in chain.from_iterable(retimed(each, self.reduce.topology) for each in wholes):
            part = reduce_of(whole, self.reduce.root)
            if answer is not None and not verify_any(part):
                curve = cost_curve(part, self.min_bytes, self.max_bytes)
                found.append(Candidate(run.engine, answer.solver, part, curve, run.demand.size_bytes))
        return found


def _parts_of_allreduces(
    profile: RuntimeProfile, probes: Sequence[Probe], racer: Racer, seconds: float, ends_at_s: float, events: Events
) -> list[Candidate]:
    """Candidates for a Reduce inside a node that are parts of AllReduces, as for one size (`taccl_py.pipeline.views`)."""
    low, high = probes[0].demand, probes[-1].demand
    engines = engines_of_wholes(low, profile)
    if not engines:
        return []
    wholes = [replace(_viewed(probe, profile).demand, kind=Kind.ALLREDUCE, root=0) for probe in probes]
    runs = [EngineRun(name, whole) for name in engines for whole in wholes]
    examination = _PartExamination(low, low.size_bytes, high.size_bytes)
    with work_set_aside():
        racing = racer.within(seconds, _LEAST_SECONDS, ends_at_s)
        return list(chain.from_iterable(racing.race_for(examination, runs, events)))


def _viewed(probe: Probe, profile: RuntimeProfile) -> Probe:
    """The probe on the machine as the likeliest protocol sees it; what is a bound on the machine itself is one there."""
    demand, bound_us = probe.demand, probe.bound.time_us
    protocols = [str(each) for each in possible_protocols(demand.topology, demand.kind)]
    likely = likely_views(
        lambda size: bound_us * max(1.0, size / demand.size_bytes),
        demand.topology, profile, demand.kind, demand.size_bytes, protocols,
    )  # fmt: skip
    machine = machine_under(demand.topology, profile, likely[0].protocol, likely[0].instances)
    return replace(probe, demand=replace(demand, topology=machine))


@dataclass(frozen=True)
class _LoweringInTime:
    """Options of lowering, and the tests for the end of the search for better programs, and of all where the user said stop."""

    options: LoweringOptions
    over: Over
    stopped: Over


def _members_by_replay(
    cover: ReplayedCover, sizes: SizeRange, lowering: _LoweringInTime, racer: Racer
) -> list[UnverifiedFile]:
    """Members for all sizes by the choices of a replayed cover; what cannot be lowered, or is not safe, is left to the next choice.

    Raises
    ------
    LoweringError
        If for some sizes no choice can be lowered.
    """
    members: list[UnverifiedFile] = []
    floor, low = LOWEST, sizes.low_bytes
    stretches = cover.stretches(sizes.low_bytes, sizes.high_bytes)
    ready = _likely_members(cover, stretches, lowering, racer)
    for stretch in stretches:
        while low <= stretch.high:
            member = _first_member(cover, stretch, floor, low, lowering, ready)
            if member is None:
                break
            members.append(member)
            floor, low = member.found.program.protocol, member.max_bytes + 1
    if not members:
        raise _no_call(cover, stretches[-1].choices[0], sizes, lowering.options)
    return up_to(members, sizes.high_bytes)


def _no_call(
    cover: ReplayedCover, choice: TrialChoice, sizes: SizeRange, options: LoweringOptions
) -> LoweringError:  # fmt: skip
    """Error for a range that holds no call of a choice's program."""
    task = _unlowered(cover, choice, SizeSpan(0, sizes.low_bytes, sizes.high_bytes), options)
    return no_call(sizes.low_bytes, sizes.high_bytes, task.divisor, options.runtime)


def _likely_members(
    cover: ReplayedCover, stretches: Sequence[Stretch], lowering: _LoweringInTime, racer: Racer
) -> _Ready:
    """Programs of every stretch for all its sizes, made side by side: of the first choice, and of more where that is slower than it promised.

    Where time is over, one program is enough.
    """
    ready: _Ready = {}
    for number in range(_MOST_LOWERED):
        tasks = []
        for stretch in stretches:
            wanted = _next_choice(
                cover, stretch, LOWEST, stretch.low, ready, one_is_enough=number > 0 and lowering.over()
            )
            if wanted is not None:
                span = SizeSpan(0, stretch.low, stretch.high)
                tasks.append(_unlowered(cover, wanted, span, lowering.options))
        for task, made in zip(tasks, racer.spread(_member_made, tasks), strict=True):
            ready[task.choice, task.span.min_bytes, task.span.max_bytes] = made
    return ready


def _next_choice(
    cover: ReplayedCover, stretch: Stretch, floor: Protocol, low: int, ready: _Ready, *, one_is_enough: bool
) -> TrialChoice | None:
    """The next choice to be lowered for a stretch from `low` on; None where another is good enough, or there is none left.

    The time of the first replay may be lost where threadblocks had to be joined; then the next choices are lowered too.
    """
    best_us, lowered = math.inf, 0
    middle = _middle(low, stretch.high)
    for choice in in_rising_order(stretch, floor):
        made = ready.get((choice, low, stretch.high))
        if made is None:
            is_promising = (
                not one_is_enough
                and lowered < _MOST_LOWERED
                and cover.time_us(choice, middle) < best_us * (1 - RELATIVE)
            )
            return choice if is_promising or not lowered else None
        if isinstance(made, _TimedFile):
            best_us, lowered = min(best_us, made.middle_us), lowered + 1
    return None


def _middle(low: int, high: int) -> int:
    """The size in the middle of two, by their logarithms."""
    return min(max(low, round(math.sqrt(low * high))), high)


def _first_member(
    cover: ReplayedCover,
    stretch: Stretch,
    floor: Protocol,
    low: int,
    lowering: _LoweringInTime,
    ready: _Ready,
) -> UnverifiedFile | None:
    """The best choice that can be lowered for sizes from `low` on; None if there is no call up to the end of the stretch."""
    span = SizeSpan(0, low, stretch.high)
    while (choice := _next_choice(cover, stretch, floor, low, ready, one_is_enough=lowering.over())) is not None:
        ready[choice, low, stretch.high] = _member_made(
            _unlowered(cover, choice, span, lowering.options), lowering.stopped
        )
    found = [ready.get((choice, low, stretch.high)) for choice in in_rising_order(stretch, floor)]
    best: _TimedFile | None = None
    for made in found:
        if isinstance(made, _TimedFile) and (
            best is None or (made.middle_us < best.middle_us and made.file.max_bytes >= best.file.max_bytes)
        ):
            best = made
    if best is not None:
        return best.file
    lasting = [made for made in found if isinstance(made, LoweringError) and made.limit != NO_CALL]
    if not lasting:
        return None
    wider = cover.widened(stretch)
    if wider == stretch:
        raise lasting[0]
    return _first_member(cover, wider, floor, low, lowering, ready)


@dataclass(frozen=True)
class _UnloweredMember:
    """A choice, with its candidate and trial, that is to be lowered for the sizes of a span."""

    candidate: Candidate
    trial: Trial
    choice: TrialChoice
    span: SizeSpan
    options: LoweringOptions
    profile: RuntimeProfile

    @property
    def made_for(self) -> int:
        """Size in the middle of the span."""
        return _middle(self.span.min_bytes, self.span.max_bytes)

    @property
    def variant(self) -> SizedCandidate:
        """The candidate for this size."""
        candidate, made_for = self.candidate, self.made_for
        schedule = at_size(candidate.schedule, made_for)
        return SizedCandidate(candidate, made_for, schedule, self.trial.lowered, candidate.curve)

    @property
    def divisor(self) -> int:
        """Number that must divide a size for the runtime to take the program."""
        return divisor_of(self.variant, self.options) * self.choice.setting.instances


@dataclass(frozen=True)
class _TimedFile:
    """A file, and its time under the profile at the middle size of its stretch."""

    file: UnverifiedFile
    middle_us: float


# Files, or why there are none, by choice and sizes.
_Ready = dict[tuple[TrialChoice, int, int], _TimedFile | LoweringError]


def _unlowered(cover: ReplayedCover, choice: TrialChoice, span: SizeSpan, options: LoweringOptions) -> _UnloweredMember:
    candidate, trial = cover.candidates[choice.trial], cover.trials[choice.trial]
    return _UnloweredMember(candidate, trial, choice, span, options, cover.profile)


def _member_made(task: _UnloweredMember, stopped: Over = STOP.is_set) -> _TimedFile | LoweringError:
    try:
        member = _member_of(task, stopped)
    except LoweringError as error:
        return error
    replay = RuntimeReplay(member.found.program, member.schedule.topology, task.profile)
    middle = min(_middle(task.span.min_bytes, task.span.max_bytes), member.max_bytes)
    return _TimedFile(member, preferred_us(replay.time_us(middle), task.choice.setting))


def _member_of(task: _UnloweredMember, stopped: Over) -> UnverifiedFile:
    """Program of a choice for the sizes of a span, or as far as it is safe.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept, or the runtime raises flags of this protocol too early for the program.
    """
    choice, span, options = task.choice, task.span, task.options
    variant, divisor = task.variant, task.divisor
    wanted = replace(task.trial.options, protocol=choice.setting.protocol, instances=choice.setting.instances)
    if -(-max(1, span.min_bytes) // divisor) * divisor > span.max_bytes:
        raise no_call(span.min_bytes, span.max_bytes, divisor, options.runtime)
    member = _copied_member(task) or in_some_arrangement(
        lambda each: lower_with(variant, span.min_bytes, span.max_bytes, each, stopped, reorders=False), wanted
    )
    if options.protocol is None and flag_is_early(options.runtime, choice.setting.protocol):
        # Only its verifier tells.
        known = verified(member.found, member.schedule.collective, options.runtime)
        require_chosen(known, options)
        member = replace(member, found=known)
    return member


def _copied_member(task: _UnloweredMember) -> UnverifiedFile | None:
    """Program of a choice as it was replayed, of copies; None where there can be none, or it was lowered for the choice."""
    trial, setting, span, variant = task.trial, task.choice.setting, task.span, task.variant
    if trial.lowered_for(setting) is not None:
        return None
    with suppress(LoweringError):
        program = trial.copies(setting)
        replay = replay_at(program, variant.schedule, task.options.runtime, setting.instances)
        known = ReplayedProgram(program, replay, trial.options.port_order)
        options = replace(trial.options, protocol=setting.protocol, instances=setting.instances)
        return file_of(variant, known, span.min_bytes, span.max_bytes, options)
    return None


@dataclass(frozen=True)
class _VerifiedText:
    """Text of a program, and the verdict on it."""

    text: str
    verdict: ProgramVerdict

    def of(self, found: ReplayedProgram) -> Lowered:
        """The program with its text."""
        return Lowered(found.program, found.replay, found.port_order, self.text, self.verdict)


@dataclass(frozen=True)
class _UnverifiedProgram:
    """A program that is to be verified: all of a file that goes to another process for that."""

    found: ReplayedProgram
    collective: Collective
    runtime: Runtime

    @staticmethod
    def of(file: UnverifiedFile, runtime: Runtime) -> _UnverifiedProgram:
        """The program of a file."""
        return _UnverifiedProgram(file.found, file.schedule.collective, runtime)


def _verified_text(task: _UnverifiedProgram) -> _VerifiedText:
    lowered = verified(task.found, task.collective, task.runtime)
    return _VerifiedText(lowered.text, lowered.verdict)


def range_demand(request: Request, sizes: SizeRange) -> Demand:
    """Demand at the largest size of a range.

    Raises
    ------
    TacclError
        Input errors.
    """
    return replace(make_demand(replace(request, size_bytes=None)), size_bytes=float(sizes.high_bytes))


@dataclass(frozen=True)
class _Bounding:
    """A demand whose bound is to be found; where time is over, only what is quickly found."""

    bounds: DemandBounds
    demand: Demand
    is_over: bool


def _bounded(task: _Bounding) -> Probe:
    return Probe(task.demand, task.bounds.at(task.demand.size_bytes, MAX_COUNT, over=lambda: task.is_over))


def _with_origin(member: PortfolioFile, demand: Demand, request: Request, bound: Bound) -> PortfolioFile:
    """The member with its provenance; the bound is for its largest size."""
    origin = Origin(
        engine=member.candidate.engine,
        solver=member.candidate.solver,
        sketch=demand.sketch.name if demand.sketch else "",
        seed=request.options.limits.seed,
        status=str(Proof.of(member.schedule.makespan_us, bound)),
        bound_us=bound.time_us,
        bound_reason=bound.reason,
    )
    return replace(member, schedule=member.schedule.with_origin(origin))

"""Portfolio of a machine and a collective: probe, race, envelope, and one verified program for every span of sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from taccl_py.errors import LimitReached, LoweringError
from taccl_py.lowering.limits import NO_CALL, no_call, require_sizes
from taccl_py.lowering.lower import LoweringOptions, PortOrder
from taccl_py.lowering.program import Protocol
from taccl_py.lowering.protocol import choose_protocol, flag_is_early, possible_protocols
from taccl_py.pipeline.deliver import ReplayedProgram, lower_unverified, replay_at
from taccl_py.pipeline.resolve import Request, make_demand
from taccl_py.pipeline.select import Trial, in_some_arrangement, preferred_us, require_chosen
from taccl_py.pipeline.views import retimed
from taccl_py.portfolio.by_replay import LOWEST, RISING, ReplayedCover, Stretch, TrialChoice, in_rising_order
from taccl_py.portfolio.candidates import Candidate, Probe, race_candidates
from taccl_py.portfolio.envelope import SizeSpan, lower_envelope
from taccl_py.portfolio.rows import PortfolioFile, SizeRow, UnverifiedFile, size_rows
from taccl_py.portfolio.variants import SizedCandidate, at_size, bytes_per_byte, lower_variants
from taccl_py.profiles.model import RuntimeProfile
from taccl_py.profiles.view import machine_under
from taccl_py.runtimes import MAX_COUNT, Runtime
from taccl_py.schedule.ir import Origin, Schedule
from taccl_py.simulate.cost_curve import cost_curve
from taccl_py.simulate.runtime_replay import RuntimeReplay
from taccl_py.solvers.limits import STOP, Over
from taccl_py.synthesis.bounds import Bound, DemandBounds
from taccl_py.synthesis.bounds.runtime import likely_views
from taccl_py.synthesis.engine import Demand, Events, Proof
from taccl_py.synthesis.race import Racer
from taccl_py.units import SizeRange

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
# A span may keep an algorithm that is this much slower than the fastest where that saves a file.
_TOLERANCE = 2e-3
# Where a runtime does not load so many files, algorithms may be slower, so many times at a time, up to this part.
_MORE_TOLERANCE, _MOST_TOLERANCE = 4.0, 100.0
# Chunks of at least this many bytes are cut into instances, so that one threadblock does not limit a fast link.
_INSTANCE_BYTES = 4 << 20
_MOST_INSTANCES = 4


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
    searching_s = limits.seconds * (1 - (_LOWERING if profile is None else _REPLAYING))
    soon = limits.within(limits.seconds * _BOUNDS)
    bounding = soon.countdown(least_seconds=_LEAST_SECONDS)
    bounds = DemandBounds.of(demand.topology, demand.kind, demand.root, soon, relays_from=float(low))
    with Racer(request.options, _RUN_SECONDS, workers).running() as racer:
        probes = racer.spread(_bounded, (_Bounding(bounds, each, bounding()) for each in demands))
        share = 1.0 if profile is None else _OWN_SHARE
        racing = racer.within(max((deadline.left - limits.seconds + searching_s) * share, _LEAST_SECONDS))
        candidates = race_candidates(probes, racing, events)
        if profile is not None and not limits.stop.is_set():
            racing = racer.within(max(deadline.left - limits.seconds + searching_s, _LEAST_SECONDS))
            candidates += _candidates_under(profile, probes, racing, events)
        if not candidates:
            raise LimitReached("no schedule was found; give more time with --time-limit or loosen the sketch")
        events.stage("lowering")
        sizes_bytes = [round(probe.demand.size_bytes) for probe in probes]
        if profile is None:
            variants = lower_variants(candidates, sizes_bytes, options, racer, over)
            chosen = _members(variants, sizes, options, over, stopped)
        else:
            cover = ReplayedCover(candidates, sizes_bytes, options, profile, instances, racer, over)
            chosen = _members_by_replay(cover, sizes, options, stopped, racer)
        members = racer.spread(_verified, [_UnverifiedMember(each, options.runtime) for each in chosen])
        ends = (replace(demand, size_bytes=float(member.max_bytes)) for member in members)
        proved = racer.spread(_bounded, (_Bounding(bounds, each, over()) for each in ends))
        members = [_with_origin(one, demand, request, each.bound) for one, each in zip(members, proved, strict=True)]
        rows = size_rows(members, probes, options, profile, limits.within(_BOUNDS_UNDER_SECONDS), racer)
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


def _members_by_replay(
    cover: ReplayedCover, sizes: SizeRange, options: LoweringOptions, stopped: Over, racer: Racer
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
    ready = _likely_members(cover, stretches, options, racer)
    for stretch in stretches:
        while low <= stretch.high:
            member = _first_member(cover, stretch, floor, low, options, stopped, ready)
            if member is None:
                break
            members.append(member)
            floor, low = member.found.program.protocol, member.max_bytes + 1
    if not members:
        raise no_call(sizes.low_bytes, sizes.high_bytes, 1, options.runtime)
    return _up_to(members, sizes.high_bytes)


def _likely_members(
    cover: ReplayedCover, stretches: Sequence[Stretch], options: LoweringOptions, racer: Racer
) -> _Ready:
    """Programs of every stretch for all its sizes, made side by side: of the first choice, and of more where that is slower than it promised."""
    ready: _Ready = {}
    for _ in range(_MOST_LOWERED):
        tasks = []
        for stretch in stretches:
            wanted = _next_choice(cover, stretch, LOWEST, stretch.low, ready)
            if wanted is not None:
                span = SizeSpan(0, stretch.low, stretch.high)
                tasks.append(_unlowered(cover, wanted, span, options))
        for task, made in zip(tasks, racer.spread(_member_made, tasks), strict=True):
            ready[task.choice, task.span.min_bytes, task.span.max_bytes] = made
    return ready


def _next_choice(
    cover: ReplayedCover, stretch: Stretch, floor: Protocol, low: int, ready: _Ready
) -> TrialChoice | None:
    """The next choice to be lowered for a stretch from `low` on; None where another is good enough, or there is none left.

    The time of the first replay may be lost where threadblocks had to be joined; then the next choices are lowered too.
    """
    best_us, lowered = math.inf, 0
    middle = _middle(low, stretch.high)
    for choice in in_rising_order(stretch, floor):
        made = ready.get((choice, low, stretch.high))
        if made is None:
            is_promising = lowered < _MOST_LOWERED and cover.time_us(choice, middle) <= best_us * (1 + _TOLERANCE)
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
    options: LoweringOptions,
    stopped: Over,
    ready: _Ready,
) -> UnverifiedFile | None:
    """The best choice that can be lowered for sizes from `low` on; None if there is no call up to the end of the stretch."""
    span = SizeSpan(0, low, stretch.high)
    while (choice := _next_choice(cover, stretch, floor, low, ready)) is not None:
        ready[choice, low, stretch.high] = _member_made(_unlowered(cover, choice, span, options), stopped)
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
    if lasting:
        raise lasting[0]
    return None


@dataclass(frozen=True)
class _UnloweredMember:
    """A choice, with its candidate and trial, that is to be lowered for the sizes of a span."""

    candidate: Candidate
    trial: Trial
    choice: TrialChoice
    span: SizeSpan
    options: LoweringOptions
    profile: RuntimeProfile


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
    candidate, trial, choice, span, options = task.candidate, task.trial, task.choice, task.span, task.options
    made_for = _middle(span.min_bytes, span.max_bytes)
    variant = SizedCandidate(candidate, made_for, trial.lowered, candidate.curve)
    wanted = replace(trial.options, protocol=choice.setting.protocol, instances=choice.setting.instances)
    divisor = _divisor(variant, options) * choice.setting.instances
    if -(-max(1, span.min_bytes) // divisor) * divisor > span.max_bytes:
        raise no_call(span.min_bytes, span.max_bytes, divisor, options.runtime)
    member = in_some_arrangement(
        lambda each: _lower_with(variant, span.min_bytes, span.max_bytes, each, stopped, reorders=False), wanted
    )
    if options.protocol is None and flag_is_early(options.runtime, choice.setting.protocol):
        # Only its verifier tells.
        known = member.verified(options.runtime).lowered
        require_chosen(known, options)
        member = replace(member, found=known)
    return member


@dataclass(frozen=True)
class _UnverifiedMember:
    """A member that is to be verified for a runtime."""

    file: UnverifiedFile
    runtime: Runtime


def _verified(task: _UnverifiedMember) -> PortfolioFile:
    return task.file.verified(task.runtime)


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


def _members(
    variants: Sequence[SizedCandidate], sizes: SizeRange, options: LoweringOptions, over: Over, stopped: Over
) -> list[UnverifiedFile]:
    """Members for all sizes, no more of them than the runtime loads, even if they have to be slower for that.

    Raises
    ------
    LoweringError
        If there is no call of these sizes, or more files are needed than the runtime loads.
    """
    most, tolerance = options.runtime.max_algorithms, _TOLERANCE
    members = _covering(variants, sizes, tolerance, options, over, stopped)
    while len(members) > most and tolerance < _MOST_TOLERANCE:
        tolerance *= _MORE_TOLERANCE
        members = _covering(variants, sizes, tolerance, options, over, stopped)
    if not members:
        raise no_call(sizes.low_bytes, sizes.high_bytes, _divisor(variants[0], options), options.runtime)
    if len(members) > most:
        raise LoweringError(
            f"{len(members)} files are needed from {sizes.low_bytes} to {sizes.high_bytes} bytes, and {options.runtime.title} "
            f"loads at most {most}; ask for a narrower range",
            runtime=options.runtime.name,
            limit="max_algorithms",
        )
    return _up_to(members, sizes.high_bytes)


def _covering(
    variants: Sequence[SizedCandidate],
    sizes: SizeRange,
    tolerance: float,
    options: LoweringOptions,
    over: Over,
    stopped: Over,
) -> list[UnverifiedFile]:
    """Members for all sizes, none of which is slower than the fastest one by more than this part; none where no size has a call."""
    members: list[UnverifiedFile] = []
    first, curves = sizes.low_bytes, [variant.curve for variant in variants]
    for span in lower_envelope(curves, sizes.low_bytes, sizes.high_bytes, tolerance):
        middle = round(math.sqrt(span.min_bytes * span.max_bytes))
        others = sorted(variants, key=lambda variant: variant.curve.time_us(middle))
        floor = members[-1].found.program.protocol if members else LOWEST
        members += _cover([variants[span.choice], *others], first, span.max_bytes, floor, options, over, stopped)
        first = members[-1].max_bytes + 1 if members else first
    return members


def _cover(
    variants: Sequence[SizedCandidate],
    low: int,
    high: int,
    floor: Protocol,
    options: LoweringOptions,
    over: Over,
    stopped: Over,
) -> Iterator[UnverifiedFile]:
    """Members for sizes from `low` up to `high`: the first variant where it can be lowered, another one where it cannot.

    Protocols only rise from `floor` on, unless nothing can be lowered so. Sizes at the end for which there are no calls, or no calls that
    a program serves, are left to those that follow.
    """
    while low <= high:
        failures: list[LoweringError] = []
        for least, variant in product(dict.fromkeys((floor, LOWEST)), variants):
            try:
                member = _lower_from(variant, low, high, least, options, over, stopped)
            except LoweringError as error:
                failures.append(error)
                continue
            yield member
            low, floor = member.max_bytes + 1, member.found.program.protocol
            break
        else:
            lasting = [failure for failure in failures if failure.limit != NO_CALL]
            if lasting or not failures:
                raise lasting[0] if lasting else ValueError("nothing to lower")
            return


def _up_to(members: Sequence[UnverifiedFile], high: int) -> list[UnverifiedFile]:
    """The members, the last of which also has the sizes up to the end of the range for which there are no calls."""
    *others, last = members
    return [*others, replace(last, max_bytes=high, schedule=at_size(last.schedule, high))]


def _lower_from(
    variant: SizedCandidate, low: int, high: int, floor: Protocol, options: LoweringOptions, over: Over, stopped: Over
) -> UnverifiedFile:
    """Program for the sizes from `low` up to `high`, or to where another protocol is better, or to where it is safe."""
    schedule = variant.candidate.schedule
    divisor = _divisor(variant, options)
    called = -(-max(1, low) // divisor) * divisor
    if called > high:
        raise no_call(low, high, divisor, options.runtime)
    protocol = options.protocol or _protocol_at(schedule, called, floor, options)
    if options.protocol is None:
        high = _last_with(schedule, protocol, called, high, floor, options)
    best: UnverifiedFile | None = None
    failure: LoweringError | None = None
    for instances in _instances(at_size(schedule, high), options):
        if best is not None and over():
            break
        try:
            member = _lower_with(variant, low, high, replace(options, protocol=protocol, instances=instances), stopped)
        except LoweringError as error:
            failure = failure or error
            continue
        if best is None or (member.max_bytes >= best.max_bytes and _no_slower(member, best, options)):
            best = member
    if best is None:
        raise failure or ValueError("no number of instances was tried")
    return best


def _divisor(variant: SizedCandidate, options: LoweringOptions) -> int:
    """Number that must divide a size, as nccl-tests counts it, for the runtime to take the program."""
    return math.ceil(variant.lowered.program.num_chunks_per_loop / bytes_per_byte(variant.candidate.schedule, options))


def _lower_with(
    variant: SizedCandidate, low: int, high: int, options: LoweringOptions, stopped: Over, *, reorders: bool = True
) -> UnverifiedFile:
    """Program for the sizes from `low` up to `high`, or as far as it is safe; orders at ports are not tried without `reorders`."""
    schedule = at_size(variant.candidate.schedule, variant.at_bytes)
    share = bytes_per_byte(schedule, options)
    wanted = math.floor(high * share)
    known = variant.lowered
    # The order that its program needs for its own size is the one for others too.
    options = replace(options, min_bytes=math.ceil(low * share), port_order=known.port_order)
    if known.program.protocol is not options.protocol or options.instances > 1 or known.program.max_bytes < wanted:
        known = _lowered_anew(schedule, options, wanted, stopped, reorders=reorders)
    safe = math.floor(known.program.max_bytes / share)
    if safe < low:
        raise LoweringError(
            "no size of the range is safe for this algorithm", runtime=options.runtime.name, limit="max_bytes"
        )
    high = min(high, safe)
    program = replace(known.program, min_bytes=options.min_bytes, max_bytes=math.floor(high * share))
    require_sizes(program, options.runtime)
    found = ReplayedProgram(program, known.replay, known.port_order)
    return UnverifiedFile(variant.candidate, at_size(schedule, high), found, low, high, options.instances)


def _lowered_anew(
    schedule: Schedule, options: LoweringOptions, wanted: int, stopped: Over, *, reorders: bool
) -> ReplayedProgram:
    """Program up to a wanted size in bytes, else for as large sizes as it may be, else without an order at ports."""
    failure: LoweringError | None = None
    for port_order, max_bytes in product(
        dict.fromkeys((options.port_order, PortOrder.FREE)), (wanted, options.max_bytes)
    ):
        try:
            wishes = replace(options, port_order=port_order, max_bytes=max_bytes)
            return lower_unverified(schedule, wishes, stopped, reorders=reorders)
        except LoweringError as error:
            failure = error
    raise failure or ValueError("no options of lowering were tried")


def _no_slower(one: UnverifiedFile, other: UnverifiedFile, options: LoweringOptions) -> bool:
    """True if one program is nowhere slower than another, as far as the ends of their range tell."""
    for size in (other.min_bytes, other.max_bytes):
        schedule = at_size(other.schedule, size)
        times = [replay_at(m.found.program, schedule, options.runtime, m.instances) for m in (one, other)]
        if times[0].makespan_us > times[1].makespan_us * (1 + _TOLERANCE):
            return False
    return True


def _instances(schedule: Schedule, options: LoweringOptions) -> list[int]:
    """Numbers of instances to try, each replacing the one before if its program is no slower."""
    if options.instances > 1 or schedule.chunk_bytes < _INSTANCE_BYTES:
        return [options.instances]
    return [1, 2, _MOST_INSTANCES]


def _protocol_at(schedule: Schedule, size: int, floor: Protocol, options: LoweringOptions) -> Protocol:
    """The best protocol for a size, from `floor` on; when messages are sent, which it does not depend on, is not found anew for it."""
    sized = replace(schedule, chunk_bytes=schedule.collective.chunk_bytes(size))
    passed = frozenset(RISING[: RISING.index(floor)])
    return choose_protocol(sized, None, options.runtime, barred=passed).protocol


def _last_with(
    schedule: Schedule, protocol: Protocol, low: int, high: int, floor: Protocol, options: LoweringOptions
) -> int:
    """Largest size up to `high` for which the protocol is still the choice; the choice changes at most from small to large."""

    def kept(size: int) -> bool:
        return _protocol_at(schedule, size, floor, options) is protocol

    if kept(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if kept(middle) else (low, middle)
    return low


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

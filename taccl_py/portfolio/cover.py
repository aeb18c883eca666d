"""Cover: files for all sizes of a range, chosen by the replays of programs on links and ports alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from taccl_py.errors import LoweringError
from taccl_py.lowering.limits import NO_CALL, no_call, require_sizes
from taccl_py.lowering.lower import LoweringOptions, PortOrder
from taccl_py.lowering.program import Protocol
from taccl_py.lowering.protocol import choose_protocol
from taccl_py.pipeline.deliver import ReplayedProgram, lower_unverified, replay_at
from taccl_py.portfolio.by_replay import LOWEST, RISING
from taccl_py.portfolio.envelope import lower_envelope
from taccl_py.portfolio.rows import UnverifiedFile
from taccl_py.portfolio.variants import SizedCandidate, at_size, bytes_per_byte
from taccl_py.schedule.ir import Schedule
from taccl_py.solvers.limits import STOP, Over
from taccl_py.synthesis.race import Racer
from taccl_py.units import SizeRange

# A span may keep an algorithm that is this much slower than the fastest where that saves a file.
TOLERANCE = 2e-3
# Where a runtime does not load so many files, algorithms may be slower, so many times at a time, up to this part.
_MORE_TOLERANCE, _MOST_TOLERANCE = 4.0, 100.0
# Chunks of at least this many bytes are cut into instances, so that one threadblock does not limit a fast link.
_INSTANCE_BYTES = 4 << 20
_INSTANCES = (1, 2, 4)


def cover_sizes(
    variants: Sequence[SizedCandidate],
    sizes: SizeRange,
    options: LoweringOptions,
    racer: Racer,
    over: Over,
    stopped: Over,
) -> list[UnverifiedFile]:
    """Files for all sizes, no more of them than the runtime loads, even if they have to be slower for that.

    Parameters
    ----------
    variants
        Programs of candidates, to choose from.
    sizes
        The range.
    options
        Runtime and placement; protocol and instances are chosen for every file unless they are given.
    racer
        For what can be lowered side by side.
    over
        Whether time is up; then it is enough that a program serves a size.
    stopped
        Whether the user said stop.

    Raises
    ------
    LoweringError
        If there is no call of these sizes, or more files are needed than the runtime loads.
    """
    most, tolerance = options.runtime.max_algorithms, TOLERANCE
    programs = _FilePrograms(options, over, stopped)
    members = _covering(variants, sizes, tolerance, programs, racer)
    while len(members) > most and tolerance < _MOST_TOLERANCE:
        tolerance *= _MORE_TOLERANCE
        members = _covering(variants, sizes, tolerance, programs, racer)
    if not members:
        raise no_call(sizes.low_bytes, sizes.high_bytes, divisor_of(variants[0], options), options.runtime)
    if len(members) > most:
        raise LoweringError(
            f"{len(members)} files are needed from {sizes.low_bytes} to {sizes.high_bytes} bytes, and {options.runtime.title} "
            f"loads at most {most}; ask for a narrower range",
            runtime=options.runtime.name,
            limit="max_algorithms",
        )
    return up_to(members, sizes.high_bytes)


def _covering(
    variants: Sequence[SizedCandidate], sizes: SizeRange, tolerance: float, programs: _FilePrograms, racer: Racer
) -> list[UnverifiedFile]:
    """Files for all sizes, none of which is slower than the fastest one by more than this part; none where no size has a call."""
    members: list[UnverifiedFile] = []
    first, curves = sizes.low_bytes, [variant.curve for variant in variants]
    spans = lower_envelope(curves, sizes.low_bytes, sizes.high_bytes, tolerance)
    programs.make_likely([(variants[span.choice], span.max_bytes) for span in spans], first, racer)
    for span in spans:
        middle = round(math.sqrt(span.min_bytes * span.max_bytes))
        others = sorted(variants, key=lambda variant: variant.curve.time_us(middle))
        floor = members[-1].found.program.protocol if members else LOWEST
        members += _cover([variants[span.choice], *others], first, span.max_bytes, floor, programs)
        first = members[-1].max_bytes + 1 if members else first
    return members


def _cover(
    variants: Sequence[SizedCandidate], low: int, high: int, floor: Protocol, programs: _FilePrograms
) -> Iterator[UnverifiedFile]:
    """Files for sizes from `low` up to `high`: the first variant where it can be lowered, another one where it cannot.

    Protocols only rise from `floor` on, unless nothing can be lowered so. Sizes at the end for which there are no calls, or no calls that
    a program serves, are left to those that follow.
    """
    while low <= high:
        failures: list[LoweringError] = []
        for least, variant in product(dict.fromkeys((floor, LOWEST)), variants):
            try:
                member = programs.file_from(variant, low, high, least)
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


def up_to(members: Sequence[UnverifiedFile], high: int) -> list[UnverifiedFile]:
    """The files, the last of which also has the sizes up to the end of the range for which there are no calls."""
    *others, last = members
    return [*others, replace(last, max_bytes=high, schedule=at_size(last.schedule, high))]


@dataclass(frozen=True)
class _UnmadeFile:
    """A variant that is to be lowered for sizes from `low` up to `high`, and perhaps timed at both ends to be compared with others."""

    variant: SizedCandidate
    low: int
    high: int
    options: LoweringOptions
    is_compared: bool

    @property
    def key(self) -> tuple[object, ...]:
        """Key by which it is known."""
        return (id(self.variant), self.low, self.high, self.options.protocol, self.options.instances)

    @property
    def is_ready(self) -> bool:
        """True if the variant's own program will do."""
        share = bytes_per_byte(self.variant.candidate.schedule, self.options)
        return _serves(self.variant, self.options, math.floor(self.high * share))


@dataclass(frozen=True)
class _MadeFile:
    """A file, and its replays at some sizes."""

    file: UnverifiedFile
    times_us: dict[int, float]

    def time_us(self, size: int, options: LoweringOptions) -> float:
        """Replay at a size, which is found now where it is not known."""
        return self.times_us[size] if size in self.times_us else _time_us(self.file, size, options)


class _FilePrograms:
    """Programs for the files of a range: what is likely to be wanted is made side by side, the rest when it is asked for."""

    def __init__(self, options: LoweringOptions, over: Over, stopped: Over) -> None:
        self.options, self._over, self._stopped = options, over, stopped
        self._made: dict[tuple[object, ...], _MadeFile | LoweringError] = {}

    def make_likely(self, choices: Sequence[tuple[SizedCandidate, int]], low: int, racer: Racer) -> None:
        """Make the programs of variants for the sizes up to those given, from `low` on, as far as they take long and there is time."""
        likely = {unmade.key: unmade for unmade in self._likely(choices, low) if unmade.key not in self._made}
        wanted = [unmade for unmade in likely.values() if unmade.is_compared or not unmade.is_ready]
        wanted.sort(key=lambda unmade: -unmade.variant.num_messages * unmade.options.instances)
        asked: list[_UnmadeFile] = []

        def in_time() -> Iterator[_UnmadeFile]:
            for unmade in wanted:
                if self._over():
                    return
                asked.append(unmade)
                yield unmade

        for unmade, made in zip(asked, racer.spread(_made, in_time()), strict=True):
            if isinstance(made, _MadeFile):  # from another process, with a copy of its candidate
                made = replace(made, file=replace(made.file, candidate=unmade.variant.candidate))
            self._made[unmade.key] = made

    def _likely(self, choices: Sequence[tuple[SizedCandidate, int]], low: int) -> Iterator[_UnmadeFile]:
        """Programs that will be wanted if every program can be made, and is safe for all its sizes."""
        floor = LOWEST
        for variant, high in choices:
            while low <= high:
                try:
                    tries = self._tries(variant, low, high, floor)
                except LoweringError:
                    break
                yield from tries
                low, floor = tries[0].high + 1, tries[0].options.protocol or floor

    def file_from(self, variant: SizedCandidate, low: int, high: int, floor: Protocol) -> UnverifiedFile:
        """File for the sizes from `low` up to `high`, or to where another protocol is better, or to where it is safe.

        Raises
        ------
        LoweringError
            If there is none.
        """
        best: _MadeFile | None = None
        failure: LoweringError | None = None
        for unmade in self._tries(variant, low, high, floor):
            if best is not None and unmade.key not in self._made and self._over():
                break
            made = self._made.get(unmade.key) or _made(unmade, self._stopped)
            self._made[unmade.key] = made
            if isinstance(made, LoweringError):
                failure = failure or made
            elif best is None or _no_slower(made, best, self.options):
                best = made
        if best is None:
            raise failure or ValueError("no number of instances was tried")
        return best.file

    def _tries(self, variant: SizedCandidate, low: int, high: int, floor: Protocol) -> list[_UnmadeFile]:
        """The variant with every number of instances to try, each of which replaces the one before if its program is no slower.

        Raises
        ------
        LoweringError
            If there is no call of these sizes.
        """
        options, schedule = self.options, variant.candidate.schedule
        divisor = divisor_of(variant, options)
        called = -(-max(1, low) // divisor) * divisor
        if called > high:
            raise no_call(low, high, divisor, options.runtime)
        protocol = options.protocol or _protocol_at(schedule, called, floor, options)
        if options.protocol is None:
            high = _last_with(schedule, protocol, called, high, floor, options)
        is_cut = options.instances == 1 and schedule.collective.chunk_bytes(high) >= _INSTANCE_BYTES
        numbers = _INSTANCES if is_cut else (options.instances,)
        every = [replace(options, protocol=protocol, instances=number) for number in numbers]
        return [_UnmadeFile(variant, low, high, each, is_compared=len(numbers) > 1) for each in every]


def _made(unmade: _UnmadeFile, stopped: Over = STOP.is_set) -> _MadeFile | LoweringError:
    try:
        file = lower_with(unmade.variant, unmade.low, unmade.high, unmade.options, stopped)
    except LoweringError as error:
        return error
    ends = (file.min_bytes, file.max_bytes) if unmade.is_compared else ()
    return _MadeFile(file, {size: _time_us(file, size, unmade.options) for size in ends})


def _time_us(file: UnverifiedFile, size: int, options: LoweringOptions) -> float:
    """Replay of a file's program at a size."""
    return replay_at(file.found.program, file.schedule, options.runtime, file.instances, size).makespan_us


def divisor_of(variant: SizedCandidate, options: LoweringOptions) -> int:
    """Number that must divide a size, as nccl-tests counts it, for the runtime to take the program."""
    return math.ceil(variant.lowered.program.num_chunks_per_loop / bytes_per_byte(variant.candidate.schedule, options))


def _serves(variant: SizedCandidate, options: LoweringOptions, wanted: int) -> bool:
    """True if the variant's own program is one with these options, and for as many bytes as the runtime counts."""
    known = variant.lowered.program
    return known.protocol is options.protocol and options.instances == 1 and known.max_bytes >= wanted


def lower_with(
    variant: SizedCandidate, low: int, high: int, options: LoweringOptions, stopped: Over, *, reorders: bool = True
) -> UnverifiedFile:
    """File for the sizes from `low` up to `high`, or as far as it is safe; orders at ports are not tried without `reorders`.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept.
    """
    schedule, share = variant.schedule, bytes_per_byte(variant.schedule, options)
    wanted = math.floor(high * share)
    known = variant.lowered
    # The order that its program needs for its own size is the one for others too.
    options = replace(options, min_bytes=math.ceil(low * share), port_order=known.port_order)
    if not _serves(variant, options, wanted):
        known = _lowered_anew(schedule, options, wanted, stopped, reorders=reorders)
    return file_of(variant, known, low, high, options)


def file_of(
    variant: SizedCandidate, known: ReplayedProgram, low: int, high: int, options: LoweringOptions
) -> UnverifiedFile:
    """File of a program of a variant for the sizes from `low` up to `high`, or as far as it is safe.

    Raises
    ------
    LoweringError
        If it is safe for none of them, or a limit of the runtime cannot be kept.
    """
    schedule, share = variant.schedule, bytes_per_byte(variant.schedule, options)
    safe = math.floor(known.program.max_bytes / share)
    if safe < low:
        raise LoweringError(
            "no size of the range is safe for this algorithm", runtime=options.runtime.name, limit="max_bytes"
        )
    high = min(high, safe)
    program = replace(known.program, min_bytes=math.ceil(low * share), max_bytes=math.floor(high * share))
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


def _no_slower(one: _MadeFile, other: _MadeFile, options: LoweringOptions) -> bool:
    """True if one program serves all sizes of another, and is nowhere slower, as far as the ends of their range tell."""
    ends = (other.file.min_bytes, other.file.max_bytes)
    return one.file.max_bytes >= other.file.max_bytes and all(
        one.time_us(size, options) <= other.time_us(size, options) * (1 + TOLERANCE) for size in ends
    )


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

"""Variants: candidates as programs, by whose replays files are chosen.

A program may take longer than its schedule, and how much longer depends on the size whose times decided about its order. At every
probe size the candidates are lowered in order of their schedules' times, until the next one could not be faster even if its program
kept its promise.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from taccl_py.errors import LoweringError
from taccl_py.lowering.buffers import BufferSizes
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.pipeline.deliver import ReplayedProgram, lower_unverified, replay_at
from taccl_py.portfolio.candidates import Candidate
from taccl_py.schedule.ir import Schedule
from taccl_py.schedule.transform import resized
from taccl_py.simulate.cost_curve import CostCurve, CurvePiece
from taccl_py.solvers.limits import Over, never
from taccl_py.synthesis.race import Racer
from taccl_py.units import BYTES_PER_MB

# Most programs that are made at one probe size of candidates that were found there, and of others; and that are made side by side.
_MOST_TRIES, _AT_ONCE = 4, 4
# Most that another program could gain where no other one is looked for.
_WORTH = 2e-3
# Candidates of many messages are lowered anew only where their program seems to lose so much by being made for another size, those of
# very many are lowered once: it takes seconds, and more than twice as long for twice as many.
_MANY_MESSAGES, _WORTH_MANY = 1500, 5e-3
_VERY_MANY_MESSAGES = 5000
# Limits that a program keeps at some sizes and not at others.
_LIMITS_OF_SIZE = frozenset({"max_bytes"})
_MOST_FAILURES = 2
# A program is replayed at sizes up to this factor from the one that it is made for.
_NEAR = 8.5
# A program that is not replayed counts as so many times as slow, unless the program keeps the schedule's promise wherever it is replayed.
_UNKNOWN = 2.0


@dataclass(frozen=True)
class SizedCandidate:
    """A candidate with the size that its program is made for.

    Attributes
    ----------
    candidate
        The algorithm.
    at_bytes
        Size whose times decide about the order of what takes turns.
    schedule
        The algorithm's schedule with these times.
    lowered
        The program, for all sizes for which it is safe.
    curve
        Its replays.
    """

    candidate: Candidate
    at_bytes: int
    schedule: Schedule
    lowered: ReplayedProgram
    curve: CostCurve

    @property
    def slower(self) -> float:
        """Time of the program at its own size, in times of its schedule's."""
        return self.curve.time_us(self.at_bytes) / self.candidate.curve.time_us(self.at_bytes)

    @property
    def num_messages(self) -> int:
        """Number of messages, by which it takes longer or shorter to make a program."""
        return len(self.candidate.schedule.messages)

    def is_made_for(self, size: int, *, own: bool) -> bool:
        """True if the candidate's program for a size is probably no faster, or not worth the time to find out.

        Of a candidate's own size, for which it was found, only a program that keeps the schedule's promise tells that.
        """
        number = self.num_messages
        if number > _VERY_MANY_MESSAGES:
            return True
        worth = _WORTH_MANY if number > _MANY_MESSAGES else _WORTH
        slower = 1.0 if own else self.slower
        return self.curve.time_us(size) <= self.candidate.curve.time_us(size) * slower * (1 + worth)


def at_size(schedule: Schedule, size_bytes: float) -> Schedule:
    """Return the schedule with the chunks of a size as nccl-tests counts it."""
    return resized(schedule, schedule.collective.chunk_bytes(size_bytes))


def bytes_per_byte(schedule: Schedule, options: LoweringOptions) -> Fraction:
    """Return what the runtime counts for a byte as nccl-tests counts it."""
    geometry = BufferSizes(schedule.collective, options.instances, options.runtime.checks_chunk_counts)
    return Fraction(geometry.chunks_per_loop, geometry.instances * schedule.collective.chunks_per_size)


def lower_variants(
    candidates: Sequence[Candidate], sizes: Sequence[int], options: LoweringOptions, racer: Racer, over: Over = never
) -> list[SizedCandidate]:
    """Variants of which at every probe size one is as fast as a program can be found.

    Parameters
    ----------
    candidates
        Algorithms whose curves cover the sizes.
    sizes
        Probe sizes, the ends of the range among them.
    options
        Runtime and placement.
    racer
        For what can be lowered side by side.
    over
        Whether time is up; then it is enough that a program serves a size.

    Raises
    ------
    LoweringError
        If at some size no candidate can be lowered.
    """
    fastest = {size: min(candidates, key=lambda each: each.curve.time_us(size)) for size in sizes}
    # Each at the largest size for which it seems to be best, as such a program often serves smaller sizes as well.
    largest = {
        id(candidate): _UnloweredVariant(candidate, size, tuple(sizes), options) for size, candidate in fastest.items()
    }
    tries = _Tries(candidates, sizes, options)

    def try_all(tasks: list[_UnloweredVariant]) -> None:
        made = racer.spread_longest_first(
            _lowered_if_possible, tasks, lambda task: len(task.candidate.schedule.messages)
        )
        for task, result in zip(tasks, made, strict=True):
            tries.take(task, result)

    try_all(list(largest.values()))
    # Small sizes first, whose programs take least; neighbouring ones together, which take about as long.
    number = -1
    while number < len(tries.done):
        number = len(tries.done)
        for tasks in tries.task_groups():
            if over() and tries.found:
                return tries.found
            try_all(tasks)
    if not tries.found:
        raise tries.failure or ValueError("there is no candidate")
    return tries.found


@dataclass(frozen=True, slots=True)
class _Try:
    """A candidate, by its identity, that was lowered for a size, or could not be."""

    candidate: int
    size: int


class _Tries:
    """Order in which candidates are lowered for a size."""

    def __init__(self, candidates: Sequence[Candidate], sizes: Sequence[int], options: LoweringOptions) -> None:
        self._candidates, self._sizes, self._options = candidates, tuple(sizes), options
        # How often a candidate, by its identity, could not be lowered; where two sizes were in vain, a third one is not tried.
        self._failures: Counter[int] = Counter()
        self.found: list[SizedCandidate] = []
        self.done: set[_Try] = set()
        self.failure: LoweringError | None = None

    def next_at(self, size: int) -> Candidate | None:
        """The one that is fastest as a schedule of those that could be faster than the best program; None if that is enough.

        A candidate found at this very size is lowered for it, as other sizes do not tell its time here.
        """
        best_us = min((variant.curve.time_us(size) for variant in self.found), default=math.inf)
        made = [variant.candidate.at_bytes == size for variant in self.found if variant.at_bytes == size]
        for candidate in sorted(self._candidates, key=lambda each: each.curve.time_us(size)):
            if candidate.curve.time_us(size) * (1 + _WORTH) >= best_us:
                break
            own = candidate.at_bytes == size
            if _Try(id(candidate), size) in self.done or self._failures[id(candidate)] >= _MOST_FAILURES:
                continue
            if made.count(own) >= _MOST_TRIES:
                continue
            known = [variant for variant in self.found if variant.candidate is candidate]
            if not any(variant.is_made_for(size, own=own) for variant in known):
                return candidate
        return None

    def task_groups(self) -> Iterator[list[_UnloweredVariant]]:
        """Variants to lower next, a few at once; results of these are known when the next ones are asked for."""
        chosen: dict[int, _UnloweredVariant] = {}
        for size in self._sizes:
            candidate = self.next_at(size)
            if candidate is not None:
                # For one size at a time, as its program may serve the others, or not exist.
                chosen[id(candidate)] = _UnloweredVariant(candidate, size, self._sizes, self._options)
            if len(chosen) == _AT_ONCE:
                yield list(chosen.values())
                chosen = {}
        if chosen:
            yield list(chosen.values())

    def take(self, task: _UnloweredVariant, made: SizedCandidate | LoweringError) -> None:
        """Take note of the result of a task."""
        self.done.add(_Try(id(task.candidate), task.size))
        if isinstance(made, SizedCandidate):
            # A result from another process has a copy of its candidate.
            self.found.append(replace(made, candidate=task.candidate))
        else:
            self.failure = self.failure or made
            self._failures[id(task.candidate)] += made.limit not in _LIMITS_OF_SIZE


@dataclass(frozen=True)
class _UnloweredVariant:
    """A candidate that is to be lowered for a size, and replayed at some of all sizes."""

    candidate: Candidate
    size: int
    sizes: tuple[int, ...]
    options: LoweringOptions


def _lowered_if_possible(task: _UnloweredVariant) -> SizedCandidate | LoweringError:
    try:
        return _lowered(task)
    except LoweringError as error:
        return error


def _lowered(task: _UnloweredVariant) -> SizedCandidate:
    candidate, size, options = task.candidate, task.size, task.options
    schedule = at_size(candidate.schedule, size)
    lowered = lower_unverified(schedule, options)
    if lowered.program.max_bytes < size * bytes_per_byte(schedule, options):
        raise LoweringError(f"{size} bytes are not safe", runtime=options.runtime.name, limit="max_bytes")
    slower = {float(size): lowered.replay.makespan_us / candidate.curve.time_us(size)}
    for each in task.sizes:
        if each != size and 1 / _NEAR < each / size < _NEAR:
            replay = replay_at(lowered.program, schedule, options.runtime, options.instances, each)
            slower[float(each)] = replay.makespan_us / candidate.curve.time_us(each)
    unknown = _UNKNOWN if max(slower.values()) > 1 + _WORTH else 1.0
    curve = _slowed(candidate.curve, {float(each): unknown for each in task.sizes} | slower)
    return SizedCandidate(candidate, size, schedule, lowered, curve)


def _slowed(curve: CostCurve, slower: dict[float, float]) -> CostCurve:
    """Curve of a program that is so many times as slow as its schedule at some sizes, and between them by a factor that changes evenly."""
    sizes = sorted(slower)
    if len(sizes) == 1:
        return CostCurve((CurvePiece(sizes[0], sizes[0], curve.time_us(sizes[0]) * max(1.0, slower[sizes[0]]), 0.0),))
    ends = sorted({*sizes, *(piece.from_bytes for piece in curve.pieces[1:])})

    def time_us(size: float) -> float:
        low = max(known for known in sizes if known <= size)
        high = min(known for known in sizes if known >= size)
        part = (size - low) / (high - low) if high > low else 0.0
        return curve.time_us(size) * max(1.0, slower[low] + part * (slower[high] - slower[low]))

    return CostCurve(tuple(_line(low, high, time_us(low), time_us(high)) for low, high in pairwise(ends)))


def _line(from_bytes: float, to_bytes: float, from_us: float, to_us: float) -> CurvePiece:
    us_per_mb = (to_us - from_us) / (to_bytes - from_bytes) * BYTES_PER_MB
    return CurvePiece(from_bytes, to_bytes, from_us - us_per_mb * from_bytes / BYTES_PER_MB, us_per_mb)

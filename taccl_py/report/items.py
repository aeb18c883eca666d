"""What a report is about: schedules with their programs, and how they do at every size."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from taccl_py.collective import ROOTED
from taccl_py.errors import InputError
from taccl_py.lowering.program import Program, chunks_of_size
from taccl_py.report.progress import ProgressPoint
from taccl_py.runtimes import RUNTIMES
from taccl_py.schedule.ir import Schedule
from taccl_py.simulate.cost_curve import cost_curve
from taccl_py.simulate.critical_path import critical_path
from taccl_py.simulate.program_replay import replay_program
from taccl_py.simulate.schedule_replay import replay_schedule
from taccl_py.simulate.timeline import Timeline
from taccl_py.synthesis.bounds import DemandBounds
from taccl_py.topology.catalog import load_topology
from taccl_py.units import SizeRange, algbw_gbps, format_size, relative_gap

# Sizes of a sweep are this far apart at most.
_STEP = 2.0
_RUNTIME = "executor"


@dataclass(frozen=True)
class Item:
    """An algorithm of a report.

    Attributes
    ----------
    name
        What the report calls it.
    schedule
        It.
    program
        What it became, if that is known.
    sizes
        For which it is meant, or None for any.
    progress
        How the search for it went; empty if that was not recorded.
    """

    name: str
    schedule: Schedule
    program: Program | None = None
    sizes: SizeRange | None = None
    progress: tuple[ProgressPoint, ...] = ()

    @cached_property
    def timeline(self) -> Timeline:
        """Replay of the schedule at its own size."""
        return replay_schedule(self.schedule, self.schedule.chunk_bytes)

    @cached_property
    def program_timeline(self) -> Timeline | None:
        """Replay of the program at the schedule's size, if there is a program for it."""
        program, schedule = self.program, self.schedule
        size_bytes = schedule.size_bytes
        if program is None or size_bytes is None:
            return None
        runtime = RUNTIMES[_RUNTIME]
        whole = chunks_of_size(program, runtime)
        slots = runtime.fifo_slots[program.protocol]
        try:
            return replay_program(
                program, schedule.topology, size_bytes / whole, fifo_slots=slots, chunks_per_size=whole
            )
        except InputError:  # a program of another machine
            return None

    @cached_property
    def critical(self) -> frozenset[int]:
        """Messages on a critical path."""
        return frozenset(critical_path(self.schedule))

    def source_of(self, chunk: int) -> int:
        """Rank that a chunk comes from; for sums the rank whose share it is."""
        collective = self.schedule.collective
        if not collective.reduces:
            return collective.source[chunk]
        return chunk // collective.chunks_per_rank % collective.num_ranks

    @property
    def command(self) -> str:
        """Command that makes it again; empty if the machine has no name or the origin is not known."""
        schedule, origin = self.schedule, self.schedule.origin
        names = _names_of(schedule)
        if origin is None or not names or schedule.size_bytes is None:
            return ""
        collective = schedule.collective
        words = ["taccl", "synth", names[0], str(collective.kind), "--size", f"{round(schedule.size_bytes)}B"]
        words += ["--engine", origin.engine, "--seed", str(origin.seed)]
        words += ["--chunks", str(collective.chunks_per_rank)] if collective.chunks_per_rank > 1 else []
        words += ["--root", str(collective.root)] if collective.kind in ROOTED else []
        words += ["--sketch", origin.sketch] if origin.sketch else []
        return shlex.join([*words, "-o", "out/"])


def _names_of(schedule: Schedule) -> list[str]:
    """Names under which exactly this machine is found."""
    found = []
    for name in (schedule.topology.name, schedule.topology.name.replace("-", ":", 1)):
        try:
            if load_topology(name) == schedule.topology:
                found.append(name)
        except InputError:
            continue
    return found


@dataclass(frozen=True, slots=True)
class SizePoint:
    """An algorithm at one size; the bound is None where it was not asked for."""

    size_bytes: float
    time_us: float
    busbw_gbps: float
    bound_us: float | None

    @property
    def gap(self) -> float | None:
        """Relative distance from the bound."""
        return relative_gap(self.time_us, self.bound_us) if self.bound_us else None


@dataclass(frozen=True)
class SizeLine:
    """An algorithm at all sizes for which it is meant."""

    name: str
    points: tuple[SizePoint, ...]


@dataclass(frozen=True)
class SizeSweep:
    """Algorithms of one collective on one machine, and the bound, at all sizes."""

    title: str
    lines: tuple[SizeLine, ...]
    bound: tuple[SizePoint, ...]


def size_sweeps(items: Sequence[Item], sizes: SizeRange) -> list[SizeSweep]:
    """Sweeps of all items, one for every machine and collective; items whose costs are for one size have none."""
    groups: dict[tuple[str, str, int], list[Item]] = {}
    for item in items:
        collective = item.schedule.collective
        if not item.schedule.topology.chunk_costs:
            groups.setdefault((item.schedule.topology.name, collective.kind, collective.root), []).append(item)
    return [_sweep(group, sizes) for group in groups.values()]


def _sweep(items: Sequence[Item], sizes: SizeRange) -> SizeSweep:
    first = items[0].schedule
    collective = first.collective
    bounds = DemandBounds.of(first.topology, collective.kind, collective.root)
    grid = [float(size) for size in sizes.stepped(_STEP)]
    bound_us = {size: bounds.at(size).time_us for size in grid}
    lines = []
    for item in items:
        curve = cost_curve(item.schedule, sizes.low_bytes, sizes.high_bytes)
        span = item.sizes or sizes
        # The ends of a range belong to the line even where no size of the grid lies on them.
        ends = [float(min(max(end, sizes.low_bytes), sizes.high_bytes)) for end in (span.low_bytes, span.high_bytes)]
        wanted = sorted({*ends, *(size for size in grid if ends[0] <= size <= ends[1])})
        points = [_point(size, curve.time_us(size), collective.busbw_factor, bound_us.get(size)) for size in wanted]
        lines.append(SizeLine(item.name, tuple(points)))
    bound = tuple(_point(size, time_us, collective.busbw_factor, time_us) for size, time_us in bound_us.items())
    title = f"{collective.kind} on {first.topology.name}, {collective.num_ranks} ranks"
    return SizeSweep(title, tuple(lines), bound)


def _point(size_bytes: float, time_us: float, factor: float, bound_us: float | None) -> SizePoint:
    busbw = algbw_gbps(size_bytes, time_us) * factor if time_us > 0 else math.inf
    return SizePoint(size_bytes, time_us, busbw, bound_us)


def title_of(item: Item) -> str:
    """Heading of an item."""
    schedule = item.schedule
    size = schedule.size_bytes
    what = f"{schedule.collective.kind} on {schedule.topology.name}, {schedule.collective.num_ranks} ranks"
    return f"{what}, {format_size(size)}" if size is not None else what

"""Items of a report: schedules with their programs, and how they do at every size."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from taccl_py.collective import ROOTED
from taccl_py.errors import InputError
from taccl_py.lowering.program import Program
from taccl_py.report.progress import ProgressPoint
from taccl_py.report.summaries import PortfolioFacts, RuntimeFacts, RuntimePoint
from taccl_py.runtimes import RUNTIMES
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.schedule.ir import Schedule
from taccl_py.simulate.cost_curve import cost_curve
from taccl_py.simulate.critical_path import critical_path
from taccl_py.simulate.demand_replay import demand_critical_path, replay_demand
from taccl_py.simulate.program_replay import replay_at_size
from taccl_py.simulate.schedule_replay import replay_schedule
from taccl_py.simulate.timeline import Timeline
from taccl_py.synthesis.bounds import DemandBounds
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Topology
from taccl_py.units import SizeRange, algbw_gbps, format_count, format_size, relative_gap

# Sizes of a sweep are this far apart at most.
_STEP = 2.0
_RUNTIME = "executor"


@dataclass(frozen=True)
class Item:
    """An algorithm of a report.

    Attributes
    ----------
    name
        Name in the report.
    schedule
        It.
    program
        Program that it was lowered to, if that is known.
    sizes
        For which it is meant, or None for any.
    progress
        How the search for it went; empty if that was not recorded.
    portfolio
        The portfolio that it is a file of, if it is.
    runtime
        Its time under a runtime profile, if its summary tells one.
    position
        Number of the file in its portfolio.
    asked
        File of the demand that a demand's schedule is for, if it is known.
    told
        Command that its summary tells, or empty.
    """

    name: str
    schedule: Schedule | DemandSchedule
    program: Program | None = None
    sizes: SizeRange | None = None
    progress: tuple[ProgressPoint, ...] = ()
    portfolio: PortfolioFacts | None = None
    runtime: RuntimeFacts | None = None
    position: int = 0
    asked: str = ""
    told: str = ""

    @property
    def is_demand(self) -> bool:
        """True if the schedule is that of a demand."""
        return isinstance(self.schedule, DemandSchedule)

    @property
    def size_bytes(self) -> float:
        """Size of the collective, or all bytes that a demand has to bring somewhere."""
        return (
            float(self.schedule.demand.total_bytes)
            if isinstance(self.schedule, DemandSchedule)
            else self.schedule.size_bytes
        )

    @property
    def what(self) -> str:
        """Name of the collective or the demand."""
        return (
            self.schedule.demand.name
            if isinstance(self.schedule, DemandSchedule)
            else str(self.schedule.collective.kind)
        )

    @property
    def num_chunks(self) -> int:
        """Number of chunks."""
        if isinstance(self.schedule, DemandSchedule):
            return len(self.schedule.demand.chunks)
        return self.schedule.collective.num_chunks

    def describe_chunk(self, chunk: int) -> str:
        """Name of a chunk for people."""
        if isinstance(self.schedule, DemandSchedule):
            return self.schedule.demand.describe_chunk(chunk)
        return self.schedule.collective.describe_chunk(chunk)

    @cached_property
    def timeline(self) -> Timeline:
        """Replay of the schedule at its own size."""
        if isinstance(self.schedule, DemandSchedule):
            return replay_demand(self.schedule)
        return replay_schedule(self.schedule, self.schedule.chunk_bytes)

    @cached_property
    def program_timeline(self) -> Timeline | None:
        """Replay of the program at the schedule's size, if there is a program for it."""
        program, schedule = self.program, self.schedule
        if program is None or isinstance(schedule, DemandSchedule):
            return None
        try:
            return replay_at_size(program, RUNTIMES[_RUNTIME], schedule.topology, self.size_bytes)
        except InputError:  # a program of another machine
            return None

    @cached_property
    def critical(self) -> frozenset[int]:
        """Messages on a critical path."""
        if isinstance(self.schedule, DemandSchedule):
            return frozenset(demand_critical_path(self.schedule))
        return frozenset(critical_path(self.schedule))

    def source_of(self, chunk: int) -> int:
        """Rank that a chunk comes from, the first of a demand's; for sums of a collective the rank whose shard it is."""
        if isinstance(self.schedule, DemandSchedule):
            return self.schedule.demand.chunks[chunk].holders[0][0]
        collective = self.schedule.collective
        if not collective.reduces:
            return collective.source[chunk]
        return chunk // collective.chunks_per_rank % collective.num_ranks

    @property
    def runtime_facts(self) -> RuntimeFacts | None:
        """Times under a runtime profile that a summary tells: that of its portfolio, or its own."""
        return self.portfolio.runtime if self.portfolio else self.runtime

    @property
    def runtime_point(self) -> RuntimePoint | None:
        """Time under the runtime profile at the schedule's own size, or the largest of its file, if a summary tells one."""
        facts = self.runtime_facts
        points = [point for point in (facts.points if facts else ()) if point.range == self.position]
        own = [point for point in points if point.size_bytes == self.size_bytes]
        found = own or points
        return found[-1] if found else None

    @property
    def command(self) -> str:
        """Command that makes it again, of its summary, else of its origin; empty if neither tells it, or a portfolio's command makes it."""
        if self.portfolio is not None or self.told:
            return self.told
        schedule, origin = self.schedule, self.schedule.origin
        names = _names_of(schedule.topology)
        if origin is None or not names:
            return ""
        if isinstance(schedule, DemandSchedule):
            words = ["taccl", "synth", names[0], self.asked, "--seed", str(origin.seed), "-o", "out/"]
            return shlex.join(words) if self.asked else ""
        collective = schedule.collective
        words = ["taccl", "synth", names[0], str(collective.kind), "--size", f"{round(self.size_bytes)}B"]
        words += ["--engine", origin.engine, "--seed", str(origin.seed)]
        words += ["--chunks", str(collective.chunks_per_rank)] if collective.chunks_per_rank > 1 else []
        words += ["--root", str(collective.root)] if collective.kind in ROOTED else []
        words += ["--sketch", origin.sketch] if origin.sketch else []
        return shlex.join([*words, "-o", "out/"])


def _names_of(topology: Topology) -> list[str]:
    """Names under which exactly this machine is found."""
    found = []
    for name in (topology.name, topology.name.replace("-", ":", 1)):
        try:
            if load_topology(name) == topology:
                found.append(name)
        except InputError:
            continue
    return found


@dataclass(frozen=True, slots=True)
class SizePoint:
    """An algorithm at one size, its lower bound there, and its name."""

    size_bytes: float
    time_us: float
    busbw_gbps: float
    bound_us: float
    name: str = ""

    @property
    def gap(self) -> float:
        """Relative distance from the bound."""
        return relative_gap(self.time_us, self.bound_us)


@dataclass(frozen=True)
class SizeLine:
    """An algorithm, or the best of a portfolio, at all sizes for which it is meant.

    Attributes
    ----------
    name
        Name in legends.
    points
        In order of size.
    profile
        Runtime profile whose times these are; empty for links and ports alone.
    """

    name: str
    points: tuple[SizePoint, ...]
    profile: str = ""


@dataclass(frozen=True)
class SizeSweep:
    """Algorithms of one collective on one machine, and the bound, at all sizes.

    Attributes
    ----------
    title
        Collective and machine.
    lines
        First those under runtime profiles, then those of links and ports alone.
    bound
        Lower bound on links and ports, for any algorithm.
    runtime_bounds
        Lower bound of every line under a runtime profile, in their order.
    """

    title: str
    lines: tuple[SizeLine, ...]
    bound: tuple[SizePoint, ...]
    runtime_bounds: tuple[SizeLine, ...] = ()


def size_sweeps(items: Sequence[Item], sizes: SizeRange) -> list[SizeSweep]:
    """Sweeps of all items, one for every machine and collective; demands have none."""
    groups: dict[tuple[str, str, int], list[tuple[Item, Schedule]]] = {}
    for item in items:
        if isinstance(item.schedule, DemandSchedule):
            continue
        collective = item.schedule.collective
        groups.setdefault((item.schedule.topology.name, collective.kind, collective.root), []).append(
            (item, item.schedule)
        )
    return [_sweep(group, sizes) for group in groups.values()]


def _sweep(found_items: Sequence[tuple[Item, Schedule]], sizes: SizeRange) -> SizeSweep:
    items, first = [item for item, _ in found_items], found_items[0][1]
    collective = first.collective
    factor = collective.busbw_factor
    bounds = DemandBounds.of(first.topology, collective.kind, collective.root)
    grid = _grid(items, sizes)
    under, plain = [], []
    for name, group in _joined(items):
        found: dict[float, SizePoint] = {}
        for item in group:
            for size, time_us in _times(item, sizes, grid):
                if size not in found or time_us < found[size].time_us:
                    found[size] = _point(size, time_us, factor, bounds.at(size).time_us, item.name)
        points = tuple(point for _, point in sorted(found.items()))
        facts = group[0].runtime_facts
        if facts is not None and (runtime := _under(facts, group, factor, sizes)):
            under.append(SizeLine(f"{name}, profile {facts.profile}", runtime, facts.profile))
            name = f"{name}, links and ports alone"
        plain += [SizeLine(name, points)] if points else []
    bound = tuple(_point(size, (us := bounds.at(size).time_us), factor, us) for size in grid)
    bound_name = "bound, profile " if len(under) == 1 else "bound of "
    runtime_bounds = tuple(
        SizeLine(
            bound_name + (line.profile if len(under) == 1 else line.name),
            tuple(_point(p.size_bytes, p.bound_us, factor, p.bound_us) for p in line.points),
            line.profile,
        )
        for line in under
    )
    title = f"{collective.kind} on {first.topology.name}, {collective.num_ranks} ranks"
    return SizeSweep(title, (*under, *plain), bound, runtime_bounds)


def _grid(items: Sequence[Item], sizes: SizeRange) -> list[float]:
    """Sizes of a sweep; where all items are for some sizes, none beyond them."""
    spans = [item.sizes or sizes for item in items]
    low = max(sizes.low_bytes, min(span.low_bytes for span in spans))
    high = min(sizes.high_bytes, max(span.high_bytes for span in spans))
    if low > high:
        return [float(size) for size in sizes.stepped(_STEP)]
    return sorted({float(low), float(high), *(float(size) for size in sizes.stepped(_STEP) if low <= size <= high)})


def _joined(items: Sequence[Item]) -> list[tuple[str, list[Item]]]:
    """Items with the names of their lines; the files of a portfolio share one."""
    found: dict[str, list[Item]] = {}
    for item in items:
        found.setdefault(f"p {item.portfolio.name}" if item.portfolio else f"i {item.name}", []).append(item)
    groups = list(found.values())
    portfolios = sum(group[0].portfolio is not None for group in groups)
    joined = []
    for group in groups:
        stem = group[0].portfolio
        own = f" of {stem.name}" if stem and portfolios > 1 else ""
        joined.append((f"best of {format_count(len(group), 'file')}{own}" if stem else group[0].name, group))
    return joined


def _times(item: Item, sizes: SizeRange, grid: Sequence[float]) -> list[tuple[float, float]]:
    """Times on links and ports of the sizes for which an item is meant."""
    span = item.sizes or sizes
    low, high = max(span.low_bytes, sizes.low_bytes), min(span.high_bytes, sizes.high_bytes)
    if low > high or isinstance(item.schedule, DemandSchedule):
        return []
    curve = cost_curve(item.schedule, sizes.low_bytes, sizes.high_bytes)
    # The ends of a range belong to the line even where no size of the grid lies on them.
    wanted = sorted({float(low), float(high), *(size for size in grid if low <= size <= high)})
    return [(size, curve.time_us(size)) for size in wanted]


def _under(facts: RuntimeFacts, group: Sequence[Item], factor: float, sizes: SizeRange) -> tuple[SizePoint, ...]:
    """Times under a runtime profile that a summary tells, with the names of the files that they are of."""
    names = {item.position: item.name for item in group}
    return tuple(
        _point(float(p.size_bytes), p.time_us, factor, p.bound_us, names.get(p.range, ""))
        for p in facts.points
        if sizes.low_bytes <= p.size_bytes <= sizes.high_bytes
    )


def _point(size_bytes: float, time_us: float, factor: float, bound_us: float, name: str = "") -> SizePoint:
    busbw = algbw_gbps(size_bytes, time_us) * factor if time_us > 0 else math.inf
    return SizePoint(size_bytes, time_us, busbw, bound_us, name)


def title_of(item: Item) -> str:
    """Heading of an item."""
    topology = item.schedule.topology
    what = f"{item.what} on {topology.name}, {topology.num_ranks} ranks"
    to_deliver = " to deliver" if item.is_demand else ""
    return f"{what}, {format_size(item.size_bytes)}{to_deliver}"

"""Files of a portfolio, and what they do at each size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from taccl_py.lowering.lower import LoweringOptions
from taccl_py.pipeline.deliver import Lowered, ReplayedProgram, replay_at
from taccl_py.portfolio.candidates import Candidate, Probe
from taccl_py.portfolio.variants import at_size
from taccl_py.profiles.model import RuntimeProfile
from taccl_py.runtimes import Runtime
from taccl_py.schedule.ir import Schedule
from taccl_py.simulate.runtime_replay import RuntimeReplay
from taccl_py.solvers.limits import Limits, always, never
from taccl_py.synthesis.bounds import Bound
from taccl_py.synthesis.bounds.runtime import RuntimeBounds
from taccl_py.units import relative_gap

# Rows of one file that one process makes: what is made of a program for its replay serves them all.
_ROWS_AT_ONCE = 4
# Seconds that bounds of a machine under a profile may take in any case, before those of its sizes.
_LEAST_ANALYSIS_SECONDS = 1.0


@dataclass(frozen=True)
class UnverifiedFile:
    """A file that may become one of a portfolio; attributes as those of `PortfolioFile`, its program verified or not."""

    candidate: Candidate
    schedule: Schedule
    found: ReplayedProgram
    min_bytes: int
    max_bytes: int
    instances: int

    def with_program(self, lowered: Lowered) -> PortfolioFile:
        """The file with its verified program."""
        return PortfolioFile(self.candidate, self.schedule, lowered, self.min_bytes, self.max_bytes, self.instances)


@dataclass(frozen=True)
class PortfolioFile:
    """One file of a portfolio.

    Attributes
    ----------
    candidate
        Its algorithm.
    schedule
        The algorithm's schedule at the largest size of its range.
    lowered
        The verified program.
    min_bytes, max_bytes
        Sizes for which it is used, as nccl-tests counts them, both included.
    instances
        Parts that every chunk is cut into.
    """

    candidate: Candidate
    schedule: Schedule
    lowered: Lowered
    min_bytes: int
    max_bytes: int
    instances: int


@dataclass(frozen=True)
class SizeRow:
    """Row of the portfolio: file, times and bound at one size.

    Attributes
    ----------
    size_bytes
        As nccl-tests counts it.
    member
        Index of the file that serves it.
    makespan_us, replay_us
        Time of the schedule, and of the program's replay.
    bound
        No algorithm is faster.
    runtime_us, runtime_bound
        Time of the program under the runtime profile, and the bound there; None without one.
    """

    size_bytes: int
    member: int
    makespan_us: float
    replay_us: float
    bound: Bound
    runtime_us: float | None = None
    runtime_bound: Bound | None = None

    @property
    def gap(self) -> float:
        """Relative distance from the bound."""
        return relative_gap(self.makespan_us, self.bound.time_us)


def unmade_rows(
    files: Sequence[UnverifiedFile],
    probes: Sequence[Probe],
    options: LoweringOptions,
    profile: RuntimeProfile | None,
    limits: Limits,
) -> Iterator[UnmadeRows]:
    """Rows of every probe's size, those of programs with most steps first.

    Parameters
    ----------
    files
        Files, in order of size.
    probes
        Sizes with their bounds on links and ports.
    options
        Of lowering.
    profile
        The runtime profile, or None.
    limits
        Of bounds under it; what serves all sizes is found even where they leave no time.
    """
    demand, over = probes[0].demand, limits.countdown()
    analysis = replace(limits, seconds=max(limits.seconds, _LEAST_ANALYSIS_SECONDS))
    bounds = None if profile is None else RuntimeBounds.of(demand.topology, demand.kind, demand.root, profile, analysis)
    for index, file in sorted(enumerate(files), key=lambda numbered: -numbered[1].found.program.num_steps):
        own = [probe for probe in probes if file.min_bytes <= round(probe.demand.size_bytes) <= file.max_bytes]
        for first in range(0, len(own), _ROWS_AT_ONCE):
            few = own[first : first + _ROWS_AT_ONCE]
            yield UnmadeRows(few, index, file, options.runtime, bounds, over())


@dataclass(frozen=True)
class UnmadeRows:
    """Sizes, by their probes, and the file for them, whose rows are to be made; where time is over, with bounds that are quickly found."""

    probes: list[Probe]
    index: int
    file: UnverifiedFile
    runtime: Runtime
    bounds: RuntimeBounds | None
    is_over: bool


def make_rows(given: UnmadeRows) -> list[SizeRow]:
    """Rows of some sizes of a file."""
    file, bounds = given.file, given.bounds
    program, topology = file.found.program, file.schedule.topology
    found = None if bounds is None else RuntimeReplay(program, topology, bounds.profile)
    rows = []
    for probe in given.probes:
        size = round(probe.demand.size_bytes)
        schedule = at_size(file.schedule, size)
        replay = replay_at(program, schedule, given.runtime, file.instances)
        row = SizeRow(size, given.index, schedule.makespan_us, replay.makespan_us, probe.bound)
        if bounds is not None and found is not None:
            bound = bounds.at(size, over=always if given.is_over else never)
            row = replace(row, runtime_us=found.time_us(size), runtime_bound=bound)
        rows.append(row)
    return rows

"""Files of a portfolio, and what they do at each size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from taccl_py.lowering.lower import LoweringOptions
from taccl_py.pipeline.deliver import Lowered, replay_at
from taccl_py.portfolio.candidates import Candidate, Probe
from taccl_py.portfolio.variants import at_size
from taccl_py.profiles.model import RuntimeProfile
from taccl_py.runtimes import Runtime
from taccl_py.schedule.ir import Schedule
from taccl_py.simulate.runtime_replay import RuntimeReplay
from taccl_py.solvers.limits import Limits, always, never
from taccl_py.synthesis.bounds import Bound
from taccl_py.synthesis.bounds.runtime import RuntimeBound, RuntimeBounds
from taccl_py.synthesis.race import Racer
from taccl_py.units import relative_gap


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
    """What the portfolio does at one size.

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
    runtime_bound: RuntimeBound | None = None

    @property
    def gap(self) -> float:
        """Relative distance from the bound."""
        return relative_gap(self.makespan_us, self.bound.time_us)


def size_rows(
    members: Sequence[PortfolioFile],
    probes: Sequence[Probe],
    options: LoweringOptions,
    profile: RuntimeProfile | None,
    limits: Limits,
    racer: Racer,
) -> list[SizeRow]:
    """Row of every probe's size, made side by side.

    Parameters
    ----------
    members
        Files, in order of size.
    probes
        Sizes with their bounds on links and ports.
    options
        Of lowering.
    profile
        The runtime profile, or None.
    limits
        Of bounds under it.
    racer
        Its processes.
    """
    demand, over = probes[0].demand, limits.countdown()
    bounds = None if profile is None else RuntimeBounds.of(demand.topology, demand.kind, demand.root, profile, limits)

    def jobs() -> Iterator[_UnmadeRow]:
        for probe in probes:
            size = round(probe.demand.size_bytes)
            index = next(i for i, member in enumerate(members) if member.min_bytes <= size <= member.max_bytes)
            yield _UnmadeRow(probe, index, members[index], options.runtime, bounds, over())

    return racer.spread(_row, jobs())


@dataclass(frozen=True)
class _UnmadeRow:
    """A size, by its probe, and the file for it, whose row is to be made; where time is over, with bounds that are quickly found."""

    probe: Probe
    index: int
    member: PortfolioFile
    runtime: Runtime
    bounds: RuntimeBounds | None
    is_over: bool


def _row(job: _UnmadeRow) -> SizeRow:
    size, member, bounds = round(job.probe.demand.size_bytes), job.member, job.bounds
    schedule = at_size(member.schedule, size)
    replay = replay_at(member.lowered.program, schedule, job.runtime, member.instances)
    row = SizeRow(size, job.index, schedule.makespan_us, replay.makespan_us, job.probe.bound)
    if bounds is None:
        return row
    found = RuntimeReplay(member.lowered.program, schedule.topology, bounds.profile)
    return replace(
        row, runtime_us=found.time_us(size), runtime_bound=bounds.at(size, over=always if job.is_over else never)
    )

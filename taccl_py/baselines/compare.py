"""Comparison: for every size of a range our fastest algorithm, every baseline, NCCL's choice, and the lower bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from taccl_py.baselines.library import Family, baselines_of
from taccl_py.baselines.nccl_graph import Graphs
from taccl_py.baselines.nccl_job import gpu_of, has_amd_cpu, job_of
from taccl_py.baselines.nccl_tuner import Algorithm, Choice, Gpu, Job, choose, predictions
from taccl_py.baselines.taccl.method import KINDS, Effort, run_taccl, sketches_for
from taccl_py.errors import InputError, Interrupted, InvalidArtifact
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.lowering.msccl_xml import emit_xml
from taccl_py.pipeline import Request, require_valid
from taccl_py.portfolio.build import Portfolio, range_demand, synthesize_portfolio
from taccl_py.runtimes import LEGACY
from taccl_py.simulate.cost_curve import CostCurve, cost_curve
from taccl_py.sketch.machine import load_machine
from taccl_py.solvers.limits import Deadline, Limits, Over
from taccl_py.synthesis.engine import Demand, Events
from taccl_py.topology.model import Topology
from taccl_py.units import SizeRange, relative_gap
from taccl_py.verify.msccl import judge_program

# More chunks, which its users also try, take long; instances cut them as well.
_TACCL_EFFORT = Effort(chunk_counts=(1,), seeds=(0, 1, 2))
# Which of our baselines is NCCL's algorithm; its NVLS is none, for no link of a topology multicasts.
_FAMILY_OF = {
    Algorithm.RING: Family.RING,
    Algorithm.TREE: Family.TREE,
    Algorithm.PAT: Family.PAT,
}


@dataclass(frozen=True, slots=True)
class Tuned:
    """What the user says of NCCL's tuner.

    Attributes
    ----------
    gpu
        Generation of the GPUs, or None for what the topology's name tells.
    amd_cpu
        Whether the CPUs are AMD's, or None for what the topology's name tells.
    graphs
        What NCCL's search found on the machine, or None to estimate it.
    """

    gpu: Gpu | None = None
    amd_cpu: bool | None = None
    graphs: Graphs | None = None


@dataclass(frozen=True)
class BaselineTime:
    """Time of a baseline's fastest variant at a size."""

    family: Family
    variant: str
    time_us: float


@dataclass(frozen=True)
class ComparedSize:
    """Everything at one size.

    Attributes
    ----------
    size_bytes
        As nccl-tests counts it.
    ours_us, engine
        Time of the replay of our program, and the engine that made its schedule.
    bound_us
        No algorithm is faster.
    baselines
        All that the machine allows.
    nccl
        What NCCL's own model chooses, with the time that NCCL expects; None where the GPUs are not known, and for collectives
        that NCCL makes of single sends and receives.
    is_direct
        Whether NCCL makes the collective of single sends and receives.
    """

    size_bytes: int
    ours_us: float
    engine: str
    bound_us: float
    baselines: tuple[BaselineTime, ...]
    nccl: Choice | None
    is_direct: bool

    @property
    def gap(self) -> float:
        """Relative distance of our program's replay from the bound."""
        return relative_gap(self.ours_us, self.bound_us)

    @property
    def best(self) -> BaselineTime | None:
        """The fastest baseline."""
        return min(self.baselines, key=lambda each: each.time_us, default=None)

    @property
    def chosen(self) -> BaselineTime | None:
        """The schedule of what NCCL chooses, under the same costs as ours."""
        family = _FAMILY_OF.get(self.nccl.algorithm) if self.nccl is not None else None
        if self.is_direct:
            family = Family.DIRECT
        return next((each for each in self.baselines if each.family is family), None)


@dataclass(frozen=True)
class Comparison:
    """A portfolio beside what people have without it; `job` is what NCCL would know of the machine."""

    portfolio: Portfolio
    job: Job | None
    rows: tuple[ComparedSize, ...]


@dataclass(frozen=True, slots=True)
class _Timed:
    """A variant with its time at every size."""

    family: Family
    variant: str
    curve: CostCurve


def compare_sizes(
    request: Request,
    sizes: SizeRange,
    options: LoweringOptions,
    tuned: Tuned,
    events: Events,
    *,
    with_taccl: bool = False,
) -> Comparison:
    """Synthesize for a range of sizes and compare.

    Parameters
    ----------
    request
        What is asked for, its size aside.
    sizes
        Smallest and largest size in bytes, both included.
    options
        For what our programs are made.
    tuned
        What NCCL would know of the machine.
    events
        Progress.
    with_taccl
        Whether TACCL's method is tried too, for as long again as the search of ours.

    Raises
    ------
    TacclError
        Input and synthesis errors; Interrupted before there is anything to compare with; InvalidArtifact if the judge objects to a
        baseline, which is an error of ours.
    """
    if with_taccl:
        _require_taccl(request)
    limits = request.options.limits
    demand = range_demand(request, sizes)
    # First, as ours can be compared with nothing else, however early the user ends their search.
    events.stage("baselines")
    timed = _timed(demand, sizes, limits.stop.is_set)
    portfolio = synthesize_portfolio(request, sizes, options, limits.workers, events)
    job = _job(demand.topology, tuned)
    taccl: dict[int, tuple[BaselineTime, ...]] = {}
    if with_taccl:
        events.stage("TACCL")
        taccl = _taccl(demand, [row.size_bytes for row in portfolio.rows], limits)
    rows = [
        ComparedSize(
            size_bytes=row.size_bytes,
            ours_us=row.replay_us,
            engine=portfolio.members[row.member].candidate.engine,
            bound_us=row.bound.time_us,
            baselines=(*_fastest(timed, row.size_bytes), *taccl.get(row.size_bytes, ())),
            nccl=choose(job, demand.kind, row.size_bytes) if job is not None else None,
            is_direct=job is not None and not predictions(job, demand.kind),
        )
        for row in portfolio.rows
    ]
    return Comparison(portfolio, job, tuple(rows))


def _timed(demand: Demand, sizes: SizeRange, stopped: Over) -> list[_Timed]:
    """Judged variants of all baselines with their times, or Interrupted if the user does not wait for all."""
    # An order that suits small messages need not suit large ones, so baselines are planned for both and for between.
    planned = {sizes.low_bytes, round(math.sqrt(sizes.low_bytes * sizes.high_bytes)), sizes.high_bytes}
    made = (baselines_of(demand.topology, demand.kind, demand.root, size) for size in sorted(planned))
    found = []
    for baseline in chain.from_iterable(made):
        for variant in baseline.variants:
            if stopped():
                raise Interrupted("interrupted before there was an answer")
            require_valid(variant.schedule, f"baseline {baseline.family} ({variant.name})")
            curve = cost_curve(variant.schedule, sizes.low_bytes, sizes.high_bytes)
            found.append(_Timed(baseline.family, variant.name, curve))
    return found


def _fastest(timed: Sequence[_Timed], size_bytes: int) -> tuple[BaselineTime, ...]:
    """The fastest variant of every baseline at a size."""
    best: dict[Family, BaselineTime] = {}
    for each in timed:
        time_us = each.curve.time_us(size_bytes)
        if each.family not in best or time_us < best[each.family].time_us:
            best[each.family] = BaselineTime(each.family, each.variant, time_us)
    return tuple(best.values())


def _require_taccl(request: Request) -> None:
    """Refuse what TACCL has no answer for, before anything is searched."""
    what = ""
    if request.kind not in KINDS:
        what = f"it makes no runnable file of {request.kind}, only of {', '.join(KINDS)}"
    elif request.ranks is not None:
        what = "sketches are written for all ranks; leave --ranks out"
    elif not request.sketch and not sketches_for(load_machine(request.topology, "", request.nodes).topology):
        what = "it needs a sketch, and none is shipped for this machine and number of nodes; add --sketch"
    if what:
        raise InputError(what, path="command line", field="--with-taccl")


def _taccl(demand: Demand, sizes_bytes: Sequence[int], limits: Limits) -> dict[int, tuple[BaselineTime, ...]]:
    """The fastest program of TACCL at every size for which there was time, the first one in any case but the user's end, if any."""
    sketches = (demand.sketch,) if demand.sketch is not None else sketches_for(demand.topology)
    found: dict[int, tuple[BaselineTime, ...]] = {}
    deadline = Deadline(limits.seconds)
    for place, size in enumerate(sizes_bytes):
        if (place and deadline.left <= 0) or limits.stop.is_set():
            break
        share = limits.within(deadline.left / (len(sizes_bytes) - place))
        attempts = list(run_taccl(demand.topology, demand.kind, size, sketches, _TACCL_EFFORT, share))
        if attempts:
            best = min(attempts, key=lambda each: each.replayed_us)
            text = emit_xml(best.program, LEGACY)
            verdict = judge_program(text, LEGACY, kind=demand.kind)
            if verdict.violations:
                raise InvalidArtifact(f"baseline TACCL ({best.name})", verdict.violations)
            found[size] = (BaselineTime(Family.TACCL, best.name, best.replayed_us),)
    return found


def _job(topology: Topology, tuned: Tuned) -> Job | None:
    gpu = tuned.gpu or gpu_of(topology)
    if gpu is None:
        return None
    job = job_of(topology, gpu, amd_cpu=has_amd_cpu(topology) if tuned.amd_cpu is None else tuned.amd_cpu)
    if tuned.graphs is None:
        return job
    return replace(job, graph=tuned.graphs.ring, tree=tuned.graphs.tree, nvls=tuned.graphs.nvls)

"""Comparison: for every size of a range our fastest algorithm, every baseline, NCCL's choice, and the lower bound.

Baselines are schedules, timed by links and ports alone, as the schedule of ours is. Under a runtime profile NCCL's algorithms
and our programs have a second time: what the runtime needs with launch, protocols, channels and threadblocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain

from taccl_py.baselines.library import Family, baselines_of
from taccl_py.baselines.nccl_graph import Graphs
from taccl_py.baselines.nccl_ranks import generation_of, gpu_of, has_amd_cpu, nccl_ranks_of
from taccl_py.baselines.nccl_time import NcclMachine, NcclTime, NcclTimes, nccl_machine, with_processes
from taccl_py.baselines.nccl_tuner import GpuGeneration, NcclAlgorithm, NcclChoice, NcclRanks, choose, predictions
from taccl_py.baselines.taccl.method import KINDS, Effort, run_taccl, sketches_for
from taccl_py.collective import Kind
from taccl_py.errors import InputError, Interrupted, require_verdict
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.lowering.msccl_xml import emit_xml
from taccl_py.lowering.program import Program, chunks_of_size
from taccl_py.measure.nccl_tests import Log
from taccl_py.pipeline.resolve import Request
from taccl_py.pipeline.search import require_valid
from taccl_py.portfolio.build import range_demand, synthesize_portfolio
from taccl_py.profiles.catalog import neutral_profile
from taccl_py.profiles.model import RuntimeProfile
from taccl_py.runtimes import LEGACY, MAX_COUNT, Runtime
from taccl_py.simulate.cost_curve import CostCurve, cost_curve
from taccl_py.simulate.program_replay import replay_at_size
from taccl_py.simulate.runtime_replay import RuntimeReplay
from taccl_py.sketch.machine import load_machine
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import DemandBounds
from taccl_py.synthesis.engine import Demand, Events
from taccl_py.topology.model import Topology
from taccl_py.units import SizeRange, relative_gap
from taccl_py.verify.msccl import verify_program

# More chunks, which its users also try, take long; instances cut them as well.
_TACCL_EFFORT = Effort(chunk_counts=(1,), seeds=(0, 1, 2))
# NCCL is only called faster where it is so by more than this.
_WORTH_TELLING = 0.01
# Rows of a comparison with installed files are this far apart at most.
_ROW_FACTOR = 2.0
# Which of our baselines is NCCL's algorithm; its NVLS is none, for no link of a topology multicasts.
_FAMILY_OF = {
    NcclAlgorithm.RING: Family.RING,
    NcclAlgorithm.TREE: Family.TREE,
    NcclAlgorithm.PAT: Family.PAT,
}


@dataclass(frozen=True, slots=True)
class Tuned:
    """User's settings of NCCL's tuner.

    Attributes
    ----------
    gpu
        Generation of the GPUs, or None for what the topology's name tells.
    amd_cpu
        Whether the CPUs are AMD's, or None for what the topology's name tells.
    graphs
        Result of NCCL's search on the machine, or None to estimate it.
    fabric
        Network that needs a term of its own, such as ``efa``; empty for InfiniBand and RoCE.
    """

    gpu: GpuGeneration | None = None
    amd_cpu: bool | None = None
    graphs: Graphs | None = None
    fabric: str = ""


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
        Time of the replay of our program by links and ports alone, and the engine that made its schedule, or the installed
        file; None and empty where no installed file is for the size.
    bound_us
        No algorithm is faster.
    baselines
        All that the machine allows.
    nccl
        Choice of NCCL's own model, with the time that NCCL expects; None where the GPUs are not known, and for collectives
        that NCCL makes of single sends and receives.
    is_direct
        Whether NCCL makes the collective of single sends and receives.
    runtime_us
        Time of our program under the runtime profile; None where there is none.
    nccl_runtime
        Every algorithm of NCCL in its best protocol under the runtime profile.
    """

    size_bytes: int
    ours_us: float | None
    engine: str
    bound_us: float
    baselines: tuple[BaselineTime, ...]
    nccl: NcclChoice | None
    is_direct: bool
    runtime_us: float | None = None
    nccl_runtime: tuple[NcclTime, ...] = ()

    @property
    def gap(self) -> float | None:
        """Relative distance of our program's replay from the bound."""
        return None if self.ours_us is None else relative_gap(self.ours_us, self.bound_us)

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

    @property
    def nccl_best(self) -> NcclTime | None:
        """The fastest of NCCL's algorithms under the runtime profile."""
        return min(self.nccl_runtime, key=lambda each: each.time_us, default=None)

    @property
    def is_slower(self) -> bool:
        """True if NCCL is faster than our program under the runtime profile, so that the size is better left to it."""
        best = self.nccl_best
        return (
            best is not None and self.runtime_us is not None and best.time_us < self.runtime_us * (1 - _WORTH_TELLING)
        )


@dataclass(frozen=True)
class MeasuredSize:
    """One size of a log beside what is predicted.

    Attributes
    ----------
    size_bytes
        As nccl-tests counts it.
    measured_us
        Out of place, or in place where only that was run.
    nccl, ours_us
        Times of NCCL's fastest algorithm and of our file under the runtime profile; None if the log is of the other one, or there
        is no file for the size.
    """

    size_bytes: int
    measured_us: float
    nccl: NcclTime | None
    ours_us: float | None


@dataclass(frozen=True)
class MeasuredLog:
    """A log beside what is predicted.

    Attributes
    ----------
    path
        The log.
    subject
        ``nccl`` or ``ours`` where the user says whose it is; empty to set it beside both.
    rows
        In the order of the log.
    """

    path: str
    subject: str
    rows: tuple[MeasuredSize, ...]


@dataclass(frozen=True)
class BaselineComparison:
    """Our files beside what people have without them.

    Attributes
    ----------
    demand
        The collective on the machine, at the largest size.
    nccl
        Facts about the machine that NCCL's tuner uses; None if its GPUs are not known.
    profile
        The runtime profile.
    rows, measured
        One row for each size, and the logs that were given.
    tried_all
        Whether there was time for all variants of the baselines.
    """

    demand: Demand
    nccl: NcclRanks | None
    profile: RuntimeProfile
    rows: tuple[ComparedSize, ...]
    measured: tuple[MeasuredLog, ...] = ()
    tried_all: bool = True

    @property
    def left(self) -> tuple[SizeRange, ...]:
        """Ranges of sizes that are better left to NCCL: from each slower size up to the next one that is not."""
        found: list[SizeRange] = []
        for row, after in zip(self.rows, (*self.rows[1:], None), strict=True):
            if not row.is_slower:
                continue
            last = row.size_bytes if after is None else after.size_bytes - 1
            if found and found[-1].high_bytes == row.size_bytes - 1:
                found[-1] = SizeRange(found[-1].low_bytes, last)
            else:
                found.append(SizeRange(row.size_bytes, last))
        return tuple(found)


@dataclass(frozen=True)
class OwnFile:
    """One of our files, or of anybody's that are installed.

    Attributes
    ----------
    program
        A program that the verifier accepts.
    name
        Engine that found it, or name of the file.
    runtime
        For which it is.
    """

    program: Program
    name: str
    runtime: Runtime

    def serves(self, size_bytes: int) -> bool:
        """True if the runtime takes the file for a size as nccl-tests counts it."""
        program = self.program
        counted = size_bytes * Fraction(program.num_chunks_per_loop, chunks_of_size(program, self.runtime))
        return program.min_bytes <= counted <= program.max_bytes


@dataclass(frozen=True, slots=True)
class Given:
    """Candidates to compare beside our search and the baselines.

    Attributes
    ----------
    with_taccl
        Whether TACCL's method is tried too, for as long again as the search of ours.
    installed
        Files to compare instead of searching; None searches.
    logs
        Measured times, each ``nccl``'s or ``ours``, or of either for the empty word.
    """

    with_taccl: bool = False
    installed: Sequence[OwnFile] | None = None
    logs: Sequence[tuple[str, Log]] = ()


_NOTHING_GIVEN = Given()


@dataclass(frozen=True, slots=True)
class _TimedVariant:
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
    given: Given = _NOTHING_GIVEN,
) -> BaselineComparison:
    """Synthesize for a range of sizes and compare.

    Parameters
    ----------
    request
        Demand, its size aside; times under a runtime profile are those under its profile.
    sizes
        Smallest and largest size in bytes, both included.
    options
        For what our programs are made.
    tuned
        User's settings of NCCL's tuner.
    events
        Progress.
    given
        Other candidates to compare.

    Raises
    ------
    TacclError
        Input and synthesis errors; Interrupted before there is anything to compare with; InvalidArtifact if the verifier rejects a
        baseline, which is an error of ours.
    """
    if given.with_taccl:
        _require_taccl(request)
    limits = request.options.limits
    demand = range_demand(request, sizes)
    topology, profile = demand.topology, request.profile or neutral_profile()
    machine = _nccl_machine(topology, tuned, profile)
    times = NcclTimes(machine, profile)
    for _, log in given.logs:
        _require_ranks(log, topology)
    # First, as ours can be compared with nothing else, however early the user ends their search.
    events.stage("baselines")
    timed, tried_all = _timed(demand, sizes, limits)
    if given.installed is None:
        own, files = _searched(request, sizes, options, events)
    else:
        files = _for_demand(given.installed, demand)
        own = _installed(demand, sizes, files, limits)
    nccl = _nccl_ranks(topology, tuned)
    replays = _Replays(files, topology, profile)
    taccl: dict[int, tuple[BaselineTime, ...]] = {}
    if given.with_taccl:
        events.stage("TACCL")
        taccl = _taccl(demand, [row.size_bytes for row in own], limits)
    rows = [
        replace(
            row,
            baselines=(*_fastest(timed, row.size_bytes), *taccl.get(row.size_bytes, ())),
            nccl=choose(nccl, demand.kind, row.size_bytes) if nccl is not None else None,
            is_direct=nccl is not None and not predictions(nccl, demand.kind),
            runtime_us=replays.time_us(row.size_bytes) if row.runtime_us is None else row.runtime_us,
            nccl_runtime=times.at(demand.kind, row.size_bytes),
        )
        for row in own
    ]
    measured = tuple(_beside(log, subject, machine, replays, demand.kind) for subject, log in given.logs)
    return BaselineComparison(demand, nccl, profile, tuple(rows), measured, tried_all)


def _searched(
    request: Request, sizes: SizeRange, options: LoweringOptions, events: Events
) -> tuple[list[ComparedSize], list[OwnFile]]:
    """Rows of a portfolio without what they are compared with, and its files."""
    portfolio = synthesize_portfolio(request, sizes, options, request.options.limits.workers, events)
    rows = [
        _own_row(
            row.size_bytes,
            row.replay_us,
            portfolio.members[row.member].candidate.engine,
            row.bound.time_us,
            row.runtime_us,
        )
        for row in portfolio.rows
    ]
    return rows, [
        OwnFile(member.lowered.program, member.candidate.engine, options.runtime) for member in portfolio.members
    ]


def _own_row(
    size_bytes: int, ours_us: float | None, engine: str, bound_us: float, runtime_us: float | None = None
) -> ComparedSize:
    return ComparedSize(size_bytes, ours_us, engine, bound_us, (), None, is_direct=False, runtime_us=runtime_us)


def _for_demand(installed: Sequence[OwnFile], demand: Demand) -> list[OwnFile]:
    """Files that are for this collective and so many ranks."""
    num_ranks = demand.topology.num_ranks
    found = [file for file in installed if file.program.kind is demand.kind and len(file.program.gpus) == num_ranks]
    if not found:
        there = ", ".join(sorted({f"{file.program.kind} of {len(file.program.gpus)} ranks" for file in installed}))
        raise InputError(
            f"no file is for {demand.kind} of {num_ranks} ranks, only for {there or 'nothing'}; name a directory that has one",
            path="command line", field="--with",
        )  # fmt: skip
    return found


def _installed(demand: Demand, sizes: SizeRange, files: Sequence[OwnFile], limits: Limits) -> list[ComparedSize]:
    """Rows of installed files without what they are compared with."""
    soon = limits.within(limits.seconds)
    bounds = DemandBounds.of(
        demand.topology, demand.kind, demand.root, soon, relays_from=float(sizes.low_bytes)
    )  # fmt: skip
    rows = []
    for size in sizes.stepped(_ROW_FACTOR):
        bound_us = bounds.at(size, MAX_COUNT, over=limits.to_lower()).time_us
        file = next((each for each in files if each.serves(size)), None)
        if file is None:
            rows.append(_own_row(size, None, "", bound_us))
            continue
        ours = replay_at_size(file.program, file.runtime, demand.topology, size)
        rows.append(_own_row(size, ours.makespan_us, file.name, bound_us))
    return rows


class _Replays:
    """Replays of our files under a profile, each prepared once."""

    def __init__(self, files: Sequence[OwnFile], topology: Topology, profile: RuntimeProfile) -> None:
        self._files, self._topology, self._profile = files, topology, profile
        self._made: dict[int, RuntimeReplay] = {}

    def time_us(self, size_bytes: int, gpus_per_process: int = 1) -> float | None:
        """Time of the first file that serves a size; None if there is none."""
        for index, file in enumerate(self._files):
            if file.serves(size_bytes):
                if index not in self._made:
                    self._made[index] = RuntimeReplay(file.program, self._topology, self._profile)
                extra_us = self._profile.launch_per_gpu_us * (gpus_per_process - 1)
                return self._made[index].time_us(size_bytes) + extra_us
        return None

    def nccl_times(self, machine: NcclMachine) -> NcclTimes:
        """Times of NCCL under the same profile."""
        return NcclTimes(machine, self._profile)


def _nccl_machine(topology: Topology, tuned: Tuned, profile: RuntimeProfile) -> NcclMachine:
    generation = tuned.gpu or gpu_of(topology) or generation_of(profile.gpu)
    return nccl_machine(topology, gpu=generation, graphs=tuned.graphs, fabric=tuned.fabric)


def _require_ranks(log: Log, topology: Topology) -> None:
    if log.num_ranks is not None and log.num_ranks != topology.num_ranks:
        raise InputError(
            f"is of {log.num_ranks} ranks, and {topology.name} has {topology.num_ranks}; name the machine that it was run on, "
            "with --nodes or --ranks",
            path=log.path,
        )


def _beside(log: Log, subject: str, machine: NcclMachine, replays: _Replays, kind: Kind) -> MeasuredLog:
    times = replays.nccl_times(with_processes(machine, log.gpus_per_process))
    rows = []
    for row in log.rows:
        measured_us = row.out_of_place_us if row.out_of_place_us is not None else row.in_place_us
        if measured_us is None or row.size_bytes <= 0:
            continue
        nccl = times.best(kind, row.size_bytes) if subject != "ours" else None
        ours_us = replays.time_us(row.size_bytes, log.gpus_per_process) if subject != "nccl" else None
        rows.append(MeasuredSize(row.size_bytes, measured_us, nccl, ours_us))
    return MeasuredLog(log.path, subject, tuple(rows))


def _timed(demand: Demand, sizes: SizeRange, limits: Limits) -> tuple[list[_TimedVariant], bool]:
    """Verified variants of baselines with their times, and whether there was time for all; Interrupted if the user wants an end."""
    # An order that suits small messages need not suit large ones, so baselines are planned for both and for between.
    planned = {sizes.low_bytes, round(math.sqrt(sizes.low_bytes * sizes.high_bytes)), sizes.high_bytes}
    made = (baselines_of(demand.topology, demand.kind, demand.root, size) for size in sorted(planned))
    found: list[_TimedVariant] = []
    over = limits.countdown()
    for baseline in chain.from_iterable(made):
        for variant in baseline.variants:
            if limits.stop.is_set():
                raise Interrupted("interrupted before there was an answer")
            if found and over():
                return found, False
            require_valid(variant.schedule, f"baseline {baseline.family} ({variant.name})")
            curve = cost_curve(variant.schedule, sizes.low_bytes, sizes.high_bytes)
            found.append(_TimedVariant(baseline.family, variant.name, curve))
    return found, True


def _fastest(timed: Sequence[_TimedVariant], size_bytes: int) -> tuple[BaselineTime, ...]:
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
    deadline = limits.deadline()
    for place, size in enumerate(sizes_bytes):
        if (place and deadline.left <= 0) or limits.stop.is_set():
            break
        share = limits.within(deadline.left / (len(sizes_bytes) - place))
        attempts = list(run_taccl(demand.topology, demand.kind, size, sketches, _TACCL_EFFORT, share))
        if attempts:
            best = min(attempts, key=lambda each: each.replayed_us)
            text = emit_xml(best.program, LEGACY)
            verdict = verify_program(text, LEGACY, kind=demand.kind)
            require_verdict(f"baseline TACCL ({best.name})", verdict.violations, verdict.unsupported)
            found[size] = (BaselineTime(Family.TACCL, best.name, best.replayed_us),)
    return found


def _nccl_ranks(topology: Topology, tuned: Tuned) -> NcclRanks | None:
    gpu = tuned.gpu or gpu_of(topology)
    if gpu is None:
        return None
    nccl = nccl_ranks_of(topology, gpu, amd_cpu=has_amd_cpu(topology) if tuned.amd_cpu is None else tuned.amd_cpu)
    if tuned.graphs is None:
        return nccl
    return replace(nccl, graph=tuned.graphs.ring, tree=tuned.graphs.tree, nvls=tuned.graphs.nvls)

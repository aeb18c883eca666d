"""Schedules, algorithms for a range of sizes, and bounds."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from taccl_py import __version__
from taccl_py.answer import Answer, Ended, Provenance, Scope, ScopedBound
from taccl_py.api.arguments import kind_of, machine_of, names_arguments, range_of, size_of
from taccl_py.api.policy import (
    AUTO,
    budget,
    default_engine,
    default_seconds,
    has_fixed_chunks,
    known_runtime,
    placement_of,
    require_of_engine,
    runtime_named,
    scaled_seconds,
)
from taccl_py.collective import Kind
from taccl_py.demand import DataDemand
from taccl_py.errors import InputError
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.pipeline.demands import demand_lower_bound
from taccl_py.pipeline.resolve import AUTO_SKETCH, Request, make_demand, resolve_machine
from taccl_py.pipeline.search import synthesize as synthesize_for
from taccl_py.pipeline.select import bound_under
from taccl_py.portfolio.build import Portfolio, synthesize_portfolio
from taccl_py.profiles.catalog import neutral_profile, select_profile
from taccl_py.profiles.model import RuntimeProfile
from taccl_py.runtimes import PlanRuntime, Runtime
from taccl_py.schedule.ir import ANY_ALGORITHM
from taccl_py.sketch.machine import load_machine
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import Bound, DemandBounds, raised
from taccl_py.synthesis.bounds.runtime import RuntimeBounds
from taccl_py.synthesis.engine import Demand, Events, Options, Proof, Synthesis
from taccl_py.topology.model import Topology
from taccl_py.units import SizeRange

# Engines of a portfolio run in as many processes as there are processors, up to this number, as each takes some hundred megabytes.
_MOST_WORKERS = 4
# Sizes of a range of bounds are this far apart at most.
_STEP = 4.0


def with_defaults(
    request: Request, *, engine: str | None, effort: str | None, time_limit: float | None, ranged: bool = False
) -> Request:
    """Request with engine and budget, by default those that suit it.

    Parameters
    ----------
    request
        Request; its engine and the budget of its limits are replaced.
    engine, effort, time_limit
        User's effort and time limit, if any; see `taccl_py.api.policy.budget`.
    ranged
        Whether it is for a range of sizes.

    Raises
    ------
    InputError
        If there is no such machine, or an option contradicts another.
    """
    options = request.options
    engine = engine or default_engine(request.sketch, options.solver, ranged=ranged)
    require_of_engine(engine, options.solver, options.trees, options.limits.scheduler)
    request = replace(request, engine=engine)
    seconds = default_seconds(engine, longer=ranged or request.sketch == AUTO_SKETCH)
    if effort is not None or time_limit is None:
        seconds = scaled_seconds(seconds, resolve_machine(request).num_ranks, ranged=ranged)
    limits = budget(options.limits, seconds, effort=effort, time_limit=time_limit, solver=options.solver)
    return replace(request, options=replace(options, limits=limits))


@names_arguments
def synthesize(  # noqa: PLR0913 - keywords with defaults, as the command's options
    machine: Topology | str | Path,
    kind: Kind | str,
    size: int | float | str | None = None,
    *,
    root: int = 0,
    sketch: str = "",
    chunks: int | None = None,
    engine: str | None = None,
    solver: str = AUTO,
    effort: str | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    runtime: str = AUTO,
    runtime_profile: str = AUTO,
    events: Events | None = None,
    stop: threading.Event | None = None,
) -> Answer:
    """Find and verify a schedule, as ``taccl synth`` does before it lowers it; `taccl_py.lower` makes a program of the answer.

    Parameters
    ----------
    machine
        The machine, or what `load_machine` takes.
    kind
        The collective, or its name: ``allgather``, ``reducescatter``, ``allreduce``, ``alltoall``, ``broadcast``, ``reduce``, ``gather``,
        ``scatter``.
    size
        Size as nccl-tests counts it: bytes, or a text such as ``16MB``. None: 1 MB; on a TACCL profile, chunks of its size.
    root
        Root rank of Broadcast, Reduce, Gather, Scatter.
    sketch
        Shipped sketch, sketch file, or ``auto`` to search for one.
    chunks
        Chunks per rank. None: those of the sketch, else what is fastest (engines ``milp`` and ``cp``: 1).
    engine
        Search method. None: ``auto``, a race of those that can win; ``milp`` with a sketch or a solver.
    solver
        ``auto``, ``cp-sat``, ``highs`` or another solver, of engines ``milp``, ``cp`` and ``auto``.
    effort
        ``quick``, ``normal`` or ``thorough``: an amount of work, the same on every machine, so that the answer is the same too. Normal takes
        about 20 seconds up to 64 ranks, 7 with another engine than ``auto``, 60 for a search for a sketch; in proportion on more ranks.
        None: ``normal``, or without `effort` what there is time for.
    time_limit
        Seconds of the clock after which the search ends; bounds take some seconds more. None: there is no such limit.
    seed
        Random seed.
    runtime
        ``executor``, ``rccl``, ``legacy``, ``mscclpp``; ``auto``: RCCL on GPUs of AMD, else the MSCCL executor. Messages for MSCCL++ carry any
        number of chunks, those of the others at most 71.
    runtime_profile
        Shipped name or file, or ``neutral`` for links and ports alone; ``auto``: that of the runtime on the machine's GPUs.
    events
        Told of progress.
    stop
        If it is set meanwhile, by another thread, the best schedule so far is returned.

    Returns
    -------
    Answer
        Schedule, bounds, proof, end of the search, provenance.

    Raises
    ------
    InputError
        If an argument or a file is wrong.
    Infeasible, LimitReached
        If there is no schedule, or none was found in time.
    InvalidArtifact
        If the verifier reports errors in what an engine made, which is a mistake of this package.
    PackageMissing
        If the solver is not installed.
    """
    limits = Limits(seed=seed, stop=stop or threading.Event())
    request = Request(
        topology=machine_of(machine), kind=kind_of(kind), sketch=sketch, size_bytes=size_of(size), root=root,
        chunks_per_rank=chunks, options=Options(solver=solver, limits=limits),
    )  # fmt: skip
    request = with_defaults(request, engine=engine, effort=effort, time_limit=time_limit)
    topology = resolve_machine(request)
    target = known_runtime(runtime, topology)
    profile = select_profile(runtime_profile, target.name, topology).profile
    request = replace(request, profile=profile, message_chunks=target.max_count)
    return search_for(request, target, events or Events())


def search_for(request: Request, runtime: Runtime | PlanRuntime, events: Events, *, is_guarded: bool = False) -> Answer:
    """Find and verify a schedule for a request.

    Parameters
    ----------
    request
        Request; its runtime profile is one of the runtime.
    runtime
        Runtime for which it is searched.
    events
        Told of progress.
    is_guarded
        The limits are a guard, and what they have ended is not used.

    Raises
    ------
    TacclError
        See `synthesize`.
    """
    synthesis = synthesize_for(request, events)
    is_proved = synthesis.proof is not Proof.FEASIBLE
    ended = Ended.of(request.options.limits, is_proved=is_proved, is_guarded=is_guarded)
    return answer_of(synthesis, request, runtime, ended)


def answer_of(synthesis: Synthesis, request: Request, runtime: Runtime | PlanRuntime, ended: Ended) -> Answer:
    """Answer of a search, with its bounds.

    Parameters
    ----------
    synthesis
        Portfolio that was found.
    request
        Request, with its runtime profile.
    runtime
        Runtime for which it was searched.
    ended
        How the search ended.
    """
    schedule, profile = synthesis.schedule, request.profile or neutral_profile()
    origin = schedule.origin
    provenance = Provenance(
        engine=request.engine,
        found_by=(origin.found_by if origin is not None else "") or request.engine,
        solver=synthesis.solver,
        sketch=origin.sketch if origin is not None else "",
        seed=request.options.limits.seed,
        version=__version__,
    )
    bounds = with_own_bound(_physical_bound(synthesis), synthesis)
    if not profile.is_neutral:
        bounds = (*bounds, _under(bound_under(schedule, profile), profile))
    return Answer(
        schedule, bounds, synthesis.proof, ended, provenance, runtime, profile, synthesis.runners_up,
        has_fixed_chunks(request.sketch, request.chunks_per_rank, request.engine), dict(synthesis.stage_seconds), synthesis.kept,
    )  # fmt: skip


def with_own_bound(physical: ScopedBound, synthesis: Synthesis) -> tuple[ScopedBound, ...]:
    """The physical bound, raised by what an answer's engine proved for any algorithm, or with the restricted bound that it proved beside it."""
    own, origin = synthesis.bound, synthesis.schedule.origin
    if origin is not None and origin.holds_for != ANY_ALGORITHM:
        best = max(own.time_us, physical.time_us)
        reason = own.reason if own.time_us >= best else physical.reason
        return (physical, ScopedBound(Scope.RESTRICTED, best, reason, origin.holds_for))
    higher = raised(Bound(physical.time_us, physical.reason), [own])
    return (replace(physical, time_us=higher.time_us, reason=higher.reason),)


def _physical_bound(synthesis: Synthesis) -> ScopedBound:
    """Bound for any algorithm on links and ports: the engine's own, or by analysis where that is for some chunks or a sketch."""
    schedule, own = synthesis.schedule, synthesis.bound
    collective, origin = schedule.collective, schedule.origin
    if origin is None or origin.holds_for == ANY_ALGORITHM:
        return ScopedBound(Scope.PHYSICAL, own.time_us, own.reason, ANY_ALGORITHM)
    size_bytes = schedule.size_bytes
    analysis = analyse(schedule.topology, collective.kind, collective.root, [size_bytes], neutral_profile())
    return scoped_bounds(analysis, size_bytes)[0]


@dataclass(frozen=True)
class BoundsAnalysis:
    """Bounds of a collective on a machine, for all sizes.

    Attributes
    ----------
    physical
        On links and ports.
    runtime
        Under a runtime profile; None under the neutral one.
    """

    physical: DemandBounds
    runtime: RuntimeBounds | None


def analyse(
    topology: Topology,
    kind: Kind,
    root: int,
    sizes: Sequence[float],
    profile: RuntimeProfile,
    *,
    by_switch: bool = False,
) -> BoundsAnalysis:
    """Analyse a machine for bounds.

    Parameters
    ----------
    topology, kind, root
        Machine and collective.
    sizes
        Sizes of interest in bytes, the smallest first.
    profile
        Runtime profile.
    by_switch
        Whether switches that multicast and add up may be used; such bounds are of links and ports alone.

    Raises
    ------
    InputError, Infeasible
        See `taccl_py.synthesis.bounds.DemandBounds.of`.
    """
    if by_switch:
        return BoundsAnalysis(DemandBounds.by_switch(topology, kind, root), None)
    physical = DemandBounds.of(topology, kind, root, relays_from=sizes[0])
    if profile.is_neutral:
        return BoundsAnalysis(physical, None)
    return BoundsAnalysis(physical, RuntimeBounds.of(topology, kind, root, profile, Limits()))


def scoped_bounds(analysis: BoundsAnalysis, size_bytes: float) -> tuple[ScopedBound, ...]:
    """Bounds of a size: the physical one, and that of the runtime profile if it is not neutral."""
    best = analysis.physical.at(size_bytes)
    physical = ScopedBound(Scope.PHYSICAL, best.time_us, best.reason, ANY_ALGORITHM)
    if analysis.runtime is None:
        return (physical,)
    return (physical, _under(analysis.runtime.at(size_bytes), analysis.runtime.profile))


def _under(bound: Bound, profile: RuntimeProfile) -> ScopedBound:
    """Bound for any algorithm under a runtime profile."""
    holds_for = f"{ANY_ALGORITHM} under runtime profile {profile.name}"
    return ScopedBound(Scope.RUNTIME, bound.time_us, bound.reason, holds_for)


def wanted_sizes(demand: Demand, sizes: SizeRange | None) -> list[float]:
    """Sizes for which bounds of a demand are wanted, in bytes: of a range, or its own."""
    return [demand.size_bytes] if sizes is None else list(map(float, sizes.stepped(_STEP)))


@names_arguments
def bound(
    machine: Topology | str | Path,
    kind: Kind | str | DataDemand,
    size: int | float | str | None = None,
    *,
    root: int = 0,
    runtime: str = AUTO,
    runtime_profile: str = AUTO,
) -> tuple[ScopedBound, ...]:
    """Lower bounds on the time of any algorithm, as ``taccl bound`` prints them.

    Parameters
    ----------
    machine, kind, size, root, runtime, runtime_profile
        As for `synthesize`. In place of a kind a demand, which has its own size.

    Returns
    -------
    tuple of ScopedBound
        The physical bound, on links and ports alone; then, if the profile is not the neutral one, that of the runtime profile.
        Microseconds.

    Raises
    ------
    InputError
        If an argument or a file is wrong.
    Infeasible
        If some rank cannot reach another.
    """
    if isinstance(kind, DataDemand):
        if size is not None:
            raise InputError("is for the eight collectives, and a demand has its own; leave it out", field="size")
        best, _ = demand_lower_bound(load_machine(machine_of(machine)).topology, kind, Limits())
        return (ScopedBound(Scope.PHYSICAL, best.time_us, best.reason, ANY_ALGORITHM),)
    demand = make_demand(Request(topology=machine_of(machine), kind=kind_of(kind), size_bytes=size_of(size), root=root))
    profile = select_profile(runtime_profile, known_runtime(runtime, demand.topology).name, demand.topology).profile
    wanted = wanted_sizes(demand, None)
    analysis = analyse(demand.topology, demand.kind, demand.root, wanted, profile)
    return scoped_bounds(analysis, wanted[0])


@names_arguments
def synthesize_sizes(  # noqa: PLR0913 - keywords with defaults, as the command's options
    machine: Topology | str | Path,
    kind: Kind | str,
    sizes: str | tuple[int | str, int | str],
    *,
    root: int = 0,
    sketch: str = "",
    effort: str | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    runtime: str = AUTO,
    runtime_profile: str = AUTO,
    placement: str = "both",
    instances: int | None = None,
    events: Events | None = None,
    stop: threading.Event | None = None,
) -> Portfolio:
    """The fastest verified program for every size of a range, as ``taccl synth --sizes``.

    Parameters
    ----------
    machine, kind, root, sketch, seed, runtime, runtime_profile, events, stop
        As for `synthesize`; a sketch cannot be searched for, and the runtime is one for XML.
    sizes
        Range such as ``1KiB:1GiB``, or the smallest and the largest size, both included.
    effort, time_limit
        As for `synthesize`; normal takes about 60 seconds up to 16 ranks, in proportion on more.
    placement
        ``in``, ``out`` or ``both``: how the user's buffers may lie.
    instances
        Parts of every chunk, with threadblocks of their own; None: what is fastest.

    Returns
    -------
    Portfolio
        ``members`` in order of size, each with ``schedule``, ``lowered.text`` (MSCCL XML) and its range ``min_bytes``..``max_bytes``; ``rows``
        with time and bound of sizes of the range.

    Raises
    ------
    InputError
        If an argument or a file is wrong.
    LimitReached
        If no schedule was found in time.
    LoweringError
        If for some sizes no program keeps the limits of the runtime.
    """
    if sketch == AUTO_SKETCH:
        raise InputError("no sketch is searched for a range of sizes; name one, or leave it out", field="sketch")
    limits = Limits(seed=seed, stop=stop or threading.Event())
    request = Request(
        topology=machine_of(machine), kind=kind_of(kind), sketch=sketch, root=root, options=Options(limits=limits)
    )  # fmt: skip
    request = with_defaults(request, engine=None, effort=effort, time_limit=time_limit, ranged=True)
    topology = resolve_machine(request)
    target = runtime_named(runtime, topology)
    profile = select_profile(runtime_profile, target.name, topology).profile
    options = LoweringOptions(target, placement_of(placement), instances=instances or 1)
    return build_portfolio(replace(request, profile=profile), range_of(sizes), options, instances, events or Events())


def build_portfolio(
    request: Request, sizes: SizeRange, options: LoweringOptions, instances: int | None, events: Events
) -> Portfolio:
    """Portfolio of a request, with as many processes as pay; see `taccl_py.portfolio.build.synthesize_portfolio`."""
    workers = max(request.options.limits.workers, min(_MOST_WORKERS, os.cpu_count() or 1))
    return synthesize_portfolio(request, sizes, options, workers, events, instances=instances)

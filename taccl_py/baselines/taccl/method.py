"""All of TACCL's method: every sketch, number of chunks, seed and number of instances; the fastest counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from taccl_py.baselines.taccl.contiguity import solve_contiguity
from taccl_py.baselines.taccl.ordering import find_parents, order_hops, order_sums, rule_of
from taccl_py.baselines.taccl.program import TacclMessage, build_program, sends_of
from taccl_py.baselines.taccl.routing import solve_routing
from taccl_py.baselines.taccl.view import TacclView
from taccl_py.collective import Collective, Kind
from taccl_py.errors import LoweringError, SynthesisError
from taccl_py.lowering.limits import require_limits
from taccl_py.lowering.program import Program
from taccl_py.runtimes import LEGACY
from taccl_py.simulate.program_replay import replay_program
from taccl_py.sketch.catalog import list_sketches
from taccl_py.sketch.model import Sketch, is_machine
from taccl_py.solvers.limits import Limits
from taccl_py.topology.model import Topology
from taccl_py.units import format_count

# Collectives of which its command line makes runnable files.
KINDS = (Kind.ALLGATHER, Kind.ALLTOALL, Kind.ALLREDUCE)
# A sender waits for no slot of a connection: of the protocols that a file's user may name, the one with the most.
_SLOTS = max(LEGACY.fifo_slots.values())
# With more chunks in all, only the smallest number per rank is tried; instances cut them as well.
_MOST_CHUNKS = 256


@dataclass(frozen=True, slots=True)
class Effort:
    """Amount that is tried.

    Attributes
    ----------
    chunk_counts, seeds, instances
        Numbers of chunks per rank, random seeds of the solver, numbers of instances.
    routing_work, contiguity_work
        CP-SAT's deterministic time for stages 1 and 3.
    """

    chunk_counts: tuple[int, ...] = (1, 2)
    seeds: tuple[int, ...] = (0, 1)
    instances: tuple[int, ...] = (1, 2, 4, 8)
    routing_work: float = 4.0
    contiguity_work: float = 2.0


@dataclass(frozen=True, slots=True)
class TacclResult:
    """One result of TACCL.

    Attributes
    ----------
    sketch, chunks_per_rank, seed, instances
        How it was made.
    predicted_us
        Time that its last stage promises, which knows of no instances.
    replayed_us
        Time that its program takes on the machine.
    program
        The program.
    """

    sketch: str
    chunks_per_rank: int
    seed: int
    instances: int
    predicted_us: float
    replayed_us: float
    program: Program = field(repr=False)

    @property
    def name(self) -> str:
        """Method that made it, in words."""
        counts = ((self.chunks_per_rank, "chunk"), (self.instances, "instance"))
        return ", ".join([self.sketch, *(format_count(count, word) for count, word in counts)])


def sketches_for(topology: Topology) -> tuple[Sketch, ...]:
    """Return the shipped sketches that are written for a machine."""
    return tuple(
        sketch
        for sketch in list_sketches()
        if sketch.topology
        and is_machine(topology.name, sketch.topology)
        and (not sketch.nodes or topology.num_nodes in sketch.nodes)
    )


def run_taccl(
    topology: Topology, kind: Kind, size_bytes: float, sketches: Sequence[Sketch], effort: Effort, limits: Limits
) -> Iterator[TacclResult]:
    """Yield what TACCL finds, until all is tried or time is up; sketches that have no answer are left out.

    Parameters
    ----------
    topology, kind, size_bytes
        Demand.
    sketches
        Parameters of TACCL.
    effort
        How much is tried.
    limits
        For all of it.
    """
    if kind not in KINDS:
        return
    deadline = limits.deadline()
    fewest = min(effort.chunk_counts)
    for seed, chunks, sketch in product(effort.seeds, effort.chunk_counts, sketches):
        if deadline.over():
            return
        if chunks > fewest and Collective(kind, topology.num_ranks, chunks).num_chunks > _MOST_CHUNKS:
            continue
        left = replace(limits, seconds=deadline.left, seed=seed)
        try:
            found = _synthesize(topology, kind, size_bytes, replace(sketch, chunks_per_rank=chunks), effort, left)
        except SynthesisError:
            continue
        yield from _attempts(topology, size_bytes, found, effort, seed)


@dataclass(frozen=True)
class _TacclFindings:
    sketch: Sketch
    collective: Collective
    sends: tuple[TacclMessage, ...]
    predicted_us: float


def _synthesize(
    topology: Topology, kind: Kind, size_bytes: float, sketch: Sketch, effort: Effort, limits: Limits
) -> _TacclFindings:
    """All three stages; a sum is an AllGather run backwards, ordered anew."""
    collective = Collective(kind, topology.num_ranks, sketch.chunks_per_rank)
    routed = replace(collective, kind=Kind.ALLGATHER) if kind is Kind.ALLREDUCE else collective
    view = TacclView.of(topology, routed, sketch, routed.chunk_bytes(size_bytes))
    hops = solve_routing(view, limits.within(limits.seconds, effort.routing_work))
    last = limits.within(limits.seconds, effort.contiguity_work)
    table = solve_contiguity(order_hops(view, hops, find_parents(view, hops), rule_of(view)), last)
    if kind is not Kind.ALLREDUCE:
        return _TacclFindings(sketch, collective, tuple(sends_of(table)), table.makespan_us)
    sums = solve_contiguity(order_sums(view, hops), last)
    sends = (*sends_of(sums, reduce=True), *sends_of(table, offset_us=sums.makespan_us))
    return _TacclFindings(sketch, collective, sends, sums.makespan_us + table.makespan_us)


def _attempts(
    topology: Topology, size_bytes: float, found: _TacclFindings, effort: Effort, seed: int
) -> Iterator[TacclResult]:
    """The program with every number of instances that fits a GPU."""
    chunk_bytes = found.collective.chunk_bytes(size_bytes)
    for instances in effort.instances:
        program = build_program(topology, found.collective, found.sends, instances)
        if program.num_threadblocks > LEGACY.resident_threadblocks:
            return
        try:
            require_limits(program, LEGACY)
        except LoweringError:
            return
        replayed = replay_program(program, topology, chunk_bytes / instances, fifo_slots=_SLOTS)
        yield TacclResult(
            sketch=found.sketch.name,
            chunks_per_rank=found.collective.chunks_per_rank,
            seed=seed,
            instances=instances,
            predicted_us=found.predicted_us,
            replayed_us=replayed.makespan_us,
            program=program,
        )

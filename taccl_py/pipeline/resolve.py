"""Requests: topology, sketch and collective, resolved to a machine and a demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from taccl_py.collective import ROOTED, Kind
from taccl_py.errors import Infeasible, InputError
from taccl_py.profiles.model import RuntimeProfile
from taccl_py.runtimes import MAX_COUNT
from taccl_py.sketch.machine import load_machine
from taccl_py.sketch.model import Sketch
from taccl_py.solvers.choice import choose_solver
from taccl_py.synthesis.bounds import require_ways
from taccl_py.synthesis.engine import Demand, Options, require_few_chunks
from taccl_py.topology.degrade import Degradation, degraded
from taccl_py.topology.model import Topology
from taccl_py.units import format_ranks

# Name of a sketch that is to be searched, and the longest that one sketch is solved for.
AUTO_SKETCH = "auto"


@dataclass(frozen=True)
class Request:
    """User's request.

    Attributes
    ----------
    topology, sketch
        Shipped name, formula or file; the topology may be given itself, the sketch may be empty.
    kind
        Collective.
    nodes
        Number of nodes, or None for what sketch or topology say.
    size_bytes
        Size as nccl-tests counts it, or None for the machine's default.
    ranks
        Process group, or None for all ranks.
    root
        Root rank of a rooted collective (a number within the process group).
    chunks_per_rank
        None for what the sketch says, else 1.
    engine
        Name of the engine.
    options
        Solver and limits.
    degradation
        Links that are missing or slow.
    profile
        Runtime profile for which the answer is to be fast; None is links and ports alone.
    message_chunks
        Chunks that one message can carry in the runtime.
    """

    topology: str | Topology
    kind: Kind
    sketch: str = ""
    nodes: int | None = None
    size_bytes: int | None = None
    ranks: tuple[int, ...] | None = None
    root: int = 0
    chunks_per_rank: int | None = None
    engine: str = "milp"
    options: Options = field(default_factory=Options)
    degradation: Degradation = field(default_factory=Degradation)
    profile: RuntimeProfile | None = None
    message_chunks: int = MAX_COUNT


def resolve_machine(request: Request) -> Topology:
    """Return the machine of a request, with all its links: number of ranks, GPU and the like do not depend on what is missing.

    Raises
    ------
    InputError
        If a name, a file or an option is wrong, or they contradict each other.
    """
    sketch = "" if request.sketch == AUTO_SKETCH else request.sketch
    return make_demand(replace(request, sketch=sketch, degradation=Degradation())).topology


def make_demand(request: Request, *, expanded: bool = True) -> Demand:
    """Demand on an engine that a request stands for.

    Parameters
    ----------
    request
        User's request.
    expanded
        Whether every chunk of every rank will be written down, which there must not be too many of.

    Raises
    ------
    InputError
        If a name, a file or an option is wrong, or they contradict each other.
    Infeasible
        If a process group has no paths between its ranks.
    """
    topology, sketch = damaged_machine(request)
    if request.root and request.kind not in ROOTED:
        raise InputError(f"{request.kind} has no root; leave --root out", path="command line", field="--root")
    size_bytes = topology.default_bytes(1) if request.size_bytes is None else request.size_bytes
    chunks = request.chunks_per_rank
    if chunks is None and sketch is not None:
        chunks = sketch.chunks_per_rank
    demand = Demand(topology, request.kind, size_bytes, request.root, sketch, chunks, request.message_chunks)
    given = {"num_ranks": "--ranks" if request.ranks is not None else "TOPOLOGY"}
    given["chunks_per_rank"] = "--sketch" if sketch is not None and request.chunks_per_rank is None else "--chunks"
    with _named(root="--root", solver="--solver", **given):
        require_few_chunks(demand)
        if expanded:
            demand.collective(chunks or 1)
        if request.size_bytes is None and topology.measured_chunk_bytes is not None:
            whole = demand.collective(chunks or 1)
            demand = replace(demand, size_bytes=topology.default_bytes(whole.chunks_per_size))
        choose_solver(request.options.solver)
    if request.ranks is not None:
        _require_ways(demand, request.ranks)
    return demand


def damaged_machine(request: Request) -> tuple[Topology, Sketch | None]:
    """Machine of a request without the links that it says are missing, as its process group sees it, and its sketch.

    Raises
    ------
    InputError
        If a name, a file or an option is wrong, or they contradict each other.
    """
    machine = load_machine(request.topology, request.sketch, request.nodes)
    topology, sketch = machine.topology, machine.sketch
    options = {"missing_ports": "--without-port", "slow_ports": "--slow-port"}
    with _named(missing="--without-link", slow="--slow-link", **options):
        topology = degraded(topology, request.degradation, is_whole=request.ranks is None)
    if request.ranks is not None:
        if sketch is not None:
            raise InputError("--ranks cannot be combined with a sketch, which is written for all ranks; leave one out")
        with _named(ranks="--ranks"):
            topology = topology.subset(request.ranks)
    return topology, sketch


@contextmanager
def _named(**options: str) -> Iterator[None]:
    """Turn an error about a field into one about the option of the command line that sets it."""
    try:
        yield
    except InputError as error:
        if error.path is not None or error.field not in options:
            raise
        raise InputError(error.what, path="command line", field=options[error.field]) from None


def _require_ways(demand: Demand, ranks: Sequence[int]) -> None:
    """Refuse a process group that has no paths between its ranks, by their numbers on the machine, which the user knows."""
    try:
        require_ways(demand.topology, demand.kind, demand.root)
    except Infeasible as error:
        raise Infeasible(
            f"{demand.kind} is impossible for ranks {format_ranks(ranks)} of {demand.topology.name}: no path of links between them "
            f"leads from rank {ranks[error.source]} to rank {ranks[error.rank]}, and ranks outside of a group do not pass its data on; "
            "they do in taccl groups with --relay",
            chunk=error.chunk, source=error.source, rank=error.rank, restriction=error.restriction,
        ) from None  # fmt: skip

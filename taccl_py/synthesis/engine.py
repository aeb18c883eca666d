"""Interface of engines: demand, options and answer."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, TypeVar

from taccl_py.collective import Collective, Kind
from taccl_py.errors import InputError
from taccl_py.runtimes import MAX_COUNT
from taccl_py.schedule.ir import MessagesInOrder, Schedule
from taccl_py.sketch.model import Sketch
from taccl_py.solvers.limits import Limits
from taccl_py.topology.model import Topology
from taccl_py.units import relative_gap

if TYPE_CHECKING:
    from taccl_py.synthesis.bounds import Bound

_Timed = TypeVar("_Timed", bound=MessagesInOrder)


@dataclass(frozen=True)
class Params:
    """Limits on demands.

    Attributes
    ----------
    most_chunks_per_rank
        Chunks per rank that any search accepts; no runtime has steps for more. Guess.
    free_chunks_per_rank
        Chunks per rank up to which arrivals are not counted. Guess.
    most_arrivals
        Arrivals of chunks beyond that number, which take some ten seconds to write and verify. Guess.
    """

    most_chunks_per_rank: int = 1 << 14
    free_chunks_per_rank: int = 512
    most_arrivals: int = 1 << 17


PARAMS = Params()


@dataclass(frozen=True)
class Demand:
    """Question for an engine: one collective of one size on one machine.

    Attributes
    ----------
    topology
        The machine.
    kind, root
        Which collective; the root is 0 where it has none.
    size_bytes
        Size as nccl-tests counts it.
    sketch
        Restrictions and hints, or None.
    chunks_per_rank
        Number of chunks of a shard, or None to leave it to the engine.
    message_chunks
        Chunks that one message can carry in the runtime that the schedule is for; what is more takes several messages there.
    """

    topology: Topology
    kind: Kind
    size_bytes: float
    root: int = 0
    sketch: Sketch | None = None
    chunks_per_rank: int | None = None
    message_chunks: int = MAX_COUNT

    def collective(self, chunks_per_rank: int) -> Collective:
        """Return the collective with so many chunks per rank.

        Raises
        ------
        InputError
            If the root or the number of chunks is impossible.
        """
        return Collective(self.kind, self.topology.num_ranks, chunks_per_rank, self.root)

    def chunk_bytes(self, collective: Collective) -> float:
        """Size of one of its chunks."""
        return collective.chunk_bytes(self.size_bytes)


class Proof(StrEnum):
    """State of knowledge about a schedule's optimality.

    ``optimal``: its time equals a lower bound that holds for every schedule of the problem.
    ``optimal-in-class``: a solver proved, on its time grid, that no schedule with the same symmetry is faster.
    ``feasible``: neither; a limit ended the search, or the search was a heuristic.
    """

    OPTIMAL = "optimal"
    IN_CLASS = "optimal-in-class"
    FEASIBLE = "feasible"

    @classmethod
    def of(cls, time_us: float, bound: Bound) -> Proof:
        """Proof that a bound alone gives for a schedule that takes so long."""
        return cls.OPTIMAL if bound.is_reached_by(time_us) else cls.FEASIBLE


@dataclass(frozen=True)
class Options:
    """Options of a search.

    Attributes
    ----------
    solver
        ``auto``, ``cp-sat`` or a linear solver's name.
    limits
        Time, work, seed and the user's interrupt.
    trees
        Spanning trees for each root, of engine ``trees``; None leaves it to the engine.
    bound
        Bound that holds for every algorithm for the demand, where one is known already; engines then need not compute it.
    """

    solver: str = "auto"
    limits: Limits = field(default_factory=Limits)
    trees: int | None = None
    bound: Bound | None = None


class Events:
    """Progress hooks; this one does nothing."""

    def stage(self, name: str) -> None:
        """Report that a stage begins."""

    def incumbent(self, time_us: float) -> None:
        """Report a better schedule."""

    def bound(self, time_us: float) -> None:
        """Report a better bound."""


@contextmanager
def timed_stage(name: str, events: Events, seconds: dict[str, float]) -> Iterator[None]:
    """Announce a stage, and add the seconds that it takes to those of its name."""
    events.stage(name)
    begun = time.monotonic()
    try:
        yield
    finally:
        seconds[name] = seconds.get(name, 0.0) + time.monotonic() - begun


@dataclass(frozen=True)
class Synthesis:
    """Answer of an engine.

    Attributes
    ----------
    schedule
        Best schedule found.
    bound
        Best proven lower bound.
    proof
        See `Proof`.
    solver
        Name of the solver that was used.
    stage_seconds
        Wall-clock time of every stage.
    runners_up
        Schedules nearly as fast, for runtimes that cannot keep the best one's order.
    kept
        Runners-up, the first of them, that are lowered for a choice even if time is up: the user has them already.
    """

    schedule: Schedule
    bound: Bound
    proof: Proof
    solver: str
    stage_seconds: Mapping[str, float]
    runners_up: tuple[Schedule, ...] = ()
    kept: int = 0

    @staticmethod
    def of(found: Sequence[Schedule], bound: Bound, solver: str, stage_seconds: Mapping[str, float]) -> Synthesis:
        """Answer with the first of some schedules, proved as far as the bound goes; the others are runners-up."""
        return Synthesis(found[0], bound, Proof.FEASIBLE, solver, stage_seconds).with_schedules(found)

    def with_schedules(self, found: Sequence[Schedule]) -> Synthesis:
        """The same answer with other schedules, the best one first."""
        best, *others = found
        proof = Proof.of(best.makespan_us, self.bound)
        return replace(self, schedule=best, proof=proof, runners_up=tuple(others))

    @property
    def gap(self) -> float:
        """Relative distance from the bound."""
        return relative_gap(self.schedule.makespan_us, self.bound.time_us)


def unlike(schedules: Iterable[_Timed]) -> list[_Timed]:
    """The schedules without those that are as fast as one before them with as many messages, mostly its images."""
    found: dict[tuple[int, int, str], _Timed] = {}
    for schedule in schedules:
        found.setdefault((len(schedule.messages), schedule.num_steps, f"{schedule.makespan_us:.6g}"), schedule)
    return list(found.values())


class Engine(Protocol):
    """Turns a demand into a schedule."""

    def __call__(self, demand: Demand, options: Options, events: Events) -> Synthesis:
        """Synthesize.

        Raises
        ------
        InputError, Infeasible, LimitReached, PackageMissing
            See `taccl_py.errors`.
        """
        ...


def require_few_chunks(demand: Demand) -> None:
    """Refuse no chunk, and so many chunks that to write down and verify one answer takes longer than any search of them is worth.

    Raises
    ------
    InputError
        If none or more are asked for; its field is ``chunks_per_rank``.
    """
    chunks = 1 if demand.chunks_per_rank is None else demand.chunks_per_rank
    if chunks < 1:
        raise InputError(f"found {chunks}, one chunk a rank or more is needed", field="chunks_per_rank")
    if chunks > PARAMS.most_chunks_per_rank:
        most = PARAMS.most_chunks_per_rank
    elif chunks > PARAMS.free_chunks_per_rank and demand.collective(chunks).num_arrivals > PARAMS.most_arrivals:
        most = max(PARAMS.free_chunks_per_rank, PARAMS.most_arrivals // demand.collective(1).num_arrivals)
    else:
        return
    raise InputError(
        f"found {chunks} chunks a rank, at most {most} are possible for this machine and collective; ask for fewer",
        field="chunks_per_rank",
    )

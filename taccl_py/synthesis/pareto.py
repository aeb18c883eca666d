"""Pareto front of k-synchronous algorithms between latency (steps) and bandwidth (rounds per chunk), with proofs.

The cost model is SCCL's (Cai et al., PPoPP'21): an algorithm with C chunks per rank, S steps and R rounds takes
``S * alpha + R / C * L * beta``. For each number of steps the least R / C is searched, in order of R / C; whatever is skipped on the
one was proved impossible, or is named as open. A bound on the bandwidth of any algorithm ends the walk.

AllReduce is, as in SCCL, a ReduceScatter followed by an AllGather of as many steps and rounds, and its points are the best of those.
Another AllReduce may be better, such as an exchange of everything in one step, so the limits of the front are not twice those of the
halves: they are those of every AllReduce.

Questions are asked of the symmetric quotient first, where "yes" is quick; "no" is asked again without symmetry, so that it is a
proof for all algorithms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from taccl_py.collective import Kind
from taccl_py.errors import InputError
from taccl_py.schedule.ir import Schedule
from taccl_py.schedule.transform import allreduce, combining, mirrored
from taccl_py.solvers.cp_sat import Status
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import demand_bound
from taccl_py.synthesis.engine import Demand, Events
from taccl_py.synthesis.models.cp_rounds import RoundsTask, solve_rounds
from taccl_py.synthesis.plan import lift
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.quotient import Quotient
from taccl_py.synthesis.routes import hops_of_states
from taccl_py.tolerances import ROUNDED
from taccl_py.topology.model import Topology
from taccl_py.units import BYTES_PER_MB


@dataclass(frozen=True)
class Params:
    """Numbers of Pareto fronts.

    Attributes
    ----------
    most_chunks
        Chunks of the bandwidth bound as a ratio of rounds and chunks. Guess.
    question_work
        Deterministic time of one question, which is open beyond. Guess.
    most_pairs
        Pairs of chunk and link up to which a problem is built, in half a minute. Guess.
    usual_chunks, other_chunks
        Chunks per rank up to which the fronts of some collectives go by default, and those of the others. Bench: sccl.
    usual_extra_rounds
        Rounds beyond the bound of bandwidth, but for collectives in a pipeline. Guess.
    """

    most_chunks: int = 1000
    question_work: float = 20.0
    most_pairs: int = 2_000_000
    usual_chunks: tuple[tuple[Kind, int], ...] = ((Kind.BROADCAST, 18), (Kind.REDUCE, 18), (Kind.ALLTOALL, 3))
    other_chunks: int = 6
    usual_extra_rounds: int = 6


PARAMS = Params()

# Chunks a round of what has no beta.
_NO_LIMIT = 1 << 30


@dataclass(frozen=True, slots=True)
class AlgorithmShape:
    """Chunks per rank, steps and rounds of an algorithm."""

    chunks: int
    steps: int
    rounds: int

    @property
    def rounds_per_chunk(self) -> Fraction:
        """R / C, the cost of bandwidth."""
        return Fraction(self.rounds, self.chunks)


@dataclass(frozen=True)
class Point:
    """A point of the front.

    Attributes
    ----------
    shape
        C, S, R.
    schedule
        The algorithm.
    proved
        Whether all shapes with as many steps and a smaller R / C (within the walk's limits) are impossible; of AllReduce those
        of ReduceScatter followed by AllGather.
    open_shapes
        Those that are neither proved possible nor impossible.
    """

    shape: AlgorithmShape
    schedule: Schedule
    proved: bool
    open_shapes: tuple[AlgorithmShape, ...]


@dataclass(frozen=True)
class Front:
    """Result of a walk.

    Attributes
    ----------
    points
        By rising number of steps and falling R / C.
    fewest_steps
        No algorithm has fewer, no AllReduce either that is no ReduceScatter followed by AllGather.
    least_rounds_per_chunk
        No algorithm has a smaller R / C, whatever its steps; the same holds for AllReduce.
    round_us_per_mb
        L * beta: microseconds of a round for a chunk of one megabyte.
    """

    points: tuple[Point, ...]
    fewest_steps: int
    least_rounds_per_chunk: Fraction
    round_us_per_mb: float


@dataclass(frozen=True, slots=True)
class WalkLimits:
    """Limits of a walk along the front.

    Attributes
    ----------
    max_chunks, max_steps
        Largest C and S.
    extra_rounds
        Largest R - S (SCCL's k).
    min_chunks
        Smallest C.
    """

    max_chunks: int
    max_steps: int = 8
    extra_rounds: int = 6
    min_chunks: int = 1

    @staticmethod
    def usual(kind: Kind) -> WalkLimits:
        """Limits that show the front of most machines of one node."""
        piped = kind in (Kind.BROADCAST, Kind.REDUCE)
        return WalkLimits(
            dict(PARAMS.usual_chunks).get(kind, PARAMS.other_chunks),
            extra_rounds=0 if piped else PARAMS.usual_extra_rounds,
        )


def pareto_front(demand: Demand, walk: WalkLimits, limits: Limits, events: Events) -> Front:
    """Enumerate the front of a collective.

    That of AllReduce is of ReduceScatter followed by AllGather: both have S steps and R rounds, AllReduce 2S and 2R.

    Raises
    ------
    InputError
        If capacities of the machine are not multiples of the smallest one, or it is too large.
    """
    _require_room(demand)
    asking = _Asking(demand, limits)
    points: list[Point] = []
    events.stage("bound")
    least = _least_rounds_per_chunk(asking.demand)
    for steps in range(_fewest_steps(asking.demand), walk.max_steps + 1):
        best = points[-1].shape.rounds_per_chunk if points else None
        if best == least or asking.over:
            break
        point = _best_with(asking, _shapes(steps, walk, least, best), events)
        if point is not None:
            points.append(point)
    if demand.kind is not Kind.ALLREDUCE:
        return Front(tuple(points), _fewest_steps(asking.demand), least, asking.round_us_per_mb)
    # What one rank has reaches all others here too, though perhaps over links that a sketch leaves to one half only.
    steps = _fewest_steps(replace(asking.demand, sketch=None))
    return Front(tuple(map(_twice, points)), steps, _least_rounds_per_chunk(demand), asking.round_us_per_mb)


def _require_room(demand: Demand) -> None:
    """Refuse what would take minutes before time is looked at."""
    chunks, links = demand.collective(1).num_chunks, len(demand.topology.links)
    if chunks * links > PARAMS.most_pairs:
        raise InputError(
            f"fronts are for machines of some dozens of ranks: {chunks} chunks on {links} links are more than {PARAMS.most_pairs} pairs; "
            "use taccl synth, or taccl bound",
            path="command line",
            field="TOPOLOGY",
        )


def _twice(point: Point) -> Point:
    """The point of AllReduce of one half's."""

    def longer(shape: AlgorithmShape) -> AlgorithmShape:
        return AlgorithmShape(shape.chunks, 2 * shape.steps, 2 * shape.rounds)

    return replace(point, shape=longer(point.shape), open_shapes=tuple(map(longer, point.open_shapes)))


def _least_rounds_per_chunk(demand: Demand) -> Fraction:
    """Bandwidth bound of every algorithm."""
    topology = _rounds_only(demand.topology)
    size_bytes = float(BYTES_PER_MB * demand.collective(1).chunks_per_size)
    bound = demand_bound(topology, demand.kind, demand.root, size_bytes)
    # It is the ratio of two small whole numbers, found in floating point.
    return Fraction(bound.time_us * (1 - ROUNDED / 100)).limit_denominator(PARAMS.most_chunks)


def _fewest_steps(demand: Demand) -> int:
    """Steps without which some wanted rank cannot be reached; the collective is a routed one."""
    collective = demand.collective(1)
    problem = Problem.build(demand.topology, collective, demand.sketch, demand.chunk_bytes(collective))
    # A symmetry that takes a path to another one into the same rank leaves both out.
    quotient = Quotient.of(problem.without_symmetry())
    hops = hops_of_states(quotient, quotient.source)
    return max(hops[state] for state in range(quotient.num_states) if quotient.required[state])


def _shapes(steps: int, walk: WalkLimits, least: Fraction, best: Fraction | None) -> Iterator[AlgorithmShape]:
    """Shapes with so many steps that would be better than the best so far, in order of R / C, then C."""
    shapes = [
        AlgorithmShape(chunks, steps, rounds)
        for chunks in range(walk.min_chunks, walk.max_chunks + 1)
        for rounds in range(steps, steps + walk.extra_rounds + 1)
        if Fraction(rounds, chunks) >= least and (best is None or Fraction(rounds, chunks) < best)
    ]
    return iter(sorted(shapes, key=lambda shape: (shape.rounds_per_chunk, shape.chunks)))


def _best_with(asking: _Asking, shapes: Iterator[AlgorithmShape], events: Events) -> Point | None:
    """First shape that is possible."""
    left_open: list[AlgorithmShape] = []
    for shape in shapes:
        if asking.over:
            return None
        events.stage(f"C={shape.chunks} S={shape.steps} R={shape.rounds}")
        answer = asking.ask(shape)
        if answer.schedule is not None:
            better = tuple(s for s in left_open if s.rounds_per_chunk < shape.rounds_per_chunk)
            return Point(shape, answer.schedule, not better, better)
        if not answer.impossible:
            left_open.append(shape)
    return None


@dataclass(frozen=True, slots=True)
class _ShapeAnswer:
    """A schedule of the shape that was asked for, or none, and whether there is none."""

    schedule: Schedule | None
    impossible: bool


class _Asking:
    """Questions about one collective on one machine.

    Attributes
    ----------
    demand
        The routed collective that is asked for: its dual for ReduceScatter and Reduce, the second half for AllReduce.
    round_us_per_mb
        See `Front`.
    """

    def __init__(self, demand: Demand, limits: Limits) -> None:
        self._wanted = demand
        dual = demand.collective(1).dual()
        machine, kind, sketch = demand.topology, demand.kind, demand.sketch
        if dual is not None:
            machine, kind = machine.reversed(), dual.kind
            sketch = None if sketch is None else sketch.for_sums(machine)
        elif kind is Kind.ALLREDUCE:
            kind = Kind.ALLGATHER
        self.demand = replace(demand, topology=machine, kind=kind, sketch=sketch)
        self.round_us_per_mb = _capacities(machine)[0]
        self._limits, self._deadline = limits, limits.deadline()

    @property
    def over(self) -> bool:
        """True if time is up or the user said stop."""
        return self._deadline.over()

    def ask(self, shape: AlgorithmShape) -> _ShapeAnswer:
        """Answer to whether there is an algorithm of this shape."""
        answer = self._ask_on(self.demand.topology, shape)
        if answer.schedule is None:
            return answer
        if self._wanted.kind is not Kind.ALLREDUCE:
            routed = self.demand.kind is self._wanted.kind
            return (
                answer if routed else _ShapeAnswer(combining(answer.schedule, self._wanted.topology), impossible=False)
            )
        other = mirrored(answer.schedule)
        if other is None:
            reverse = self._ask_on(self.demand.topology.reversed(), shape)
            if reverse.schedule is None:
                return reverse
            other = reverse.schedule
        return _ShapeAnswer(allreduce(answer.schedule, other), impossible=False)

    def _ask_on(self, topology: Topology, shape: AlgorithmShape) -> _ShapeAnswer:
        problem = self._problem(shape.chunks, topology, shape.steps)
        for symmetric in dict.fromkeys((bool(problem.generators), False)):
            quotient = Quotient.of(problem if symmetric else problem.without_symmetry())
            task = RoundsTask(quotient, self._capacity_of(topology, quotient), shape.steps, shape.rounds)
            plan, outcome = solve_rounds(task, self._limits.within(self._deadline.left, PARAMS.question_work))
            if plan is not None:
                return _ShapeAnswer(lift(quotient, plan), impossible=False)
        return _ShapeAnswer(None, outcome.status is Status.INFEASIBLE)

    def _problem(self, chunks: int, topology: Topology, most_hops: int) -> Problem:
        collective = self.demand.collective(chunks)
        sketch = self.demand.sketch
        if sketch is not None and topology is not self.demand.topology:
            sketch = sketch.for_sums(topology)
        return Problem.build(topology, collective, sketch, self.demand.chunk_bytes(collective), most_hops)

    def _capacity_of(self, topology: Topology, quotient: Quotient) -> list[int]:
        """Chunks a round of every resource orbit."""
        orbit = quotient.resource_orbit.tolist()
        capacity = _capacities(topology)[1]
        return [capacity[orbit.index(number)] for number in range(max(orbit) + 1)]


def _capacities(topology: Topology) -> tuple[float, list[int]]:
    """Microseconds of a round for a megabyte, and chunks a round of every link and port."""
    betas = [beta for _, beta in topology.resource_cost]
    slowest = max(betas, default=0.0)
    if slowest <= 0:
        raise InputError(
            f"{topology.name}: no link or port has a beta, so rounds have no length; use the other engines"
        )
    ratios = [slowest / beta if beta > 0 else _NO_LIMIT for beta in betas]
    for resource, ratio in enumerate(ratios):
        if abs(ratio - round(ratio)) > ROUNDED * ratio:
            raise InputError(
                f"{topology.name}: {topology.resource_name(resource)} is {ratio:.6g} times as fast as the slowest link; "
                "steps and rounds need whole numbers, use the other engines"
            )
    return slowest, [round(ratio) for ratio in ratios]


def _rounds_only(topology: Topology) -> Topology:
    """The machine without alpha and latency, a round of one megabyte taking one microsecond."""
    round_us_per_mb, _ = _capacities(topology)
    links = tuple(
        replace(k, alpha_us=0.0, latency_us=0.0, beta_us_per_mb=max(k.beta_us_per_mb / round_us_per_mb, 1e-9))
        for k in topology.links
    )
    ports = tuple(replace(p, alpha_us=0.0, beta_us_per_mb=p.beta_us_per_mb / round_us_per_mb) for p in topology.ports)
    return replace(topology, links=links, ports=ports)

"""Engine ``flow``: AllToAll, Gather and Scatter for sizes at which throughput rules.

1. The multicommodity flow says how fast the fullest link or port lets all data through, and along which paths.
2. Every pair's data is cut into k parts; an integer program puts each part on a path so that the fullest link or port has
   next to no more to carry than in the flow. k is chosen by that load.
3. The order is found by list scheduling with restarts, exactly where the quotient is small, and part by part elsewhere;
   neighbours on one path share alpha where that pays.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from taccl_py.collective import Kind
from taccl_py.errors import InputError, LimitReached
from taccl_py.schedule.ir import Schedule
from taccl_py.solvers.limits import Deadline, Limits
from taccl_py.synthesis.bounds import Bound
from taccl_py.synthesis.commodity_flow import Commodities, CommodityFlow, solve_flow
from taccl_py.synthesis.engine import Demand, Events, Options, Proof, Synthesis
from taccl_py.synthesis.flow.order import find_order
from taccl_py.synthesis.flow.paths import Pair, find_pairs
from taccl_py.synthesis.flow.rounding import Rounding, Routing
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.quotient import Quotient
from taccl_py.synthesis.search import TOLERANCE, Search
from taccl_py.synthesis.symmetry import Generator, IntArray, orbit_labels

KINDS = (Kind.ALLTOALL, Kind.GATHER, Kind.SCATTER)
_MOST_PARTS = 8
# Numbers of parts whose order is looked for.
_MOST_ORDERED = 4
# Gains smaller than this share are not worth another order.
_WORTH = 0.003
# More entries of the table of chunks and links than this do not fit into memory.
_MOST_ENTRIES = 200_000_000
# Messages that finer parts may make; one part is always tried.
_MOST_MESSAGES = 60_000
_MOST_RUNNERS_UP = 4


def synthesize_flow(demand: Demand, options: Options, events: Events) -> Synthesis:
    """Engine entry point; see `taccl_py.synthesis.engine.Engine`. Shares are cut as the size asks for, unless it is given.

    Raises
    ------
    InputError
        If the collective is not one in which every chunk is wanted by one rank.
    """
    if demand.kind not in KINDS:
        raise InputError(f"engine flow is for {', '.join(KINDS)}, found {demand.kind}; use --engine milp or trees")
    entries = demand.collective(demand.chunks_per_rank or 1).num_chunks * len(demand.topology.links)
    if entries > _MOST_ENTRIES:
        raise InputError(
            f"{demand.kind} on {demand.topology.name} has {entries} pairs of chunk and link, engine flow manages "
            f"{_MOST_ENTRIES}; take fewer ranks or a machine file with fewer links"
        )
    run = _Run(demand, options, events)
    run.search()
    if run.best is None:
        raise LimitReached("no schedule was found; give more time with --time-limit")
    best_us = run.best.makespan_us
    optimal = best_us <= run.bound.time_us * (1 + TOLERANCE)
    others = sorted((s for s in run.others if s is not run.best), key=lambda s: s.makespan_us)
    return Synthesis(
        run.best, run.bound, Proof.OPTIMAL if optimal else Proof.FEASIBLE, "highs, cp-sat", run.stage_seconds,
        tuple(others[:_MOST_RUNNERS_UP]),
    )  # fmt: skip


@dataclass
class _Run:
    """One call of the engine."""

    demand: Demand
    options: Options
    events: Events
    bound: Bound = Bound(0.0, "nothing has to move")
    best: Schedule | None = None
    others: list[Schedule] = field(default_factory=list)
    stage_seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.limits = self.options.limits
        self.deadline = Deadline(self.limits.seconds)

    def search(self) -> None:
        """Flow, routings, orders."""
        with self._stage("flow"):
            problem = _shares(self.demand)
            flow = solve_flow(Commodities.of(problem), self.limits.within(self.deadline.left / 3))
            if flow is not None:
                self.bound = Bound(flow.load_us, "bandwidth: the flow of all data over all links and ports")
                self.events.bound(self.bound.time_us)
            pairs = find_pairs(problem, flow or CommodityFlow.unknown(problem.topology))
        with self._stage("parts"):
            routings = self._routings(problem, pairs)
        for routing in sorted(routings, key=lambda r: (r.load_us, r.parts))[:_MOST_ORDERED]:
            if self.best is not None and (self._over or routing.load_us >= self.best.makespan_us * (1 - _WORTH)):
                break
            with self._stage("order"):
                self._order(problem, pairs, routing)

    @property
    def _over(self) -> bool:
        return self.limits.stop.is_set() or self.deadline.left <= 0

    def _routings(self, problem: Problem, pairs: tuple[Pair, ...]) -> list[Routing]:
        rounding = Rounding(problem, pairs)
        if self.demand.chunks_per_rank is not None:
            return [rounding.to_parts(self.demand.chunks_per_rank, self._share(0.2))]
        routings = [rounding.to_parts(1, self._share(0.1))]
        messages = sum(pair.members * len(path) for pair, (path,) in zip(pairs, routings[0].links, strict=True))
        entries = problem.permitted.size
        for parts in range(2, 1 if self.demand.topology.chunk_costs else _MOST_PARTS + 1):
            if self._over or messages * parts > _MOST_MESSAGES or entries * parts > _MOST_ENTRIES:
                break
            routings.append(rounding.to_parts(parts, self._share(0.05)))
        return routings

    def _order(self, problem: Problem, pairs: tuple[Pair, ...], routing: Routing) -> None:
        quotient = Quotient.of(routed(problem, pairs, routing))
        search = Search.of(quotient, self.bound, self.limits, self.deadline, Events())
        find_order(search, routing.load_us)
        if search.best is None:
            return
        self.others += search.pool
        if self.best is None or search.best.makespan_us < self.best.makespan_us * (1 - TOLERANCE):
            self.best = search.best
            self.events.incumbent(self.best.makespan_us)

    def _share(self, share: float) -> Limits:
        return self.limits.within(self.deadline.left * share)

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        """Time a stage and announce it."""
        self.events.stage(name)
        begun = time.monotonic()
        try:
            yield
        finally:
            self.stage_seconds[name] = self.stage_seconds.get(name, 0.0) + time.monotonic() - begun


def _shares(demand: Demand) -> Problem:
    """The problem with one chunk for each share, and the part of its symmetry that acts freely."""
    collective = demand.collective(1)
    parts = demand.chunks_per_rank or 1
    share_bytes = demand.chunk_bytes(demand.collective(parts)) * parts
    problem = Problem.build(demand.topology, collective, demand.sketch, share_bytes)
    kept: tuple[Generator, ...] = ()
    for generator in problem.generators:
        if _acts_freely(problem, (*kept, generator)):
            kept = (*kept, generator)
    return replace(problem, generators=kept)


def _acts_freely(problem: Problem, generators: tuple[Generator, ...]) -> bool:
    """Whether images of a path never meet: a path and its images then load all links and ports of an orbit alike.

    A group acts freely on ranks if the orbit of every chunk is as large as that of its source, which says that whatever
    keeps the source in place keeps all ranks there. Images of a link must not share a port either.
    """
    topology, collective = problem.topology, problem.collective
    rank_label = orbit_labels(topology.num_ranks, [np.array(g.rank, dtype=np.int64) for g in generators])
    chunk_label = orbit_labels(collective.num_chunks, [g.chunk for g in generators])
    ranks, chunks = np.bincount(rank_label), np.bincount(chunk_label)
    if not np.array_equal(chunks[chunk_label], ranks[rank_label[np.array(collective.source)]]):
        return False
    link_label = orbit_labels(len(topology.links), [g.link for g in generators]).tolist()
    behind = [(link_label[index], port) for index, link in enumerate(topology.links) for port in link.ports]
    return len(set(behind)) == len(behind)


def routed(problem: Problem, pairs: tuple[Pair, ...], routing: Routing) -> Problem:
    """The problem with every share in parts that have one path each, the symmetry's images included."""
    parts, links = routing.parts, len(problem.topology.links)
    collective = replace(problem.collective, chunks_per_rank=parts)
    generators = tuple(replace(g, chunk=_by_parts(g.chunk, parts)) for g in problem.generators)
    first = [
        (pair.chunk * parts + part) * links + link
        for pair, paths in zip(pairs, routing.links, strict=True)
        for part, path in enumerate(paths)
        for link in path
    ]
    allowed = np.zeros(collective.num_chunks * links, dtype=bool)
    new = np.array(first, dtype=np.int64)
    while len(new):
        allowed[new] = True
        images = [g.chunk[new // links] * links + g.link[new % links] for g in generators]
        new = np.unique(np.concatenate([image[~allowed[image]] for image in images])) if images else new[:0]
    permitted: NDArray[np.bool_] = np.repeat(problem.permitted, parts, axis=0)
    return Problem(
        problem.topology, collective, problem.sketch, problem.chunk_bytes / parts, permitted,
        allowed.reshape(permitted.shape), generators,
    )  # fmt: skip


def _by_parts(image: IntArray, parts: int) -> IntArray:
    """Image of every part when parts keep their number within the share."""
    return np.asarray((image[:, None] * parts + np.arange(parts)[None, :]).reshape(-1), dtype=np.int64)

"""From shares to whole chunks: each pair's data in k parts, every part on one path, the fullest link or port as empty as can be.

A small integer program on the quotient: ``n[p, i]`` parts of pair p take its path i::

    min T    sum over i of n[p, i] = k,    sum over p, i of n[p, i] * (time of the path's messages on resource r) <= T

and then, with (nearly) that T, the least time of all messages together, which prefers few hops and cheap links. For small
sizes a second form lets all that crosses a link do so in one message, which pays alpha once for the use of the link.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from taccl_py.solvers.cp_sat import import_cp_model, solve_cp
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.apportion import to_whole
from taccl_py.synthesis.flow.params import PARAMS
from taccl_py.synthesis.flow.paths import FlowPair
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.symmetry import orbits_of_resources

# Number of parts on every path, [pair][path].
Counts = list[list[int]]


@dataclass(frozen=True)
class Routing:
    """Paths of all parts.

    Attributes
    ----------
    parts
        k.
    links
        Path of every part of every pair, [pair][part]; parts of one path follow each other.
    load_us
        Time of the fullest resource if parts are messages of their own, or together, as they were asked for.
    """

    parts: int
    links: tuple[tuple[tuple[int, ...], ...], ...]
    load_us: float


class Rounding:
    """Rounds the paths of one problem to different numbers of parts."""

    def __init__(self, problem: Problem, pairs: Sequence[FlowPair]) -> None:
        self._problem, self._pairs = problem, pairs
        self._orbit = orbits_of_resources(problem.topology, problem.generators)
        self._members = np.bincount(self._orbit)

    def to_parts(self, parts: int, limits: Limits) -> Routing:
        """Best routing found with so many parts for each pair, every part a message of its own on every link."""
        part_bytes = self._problem.chunk_bytes / parts
        loads = self._path_loads(part_bytes, with_alpha=True)
        return self._routing(_RoundingProgram(self._pairs, loads, parts), part_bytes, limits)

    def gathered(self, limits: Limits) -> Routing:
        """Best routing found when all that crosses a link does so in one message."""
        part_bytes = self._problem.chunk_bytes
        loads = self._path_loads(part_bytes, with_alpha=False)
        openings: dict[int, dict[int, float]] = {}
        used: list[list[frozenset[int]]] = []
        for pair in self._pairs:
            used.append([frozenset(int(self._orbit[link]) for link in path.links) for path in pair.paths])
            for link in sorted(frozenset[int]().union(*used[-1])):
                if link not in openings:
                    openings[link] = self._load((link,), 0.0, int(self._members[link]), with_alpha=True)
        return self._routing(_RoundingProgram(self._pairs, loads, 1, openings, used), part_bytes, limits)

    def _path_loads(self, part_bytes: float, *, with_alpha: bool) -> list[list[dict[int, float]]]:
        """Load of a part on each path, [pair][path]."""
        return [
            [self._load(path.links, part_bytes, pair.members, with_alpha=with_alpha) for path in pair.paths]
            for pair in self._pairs
        ]

    def _load(self, links: tuple[int, ...], part_bytes: float, members: int, *, with_alpha: bool) -> dict[int, float]:
        """Load in us that a message on each of these links, with all its images, adds to every resource, by orbit."""
        topology = self._problem.topology
        found: dict[int, float] = {}
        for link in links:
            for resource in topology.resources_of[link]:
                orbit = int(self._orbit[resource])
                time_us = topology.occupancy_us(resource, part_bytes)
                if not with_alpha:
                    time_us -= topology.occupancy_us(resource, 0.0)
                found[orbit] = found.get(orbit, 0.0) + members / int(self._members[orbit]) * time_us
        return found

    def _routing(self, program: _RoundingProgram, part_bytes: float, limits: Limits) -> Routing:
        counts = program.start()
        if any(len(pair.paths) > 1 for pair in self._pairs) and not limits.stop.is_set():
            counts = program.least_load(limits)
            counts = program.least_effort(counts, self._efforts(part_bytes), limits)
        links = tuple(
            tuple(path.links for path, count in zip(pair.paths, of_pair, strict=True) for _ in range(count))
            for pair, of_pair in zip(self._pairs, counts, strict=True)
        )
        return Routing(program.parts, links, program.load_us(counts))

    def _efforts(self, part_bytes: float) -> Counts:
        """Time of all messages of a part on each path, in whole units of which the longest path has many."""
        topology = self._problem.topology
        times = [
            [pair.members * sum(topology.message_us(link, part_bytes) for link in path.links) for path in pair.paths]
            for pair in self._pairs
        ]
        scale = PARAMS.load_units / max(time_us for of_pair in times for time_us in of_pair)
        return [[round(time_us * scale) for time_us in of_pair] for of_pair in times]


def _rounded(shares: list[float], parts: int) -> list[int]:
    """Parts in proportion to shares; all in the first one if there are none."""
    whole = sum(shares)
    return (
        to_whole([share / whole * parts for share in shares], parts) if whole > 0 else [parts] + [0] * len(shares[1:])
    )


@dataclass(frozen=True)
class _RoundingProgram:
    """The integer program.

    Attributes
    ----------
    pairs
        The pairs and their paths.
    loads
        What a part on a path adds to every resource in us, [pair][path].
    parts
        k.
    openings
        What the use of a link adds to every resource in us, however many parts cross it, by orbit of the link.
    used
        Orbits of the links of each path, [pair][path]; empty without openings.
    """

    pairs: Sequence[FlowPair]
    loads: list[list[dict[int, float]]]
    parts: int
    openings: dict[int, dict[int, float]] = field(default_factory=dict)
    used: list[list[frozenset[int]]] = field(default_factory=list)

    def start(self) -> Counts:
        """The flow's shares, rounded."""
        return [_rounded([path.share for path in pair.paths], self.parts) for pair in self.pairs]

    def load_us(self, counts: Counts) -> float:
        """Time of the fullest resource."""
        total: dict[int, float] = {}
        opened = [self.openings[link] for link in sorted(self._opened(counts))]
        chosen = [
            (load, count)
            for of_pair, row in zip(self.loads, counts, strict=True)
            for load, count in zip(of_pair, row, strict=True)
            if count
        ]
        for load, count in [*chosen, *((load, 1) for load in opened)]:
            for orbit, time_us in load.items():
                total[orbit] = total.get(orbit, 0.0) + count * time_us
        return max(total.values(), default=0.0)

    def _opened(self, counts: Counts) -> set[int]:
        rows = zip(self.used, counts, strict=True) if self.used else ()
        return {
            link for of_pair, row in rows for links, count in zip(of_pair, row, strict=True) if count for link in links
        }

    def least_load(self, limits: Limits) -> Counts:
        """Counts with the least T found."""
        first = self.start()
        model = self._model(first)
        fullest = model.cp.new_int_var(0, 2 * PARAMS.load_units, "fullest")
        for terms in model.terms.values():
            model.cp.add(fullest >= sum(terms))
        model.cp.minimize(fullest)
        return model.solve(limits) or first

    def least_effort(self, best: Counts, efforts: Counts, limits: Limits) -> Counts:
        """Counts with the least total effort found whose T is not larger than that of ``best``."""
        model = self._model(best)
        most = math.floor(PARAMS.load_units * (1 + PARAMS.load_slack))
        for terms in model.terms.values():
            model.cp.add(sum(terms) <= most)
        model.cp.minimize(
            sum(
                effort * count
                for of_pair, row in zip(efforts, model.counts, strict=True)
                for effort, count in zip(of_pair, row, strict=True)
            )
        )
        return model.solve(limits) or best

    def _model(self, hint: Counts) -> _RoundingModel:
        """Variables and loads, in units of which the hint's fullest resource has about `Params.load_units`."""
        model = _RoundingModel.of(hint, self.parts)
        unit_us = self.load_us(hint) / PARAMS.load_units
        for of_pair, row in zip(self.loads, model.counts, strict=True):
            for load, count in zip(of_pair, row, strict=True):
                model.add_load(load, unit_us, count)
        opened = self._opened(hint)
        is_open = {link: model.cp.new_bool_var(f"open{link}") for link in self.openings}
        for link, load in self.openings.items():
            model.add_load(load, unit_us, is_open[link])
            model.cp.add_hint(is_open[link], link in opened)
        for of_links, row in zip(self.used, model.counts, strict=True) if self.used else ():
            for links, count in zip(of_links, row, strict=True):
                for link in sorted(links):
                    model.cp.add(count <= self.parts * is_open[link])
        return model


@dataclass(frozen=True)
class _RoundingModel:
    """CP-SAT's model: counts, and the load of every resource orbit as a list of terms."""

    cp: Any
    counts: list[list[Any]]
    terms: dict[int, list[Any]]

    @staticmethod
    def of(hint: Counts, parts: int) -> _RoundingModel:
        """Counts that add up to the parts of each pair, with a first guess."""
        cp = import_cp_model().CpModel()
        counts = []
        for pair, of_pair in enumerate(hint):
            row = [cp.new_int_var(0, parts, f"n{pair}_{i}") for i in range(len(of_pair))]
            cp.add(sum(row) == parts)
            for variable, count in zip(row, of_pair, strict=True):
                cp.add_hint(variable, count)
            counts.append(row)
        return _RoundingModel(cp, counts, {})

    def add_load(self, load: dict[int, float], unit_us: float, variable: Any) -> None:
        """Add a load as often as the variable says."""
        for orbit, time_us in load.items():
            self.terms.setdefault(orbit, []).append(round(time_us / unit_us) * variable)

    def solve(self, limits: Limits) -> Counts | None:
        """Best counts found."""
        outcome = solve_cp(self.cp, limits.within(limits.seconds / 2, PARAMS.rounding_work / 2))
        if not outcome.status.has_solution:
            return None
        return [[outcome.value(variable) for variable in row] for row in self.counts]

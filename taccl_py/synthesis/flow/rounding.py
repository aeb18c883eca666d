"""From shares to whole chunks: each pair's data in k parts, every part on one path, the fullest link or port as empty as can be.

A small integer program on the quotient: ``n[p, i]`` parts of pair p take its path i::

    min T    sum over i of n[p, i] = k,    sum over p, i of n[p, i] * (time of the path's messages on resource r) <= T

and then, with that T, the least time of all messages together, which prefers few hops and cheap links.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from taccl_py.solvers.cp_sat import Status, import_cp_model, solve_cp
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.flow.paths import Pair
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.symmetry import IntArray, orbit_labels

# Resolution of loads: the fullest resource's is about this many units.
_UNITS = 1_000_000
# Deterministic time of both solves together.
_WORK = 0.3


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
        Time of the fullest resource if every part is a message of its own.
    """

    parts: int
    links: tuple[tuple[tuple[int, ...], ...], ...]
    load_us: float


class Rounding:
    """Rounds the paths of one problem to different numbers of parts."""

    def __init__(self, problem: Problem, pairs: Sequence[Pair]) -> None:
        self._problem, self._pairs = problem, pairs
        topology = problem.topology
        images = [np.concatenate([g.link, len(topology.links) + g.port]) for g in problem.generators]
        self._orbit: IntArray = orbit_labels(topology.num_resources, images)
        self._members = np.bincount(self._orbit, minlength=topology.num_resources)

    def to_parts(self, parts: int, limits: Limits) -> Routing:
        """Best routing found with so many parts for each pair."""
        part_bytes = self._problem.chunk_bytes / parts
        loads = [[self._load_us(pair, path.links, part_bytes) for path in pair.paths] for pair in self._pairs]
        start = [_largest_remainders([path.share for path in pair.paths], parts) for pair in self._pairs]
        total = _fullest(loads, start)
        counts = start
        if any(len(pair.paths) > 1 for pair in self._pairs) and not limits.stop.is_set():
            counts = self._solve(_Program(loads, start, parts, total / _UNITS), part_bytes, limits)
        links = tuple(
            tuple(path.links for path, count in zip(pair.paths, of_pair, strict=True) for _ in range(count))
            for pair, of_pair in zip(self._pairs, counts, strict=True)
        )
        return Routing(parts, links, _fullest(loads, counts))

    def _load_us(self, pair: Pair, links: tuple[int, ...], part_bytes: float) -> dict[int, float]:
        """What one part on a path, with all members of its orbit, adds to every resource, by orbit."""
        topology = self._problem.topology
        found: dict[int, float] = {}
        for link in links:
            for resource in topology.resources_of[link]:
                orbit = int(self._orbit[resource])
                share = pair.members / int(self._members[orbit])
                found[orbit] = found.get(orbit, 0.0) + share * topology.occupancy_us(resource, part_bytes)
        return found

    def _solve(self, program: _Program, part_bytes: float, limits: Limits) -> list[list[int]]:
        topology = self._problem.topology
        best = program.least_load(limits)
        effort = [
            [pair.members * sum(topology.message_us(link, part_bytes) for link in path.links) for path in pair.paths]
            for pair in self._pairs
        ]
        return program.least_effort(best, effort, limits)


def _fullest(loads: list[list[dict[int, float]]], counts: list[list[int]]) -> float:
    total: dict[int, float] = {}
    for of_pair, chosen in zip(loads, counts, strict=True):
        for load, count in zip(of_pair, chosen, strict=True):
            for orbit, time_us in load.items() if count else ():
                total[orbit] = total.get(orbit, 0.0) + count * time_us
    return max(total.values(), default=0.0)


def _largest_remainders(shares: list[float], parts: int) -> list[int]:
    """Whole numbers that add up to `parts` and are closest to the shares."""
    whole = sum(shares)
    exact = [share / whole * parts for share in shares] if whole > 0 else [float(parts)] + [0.0] * (len(shares) - 1)
    counts = [math.floor(value + 1e-9) for value in exact]
    order = sorted(range(len(shares)), key=lambda i: (counts[i] - exact[i], i))
    for i in order[: parts - sum(counts)]:
        counts[i] += 1
    return counts


@dataclass(frozen=True)
class _Program:
    """The integer program in whole units of ``unit_us``, and a first solution."""

    loads: list[list[dict[int, float]]]
    start: list[list[int]]
    parts: int
    unit_us: float

    def least_load(self, limits: Limits) -> list[list[int]]:
        """Counts with the least T found."""
        model, counts = self._model(self.start)
        fullest = model.new_int_var(0, self._units_of(self.start), "fullest")
        for terms in self._terms(counts).values():
            model.add(fullest >= sum(terms))
        model.minimize(fullest)
        return self._answer(model, counts, limits) or self.start

    def least_effort(self, best: list[list[int]], effort: list[list[float]], limits: Limits) -> list[list[int]]:
        """Counts with the least total effort found whose T is not larger than that of ``best``."""
        model, counts = self._model(best)
        most = self._units_of(best)
        for terms in self._terms(counts).values():
            model.add(sum(terms) <= most)
        scale = _UNITS / max(value for of_pair in effort for value in of_pair)
        model.minimize(
            sum(
                round(value * scale) * variable
                for of_pair, variables in zip(effort, counts, strict=True)
                for value, variable in zip(of_pair, variables, strict=True)
            )
        )
        return self._answer(model, counts, limits) or best

    def _model(self, hint: list[list[int]]) -> tuple[Any, list[list[Any]]]:
        model = import_cp_model().CpModel()
        counts = []
        for pair, of_pair in enumerate(hint):
            variables = [model.new_int_var(0, self.parts, f"n{pair}_{i}") for i in range(len(of_pair))]
            model.add(sum(variables) == self.parts)
            for variable, count in zip(variables, of_pair, strict=True):
                model.add_hint(variable, count)
            counts.append(variables)
        return model, counts

    def _terms(self, counts: list[list[Any]]) -> dict[int, list[Any]]:
        """Load of every resource orbit."""
        terms: dict[int, list[Any]] = {}
        for of_pair, variables in zip(self.loads, counts, strict=True):
            for load, variable in zip(of_pair, variables, strict=True):
                for orbit, time_us in load.items():
                    terms.setdefault(orbit, []).append(math.ceil(time_us / self.unit_us - 1e-9) * variable)
        return terms

    def _units_of(self, counts: list[list[int]]) -> int:
        return max((sum(terms) for terms in self._terms(counts).values()), default=0)

    def _answer(self, model: Any, counts: list[list[Any]], limits: Limits) -> list[list[int]] | None:
        outcome = solve_cp(model, limits.within(limits.seconds / 2, _WORK / 2))
        if outcome.status not in (Status.OPTIMAL, Status.FEASIBLE):
            return None
        return [[outcome.value(variable) for variable in variables] for variables in counts]

"""Bandwidth where links share ports: loads of links that let every set of ranks give and get what it must.

Let x be the megabytes that an algorithm carries over each link for each megabyte of size. Two things hold, however it cuts its data, whom
it copies from and in which order:

* *service*: a link or port is busy for beta times what goes through it, so that is at most T, sum after sum.
* *cuts*: what the ranks of a set S have and someone outside wants leaves S at least once, so the links out of S carry at least that much.
  In a sum (AllReduce) every set has something to give that all others want, as much as one rank.
* *divisions* (AllReduce): links between k groups of ranks carry every sum at least 2(k - 1) times. Look at one byte, and at its messages in
  the order in which they arrive. A group is complete when its ranks together know something of every group. When the first one is, each of the
  k - 1 others has sent something to another group; later each of them still has to be completed, by a message from another group that
  arrives then. No message is counted twice.

The least T of this linear program is therefore a bound, and so is that of any part of its rows: prices of links and ports, which add up to 1,
and of rows prove it. Rows are found as they are needed. A cut that x violates is a smallest cut (maximum flow); a division, see
`taccl_py.synthesis.bounds.partition`.

Where data is only copied, nothing better can be said of bandwidth: by Edmonds' theorem on branchings ("Edge-disjoint branchings", 1973; of
several roots: Frank, 1978) loads that satisfy all cuts hold trees that carry everything, so T is the optimum of packing trees, of
all roots together, over links and shared ports. Gather and Scatter are flows, for which the same holds by Ford and Fulkerson.

Averaged over the machine's symmetry loads stay loads, so links that it exchanges have one variable, and the bound holds for all
algorithms, symmetric or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from taccl_py.arrays import BoolArray, FloatArray, IntArray
from taccl_py.solvers.max_flow import min_cut
from taccl_py.solvers.rows import RowProgram, RowSolution
from taccl_py.solvers.sparse import Coefficients
from taccl_py.synthesis.bounds.net import Net, OrbitMembers
from taccl_py.synthesis.bounds.partition import narrowest_partition

# Orbits of links beyond which the program takes long, arcs of all maximum flows of one round (of more sinks some are left out), and
# links times ranks beyond which no division is looked for. All are of size, so that the bound is the same everywhere.
_MOST_COLUMNS, _MOST_ARCS, _MOST_PLACES = 20_000, 2_000_000, 2_000_000
_MOST_ROUNDS = 100
# What is short of a row by less than this share satisfies it.
_SHORT = 1e-7
# Share of the price that all links and ports have alike, so that rounding of the solver's prices is paid for.
_EVEN = 1e-8
# A row of a smaller share of the bound is not named.
_NAMED = 1e-6
_SPREADINGS = 4


@dataclass(frozen=True, eq=False)
class Requirement:
    """Links that have to carry so much together.

    Attributes
    ----------
    group_of
        The division of the ranks, [rank]; of a cut, 0 is the side that gives and 1 the other.
    is_cut
        Only links from group 0 to group 1 count; otherwise all links between groups.
    least_mb
        What they carry at least for each megabyte of size.
    """

    group_of: IntArray
    is_cut: bool
    least_mb: float

    def crossing(self, net: Net) -> BoolArray:
        """Links that count, [link]."""
        before, after = self.group_of[net.src], self.group_of[net.dst]
        return np.asarray((before < after) if self.is_cut else (before != after), dtype=np.bool_)


@dataclass(frozen=True, eq=False)
class LoadBound:
    """A bound on weighted loads.

    Attributes
    ----------
    weights
        Of links and ports, [resource]; they add up to 1.
    amount_us
        Weighted load, in us for each megabyte of size, that no algorithm is below.
    binding
        Rows that make it so, the weightiest first.
    """

    weights: FloatArray
    amount_us: float
    binding: tuple[Requirement, ...]


class _LinkLoads:
    """The linear program of loads with the rows so far."""

    def __init__(self, net: Net, orbits: OrbitMembers) -> None:
        self.net = net
        self._orbits, self._resources = orbits, np.unique(orbits.resource)
        _, self._column = np.unique(orbits.resource[: net.num_links], return_inverse=True)
        self._columns = int(self._column.max()) + 1
        self._scale = float(net.beta_us_per_mb.max())
        self._loads = self._load_rows()
        self._program = RowProgram(self._loads, len(self._resources), self._columns)
        self._known: dict[bytes, float] = {}
        self._rows: list[tuple[Requirement, FloatArray]] = []

    def _load_rows(self) -> Coefficients:
        """Load of one resource of every orbit; none of a link on which a port that it uses is always as busy."""
        net = self.net
        beta, first = net.beta_us_per_mb, net.num_links
        is_port = net.use_resource >= first
        slowest_port = np.zeros(first)
        np.maximum.at(slowest_port, net.use_link[is_port], beta[net.use_resource[is_port]])
        counts = np.zeros(len(beta), dtype=bool)
        counts[self._resources] = True
        counts[:first] &= beta[:first] > slowest_port
        uses = counts[net.use_resource] & (beta[net.use_resource] > 0)
        link, resource = net.use_link[uses], net.use_resource[uses]
        row, value = self._orbits.number[resource], beta[resource] / self._scale
        key, place = np.unique(row * self._columns + self._column[link], return_inverse=True)
        summed = np.asarray(np.bincount(place, value), dtype=np.float64)
        return Coefficients(key // self._columns, key % self._columns, summed)

    def ask(self, requirement: Requirement) -> bool:
        """Add a row; whether it is new."""
        crossing = requirement.crossing(self.net)
        name = crossing.tobytes()
        if self._known.get(name, 0.0) >= requirement.least_mb or not crossing.any():
            return False
        self._known[name] = requirement.least_mb
        weights = np.bincount(self._column[crossing], minlength=self._columns).astype(np.float64)
        used = np.flatnonzero(weights)
        self._program.add(used, weights[used], requirement.least_mb)
        self._rows.append((requirement, weights))
        return True

    def solve(self) -> RowSolution:
        """Least loads for the rows so far."""
        return self._program.solve()

    def enlarged(self, solution: RowSolution) -> FloatArray:
        """Loads of links that are as large as links and ports serve in the optimum's time, [link]; they violate fewer rows."""
        net = self.net
        found: FloatArray = solution.values[self._column]
        beta = net.beta_us_per_mb / self._scale
        users = np.bincount(net.use_resource, minlength=len(beta)) * beta
        for _ in range(_SPREADINGS):
            free = np.maximum(0.0, solution.objective - net.sum_over_resources(found) * beta)
            each = np.divide(free, users, out=np.full(len(beta), np.inf), where=users > 0)
            more = np.full(net.num_links, np.inf)
            np.minimum.at(more, net.use_link, each[net.use_resource])
            # What nothing limits may carry everything, twice over.
            found = found + np.where(np.isfinite(more), more, 2.0)
        return found

    def proved(self, solution: RowSolution) -> LoadBound:
        """The bound that the optimum's prices prove, whatever the solver's tolerances are."""
        serving = np.bincount(self._loads.row, minlength=len(self._resources)) > 0
        prices = (1 - _EVEN) * solution.prices + _EVEN * serving / max(1, int(serving.sum()))
        costs = np.bincount(
            self._loads.column, self._loads.value * prices[self._loads.row], minlength=self._columns
        )  # of a unit on all links of an orbit
        asked = np.zeros(self._columns)
        worth = np.where(solution.worth > _EVEN * max(1.0, float(solution.worth.max(initial=0.0))), solution.worth, 0.0)
        for (_, weights), each in zip(self._rows, worth.tolist(), strict=True):
            if each > 0:
                asked += each * weights
        fits = np.divide(costs, asked, out=np.full(self._columns, np.inf), where=asked > 0)
        parts = np.array([row.least_mb for row, _ in self._rows]) * worth
        amount = float(parts.sum()) * min(1.0 - _EVEN, float(fits.min(initial=np.inf))) * self._scale
        named = [int(i) for i in np.argsort(-parts, kind="stable") if parts[i] > _NAMED * float(parts.sum())]
        return LoadBound(self._orbits.shared(prices), amount, tuple(self._rows[i][0] for i in named))


def copy_loads(net: Net, orbits: OrbitMembers, supply: FloatArray, sinks: list[int]) -> LoadBound | None:
    """Bound for a collective in which everyone who wants something wants everything; None on a machine that is too large.

    Parameters
    ----------
    net
        The machine, in the direction in which data flows.
    orbits
        Symmetry of machine, supply and sinks.
    supply
        What every rank has, as a share of the size, [rank].
    sinks
        Ranks that want all of it; one of each orbit is enough.
    """
    loads = _loads_of(net, orbits)
    if loads is None:
        return None
    ranks = np.arange(net.num_ranks)
    for rank in sorted({*sinks, *np.flatnonzero(supply > 0).tolist()}):
        for giving in (ranks == rank, ranks != rank):
            if supply[giving].any() and not giving[sinks].all():
                loads.ask(_cut(giving, float(supply[giving].sum())))
    having = np.flatnonzero(supply > 0)
    tail = np.concatenate([np.full(len(having), net.num_ranks), net.src])
    head = np.concatenate([having, net.dst])
    total = float(supply.sum())

    def missing(carried: FloatArray) -> Iterable[Requirement]:
        for sink in _some(sinks, net):
            found = min_cut(tail, head, np.concatenate([supply[having], carried]), net.num_ranks, sink)
            if found.flow < total * (1 - _SHORT):
                giving = found.near[: net.num_ranks]
                yield _cut(giving, float(supply[giving].sum()))

    return _solved(loads, missing)


def sum_loads(net: Net, orbits: OrbitMembers, divisions: Iterable[IntArray]) -> LoadBound | None:
    """Bound for AllReduce; None on a machine that is too large.

    Parameters
    ----------
    net, orbits
        The machine and its symmetry.
    divisions
        Divisions of the ranks that are known to say much, by the group of every rank.
    """
    loads = _loads_of(net, orbits)
    if loads is None:
        return None
    ranks = np.arange(net.num_ranks)
    for rank in orbits.ranks():
        for giving in (ranks == rank, ranks != rank):
            loads.ask(_cut(giving, 1.0))
    for group_of in divisions:
        loads.ask(_division(group_of))
    sinks = _some(orbits.enough_for(0), net)
    divides = net.num_links * net.num_ranks <= _MOST_PLACES

    def missing(carried: FloatArray) -> Iterable[Requirement]:
        for sink in sinks:
            for source, target in ((0, sink), (sink, 0)):
                found = min_cut(net.src, net.dst, carried, source, target)
                if found.flow < 1 - _SHORT:
                    yield _cut(found.near[: net.num_ranks], 1.0)
        if divides:
            group_of, short = narrowest_partition(net.num_ranks, net.src, net.dst, carried, 2.0)
            if short > _SHORT:
                yield _division(group_of)

    return _solved(loads, missing)


def _loads_of(net: Net, orbits: OrbitMembers) -> _LinkLoads | None:
    columns = len(np.unique(orbits.resource[: net.num_links]))
    is_served = columns <= _MOST_COLUMNS and (net.beta_us_per_mb > 0).any()
    return _LinkLoads(net, orbits) if is_served else None


def _some(sinks: list[int], net: Net) -> list[int]:
    """As many sinks as the machine's size allows."""
    return sinks[: max(1, _MOST_ARCS // max(1, net.num_links))]


def _cut(giving: BoolArray, least_mb: float) -> Requirement:
    return Requirement(np.where(giving, 0, 1), True, least_mb)


def _division(group_of: IntArray) -> Requirement:
    return Requirement(group_of, False, 2.0 * (len(np.unique(group_of)) - 1))


def _solved(loads: _LinkLoads, missing: Callable[[FloatArray], Iterable[Requirement]]) -> LoadBound | None:
    """Bound when no row is missing, or after as many rounds as are worth it; None if it is 0."""
    solution = loads.solve()
    for _ in range(_MOST_ROUNDS):
        found = [loads.ask(requirement) for requirement in missing(loads.enlarged(solution))]
        if not any(found):
            break
        solution = loads.solve()
    bound = loads.proved(solution)
    return bound if bound.amount_us > 0 else None  # data that takes links and ports no time

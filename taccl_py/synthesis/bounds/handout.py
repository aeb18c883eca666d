"""Bound on middle sizes of AllGather, ReduceScatter and AllReduce: what comes into a node late has to be handed out there.

Ranks outside a node B have something for every rank b of it. Choose a time t. What b has of it in the end was in B by t, or it came
later over b's own ways in, or over links inside B in what is left of the time. Added up over the ranks of B,

    |B| * (what must come) <= |B| * (what came in by t) + (what came in later) + (rate inside B) * (T - t - alpha)

holds for every t, and so does every average of it over t. What is on the right hand side of an average is a sum over the messages
that come in, each worth its size times a weight that falls with its arrival. Messages follow each other through the gates of B, at
least alpha and beta for each byte apart, and none carries more than its sender can know by its start; so what all of them are worth
at most is a longest path over starts and arrivals. If that is less than what is needed, T is too short.

An AllReduce is this twice: contributions, too, have to be collected in a node before they leave it, which is the same backwards. The
messages between nodes are the same ones, so both inequalities are added up.

Time goes in cells, and everything is rounded in favour of the schedule.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from taccl_py.collective import Kind
from taccl_py.synthesis.bounds.bound import Bound
from taccl_py.synthesis.bounds.crossing import Cluster, Gate, earliest
from taccl_py.synthesis.bounds.cut import CutFinder
from taccl_py.synthesis.bounds.net import FloatArray, Orbits
from taccl_py.synthesis.symmetry import IntArray
from taccl_py.units import BYTES_PER_MB

# Cells in the time within which the bound is looked for, and by how much it may exceed the bound that is known.
_CELLS, _STRETCH = 240, 2.5
# A gate's alpha must last for so many cells.
_LEAST_CELLS = 2.0
# Averages over t: a part of the weight lies on the end, the rest evenly on times from a first one on, all as shares of T.
_FIRST, _LENGTH, _AT_END = np.linspace(0.1, 0.9, 12), np.array([0.02, 0.15, 0.3, 0.45]), np.array([0.0, 0.3, 0.6, 1.0])
_PRECISION = 2e-3


@dataclass(frozen=True)
class Hub:
    """The best that ranks of any node can do to get to know something.

    Attributes
    ----------
    gate
        A way into a node: least alpha and beta of any.
    gates, own
        Ways into a node, and into a rank from outside its node, at most.
    ranks
        Ranks of a node, at most.
    rate_mb_per_us, alpha_us
        What comes to a rank over links inside its node, and the least time of a message on these.
    hears_us
        Times by which a rank can have heard from one, two, ... ranks of its node.
    """

    gate: Gate
    gates: int
    own: int
    ranks: int
    rate_mb_per_us: float
    alpha_us: float
    hears_us: tuple[float, ...]

    def known(self, cells: int, cell_us: float, share_mb: float) -> FloatArray:
        """Shares of ranks that a rank knows at most by the end of every cell.

        By t it knows at most what was in its node by some earlier time, and of what came in later, only what entered at as many ranks
        as it can have heard from since, and no more than comes over its links.
        """
        per_share_us = self.gate.beta_us_per_mb * share_mb
        known, brought = np.zeros(cells), np.zeros(cells)
        lead = int(self.gate.alpha_us / cell_us)
        ends: FloatArray = np.arange(1.0, cells + 1.0) * cell_us
        heard = np.searchsorted(np.array(self.hears_us), ends * (1 + 1e-9), side="right").astype(np.float64)
        extra = (
            np.maximum(0.0, ends - self.alpha_us) * self.rate_mb_per_us / share_mb if share_mb > 0 else ends + np.inf
        )
        for cell in range(cells):
            best = brought[cell - 1] if cell else 0.0
            if cell >= lead:
                starts = np.arange(cell - lead + 1)
                size = _size(known[starts], ends[cell - starts], self.gate.alpha_us, per_share_us)
                best = max(best, float((size + brought[starts]).max()))
            brought[cell] = best
            # In the node by the end of an earlier cell: what its ranks have, and what came over all gates.
            before = self.ranks + self.gates * brought[:cell]
            since = np.minimum(heard[:cell] * self.own * best, self.own * best + extra[:cell])[::-1]
            found = heard[cell] * (1 + self.own * best)
            known[cell] = min(found, float((before + since).min())) if cell else found
        return known


def _size(known: FloatArray, lasting_us: FloatArray, alpha_us: float, per_share_us: float) -> FloatArray:
    """Shares in a message that lasts at most so long."""
    if per_share_us <= 0:
        return known
    found: FloatArray = np.minimum(known, np.maximum(0.0, lasting_us - alpha_us) / per_share_us)
    return found


@dataclass(frozen=True)
class Handout:
    """What has to come into a node B and to be handed out there.

    Attributes
    ----------
    gates
        Ways into B, and how many of each sort.
    ranks, others
        Ranks of B, and those outside.
    rate_mb_per_us, alpha_us
        What all ranks of B together get over links inside B, and the least time of a message on these.
    forth, back
        What ranks can get to know, on the machine and on the machine turned around. `back` is of use for sums only.
    is_sum
        Whether everything is added up, as in AllReduce.
    both_ways
        Whether all nodes are like B, and backwards the same, so that for sums both inequalities count.
    reason
        For people.
    """

    gates: tuple[tuple[Gate, int], ...]
    ranks: int
    others: int
    rate_mb_per_us: float
    alpha_us: float
    forth: Hub
    back: Hub
    is_sum: bool
    both_ways: bool
    reason: str

    def at(self, size_bytes: float, least_us: float) -> Bound:
        """Bound for a size; 0 if it is not above the bound that is known."""
        total = self.ranks + self.others
        search = _Search(self, size_bytes / BYTES_PER_MB / (1 if self.is_sum else total), least_us)
        return Bound(search.longest_us(), self.reason)


class _Search:
    """The largest T that is proved to be too short."""

    def __init__(self, handout: Handout, unit_mb: float, least_us: float) -> None:
        """Take a unit of data that is a rank's share, or everything if it is summed."""
        self._handout, self._unit_mb, self._least_us = handout, unit_mb, least_us
        self._cell_us = least_us * _STRETCH / _CELLS
        self._wanted = 1.0 if handout.is_sum else float(handout.others)
        gates = [handout.forth.gate, handout.back.gate, *(gate for gate, _ in handout.gates)]
        self._works = least_us > 0 and unit_mb > 0 and min(g.alpha_us for g in gates) >= _LEAST_CELLS * self._cell_us
        if not self._works:
            return
        share_mb = 0.0 if handout.is_sum else unit_mb
        told = handout.forth.known(_CELLS, self._cell_us, share_mb)
        self._told = np.minimum(1.0, told / handout.others) if handout.is_sum else told
        reach = handout.back.known(_CELLS, self._cell_us, 0.0) if handout.both_ways else np.zeros(_CELLS)
        self._reach = np.minimum(1.0, reach / handout.others)

    def longest_us(self) -> float:
        if not self._works or not self._too_short(self._least_us * (1 + _PRECISION)):
            return 0.0
        low, high = self._least_us * (1 + _PRECISION), self._least_us * _STRETCH * (1 - _PRECISION)
        while high - low > _PRECISION * low:
            middle = (low + high) / 2
            low, high = (middle, high) if self._too_short(middle) else (low, middle)
        return low

    def _too_short(self, time_us: float) -> bool:
        """Whether for some average not enough can come in and be handed out by a time."""
        handout = self._handout
        average = _Average.of(time_us)
        inside = handout.rate_mb_per_us / self._unit_mb * average.left_us(time_us - handout.alpha_us)
        worth = sum(number * self._worth(gate, time_us, average) for gate, number in handout.gates)
        return bool((worth + inside < handout.ranks * self._wanted * (1 - 1e-9)).any())

    def _worth(self, gate: Gate, time_us: float, average: _Average) -> FloatArray:
        """What messages through a gate are worth at most, [average]."""
        cells = int(time_us / self._cell_us) + 1
        starts: FloatArray = np.arange(float(cells)) * self._cell_us
        out = self._weights(starts, average)
        # Backwards what is collected counts as what is handed out does, and time runs from the end of a message's first cell.
        collected = self._weights(time_us - starts - self._cell_us, average)
        reach = self._reach[np.minimum(_CELLS - 1, ((time_us - starts) / self._cell_us).astype(np.int64))]
        per_unit_us, lead = gate.beta_us_per_mb * self._unit_mb, int(gate.alpha_us / self._cell_us)
        lasting: FloatArray = starts + self._cell_us
        whole = np.full(cells, self._wanted)
        best = np.zeros((len(average.at_end), cells + 1))
        for cell in range(cells - 1, -1, -1):
            best[:, cell] = best[:, cell + 1]
            if cell + lead >= cells:
                continue
            ends = np.arange(cell + lead, cells)
            most = whole[ends] if self._handout.is_sum else np.full(len(ends), self._told[cell])
            size = _size(most, lasting[ends - cell], gate.alpha_us, per_unit_us)
            weight = out[:, ends]
            if self._handout.is_sum:
                weight = weight * self._told[cell]
            if self._handout.both_ways:
                weight = (weight + collected[:, cell, None] * reach[None, ends]) / 2
            best[:, cell] = np.maximum(best[:, cell], (size * weight + best[:, ends]).max(axis=1))
        return np.asarray(best[:, 0], dtype=np.float64)

    def _weights(self, times_us: FloatArray, average: _Average) -> FloatArray:
        """Worth of what arrives at some times: for all ranks if it is by t, else for the one that it comes to, [average, time]."""
        found: FloatArray = (self._handout.ranks - 1) * average.not_before(times_us) + 1
        return found


@dataclass(frozen=True)
class _Average:
    """Averages over times t: `at_end` of the weight on the end, the rest evenly between two times, [average]."""

    first_us: FloatArray
    last_us: FloatArray
    at_end: FloatArray

    @staticmethod
    def of(time_us: float) -> _Average:
        """Those that are tried for a time."""
        first, length, at_end = (part.reshape(-1) for part in np.meshgrid(_FIRST, _LENGTH, _AT_END))
        return _Average(first * time_us, (first + length) * time_us, at_end)

    def not_before(self, times_us: FloatArray) -> FloatArray:
        """Weight of the t that are not before some times, [average, time]."""
        width = (self.last_us - self.first_us)[:, None]
        spread = np.clip((self.last_us[:, None] - times_us[None, :]) / width, 0.0, 1.0)
        found: FloatArray = self.at_end[:, None] + (1 - self.at_end[:, None]) * spread
        return found

    def left_us(self, end_us: float) -> FloatArray:
        """Average of what is left from t to a time before the end, 0 for a later t."""
        last = np.minimum(self.last_us, end_us)
        counts = np.maximum(0.0, last - self.first_us) / (self.last_us - self.first_us)
        found: FloatArray = (1 - self.at_end) * counts * (end_us - (self.first_us + last) / 2)
        return found


@dataclass(frozen=True)
class _Inside:
    """What comes over some links together, and the least alpha of what they share."""

    rate_mb_per_us: float
    alpha_us: float

    @staticmethod
    def of(cluster: Cluster, finder: CutFinder, links: IntArray) -> _Inside:
        """Of links that nothing limits the rate is infinite."""
        if not len(links):
            return _Inside(0.0, 0.0)
        resources = finder.cheapest_cover(links)
        if resources is None:
            return _Inside(np.inf, 0.0)
        net = cluster.net
        return _Inside(float((1 / net.beta_us_per_mb[resources]).sum()), float(net.alpha_us[resources].min()))


def handouts(cluster: Cluster, kind: Kind, near: list[int], orbits: Orbits) -> Iterator[Handout]:
    """Bounds for what is handed out in some nodes, or collected there; none for other collectives."""
    if kind not in (Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.ALLREDUCE):
        return
    machines = (cluster, cluster.reversed())
    hubs = [_hub(machine, orbits) for machine in machines]
    alike = kind is Kind.ALLREDUCE and _nodes_alike(cluster, orbits)
    ways = {Kind.ALLGATHER: (0,), Kind.REDUCESCATTER: (1,), Kind.ALLREDUCE: (0,) if alike else (0, 1)}[kind]
    for node in near:
        for way in ways:
            found = _handout(machines[way], node, (hubs[way], hubs[1 - way]), kind, alike)
            if np.isfinite(found.rate_mb_per_us):
                what = f"what comes into node {node} late is handed out there"
                if way:
                    what = f"what leaves node {node} early is collected there"
                yield replace(found, reason=f"handing out: {what}" + (", and collected before" if alike else ""))


def _handout(machine: Cluster, node: int, hubs: tuple[Hub, Hub], kind: Kind, both_ways: bool) -> Handout:
    node_of, net = machine.node_of, machine.net
    links = np.flatnonzero((node_of[net.src] == node) & (node_of[net.dst] == node))
    inside = _Inside.of(machine, CutFinder(net), links)
    ranks = machine.telling.sizes[node]
    gates = tuple(Counter(gate for gate, _ in machine.gates(frozenset({node}))).items())
    return Handout(
        gates, ranks, net.num_ranks - ranks, inside.rate_mb_per_us, inside.alpha_us, *hubs,
        is_sum=kind is Kind.ALLREDUCE, both_ways=both_ways, reason="",
    )  # fmt: skip


def _hub(machine: Cluster, orbits: Orbits) -> Hub:
    """What is best of all nodes and ranks of a machine."""
    net, node_of, finder = machine.net, machine.node_of, CutFinder(machine.net)
    inside = node_of[net.src] == node_of[net.dst]
    ranks = [_Inside.of(machine, finder, np.flatnonzero(inside & (net.dst == rank))) for rank in orbits.ranks()]
    every = [machine.gates(frozenset({node})) for node in range(len(machine.telling.sizes))]
    gates = [gate for of_node in every for gate, _ in of_node]
    own = Counter(rank for of_node in every for _, links in of_node for rank in np.unique(net.dst[links]).tolist())
    hears = (earliest(machine.hearing, frozenset({n}), frozenset({n})) for n in range(len(every)))
    return Hub(
        Gate(
            min(gate.alpha_us for gate in gates),
            min(gate.beta_us_per_mb for gate in gates),
            min(gate.least_us for gate in gates),
        ),
        gates=max(map(len, every)), own=max(own.values()), ranks=max(machine.telling.sizes),
        rate_mb_per_us=max(rank.rate_mb_per_us for rank in ranks), alpha_us=min(rank.alpha_us for rank in ranks),
        hears_us=tuple(min(times) for times in zip_longest(*hears, fillvalue=math.inf)),
    )  # fmt: skip


def _nodes_alike(cluster: Cluster, orbits: Orbits) -> bool:
    """Whether the symmetry takes every node to every other one."""
    node_of = cluster.node_of
    number = len(cluster.telling.sizes)
    first = np.array([int(np.flatnonzero(node_of == node)[0]) for node in range(number)])
    for image in orbits.images:
        moved = node_of[image]
        if not np.array_equal(moved, moved[first][node_of]):
            return False
    return any(len(np.unique(node_of[orbits.rank == label])) == number for label in np.unique(orbits.rank))

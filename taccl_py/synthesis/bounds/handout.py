"""Bound on middle sizes of collectives in which everyone gets everything: what comes into a node late has to be handed out there.

Ranks outside a node B have something for every rank b of it. Choose a time t. What b has of it in the end was in B by t, or it came
later over b's own ways in, or over links inside B in what is left of the time. Added up over the ranks of B,

    |B| * (what must come) <= |B| * (what came in by t) + (what came in later) + (rate inside B) * (T - t - alpha)

holds for every t, and so does every average of it over t. The last term also is no more than what can multiply inside B from the
messages that came in later (`taccl_py.synthesis.bounds.knowledge`). What is on the right hand side of an average is a sum over the
messages that come in, each worth its size times a weight that falls with its arrival. Messages follow each other through the gates
of B, at least alpha and beta for each byte apart, and none carries more than its sender can know by its start; so what all of them
are worth at most is a longest path over starts and arrivals. If that is less than what is needed, T is too short.

A Broadcast is the same with everything in one place: what a message can carry is what its sender has got from the root by its start
(`taccl_py.synthesis.bounds.senders`); a ReduceScatter and a Reduce are an AllGather and a Broadcast backwards.

An AllReduce is this twice: contributions, too, have to be collected in a node before they leave it, which is the same backwards. The
messages between nodes are the same ones, so both inequalities are added up.

Time goes in cells, and everything is rounded in favour of the schedule.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from taccl_py.collective import Kind
from taccl_py.synthesis.bounds.bound import Bound
from taccl_py.synthesis.bounds.crossing import Cluster, Gate, earliest
from taccl_py.synthesis.bounds.cut import CutFinder
from taccl_py.synthesis.bounds.knowledge import Hub, Learned, size_within
from taccl_py.synthesis.bounds.net import FloatArray, Orbits
from taccl_py.synthesis.bounds.senders import Sender, senders_of
from taccl_py.synthesis.symmetry import IntArray
from taccl_py.units import BYTES_PER_MB

# Cells in the time within which the bound is looked for, and by how much it may exceed the bound that is known; then again,
# beyond what was found, by averages that differ so much from the best one; and once more for so many ranks, where other things
# take longer.
_CELLS, _STRETCH = 240, 2.5
_FINE = ((400, 1.1, 1.0), (640, 1.04, 0.4))
_MANY = 256
# First part of a window of an average.
_HEAD = 0.2
# A gate's alpha must last for so many cells.
_LEAST_CELLS = 2.0
_PRECISION = 1e-3


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
    senders
        If all is one root's: ways out of its node, and how many of each sort; there are two nodes then.
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
    senders: tuple[tuple[Sender, int], ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether there is one unit of data for all, which is summed up or the root's, and not one for each rank."""
        return self.is_sum or bool(self.senders)

    def at(self, size_bytes: float, least_us: float) -> Bound:
        """Bound for a size; 0 if it is not above the bound that is known."""
        total = self.ranks + self.others
        unit_mb = size_bytes / BYTES_PER_MB / (1 if self.is_whole else total)
        alphas = [gate.alpha_us for gate in (self.forth.gate, self.back.gate, *(gate for gate, _ in self.gates))]
        if least_us <= 0 or unit_mb <= 0 or min(alphas) < _LEAST_CELLS * least_us * _STRETCH / _CELLS:
            return Bound(0.0, self.reason)
        best = _Search(self, unit_mb, least_us, _CELLS, _STRETCH).longest(_Average.all())
        if best is None:
            return Bound(0.0, self.reason)
        for cells, stretch, step in _FINE[: 1 + (total >= _MANY)]:
            best = _Search(self, unit_mb, best.time_us, cells, stretch).longest(best.average.near(step)) or best
        return Bound(best.time_us, self.reason)


@dataclass(frozen=True, slots=True)
class _TooShort:
    """A time that is too short, and an average by which it is."""

    time_us: float
    average: _Average


@dataclass(frozen=True)
class _Chain:
    """Messages one after the other through a gate, of which there are so many: what one carries at most, by the cell it starts in."""

    gate: Gate
    number: int
    most: FloatArray


class _Search:
    """The largest T up to so many times a known bound that is proved to be too short."""

    def __init__(self, handout: Handout, unit_mb: float, least_us: float, cells: int, stretch: float) -> None:
        """Take a unit of data that is a rank's share, or everything."""
        self._handout, self._unit_mb, self._least_us = handout, unit_mb, least_us
        self._cells, self._stretch, self._cell_us = cells, stretch, least_us * stretch / cells
        self._wanted = 1.0 if handout.is_whole else float(handout.others)
        if handout.senders:
            self._learned = [handout.forth.learned(cells, self._cell_us, unit_mb, np.ones(cells))]
            self._told = self._reach = np.zeros(cells)
            ends: FloatArray = np.arange(1.0, cells + 1.0) * self._cell_us
            self._chains = [_Chain(one.gate, number, one.known(ends, unit_mb)) for one, number in handout.senders]
            return
        if handout.is_sum:
            told, reach = (hub.learned(cells, self._cell_us, 0.0).known for hub in (handout.forth, handout.back))
            self._told, self._reach = (np.minimum(1.0, known / handout.others) for known in (told, reach))
            hubs, sent = (handout.forth, handout.back)[: 1 + handout.both_ways], np.ones(cells)
            self._learned = [hub.learned(cells, self._cell_us, unit_mb, sent) for hub in hubs]
        else:
            self._learned = [handout.forth.learned(cells, self._cell_us, unit_mb)]
            self._told, self._reach = self._learned[0].known, np.zeros(cells)
        most = np.full(cells, self._wanted) if handout.is_sum else self._told
        self._chains = [_Chain(gate, number, most) for gate, number in handout.gates]

    def longest(self, averages: _Averages) -> _TooShort | None:
        """None if the known bound cannot be proved to be too short either."""
        found = self._short(self._least_us * (1 + _PRECISION), averages)
        low, high = self._least_us * (1 + _PRECISION), self._least_us * self._stretch * (1 - _PRECISION)
        while found and high - low > _PRECISION * low:
            middle = (low + high) / 2
            better = self._short(middle, averages)
            found, low, high = (better, middle, high) if better else (found, low, middle)
        return found

    def _short(self, time_us: float, averages: _Averages) -> _TooShort | None:
        """Whether for some average not enough can come in and be handed out by a time."""
        handout, scaled = self._handout, averages.times(time_us)
        inside = np.mean([self._inside(learned, time_us, scaled) for learned in self._learned], axis=0)
        worth = np.sum([chain.number * self._worth(chain, time_us, scaled) for chain in self._chains], axis=0)
        lacks: FloatArray = handout.ranks * self._wanted * (1 - 1e-9) - (worth + inside)
        worst = int(lacks.argmax())
        return _TooShort(time_us, averages.one(worst)) if lacks[worst] > 0 else None

    def _inside(self, learned: Learned, time_us: float, averages: _Averages) -> FloatArray:
        """What all ranks get over links inside the node after t of what came there after t, on average."""
        handout = self._handout
        starts: FloatArray = np.arange(float(len(learned.handed))) * learned.stride_us
        left_us = np.maximum(0.0, time_us - handout.alpha_us - starts)
        cell = min(self._cells - 1, int(time_us / self._cell_us))
        most = np.minimum(handout.rate_mb_per_us / self._unit_mb * left_us, handout.ranks * learned.handed[:, cell])
        most[starts > time_us] = 0.0
        return averages.between(starts, learned.stride_us) @ most

    def _worth(self, chain: _Chain, time_us: float, averages: _Averages) -> FloatArray:
        """What messages through a gate are worth at most, [average]."""
        gate = chain.gate
        cells = int(time_us / self._cell_us) + 1
        starts: FloatArray = np.arange(float(cells)) * self._cell_us
        out = self._weights(starts, averages)
        # Backwards what is collected counts as what is handed out does, and time runs from the end of a message's first cell.
        collected = self._weights(time_us - starts - self._cell_us, averages)
        reach = self._reach[np.minimum(self._cells - 1, ((time_us - starts) / self._cell_us).astype(np.int64))]
        per_unit_us, lead = gate.beta_us_per_mb * self._unit_mb, int(gate.alpha_us / self._cell_us)
        lasting: FloatArray = starts + self._cell_us
        best = np.zeros((len(averages.at_end), cells + 1))
        for cell in range(cells - 1, -1, -1):
            best[:, cell] = best[:, cell + 1]
            if cell + lead >= cells:
                continue
            ends = np.arange(cell + lead, cells)
            most = np.full(len(ends), chain.most[cell])
            size = size_within(most, lasting[ends - cell], gate.alpha_us, per_unit_us)
            weight = out[:, ends]
            if self._handout.is_sum:
                weight = weight * self._told[cell]
            if self._handout.both_ways:
                weight = (weight + collected[:, cell, None] * reach[None, ends]) / 2
            best[:, cell] = np.maximum(best[:, cell], (size * weight + best[:, ends]).max(axis=1))
        return np.asarray(best[:, 0], dtype=np.float64)

    def _weights(self, times_us: FloatArray, averages: _Averages) -> FloatArray:
        """Worth of what arrives at some times: for all ranks if it is by t, else for the one that it comes to, [average, time]."""
        found: FloatArray = (self._handout.ranks - 1) * averages.not_before(times_us) + 1
        return found


@dataclass(frozen=True, slots=True)
class _Average:
    """An average over times t, as shares of T: `at_end` of the weight on the end, of the rest `head` on the first part of a window.

    Everything else is even over the window.
    """

    first: float
    length: float
    at_end: float
    head: float

    @staticmethod
    def all() -> _Averages:
        """Those that are tried first."""
        return _Averages.of(
            np.linspace(0.1, 0.9, 12),
            np.array([0.02, 0.15, 0.3, 0.45]),
            np.array([0.0, 0.3, 0.6, 1.0]),
            np.array([0.0, 0.4]),
        )

    def near(self, step: float) -> _Averages:
        """Those not far from this one, by so large steps."""
        first = np.clip(self.first + step * np.linspace(-0.09, 0.09, 7), 0.0, 0.97)
        length = np.clip(self.length + step * np.linspace(-0.12, 0.12, 5), 0.02, 1.0)
        at_end, head = (
            np.clip(share + step * np.array([-0.2, 0.0, 0.2]), 0.0, 1.0) for share in (self.at_end, self.head)
        )
        return _Averages.of(first, length, at_end, head)


@dataclass(frozen=True)
class _Averages:
    """Many averages, [average]."""

    first_us: FloatArray
    last_us: FloatArray
    at_end: FloatArray
    head: FloatArray

    @staticmethod
    def of(first: FloatArray, length: FloatArray, at_end: FloatArray, head: FloatArray) -> _Averages:
        """All combinations, where T is 1."""
        first, length, at_end, head = (part.reshape(-1) for part in np.meshgrid(first, length, at_end, head))
        return _Averages(first, first + length, at_end, head)

    def times(self, time_us: float) -> _Averages:
        """The same for another T."""
        return replace(self, first_us=self.first_us * time_us, last_us=self.last_us * time_us)

    def one(self, number: int) -> _Average:
        """One of them, where T is 1."""
        first, last, at_end, head = (
            float(values[number]) for values in (self.first_us, self.last_us, self.at_end, self.head)
        )
        return _Average(first, last - first, at_end, head)

    def not_before(self, times_us: FloatArray) -> FloatArray:
        """Weight of the t that are not before some times, [average, time]."""
        found: FloatArray = self.at_end[:, None] + (1 - self.at_end[:, None]) * (1 - self._before(times_us))
        return found

    def between(self, starts_us: FloatArray, stride_us: float) -> FloatArray:
        """Weight of the t before the end that are at some times or less than a stride later, [average, time]."""
        found: FloatArray = (1 - self.at_end[:, None]) * (self._before(starts_us + stride_us) - self._before(starts_us))
        return found

    def _before(self, times_us: FloatArray) -> FloatArray:
        """Weight of the t of the windows before some times, [average, time]."""
        passed = (times_us[None, :] - self.first_us[:, None]) / (self.last_us - self.first_us)[:, None]
        head = self.head[:, None]
        return np.asarray(
            head * np.clip(passed / _HEAD, 0.0, 1.0) + (1 - head) * np.clip(passed, 0.0, 1.0), dtype=np.float64
        )


@dataclass(frozen=True, slots=True)
class _Inside:
    """What comes over some links together, and what limits it: least alpha and beta, and how many ports and links."""

    rate_mb_per_us: float
    entry: Gate
    entries: int

    @staticmethod
    def of(cluster: Cluster, finder: CutFinder, links: IntArray) -> _Inside:
        """Of links that nothing limits the rate is infinite."""
        free = Gate(0.0, 0.0, 0.0)
        if not len(links):
            return _Inside(0.0, free, 0)
        resources = finder.cheapest_cover(links)
        if resources is None:
            return _Inside(np.inf, free, 0)
        alpha_us, beta = cluster.net.alpha_us[resources], cluster.net.beta_us_per_mb[resources]
        entry = Gate(float(alpha_us.min()), float(beta.min()), float(alpha_us.min()))
        return _Inside(float((1 / beta).sum()), entry, len(resources))


def rooted_handouts(cluster: Cluster, kind: Kind, root: int, orbits: Orbits) -> Iterator[Handout]:
    """Bound for what of a Broadcast is handed out in the other of two nodes, or collected there for a Reduce."""
    if kind not in (Kind.BROADCAST, Kind.REDUCE):
        return
    machine = cluster if kind is Kind.BROADCAST else cluster.reversed()
    senders = senders_of(machine, root)
    if senders:
        node, hub = 1 - int(machine.node_of[root]), _hub(machine, orbits)
        found = _handout(machine, node, (hub, hub), kind, both_ways=False)
        if np.isfinite(found.rate_mb_per_us):
            what = (
                "comes into node {node} late is handed out"
                if kind is Kind.BROADCAST
                else "leaves node {node} early is collected"
            )
            yield replace(found, senders=senders, reason=f"handing out: what {what.format(node=node)} there")


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
        gates, ranks, net.num_ranks - ranks, inside.rate_mb_per_us, inside.entry.alpha_us, *hubs,
        is_sum=kind is Kind.ALLREDUCE, both_ways=both_ways, reason="",
    )  # fmt: skip


def _hub(machine: Cluster, orbits: Orbits) -> Hub:
    """What is best of all nodes and ranks of a machine."""
    net, node_of, finder = machine.net, machine.node_of, CutFinder(machine.net)
    inside = node_of[net.src] == node_of[net.dst]
    ranks = [_Inside.of(machine, finder, np.flatnonzero(inside & (net.dst == rank))) for rank in machine.sorts(orbits)]
    every = [machine.gates(frozenset({node})) for node in range(len(machine.telling.sizes))]
    gates = [gate for of_node in every for gate, _ in of_node]
    own = Counter(rank for of_node in every for _, links in of_node for rank in np.unique(net.dst[links]).tolist())
    hears = (earliest(machine.hearing, frozenset({n}), frozenset({n})) for n in range(len(every)))
    limited = all(rank.entries for rank in ranks)
    return Hub(
        _quickest(gates), gates=max(map(len, every)), own=max(own.values()), ranks=max(machine.telling.sizes),
        rate_mb_per_us=max(rank.rate_mb_per_us for rank in ranks), entry=_quickest([rank.entry for rank in ranks]),
        entries=max(rank.entries for rank in ranks) if limited else 0,
        hears_us=tuple(min(times) for times in zip_longest(*hears, fillvalue=math.inf)),
    )  # fmt: skip


def _quickest(gates: Sequence[Gate]) -> Gate:
    """The least of each cost of some gates."""
    return Gate(
        min(gate.alpha_us for gate in gates),
        min(gate.beta_us_per_mb for gate in gates),
        min(gate.least_us for gate in gates),
    )


def _nodes_alike(cluster: Cluster, orbits: Orbits) -> bool:
    """Whether the symmetry takes every node to every other one."""
    number = len(cluster.telling.sizes)
    labels = np.unique(orbits.rank)
    return cluster.keeps_nodes(orbits) and any(
        len(np.unique(cluster.node_of[orbits.rank == label])) == number for label in labels
    )

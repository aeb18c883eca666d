"""Bound on middle sizes of collectives in which everyone gets everything: what comes into a node late has to be handed out there.

Ranks outside a node B have something for every rank b of it. Choose a time t. What b has of it in the end was in B by t, or it came
later over b's own ways in, or over links inside B in what is left of the time. Added up over the ranks of B,

    |B| * (what must come) <= |B| * (what came in by t) + (what came in later) + (rate inside B) * (T - t - alpha)

holds for every t, and so does every average of it over t. The last term also is no more than what can multiply inside B from the
messages that came in later (`taccl_py.synthesis.bounds.knowledge`). What is on the right hand side of an average is a sum over the
messages that come in, each worth its size times a weight that falls with its arrival. Messages follow each other through the gates
of B, at least alpha and beta for each byte apart, and none carries more than its sender can know by its start; so what all of them
are worth at most is a longest path over starts and arrivals. If that is less than what is needed, T is too short.

What came in by t is not known to all of B at once. If it is followed, it counts for those ranks only that can have been told by
messages inside B that started by t; whoever hears it in a later one does so over links inside B in what is left of the time.

A Broadcast is the same with everything in one place: what a message can carry is what its sender has got from the root by its start
(`taccl_py.synthesis.bounds.senders`); a ReduceScatter and a Reduce are an AllGather and a Broadcast backwards.

An AllReduce is this twice: contributions, too, have to be collected in a node before they leave it, which is the same backwards. The
messages between nodes are the same ones, so both inequalities are added up. A byte of a message stands for as many contributions as
can be summed up in one place by its start, but all bytes together for no more than its sender can know of all data by then.

One message of a byte does not do both for every node. Take the message by which a byte's last contribution comes into the first
node that has them all then. Until that one, every other node's contributions left it; after it, to every other node something came
that all ranks there still had to get. So of the messages between N nodes that carry a byte, N - 1 nodes need some of the first kind
for what they collect, and N - 1 some of the second kind for what they hand out, and none is of both kinds. These two inequalities,
in which a message's bytes count for the one or for the other, are averaged with those above.

Time goes in cells, and everything is rounded in favour of the schedule.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import zip_longest

import numpy as np

from taccl_py.arrays import BoolArray, FloatArray, IntArray
from taccl_py.collective import Kind
from taccl_py.solvers.columns import ColumnProgram
from taccl_py.synthesis.bounds.bound import Bound
from taccl_py.synthesis.bounds.crossing import Gate, NodeClasses, earliest
from taccl_py.synthesis.bounds.cut import CutFinder
from taccl_py.synthesis.bounds.knowledge import Hub, size_within
from taccl_py.synthesis.bounds.net import OrbitMembers
from taccl_py.synthesis.bounds.senders import RootPath, senders_of
from taccl_py.units import BYTES_PER_MB

# Chains of messages until when an average must have been found by which a time is too short.
_MOST_ROUNDS = 40
# The last stage is for so many ranks, where other things take longer.
_MANY = 256
# A gate's alpha must last for so many cells.
_LEAST_CELLS = 2.0
_PRECISION = 1e-3


@dataclass(frozen=True)
class Handout:
    """Data that have to come into a node B and to be handed out there.

    Attributes
    ----------
    gates
        Ways into B, and how many of each sort.
    ranks, others
        Ranks of B, and those outside.
    rate_mb_per_us, alpha_us
        What all ranks of B together get over links inside B, and the least time of a message on these.
    tells_us, slowest_us
        Times in which one, two, ... ranks of B can learn what one has, and the most that a message without bytes takes inside B.
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
    tells_us: tuple[float, ...]
    slowest_us: float
    forth: Hub
    back: Hub
    is_sum: bool
    both_ways: bool
    reason: str
    senders: tuple[tuple[RootPath, int], ...] = ()

    @property
    def apart(self) -> float:
        """Part of a sum that the average node hands out or collects by messages that do not do both; 0 if that says nothing new."""
        nodes = (self.ranks + self.others) / self.ranks
        return 1 - 1 / nodes if self.both_ways and nodes > 2 else 0.0

    @property
    def is_whole(self) -> bool:
        """True if there is one unit of data for all, which is summed up or the root's, and not one for each rank."""
        return self.is_sum or bool(self.senders)

    def at(self, size_bytes: float, least_us: float) -> Bound:
        """Bound for a size; 0 if it is not above the bound that is known."""
        total = self.ranks + self.others
        unit_mb = size_bytes / BYTES_PER_MB / (1 if self.is_whole else total)
        gates = [
            self.forth.gate,
            self.back.gate,
            *(gate for gate, _ in self.gates),
            *(one.gate for one, _ in self.senders),
        ]
        longest_us = min(gate.alpha_us for gate in gates) * _STAGES[0].cells / _STAGES[0].stretch / _LEAST_CELLS
        if least_us <= 0 or unit_mb <= 0 or longest_us < least_us:
            return Bound(0.0, self.reason)
        best = _HandoutSearch(self, unit_mb, least_us, _STAGES[0]).longest(None)
        if best is None:
            return Bound(0.0, self.reason)
        for stage in _STAGES[1 : 2 + (total >= _MANY)]:
            best = _HandoutSearch(self, unit_mb, best.time_us, stage).longest(best.average) or best
        return Bound(best.time_us, self.reason)


@dataclass(frozen=True, slots=True)
class _HandoutStage:
    """Cells in the time within which the bound is looked for, by how much it may exceed what is known, and how precise it is."""

    cells: int
    stretch: float
    precision: float


_STAGES = (_HandoutStage(240, 2.5, 0.02), _HandoutStage(400, 1.1, 1e-3), _HandoutStage(640, 1.04, 1e-3))


@dataclass(frozen=True)
class _Average:
    """An average over moments t, as shares of T: how much weight is on each, and whether what came by then is followed.

    Attributes
    ----------
    at
        The moments.
    followed
        Whether what has come by t is followed, or said to be known to all.
    apart
        Whether messages count for what is handed out or for what is collected, but not for both.
    weight
        Of the moments; they add up to 1.
    """

    at: FloatArray
    followed: BoolArray
    apart: BoolArray
    weight: FloatArray


@dataclass(frozen=True)
class _TooShort:
    """A time that is too short, and an average by which it is."""

    time_us: float
    average: _Average


@dataclass(frozen=True)
class _MessageChain:
    """Messages one after the other through a gate, of which there are so many: what one carries at most, by the cell it starts in."""

    gate: Gate
    number: int
    most: FloatArray


@dataclass(frozen=True, slots=True)
class _HandoutLoad:
    """Part of what has to come that a message brings at most: for each unit of its size, and in all; by cells."""

    each: FloatArray
    most: FloatArray

    @staticmethod
    def by_size(cells: int) -> _HandoutLoad:
        """As much as it carries."""
        return _HandoutLoad(np.ones(cells), np.full(cells, np.inf))

    def halved(self) -> _HandoutLoad:
        """Half of it."""
        return _HandoutLoad(self.each / 2, self.most / 2)

    def at(self, cells: IntArray | slice) -> _HandoutLoad:
        """Of some cells."""
        return _HandoutLoad(self.each[cells], self.most[cells])

    def by_start(self) -> _HandoutLoad:
        """By cells that are rows."""
        return _HandoutLoad(self.each[:, None], self.most[:, None])

    def of(self, sizes: FloatArray | float) -> FloatArray:
        """Amounts that messages of some sizes bring, [start, arrival]."""
        found: FloatArray = np.minimum(sizes * self.each, self.most)
        return found


@dataclass(frozen=True)
class _Best:
    """The most that messages through a gate are worth, and their worth at every moment."""

    worth: float
    at_moments: FloatArray


@dataclass(frozen=True, slots=True)
class _HandoutEnds:
    """Worth of what a message brings, by its arrival, and of what is collected for it, by its start: None where nothing is."""

    out: FloatArray
    collected: FloatArray | None


@dataclass(frozen=True, slots=True)
class _Worth:
    """Worth of messages.

    Attributes
    ----------
    shared
        Where a message counts for both its ends.
    apart
        Where it counts for one of them; None if there is nothing of that sort.
    """

    shared: _HandoutEnds
    apart: _HandoutEnds | None

    def of(self, paths: _Paths, starts: slice, ends: slice) -> FloatArray:
        """Of messages, [start, arrival]."""
        shared, apart = self.shared, self.apart
        found = shared.out[ends] * paths.told[starts, ends]
        if shared.collected is not None:
            found += shared.collected[starts, None] * paths.reach[starts, ends]
        if apart is not None and apart.collected is not None:
            found += paths.half[starts, ends] * np.maximum(apart.out[ends], apart.collected[starts, None])
        return np.asarray(found, dtype=np.float64)


@dataclass(frozen=True)
class _Paths:
    """Messages through a gate within some time, by the cells in which they start and arrive; none arrive before `lead` cells.

    Attributes
    ----------
    lead
        Cells that a message takes at least: 1 or more.
    told, reach, half
        What it brings, what is collected for it, and half of its size; of no meaning below the lead, [start, arrival].
    """

    lead: int
    told: FloatArray
    reach: FloatArray
    half: FloatArray

    def longest(self, each: _Worth) -> tuple[float, list[tuple[int, int]]]:
        """The most that messages one after the other are worth, and when these start and arrive."""
        cells = len(each.shared.out)
        best, following = np.zeros(cells + 1), np.zeros(cells, dtype=np.int64)
        # Messages that start in as many cells as the lead has arrive after all of these, so that they are looked at together.
        for high in range(cells - self.lead, 0, -self.lead):
            low = max(0, high - self.lead)
            starts, after = slice(low, high), slice(low + self.lead, cells)
            worth = each.of(self, starts, after)
            worth += best[after]
            np.copyto(worth, -math.inf, where=_below_diagonal(high - low, cells - low - self.lead))
            ends = worth.argmax(axis=1)
            found = worth[np.arange(high - low), ends]
            best[starts] = found
            since = best[low : high + 1]
            since[:] = np.maximum.accumulate(since[::-1])[::-1]
            following[starts] = np.where(found > since[1:], low + self.lead + ends, 0)
        messages, cell = [], 0
        while cell < cells:
            end = int(following[cell])
            if end:
                messages.append((cell, end))
            cell = end or cell + 1
        return float(best[0]), messages


@lru_cache(maxsize=1024)
def _below_diagonal(rows: int, columns: int) -> BoolArray:
    """Where a column's number is less than a row's, [row, column]."""
    return np.tri(rows, columns, -1, dtype=bool)


class _HandoutSearch:
    """The largest T up to so many times a known bound that is proved to be too short."""

    def __init__(self, handout: Handout, unit_mb: float, least_us: float, stage: _HandoutStage) -> None:
        """Take a unit of data that is a rank's share, or everything."""
        self.handout, self.unit_mb, self._least_us, self._stage = handout, unit_mb, least_us, stage
        self.cells = cells = stage.cells
        self.cell_us = least_us * stage.stretch / cells
        self.wanted = 1.0 if handout.is_whole else float(handout.others)
        if handout.senders:
            self.learned = [handout.forth.learned(cells, self.cell_us, unit_mb, np.ones(cells))]
            self.told = self.reach = _HandoutLoad.by_size(cells)
            ends: FloatArray = np.arange(1.0, cells + 1.0) * self.cell_us
            self.chains = [_MessageChain(one.gate, number, one.known(ends, unit_mb)) for one, number in handout.senders]
            return
        if handout.is_sum:
            hubs, sent = (handout.forth, handout.back)[: 1 + handout.both_ways], np.ones(cells)
            # Most machines are the same backwards.
            learned = {hub: hub.learned(cells, self.cell_us, unit_mb, sent) for hub in set(hubs)}
            loads = {hub: self._summed(hub) for hub in set(hubs)}
            self.learned = [learned[hub] for hub in hubs]
            self.told, self.reach = loads[hubs[0]], loads[hubs[-1]]
            most = np.full(cells, self.wanted)
        else:
            self.learned = [handout.forth.learned(cells, self.cell_us, unit_mb)]
            self.told = self.reach = _HandoutLoad.by_size(cells)
            # No message brings more than has to come, whatever its sender knows.
            most = np.minimum(self.learned[0].known, self.wanted)
        self.chains = [_MessageChain(gate, number, most) for gate, number in handout.gates]

    def _summed(self, hub: Hub) -> _HandoutLoad:
        """Amounts that messages bring whose bytes are sums: of contributions that their sender can know."""
        others = self.handout.others
        to_one = hub.learned(self.cells, self.cell_us, 0.0).known
        to_all = hub.learned(self.cells, self.cell_us, self.unit_mb, summed=to_one).known
        return _HandoutLoad(np.minimum(1.0, to_one / others), to_all / others)

    def longest(self, average: _Average | None) -> _TooShort | None:
        """None if the known bound cannot be proved to be too short either; an average that is good is tried first."""
        low, high = self._least_us * (1 + _PRECISION), self._least_us * self._stage.stretch * (1 - _PRECISION)
        best = _Time(self, low).too_short(average)
        while best and high - low > self._stage.precision * low:
            middle = (low + high) / 2
            better = _Time(self, middle).too_short(best.average)
            best, low, high = (better, middle, high) if better else (best, low, middle)
        return best


class _Time:
    """A time in which, for some average over moments, not enough can come in and be handed out, if that can be shown.

    The average is found by turns: the chains of messages that are worth most for an average, and the average for which the chains
    known so far are worth least (a linear program). Whatever comes out of that, only the longest paths prove anything.
    """

    def __init__(self, search: _HandoutSearch, time_us: float) -> None:
        self._search, self._time_us = search, time_us
        handout, cell_us = search.handout, search.cell_us
        self._cells = int(time_us / cell_us) + 1
        self._starts: FloatArray = np.arange(float(self._cells)) * cell_us
        # Moments: some until when what has come is said to be known to all, as many until when it is followed, and the ends of both;
        # all of these where messages count for both ends, and again where they count for one of them.
        number = int(time_us / search.learned[0].stride_us) + 1
        regular: FloatArray = np.arange(float(number)) * search.learned[0].stride_us
        self._one = np.append(regular, time_us)
        parts = [search.wanted, *([handout.apart] if handout.apart else [])]
        shape = (len(parts), 2, len(self._one))
        self._moments = np.broadcast_to(self._one, shape).ravel()
        self._apart, self._followed = (index.ravel().astype(bool) for index in np.indices(shape)[:2])
        self._needed = handout.ranks * np.repeat(parts, 2 * len(self._one)) * (1 - 1e-9)
        self._inside = np.tile(self._over_links(number), len(parts))
        self._out = self._worth_at(self._starts, handout.tells_us)
        # Backwards what is collected counts as what is handed out does, and time runs from the end of a message's first cell.
        self._collected = np.zeros_like(self._out)
        if handout.both_ways:
            self._collected = self._worth_at(time_us - self._starts - cell_us, handout.forth.hears_us)
        left = np.minimum(search.cells - 1, ((time_us - self._starts) / cell_us).astype(np.int64))
        self._told, self._reach = search.told.at(slice(self._cells)), search.reach.at(left)
        if handout.both_ways:
            self._told, self._reach = self._told.halved(), self._reach.halved()

    def too_short(self, average: _Average | None) -> _TooShort | None:
        """True if for some average not enough can come in and be handed out."""
        chains = self._search.chains
        program = ColumnProgram([1.0] * len(chains), len(self._moments))
        lacking = (self._needed - self._inside) / len(chains)
        weight = self._placed(average)
        best, best_lack = weight, -math.inf
        paths = [self._paths(chain) for chain in chains]
        for _ in range(_MOST_ROUNDS):
            found = [self._longest(each, weight) for each in paths]
            lack = float(weight @ self._needed) - float(weight @ self._inside)
            lack -= sum(chain.number * one.worth for chain, one in zip(chains, found, strict=True))
            if lack > 0:
                return _TooShort(self._time_us, self._average(weight))
            if lack > best_lack:
                best, best_lack = weight, lack
            for share, (chain, one) in enumerate(zip(chains, found, strict=True)):
                program.add(share, lacking - chain.number * one.at_moments)
            master = program.solve()
            if master.objective <= self._needed.max() * 1e-9:
                return None
            weight = (best + master.prices) / 2
        return None

    def _over_links(self, number: int) -> FloatArray:
        """Amount that all ranks get over links inside the node after a moment: of what came after it, or, if it is followed, of all."""
        search = self._search
        handout = search.handout
        left_us = np.maximum(0.0, self._time_us - handout.alpha_us - self._one)
        followed = handout.rate_mb_per_us / search.unit_mb * left_us
        cell = min(search.cells - 1, int(self._time_us / search.cell_us))
        handed = [np.append(learned.handed[:number, cell], 0.0) for learned in search.learned]
        late = np.mean([np.minimum(followed, handout.ranks * each) for each in handed], axis=0)
        return np.concatenate([late, followed])

    def _worth_at(self, times_us: FloatArray, tells_us: tuple[float, ...]) -> FloatArray:
        """Worth of what arrives at some times: for the one that it comes to and for the others that know it, [moment, time].

        For moments until when what has come is said to be known to all, then for those until when it is followed.

        These are all others if it comes by the moment. If it is followed, they are those to whom messages that start by then can tell it;
        in the end, those to whom any can.
        """
        handout = self._search.handout
        until_us = self._one[:, None] + handout.slowest_us
        until_us[-1] = self._time_us
        told = np.searchsorted(np.array(tells_us), (until_us - times_us[None, :]) * (1 + 1e-9), side="right")
        told = np.concatenate([np.full_like(told, handout.ranks), told])
        comes_by = (times_us[None, :] <= np.tile(self._one, 2)[:, None] * (1 + 1e-9)) & (told > 1)
        return np.where(comes_by, told, 1).astype(np.float64)

    def _paths(self, chain: _MessageChain) -> _Paths:
        """All messages through a gate."""
        gate, cells = chain.gate, self._cells
        lead = int(gate.alpha_us / self._search.cell_us)
        lasting = np.arange(lead, lead + float(cells)) * self._search.cell_us + self._search.cell_us
        per_unit_us = gate.beta_us_per_mb * self._search.unit_mb
        within = size_within(np.full(cells, np.inf), lasting, gate.alpha_us, per_unit_us)
        later = np.arange(cells)[None, :] - np.arange(cells)[:, None] - lead
        sizes = np.minimum(within[np.maximum(later, 0)], chain.most[:cells, None])
        return _Paths(lead, self._told.by_start().of(sizes), self._reach.of(sizes), sizes / 2)

    def _longest(self, paths: _Paths, weight: FloatArray) -> _Best:
        """Worth of messages through a gate at most: longest paths over the cells in which they start and arrive."""
        apart = self._ends(weight[self._apart]) if self._apart.any() else None
        worth, messages = paths.longest(_Worth(self._ends(weight[~self._apart]), apart))
        at_moments = np.zeros(len(weight))
        for start, end in messages:
            out, collected = self._out[:, end], self._collected[:, start]
            at_moments[~self._apart] += out * paths.told[start, end]
            at_moments[~self._apart] += collected * paths.reach[start, end]
            if apart is not None and apart.collected is not None:
                better = out if apart.out[end] >= apart.collected[start] else collected
                at_moments[self._apart] += better * paths.half[start, end]
        return _Best(worth, at_moments)

    def _ends(self, weight: FloatArray) -> _HandoutEnds:
        """Worth for weights of the moments."""
        return _HandoutEnds(weight @ self._out, weight @ self._collected if self._search.handout.both_ways else None)

    def _placed(self, average: _Average | None) -> FloatArray:
        """Weights of the moments that are like an average; even ones if there is none."""
        if average is None:
            return np.full(len(self._moments), 1 / len(self._moments))
        regular = self._one[:-1]
        place = np.searchsorted(regular, average.at * self._time_us * (1 + 1e-9), side="right") - 1
        place = np.where(average.at >= 1, len(regular), place) + len(self._one) * (average.followed + 2 * average.apart)
        return np.asarray(np.bincount(place, weights=average.weight, minlength=len(self._moments)), dtype=np.float64)

    def _average(self, weight: FloatArray) -> _Average:
        used = weight > 0
        at = (self._moments / self._time_us)[used]
        return _Average(at, self._followed[used], self._apart[used], weight[used])


@dataclass(frozen=True, slots=True)
class _Inside:
    """Links over which data come together, and what limits them: least alpha and beta, and how many ports and links."""

    rate_mb_per_us: float
    entry: Gate
    entries: int

    @staticmethod
    def of(cluster: NodeClasses, finder: CutFinder, links: IntArray) -> _Inside:
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


def rooted_handouts(cluster: NodeClasses, kind: Kind, root: int, orbits: OrbitMembers) -> Iterator[Handout]:
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


def handouts(cluster: NodeClasses, kind: Kind, near: list[int], orbits: OrbitMembers) -> Iterator[Handout]:
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


def _handout(machine: NodeClasses, node: int, hubs: tuple[Hub, Hub], kind: Kind, both_ways: bool) -> Handout:
    node_of, net = machine.node_of, machine.net
    links = np.flatnonzero((node_of[net.src] == node) & (node_of[net.dst] == node))
    inside = _Inside.of(machine, CutFinder(net), links)
    ranks = machine.telling.sizes[node]
    gates = tuple(Counter(gate for gate, _ in machine.gates(frozenset({node}))).items())
    everyone = frozenset({node})
    return Handout(
        gates, ranks, net.num_ranks - ranks, inside.rate_mb_per_us, inside.entry.alpha_us,
        earliest(machine.telling, everyone, everyone), float(net.least_message_us[links].max(initial=0.0)), *hubs,
        is_sum=kind is Kind.ALLREDUCE, both_ways=both_ways, reason="",
    )  # fmt: skip


def _hub(machine: NodeClasses, orbits: OrbitMembers) -> Hub:
    """Best values of all nodes and ranks of a machine."""
    net, node_of, finder = machine.net, machine.node_of, CutFinder(machine.net)
    inside = node_of[net.src] == node_of[net.dst]
    ranks = [_Inside.of(machine, finder, np.flatnonzero(inside & (net.dst == rank))) for rank in machine.sorts(orbits)]
    every = [machine.gates(frozenset({node})) for node in range(len(machine.telling.sizes))]
    gates = [gate for of_node in every for gate, _ in of_node]
    own = Counter(rank for of_node in every for _, links in of_node for rank in np.unique(net.dst[links]).tolist())
    hears = (earliest(machine.hearing, frozenset({n}), frozenset({n})) for n in range(len(every)))
    limited = all(rank.entries for rank in ranks)
    return Hub(
        Gate.quickest(gates), gates=max(map(len, every)), own=max(own.values()), ranks=max(machine.telling.sizes),
        rate_mb_per_us=max(rank.rate_mb_per_us for rank in ranks), entry=Gate.quickest([rank.entry for rank in ranks]),
        entries=max(rank.entries for rank in ranks) if limited else 0,
        hears_us=tuple(min(times) for times in zip_longest(*hears, fillvalue=math.inf)),
    )  # fmt: skip


def _nodes_alike(cluster: NodeClasses, orbits: OrbitMembers) -> bool:
    """True if the symmetry takes every node to every other one."""
    number = len(cluster.telling.sizes)
    labels = np.unique(orbits.rank)
    return cluster.keeps_nodes(orbits) and any(
        len(np.unique(cluster.node_of[orbits.rank == label])) == number for label in labels
    )

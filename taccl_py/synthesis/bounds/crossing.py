"""Bound on small sizes of collectives in which everyone's data has to get to everyone: few messages cross into a node.

Cut the ranks into B, a node, and O, the others (or the other way round). What rank o of O has to tell rank b of B comes into B
for the last time by some message. A message that starts at t carries what at most ``in(t)`` ranks of O have told its sender by
then, and reaches in time at most ``out(T - arrival)`` ranks of B from its receiver (both are growths, see
`taccl_py.synthesis.bounds.growth`; the first one backwards). So it serves at most the product of pairs (o, b), and all messages
together must serve ``|O| |B|`` pairs. By time T a port that they share lets through few of them, at least its alpha apart, and
each takes longer by beta for what it carries: pairs are served byte by byte, so a message that serves p pairs carries at least
p times the bytes of a pair. Of m messages through a port the first one starts at some s, the last one leaves some r of the time
behind it, and all of them with their alphas and bytes lie between s and T - r, whatever s and r are. More than a few messages are
only counted, with their alphas and bytes.

In an AllToAll, where every pair's data is its own, what a message carries for others than its sender and receiver takes time at
these, too (`taccl_py.synthesis.bounds.ends`); that is counted where a port has time for one message only.

Where a message carries k chunks at most, it serves at most the pairs that need these: a chunk is what one rank has for one other
(AllToAll), what one has for all of B (AllGather), or what all of O have for one (ReduceScatter); finer chunks serve less.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest

import numpy as np

from taccl_py.arrays import FloatArray, IntArray
from taccl_py.collective import Kind
from taccl_py.synthesis.bounds.bound import Bound, last_not_enough
from taccl_py.synthesis.bounds.ends import EarliestMoment, Ends, PortPair
from taccl_py.synthesis.bounds.growth import Classes, fits, node_classes
from taccl_py.synthesis.bounds.net import Net, OrbitMembers
from taccl_py.synthesis.bounds.spread import links_by_port
from taccl_py.units import BYTES_PER_MB

_KINDS = (Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.ALLREDUCE, Kind.ALLTOALL)
# Messages through one port of which the first and the last one are looked at closely; more are only counted.
_MOST_MESSAGES = 8
_PRECISION = 1e-12


@dataclass(frozen=True, slots=True)
class Gate:
    """A port, or a link without one, that messages into B share.

    Attributes
    ----------
    alpha_us, beta_us_per_mb
        Its cost.
    least_us
        Time of the smallest message over any of its links.
    """

    alpha_us: float
    beta_us_per_mb: float
    least_us: float

    @staticmethod
    def quickest(gates: Sequence[Gate]) -> Gate:
        """The least of each cost of some gates."""
        return Gate(
            min(gate.alpha_us for gate in gates),
            min(gate.beta_us_per_mb for gate in gates),
            min(gate.least_us for gate in gates),
        )


@dataclass(frozen=True)
class Crossing:
    """Data that have to get from O into B.

    Attributes
    ----------
    gates
        Ways in, and how many of each sort.
    told_us
        Times by which a sender can have been told by one, two, ... ranks of O.
    tells_us
        Times in which one, two, ... ranks of B can learn what a receiver has.
    pairs
        Pairs of a rank of O and one of B.
    share
        What a message carries at least for each pair that it serves, as a share of the size.
    together
        Pairs that need the same data.
    reason
        For people.
    ends
        If every pair's data is its own: what limits how much others have a share in a message.
    """

    gates: tuple[tuple[Gate, int], ...]
    told_us: tuple[float, ...]
    tells_us: tuple[float, ...]
    pairs: int
    share: float
    together: int
    reason: str
    ends: Ends | None = None

    def at(self, size_bytes: float, most_chunks: int | None = None) -> Bound:
        """Bound for a size.

        Parameters
        ----------
        size_bytes
            The size as nccl-tests counts it.
        most_chunks
            Most chunks in a message, where there is a limit. A chunk is at most what one rank has, or has for one other.
        """
        most_pairs, reason = self.pairs, self.reason
        if most_chunks is not None and most_chunks * self.together < self.pairs:
            most_pairs, reason = most_chunks * self.together, f"{reason}, with at most {most_chunks} chunks in each"
        load = _CrossingLoad(self.share * size_bytes / BYTES_PER_MB, most_pairs)
        low_us = last_not_enough(lambda time_us: self._suffices(time_us, load))
        return Bound(0.0 if math.isinf(low_us) else low_us, reason)

    def _suffices(self, time_us: float, load: _CrossingLoad) -> bool:
        """True if the gates can serve all pairs by a time."""
        served = sum(number * self._served(gate, time_us, load) for gate, number in self.gates)
        return served >= self.pairs * (1 - _PRECISION)

    def _served(self, gate: Gate, time_us: float, load: _CrossingLoad) -> float:
        """Most pairs that messages through one gate serve by a time."""
        window_us = time_us - gate.least_us
        if window_us < 0:
            return 0.0
        per_pair_us = gate.beta_us_per_mb * load.pair_mb
        by_bytes = (time_us - gate.alpha_us) / per_pair_us if per_pair_us > 0 else math.inf
        most = math.floor(window_us / gate.alpha_us * (1 + _PRECISION)) + 1 if gate.alpha_us > 0 else math.inf
        closely = range(1, int(min(most, _MOST_MESSAGES)) + 1)
        served = max(self._in_turn(gate, number, time_us, load) for number in closely)
        if most > _MOST_MESSAGES:
            served = max(served, self._many(gate, most, time_us, load))
        return min(served, by_bytes, self.pairs)

    def _in_turn(self, gate: Gate, number: int, time_us: float, load: _CrossingLoad) -> float:
        """Most pairs of so many messages one after the other, whenever the first one starts and whatever the last one leaves of the time.

        The first one can be told little by its start, the last one can tell little in what it leaves, and the bytes of all pass in
        between.
        """
        window_us, alpha_us = time_us - gate.least_us, gate.alpha_us
        start_us = self._steps_us[0][self._steps_us[0] <= window_us * (1 + _PRECISION)][:, None]
        left_us = self._steps_us[1][self._steps_us[1] <= window_us * (1 + _PRECISION)][None, :]
        if number == 1:
            served = np.minimum(load.most_pairs, self._told(start_us) * self._tells(left_us))
        else:
            first = np.minimum(load.most_pairs, self._told(start_us) * self._tells(window_us - start_us))
            last = np.minimum(load.most_pairs, self._told(window_us - left_us) * self._tells(left_us))
            between = min(load.most_pairs, self._by_one(alpha_us, window_us - alpha_us, window_us))
            served = first + last + (number - 2) * between
        room_us = time_us - start_us - left_us - number * alpha_us
        pair = PortPair(load.pair_mb, gate.beta_us_per_mb * load.pair_mb)
        if pair.each_us > 0:
            served = np.minimum(served, room_us / pair.each_us)
            if number == 1 and self.ends is not None:
                start = EarliestMoment(start_us, np.asarray(self._tells(left_us), dtype=np.float64))
                left = EarliestMoment(left_us, np.asarray(self._told(start_us), dtype=np.float64))
                served = np.minimum(served, self.ends.most_pairs(start, left, room_us, pair))
        fits = start_us + left_us + (number - 1) * alpha_us <= window_us * (1 + _PRECISION)
        return float(np.where(fits, served, 0.0).max(initial=0.0))

    def _many(self, gate: Gate, most: float, time_us: float, load: _CrossingLoad) -> float:
        """Most pairs of more messages than are looked at closely, and up to so many: all pay alpha, and their bytes pass in what is left."""
        window_us = time_us - gate.least_us
        each = min(load.most_pairs, self._by_one(0.0, window_us, window_us))
        per_pair_us = gate.beta_us_per_mb * load.pair_mb
        if gate.alpha_us <= 0 or per_pair_us <= 0:
            return most * each
        # More messages serve more, and leave less time for bytes: the best number is where both are the same.
        even = time_us / (gate.alpha_us + each * per_pair_us)
        numbers = {min(max(number, _MOST_MESSAGES + 1), most) for number in (math.floor(even), math.floor(even) + 1)}
        return max(min(number * each, (time_us - number * gate.alpha_us) / per_pair_us) for number in numbers)

    def _by_one(self, first_us: float, last_us: float, window_us: float) -> float:
        """Most pairs of one message that starts between two times and can tell others as long as a window lasts."""
        steps_us = self._steps_us[0]
        inside = (steps_us > first_us) & (steps_us <= last_us * (1 + _PRECISION))
        starts_us = np.concatenate([[first_us], steps_us[inside]])
        return float((self._told(starts_us) * self._tells(window_us - starts_us)).max())

    def _told(self, times_us: FloatArray) -> IntArray:
        """Ranks of O that can have told a sender by some times."""
        return np.searchsorted(self._told_us, times_us * (1 + _PRECISION), side="right")

    def _tells(self, times_us: FloatArray) -> IntArray:
        """Ranks of B that a receiver can tell within some times."""
        return np.searchsorted(self._tells_us, times_us * (1 + _PRECISION), side="right")

    @cached_property
    def _told_us(self) -> FloatArray:
        return np.array(self.told_us, dtype=np.float64)

    @cached_property
    def _tells_us(self) -> FloatArray:
        return np.array(self.tells_us, dtype=np.float64)

    @cached_property
    def _steps_us(self) -> tuple[FloatArray, FloatArray]:
        """Starts that are worth waiting for, and times that are worth spending inside B."""
        told_us = np.unique(self._told_us)
        if self.ends is not None and math.isfinite(self.ends.elsewhere_us):
            told_us = np.unique(np.append(told_us, self.ends.elsewhere_us))
        return told_us, np.unique(self._tells_us)


@dataclass(frozen=True, slots=True)
class _CrossingLoad:
    """Data that have to cross: those of every pair in megabytes, and how many pairs a message can serve at most."""

    pair_mb: float
    most_pairs: int


def crossings(machine: NodeClasses, kind: Kind, near: list[int], orbits: OrbitMembers) -> Iterator[Crossing]:
    """Bounds for what crosses into and out of some nodes; none for a collective that is not of that sort."""
    if kind not in _KINDS:
        return
    everyone = frozenset(range(len(machine.telling.sizes)))
    dealt = kind is Kind.ALLTOALL
    into, out = (
        Ends.of(machine.net, machine.node_of, machine.sorts(orbits), *ways) if dealt else None
        for ways in ((len(everyone) == 2, True), (True, len(everyone) == 2))
    )
    for node in near:
        entering = machine.crossing(kind, everyone - {node}, frozenset({node}), f"into node {node}")
        yield replace(entering, ends=into)
        leaving = machine.crossing(kind, frozenset({node}), everyone - {node}, f"out of node {node}")
        yield replace(leaving, ends=out)


@dataclass(frozen=True)
class NodeClasses:
    """A machine with its nodes as classes, and the same backwards.

    Attributes
    ----------
    net, node_of
        The machine, and the node of every rank.
    telling, hearing
        How something becomes known in its nodes, and the same backwards.
    """

    net: Net
    node_of: IntArray
    telling: Classes
    hearing: Classes

    @staticmethod
    def of(net: Net) -> NodeClasses | None:
        """The nodes of a machine; None if there is one only, or too many."""
        if not fits(net):
            return None
        return NodeClasses(net, net.node_of, node_classes(net), node_classes(net.reversed()))

    def reversed(self) -> NodeClasses:
        """The machine turned around."""
        return NodeClasses(self.net.reversed(), self.node_of, self.hearing, self.telling)

    def keeps_nodes(self, orbits: OrbitMembers) -> bool:
        """True if a symmetry takes nodes to nodes."""
        first = np.unique(self.node_of, return_index=True)[1]
        moved = (self.node_of[image] for image in orbits.images)
        return all(np.array_equal(nodes_of, nodes_of[first][self.node_of]) for nodes_of in moved)

    def sorts(self, orbits: OrbitMembers) -> list[int]:
        """Ranks of which every other one is an image, with its node."""
        return orbits.ranks() if self.keeps_nodes(orbits) else list(range(self.net.num_ranks))

    def crossing(self, kind: Kind, giving: frozenset[int], taking: frozenset[int], name: str) -> Crossing:
        """Data that have to get from some nodes to the others."""
        everyone = giving | taking
        told_us = earliest(self.hearing, giving, everyone)
        tells_us = earliest(self.telling, taking, taking)
        sizes = self.telling.sizes
        num_giving, num_taking = (sum(sizes[node] for node in side) for side in (giving, taking))
        pairs = num_giving * num_taking
        gates = tuple(Counter(gate for gate, _ in self.gates(taking)).items())
        # Of a pair's data other pairs of the same message may need the same: all receivers, all that add up, or both.
        together = {Kind.ALLTOALL: 1, Kind.ALLGATHER: num_taking, Kind.REDUCESCATTER: num_giving, Kind.ALLREDUCE: pairs}
        whole = 1 if kind is Kind.ALLREDUCE else self.net.num_ranks
        reason = f"crossing: messages of {pairs} pairs of ranks {name}, gathered before and handed out behind"
        return Crossing(gates, told_us, tells_us, pairs, 1 / (whole * together[kind]), together[kind], reason)

    def gates(self, taking: frozenset[int]) -> list[tuple[Gate, IntArray]]:
        """Ways into some nodes, each with its links."""
        net = self.net
        enters = np.isin(self.node_of, sorted(taking))
        links = np.flatnonzero(enters[net.dst] & ~enters[net.src])
        by_port = links_by_port(net, np.zeros_like(net.src), links)
        return [(self.gate(key, each), np.array(each, dtype=np.int64)) for key, each in by_port.items()]

    def gate(self, key: int, links: list[int]) -> Gate:
        """The port of some links, or the one without; see `links_by_port` for its number."""
        net, resource = self.net, key if key >= 0 else -1 - key
        least_us = float(net.least_message_us[links].min())
        return Gate(float(net.alpha_us[resource]), float(net.beta_us_per_mb[resource]), least_us)


def earliest(classes: Classes, starts: frozenset[int], inside: frozenset[int]) -> tuple[float, ...]:
    """Times by which one, two, ... ranks of the starts' classes know at the earliest, whichever of them knows first."""
    times = []
    for start in sorted(starts):
        learned = classes.grown(start, inside=inside)
        times.append([each.time_us for each in learned if each.group in starts])
    return tuple(min(column) for column in zip_longest(*times, fillvalue=math.inf))

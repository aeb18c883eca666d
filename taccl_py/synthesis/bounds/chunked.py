"""Lower bounds for the schedules of a problem: fixed indivisible chunks, and the sketch's restrictions.

All of them hold for every schedule of the same chunks under the same restrictions, symmetric or not.

* *latency*: a chunk cannot reach a rank that wants it sooner than along the quickest path.
* *cut*: a set of ranks S lacks n indivisible chunks. They come in through the links that enter S; a link that no chunk can
  reach before time r brings at most ``floor((T - r - alpha) / beta)`` of them by time T (alpha once: neighbours may share
  it), and links behind one port together no more than the port lets through. Afterwards the last of them still has to get
  from where it entered to a rank that wants it. Taken for single ranks and for nodes, on the way in and on the way out, for
  all chunks and for those that are late at the border.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from taccl_py.grouping import grouped
from taccl_py.solvers.limits import Over, never, until
from taccl_py.synthesis.bounds.bound import Bound, best_of, last_not_enough
from taccl_py.synthesis.bounds.net import Net, OrbitMembers
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.symmetry import orbits_of_ranks
from taccl_py.topology.model import Topology
from taccl_py.units import BYTES_PER_MB

_RELATIVE_PRECISION = 1e-12


def lower_bound(problem: Problem, over: Over = never) -> Bound:
    """Best of the bounds described in the module's text.

    Parameters
    ----------
    problem
        The problem.
    over
        Whether time is up; then no more cuts are tried.
    """
    distances = _Distances(problem)
    cuts = (_cut(problem, distances, inside, name) for inside, name in _sides(problem))
    return best_of(until(over, chain([_latency(problem, distances)], cuts)))


class _Distances:
    """Quickest times for one chunk over its permitted links."""

    def __init__(self, problem: Problem) -> None:
        self._source = problem.collective.source
        self._net = Net.of(problem.topology)
        self._cost = np.array([problem.message_us(link) for link in range(len(problem.topology.links))])
        # Chunks that may use the same links are of one sort.
        sorts: dict[bytes, int] = {}
        self._sort = [sorts.setdefault(permitted.tobytes(), len(sorts)) for permitted in problem.permitted]
        self._permitted = [np.frombuffer(links, dtype=bool)[None, :] for links in sorts]
        self._known: dict[tuple[int, int], list[float]] = {}

    def of(self, chunk: int, start: int) -> list[float]:
        """Least time for the chunk from a rank to every rank."""
        sort = self._sort[chunk]
        if (start, sort) not in self._known:
            starts = np.arange(self._net.num_ranks)[None, :] == start
            self._known[start, sort] = self._net.quickest(starts, self._cost, self._permitted[sort])[0].tolist()
        return self._known[start, sort]

    def from_source(self, chunk: int) -> list[float]:
        """Least time for the chunk from its source to every rank."""
        return self.of(chunk, self._source[chunk])


def _latency(problem: Problem, distances: _Distances) -> Bound:
    best, text = 0.0, "nothing has to move"
    for chunk, ranks in enumerate(problem.collective.wanted):
        for rank in ranks:
            time_us = distances.from_source(chunk)[rank]
            if time_us > best:
                best = time_us
                text = f"latency: quickest path of one chunk between rank {problem.collective.source[chunk]} and rank {rank}"
    return Bound(best, text)


def _sides(problem: Problem) -> Iterator[tuple[frozenset[int], str]]:
    """Insides of all cuts, with the name of what crosses them: one for each orbit of ranks, and the nodes."""
    topology = problem.topology
    everyone = frozenset(range(topology.num_ranks))
    labels = orbits_of_ranks(topology, problem.generators)
    parts = [(frozenset([rank]), f"rank {rank}") for rank in sorted(set(labels.tolist()))]
    if topology.num_nodes > 1:
        parts += [(frozenset(ranks), f"node {node}") for node, ranks in enumerate(topology.node_ranks)]
    for part, name in parts:
        yield part, f"{name}'s links in"
        yield everyone - part, f"{name}'s links out"


@dataclass(frozen=True)
class _Entry:
    """One link into the set: which chunks it may bring, each with its earliest time at the border."""

    link: int
    ready_us: dict[int, float]


def _cut(problem: Problem, distances: _Distances, inside: frozenset[int], name: str) -> Bound:
    topology, collective = problem.topology, problem.collective
    entering = [index for index, link in enumerate(topology.links) if link.dst in inside and link.src not in inside]
    needed = [
        chunk
        for chunk, source in enumerate(collective.source)
        if source not in inside and not inside.isdisjoint(collective.wanted[chunk])
    ]
    entries = []
    for index in entering:
        src = topology.links[index].src
        times = {c: distances.from_source(c)[src] for c in needed if problem.permitted[c, index]}
        ready = {c: time_us for c, time_us in times.items() if math.isfinite(time_us)}
        if ready:
            entries.append(_Entry(index, ready))
    if not entries:
        return Bound(0.0, name)
    border = {c: min(e.ready_us[c] for e in entries if c in e.ready_us) for c in needed}
    tails = _tails(problem, distances, entries, inside)
    best = Bound(0.0, name)
    for late in sorted(set(border.values())):
        chunks = [c for c in needed if border[c] >= late]
        tail = min(tails[c] for c in chunks)
        time_us = 0.0
        for choice in _port_choices(problem, entries):
            gates = _gates(problem, entries, chunks, choice)
            once = _least_time(gates, len(chunks)) + tail
            time_us = max(time_us, min(once, _least_time(gates, len(chunks) + 1)) if tail else once)
        if time_us > best.time_us:
            best = Bound(time_us, f"bandwidth: {len(chunks)} chunks through {name}")
    return best


def _tails(problem: Problem, distances: _Distances, entries: list[_Entry], inside: frozenset[int]) -> dict[int, float]:
    """Least time that each chunk still needs after it has come in, to the last rank inside that wants it."""
    entered: dict[int, set[int]] = {}
    for entry in entries:
        for chunk in entry.ready_us:
            entered.setdefault(chunk, set()).add(problem.topology.links[entry.link].dst)
    tails = {}
    for chunk, ranks in entered.items():
        wanting = [rank for rank in problem.collective.wanted[chunk] if rank in inside]
        tail = min(max(distances.of(chunk, rank)[wanted] for wanted in wanting) for rank in ranks)
        tails[chunk] = tail if math.isfinite(tail) else 0.0
    return tails


@dataclass(frozen=True, slots=True)
class _ChunkSlots:
    """Equal links, or one port: ``floor((T - idle) / chunk time)`` chunks each, but not more than there are.

    Attributes
    ----------
    idle_us
        What is ready before, alpha and latency.
    chunk_us
        Time of one more chunk.
    most
        Chunks that can come this way at all.
    number
        How many of them there are.
    """

    idle_us: float
    chunk_us: float
    most: int
    number: int = 1

    def brings(self, time_us: float) -> int:
        """Chunks that all of them bring by a time."""
        left_us = time_us - self.idle_us
        if left_us < 0:
            return 0
        if self.chunk_us <= 0:
            return self.most * self.number
        whole = math.floor(left_us / self.chunk_us * (1 + _RELATIVE_PRECISION) + _RELATIVE_PRECISION)
        return min(self.most, whole) * self.number

    def next_us(self, low_us: float) -> float:
        """First time not before `low_us` at which each has brought one more chunk."""
        step = math.ceil((low_us - self.idle_us) / self.chunk_us - 1e-9) if self.chunk_us > 0 else 0
        return max(low_us, self.idle_us + max(0, step) * self.chunk_us)


@dataclass(frozen=True, slots=True)
class _ChunkGate:
    """Links behind one port (or a link alone), which bring no more than the port lets through."""

    links: tuple[_ChunkSlots, ...]
    port: _ChunkSlots | None

    @property
    def most(self) -> int:
        """Chunks that can come this way at all."""
        return sum(slots.most * slots.number for slots in self.links)

    def brings(self, time_us: float) -> int:
        """Chunks that come in by a time."""
        total = sum(slots.brings(time_us) for slots in self.links)
        return total if self.port is None else min(total, self.port.brings(time_us))

    def next_us(self, low_us: float) -> float:
        """First time not before `low_us` at which more can have come."""
        parts = self.links if self.port is None else (*self.links, self.port)
        return min(slots.next_us(low_us) for slots in parts)


def _port_choices(problem: Problem, entries: list[_Entry]) -> list[dict[int, int]]:
    """Ways to give every entering link one of its ports: the first, the last, and the one that most of them share."""
    links = problem.topology.links
    with_ports = [entry.link for entry in entries if links[entry.link].ports]
    shared = Counter(port for link in with_ports for port in links[link].ports)
    first = {link: links[link].ports[0] for link in with_ports}
    last = {link: links[link].ports[-1] for link in with_ports}
    busiest = {link: max(links[link].ports, key=lambda port: (shared[port], -port)) for link in with_ports}
    return [first, last, busiest]


def _gates(
    problem: Problem, entries: list[_Entry], chunks: list[int], port_of: dict[int, int]
) -> dict[_ChunkGate, int]:
    """The links that bring the chunks, grouped by one of their ports; for each gate, how many are like it."""
    topology, megabytes = problem.topology, problem.chunk_bytes / BYTES_PER_MB
    wanted = set(chunks)
    served = [_Entry(each.link, {c: us for c, us in each.ready_us.items() if c in wanted}) for each in entries]
    groups = grouped((port_of.get(each.link, -1 - each.link), each) for each in served if each.ready_us)
    gates: Counter[_ChunkGate] = Counter()
    for key, members in sorted(groups.items()):
        alike: Counter[_ChunkSlots] = Counter()
        for entry in members:
            link, first_us = topology.links[entry.link], min(entry.ready_us.values())
            idle_us = first_us + link.alpha_us + link.latency_us
            alike[_ChunkSlots(idle_us, link.beta_us_per_mb * megabytes, len(entry.ready_us))] += 1
        port = None
        if key >= 0:
            # The link that is ready first need not be the one that delivers last.
            first_us = min(min(entry.ready_us.values()) for entry in members)
            latency_us = min(topology.links[entry.link].latency_us for entry in members)
            cost = topology.ports[key]
            port = _ChunkSlots(
                first_us + cost.alpha_us + latency_us, cost.beta_us_per_mb * megabytes, len(wanted) * len(members)
            )
        gates[_ChunkGate(tuple(replace(slots, number=number) for slots, number in alike.items()), port)] += 1
    return dict(gates)


def _least_time(gates: dict[_ChunkGate, int], amount: int) -> float:
    """Smallest T at which all gates together have brought the amount (infinite if they never bring so much)."""

    def brought(time_us: float) -> int:
        return sum(gate.brings(time_us) * number for gate, number in gates.items())

    if sum(gate.most * number for gate, number in gates.items()) < amount:
        return math.inf
    low_us = last_not_enough(lambda time_us: brought(time_us) >= amount)
    return min((gate.next_us(low_us) for gate in gates), default=low_us)


def farthest_pair(topology: Topology, chunk_bytes: float) -> Bound:
    """Quickest path of one whole chunk between the two ranks that are farthest apart: sums need every rank's part."""
    net = Net.of(topology)
    cost_us = np.array([topology.message_us(link, chunk_bytes) for link in range(len(topology.links))])
    starts = OrbitMembers.of_machine(topology).ranks()
    times = net.quickest(np.arange(topology.num_ranks)[None, :] == np.array(starts)[:, None], cost_us)
    times = np.where(np.isfinite(times), times, 0.0)
    row, rank = np.unravel_index(int(times.argmax()), times.shape)
    return Bound(
        float(times.max()), f"latency: quickest path of one chunk between rank {starts[int(row)]} and rank {int(rank)}"
    )

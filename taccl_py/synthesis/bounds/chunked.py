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
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from taccl_py.synthesis.bounds.bound import Bound, best_of
from taccl_py.synthesis.bounds.net import Net, Orbits
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.symmetry import orbit_labels
from taccl_py.topology.model import Topology
from taccl_py.units import BYTES_PER_MB

_RELATIVE_PRECISION = 1e-12


def lower_bound(problem: Problem, stop: threading.Event | None = None) -> Bound:
    """Best of the bounds described in the module's text.

    Parameters
    ----------
    problem
        The problem.
    stop
        The user's interrupt, after which no more cuts are tried.
    """
    distances = _Distances(problem)
    bounds = [_latency(problem, distances)]
    for inside, name in _sides(problem):
        if stop is not None and stop.is_set():
            break
        bounds.append(_cut(problem, distances, inside, name))
    return best_of(bounds)


class _Distances:
    """Quickest times for one chunk over its permitted links."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._net = Net.of(problem.topology)
        self._cost = np.array([problem.message_us(link) for link in range(len(problem.topology.links))])
        # Chunks that may use the same links share their times.
        _, classes = np.unique(problem.permitted, axis=0, return_inverse=True)
        self._class: list[int] = classes.reshape(-1).tolist()
        self._known: dict[tuple[int, int], list[float]] = {}

    def of(self, chunk: int, start: int) -> list[float]:
        """Least time for the chunk from a rank to every rank."""
        key = (start, self._class[chunk])
        if key not in self._known:
            permitted = self._problem.permitted[chunk]
            starts = np.arange(self._net.num_ranks)[None, :] == start
            self._known[key] = self._net.quickest(starts, self._cost, permitted[None, :])[0].tolist()
        return self._known[key]

    def from_source(self, chunk: int) -> list[float]:
        """Least time for the chunk from its source to every rank."""
        return self.of(chunk, self._problem.collective.source[chunk])


def _latency(problem: Problem, distances: _Distances) -> Bound:
    best, text = 0.0, "nothing has to move"
    for chunk, ranks in enumerate(problem.collective.wanted):
        for rank in ranks:
            time_us = distances.from_source(chunk)[rank]
            if time_us > best:
                best = time_us
                text = (
                    f"latency: quickest path of one chunk from rank {problem.collective.source[chunk]} to rank {rank}"
                )
    return Bound(best, text)


def _sides(problem: Problem) -> Iterator[tuple[frozenset[int], str]]:
    """Insides of all cuts, with the name of what crosses them: one for each orbit of ranks, and the nodes."""
    topology = problem.topology
    everyone = frozenset(range(topology.num_ranks))
    labels = orbit_labels(topology.num_ranks, [np.array(g.rank, dtype=np.int64) for g in problem.generators])
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
    tails: dict[int, float] = {}
    for entry in entries:
        gate = problem.topology.links[entry.link].dst
        for chunk in entry.ready_us:
            times = distances.of(chunk, gate)
            last = max(times[rank] for rank in problem.collective.wanted[chunk] if rank in inside)
            tails[chunk] = min(last, tails.get(chunk, math.inf))
    return {chunk: tail if math.isfinite(tail) else 0.0 for chunk, tail in tails.items()}


@dataclass(frozen=True, slots=True)
class _Gate:
    """Links behind one port (or a link alone): ``floor((T - ready - alpha) / beta)`` chunks each, at most the port's."""

    links: tuple[tuple[float, float, int], ...]  # (ready + alpha + latency, beta of a chunk, most chunks)
    port: tuple[float, float] | None

    def brings(self, time_us: float) -> int:
        total = sum(_count(time_us - first, beta, most) for first, beta, most in self.links)
        if self.port is None:
            return total
        return min(total, _count(time_us - self.port[0], self.port[1], total))

    def events(self, low_us: float) -> list[float]:
        """First time not before `low_us` at which each link, and the port, has brought one more chunk."""
        parts = [(first, beta) for first, beta, _ in self.links] + ([self.port] if self.port else [])
        steps = [(first, beta, math.ceil((low_us - first) / beta - 1e-9) if beta > 0 else 0) for first, beta in parts]
        return [max(low_us, first + max(0, step) * beta) for first, beta, step in steps]


def _count(time_us: float, beta_us: float, most: int) -> int:
    if time_us < 0:
        return 0
    if beta_us <= 0:
        return most
    return min(most, math.floor(time_us / beta_us * (1 + _RELATIVE_PRECISION) + _RELATIVE_PRECISION))


def _port_choices(problem: Problem, entries: list[_Entry]) -> list[dict[int, int]]:
    """Ways to give every entering link one of its ports: the first, the last, and the one that most of them share."""
    links = problem.topology.links
    with_ports = [entry.link for entry in entries if links[entry.link].ports]
    shared = Counter(port for link in with_ports for port in links[link].ports)
    first = {link: links[link].ports[0] for link in with_ports}
    last = {link: links[link].ports[-1] for link in with_ports}
    busiest = {link: max(links[link].ports, key=lambda port: (shared[port], -port)) for link in with_ports}
    return [first, last, busiest]


def _gates(problem: Problem, entries: list[_Entry], chunks: list[int], port_of: dict[int, int]) -> list[_Gate]:
    """The links that bring the chunks, grouped by one of their ports."""
    topology, megabytes = problem.topology, problem.chunk_bytes / BYTES_PER_MB
    wanted = set(chunks)
    groups: dict[int, list[tuple[int, float, int]]] = {}
    for entry in entries:
        ready = [time_us for chunk, time_us in entry.ready_us.items() if chunk in wanted]
        if ready:
            key = port_of.get(entry.link, -1 - entry.link)
            groups.setdefault(key, []).append((entry.link, min(ready), len(ready)))
    gates = []
    for key, members in sorted(groups.items()):
        links = [(topology.links[index], ready, most) for index, ready, most in members]
        slots = tuple(
            (ready + k.alpha_us + k.latency_us, k.beta_us_per_mb * megabytes, most) for k, ready, most in links
        )
        limit = None
        if key >= 0:
            # The link that is ready first need not be the one that delivers last.
            port = topology.ports[key]
            idle = min(ready for _, ready, _ in links) + port.alpha_us + min(k.latency_us for k, _, _ in links)
            limit = (idle, port.beta_us_per_mb * megabytes)
        gates.append(_Gate(slots, limit))
    return gates


def _least_time(gates: list[_Gate], amount: int) -> float:
    """Smallest T with sum of ``brings(T) >= amount`` (infinite if the gates never bring so much)."""
    if sum(most for gate in gates for *_, most in gate.links) < amount:
        return math.inf
    low, high = 0.0, 1.0
    while sum(gate.brings(high) for gate in gates) < amount:
        high *= 2
    while high - low > _RELATIVE_PRECISION * high:
        middle = (low + high) / 2
        if sum(gate.brings(middle) for gate in gates) >= amount:
            high = middle
        else:
            low = middle
    return min((event for gate in gates for event in gate.events(low)), default=low)


def farthest_pair(topology: Topology, chunk_bytes: float) -> Bound:
    """Quickest path of one whole chunk between the two ranks that are farthest apart: sums need every rank's part."""
    net = Net.of(topology)
    cost_us = np.array([topology.message_us(link, chunk_bytes) for link in range(len(topology.links))])
    starts = Orbits.of_machine(topology).ranks()
    times = net.quickest(np.arange(topology.num_ranks)[None, :] == np.array(starts)[:, None], cost_us)
    times = np.where(np.isfinite(times), times, 0.0)
    row, rank = np.unravel_index(int(times.argmax()), times.shape)
    return Bound(
        float(times.max()), f"latency: quickest path of one chunk from rank {starts[int(row)]} to rank {int(rank)}"
    )

"""Lower bounds that no schedule of the problem can beat, with the reason in words.

All of them hold for every schedule of the same chunks under the same restrictions, symmetric or not.

* *latency*: a chunk cannot reach a rank that wants it sooner than along the quickest path.
* *cut*: a set of ranks S lacks n indivisible chunks. They come in through the links that enter S; a link that no chunk can
  reach before time r brings at most ``floor((T - r - alpha) / beta)`` of them by time T (alpha once: neighbours may share
  it), and links behind one port together no more than the port lets through. Afterwards the last of them still has to get
  from where it entered to a rank that wants it. Taken for single ranks and for nodes, on the way in and on the way out, for
  all chunks and for those that are late at the border.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from taccl_py.collective import Collective
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.symmetry import orbit_labels
from taccl_py.topology.model import Topology
from taccl_py.units import BYTES_PER_MB

_RELATIVE_PRECISION = 1e-12


@dataclass(frozen=True, slots=True)
class Bound:
    """A proven lower bound on the time of every schedule.

    Attributes
    ----------
    time_us
        No schedule is faster.
    reason
        What it comes from, for people.
    """

    time_us: float
    reason: str


def lower_bound(problem: Problem) -> Bound:
    """Best of the bounds described in the module's text."""
    distances = _Distances.of(problem)
    return max([_latency(problem, distances), *_cuts(problem, distances)], key=lambda bound: bound.time_us)


@dataclass(frozen=True)
class _Distances:
    """Quickest times for one chunk over its allowed links: from its source and between all ranks.

    ``from_source[chunk][rank]``; ``chunk_class`` numbers chunks with the same source, wanted ranks and allowed links.
    """

    from_source: tuple[tuple[float, ...], ...]

    @staticmethod
    def of(problem: Problem) -> _Distances:
        known: dict[tuple[int, bytes], tuple[float, ...]] = {}
        rows = []
        cost = [problem.message_us(link) for link in range(len(problem.topology.links))]
        for chunk, source in enumerate(problem.collective.source):
            key = (source, problem.permitted[chunk].tobytes())
            if key not in known:
                known[key] = quickest(
                    problem.topology, [source], np.flatnonzero(problem.permitted[chunk]).tolist(), cost
                )
            rows.append(known[key])
        return _Distances(tuple(rows))


def quickest(
    topology: Topology, starts: Iterable[int], links: Iterable[int], cost_us: list[float]
) -> tuple[float, ...]:
    """Least time from any of the ranks `starts` to every rank over `links`."""
    out: dict[int, list[tuple[int, float]]] = {}
    for index in links:
        link = topology.links[index]
        out.setdefault(link.src, []).append((link.dst, cost_us[index]))
    distance = [math.inf] * topology.num_ranks
    queue = []
    for rank in starts:
        distance[rank] = 0.0
        queue.append((0.0, rank))
    while queue:
        far, rank = heapq.heappop(queue)
        if far > distance[rank]:
            continue
        for neighbour, cost in out.get(rank, ()):
            if far + cost < distance[neighbour]:
                distance[neighbour] = far + cost
                heapq.heappush(queue, (far + cost, neighbour))
    return tuple(distance)


def _latency(problem: Problem, distances: _Distances) -> Bound:
    best, text = 0.0, "nothing has to move"
    for chunk, ranks in enumerate(problem.collective.wanted):
        for rank in ranks:
            time_us = distances.from_source[chunk][rank]
            if time_us > best:
                best = time_us
                text = (
                    f"latency: quickest path of one chunk from rank {problem.collective.source[chunk]} to rank {rank}"
                )
    return Bound(best, text)


def _cuts(problem: Problem, distances: _Distances) -> list[Bound]:
    """Bounds of all cuts, one for each orbit of ranks and nodes."""
    topology = problem.topology
    found = []
    labels = orbit_labels(topology.num_ranks, [np.array(g.rank, dtype=np.int64) for g in problem.generators])
    for rank in sorted(set(labels.tolist())):
        found.append(_cut(problem, distances, frozenset([rank]), f"rank {rank}'s links in"))
        rest = frozenset(range(topology.num_ranks)) - {rank}
        found.append(_cut(problem, distances, rest, f"rank {rank}'s links out"))
    if topology.num_nodes > 1:
        for node, ranks in enumerate(topology.node_ranks):
            rest = frozenset(range(topology.num_ranks)) - set(ranks)
            found.append(_cut(problem, distances, frozenset(ranks), f"node {node}'s links in"))
            found.append(_cut(problem, distances, rest, f"node {node}'s links out"))
    return found


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
        times = {c: distances.from_source[c][src] for c in needed if problem.permitted[c, index]}
        ready = {c: time_us for c, time_us in times.items() if math.isfinite(time_us)}
        if ready:
            entries.append(_Entry(index, ready))
    if not entries:
        return Bound(0.0, name)
    border = {c: min(e.ready_us[c] for e in entries if c in e.ready_us) for c in needed}
    tails = _tails(problem, entries, needed, inside)
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


def _tails(problem: Problem, entries: list[_Entry], needed: list[int], inside: frozenset[int]) -> dict[int, float]:
    """Least time that each chunk still needs after it has come in, to the last rank inside that wants it."""
    cost = [problem.message_us(link) for link in range(len(problem.topology.links))]
    known: dict[tuple[int, bytes], tuple[float, ...]] = {}
    tails = {}
    for chunk in needed:
        wanting = [rank for rank in problem.collective.wanted[chunk] if rank in inside]
        shortest = math.inf
        for entry in entries:
            if chunk in entry.ready_us:
                gate = problem.topology.links[entry.link].dst
                key = (gate, problem.permitted[chunk].tobytes())
                if key not in known:
                    known[key] = quickest(
                        problem.topology, [gate], np.flatnonzero(problem.permitted[chunk]).tolist(), cost
                    )
                shortest = min(shortest, max(known[key][rank] for rank in wanting))
        tails[chunk] = shortest if math.isfinite(shortest) else 0.0
    return tails


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
    groups: dict[int, list[tuple[float, float, int]]] = {}
    ports: dict[int, tuple[float, float]] = {}
    for entry in entries:
        ready = [time_us for chunk, time_us in entry.ready_us.items() if chunk in wanted]
        if not ready:
            continue
        link = topology.links[entry.link]
        first = min(ready) + link.alpha_us + link.latency_us
        slot = (first, link.beta_us_per_mb * megabytes, len(ready))
        key = -1 - entry.link
        if entry.link in port_of:
            key = port_of[entry.link]
            port = topology.ports[key]
            start = min(ready) + port.alpha_us + link.latency_us
            known = ports.get(key, (math.inf, 0.0))
            ports[key] = (min(known[0], start), port.beta_us_per_mb * megabytes)
        groups.setdefault(key, []).append(slot)
    return [_Gate(tuple(slots), ports.get(key)) for key, slots in sorted(groups.items())]


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


def allreduce_bound(topology: Topology, gather: Collective, chunk_bytes: float) -> Bound:
    """Lower bound for AllReduce with the chunks of `gather`.

    A sum needs every rank's part and every rank needs the sum: each chunk crosses links at least 2(R-1) times, and links
    between nodes at least 2(N-1) times, whatever the algorithm (without reduction or multicast in switches). The links into
    all ranks (nodes) together take at least as long as moving that much at full rate. Nor can it be faster than one chunk
    along the quickest path between the two farthest ranks.
    """
    everything = range(len(topology.links))
    between = [
        i for i in everything if topology.node_of[topology.links[i].src] != topology.node_of[topology.links[i].dst]
    ]
    bounds = [_farthest(topology, chunk_bytes)]
    for links, groups, name in ((everything, topology.num_ranks, "rank"), (between, topology.num_nodes, "node")):
        if groups < 2:
            continue
        transfers = 2 * (groups - 1) * gather.num_chunks
        rate = _total_rate(topology, links)
        first = min(topology.links[i].alpha_us for i in links)
        time_us = first + transfers * chunk_bytes / BYTES_PER_MB / rate if rate < math.inf else first
        bounds.append(Bound(time_us, f"bandwidth: 2({groups}-1) transfers of every chunk over all links into {name}s"))
    return max(bounds, key=lambda bound: bound.time_us)


def _total_rate(topology: Topology, links: Iterable[int]) -> float:
    """Megabytes per microsecond that links carry together, limited by their last (receiving) port or by their first."""
    rates = []
    for position in (0, -1):
        behind: dict[int, float] = {}
        for index in links:
            link = topology.links[index]
            rate = 1 / link.beta_us_per_mb if link.beta_us_per_mb > 0 else math.inf
            key = link.ports[position] if link.ports else -1 - index
            behind[key] = behind.get(key, 0.0) + rate
        total = 0.0
        for key, rate in sorted(behind.items()):
            beta = topology.ports[key].beta_us_per_mb if key >= 0 else 0.0
            total += min(rate, 1 / beta if beta > 0 else math.inf)
        rates.append(total)
    return min(rates)


def _farthest(topology: Topology, chunk_bytes: float) -> Bound:
    cost = [topology.message_us(i, chunk_bytes) for i in range(len(topology.links))]
    far = (0.0, 0, 0)
    for rank in range(topology.num_ranks):
        times = quickest(topology, [rank], range(len(topology.links)), cost)
        far = max(far, *((time_us, rank, other) for other, time_us in enumerate(times) if math.isfinite(time_us)))
    return Bound(far[0], f"latency: quickest path of one chunk from rank {far[1]} to rank {far[2]}")

"""AllGather over nodes inside which not all ranks are linked: links take chunks in bundles, moment by moment.

Every rank sends its chunk to those of its lane in the other nodes, one after the other. Inside a node, whenever a link is free, it
takes what its sender has and its receiver lacks, what the fewest have first. Two things decide. How much it takes: many small messages
pay many alphas, large ones keep the next rank waiting. And what it leaves to faster links, which may bring it as soon. Rules for both
are tried with several choices among equals, those that do well more often. Nodes are alike: one stands for all.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from taccl_py.grouping import by_number
from taccl_py.synthesis.hierarchy.cluster import LaneCluster
from taccl_py.synthesis.hierarchy.params import PARAMS
from taccl_py.synthesis.templates.messages import TemplateMessage, TemplateMessages
from taccl_py.tolerances import ABSOLUTE_US
from taccl_py.topology.model import Topology
from taccl_py.units import BYTES_PER_MB
from taccl_py.work import count_work


@dataclass(frozen=True, slots=True)
class BundleLink:
    """A link inside the node: places of its ends, what it and its ports cost, and which they are."""

    src: int
    dst: int
    costs: tuple[tuple[float, float], ...]
    resources: tuple[int, ...]
    latency_us: float

    def busy_us(self, size_mb: float) -> list[float]:
        """Times for which the link and its ports are busy with a message."""
        return [alpha + beta * size_mb for alpha, beta in self.costs]

    def message_us(self, size_mb: float) -> float:
        """Time from the start of a message to its arrival."""
        return max(self.busy_us(size_mb)) + self.latency_us


@dataclass(frozen=True, slots=True)
class WireRule:
    """Rule by which wires choose chunks.

    Attributes
    ----------
    longest
        Longest time of a message of several chunks, in times of a message of one on the slowest link.
    patience
        A chunk is left to a faster wire that could bring it in so many times the time of a message here.
    """

    longest: float
    patience: float


_RULES = [WireRule(longest, patience) for longest in PARAMS.bundle_longest for patience in PARAMS.bundle_patience]


@dataclass(frozen=True)
class Bundles:
    """Messages inside each node, and the time when all have arrived.

    Attributes
    ----------
    cluster
        The machine.
    sent
        For the first node. Chunk ``back * width + place`` is what place `place` of the node so many back has.
    end_us
        When the last one arrives.
    """

    cluster: LaneCluster
    sent: TemplateMessages
    end_us: float

    @staticmethod
    def of(cluster: LaneCluster, over: Callable[[], bool]) -> Bundles | None:
        """The best of all attempts; None where ranks share lanes, nodes are linked well or not alike, or there is too much to do."""
        site, width = cluster.site, cluster.width
        chunks = width * len(cluster.nodes)
        if (
            not cluster.is_even
            or site.linked_inside_nodes
            or chunks > PARAMS.most_bundle_chunks
            or not _are_alike(cluster)
        ):
            return None
        wires = _wires(site.topology, cluster.nodes[0])
        best: Bundles | None = None
        rules = _RULES
        first = work = 0
        for number, attempts in PARAMS.bundle_rounds:
            least_us: dict[WireRule, float] = {}
            rules = rules[:number]
            for rule, seed in product(rules, range(first, first + attempts)):
                work += chunks * width
                count_work("timed", chunks * width)
                if best is not None and (work > PARAMS.bundle_deliveries or over()):
                    return best
                sent = _BundleFlood(cluster, wires, rule, seed).run()
                end_us = max(bundle.end for bundle in sent)
                least_us[rule] = min(end_us, least_us.get(rule, math.inf))
                if best is None or end_us < best.end_us - ABSOLUTE_US:
                    best = Bundles(cluster, tuple(sent), end_us)
            rules = sorted(rules, key=least_us.__getitem__)
            first += attempts
        return best

    def messages(self) -> TemplateMessages:
        """AllGather of one chunk of each rank."""
        nodes, width = self.cluster.nodes, self.cluster.width
        lane_us = self.cluster.lane_us(self.cluster.site.chunk_bytes)
        found: list[TemplateMessage] = []
        for node, ranks in enumerate(nodes):
            for back in range(1, len(nodes)):
                to = nodes[(node + back) % len(nodes)]
                found += [
                    TemplateMessage(src, dst, (src,), (back - 1) * lane_us, back * lane_us)
                    for src, dst in zip(ranks, to, strict=True)
                ]
            for bundle in self.sent:
                chunks = tuple(nodes[node - chunk // width][chunk % width] for chunk in bundle.chunks)
                ends = (ranks[bundle.src], ranks[bundle.dst])
                found.append(TemplateMessage(*ends, tuple(sorted(chunks)), bundle.start, bundle.end))
        return tuple(sorted(found, key=lambda message: (message.start, message.src, message.dst)))


def _wires(topology: Topology, ranks: Sequence[int]) -> tuple[BundleLink, ...]:
    place = {rank: number for number, rank in enumerate(ranks)}
    found = []
    for index, link in enumerate(topology.links):
        if link.src in place and link.dst in place:
            resources = tuple(topology.resources_of[index])
            costs = tuple(topology.resource_cost[resource] for resource in resources)
            found.append(BundleLink(place[link.src], place[link.dst], costs, resources, link.latency_us))
    return tuple(found)


def _are_alike(cluster: LaneCluster) -> bool:
    """True if every node has the links of the first one, and carriers are its ranks in their order."""
    sorts = [
        sorted((wire.src, wire.dst, wire.costs, wire.latency_us) for wire in _wires(cluster.site.topology, ranks))
        for ranks in cluster.nodes
    ]
    return all(sort == sorts[0] for sort in sorts) and cluster.carriers == cluster.nodes


class _BundleFlood:
    """One attempt; what ranks have is kept in bits."""

    def __init__(self, cluster: LaneCluster, wires: tuple[BundleLink, ...], rule: WireRule, seed: int) -> None:
        size_mb = cluster.site.chunk_bytes / BYTES_PER_MB
        self._wires, self._size_mb, self._random = wires, size_mb, random.Random(seed)
        self._patience = rule.patience
        self._message_chunks = cluster.site.message_chunks
        self._one_us = [wire.message_us(size_mb) for wire in wires]
        self._into = by_number(cluster.width, ((wire.dst, number) for number, wire in enumerate(wires)))
        self._width, nodes = cluster.width, len(cluster.nodes)
        slowest_us = max(wire.message_us(size_mb) for wire in wires)
        self._everything = (1 << self._width * nodes) - 1
        self._has = [1 << place for place in range(self._width)]
        self._due = list(self._has)
        self._held = [1] * self._width + [0] * (self._width * (nodes - 1))
        self._most = [self._fitting(wire, rule.longest * slowest_us) for wire in wires]
        self._arrival_us = [{place: 0.0} for place in range(self._width)]
        lane_us = cluster.lane_us(cluster.site.chunk_bytes)
        self._events = [(0.0, -1, 0)]
        for back in range(1, nodes):
            for place in range(self._width):
                chunk = back * self._width + place
                self._due[place] |= 1 << chunk
                self._held[chunk] += 1
                self._arrival_us[place][chunk] = back * lane_us
                self._events.append((back * lane_us, place, 1 << chunk))
        heapq.heapify(self._events)
        self._free_us: dict[int, float] = {}

    def _fitting(self, wire: BundleLink, longest_us: float) -> int:
        """Chunks of a message that lasts no longer, at least one."""
        most, limit = 1, min(self._message_chunks, len(self._held))
        while most < limit and wire.message_us((most + 1) * self._size_mb) <= longest_us:
            most += 1
        return most

    def run(self) -> list[TemplateMessage]:
        """Until everyone has everything."""
        found: list[TemplateMessage] = []
        while self._events:
            now = self._events[0][0]
            while self._events and self._events[0][0] <= now + ABSOLUTE_US:
                _, place, bits = heapq.heappop(self._events)
                if place >= 0:
                    self._has[place] |= bits
            found += self._start(now)
            if not self._events and any(due != self._everything for due in self._due):
                self._patience = 0.0
                found += self._start(now)
        return found

    def _start(self, now: float) -> Iterator[TemplateMessage]:
        """Let every free wire take something, those that take least time first."""
        order = sorted(
            range(len(self._wires)), key=lambda i: (self._wires[i].message_us(self._size_mb), self._random.random())
        )
        for number in order:
            wire = self._wires[number]
            could = self._has[wire.src] & ~self._due[wire.dst]
            if not could or any(self._free_us.get(r, 0.0) > now + ABSOLUTE_US for r in wire.resources):
                continue
            chunks = [c for c in _bits(could) if not self._comes_sooner(number, c, now)]
            if not chunks:
                continue
            chunks.sort(key=lambda chunk: (self._held[chunk], self._random.random()))
            taken = tuple(sorted(chunks[: self._most[number]]))
            size_mb = len(taken) * self._size_mb
            end_us = now + wire.message_us(size_mb)
            for resource, busy_us in zip(wire.resources, wire.busy_us(size_mb), strict=True):
                self._free_us[resource] = now + busy_us
                heapq.heappush(self._events, (now + busy_us, -1, 0))
            bits = sum(1 << chunk for chunk in taken)
            self._due[wire.dst] |= bits
            for chunk in taken:
                self._held[chunk] += 1
                self._arrival_us[wire.dst][chunk] = end_us
            heapq.heappush(self._events, (end_us, wire.dst, bits))
            yield TemplateMessage(wire.src, wire.dst, taken, now, end_us)

    def _comes_sooner(self, number: int, chunk: int, now: float) -> bool:
        """True if a faster wire could bring the chunk not much later."""
        wire, limit_us = self._wires[number], now + self._patience * self._one_us[number]
        for other in self._into[wire.dst] if self._patience else ():
            if self._one_us[other] < self._one_us[number] - ABSOLUTE_US:
                known_us = self._arrival_us[self._wires[other].src].get(chunk)
                if known_us is not None:
                    free_us = max(self._free_us.get(r, 0.0) for r in self._wires[other].resources)
                    if max(known_us, free_us, now) + self._one_us[other] <= limit_us:
                        return True
        return False


def _bits(number: int) -> Iterator[int]:
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low

"""A machine as nodes with lanes: the ranks that carry data between nodes, equally many in every node.

Ranks of a node that share the ports to the other nodes are one lane, and the first of them carries for all. Where nodes differ,
the smallest one's number of lanes counts, and the other ranks' data goes over their lanes. Where each rank reaches only one of every
other node (rails), these are a lane, and a rail that some node has lost is none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from taccl_py.grouping import grouped
from taccl_py.synthesis.templates.site import TemplateSite
from taccl_py.topology.model import Topology
from taccl_py.units import BYTES_PER_MB


@dataclass(frozen=True, slots=True, order=True)
class InsideMessage:
    """A message inside a node: its place in the order, and places or lanes of its ends in the node."""

    step: int
    src: int
    dst: int


def bit_by_bit(src: int, dst: int) -> Iterator[InsideMessage]:
    """From one place to another, each message to where one more bit is that of the destination."""
    for step in range((src ^ dst).bit_length()):
        if (src ^ dst) & 1 << step:
            yield InsideMessage(step, src, src ^ 1 << step)
            src ^= 1 << step


def ranks_of_places(nodes: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """The rank of each place of the largest node in every node, [node][place]; one of a smaller node has several."""
    places = max(map(len, nodes))
    return tuple(tuple(ranks[place * len(ranks) // places] for place in range(places)) for ranks in nodes)


@dataclass(frozen=True)
class LaneCluster:
    """Nodes with lanes.

    Attributes
    ----------
    site
        The machine; its chunk is what one rank has.
    nodes
        Ranks of every node.
    carriers
        The rank that stands for each lane, [node][lane].
    lane_of
        Lane of every rank.
    """

    site: TemplateSite
    nodes: tuple[tuple[int, ...], ...]
    carriers: tuple[tuple[int, ...], ...]
    lane_of: tuple[int, ...]

    @staticmethod
    def of(site: TemplateSite) -> LaneCluster | None:
        """Find the lanes; None where there is one node only, a node falls apart, or carriers of a lane are not all linked."""
        topology = site.topology
        nodes = topology.node_ranks
        if len(nodes) == 1:
            return None
        gates, owner = _gates(topology), _port_nodes(topology)
        groups = [_lanes(topology, gates, owner, ranks) for ranks in nodes]
        joined = _joined(site, groups)
        width = len(joined)
        if not width:
            return None
        carriers = tuple(tuple(lane[node][0] for lane in joined) for node in range(len(nodes)))
        lane_of = [0] * topology.num_ranks
        for node, group in enumerate(groups):
            lanes = [lane[node] for lane in joined]
            for lane, ranks in enumerate([*lanes, *(ranks for ranks in group if ranks not in lanes)]):
                for rank in ranks:
                    lane_of[rank] = lane % width
        return LaneCluster(site, nodes, carriers, tuple(lane_of)) if _whole(site) else None

    @property
    def width(self) -> int:
        """Lanes of a node."""
        return len(self.carriers[0])

    @cached_property
    def sharing(self) -> int:
        """Ranks of a lane, at most."""
        return max(-(-len(ranks) // self.width) for ranks in self.nodes)

    @cached_property
    def is_even(self) -> bool:
        """True if every rank is a lane of its own."""
        return all(len(ranks) == self.width for ranks in self.nodes)

    @cached_property
    def is_full(self) -> bool:
        """True if every rank is a lane of its own, and linked to all others of its node."""
        return self.is_even and self.site.linked_inside_nodes

    @cached_property
    def at_once(self) -> int:
        """Messages that a rank can send inside its node at the same time: links over the most of them that share a port."""
        topology = self.site.topology
        uses: Counter[int] = Counter()
        number = 0
        for link in topology.links:
            if link.src == self.nodes[0][0] and topology.is_inside(link):
                number += 1
                uses.update(link.ports)
        return max(1, number // max(uses.values(), default=1))

    def node_us(self, num_bytes: float) -> float:
        """Longest time of a message inside a node."""
        return _slowest_us(self._costs[True], num_bytes)

    def lane_us(self, num_bytes: float) -> float:
        """Longest time of a message on a lane."""
        return _slowest_us(self._costs[False], num_bytes)

    @cached_property
    def _costs(self) -> dict[bool, tuple[_LaneCost, ...]]:
        """Costs of links inside nodes, and of lanes: of the first node, as others are nearly like it, or of all where nodes differ in size."""
        topology = self.site.topology
        ranks = set(self.nodes[0]) if topology.has_even_nodes else range(topology.num_ranks)
        found: dict[bool, set[_LaneCost]] = {True: set(), False: set()}
        ends = {rank: lane for ranks in self.carriers for lane, rank in enumerate(ranks)}
        for index, link in enumerate(topology.links):
            inside = topology.is_inside(link)
            if link.src in ranks and (inside or ends.get(link.src, -1) == ends.get(link.dst, -2)):
                found[inside].update(_LaneCost(*cost, link.latency_us) for cost in topology.link_costs[index])
        return {inside: _highest(costs) for inside, costs in found.items()}


class _LaneCost(NamedTuple):
    """Cost of a message on a link or one of its ports, and latency."""

    alpha_us: float
    beta_us_per_mb: float
    latency_us: float


def _highest(costs: Collection[_LaneCost]) -> tuple[_LaneCost, ...]:
    """Costs that are not below another one at every size."""
    left = sorted(costs, reverse=True)
    return tuple(
        cost for place, cost in enumerate(left)
        if not any(all(b >= a for a, b in zip(cost, other, strict=True)) for other in left[:place])
    )  # fmt: skip


def _slowest_us(costs: Sequence[_LaneCost], num_bytes: float) -> float:
    slowest_us = 0.0
    for alpha_us, beta_us_per_mb, latency_us in costs:
        time_us = alpha_us + beta_us_per_mb * num_bytes / BYTES_PER_MB + latency_us
        if time_us > slowest_us:
            slowest_us = time_us
    return slowest_us


def _gates(topology: Topology) -> dict[int, list[int]]:
    """Links that lead out of its node, for each rank that has some."""
    return grouped((link.src, index) for index, link in enumerate(topology.links) if not topology.is_inside(link))


def _port_nodes(topology: Topology) -> dict[int, int]:
    """Node of every port whose links all leave ranks of one node."""
    found: dict[int, int] = {}
    for link in topology.links:
        node = topology.node_of[link.src]
        for port in link.ports:
            found[port] = node if found.get(port, node) == node else -1
    return found


def _lanes(
    topology: Topology, gates: Mapping[int, Sequence[int]], owner: Mapping[int, int], ranks: Sequence[int]
) -> list[tuple[int, ...]]:
    """Ranks of a node by the slowest ports that lead out of it; those that nothing leads out are dealt out."""
    by_gate: dict[tuple[int, ...], list[int]] = {}
    for rank in ranks:
        if rank in gates:
            ports = {port for index in gates[rank] for port in topology.links[index].ports if owner[port] >= 0}
            slowest = max((topology.ports[port].beta_us_per_mb for port in ports), default=0.0)
            gate = tuple(sorted(port for port in ports if topology.ports[port].beta_us_per_mb == slowest))
            by_gate.setdefault(gate or (-1 - rank,), []).append(rank)
    lanes = list(by_gate.values())
    for number, rank in enumerate(rank for rank in ranks if rank not in gates):
        if lanes:
            lanes[number % len(lanes)].append(rank)
    return [tuple(lane) for lane in lanes]


def _joined(site: TemplateSite, groups: Sequence[Sequence[tuple[int, ...]]]) -> list[list[tuple[int, ...]]]:
    """Lanes: for each a group of every node, of which the first ranks are all linked; those at one place where these are."""
    fewest = min(groups, key=len)
    left = [list(enumerate(node)) for node in groups]
    found = []
    for place, lane in enumerate(fewest):
        chosen: list[tuple[int, tuple[int, ...]]] = []
        ends = [lane[0]]
        for node, free in zip(groups, left, strict=True):
            likely = [(place, lane)] if node is fewest else sorted(free, key=lambda item: item[0] != place)
            group = next((item for item in likely if all(_are_linked(site, item[1][0], end) for end in ends)), None)
            if group is None:
                break
            chosen.append(group)
            ends.append(group[1][0])
        else:
            found.append([ranks for _, ranks in chosen])
            for free, item in zip(left, chosen, strict=True):
                free.remove(item)
    return found


def _are_linked(site: TemplateSite, one: int, other: int) -> bool:
    """True if two ranks are linked in both directions, or are one."""
    return one == other or (site.linked(one, other) and site.linked(other, one))


def _whole(site: TemplateSite) -> bool:
    """True if no node falls apart without the others."""
    for ranks in site.topology.node_ranks:
        parents = site.inside.path_parents(ranks[0])
        if any(parents[rank] < 0 for rank in ranks[1:]):
            return False
    return True

"""Machines of many equal nodes: three of them are probed, what is found is repeated for the others, and each is confirmed.

Ranks are numbered node by node. Inside nodes the first one stands for all; between nodes a link from the first to the second
stands for every link with the same local ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations

from taccl_py.measure.contention import FoundPort
from taccl_py.measure.experiment import MeasuredFlow

PROBED_NODES = 3


@dataclass(frozen=True, slots=True)
class EqualNodes:
    """So many nodes of so many ranks each."""

    nodes: int
    size: int

    @staticmethod
    def of(node_of: Sequence[int]) -> EqualNodes | None:
        """The nodes of a machine, or None if they are too few to be repeated, of one rank, not equally large or out of order."""
        nodes = len(set(node_of))
        if nodes <= PROBED_NODES or len(node_of) % nodes or nodes == len(node_of):
            return None
        size = len(node_of) // nodes
        return EqualNodes(nodes, size) if list(node_of) == [rank // size for rank in range(len(node_of))] else None

    def node(self, rank: int) -> int:
        """Node of a rank."""
        return rank // self.size

    def inside(self, flow: MeasuredFlow) -> bool:
        """True if a link stays in its node."""
        return self.node(flow.src) == self.node(flow.dst)

    def probed(self, flow: MeasuredFlow) -> bool:
        """True for a link that takes part in the search for ports: inside the first node, or between the first few."""
        last = 1 if self.inside(flow) else PROBED_NODES
        return max(self.node(flow.src), self.node(flow.dst)) < last

    def model(self, flow: MeasuredFlow) -> MeasuredFlow:
        """The link of the first nodes that stands for this one."""
        there = 0 if self.inside(flow) else self.size
        return MeasuredFlow(flow.src % self.size, there + flow.dst % self.size)

    def repeated(self, ports: Iterable[FoundPort], pairs: Sequence[MeasuredFlow]) -> tuple[FoundPort, ...]:
        """Ports of all nodes, from those of the first few.

        Parameters
        ----------
        ports
            As found.
        pairs
            All links of the machine.
        """
        found: dict[frozenset[MeasuredFlow], FoundPort] = {}
        for port in ports:
            locals_ = {(flow.src % self.size, flow.dst % self.size) for flow in port.links}
            senders = {self.node(flow.src) for flow in port.links}
            receivers = {self.node(flow.dst) for flow in port.links}
            alike = [flow for flow in pairs if (flow.src % self.size, flow.dst % self.size) in locals_]
            inside = all(self.inside(flow) for flow in port.links)
            mixed = not inside and any(self.inside(flow) for flow in port.links)
            for number, links in enumerate(self._copies(alike, senders, receivers, inside=inside, mixed=mixed)):
                found.setdefault(links, FoundPort(f"{port.name} (node {number})", port.cost, links))
        return tuple(found.values())

    def _copies(
        self, alike: Sequence[MeasuredFlow], senders: set[int], receivers: set[int], *, inside: bool, mixed: bool
    ) -> list[frozenset[MeasuredFlow]]:
        numbers = range(self.nodes)
        if inside:
            return _sorted_into(numbers, [f for f in alike if self.inside(f)], lambda flow: self.node(flow.src))
        between = [flow for flow in alike if mixed or not self.inside(flow)]
        if len(senders) == 1 and len(receivers) > 1:
            return _sorted_into(numbers, between, lambda flow: self.node(flow.src))
        if len(receivers) == 1 and len(senders) > 1:
            return _sorted_into(numbers, between, lambda flow: self.node(flow.dst))
        if len(receivers) == len(senders) == 1:
            return _sorted_into(
                list(permutations(numbers, 2)), between, lambda flow: (self.node(flow.src), self.node(flow.dst))
            )
        return [frozenset(between)]

    def checks(self, pairs: set[MeasuredFlow]) -> list[list[MeasuredFlow]]:
        """Sets that confirm the nodes.

        For each node, every rank to the next one inside it, and to its own number in the next node; and every rank of the
        machine at once to its own number half the machine away, so that what nodes share beyond themselves is not overlooked.
        """
        ranks, total = range(self.size), self.nodes * self.size
        sets = []
        for base in range(0, total, self.size):
            sets.append([MeasuredFlow(base + r, base + (r + 1) % self.size) for r in ranks])
            sets.append([MeasuredFlow(base + r, (base + self.size) % total + r) for r in ranks])
        far = self.nodes // 2 * self.size
        sets.append([MeasuredFlow(rank, (rank + far) % total) for rank in range(total)])
        return [kept for kept in ([flow for flow in flows if flow in pairs] for flows in sets) if kept]


def _sorted_into(
    places: Iterable[Hashable], flows: Iterable[MeasuredFlow], place: Callable[[MeasuredFlow], Hashable]
) -> list[frozenset[MeasuredFlow]]:
    """Links by where they belong; those that belong nowhere are left out."""
    found: dict[Hashable, list[MeasuredFlow]] = {each: [] for each in places}
    for flow in flows:
        found.get(place(flow), []).append(flow)
    return [frozenset(members) for members in found.values()]

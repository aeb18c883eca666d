"""Small AllReduce of two sparse nodes: everyone's NIC sends a sum of a neighbourhood, and hubs put the sums together.

What is sent to whom is found by a solver (`taccl_py.synthesis.models.cp_sums`); here it is asked for a machine, and written for both nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from taccl_py.grouping import grouped
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds.passage import LatencyMachine
from taccl_py.synthesis.hierarchy.params import PARAMS
from taccl_py.synthesis.hierarchy.relays import alike_links
from taccl_py.synthesis.models.cp_sums import SumPlan, exchange_sums
from taccl_py.synthesis.templates.messages import TemplateMessage, TemplateMessages
from taccl_py.tolerances import FINE_DIGITS, RELATIVE
from taccl_py.topology.model import Topology


@dataclass(frozen=True)
class SumExchange:
    """An AllReduce of two nodes.

    Attributes
    ----------
    nodes
        Ranks of both.
    neighbours
        To whom every rank of a node is linked in it, by places.
    hop_us, across_us
        Times of the smallest message inside nodes and between them.
    plan
        What is done.
    """

    nodes: tuple[tuple[int, ...], ...]
    neighbours: tuple[tuple[int, ...], ...]
    hop_us: float
    across_us: float
    plan: SumPlan

    @staticmethod
    def of(topology: Topology, limits: Limits) -> SumExchange | None:
        """Find one; None where nodes are not two alike with one sort of links and a NIC for each rank, or none is found in time."""
        passage = LatencyMachine.of(topology)
        nodes = topology.node_ranks
        if (
            len(nodes) != 2
            or len(nodes[0]) > PARAMS.most_exchange_ranks
            or not _has_own_ports(topology, passage.crossing)
        ):
            return None
        alike = alike_links(passage)
        neighbours = _neighbours(topology)
        inside = set(range(len(topology.links))) - set(passage.crossing)
        hop_us = {round(float(passage.net.least_message_us[link]), FINE_DIGITS) for link in inside}
        across_us = {round(float(passage.net.least_message_us[link]), FINE_DIGITS) for link in passage.crossing}
        everyone = len(alike) == len(nodes[0]) ** 2
        if neighbours is None or not everyone or len(hop_us) != 1 or len(across_us) != 1 or 0.0 in hop_us:
            return None
        (inner_us,), (across,) = hop_us, across_us
        rounds = int((inner_us + across) / inner_us * (1 + RELATIVE))
        deadline = limits.deadline()
        for groups in range(1, PARAMS.most_exchange_groups + 1):
            if deadline.over():
                return None
            if _may_suffice(neighbours, groups):
                within = limits.within(min(PARAMS.exchange_seconds, deadline.left), PARAMS.exchange_work)
                plan = exchange_sums(neighbours, rounds, groups, within)
                if plan is not None:
                    return SumExchange(nodes, neighbours, inner_us, across, plan)
        return None

    @property
    def end_us(self) -> float:
        """Time when all is done."""
        return 3 * self.hop_us + self.across_us

    def messages(self, num_chunks: int) -> TemplateMessages:
        """AllReduce of so many chunks, all together."""
        chunks = tuple(range(num_chunks))
        messages = [message for node in range(2) for part in self._parts(node, chunks) for message in part]
        return tuple(sorted(messages, key=lambda message: (message.start, message.src, message.dst)))

    def _parts(self, node: int, chunks: tuple[int, ...]) -> Iterator[list[TemplateMessage]]:
        """Messages into one node: rounds inside it, what comes from the other one, to hubs, and from hubs."""
        inside_us, here, there = self.hop_us, self.nodes[node], self.nodes[1 - node]
        came_us = inside_us + self.across_us
        met_us = came_us + inside_us

        def message(src: int, dst: int, start_us: float, *, adds: bool) -> TemplateMessage:
            return TemplateMessage(src, dst, chunks, start_us, start_us + inside_us, adds)

        meetings = self.plan.meetings
        yield [message(here[s.src], here[s.dst], s.round * inside_us, adds=s.adds) for s in self.plan.steps]
        yield [TemplateMessage(there[m.src], here[m.dst], chunks, inside_us, came_us, m.adds) for m in meetings]
        yield [message(here[m.dst], here[m.hub], came_us, adds=True) for m in meetings if m.hub != m.dst]
        hubs = {meeting.hub for meeting in meetings}
        others = [place for place in range(len(here)) if place not in hubs]
        yield [
            message(here[min(hubs.intersection(self.neighbours[place]))], here[place], met_us, adds=False)
            for place in others
        ]


def _has_own_ports(topology: Topology, crossing: tuple[int, ...]) -> bool:
    """True if messages between nodes that have neither their senders nor their receivers in common share no port."""
    users = grouped((port, link) for link in crossing for port in topology.links[link].ports)
    ends = [[topology.links[link] for link in links] for links in users.values()]
    return all(len({k.src for k in links}) == 1 or len({k.dst for k in links}) == 1 for links in ends)


def _neighbours(topology: Topology) -> tuple[tuple[int, ...], ...] | None:
    """Places linked in both directions with each place of a node; None where nodes differ."""
    found = []
    for ranks in topology.node_ranks:
        linked = topology.links_between
        rows = [[b for b, two in enumerate(ranks) if (one, two) in linked and (two, one) in linked] for one in ranks]
        found.append(tuple(map(tuple, rows)))
    return found[0] if all(rows == found[0] for rows in found) else None


def _may_suffice(neighbours: tuple[tuple[int, ...], ...], hubs: int) -> bool:
    """True if so many ranks exist that every other one is next to one of them."""
    near = [{rank, *ranks} for rank, ranks in enumerate(neighbours)]
    return any(len(set().union(*chosen)) == len(near) for chosen in combinations(near, hubs))

"""Messages between nodes for which data is gathered before and handed out behind, when each port has time for one only.

Inside a node data moves on quickest paths. A message that starts at t over a link from u to v carries what ranks within t of u have, and
by T it serves ranks within ``T - t - m`` of v, where m is its own time. Only times that are sums of such parts matter: between
two of them nothing changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from taccl_py.arrays import FloatArray
from taccl_py.synthesis.bounds.net import Net
from taccl_py.synthesis.models.relay_cover import Relay, RelayCover
from taccl_py.topology.model import Topology

_PRECISION = 1e-9


@dataclass(frozen=True)
class LatencyMachine:
    """A machine of several nodes, empty messages taken for granted.

    Attributes
    ----------
    net
        The machine.
    inside_us
        Quickest path from rank to rank that does not leave the node, infinite between nodes, [rank, rank].
    crossing
        Links between nodes.
    """

    net: Net
    inside_us: FloatArray
    crossing: tuple[int, ...]

    @staticmethod
    def of(topology: Topology) -> LatencyMachine:
        """Measure the nodes."""
        net = Net.of(topology)
        node_of = np.array(topology.node_of)
        stays = node_of[net.src] == node_of[net.dst]
        starts = np.eye(net.num_ranks, dtype=bool)
        usable = np.broadcast_to(stays, (net.num_ranks, net.num_links))
        inside_us = net.quickest(starts, net.least_message_us, usable)
        return LatencyMachine(net, inside_us, tuple(np.flatnonzero(~stays).tolist()))

    @cached_property
    def twice_us(self) -> float:
        """Least time in which something can cross between nodes twice."""
        return 2 * float(self.net.least_message_us[list(self.crossing)].min(initial=np.inf))

    def out_of(self, node: int) -> tuple[int, ...]:
        """Links that lead out of a node."""
        topology = self.net.topology
        return tuple(link for link in self.crossing if topology.node_of[topology.links[link].src] == node)

    def times_us(self, links: Collection[int]) -> list[float]:
        """Times at which messages over some links can serve more, in ascending order."""
        sums = {
            before + float(self.net.least_message_us[link]) + after
            for link in links
            for before in self._starts_us(int(self.net.src[link]))
            for after in self._distances(self.inside_us[self.net.dst[link]])
        }
        found: list[float] = []
        for time_us in sorted(sums):
            if not found or time_us > found[-1] * (1 + _PRECISION):
                found.append(time_us)
        return found

    def cover(
        self, links: Sequence[int], time_us: float, until_us: float, alike: Mapping[int, Sequence[int]] | None = None
    ) -> RelayCover:
        """Cover by messages over some links, all of one node, that serve all pairs between it and the others.

        Parameters
        ----------
        links
            What they cross.
        time_us
            When all is done.
        until_us
            A resource that cannot let two messages arrive before this time serves one.
        alike
            Links that are used with each of these at the same time, itself among them; by default alone.
        """
        topology = self.net.topology
        relays = tuple(relay for link in links for relay in self._relays(link, time_us))
        together = {link: (link,) for link in links} if alike is None else alike
        home = topology.node_of[topology.links[links[0]].src]
        givers = topology.node_ranks[home]
        takers = tuple(rank for rank in range(topology.num_ranks) if topology.node_of[rank] != home)
        return RelayCover(givers, takers, relays, self._groups(relays, together, until_us))

    def _starts_us(self, rank: int) -> list[float]:
        """Times by which one more rank of its node can have told a rank."""
        return self._distances(self.inside_us[:, rank])

    @staticmethod
    def _distances(times_us: FloatArray) -> list[float]:
        found: list[float] = np.unique(times_us[np.isfinite(times_us)]).tolist()
        return found

    def _relays(self, link: int, time_us: float) -> Iterable[Relay]:
        """Messages over a link that serve more pairs than others over it, in ascending order of their starts."""
        src, dst, least_us = int(self.net.src[link]), int(self.net.dst[link]), float(self.net.least_message_us[link])
        found: dict[frozenset[int], Relay] = {}
        for start_us in self._starts_us(src):
            left_us = time_us * (1 + _PRECISION) - start_us - least_us
            if left_us >= 0:
                reached = frozenset(np.flatnonzero(self.inside_us[dst] <= left_us).tolist())
                told = np.flatnonzero(self.inside_us[:, src] <= start_us * (1 + _PRECISION))
                found[reached] = Relay(link, start_us, frozenset(told.tolist()), reached)
        return found.values()

    def _groups(
        self, relays: Sequence[Relay], together: Mapping[int, Sequence[int]], until_us: float
    ) -> tuple[tuple[int, ...], ...]:
        resources, least_us = self.net.topology.resources_of, self.net.least_message_us
        users: dict[int, list[int]] = {}
        soonest_us: dict[int, float] = {}
        for number, relay in enumerate(relays):
            for link in together[relay.link]:
                for resource in resources[link]:
                    users.setdefault(resource, []).append(number)
                    soonest_us[resource] = min(soonest_us.get(resource, np.inf), float(least_us[link]))
        single = {r for r in users if self.net.alpha_us[r] + soonest_us[r] >= until_us * (1 - _PRECISION)}
        groups = {tuple(users[r]) for r in single if len(users[r]) > 1}
        return tuple(sorted(groups))

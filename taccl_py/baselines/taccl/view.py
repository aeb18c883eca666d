"""The machine as TACCL sees it through a sketch.

* The links between nodes are those that the sketch connects. A NIC is split evenly over all of them, used or not: the beta of
  such a link is that of the NIC times the number of declared links that leave it for one other node.
* Inside a node a link costs what one message takes on it. Its ports take turns only if the sketch has switches, and between
  nodes only where there are more than two.
* A chunk for one rank stays on ranks that lie on a path of the fewest links.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from taccl_py.arrays import BoolArray
from taccl_py.collective import Collective
from taccl_py.errors import Infeasible
from taccl_py.sketch.model import Sketch, Strategy
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.restrict import RestrictionArrays
from taccl_py.topology.model import Topology
from taccl_py.units import BYTES_PER_MB


@dataclass(frozen=True)
class TacclView:
    """A routed collective on what TACCL sees of a machine.

    Attributes
    ----------
    problem
        Topology, collective, sketch, symmetry, and the links that each chunk may take.
    sketch
        The sketch.
    alpha_us, chunk_us
        Cost of a message on a link, once and for each chunk, [link].
    ports
        Ports (of the topology) that take turns, of each link, [link].
    """

    problem: Problem
    sketch: Sketch
    alpha_us: tuple[float, ...]
    chunk_us: tuple[float, ...]
    ports: tuple[tuple[int, ...], ...]

    @property
    def topology(self) -> Topology:
        """The machine."""
        return self.problem.topology

    @property
    def collective(self) -> Collective:
        """Collective to synthesize."""
        return self.problem.collective

    def resources(self, link: int) -> tuple[int, ...]:
        """The link and the ports that take turns, as the topology numbers links and ports."""
        return (link, *(len(self.topology.links) + port for port in self.ports[link]))

    def cost_us(self, link: int, chunks: int = 1) -> float:
        """Time of so many chunks in one message."""
        return self.alpha_us[link] + chunks * self.chunk_us[link]

    def is_remote(self, link: int) -> bool:
        """True if a link joins two nodes."""
        ends = self.topology.links[link]
        return self.topology.node_of[ends.src] != self.topology.node_of[ends.dst]

    @staticmethod
    def of(topology: Topology, collective: Collective, sketch: Sketch, chunk_bytes: float) -> TacclView:
        """Look at a machine through a sketch.

        Raises
        ------
        InputError, Infeasible
            If the sketch contradicts the machine, or leaves some chunk no path.
        """
        problem = Problem.build(topology, collective, sketch, chunk_bytes)
        allowed = problem.permitted & _on_shortest_paths(problem)
        allowed.setflags(write=False)
        megabytes = chunk_bytes / BYTES_PER_MB
        costs = [_link_cost(topology, link, megabytes) for link in range(len(topology.links))]
        view = TacclView(
            replace(problem, allowed=allowed),
            sketch,
            tuple(cost.alpha_us for cost in costs),
            tuple(cost.chunk_us for cost in costs),
            (),
        )
        shares = _nic_shares(view, megabytes)
        chunk_us = tuple(shares.get(link, cost.chunk_us) for link, cost in enumerate(costs))
        return replace(view, chunk_us=chunk_us, ports=tuple(_ports(view, link) for link in range(len(costs))))

    def backwards(self) -> TacclView:
        """View with every link reversed: each link costs what the one back costs, with its own ports."""
        topology = self.topology
        other = [self._opposite(link) for link in range(len(topology.links))]
        return replace(
            self,
            alpha_us=tuple(self.alpha_us[link] for link in other),
            chunk_us=tuple(self.chunk_us[link] for link in other),
            ports=tuple(topology.links[i].ports if self.ports[link] else () for i, link in enumerate(other)),
        )

    def reverse_link(self, chunk: int, link: int) -> int:
        """Return the link back, in the same lane.

        Raises
        ------
        Infeasible
            If there is none, so that this chunk's sum cannot come over it.
        """
        back = self._opposite(link)
        ends = self.topology.links[link]
        if self.topology.links[back].src != ends.dst:
            raise Infeasible(
                f"TACCL's sums take the links of its AllGather backwards, but {self.topology.name} has no link from rank "
                f"{ends.dst} to rank {ends.src}; name a machine whose links go in both directions",
                chunk=chunk,
                source=ends.dst,
                rank=ends.src,
                restriction="topology",
            )
        return back

    def _opposite(self, link: int) -> int:
        """The link back, or the link itself where there is none."""
        ends = self.topology.links[link]
        lanes = self.topology.links_between.get((ends.dst, ends.src), ())
        lane = self.topology.lane[link]
        return lanes[lane] if lane < len(lanes) else link


@dataclass(frozen=True, slots=True)
class _ViewCost:
    alpha_us: float
    chunk_us: float


def _link_cost(topology: Topology, link: int, megabytes: float) -> _ViewCost:
    """Alpha of the slowest of link and ports for one chunk; latency, which TACCL does not know, is in it."""
    resources = topology.resources_of[link]
    slowest = max(resources, key=lambda resource: topology.occupancy_us(resource, megabytes * BYTES_PER_MB))
    alpha_us, beta_us = topology.resource_cost[slowest]
    return _ViewCost(alpha_us + topology.links[link].latency_us, beta_us * megabytes)


def _nic_shares(view: TacclView, megabytes: float) -> dict[int, float]:
    """Cost of a chunk on every declared link between nodes; TACCL's profiles have been split when they were read."""
    topology = view.topology
    if topology.measured_chunk_bytes is not None:
        return {}
    local = topology.local_rank
    declared = [
        index
        for index, link in enumerate(topology.links)
        if view.is_remote(index) and view.sketch.connected(local[link.src], local[link.dst])
    ]
    users: Counter[tuple[int, int, int]] = Counter()
    for index in declared:
        for port in topology.links[index].ports:
            users[port, *_nodes(topology, index)] += 1
    shares = {}
    for index in declared:
        link = topology.links[index]
        betas = [topology.ports[p].beta_us_per_mb * users[p, *_nodes(topology, index)] for p in link.ports]
        shares[index] = megabytes * max(link.beta_us_per_mb, *betas, 0.0)
    return shares


def _nodes(topology: Topology, link: int) -> tuple[int, int]:
    return topology.node_of[topology.links[link].src], topology.node_of[topology.links[link].dst]


def _ports(view: TacclView, link: int) -> tuple[int, ...]:
    takes_turns = view.topology.num_nodes > 2 if view.is_remote(link) else view.sketch.strategy is Strategy.SWITCH
    return view.topology.links[link].ports if takes_turns else ()


def _on_shortest_paths(problem: Problem) -> BoolArray:
    """Links between ranks that lie on some path of the fewest permitted links, [chunk, link]; all where many want a chunk."""
    reach = RestrictionArrays.of(problem.topology, problem.collective)
    hops, onward = reach.hops_from_source(problem.permitted), reach.hops_to_wanted(problem.permitted)
    fewest = np.where(reach.wanted, hops, 0).max(axis=1)[:, None]
    near: BoolArray = np.zeros_like(reach.wanted)
    near[hops + onward == fewest] = True
    near[reach.wanted.sum(axis=1) > 1] = True
    useful = np.asarray(reach.wanted.any(axis=1), dtype=bool)[:, None] & (reach.dst[None, :] != reach.source[:, None])
    return np.asarray(near[:, reach.src] & near[:, reach.dst] & useful)

"""Network: a machine up to its symmetry, with the capacities that trees share.

Only symmetries that act *freely* are used: no rank, link or port keeps its place, and no two images of a link share a port.
Then a tree and its images load every link and port of an orbit alike, one arc of the tree loads each of them once, and
whatever fits on the orbits fits on the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from taccl_py.arrays import BoolArray, FloatArray, IntArray
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.symmetry import Generator, orbits_of_ranks, orbits_of_resources, share_ports
from taccl_py.topology.ends import ends_of
from taccl_py.topology.model import Topology


@dataclass(frozen=True, slots=True)
class LinkCosts:
    """Resources that messages on links occupy, and for how long.

    Attributes
    ----------
    resources
        Orbits of resources that a message occupies, [link].
    alpha_us, us_per_mb
        For how long, for each of these: once and for every megabyte, [link].
    latency_us
        What comes after, [link].
    """

    resources: tuple[tuple[int, ...], ...]
    alpha_us: tuple[tuple[float, ...], ...]
    us_per_mb: tuple[tuple[float, ...], ...]
    latency_us: tuple[float, ...]


@dataclass(frozen=True)
class CapacityNetwork:
    """Links and shared capacities of a machine.

    Attributes
    ----------
    problem
        The problem; which of its chunks a tree carries does not matter, only their source.
    roots
        One source rank of every orbit.
    permitted
        Links that trees of a root may use, [root, link].
    images
        Image of every rank under every element of the group, the identity first, [element, rank].
    src, dst
        Ends of the links, [link].
    resources
        Orbits of the resources that a link occupies, its own first, [link, position]; the number of orbits stands where a
        link has fewer than others.
    beta
        Cost of one megabyte on them in us, [link, position].
    least_message_us
        Time of the smallest message: alpha of what takes longest, and latency, [link].
    num_resources
        Number of orbits.
    """

    problem: Problem
    roots: tuple[int, ...]
    permitted: BoolArray
    images: IntArray
    src: IntArray
    dst: IntArray
    resources: IntArray
    beta: FloatArray
    least_message_us: FloatArray
    num_resources: int

    @property
    def num_ranks(self) -> int:
        """N."""
        return self.problem.topology.num_ranks

    @property
    def is_single(self) -> bool:
        """True if there are the trees of one root only."""
        return len(self.images) * len(self.roots) == 1

    @property
    def num_places(self) -> int:
        """Ranks in one tree of every root."""
        return len(self.roots) * self.num_ranks

    @cached_property
    def link_costs(self) -> LinkCosts:
        """Costs of messages on all links."""
        topology = self.problem.topology
        rows = zip(self.resources.tolist(), topology.resources_of, strict=True)
        return LinkCosts(
            tuple(tuple(row[: len(resources)]) for row, resources in rows),
            tuple(tuple(alpha_us for alpha_us, _ in costs) for costs in topology.link_costs),
            tuple(tuple(beta_us for _, beta_us in costs) for costs in topology.link_costs),
            tuple(link.latency_us for link in topology.links),
        )

    @staticmethod
    def of(problem: Problem) -> CapacityNetwork:
        """Keep what acts freely of the problem's symmetry, and form the orbits."""
        topology = problem.topology
        generators: list[Generator] = []
        images = np.arange(topology.num_ranks, dtype=np.int64)[None, :]
        for generator in problem.generators:
            wider = _free_group(topology, [*generators, generator])
            if wider is not None:
                generators.append(generator)
                images = wider
        orbit_of = orbits_of_ranks(topology, generators)
        chunk_of = {source: chunk for chunk, source in reversed(list(enumerate(problem.collective.source)))}
        roots = tuple(sorted({int(orbit_of[source]) for source in chunk_of}))
        number = orbits_of_resources(topology, generators)
        count = int(number.max()) + 1
        width = max(len(resources) for resources in topology.resources_of)
        resources = np.full((len(topology.links), width), count, dtype=np.int64)
        beta = np.zeros(resources.shape)
        for link, occupied in enumerate(topology.resources_of):
            resources[link, : len(occupied)] = number[list(occupied)]
            beta[link, : len(occupied)] = [beta_us for _, beta_us in topology.link_costs[link]]
        return CapacityNetwork(
            problem, roots, problem.permitted[[chunk_of[root] for root in roots]], images, *ends_of(topology.links),
            resources, beta, np.array([_least_message_us(topology, link) for link in range(len(topology.links))]), count,
        )  # fmt: skip

    def lengths(self, prices: FloatArray) -> FloatArray:
        """Price of every link when one megabyte-microsecond of every resource orbit costs ``prices``, [link]."""
        lengths: FloatArray = (np.append(prices, 0.0)[self.resources] * self.beta).sum(axis=1)
        return lengths

    def load(self, links: IntArray) -> FloatArray:
        """Time that one megabyte over each of these links takes on every resource orbit in us, [resource]."""
        load = np.bincount(
            self.resources[links].reshape(-1), self.beta[links].reshape(-1), minlength=self.num_resources + 1
        )
        return load[:-1].astype(np.float64)

    def busiest(self, links: IntArray | Sequence[int]) -> int:
        """Messages that a rank sends and receives, at most, if each of these links carries one."""
        return int(np.bincount(np.concatenate([self.src[links], self.dst[links]])).max())

    def link_images(self) -> IntArray:
        """Image of every link under every element of the group, [element, link]."""
        topology = self.problem.topology
        lane = np.array(topology.lane, dtype=np.int64)
        index = np.full((self.num_ranks, self.num_ranks, int(lane.max()) + 1), -1, dtype=np.int64)
        index[self.src, self.dst, lane] = np.arange(len(lane))
        return np.stack([index[image[self.src], image[self.dst], lane] for image in self.images])


def _free_group(topology: Topology, generators: list[Generator]) -> IntArray | None:
    """Images of the ranks under all elements of the group, or None if it does not act freely."""
    sizes = np.bincount(orbits_of_ranks(topology, generators))
    order = int(sizes[0])
    if any(size not in (0, order) for size in sizes.tolist()):
        return None
    identity = tuple(range(topology.num_ranks))
    elements = {identity: None}
    for element in (queue := [identity]):
        for generator in generators:
            product = tuple(generator.rank[rank] for rank in element)
            if product not in elements:
                elements[product] = None
                queue.append(product)
        if len(elements) > order:
            return None
    return None if share_ports(topology, generators) else np.array(list(elements), dtype=np.int64)


def _least_message_us(topology: Topology, link: int) -> float:
    return max(alpha_us for alpha_us, _ in topology.link_costs[link]) + topology.links[link].latency_us

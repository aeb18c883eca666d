"""A machine as arrays, and quickest ways through it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from taccl_py.arrays import BoolArray, FloatArray, IntArray
from taccl_py.synthesis.symmetry import images_of_resources, orbit_labels
from taccl_py.topology.automorphism import LinkImages
from taccl_py.topology.ends import ends_of
from taccl_py.topology.model import Topology


@dataclass(frozen=True, eq=False)
class Net:
    """Arrays of a machine; links and resources are numbered as in `Topology`. Each is equal to itself alone.

    Attributes
    ----------
    topology
        The machine.
    src, dst
        Ends of every link.
    latency_us
        Latency of every link.
    alpha_us, beta_us_per_mb
        Cost of every resource.
    use_link, use_resource
        Pairs of a link and a resource that its messages occupy.
    is_reversed
        Whether time runs backwards: latency passes before a message occupies anything, not after it.
    """

    topology: Topology
    src: IntArray
    dst: IntArray
    latency_us: FloatArray
    alpha_us: FloatArray
    beta_us_per_mb: FloatArray
    use_link: IntArray
    use_resource: IntArray
    is_reversed: bool = False

    @staticmethod
    def of(topology: Topology) -> Net:
        """Build the arrays."""
        links, costs = topology.links, topology.resource_cost
        uses = topology.resources_of
        return Net(
            topology,
            *ends_of(links),
            np.array([link.latency_us for link in links], dtype=np.float64),
            np.array([alpha_us for alpha_us, _ in costs], dtype=np.float64),
            np.array([beta for _, beta in costs], dtype=np.float64),
            np.repeat(np.arange(len(links)), [len(resources) for resources in uses]),
            np.array([resource for resources in uses for resource in resources], dtype=np.int64),
        )

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return self.topology.num_ranks

    @property
    def num_links(self) -> int:
        """Number of links."""
        return len(self.src)

    @cached_property
    def node_of(self) -> IntArray:
        """Node of every rank."""
        return np.array(self.topology.node_of, dtype=np.int64)

    @cached_property
    def least_message_us(self) -> FloatArray:
        """Time of the smallest message on every link, [link]."""
        slowest = np.zeros(self.num_links)
        np.maximum.at(slowest, self.use_link, self.alpha_us[self.use_resource])
        found: FloatArray = slowest + self.latency_us
        return found

    def sum_over_links(self, per_resource: FloatArray) -> FloatArray:
        """For every link, the sum of a quantity over the resources that it occupies."""
        return np.asarray(
            np.bincount(self.use_link, weights=per_resource[self.use_resource], minlength=self.num_links),
            dtype=np.float64,
        )

    def sum_over_resources(self, per_link: FloatArray) -> FloatArray:
        """For every resource, the sum of a quantity over the links that occupy it."""
        return np.asarray(
            np.bincount(self.use_resource, weights=per_link[self.use_link], minlength=len(self.alpha_us)),
            dtype=np.float64,
        )

    @cached_property
    def _by_dst(self) -> IntArray:
        """Links in order of their destinations."""
        return np.argsort(self.dst, kind="stable")

    def quickest(self, starts: BoolArray, cost_us: FloatArray, usable: BoolArray | None = None) -> FloatArray:
        """Least time to every rank, for several sets of ranks to start from.

        Parameters
        ----------
        starts
            Ranks at distance 0, [set, rank].
        cost_us
            Time of every link.
        usable
            Links that may be used, [set, link]; all if None.

        Returns
        -------
        FloatArray
            Least time, infinite where there is no way, [set, rank].
        """
        distance = np.where(starts, 0.0, np.inf)
        if not self.num_links:
            return np.asarray(distance, dtype=np.float64)
        order = self._by_dst
        tails, heads = self.src[order], self.dst[order]
        first = np.flatnonzero(np.concatenate(([True], heads[1:] != heads[:-1])))
        steps = np.broadcast_to(cost_us[order], (len(starts), self.num_links))
        if usable is not None:
            steps = np.where(usable[:, order], steps, np.inf)
        reached = heads[first]
        while True:
            through = np.minimum.reduceat(distance[:, tails] + steps, first, axis=1)
            better = through < distance[:, reached]
            if not better.any():
                return np.asarray(distance, dtype=np.float64)
            distance[:, reached] = np.minimum(distance[:, reached], through)

    def quickest_from(self, ranks: Sequence[int]) -> FloatArray:
        """Least time of the smallest message from each of some ranks to every rank, [start, rank]."""
        starts = np.arange(self.num_ranks)[None, :] == np.array(ranks)[:, None]
        return self.quickest(starts, self.least_message_us)

    def reversed(self) -> Net:
        """Return the same resources with every link turned around, the same net every time; links keep their numbers."""
        return self._turned

    @cached_property
    def _turned(self) -> Net:
        return Net(
            self.topology, self.dst, self.src, self.latency_us, self.alpha_us, self.beta_us_per_mb,
            self.use_link, self.use_resource, not self.is_reversed,
        )  # fmt: skip


def quickest(
    topology: Topology, starts: Iterable[int], links: Iterable[int], cost_us: Sequence[float]
) -> tuple[float, ...]:
    """Least time from any of the ranks `starts` to every rank over `links`, for the time of a message on every link."""
    net = Net.of(topology)
    start = np.zeros((1, net.num_ranks), dtype=bool)
    start[0, list(starts)] = True
    usable = np.zeros((1, net.num_links), dtype=bool)
    usable[0, list(links)] = True
    found: list[float] = net.quickest(start, np.array(cost_us, dtype=np.float64), usable)[0].tolist()
    return tuple(found)


@dataclass(frozen=True)
class OrbitMembers:
    """Ranks and resources that a symmetry exchanges: the smallest member of everyone's orbit.

    Attributes
    ----------
    rank
        Of every rank.
    resource
        Of every link and port.
    images
        Permutations of the ranks that generate the symmetry.
    """

    rank: IntArray
    resource: IntArray
    images: tuple[IntArray, ...]

    @staticmethod
    def of_images(topology: Topology, images: Iterable[tuple[Sequence[int], IntArray]]) -> OrbitMembers:
        """Orbits under some verified permutations, each given by its images of ranks and of resources."""
        known = [(np.array(rank, dtype=np.int64), resource) for rank, resource in images]
        ranks = [rank for rank, _ in known]
        resource = orbit_labels(topology.num_resources, [resource for _, resource in known])
        return OrbitMembers(orbit_labels(topology.num_ranks, ranks), resource, tuple(ranks))

    @staticmethod
    def of_machine(topology: Topology, fixed: int | None = None) -> OrbitMembers:
        """Orbits under those of the machine's own symmetries that hold, and that leave a rank where it is."""
        of_links = LinkImages(topology)
        images = [(rank, of_links.of(rank)) for rank in topology.symmetry if fixed is None or rank[fixed] == fixed]
        held = ((rank, images_of_resources(*image)) for rank, image in images if not isinstance(image, str))
        return OrbitMembers.of_images(topology, held)

    @cached_property
    def number(self) -> IntArray:
        """Number of the orbit of every link and port, [resource]."""
        return np.unique(self.resource, return_inverse=True)[1]

    @cached_property
    def size(self) -> FloatArray:
        """Links and ports of every orbit, [orbit]."""
        return np.bincount(self.number).astype(np.float64)

    def shared(self, prices: FloatArray) -> FloatArray:
        """Price of every link and port where those of an orbit share one, [resource]."""
        return np.asarray((prices / self.size)[self.number], dtype=np.float64)

    def load(self, loads: FloatArray) -> FloatArray:
        """Load of one link or port of every orbit where all of them share theirs, [orbit]."""
        return np.asarray(np.bincount(self.number, loads) / self.size, dtype=np.float64)

    def ranks(self) -> list[int]:
        """One rank of every orbit."""
        found: list[int] = np.unique(self.rank).tolist()
        return found

    def enough_for(self, start: int) -> list[int]:
        """Ranks such that whatever flows from the start to each of them flows to all.

        What flows from x to y and from y to z flows from x to z. So what flows from the start to its images flows, by the same
        symmetry, from these to theirs and in the end to its whole orbit, and from there to the orbits of all others.
        """
        found = {int(image[start]) for image in self.images} | set(
            np.unique(self.rank[self.rank != self.rank[start]]).tolist()
        )
        return sorted(found - {start})

"""Symmetry: rank permutations under which machine, collective and restrictions stay the same.

A generator is checked before it is used; what fails is named. Engines then work on orbits (`taccl_py.synthesis.quotient`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from taccl_py.arrays import BoolArray, IntArray
from taccl_py.collective import Collective
from taccl_py.topology.automorphism import image_of_links
from taccl_py.topology.model import Topology


@dataclass(frozen=True, slots=True)
class Generator:
    """A verified automorphism: the image of every rank, chunk, link and port."""

    rank: tuple[int, ...]
    chunk: IntArray
    link: IntArray
    port: IntArray

    @property
    def resource(self) -> IntArray:
        """Image of every resource."""
        return images_of_resources(self.link, self.port)


def images_of_resources(link: IntArray, port: IntArray) -> IntArray:
    """Image of every resource, which are links first and then ports, given those of links and of ports."""
    return np.concatenate([link, len(link) + port])


def make_generator(
    topology: Topology, collective: Collective, allowed: BoolArray, image: tuple[int, ...]
) -> Generator | str:
    """Verify one generator.

    Parameters
    ----------
    topology, collective
        The problem.
    allowed
        Which links a chunk may use, [chunk, link].
    image
        Image of every rank.

    Returns
    -------
    Generator or str
        The generator, or a sentence saying what it does not preserve. An empty sentence means that it moves the root, so
        that it is no symmetry of this collective although it is one of the machine.
    """
    mapped = image_of_links(topology, image)
    if isinstance(mapped, str):
        return mapped
    links, ports = mapped
    chunks = [collective.permuted_chunk(chunk, image) for chunk in range(collective.num_chunks)]
    if any(chunk is None for chunk in chunks):
        return ""
    chunk_image = np.array(chunks, dtype=np.int64)
    differs = np.argwhere(allowed != allowed[np.ix_(chunk_image, links)])
    if len(differs):
        chunk, link = int(differs[0][0]), topology.links[int(differs[0][1])]
        return (
            f"it does not preserve what the sketch allows {collective.describe_chunk(chunk)} on {link.src}->{link.dst}"
        )
    return Generator(image, chunk_image, links, ports)


def orbit_labels(size: int, images: list[IntArray]) -> IntArray:
    """Smallest element of every element's orbit under the group that the permutations generate.

    Minima are spread by repeated squaring of each permutation, so a cyclic group of order m costs log m passes.
    """
    labels = np.arange(size, dtype=np.int64)
    while True:
        before = labels.copy()
        for image in images:
            power = image
            while True:
                spread = np.minimum(labels, labels[power])
                power = power[power]
                if np.array_equal(spread, labels):
                    break
                labels = spread
        if np.array_equal(before, labels):
            return labels


def orbits_of_ranks(topology: Topology, generators: Sequence[Generator]) -> IntArray:
    """Smallest rank of every rank's orbit, [rank]."""
    return orbit_labels(topology.num_ranks, [np.array(generator.rank, dtype=np.int64) for generator in generators])


def share_ports(topology: Topology, generators: Sequence[Generator]) -> bool:
    """True if a link has a port in common with one of its images."""
    label = orbit_labels(len(topology.links), [generator.link for generator in generators]).tolist()
    behind = [(label[index], port) for index, link in enumerate(topology.links) for port in link.ports]
    return len(set(behind)) < len(behind)


def orbits_of_resources(topology: Topology, generators: Sequence[Generator]) -> IntArray:
    """Number of every link's and port's orbit, in order of their smallest members, [resource]."""
    labels = orbit_labels(topology.num_resources, [generator.resource for generator in generators])
    return np.asarray(np.unique(labels, return_inverse=True)[1], dtype=np.int64)

"""A machine as matching sees it at one size of chunk: links, and the resource orbits that messages take turns on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taccl_py.synthesis.symmetry import IntArray, orbit_labels
from taccl_py.topology.automorphism import LinkImages
from taccl_py.topology.model import Topology
from taccl_py.topology.translations import Translations


@dataclass(frozen=True)
class Claim:
    """For how long a message occupies one orbit of links or ports."""

    orbit: int
    time_us: float


@dataclass(frozen=True)
class Sort:
    """Links between which a message has no reason to choose but where they go: same claims, same time.

    Attributes
    ----------
    claims
        What a message occupies.
    message_us
        Time from its start to its arrival.
    """

    claims: tuple[Claim, ...]
    message_us: float


@dataclass(frozen=True)
class Fabric:
    """Links and sorts of links.

    Attributes
    ----------
    topology
        The machine.
    src, dst
        Ends of the links.
    sort_of
        Sort of every link.
    sorts
        See `Sort`.
    links_from
        Links that leave every rank.
    """

    topology: Topology
    src: tuple[int, ...]
    dst: tuple[int, ...]
    sort_of: tuple[int, ...]
    sorts: tuple[Sort, ...]
    links_from: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(topology: Topology, chunk_bytes: float, orbits: IntArray | None = None) -> Fabric:
        """Form the sorts; without orbits every link and port is one of its own."""
        label = np.arange(topology.num_resources) if orbits is None else orbits
        number: dict[Sort, int] = {}
        sort_of = []
        for link in range(len(topology.links)):
            claims = _claims(topology, link, chunk_bytes, label)
            sort_of.append(number.setdefault(Sort(claims, topology.message_us(link, chunk_bytes)), len(number)))
        leaving: list[list[int]] = [[] for _ in range(topology.num_ranks)]
        for index, link_record in enumerate(topology.links):
            leaving[link_record.src].append(index)
        return Fabric(
            topology,
            tuple(link.src for link in topology.links),
            tuple(link.dst for link in topology.links),
            tuple(sort_of),
            tuple(number),
            tuple(map(tuple, leaving)),
        )


def _claims(topology: Topology, link: int, chunk_bytes: float, label: IntArray) -> tuple[Claim, ...]:
    own, *ports = topology.resources_of[link]
    claims = [Claim(int(label[port]), topology.occupancy_us(port, chunk_bytes)) for port in ports]
    own_us = topology.occupancy_us(own, chunk_bytes)
    if not any(claim.time_us >= own_us for claim in claims):  # else whoever has the port has the link
        claims.insert(0, Claim(int(label[own]), own_us))
    return tuple(claims)


def resource_orbits(topology: Topology, translations: Translations) -> IntArray | None:
    """Orbit of every link and port, or None if one of them is kept in place by some translation."""
    found = LinkImages(topology)
    images = []
    for generator in translations.generators:
        image = found.of(generator)
        if isinstance(image, str):
            return None
        images.append(np.concatenate([image[0], len(topology.links) + image[1]]))
    orbits = orbit_labels(topology.num_resources, images)
    used = {resource for resources in topology.resources_of for resource in resources}
    members = np.bincount(orbits, minlength=topology.num_resources)
    small = any(int(members[orbits[resource]]) < topology.num_ranks for resource in sorted(used))
    return None if small else orbits

"""A machine as matching sees it at one size of chunk: links, and the resource orbits that messages take turns on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from taccl_py.arrays import IntArray
from taccl_py.synthesis.distances import distances
from taccl_py.synthesis.symmetry import images_of_resources, orbit_labels
from taccl_py.topology.automorphism import LinkImages
from taccl_py.topology.ends import ends_of
from taccl_py.topology.model import Topology
from taccl_py.topology.translations import Translations


class OrbitOccupation(NamedTuple):
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

    claims: tuple[OrbitOccupation, ...]
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
        Links that leave every rank and may be used: an orbit serves one message at a time, and so none that needs it twice.
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
        sorts = tuple(number)
        usable = [len({claim.orbit for claim in sort.claims}) == len(sort.claims) for sort in sorts]
        leaving = (tuple(link for link in links if usable[sort_of[link]]) for links in topology.links_from)
        return Fabric(
            topology,
            tuple(link.src for link in topology.links),
            tuple(link.dst for link in topology.links),
            tuple(sort_of),
            sorts,
            tuple(leaving),
        )


def _claims(topology: Topology, link: int, chunk_bytes: float, label: IntArray) -> tuple[OrbitOccupation, ...]:
    own, *ports = topology.resources_of[link]
    claims = [OrbitOccupation(int(label[port]), topology.occupancy_us(port, chunk_bytes)) for port in ports]
    own_us = topology.occupancy_us(own, chunk_bytes)
    if not any(claim.time_us >= own_us for claim in claims):  # else whoever has the port has the link
        claims.insert(0, OrbitOccupation(int(label[own]), own_us))
    return tuple(claims)


def resource_orbits(topology: Topology, translations: Translations) -> IntArray | None:
    """Orbit of every link and port.

    None if some translation keeps one in place, or if the links that do without an orbit twice do not lead from everyone to everyone.
    """
    found = LinkImages(topology)
    images = []
    for generator in translations.generators:
        image = found.of(generator)
        if isinstance(image, str):
            return None
        images.append(images_of_resources(*image))
    orbits = orbit_labels(topology.num_resources, images)
    used = {resource for resources in topology.resources_of for resource in resources}
    members = np.bincount(orbits, minlength=topology.num_resources)
    is_small = any(int(members[orbits[resource]]) < translations.size for resource in used)
    if is_small:
        return None
    usable = [len(set(orbits[list(resources)].tolist())) == len(resources) for resources in topology.resources_of]
    src, dst = ends_of([link for link, may in zip(topology.links, usable, strict=True) if may])
    hops = [distances(topology.num_ranks, *ends, [0]) for ends in ((src, dst), (dst, src))]
    return orbits if np.isfinite(hops).all() else None

"""Images of links and ports under a renaming of the ranks, and whether the machine stays the same."""

from __future__ import annotations

import numpy as np

from taccl_py.arrays import IntArray
from taccl_py.topology.ends import ends_of
from taccl_py.topology.model import Topology


class LinkImages:
    """Finds what a renaming of the ranks does to links and ports."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        links, ranks = topology.links, topology.num_ranks
        self._src, self._dst = ends_of(links)
        self._lane = np.array(topology.lane, dtype=np.int64)
        self._most_lanes = int(self._lane.max(initial=0)) + 1
        # Links are sorted by their ends, so these numbers rise.
        self._place = (self._src * ranks + self._dst) * self._most_lanes + self._lane
        most = max((len(link.ports) for link in links), default=0)
        padded = [link.ports + (-1,) * (most - len(link.ports)) for link in links]
        self._ports = np.array(padded, dtype=np.int64).reshape(len(links), most)
        kinds: dict[tuple[float, ...], int] = {}
        port_cost = np.array(
            [kinds.setdefault((p.alpha_us, p.beta_us_per_mb), len(kinds)) for p in topology.ports] + [-1],
            dtype=np.int64,
        )
        link_cost = [kinds.setdefault((k.alpha_us, k.beta_us_per_mb, k.latency_us), len(kinds)) for k in topology.links]
        self._cost = np.column_stack([np.array(link_cost, dtype=np.int64), port_cost[self._ports]])

    def of(self, image: tuple[int, ...]) -> tuple[IntArray, IntArray] | str:
        """Images of links and ports when rank r is renamed ``image[r]``, or a sentence saying why that is no automorphism."""
        topology, renamed = self._topology, np.array(image, dtype=np.int64)
        src, dst = renamed[self._src], renamed[self._dst]
        place = (src * topology.num_ranks + dst) * self._most_lanes + self._lane
        links = np.minimum(np.searchsorted(self._place, place), len(self._place) - 1)
        missing = self._place[links] != place
        wrong = np.flatnonzero(missing | (self._cost != self._cost[links]).any(axis=1))
        if len(wrong):
            link = topology.links[wrong[0]]
            why = "does not exist" if missing[wrong[0]] else "costs something else"
            return f"link {link.src}->{link.dst} would become {src[wrong[0]]}->{dst[wrong[0]]}, which {why}"
        used = self._ports >= 0
        mine, theirs = self._ports[used], self._ports[links][used]
        ports = np.arange(len(topology.ports))
        ports[mine] = theirs
        two = np.flatnonzero(ports[mine] != theirs)
        if len(two):
            return f"port {topology.ports[mine[two[0]]].name!r} would have to become two ports"
        if len(np.unique(ports[mine])) != len(np.unique(mine)):
            return "two ports would become one"
        return links, ports


def image_of_links(topology: Topology, image: tuple[int, ...]) -> tuple[IntArray, IntArray] | str:
    """Images of links and ports under one renaming; see `LinkImages.of`."""
    return LinkImages(topology).of(image)


def regular_renamings(size: int) -> list[tuple[int, ...]]:
    """Renamings of so many ranks, or nodes, under which machines made of equal parts often stay as they are.

    Turns by every divisor, and exchanges of one bit of the number.
    """
    turns = [tuple((rank + step) % size for rank in range(size)) for step in range(1, size) if size % step == 0]
    masks = [1 << bit for bit in range(size.bit_length()) if size % (2 << bit) == 0]
    flips = [tuple(rank ^ mask for rank in range(size)) for mask in masks]
    return list(dict.fromkeys([*turns, *flips]))

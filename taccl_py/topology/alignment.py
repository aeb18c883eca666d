"""Orders of the ranks inside nodes in which all nodes look the same.

Virtual machines of one kind may number their GPUs differently, as Azure's NDv2 do (TACCL, Shah et al., NSDI'23, section 4). Where
the ranks of each node are put in a fitting order, one algorithm fits all of them, and symmetry makes the search for it easy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from taccl_py.errors import InputError
from taccl_py.topology.automorphism import image_of_links
from taccl_py.topology.model import Link, Port, Topology

# Label of a pair of ranks: costs of links with those of their ports; and label of a rank: those of its pairs.
_Label = tuple[object, ...]


@dataclass(frozen=True)
class Alignment:
    """A machine whose nodes look the same.

    Attributes
    ----------
    topology
        The machine with its ranks in the new order, node by node; costs that differ by no more than the tolerance are even.
    orders
        For every node the local ranks in the order in which it looks like the first one, [node][new local rank].
    """

    topology: Topology
    orders: tuple[tuple[int, ...], ...]

    @property
    def changes(self) -> bool:
        """True if some node has its ranks in another order now."""
        return any(order != tuple(range(len(order))) for order in self.orders)


def align_nodes(topology: Topology, tolerance: float) -> Alignment:
    """Order the ranks of every node so that it looks like the first node, from inside and from every other node.

    Parameters
    ----------
    topology
        A machine of several nodes.
    tolerance
        Relative difference of alpha, beta or latency up to which two figures are the same, for example 0.05.

    Raises
    ------
    InputError
        If there is one node, nodes differ in size, or one is not like the first in any order of its ranks.
    """
    nodes = topology.node_ranks
    if len(nodes) == 1:
        raise InputError(f"{topology.name} is one node, which is like no other; give --nodes or another machine")
    size = len(nodes[0])
    for number, ranks in enumerate(nodes):
        if len(ranks) != size:
            raise InputError(f"node {number} has {len(ranks)} ranks and node 0 has {size}; no order makes them alike")
    even = _evened(topology, tolerance)
    labels = _Labels(even)
    aligned: list[tuple[int, ...]] = [nodes[0]]
    for number, ranks in enumerate(nodes[1:], 1):
        alike = labels.sorts(ranks) == labels.sorts(nodes[0])
        found = _fitted(labels, aligned, ranks, []) if alike else None
        if found is None:
            raise InputError(
                f"node {number} is not like node 0 in any order of its ranks, within {tolerance:.3g}; compare their links "
                "with taccl topo show"
            )
        aligned.append(found)
    order = tuple(rank for ranks in aligned for rank in ranks)
    orders = tuple(tuple(topology.local_rank[rank] for rank in ranks) for ranks in aligned)
    return Alignment(_with_rotation(even.subset(order), size), orders)


def _fitted(
    labels: _Labels, aligned: Sequence[tuple[int, ...]], ranks: tuple[int, ...], chosen: list[int]
) -> tuple[int, ...] | None:
    """The ranks of a node in an order that fits, beginning with those that are chosen; the order that they have goes first."""
    place = len(chosen)
    if place == len(ranks):
        return tuple(chosen)
    for rank in (*ranks[place:], *ranks[:place]):
        if rank not in chosen and labels.fits(aligned, chosen, rank):
            found = _fitted(labels, aligned, ranks, [*chosen, rank])
            if found is not None:
                return found
    return None


class _Labels:
    """Labels of ranks and pairs of ranks that do not depend on their numbers."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._touched: list[set[int]] = [set() for _ in topology.node_of]
        outside: list[list[_Label]] = [[] for _ in topology.node_of]
        self._pairs: dict[tuple[int, int], _Label] = {}
        for (src, dst), indices in topology.links_between.items():
            links = [topology.links[index] for index in indices]
            label = tuple(sorted(self._link_label(link) for link in links))
            self._pairs[src, dst] = label
            if topology.node_of[src] != topology.node_of[dst]:
                outside[src].append(("out", *label))
                outside[dst].append(("in", *label))
            for link in links:
                self._touched[src].update(link.ports)
                self._touched[dst].update(link.ports)
        looks = ((sorted(map(repr, outside[rank])), self._shared(rank, rank)) for rank in range(topology.num_ranks))
        self._sort = self._refined(_numbered(looks))

    def sorts(self, ranks: Sequence[int]) -> list[int]:
        """Sorts of ranks; ranks of different sorts cannot take each other's place."""
        return sorted(self._sort[rank] for rank in ranks)

    def _refined(self, sort: list[int]) -> list[int]:
        """Sorts that also tell what a rank's neighbours in its node are of, their neighbours, and so on (Weisfeiler and Leman)."""
        nodes = self._topology.node_ranks
        while True:
            looks = {
                rank: (
                    sort[rank],
                    sorted(repr((self._pair(rank, other), sort[other])) for other in ranks if other != rank),
                )
                for ranks in nodes
                for rank in ranks
            }
            finer = _numbered(looks[rank] for rank in range(len(sort)))
            if max(finer) == max(sort):
                return finer
            sort = finer

    def fits(self, aligned: Sequence[tuple[int, ...]], chosen: Sequence[int], rank: int) -> bool:
        """True if a rank may come next in a node, after those that are chosen, when so many nodes have their order."""
        first, place = aligned[0], len(chosen)
        if self._sort[rank] != self._sort[first[place]]:
            return False
        for mine, theirs in zip((*chosen, rank), first, strict=False):
            if self._pair(mine, rank) != self._pair(theirs, first[place]):
                return False
        return all(self._alike_across(aligned, other, [*chosen, rank]) for other in range(len(aligned)))

    def _alike_across(self, aligned: Sequence[tuple[int, ...]], other: int, chosen: Sequence[int]) -> bool:
        """True if the last rank of this node and another node see each other as nodes 0 and 1 do, where these are known."""
        there, last, rank = aligned[other], len(chosen) - 1, chosen[-1]
        for place, mine in enumerate(chosen):
            out, back = self._pairs.get((there[place], rank)), self._pairs.get((mine, there[last]))
            if out != back or self._pairs.get((there[last], mine)) != self._pairs.get((rank, there[place])):
                return False
            if len(aligned) > 1:
                zero, one = aligned[0], aligned[1]
                if out != self._pairs.get((zero[place], one[last])):
                    return False
                if self._pairs.get((rank, there[place])) != self._pairs.get((one[last], zero[place])):
                    return False
        return True

    def _pair(self, one: int, other: int) -> _Label:
        return self._pairs.get((one, other)), self._pairs.get((other, one)), self._shared(one, other)

    def _shared(self, one: int, other: int) -> _Label:
        """Costs of the ports that links at both ranks use."""
        ports = (self._topology.ports[port] for port in self._touched[one] & self._touched[other])
        return tuple(sorted((port.alpha_us, port.beta_us_per_mb) for port in ports))

    def _link_label(self, link: Link) -> tuple[float | tuple[float, float], ...]:
        ports = sorted(
            (self._topology.ports[port].alpha_us, self._topology.ports[port].beta_us_per_mb) for port in link.ports
        )
        return link.alpha_us, link.beta_us_per_mb, link.latency_us, *ports


def _numbered(looks: Iterable[object]) -> list[int]:
    """The same number for what looks the same."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(repr(look), len(numbers)) for look in looks]


def _evened(topology: Topology, tolerance: float) -> Topology:
    """The machine with the mean of all figures that are the same within the tolerance."""
    links, ports = topology.links, topology.ports
    alpha = _means([k.alpha_us for k in links] + [p.alpha_us for p in ports], tolerance)
    beta = _means([k.beta_us_per_mb for k in links] + [p.beta_us_per_mb for p in ports], tolerance)
    latency = _means([link.latency_us for link in links], tolerance)
    return replace(
        topology,
        links=tuple(
            replace(k, alpha_us=alpha[k.alpha_us], beta_us_per_mb=beta[k.beta_us_per_mb], latency_us=latency[k.latency_us])
            for k in links
        ),
        ports=tuple(Port(p.name, alpha[p.alpha_us], beta[p.beta_us_per_mb]) for p in ports),
    )  # fmt: skip


def _means(values: Sequence[float], tolerance: float) -> dict[float, float]:
    """For every value the mean of those that are the same as the smallest of its group."""
    groups: list[list[float]] = []
    for value in sorted(values):
        if groups and value <= groups[-1][0] * (1 + tolerance):
            groups[-1].append(value)
        else:
            groups.append([value])
    return {value: group[0] if group[0] == group[-1] else fmean(group) for group in groups for value in group}


def _with_rotation(topology: Topology, size: int) -> Topology:
    """The machine with the symmetry that turns its nodes, if it has it."""
    total = topology.num_ranks
    rotation = tuple((rank + size) % total for rank in range(total))
    if rotation in topology.symmetry or isinstance(image_of_links(topology, rotation), str):
        return topology
    return replace(topology, symmetry=(*topology.symmetry, rotation))

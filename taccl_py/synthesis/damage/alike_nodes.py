"""Nodes put beside each other place by place: what joins the third rank of a node to the fifth one is of one kind in all nodes of its sort.

Nodes are of one sort if they have as many ranks, and the best port of each class and the best link inside are about as fast in them. So one
port that is slow or gone makes no node another sort, nor does what measurements differ by, and a node of another generation is one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import product

from taccl_py.grouping import by_number
from taccl_py.synthesis.damage.params import PARAMS
from taccl_py.topology.model import Link, Port, Topology

# Kind of a port: what it joins, in places of its own node, and its number among those that join the same.
PortKind = tuple[str, tuple[int, ...], tuple[int, ...], int]
# Class of a port: the same with numbers of places.
_PortClass = tuple[str, int, int, int]
# Kind of a link: whether it leads to another node, the places of its ends, and its number among parallel ones.
_LinkKind = tuple[bool, int, int, int]
# Sorts of the nodes at both ends of a link.
_Sorts = tuple[int, int]
# A link with the kinds of its ports, and whether each is at the sender's side.
_Sample = tuple[Link, tuple[tuple[bool, PortKind], ...]]
# The better of two costs, or the worse one.
Choice = Callable[[float, float], float]


@dataclass(frozen=True)
class NodePorts:
    """Node and kind of every port.

    Attributes
    ----------
    node, kind
        Of each port by its number.
    """

    node: tuple[int, ...]
    kind: tuple[PortKind, ...]

    @staticmethod
    def of(topology: Topology) -> NodePorts | None:
        """Find them; None if a port is of no one node."""
        uses = ((port, index) for index, link in enumerate(topology.links) for port in link.ports)
        users = by_number(len(topology.ports), uses)
        nodes: list[int] = []
        kinds: list[PortKind] = []
        known: defaultdict[tuple[int, PortKind], int] = defaultdict(int)
        for port, links in enumerate(users):
            node = _owner(topology, port, links)
            if node is None:
                return None
            kind = _kind(topology, node, links)
            kinds.append((*kind[:3], known[node, kind]))
            known[node, kind] += 1
            nodes.append(node)
        return NodePorts(tuple(nodes), tuple(kinds))


def _owner(topology: Topology, port: int, links: Sequence[int]) -> int | None:
    """The node that all links of a port touch; of two the one in which they touch fewer ranks, or that of its side of the link."""
    if not links:
        return None
    node_of, first = topology.node_of, topology.links[links[0]]
    found = []
    for node in dict.fromkeys((node_of[first.src], node_of[first.dst])):
        ends = [
            (link.src if node_of[link.src] == node else link.dst)
            for link in (topology.links[index] for index in links)
            if node in (node_of[link.src], node_of[link.dst])
        ]
        if len(ends) == len(links):
            behind = 2 * first.ports.index(port) >= len(first.ports)
            found.append((len(set(ends)), (node == node_of[first.src]) == behind, node))
    return min(found)[2] if found else None


def _kind(topology: Topology, node: int, links: Sequence[int]) -> PortKind:
    """Ends that a port joins. One that has a single end in its node on one side is known by that, whatever links are missing."""
    local, node_of = topology.local_rank, topology.node_of
    inside = [topology.links[i] for i in links if topology.is_inside(topology.links[i])]
    across = [topology.links[i] for i in links if not topology.is_inside(topology.links[i])]
    sources = {local[link.src] for link in inside}
    targets = {local[link.dst] for link in inside}
    if len(sources) == 1 and len(targets) > 1:
        targets = set()
    elif len(targets) == 1 and len(sources) > 1:
        sources = set()
    sources |= {local[link.src] for link in across if node_of[link.src] == node}
    targets |= {local[link.dst] for link in across if node_of[link.dst] == node}
    reach = ("inside" if inside else "") + ("across" if across else "")
    return reach, tuple(sorted(sources)), tuple(sorted(targets)), 0


def _class_of(kind: PortKind) -> _PortClass:
    reach, sources, targets, number = kind
    return reach, len(sources), len(targets), number


def sorts_of_nodes(topology: Topology, ports: NodePorts) -> tuple[int, ...]:
    """Number of every node's sort: that of the first node to which it is similar."""
    best: list[dict[_PortClass | None, float]] = [{} for _ in topology.node_ranks]
    for port, node, kind in zip(topology.ports, ports.node, ports.kind, strict=True):
        known = best[node].get(_class_of(kind), port.beta_us_per_mb)
        best[node][_class_of(kind)] = min(known, port.beta_us_per_mb)
    for link in topology.links:
        if topology.is_inside(link):
            of_node = best[topology.node_of[link.src]]
            of_node[None] = min(of_node.get(None, link.beta_us_per_mb), link.beta_us_per_mb)
    firsts: list[int] = []
    sort_of: list[int] = []
    for node, ranks in enumerate(topology.node_ranks):
        similar = (
            sort
            for sort, first in enumerate(firsts)
            if len(topology.node_ranks[first]) == len(ranks) and _are_similar(best[first], best[node])
        )
        sort = next(similar, len(firsts))
        firsts += [node] if sort == len(firsts) else []
        sort_of.append(sort)
    return tuple(sort_of)


def _are_similar(one: dict[_PortClass | None, float], other: dict[_PortClass | None, float]) -> bool:
    """True if two nodes have ports of the same classes, and their best rates are the same but for what measurements differ by."""
    return one.keys() == other.keys() and all(
        max(beta, other[key]) <= PARAMS.similar_rates * min(beta, other[key]) for key, beta in one.items()
    )


class AlikeNodes:
    """Links and ports of all nodes of a sort by their kinds: the best, and what any node has, or the worst, and what all of them have.

    Parameters
    ----------
    topology, ports
        The machine, and its ports by kind.
    choose
        `min` for the best, `max` for the worst.
    sort_of
        Sort of every node; all 0 makes them all alike.
    """

    def __init__(self, topology: Topology, ports: NodePorts, choose: Choice, sort_of: Sequence[int]) -> None:
        self._topology, self._choose, self._sort_of = topology, choose, sort_of
        self._ports: list[Port] = []
        self._number: dict[tuple[int, PortKind], int] = {}
        self._names: dict[tuple[int, PortKind], str] = {}
        self._costs: dict[tuple[int, PortKind], Port] = {}
        for port, node, kind in zip(topology.ports, ports.node, ports.kind, strict=True):
            self._names[node, kind] = port.name
            of_sort = (sort_of[node], kind)
            self._costs[of_sort] = self._chosen_port(self._costs.get(of_sort, port), port)
        self._links: defaultdict[_Sorts, dict[_LinkKind, _Sample]] = defaultdict(dict)
        number = self._number_of_links(ports)
        if choose is max:
            nodes = topology.num_nodes
            everywhere = {True: nodes * (nodes - 1), False: nodes}
            for sorts, links in self._links.items():
                self._links[sorts] = {kind: link for kind, link in links.items() if number[kind] == everywhere[kind[0]]}
            return
        if len(self._nodes) > 1:
            self._borrow()
        for links in self._links.values():
            self._complete(links)

    def _number_of_links(self, ports: NodePorts) -> Counter[_LinkKind]:
        """Find all kinds of links, and return how many there are of each."""
        topology, number = self._topology, Counter[_LinkKind]()
        for index, link in enumerate(topology.links):
            source, target = topology.node_of[link.src], topology.node_of[link.dst]
            here, there = topology.local_rank[link.src], topology.local_rank[link.dst]
            kind = (source != target, here, there, topology.lane[index])
            links = self._links[self._sort_of[source], self._sort_of[target]]
            alike, sides = links.get(kind, (link, ()))
            if len(link.ports) > len(sides):
                sides = tuple((ports.node[port] == source, ports.kind[port]) for port in link.ports)
            links[kind] = (self._chosen(alike, link), sides)
            number[kind] += 1
        return number

    def _complete(self, links: dict[_LinkKind, _Sample]) -> None:
        """Join all places that send to other nodes with all that hear from them, where most are joined.

        Between two nodes, a rank whose NIC is gone has lost its links to and from its own place, and no other pair of nodes shows them.
        """
        across = [kind for kind in links if kind[0]]
        senders = {here: (here, there) for _, here, there, _ in reversed(across)}
        receivers = {there: (here, there) for _, here, there, _ in reversed(across)}
        if len(across) * PARAMS.completed_part < len(senders) * len(receivers):
            return
        for here, there in product(senders, receivers):
            if (True, here, there, 0) not in links:
                out, out_sides = links[(True, *senders[here], 0)]
                into, in_sides = links[(True, *receivers[there], 0)]
                sides = [side for side in out_sides if side[0]] + [side for side in in_sides if not side[0]]
                links[True, here, there, 0] = (self._chosen(out, into), tuple(sides))

    def _borrow(self) -> None:
        """Give every sort what all its nodes lack and another sort has that is built alike, at the best of its own costs.

        Ports of a node that has no other of its sort become as fast as the best of their class.
        """
        for sort, kind in [*self._costs]:
            if self._nodes[sort] == 1:
                self._costs[sort, kind] = self._best_of_class(sort, kind)
        build = self._builds()
        # Links between nodes of two builds, and inside those of one.
        samples: defaultdict[tuple[int, int, bool], dict[_LinkKind, _Sample]] = defaultdict(dict)
        for (source, target), links in self._links.items():
            for link, sample in links.items():
                samples[build[source], build[target], link[0]].setdefault(link, sample)
        for sorts in product(self._nodes, self._nodes):
            own = self._links[sorts]
            for across in (True, False) if sorts[0] == sorts[1] else (True,):
                for link, sample in samples[build[sorts[0]], build[sorts[1]], across].items():
                    if link not in own:
                        own[link] = self._at_own_costs(sorts, link, sample)

    def _at_own_costs(self, sorts: _Sorts, kind: _LinkKind, sample: _Sample) -> _Sample:
        """A link of another sort, with the best costs of such links and ports of these."""
        own = [link for known, (link, _) in self._links[sorts].items() if known[0] == kind[0]]
        for is_senders, port in sample[1]:
            of_sort = (sorts[not is_senders], port)
            if of_sort not in self._costs:
                self._costs[of_sort] = self._best_of_class(*of_sort)
        return reduce(self._chosen, own) if own else sample[0], sample[1]

    @cached_property
    def _nodes(self) -> Counter[int]:
        """Nodes of each sort."""
        return Counter(self._sort_of)

    def _builds(self) -> dict[int, int]:
        """The first sort that has most kinds of links and ports in common with each sort."""
        kinds: dict[int, set[object]] = {sort: set() for sort in self._nodes}
        for sort, port in self._costs:
            kinds[sort].add(port)
        for (source, target), links in self._links.items():
            if source == target:
                kinds[source].update(link for link in links if not link[0])
        return {
            sort: next(
                first
                for first in kinds
                if len(kinds[first] & kinds[sort]) >= PARAMS.alike_part * len(kinds[first] | kinds[sort])
            )
            for sort in kinds
        }

    def _best_of_class(self, sort: int, kind: PortKind) -> Port:
        """A port as good as the best of its class in a sort, or, where it has none, as the best of that kind in any."""
        own = [port for (s, k), port in self._costs.items() if s == sort and _class_of(k) == _class_of(kind)]
        return reduce(self._chosen_port, own or [port for (_, k), port in self._costs.items() if k == kind])

    def _chosen(self, one: Link, other: Link) -> Link:
        return replace(
            one,
            alpha_us=self._choose(one.alpha_us, other.alpha_us),
            beta_us_per_mb=self._choose(one.beta_us_per_mb, other.beta_us_per_mb),
            latency_us=self._choose(one.latency_us, other.latency_us),
        )

    def _chosen_port(self, one: Port, other: Port) -> Port:
        return replace(
            one,
            alpha_us=self._choose(one.alpha_us, other.alpha_us),
            beta_us_per_mb=self._choose(one.beta_us_per_mb, other.beta_us_per_mb),
        )

    def machine(self) -> Topology:
        """All nodes with all of them."""
        nodes = range(self._topology.num_nodes)
        made = []
        for kind in sorted({kind for of_sorts in self._links.values() for kind in of_sorts}):
            for source, target in product(nodes, nodes):
                sample = self._links.get((self._sort_of[source], self._sort_of[target]), {}).get(kind)
                if sample is not None and kind[0] == (source != target):
                    made.append(self._link(kind, sample, source, target))
        return replace(
            self._topology, name=f"{self._topology.name}-alike", ports=tuple(self._ports), links=tuple(made), symmetry=(),
            switches=(),
        )  # fmt: skip

    def _link(self, kind: _LinkKind, sample: _Sample, source: int, target: int) -> Link:
        """A link of a kind from one node to another, or inside one."""
        _, here, there, _ = kind
        link, sides = sample
        ports = tuple(self._port(source if is_senders else target, port) for is_senders, port in sides)
        ranks = self._topology.node_ranks
        return replace(link, src=ranks[source][here], dst=ranks[target][there], ports=ports)

    def _port(self, node: int, kind: PortKind) -> int:
        """Number of a node's port of a kind, made when it is asked for."""
        number = self._number.get((node, kind))
        if number is None:
            number = self._number[node, kind] = len(self._ports)
            name = self._names.get((node, kind), f"node {node} restored {number}")
            self._ports.append(replace(self._costs[self._sort_of[node], kind], name=name))
        return number

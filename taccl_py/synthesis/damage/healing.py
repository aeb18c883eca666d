"""The whole machine behind a damaged one: every node with the links and ports that any node has, at the best rate of their kind.

Nodes are compared place by place: what joins the third rank of a node to the fifth one is of one kind in all nodes, and so are the ports
of the third rank. Nobody has to say what was lost, so a machine that was measured or written down as it is now is healed too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from taccl_py.schedule.ir import Schedule
from taccl_py.synthesis.damage.params import PARAMS
from taccl_py.topology.model import Link, Port, Topology

# Kind of a port: what it joins, in places of its own node, and its number among those that join the same.
PortKind = tuple[str, tuple[int, ...], tuple[int, ...], int]
# Kind of a link: whether it leads to another node, the places of its ends, and its number among parallel ones.
_LinkKind = tuple[bool, int, int, int]
# Name of what a topology remembers of its whole machine, which takes a second to find on 256 ranks.
_WHOLE = "_whole"
# The better of two costs, or the worse one.
_Choice = Callable[[float, float], float]


def healed(topology: Topology) -> Topology | None:
    """The machine with all its nodes alike; None if they are so already, or differ in size, or share ports with all others.

    Ranks keep their numbers. What is slow has the costs of the best of its kind, what some node lacks is there.
    """
    known = vars(topology)
    if _WHOLE not in known:
        known[_WHOLE] = _with_alike_nodes(topology, min)
    found: Topology | None = known[_WHOLE]
    return found


def healed_inside(topology: Topology) -> Topology | None:
    """The machine with every port as fast as the best one of its sort in its own node; None if they are so already, or nodes are alike then.

    Where nodes are of several generations, `healed` says nothing of what one of them was before a port of it became slow.
    """
    ports = None if healed(topology) is None else _NodePorts.of(topology)
    if ports is None:
        return None
    sorts = [
        (node, reach, len(sources), len(targets), number)
        for node, (reach, sources, targets, number) in zip(ports.node, ports.kind, strict=True)
    ]
    best: dict[tuple[object, ...], tuple[float, float]] = {}
    for sort, port in zip(sorts, topology.ports, strict=True):
        costs = (port.beta_us_per_mb, port.alpha_us)
        best[sort] = min(costs, best.get(sort, costs))
    fast = tuple(
        replace(port, beta_us_per_mb=best[sort][0], alpha_us=best[sort][1])
        for sort, port in zip(sorts, topology.ports, strict=True)
    )
    machine = replace(topology, name=f"{topology.name}-even", ports=fast, symmetry=(), switches=())
    return None if fast == topology.ports or healed(machine) is None else machine


def levelled(topology: Topology) -> Topology | None:
    """The machine with all its nodes as slow as the slowest, and with no more than what all of them have; None if they are so already, or cannot be compared.

    Where nodes are of several generations, what is planned for it is as good as if all were of the oldest one.
    """
    return None if healed(topology) is None else _with_alike_nodes(topology, max)


def _with_alike_nodes(topology: Topology, choose: _Choice) -> Topology | None:
    sizes = {len(ranks) for ranks in topology.node_ranks}
    if topology.num_nodes == 1 or len(sizes) > 1:
        return None
    ports = _NodePorts.of(topology)
    if ports is None:
        return None
    machine = _AlikeNodes(topology, ports, choose).machine()
    return None if _is_the_same(topology, machine) else machine


def link_images(whole: Topology, damaged: Topology) -> tuple[int | None, ...]:
    """For every link of the whole machine the one between the same ranks that is left, or None."""
    return tuple(same_lane(whole, index, damaged, link.src, link.dst) for index, link in enumerate(whole.links))


def same_lane(whole: Topology, link: int, damaged: Topology, src: int, dst: int) -> int | None:
    """Link between two ranks of a damaged machine on the lane of a link of the whole one, or of those that are left; None if none is."""
    left = damaged.links_between.get((src, dst), ())
    return left[whole.lane[link] % len(left)] if left else None


def on_all_links(schedule: Schedule, topology: Topology) -> Schedule:
    """A schedule for a machine without some links, on the machine with them."""
    link_of = link_images(schedule.topology, topology)
    messages = []
    for message in schedule.messages:
        link = link_of[message.link]
        if link is None:
            raise ValueError(f"link {message.link} of {schedule.topology.name} is not one of {topology.name}")
        messages.append(replace(message, link=link))
    return replace(schedule, topology=topology, messages=tuple(messages))


@dataclass(frozen=True)
class _NodePorts:
    """Node and kind of every port.

    Attributes
    ----------
    node, kind
        Of each port by its number.
    """

    node: tuple[int, ...]
    kind: tuple[PortKind, ...]

    @staticmethod
    def of(topology: Topology) -> _NodePorts | None:
        """Find them; None if a port is of no one node."""
        users: list[list[int]] = [[] for _ in topology.ports]
        for index, link in enumerate(topology.links):
            for port in link.ports:
                users[port].append(index)
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
        return _NodePorts(tuple(nodes), tuple(kinds))


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


class _AlikeNodes:
    """Links and ports of all nodes by their kinds: the best, and what any node has, or the worst, and what all of them have."""

    def __init__(self, topology: Topology, ports: _NodePorts, choose: _Choice) -> None:
        self._topology, self._choose = topology, choose
        self._ports: list[Port] = []
        self._number: dict[tuple[int, PortKind], int] = {}
        self._names: dict[tuple[int, PortKind], str] = {}
        self._costs: dict[PortKind, Port] = {}
        for port, node, kind in zip(topology.ports, ports.node, ports.kind, strict=True):
            self._names[node, kind] = port.name
            known = self._costs.get(kind, port)
            self._costs[kind] = replace(
                known,
                alpha_us=choose(known.alpha_us, port.alpha_us),
                beta_us_per_mb=choose(known.beta_us_per_mb, port.beta_us_per_mb),
            )
        # Of a kind of links the costs, and the kinds of the ports at the sender's and at the receiver's side.
        self._links: dict[_LinkKind, tuple[Link, tuple[tuple[bool, PortKind], ...]]] = {}
        number: Counter[_LinkKind] = Counter()
        for index, link in enumerate(topology.links):
            source, target = topology.node_of[link.src], topology.node_of[link.dst]
            key: _LinkKind = (
                source != target,
                topology.local_rank[link.src],
                topology.local_rank[link.dst],
                topology.lane[index],
            )
            alike, sides = self._links.get(key, (link, ()))
            if len(link.ports) > len(sides):
                sides = tuple((ports.node[port] == source, ports.kind[port]) for port in link.ports)
            self._links[key] = (self._chosen(alike, link), sides)
            number[key] += 1
        if choose is min:
            self._complete()
        else:
            nodes = topology.num_nodes
            everywhere = {True: nodes * (nodes - 1), False: nodes}
            self._links = {key: found for key, found in self._links.items() if number[key] == everywhere[key[0]]}

    def _complete(self) -> None:
        """Join all places that send to other nodes with all that hear from them, where most are joined.

        Between two nodes, a rank whose NIC is gone has lost its links to and from its own place, and no other pair of nodes shows them.
        """
        across = [kind for kind in self._links if kind[0]]
        senders = {here: (here, there) for _, here, there, _ in reversed(across)}
        receivers = {there: (here, there) for _, here, there, _ in reversed(across)}
        if len(across) * PARAMS.completed_part < len(senders) * len(receivers):
            return
        for here, there in product(senders, receivers):
            if (True, here, there, 0) not in self._links:
                out, out_sides = self._links[(True, *senders[here], 0)]
                into, in_sides = self._links[(True, *receivers[there], 0)]
                sides = [side for side in out_sides if side[0]] + [side for side in in_sides if not side[0]]
                self._links[True, here, there, 0] = (self._chosen(out, into), tuple(sides))

    def _chosen(self, one: Link, other: Link) -> Link:
        return replace(
            one,
            alpha_us=self._choose(one.alpha_us, other.alpha_us),
            beta_us_per_mb=self._choose(one.beta_us_per_mb, other.beta_us_per_mb),
            latency_us=self._choose(one.latency_us, other.latency_us),
        )

    def machine(self) -> Topology:
        """All nodes with all of them."""
        nodes = range(self._topology.num_nodes)
        pairs = [*product(nodes, nodes)]
        made = [
            self._link(kind, source, target)
            for kind in sorted(self._links)
            for source, target in pairs
            if kind[0] == (source != target)
        ]
        return replace(
            self._topology, name=f"{self._topology.name}-alike", ports=tuple(self._ports), links=tuple(made), symmetry=(),
            switches=(),
        )  # fmt: skip

    def _link(self, kind: _LinkKind, source: int, target: int) -> Link:
        """A link of a kind from one node to another, or inside one."""
        _, here, there, _ = kind
        link, sides = self._links[kind]
        ports = tuple(self._port(source if is_senders else target, port) for is_senders, port in sides)
        ranks = self._topology.node_ranks
        return replace(link, src=ranks[source][here], dst=ranks[target][there], ports=ports)

    def _port(self, node: int, kind: PortKind) -> int:
        """Number of a node's port of a kind, made when it is asked for."""
        number = self._number.get((node, kind))
        if number is None:
            number = self._number[node, kind] = len(self._ports)
            name = self._names.get((node, kind), f"node {node} restored {number}")
            self._ports.append(replace(self._costs[kind], name=name))
        return number


def _is_the_same(one: Topology, other: Topology) -> bool:
    """True if the machines have the same links at the same costs."""

    def costs(topology: Topology) -> list[tuple[object, ...]]:
        return [
            (k.src, k.dst, k.latency_us, *sorted(topology.resource_cost[r] for r in topology.resources_of[i]))
            for i, k in enumerate(topology.links)
        ]

    return len(one.links) == len(other.links) and sorted(costs(one)) == sorted(costs(other))

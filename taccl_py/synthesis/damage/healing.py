"""The whole machine behind a damaged one: every node with the links and ports that any node has, at the best rate of their kind.

Nodes are compared place by place. Nobody has to say what was lost, so a machine that was measured or written down as it is now is healed too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from taccl_py.schedule.ir import Schedule
from taccl_py.synthesis.damage.alike_nodes import AlikeNodes, Choice, NodePorts, sorts_of_nodes
from taccl_py.topology.model import Topology
from taccl_py.topology.translations import translations_of


def healed(topology: Topology) -> Topology | None:
    """The machine with all its nodes alike; None if they are so already, or differ in size, or share ports with all others.

    Ranks keep their numbers. What is slow has the costs of the best of its kind, what some node lacks is there.
    """
    return _remembered(topology, "_whole", lambda: _with_alike_nodes(topology, min))


def healed_by_sort(topology: Topology) -> Topology | None:
    """The machine with all nodes of a sort alike; None if they are so already, or of one sort, or share ports with all others.

    Where nodes are of several generations, `healed` says nothing of what one of them was before a port of it became slow or was lost.
    """
    return _remembered(topology, "_whole_by_sort", lambda: _with_alike_sorts(topology))


def _remembered(topology: Topology, name: str, make: Callable[[], Topology | None]) -> Topology | None:
    """A topology's whole machine under a name, kept with it: it takes a second to find on 256 ranks."""
    known = vars(topology)
    if name not in known:
        known[name] = make()
    found: Topology | None = known[name]
    return found


def has_alike_nodes(topology: Topology) -> bool:
    """True if symmetry shows that nodes are alike and nothing is missing between them, which is known without a look at all links.

    It takes one node to all others, place by place, and links of that node to each of them are the same, from every place that sends to every
    place that hears.
    """
    found, first = translations_of(topology), topology.node_ranks[0]
    if found is None:
        return False
    for ranks in topology.node_ranks[1:]:
        if len(ranks) != len(first) or found.role[ranks[0]] != found.role[first[0]]:
            return False
        if found.carried(first[0], ranks[0], np.array(first)).tolist() != list(ranks):
            return False
    links_to: defaultdict[int, set[tuple[object, ...]]] = defaultdict(set)
    for index in (index for rank in first for index in topology.links_from[rank]):
        link = topology.links[index]
        if not topology.is_inside(link):
            places = topology.local_rank[link.src], topology.local_rank[link.dst]
            links_to[topology.node_of[link.dst]].add((*places, topology.lane[index], *costs_of(topology, index)))
    kinds = set[tuple[object, ...]]().union(*links_to.values())
    senders, receivers = {kind[0] for kind in kinds}, {kind[1] for kind in kinds}
    is_joined = len({kind[:2] for kind in kinds}) == len(senders) * len(receivers)
    return is_joined and len(links_to) == topology.num_nodes - 1 and all(each == kinds for each in links_to.values())


def has_whole_sorts(topology: Topology) -> bool:
    """True if nodes are of several sorts, and all of a sort alike."""
    if topology.num_nodes == 1 or has_alike_nodes(topology) or healed_by_sort(topology) is not None:
        return False
    ports = NodePorts.of(topology)
    return ports is not None and len(set(sorts_of_nodes(topology, ports))) > 1


def levelled(topology: Topology) -> Topology | None:
    """The machine with all its nodes as slow as the slowest, and with no more than what all of them have; None if they are so already, or cannot be compared.

    Where nodes are of several generations, what is planned for it is as good as if all were of the oldest one.
    """
    return None if healed(topology) is None else _with_alike_nodes(topology, max)


def _with_alike_nodes(topology: Topology, choose: Choice) -> Topology | None:
    ports = _uneven_ports(topology) if topology.has_even_nodes else None
    return None if ports is None else _unless_the_same(topology, ports, choose, (0,) * topology.num_nodes)


def _with_alike_sorts(topology: Topology) -> Topology | None:
    ports = _uneven_ports(topology)
    sort_of = () if ports is None else sorts_of_nodes(topology, ports)
    return _unless_the_same(topology, ports, min, sort_of) if ports is not None and len(set(sort_of)) > 1 else None


def _uneven_ports(topology: Topology) -> NodePorts | None:
    """Ports of nodes that symmetry does not show to be alike; None without several such nodes, or if a port is of no one node."""
    return None if topology.num_nodes == 1 or has_alike_nodes(topology) else NodePorts.of(topology)


def costs_of(topology: Topology, link: int) -> tuple[object, ...]:
    """Latency of a link, and the costs of all that its messages occupy."""
    return (topology.links[link].latency_us, *sorted(topology.link_costs[link]))


def _unless_the_same(topology: Topology, ports: NodePorts, choose: Choice, sort_of: tuple[int, ...]) -> Topology | None:
    machine = AlikeNodes(topology, ports, choose, sort_of).machine()
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


def _is_the_same(one: Topology, other: Topology) -> bool:
    """True if the machines have the same links at the same costs."""

    def costs(topology: Topology) -> list[tuple[object, ...]]:
        return [(k.src, k.dst, *costs_of(topology, i)) for i, k in enumerate(topology.links)]

    return len(one.links) == len(other.links) and sorted(costs(one)) == sorted(costs(other))

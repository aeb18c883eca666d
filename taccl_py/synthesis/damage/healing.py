"""The whole machine behind a damaged one: every node with the links and ports that any node has, at the best rate of their kind.

Nodes are compared place by place. Nobody has to say what was lost, so a machine that was measured or written down as it is now is healed too.
"""

from __future__ import annotations

from dataclasses import replace

from taccl_py.schedule.ir import Schedule
from taccl_py.synthesis.damage.alike_nodes import AlikeNodes, Choice, NodePorts, sorts_of_nodes
from taccl_py.topology.model import Topology

# Names of what a topology remembers of its whole machine, which takes a second to find on 256 ranks.
_WHOLE, _WHOLE_BY_SORT = "_whole", "_whole_by_sort"


def healed(topology: Topology) -> Topology | None:
    """The machine with all its nodes alike; None if they are so already, or differ in size, or share ports with all others.

    Ranks keep their numbers. What is slow has the costs of the best of its kind, what some node lacks is there.
    """
    known = vars(topology)
    if _WHOLE not in known:
        known[_WHOLE] = _with_alike_nodes(topology, min)
    found: Topology | None = known[_WHOLE]
    return found


def healed_by_sort(topology: Topology) -> Topology | None:
    """The machine with all nodes of a sort alike; None if they are so already, or of one sort, or share ports with all others.

    Where nodes are of several generations, `healed` says nothing of what one of them was before a port of it became slow or was lost.
    """
    known = vars(topology)
    if _WHOLE_BY_SORT not in known:
        known[_WHOLE_BY_SORT] = _with_alike_sorts(topology)
    found: Topology | None = known[_WHOLE_BY_SORT]
    return found


def has_whole_sorts(topology: Topology) -> bool:
    """True if nodes are of several sorts, and all of a sort alike."""
    if topology.num_nodes == 1 or healed_by_sort(topology) is not None:
        return False
    ports = NodePorts.of(topology)
    return ports is not None and len(set(sorts_of_nodes(topology, ports))) > 1


def levelled(topology: Topology) -> Topology | None:
    """The machine with all its nodes as slow as the slowest, and with no more than what all of them have; None if they are so already, or cannot be compared.

    Where nodes are of several generations, what is planned for it is as good as if all were of the oldest one.
    """
    return None if healed(topology) is None else _with_alike_nodes(topology, max)


def _with_alike_nodes(topology: Topology, choose: Choice) -> Topology | None:
    sizes = {len(ranks) for ranks in topology.node_ranks}
    if topology.num_nodes == 1 or len(sizes) > 1:
        return None
    ports = NodePorts.of(topology)
    return None if ports is None else _unless_the_same(topology, ports, choose, (0,) * topology.num_nodes)


def _with_alike_sorts(topology: Topology) -> Topology | None:
    ports = None if topology.num_nodes == 1 else NodePorts.of(topology)
    if ports is None:
        return None
    sort_of = sorts_of_nodes(topology, ports)
    return None if len(set(sort_of)) == 1 else _unless_the_same(topology, ports, min, sort_of)


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
        return [
            (k.src, k.dst, k.latency_us, *sorted(topology.resource_cost[r] for r in topology.resources_of[i]))
            for i, k in enumerate(topology.links)
        ]

    return len(one.links) == len(other.links) and sorted(costs(one)) == sorted(costs(other))

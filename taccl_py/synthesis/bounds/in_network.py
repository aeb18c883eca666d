"""Bounds where switches multicast and add up.

* Whatever crosses a cut loads some port or link of it as often as before: what one store of a switch brings to many ranks has left
  its sender once, and a sum of what many ranks hold enters its rank once. So cuts stay, and so does the distance of ranks.
* How many ranks can know something, how many messages must be gathered or handed out, and how often the parts of a sum have to be
  passed on, is counted in messages to one rank each; that falls, but for sums between groups of ranks that no such switch joins.
* Links between two ranks of such a switch do not limit what it does, only their ports do; and what has come to a switch over one
  of them may go on over any other, so its latency is at least the least of all.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from taccl_py.arrays import BoolArray, IntArray
from taccl_py.collective import Kind
from taccl_py.synthesis.bounds.net import Net
from taccl_py.topology.model import Switch, Topology

_MULTICAST = frozenset({Kind.ALLGATHER, Kind.BROADCAST, Kind.ALLREDUCE})
_REDUCE = frozenset({Kind.REDUCESCATTER, Kind.REDUCE, Kind.ALLREDUCE})


def helpful_switches(topology: Topology, kind: Kind) -> tuple[Switch, ...]:
    """Switches of a machine that can do something for a collective which messages cannot."""
    return tuple(
        one
        for one in topology.switches
        if len(one.ranks) > 1 and ((one.multicast and kind in _MULTICAST) or (one.reduce and kind in _REDUCE))
    )


def without_messages(topology: Topology, switches: tuple[Switch, ...]) -> tuple[Topology, Net]:
    """Return the machine, with the symmetries that leave its switches as they are, and its arrays, where links do not limit switches.

    Parameters
    ----------
    topology
        The machine.
    switches
        Those that do more than to pass messages on.
    """
    known = {frozenset(one.ranks) for one in switches}
    kept = tuple(
        image
        for image in topology.symmetry
        if all(frozenset(image[rank] for rank in ranks) in known for ranks in known)
    )
    net = Net.of(topology)
    latency_us, joined = net.latency_us.copy(), np.zeros(net.num_links, dtype=bool)
    for one in switches:
        links = _links_of(net, one)
        joined |= links
        latency_us[links] = np.minimum(latency_us[links], net.latency_us[links].min(initial=np.inf))
    free = np.append(joined & _has_ports(net), np.zeros(len(topology.ports), dtype=bool))
    alpha_us, beta = (np.where(free, 0.0, cost) for cost in (net.alpha_us, net.beta_us_per_mb))
    net = replace(net, latency_us=latency_us, alpha_us=alpha_us, beta_us_per_mb=beta)
    return replace(topology, symmetry=kept), net


def keeps_apart(switches: tuple[Switch, ...], group_of: IntArray) -> bool:
    """True if no switch joins ranks of two groups."""
    return all(len(np.unique(group_of[list(one.ranks)])) == 1 for one in switches)


def _links_of(net: Net, switch: Switch) -> BoolArray:
    """Links between two ranks of a switch, [link]."""
    member = np.zeros(net.num_ranks, dtype=bool)
    member[list(switch.ranks)] = True
    found: BoolArray = member[net.src] & member[net.dst]
    return found


def _has_ports(net: Net) -> BoolArray:
    """Links that have a port at either end, [link]."""
    found: BoolArray = np.bincount(net.use_link, minlength=net.num_links) > 2
    return found

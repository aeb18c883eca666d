"""Broadcast on damaged nodes over the lanes that are whole in all of them.

What one root has for all crosses to every node once, so that a lane that is slow or gone in one node is of little use in the others: without
it all nodes are alike again, and what is written for such machines is as good as it is there.
"""

from __future__ import annotations

from dataclasses import replace

from taccl_py.collective import Kind
from taccl_py.schedule.ir import Schedule
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import Bound
from taccl_py.synthesis.damage.healing import healed, on_all_links
from taccl_py.synthesis.damage.mending import Writer, lane_rates
from taccl_py.synthesis.engine import Demand, Events
from taccl_py.topology.model import Topology


def on_whole_lanes(demand: Demand, bound: Bound, limits: Limits, events: Events, writer: Writer) -> list[Schedule]:
    """Schedules of a Broadcast that leave out lanes which are damaged in any node; none for other collectives, or where nothing is damaged.

    Parameters
    ----------
    demand, bound
        What is wanted, and what no algorithm is faster than.
    limits
        Time, and the user's interrupt.
    events
        For what is found.
    writer
        Finds plans for a machine whose nodes are alike.
    """
    even = whole_lanes(demand.topology) if demand.kind is Kind.BROADCAST else None
    if even is None:
        return []
    found = writer(replace(demand, topology=even), bound, limits, events)
    return [on_all_links(schedule, demand.topology) for schedule in found]


def whole_lanes(topology: Topology) -> Topology | None:
    """The machine without the links between nodes of places whose links are slow or gone in some node; None if none is, or all are."""
    whole = healed(topology)
    if whole is None:
        return None
    left, before = lane_rates(topology), lane_rates(whole)
    places = [
        place
        for place in range(len(topology.node_ranks[0]))
        if all(left[ranks[place]] >= before[ranks[place]] > 0 for ranks in topology.node_ranks)
    ]
    kept = tuple(
        link
        for link in topology.links
        if topology.node_of[link.src] == topology.node_of[link.dst]
        or (topology.local_rank[link.src] in places and topology.local_rank[link.dst] in places)
    )
    if not places or len(kept) == len(topology.links):
        return None
    return replace(topology, name=f"{topology.name}-lanes", links=kept, symmetry=(), switches=())

"""AllToAll by delegates, replicated: what becomes of the data of one node's ranks, and every other node's by rotation."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from taccl_py.arrays import IntArray
from taccl_py.schedule.group import GroupSchedule
from taccl_py.schedule.ir import Message
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.hierarchy.cluster import LaneCluster
from taccl_py.synthesis.hierarchy.delegates import Delegation, delegate_times, root_messages, spreads
from taccl_py.synthesis.hierarchy.outline import insides
from taccl_py.synthesis.hierarchy.params import PARAMS as HIERARCHY_PARAMS
from taccl_py.synthesis.hierarchy.relays import node_turns
from taccl_py.synthesis.matching.fabric import resource_orbits
from taccl_py.synthesis.matching.params import PARAMS
from taccl_py.synthesis.templates.messages import TemplateMessages, as_untimed, cut_by_most
from taccl_py.synthesis.templates.packing import most_packed
from taccl_py.synthesis.templates.site import TemplateSite
from taccl_py.topology.translations import Translations


def delegated(demand: Demand) -> GroupSchedule | None:
    """Best AllToAll by delegates, with one chunk for each pair; None where nodes are not equal or cannot be rotated."""
    topology = demand.topology
    pair_bytes = demand.size_bytes / topology.num_ranks
    if (
        demand.chunks_per_rank not in (None, 1)
        or topology.num_nodes == 1
        or most_packed(pair_bytes, demand.message_chunks) < 2
    ):
        return None
    cluster = LaneCluster.of(TemplateSite(topology, pair_bytes, demand.message_chunks))
    group = Translations.of([node_turns(topology)[1]], topology.num_ranks) if topology.has_even_nodes else None
    orbits = resource_orbits(topology, group) if group is not None else None
    if (
        cluster is None
        or group is None
        or orbits is None
        or len(cluster.nodes[0]) > HIERARCHY_PARAMS.most_delegate_ranks
    ):
        return None
    found = [(delegation, delegate_times(cluster, delegation, pair_bytes)) for delegation in _delegations(cluster)]
    found.sort(key=lambda each: each[1].end_us)
    schedules = []
    for delegation, times in found[: PARAMS.most_delegations]:
        base = _timed(cluster, orbits, root_messages(cluster, delegation, times))
        if base is not None:
            schedules.append(GroupSchedule(topology, demand.kind, 1, pair_bytes, group.generators, base))
    return min(schedules, key=lambda schedule: schedule.makespan_us, default=None)


def _delegations(cluster: LaneCluster) -> Iterator[Delegation]:
    """Delegations that wait for one turn at a time, as data from different nodes does not share messages."""
    for spread, gathers, hands in product(spreads(cluster), insides(cluster), insides(cluster)):
        yield Delegation(spread, 1, gathers, hands, apart=True)


def _timed(cluster: LaneCluster, orbits: IntArray, planned: TemplateMessages) -> tuple[Message, ...] | None:
    """The messages in their order, where an orbit of links or ports serves one at a time; None if they do not fit the links."""
    topology, chunk_bytes = cluster.site.topology, cluster.site.chunk_bytes
    untimed = as_untimed(topology, chunk_bytes, planned)
    if untimed is None:
        return None
    most = most_packed(cluster.site.chunk_bytes, cluster.site.message_chunks)
    free_us: dict[int, float] = {}
    # Chunks that have come, by chunk and rank; the others are where they begin.
    came_us: dict[tuple[int, int], float] = {}
    messages = []
    for message in untimed:
        link = topology.links[message.link]
        claims = [(int(orbits[resource]), resource) for resource in topology.resources_of[message.link]]
        if len({orbit for orbit, _ in claims}) < len(claims):
            return None
        for chunks in cut_by_most(message.chunks, most):
            size_bytes = len(chunks) * chunk_bytes
            known_us = (came_us.get((chunk, link.src), 0.0) for chunk in chunks)
            start_us = max(*known_us, *(free_us.get(orbit, 0.0) for orbit, _ in claims))
            end_us = start_us + topology.message_us(message.link, size_bytes)
            for orbit, resource in claims:
                free_us[orbit] = start_us + topology.occupancy_us(resource, size_bytes)
            came_us.update(dict.fromkeys(((chunk, link.dst) for chunk in chunks), end_us))
            messages.append(Message(message.link, chunks, start_us, end_us, packed=len(chunks) > 1))
    return tuple(messages)

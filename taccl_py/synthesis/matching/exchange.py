"""AllToAll: a path for each chunk, spread evenly over links and ports, and the order in which they go.

With the orbits of a group the chunks of its roots are enough: every translation repeats what they do, so an orbit of links
carries as much as the roots' chunks use of it. Chunks take paths that cost the machine least; of those, the ones that leave links
and ports most evenly loaded. Then whatever has the longest path to go starts as soon as its link and ports are free.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from taccl_py.schedule.dispatch import Dispatch, longest_first
from taccl_py.schedule.ir import Message, sort_messages
from taccl_py.synthesis.matching.fabric import Fabric, Sort
from taccl_py.synthesis.matching.params import PARAMS
from taccl_py.tolerances import LAST_DIGITS, RELATIVE
from taccl_py.work import count_work


@dataclass(frozen=True, slots=True)
class ExchangedMessage:
    """Chunks that cross one link together, and the message that brings them to it, if any."""

    link: int
    chunks: tuple[int, ...]
    after: int = -1


def exchange(fabric: Fabric, parts: int, roots: Sequence[int] = (0,)) -> tuple[Message, ...]:
    """Return the messages that take chunks from the roots to all ranks, numbered as in the collective.

    Parameters
    ----------
    fabric
        The machine.
    parts
        Chunks for each rank.
    roots
        Whose chunks; with the orbits of a free group its roots are enough.
    """
    messages: list[ExchangedMessage] = []
    for chunk, path in sorted(_balanced_paths(fabric, parts, roots).items()):
        for place, link in enumerate(path):
            messages.append(ExchangedMessage(link, (chunk,), len(messages) - 1 if place else -1))
    return order_messages([fabric], messages)


def rail_exchange(fabrics: Sequence[Fabric], most_together: int, roots: Sequence[int]) -> tuple[Message, ...] | None:
    """Messages of the roots when all that one has for a node goes there together, to its own number, which hands it out.

    Parameters
    ----------
    fabrics
        The machine for messages of one chunk, two chunks, and so on, up to the number of ranks of a node.
    most_together
        How many chunks share a message at most.
    roots
        Whose chunks.

    Returns
    -------
    tuple of Message, or None
        None if a link that is needed is missing, or may not be used.
    """
    topology = fabrics[0].topology
    messages: list[ExchangedMessage] = []
    for root in roots:
        for node in topology.node_ranks:
            if not _add_messages(fabrics[0], root, node, most_together, messages):
                return None
    return order_messages(fabrics, messages)


def _add_messages(
    fabric: Fabric, root: int, node: Sequence[int], most_together: int, messages: list[ExchangedMessage]
) -> bool:
    """Messages of what a root has for a node; False if a link is missing."""
    topology = fabric.topology
    place, first_chunk = topology.local_rank[root], root * topology.num_ranks
    gate, brought = root, dict.fromkeys(node, -1)
    if root not in node:
        gate = node[place] if place < len(node) else -1
        lanes = topology.links_between.get((root, gate), ())
        if not lanes or lanes[0] not in fabric.links_from[root]:
            return False
        for first in range(0, len(node), most_together):
            together = node[first : first + most_together]
            brought.update(dict.fromkeys(together, len(messages)))
            messages.append(ExchangedMessage(lanes[0], tuple(first_chunk + rank for rank in together)))
    for rank in node:
        lanes = topology.links_between.get((gate, rank), ())
        if rank == gate:
            continue
        if not lanes or lanes[0] not in fabric.links_from[gate]:
            return False
        messages.append(ExchangedMessage(lanes[0], (first_chunk + rank,), brought[rank]))
    return True


def _balanced_paths(fabric: Fabric, parts: int, roots: Sequence[int]) -> dict[int, list[int]]:
    """Links of every chunk."""
    size = fabric.topology.num_ranks
    cost = [sum(claim.time_us for claim in sort.claims) for sort in fabric.sorts]
    towards = {root: _shortest(fabric, cost, root) for root in roots}
    load: dict[int, float] = {}
    chunks = [(root * size + rank) * parts + part for root in roots for rank in range(size) for part in range(parts)]
    paths: dict[int, list[int]] = {chunk: [] for chunk in chunks}
    farthest_first = sorted(chunks, key=lambda c: (-towards[c // parts // size].far[c // parts % size], c))
    for _ in range(PARAMS.exchange_rounds):
        for chunk in farthest_first:
            root, rank = divmod(chunk // parts, size)
            for link in paths[chunk]:
                _add(fabric, load, link, -1.0)
            paths[chunk] = _lightest(fabric, towards[root], load, rank, random.Random(chunk))
            for link in paths[chunk]:
                _add(fabric, load, link, 1.0)
    return paths


@dataclass(frozen=True, slots=True)
class _Towards:
    """Least cost from a root to every rank, and the links by which paths of least cost enter it."""

    root: int
    far: list[float]
    enter: list[list[int]]


def _shortest(fabric: Fabric, cost: Sequence[float], root: int) -> _Towards:
    size = fabric.topology.num_ranks
    far = [float("inf")] * size
    far[root] = 0.0
    queue = [(0.0, root)]
    while queue:
        there, rank = heapq.heappop(queue)
        if there > far[rank]:
            continue
        for link in fabric.links_from[rank]:
            through = there + cost[fabric.sort_of[link]]
            if through < far[fabric.dst[link]] * (1 - RELATIVE):
                far[fabric.dst[link]] = through
                heapq.heappush(queue, (through, fabric.dst[link]))
    enter: list[list[int]] = [[] for _ in range(size)]
    for link in sorted(chain.from_iterable(fabric.links_from)):
        through = far[fabric.src[link]] + cost[fabric.sort_of[link]]
        if through <= far[fabric.dst[link]] * (1 + RELATIVE):
            enter[fabric.dst[link]].append(link)
    return _Towards(root, far, enter)


def _lightest(fabric: Fabric, towards: _Towards, load: dict[int, float], rank: int, chance: random.Random) -> list[int]:
    """Of the paths of least cost to a rank one whose links and ports have least to do.

    Chance decides between equals, so that not all paths begin in the same direction.
    """
    before: list[int] = []
    within = {rank}
    for reached in (queue := [rank]):
        before.append(reached)
        for link in towards.enter[reached]:
            if fabric.src[link] not in within:
                within.add(fabric.src[link])
                queue.append(fabric.src[link])
    price = {towards.root: (0.0, 0.0)}
    last: dict[int, int] = {}
    for reached in sorted(before, key=lambda r: (towards.far[r], r)):
        for link in towards.enter[reached]:
            claims = fabric.sorts[fabric.sort_of[link]].claims
            busy = max(load.get(claim.orbit, 0.0) for claim in claims)
            through = (price[fabric.src[link]][0] + busy, chance.random())
            if reached not in price or through < price[reached]:
                price[reached] = through
                last[reached] = link
    path: list[int] = []
    while rank != towards.root:
        path.append(last[rank])
        rank = fabric.src[last[rank]]
    return path[::-1]


def _add(fabric: Fabric, load: dict[int, float], link: int, times: float) -> None:
    for claim in fabric.sorts[fabric.sort_of[link]].claims:
        load[claim.orbit] = load.get(claim.orbit, 0.0) + times * claim.time_us


def order_messages(fabrics: Sequence[Fabric], messages: Sequence[ExchangedMessage]) -> tuple[Message, ...]:
    """List schedule: at every moment what has the longest path still to go.

    Parameters
    ----------
    fabrics
        The machine for messages of one chunk, two chunks, and so on.
    messages
        Each after the one that it waits for.
    """
    count_work("timed", len(messages))
    queues = [fabrics[0].sort_of[message.link] for message in messages]
    sorts = [_sort(fabrics, message) for message in messages]
    waits_for = [(message.after,) if message.after >= 0 else () for message in messages]
    message_us = [sort.message_us for sort in sorts]
    starts_us = Dispatch(
        fabrics[0].topology.num_resources,
        queues,
        [sort.claims for sort in sorts],
        message_us,
        waits_for,
        longest_first(message_us, waits_for),
    ).starts_us(LAST_DIGITS)
    timed = zip(messages, starts_us, message_us, strict=True)
    return sort_messages(Message(m.link, m.chunks, start, start + lasts_us) for m, start, lasts_us in timed)


def _sort(fabrics: Sequence[Fabric], message: ExchangedMessage) -> Sort:
    fabric = fabrics[len(message.chunks) - 1]
    return fabric.sorts[fabric.sort_of[message.link]]

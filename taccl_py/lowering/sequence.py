"""The order of actions in which connections need to hold as few messages as possible: one, if that can be done, else two.

In the schedule's order of time a message can start before the one ahead of it has arrived, when the link has latency. A
threadblock that receives and sends in that order could wait for room while its peer waits for it. So the order is changed
where that is possible: every message is taken from its connection before the next one (or the next but one) is given to it.
What the actions do to memory stays in order. (Fused steps, which do two things at once, come later and can need room for
another message.)
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from taccl_py.lowering.actions import NONE, RankAction, RankWork
from taccl_py.lowering.memory import CellHistory

_FEW_SLOTS = (1, 2)


def sequence_actions(work: RankWork, memory: CellHistory) -> RankWork:
    """Return the same actions in such an order, otherwise by time; as they are if there is no such order.

    Parameters
    ----------
    work
        Actions in the order of time.
    memory
        Fresh; knows which cells are the same.
    """
    by_memory = [_OrderedPair(before, action.order) for action in work.actions for before in memory.access(action)]
    for slots in _FEW_SLOTS:
        found = _sorted(work.actions, [*by_memory, *_connection_pairs(work, slots)])
        if found is not None:
            return RankWork(found, work.transfers)
    return work


class _OrderedPair(NamedTuple):
    """Two actions in the order that they must have."""

    earlier: int
    later: int


def _connection_pairs(work: RankWork, slots: int) -> Iterator[_OrderedPair]:
    """Pair a send and its arrival, an arrival and the send `slots` later on the same link and instance, and what follows each other."""
    sent = {action.leaves: action.order for action in work.actions if action.leaves != NONE}
    arrived = {action.arrives: action.order for action in work.actions if action.arrives != NONE}
    queues: dict[tuple[int, int], list[int]] = {}
    for index in sent:
        transfer = work.transfers[index]
        queues.setdefault((transfer.link, transfer.instance), []).append(index)
    for index, order in sent.items():
        yield _OrderedPair(order, arrived[index])
    for queue in queues.values():
        for one, other in zip(queue, queue[slots:], strict=False):
            yield _OrderedPair(arrived[one], sent[other])
        # An action that waits for no other must not overtake meanwhile, nor be taken for one before it.
        for one, other in pairwise(queue):
            yield _OrderedPair(sent[one], sent[other])
            yield _OrderedPair(arrived[one], arrived[other])


def _sorted(actions: tuple[RankAction, ...], pairs: list[_OrderedPair]) -> tuple[RankAction, ...] | None:
    """Return the actions in an order that respects the pairs, as near to the old one as can be; None if there is none."""
    followers: list[list[int]] = [[] for _ in actions]
    missing = [0] * len(actions)
    for pair in pairs:
        followers[pair.earlier].append(pair.later)
        missing[pair.later] += 1
    ready = [order for order, count in enumerate(missing) if count == 0]
    found: list[RankAction] = []
    while ready:
        order = heapq.heappop(ready)
        found.append(actions[order].at(len(found), actions[order].ready_us))
        for follower in followers[order]:
            missing[follower] -= 1
            if missing[follower] == 0:
                heapq.heappush(ready, follower)
    return tuple(found) if len(found) == len(actions) else None

"""Turns: the order in which a rank's messages pass a port.

Threadblocks run at the same time, so messages to and from different peers compete for ports and may pass them in another
order than the schedule's. Where that matters, every send waits for the one of its rank before it (its flag is raised when its
data have left), and every receive for the one before it (so that of two senders the one whose message is awaited goes first).
Ranks that share a port cannot wait for each other; there each of them at least keeps its own messages in order. A link whose
messages are too many for one threadblock is used by several, one after the other, which wait in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise

from taccl_py.lowering.actions import NONE, StepTransfer
from taccl_py.lowering.threadblocks import UnfinishedThreadblock
from taccl_py.topology.model import Topology


class PortOrder(StrEnum):
    """Messages that keep the schedule's order at their rank's ports."""

    FREE = "free"
    SENDS = "sends"
    BOTH = "both"


def find_turns(
    blocks: Sequence[Sequence[UnfinishedThreadblock]],
    transfers: Sequence[StepTransfer],
    topology: Topology,
    wanted: PortOrder,
) -> dict[int, tuple[int, ...]]:
    """For every send (and receive), those of its rank that directly precede it on a port; actions are named by their order.

    Parameters
    ----------
    blocks
        Threadblocks by rank.
    transfers
        Transfers that the actions send and receive.
    topology
        Knows the ports.
    wanted
        Which messages take turns.
    """
    turns: dict[int, tuple[int, ...]] = {}
    for rank in blocks:
        _add_shifts(turns, rank, transfers)
    if wanted is not PortOrder.FREE:
        _add_turns(turns, blocks, transfers, topology, sending=True)
    if wanted is PortOrder.BOTH:
        _add_turns(turns, blocks, transfers, topology, sending=False)
    return turns


def _add_turns(
    turns: dict[int, tuple[int, ...]],
    blocks: Sequence[Sequence[UnfinishedThreadblock]],
    transfers: Sequence[StepTransfer],
    topology: Topology,
    *,
    sending: bool,
) -> None:
    for rank in blocks:
        last: dict[tuple[int, int], int] = {}
        moved = [(a.leaves if sending else a.arrives, a.order) for block in rank for a in block.actions]
        passing = [(transfers[transfer], order) for transfer, order in moved if transfer != NONE]
        for transfer, order in sorted(passing, key=lambda item: (item[0].start_us, item[1])):
            keys = [(port, transfer.instance) for port in topology.links[transfer.link].ports]
            before = {last[key] for key in keys if key in last and last[key] < order}
            if before:
                turns[order] = tuple(latest_first(turns.get(order, ()), sorted(before)))
            last |= dict.fromkeys(keys, order)


def _add_shifts(
    turns: dict[int, tuple[int, ...]], blocks: Sequence[UnfinishedThreadblock], transfers: Sequence[StepTransfer]
) -> None:
    """The first send of a threadblock waits for the last one of the threadblock that used the link before it."""
    shifts: dict[tuple[int, int], dict[int, list[int]]] = {}
    for number, block in enumerate(blocks):
        for action in block.actions:
            if action.leaves != NONE:
                transfer = transfers[action.leaves]
                shifts.setdefault((transfer.link, transfer.instance), {}).setdefault(number, []).append(action.order)
    for of_link in shifts.values():
        in_order = sorted(of_link.values(), key=lambda orders: orders[0])
        for before, after in pairwise(in_order):
            if before[-1] < after[0]:
                turns[after[0]] = tuple(latest_first(turns.get(after[0], ()), (before[-1],)))


def latest_first(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """Both lists of action orders in one, without repetition, latest first."""
    return sorted({*one, *other}, reverse=True)

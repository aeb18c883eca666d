"""Dependencies between steps: from the accesses to memory cells, without what is certain anyway.

An action must come after the last writer of every cell that it reads or writes, and a writer after all readers of what it
overwrites; input and output cells that are the same memory in place count as one cell. Of these, only those are kept that do
not follow from the order of steps in threadblocks, from other dependencies, or from messages (what was done before a message
was given to its connection is done when the message is taken from it). That needs a clock for every action: how many
actions of each threadblock are certainly done.

A step of several cells can be carried out in several operations (and its peer may get the first of them before the last one is
read), so a message of several cells only tells what was done before its sending step began.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from taccl_py.lowering.actions import NONE, RankAction
from taccl_py.lowering.buffers import BufferSizes
from taccl_py.lowering.memory import CellHistory
from taccl_py.lowering.port_order import latest_first
from taccl_py.lowering.program import Op
from taccl_py.lowering.threadblocks import UnfinishedThreadblock, find_senders
from taccl_py.runtimes import MAX_REDUCE_CHAIN
from taccl_py.tolerances import DIGITS

_CLOCK_BUDGET = 60_000_000
_Clock = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Dependencies:
    """Result of `find_dependencies`; actions are named by `RankAction.order`.

    Attributes
    ----------
    waits
        For each action that waits: for which actions of other threadblocks, in their order.
    flagged
        Actions that must raise their threadblock's flag.
    frees_source
        Whether somebody waits for a pure send, that is, until what it reads may be overwritten by other data.
    """

    waits: dict[int, tuple[int, ...]] = field(default_factory=dict)
    flagged: frozenset[int] = frozenset()
    frees_source: bool = False


def find_dependencies(
    blocks: tuple[tuple[UnfinishedThreadblock, ...], ...],
    geometry: BufferSizes,
    *,
    aliased: bool,
    turns: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
    whole: bool = True,
    gather: bool = False,
) -> Dependencies:
    """Find the dependencies between the threadblocks of every rank.

    Parameters
    ----------
    blocks
        Threadblocks by rank.
    geometry
        Knows which cells are the same memory in place.
    aliased
        Whether the call may be in place.
    turns
        For a send, other sends of its rank that must leave before it (`taccl_py.lowering.port_order`).
    whole
        Whether the blocks are all that ranks do; if not, nothing is concluded from messages.
    gather
        Whether sums with one destination that follow each other, and whose sources arrive at one moment, wait for all of them first.
    """
    clocks = _Clocks(blocks, whole=whole)
    everything = sorted((a for rank in blocks for block in rank for a in block.actions), key=lambda a: a.order)
    memory = CellHistory(everything, geometry, aliased=aliased)
    by_order = {action.order: action for action in everything}
    waits: dict[int, tuple[int, ...]] = {}
    frees_source = False
    for action in everything:
        needed = memory.access(action)
        found = clocks.add(action, latest_first(needed, turns.get(action.order, ())))
        if found:
            waits[action.order] = tuple(sorted(found))
            frees_source = frees_source or any(by_order[t].op is Op.SEND and t in needed for t in found)
    if gather:
        waits = _gathered(blocks, waits)
    flagged = {target for targets in waits.values() for target in targets}
    flagged.update(list(_chain_breaks(blocks, waits, flagged)))
    return Dependencies(waits, frozenset(flagged), frees_source)


def _gathered(
    blocks: tuple[tuple[UnfinishedThreadblock, ...], ...], waits: dict[int, tuple[int, ...]]
) -> dict[int, tuple[int, ...]]:
    """Waits of which those of a chain of sums are its first one's, and those for one of its sums are for the last one.

    Both only come later, so that everything that was certain stays so. Whether the program still comes to its end is tested with
    all others.
    """
    first_of: dict[int, int] = {}
    last_of: dict[int, int] = {}
    for chain in (chain for rank in blocks for block in rank for chain in _chains(block)):
        for action in chain:
            first_of[action.order], last_of[action.order] = chain[0].order, chain[-1].order
    gathered: dict[int, set[int]] = {}
    for order, targets in waits.items():
        waiter = first_of.get(order, order)
        gathered.setdefault(waiter, set()).update(last_of.get(target, target) for target in targets)
    return {order: tuple(sorted(targets)) for order, targets in gathered.items()}


def _chains(block: UnfinishedThreadblock) -> Iterator[list[RankAction]]:
    """Runs of sums at one moment that the runtime would merge if none of them but the first waited, each of at most as many as it can."""
    chain: list[RankAction] = []
    for action in block.actions:
        fits = (
            chain
            and _would_merge(chain[-1], action)
            and chain[-1].count == action.count
            and round(action.ready_us - chain[0].ready_us, DIGITS) <= 0
        )
        if not fits or len(chain) == MAX_REDUCE_CHAIN:
            if len(chain) > 1:
                yield chain
            chain = []
        chain.append(action)
    if len(chain) > 1:
        yield chain


@dataclass(frozen=True, slots=True)
class _Seat:
    """Position of an action: the column of its threadblock in a clock, and its position."""

    column: int
    position: int


class _Clocks:
    """For every action, how many actions of each threadblock are done when it begins, and when it has ended.

    Clocks cover the threadblocks of all ranks, or, for programs too large for that and for parts, those of the action's own rank;
    then nothing is concluded from messages.
    """

    def __init__(self, blocks: tuple[tuple[UnfinishedThreadblock, ...], ...], *, whole: bool) -> None:
        self._seat: dict[int, _Seat] = {}
        self._orders: dict[int, tuple[int, ...]] = {}
        num_actions = sum(len(block.actions) for rank in blocks for block in rank)
        self._across = whole and num_actions * sum(map(len, blocks)) <= _CLOCK_BUDGET
        self._width: list[int] = []
        column = 0
        for rank in blocks:
            column = column if self._across else 0
            for block in rank:
                for position, action in enumerate(block.actions):
                    self._seat[action.order] = _Seat(column, position)
                    self._orders[action.order] = (block.actions[position - 1].order,) if position else ()
                column += 1
            self._width.append(column)
        if self._across:
            self._width = [column] * len(blocks)
        self._sender = find_senders(blocks) if self._across else {}
        self._begin: dict[int, _Clock] = {}
        self._end: dict[int, _Clock] = {}

    def add(self, action: RankAction, before: list[int]) -> list[int]:
        """Give the action its clocks and return those of `before` (latest first) that it has to wait for."""
        order = action.order
        clock: _Clock = np.zeros(self._width[action.rank], dtype=np.int32)
        for previous in self._orders[order]:
            np.maximum(clock, self._end[previous], out=clock)
        sender = self._sender.get(action.arrives) if action.arrives != NONE else None
        if sender is not None:
            at_once = sender.count == 1
            np.maximum(clock, (self._end if at_once else self._begin)[sender.order], out=clock)
        needed: list[int] = []
        for target in before:
            seat = self._seat[target]
            if clock[seat.column] <= seat.position:
                needed.append(target)
                np.maximum(clock, self._end[target], out=clock)
        self._begin[order] = clock
        clock = clock.copy()
        if sender is not None:
            np.maximum(clock, self._end[sender.order], out=clock)
        clock[self._seat[order].column] = self._seat[order].position + 1
        self._end[order] = clock
        return needed


def _chain_breaks(
    blocks: tuple[tuple[UnfinishedThreadblock, ...], ...], waits: dict[int, tuple[int, ...]], flagged: set[int]
) -> Iterator[int]:
    """Reductions that must raise a flag so that the runtime does not merge the next one into them.

    Runtimes merge reductions into one destination that follow each other without flags. That is wrong when they differ in
    length, and at 16 of them.
    """
    for block in (block for rank in blocks for block in rank):
        length = 1
        for before, action in pairwise(block.actions):
            if not _would_merge(before, action) or action.order in waits or before.order in flagged:
                length = 1
            elif before.count != action.count or length >= MAX_REDUCE_CHAIN:
                length = 1
                yield before.order
            else:
                length += 1


def _would_merge(before: RankAction, action: RankAction) -> bool:
    if before.op is not Op.REDUCE or action.op is not Op.REDUCE:
        return False
    if before.writes is None or action.writes is None or before.reads is None or action.reads is None:
        return False
    return before.writes.address == action.writes.address and before.reads.buffer is action.reads.buffer

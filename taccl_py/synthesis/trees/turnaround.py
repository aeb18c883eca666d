"""AllReduce out of two plans that bring every root's data to all ranks: one backwards, which sums, and then the other.

Trees that only send can be of unequal weight, with pieces that become smaller to the end (`taper`, `rails`), and the search among
them is far ahead of the one for both directions at once where links differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np

from taccl_py.grouping import by_number
from taccl_py.schedule.dispatch import followers
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.order import OrderChoice, PieceCosts, TreePlan, followed, left_shifted, mirrored
from taccl_py.synthesis.trees.transfers import PieceTransfer
from taccl_py.units import BYTES_PER_MB


def is_own_reverse(network: CapacityNetwork, backward: CapacityNetwork) -> bool:
    """True if a plan for the machine is one for the reversed machine, whose links and ports may have other numbers for the same."""
    arrays = ("images", "src", "dst", "permitted")
    if network.roots != backward.roots or network.resources.shape != backward.resources.shape:
        return False
    if not all(np.array_equal(getattr(network, name), getattr(backward, name)) for name in arrays):
        return False
    pairs = {*zip(network.resources.reshape(-1).tolist(), backward.resources.reshape(-1).tolist(), strict=True)}
    one, two = (replace(PieceCosts.of(each, BYTES_PER_MB, (1,)), resources=()) for each in (network, backward))
    return one == two and len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


def turned_around(network: CapacityNetwork, turned: Sequence[int], sums: OrderChoice, rest: OrderChoice) -> OrderChoice:
    """Plan of an AllReduce.

    Parameters
    ----------
    network
        The machine.
    turned
        For every link of the reversed machine, the same link of the machine.
    sums
        Plan on the reversed machine; it is run backwards.
    rest
        Plan on the machine.
    """
    sums, rest = _without_empty(sums), _without_empty(rest)
    count = math.lcm(sums.num_chunks, rest.num_chunks)
    grids = [_Grid(count, sums, rest, root) for root in range(len(network.roots))]
    first = [
        _turned(transfer, grids[transfer.root], after, turned)
        for transfer, after in zip(
            sums.transfers, followers([transfer.after for transfer in sums.transfers]), strict=True
        )
    ]
    last = ((each.root, index) for index, each in enumerate(sums.transfers) if not each.after)
    arrivals = by_number(len(grids), last)
    transfers = tuple([*first, *_later(first, arrivals, rest, grids)])
    finer = rest.costs.scaled(rest.num_chunks / count)
    costs = replace(finer, chunks=tuple(grid.sizes for grid in grids))
    messages = followed(mirrored(sums.plan.messages), 0.0, rest.plan.messages, len(first))
    rule = None if rest.rule is None else replace(rest.rule, in_turn=True)
    return OrderChoice(
        transfers, costs, count, rule, left_shifted(transfers, costs, messages), sized=sums.sized and rest.sized
    )


def _without_empty(choice: OrderChoice) -> OrderChoice:
    """The plan without transfers of pieces to which a search for better sizes has left no chunks."""
    kept = [index for index, transfer in enumerate(choice.transfers) if choice.costs.size((transfer,))]
    number = {index: place for place, index in enumerate(kept)}

    def renumbered(indices: Iterable[int]) -> tuple[int, ...]:
        return tuple(number[index] for index in indices if index in number)

    transfers = tuple(
        replace(choice.transfers[index], after=renumbered(choice.transfers[index].after)) for index in kept
    )
    messages = [replace(message, transfers=renumbered(message.transfers)) for message in choice.plan.messages]
    return replace(
        choice,
        transfers=transfers,
        plan=TreePlan(tuple(message for message in messages if message.transfers), choice.plan.end_us),
    )


class _Grid:
    """Pieces of one root that are whole for both plans, by the chunks where they begin."""

    def __init__(self, count: int, sums: OrderChoice, rest: OrderChoice, root: int) -> None:
        self.sums = _cuts(sums, root, count)
        self.rest = _cuts(rest, root, count)
        both = sorted({*self.sums, *self.rest})
        self.sizes = tuple(end - begin for begin, end in pairwise(both))
        self._number = {cut: index for index, cut in enumerate(both)}

    def on(self, transfer: PieceTransfer, begin: int, end: int) -> PieceTransfer:
        """Return the transfer with the pieces between two cuts."""
        first = self._number[begin]
        return replace(transfer, piece=first, span=self._number[end] - first)


def _cuts(choice: OrderChoice, root: int, count: int) -> list[int]:
    """Starts of the pieces, and the end of the last one, if there are so many chunks."""
    return [chunks * (count // choice.num_chunks) for chunks in accumulate(choice.costs.chunks[root], initial=0)]


def _turned(transfer: PieceTransfer, grid: _Grid, after: Sequence[int], turned: Sequence[int]) -> PieceTransfer:
    """The transfer backwards."""
    back = replace(transfer, link=turned[transfer.link], reduce=True, after=tuple(after), ahead=1.0 - transfer.ahead)
    return grid.on(back, grid.sums[transfer.piece], grid.sums[transfer.end])


def _later(
    first: Sequence[PieceTransfer], arrivals: Sequence[Sequence[int]], rest: OrderChoice, grids: Sequence[_Grid]
) -> Iterator[PieceTransfer]:
    """Transfers of the second plan; roots wait for all that brings a part of the sum."""
    for transfer in rest.transfers:
        grid = grids[transfer.root]
        found = grid.on(transfer, grid.rest[transfer.piece], grid.rest[transfer.end])
        after = tuple(len(first) + earlier for earlier in transfer.after)
        if not transfer.after:
            after = tuple(
                i for i in arrivals[transfer.root] if first[i].piece < found.end and found.piece < first[i].end
            )
        yield replace(found, after=after)

"""AllReduce through several roots: how much of the data each has is free, and every part has a tree into its root and one out of it.

Nobody owns a part of a sum, so a rank with slow links need not have as much as others, or any. The parts, roots and trees are the best packing
(`taccl_py.synthesis.bounds.roots`); what is left is to cut the parts into pieces that follow each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from taccl_py.runtimes import MAX_XML_NODES
from taccl_py.synthesis.apportion import apportion
from taccl_py.synthesis.bounds.roots import RootParts
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.order import DispatchRule, OrderChoice, PieceCosts, TreePlan
from taccl_py.synthesis.trees.params import PARAMS
from taccl_py.synthesis.trees.transfers import PieceTransfer, TreeFlow, downwards, hand_out, sum_up
from taccl_py.synthesis.uneven import usable_counts

_Planned = Callable[[Sequence[PieceTransfer], PieceCosts, Sequence[DispatchRule]], Mapping[DispatchRule, TreePlan]]


@dataclass(frozen=True)
class PiecesThroughRoots:
    """Parts of the data in pieces.

    Attributes
    ----------
    transfers
        What moves, in order of the parts: sums first for every part.
    sizes
        Size of every piece as a share of the data, [piece].
    """

    transfers: tuple[PieceTransfer, ...]
    sizes: tuple[float, ...]

    def chunks(self, count: int) -> tuple[int, ...]:
        """Chunks of every piece, if all are so many, at least one each."""
        return tuple(apportion(list(self.sizes), count))


def of_large_parts(parts: RootParts) -> RootParts:
    """Parts without those that are hardly anything; what is left is all data."""
    large = parts.amounts >= PARAMS.least_root_part * parts.amounts.max()
    trees = tuple(trees for trees, is_large in zip(parts.trees, large, strict=True) if is_large)
    return RootParts(trees, parts.amounts[large] / parts.amounts[large].sum())


def pieces_through_roots(network: CapacityNetwork, parts: RootParts, pieces: int) -> PiecesThroughRoots:
    """Parts of the data in about so many pieces together, all of about the same size.

    Parameters
    ----------
    network
        The machine without symmetry.
    parts
        Trees on it, and what they carry.
    pieces
        Number of pieces; more if there are more parts.
    """
    pairs = [*zip(parts.trees, parts.amounts.tolist(), strict=True)]
    total = sum(amount for _, amount in pairs)
    cuts = [max(1, round(pieces * amount / total)) for _, amount in pairs]
    turned = replace(network, src=network.dst, dst=network.src)
    transfers: list[PieceTransfer] = []
    arrivals: list[tuple[int, ...]] = []
    for (trees, _), cut in zip(pairs, cuts, strict=True):
        upwards = downwards(turned, trees.into.tolist(), trees.root)[::-1]
        for place in range(cut):
            ends = sum_up(network, upwards, TreeFlow(0, len(arrivals), place / cut), transfers)
            arrivals.append(tuple(ends.get(trees.root, ())))
    piece = 0
    for (trees, _), cut in zip(pairs, cuts, strict=True):
        order = downwards(network, trees.out.tolist(), trees.root)
        for place in range(cut):
            hand_out(network, order, TreeFlow(0, piece, place / cut), arrivals[piece], transfers)
            piece += 1
    sizes = [amount / total / cut for (_, amount), cut in zip(pairs, cuts, strict=True) for _ in range(cut)]
    return PiecesThroughRoots(tuple(transfers), tuple(sizes))


class RootSearch:
    """Plans of parts of the data in ever more pieces.

    Parameters
    ----------
    demand
        A Broadcast of all data, whose chunks are those of the plans.
    network, parts
        The machine without symmetry, and trees on it with what they carry.
    rounds
        Pieces of every part for which a plan promises to take least time.
    planned
        Plans of some transfers at some costs by some rules.
    """

    def __init__(
        self, demand: Demand, network: CapacityNetwork, parts: RootParts, rounds: int, planned: _Planned
    ) -> None:
        self._demand, self._network, self._parts, self._planned = demand, network, parts, planned
        self._counts = usable_counts(demand)
        self._least = PARAMS.least_root_pieces * rounds * len(parts.trees)

    def choices(
        self, rules: Sequence[DispatchRule], is_enough: Callable[[list[OrderChoice]], bool]
    ) -> list[OrderChoice]:
        """The best plan of every number of pieces that is tried, until more do not pay or it is enough."""
        found: list[OrderChoice] = []
        for cut in map(self._cut, PARAMS.root_piece_counts[self._first() :]):
            if found and (is_enough(found) or not self._fits(cut)):
                break
            choice = self._best(cut, rules)
            if choice is None:
                break
            found.append(choice)
            if found.index(min(found, key=lambda each: each.plan.end_us)) < len(found) - PARAMS.most_failures:
                break
        return found

    def _cut(self, pieces: int) -> PiecesThroughRoots:
        return pieces_through_roots(self._network, self._parts, pieces)

    def _first(self) -> int:
        """Place of the first number to try: fewer pieces promise to take much longer, unless there is no room for more."""
        counts = PARAMS.root_piece_counts
        first = next((place for place, pieces in enumerate(counts) if pieces >= self._least), len(counts) - 1)
        return next((place for place in range(first, 0, -1) if self._fits(self._cut(counts[place]))), 0)

    def _fits(self, cut: PiecesThroughRoots) -> bool:
        """True if every rank has room for its messages."""
        busiest = self._network.busiest([transfer.link for transfer in cut.transfers])
        return len(cut.transfers) <= PARAMS.most_root_messages and busiest <= PARAMS.step_part * MAX_XML_NODES

    def _best(self, cut: PiecesThroughRoots, rules: Sequence[DispatchRule]) -> OrderChoice | None:
        count = min((each for each in self._counts if each >= PARAMS.root_piece_chunks * len(cut.sizes)), default=None)
        if count is None:
            return None
        costs = PieceCosts.of(
            self._network, self._demand.chunk_bytes(self._demand.collective(count)), cut.chunks(count)
        )
        plans = self._planned(cut.transfers, costs, rules)
        rule = min(plans, key=lambda each: plans[each].end_us)
        return OrderChoice(cut.transfers, costs, count, rule, plans[rule], sized=True)

"""Transfers: what trees ask for, one orbit each.

A transfer carries pieces of one root's data over one link (and so do its images, at the same time, elsewhere). It waits for
other transfers: for the one that brings the piece or, where data is summed, for all that bring a part of the sum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from taccl_py.grouping import by_number, grouped
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.packing import SpanningTree
from taccl_py.synthesis.trees.rounding import TreeSet


@dataclass(frozen=True, slots=True)
class PieceTransfer:
    """Neighbouring pieces over one link, for each element of the group.

    Attributes
    ----------
    root
        Index of the representative root.
    piece
        Which piece of its data, the first one where there are several.
    link
        Link of the representative.
    reduce
        Whether the receiver adds it to what it has.
    after
        Transfers that must have arrived.
    span
        How many pieces.
    turn
        Transfers of smaller numbers go first.
    ahead
        The part of the tree's data that goes down the tree before this.
    """

    root: int
    piece: int
    link: int
    reduce: bool
    after: tuple[int, ...]
    span: int = 1
    turn: int = 0
    ahead: float = 0.0

    @property
    def end(self) -> int:
        """The piece that follows."""
        return self.piece + self.span


def gather_transfers(
    network: CapacityNetwork, tree_set: TreeSet, cuts: int, sums: Sequence[PieceTransfer] = ()
) -> list[PieceTransfer]:
    """Transfers that bring every piece from its root to every rank.

    Parameters
    ----------
    network, tree_set
        The machine and the trees.
    cuts
        Pieces of every part.
    sums
        Transfers that must bring the pieces to their roots first (see `reduce_transfers`); they stand first in the result.
    """
    transfers = list(sums)
    arrivals = grouped(
        ((transfer.root, transfer.piece), index)
        for index, transfer in enumerate(sums)
        if network.dst[transfer.link] == network.roots[transfer.root]
    )
    for number, tree in enumerate(tree_set.trees):
        order = downwards(network, tree.links.tolist(), network.roots[tree.root])
        for cut in range(cuts):
            piece = number % tree_set.parts * cuts + cut
            after = tuple(arrivals.get((tree.root, piece), ()))
            hand_out(network, order, TreeFlow(tree.root, piece, cut / cuts), after, transfers)
    sketch = network.problem.sketch
    return _own_first(network, transfers) if sketch is not None and sketch.own_first else transfers


def _own_first(network: CapacityNetwork, transfers: list[PieceTransfer]) -> list[PieceTransfer]:
    """Let what is relayed between nodes wait for the sender's own pieces on the same link."""
    node_of = network.problem.topology.node_of
    own = grouped(
        (int(network.resources[transfer.link, 0]), index)
        for index, transfer in enumerate(transfers)
        if not transfer.reduce and network.src[transfer.link] == network.roots[transfer.root]
    )
    result = []
    for transfer in transfers:
        src, dst = int(network.src[transfer.link]), int(network.dst[transfer.link])
        if not transfer.reduce and node_of[src] != node_of[dst] and src != network.roots[transfer.root]:
            before = own.get(int(network.resources[transfer.link, 0]), [])
            result.append(replace(transfer, after=(*transfer.after, *before)))
        else:
            result.append(transfer)
    return result


def reduce_transfers(
    network: CapacityNetwork, backward: CapacityNetwork, tree_set: TreeSet, cuts: int
) -> list[PieceTransfer]:
    """Transfers that sum every piece at its root.

    Parameters
    ----------
    network
        The machine.
    backward, tree_set
        The reversed machine and trees on it; messages go in the other direction, from the leaves to the root.
    cuts
        Pieces of every part.
    """
    turned = backward.problem.topology.reversed_link()
    transfers: list[PieceTransfer] = []
    for number, tree in enumerate(tree_set.trees):
        order = downwards(backward, tree.links.tolist(), network.roots[tree.root])
        upwards = [turned[link] for link in reversed(order)]
        for cut in range(cuts):
            piece = number % tree_set.parts * cuts + cut
            sum_up(network, upwards, TreeFlow(tree.root, piece, cut / cuts), transfers)
    return transfers


class TreeFlow(NamedTuple):
    """A piece that goes down or up a tree; see `PieceTransfer`."""

    root: int
    piece: int
    ahead: float


def hand_out(
    network: CapacityNetwork, links: list[int], flow: TreeFlow, after: tuple[int, ...], transfers: list[PieceTransfer]
) -> None:
    """Add the transfers that take a piece down a tree, whose links come after those that lead to them; what leaves its root is after some others."""
    brought_by: dict[int, tuple[int, ...]] = {}
    for link in links:
        before = brought_by.get(int(network.src[link]), after)
        brought_by[int(network.dst[link])] = (len(transfers),)
        transfers.append(PieceTransfer(flow.root, flow.piece, link, reduce=False, after=before, ahead=flow.ahead))


def sum_up(
    network: CapacityNetwork, links: list[int], flow: TreeFlow, transfers: list[PieceTransfer]
) -> dict[int, list[int]]:
    """Add the transfers that sum a piece up a tree, whose links come before those that they lead to; those that end at each rank."""
    brought_by: dict[int, list[int]] = {}
    for link in links:
        after = tuple(brought_by.get(int(network.src[link]), ()))
        brought_by.setdefault(int(network.dst[link]), []).append(len(transfers))
        transfers.append(PieceTransfer(flow.root, flow.piece, link, reduce=True, after=after, ahead=flow.ahead))
    return brought_by


def downwards(network: CapacityNetwork, links: list[int], root: int) -> list[int]:
    """Links of a tree, every one after the one that leads to it."""
    below = grouped((int(network.src[link]), link) for link in links if link >= 0)
    order: list[int] = []
    front = [root]
    for rank in front:
        for link in below.get(rank, ()):
            order.append(link)
            front.append(int(network.dst[link]))
    return order


@dataclass(frozen=True, slots=True)
class TreePiece:
    """A cut of a tree's data."""

    tree: int
    cut: int


def number_pieces(trees: Sequence[SpanningTree], cuts: Sequence[int], *, apart: bool) -> list[list[TreePiece]]:
    """Pieces of each root in the order in which they lie in its data, [root].

    Parameters
    ----------
    trees, cuts
        Trees and how many pieces each of them has.
    apart
        Whether a tree's pieces lie together, so that those that catch up with each other can go on together; if not, the first
        pieces of all trees come first.
    """
    pieces = [TreePiece(tree, cut) for tree, count in enumerate(cuts) for cut in range(count)]
    if not apart:
        pieces.sort(key=lambda piece: ((piece.cut + 0.5) / cuts[piece.tree], piece.tree))
    return by_number(1 + max(tree.root for tree in trees), ((trees[piece.tree].root, piece) for piece in pieces))


def piece_transfers(
    network: CapacityNetwork, trees: Sequence[SpanningTree], numbered: Sequence[Sequence[TreePiece]]
) -> list[PieceTransfer]:
    """Transfers that bring every piece from its root to every rank."""
    number = {piece: index for pieces in numbered for index, piece in enumerate(pieces)}
    cuts = Counter(piece.tree for piece in number)
    transfers: list[PieceTransfer] = []
    order: list[int] = []
    for piece in sorted(number, key=lambda piece: (piece.tree, piece.cut)):
        tree = trees[piece.tree]
        if not piece.cut:
            order = downwards(network, tree.links.tolist(), network.roots[tree.root])
        flow = TreeFlow(tree.root, number[piece], piece.cut / cuts[piece.tree])
        hand_out(network, order, flow, (), transfers)
    return transfers

"""Pieces that become smaller to the end, on shallow trees.

Equal pieces lose twice: many of them pay alpha many times, and few of them leave links idle while the last one runs down its
tree. A piece's size may fall from cut to cut instead, and neighbours share messages while much is left to do. How many trees
and cuts there are, how fast sizes fall and how much may be shared is found by going from the best setting to its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace

from taccl_py.solvers.limits import Over
from taccl_py.synthesis.apportion import apportion
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.order import DispatchRule, OrderChoice, PieceCosts, climb, list_schedule, neighbours_of
from taccl_py.synthesis.trees.params import PARAMS
from taccl_py.synthesis.trees.rounding import round_packing
from taccl_py.synthesis.trees.shallow import PackedMachine
from taccl_py.synthesis.trees.shared_trees import SharedTreeSet, unequal_cuts
from taccl_py.synthesis.trees.transfers import TreePiece, number_pieces, piece_transfers


@dataclass(frozen=True)
class TaperedTreeSet:
    """Trees, and in how many pieces their data may be cut.

    Attributes
    ----------
    shared
        Trees and what they carry.
    cuts
        Cuts: pieces of every tree.
    apart
        Whether a tree's pieces lie together.
    least_chunks
        Chunks that a shard must have, for each cut.
    """

    shared: SharedTreeSet
    cuts: tuple[tuple[int, ...], ...]
    apart: bool
    least_chunks: tuple[int, ...]


def even_tree_sets(machine: PackedMachine, over: Over) -> list[TaperedTreeSet]:
    """Whole trees for those numbers of them that load links and ports most evenly; all of them carry the same."""
    places = len(machine.network.roots) * (machine.network.num_ranks - 1)
    tree_sets = []
    for parts in PARAMS.taper_tree_counts:
        if parts == 1 or (parts * places <= PARAMS.most_taper_places and not over()):
            tree_sets.append(round_packing(machine.network, machine.packing, parts, over))
    best = sorted(tree_sets, key=lambda tree_set: (round(tree_set.load_us, PARAMS.taper_load_digits), tree_set.parts))[
        : PARAMS.most_taper_tree_sets
    ]
    return [
        TaperedTreeSet(
            SharedTreeSet(tree_set.trees, (1.0 / tree_set.parts,) * len(tree_set.trees)),
            tuple((cuts,) * len(tree_set.trees) for cuts in PARAMS.taper_piece_counts),
            False,
            tuple(PARAMS.taper_piece_chunks * tree_set.parts * cuts for cuts in PARAMS.taper_piece_counts),
        )
        for tree_set in best
    ]


def uneven_tree_set(shared: SharedTreeSet) -> TaperedTreeSet:
    """Trees that carry unequal parts, the larger ones in more pieces."""
    cuts = tuple(unequal_cuts(shared, pieces) for pieces in PARAMS.shared_pieces)
    return TaperedTreeSet(shared, cuts, True, (PARAMS.shared_chunks,) * len(cuts))


@dataclass(frozen=True, slots=True)
class _TaperSetting:
    """Positions in the tables above, and 1 if roots stay with a receiver."""

    cuts: int
    fall: int
    taper: int
    stay: int = 0

    def neighbours(self, num_cuts: int) -> list[_TaperSetting]:
        """Settings that differ in one thing, where there are so many cuts."""
        sizes = (num_cuts, len(PARAMS.taper_falls), len(PARAMS.tapers), 2)
        return [_TaperSetting(*each) for each in neighbours_of(astuple(self), sizes)]


@dataclass(frozen=True)
class TaperSearch:
    """Search over settings for some trees.

    Attributes
    ----------
    network
        The machine.
    tapered
        Trees.
    chunk_bytes
        Size of a chunk, given their number.
    counts
        Numbers of chunks that a shard may have.
    over
        Whether time is up.
    """

    network: CapacityNetwork
    tapered: TaperedTreeSet
    chunk_bytes: Callable[[int], float]
    counts: Sequence[int]
    over: Over

    def best(self) -> OrderChoice | None:
        """The best plan, if there is one."""
        num_cuts = len(self.tapered.cuts)
        return climb(
            [_TaperSetting(*PARAMS.first_taper_setting)],
            self._planned,
            lambda setting: setting.neighbours(num_cuts),
            self.over,
        )

    def _planned(self, setting: _TaperSetting) -> OrderChoice | None:
        """The plan of a setting; None if it has too many pieces."""
        tapered, cuts = self.tapered, self.tapered.cuts[setting.cuts]
        count = min((count for count in self.counts if count >= tapered.least_chunks[setting.cuts]), default=0)
        if not count or sum(cuts) * (self.network.num_ranks - 1) > PARAMS.most_taper_messages:
            return None
        numbered = number_pieces(tapered.shared.trees, cuts, apart=tapered.apart)
        transfers = piece_transfers(self.network, tapered.shared.trees, numbered)
        sizes = tuple(
            _sizes(pieces, tapered.shared, cuts, PARAMS.taper_falls[setting.fall], count) for pieces in numbered
        )
        costs = replace(PieceCosts.of(self.network, self.chunk_bytes(count), (1,)), chunks=sizes)
        rule = DispatchRule(taper=PARAMS.tapers[setting.taper], stay=bool(setting.stay))
        return OrderChoice(tuple(transfers), costs, count, rule, list_schedule(transfers, costs, rule), sized=True)


def _sizes(
    pieces: Sequence[TreePiece], shared: SharedTreeSet, cuts: Sequence[int], fall: float, count: int
) -> tuple[int, ...]:
    """Chunks of a root's pieces; the last piece of a tree is as much smaller than its first one in all trees."""
    most = max(cuts)

    def falling(tree: int, cut: int) -> float:
        return float(fall ** (cut * (most - 1) / max(1, cuts[tree] - 1)))

    whole = [sum(falling(tree, cut) for cut in range(cuts[tree])) for tree in range(len(cuts))]
    weights = [shared.amounts[piece.tree] * falling(piece.tree, piece.cut) / whole[piece.tree] for piece in pieces]
    sizes = apportion(weights, count)
    while 0 in sizes:
        sizes[sizes.index(0)] = 1
        sizes[sizes.index(max(sizes))] -= 1
    return tuple(sizes)

"""Fractional packing of a demand: how much of every class of chunks goes over which tree, so that the fullest link or port has least to carry.

The linear program grows by columns, which are trees (paths, where one rank wants what one rank holds). The dual prices of links and ports say which
trees would help; `TreeBuilder` looks for them, and finds the cheapest one for paths and a cheap one else.

Prices also give a lower bound. Whatever is wanted crosses every cut between those who hold it and a rank that wants it, each term of a sum on its
own. Raising the cuts one after the other until the cheapest links into them are used up (Wong's dual ascent for Steiner arborescences, 1984) charges
no link more than its price, so that all that was raised is a lower bound on what any delivery costs at these prices, however finely it is
cut. The prices of the fullest resources then bound the time (`taccl_py.synthesis.bounds.charge`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from taccl_py.arrays import BoolArray, FloatArray, IntArray
from taccl_py.demand import DataDemand
from taccl_py.errors import Infeasible
from taccl_py.grouping import grouped
from taccl_py.solvers.columns import ColumnProgram
from taccl_py.solvers.limits import Over, never
from taccl_py.synthesis.arborescence import cheapest_arborescence
from taccl_py.synthesis.bounds.bound import Bound
from taccl_py.synthesis.bounds.charge import Charge, idle_times
from taccl_py.synthesis.bounds.net import Net
from taccl_py.synthesis.demands.classes import ChunkClass, Part, cut_stream
from taccl_py.synthesis.demands.params import PARAMS
from taccl_py.synthesis.demands.plan import RoutedPiece
from taccl_py.synthesis.demands.trees import TreeBuilder, TreeEdge, TreePrices
from taccl_py.synthesis.distances import distances
from taccl_py.tolerances import LEAST_AMOUNT, LP_GAP
from taccl_py.topology.ends import ends_of
from taccl_py.topology.model import Topology
from taccl_py.units import BYTES_PER_MB
from taccl_py.work import count_work

_REASON = "bandwidth: the flow of what everyone wants from those who have it over all links and ports"


@dataclass(frozen=True)
class PackedTree:
    """A tree of a packing.

    Attributes
    ----------
    number
        Number of its class.
    edges
        Its messages.
    part
        Part of the class that goes over it.
    """

    number: int
    edges: tuple[TreeEdge, ...]
    part: float


@dataclass(frozen=True)
class DemandPacking:
    """Fractional packing of a demand.

    Attributes
    ----------
    trees
        Trees in use, by class.
    load_us
        Time of the fullest resource.
    bound
        Lower bound on the time of every schedule.
    """

    trees: tuple[PackedTree, ...]
    load_us: float
    bound: Bound


def pack_demand(topology: Topology, classes: Sequence[ChunkClass], over: Over = never) -> DemandPacking | None:
    """Packing of the classes of a demand; None where there is nothing to pack, or too much to price all of it often.

    Raises
    ------
    Infeasible
        If some rank cannot be reached.
    """
    pairs = sum(len(each.terms) * len(each.wants) for each in classes)
    if not pairs or pairs * len(topology.links) > PARAMS.most_packed:
        return None
    return _PackingProgram(topology, classes).improved(over)


def packed_pieces(
    topology: Topology, demand: DataDemand, classes: Sequence[ChunkClass], packing: DemandPacking, piece_us: float
) -> list[RoutedPiece]:
    """Pieces of the trees of a packing, each of which takes about so long where its tree is slowest; those of all trees side by side."""
    found: list[RoutedPiece] = []
    for number, trees in grouped((tree.number, tree) for tree in packing.trees).items():
        for tree, parts in zip(trees, _parts_of(demand, classes[number], trees), strict=True):
            size = sum(size for *_, size in parts)
            if size:
                slowest_us = max(topology.us_per_mb(edge.link) for edge in tree.edges)
                count = pieces_by_time(size, slowest_us, piece_us)
                found += RoutedPiece(parts, tree.edges, 0.0).split(count, demand.element_bytes)
    return found


def pieces_by_time(size_bytes: int, slowest_us: float, piece_us: float) -> int:
    """Number of pieces that each take about so long where a megabyte takes longest."""
    return max(1, round(size_bytes / BYTES_PER_MB * slowest_us / max(piece_us, 1e-9)))


def _parts_of(demand: DataDemand, each: ChunkClass, trees: Sequence[PackedTree]) -> list[tuple[Part, ...]]:
    """Parts of a class for each of its trees, in proportion."""
    unit = demand.element_bytes
    elements = each.size_bytes // unit
    ends = np.cumsum([tree.part for tree in trees])
    edges = [0, *(np.round(ends / ends[-1] * elements).astype(np.int64) * unit).tolist()]
    return list(cut_stream(each.parts(demand), edges))


class _PackingProgram:
    """Columns so far, the best prices, and the program of both."""

    def __init__(self, topology: Topology, classes: Sequence[ChunkClass]) -> None:
        self._topology, self._classes = topology, classes
        self._net = Net.of(topology)
        self._sizes_mb = np.array([each.size_bytes / BYTES_PER_MB for each in classes])
        self._program = ColumnProgram(self._sizes_mb.tolist(), topology.num_resources)
        self._known: set[tuple[int, tuple[int, ...]]] = set()
        self._columns: list[tuple[int, tuple[TreeEdge, ...]]] = []
        self._bound = Bound(0.0, _REASON)
        self._least_load_us = 0.0

    def improved(self, over: Over) -> DemandPacking:
        """Add trees until no better one is found, the bound is reached, or enough rounds are made."""
        self._add_cheap(np.full(self._topology.num_resources, 1.0 / self._topology.num_resources), None)
        for _ in range(PARAMS.most_rounds):
            solution = self._program.solve()
            is_new = self._add_cheap(solution.prices, solution.worth)
            if not is_new or self._least_load_us >= solution.objective * (1 - PARAMS.packing_gap) or over():
                break
        amounts = solution.amounts
        used = np.flatnonzero(amounts > LEAST_AMOUNT)
        trees = [
            PackedTree(number, edges, float(amounts[i] / self._sizes_mb[number]))
            for i in used.tolist()
            for number, edges in [self._columns[i]]
        ]
        return DemandPacking(tuple(trees), solution.objective, self._bound)

    def _add_cheap(self, prices: FloatArray, worth: FloatArray | None) -> bool:
        """Take note of the bound that prices give, and add a cheap tree for each class if it is cheaper than it is worth; whether one is new."""
        lengths = self._net.sum_over_links(prices * self._net.beta_us_per_mb)
        least = self._least_prices(lengths)
        amount = float(self._sizes_mb @ least)
        self._least_load_us = max(self._least_load_us, amount)
        everywhere = np.zeros(self._topology.num_ranks)
        bound = Charge(prices, idle_times(self._net, everywhere, everywhere), amount, _REASON).at(BYTES_PER_MB)
        if bound.time_us > self._bound.time_us:
            self._bound = bound
        finder = CheapTrees(self._net, lengths)
        before = len(self._columns)
        for number, each in enumerate(self._classes):
            if worth is not None and least[number] >= worth[number] * (1 - LP_GAP):
                continue
            edges, price = finder.cheap_tree(each)
            links = [edge.link for edge in edges]
            key = (number, tuple(sorted(links)))
            if key not in self._known and (worth is None or price < worth[number] * (1 - LP_GAP)):
                self._known.add(key)
                self._columns.append((number, edges))
                self._program.add(number, self._load(links))
        return len(self._columns) > before

    def _load(self, links: Sequence[int]) -> FloatArray:
        """Time that a megabyte takes of each resource."""
        times = np.bincount(links, minlength=len(self._topology.links)).astype(np.float64)
        return self._net.sum_over_resources(times) * self._net.beta_us_per_mb

    def _least_prices(self, lengths: FloatArray) -> FloatArray:
        """Lower bounds on the prices of all trees of each class."""
        return np.array([least_price(self._net, each, lengths) for each in self._classes])


class _Cut:
    """Ranks that are joined by links which are used up: those from which a rank is reached, or those that are reached from some.

    Parameters
    ----------
    tail, head
        Ends of the links; exchanged for ranks that are reached from some.
    start
        Ranks with which it begins.
    others
        Sets of ranks: something must cross the cut as long as one of them lies outside.
    """

    def __init__(self, tail: IntArray, head: IntArray, start: Sequence[int], others: Sequence[Sequence[int]]) -> None:
        self._tail, self._head = tail, head
        self._inside = np.zeros(int(max(tail.max(), head.max())) + 1, dtype=bool)
        self._inside[list(start)] = True
        self._others = [list(ranks) for ranks in others]

    @property
    def size(self) -> int:
        """Number of ranks."""
        return int(self._inside.sum())

    def links(self, left: FloatArray) -> IntArray | None:
        """Links across it, none of which is used up; None if nothing has to cross it."""
        inside = self._inside
        while True:
            count_work("priced", 1)
            crossing = np.flatnonzero(inside[self._head] & ~inside[self._tail])
            more = self._tail[crossing[left[crossing] <= 0.0]]
            if not len(more):
                return None if all(inside[ranks].any() for ranks in self._others) else crossing
            inside[more] = True


def _cuts_of(net: Net, each: ChunkClass) -> list[_Cut]:
    """Cuts around those who want a copy, around those who add to a sum, and around both where several want it."""
    wants = [_Cut(net.src, net.dst, [want], each.terms) for want in each.wants]
    terms = [_Cut(net.dst, net.src, holders, [[want] for want in each.wants]) for holders in each.terms]
    if not each.is_sum:
        return wants
    return terms if len(each.wants) == 1 else [*terms, *wants]


def least_price(net: Net, each: ChunkClass, lengths: FloatArray) -> float:
    """Lower bound on the price of all trees of a class, by dual ascent: the smallest cut is raised first."""
    left, found = lengths.copy(), 0.0
    cuts = _cuts_of(net, each)
    queue = [(cut.size, number) for number, cut in enumerate(cuts)]
    heapq.heapify(queue)
    while queue:
        size, number = heapq.heappop(queue)
        crossing = cuts[number].links(left)
        if crossing is None:
            continue
        if cuts[number].size == size:
            by = float(left[crossing].min())
            left[crossing] -= by
            found += by
        heapq.heappush(queue, (cuts[number].size, number))
    return found


class CheapTrees:
    """Cheap trees whose links have fixed prices.

    The tree that grows by cheapest paths is compared with cheapest arborescences over all ranks, and over those of the best tree so far; what
    leads to nobody who wants it falls away.
    """

    def __init__(self, net: Net, lengths: FloatArray) -> None:
        self._net, self._lengths = net, lengths
        self._builder = self._among(None)

    def cheap_tree(self, each: ChunkClass) -> tuple[tuple[TreeEdge, ...], float]:
        """Messages of a tree for a class, and their price.

        Raises
        ------
        Infeasible
            If some rank cannot be reached.
        """
        edges = self._builder.build(each, each.size_bytes)
        best = edges, self._price(edges)
        if len(each.terms) == 1 == len(each.wants):
            return best
        if each.is_sum and len(each.wants) > 1:
            return min((best, *self._through_owners(each)), key=lambda one: one[1])
        for ranks in (None, self._ranks_of(edges)):
            while (links := self._arborescence(each, ranks)) is not None:
                edges = self._among(links).build(each, each.size_bytes)
                price = self._price(edges)
                if price >= best[1] * (1 - LP_GAP):
                    break
                best, ranks = (edges, price), self._ranks_of(edges)
        return best

    def _through_owners(self, each: ChunkClass) -> Iterator[tuple[tuple[TreeEdge, ...], float]]:
        """Trees of a sum that several want, to each of a few ranks and from there."""
        for owner in self._builder.owners_of(each):
            halves = [
                replace(each, wants=(owner,)),
                replace(each, terms=((owner,),), wants=tuple({*each.wants} - {owner})),
            ]
            try:
                links = [edge.link for half in halves if half.wants for edge in self.cheap_tree(half)[0]]
                edges = self._among(np.array(links)).through(each, owner, each.size_bytes)
            except Infeasible:
                continue
            yield edges, self._price(edges)

    def _among(self, links: IntArray | None) -> TreeBuilder:
        return builder_by_length(self._net.topology, self._lengths, links)

    def _price(self, edges: Sequence[TreeEdge]) -> float:
        return float(self._lengths[[edge.link for edge in edges]].sum())

    def _ranks_of(self, edges: Sequence[TreeEdge]) -> BoolArray:
        """Ranks of a tree, [rank]."""
        found = np.zeros(self._net.num_ranks, dtype=bool)
        links = [edge.link for edge in edges]
        found[self._net.src[links]] = found[self._net.dst[links]] = True
        return found

    def _arborescence(self, each: ChunkClass, among: BoolArray | None) -> IntArray | None:
        """Links of the cheapest arborescence from those who hold a copy, or to the one who wants a sum; None where there is none.

        It spans some ranks, or all that can be reached.
        """
        net = self._net
        tail, head = (net.dst, net.src) if each.is_sum else (net.src, net.dst)
        roots = each.wants if each.is_sum else each.terms[0]
        if among is None:
            among = np.isfinite(distances(net.num_ranks, tail, head, roots))
        inside = np.flatnonzero(among[tail] & among[head])
        number = np.cumsum(among)
        # All roots are one vertex, number 0.
        number[list(roots)] = 0
        label = np.unique(number[among], return_inverse=True)[1]
        place = np.zeros(net.num_ranks, dtype=np.int64)
        place[np.flatnonzero(among)] = label
        count_work("priced", len(inside))
        found = cheapest_arborescence(
            int(label.max()) + 1, place[tail[inside]], place[head[inside]], self._lengths[inside], 0
        )
        return None if found is None else inside[found[found >= 0]]


def builder_by_length(topology: Topology, lengths: FloatArray, among: IntArray | None = None) -> TreeBuilder:
    """Builder of trees whose links have fixed prices, and a little more for a hop, so that of equally cheap paths the shortest is taken.

    Parameters
    ----------
    topology, lengths
        The machine, and the price of each link.
    among
        Links that may be used; None for all.
    """
    priced = lengths + max(float(lengths.max()), 1e-12) * PARAMS.hop_price
    if among is not None:
        usable = np.zeros(len(lengths), dtype=bool)
        usable[among] = True
        priced = np.where(usable, priced, np.inf)
    prices: list[float] = priced.tolist()
    cheapest = np.full(topology.num_ranks, np.inf)
    np.minimum.at(cheapest, ends_of(topology.links)[1], priced)
    at_rank: list[float] = cheapest.tolist()
    return TreeBuilder(
        topology, TreePrices(lambda link, _size_bytes, _extra: prices[link], at_rank.__getitem__, lambda _depth_us: 0.0)
    )

"""Rails: every rank sends its data to its own place in the other nodes, one node after the other, and nodes hand it out.

Where links between nodes decide, they should never wait and carry few messages; nodes have time to spare, but must not be left
with much to do when the last message arrives. So messages between nodes are large first, whole shards if they may be, and the
smaller the less is left to be sent. They are cut anew for every receiver: only the last ones need small messages.

What a message brings is handed out in parts, each over a tree of its own: the cheapest one when links inside the node cost the
more, the more they still have to do at that time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise

import numpy as np

from taccl_py.collective import Collective, Kind
from taccl_py.solvers.limits import Over
from taccl_py.synthesis.apportion import apportion
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.order import DispatchRule, OrderChoice, PieceCosts, climb, list_schedule, neighbours_of
from taccl_py.synthesis.trees.packing import TreeFinder
from taccl_py.synthesis.trees.params import PARAMS
from taccl_py.synthesis.trees.transfers import PieceTransfer, downwards

_MOST_EXPONENT = 300.0
# Stands where there is no link.
_NONE = -1


@dataclass(frozen=True, slots=True)
class _RailSetting:
    """Positions in the tables above."""

    count: int = 3
    taper: int = 7
    cap: int = 3
    least: int = 0
    parts: int = 2
    grain: int = 3
    calm: int = 2

    def neighbours(self) -> list[_RailSetting]:
        """Settings that differ in one thing."""
        tables = (
            PARAMS.rail_chunks,
            PARAMS.rail_tapers,
            PARAMS.rail_caps,
            PARAMS.rail_least_chunks,
            PARAMS.rail_parts,
            PARAMS.rail_grains,
            PARAMS.rail_calms,
        )
        return [_RailSetting(*each) for each in neighbours_of(astuple(self), [len(table) for table in tables])]


@dataclass(frozen=True)
class TreeRails:
    """Links between the nodes and inside them.

    Attributes
    ----------
    network
        The machine.
    straight
        Link from every root to its place in each other node, in the order in which they are served, [root][round].
    box
        The node of the roots. Its resources are those of the machine.
    inside
        Links of `box` on the machine, in the roots' own node and then in the other ones in order, [round + 1][link].
    """

    network: CapacityNetwork
    straight: tuple[tuple[int, ...], ...]
    box: CapacityNetwork
    inside: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(network: CapacityNetwork) -> TreeRails | None:
        """The rails of a machine; None if its nodes are not alike, or some root does not reach its place in all of them."""
        topology = network.problem.topology
        nodes, place, links = topology.node_ranks, topology.local_rank, topology.links
        own, *more = [i for i, ranks in enumerate(nodes) if not set(ranks).isdisjoint(network.roots)]
        if more or len(nodes) < 2 or not topology.has_even_nodes:
            return None
        number = {
            (link.src, link.dst, lane): i for i, (link, lane) in enumerate(zip(links, topology.lane, strict=True))
        }
        order = [nodes[(own + step) % len(nodes)] for step in range(len(nodes))]
        home = [i for i, link in enumerate(links) if {link.src, link.dst} <= set(order[0])]

        def moved(link: int, ranks: Sequence[int]) -> int:
            src, dst = links[link].src, links[link].dst
            return number.get((ranks[place[src]], ranks[place[dst]], topology.lane[link]), _NONE)

        straight = [tuple(number.get((r, ranks[place[r]], 0), _NONE) for ranks in order[1:]) for r in network.roots]
        inside = [tuple(moved(link, ranks) for link in home) for ranks in order]
        if any(_NONE in row for row in (*straight, *inside)):
            return None
        return TreeRails(network, tuple(straight), _box(network, order[0], home), tuple(inside))


def _box(network: CapacityNetwork, ranks: Sequence[int], links: Sequence[int]) -> CapacityNetwork:
    """One node. A tree's links load what they and their images load on the machine."""
    problem = network.problem
    collective = Collective(Kind.ALLGATHER, len(ranks), 1)
    box = Problem.build(problem.topology.subset(ranks), collective, None, problem.chunk_bytes)
    number = {rank: index for index, rank in enumerate(ranks)}
    chosen = np.array(links, dtype=np.int64)
    return CapacityNetwork(
        box, tuple(number[root] for root in network.roots), np.ones((len(network.roots), len(links)), dtype=np.bool_),
        np.arange(len(ranks), dtype=np.int64)[None, :], np.array([number[rank] for rank in network.src[chosen].tolist()]),
        np.array([number[rank] for rank in network.dst[chosen].tolist()]), network.resources[chosen], network.beta[chosen],
        network.least_message_us[chosen], network.num_resources,
    )  # fmt: skip


@dataclass(frozen=True)
class RailSearch:
    """Search over cuts.

    Attributes
    ----------
    rails
        The machine.
    chunk_bytes
        Size of a chunk, given their number.
    counts
        Numbers of chunks that a shard may have.
    over
        Whether time is up.
    """

    rails: TreeRails
    chunk_bytes: Callable[[int], float]
    counts: Sequence[int]
    over: Over

    def best(self) -> OrderChoice | None:
        """The best plan, if there is one."""
        first = [
            _RailSetting(count=count, taper=taper)
            for taper in PARAMS.first_rail_tapers
            for count in range(len(PARAMS.rail_chunks))
        ]
        return climb(first, self._planned, _RailSetting.neighbours, self.over, PARAMS.most_rail_settings)

    def _planned(self, setting: _RailSetting) -> OrderChoice | None:
        """The plan of a setting; None if its chunks do not serve the size, or it has too many transfers."""
        count = PARAMS.rail_chunks[setting.count]
        if count not in self.counts:
            return None
        costs = PieceCosts.of(self.rails.network, self.chunk_bytes(count), (1,) * count)
        rounds = len(self.rails.inside) - 1
        blocks = cut_messages(
            rounds,
            count,
            PARAMS.rail_tapers[setting.taper],
            PARAMS.rail_caps[setting.cap],
            PARAMS.rail_least_chunks[setting.least],
            costs.message_chunks,
        )
        transfers = _Handing(self.rails, costs, setting).transfers(blocks, count)
        if len(transfers) > PARAMS.most_rail_messages:
            return None
        rule = DispatchRule(least=PARAMS.joined_alphas)
        return OrderChoice(tuple(transfers), costs, count, rule, list_schedule(transfers, costs, rule), sized=True)


@dataclass(frozen=True, slots=True)
class RailBlock:
    """Chunks that a message takes to another node.

    Attributes
    ----------
    round
        Which node, -1 for the roots' own, where nothing has to be sent.
    first, size
        Which chunks.
    """

    round: int
    first: int
    size: int


def cut_messages(rounds: int, count: int, taper: float, cap: float, least: int, most: int) -> list[RailBlock]:
    """Messages from a root to all nodes, in order."""
    blocks = []
    for number in range(rounds):
        sizes: list[int] = []
        wanted: list[float] = []
        later = (rounds - 1 - number) * count
        while sum(wanted) < count:
            rest = count - sum(wanted)
            wanted.append(max(least, min(cap * count, taper * (later + rest), most)))
        if later:
            # No small message is left over where the next one is large.
            sizes = apportion(wanted, count)
        while sum(sizes) < count:
            rest = count - sum(sizes)
            sizes.append(min(rest, most, max(least, round(min(cap * count, taper * rest)))))
        first = 0
        for size in sizes:
            blocks += [RailBlock(number, first, size)] if size else []
            first += size
    return blocks


class _Handing:
    """Transfers of some blocks, and trees for them."""

    def __init__(self, rails: TreeRails, costs: PieceCosts, setting: _RailSetting) -> None:
        self._rails, self._costs, self._setting = rails, costs, setting
        self._finder = TreeFinder(rails.box)
        shape = rails.box.beta.shape
        self._alpha_us, self._chunk_us = np.zeros(shape), np.zeros(shape)
        for index, link in enumerate(rails.inside[0]):
            width = len(costs.resources[link])
            self._alpha_us[index, :width] = costs.alpha_us[link]
            self._chunk_us[index, :width] = costs.chunk_us[link]
        # What resources still have to do; the last one stands where a link has fewer than others.
        self._backlog_us = np.zeros(rails.box.num_resources + 1)
        self._transfers: list[PieceTransfer] = []

    def transfers(self, blocks: Sequence[RailBlock], count: int) -> list[PieceTransfer]:
        """Transfers of every root's blocks, and of its own node, in about the order in which they arrive."""
        roots = range(len(self._rails.box.roots))
        for root in roots:
            parts = min(2 * PARAMS.rail_parts[self._setting.parts], count)
            self._hand_out(root, RailBlock(-1, 0, count), (), parts)
        for turn, block in enumerate(blocks):
            links = [self._rails.straight[root][block.round] for root in roots]
            passed_us = max(self._costs.of_message(link, block.size).time_us for link in links)
            self._backlog_us = np.maximum(0.0, self._backlog_us - passed_us)
            parts = max(
                1, min(PARAMS.rail_parts[self._setting.parts], block.size // PARAMS.rail_grains[self._setting.grain])
            )
            for root, link in enumerate(links):
                brought_by = (len(self._transfers),)
                self._transfers.append(
                    PieceTransfer(root, block.first, link, reduce=False, after=(), span=block.size, turn=turn)
                )
                self._hand_out(root, block, brought_by, parts)
        return self._transfers

    def _hand_out(self, root: int, block: RailBlock, brought_by: tuple[int, ...], parts: int) -> None:
        """Transfers that take a block from a root, or its place in another node, to all ranks of the node."""
        rails, box = self._rails, self._rails.box
        inside = rails.inside[block.round + 1]
        crossing_us = float(max(self._costs.chunk_us[rails.straight[root][0]]))
        calm_us = (PARAMS.rail_calm_chunks + PARAMS.rail_calms[self._setting.calm] * block.size) * crossing_us
        ends = [block.first + block.size * part // parts for part in range(parts + 1)]
        for first, end in pairwise(ends):
            occupied_us = self._alpha_us + (end - first) * self._chunk_us
            dearness = np.exp(np.minimum(self._backlog_us / calm_us, _MOST_EXPONENT))
            tree = self._finder.cheapest_of(
                root, (dearness[box.resources] * occupied_us).sum(axis=1), PARAMS.rail_hop_price
            )
            after = {box.roots[root]: brought_by}
            for link in downwards(box, tree.links.tolist(), box.roots[root]):
                src, dst = int(box.src[link]), int(box.dst[link])
                after[dst] = (len(self._transfers),)
                self._transfers.append(
                    PieceTransfer(root, first, inside[link], reduce=False, after=after[src], span=end - first)
                )
            np.add.at(self._backlog_us, box.resources[tree.used()], occupied_us[tree.used()])
            self._backlog_us[-1] = 0.0

"""Double binary trees: every channel has two trees over the nodes, each for half of its data, and chains inside nodes.

The trees are NCCL's (its ``src/graph/trees.cc``): in one of them every second node is a leaf, and in the other, which is
the first one mirrored or shifted by one, those that were not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from taccl_py.synthesis.templates.messages import (
    TemplateMessage,
    TemplateMessages,
    TemplatePlan,
    cut,
    end_of,
    shifted,
    turned,
)
from taccl_py.synthesis.templates.site import TemplateSite

# Into how many pieces every tree's data is cut, and the most messages that are worth it.
_PIECES = (1, 4, 16)
_MOST_MESSAGES = 60_000


def tree_parents(size: int) -> tuple[int, ...]:
    """Parent of every node in the first tree, -1 for the root: node 0, whose one child is the largest power of two.

    Parameters
    ----------
    size
        Number of nodes.
    """
    parents = [-1]
    for node in range(1, size):
        bit = node & -node
        up = (node ^ bit) | (bit << 1)
        parents.append(up if up < size else node ^ bit)
    return tuple(parents)


def second_parents(size: int) -> tuple[int, ...]:
    """Parent of every node in the second tree, -1 for the root: mirrored for an even number of nodes, shifted for an odd one."""
    first = tree_parents(size)

    def image(node: int) -> int:
        return size - 1 - node if size % 2 == 0 else (node + 1) % size

    parents = [-1] * size
    for node, parent in enumerate(first):
        parents[image(node)] = image(parent) if parent >= 0 else -1
    return tuple(parents)


@dataclass(frozen=True, slots=True)
class _Tree:
    """Ranks with their parents, parents first; the root is not among them."""

    edges: tuple[tuple[int, int], ...]

    def once(self, chunks: tuple[int, ...]) -> TemplateMessages:
        """Broadcast of one piece: a rank serves its children one after the other."""
        when: dict[int, int] = {self.edges[0][0]: 0}
        messages = []
        for src, dst in self.edges:
            messages.append(TemplateMessage(src, dst, chunks, when[src], when[src] + 1))
            when[dst] = when[src] + 1
            when[src] += 1
        return tuple(messages)

    @property
    def most_sends(self) -> int:
        """Sends of the busiest rank for one piece, up and down."""
        sources = [src for src, _ in self.edges]
        return 1 + max(sources.count(src) for src in sources)


def tree_plans(site: TemplateSite) -> Iterator[TemplatePlan]:
    """AllReduce up and down two trees, on one channel or one for every rank of a node, in several numbers of pieces."""
    num_ranks = site.topology.num_ranks
    smallest = min(len(ranks) for ranks in site.topology.node_ranks)
    for num_channels in dict.fromkeys((1, smallest)):
        trees = [tree for channel in range(num_channels) for tree in _pair(site, channel)]
        if len(trees) < 2 * num_channels:
            continue
        for pieces in _PIECES:
            parts = pieces * len(trees)
            chunks_per_rank = math.ceil(parts / num_ranks)
            if 2 * parts * num_ranks > _MOST_MESSAGES:
                break
            shares = cut(num_ranks * chunks_per_rank, parts)
            for overlapped in (False, True) if pieces > 1 else (False,):
                name = f"{num_channels} channels, {pieces} pieces{', overlapped' if overlapped else ''}"
                yield TemplatePlan(chunks_per_rank, _up_and_down(trees, shares, overlapped=overlapped), name)


def _pair(site: TemplateSite, channel: int) -> list[_Tree]:
    """Both trees of a channel, whose chains begin at the ranks of this local number; fewer where links are missing."""
    nodes = site.topology.node_ranks
    chains = [site.inside.path(ranks, ranks[channel]) for ranks in nodes]
    if any(chain is None for chain in chains):
        return []
    found = [chain for chain in chains if chain is not None]
    trees = []
    for parents in (tree_parents(len(nodes)), second_parents(len(nodes))):
        edges = _edges(found, parents)
        if all(site.both_linked(src, dst) for src, dst in edges):
            trees.append(_Tree(tuple(edges)))
    return trees


def _edges(chains: Sequence[Sequence[int]], parents: Sequence[int]) -> list[tuple[int, int]]:
    """Edges from the root down: to the heads of the nodes below first, because their paths are longer, then along the chain."""
    edges = []
    waiting = [parents.index(-1)]
    while waiting:
        node = waiting.pop(0)
        below = [child for child, parent in enumerate(parents) if parent == node]
        edges += [(chains[node][0], chains[child][0]) for child in below]
        edges += list(zip(chains[node], chains[node][1:], strict=False))
        waiting += below
    return edges


def _up_and_down(trees: Sequence[_Tree], shares: Sequence[tuple[int, ...]], *, overlapped: bool) -> TemplateMessages:
    """Sums up the trees and results down, pieces by turns; overlapped pieces go down while later ones still go up."""
    height = max(end_of(tree.once(())) for tree in trees)
    period = max(tree.most_sends for tree in trees) * (1 if overlapped else len(shares))
    rounds = len(shares) // len(trees)
    down_at = height if overlapped else height + period * rounds
    messages: list[TemplateMessage] = []
    for number, chunks in enumerate(shares):
        once = trees[number % len(trees)].once(chunks)
        begin = number // len(trees) * (period if overlapped else 1)
        messages += shifted(turned(once, reduce=True), begin)
        messages += shifted(once, begin + down_at)
    return tuple(sorted(messages, key=lambda message: message.start))

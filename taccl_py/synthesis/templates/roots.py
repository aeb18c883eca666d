"""Templates with a root: Broadcast and Scatter, from which Reduce and Gather follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from taccl_py.synthesis.templates.moves import Move, Moves, Plan, in_turn
from taccl_py.synthesis.templates.patterns import DIRECT, RING, axis, spread
from taccl_py.synthesis.templates.site import Edge, Site
from taccl_py.synthesis.templates.spreading import ring_sets

# Into how many pieces a broadcast may be cut.
_PIECES = (1, 2, 4, 8, 16, 32, 64)


def center(site: Site) -> int:
    """Rank from which a tree reaches all others first."""
    ranks = range(site.topology.num_ranks)
    size_bytes = site.chunk_bytes * len(ranks)

    def end_us(root: int) -> float:
        edges = site.tree((root,), ranks, size_bytes)
        return max(edge.end_us for edge in edges) if edges else float("inf")

    return min(site.topology.node_ranks[0], key=end_us)


def broadcast_plans(site: Site, root: int, num_pieces: int | None) -> Iterator[Plan]:
    """Every Broadcast template that the machine's links allow.

    Parameters
    ----------
    site
        The machine; its chunk is the whole buffer.
    root
        The root.
    num_pieces
        Into how many chunks the buffer is cut, or None to try several.
    """
    ranks = [rank for ranks in site.topology.node_ranks for rank in ranks]
    for pieces in (num_pieces,) if num_pieces is not None else _PIECES:
        small = replace(site, chunk_bytes=site.chunk_bytes / pieces)
        for name, edges in _trees(small, root, ranks):
            yield Plan(f"{name}, {pieces} pieces", pieces, _pipelined(edges, root, pieces))
        order = small.path(ranks, root)
        if order is not None:
            yield Plan(f"chain, {pieces} pieces", pieces, _down_chain(order, pieces))
    yield from _around_rings(site, root, num_pieces)
    num_ranks = len(ranks)
    pieces = num_pieces or num_ranks
    if pieces % num_ranks == 0:
        for name in (DIRECT, RING):
            moves = _scattered(site, root, pieces // num_ranks, name)
            if moves is not None:
                yield Plan(f"scatter and {name} allgather", pieces, moves)


def _trees(site: Site, root: int, ranks: list[int]) -> Iterator[tuple[str, tuple[Edge, ...]]]:
    """Trees for messages of the site's size, with their names."""
    for name, one_entry in (("tree", False), ("tree with one entry a node", True)):
        edges = site.tree((root,), ranks, site.chunk_bytes, one_entry=one_entry)
        if edges is not None and (not one_entry or site.topology.num_nodes > 1):
            yield name, edges


def _pipelined(edges: tuple[Edge, ...], root: int, pieces: int) -> Moves:
    """Pieces one after the other down a tree: every rank passes a piece on to all before it turns to the next piece."""
    children: dict[int, int] = {}
    when = {root: 0}
    planned: list[Move] = []
    period = max(sum(edge.src == src for edge in edges) for src in {edge.src for edge in edges})
    for edge in edges:
        start = when[edge.src] + children.get(edge.src, 0)
        children[edge.src] = children.get(edge.src, 0) + 1
        when[edge.dst] = start + 1
        planned += [
            Move(edge.src, edge.dst, (piece,), start + piece * period, start + piece * period + 1)
            for piece in range(pieces)
        ]
    return tuple(sorted(planned, key=lambda move: move.start))


def _around_rings(site: Site, root: int, num_pieces: int | None) -> Iterator[Plan]:
    """Pieces by turns down chains, each of which is a ring cut open behind the root."""
    for rings in ring_sets(site):
        number = len(rings)
        chains = [ring[ring.index(root) :] + ring[: ring.index(root)] for ring in rings]
        for pieces in (num_pieces,) if num_pieces is not None else [each * number for each in _PIECES]:
            if number > 1 and pieces % number == 0 and pieces <= _PIECES[-1]:
                moves = [
                    replace(move, chunks=(move.chunks[0] * number + j,))
                    for j, chain in enumerate(chains)
                    for move in _down_chain(chain, pieces // number)
                ]
                yield Plan(f"{number} chains, {pieces} pieces", pieces, tuple(sorted(moves, key=lambda m: m.start)))


def _down_chain(order: tuple[int, ...], pieces: int) -> Moves:
    return tuple(
        Move(order[i], order[i + 1], (piece,), piece + i, piece + i + 1)
        for piece in range(pieces)
        for i in range(len(order) - 1)
    )


def _scattered(site: Site, root: int, chunks: int, name: str) -> Moves | None:
    """A part of the buffer to every rank, then AllGather."""
    ranks = tuple(rank for ranks in site.topology.node_ranks for rank in ranks)
    along = axis(site, name, (ranks,))
    if along is None:
        return None
    parts = {rank: tuple(range(i * chunks, (i + 1) * chunks)) for i, rank in enumerate(ranks)}
    first = tuple(Move(root, rank, parts[rank], 0, 1) for rank in ranks if rank != root)
    gather = tuple(move for move in spread((along,), parts) if move.dst != root)
    return in_turn(first, gather)


def scatter_plans(site: Site, root: int, chunks_per_rank: int) -> Iterator[Plan]:
    """Every Scatter template that the machine's links allow."""
    ranks = [rank for ranks in site.topology.node_ranks for rank in ranks]
    parents = {"shortest paths": site.path_parents(root)}
    halves = _halving(site, root, ranks)
    if halves is not None:
        parents["halving"] = halves
    for name, edges in _trees(site, root, ranks):
        parents[name] = [-1] * len(ranks)
        for edge in edges:
            parents[name][edge.dst] = edge.src
    for name, parent in parents.items():
        if parent.count(-1) == 1:
            yield Plan(name, chunks_per_rank, _down(parent, root, chunks_per_rank))


def _halving(site: Site, root: int, ranks: list[int]) -> list[int] | None:
    """Tree in which a rank hands over half of its ranks, neighbours in number, to one of them."""
    parent = [-1] * len(ranks)

    def hand_over(holder: int, low: int, high: int) -> bool:
        if high - low == 1:
            return True
        middle = _border(site, ranks, low, high)
        mine, others = (low, middle), (middle, high)
        if holder not in ranks[low:middle]:
            mine, others = others, mine
        linked = [rank for rank in ranks[others[0] : others[1]] if site.linked(holder, rank)]
        if not linked:
            return False
        heir = min(linked, key=lambda rank: (site.cost_us[holder, rank], rank))
        parent[heir] = holder
        return hand_over(holder, *mine) and hand_over(heir, *others)

    return parent if hand_over(root, 0, len(ranks)) else None


def _border(site: Site, ranks: list[int], low: int, high: int) -> int:
    """Where to halve: between nodes if there are several, else in the middle."""
    node_of = site.topology.node_of
    borders = [i for i in range(low + 1, high) if node_of[ranks[i - 1]] != node_of[ranks[i]]]
    middle = (low + high) // 2
    return min(borders, key=lambda i: abs(i - middle)) if borders else middle


def _down(parent: list[int], root: int, chunks_per_rank: int) -> Moves:
    """Every rank's chunks down a tree, large subtrees first; the chunks of a subtree lie together."""
    children: dict[int, list[int]] = {rank: [] for rank in range(len(parent))}
    for rank, above in enumerate(parent):
        if above >= 0:
            children[above].append(rank)
    below: dict[int, list[int]] = {}

    def gather(rank: int) -> list[int]:
        children[rank].sort(key=lambda child: (-len(gather(child)), child))
        below[rank] = [rank, *(other for child in children[rank] for other in below[child])]
        return below[rank]

    gather(root)
    moves: list[Move] = []
    ready = [(0, root)]
    while ready:
        time, src = ready.pop(0)
        for number, dst in enumerate(children[src]):
            chunks = tuple(rank * chunks_per_rank + part for rank in below[dst] for part in range(chunks_per_rank))
            moves.append(Move(src, dst, chunks, time + number, time + number + 1))
            ready.append((time + number + 1, dst))
    return tuple(sorted(moves, key=lambda move: move.start))

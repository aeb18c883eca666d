"""Templates with a root: Broadcast and Scatter, from which Reduce and Gather follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from taccl_py.synthesis.templates.circulant import Circulant
from taccl_py.synthesis.templates.messages import TemplateMessage, TemplateMessages, TemplatePlan, in_order, shifted
from taccl_py.synthesis.templates.params import PARAMS
from taccl_py.synthesis.templates.pipeline import Pipeline
from taccl_py.synthesis.templates.site import Edge, IsUsefulAt, TemplateSite, others_in_turn
from taccl_py.synthesis.templates.spreading import handed_out, ring_sets


def center(site: TemplateSite) -> int:
    """Rank from which a tree reaches all others first."""
    ranks = range(site.topology.num_ranks)
    size_bytes = site.chunk_bytes * len(ranks)

    def end_us(root: int) -> float:
        edges = site.tree((root,), ranks, size_bytes)
        return max(edge.end_us for edge in edges) if edges else float("inf")

    return min(site.topology.node_ranks[0], key=end_us)


def broadcast_plans(
    site: TemplateSite, root: int, num_pieces: int | None, is_useful_at: IsUsefulAt
) -> Iterator[TemplatePlan]:
    """Every Broadcast template that the machine's links allow and that may be of use.

    Parameters
    ----------
    site
        The machine; its chunk is the whole buffer.
    root
        The root.
    num_pieces
        Into how many chunks the buffer is cut, or None to try several.
    is_useful_at
        Whether a template is of use that takes at least so long.
    """
    least_us = site.least_message_us
    is_long_useful = is_useful_at((site.topology.num_ranks - 1) * least_us)
    # Pieces follow each other over the links between two ranks.
    parallel = max(map(len, site.topology.links_between.values()), default=1)
    ranks = [rank for ranks in site.topology.node_ranks for rank in ranks]
    for pieces in (num_pieces,) if num_pieces is not None else PARAMS.root_pieces:
        if not is_useful_at(pieces // parallel * least_us):
            break
        small = replace(site, chunk_bytes=site.chunk_bytes / pieces)
        for name, edges in _trees(small, root, ranks):
            yield TemplatePlan(pieces, _pipelined(edges, root, pieces), f"{name}, {pieces} pieces")
        order = small.path(ranks, root) if is_long_useful else None
        if order is not None:
            yield TemplatePlan(pieces, _down_chain(order, pieces), f"chain, {pieces} pieces")
    if is_long_useful:
        yield from _around_rings(site, root, num_pieces)
    yield from _down_inner_trees(site, root, num_pieces)
    yield from _in_rounds(site, root, num_pieces)
    width = len(site.topology.node_ranks[0])
    pieces = num_pieces or width
    if pieces % width == 0:
        dealt = _dealt(replace(site, chunk_bytes=site.chunk_bytes / width), root, pieces // width)
        if dealt is not None:
            yield TemplatePlan(pieces, dealt, "scatter inside, across, allgather inside")


def _trees(site: TemplateSite, root: int, ranks: list[int]) -> Iterator[tuple[str, tuple[Edge, ...]]]:
    """Trees for messages of the site's size, with their names."""
    for name, one_entry in (("tree", False), ("tree with one entry a node", True)):
        edges = site.tree((root,), ranks, site.chunk_bytes, one_entry=one_entry)
        if edges is not None and (not one_entry or site.topology.num_nodes > 1):
            yield name, edges


def _pipelined(edges: tuple[Edge, ...], root: int, pieces: int) -> TemplateMessages:
    """Pieces one after the other down a tree: every rank passes a piece on to all before it turns to the next piece."""
    children: dict[int, int] = {}
    when = {root: 0}
    planned: list[TemplateMessage] = []
    period = max(sum(edge.src == src for edge in edges) for src in {edge.src for edge in edges})
    for edge in edges:
        start = when[edge.src] + children.get(edge.src, 0)
        children[edge.src] = children.get(edge.src, 0) + 1
        when[edge.dst] = start + 1
        planned += [
            TemplateMessage(edge.src, edge.dst, (piece,), start + piece * period, start + piece * period + 1)
            for piece in range(pieces)
        ]
    return in_order(planned)


def _around_rings(site: TemplateSite, root: int, num_pieces: int | None) -> Iterator[TemplatePlan]:
    """Pieces by turns down chains, each of which is a ring cut open behind the root."""
    for rings in ring_sets(site):
        number = len(rings)
        chains = [ring[ring.index(root) :] + ring[: ring.index(root)] for ring in rings]
        for pieces in (num_pieces,) if num_pieces is not None else [each * number for each in PARAMS.root_pieces]:
            if number > 1 and pieces % number == 0 and pieces <= PARAMS.root_pieces[-1]:
                messages = [
                    replace(message, chunks=(message.chunks[0] * number + j,))
                    for j, chain in enumerate(chains)
                    for message in _down_chain(chain, pieces // number)
                ]
                yield TemplatePlan(pieces, in_order(messages), f"{number} chains, {pieces} pieces")


def _down_chain(order: tuple[int, ...], pieces: int) -> TemplateMessages:
    return tuple(
        TemplateMessage(order[i], order[i + 1], (piece,), piece + i, piece + i + 1)
        for piece in range(pieces)
        for i in range(len(order) - 1)
    )


def _down_inner_trees(site: TemplateSite, root: int, num_pieces: int | None) -> Iterator[TemplatePlan]:
    """Pieces by turns down trees with different inner ranks, where all ranks are linked and send to several at a time; the best variants.

    With as many trees as children of an inner rank, every rank passes on as much as it gets: a chain is the case of one. After
    Castro et al., SplitStream, SOSP 2003, section 2.
    """
    num_ranks = site.topology.num_ranks
    if site.topology.num_nodes not in (1, num_ranks) or not site.all_linked or site.one_ported or num_ranks < 3:
        return
    found: list[tuple[int, Pipeline]] = []
    for number in {min(number, num_ranks - 1) for number in (1, 2, 3, 4, 6, 8, num_ranks - 1)}:
        trees = [inner_tree(num_ranks, root, number, tree) for tree in range(number)]
        pipeline = Pipeline(site, root, site.chunk_bytes, (trees,)).best(num_pieces)
        if pipeline is not None:
            found.append((number, pipeline))
    for number, pipeline in sorted(found, key=lambda each: (each[1].end_us, each[0]))[: PARAMS.most_pipelines]:
        name = f"{number} trees with different inner ranks, {pipeline.num_chunks} pieces"
        yield TemplatePlan(pipeline.num_chunks, pipeline.messages(), name)


def _in_rounds(site: TemplateSite, root: int, num_pieces: int | None) -> Iterator[TemplatePlan]:
    """Pieces in the fewest rounds, where all messages take as long; the quickest pattern if ranks send and receive one at a time."""
    num_ranks = site.topology.num_ranks
    if not site.all_linked or len(set(site.cost_us.values())) > 1:
        return
    rounds = Circulant.of(num_ranks)
    alpha_us = site.topology.message_us(0, 0.0)
    most = max(1, min(PARAMS.most_pipeline_chunks, PARAMS.most_pipeline_messages // num_ranks))
    ideal = min(most, rounds.best_pieces(alpha_us, site.topology.message_us(0, site.chunk_bytes) - alpha_us))
    # Most sizes are cut evenly by powers of two, which lowering likes.
    low = 1 << (ideal.bit_length() - 1)
    numbers = (num_pieces,) if num_pieces is not None else sorted({ideal, low, min(2 * low, most)})
    ranks = (root, *(rank for rank in range(num_ranks) if rank != root))
    for pieces in numbers:
        yield TemplatePlan(pieces, tuple(rounds.messages(ranks, pieces)), f"circulant rounds, {pieces} pieces")


def inner_tree(num_ranks: int, root: int, number: int, tree: int) -> dict[int, list[int]]:
    """Whom each rank tells in one of so many trees: its inner ranks as many others as there are trees, and the root the first of them.

    Where the ranks are not a multiple of the trees some trees have an inner rank less, and for what these lack others help out that
    have less to do in their own trees.
    """
    others = [*range(root + 1, num_ranks), *range(root)]
    size, longer = divmod(len(others), number)
    firsts = [place * size + min(place, longer) for place in range(number + 1)]
    inner = others[firsts[tree] : firsts[tree + 1]]
    helpers = [others[firsts[place] - 1] for place in range(1, longer)] if tree >= longer else []
    others = [*others[firsts[tree + 1] :], *others[: firsts[tree]]]
    below = iter([*inner[1:], *helpers, *(rank for rank in others if rank not in helpers)])
    tells = {rank: list(islice(below, number)) for rank in inner} | {rank: list(islice(below, 1)) for rank in helpers}
    return {root: inner[:1]} | tells


def _dealt(site: TemplateSite, root: int, chunks: int) -> TemplateMessages | None:
    """A part to every rank of the root's node, which brings it to the same place in the other nodes; then AllGather in nodes.

    Each part goes on by itself. So parts of different sizes, those that leave later being smaller, can use all links all the time.
    None for a single node, for nodes of a single rank or of different sizes, and where links are missing.
    """
    topology = site.topology
    home = topology.node_of[root]
    rails = [tuple(ranks) for ranks in zip(*topology.node_ranks, strict=False)]
    if topology.num_nodes == 1 or len(rails) == 1 or not topology.has_even_nodes:
        return None
    if not site.linked_inside_nodes:
        return None
    dealers = sorted(rails, key=lambda rail: (rail[home] != root, rail))
    parts = [tuple(range(part * chunks, (part + 1) * chunks)) for part in range(len(rails))]
    leaves_us = [0.0] + [part * site.cost_us[root, rail[home]] for part, rail in enumerate(dealers[1:])]
    dealt_us = leaves_us[-1] + site.cost_us[root, dealers[-1][home]]
    messages: list[TemplateMessage] = []
    for rail, held, begin_us in zip(dealers, parts, leaves_us, strict=True):
        dealer = rail[home]
        begins_us = begin_us if dealer == root else begin_us + site.cost_us[root, dealer]
        if dealer != root:
            messages.append(TemplateMessage(root, dealer, held, begin_us, begins_us))
        across = handed_out(site, dealer, rail, held)
        if across is None:
            return None
        # Inside the root's node there is time to share out once everything has left the root.
        holds_us = {dealer: dealt_us} | {message.dst: begins_us + message.end for message in across}
        messages += shifted(across, begins_us)
        messages += [
            TemplateMessage(holder, other, held, start_us, start_us + site.cost_us[holder, other])
            for holder, start_us in holds_us.items()
            for other in others_in_turn(holder, topology.node_ranks[topology.node_of[holder]])
            if other != root
        ]
    return in_order(messages)


def scatter_plans(site: TemplateSite, root: int, chunks_per_rank: int) -> Iterator[TemplatePlan]:
    """Every Scatter template that the machine's links allow."""
    ranks = [rank for ranks in site.topology.node_ranks for rank in ranks]
    parents = {"shortest paths": site.path_parents(root)}
    for name, edges in _trees(site, root, ranks):
        parents[name] = [-1] * len(ranks)
        for edge in edges:
            parents[name][edge.dst] = edge.src
    for name, parent in parents.items():
        if parent.count(-1) == 1:
            yield TemplatePlan(chunks_per_rank, _down(parent, root, chunks_per_rank), name)


def _down(parent: list[int], root: int, chunks_per_rank: int) -> TemplateMessages:
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
    messages: list[TemplateMessage] = []
    ready = [(0, root)]
    while ready:
        time, src = ready.pop(0)
        for number, dst in enumerate(children[src]):
            chunks = tuple(rank * chunks_per_rank + part for rank in below[dst] for part in range(chunks_per_rank))
            messages.append(TemplateMessage(src, dst, chunks, time + number, time + number + 1))
            ready.append((time + number + 1, dst))
    return in_order(messages)

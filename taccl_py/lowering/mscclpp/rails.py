"""Collectives of several nodes whose switches multicast and add up: switches inside, rails between ranks of one local number.

Everything is cut into pieces, which follow each other, and each piece into parts, each owned by the ranks of one local number;
little data have fewer parts than a node has ranks, and the other ranks only signal that they have begun:

* AllReduce: its switch adds up what the node's ranks hold of the part, and the sum goes to scratch. Ranks of one local number
  exchange these sums, each adds them up in the order of the nodes, so that all get the same bits, and lets its switch store the
  result everywhere in the node. Where nodes relay, each node does so for its own part of the part, and sends the result to the
  others, which multicast it in their nodes.
* AllGather: each rank lets its switch store its shard in its node, and sends it to the ranks of its number, which do the same.
* Broadcast: the root lets its switch store everything in its node; from there each part goes to the other nodes along its rail.

A switch stores a sum at one rank at least, and at others: here at a neighbour, whose scratch has room for that. It loads from all
and stores at two, which takes far less of the ports than to store at all what only one needs. What a proxy sends lies in cells that
nobody writes to, so that nobody has to wait until it is sent, but at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from taccl_py.collective import Buffer, Collective, Kind
from taccl_py.lowering.cells import CellRange
from taccl_py.lowering.mscclpp.blocks import Post
from taccl_py.lowering.mscclpp.script import Lengths, Script
from taccl_py.lowering.plan import PlanGpu, SwitchChannel

# Threadblocks of a rank: one lets the switch add up or sends the rank's data, one adds up or stores, one multicasts what arrives.
_FIRST, _SECOND, _SPREAD = 0, 1, 2


class NodeRails(StrEnum):
    """Route of data that several nodes need.

    ``direct``: each node sends to all others. ``relayed``: of an AllReduce each node adds up one part of everything and sends the
    result to all; a Broadcast goes from node to node. That is less for each NIC, and takes longer for the first piece.
    """

    DIRECT = "direct"
    RELAYED = "relayed"


@dataclass(frozen=True, slots=True)
class RailSite:
    """Nodes, and how the work is cut.

    Attributes
    ----------
    nodes
        Ranks of every node in order of their local numbers, as many in each.
    instances
        Threadblocks of every kind on every rank.
    pieces
        Pieces that each instance does one after the other.
    in_place
        Whether input and output are the same memory.
    rails
        How nodes send to several others.
    owners
        Ranks of a node that own a part of everything; in an AllGather all do.
    first
        Local number of the first of them: that of a root.
    """

    nodes: tuple[tuple[int, ...], ...]
    instances: int
    pieces: int
    in_place: bool
    rails: NodeRails
    owners: int
    first: int = 0

    @property
    def num_local(self) -> int:
        """Ranks of a node."""
        return len(self.nodes[0])

    @property
    def num_pieces(self) -> int:
        """Pieces of all instances."""
        return self.instances * self.pieces

    def places(self) -> Iterator[_RankInstance]:
        """Every rank in every instance."""
        for instance in range(self.instances):
            for node, ranks in enumerate(self.nodes):
                for local in range(len(ranks)):
                    yield _RankInstance(self, node, local, instance)


@dataclass(frozen=True, slots=True)
class _RankInstance:
    """A rank in one instance."""

    site: RailSite
    node: int
    local: int
    instance: int

    @property
    def rank(self) -> int:
        return self.site.nodes[self.node][self.local]

    def post(self, role: int) -> Post:
        """Threadblock of this rank."""
        return Post(self.rank, role, self.instance)

    def at(self, node: int, role: int) -> Post:
        """Threadblock of the rank with the same local number on a node."""
        return Post(self.site.nodes[node][self.local], role, self.instance)

    def others(self, role: int) -> list[Post]:
        """Threadblocks of the ranks with the same local number on all other nodes."""
        return [self.at(node, role) for node in self.other_nodes]

    @property
    def other_nodes(self) -> list[int]:
        """All other nodes, the next one first, so that not all nodes begin with the same one."""
        count = len(self.site.nodes)
        return [(self.node + step) % count for step in range(1, count)]

    @property
    def part(self) -> int:
        """Number of the part that this rank owns, if there are so many."""
        return (self.local - self.site.first) % self.site.num_local

    @property
    def is_owner(self) -> bool:
        """True if the rank owns a part."""
        return self.part < self.site.owners

    def peers(self, role: int) -> list[Post]:
        """Threadblocks of the other ranks of this node."""
        return [Post(rank, role, self.instance) for rank in self.site.nodes[self.node] if rank != self.rank]

    def busy(self, role: int) -> list[Post]:
        """Threadblocks of the other ranks of this node that own a part."""
        return [post for post in self.peers(role) if self._beside(post).is_owner]

    def idle(self) -> list[Post]:
        """Threadblocks of the other ranks that own none; these have one role only."""
        return [post for post in self.peers(_FIRST) if not self._beside(post).is_owner]

    def _beside(self, post: Post) -> _RankInstance:
        local = self.site.nodes[self.node].index(post.rank)
        return _RankInstance(self.site, self.node, local, self.instance)

    def group(self, buffer: Buffer) -> SwitchChannel:
        """Switch channel of the whole node."""
        return SwitchChannel(buffer, self.site.nodes[self.node])

    def pair(self) -> SwitchChannel:
        """Switch channel to the scratch of this rank and a neighbour."""
        neighbour = self.local ^ 1 if self.local ^ 1 < self.site.num_local else self.local - 1
        ranks = self.site.nodes[self.node]
        return SwitchChannel(Buffer.SCRATCH, tuple(sorted((ranks[self.local], ranks[neighbour]))))

    def numbers(self) -> Iterator[tuple[int, bool]]:
        """Pieces of this instance, and whether each is the last one."""
        for piece in range(self.site.pieces):
            yield self.instance * self.site.pieces + piece, piece == self.site.pieces - 1


def rails_gpus(collective: Collective, node_of: tuple[int, ...], site: RailSite) -> tuple[PlanGpu, ...]:
    """Return the programs of all ranks for an AllReduce, an AllGather or a Broadcast.

    Parameters
    ----------
    collective
        The collective; its chunks do not matter.
    node_of
        Node of every rank.
    site
        The nodes and how the work is cut.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept.
    """
    script = Script(node_of)
    if collective.kind is Kind.ALLREDUCE:
        relayed = site.rails is NodeRails.RELAYED
        layout = _SumLayout(site, len(site.nodes) if relayed else 1)
        for place in site.places():
            if not place.is_owner:
                _write_idle(script, place, _FIRST, _SPREAD if relayed else _SECOND)
                continue
            _let_switch_add(script, place, layout)
            (_add_part if relayed else _add_all)(script, place, layout)
        cells = site.owners * layout.owned
        return script.gpus(Lengths(cells, cells, layout.scratch))
    if collective.kind is Kind.ALLGATHER:
        for place in site.places():
            _write_allgather(script, place)
        return script.gpus(
            Lengths(site.num_pieces, collective.num_ranks * site.num_pieces, site.num_pieces if site.in_place else 0)
        )
    for place in site.places():
        _write_broadcast(script, place, collective.root)
    cells = site.owners * site.num_pieces
    return script.gpus(Lengths(cells, cells))


def _put_all(
    script: Script, post: Post, receivers: list[Post], source: CellRange, target: CellRange, *, last: bool
) -> None:
    """Put cells to the same place at several ranks; the last ones of a threadblock are waited for."""
    for receiver in receivers:
        script.put(post, "pws", receiver, source, target)
    if last:
        script.flush(post, receivers)


def _end_node(script: Script, place: _RankInstance, role: int) -> None:
    """Keep every rank of the node in the call until all of them have stored their parts."""
    post = place.post(role)
    script.sync_threads(post)
    script.on_channels(post, "signal", [*place.busy(role), *place.idle()])
    script.on_channels(post, "wait", place.busy(role))
    script.sync_threads(post)


def _write_idle(script: Script, place: _RankInstance, ready_role: int, last: int) -> None:
    """Write the block of a rank that owns no part: it signals that it has begun, and waits until all is stored at it."""
    post = place.post(_FIRST)
    script.on_channels(post, "rlxsignal", place.busy(ready_role))
    script.on_channels(post, "wait", place.busy(last))
    script.sync_threads(post)


# AllReduce


@dataclass(frozen=True, slots=True)
class _SumLayout:
    """Places of sums; with `parts` nodes each of which adds up a part of everything, or 1 if all add up all."""

    site: RailSite
    parts: int

    @property
    def owned(self) -> int:
        """Cells that ranks of one local number own."""
        return self.site.num_pieces * self.parts

    def cells(self, place: _RankInstance, number: int, buffer: Buffer) -> CellRange:
        """A piece's cells of a local number, one for each part."""
        return CellRange(buffer, (number * self.site.owners + place.part) * self.parts, self.parts)

    def own(self, place: _RankInstance, number: int) -> CellRange:
        """Scratch for the sums of the node; not where a neighbour's are."""
        area = place.local % 2 if place.local ^ 1 < self.site.num_local else 2
        return CellRange(Buffer.SCRATCH, area * self.owned + number * self.parts, self.parts)

    def part_of(self, cells: CellRange, node: int) -> CellRange:
        """Part of some cells that a node adds up."""
        return cells.part(node if self.parts > 1 else 0, 1)

    def received(self, place: _RankInstance, number: int, sender: int) -> CellRange:
        """Scratch for the sum of another node, at the rank of this place."""
        slot = sender - (sender > place.node)
        return CellRange(Buffer.SCRATCH, self._areas * self.owned + slot * self.site.num_pieces + number, 1)

    def total(self, number: int) -> CellRange:
        """Scratch for what a node has added up."""
        return CellRange(Buffer.SCRATCH, self.scratch - self.site.num_pieces + number, 1)

    @property
    def _areas(self) -> int:
        return 2 + self.site.num_local % 2

    @property
    def scratch(self) -> int:
        """Cells of scratch."""
        received = len(self.site.nodes) - 1 + (self.parts > 1)
        return self._areas * self.owned + received * self.site.num_pieces

    def result(self) -> Buffer:
        """Buffer of the result; in place the input has both names."""
        return Buffer.INPUT if self.site.in_place else Buffer.OUTPUT


def _let_switch_add(script: Script, place: _RankInstance, layout: _SumLayout) -> None:
    """Sums of the node, for this rank itself and for those of its number on the other nodes."""
    post = place.post(_FIRST)
    script.on_channels(post, "rlxsignal", place.busy(_FIRST))
    script.on_channels(post, "rlxwait", [*place.peers(_FIRST), *place.others(_SECOND)])
    script.sync_threads(post)
    for number, last in place.numbers():
        own = layout.own(place, number)
        source = layout.cells(place, number, Buffer.INPUT)
        script.sum_by_switch(post, place.group(Buffer.INPUT), source, place.pair(), own)
        script.sync_threads(post)
        script.release(post, place.post(_SECOND))
        for node in place.other_nodes:
            there = _RankInstance(place.site, node, place.local, place.instance)
            target = layout.received(there, number, place.node)
            script.put(post, "pws", place.at(node, _SECOND), layout.part_of(own, node), target)
        if last and layout.parts == 1:  # else the result that comes back shows that it arrived
            script.flush(post, place.others(_SECOND))


def _sum_of_nodes(script: Script, place: _RankInstance, layout: _SumLayout, number: int, target: CellRange) -> None:
    """Wait for the sums of all nodes and add them up, in the order of the nodes."""
    post = place.post(_SECOND)
    script.on_channels(post, "wait", place.others(_FIRST))
    script.acquire(post, place.post(_FIRST))
    script.sync_threads(post)
    sums = [
        layout.part_of(layout.own(place, number), node) if node == place.node else layout.received(place, number, node)
        for node in range(len(place.site.nodes))
    ]
    script.add_up(post, target, sums)
    script.sync_threads(post)


def _add_all(script: Script, place: _RankInstance, layout: _SumLayout) -> None:
    """Every node adds up everything for itself."""
    post, result = place.post(_SECOND), layout.result()
    script.on_channels(post, "rlxsignal", place.others(_FIRST))
    for number, _ in place.numbers():
        target = layout.cells(place, number, result)
        _sum_of_nodes(script, place, layout, number, target)
        script.multicast(post, target, place.group(result), target)
    _end_node(script, place, _SECOND)


def _add_part(script: Script, place: _RankInstance, layout: _SumLayout) -> None:
    """Every node adds up its part, and sends it to the others; what has come is stored together with it."""
    post, spread, result = place.post(_SECOND), place.post(_SPREAD), layout.result()
    script.on_channels(post, "rlxsignal", place.others(_FIRST))
    script.on_channels(post, "rlxwait", place.others(_SPREAD))
    script.on_channels(spread, "rlxsignal", place.others(_SECOND))
    for number, last in place.numbers():
        total, target = layout.total(number), layout.cells(place, number, result)
        _sum_of_nodes(script, place, layout, number, total)
        # The switch stores at its sender too, so a proxy may not be reading there.
        script.copy(post, total, layout.part_of(target, place.node))
        script.sync_threads(post)
        script.release(post, spread)
        _put_all(script, post, place.others(_SPREAD), total, layout.part_of(target, place.node), last=last)
        script.on_channels(spread, "wait", place.others(_SECOND))
        script.acquire(spread, post)
        script.sync_threads(spread)
        script.multicast(spread, target, place.group(result), target)
    _end_node(script, place, _SPREAD)


# AllGather


def _write_allgather(script: Script, place: _RankInstance) -> None:
    """Send the own shard to the other nodes, store it in the own one, and multicast what comes from the others."""
    send, give, spread = (place.post(role) for role in (_FIRST, _SECOND, _SPREAD))
    script.on_channels(send, "rlxwait", place.others(_SPREAD))
    script.on_channels(spread, "rlxsignal", place.others(_FIRST))
    for post, role in ((give, _SECOND), (spread, _SPREAD)):
        script.on_channels(post, "rlxsignal", place.peers(role))
        script.on_channels(post, "rlxwait", place.peers(role))
        script.sync_threads(post)
    script.sync_threads(send)
    everywhere = place.group(Buffer.OUTPUT)
    for number, last in place.numbers():
        own = CellRange(Buffer.OUTPUT, place.rank * place.site.num_pieces + number, 1)
        source = CellRange(Buffer.SCRATCH if place.site.in_place else Buffer.INPUT, number, 1)
        if place.site.in_place:
            # As with sums: a proxy may not read where the switch stores.
            script.copy(send, own, source)
            script.sync_threads(send)
            script.release(send, give)
            script.acquire(give, send)
            script.sync_threads(give)
        _put_all(script, send, place.others(_SPREAD), source, own, last=last)
        script.multicast(give, own if place.site.in_place else source, everywhere, own)
        for node in place.other_nodes:
            came = CellRange(Buffer.OUTPUT, place.site.nodes[node][place.local] * place.site.num_pieces + number, 1)
            script.on_channels(spread, "wait", [place.at(node, _FIRST)])
            script.sync_threads(spread)
            script.multicast(spread, came, everywhere, came)
    _end_node(script, place, _SECOND)
    _end_node(script, place, _SPREAD)


# Broadcast


def _write_broadcast(script: Script, place: _RankInstance, root: int) -> None:
    """Write the blocks of a rank that passes on its part: in the root's node it comes from the root, elsewhere along the rail."""
    start = next(node for node, ranks in enumerate(place.site.nodes) if root in ranks)
    steps = (place.node - start) % len(place.site.nodes)  # nodes are visited in order from the root's
    if place.site.rails is NodeRails.DIRECT:
        before, after = (None if steps == 0 else start), (place.other_nodes if steps == 0 else [])
    else:
        before = None if steps == 0 else (place.node - 1) % len(place.site.nodes)
        after = [] if steps == len(place.site.nodes) - 1 else place.other_nodes[:1]
    if before is None:
        _from_root(script, place, root, [place.at(node, _SPREAD) for node in after] if place.is_owner else [])
    elif not place.is_owner:
        _write_idle(script, place, _SPREAD, _SPREAD)
    else:
        sender = place.at(before, _SPREAD if before != start else _FIRST)
        _from_rail(script, place, sender, [place.at(node, _SPREAD) for node in after])


def _from_root(script: Script, place: _RankInstance, root: int, receivers: list[Post]) -> None:
    post, parts = place.post(_FIRST), place.site.owners
    at_root = Post(root, _FIRST, place.instance)
    is_root = place.rank == root
    script.on_channels(post, "rlxwait", [*(place.peers(_FIRST) if is_root else []), *receivers])
    if not is_root:
        script.on_channels(post, "rlxsignal", [at_root])
    script.sync_threads(post)
    for number, last in place.numbers():
        whole = CellRange(Buffer.OUTPUT, number * parts, parts)
        part = whole.part(place.part, 1)
        if is_root:
            source = whole if place.site.in_place else CellRange(Buffer.INPUT, whole.first, whole.count)
            script.multicast(post, source, place.group(Buffer.OUTPUT), whole)
            script.sync_threads(post)
            script.on_channels(post, "signal", place.peers(_FIRST))
        else:
            script.on_channels(post, "wait", [at_root])
            script.sync_threads(post)
        _put_all(script, post, receivers, part, part, last=last)


def _from_rail(script: Script, place: _RankInstance, sender: Post, receivers: list[Post]) -> None:
    post = place.post(_SPREAD)
    script.on_channels(post, "rlxsignal", [*place.busy(_SPREAD), sender])
    script.on_channels(post, "rlxwait", [*place.busy(_SPREAD), *place.idle(), *receivers])
    script.sync_threads(post)
    for number, last in place.numbers():
        part = CellRange(Buffer.OUTPUT, number * place.site.owners + place.part, 1)
        script.on_channels(post, "wait", [sender])
        script.sync_threads(post)
        script.multicast(post, part, place.group(Buffer.OUTPUT), part)
        if receivers:
            script.sync_threads(post)
        _put_all(script, post, receivers, part, part, last=last)
    _end_node(script, place, _SPREAD)

"""Structure of a program: the trees along which its chunks travel; rings, chains or direct sends.

A program is executed with symbols in place of data. What travels of one chunk of the input makes a tree: away from the rank that
has it, or, while contributions are being added up, towards the rank where the sum becomes complete. Trees of a chunk that pass
all ranks one after the other are chains; chains that close to one cycle are a ring.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from taccl_py.collective import COMBINING, Address, Buffer, Kind
from taccl_py.lowering.program import Op, Program, Step, Threadblock
from taccl_py.units import format_count

Edge = tuple[int, int]
_MOST_NAMED = 4  # rings that a sentence lists


@dataclass(frozen=True, slots=True)
class ChunkTree:
    """Links that one chunk takes, all away from `root`, or all towards it.

    Attributes
    ----------
    root
        Where it begins, or where sums become complete.
    edges
        Links (source, target), sorted.
    depth, fan
        Most links one after the other, and most at one rank on the side away from the root.
    """

    root: int
    edges: tuple[Edge, ...]
    depth: int
    fan: int


@dataclass(frozen=True, slots=True)
class Phase:
    """All trees of one direction.

    Attributes
    ----------
    gathers_sums
        Whether contributions travel towards the roots.
    trees
        Different trees, and how many chunks take each.
    shape
        ``ring``, ``chain``, ``direct``, ``trees``, or ``exchange`` if some rank gets parts of one sum or chunk from several.
    rings
        Ranks of each ring in order, from the lowest rank on; empty for other shapes.
    """

    gathers_sums: bool
    trees: dict[ChunkTree, int]
    shape: str
    rings: tuple[tuple[int, ...], ...]

    @property
    def brief(self) -> str:
        """A few words."""
        depth = max(tree.depth for tree in self.trees)
        return {
            "ring": format_count(len(self.rings), "ring"),
            "direct": "direct sends",
            "exchange": f"exchanges in {depth} hops",
            "chain": f"{format_count(len(self.trees), 'chain')} of {depth} links",
        }.get(self.shape, f"{format_count(len(self.trees), 'tree')} of depth {depth}")

    def __str__(self) -> str:
        """One clause."""
        depth, fan = max(tree.depth for tree in self.trees), max(tree.fan for tree in self.trees)
        what = "sums" if self.gathers_sums else "copies"
        if self.shape == "ring":
            named = "; ".join(" ".join(map(str, ring)) for ring in self.rings[:_MOST_NAMED])
            more = " ..." if len(self.rings) > _MOST_NAMED else ""
            return f"{what} go around {format_count(len(self.rings), 'ring')} ({named}{more})"
        if self.shape == "exchange":
            return f"{what} are exchanged in both directions, in {depth} hops"
        if self.shape == "direct":
            return f"{what} go straight from rank to rank"
        if self.shape == "chain":
            return f"{what} go along {format_count(len(self.trees), 'chain')} of {depth} links"
        return (
            f"{what} go along {format_count(len(self.trees), 'tree')} of depth {depth}, at most {fan} links at a rank"
        )


def find_phases(program: Program) -> tuple[Phase, ...]:
    """Find the trees of a program that the verifier accepts; sums first."""
    tracer = _TreeTracer(program)
    tracer.run()
    found = []
    for gathers in (True, False):
        edges = [sorted(one) for one in tracer.edges[gathers].values() if one]
        if edges:
            found.append(_phase(edges, gathers, len(program.gpus)))
    return tuple(found)


def brief_structure(phases: Sequence[Phase]) -> str:
    """A few words about all phases, which are often alike."""
    words = [phase.brief for phase in phases]
    if len(set(words)) <= 1:
        return "".join(words[:1])
    return ", ".join(f"{'sums' if phase.gathers_sums else 'copies'} by {phase.brief}" for phase in phases)


def structure_record(phases: Sequence[Phase]) -> list[dict[str, Any]]:
    """Return the JSON value of phases."""
    return [
        {
            "what": "sums" if phase.gathers_sums else "copies",
            "shape": phase.shape,
            "rings": [list(ring) for ring in phase.rings],
            "trees": len(phase.trees),
            "depth": max(tree.depth for tree in phase.trees),
            "fan": max(tree.fan for tree in phase.trees),
            "text": str(phase),
        }
        for phase in phases
    ]


# Shapes


def _phase(all_edges: list[list[Edge]], gathers: bool, num_ranks: int) -> Phase:
    trees = Counter(_tree(edges, gathers) for edges in all_edges)
    ordered = dict(sorted(trees.items(), key=lambda item: (item[0].root, item[0].edges)))
    rings = _rings(ordered, num_ranks)
    if rings:
        shape = "ring"
    elif all(tree.depth == 1 for tree in ordered):
        shape = "direct"
    elif any(len({_far_end(edge, gathers) for edge in tree.edges}) < len(tree.edges) for tree in ordered):
        shape = "exchange"
    elif all(tree.fan == 1 for tree in ordered):
        shape = "chain"
    else:
        shape = "trees"
    return Phase(gathers, ordered, shape, rings)


def _far_end(edge: Edge, gathers: bool) -> int:
    """End of a link on the side away from the root."""
    return edge[0] if gathers else edge[1]


def _tree(edges: list[Edge], gathers: bool) -> ChunkTree:
    """Tree of the links of one chunk, in whatever order; where links are no tree the longest path counts."""
    away = [(dst, src) if gathers else (src, dst) for src, dst in edges]
    children: dict[int, list[int]] = {}
    for src, dst in away:
        children.setdefault(src, []).append(dst)
    targets = {dst for _, dst in away}
    root = min((src for src in children if src not in targets), default=min(children))
    level, front = 0, [root]
    seen = {root}
    while front:
        front = sorted({child for rank in front for child in children.get(rank, ()) if child not in seen})
        seen.update(front)
        level += bool(front)
    return ChunkTree(root, tuple(edges), level, max(map(len, children.values())))


def _rings(trees: dict[ChunkTree, int], num_ranks: int) -> tuple[tuple[int, ...], ...]:
    """Cycles on which all trees are chains through all ranks, each with several roots; empty if it is not so."""
    roots: dict[tuple[int, ...], set[int]] = {}
    for tree in trees:
        following = dict(tree.edges)
        if (
            num_ranks < 3
            or len(following) != num_ranks - 1
            or len(tree.edges) != num_ranks - 1
            or tree.depth != num_ranks - 1
        ):
            return ()
        ends = set(following) - set(following.values())
        ring = [ends.pop()]
        while ring[-1] in following:
            ring.append(following[ring[-1]])
        first = ring.index(min(ring))
        roots.setdefault((*ring[first:], *ring[:first]), set()).add(tree.root)
    return tuple(sorted(roots)) if all(len(found) > 1 for found in roots.values()) else ()


# Execution with symbols


@dataclass(frozen=True, slots=True)
class _Symbol:
    """A chunk of the input, and the ranks whose contributions are in it (all bits for what is only copied)."""

    origin: tuple[int, int]
    ranks: int


@dataclass(slots=True, eq=False)
class _TracedBlock:
    """State of a threadblock that is executed."""

    rank: int
    record: Threadblock
    position: int = 0


class _TreeTracer:
    """Executes a program and notes which links the parts of the input take; `edges` by whether they gather sums, and chunk."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._all = (1 << len(program.gpus)) - 1
        self._reduces = program.kind in COMBINING
        self._shard = program.num_chunks_per_loop // len(program.gpus)
        self._is_gathered_in_place = program.kind is Kind.ALLGATHER and not program.out_of_place
        self._cells: dict[tuple[int, Buffer, int], _Symbol] = {}
        self._queues: dict[tuple[int, int, int], deque[list[_Symbol | None]]] = {}
        self._blocks = [[_TracedBlock(gpu.rank, one) for one in gpu.threadblocks] for gpu in program.gpus]
        self.edges: dict[bool, dict[tuple[int, int], set[Edge]]] = {True: {}, False: {}}

    def run(self) -> None:
        """Let every threadblock go on as long as one can; queues are as long as they need be."""
        moved = True
        while moved:
            moved = False
            for block in (block for blocks in self._blocks for block in blocks):
                while block.position < len(block.record.steps) and self._do(block):
                    block.position += 1
                    moved = True

    def _do(self, block: _TracedBlock) -> bool:
        step, tb = block.record.steps[block.position], block.record
        if step.depends_on is not None:
            other, target = step.depends_on
            if self._blocks[block.rank][other].position <= target:
                return False
        values: list[_Symbol | None] | None = None
        if step.op.receives:
            queue = self._queues.get((tb.recv_peer, block.rank, tb.channel))
            if not queue:
                return False
            values = queue.popleft()
            self._note(tb.recv_peer, block.rank, values)
        if values is None or step.op.adds:
            values = self._joined(values, list(self._read(block.rank, step.src, step)))
        if step.op is Op.REDUCE:
            values = self._joined(values, list(self._read(block.rank, step.dst, step)))
        if step.op not in (Op.SEND, Op.RECV_REDUCE_SEND, Op.NOP):
            for index, value in enumerate(values):
                if value is not None:
                    self._cells[self._place(block.rank, step.dst, index)] = value
        if step.op.sends:
            self._queues.setdefault((block.rank, tb.send_peer, tb.channel), deque()).append(values)
        return True

    def _note(self, src: int, dst: int, values: list[_Symbol | None]) -> None:
        for value in values:
            if value is not None:
                gathers = self._reduces and value.ranks != self._all
                self.edges[gathers].setdefault(value.origin, set()).add((src, dst))

    def _joined(self, some: list[_Symbol | None] | None, more: list[_Symbol | None]) -> list[_Symbol | None]:
        if some is None:
            return more
        return [
            one or other if one is None or other is None else _Symbol(one.origin, one.ranks | other.ranks)
            for one, other in zip(some, more, strict=False)
        ]

    def _read(self, rank: int, address: Address, step: Step) -> Iterator[_Symbol | None]:
        for index in range(step.count):
            place = self._place(rank, address, index)
            found = self._cells.get(place)
            yield self._first(rank, place) if found is None else found

    def _first(self, rank: int, place: tuple[int, Buffer, int]) -> _Symbol | None:
        """Symbol that a cell holds before anybody has written it: input, or nothing."""
        _, buffer, offset = place
        if self._is_gathered_in_place:
            offset -= rank * self._shard
            if buffer is not Buffer.OUTPUT or not 0 <= offset < self._shard:
                return None
        elif buffer is not Buffer.INPUT:
            return None
        origin = (0, offset) if self._reduces else (rank, offset)
        return _Symbol(origin, 1 << rank if self._reduces else self._all)

    def _place(self, rank: int, address: Address, index: int) -> tuple[int, Buffer, int]:
        """Return the one name of a cell: in place, that in the longer buffer, or in the input if both are as long."""
        offset, buffer = address.offset + index, address.buffer
        if self._program.out_of_place or buffer is Buffer.SCRATCH:
            return rank, buffer, offset
        if self._is_gathered_in_place:
            return rank, Buffer.OUTPUT, offset + (rank * self._shard if buffer is Buffer.INPUT else 0)
        shifted = self._program.kind is Kind.REDUCESCATTER and buffer is Buffer.OUTPUT
        return rank, Buffer.INPUT, offset + (rank * self._shard if shifted else 0)

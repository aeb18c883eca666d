"""MSCCL XML -> plan: whatever can be executed is accepted, for which runtime it may be written.

Elements and attributes that say nothing about what is executed are passed over, as the runtimes do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar
from xml.parsers import expat

from taccl_py.collective import ROOTED, Address, Buffer, Kind, parse_kind
from taccl_py.demand import DataDemand
from taccl_py.errors import InputError
from taccl_py.execute.plan import (
    ACTIONS,
    Dependency,
    ExecutablePlan,
    ExecutableRank,
    Step,
    Threadblock,
    buffer_chunks,
    demand_chunks,
    find_root,
    shard_of,
)
from taccl_py.runtimes import CUSTOM, EXECUTOR
from taccl_py.units import MAX_RANKS

_T = TypeVar("_T")
_NUMBER = re.compile(r"-?[0-9]{1,18}|0[xX][0-9a-fA-F]{1,15}")
_PARENTS = {"gpu": "algo", "tb": "gpu", "step": "tb"}
_PROTOCOLS = tuple(EXECUTOR.payload_bytes)


@dataclass(slots=True)
class _Node:
    """One element with the line it is on and the elements in it."""

    name: str
    line: int
    values: dict[str, str]
    inside: list[_Node] = field(default_factory=list)


def read_plan(
    text: str, name: str, *, kind: Kind | None = None, root: int | None = None, demand: DataDemand | None = None
) -> ExecutablePlan:
    """Plan of an algorithm file.

    Parameters
    ----------
    text
        The file.
    name
        Name in errors.
    kind
        The collective of a file that is for a custom one; compared otherwise.
    root
        Root of a rooted collective; None: the rank that receives nothing, or sends nothing.
    demand
        The demand of a file that is for one.

    Raises
    ------
    InputError
        If something is missing or impossible, naming line, element and attribute.
    """
    algo = _read_nodes(text, name)
    reader = _PlanReader(name)
    return reader.plan(algo, kind, root) if demand is None else reader.demand_plan(algo, demand)


def _read_nodes(text: str, name: str) -> _Node:
    """Elements that are executed, as a tree."""
    parser = expat.ParserCreate()
    open_nodes: list[_Node | None] = []
    top: list[_Node] = []

    def start(tag: str, values: dict[str, str]) -> None:
        node = _Node(tag, parser.CurrentLineNumber, values)
        parent = open_nodes[-1] if open_nodes else None
        if not open_nodes and tag == "algo":
            top.append(node)
        elif parent is not None and _PARENTS.get(tag) == parent.name:
            parent.inside.append(node)
        else:
            open_nodes.append(None)
            return
        open_nodes.append(node)

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _tag: open_nodes.pop()
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        what = f"is not well-formed XML: {expat.ErrorString(error.code)}"
        raise InputError(what, path=name, field=f"line {error.lineno}") from None
    except (UnicodeEncodeError, ValueError) as error:
        raise InputError(f"is not XML text: {error}", path=name) from None
    if not top:
        raise InputError("has no algo element; this is not an MSCCL algorithm file", path=name)
    return top[0]


class _PlanReader:
    """Nodes -> plan."""

    def __init__(self, name: str) -> None:
        self._name = name

    def plan(self, algo: _Node, kind: Kind | None, root: int | None) -> ExecutablePlan:
        """Plan of an algo element."""
        num_ranks = self._number(algo, "ngpus", least=2, most=MAX_RANKS)
        nodes = self._in_order(algo, num_ranks)
        kind = self._kind(algo, kind)
        chunks = self._number(algo, "nchunksperloop", least=1)
        spelling = algo.values.get("coll", "")
        shard = self._build(algo, "nchunksperloop", lambda: shard_of(kind, num_ranks, chunks, spelling))
        ranks = self._ranks(nodes, [buffer_chunks(kind, shard, num_ranks)] * num_ranks)
        in_place, out_of_place = self._placements(algo)
        return ExecutablePlan(
            name=self._name,
            kind=kind,
            root=self._root(algo, kind, root, ranks),
            shard_chunks=shard,
            protocol=self._word(algo, "proto", _PROTOCOLS),
            in_place=in_place,
            out_of_place=out_of_place,
            ranks=ranks,
            min_bytes=self._number(algo, "minBytes", default=0, least=0),
            max_bytes=self._number(algo, "maxBytes", default=0, least=0),
        )

    def demand_plan(self, algo: _Node, demand: DataDemand) -> ExecutablePlan:
        """Plan of an algo element for a demand: steps count all buffers alike, and have to stay inside the true ones."""
        num_ranks = self._number(algo, "ngpus", least=2, most=MAX_RANKS)
        nodes = self._in_order(algo, num_ranks)
        spelling = self._text(algo, "coll")
        if spelling != CUSTOM:
            self._fail(algo, "coll", f"found {spelling!r}, and files for demands have {CUSTOM!r}; leave --demand out")
        chunks = self._number(algo, "nchunksperloop", least=1)
        lengths = self._build(algo, "nchunksperloop", lambda: demand_chunks(demand, num_ranks, chunks))
        in_place, out_of_place = self._placements(algo)
        if not out_of_place:
            self._fail(algo, "inplace", 'is for calls in place, and a demand has buffers apart; write inplace="0"')
        return ExecutablePlan(
            name=self._name,
            kind=None,
            root=0,
            shard_chunks=0,
            protocol=self._word(algo, "proto", _PROTOCOLS),
            in_place=in_place,
            out_of_place=out_of_place,
            ranks=self._ranks(nodes, lengths),
            min_bytes=0,
            max_bytes=0,
        )

    def _placements(self, algo: _Node) -> tuple[bool, bool]:
        """True twice if it is for calls in place, and for others."""
        in_place = self._number(algo, "inplace", default=0) != 0
        return in_place, self._number(algo, "outofplace", default=int(not in_place)) != 0

    def _ranks(self, nodes: Sequence[_Node], lengths: Sequence[tuple[int, int]]) -> tuple[ExecutableRank, ...]:
        return tuple(self._rank(node, len(lengths), given) for node, given in zip(nodes, lengths, strict=True))

    def _kind(self, algo: _Node, asked: Kind | None) -> Kind:
        spelling = self._text(algo, "coll")
        if spelling == CUSTOM:
            if asked is None:
                self._fail(algo, "coll", "is custom, which does not say what it does; add --demand or --collective")
            return asked
        found = self._build(algo, "coll", lambda: parse_kind(spelling))
        if asked is not None and asked is not found:
            self._fail(algo, "coll", f"found {found}, but {asked} was asked for; leave --collective out")
        return found

    def _root(self, algo: _Node, kind: Kind, asked: int | None, ranks: tuple[ExecutableRank, ...]) -> int:
        if asked and kind not in ROOTED:
            self._fail(algo, "coll", f"{kind} has no root; leave --root out")
        found = find_root(kind, ranks) if asked is None else asked
        if found is None:
            self._fail(algo, "coll", f"{kind} has a root, and the steps do not tell which; add --root")
        if found >= len(ranks):
            self._fail(algo, "ngpus", f"root {found} does not exist, ranks are 0..{len(ranks) - 1}; correct --root")
        return found

    def _rank(self, node: _Node, num_ranks: int, lengths: tuple[int, int]) -> ExecutableRank:
        blocks = self._in_order(node, len(node.inside))
        return ExecutableRank(
            rank=self._number(node, "id"),
            input_chunks=lengths[0],
            output_chunks=lengths[1],
            scratch_chunks=self._number(node, "s_chunks", least=0, most=1 << 24),
            threadblocks=tuple(self._threadblock(block, num_ranks) for block in blocks),
        )

    def _threadblock(self, node: _Node, num_ranks: int) -> Threadblock:
        send, recv = (self._number(node, key, least=-1, most=num_ranks - 1) for key in ("send", "recv"))
        steps = tuple(self._step(step) for step in node.inside)
        for step, inside in zip(steps, node.inside, strict=True):
            if (step.action.sends and send < 0) or (step.action.receives and recv < 0):
                self._fail(inside, "type", f"{step.type} needs a peer that its threadblock does not have")
        return Threadblock(self._number(node, "id"), send, recv, self._number(node, "chan", least=-1), steps)

    def _step(self, node: _Node) -> Step:
        kind = self._word(node, "type", tuple(ACTIONS))
        threadblock = self._number(node, "depid", least=-1)
        waits_for = Dependency(threadblock, self._number(node, "deps")) if threadblock >= 0 else None
        return Step(
            number=self._number(node, "s", least=0),
            type=kind,
            source=self._address(node, "src"),
            target=self._address(node, "dst"),
            count=0 if kind == "nop" else self._number(node, "cnt", least=1),
            waits_for=waits_for,
            signals=kind != "nop" and self._number(node, "hasdep") != 0,
        )

    def _address(self, node: _Node, end: str) -> Address:
        buffer = self._word(node, f"{end}buf", tuple(Buffer))
        return Address(Buffer(buffer), self._number(node, f"{end}off"))

    def _in_order(self, parent: _Node, number: int) -> list[_Node]:
        """Elements inside another one, which must have the ids 0..number-1."""
        by_id = {self._number(node, "id"): node for node in parent.inside}
        if sorted(by_id) != list(range(number)) or len(parent.inside) != number:
            what = f"its {len(parent.inside)} parts need the ids 0..{number - 1}, each of them once"
            self._fail(parent, "", what)
        return [by_id[index] for index in range(number)]

    def _text(self, node: _Node, key: str) -> str:
        if key not in node.values:
            self._fail(node, key, "is missing; add it")
        return node.values[key]

    def _word(self, node: _Node, key: str, known: tuple[str, ...]) -> str:
        value = self._text(node, key)
        if value not in known:
            self._fail(node, key, f"found {value[:40]!r}, use one of: {', '.join(known)}")
        return value

    def _number(
        self, node: _Node, key: str, *, default: int | None = None, least: int | None = None, most: int | None = None
    ) -> int:
        if default is not None and key not in node.values:
            return default
        value = self._text(node, key)
        if not _NUMBER.fullmatch(value):
            self._fail(node, key, f"found {value[:40]!r}, a whole decimal number is needed")
        number = int(value, 16 if value[:2] in ("0x", "0X") else 10)
        if least is not None and number < least:
            self._fail(node, key, f"found {number}, at least {least} is needed")
        if most is not None and number > most:
            self._fail(node, key, f"found {number}, at most {most} is possible")
        return number

    def _build(self, node: _Node, key: str, make: Callable[[], _T]) -> _T:
        try:
            return make()
        except InputError as error:
            self._fail(node, key, error.what)

    def _fail(self, node: _Node, key: str, what: str) -> NoReturn:
        place = f"line {node.line}, {node.name}" + (f" {key}" if key else "")
        raise InputError(what, path=self._name, field=place)

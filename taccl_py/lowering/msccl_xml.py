"""MSCCL XML: programs as the text that runtimes load, and back.

The text keeps to what all three hand-written readers of the runtimes understand: one line for each tag, one space before each
attribute, all attributes always there, numbers in plain decimal, no declaration and no comment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NoReturn
from xml.parsers import expat

from taccl_py.collective import Address, Buffer, Kind, parse_kind
from taccl_py.errors import InputError, LoweringError
from taccl_py.jsonio import refuse_form
from taccl_py.lowering.limits import require_name
from taccl_py.lowering.program import Gpu, Op, Program, Protocol, Step, Threadblock
from taccl_py.runtimes import CUSTOM, Runtime

UNLIMITED_BYTES = (1 << 63) - 1

_DEFAULT_MAX_BYTES = 1 << 27  # of the one runtime that does not insist on the attribute; exclusive
_NUMBER = re.compile(r"-?[0-9]{1,19}|0[xX][0-9a-fA-F]{1,16}")
_CHILD = {"algo": "gpu", "gpu": "tb", "tb": "step"}
_KNOWN = {parent: frozenset({child}) for parent, child in _CHILD.items()}


def legacy_config(programs: Mapping[str, Program]) -> str:
    """Configuration of the legacy runtime, by the place of each file; its ranges and protocols count instead of those of the files."""
    lines = ["<msccl_algos>"]
    for place, program in programs.items():
        sizes = f'minbytes="{program.min_bytes}" maxbytes="{program.max_bytes + 1}"'
        lines.append(f'  <load path="{place}" {sizes} proto="{program.protocol}"/>')
    return "\n".join([*lines, "</msccl_algos>"]) + "\n"


def emit_xml(program: Program, runtime: Runtime, written: dict[int, str] | None = None) -> str:
    """Return the text of a program for a runtime.

    Parameters
    ----------
    program, runtime
        The program, and which runtime is to load it.
    written
        Texts of steps by the identity of their tuples, for images of a program, which share them; it grows.

    Raises
    ------
    LoweringError
        If the runtime has no such collective or step, or the name cannot stand in a file.
    """
    require_name(program.name, program.kind, runtime)
    # A runtime that takes a collective of its own for some of the eight takes it for a demand.
    named = runtime.collectives
    spelling = named.get(program.kind) if program.kind else next((one for one in named.values() if one == CUSTOM), None)
    if spelling is None:
        raise LoweringError(
            f"{runtime.title} has no {program.kind or 'call for a demand'}; choose another runtime",
            runtime=runtime.name,
            limit="collective",
        )
    max_bytes = program.max_bytes
    if max_bytes == UNLIMITED_BYTES and runtime.max_bytes_zero == "unlimited":
        max_bytes = 0
    elif runtime.max_bytes_exclusive and max_bytes < UNLIMITED_BYTES:
        max_bytes += 1
    head: dict[str, str | int] = {
        "name": program.name,
        "proto": program.protocol,
        "nchannels": program.num_channels,
        "nchunksperloop": program.num_chunks_per_loop,
        "ngpus": len(program.gpus),
        "coll": spelling,
        "inplace": int(program.in_place),
        "outofplace": int(program.out_of_place),
        "minBytes": program.min_bytes,
        "maxBytes": max_bytes,
    }
    lines = [_tag("algo", head)]
    for gpu in program.gpus:
        lines.extend(_gpu_lines(gpu, runtime, {} if written is None else written))
    lines.append("</algo>")
    return "\n".join(lines) + "\n"


def _tag(name: str, attributes: dict[str, str | int], end: str = ">") -> str:
    return f"<{name}" + "".join(f' {key}="{value}"' for key, value in attributes.items()) + end


def _gpu_lines(gpu: Gpu, runtime: Runtime, written: dict[int, str]) -> Iterator[str]:
    sizes = {"i_chunks": gpu.input_chunks, "o_chunks": gpu.output_chunks, "s_chunks": gpu.scratch_chunks}
    yield "  " + _tag("gpu", {"id": gpu.rank, **sizes})
    for number, tb in enumerate(gpu.threadblocks):
        yield "    " + _tag("tb", {"id": number, "send": tb.send_peer, "recv": tb.recv_peer, "chan": tb.channel})
        if tb.steps:
            text = written.get(id(tb.steps))
            if text is None:
                text = written[id(tb.steps)] = "\n".join(_step_lines(gpu, number, runtime))
            yield text
        yield "    </tb>"
    yield "  </gpu>"


def _step_lines(gpu: Gpu, number: int, runtime: Runtime) -> Iterator[str]:
    for index, step in enumerate(gpu.threadblocks[number].steps):
        if step.op.receives and (step.op.sends or step.op is not Op.RECV) and not runtime.fused:
            raise LoweringError(
                f"{runtime.title} cannot run the step {step.op} of threadblock {number} of rank {gpu.rank}; lower the "
                "schedule for this runtime",
                runtime=runtime.name,
                limit="fused",
            )
        yield "      " + _tag("step", _step_attributes(index, step), "/>")


def _step_attributes(index: int, step: Step) -> dict[str, str | int]:
    threadblock, waited = step.depends_on or (-1, -1)
    return {
        "s": index,
        "type": step.op,
        "srcbuf": step.src.buffer,
        "srcoff": step.src.offset,
        "dstbuf": step.dst.buffer,
        "dstoff": step.dst.offset,
        "cnt": step.count,
        "depid": threadblock,
        "deps": waited,
        "hasdep": int(step.has_dependent),
    }


def parse_xml(text: str, name: str, runtime: Runtime | None = None, *, of_demand: bool = False) -> Program:
    """Return the program that a text describes.

    Attributes may come in any order. Elements that runtimes do not know are skipped as they do. The attributes that only
    some runtimes need may be missing: ``outofplace`` is then the opposite of ``inplace``, ``minBytes`` is 0, and ``maxBytes``
    is just below 2^27.

    Parameters
    ----------
    text
        Text of an algorithm file.
    name
        Name of the text in errors, and the program's name if it has none.
    runtime
        The runtime for which it was written, where that matters: whether ``maxBytes`` itself is one of the sizes.
    of_demand
        Whether what a ``custom`` one does is a demand, and not Gather or Scatter, as its buffers tell.

    Raises
    ------
    InputError
        If it is not such a text, naming the line.
    """
    return _ProgramReader(name, runtime, of_demand=of_demand).program(read_elements(text, name))


@dataclass(slots=True)
class Element:
    """One element of a file, the line it is on, and the known elements in it."""

    name: str
    line: int
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)


def read_elements(text: str, path: str, known: Mapping[str, AbstractSet[str]] = MappingProxyType(_KNOWN)) -> Element:
    """Return the algo element of a text with the known elements in it; what is not known is left out with all that is in it.

    Parameters
    ----------
    known
        Names of the elements that may lie in an element of a name.

    Raises
    ------
    InputError
        If the text is JSON or no XML, or has no such element.
    """
    refuse_form(text, path, "JSON", "MSCCL XML", "taccl lower makes it of a schedule")
    root = _TreeReader(path, known).read(text)
    if root is None or root.name != "algo":
        raise InputError("has no algo element; this is not an MSCCL algorithm file", path=path)
    return root


def read_program(algo: Element, name: str, runtime: Runtime | None = None) -> Program:
    """Return the program of an algo element; for the parameters and errors see `parse_xml`."""
    return _ProgramReader(name, runtime).program(algo)


class _TreeReader:
    """Builds the tree."""

    def __init__(self, path: str, known: Mapping[str, AbstractSet[str]]) -> None:
        self._path = path
        self._known = known
        self._root: Element | None = None
        self._open: list[Element] = []
        self._skipped = 0
        self._parser = expat.ParserCreate()
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._text
        self._parser.StartDoctypeDeclHandler = self._doctype

    def read(self, text: str) -> Element | None:
        """Return the first element."""
        try:
            self._parser.Parse(text, True)
        except expat.ExpatError as error:
            raise InputError(
                f"is not well-formed XML: {expat.ErrorString(error.code)}",
                path=self._path,
                field=f"line {error.lineno}",
            ) from None
        except (UnicodeEncodeError, ValueError) as error:
            raise InputError(f"is not XML text: {error}", path=self._path) from None
        return self._root

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        element = Element(name, self._parser.CurrentLineNumber, attributes)
        if self._root is None:
            self._root = element
        elif self._skipped or name not in self._known.get(self._open[-1].name, ()):
            self._skipped += 1
            return
        else:
            self._open[-1].children.append(element)
        self._open.append(element)

    def _end(self, _name: str) -> None:
        if self._skipped:
            self._skipped -= 1
        else:
            self._open.pop()

    def _text(self, text: str) -> None:
        if text.strip() and not self._skipped:
            self._fail(f"there is text between the elements ({text.strip()[:20]!r}); remove it")

    def _doctype(self, name: str, *_: object) -> None:
        self._fail(f"declares a document type ({name}), which no runtime reads; remove it")

    def _fail(self, what: str) -> NoReturn:
        raise InputError(what, path=self._path, field=f"line {self._parser.CurrentLineNumber}")


class _ProgramReader:
    """Elements -> program."""

    def __init__(self, path: str, runtime: Runtime | None, *, of_demand: bool = False) -> None:
        self._path = path
        self._runtime = runtime
        self._of_demand = of_demand

    def program(self, algo: Element) -> Program:
        """Return the program of an algo element."""
        num_ranks = self._int(algo, "ngpus", least=1)
        gpus = tuple(self._gpu(element, num_ranks) for element in self._numbered(algo, num_ranks))
        in_place = self._int(algo, "inplace") != 0
        out_of_place = self._int(algo, "outofplace", default=int(not in_place)) != 0
        return Program(
            name=algo.attributes.get("name") or self._path,
            kind=self._kind(algo, gpus),
            num_chunks_per_loop=self._int(algo, "nchunksperloop", least=1),
            num_channels=self._int(algo, "nchannels", least=1),
            protocol=Protocol(self._choice(algo, "proto", [p.value for p in Protocol])),
            in_place=in_place,
            out_of_place=out_of_place,
            min_bytes=self._int(algo, "minBytes", default=0, least=0),
            max_bytes=self._max_bytes(algo),
            gpus=gpus,
        )

    def _max_bytes(self, algo: Element) -> int:
        if "maxBytes" not in algo.attributes:
            return _DEFAULT_MAX_BYTES - 1
        found = self._int(algo, "maxBytes", least=0)
        if found == 0 and (self._runtime is None or self._runtime.max_bytes_zero == "unlimited"):
            return UNLIMITED_BYTES
        if self._runtime is not None and self._runtime.max_bytes_exclusive and found < UNLIMITED_BYTES:
            return found - 1
        return found

    def _kind(self, algo: Element, gpus: tuple[Gpu, ...]) -> Kind | None:
        text = self._text(algo, "coll")
        if text != CUSTOM:
            return self._parsed_kind(algo, text)
        if self._of_demand:
            return None
        # Only the buffers tell: one rank alone has an output in Gather, one rank alone has an input in Scatter.
        outputs = sum(gpu.output_chunks > 0 for gpu in gpus)
        inputs = sum(gpu.input_chunks > 0 for gpu in gpus)
        if outputs == 1 < inputs:
            return Kind.GATHER
        if inputs == 1 < outputs:
            return Kind.SCATTER
        return self._fail(
            algo, "is custom, but neither Gather (one output) nor Scatter (one input) by its buffers", "coll"
        )

    def _parsed_kind(self, algo: Element, text: str) -> Kind:
        try:
            return parse_kind(text)
        except InputError as error:
            return self._fail(algo, error.what, "coll")

    def _gpu(self, element: Element, num_ranks: int) -> Gpu:
        blocks = self._numbered(element, len(element.children))
        return Gpu(
            rank=self._int(element, "id"),
            input_chunks=self._int(element, "i_chunks", least=0),
            output_chunks=self._int(element, "o_chunks", least=0),
            scratch_chunks=self._int(element, "s_chunks", least=0),
            threadblocks=tuple(self._threadblock(block, num_ranks) for block in blocks),
        )

    def _threadblock(self, element: Element, num_ranks: int) -> Threadblock:
        peers = {key: self._int(element, key, least=-1) for key in ("send", "recv")}
        for key, peer in peers.items():
            if peer >= num_ranks:
                self._fail(element, f"rank {peer} does not exist, ranks are 0..{num_ranks - 1}", key)
        return Threadblock(
            peers["send"],
            peers["recv"],
            self._int(element, "chan", least=0),
            tuple(self._step(step, index) for index, step in enumerate(element.children)),
        )

    def _step(self, element: Element, index: int) -> Step:
        number = self._int(element, "s")
        if number != index:
            self._fail(
                element, f"found {number}, but this is step {index} of its threadblock; number them in order", "s"
            )
        threadblock, waited = self._int(element, "depid", least=-1), self._int(element, "deps", least=-1)
        if threadblock >= 0 > waited:
            self._fail(element, "names a threadblock to wait for, but no step of it", "deps")
        return Step(
            Op(self._choice(element, "type", [op.value for op in Op])),
            self._address(element, "src"),
            self._address(element, "dst"),
            self._int(element, "cnt", least=0),
            (threadblock, waited) if threadblock >= 0 else None,
            self._int(element, "hasdep", least=0) != 0,
        )

    def _address(self, element: Element, side: str) -> Address:
        buffer = self._choice(element, f"{side}buf", [b.value for b in Buffer])
        return Address(Buffer(buffer), self._int(element, f"{side}off", least=-1))

    def _numbered(self, parent: Element, number: int) -> list[Element]:
        """Children in the order of their ids, which must be 0..number-1."""
        found: dict[int, Element] = {}
        for child in parent.children:
            index = self._int(child, "id")
            if index in found or not 0 <= index < number:
                self._fail(
                    child, f"found {index}; the ids of {child.name} elements here are 0..{number - 1}, once each", "id"
                )
            found[index] = child
        if len(found) < number:
            missing = next(index for index in range(number) if index not in found)
            self._fail(parent, f"there is no {_CHILD[parent.name]} element with id {missing}", "")
        return [found[index] for index in range(number)]

    def _text(self, element: Element, key: str) -> str:
        if key not in element.attributes:
            self._fail(element, "is missing; add it", key)
        return element.attributes[key]

    def _choice(self, element: Element, key: str, allowed: list[str]) -> str:
        value = self._text(element, key)
        if value not in allowed:
            self._fail(element, f"found {value!r}, use one of: {', '.join(allowed)}", key)
        return value

    def _int(self, element: Element, key: str, *, default: int | None = None, least: int | None = None) -> int:
        if default is not None and key not in element.attributes:
            return default
        value = self._text(element, key)
        if not _NUMBER.fullmatch(value):
            self._fail(element, f"found {value!r}, a whole decimal number is needed", key)
        number = int(value, 16 if value[:2] in ("0x", "0X") else 10)
        if least is not None and number < least:
            self._fail(element, f"found {number}, at least {least} is needed", key)
        return number

    def _fail(self, element: Element, what: str, key: str) -> NoReturn:
        place = f"line {element.line}, {element.name}" + (f" {key}" if key else "")
        raise InputError(what, path=self._path, field=place)

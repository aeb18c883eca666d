"""Elements to records: which attributes there are, and what the runtimes make of their values."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from taccl_py.collective import Address, Buffer
from taccl_py.runtimes import LEGACY, Runtime
from taccl_py.verify.msccl.findings import Findings, place, quoted
from taccl_py.verify.msccl.text import Document, Element

LEGACY_MAX_BYTES = 1 << 27  # value of the legacy runtime where maxBytes is missing

_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]*)")
_HEXADECIMAL = re.compile(r"0[xX][0-9a-fA-F]+")
_C_NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_LONGEST_NUMBER = 255


@dataclass(frozen=True, slots=True)
class StepType:
    """Action of the steps of one type.

    Attributes
    ----------
    receives, sends
        Whether a message comes from the receive peer, and whether one goes to the send peer.
    reads, writes
        Whether the source, and whether the destination address, is used on this rank.
    """

    receives: bool = False
    sends: bool = False
    reads: bool = False
    writes: bool = False

    @property
    def fused(self) -> bool:
        """True if a received message is used otherwise than by storing it."""
        return self.receives and (self.sends or self.reads)


SEND = "s"
COPY = "cpy"
NOP = "nop"
REDUCE = "re"
STEP_TYPES = {
    SEND: StepType(sends=True, reads=True),
    "r": StepType(receives=True, writes=True),
    "rcs": StepType(receives=True, sends=True, writes=True),
    "rrs": StepType(receives=True, sends=True, reads=True),
    "rrc": StepType(receives=True, reads=True, writes=True),
    "rrcs": StepType(receives=True, sends=True, reads=True, writes=True),
    COPY: StepType(reads=True, writes=True),
    REDUCE: StepType(reads=True, writes=True),
    NOP: StepType(),
}


@dataclass(frozen=True, slots=True)
class Dependency:
    """A step of another threadblock of the same GPU, as the file names it."""

    threadblock: int
    step: int


@dataclass(frozen=True, slots=True)
class Step:
    """One ``step`` element.

    Attributes
    ----------
    index
        Position in its threadblock, counted from 0; `number` is what the file says in ``s``.
    source, target
        ``srcbuf``/``srcoff`` and ``dstbuf``/``dstoff``.
    depends_on
        None when ``depid`` is -1.
    flags
        ``hasdep`` as written.
    """

    index: int
    number: int
    type: str
    source: Address
    target: Address
    count: int
    depends_on: Dependency | None
    flags: int

    @property
    def does(self) -> StepType:
        """Action of the step."""
        return STEP_TYPES[self.type]


@dataclass(frozen=True, slots=True)
class Threadblock:
    """One ``tb`` element; `line` is its line in the text."""

    line: int
    id: int
    send_peer: int
    recv_peer: int
    channel: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One ``gpu`` element with the lengths that it declares for its buffers, in chunks."""

    line: int
    id: int
    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    threadblocks: tuple[Threadblock, ...]

    def declared_chunks(self, buffer: Buffer) -> int:
        """Declared length of a buffer."""
        if buffer is Buffer.INPUT:
            return self.input_chunks
        return self.output_chunks if buffer is Buffer.OUTPUT else self.scratch_chunks


@dataclass(frozen=True, slots=True)
class AlgoElement:
    """The ``algo`` element.

    Attributes
    ----------
    placed_in, placed_out
        ``inplace`` and ``outofplace``: for which placements the runtime may select it.
    min_bytes, max_bytes
        As written, or the runtime's default.
    num_threads
        ``nthreads``, which only the legacy runtime reads; None elsewhere or when absent.
    num_elements
        ``gpu`` elements in the file, also where one of them stands for all in `gpus`.
    """

    name: str
    protocol: str
    num_channels: int
    num_chunks_per_loop: int
    num_ranks: int
    collective: str
    placed_in: bool
    placed_out: bool
    min_bytes: int
    max_bytes: int
    num_threads: int | None
    num_elements: int
    gpus: tuple[Gpu, ...]


def parse_algorithm(document: Document, runtime: Runtime, findings: Findings) -> AlgoElement | None:
    """Records of a document, or None when the ``algo`` element or one of its required attributes is missing."""
    if not document.algorithms:
        if not findings.broken:
            found = (
                "there is no <algo> element at the top"
                if document.first
                else "the file is empty, without an <algo> element"
            )
            findings.violation("", "no-algo", f"{found}; a runtime needs one", fatal=True)
        return None
    if document.first != "algo":
        what = f"the first element is <{document.first}>; the runtimes take the attributes of the first one, put <algo> first"
        if runtime.name == LEGACY.name:
            findings.note(what)
        else:
            findings.violation("", "first-element", what)
    if len(document.algorithms) > 1:
        line = document.algorithms[1].line
        findings.violation(
            f"line {line}", "second-algo", "a second <algo> is never used; put it into a file of its own"
        )
    return _algorithm(document.algorithms[0], runtime, findings)


def _is_decimal(text: str) -> bool:
    return _DECIMAL.fullmatch(text) is not None


@lru_cache(maxsize=1 << 16)
def c_integer(text: str) -> int:
    """Value that ``strtol`` with base 0 gives to a text."""
    match = _C_NUMBER.match(text[:_LONGEST_NUMBER])
    if match is None:
        return 0
    digits = match.group(2)
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" else 10
    value = int(digits, base)
    return -value if match.group(1) == "-" else value


@lru_cache(maxsize=1 << 16)
def _plain_number(text: str, bits: int) -> int | None:
    """A number of so many bits that nothing can be said against, as nearly all are; None for any other text."""
    value = c_integer(text)
    return value if _is_decimal(text) and -(1 << (bits - 1)) <= value < 1 << (bits - 1) else None


class _ElementAttributes:
    """Typed questions about one element's attributes; failures are rejected at `where`."""

    def __init__(self, element: Element, where: str, findings: Findings) -> None:
        self.complete = True
        self._element = element
        self._where = where
        self._findings = findings

    def text(self, name: str) -> str:
        """Value of a required attribute; empty when it is missing, which is then reported."""
        value = self._element.attributes.get(name)
        if value is None:
            self.complete = False
            self.miss(name, fatal=True)
            return ""
        return value

    def miss(self, name: str, *, fatal: bool) -> None:
        """Report a missing attribute."""
        what = f"attribute {name!r} is missing in <{self._element.name}> (line {self._element.line}); add it"
        self._findings.violation(self._where, "missing-attribute", what, fatal=fatal)

    def number(self, name: str, bits: int = 32) -> int:
        """Value of a required whole number of that many bits; 0 when it is missing."""
        text = self.text(name)
        if not self.has(name):
            return 0
        value = _plain_number(text, bits)
        if value is not None:
            return value
        value = c_integer(text)
        if _HEXADECIMAL.fullmatch(text):
            self._findings.note(
                f"{name}={quoted(text)} (line {self._element.line}) is hexadecimal, which is read right"
            )
        elif not _is_decimal(text):
            what = f"{name}={quoted(text)} (line {self._element.line}) is read as {value}; write a plain decimal number"
            self._findings.violation(self._where, "number-format", what)
        if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
            what = f"{name}={quoted(text)} (line {self._element.line}) does not fit into {bits} bits"
            self._findings.violation(self._where, "number-range", what, fatal=True)
            self.complete = False
            return 0
        return value

    def optional_number(self, name: str, default: int, *, required: bool, bits: int = 32) -> int:
        """Value of a number without which the rest can still be verified; `default` when it is missing."""
        if self.has(name):
            return self.number(name, bits)
        if required:
            self.miss(name, fatal=False)
        else:
            self._findings.note(f"{name} is missing; this runtime takes {default}")
        return default

    def has(self, name: str) -> bool:
        """True if the attribute is there."""
        return name in self._element.attributes


def _algorithm(element: Element, runtime: Runtime, findings: Findings) -> AlgoElement | None:
    read = _ElementAttributes(element, "", findings)
    legacy = runtime.name == LEGACY.name
    protocol, collective = read.text("proto"), read.text("coll")
    num_channels, num_chunks_per_loop = read.number("nchannels"), read.number("nchunksperloop")
    num_ranks = read.number("ngpus")
    gpus = tuple(gpu for child in element.children if (gpu := _gpu(child, findings)) is not None)
    in_place = read.optional_number("inplace", 0, required=True) != 0
    algorithm = AlgoElement(
        name=_name(read, legacy, findings),
        protocol=protocol,
        num_channels=num_channels,
        num_chunks_per_loop=num_chunks_per_loop,
        num_ranks=num_ranks,
        collective=collective,
        placed_in=in_place,
        placed_out=_out_of_place(read, legacy, in_place, findings),
        min_bytes=read.optional_number("minBytes", 0, required=not legacy, bits=64),
        max_bytes=read.optional_number("maxBytes", LEGACY_MAX_BYTES, required=not legacy, bits=64),
        num_threads=read.number("nthreads") if legacy and read.has("nthreads") else None,
        num_elements=len(gpus),
        gpus=gpus,
    )
    return algorithm if read.complete else None


def _name(read: _ElementAttributes, legacy: bool, findings: Findings) -> str:
    if read.has("name"):
        return read.text("name")
    if legacy:
        read.miss("name", fatal=False)
    else:
        findings.note("the algorithm has no name; this runtime does not read it, the legacy one needs it")
    return ""


def _out_of_place(read: _ElementAttributes, legacy: bool, in_place: bool, findings: Findings) -> bool:
    """True if calls out of place may use the file; the legacy runtime takes it for exactly one placement."""
    if not legacy:
        return read.optional_number("outofplace", int(not in_place), required=True) != 0
    if read.has("outofplace") and (read.number("outofplace") != 0) == in_place:
        used = "in place" if in_place else "out of place"
        findings.note(f"the legacy runtime does not read outofplace: it uses this file {used} only")
    return not in_place


def _gpu(element: Element, findings: Findings) -> Gpu | None:
    read = _ElementAttributes(element, f"line {element.line}", findings)
    gpu = read.number("id")
    if not read.complete:
        return None
    read = _ElementAttributes(element, place(gpu), findings)
    return Gpu(
        line=element.line,
        id=gpu,
        input_chunks=read.number("i_chunks"),
        output_chunks=read.number("o_chunks"),
        scratch_chunks=read.number("s_chunks"),
        threadblocks=tuple(tb for child in element.children if (tb := _threadblock(child, gpu, findings)) is not None),
    )


def _threadblock(element: Element, gpu: int, findings: Findings) -> Threadblock | None:
    read = _ElementAttributes(element, f"{place(gpu)} (line {element.line})", findings)
    threadblock = read.number("id")
    if not read.complete:
        return None
    read = _ElementAttributes(element, place(gpu, threadblock), findings)
    send_peer, recv_peer, channel = read.number("send"), read.number("recv"), read.number("chan")
    if not read.complete:
        return None
    steps = (
        _step(child, index, place(gpu, threadblock, index), findings) for index, child in enumerate(element.children)
    )
    return Threadblock(
        line=element.line,
        id=threadblock,
        send_peer=send_peer,
        recv_peer=recv_peer,
        channel=channel,
        steps=tuple(step for step in steps if step is not None),
    )


def _step(element: Element, index: int, where: str, findings: Findings) -> Step | None:
    read = _ElementAttributes(element, where, findings)
    step_type = read.text("type")
    number, count, flags = read.number("s"), read.number("cnt"), read.number("hasdep")
    source = _address(read, "src", where, findings)
    target = _address(read, "dst", where, findings)
    depends_on = _dependency(read, where, findings)
    if step_type not in STEP_TYPES and read.complete:
        known = " ".join(STEP_TYPES)
        hint = (
            "the legacy kernel stops at it, the other runtimes refuse it" if step_type == "ra" else "no runtime has it"
        )
        what = f"step type {quoted(step_type)}: {hint}; use one of: {known}"
        findings.violation(where, "step-type", what, fatal=True)
    if not read.complete or source is None or target is None or step_type not in STEP_TYPES:
        return None
    return Step(index, number, step_type, source, target, count, depends_on, flags)


def _address(read: _ElementAttributes, end: str, where: str, findings: Findings) -> Address | None:
    buffer, offset = read.text(f"{end}buf"), read.number(f"{end}off")
    if not read.complete:
        return None
    try:
        return Address(Buffer(buffer), offset)
    except ValueError:
        what = f"{end}buf={quoted(buffer)} is no buffer; write i, o or s (also where it is not used)"
        findings.violation(where, "buffer-name", what, fatal=True)
        return None


def _dependency(read: _ElementAttributes, where: str, findings: Findings) -> Dependency | None:
    threadblock, step = read.number("depid"), read.number("deps")
    if threadblock >= 0:
        return Dependency(threadblock, step)
    if threadblock < -1:
        findings.violation(where, "dependency-target", f"depid={threadblock} is no threadblock; write -1 for none")
    elif step != -1 and read.complete:
        findings.note("some steps without a dependency (depid -1) have a deps other than -1, which is not read")
    return None

"""Algorithm files of other tools: what they leave out is filled in, and what no runtime executes is made explicit.

Facts about such files, from the sources of their writers (microsoft/taccl 426bd1e ``taccl/ncclize.py``, microsoft/msccl-tools,
SCCL): attributes that only later runtimes need are missing; ``<copy i_off o_off>`` is a copy of one chunk from the input to
the output before everything else, which no runtime carries out; scratch may lie behind the output (``o`` with an offset beyond
``o_chunks``); a nop may be followed by a step without a dependency, which the runtimes' parsers refuse; local threadblocks may
have channel -1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from taccl_py.collective import Kind
from taccl_py.errors import InputError
from taccl_py.lowering.msccl_xml import Element, read_elements, read_program
from taccl_py.lowering.program import Program
from taccl_py.runtimes import CUSTOM, LEGACY, MAX_NAME, Runtime

_KNOWN = {
    "algo": frozenset({"gpu"}),
    "gpu": frozenset({"tb", "copy"}),
    "tb": frozenset({"step"}),
}
_ADDRESS = {"srcbuf": "i", "srcoff": "-1", "dstbuf": "o", "dstoff": "-1"}
_STEP = {**_ADDRESS, "cnt": "1", "depid": "-1", "deps": "-1", "hasdep": "0"}
_NUMBER = re.compile(r"-?[0-9]{1,9}|0[xX][0-9a-fA-F]{1,8}")


@dataclass(frozen=True, slots=True)
class LocalCopy:
    """A chunk of the input that must be in the output before everything else."""

    input_chunk: int
    output_chunk: int


@dataclass(frozen=True, slots=True)
class ForeignFile:
    """Algorithm file of another tool, as read.

    Attributes
    ----------
    program
        With everything filled in.
    copies
        For every rank, the copies that no runtime carries out.
    notes
        Values that were filled in, one clause each.
    legacy
        Whether it does not say for which of the placements it is beside the one that it names.
    custom
        Whether its collective is a custom one.
    """

    program: Program
    copies: tuple[tuple[LocalCopy, ...], ...]
    notes: tuple[str, ...]
    legacy: bool
    custom: bool


def read_foreign(text: str, path: str, *, kind: Kind | None = None, origin: Runtime | None = None) -> ForeignFile:
    """Read an algorithm file of any tool and runtime.

    Parameters
    ----------
    text, path
        The file.
    kind
        Collective of a file that does not say it, or says "custom"; compared otherwise.
    origin
        The runtime for which it was written, if that is known.

    Raises
    ------
    InputError
        If something cannot be filled in, naming line, element and attribute.
    """
    algo = read_elements(text, path, _KNOWN)
    custom = algo.attributes.get("coll") == CUSTOM
    filler = _Filler(path)
    copies = filler.fill(algo, kind)
    # Files without all of the attributes are legacy ones, whose maxBytes is just outside of the range.
    program = read_program(algo, path, LEGACY if filler.legacy else origin)
    if kind is not None and program.kind is not kind:
        raise InputError(f"is for {program.kind}, but {kind} was asked for; leave --collective out", path=path)
    return ForeignFile(program, copies, tuple(filler.notes), filler.legacy, custom)


def counted_by(program: Program, target: Runtime, *, custom: bool) -> int:
    """Chunks per loop as the target counts them: a custom collective (by name there) has those of the longer buffer."""
    becomes_custom = target.collectives.get(program.known_kind) == CUSTOM
    if program.kind not in (Kind.GATHER, Kind.SCATTER) or becomes_custom == custom:
        return program.num_chunks_per_loop
    ranks = len(program.gpus)
    return program.num_chunks_per_loop * ranks if becomes_custom else program.num_chunks_per_loop // ranks


class _Filler:
    """Fills in what is missing, element by element."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.notes: list[str] = []
        self.legacy = False

    def fill(self, algo: Element, kind: Kind | None) -> tuple[tuple[LocalCopy, ...], ...]:
        """Fill in a file; returns the copies of every rank by id."""
        copies = {}
        for gpu in algo.children:
            rank = self._int(gpu, "id")
            copies[rank] = self._take_copies(gpu)
            self._fill_gpu(gpu)
        self._fill_algo(algo, kind)
        count = sum(map(len, copies.values()))
        if count:
            self.notes.append(f"{count} copy elements, which runtimes pass over, are now steps")
        return tuple(copies[rank] for rank in sorted(copies))

    def _fill_algo(self, algo: Element, kind: Kind | None) -> None:
        values = algo.attributes
        blocks = [tb for gpu in algo.children for tb in gpu.children]
        if kind is not None and values.get("coll") in (None, CUSTOM):
            values["coll"] = str(kind)
        lengths = [self._int(gpu, key) for gpu in algo.children for key in ("i_chunks", "o_chunks")]
        channels = 1 + max((self._int(tb, "chan") for tb in blocks), default=0)
        in_place = values.get("inplace", "0") != "0"
        self.legacy = "outofplace" not in values
        defaults = {
            "name": re.sub(r"[^A-Za-z0-9._-]+", "-", self._path.rsplit("/", 1)[-1].removesuffix(".xml"))[:MAX_NAME],
            "ngpus": str(len(algo.children)),
            "nchunksperloop": str(max(lengths, default=1)),
            "nchannels": str(channels),
            "proto": "Simple",
            "inplace": "0",
            "outofplace": str(int(not in_place)),
            "minBytes": "0",
            "maxBytes": str(1 << 27),
        }
        missing = [key for key in defaults if key not in values]
        for key in missing:
            values[key] = defaults[key]
        if missing:
            self.notes.append(f"filled in: {', '.join(f'{key}={defaults[key]}' for key in missing)}")
        if self._int(algo, "nchannels") < channels:
            values["nchannels"] = str(channels)
            self.notes.append(f"nchannels is now {channels}, as the threadblocks say")

    def _fill_gpu(self, gpu: Element) -> None:
        for key in ("i_chunks", "o_chunks", "s_chunks"):
            gpu.attributes.setdefault(key, "0")
        for tb in gpu.children:
            for key in ("send", "recv", "chan"):
                tb.attributes.setdefault(key, "-1")
            if tb.attributes["chan"] == "-1":
                tb.attributes["chan"] = "0"
        numbers = {tb.attributes.get("id"): _number_steps(tb) for tb in gpu.children}
        for step in [step for tb in gpu.children for step in tb.children]:
            for key, value in _STEP.items():
                step.attributes.setdefault(key, value)
            waited = numbers.get(step.attributes["depid"], {})
            step.attributes["deps"] = waited.get(step.attributes["deps"], step.attributes["deps"])
            for end in ("src", "dst"):
                self._move_scratch(gpu, step, end)

    def _move_scratch(self, gpu: Element, step: Element, end: str) -> None:
        """Scratch that lies behind the output is scratch."""
        length = self._int(gpu, "o_chunks")
        behind = self._int(step, f"{end}off") - length
        if step.attributes[f"{end}buf"] == "o" and 0 <= behind < self._int(gpu, "s_chunks") and length:
            step.attributes[f"{end}buf"], step.attributes[f"{end}off"] = "s", str(behind)

    def _take_copies(self, gpu: Element) -> tuple[LocalCopy, ...]:
        copies = [child for child in gpu.children if child.name == "copy"]
        gpu.children = [child for child in gpu.children if child.name != "copy"]
        return tuple(LocalCopy(self._int(copy, "i_off"), self._int(copy, "o_off")) for copy in copies)

    def _int(self, element: Element, key: str) -> int:
        value = element.attributes.get(key)
        if value is None or not _NUMBER.fullmatch(value):
            found = "is missing; add it" if value is None else f"found {value[:20]!r}, a whole decimal number is needed"
            raise InputError(found, path=self._path, field=f"line {element.line}, {element.name} {key}")
        return int(value, 16 if value[:2] in ("0x", "0X") else 10)


def _number_steps(tb: Element) -> dict[str, str]:
    """Number steps in their order; returns what the old numbers became."""
    became: dict[str, str] = {}
    for index, step in enumerate(tb.children):
        became.setdefault(step.attributes.get("s", str(index)), str(index))
        step.attributes["s"] = str(index)
    return became


def runs_of(copies: Sequence[LocalCopy], longest: int) -> list[tuple[LocalCopy, int]]:
    """Copies joined to runs of neighbouring chunks: the first one, and how many."""
    runs: list[tuple[LocalCopy, int]] = []
    for copy in sorted(copies, key=lambda one: (one.input_chunk, one.output_chunk)):
        if runs and runs[-1][1] < longest:
            first, count = runs[-1]
            if copy == LocalCopy(first.input_chunk + count, first.output_chunk + count):
                runs[-1] = (first, count + 1)
                continue
        runs.append((copy, 1))
    return runs

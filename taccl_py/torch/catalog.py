"""Algorithm files of an installed directory, and which of them a call takes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from taccl_py.collective import ROOTED, Kind, parse_kind
from taccl_py.errors import InputError
from taccl_py.execute.plan import ExecutablePlan
from taccl_py.execute.reader import read_plan
from taccl_py.jsonio import read_text
from taccl_py.runtimes import LEGACY_CONFIG
from taccl_py.torch.compile import compile_program
from taccl_py.torch.steps import CompiledProgram
from taccl_py.units import MAX_RANKS

_NUMBER = re.compile(r"[0-9]{1,19}")
_DIGITS = 12  # of a digest, for people


@dataclass(frozen=True, slots=True)
class CallShape:
    """Facts of a call by which a file is chosen.

    Attributes
    ----------
    kind, num_ranks, root
        Collective, ranks of the group, and root among them.
    elements, element_bytes
        Elements of the whole buffer, as nccl-tests counts a size, and bytes of each.
    in_place
        Whether input and output share memory.
    """

    kind: Kind
    num_ranks: int
    root: int
    elements: int
    element_bytes: int
    in_place: bool

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole buffer."""
        return self.elements * self.element_bytes


@dataclass(slots=True)
class InstalledFile:
    """An algorithm file: what it says it is for, and, when it has been needed, what it is compiled to.

    Attributes
    ----------
    path, text
        Where it is, and what it says.
    label
        Name and digest of the content: the same on two ranks if the file is.
    kind, num_ranks, chunks
        Collective, ranks, and chunks of the whole buffer.
    min_bytes, max_bytes
        Sizes for which it is, both inclusive; None: no limit.
    """

    path: Path
    text: str
    label: str
    kind: Kind
    num_ranks: int
    chunks: int
    min_bytes: int
    max_bytes: int | None
    _plan: ExecutablePlan | None = None
    _compiled: dict[bool, CompiledProgram] = field(default_factory=dict)

    @property
    def plan(self) -> ExecutablePlan:
        """Program of the file, read when it is first asked for.

        Raises
        ------
        InputError
            If it cannot be read.
        """
        if self._plan is None:
            self._plan = read_plan(self.text, str(self.path))
        return self._plan

    def serves(self, shape: CallShape) -> bool:
        """True if it is for this collective, number of ranks and size."""
        fits = self.kind is shape.kind and self.num_ranks == shape.num_ranks and self.min_bytes <= shape.size_bytes
        return fits and (self.max_bytes is None or shape.size_bytes <= self.max_bytes)

    def compiled(self, *, in_place: bool) -> CompiledProgram:
        """The program for one placement, compiled and proved right when it is first asked for.

        Raises
        ------
        InvalidArtifact
            If it is wrong.
        """
        if in_place not in self._compiled:
            self._compiled[in_place] = compile_program(self.plan, in_place=in_place)
        return self._compiled[in_place]


@dataclass(frozen=True, slots=True)
class FileChoice:
    """The file for a call, or why there is none.

    Attributes
    ----------
    file
        None: the backend's own collective is called.
    in_place
        For which placement the program is compiled; it may be another one than the call's.
    why_not
        Reason of the fall-back, the same for all calls that have it; its end may differ, which `detail` is.
    """

    file: InstalledFile | None
    in_place: bool = False
    why_not: str = ""
    detail: str = ""

    @property
    def label(self) -> str:
        """The same on two ranks if they do the same."""
        return self.file.label if self.file is not None else f"the backend's own, as {self.why_not}"


class InstalledFiles:
    """Algorithm files of a directory, in the order in which the first that serves a call is taken: that of their names.

    Raises
    ------
    InputError
        If the directory cannot be read, holds no algorithm file, is one of the legacy runtime, or a file does not say what it is for.
    """

    def __init__(self, folder: Path) -> None:
        try:
            paths = sorted(path for path in folder.iterdir() if path.suffix == ".xml" and not path.is_dir())
        except OSError as error:
            raise InputError(
                f"cannot be read: {error.strerror}; name a directory of taccl install", path=str(folder)
            ) from None
        if any(path.name == LEGACY_CONFIG for path in paths):
            what = "is a directory of the legacy runtime, which counts sizes differently; install the files for executor or rccl"
            raise InputError(what, path=str(folder))
        if not paths:
            what = "holds no algorithm files (*.xml); name a directory that taccl install or taccl synth --sizes has written"
            raise InputError(what, path=str(folder))
        self.files = tuple(_read_file(path) for path in paths)

    def choose(self, shape: CallShape) -> FileChoice:
        """The file for a call.

        Raises
        ------
        InputError
            If a file that could serve it cannot be read.
        """
        own = [file for file in self.files if file.kind is shape.kind]
        if not own:
            return FileChoice(None, why_not=f"no file is for {shape.kind}")
        if not any(file.num_ranks == shape.num_ranks for file in own):
            return FileChoice(None, why_not=f"no file for {shape.kind} is for {shape.num_ranks} ranks")
        serving = [file for file in own if file.serves(shape)]
        if not serving:
            return FileChoice(
                None, why_not=f"no file for {shape.kind} is for this size", detail=f"{shape.size_bytes} bytes"
            )
        if shape.kind in ROOTED:
            serving = [file for file in serving if file.plan.root == shape.root]
            if not serving:
                return FileChoice(None, why_not=f"no file for {shape.kind} is for root {shape.root}")
        whole = [file for file in serving if shape.elements % file.chunks == 0]
        if not whole:
            detail = f"{shape.elements} elements, {serving[0].chunks} chunks"
            return FileChoice(None, why_not=f"chunks do not share out the elements of {shape.kind}", detail=detail)
        for file in whole:
            placement = _placement(file.plan, in_place=shape.in_place)
            if placement is not None:
                return FileChoice(file, placement)
        return FileChoice(
            None, why_not=f"no file for {shape.kind} is for calls {'in' if shape.in_place else 'out of'} place"
        )


def _placement(plan: ExecutablePlan, *, in_place: bool) -> bool | None:
    """Placement for which a program is compiled for a call: the call's, or one that a copy leads to; None if there is none."""
    if plan.in_place if in_place else plan.out_of_place:
        return in_place
    if in_place:
        return False if plan.out_of_place else None  # from a copy of the input
    # The output can hold the input, but for a ReduceScatter.
    return True if plan.in_place and plan.kind is not Kind.REDUCESCATTER else None


def _read_file(path: Path) -> InstalledFile:
    """File by what its first element says."""
    text = read_text(path)
    values = _first_element(text, str(path))
    try:
        kind = parse_kind(_text(values, "coll", path))
    except InputError as error:
        raise InputError(error.what, path=str(path), field="coll") from None
    num_ranks = _whole(values, "ngpus", path)
    if not 2 <= num_ranks <= MAX_RANKS:
        raise InputError(f"found {num_ranks}, 2 to {MAX_RANKS} are possible", path=str(path), field="ngpus")
    chunks = _whole(values, "nchunksperloop", path)
    if not chunks:
        raise InputError("found 0, at least 1 is needed", path=str(path), field="nchunksperloop")
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:_DIGITS]
    return InstalledFile(
        path=path,
        text=text,
        label=f"{path.name} {digest}",
        kind=kind,
        num_ranks=num_ranks,
        chunks=chunks,
        min_bytes=_whole(values, "minBytes", path, 0),
        max_bytes=_whole(values, "maxBytes", path, 0) or None,
    )


class _Found(Exception):
    """The first element has been read."""


def _first_element(text: str, name: str) -> Mapping[str, str]:
    """Attributes of the algo element; what comes after is not read."""
    found: list[tuple[str, dict[str, str]]] = []

    def start(tag: str, values: dict[str, str]) -> None:
        found.append((tag, values))
        raise _Found

    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    try:
        parser.Parse(text, True)
    except _Found:
        pass
    except (expat.ExpatError, ValueError) as error:
        raise InputError(f"is no algorithm file: {error}; take it away", path=name) from None
    if not found or found[0][0] != "algo":
        raise InputError("has no algo element; this is not an MSCCL algorithm file, take it away", path=name)
    return found[0][1]


def _text(values: Mapping[str, str], key: str, path: Path) -> str:
    if key not in values:
        raise InputError("is missing; add it", path=str(path), field=key)
    return values[key]


def _whole(values: Mapping[str, str], key: str, path: Path, default: int | None = None) -> int:
    if default is not None and key not in values:
        return default
    value = _text(values, key, path)
    if not _NUMBER.fullmatch(value):
        raise InputError(f"found {value[:40]!r}, a whole number is needed", path=str(path), field=key)
    return int(value)

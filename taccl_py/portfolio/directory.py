"""Directories that runtimes load algorithm files from: what is in them, and what is to be written there."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from taccl_py.collective import Kind
from taccl_py.errors import InputError, InvalidArtifact, LoweringError, Violation, require_verdict
from taccl_py.jsonio import read_text
from taccl_py.lowering.msccl_xml import emit_xml, legacy_config
from taccl_py.lowering.program import Program, chunks_of_size
from taccl_py.pipeline.conversion import convert_and_verify
from taccl_py.portfolio.precedence import outside, share_out
from taccl_py.runtimes import LEGACY, LEGACY_CONFIG, MSCCLPP, Runtime, loading_variables
from taccl_py.units import Left
from taccl_py.verify.msccl import DirectoryFile, DirectoryVerdict, ProgramVerifier, verify_directory, verify_program

_CONFIG_MARK = "<msccl_algos"
_LOADED = re.compile(r'<load [^>]*\bpath="([^"]*)"')


@dataclass(frozen=True, slots=True)
class DirectoryContents:
    """Files that a runtime would load from a directory, and errors to what is named there and not found."""

    files: tuple[DirectoryFile, ...]
    violations: tuple[Violation, ...]


@dataclass(frozen=True, slots=True)
class Offer:
    """A program to install, the file it comes from, and whether the directory holds that already."""

    program: Program
    source: str
    held: bool = False

    @property
    def kind(self) -> Kind:
        """Collective of the program."""
        return self.program.known_kind

    @property
    def min_bytes(self) -> int:
        """The least of its sizes."""
        return self.program.min_bytes

    @property
    def max_bytes(self) -> int:
        """The largest of its sizes."""
        return self.program.max_bytes

    @property
    def content(self) -> Program:
        """Program to install."""
        return self.program

    @property
    def holds_a_size(self) -> bool:
        """True if the file's chunks can share out any size in its range."""
        chunks = self.program.num_chunks_per_loop
        return self.max_bytes // chunks * chunks >= max(self.min_bytes, 1)

    def competes(self, other: Offer) -> bool:
        """True if the other file is for the same calls, were their sizes the same."""
        one, rival = self.program, other.program
        shared = (one.in_place and rival.in_place) or (one.out_of_place and rival.out_of_place)
        return one.kind is rival.kind and len(one.gpus) == len(rival.gpus) and shared

    def within(self, min_bytes: int, max_bytes: int) -> Offer:
        """The same for other sizes."""
        return replace(self, program=replace(self.program, min_bytes=min_bytes, max_bytes=max_bytes))


@dataclass(frozen=True, slots=True)
class Installation:
    """Files to write, and the verdict on them.

    Attributes
    ----------
    texts
        Files by name.
    verdict
        Verdict on all of them together.
    environment
        Variables that make the runtime load them.
    notes
        Files that were there already or were cut, one clause each.
    """

    texts: dict[str, str]
    verdict: DirectoryVerdict
    environment: dict[str, str]
    notes: tuple[str, ...]


def read_directory(path: Path, runtime: Runtime) -> DirectoryContents:
    """Read what a runtime loads from a directory: all its files, or those that the legacy runtime's configuration names.

    Raises
    ------
    InputError
        If the directory cannot be read.
    """
    try:
        # A scan takes links for files, wherever they lead to, as the one to a folder in each directory that Kubernetes mounts.
        entries = sorted(entry for entry in path.iterdir() if entry.is_symlink() or not entry.is_dir())
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=str(path)) from None
    files = [DirectoryFile(entry.name, _text(entry)) for entry in entries]
    if runtime.name != LEGACY.name:
        return DirectoryContents(tuple(files), ())
    configs = [file for file in files if file.text is not None and _CONFIG_MARK in file.text[:200]]
    if not configs:
        return DirectoryContents(tuple(files), ())
    named = [Path(name).name for config in configs for name in _LOADED.findall(config.text or "")]
    there = {file.name for file in files}
    missing = tuple(
        Violation(name, "missing-file", f"{configs[0].name} names it, but it is not there; put it there")
        for name in sorted(set(named) - there)
    )
    return DirectoryContents(tuple(file for file in files if file.name in named), missing)


def _text(entry: Path) -> str | None:
    try:
        return read_text(entry)
    except InputError:
        return None


def xml_files(sources: Sequence[Path]) -> list[Path]:
    """Sources, with directories replaced by the XML files in them.

    Raises
    ------
    InputError
        If a directory holds none.
    """
    files: list[Path] = []
    for path in sources:
        if not path.is_dir():
            files.append(path)
            continue
        inside = sorted(child for child in path.glob("*.xml") if child.is_file() and child.name != LEGACY_CONFIG)
        if not inside:
            raise InputError("holds no XML files; name a directory that does", path=str(path))
        files += inside
    return files


def read_offer(
    path: Path,
    runtime: Runtime,
    origin: Runtime | None = None,
    *,
    held: bool = False,
    verify: ProgramVerifier = verify_program,
) -> Offer:
    """Algorithm file of any tool, made ready for a runtime and verified.

    Parameters
    ----------
    path, runtime
        The file, and where it is to run.
    origin
        For which runtime it was written, if that is known.
    held
        Whether the directory to install into holds it already.
    verify
        Verifier of each file.

    Raises
    ------
    TacclError
        If the file is not MSCCL XML, or wrong, or the runtime cannot run it.
    """
    text = read_text(path)
    if text.lstrip()[:1] == "{":
        raise InputError(
            f"is JSON, and {runtime.title} loads XML; add --runtime {MSCCLPP.name} if it is a plan", path=str(path)
        )
    return Offer(convert_and_verify(text, str(path), runtime, origin=origin, verify=verify).program, str(path), held)


def leave_to_nccl(offers: Sequence[Offer], ranges: Sequence[Left], runtime: Runtime) -> tuple[list[Offer], list[str]]:
    """Parts of files outside ranges of sizes, for which the runtime then runs NCCL's own algorithms, and notes.

    Parameters
    ----------
    offers
        The files.
    ranges
        Sizes as nccl-tests counts them, of one collective or of all.
    runtime
        For which the files are.

    Raises
    ------
    InputError
        If nothing is left of any file.
    """
    left, notes = list(offers), []
    for each in ranges:
        parts: list[Offer] = []
        for offer in left:
            kept = _not_left(offer, each, runtime)
            parts += kept
            if kept != [offer]:
                what = ", ".join(f"{part.min_bytes}..{part.max_bytes}" for part in kept) or "nothing"
                notes.append(f"{offer.source} is cut to {what}, the rest is left to NCCL")
        left = parts
    if offers and not left:
        raise InputError(
            "nothing is left of any file, so there is nothing to install; leave fewer sizes to NCCL",
            path="command line", field="--leave",
        )  # fmt: skip
    return left, notes


def _not_left(offer: Offer, left: Left, runtime: Runtime) -> list[Offer]:
    """Offers left of a file below and above a range, in sizes as its runtime counts them."""
    program = offer.program
    share = Fraction(program.num_chunks_per_loop, chunks_of_size(program, runtime))
    low, high = math.ceil(left.sizes.low_bytes * share), math.floor(left.sizes.high_bytes * share)
    if left.kind not in ("", str(offer.kind)) or high < offer.min_bytes or low > offer.max_bytes:
        return [offer]
    return outside(offer, low, high)


def plan_installation(
    offers: Sequence[Offer], runtime: Runtime, place: str, *, trim: bool, verify: ProgramVerifier = verify_program
) -> Installation:
    """Decide what to write into a directory so that a runtime loads these programs.

    Parameters
    ----------
    offers
        Programs for the runtime; where two are for the same calls the first one counts.
    place
        Where the directory will be on the machines.
    trim
        Whether to cut the sizes of later programs to what earlier ones leave; else that is an error.
    verify
        Verifier of every file.

    Raises
    ------
    InputError
        If there is no program, two are for the same calls and nothing is to be cut, or cutting leaves nothing of a new one.
    LoweringError
        If the runtime loads fewer files.
    InvalidArtifact
        If the verifier rejects the directory.
    """
    if not offers:
        raise InputError("there is no algorithm to install; name MSCCL XML files or directories with some")
    taken, notes = share_out(offers, trim=trim)
    programs = sorted((offer.program for offer in taken), key=_name)
    if len(programs) > runtime.max_algorithms:
        raise LoweringError(
            f"{len(programs)} files are too many, as {runtime.title} loads at most {runtime.max_algorithms}; name fewer files",
            runtime=runtime.name,
            limit="max_algorithms",
        )
    files = [DirectoryFile(_name(program), emit_xml(program, runtime), program.kind) for program in programs]
    texts = {file.name: file.text or "" for file in files}
    verdict = verify_directory(files, runtime, verify=verify)
    violations = [Violation(name, v.rule, v.what) for name, one in verdict.files.items() for v in one.violations]
    if violations or verdict.violations:
        raise InvalidArtifact(place, [*verdict.violations, *violations])
    for name, one in verdict.files.items():
        require_verdict(f"{place}/{name}", (), one.unsupported)
    if runtime.name == LEGACY.name:
        texts[LEGACY_CONFIG] = legacy_config({f"{place}/{_name(program)}": program for program in programs})
    return Installation(texts, verdict, _environment(runtime, programs, place), tuple(notes))


def calls_name(program: Program) -> str:
    """Name of the calls that a program is for, sizes aside: collective, ranks, placement. Names of files begin with it."""
    where = {(True, True): "both", (True, False): "in"}.get((program.in_place, program.out_of_place), "out")
    return f"{program.kind}-{len(program.gpus):04d}-{where}"


def _name(program: Program) -> str:
    """File name; names sort by collective, ranks, and size."""
    high = min(program.max_bytes, 10**19 - 1)
    return f"{calls_name(program)}-{program.min_bytes:019d}-{high:019d}.xml"


def _environment(runtime: Runtime, programs: Sequence[Program], place: str) -> dict[str, str]:
    variables = loading_variables(runtime, place)
    if runtime.name == LEGACY.name and any(program.kind is Kind.ALLREDUCE for program in programs):
        variables["NCCL_ALGO"] = "MSCCL,RING,TREE"
    return variables

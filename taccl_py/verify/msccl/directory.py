"""The verifier of a whole directory of algorithm files: what its runtime would load, and which file it would take when.

The modern runtimes scan all files of the directory, whatever their names (``src/misc/msccl/msccl_lifecycle.cc``): the executor in
the order of their paths, RCCL in the order in which the file system gives them. The first file that fits a call is taken. A
file whose first element does not say what it is for stops the scan. All files for the communicator's number of ranks are loaded
when it is made, which fails where a rank's part of one is refused; all get connections, used or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taccl_py.collective import Kind
from taccl_py.errors import Violation
from taccl_py.runtimes import LEGACY, Runtime
from taccl_py.verify.msccl.findings import Findings
from taccl_py.verify.msccl.grammar import parse_algorithm
from taccl_py.verify.msccl.scan import find_scan_fault
from taccl_py.verify.msccl.text import read_document
from taccl_py.verify.msccl.verifier import ProgramFacts, ProgramVerdict, ProgramVerifier, verify_program

# Rules that the modern runtimes' own parser enforces as well, in any file and always; it does not know the other rules, or not all of
# what they say.
REFUSED = frozenset({
    "attribute-quotes", "buffer-name", "closing-tag", "comment-start", "dependency-chain", "has-dependent", "missing-attribute",
    "missing-peer", "node-limit", "peer-self", "protocol", "scratch-count", "step-type", "tag-blanks", "tag-mismatch",
    "tag-name-length", "text-between-elements", "text-declaration", "threadblock-ids", "threadblock-limit", "unexpected-end",
    "unterminated-element",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class DirectoryFile:
    """A file of a directory: its name, its text (None: it cannot be read), and the collective that it is for, if that is known."""

    name: str
    text: str | None
    kind: Kind | None = None


@dataclass(frozen=True, slots=True, order=True)
class Covered:
    """Calls for which a directory has files: sizes from `low_bytes` to `high_bytes` (None: no limit) without a gap."""

    kind: Kind
    num_ranks: int
    in_place: bool
    low_bytes: int
    high_bytes: int | None


@dataclass(frozen=True, slots=True)
class DirectoryVerdict:
    """Verdict on a directory.

    Attributes
    ----------
    files
        Verdict on every file by name, in the order in which they are loaded.
    violations
        Errors to the directory as a whole.
    covered
        Calls for which there are good files, sorted; none where nothing of the directory is loaded.
    connections
        Most connections that one rank receives from, for each number of ranks.
    connection_bytes
        Memory of a GPU that they take.
    """

    files: dict[str, ProgramVerdict]
    violations: tuple[Violation, ...]
    covered: tuple[Covered, ...]
    connections: dict[int, int]
    connection_bytes: int


def verify_directory(
    files: Sequence[DirectoryFile],
    runtime: Runtime,
    *,
    kind: Kind | None = None,
    root: int | None = None,
    verify: ProgramVerifier = verify_program,
) -> DirectoryVerdict:
    """Verify all files of a directory, and what they are together; `kind` and `root` as for one file, `verify` verifies that."""
    legacy = runtime.name == LEGACY.name
    findings = Findings()
    verdicts: dict[str, ProgramVerdict] = {}
    for file in sorted(files, key=lambda one: one.name):
        if file.text is None or "<algo" not in file.text:
            stops = "is named in vain" if legacy else "ends the scan, so that no later file is seen"
            what = f"it is no algorithm file and {stops}; move it to another folder"
            findings.violation(file.name, "stray-file", what, fatal=not legacy)
            continue
        verdict = verify(file.text, runtime, kind=kind or file.kind, root=root)
        verdicts[file.name] = verdict
        if not legacy:
            _check_loading(file.name, file.text, verdict, runtime, findings)
    facts = {name: verdict.facts for name, verdict in verdicts.items() if verdict.facts is not None}
    if len(facts) > runtime.max_algorithms:
        what = (
            f"there are {len(facts)} files, and {runtime.title} loads at most {runtime.max_algorithms}; take some away"
        )
        findings.violation("", "too-many-files", what)
    good = {
        name: each for name, each in facts.items() if not verdicts[name].violations and not verdicts[name].unsupported
    }
    _check_overlaps(good, runtime, findings)
    connections = _connections([file for file in files if file.name in facts], runtime)
    return DirectoryVerdict(
        files=verdicts,
        violations=findings.violations(),
        covered=() if findings.broken else _covered(good),
        connections=connections,
        connection_bytes=max(connections.values(), default=0) * runtime.connection_bytes,
    )


def _check_loading(name: str, text: str, verdict: ProgramVerdict, runtime: Runtime, findings: Findings) -> None:
    """Report a file that keeps a modern runtime from loading the others too."""
    fault = find_scan_fault(text, runtime)
    if fault is not None:
        what = f"{runtime.title} ends its scan at it and sees no later file: {fault}"
        findings.violation(name, "scan-end", what, fatal=True)
    elif any(violation.rule in REFUSED for violation in verdict.violations):
        what = f"{runtime.title} refuses it when it makes a communicator of so many ranks, so that none can be made"
        findings.violation(name, "init-failure", f"{what}; correct it or take it away", fatal=True)


def _check_overlaps(facts: dict[str, ProgramFacts], runtime: Runtime, findings: Findings) -> None:
    names = list(facts)
    for index, name in enumerate(names):
        for earlier in names[:index]:
            one, other = facts[earlier], facts[name]
            shared = (one.in_place and other.in_place) or (one.out_of_place and other.out_of_place)
            if (one.kind, one.num_ranks) != (other.kind, other.num_ranks) or not shared:
                continue
            low = max(one.min_bytes, other.min_bytes)
            ends = [each.max_bytes for each in (one, other) if each.max_bytes is not None]
            if ends and min(ends) < low:
                continue
            sizes = f"from {low} bytes {'on' if not ends else f'to {min(ends)}'}"
            if runtime.name == "rccl":
                taken = f"{sizes} ranks may take it or {earlier}, as their file systems order them"
            else:
                taken = f"{sizes} {earlier} is taken before it"
            findings.violation(name, "overlap", f"{taken}; give them sizes that do not overlap")


def _covered(facts: dict[str, ProgramFacts]) -> tuple[Covered, ...]:
    ranges = [
        Covered(each.kind, each.num_ranks, in_place, each.min_bytes, each.max_bytes)
        for each in facts.values()
        for in_place in (True, False)
        if each.kind is not None and (each.in_place if in_place else each.out_of_place)
    ]
    joined: list[Covered] = []
    for one in sorted(ranges, key=lambda each: (each.kind, each.num_ranks, each.in_place, each.low_bytes)):
        last = joined[-1] if joined else None
        alike = last is not None and (last.kind, last.num_ranks, last.in_place) == (
            one.kind,
            one.num_ranks,
            one.in_place,
        )
        if last is None or not alike or (last.high_bytes is not None and last.high_bytes + 1 < one.low_bytes):
            joined.append(one)
            continue
        ends = [each.high_bytes for each in (last, one) if each.high_bytes is not None]
        high = max(ends) if len(ends) == 2 else None
        joined[-1] = Covered(one.kind, one.num_ranks, one.in_place, last.low_bytes, high)
    return tuple(joined)


def _connections(files: Sequence[DirectoryFile], runtime: Runtime) -> dict[int, int]:
    """Most connections that a rank receives from, when all files for its number of ranks are loaded."""
    used: dict[int, dict[int, set[tuple[int, int]]]] = {}
    for file in files:
        algorithm = parse_algorithm(read_document(file.text or "", Findings()), runtime, Findings())
        if algorithm is None:
            continue
        by_rank = used.setdefault(algorithm.num_ranks, {})
        for gpu in algorithm.gpus:
            peers = {(tb.recv_peer, tb.channel) for tb in gpu.threadblocks if tb.recv_peer >= 0}
            by_rank.setdefault(gpu.id, set()).update(peers)
    return {ranks: max(map(len, by_rank.values()), default=0) for ranks, by_rank in sorted(used.items())}

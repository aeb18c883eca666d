"""Sentences about directories of algorithm files."""

from __future__ import annotations

from collections.abc import Sequence

from taccl_py.runtimes import Runtime
from taccl_py.units import format_count, format_size
from taccl_py.verify.msccl import Covered, DirectoryVerdict


def describe_directory(verdict: DirectoryVerdict, runtime: Runtime) -> str:
    """For what calls a directory has good files, and what connections cost."""
    bad = sum(1 for one in verdict.files.values() if one.violations)
    unknown = sum(1 for one in verdict.files.values() if one.unsupported and not one.violations)
    counts = [f"{number} {word}" for number, word in ((bad, "bad"), (unknown, "unsupported")) if number]
    told = f" ({', '.join(counts)}, not counted)" if counts else ""
    parts = [f"{format_count(len(verdict.files) - bad - unknown, 'file')} for {runtime.name}{told}"]
    texts: dict[tuple[str, str], list[str]] = {}
    for (what, where), ranges in _by_call(verdict.covered).items():
        texts.setdefault((what, ", then ".join(ranges)), []).append(where)
    parts += [f"{what} {' and '.join(sorted(places))}: {sizes}" for (what, sizes), places in texts.items()]
    most = max(verdict.connections.values(), default=0)
    parts.append(f"{format_count(most, 'connection')} a GPU ({format_size(verdict.connection_bytes)})")
    return "; ".join(parts)


def _by_call(covered: Sequence[Covered]) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for one in covered:
        key = (f"{one.kind} of {one.num_ranks} ranks", "in place" if one.in_place else "out of place")
        low = "0" if not one.low_bytes else format_size(one.low_bytes)
        high = "any size" if one.high_bytes is None else format_size(one.high_bytes)
        found.setdefault(key, []).append(f"{low} to {high}")
    return found

"""The verifier of a folder of plans: each by itself, and that no two are for the same call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from taccl_py.collective import Kind
from taccl_py.errors import InputError, Violation
from taccl_py.verify.mscclpp.verifier import PlanVerdict, verify_plan


@dataclass(frozen=True, slots=True)
class PlanFolderVerdict:
    """Verdict on a directory of plans.

    Attributes
    ----------
    files
        Verdict on each plan, by name.
    violations
        Errors to files that are no plans, and to plans for the same calls.
    """

    files: dict[str, PlanVerdict]
    violations: tuple[Violation, ...]


def verify_plan_folder(
    texts: Mapping[str, str], *, kind: Kind | None = None, root: int | None = None
) -> PlanFolderVerdict:
    """Verify the files of a folder, by name; `kind` and `root` as for one file."""
    files: dict[str, PlanVerdict] = {}
    found: list[Violation] = []
    for name, text in sorted(texts.items()):
        try:
            files[name] = verify_plan(text, name, kind=kind, root=root)
        except InputError as error:
            reason = ": ".join(part for part in (error.field, error.what.partition(";")[0]) if part)
            what = (
                f"it is no MSCCL++ plan ({reason}), and this folder is read as one of plans; move it to another folder"
            )
            found.append(Violation(name, "stray-file", what))
    for (one, first), (other, second) in combinations(files.items(), 2):
        a, b = first.facts, second.facts
        low, high = max(a.min_bytes, b.min_bytes), min(a.max_bytes, b.max_bytes)
        if (a.name, a.num_ranks) == (b.name, b.num_ranks):
            what = f"it has the name of {one} inside, by which the runtime tells plans apart; give it another one"
            found.append(Violation(other, "same-name", what))
        calls = (a.kind, a.num_ranks, a.in_place, a.root)
        if calls == (b.kind, b.num_ranks, b.in_place, b.root) and low <= high:
            what = f"from {low} to {high} bytes {one} is for the same calls; give them other sizes"
            found.append(Violation(other, "competing-plans", what))
    return PlanFolderVerdict(files, tuple(sorted(found)))

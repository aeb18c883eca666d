"""Directories of MSCCL++ execution plans: which plan is for which calls, and what is to be written.

Such a directory holds the plans, a table of them, and the module that registers them, which is `taccl_py.execute.taccl_plans` as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from taccl_py.collective import Kind
from taccl_py.errors import InputError, Violation, require_verdict
from taccl_py.execute import taccl_plans
from taccl_py.jsonio import canonical_json, parse_json, read_text
from taccl_py.portfolio.precedence import share_out
from taccl_py.releases import DEFAULT_FOLDER, DEFAULT_NAMES, DefaultName
from taccl_py.runtimes import PLAN_FOLDER
from taccl_py.verify.mscclpp import PlanVerdict, is_plan, verify_plan

MODULE = f"{taccl_plans.__name__.rpartition('.')[2]}.py"
_MOST_DIGITS = 20  # of 2^64 - 1


@dataclass(frozen=True, slots=True)
class PlanOffer:
    """A plan to install.

    Attributes
    ----------
    value
        Its JSON.
    kind, num_ranks, in_place, root
        For which calls it is; the root is None where there is none.
    min_bytes, max_bytes
        Sizes for which it is to be used, both inclusive.
    unit_bytes
        Of what a size must be a multiple.
    source
        The file it comes from.
    held
        Whether the directory holds that already.
    """

    value: dict[str, Any]
    kind: Kind
    num_ranks: int
    in_place: bool
    root: int | None
    min_bytes: int
    max_bytes: int
    unit_bytes: int
    source: str
    held: bool = False

    @property
    def name(self) -> str:
        """Its name, by which MSCCL++ tells plans apart; names sort by collective, ranks, and size."""
        where = ("in" if self.in_place else "out") + ("" if self.root is None else f"-from-{self.root:04d}")
        sizes = f"{self.min_bytes:0{_MOST_DIGITS}d}-{self.max_bytes:0{_MOST_DIGITS}d}"
        return f"{self.kind}-{self.num_ranks:04d}-{where}-{sizes}"

    @property
    def file_name(self) -> str:
        """Name of its file."""
        return f"{self.name}.json"

    @property
    def installed(self) -> dict[str, Any]:
        """Its JSON with these sizes and this name."""
        own = {"name": self.name, "min_message_size": self.min_bytes, "max_message_size": self.max_bytes}
        return {**self.value, **own}

    @property
    def registered(self) -> taccl_plans.RegisteredPlan:
        """Its row in the table."""
        root = -1 if self.root is None else self.root
        return taccl_plans.describe(self.installed, f"{PLAN_FOLDER}/{self.file_name}", root)

    @property
    def operations(self) -> frozenset[str]:
        """Names of the operations in it, those of loops too."""
        blocks = (block for gpu in self.value["gpus"] for block in gpu.get("threadblocks", ()))
        outer = [one for block in blocks for one in block["ops"]]
        return frozenset(str(one["name"]) for each in outer for one in (each, *each.get("ops", ())))

    @property
    def content(self) -> str:
        """Text of the plan to install, with these sizes and this name."""
        return canonical_json(self.installed)

    @property
    def holds_a_size(self) -> bool:
        """True if the plan's aligned chunks can share out any size in its range."""
        return self.max_bytes // self.unit_bytes * self.unit_bytes >= max(self.min_bytes, 1)

    def competes(self, other: PlanOffer) -> bool:
        """True if the other plan is for the same calls, were their sizes the same."""
        return self._calls == other._calls

    @property
    def _calls(self) -> tuple[Kind, int, bool, int | None]:
        return self.kind, self.num_ranks, self.in_place, self.root

    def within(self, min_bytes: int, max_bytes: int) -> PlanOffer:
        """The same for other sizes."""
        return replace(self, min_bytes=min_bytes, max_bytes=max_bytes)


@dataclass(frozen=True, slots=True)
class PlanInstallation:
    """Files to write into the directory, by name below it, the plans in them, and what was cut, one clause each."""

    texts: dict[str, str]
    offers: tuple[PlanOffer, ...]
    notes: tuple[str, ...]


def read_plan_offer(
    path: Path, *, held: bool = False, verify: Callable[[str, str], PlanVerdict] = verify_plan
) -> PlanOffer:
    """Read and verify a plan; `held` says that the directory to install it in holds it already, `verify` verifies it.

    Raises
    ------
    InputError
        If it is not one.
    InvalidArtifact
        If the verifier finds errors.
    """
    text = read_text(path)
    if text.lstrip()[:1] != "{" or not is_plan(parse_json(text, str(path))):
        raise InputError("is no MSCCL++ plan; make one with taccl lower --to mscclpp-json", path=str(path))
    verdict = verify(text, str(path))
    require_verdict(str(path), verdict.violations, verdict.unsupported)
    facts = verdict.facts
    if facts.kind is None:
        raise ValueError("the verifier accepted a plan for no collective")
    value = parse_json(text, str(path))
    return PlanOffer(
        value=value,
        kind=facts.kind,
        num_ranks=facts.num_ranks,
        in_place=facts.in_place,
        root=facts.root,
        min_bytes=facts.min_bytes,
        max_bytes=facts.max_bytes,
        unit_bytes=facts.unit_bytes,
        source=str(path),
        held=held,
    )


def install_plans(offers: Sequence[PlanOffer], *, trim: bool, default_names: str = "") -> PlanInstallation:
    """Decide what to write so that no two plans are for the same call; the one that is named first counts.

    Parameters
    ----------
    offers
        The plans.
    trim
        Whether to cut the sizes of later plans to what earlier ones leave; else that is an error.
    default_names
        Version of MSCCL++ that is to find plans by itself too, under the names that it looks for; empty: none.

    Raises
    ------
    InputError
        If there is no plan, two are for the same calls and nothing is to be cut, cutting leaves nothing of a new one, or not as
        many have default names as there are.
    """
    if not offers:
        raise InputError("there is no plan to install; name files of taccl lower --to mscclpp-json")
    taken, notes = share_out(offers, trim=trim)
    taken.sort(key=lambda offer: offer.name)
    texts = {f"{PLAN_FOLDER}/{offer.file_name}": offer.content for offer in taken}
    table = [offer.registered._asdict() for offer in taken]
    texts[taccl_plans.TABLE] = canonical_json(
        {"format": taccl_plans.FORMAT, "version": taccl_plans.VERSION, "plans": table}
    )
    texts[MODULE] = read_text(Path(taccl_plans.__file__))
    if default_names:
        texts |= _by_default_names(taken, default_names)
    return PlanInstallation(texts, tuple(taken), tuple(notes))


def verify_table(folder: Path) -> tuple[Violation, ...]:
    """Errors to the table of an installation: rows that say other than their plans, and plans without a row."""
    path = folder / taccl_plans.TABLE
    try:
        rows = {row.file: row for row in taccl_plans.read_table(folder)}
    except taccl_plans.PlanError as error:
        return (Violation(taccl_plans.TABLE, "table", str(error)),)
    found: list[Violation] = []
    for file, row in rows.items():
        try:
            plan = taccl_plans.describe(parse_json(read_text(folder / file), file), file, row.root)
        except (InputError, taccl_plans.PlanError):
            continue  # which is an error of the plan
        if plan != row:
            odd = next(name for name in plan._fields if getattr(plan, name) != getattr(row, name))
            what = f"says {odd} {getattr(row, odd)} of {file}, which has {getattr(plan, odd)}; run taccl install again"
            found.append(Violation(path.name, "table", what))
    for plan_file in sorted((folder / PLAN_FOLDER).glob("*.json")):
        if f"{PLAN_FOLDER}/{plan_file.name}" not in rows:
            what = f"does not name {PLAN_FOLDER}/{plan_file.name}, so nobody registers it; run taccl install with it"
            found.append(Violation(path.name, "table", what))
    return tuple(found)


def _by_default_names(offers: Sequence[PlanOffer], version: str) -> dict[str, str]:
    """Plans under the names that a version of MSCCL++ looks for by itself, by size."""
    names = DEFAULT_NAMES[version]
    machines = sorted({(name.num_ranks, name.ranks_per_node) for name in names})
    texts: dict[str, str] = {}
    for num_ranks, ranks_per_node in machines:
        there = [name for name in names if (name.num_ranks, name.ranks_per_node) == (num_ranks, ranks_per_node)]
        fitting = [offer for offer in offers if _serves(offer, there[0])]
        if len(fitting) > len(there):
            raise InputError(
                f"{len(fitting)} plans are for an AllReduce of {num_ranks} ranks, and MSCCL++ {version} looks for "
                f"{len(there)} by itself; name fewer plans",
                path="command line", field="--default-names",
            )  # fmt: skip
        fitting.sort(key=lambda offer: (offer.min_bytes, offer.in_place))
        texts |= {f"{DEFAULT_FOLDER}/{name.file}": offer.content for name, offer in zip(there, fitting, strict=False)}
    if not texts:
        known = ", ".join(f"{ranks} ranks on nodes of {on_node}" for ranks, on_node in machines)
        raise InputError(
            f"MSCCL++ {version} looks by itself only for an AllReduce of {known}, and none of the plans is; leave it out",
            path="command line", field="--default-names",
        )  # fmt: skip
    return texts


def _serves(offer: PlanOffer, name: DefaultName) -> bool:
    if (offer.kind, offer.num_ranks) != (Kind.ALLREDUCE, name.num_ranks):
        return False
    return name.ranks_per_node % offer.registered.ranks_per_node == 0

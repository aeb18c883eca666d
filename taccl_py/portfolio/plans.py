"""Directories of MSCCL++ execution plans: which plan is for which calls, and what is to be written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from taccl_py.collective import Kind
from taccl_py.errors import InputError, require_verdict
from taccl_py.jsonio import canonical_json, parse_json, read_text
from taccl_py.portfolio.precedence import share_out
from taccl_py.verify.mscclpp import PlanVerdict, is_plan, verify_plan

_MOST_DIGITS = 20  # of 2^64 - 1


@dataclass(frozen=True, slots=True)
class PlanOffer:
    """A plan to install.

    Attributes
    ----------
    value
        Its JSON.
    kind, num_ranks, in_place
        For which calls it is.
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
    min_bytes: int
    max_bytes: int
    unit_bytes: int
    source: str
    held: bool = False

    @property
    def file_name(self) -> str:
        """Name of its file; names sort by collective, ranks, and size."""
        where = "in" if self.in_place else "out"
        sizes = f"{self.min_bytes:0{_MOST_DIGITS}d}-{self.max_bytes:0{_MOST_DIGITS}d}"
        return f"{self.kind}-{self.num_ranks:04d}-{where}-{sizes}.json"

    @property
    def text(self) -> str:
        """JSON of the plan with these sizes."""
        return canonical_json({**self.value, "min_message_size": self.min_bytes, "max_message_size": self.max_bytes})

    @property
    def content(self) -> str:
        """Text of the plan to install."""
        return self.text

    @property
    def holds_a_size(self) -> bool:
        """True if the plan's aligned chunks can share out any size in its range."""
        return self.max_bytes // self.unit_bytes * self.unit_bytes >= max(self.min_bytes, 1)

    def competes(self, other: PlanOffer) -> bool:
        """True if the other plan is for the same calls, were their sizes the same."""
        return (self.kind, self.num_ranks, self.in_place) == (other.kind, other.num_ranks, other.in_place)

    def within(self, min_bytes: int, max_bytes: int) -> PlanOffer:
        """The same for other sizes."""
        return replace(self, min_bytes=min_bytes, max_bytes=max_bytes)


@dataclass(frozen=True, slots=True)
class PlanInstallation:
    """Files to write into the folder, by name, the plans in them, and what was cut, one clause each."""

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
        min_bytes=facts.min_bytes,
        max_bytes=facts.max_bytes,
        unit_bytes=facts.unit_bytes,
        source=str(path),
        held=held,
    )


def install_plans(offers: Sequence[PlanOffer], *, trim: bool) -> PlanInstallation:
    """Decide what to write so that no two plans are for the same call; the one that is named first counts.

    Parameters
    ----------
    offers
        The plans.
    trim
        Whether to cut the sizes of later plans to what earlier ones leave; else that is an error.

    Raises
    ------
    InputError
        If there is no plan, two are for the same calls and nothing is to be cut, or cutting leaves nothing of a new one.
    """
    if not offers:
        raise InputError("there is no plan to install; name files of taccl lower --to mscclpp-json")
    taken, notes = share_out(offers, trim=trim)
    taken.sort(key=lambda offer: offer.file_name)
    return PlanInstallation({offer.file_name: offer.text for offer in taken}, tuple(taken), tuple(notes))

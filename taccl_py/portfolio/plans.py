"""Directories of MSCCL++ execution plans: which plan is for which calls, and what is to be written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from taccl_py.collective import Kind
from taccl_py.errors import InputError, InvalidArtifact
from taccl_py.jsonio import canonical_json, parse_json, read_text
from taccl_py.portfolio.precedence import already_done, nothing_left
from taccl_py.verify.mscclpp import is_plan, judge_plan

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
        """Its JSON with these sizes."""
        return canonical_json({**self.value, "min_message_size": self.min_bytes, "max_message_size": self.max_bytes})


@dataclass(frozen=True, slots=True)
class PlanInstallation:
    """What is to be written into the folder: files by name, the plans in them, and what was cut, one clause each."""

    texts: dict[str, str]
    offers: tuple[PlanOffer, ...]
    notes: tuple[str, ...]


def read_plan_offer(path: Path, *, held: bool = False) -> PlanOffer:
    """Read and judge a plan; `held` says that the directory to install it in holds it already.

    Raises
    ------
    InputError
        If it is not one.
    InvalidArtifact
        If the judge objects.
    """
    text = read_text(path)
    if text.lstrip()[:1] != "{" or not is_plan(parse_json(text, str(path))):
        raise InputError("is no MSCCL++ plan; make one with taccl lower --to mscclpp-json", path=str(path))
    verdict = judge_plan(text, str(path))
    if verdict.violations:
        raise InvalidArtifact(str(path), verdict.violations)
    facts = verdict.facts
    if facts.kind is None:
        raise ValueError("the judge accepted a plan for no collective")
    value = parse_json(text, str(path))
    return PlanOffer(
        value, facts.kind, facts.num_ranks, facts.in_place, facts.min_bytes, facts.max_bytes, str(path), held
    )  # fmt: skip


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
    taken: list[PlanOffer] = []
    notes: list[str] = []
    for offer in offers:
        same = next((other for other in taken if other.text == offer.text), None)
        if same is not None:
            notes.append(f"{offer.source} is the same as {same.source}")
            continue
        parts = _left_by(offer, taken, trim=trim)
        if not parts and not offer.held and not any(_same_but_for_sizes(offer, other) for other in taken):
            rivals = [other for other in taken if _compete(offer, other)]
            raise nothing_left(offer.source, held=any(other.held for other in rivals))
        if parts != [offer]:
            kept = ", ".join(f"{part.min_bytes}..{part.max_bytes}" for part in parts) or "nothing"
            notes.append(f"{offer.source} is cut to {kept}")
        taken += parts
    taken.sort(key=lambda offer: offer.file_name)
    return PlanInstallation({offer.file_name: offer.text for offer in taken}, tuple(taken), tuple(notes))


def _left_by(offer: PlanOffer, taken: Sequence[PlanOffer], *, trim: bool) -> list[PlanOffer]:
    """Parts of a plan's sizes that the ones before it leave."""
    parts = [offer]
    for other in taken:
        if not _compete(offer, other):
            continue
        low, high = max(offer.min_bytes, other.min_bytes), min(offer.max_bytes, other.max_bytes)
        if low <= high and not trim:
            raise already_done(offer.source, offer.kind, (low, high), other.source, held=other.held)
        parts = [rest for part in parts for rest in _without(part, other)]
    return parts


def _compete(one: PlanOffer, other: PlanOffer) -> bool:
    return (one.kind, one.num_ranks, one.in_place) == (other.kind, other.num_ranks, other.in_place)


def _same_but_for_sizes(offer: PlanOffer, other: PlanOffer) -> bool:
    """Whether one is the other with other sizes: what an earlier call cut and installed is there, and no news."""
    return replace(other, min_bytes=offer.min_bytes, max_bytes=offer.max_bytes).text == offer.text


def _without(part: PlanOffer, other: PlanOffer) -> list[PlanOffer]:
    """Return the plan for its sizes below and above those of another one."""
    below = replace(part, max_bytes=min(part.max_bytes, other.min_bytes - 1))
    above = replace(part, min_bytes=max(part.min_bytes, other.max_bytes + 1))
    if below == part or above == part:
        return [part]
    return [rest for rest in (below, above) if rest.min_bytes <= rest.max_bytes]

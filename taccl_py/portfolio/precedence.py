"""Precedence of files for the same calls: the one named first counts, be they MSCCL XML or MSCCL++ plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from taccl_py.collective import Kind
from taccl_py.errors import InputError


class SizeClaim(Protocol):
    """Range of sizes, both ends inclusive, that a file to install is for, or what is left of it."""

    @property
    def source(self) -> str:
        """The file it comes from."""

    @property
    def held(self) -> bool:
        """True if the directory already holds the same content."""

    @property
    def kind(self) -> Kind:
        """Collective of the file."""

    @property
    def min_bytes(self) -> int:
        """The least of its sizes."""

    @property
    def max_bytes(self) -> int:
        """The largest of its sizes."""

    @property
    def content(self) -> object:
        """Content to install, sizes included; equal if it is the same."""

    @property
    def holds_a_size(self) -> bool:
        """True if there is any size for which the file can be used."""

    def competes(self: C, other: C) -> bool:
        """True if the other file, of the same sort, is for the same calls, were their sizes the same."""

    def within(self: C, min_bytes: int, max_bytes: int) -> C:
        """The same for other sizes."""


C = TypeVar("C", bound=SizeClaim)


def share_out(offers: Sequence[C], *, trim: bool) -> tuple[list[C], list[str]]:
    """Parts of all offers that do not compete, and notes; what is there already changes nothing.

    Parameters
    ----------
    offers
        All of one sort; where two are for the same calls the first one counts.
    trim
        Whether to cut the sizes of later ones to what earlier ones leave; else that is an error.

    Raises
    ------
    InputError
        If two are for the same calls and nothing is to be cut, or cutting leaves nothing of a new one.
    """
    notes: list[str] = []
    taken: list[C] = []
    for offer in offers:
        same = next((other for other in taken if other.content == offer.content), None)
        if same is not None:
            notes.append(f"{offer.source} is the same as {same.source}")
            continue
        rivals = [other for other in taken if offer.competes(other)]
        parts = _left_by(offer, rivals, trim=trim)
        if not parts and not offer.held and not any(_is_same_but_for_sizes(offer, other) for other in rivals):
            raise _nothing_left(offer, held=any(other.held for other in rivals))
        if parts != [offer]:
            kept = ", ".join(f"{part.min_bytes}..{part.max_bytes}" for part in parts) or "nothing"
            notes.append(f"{offer.source} is cut to {kept}")
        taken += parts
    return taken, notes


def _is_same_but_for_sizes(offer: C, other: C) -> bool:
    """True if one file is the other with other sizes: an earlier call cut and installed it, and it is no news."""
    return other.within(offer.min_bytes, offer.max_bytes).content == offer.content


def _left_by(offer: C, rivals: Sequence[C], *, trim: bool) -> list[C]:
    """Parts of an offer's sizes that the ones before it leave."""
    parts = [offer]
    for other in rivals:
        low, high = max(offer.min_bytes, other.min_bytes), min(offer.max_bytes, other.max_bytes)
        if low > high:
            continue
        if not trim:
            raise _already_done(offer, other, (low, high))
        parts = [rest for part in parts for rest in outside(part, other.min_bytes, other.max_bytes)]
    return parts


def outside(claim: C, low_bytes: int, high_bytes: int) -> list[C]:
    """Claims left of one below and above a range of sizes."""
    below = claim.within(claim.min_bytes, min(claim.max_bytes, low_bytes - 1))
    above = claim.within(max(claim.min_bytes, high_bytes + 1), claim.max_bytes)
    return [rest for rest in (below, above) if rest.holds_a_size]


def _already_done(offer: SizeClaim, other: SizeClaim, sizes: tuple[int, int]) -> InputError:
    """Error for a file some of whose sizes another one does."""
    remedies = ["give them other sizes with taccl lower"]
    remedies += ["add --replace to take away all that the directory holds"] if other.held else []
    return InputError(
        f"{offer.kind} from {sizes[0]} to {sizes[1]} bytes is also done by {other.source}; {', '.join(remedies)}, or add --trim to "
        "keep the one that is named first",
        path=offer.source,
    )


def _nothing_left(offer: SizeClaim, *, held: bool) -> InputError:
    """Error for a file of whose sizes trimming leaves none: a user who names a file wants something of it."""
    where = "that the directory holds" if held else "that are named before it"
    remedy = "add --replace to take those away" if held else "name it before them"
    return InputError(
        f"is cut to nothing, as all its sizes are done by files {where}; {remedy}, or leave it out", path=offer.source
    )

"""Agreement of ranks before the first message of a call that is new to them: what each is about to do, and an error where they differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from taccl_py.errors import InputError


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One rank's side of a call.

    Attributes
    ----------
    call
        Function, elements, type and so on.
    choice
        What carries it out: a file with its digest, or the backend's own with the reason.
    error
        Why the rank cannot make it; empty if it can.
    """

    call: str
    choice: str
    error: str = ""

    def __str__(self) -> str:
        """The call, and how it is carried out."""
        return f"{self.call} by {self.choice}" if self.choice else self.call


def require_agreement(records: Sequence[CallRecord], where: str) -> None:
    """Refuse a call that ranks do not make alike, with the same sentence on all of them.

    Parameters
    ----------
    records
        Those of all ranks, in order.
    where
        Directory, for the error.

    Raises
    ------
    InputError
        If a rank cannot make it, or two ranks differ in the call or in what carries it out.
    """
    failed = [f"rank {rank}: {record.error}" for rank, record in enumerate(records) if record.error]
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise InputError(f"{failed[0]}{more}", path=where)
    by_call = _ranks_of([record.call for record in records])
    if len(by_call) > 1:
        raise InputError(f"ranks make different calls: {by_call_text(by_call)}; all must make the same", path=where)
    by_choice = _ranks_of([record.choice for record in records])
    if len(by_choice) > 1:
        what = f"ranks have different files for {records[0].call}: {by_call_text(by_choice)}"
        raise InputError(f"{what}; give all ranks the same directory", path=where)


def by_call_text(ranks: dict[str, list[int]]) -> str:
    """Words on who does what, for people."""
    return "; ".join(f"{_names(who)}: {what}" for what, who in ranks.items())


def _names(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def _ranks_of(texts: Sequence[str]) -> dict[str, list[int]]:
    found: defaultdict[str, list[int]] = defaultdict(list)
    for rank, text in enumerate(texts):
        found[text].append(rank)
    return dict(found)

"""Errors for plans beyond a limit of MSCCL++."""

from __future__ import annotations

from taccl_py.errors import LoweringError
from taccl_py.runtimes import MSCCLPP


def beyond(limit: str, sentence: str) -> LoweringError:
    """Return the error for a limit that cannot be kept; the sentence says what is needed, what there is, and the remedy."""
    return LoweringError(sentence, runtime=MSCCLPP.name, limit=limit)


def require_threadblocks(rank: int, number: int) -> None:
    """Refuse more threadblocks of a rank than run at the same time.

    Raises
    ------
    LoweringError
        If there are more.
    """
    if number > MSCCLPP.max_threadblocks:
        raise beyond(
            "threadblocks",
            f"rank {rank} needs {number} threadblocks, and a plan for {MSCCLPP.title} can have {MSCCLPP.max_threadblocks}, as many as run "
            "at the same time on an A100, since it does not say for which GPU it is; use a schedule with fewer messages, or fewer "
            "instances where there are several",
        )

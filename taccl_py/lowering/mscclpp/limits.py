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
            f"rank {rank} needs {number} threadblocks, and plans for {MSCCLPP.title}, which name no GPU, have at most "
            f"{MSCCLPP.max_threadblocks}, as many as run at the same time on an A100; use a schedule with fewer messages, or fewer "
            "instances where there are several",
        )

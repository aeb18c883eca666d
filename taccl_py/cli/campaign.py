"""Progress of a campaign on stderr, and its interrupt."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from taccl_py.cli.progress import watched

if TYPE_CHECKING:
    from taccl_py.campaign.case import Case
    from taccl_py.campaign.store import Store
    from taccl_py.campaign.work import Outcome


def carry_out_watched(cases: Sequence[Case], store: Store | None, workers: int) -> list[Outcome]:
    """Carry out cases with progress; the first Ctrl-C ends it, and what is finished is kept.

    Raises
    ------
    InputError
        If the store is in use.
    KeyboardInterrupt
        If the user said stop.
    """
    from taccl_py.campaign.work import carry_out

    stop = threading.Event()
    finished: list[Outcome] = []
    with store.locked() if store is not None else nullcontext(), watched(stop) as events:
        events.stage(f"0 of {len(cases)}")

        def done(outcome: Outcome) -> None:
            finished.append(outcome)
            events.stage(f"{len(finished)} of {len(cases)}: {outcome.case.name}")

        outcomes = carry_out(cases, store, workers, stop, done)
    if stop.is_set():
        raise KeyboardInterrupt
    return outcomes

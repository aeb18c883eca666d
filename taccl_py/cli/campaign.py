"""Progress of a campaign on stderr, and its interrupt."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import click

from taccl_py.cli.options import with_options
from taccl_py.cli.progress import watched
from taccl_py.errors import Interrupted
from taccl_py.units import format_count

if TYPE_CHECKING:
    from taccl_py.campaign.demand_case import AnyCase
    from taccl_py.campaign.store import Store
    from taccl_py.campaign.work import CaseOutcome

F = TypeVar("F", bound=Callable[..., Any])


def force_options(command: F) -> F:
    """Options of a campaign: its processes, and its instances."""
    decorators = [
        click.option("--workers", type=click.IntRange(1), default=None, help="Instances at a time; default: one a core."),
        click.option("--scheduler", default="", help='Dask scheduler whose workers do it, such as tcp://host:8786 (extra "dask").'),
        click.option("--only", default="", help="Only instances whose name contains this text."),
    ]  # fmt: skip
    return with_options(command, decorators)


def carry_out_watched(cases: Sequence[AnyCase], store: Store | None, values: dict[str, Any]) -> list[CaseOutcome]:
    """Carry out cases with progress; the first Ctrl-C ends it, and what is finished is kept.

    Parameters
    ----------
    cases, store
        Campaign: its cases, and where results are kept.
    values
        Values of `force_options`.

    Raises
    ------
    InputError
        If the store is in use.
    Interrupted
        If the user said stop.
    """
    from taccl_py.campaign.work import INTERRUPTED, Force, carry_out

    force = Force(values["workers"] or os.cpu_count() or 1, values["scheduler"])
    stop = threading.Event()
    finished: list[CaseOutcome] = []
    with store.locked() if store is not None else nullcontext(), watched(stop) as events:
        events.stage(f"0 of {len(cases)}")

        def done(outcome: CaseOutcome) -> None:
            if outcome.error == INTERRUPTED:
                return
            finished.append(outcome)
            events.stage(f"{len(finished)} of {len(cases)}: {outcome.case.name}")

        outcomes = carry_out(cases, store, force, stop, done)
    if stop.is_set():
        kept = f"interrupted after {len(finished)} of {format_count(len(cases), 'instance')}"
        remedy = (
            "--cache keeps what is finished"
            if store is None
            else "they are kept, and the same command goes on from there"
        )
        raise Interrupted(f"{kept}; {remedy}")
    return outcomes

"""Live progress of a synthesis on stderr: stage, incumbent, bound, gap, elapsed. Quiet unless stderr is a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from taccl_py.cli.interrupt import interrupts_stop
from taccl_py.jsonio import write_atomically
from taccl_py.report.progress import ProgressPoint, progress_text
from taccl_py.synthesis.engine import Events
from taccl_py.units import format_gap, format_time, relative_gap

_Item = TypeVar("_Item")


class LiveEvents(Events):
    """Keeps one line on a terminal up to date."""

    def __init__(self, stop: threading.Event) -> None:
        """Begin; once `stop` is set, the line says that the end is near."""
        self._stop = stop
        self._begun = time.monotonic()
        self._stage = "starting"
        self._incumbent: float | None = None
        self._bound: float | None = None

    def stage(self, name: str) -> None:
        """Report that a stage begins."""
        self._stage = name

    def incumbent(self, time_us: float) -> None:
        """Report a better schedule."""
        if self._incumbent is None or time_us < self._incumbent:
            self._incumbent = time_us

    def bound(self, time_us: float) -> None:
        """Report a better bound."""
        self._bound = time_us

    def line(self) -> str:
        """Text of the line."""
        parts = [f"{time.monotonic() - self._begun:5.1f} s", self._stage]
        if self._incumbent is not None:
            parts.append(f"best {format_time(self._incumbent)}")
        if self._bound is not None:
            parts.append(f"bound {format_time(self._bound)}")
            if self._incumbent is not None and self._bound > 0:
                parts.append(f"gap {format_gap(relative_gap(self._incumbent, self._bound))}")
        if self._stop.is_set():
            parts.append("ending with what there is (Ctrl-C: at once)")
        return "  ".join(parts)


class RecordedEvents(Events):
    """Passes events on and remembers the stage, and when a better schedule or bound came."""

    def __init__(self, onward: Events) -> None:
        self._onward = onward
        self.current = ""
        self._begun = time.monotonic()
        self.points: list[ProgressPoint] = []

    def stage(self, name: str) -> None:
        """Report that a stage begins."""
        self.current = name
        self._onward.stage(name)

    def incumbent(self, time_us: float) -> None:
        """Report a better schedule."""
        self.points.append(ProgressPoint(self._seconds, time_us, None))
        self._onward.incumbent(time_us)

    def bound(self, time_us: float) -> None:
        """Report a better bound."""
        self.points.append(ProgressPoint(self._seconds, None, time_us))
        self._onward.bound(time_us)

    @property
    def _seconds(self) -> float:
        return round(time.monotonic() - self._begun, 3)


@contextmanager
def watched(stop: threading.Event, record: Path | None = None, *, in_vain: str = "-") -> Iterator[Events]:
    """Progress for the time of a synthesis; the first Ctrl-C asks for the best answer so far, the second one ends.

    Parameters
    ----------
    stop
        Set by the first interrupt.
    record
        File that incumbents and bounds are written to at the end, or None.
    in_vain
        Stage that has no answer yet: the first Ctrl-C ends it at once.
    """
    events = LiveEvents(stop) if sys.stderr.isatty() else Events()
    recorded = RecordedEvents(events)
    finished = threading.Event()
    painter = threading.Thread(target=_paint, args=(events, finished), daemon=True)
    with interrupts_stop(stop, lambda: recorded.current == in_vain):
        painter.start()
        try:
            yield recorded
        finally:
            finished.set()
            painter.join()
    if record is not None:
        write_atomically(record, progress_text(recorded.points))


@contextmanager
def counted_down(stop: threading.Event, expected: int | None) -> Iterator[Callable[[str, int], None]]:
    """A bar with the time left, for steps whose number is known about; the first Ctrl-C asks to end with what there is.

    Parameters
    ----------
    stop
        Set by the first interrupt; the second one ends.
    expected
        How many steps there will be, about; None: nobody can say.
    """
    with interrupts_stop(stop):
        if not sys.stderr.isatty():
            yield lambda _stage, _done: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=expected)

            def show(stage: str, done: int) -> None:
                # More may be needed than was thought, never none.
                total = None if expected is None else max(expected, done + 1)
                bar.update(task, description=stage, completed=done, total=total)

            yield show


@contextmanager
def shown_one_by_one(items: Sequence[_Item], name: Callable[[_Item], str]) -> Iterator[Iterator[_Item]]:
    """The items, each named on a terminal while it is worked on; what comes after the last one is still shown as work."""
    if not sys.stderr.isatty():
        yield iter(items)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=len(items))

        def each() -> Iterator[_Item]:
            for number, item in enumerate(items):
                bar.update(task, description=name(item), completed=number)
                yield item
            bar.update(task, description="all files together", completed=len(items))

        yield each()


def _paint(events: Events, finished: threading.Event) -> None:
    if not isinstance(events, LiveEvents):
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    with Live(console=console, transient=True, refresh_per_second=8) as live:
        while not finished.wait(0.12):
            live.update(events.line())

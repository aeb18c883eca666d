"""Course of a search: incumbent and bound over time, as a file of its own, for seconds differ from run to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from taccl_py.jsonio import Fields, canonical_json, read_json

FORMAT, VERSION = "taccl-progress", 1


@dataclass(frozen=True, slots=True)
class ProgressPoint:
    """Something new.

    Attributes
    ----------
    seconds
        Since the search began.
    incumbent_us, bound_us
        Time of the schedule, or the bound, that was found; None for the one that was not news. Where an algorithm is put
        together from parts (AllReduce) they may be of a part.
    """

    seconds: float
    incumbent_us: float | None
    bound_us: float | None


def progress_text(points: Sequence[ProgressPoint]) -> str:
    """Text of a file."""
    rows = [{"seconds": p.seconds, "incumbent_us": p.incumbent_us, "bound_us": p.bound_us} for p in points]
    return canonical_json({"format": FORMAT, "version": VERSION, "points": rows})


def read_progress(path: Path) -> tuple[ProgressPoint, ...]:
    """Points of a file, in order.

    Raises
    ------
    InputError
        If the file is wrong.
    """
    fields = Fields(read_json(path), str(path))
    fields.header(FORMAT, VERSION)
    found = []
    for point in fields.objects("points"):
        values = [None if point.raw(key) is None else point.number(key) for key in ("incumbent_us", "bound_us")]
        found.append(ProgressPoint(point.number("seconds"), values[0], values[1]))
        point.finish()
    fields.finish()
    return tuple(found)

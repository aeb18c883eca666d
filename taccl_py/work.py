"""Work of a search, counted the same on every machine, where a clock would tell how busy the machine is.

Kernels count what they do in units of their own, and a rate turns units into seconds, so that budgets of work and of time have one unit.
The count is that of a process: searches that run side by side run in processes of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class WorkRates:
    """Seconds for a unit of each kind of work, fitted to processor seconds; ``scripts/bench effort`` shows how near they are.

    Attributes
    ----------
    solver
        Deterministic time of CP-SAT on models of times.
    rounds
        The same on models of rounds, which have no linear relaxation to speak of.
    pipelined
        The same on models of trees down which pieces follow each other.
    linear
        Iterations of a linear program, times its rows and columns.
    timed
        Chunks of messages for which starts are computed; those that always go together count as one.
    ordered
        Messages of a known order for which starts are computed, again and again with other sizes.
    placed
        Messages of trees that a list scheduler places.
    justified
        Messages for which the first gap is looked for that their links and ports have.
    priced
        Links that are priced in the search of a cheapest tree.
    moved
        Places that are tried for a rank of a tree.
    matched
        Links for which a chunk is chosen.
    regrown
        Links at which messages that are taken back look for room.
    compared
        Sorts of faster links that a slower one is compared with before it is used.
    routed
        Links at which greedy plans look for one that is free.
    lowered
        Steps of programs that are lowered or verified.
    """

    solver: float = 4.0
    rounds: float = 0.6
    pipelined: float = 2.0
    linear: float = 3e-8
    timed: float = 8e-6
    ordered: float = 5e-6
    placed: float = 1.6e-5
    justified: float = 4e-6
    priced: float = 3e-6
    moved: float = 1e-5
    matched: float = 3e-5
    regrown: float = 3e-6
    compared: float = 5e-7
    routed: float = 4e-6
    lowered: float = 1.5e-4


RATES = WorkRates()
_RATES = asdict(RATES)
_seconds = [0.0]


def count_work(kind: str, units: float) -> None:
    """Count units of a kind of work, a name of `WorkRates`."""
    _seconds[0] += units * _RATES[kind]


def count_seconds(seconds: float) -> None:
    """Count work that was done elsewhere."""
    _seconds[0] += seconds


def work_seconds() -> float:
    """Work that this process has done, in seconds."""
    return _seconds[0]


@contextmanager
def work_set_aside() -> Iterator[list[float]]:
    """Work inside the context is taken out of the count, and put into the list that is given."""
    before, found = _seconds[0], list[float]()
    try:
        yield found
    finally:
        found.append(_seconds[0] - before)
        _seconds[0] = before

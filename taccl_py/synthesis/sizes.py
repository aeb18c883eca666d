"""The sizes of a plan's pieces for which the longest chain of messages is shortest: a linear program.

Columns are the sizes, then the starts of the messages, then the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from taccl_py.arrays import places_in_runs
from taccl_py.solvers.classes import least_cost
from taccl_py.solvers.limits import Limits
from taccl_py.solvers.sparse import Coefficients, Optimum, SparseProgram
from taccl_py.tolerances import DIGITS


@dataclass(frozen=True)
class Params:
    """Numbers of the linear program for sizes.

    Attributes
    ----------
    rows_per_second
        Rows of dependences that are built in a second; where time is too short, none is begun. Guess.
    many_rows
        Rows from which on the least time is found first, by classes of rows and columns that look the same. Measured: AllReduce of 16 MiB on
        eight ND A100 v4 nodes, four programs of 31,000 to 45,000 rows, each 1.4 to 2 s as it is and 0.2 by classes.
    """

    rows_per_second: int = 200_000
    many_rows: int = 5_000


PARAMS = Params()


@dataclass(frozen=True, slots=True)
class MessageTime:
    """Time that a message takes: once, and for every piece of size 1."""

    alpha_us: float
    piece_us: float


@dataclass(frozen=True, slots=True)
class PortTurn:
    """One message follows another where both take turns, for which the earlier one is busy so long."""

    earlier: int
    later: int
    cost: MessageTime


@dataclass(frozen=True)
class Chains:
    """Order that a plan fixes: dependences of messages, and their turns on links and ports.

    Attributes
    ----------
    shards
        Pieces among which data can be moved.
    pieces
        Pieces of every message.
    costs
        What may decide how long a message takes to arrive, [message].
    brought_by
        Messages that a message waits for, [message].
    turns
        Messages that follow each other on a link or a port.
    scale_us
        About how long all takes.
    """

    shards: Sequence[Sequence[int]]
    pieces: Sequence[Sequence[int]]
    costs: Sequence[Sequence[MessageTime]]
    brought_by: Sequence[Sequence[int]]
    turns: Sequence[PortTurn]
    scale_us: float


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of all pieces, on average 1 in every shard, and the time of the plan with them."""

    sizes: tuple[float, ...]
    time_us: float


def best_sizes(chains: Chains, limits: Limits, *, below_us: float = math.inf) -> Sizes | None:
    """Sizes for which the longest chain of messages is shortest; None if the limits came first.

    Parameters
    ----------
    chains
        What fixes the order.
    limits
        Time, and the user's interrupt.
    below_us
        Sizes that do not take less are of no use; then None may be returned, which is soon known of a plan in which ranks do the same.

    Raises
    ------
    PackageMissing
        If highspy is not installed.
    """
    if sum(map(len, chains.brought_by)) > limits.seconds * PARAMS.rows_per_second:
        return None
    num_pieces = sum(len(shard) for shard in chains.shards)
    num_columns = num_pieces + len(chains.pieces) + 1
    # Times in units of the order of a message's, so that all figures are of one order.
    unit_us = chains.scale_us / len(chains.pieces) ** 0.5
    pieces, numbers = np.array([*chain.from_iterable(chains.shards)]), np.array([len(shard) for shard in chains.shards])
    whole = Coefficients(np.repeat(np.arange(len(numbers)), numbers), pieces, np.ones(num_pieces))
    waits = [*_waits(chains, num_columns - 1, num_pieces)]
    alphas_us = np.array([wait.cost.alpha_us for wait in waits])
    objective = np.zeros(num_columns)
    objective[-1] = 1.0
    matrix = whole.above(_rows_of_waits(waits, chains.pieces, num_pieces, unit_us), len(numbers))
    low = np.concatenate([numbers, alphas_us / unit_us])
    high = np.concatenate([numbers, np.full(len(waits), np.inf)])
    if len(low) >= PARAMS.many_rows:
        least = least_cost(objective, matrix, low, high, limits)
        if least is None or least * unit_us >= below_us:
            return None
    optimum = SparseProgram(objective, matrix, low, high, inner=True).solve(limits)
    if optimum is None:
        return None
    # Rounded, so that equal sizes are equal whatever the solver's last digits are.
    sizes = np.maximum(optimum.values[:num_pieces], 0.0).round(DIGITS)
    return Sizes(tuple(sizes.tolist()), optimum.objective * unit_us)


@dataclass(frozen=True, slots=True)
class _Wait:
    """A column that is to come after the start of a message, for so long as that takes."""

    column: int
    message: int
    cost: MessageTime


def _waits(chains: Chains, end: int, num_pieces: int) -> Iterator[_Wait]:
    """Waits for what brings pieces, for turns, and of the end; starts of messages are in the columns after those of pieces."""
    for message, earlier_ones in enumerate(chains.brought_by):
        for earlier in earlier_ones:
            for cost in chains.costs[earlier]:
                yield _Wait(num_pieces + message, earlier, cost)
        for cost in chains.costs[message]:
            yield _Wait(end, message, cost)
    for turn in chains.turns:
        yield _Wait(num_pieces + turn.later, turn.earlier, turn.cost)


def _rows_of_waits(
    waits: Sequence[_Wait], pieces: Sequence[Sequence[int]], num_pieces: int, unit_us: float
) -> Coefficients:
    """A row each: the column less the start of the message and the times of its pieces."""
    message = np.array([wait.message for wait in waits])
    piece_us = np.array([wait.cost.piece_us for wait in waits])
    count = np.array([len(each) for each in pieces])
    first = np.concatenate([[0], np.cumsum(count)])
    # Of every row, the places of its message's pieces in a list of all messages' pieces.
    row = np.arange(len(waits))
    of_piece = np.repeat(row, count[message])
    place = np.repeat(first[message], count[message]) + places_in_runs(count[message])
    return Coefficients(
        np.concatenate([row, row, of_piece]),
        np.concatenate(
            [[wait.column for wait in waits], num_pieces + message, np.array([*chain.from_iterable(pieces)])[place]]
        ),
        np.concatenate([np.ones(len(waits)), np.full(len(waits), -1.0), -piece_us[of_piece] / unit_us]),
    )


def undominated(costs: Sequence[MessageTime]) -> list[MessageTime]:
    """Costs that can be the largest at some size."""

    def beaten(one: MessageTime) -> bool:
        return any(one != o and one.alpha_us <= o.alpha_us and one.piece_us <= o.piece_us for o in costs)

    return sorted({one for one in costs if not beaten(one)}, key=lambda cost: (cost.alpha_us, cost.piece_us))


class ConstraintRows:
    """Rows of a linear program: a sum of columns that is at least, or exactly, something."""

    def __init__(self) -> None:
        self._row: list[int] = []
        self._column: list[int] = []
        self._value: list[float] = []
        self._low: list[float] = []
        self._high: list[float] = []

    def add(self, terms: Sequence[tuple[int, float]], low: float, high: float = math.inf) -> None:
        """Add a row."""
        self._row += [len(self._low)] * len(terms)
        self._column += [column for column, _ in terms]
        self._value += [value for _, value in terms]
        self._low.append(low)
        self._high.append(high)

    def least(self, column: int, limits: Limits) -> Optimum | None:
        """Values of all columns for which the last one, of this number, is least; None if the limits came first."""
        matrix = Coefficients(
            np.array(self._row, dtype=np.int64), np.array(self._column, dtype=np.int64), np.array(self._value)
        )
        cost = np.append(np.zeros(column), 1.0)
        return SparseProgram(cost, matrix, np.array(self._low), np.array(self._high)).solve(limits)

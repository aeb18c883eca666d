"""Inputs of a collective, and the outputs that it promises, computed from its definition on whole buffers.

Inputs are drawn so that every order of the operations gives the same bits: integers wrap around anyway, sums of floats are
of whole numbers that the type holds exactly, products of powers of two. Nothing is drawn that leaves a sum or a product as
it is, so that a contribution that is missing, or counts twice, shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from taccl_py.collective import Kind
from taccl_py.execute.arithmetic import EXACT_BITS, Array, combine, decode, encode, storage_type
from taccl_py.execute.plan import DataType, ExecutablePlan, Operator

NDFloat = np.ndarray[Any, np.dtype[np.float64]]

_MOST_FACTORS = 8  # powers of two that one product may have other than 1
_FEWEST_LEVELS = 8  # sizes of numbers below which contributors take turns


@dataclass(frozen=True, slots=True)
class CallTask:
    """Collective, elements and operator of one call, and the seed of its data.

    Attributes
    ----------
    kind, num_ranks, root
        The collective.
    input_elements, shard_elements
        Length of a rank's input, and of one rank's shard of the whole.
    operator
        None for collectives that do not combine.
    """

    kind: Kind
    num_ranks: int
    root: int
    input_elements: int
    shard_elements: int
    data_type: DataType
    operator: Operator | None
    seed: int


def make_task(
    plan: ExecutablePlan, chunk_elements: int, data_type: DataType, operator: Operator | None, seed: int
) -> CallTask:
    """Task of a plan with chunks of so many elements."""
    return CallTask(
        kind=plan.collective,
        num_ranks=plan.num_ranks,
        root=plan.root,
        input_elements=plan.input_chunks * chunk_elements,
        shard_elements=plan.shard_chunks * chunk_elements,
        data_type=data_type,
        operator=operator if plan.reduces else None,
        seed=seed,
    )


def draw_input(task: CallTask, rank: int) -> Array:
    """Input of one rank; the same every time."""
    rng = np.random.default_rng([task.seed, rank])
    count, stored = task.input_elements, storage_type(task.data_type)
    if task.operator is None:
        return np.frombuffer(rng.bytes(count * stored.itemsize), dtype=stored)
    if task.data_type.is_float:
        return encode(_draw_floats(task, rank, rng), task.data_type)
    if task.operator is not Operator.AVG:
        numbers = np.frombuffer(rng.bytes(count * stored.itemsize), dtype=stored)
        # An odd factor takes nothing away from a product modulo a power of two; a 1 would be no factor at all.
        return numbers | stored.type(3) if task.operator is Operator.PROD else np.where(numbers == 0, 1, numbers)
    most = int(np.iinfo(stored).max)
    active, most_each = _turns(task, rank, most)
    numbers = rng.integers(1, most_each, count, dtype=stored, endpoint=True)
    signed = np.where(rng.random(count) < 0.5, -numbers, numbers) if stored.kind == "i" else numbers
    return np.where(active, signed, 0).astype(stored)


def _draw_floats(task: CallTask, rank: int, rng: np.random.Generator) -> NDFloat:
    count = task.input_elements
    signs = rng.choice(np.array([-1.0, 1.0]), count)
    if task.operator is Operator.PROD:
        active, _ = _turns(task, rank, _MOST_FACTORS * _FEWEST_LEVELS)
        return np.where(active, signs * np.exp2(rng.choice(np.array([-1, 1]), count)), 1.0)
    most = min(1 << EXACT_BITS[task.data_type], 1 << 40)
    if task.operator in (Operator.MIN, Operator.MAX):
        return signs * rng.integers(1, most, count, endpoint=True)
    active, most_each = _turns(task, rank, most)
    return np.where(active, signs * rng.integers(1, most_each, count, endpoint=True), 0.0)


def _turns(task: CallTask, rank: int, most: int) -> tuple[np.ndarray[Any, np.dtype[np.bool_]], int]:
    """Elements to which a rank contributes, and how much at most, so that no sum is beyond `most`.

    Everybody contributes to everything where the numbers are large enough for all.
    """
    stride = -(-task.num_ranks // max(1, min(task.num_ranks, most // _FEWEST_LEVELS)))
    contributors = -(-task.num_ranks // stride)
    return (np.arange(task.input_elements) + rank) % stride == 0, most // contributors


class ExpectedOutputs:
    """Outputs that a task must lead to."""

    def __init__(self, task: CallTask) -> None:
        self.task = task

    def output(self, rank: int) -> Array | None:
        """Output that one rank must have at the end; None where it has none."""
        task, shard = self.task, self.task.shard_elements
        mine = slice(rank * shard, (rank + 1) * shard)
        match task.kind:
            case Kind.ALLGATHER:
                return self._joined
            case Kind.ALLTOALL:
                return np.concatenate([draw_input(task, other)[mine] for other in range(task.num_ranks)])
            case Kind.BROADCAST:
                return draw_input(task, task.root)
            case Kind.SCATTER:
                return draw_input(task, task.root)[mine]
            case Kind.GATHER:
                return self._joined if rank == task.root else None
            case Kind.REDUCE:
                return self._combined if rank == task.root else None
            case Kind.REDUCESCATTER:
                return self._combined[mine]
            case Kind.ALLREDUCE:
                return self._combined

    @cached_property
    def _joined(self) -> Array:
        """All inputs, one after the other."""
        return np.concatenate([draw_input(self.task, rank) for rank in range(self.task.num_ranks)])

    @cached_property
    def _combined(self) -> Array:
        """All inputs, combined in numbers wide enough for each of the steps between."""
        task, operator = self.task, self.task.operator or Operator.SUM
        wide_type = DataType.FLOAT64 if task.data_type.is_float else task.data_type
        wide = self._wide_input(0)
        for rank in range(1, task.num_ranks):
            wide = combine(operator, wide_type, wide, self._wide_input(rank))
        if operator is Operator.AVG:
            wide = wide / task.num_ranks if task.data_type.is_float else _whole_quotients(wide, task)
        return encode(wide, task.data_type)

    def _wide_input(self, rank: int) -> Array:
        numbers = decode(draw_input(self.task, rank), self.task.data_type)
        return numbers.astype(np.float64) if self.task.data_type.is_float else numbers


def _whole_quotients(total: Array, task: CallTask) -> Array:
    """Quotients of integers, cut towards zero; a float64 could not hold all of them."""
    quotients, rest = np.divmod(total, total.dtype.type(task.num_ranks))
    rounded: Array = quotients + ((rest != 0) & (total < 0)).astype(total.dtype)
    return rounded

"""Data of calls: what ranks start with, and whether they have in the end what is promised."""

from __future__ import annotations

from typing import Protocol

from taccl_py.collective import Buffer
from taccl_py.execute.arithmetic import Array, divide
from taccl_py.execute.compare import ElementRow, ResultCheck, compare_elements, total
from taccl_py.execute.memory import RankMemory, starts_with_input
from taccl_py.execute.plan import DataType, ExecutablePlan, Operator
from taccl_py.execute.promise import CallTask, ExpectedOutputs, draw_input


class CallData(Protocol):
    """Data of one call: of a collective, or of a demand."""

    @property
    def data_type(self) -> DataType:
        """Type of the elements."""

    @property
    def operator(self) -> Operator:
        """Operator that combines contributions."""

    @property
    def in_place(self) -> bool:
        """True if input and output share memory."""

    def fill(self, memory: RankMemory, rank: int, *, scratch: bool = True) -> None:
        """Give a rank its input, if it has one, and nothing else; without `scratch`, with what there is in scratch."""

    def check(self, memory: RankMemory, rank: int) -> ResultCheck:
        """Compare what a rank has with what it must have; an input of its own must be as before."""


class CollectiveData:
    """Data of a call of a collective.

    Parameters
    ----------
    plan, task
        The program, and what it has to do.
    in_place
        How the buffers lie.
    """

    def __init__(self, plan: ExecutablePlan, task: CallTask, *, in_place: bool) -> None:
        self.data_type, self.in_place = task.data_type, in_place
        self.operator = task.operator or Operator.SUM
        self._plan, self._task = plan, task
        self._promises = ExpectedOutputs(task)

    def fill(self, memory: RankMemory, rank: int, *, scratch: bool = True) -> None:
        """Give a rank its input, if it has one, and nothing else; without `scratch`, with what there is in scratch."""
        if starts_with_input(self._plan, rank):
            memory.fill(draw_input(self._task, rank), scratch=scratch)
        else:
            memory.clear(scratch=scratch)

    def check(self, memory: RankMemory, rank: int) -> ResultCheck:
        """Compare what a rank holds with what it must hold; out of place its input must be as before."""
        found, task = [], self._task
        output, promise = memory.elements(Buffer.OUTPUT), self._promises.output(rank)
        if promise is not None and output is not None:
            if task.operator is Operator.AVG:
                output = divide(output, task.data_type, task.num_ranks)
            found.append(self._compare(rank, Buffer.OUTPUT, output, promise))
        given = memory.elements(Buffer.INPUT)
        if not self.in_place and given is not None and starts_with_input(self._plan, rank):
            found.append(self._compare(rank, Buffer.INPUT, given, draw_input(task, rank)))
        return total(found)

    def _compare(self, rank: int, buffer: Buffer, found: Array, wanted: Array) -> ResultCheck:
        chunk_elements = self._task.shard_elements // self._plan.shard_chunks
        row = ElementRow(rank, buffer, chunk_elements)
        return compare_elements(row, found, wanted, self._task.data_type, exact=self._task.operator is None)

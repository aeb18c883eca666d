"""Run programs of demands on real data: legacy MSCCL's ``custom`` XML, and, with all ranks in this process, MSCCL++ plans.

They run as programs of collectives do, with the slots, slices and signals of their runtime, in buffers as long as the demand says. What comes
out is compared with what the demand promises, computed from the inputs alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taccl_py.collective import Buffer
from taccl_py.demand import DataDemand
from taccl_py.errors import InputError
from taccl_py.execute.arithmetic import Array
from taccl_py.execute.compare import ElementRow, ResultCheck, compare_elements, total
from taccl_py.execute.demand import draw_inputs, promised_outputs
from taccl_py.execute.memory import RankMemory
from taccl_py.execute.one_sided import OneSidedPlan, is_one_sided, read_one_sided
from taccl_py.execute.one_sided_local import measure_one_sided
from taccl_py.execute.plan import DataType, ExecutablePlan, Operator, SizeCut, cut_chunks
from taccl_py.execute.reader import read_plan
from taccl_py.execute.runs import Conditions, Measure, Measured, measure_local
from taccl_py.runtimes import LEGACY


def read_demand_program(text: str, name: str, demand: DataDemand) -> ExecutablePlan:
    """Read an XML file or a plan that is for a demand.

    Raises
    ------
    InputError
        If it cannot be read, or is not for this demand.
    """
    if text.lstrip()[:1] == "{":
        if not is_one_sided(text, name):
            raise InputError(
                "is no program of a demand: no MSCCL XML and no MSCCL++ plan; lower a schedule first", path=name
            )
        return read_one_sided(text, name, demand=demand)
    return read_plan(text, name, demand=demand)


def run_demand_program(
    plan: ExecutablePlan,
    demand: DataDemand,
    *,
    repeats: int = 1,
    seed: int = 0,
    shuffled: bool = False,
    timeout_seconds: float = 30.0,
    measure: Measure | None = None,
) -> Measured:
    """Run a program of a demand, call after call with new data, and compare.

    Parameters
    ----------
    plan, demand
        What `read_demand_program` has read, and for which demand.
    repeats, seed
        Number of calls, and the seed of the first one's data.
    shuffled
        Whether threadblocks take turns at random.
    timeout_seconds
        How long nothing may move before that counts as a stop (processes).
    measure
        Where one process runs each rank, what makes the calls there. None: all ranks are in this process.

    Raises
    ------
    InputError
        If the data do not fit into memory, or sums of so many terms cannot be compared.
    InvalidArtifact
        If the program comes to a stop or does what cannot be done; wrong results are part of what is returned.
    """
    longest = demand.longest_bytes
    elements = longest // max(plan.input_chunks, plan.output_chunks) // demand.element_bytes
    here = demand.num_ranks if measure is None else 1
    calls = [DemandData(demand, elements, seed + number, here) for number in range(repeats)]
    conditions = Conditions(LEGACY, repeats, seed, shuffled=shuffled, timeout_seconds=timeout_seconds)
    if isinstance(plan, OneSidedPlan):
        return measure_one_sided(plan, SizeCut(elements, elements, 1), calls, conditions)
    cut = cut_chunks(plan, elements, DataType(demand.dtype), LEGACY)
    return (measure or measure_local)(plan, cut, calls, conditions)


@dataclass(frozen=True, slots=True)
class _DrawnData:
    """Inputs of all ranks, and their outputs with which elements of them are promised."""

    inputs: tuple[Array, ...]
    outputs: tuple[tuple[Array, Array], ...]


class DemandData:
    """Data of a call of a program for a demand: drawn when the first rank here begins, and let go when the last one has been compared.

    Parameters
    ----------
    demand
        What is promised.
    chunk_elements
        Elements of a chunk of the program.
    seed
        Of the inputs.
    num_ranks
        Ranks in this process.
    """

    operator, in_place = Operator.SUM, False

    def __init__(self, demand: DataDemand, chunk_elements: int, seed: int, num_ranks: int) -> None:
        self.data_type = DataType(demand.dtype)
        self._demand, self._chunk_elements, self._seed = demand, chunk_elements, seed
        self._drawn: _DrawnData | None = None
        self._to_compare = num_ranks

    def fill(self, memory: RankMemory, rank: int, *, scratch: bool = True) -> None:
        """Give a rank its input and nothing else; without `scratch`, with what there is in scratch."""
        memory.fill(self._data().inputs[rank], scratch=scratch)

    def check(self, memory: RankMemory, rank: int) -> ResultCheck:
        """Compare the promised part of a rank's output, and its input, which must be as before."""
        drawn, found = self._data(), []
        wanted, promised = drawn.outputs[rank]
        for buffer, right, asked in (
            (Buffer.OUTPUT, wanted, promised),
            (Buffer.INPUT, drawn.inputs[rank], np.ones(len(drawn.inputs[rank]), dtype=np.bool_)),
        ):
            elements = memory.elements(buffer)
            if elements is not None:
                row = ElementRow(rank, buffer, self._chunk_elements)
                found.append(compare_elements(row, elements, right, self.data_type, exact=True, asked=asked))
        self._to_compare -= 1
        if not self._to_compare:
            self._drawn = None
        return total(found)

    def _data(self) -> _DrawnData:
        if self._drawn is None:
            inputs = draw_inputs(self._demand, self._seed)
            self._drawn = _DrawnData(inputs, promised_outputs(self._demand, inputs))
        return self._drawn

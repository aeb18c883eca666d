"""Runs of a plan: for a size, a type, an operator and a placement; what came out, and how long it took."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taccl_py.collective import Collective
from taccl_py.errors import InputError
from taccl_py.execute.arithmetic import NumpyCells
from taccl_py.execute.compare import ResultCheck, WrongElement, total
from taccl_py.execute.data import CallData, CollectiveData
from taccl_py.execute.engine import ThreadblockEngine
from taccl_py.execute.local import LocalQueues, run_all
from taccl_py.execute.memory import RankMemory
from taccl_py.execute.plan import DataType, ExecutablePlan, Operator, SizeCut, cut_size
from taccl_py.execute.promise import make_task
from taccl_py.runtimes import Runtime
from taccl_py.units import algbw_gbps, format_size

MAX_LOCAL_BYTES = 1 << 35


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the collective.

    Attributes
    ----------
    size_bytes
        Wanted size as nccl-tests counts it; the call has the largest size up to that of whole elements in every chunk.
    data_type, operator
        Of the elements; the operator counts for combining collectives only.
    in_place
        How the buffers lie.
    """

    size_bytes: int
    data_type: DataType
    operator: Operator
    in_place: bool


@dataclass(frozen=True, slots=True)
class Conditions:
    """Settings that all calls share.

    Attributes
    ----------
    runtime
        Whose slots and payloads connections have.
    repeats
        How often each call is made; the time is the mean.
    seed
        Of the data.
    shuffled
        Whether threadblocks take turns at random (``local``).
    timeout_seconds
        How long nothing may move before that counts as a stop (processes).
    """

    runtime: Runtime
    repeats: int = 1
    seed: int = 0
    shuffled: bool = False
    timeout_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """Outcome of a call.

    Attributes
    ----------
    size_bytes, count
        True size, and the count of the API: per rank but for AllReduce, Broadcast and Reduce.
    time_us
        Mean of the repetitions.
    algbw_gbps, busbw_gbps
        As nccl-tests counts them.
    num_wrong, first_wrong
        Wrong elements of all ranks and repetitions, and the first one.
    """

    call: Call
    size_bytes: int
    count: int
    time_us: float
    algbw_gbps: float
    busbw_gbps: float
    num_wrong: int
    first_wrong: WrongElement | None


@dataclass(frozen=True, slots=True)
class Measured:
    """Mean time of a call, and what was wrong."""

    time_us: float
    comparison: ResultCheck


def run_local(plan: ExecutablePlan, call: Call, conditions: Conditions) -> CallOutcome:
    """Make a call with all ranks in this process.

    Raises
    ------
    InputError
        If that needs too much memory.
    InvalidArtifact
        If the program comes to a stop or does what cannot be done; wrong results are part of the outcome.
    """
    require_memory(plan, cut_size(plan, call.size_bytes, call.data_type, conditions.runtime), call)
    return make_call(plan, call, conditions, measure_local)


# Makes calls with some data: `measure_local`, or the method of that name of the ranks under a launcher.
Measure = Callable[[ExecutablePlan, SizeCut, Sequence[CallData], Conditions], Measured]


def make_call(plan: ExecutablePlan, call: Call, conditions: Conditions, measure: Measure) -> CallOutcome:
    """Make a call as often as the conditions say."""
    cut = cut_size(plan, call.size_bytes, call.data_type, conditions.runtime)
    data = collective_data(plan, cut, call, conditions.seed)
    return make_outcome(plan, call, cut, measure(plan, cut, [data] * conditions.repeats, conditions))


def measure_local(plan: ExecutablePlan, cut: SizeCut, calls: Sequence[CallData], conditions: Conditions) -> Measured:
    """Make calls with these data, one after the other, with all ranks in this process.

    Raises
    ------
    InvalidArtifact
        If the program comes to a stop or does what cannot be done.
    """
    cells = NumpyCells(calls[0].data_type)
    memories = {rank: RankMemory(plan, cut, cells, rank, in_place=calls[0].in_place) for rank in range(plan.num_ranks)}
    order = random.Random(conditions.seed) if conditions.shuffled else None
    seconds, found = 0.0, []
    for data in calls:
        for rank, memory in memories.items():
            data.fill(memory, rank)
        queues = LocalQueues(conditions.runtime.fifo_slots[plan.protocol])
        engine = ThreadblockEngine(plan, cut, memories, queues, data.operator, cells)
        start = time.perf_counter()
        run_all(engine, queues, plan, order)
        seconds += time.perf_counter() - start
        found += [data.check(memory, rank) for rank, memory in memories.items()]
    return Measured(1e6 * seconds / len(calls), total(found))


def collective_data(plan: ExecutablePlan, cut: SizeCut, call: Call, seed: int) -> CollectiveData:
    """Data of a call."""
    task = make_task(plan, cut.chunk_elements, call.data_type, call.operator, seed)
    return CollectiveData(plan, task, in_place=call.in_place)


def make_outcome(plan: ExecutablePlan, call: Call, cut: SizeCut, measured: Measured) -> CallOutcome:
    """Outcome of a measured call."""
    size_bytes = cut.chunk_elements * plan.chunks_per_size * call.data_type.size_bytes
    algbw = algbw_gbps(size_bytes, max(measured.time_us, 1e-3))
    return CallOutcome(
        call=call,
        size_bytes=size_bytes,
        count=cut.chunk_elements * plan.shard_chunks,
        time_us=measured.time_us,
        algbw_gbps=algbw,
        busbw_gbps=algbw * Collective(plan.collective, plan.num_ranks).busbw_factor,
        num_wrong=measured.comparison.num_wrong,
        first_wrong=measured.comparison.first,
    )


def physical_bytes() -> int:
    """Memory of this machine, or more than is ever used where that is not known."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return MAX_LOCAL_BYTES


def require_memory(plan: ExecutablePlan, cut: SizeCut, call: Call) -> None:
    """Refuse calls whose buffers of all ranks are too large for one process.

    Raises
    ------
    InputError
        If they are.
    """
    chunks = plan.num_ranks * (plan.input_chunks + plan.output_chunks) + sum(r.scratch_chunks for r in plan.ranks)
    needed = chunks * cut.chunk_elements * call.data_type.size_bytes
    most = min(MAX_LOCAL_BYTES, physical_bytes())
    if needed > most:
        raise InputError(
            f"{format_size(call.size_bytes)} needs {format_size(needed)} of memory for all ranks in one process, at most "
            f"{format_size(most)} are used; write a smaller size",
            path="command line",
            field="--size",
        )

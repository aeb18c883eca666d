"""Execution plans of demands, whose ranks have buffers of lengths of their own.

Chunks of a plan are units, as many as the demand's greatest common divisor gives; an operation carries a whole part of a chunk, of any number
of them. The runtime divides by the number of chunks of both buffers, so a buffer that does not exist counts as one unit, which nobody touches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate

from taccl_py.collective import Buffer
from taccl_py.demand import DataDemand
from taccl_py.lowering.buffers import BufferSizes
from taccl_py.lowering.cells import CellRange
from taccl_py.lowering.demand_cells import CellExtent, coarsest_unit_bytes, finest_unit_bytes, part_cells
from taccl_py.lowering.mscclpp.groups import in_groups
from taccl_py.lowering.mscclpp.limits import beyond, require_threadblocks
from taccl_py.lowering.mscclpp.lower import LoweredPlan, PlanOptions, gpus_of, settle
from taccl_py.lowering.mscclpp.tasks import Places, TaskStream
from taccl_py.lowering.plan import Operation, Plan, PlanBlock, PlanGpu
from taccl_py.runtimes import CUSTOM, MSCCLPP
from taccl_py.schedule.for_demand import DemandSchedule

_Extents = list[dict[Buffer, Mapping[int, CellExtent]]]


def lower_demand_plan(schedule: DemandSchedule, name: str | None = None, group: int = 1) -> LoweredPlan:
    """Make the plan that carries out the schedule of a demand; it is for the demand's sizes, out of place.

    Parameters
    ----------
    schedule
        One that the verifier accepts.
    name
        None is that of demand and machine.
    group
        Threadblocks that share every operation.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept, such as chunks of whole aligned units.
    InputError
        If the schedule is not valid.
    """
    schedule = schedule.coalesced()
    _require_type(schedule.demand)
    cells = part_cells(schedule, _unit_bytes(schedule.demand))
    places = Places(BufferSizes(cells.collective, 1, exact=False), in_place=False)
    draft = settle(cells, places, PlanOptions(group=group))
    extents: _Extents = [dict(of_rank) for of_rank in cells.collective.extents]
    for of_rank, scratch in zip(extents, _scratch_extents(draft.stream, cells.collective.extents), strict=True):
        of_rank[Buffer.SCRATCH] = scratch
    lengths = zip(cells.collective.input_lengths, cells.collective.output_lengths, strict=True)
    gpus = tuple(
        _in_units(replace(gpu, input_chunks=max(1, length[0]), output_chunks=max(1, length[1])), extents)
        for gpu, length in zip(gpus_of(draft, (1, 1)), lengths, strict=True)
    )
    gpus = in_groups(gpus, group)
    for gpu in gpus:
        require_threadblocks(gpu.rank, len(gpu.blocks))
    unit_bytes = cells.collective.unit_bytes
    _require_offsets(gpus, unit_bytes)
    sizes = [gpu.input_chunks * unit_bytes for gpu in gpus]
    plan = Plan(name or schedule.name, CUSTOM, False, MSCCLPP.alignment_bytes, min(sizes), max(sizes), gpus)
    return LoweredPlan(plan)


def _require_type(demand: DataDemand) -> None:
    if demand.reduces and demand.dtype not in MSCCLPP.sum_types:
        raise beyond(
            "data_type",
            f"{MSCCLPP.title} adds up {', '.join(MSCCLPP.sum_types)}, and the demand has {demand.dtype}; use one of those",
        )


def _unit_bytes(demand: DataDemand) -> int:
    """Unit of a demand: as large as its parts allow, or the smallest possible, to which parts are rounded."""
    least = MSCCLPP.alignment_bytes
    finest = finest_unit_bytes(demand)
    if finest % least == 0:
        return finest
    if coarsest_unit_bytes(demand) % least == 0:
        return least
    raise beyond(
        "alignment",
        f"{MSCCLPP.title} needs sizes, places and buffers that are multiples of {least} bytes, and {_off(demand, least)}",
    )


def _off(demand: DataDemand, least: int) -> str:
    """Sentence on a part of a demand that is no multiple, and what to do."""
    advice = "make it one, or run the schedule itself (taccl run)"
    for name, lengths in (("input", demand.input_bytes), ("output", demand.output_bytes)):
        for rank, length in enumerate(lengths):
            if length % least:
                return f"the {name} of rank {rank} has {length}; {advice}"
    for number, chunk in enumerate(demand.chunks):
        for group in (*chunk.terms, chunk.wants):
            for rank, offset in group:
                if offset % least:
                    return f"chunk {number} lies at byte {offset} of a buffer of rank {rank}; {advice}"
    return f"its chunks are not; {advice}"


def _scratch_extents(
    stream: TaskStream, known: tuple[dict[Buffer, dict[int, CellExtent]], ...]
) -> list[dict[int, CellExtent]]:
    """Places of cells of scratch: each is as long as what is put, copied or added up there."""
    counts: list[dict[int, int]] = [{} for _ in known]

    def count(rank: int, cells: CellRange) -> list[int]:
        of = counts[rank] if cells.buffer is Buffer.SCRATCH else None
        places = range(cells.first, cells.end)
        return [of[n] if of is not None else known[rank][cells.buffer][n].count for n in places]

    for task in stream.tasks:
        if task.writes is None or task.writes.buffer is not Buffer.SCRATCH:
            continue
        rank = task.target_rank
        for number, length in zip(
            range(task.writes.first, task.writes.end), count(task.rank, task.reads[0]), strict=True
        ):
            counts[rank][number] = max(length, counts[rank].get(number, 0))
    found = []
    for of_rank in counts:
        lengths = [of_rank.get(number, 0) for number in range(1 + max(of_rank, default=-1))]
        starts = accumulate(lengths, initial=0)
        found.append(
            {n: CellExtent(first, length) for n, (first, length) in enumerate(zip(starts, lengths, strict=False))}
        )
    return found


def _in_units(gpu: PlanGpu, extents: _Extents) -> PlanGpu:
    """Program of a rank with offsets and counts in units."""
    scratch = extents[gpu.rank][Buffer.SCRATCH]
    blocks = []
    for block in gpu.blocks:
        operations = tuple(_operation(gpu, block, operation, extents) for operation in block.operations)
        blocks.append(replace(block, operations=operations))
    length = max((extent.first + extent.count for extent in scratch.values()), default=0)
    return replace(gpu, scratch_chunks=length, blocks=tuple(blocks))


def _operation(gpu: PlanGpu, block: PlanBlock, operation: Operation, extents: _Extents) -> Operation:
    target = operation.target
    if target is not None:
        rank = gpu.rank
        if operation.remote is not None:
            rank = gpu.remotes[block.remotes[operation.channel_type][operation.remote]].rank
        target = _units(extents[rank], target)
    return replace(
        operation, sources=tuple(_units(extents[gpu.rank], cells) for cells in operation.sources), target=target
    )


def _units(of_rank: dict[Buffer, Mapping[int, CellExtent]], cells: CellRange) -> CellRange:
    found = of_rank[cells.buffer]
    first, last = found[cells.first], found[cells.end - 1]
    return CellRange(cells.buffer, first.first, last.first + last.count - first.first)


def _require_offsets(gpus: tuple[PlanGpu, ...], unit_bytes: int) -> None:
    for gpu in gpus:
        longest = unit_bytes * max(gpu.input_chunks, gpu.output_chunks, gpu.scratch_chunks)
        if longest > MSCCLPP.max_offset_bytes:
            raise beyond(
                "max_bytes",
                f"a buffer of rank {gpu.rank} has {longest} bytes, and offsets of {MSCCLPP.title} end at {MSCCLPP.max_offset_bytes}; "
                "ask for less at once",
            )

"""For which lengths of its chunks a plan is executed, so that what holds for them holds for all.

Threadblocks of a group share the bytes of an operation in parts that are equal or differ by one, and a pipeline passes over a chunk
as often as its unit fits; so a plan with neither is executed once. Where there are groups, chunks that all of them cut evenly, one
cell more, and one cell are enough (one cell less too, where there are groups of several sizes); where there are pipelines, one to three passes, a last pass that is not whole, and as many that
scratch is gone round in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from taccl_py.runtimes import MSCCLPP
from taccl_py.verify.msccl.findings import Findings
from taccl_py.verify.mscclpp.grammar import UNLIMITED_BYTES, Operation, Plan
from taccl_py.verify.mscclpp.rules import size_unit_bytes
from taccl_py.verify.mscclpp.spans import Sizing

_MOST_PIECES = 256  # cells of a chunk


@dataclass(frozen=True, slots=True)
class PlanSizes:
    """Lengths for which a plan is executed.

    Attributes
    ----------
    declared
        Those that its range of sizes has.
    beyond
        One for which its scratch is too short, of a plan that leaves its largest size open; else None.
    beyond_bytes
        Largest message that is shorter.
    """

    declared: tuple[Sizing, ...]
    beyond: Sizing | None = None
    beyond_bytes: int = 0


def find_sizes(plan: Plan, findings: Findings) -> PlanSizes:
    """Lengths for which a plan is executed; says so where they are too many."""
    parts = math.lcm(*{one.slice.parts for one in _operations(plan) if one.slice is not None})
    units = sorted({one.unit_bytes for one in _operations(plan) if one.inner})
    counted = size_unit_bytes(plan) // plan.alignment_bytes
    least = max(plan.min_bytes // counted, plan.alignment_bytes)
    most = plan.max_bytes // counted
    if parts > _MOST_PIECES:
        what = f"its groups of threadblocks cut chunks into {parts} parts together, and at most {_MOST_PIECES} are followed"
        findings.unsupported("group-sizes", what)
        return PlanSizes(())
    if not units:
        several = len({one.slice.parts for one in _operations(plan) if one.slice is not None} - {1}) > 1
        lengths = dict.fromkeys((parts, 1, parts + 1, *([2 * parts - 1] if several else [])) if parts > 1 else (1,))
        fitting = [pieces for pieces in lengths if pieces >= parts or least <= pieces * plan.alignment_bytes]
        sizings = [Sizing(one) for one in fitting if one * plan.alignment_bytes <= most] or [Sizing(1)]
        return PlanSizes(tuple(_halves(plan, sizings)))
    return _of_pipelines(plan, units, (parts, least, most), findings)


def _of_pipelines(plan: Plan, units: list[int], bounds: tuple[int, int, int], findings: Findings) -> PlanSizes:
    parts, least, most = bounds
    step = math.gcd(*units)
    fine = parts if parts > 1 else 2
    cells = {unit: unit // step * fine for unit in units}
    longest = units[-1] // step
    found = [
        Sizing(pieces, cells)
        for passes in (1, 2, 3)
        for pieces in (passes * longest * fine, passes * longest * fine - 1)
        if _reached(pieces, step, fine, least, most)
    ]
    if not found:  # chunks of more than three passes
        found = [Sizing(3 * longest * fine, cells)]
    if longest * fine * 3 > _MOST_PIECES:
        what = f"its pipelines repeat {units[0]} and {units[-1]} bytes, which differ too much to be followed together"
        findings.unsupported("pipeline-units", what)
        return PlanSizes(())
    beyond = _beyond(plan, cells, step // fine)
    if beyond is None or most <= beyond[1]:
        return PlanSizes(tuple(_halves(plan, found)))
    sizing, short = beyond
    if plan.max_bytes != UNLIMITED_BYTES:
        return PlanSizes(tuple(_halves(plan, [*found, sizing])))
    counted = size_unit_bytes(plan) // plan.alignment_bytes
    return PlanSizes(tuple(_halves(plan, found)), sizing, short * counted)


def _reached(pieces: int, step: int, fine: int, least: int, most: int) -> bool:
    """True if some chunk of the declared sizes is passed over as often."""
    shortest, longest = pieces * step // fine - step + 1, pieces * step // fine
    return longest >= least and shortest <= most


def _beyond(plan: Plan, cells: dict[int, int], cell_bytes: int) -> tuple[Sizing, int] | None:
    """Length for which pipelines go round in scratch, and the longest chunk for which they do not."""
    scratch = max(gpu.scratch_chunks for gpu in plan.gpus)
    if not plan.shares_scratch or not scratch:
        return None
    length = MSCCLPP.shared_scratch_bytes // (2 if plan.doubles_scratch else 1) // scratch
    room = length // cell_bytes
    most = max(cells.values())
    if room > _MOST_PIECES * most or cell_bytes > length:
        return None
    return Sizing(room + 2 * most, cells, scratch_pieces=room), length


def _halves(plan: Plan, sizings: list[Sizing]) -> Iterator[Sizing]:
    """Calls that use the first half of a doubled scratch, and those that use the second one.

    The runtime adds the half to addresses of packets and of own scratch, and forgets it for others' scratch and for proxies, also
    where they read own scratch.
    """
    for one in sizings:
        yield one
        if plan.doubles_scratch:
            yield replace(one, second_half=True)


def _operations(plan: Plan) -> Iterator[Operation]:
    for gpu in plan.gpus:
        for block in gpu.blocks:
            for _, operation in block.all_operations:
                yield operation

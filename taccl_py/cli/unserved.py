"""Notes on sizes at which no runtime chooses a file or a plan, though it was made for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from taccl_py.units import format_size

if TYPE_CHECKING:
    from taccl_py.lowering.plan import Plan
    from taccl_py.lowering.program import Program
    from taccl_py.runtimes import Runtime


def unserved_note(sized: Iterable[tuple[int, Program]], runtime: Runtime) -> str:
    """A note on sizes, each with the program for it, that its chunks do not divide; empty where there are none.

    It names the largest of these, and the sizes next to it at which the runtime would choose the file.
    """
    from taccl_py.lowering.limits import multiples_beside
    from taccl_py.lowering.program import size_divisor

    unserved = [(size, divisor) for size, program in sized if size % (divisor := size_divisor(program, runtime))]
    if not unserved:
        return ""
    size, divisor = max(unserved)
    more = f" and {len(unserved) - 1} more of these sizes" if len(unserved) > 1 else ""
    near = " and ".join(map(str, multiples_beside(size, divisor)))
    return (
        f"note: {runtime.title} never uses the file at {format_size(size)}{more}: a size must be a multiple of {divisor} elements, "
        f"such as {near} bytes, where it takes about as long"
    )


def unserved_plan_note(size_bytes: int, plan: Plan) -> str:
    """The same for a plan for MSCCL++ and the size of its schedule."""
    if size_bytes % plan.unit_bytes == 0:
        return ""
    return f"note: the runtime runs the plan at multiples of {plan.unit_bytes} bytes, and not at the schedule's {size_bytes}"

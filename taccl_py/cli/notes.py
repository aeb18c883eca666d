"""Notes for people on programs that were made: sizes that are not served, times that are not kept, what no verifier can reject."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from taccl_py.runtimes import EXECUTOR, V100_THREADBLOCKS
from taccl_py.units import format_gap, format_size, format_time

if TYPE_CHECKING:
    from taccl_py.answer import Answer
    from taccl_py.lowering.lower import LoweringOptions
    from taccl_py.lowering.plan import Plan
    from taccl_py.lowering.program import Program
    from taccl_py.pipeline.deliver import Lowered
    from taccl_py.runtimes import Runtime

# A replay that is slower than the schedule by more than this is worth a word.
_REPLAY_TOLERANCE = 0.01
_V100 = "v100"


def undeclared_note(sizes: Iterable[int], made: Program | Plan) -> str:
    """A note on sizes for which a program does not declare itself; empty where there are none."""
    outside = [size for size in sizes if not made.min_bytes <= size <= made.max_bytes]
    if not outside:
        return ""
    low = format_size(made.min_bytes) if made.min_bytes > 0 else "0"
    return (
        f"note: no runtime takes the file at {', '.join(map(format_size, outside))}, as it declares itself for {low} to "
        f"{format_size(made.max_bytes)}"
    )


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
        return undeclared_note([size_bytes], plan)
    return f"note: the runtime runs the plan at multiples of {plan.unit_bytes} bytes, and not at the schedule's {size_bytes}"


def faster_by_switch_note(switch_us: float | None, runtime_us: float | None, how: str) -> str:
    """A note on a plan for MSCCL++ by switch that is faster than one by messages, and how to make it; empty if there is none."""
    if switch_us is None or runtime_us is None or switch_us >= runtime_us:
        return ""
    return f"note: by switch it takes {format_time(switch_us)} ({how}), for buffers that were allocated for that (mscclpp.RawGpuBuffer)"


def program_notes(
    answer: Answer, lowered: Lowered, options: LoweringOptions, output: Path | None, *, cut_short: bool
) -> list[str]:
    """Notes on the program of an answer; `cut_short` says that lowering was interrupted."""
    program, runtime = lowered.program, options.runtime
    size = round(answer.schedule.size_bytes)
    unserved = unserved_note([(size, program)], runtime)
    slow = _slow_replay(answer, lowered, options.instances, cut_short=cut_short) if answer.profile.is_neutral else ""
    notes = [note for note in (undeclared_note([size], program), unserved, slow) if note]
    return [*notes, *_warnings(lowered, runtime, answer.schedule.topology.gpu_models, output)]


def _slow_replay(answer: Answer, lowered: Lowered, instances: int, *, cut_short: bool) -> str:
    """A note for people where the XML does not keep what the schedule promises, with the cause where it is known."""
    slower = lowered.replay.makespan_us / answer.time_us - 1
    if slower <= _REPLAY_TOLERANCE:
        return ""
    cause = ""
    if cut_short:
        cause = ", as other orders may not have been tried after the interrupt (taccl lower tries them)"
    elif instances > 1:
        cause = f", because each of the {instances} instances pays alpha for itself"
    elif answer.schedule.topology.ports:
        cause = ", because ranks that share a port (a NIC) cannot wait for each other in MSCCL"
    return (
        f"note: the XML takes {format_gap(slower)} longer than the schedule{cause}; the replay is the safer prediction"
    )


def _warnings(lowered: Lowered, runtime: Runtime, gpus: Iterable[str], output: Path | None) -> list[str]:
    """Notes for people about what the verifier cannot reject, as it depends on the caller, on the GPU, or on luck."""
    facts = lowered.verdict.facts
    found = []
    if lowered.program.kind in runtime.uncalled:
        found.append(
            f"note: {runtime.title} has no call for {lowered.program.kind}, so it loads the XML and never selects it; see --runtime"
        )
    if facts is not None and facts.flags_early:
        found.append(
            "note: with LL this runtime may overwrite what is still being sent; use --protocol LL128 or Simple, or leave it out"
        )
    if lowered.program.num_threadblocks > V100_THREADBLOCKS and any(
        model.partition("-")[0] in ("", _V100) for model in gpus
    ):
        found.append(
            f"note: {lowered.program.num_threadblocks} threadblocks a GPU hang on a V100, which runs {V100_THREADBLOCKS} at a time"
        )
    if output is not None and output.suffix == ".xml" and runtime is not EXECUTOR:
        found.append(f"note: it is for {runtime.title}; install and check it with --runtime {runtime.name}")
    return found

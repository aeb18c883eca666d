"""Delivery of answers: programs made, facts gathered for tables and summaries, and files written."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taccl_py.answer import Scope
from taccl_py.cli.interrupt import interrupts_drop
from taccl_py.errors import InputError, Interrupted
from taccl_py.jsonio import canonical_json, write_all
from taccl_py.report.tables import SUMMARY_FORMAT
from taccl_py.schedule.files import write_schedule

if TYPE_CHECKING:
    from taccl_py.answer import Answer
    from taccl_py.api.lowering import Choice, Delivered
    from taccl_py.lowering.lower import LoweringOptions
    from taccl_py.lowering.mscclpp import LoweredPlan
    from taccl_py.lowering.plan import Plan
    from taccl_py.pipeline.deliver import Lowered
    from taccl_py.runtimes import Runtime
    from taccl_py.solvers.limits import Over

_NOT_LOWERED = "interrupted while the schedule was lowered; --only-schedule writes it as it is"
# In the directory that was to have all files; those of an earlier run are left alone.
_UNLOWERED = "unlowered.json"


def deliver_answer(
    answer: Answer,
    options: LoweringOptions,
    instances: int | None,
    over: Over,
    settled_by: Over,
    stop: threading.Event,
    output: Path | None,
) -> Delivered:
    """Lower what was found; see `kept_if_interrupted`."""
    from taccl_py.api.lowering import deliver
    from taccl_py.pipeline.select import LoweringEnds

    with kept_if_interrupted(answer, stop, output):
        return deliver(answer, options, instances, LoweringEnds(over, settled_by, stop.is_set))


@contextmanager
def kept_if_interrupted(
    answer: Answer, stop: threading.Event, output: Path | None, options: str = ""
) -> Iterator[None]:  # fmt: skip
    """For lowering: if that is interrupted, leave the schedule in the directory that was named; `options` are those to lower it later.

    Raises
    ------
    Interrupted
        With a sentence on how to go on.
    """
    try:
        with interrupts_drop(stop, _NOT_LOWERED):
            yield
    except Interrupted:
        if output is None or output.suffix == ".xml":
            raise
        path = output / _UNLOWERED
        write_all({path: write_schedule(answer.schedule)})
        raise Interrupted(
            f"interrupted while the schedule was lowered; taccl lower {path}{options} does that"
        ) from None


def program_facts(choice: Choice | None, runtime: Runtime) -> dict[str, Any]:
    """Runtime of a program, and what was chosen for it under a runtime profile; nothing without a program."""
    if choice is None:
        return {}
    facts: dict[str, Any] = {"runtime": runtime.name}
    if choice.runtime_us is not None:
        facts |= {"instances": choice.instances, "runtime_us": choice.runtime_us}
    return facts


def plan_facts(plan: Plan) -> dict[str, Any]:
    """Facts about an MSCCL++ plan."""
    from taccl_py.runtimes import MSCCLPP

    return {
        "runtime": MSCCLPP.name,
        "protocol": plan.protocol,
        "threadblocks": plan.num_threadblocks,
        "threadblock_steps": plan.num_operations,
        "channels": plan.num_channels,
        "in_place": plan.in_place,
        "out_of_place": not plan.in_place,
        "min_bytes": plan.min_bytes,
        "max_bytes": plan.max_bytes,
        "unit_bytes": plan.unit_bytes,
    }


def runtime_facts(answer: Answer, note: str) -> dict[str, Any]:
    """Runtime profile, and the bound under it or why it is neutral."""
    profile, bound = answer.profile, answer.bound(Scope.RUNTIME)
    if bound is None:
        return {"runtime_profile": profile.name, **({"runtime_note": note} if note else {})}
    facts: dict[str, Any] = {"runtime_profile": profile.name, "runtime_evidence": profile.evidence}
    return facts | {"runtime_bound_us": bound.time_us, "runtime_bound_reason": bound.reason}


def is_schedule_alone(output: Path | None) -> bool:
    """True if the file that is asked for is a schedule, so that no program is made."""
    return output is not None and output.suffix == ".json"


def check_output(output: Path | None, *, only_schedule: bool = False) -> None:
    """Refuse what cannot be written before any work is done."""
    if output is None:
        return
    if only_schedule and output.suffix != ".json":
        raise InputError(
            "there is no program to write; name a file ending in .json", path="command line", field="--output"
        )
    is_file = output.suffix in (".json", ".xml")
    if not is_file and output.suffix.lower() in (".json", ".xml"):
        raise InputError(f"ends in {output.suffix}; write {output.suffix.lower()} for one file", path=str(output))
    if is_file and output.is_dir():
        raise InputError("is a directory; name a file, or a directory without .xml or .json", path=str(output))
    if not is_file and output.exists() and not output.is_dir():
        raise InputError("is a file; name a directory, or a file ending in .xml or .json", path=str(output))


def write_answer(
    output: Path | None,
    answer: Answer,
    lowered: Lowered | LoweredPlan | None,
    facts: dict[str, Any],
    program: str = "algorithm.xml",
    written: dict[tuple[int, ...], str] | None = None,
) -> list[str]:
    """Write what was asked for, `facts` in the summary; every text is complete before the first file is. `written` is as for `write_schedule`."""
    if output is None:
        return []
    schedule = write_schedule(answer.schedule, written)
    if output.suffix == ".json":
        texts = {output: schedule}
    elif lowered is None or output.suffix == ".xml":
        texts = {output: lowered.text if lowered else ""}
    else:
        paths = [output / name for name in ("schedule.json", program, "summary.json")]
        names = [path.name for path in paths]
        summary = canonical_json({"format": SUMMARY_FORMAT, **facts, "files": names})
        texts = dict(zip(paths, (schedule, lowered.text, summary), strict=True))
    write_all(texts)
    return [str(path) for path in texts]

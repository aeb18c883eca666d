"""Predicted times of schedules and algorithm files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from taccl_py.answer import Answer
from taccl_py.api.arguments import machine_of, names_arguments, path_of, size_of
from taccl_py.api.files import LoweredFile
from taccl_py.api.policy import AUTO, runtime_named
from taccl_py.api.subject import (
    GivenFile,
    Placed,
    demand_program_subject,
    demand_subject,
    load_subject,
    plan_subject,
    program_subject,
    runtime_times,
    schedule_subject,
)
from taccl_py.errors import InputError
from taccl_py.lowering.plan import Plan
from taccl_py.pipeline.demands import DemandAnswer
from taccl_py.profiles.catalog import load_profile, neutral_profile, select_profile
from taccl_py.profiles.model import RuntimeProfile
from taccl_py.runtimes import RUNTIMES
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.schedule.ir import Schedule
from taccl_py.simulate.timeline import Timeline
from taccl_py.topology.model import Topology
from taccl_py.units import algbw_gbps


@dataclass(frozen=True)
class Prediction:
    """Predicted time of one call.

    Attributes
    ----------
    size_bytes
        Size as nccl-tests counts it.
    time_us
        Time on links and ports alone, in microseconds.
    runtime_us
        Time of the program under the runtime profile; None for a schedule, which has no threadblocks, and under the neutral profile.
    timeline
        Every transfer, with start and end on links and ports.
    profile
        The runtime profile.
    """

    size_bytes: float
    time_us: float
    runtime_us: float | None
    timeline: Timeline
    profile: RuntimeProfile

    @property
    def best_us(self) -> float:
        """Time under the runtime profile if there is one, else that on links and ports."""
        return self.time_us if self.runtime_us is None else self.runtime_us

    @property
    def algbw_gbps(self) -> float | None:
        """Size over `best_us` in GB/s (10^9 bytes a second); None where nothing moves."""
        return algbw_gbps(self.size_bytes, self.best_us) if self.best_us > 0 else None

    @property
    def busbw_gbps(self) -> float | None:
        """Bus bandwidth as nccl-tests counts it, in GB/s; None where nothing moves."""
        return None if self.algbw_gbps is None else self.algbw_gbps * self.timeline.busbw_factor


@names_arguments
def predict(
    what: Answer | Schedule | DemandAnswer | DemandSchedule | LoweredFile | str | Path,
    size: int | float | str | None = None,
    *,
    machine: Topology | str | Path = "",
    nodes: int | None = None,
    runtime: str = AUTO,
    runtime_profile: str = AUTO,
) -> Prediction:
    """Replay a schedule or an algorithm file event by event, as ``taccl simulate``.

    Parameters
    ----------
    what
        An answer or a schedule (its time on links and ports), what `taccl_py.lower` made, or a file: a schedule, MSCCL XML or an MSCCL++
        plan, which is verified first.
    size
        Size as nccl-tests counts it: bytes, or a text such as ``16MB``; of a demand's schedule all bytes that have to come somewhere.
        None: the size that a schedule was made for, else 1 MB, or chunks of a TACCL profile's size.
    machine, nodes
        Machine of an XML file or a plan: what `load_machine` takes or gives.
    runtime
        Runtime of an XML file: ``executor``, ``rccl``, ``legacy``; ``auto``: the one for the machine's GPUs.
    runtime_profile
        Shipped name or file, or ``neutral``; ``auto``: that of the runtime on the machine's GPUs, or of what `taccl_py.lower` made.

    Returns
    -------
    Prediction
        Times in microseconds.

    Raises
    ------
    InputError
        If an argument or a file is wrong.
    InvalidArtifact
        If the verifier reports errors in a file.
    """
    size_bytes = size_of(size)
    subject = _subject(what, machine_of(machine), nodes, runtime)
    topology = subject.topology
    if subject.replay is None or topology is None:
        raise ValueError("a subject with a machine has no replay")
    if size_bytes is not None and subject.why_one_size:
        raise InputError(f"{subject.why_one_size}; leave size out", path="arguments", field="size")
    if size_bytes is None and isinstance(what, LoweredFile) and isinstance(what.schedule, Schedule):
        size_bytes = round(what.schedule.size_bytes)
    timeline = subject.replay(size_bytes)
    if subject.schedule is not None or subject.demand is not None:
        require_threadblocks("a schedule", runtime_profile)
        return Prediction(timeline.size_bytes, timeline.makespan_us, None, timeline, neutral_profile())
    if runtime_profile == AUTO and isinstance(what, LoweredFile):
        profile = what.profile
    else:
        profile = select_profile(runtime_profile, subject.runtime, topology).profile
    times = runtime_times(subject, profile)
    runtime_us = None if times is None else times(timeline.size_bytes)
    return Prediction(timeline.size_bytes, timeline.makespan_us, runtime_us, timeline, profile)


def require_threadblocks(schedule: str, asked: str) -> None:
    """Refuse the profile of a runtime for a schedule, which errors call by its name.

    Raises
    ------
    InputError
        If one is asked for.
    """
    if asked != AUTO and not load_profile(asked).is_neutral:
        raise InputError(
            f"is for XML files and plans, but {schedule} is a schedule, which has no threadblocks; lower it first (taccl lower), or "
            "leave --runtime-profile out",
            path="command line", field="--runtime-profile",
        )  # fmt: skip


def _subject(
    what: Answer | Schedule | DemandAnswer | DemandSchedule | LoweredFile | str | Path,
    machine: Topology | str,
    nodes: int | None,
    runtime: str,
) -> GivenFile:
    if isinstance(what, str | Path):
        named = tuple(
            name
            for name, given in (("topology", machine != ""), ("nodes", nodes is not None), ("runtime", runtime != AUTO))
            if given
        )
        runtime_named(runtime, None)
        return load_subject(path_of(what), Placed(machine, nodes, runtime=runtime, named=named), verified=True)
    if machine != "" or nodes is not None:
        raise InputError(
            "is for files, and a schedule carries its machine; leave it out", path="arguments", field="machine"
        )
    if isinstance(what, DemandAnswer | DemandSchedule):
        return demand_subject(what if isinstance(what, DemandSchedule) else what.schedule)
    if isinstance(what, Answer):
        return schedule_subject(what.schedule)
    if isinstance(what, Schedule):
        return schedule_subject(what)
    if not isinstance(what, LoweredFile):
        raise InputError(
            f"found {type(what).__name__}, an Answer, a Schedule, what lower made or a file is needed",
            path="arguments", field="what",
        )  # fmt: skip
    topology = what.schedule.topology
    if isinstance(what.schedule, DemandSchedule):
        asked = what.schedule.demand.joined()
        if isinstance(what.program, Plan):
            return plan_subject(what.program, None, topology, "the plan", asked)
        return demand_program_subject(what.program, topology, "the program", asked)
    kind = what.schedule.collective.kind
    if isinstance(what.program, Plan):
        return plan_subject(what.program, kind, topology, "the plan")
    return program_subject(what.program, RUNTIMES[what.runtime], topology, "the program")

"""Programs that were there before a failure, and may go on as they are: then nothing has to be loaded."""

from __future__ import annotations

from dataclasses import replace

from taccl_py.api.lowering import Choice
from taccl_py.errors import InputError
from taccl_py.lowering.buffers import placement_flags
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.lowering.msccl_xml import parse_xml
from taccl_py.lowering.program import Program, chunks_of_size
from taccl_py.pipeline.deliver import Lowered
from taccl_py.profiles.model import RuntimeProfile
from taccl_py.runtimes import Runtime
from taccl_py.schedule.ir import Schedule
from taccl_py.simulate.program_replay import replay_at_size
from taccl_py.simulate.runtime_replay import runtime_us
from taccl_py.verify.msccl import verify_program


def kept_program(
    text: str, name: str, schedule: Schedule, options: LoweringOptions, profile: RuntimeProfile, instances: int
) -> Choice | str:
    """The program that is in use, byte for byte, on the damaged machine; or why it cannot go on.

    Parameters
    ----------
    text, name
        MSCCL XML, and the file's name.
    schedule
        The old schedule with the times of the damaged machine.
    options
        Options that a new program would be lowered with.
    profile
        Runtime profile.
    instances
        Parts of every chunk in the program.
    """
    runtime, collective = options.runtime, schedule.collective
    try:
        program = parse_xml(text, name, runtime)
    except InputError as error:
        return f"it is not for {runtime.title}: {error.what}"
    reason = _difference(program, schedule, options)
    if reason:
        return reason
    verdict = verify_program(text, runtime, kind=collective.kind, root=collective.own_root)
    if verdict.violations or verdict.unsupported:
        return "its verifier rejects it; taccl check says why"
    try:
        replay = replay_at_size(program, runtime, schedule.topology, schedule.size_bytes)
    except InputError as error:
        return error.what
    lowered = Lowered(program, replay, options.port_order, text, verdict)
    return Choice(schedule, lowered, instances, _runtime_us(program, schedule, profile))


def program_there(known: Choice, schedule: Schedule, runtime: Runtime, profile: RuntimeProfile) -> Choice:
    """A program on another machine that has its links, with the schedule as it is there."""
    program = known.lowered.program
    replay = replay_at_size(program, runtime, schedule.topology, schedule.size_bytes)
    return Choice(
        schedule, replace(known.lowered, replay=replay), known.instances, _runtime_us(program, schedule, profile)
    )


def _runtime_us(program: Program, schedule: Schedule, profile: RuntimeProfile) -> float | None:
    return None if profile.is_neutral else runtime_us(program, schedule.topology, profile, schedule.size_bytes)


def _difference(program: Program, schedule: Schedule, options: LoweringOptions) -> str:
    """How a program differs from what is asked for; empty if it does not."""
    collective = schedule.collective
    if (program.kind, len(program.gpus)) != (collective.kind, collective.num_ranks):
        return f"it is {program.kind} on {len(program.gpus)} ranks, and not that of the schedule"
    flags = placement_flags(options.placement, options.runtime, collective.kind)
    lacks_calls = (flags.in_place and not program.in_place) or (flags.out_of_place and not program.out_of_place)
    if lacks_calls or options.protocol not in (None, program.protocol):
        return "it has another placement or protocol than is asked for"
    counted = schedule.size_bytes * program.num_chunks_per_loop / chunks_of_size(program, options.runtime)
    most = counted if options.max_bytes is None else options.max_bytes
    serves = program.min_bytes <= (options.min_bytes or counted) and most <= program.max_bytes
    return "" if serves else "it is for other sizes"

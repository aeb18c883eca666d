"""``taccl lower``: a schedule for a runtime."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from taccl_py.cli.asked import refuse_others
from taccl_py.cli.delivery import plan_facts
from taccl_py.cli.lower_targets import CHAKRA, OTHER_TARGETS, lower_to, refuse_network_option
from taccl_py.cli.notes import faster_by_switch_note, undeclared_note, unserved_note, unserved_plan_note
from taccl_py.cli.options import (
    SIZE,
    echo_json,
    in_json,
    json_option,
    lowering_options,
    make_lowering_options,
    make_plan_options,
    refuse_own_input,
    require_room_for_json,
    runtime_profile_option,
)
from taccl_py.cli.subject import SCHEDULE, refuse_folder
from taccl_py.errors import InputError, require_verdict
from taccl_py.jsonio import format_of, read_text, write_all, write_atomically
from taccl_py.lowering.program import Program
from taccl_py.runtimes import LEGACY, Runtime
from taccl_py.schedule.files import DEMAND_SCHEDULE_FORMAT, GROUP_FORMAT, read_schedule
from taccl_py.schedule.ir import Schedule
from taccl_py.units import format_count, format_gap, format_size, format_time

if TYPE_CHECKING:
    from taccl_py.lowering.mscclpp import PlanOptions
    from taccl_py.lowering.plan import Plan
    from taccl_py.pipeline.deliver import Lowered
    from taccl_py.pipeline.demand_programs import DemandProgram
    from taccl_py.pipeline.in_network import SwitchPlan
    from taccl_py.profiles.model import RuntimeProfile
    from taccl_py.schedule.for_demand import DemandSchedule
    from taccl_py.schedule.group import GroupSchedule

_XML, _PLAN = "msccl-xml", "mscclpp-json"
# Parameters that mean something for the schedule of a demand.
_OF_DEMANDS = ("schedule", "output", "target", "name", "runtime", "group", "as_json")


@dataclass(frozen=True, slots=True)
class _Written:
    """Text of the file, facts for --json, and a summary for people with notes as its last lines."""

    text: str
    facts: dict[str, Any]
    summary: str

    @property
    def notes(self) -> list[str]:
        """Notes of the summary."""
        return [line for line in self.summary.splitlines() if line.startswith("note: ")]


@click.command("lower", short_help="Lower a schedule to MSCCL XML, an MSCCL++ plan, traces or channels.")
@click.argument("schedule", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, allow_dash=True),
    required=True,
    help="File to write (for chakra, a folder); - for stdout.",
)
@click.option(
    "--to",
    "target",
    type=click.Choice([_XML, _PLAN, *OTHER_TARGETS]),
    default=_XML,
    show_default=True,
    help="MSCCL XML; a one-sided execution plan for MSCCL++; Chakra execution traces, for ASTRA-sim; or the rings or trees of one "
    "node for NCCL (NCCL_GRAPH_FILE) or RCCL (NCCL_RINGS, RCCL_TREES).",
)
@click.option(
    "--rank", type=click.IntRange(0), default=None, help="Of a group schedule, the program of this rank alone."
)
@click.option(
    "--switch",
    is_flag=True,
    help="Let the switch multicast and add up (mscclpp-json; AllReduce, AllGather and Broadcast, where the topology says that it "
    "can): ranks let it store their part at all ranks. SCHEDULE says machine, collective and size, its messages do not matter. "
    "Of several nodes, each one's switch serves it, and ranks of one number send to each other. How many ranks add up, and in "
    "how many pieces, is what is fastest at SCHEDULE's size.",
)
@click.option(
    "--group",
    type=click.IntRange(1, 32),
    default=None,
    help="Threadblocks that share every operation (mscclpp-json), as a group; chunks are not cut, as they are by --instances.",
)
@click.option(
    "--loop",
    "loop_bytes",
    type=SIZE,
    default=None,
    help="Go through operations in pieces of this size, one after the other (mscclpp-json, protocol Simple: pipeline).",
)
@click.option(
    "--name",
    default=None,
    help="Name of the algorithm in the file (default: collective and machine), or of the files of traces (default: algorithm).",
)
@click.option(
    "--no-network",
    is_flag=True,
    help="Write traces without a network file, where ASTRA-sim's analytical back end has no network like the machine.",
)
@lowering_options()
@runtime_profile_option
@json_option
def lower_command(schedule: Path, output: Path, target: str, as_json: bool, **values: Any) -> None:  # fmt: skip
    """Lower SCHEDULE (a schedule.json) to MSCCL XML, to an execution plan (JSON) for MSCCL++, to traces, or to channels.

    The schedule of a demand is lowered to a plan, whose ranks have buffers of the demand's lengths, or to XML for legacy MSCCL (--runtime
    legacy), which takes it as a custom collective. Other runtimes never select a file for one.

    A group schedule (of taccl replicate) is lowered rank by rank, and never written down as a whole. A file of one rank (--rank) has
    empty entries for the other ranks, which a runtime passes over; the rank's limits are tested, and that its peers agree with it.

    The schedule is verified first, and what was written after it; nothing is written to which a verifier objects.

    A plan puts data straight into the memory of the receiver, through memory channels inside a node and port channels between
    nodes, with signals (protocol Simple) or as packets that need none (LL; no rooted collectives). It is for one placement (both means
    in place, but out of place for AllToAll), sums only. Under a runtime profile protocol, groups of threadblocks (or
    instances) and loops are those that are fastest at SCHEDULE's size, and a plan by packets ends where one by signals is faster.

    Execution traces are a graph of sends and receives for each rank, with the files with which ASTRA-sim runs it. Channels are the
    orders of GPUs that NCCL or RCCL use instead of their own; a schedule that is anything but rings or trees is refused.

    \b
    Examples:
      taccl lower out/schedule.json --runtime rccl --placement in --instances 2 -o rccl.xml
      taccl lower out/schedule.json --to mscclpp-json -o plan.json
      taccl lower ndv5/schedule.json --to mscclpp-json --switch --instances 8 -o nvls.json
      taccl lower group.json --rank 5 -o rank5.xml
      taccl lower ring/schedule.json --to chakra -o traces/
      taccl lower dgx1/schedule.json --to nccl-graph -o graph.xml
    """
    from taccl_py.pipeline.search import require_valid

    require_room_for_json(output, as_json=as_json)
    refuse_own_input(output, schedule)
    refuse_folder(schedule, SCHEDULE)
    if target != CHAKRA:
        refuse_network_option(target)
    if values["switch"] and target == _XML:
        raise InputError(
            f"no runtime for XML has a step that a switch carries out; write --to {_PLAN}, or leave it out",
            path="command line",
            field="--switch",
        )
    _refuse_plan_options(target, values)
    text = read_text(schedule)
    subject: Schedule | GroupSchedule | DemandSchedule
    stated = format_of(text, str(schedule))
    if stated == DEMAND_SCHEDULE_FORMAT:
        subject = _read_demand_schedule(text, schedule)
        written = _lower_demand(subject, target, values)
    elif stated == GROUP_FORMAT:
        subject = _read_group(text, schedule, target, values)
        written = _lower_group(subject, values)
    else:
        if values["rank"] is not None:
            raise InputError(
                "only a group schedule is lowered for one rank; leave it out", path="command line", field="--rank"
            )
        subject = read_schedule(text, str(schedule))
        require_valid(subject, str(schedule))
        if target in OTHER_TARGETS:
            _write_other(target, subject, output, values, as_json=as_json)
            return
        written = (_lower_plan if target == _PLAN else _lower_xml)(subject, values)
    if str(output) == "-":
        click.echo(written.text, nl=False)
        for note in written.notes:
            click.echo(note, err=True)
        return
    write_atomically(output, written.text)
    if as_json:
        echo_json(
            {"files": [str(output)], "makespan_us": subject.makespan_us, **written.facts, **in_json(written.notes)}
        )
        return
    click.echo(f"wrote {output}: {written.summary}", err=True)


def _refuse_plan_options(target: str, values: dict[str, Any]) -> None:
    from taccl_py.lowering.plan import SIMPLE
    from taccl_py.runtimes import MSCCLPP

    for field in ("group", "loop"):
        asked = values["loop_bytes" if field == "loop" else field] is not None
        if asked and (target != _PLAN or values["switch"]):
            what = "plans by switch have instances alone" if target == _PLAN else f"only {_PLAN} has these"
            raise InputError(f"{what}; leave it out", path="command line", field=f"--{field}")
    loop_bytes = values["loop_bytes"]
    if loop_bytes is None:
        return
    if values["group"] is not None or values["protocol"] not in ("auto", SIMPLE):
        what = (
            f"loops are of signals (--protocol {SIMPLE}) and not of groups, but of --instances; leave it or those out"
        )
        raise InputError(what, path="command line", field="--loop")
    if not loop_bytes or loop_bytes % MSCCLPP.alignment_bytes:
        what = f"found {loop_bytes} bytes; write a multiple of {MSCCLPP.alignment_bytes}"
        raise InputError(what, path="command line", field="--loop")


def _write_other(target: str, schedule: Schedule, output: Path, values: dict[str, Any], *, as_json: bool) -> None:
    """Write the files of a target without programs, and say so."""
    made = lower_to(target, schedule, output, values)
    if str(output) == "-":
        (text,) = made.files.values()
        click.echo(text, nl=False)
        return
    write_all(made.files)
    if as_json:
        echo_json({"files": list(map(str, made.files)), "makespan_us": schedule.makespan_us, **made.facts})
        return
    click.echo(f"wrote {output}: {made.summary}", err=True)
    if made.note:
        click.echo(made.note, err=True)


def _read_demand_schedule(text: str, path: Path) -> DemandSchedule:
    """The schedule of a demand that the verifier accepts."""
    from taccl_py.schedule.demand_files import read_demand_schedule
    from taccl_py.verify.demand import verify_demand_schedule

    refuse_others(_OF_DEMANDS, f"that of {path}")
    schedule = read_demand_schedule(text, str(path))
    require_verdict(str(path), verify_demand_schedule(schedule))
    return schedule


def _lower_demand(schedule: DemandSchedule, target: str, values: dict[str, Any]) -> _Written:
    """Program of the schedule of a demand, for what takes one."""
    from taccl_py.api.policy import chosen_runtime
    from taccl_py.pipeline.demand_programs import DEMAND_TARGETS, refuse_runtime
    from taccl_py.runtimes import MSCCLPP

    if target in OTHER_TARGETS:
        raise InputError(
            f"{target} is for the eight collectives, and this is the schedule of a demand; write --to {_PLAN}",
            path="command line",
            field="--to",
        )
    runtime = MSCCLPP.name if target == _PLAN else chosen_runtime(values["runtime"], schedule.topology).name
    found = next((one for one in DEMAND_TARGETS if one.runtime == runtime), None)
    if found is None:
        raise refuse_runtime(runtime)
    made = found.lower(schedule, schedule.demand.joined(), values["name"], values["group"])
    facts, summary = _demand_facts(made)
    return _Written(made.text, facts, summary)


def _demand_facts(made: DemandProgram) -> tuple[dict[str, Any], str]:
    if isinstance(made.program, Program):
        facts, summary = _facts(made.program, LEGACY.name), _summary(made.program)
    else:
        facts, summary = _plan_facts(made.program)
    facts = {**facts, "unit_bytes": made.unit_bytes}
    summary += f", chunks of {made.unit_bytes} bytes"
    if made.group > 1:
        summary += f", {made.group} threadblocks share every operation"
    facts |= made.runtime_facts
    if made.runtime_us is not None:
        summary += f", {format_time(made.runtime_us)} under runtime profile {made.profile}"
    return facts, summary


def _read_group(text: str, path: Path, target: str, values: dict[str, Any]) -> GroupSchedule:
    """A group schedule that the verifier accepts, if it can be lowered as the options say."""
    from taccl_py.schedule.group_files import read_group
    from taccl_py.verify.group import verify_group

    if target != _XML:
        raise InputError(
            f"group schedules are lowered to {_XML}; leave --to out, or use taccl synth",
            path="command line",
            field="--to",
        )
    group = read_group(text, str(path))
    require_verdict(str(path), verify_group(group))
    if values["rank"] is not None and values["rank"] >= group.topology.num_ranks:
        raise InputError(
            f"rank {values['rank']} does not exist, ranks are 0..{group.topology.num_ranks - 1}",
            path="command line",
            field="--rank",
        )
    return group


def _lower_group(group: GroupSchedule, values: dict[str, Any]) -> _Written:
    from taccl_py.pipeline.deliver import lower_group_and_verify, lower_one_rank

    options = replace(make_lowering_options(values, group.topology), name=values["name"])
    if values["rank"] is None:
        return _written(lower_group_and_verify(group, options), group, options.runtime.name)
    program, text = lower_one_rank(group, values["rank"], options)
    return _Written(text, _facts(program, options.runtime.name), _summary(program))


def _lower_xml(subject: Schedule, values: dict[str, Any]) -> _Written:
    from taccl_py.api.lowering import lower_schedule
    from taccl_py.profiles.catalog import select_profile

    options = replace(make_lowering_options(values, subject.topology), name=values["name"])
    profile = select_profile(values["runtime_profile"], options.runtime.name, subject.topology).profile
    choice = lower_schedule(subject, options, profile, values["instances"])
    written = _written(choice.lowered, subject, options.runtime.name)
    note = _unserved(subject, choice.lowered, options.runtime)
    if choice.runtime_us is None:
        return replace(written, summary=written.summary + note)
    facts = {"instances": choice.instances, "runtime_us": choice.runtime_us, "runtime_profile": profile.name}
    return replace(
        written,
        facts=written.facts | facts,
        summary=f"{written.summary}, {format_time(choice.runtime_us)} under runtime profile {profile.label}{note}",
    )


def _unserved(schedule: Schedule, lowered: Lowered, runtime: Runtime) -> str:
    """A line more where the runtime would not choose the file at the size that the schedule was made for."""
    size = round(schedule.size_bytes)
    note = undeclared_note([size], lowered.program) or unserved_note([(size, lowered.program)], runtime)
    return f"\n{note}" if note else ""


def _written(lowered: Lowered, subject: Schedule | GroupSchedule, runtime: str) -> _Written:
    facts = {"replay_us": lowered.replay.makespan_us, **_facts(lowered.program, runtime)}
    replayed = f"replayed {format_time(lowered.replay.makespan_us)} (schedule {format_time(subject.makespan_us)})"
    return _Written(lowered.text, facts, f"{_summary(lowered.program)}, {replayed}")


def _facts(program: Program, runtime: str) -> dict[str, Any]:
    return {
        "runtime": runtime,
        "protocol": str(program.protocol),
        "threadblocks": program.num_threadblocks,
        "threadblock_steps": program.num_steps,
        "channels": program.num_channels,
        "in_place": program.in_place,
        "out_of_place": program.out_of_place,
        "min_bytes": program.min_bytes,
        "max_bytes": program.max_bytes,
    }


def _summary(program: Program) -> str:
    blocks, channels = (
        format_count(program.num_threadblocks, "threadblock"),
        format_count(program.num_channels, "channel"),
    )
    return f"{blocks} a GPU, {channels}, {program.protocol}"


def _lower_plan(subject: Schedule, values: dict[str, Any]) -> _Written:
    from taccl_py.pipeline.in_network import switch_runtime_us
    from taccl_py.pipeline.plan_choice import PlanWishes, choose_plan
    from taccl_py.profiles.catalog import select_profile
    from taccl_py.runtimes import MSCCLPP

    if click.get_current_context().get_parameter_source("runtime") is ParameterSource.COMMANDLINE:
        raise InputError(
            f"is a runtime for XML, and {_PLAN} is for {MSCCLPP.title} alone; leave --runtime out",
            path="command line",
            field="--runtime",
        )
    options, protocol = make_plan_options(values, subject.topology, by_switch=values["switch"])
    profile = select_profile(values["runtime_profile"], MSCCLPP.name, subject.topology).profile
    if values["switch"]:
        return _lower_by_switch(subject, options, profile, values)
    wishes = PlanWishes(protocol, values["instances"], values["group"], values["loop_bytes"])
    choice = choose_plan(subject, options, profile, wishes)
    facts, summary = _plan_facts(choice.lowered.plan)
    made_with = choice.options
    if made_with.group > 1:
        summary += f", {made_with.group} threadblocks share every operation"
    if made_with.loop_bytes:
        summary += f", loops of {format_size(made_with.loop_bytes)}"
    if choice.runtime_us is not None:
        facts |= {"instances": made_with.instances, "group": made_with.group, "loop_bytes": made_with.loop_bytes}
        facts |= {"runtime_us": choice.runtime_us, "runtime_profile": profile.name}
        summary += f", {format_time(choice.runtime_us)} under runtime profile {profile.label}"
    by_switch_us = switch_runtime_us(subject, options, profile)
    if by_switch_us is not None:
        facts["switch_runtime_us"] = by_switch_us
    summary += _unused_size(subject, choice.lowered.plan)
    note = faster_by_switch_note(by_switch_us, choice.runtime_us, "--switch")
    summary += f"\n{note}" if note else ""
    return _Written(choice.lowered.text, facts, summary)


def _lower_by_switch(
    subject: Schedule, options: PlanOptions, profile: RuntimeProfile, values: dict[str, Any]
) -> _Written:  # fmt: skip
    from taccl_py.pipeline.in_network import lower_by_switch

    try:
        made = lower_by_switch(subject, options, profile, values["instances"])
    except InputError as error:
        path = error.path or str(click.get_current_context().params["schedule"])
        raise InputError(error.what, path=path, field=error.field) from None
    facts, summary = _plan_facts(made.lowered.plan)
    if made.options.pieces > 1:
        summary += f", {made.options.pieces} pieces one after the other"
    most = len(subject.topology.node_ranks[0])
    if made.options.owners is not None and made.options.owners < most:
        summary += f", by {made.options.owners} of {most} ranks of a node"
    if made.runtime_us is not None:
        facts |= {
            "instances": made.options.instances,
            "runtime_us": made.runtime_us,
            "runtime_profile": profile.name,
        }
        summary += f", {format_time(made.runtime_us)} under runtime profile {profile.label}"
    return _Written(made.lowered.text, facts | _switch_facts(made), f"{summary}\n{_against_bound(made)}")


def _unused_size(schedule: Schedule, plan: Plan) -> str:
    """A line more where the runtime would not use the plan at the size that the schedule was made for."""
    note = unserved_plan_note(round(schedule.size_bytes), plan)
    return f"\n{note}" if note else ""


def _switch_facts(made: SwitchPlan) -> dict[str, Any]:
    return {
        "replay_us": made.replay.makespan_us,
        "bound_us": made.bound.time_us,
        "bound_reason": made.bound.reason,
        "gap": made.gap,
        "owners": made.options.owners,
        "pieces": made.options.pieces,
        "rails": str(made.options.rails),
    }


def _against_bound(made: SwitchPlan) -> str:
    size = f"at {format_size(made.replay.size_bytes)}: "
    if not made.is_run:
        size = f"{size.removesuffix(': ')}, which is not run as it is no multiple of {made.unit_bytes} bytes: "
    return (
        f"{size}predicted time {format_time(made.replay.makespan_us)}, lower bound {format_time(made.bound.time_us)} "
        f"({made.bound.reason}; switches included), gap {format_gap(made.gap)}"
    )


def _plan_facts(plan: Plan) -> tuple[dict[str, Any], str]:
    from taccl_py.runtimes import MSCCLPP

    placement = "in place" if plan.in_place else "out of place"
    summary = (
        f"{format_count(plan.num_threadblocks, 'threadblock')} and {format_count(plan.num_channels, 'channel')} a GPU, "
        f"at most {format_count(plan.num_operations, 'operation')} each, {plan.protocol}, {placement}, for {MSCCLPP.version}"
    )
    return plan_facts(plan), summary

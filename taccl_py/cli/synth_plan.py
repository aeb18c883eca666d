"""``taccl synth --runtime mscclpp``: a schedule whose messages carry any number of chunks, and a plan of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taccl_py.cli.delivery import (
    check_output,
    is_schedule_alone,
    kept_if_interrupted,
    plan_facts,
    runtime_facts,
    write_answer,
)
from taccl_py.cli.notes import faster_by_switch_note, unserved_plan_note
from taccl_py.cli.options import command_fact, echo_json, in_json, make_plan_options
from taccl_py.cli.progress import watched
from taccl_py.errors import InputError
from taccl_py.report.tables import print_table, record, summary_table, timed
from taccl_py.runtimes import MSCCLPP

if TYPE_CHECKING:
    from taccl_py.answer import Answer
    from taccl_py.pipeline.plan_choice import PlanChoice
    from taccl_py.pipeline.resolve import Request
    from taccl_py.topology.model import Topology


def synth_plan(
    request: Request, topology: Topology, values: dict[str, Any], output: Path | None, *, as_json: bool
) -> None:
    """Search, lower, write and print.

    Raises
    ------
    InputError
        If an option is for XML.
    LoweringError
        If a limit of the runtime cannot be kept by any schedule.
    """
    from taccl_py.api.lowering import deliver_plan
    from taccl_py.api.search import search_for
    from taccl_py.pipeline.in_network import switch_runtime_us
    from taccl_py.pipeline.plan_choice import PlanWishes
    from taccl_py.profiles.catalog import select_profile

    _refuse_xml(values, output)
    check_output(output, only_schedule=values["only_schedule"])
    options, protocol = make_plan_options(values, topology)
    selection = select_profile(values["runtime_profile"], MSCCLPP.name, topology)
    request = replace(request, profile=selection.profile, message_chunks=MSCCLPP.max_count)
    limits = request.options.limits
    over = limits.to_lower()
    with watched(limits.stop, values["progress"]) as events:
        answer = search_for(request, MSCCLPP, events)
        events.stage("lowering")
        choice = None
        if not values["only_schedule"] and not is_schedule_alone(output):
            wishes = PlanWishes(protocol, values["instances"])
            with kept_if_interrupted(answer, limits.stop, output, " --to mscclpp-json"):
                answer, choice = deliver_plan(answer, options, wishes, over=over)
        facts = {**record(answer, None, []), **_facts(answer, choice), **runtime_facts(answer, selection.note)}
        switch_us = None if choice is None else switch_runtime_us(answer.schedule, options, answer.profile)
        facts |= {} if switch_us is None else {"switch_runtime_us": switch_us}
        facts |= command_fact()
    files = write_answer(output, answer, None if choice is None else choice.lowered, facts, "plan.json")
    result = timed({**facts, "files": files}, answer)
    notes = []
    if choice is not None:
        schedule = files[0] if files else "SCHEDULE.json"
        by_switch = f"taccl lower {schedule} --to mscclpp-json --switch -o plan.json"
        notes = [
            unserved_plan_note(round(result["size_bytes"]), choice.lowered.plan),
            faster_by_switch_note(switch_us, choice.runtime_us, by_switch),
        ]
    if as_json:
        echo_json(result | in_json(notes))
        return
    print_table(summary_table(result))
    for line in (*filter(None, notes), *(f"wrote {name}" for name in files)):
        click.echo(line, err=True)


def _refuse_xml(values: dict[str, Any], output: Path | None) -> None:
    """Refuse what makes many programs, which are XML, and files for XML."""
    for option in ("sizes", "single_failures"):
        if values[option] is not None:
            raise InputError(
                f"is for runtimes that load XML; leave it out, or make a plan for each size and put them together with "
                f"taccl install --runtime {MSCCLPP.name}",
                path="command line",
                field=f"--{option.replace('_', '-')}",
            )
    if output is not None and output.suffix == ".xml":
        raise InputError(
            f"{MSCCLPP.title} loads plans, not XML; name a directory for schedule.json and plan.json",
            path="command line",
            field="--output",
        )


def _facts(answer: Answer, choice: PlanChoice | None) -> dict[str, Any]:
    """Facts about the plan; none without one."""
    from taccl_py.simulate.plan_replay import replay_plan

    if choice is None:
        return {}
    schedule, plan = answer.schedule, choice.lowered.plan
    replay = replay_plan(plan, schedule.collective.kind, schedule.topology, schedule.chunk_bytes)
    facts: dict[str, Any] = {"replay_us": replay.makespan_us, **plan_facts(plan)}
    if choice.runtime_us is not None:
        made = choice.options
        facts |= {"instances": made.instances, "group": made.group, "loop_bytes": made.loop_bytes}
        facts |= {"runtime_us": choice.runtime_us}
    return facts

"""``taccl replan``: a new schedule for a machine on which something has failed."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taccl_py.api.policy import AUTO, LIMIT_RANKS, RACE_LIMIT_S
from taccl_py.cli.delivery import (
    check_output,
    deliver_answer,
    is_schedule_alone,
    program_facts,
    runtime_facts,
    write_answer,
)
from taccl_py.cli.notes import program_notes
from taccl_py.cli.options import (
    OUTPUT,
    ParsedType,
    RecordedCommand,
    degradation_options,
    echo_json,
    in_json,
    json_option,
    lowering_options,
    make_degradation,
    make_lowering_options,
    runtime_profile_option,
)
from taccl_py.cli.progress import watched
from taccl_py.collective import Kind
from taccl_py.errors import InputError
from taccl_py.jsonio import format_of, read_text
from taccl_py.portfolio.failure_index import INDEX
from taccl_py.report.tables import plain_table, print_table, record, summary_table, timed
from taccl_py.runtimes import MSCCLPP, RUNTIMES
from taccl_py.schedule.files import DEMAND_SCHEDULE_FORMAT, GROUP_FORMAT, read_schedule
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Options
from taccl_py.topology.degrade import Degradation
from taccl_py.units import format_time

if TYPE_CHECKING:
    from taccl_py.api.lowering import Choice, Delivered
    from taccl_py.lowering.lower import LoweringOptions
    from taccl_py.pipeline.replan import Replanned
    from taccl_py.profiles.model import RuntimeProfile
    from taccl_py.schedule.ir import Schedule

_SECONDS = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(ms|s|min|)\s*")
_UNITS = {"ms": 1e-3, "s": 1.0, "": 1.0, "min": 60.0}
_LEAST_S = 0.1
_PROGRAM = "algorithm.xml"
_WHAT = {
    "kept": "the program in use, nothing to load",
    "re-timed": "the old schedule as it is",
    "resized": "the old schedule, its chunks of other sizes",
    "reweighed": "the old schedule, less on what is slow; others of the node stand in",
    "searched": "a new one",
}


def _parse_seconds(text: str) -> float:
    match = _SECONDS.fullmatch(text)
    seconds = float(match.group(1)) * _UNITS[match.group(2)] if match else 0.0
    if seconds < _LEAST_S:
        raise InputError(f"{text[:40]!r} is not a time of {_LEAST_S} s or more; write for example 5s or 2min")
    return seconds


@click.command(cls=RecordedCommand, short_help="Find a new schedule after a failure, from the old one and by a search.")
@click.argument("schedule", type=click.Path(path_type=Path))
@degradation_options
@click.option("--within", type=ParsedType("time", float, _parse_seconds), default=None,
              help="Time of the clock for all of it, lowering aside: 5s, 500ms, 2min. Default: the work of --effort normal, which takes about "
              f"{RACE_LIMIT_S:g} s on up to {LIMIT_RANKS} ranks.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Random seed.")
@click.option("-o", "--output", type=OUTPUT, default=None,
              help="Directory for schedule.json, algorithm.xml and summary.json, or one file ending in .xml or .json.")  # fmt: skip
@click.option("--only-schedule", is_flag=True, help="Make no XML. Also what -o FILE.json does.")
@lowering_options()
@runtime_profile_option
@json_option
def replan(schedule: Path, output: Path | None, as_json: bool, **values: Any) -> None:
    """Find a new schedule in place of SCHEDULE for its machine without what has failed, or with what has become slow.

    SCHEDULE is a schedule.json, or the folder of taccl synth that has one; of a folder of --single-failures, what was prepared for the
    failure is taken for the old one. The old schedule is timed anew, its chunks get other sizes, its
    routes other weights, and a search takes the time that is left. The fastest one is verified and lowered; it is never slower than
    going on with the old one. If the algorithm.xml beside SCHEDULE is still as fast as what is found, it is the answer, byte for byte.

    \b
    Examples:
      taccl replan out/ --slow-link 0-1:0.5 --within 2s -o new/
      taccl replan out/schedule.json --without-link 0-3 --within 500ms --only-schedule
      taccl replan out/ --slow-port 'node 1 ib0 in:0.5' --within 500ms --json
      taccl replan failures/ --without-port 'node 1 ib3 *' --within 1s -o new/
    """
    from taccl_py.answer import Ended
    from taccl_py.api.search import answer_of, with_defaults
    from taccl_py.pipeline.replan import replan as replan_schedule
    from taccl_py.pipeline.resolve import Request, damaged_machine
    from taccl_py.profiles.catalog import select_profile
    from taccl_py.synthesis.engine import Proof

    degradation = make_degradation(values)
    if not degradation.words():
        raise InputError(
            "says nothing of what has failed; name it with --slow-port, --without-port, --slow-link or --without-link",
            path="command line",
        )
    check_output(output, only_schedule=values["only_schedule"])
    if (schedule / INDEX).is_file():
        schedule, degradation = _prepared(schedule, degradation), Degradation()
    old = _read(schedule)
    stop = threading.Event()
    request = Request(
        topology=old.topology, kind=old.collective.kind, size_bytes=max(1, round(old.size_bytes)), root=old.collective.root,
        options=Options(limits=Limits(seed=values["seed"], stop=stop)), degradation=degradation,
    )  # fmt: skip
    request = with_defaults(request, engine=None, effort=None, time_limit=values["within"])
    topology, _ = damaged_machine(request)
    in_use = _ProgramInUse.beside(schedule)
    if values["runtime"] == AUTO and in_use.runtime in RUNTIMES:
        values["runtime"] = in_use.runtime
    options = make_lowering_options(values, topology)
    selection = select_profile(values["runtime_profile"], options.runtime.name, topology)
    request = replace(request, topology=topology, profile=selection.profile)
    over, settled_by = request.options.limits.to_lower(), request.options.limits.to_settle()
    with watched(stop) as events:
        found = replan_schedule(old, topology, request.options, events)
        ended = Ended.of(request.options.limits, is_proved=found.synthesis.proof is not Proof.FEASIBLE)
        answer = answer_of(found.synthesis, request, options.runtime, ended)
        events.stage("lowering")
        choice = kept = None
        if not values["only_schedule"] and not is_schedule_alone(output):
            delivered = deliver_answer(answer, options, values["instances"], over, settled_by, stop, output)
            delivered, kept = in_use.unless_slower(delivered, found.retimed, options, values["instances"])
            answer, choice = delivered.answer, delivered.choice
        lowered = None if choice is None else choice.lowered
        facts = {**record(answer, lowered, []), **program_facts(choice, options.runtime)}
        facts |= {**runtime_facts(answer, selection.note), **_facts(old, found, answer.schedule, kept, choice)}
    files = write_answer(output, answer, lowered, facts)
    result = timed({**facts, "files": files}, answer)
    notes = [] if lowered is None else program_notes(answer, lowered, options, output, cut_short=stop.is_set())
    plan_note = in_use.note(next((name for name in files if name.endswith("schedule.json")), "SCHEDULE.json"))
    notes += [plan_note] if plan_note else []
    if as_json:
        echo_json(result | in_json(notes))
        return
    print_table(_table(result))
    print_table(summary_table(result))
    for line in (*notes, *(f"wrote {name}" for name in files)):
        click.echo(line, err=True)


@dataclass(frozen=True)
class _ProgramInUse:
    """Program beside an old schedule.

    Attributes
    ----------
    path, text
        Its file; the text is empty if there is none.
    runtime, instances
        What the summary beside it tells of it, or ``auto`` and 1.
    """

    path: Path
    text: str
    runtime: str
    instances: int

    @staticmethod
    def beside(schedule: Path) -> _ProgramInUse:
        """Return that of a folder, or of the folder that a schedule is in.

        Raises
        ------
        InputError
            If it cannot be read.
        """
        from taccl_py.report.summaries import told_instances, told_runtimes

        folder = schedule if schedule.is_dir() else schedule.parent
        path = folder / _PROGRAM
        told = told_runtimes([folder], (*RUNTIMES, MSCCLPP.name))
        runtime = told.pop() if len(told) == 1 else AUTO
        return _ProgramInUse(path, read_text(path) if path.exists() else "", runtime, told_instances(folder))

    def note(self, schedule: str) -> str:
        """Return a note where it is a plan, as new programs are XML; `schedule` is the new one's file."""
        if self.runtime != MSCCLPP.name:
            return ""
        return f"note: in use is a plan for {MSCCLPP.title}; taccl lower {schedule} --to mscclpp-json -o plan.json makes one of the new schedule"

    def unless_slower(
        self, delivered: Delivered, retimed: Schedule | None, options: LoweringOptions, instances: int | None
    ) -> tuple[Delivered, Choice | str]:
        """Return what was delivered, or this program if it is as fast on the machine as it is; and that, or why it cannot go on."""
        from taccl_py.api.lowering import delivered_instead

        kept = self._kept(retimed, options, instances, delivered.answer.profile)
        if not isinstance(kept, str) and kept.best_us <= delivered.choice.best_us:
            delivered = delivered_instead(delivered.answer, kept)
        return delivered, kept

    def _kept(
        self, retimed: Schedule | None, options: LoweringOptions, instances: int | None, profile: RuntimeProfile
    ) -> Choice | str:
        from taccl_py.api.kept import kept_program

        if not self.text:
            return f"there is no {_PROGRAM} beside the old schedule"
        if retimed is None:
            return "its schedule does not serve"
        if instances not in (None, self.instances):
            return f"it has {self.instances} instances"
        return kept_program(self.text, str(self.path), retimed, options, profile, self.instances)


def _prepared(folder: Path, degradation: Degradation) -> Path:
    """Folder with what was prepared for a failure, of a folder of ``taccl synth --single-failures``.

    Raises
    ------
    InputError
        If nothing was prepared for it, or the machine has no such link or port.
    """
    from taccl_py.pipeline.resolve import Request, damaged_machine
    from taccl_py.portfolio.failure_index import read_failure_index

    index = read_failure_index(folder)
    machine, _ = damaged_machine(
        Request(index.topology, Kind.ALLREDUCE, degradation=degradation)
    )  # of whatever collective
    found = index.find(machine)
    if found is None:
        some = ", ".join(each.what for each in index.failures[:3])
        raise InputError(
            f"nothing in it was prepared for this; it has {len(index.failures)} failures, such as {some}; name a schedule of the whole machine",
            path=str(folder),
        )
    click.echo(f"note: {found.folder} was prepared for {found.what}", err=True)
    return found.folder


def _read(path: Path) -> Schedule:
    """The old schedule, verified.

    Raises
    ------
    InputError, InvalidArtifact
        If there is none, it is of another sort, or the verifier rejects it.
    """
    from taccl_py.pipeline.search import require_valid

    file = path / "schedule.json" if path.is_dir() else path
    if path.is_dir() and not file.exists() and (path / "taccl").is_dir():
        raise InputError(
            f"holds a portfolio; name one of the schedules in {path / 'taccl'}, each is for a range of sizes",
            path=str(path),
        )
    text, name = read_text(file), str(file)
    stated = format_of(text, name)
    if stated in (DEMAND_SCHEDULE_FORMAT, GROUP_FORMAT):
        what = "a demand" if stated == DEMAND_SCHEDULE_FORMAT else "one root of a symmetric machine"
        raise InputError(
            f"is the schedule of {what}; taccl replan takes those of the eight collectives, use taccl synth", path=name
        )
    found = read_schedule(text, name)
    require_valid(found, name)
    return found


def _facts(
    old: Schedule, found: Replanned, taken: Schedule, kept: Choice | str | None, choice: Choice | None
) -> dict[str, Any]:
    """Remedies that were tried, the one that was taken, and the time of the old schedule on the machine as it was."""
    is_kept = kept is not None and not isinstance(kept, str) and choice is not None and choice.lowered is kept.lowered
    remedy = "kept" if is_kept else str(found.remedy_of(taken))
    rows: list[dict[str, Any]] = []
    if isinstance(kept, str):
        rows.append(_remedy("kept", None, None, kept))
    elif kept is not None:
        rows.append(_remedy("kept", kept.schedule, kept.best_us, ""))
    for each in found.tried:
        program_us = choice.best_us if choice is not None and str(each.remedy) == remedy else None
        reason = each.reason or _why_not(each.schedule, taken, is_taken=choice is None or str(each.remedy) == remedy)
        rows.append(_remedy(str(each.remedy), each.schedule, program_us, reason))
    return {"remedy": remedy, "old_us": old.makespan_us, "remedies": rows}


def _why_not(schedule: Schedule | None, taken: Schedule, *, is_taken: bool) -> str:
    """Reason why a schedule is not the answer that is faster than it on links and ports."""
    if is_taken or schedule is None or schedule.makespan_us >= taken.makespan_us:
        return ""
    return "faster on links and ports only: its program is slower, or there was no time to make it"


def _remedy(remedy: str, schedule: Schedule | None, program_us: float | None, reason: str) -> dict[str, Any]:
    """One remedy: its time on links and ports, and that of its program where it was timed."""
    makespan_us = None if schedule is None else schedule.makespan_us
    return {"remedy": remedy, "makespan_us": makespan_us, "program_us": program_us, "reason": reason}


def _table(result: dict[str, Any]) -> Any:
    rows = [("", "the old schedule before the failure", format_time(result["old_us"]), "", "")]
    for each in result["remedies"]:
        times = ("" if us is None else format_time(us) for us in (each["makespan_us"], each["program_us"]))
        chosen = "taken" if each["remedy"] == result["remedy"] else each["reason"]
        rows.append((each["remedy"], _WHAT[each["remedy"]], *times, chosen))
    columns = ("remedy", "what", "on links and ports", "its program", "")
    return plain_table(f"{result['collective']} on {result['topology']}", columns, rows)

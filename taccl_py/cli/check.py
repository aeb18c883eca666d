"""``taccl check``: the verifier on files."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taccl_py.cli.options import KIND, echo_json, json_option, told_runtime, told_runtime_option
from taccl_py.collective import Kind
from taccl_py.errors import InputError, InvalidArtifact, Unsupported, UnsupportedFeature, Violation
from taccl_py.jsonio import format_of, is_json, parse_json, read_text
from taccl_py.releases import DEFAULT_FOLDER
from taccl_py.report.tables import INDEX_FORMATS, SUMMARY_FILE, SUMMARY_FORMAT
from taccl_py.runtimes import LEGACY, MSCCLPP, PLAN_FOLDER, RUNTIMES, Runtime
from taccl_py.schedule.files import DEMAND_SCHEDULE_FORMAT, GROUP_FORMAT, GROUP_INDEX, INDEX_OF_GROUPS, read_schedule
from taccl_py.schedule.files import FORMAT as SCHEDULE_FORMAT
from taccl_py.units import format_count, format_size, format_time

if TYPE_CHECKING:
    from taccl_py.demand import DataDemand
    from taccl_py.schedule.for_demand import DemandSchedule
    from taccl_py.verify.msccl import ProgramFacts, ProgramVerdict
    from taccl_py.verify.mscclpp import PlanFacts, PlanVerdict

# Rules by which a person is told of the cause, and not of what follows from it. Where the text cannot be read, elements seem to
# be missing; what is no number counts as another one, and an element without one of its attributes as none at all.
_UNREAD_TEXT = (
    "attribute-limit", "attribute-quotes", "byte-order-mark", "closing-tag", "comment-start", "step-content",
    "stray-closing-tag", "tag-blanks", "tag-mismatch", "tag-name-length", "tag-syntax", "text-between-elements",
    "text-declaration", "text-nul", "unexpected-end", "unterminated-element", "value-length",
)  # fmt: skip
_UNREAD_VALUE = ("buffer-name", "number-format", "number-range", "step-type")
# Rules broken by several places together, or in the execution: one of the places is wrong, and may have been rejected.
_CONSEQUENCE = ("deadlock", "missing-counterpart", "race")
_DEMAND_FORMATS = ("taccl-demand", DEMAND_SCHEDULE_FORMAT)
_OUR_FORMATS = {SCHEDULE_FORMAT, GROUP_FORMAT, *_DEMAND_FORMATS}
# What taccl synth lowers a demand to.
DEMAND_FILES = ("plan.json", "algorithm.xml")
_RANK_OF_RULE = {
    **dict.fromkeys(_UNREAD_TEXT, -2),
    **dict.fromkeys(_UNREAD_VALUE, -1),
    **dict.fromkeys(_CONSEQUENCE, 1),
    "wrong-result": 2,
}

_WORST_FIRST = (InvalidArtifact.exit_code, InputError.exit_code, Unsupported.exit_code)


@click.command(short_help="Verify schedules, MSCCL XML files and MSCCL++ plans.")
@click.argument("files", type=click.Path(path_type=Path), nargs=-1, required=True)
@told_runtime_option("Runtime whose rules an XML file must keep")
@click.option(
    "--collective",
    type=KIND,
    default=None,
    help='Collective that a file must be for; what a legacy file with coll="custom" is meant to do.',
)
@click.option("--root", type=click.IntRange(0), default=None, help="Root that a file must have.")
@click.option(
    "--demand",
    type=click.Path(path_type=Path),
    default=None,
    help="Demand that schedules, plans and XML files must be for.",
)
@click.option("-v", "--verbose", is_flag=True, help="Print every error, not only the first of a file.")
@json_option
def check(files: tuple[Path, ...], runtime: str, as_json: bool, verbose: bool, **hints: Any) -> int:  # fmt: skip
    """Verify FILES: schedules (JSON), algorithms (MSCCL XML, MSCCL++ plans), and directories that a runtime scans; one line for each.

    A schedule is tested for its post-condition with exact contributions, causality, links, and overlap on links and ports. An
    XML text is parsed as the runtime would, tested against every rule and limit of the runtime, executed symbolically for
    every placement that it declares with the runtime's queues and flags, and searched for deadlocks and races.

    An MSCCL++ plan is tested against the limits of its runtime and executed symbolically with its signals, semaphores and
    proxies: waits that match no signal, cycles, data that are read or overwritten too early, and results.

    A directory is verified file by file and as a whole: files that would stop the runtime's scan or its initialisation, sizes for
    which two good files compete, sizes and placements that they cover, and the memory that its connections take. A folder of
    JSON files is one of MSCCL++ plans, or of schedules. Of a folder that taccl synth wrote, which no runtime scans, schedule.json
    and all XML files and plans are verified, and of a catalogue of taccl sweep schedule and XML of each result; of one that taccl
    groups wrote each group's files, and that the groups keep links and ports apart.

    Exit code 0 if all are good, 4 if the verifier rejects one, else 2 if one cannot be read, else 7 if one uses what the
    verifier does not know: it is unsupported then, which is neither good nor bad.

    \b
    Examples:
      taccl check out/schedule.json out/algorithm.xml
      taccl check --runtime rccl algorithms/*.xml
      taccl check algorithms out/
    """
    asked = {"kind": hints["collective"], "root": hints["root"]}
    if hints["demand"] is not None and any(each is not None for each in asked.values()):
        raise InputError(
            "a demand is no collective; leave --collective and --root out", path="command line", field="--demand"
        )
    results: list[dict[str, Any]] = []
    for path in files:
        if hints["demand"] is not None:
            for each in (path, *_beside_demand_files(path)):
                results += _verify_against(each, hints["demand"])
        else:
            results += _verify_named(path, runtime, **asked)
    if as_json:
        echo_json({"files": results, "good": all(result["good"] for result in results)})
    else:
        for result in results:
            print_result(result, verbose=verbose)
    codes = {result["exit_code"] for result in results}
    return next((code for code in _WORST_FIRST if code in codes), 0)


def _verify_named(path: Path, runtime: str, kind: Kind | None, root: int | None) -> list[dict[str, Any]]:
    """Results of a file or a folder, by the rules of a runtime or of the one that it seems to be for."""
    try:
        parts = _parts_of(path)
    except InputError as error:
        return [_unread(path, error)]
    return [result for each in parts or [path] for result in _verify_told(each, runtime, kind, root)]


def _verify_told(path: Path, runtime: str, kind: Kind | None, root: int | None) -> list[dict[str, Any]]:
    """The same, where it is not a folder of such folders."""
    name, assumed = told_runtime(runtime, [path])
    target = RUNTIMES[name]
    beside = _demand_beside(path)
    if beside is not None and kind is None and root is None:
        others = [verify_file(file, target) for file in _beside_demand_files(path)]
        return [*_verify_against(path, beside), *others]
    if not os.path.isdir(path):  # where nobody may look, the file cannot be read
        results = [verify_file(path, target, kind, root)]
    else:
        results = _verify_folder(path, target, kind, root)
    if results[-1]["runtime"] is not None:
        results[-1]["assumed"] = assumed
    return results


def verify_file(path: Path, runtime: Runtime, kind: Kind | None = None, root: int | None = None) -> dict[str, Any]:
    """Result of a file."""
    from taccl_py.verify.msccl import verify_program

    try:
        text = read_text(path)
        if is_json(path, text):
            return _verify_json(path, text, kind, root)
        verdict = verify_program(text, runtime, kind=kind, root=root)
        facts = _describe(verdict.facts, runtime) if verdict.facts else ""
        if facts and not verdict.violations and not verdict.unsupported:
            facts += _describe_structure(path, text, runtime)
        return _program_result(path, verdict, facts, runtime)
    except InputError as error:
        return _unread(path, error)


def _verify_json(path: Path, text: str, kind: Kind | None, root: int | None) -> dict[str, Any]:
    from taccl_py.verify.any_size import verify_any
    from taccl_py.verify.mscclpp import is_plan, verify_plan

    stated = format_of(text, str(path))
    if stated in INDEX_FORMATS:
        return _result(path, (), "a summary, nothing to verify")
    if stated == INDEX_OF_GROUPS:
        return _verify_together(path, text)
    if stated == GROUP_FORMAT:
        return _verify_group(path, text, kind, root)
    if stated in _DEMAND_FORMATS:
        return _verify_demand(path, text, kind, is_schedule=stated == DEMAND_SCHEDULE_FORMAT)
    if is_plan(parse_json(text, str(path))):
        plan = verify_plan(text, str(path), kind=kind, root=root)
        return _program_result(path, plan, _describe_plan(plan.facts))
    schedule = read_schedule(text, str(path))
    collective = schedule.collective
    facts = f"{collective.kind} schedule, {collective.num_ranks} ranks, {format_time(schedule.makespan_us)}"
    return _result(path, verify_any(schedule, kind=kind, root=root), facts)


def _verify_group(path: Path, text: str, kind: Kind | None, root: int | None) -> dict[str, Any]:
    from taccl_py.api.checking import group_violations
    from taccl_py.schedule.group_files import read_group

    schedule = read_group(text, str(path))
    ranks, time = schedule.topology.num_ranks, format_time(schedule.makespan_us)
    violations = group_violations(schedule, kind, root)
    return _result(path, violations, f"{schedule.kind} group schedule, {ranks} ranks, {time}")


def _verify_demand(path: Path, text: str, kind: Kind | None, *, is_schedule: bool) -> dict[str, Any]:
    """Result of a demand, which reading verifies, or of its schedule."""
    from taccl_py.demand.files import read_demand
    from taccl_py.schedule.demand_files import read_demand_schedule
    from taccl_py.verify.demand import verify_demand_schedule

    if kind is not None:
        raise InputError(f"is a demand and no {kind}; leave --collective out", path=str(path))
    if not is_schedule:
        demand = read_demand(text, str(path))
        chunks = format_count(len(demand.chunks), "chunk")
        delivered = format_size(demand.total_bytes)
        return _result(path, (), f"{demand.title}, {demand.num_ranks} ranks, {chunks}, {delivered} to deliver")
    schedule = read_demand_schedule(text, str(path))
    return _result(path, verify_demand_schedule(schedule), _schedule_facts(schedule))


def _verify_against(path: Path, demand: Path) -> list[dict[str, Any]]:
    """Results of a schedule or a program of a demand that is for this demand, or of the folder that they are in."""
    from taccl_py.demand.msccl_collective import read_demand_file

    asked = read_demand_file(demand)
    return [_verify_one_against(file, asked, demand) for file in _demand_files(path) or [path]]


def _verify_one_against(file: Path, asked: DataDemand, demand: Path) -> dict[str, Any]:
    from taccl_py.schedule.demand_files import read_demand_schedule
    from taccl_py.verify.demand import verify_demand_schedule
    from taccl_py.verify.msccl import verify_program
    from taccl_py.verify.mscclpp import is_plan, verify_plan

    try:
        text = read_text(file)
        if is_json(file, text) and is_plan(parse_json(text, str(file))):
            verdict = verify_plan(text, str(file), demand=asked)
            blocks = format_count(verdict.facts.max_threadblocks, "threadblock")
            facts = f"plan for {MSCCLPP.name}, {verdict.facts.num_ranks} ranks, {blocks} a GPU, for {demand}"
            return _program_result(file, verdict, facts)
        if not is_json(file, text):
            checked = verify_program(text, LEGACY, demand=asked)
            facts = f"XML for {LEGACY.name}, {asked.num_ranks} ranks, for {demand}"
            return _program_result(file, checked, facts)
        schedule = read_demand_schedule(text, str(file))
    except InputError as error:
        return _unread(file, error)
    return _result(file, verify_demand_schedule(schedule, asked), f"{_schedule_facts(schedule)}, for {demand}")


def _demand_files(path: Path) -> list[Path]:
    """Files to verify of a folder that taccl synth wrote for a demand; empty if it is something else."""
    if not os.path.isdir(path):
        return []
    programs = [path / target for target in DEMAND_FILES]
    return [path / "schedule.json", *(file for file in programs if file.is_file())]


def _beside_demand_files(path: Path) -> list[Path]:
    """Other programs in a folder that taccl synth wrote for a demand."""
    own = _demand_files(path)
    return [file for file in _answer_in(path) if file not in own]


def _schedule_facts(schedule: DemandSchedule) -> str:
    return (
        f"schedule of {schedule.demand.title}, {schedule.demand.num_ranks} ranks, {format_time(schedule.makespan_us)}"
    )


def _verify_folder(path: Path, runtime: Runtime, kind: Kind | None, root: int | None) -> list[dict[str, Any]]:
    """Results of a folder as what it is."""
    answer = _answer_in(path)
    if answer:
        return [verify_file(file, runtime, kind, root) for file in answer]
    try:
        if (path / GROUP_INDEX).is_file():
            return _verify_groups(path, runtime, kind, root)
        plans = _plans_in(path)
        if _are_ours(plans):
            return [verify_file(file, runtime, kind, root) for file in plans]
        return _verify_plans(plans, kind, root) if plans else _verify_directory(path, runtime, kind, root)
    except InputError as error:
        return [_unread(path, error)]


def _verify_groups(folder: Path, runtime: Runtime, kind: Kind | None, root: int | None) -> list[dict[str, Any]]:
    """Results of the files that taccl groups wrote, and of all groups together."""
    from taccl_py.pipeline.group_index import read_group_index

    index = folder / GROUP_INDEX
    _, groups = read_group_index(read_text(index), str(index))
    results = []
    for group in groups:
        if group.demand is None or kind is not None:
            results.append(verify_file(folder / group.schedule, runtime, kind, root))
            continue
        try:
            for name in (group.schedule, *group.programs):
                results += _verify_against(folder / name, folder / group.demand)
        except InputError as error:
            results.append(_unread(folder / group.demand, error))
    return [*results, verify_file(index, runtime)]


def _verify_together(path: Path, text: str) -> dict[str, Any]:
    """Result of an index of groups: of their schedules on the machine that they share."""
    from taccl_py.pipeline.group_index import read_group_index, read_timed_group
    from taccl_py.verify.together import verify_together

    machine, groups = read_group_index(text, str(path))
    parts = [read_timed_group(path.parent, group) for group in groups]
    time = format_time(max((part.schedule.makespan_us for part in parts), default=0.0))
    facts = f"{format_count(len(parts), 'group')} together on {machine.name}, {machine.num_ranks} ranks, {time}"
    return _result(path, verify_together(machine, parts), facts)


def _parts_of(path: Path) -> list[Path]:
    """Folders that an index of failures names, or files of the results in a catalogue of taccl sweep; empty if there is no index."""
    from taccl_py.campaign.index import INDEX as CATALOGUE
    from taccl_py.campaign.index import read_index
    from taccl_py.portfolio.failure_index import INDEX, read_failure_index

    if os.path.isfile(path / INDEX):
        return [failure.folder for failure in read_failure_index(path).failures]
    if not os.path.isfile(path / CATALOGUE):
        return []
    places = dict.fromkeys(path / entry["result"] for entry in read_index(path).values())
    files = [(place / "schedule.json", place / "algorithm.xml") for place in places]
    return [file for schedule, program in files for file in (schedule, program) if file == schedule or file.is_file()]


def _are_ours(files: Sequence[Path]) -> bool:
    """True if files are schedules and the like, and none is a plan."""
    from taccl_py.verify.mscclpp import is_plan

    stated = set()
    for file in files:
        try:
            text = read_text(file)
            if is_plan(parse_json(text, str(file))):
                return False
            stated.add(format_of(text, str(file)))
        except InputError:
            continue
    return bool(stated & _OUR_FORMATS)


def verify_loaded(path: Path, runtime: Runtime) -> list[dict[str, Any]]:
    """Results of a directory that a runtime loads from, whatever else it may be."""
    try:
        return _verify_directory(path, runtime, None, None)
    except InputError as error:
        return [_unread(path, error)]


def verify_plans_of(path: Path) -> list[dict[str, Any]]:
    """Results of a cache directory of MSCCL++, or of its folder of plans."""
    try:
        plans = _plans_in(path)
        if not plans:
            raise InputError(
                "is no folder of MSCCL++ plans alone; name one that taccl install --runtime mscclpp wrote",
                path=str(path),
            )
    except InputError as error:
        return [_unread(path, error)]
    return _verify_plans(plans, None, None)


def _answer_in(path: Path) -> list[Path]:
    """Schedule and all programs in a folder that taccl synth wrote, as its summary says; empty if it is something else."""
    summary = path / SUMMARY_FILE
    try:
        stated = format_of(read_text(summary), str(summary))
    except InputError:
        return []
    if stated != SUMMARY_FORMAT:
        return []
    own = [file for file in (path / name for name in ("schedule.json", "algorithm.xml", "plan.json")) if file.is_file()]
    found = sorted([*path.glob("*.xml"), *filter(_may_be_plan, path.glob("*.json"))])
    return [*own, *(file for file in found if file not in own)]


def _may_be_plan(file: Path) -> bool:
    """True if a JSON file is a plan, or cannot be read."""
    from taccl_py.verify.mscclpp import is_plan

    try:
        return is_plan(parse_json(read_text(file), str(file)))
    except InputError:
        return True


def _demand_beside(path: Path) -> Path | None:
    """The demand in a folder that taccl synth wrote for one."""
    file = path / "demand.json"
    return file if _answer_in(path) and file.is_file() else None


def _verify_directory(path: Path, runtime: Runtime, kind: Kind | None, root: int | None) -> list[dict[str, Any]]:
    """Results of the files in a directory, and one of the directory."""
    from taccl_py.portfolio.directory import read_directory
    from taccl_py.report.directory import describe_directory
    from taccl_py.verify.msccl import verify_directory

    contents = read_directory(path, runtime)
    if not contents.files and not contents.violations:
        raise InputError("holds no files for a runtime to load; name a directory that does", path=str(path))
    verdict = verify_directory(contents.files, runtime, kind=kind, root=root)
    results = [
        _program_result(path / name, one, _describe(one.facts, runtime) if one.facts else "", runtime)
        for name, one in verdict.files.items()
    ]
    violations = tuple(sorted((*verdict.violations, *contents.violations)))
    return [*results, _result(path, violations, describe_directory(verdict, runtime), runtime=runtime)]


def _plans_in(path: Path) -> list[Path]:
    """Files of a folder of MSCCL++ plans, or of one in an installation or a cache directory; empty if it is something else."""
    folder = next((path / name for name in (PLAN_FOLDER, DEFAULT_FOLDER) if (path / name).is_dir()), path)
    try:
        files = sorted(file for file in folder.iterdir() if file.is_file())
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=str(folder)) from None
    return files if files and all(file.suffix == ".json" for file in files) else []


def _verify_plans(files: list[Path], kind: Kind | None, root: int | None) -> list[dict[str, Any]]:
    from taccl_py.verify.mscclpp import verify_plan_folder

    folder = files[0].parent
    texts: dict[str, str] = {}
    unread = []
    for file in files:
        try:
            texts[file.name] = read_text(file)
        except InputError as error:
            unread.append(_unread(file, error))
    verdict = verify_plan_folder(texts, kind=kind, root=root)
    results = [_program_result(folder / name, one, _describe_plan(one.facts)) for name, one in verdict.files.items()]
    facts = f"{format_count(len(texts), 'plan')} for {MSCCLPP.name}"
    whole = _result(folder, verdict.violations, facts)
    return [*unread, *results, whole, *_verify_table(folder.parent, folder.name)]


def _verify_table(folder: Path, inside: str) -> list[dict[str, Any]]:
    """Result of the table of an installation, whose plans are in a folder inside it; none if it is something else."""
    from taccl_py.execute.taccl_plans import TABLE
    from taccl_py.portfolio.plans import verify_table

    if inside != PLAN_FOLDER or not (folder / TABLE).is_file():
        return []
    return [_result(folder / TABLE, verify_table(folder), "the table of these plans")]


def _result(
    path: Path, violations: tuple[Violation, ...], facts: str, notes: tuple[str, ...] = (),
    unsupported: tuple[UnsupportedFeature, ...] = (), runtime: Runtime | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Fields of a result; the runtime is the one whose rules decided, None where no choice of a runtime matters."""
    code = InvalidArtifact.exit_code if violations else Unsupported.exit_code if unsupported else 0
    return {
        "file": str(path),
        "verdict": {InvalidArtifact.exit_code: "invalid", Unsupported.exit_code: "unsupported"}.get(code, "valid"),
        "good": not code,
        "exit_code": code,
        "error": None,
        "runtime": runtime.name if runtime is not None else None,
        "assumed": "",
        "facts": facts,
        "violations": [{"where": v.where, "rule": v.rule, "what": v.what} for v in violations],
        "unsupported": [{"where": one.where, "feature": one.feature, "what": one.what} for one in unsupported],
        "notes": list(notes),
    }


def _program_result(
    path: Path, verdict: ProgramVerdict | PlanVerdict, facts: str, runtime: Runtime | None = None
) -> dict[str, Any]:
    return _result(path, verdict.violations, facts, verdict.notes, verdict.unsupported, runtime)


def _unread(path: Path, error: InputError) -> dict[str, Any]:
    found = {"verdict": "invalid", "good": False, "exit_code": error.exit_code, "error": str(error)}
    return _result(path, (), "") | found


def _describe(facts: ProgramFacts, runtime: Runtime) -> str:
    parts = [f"{facts.kind or 'custom'} for {runtime.name}", f"{facts.num_ranks} ranks", str(facts.protocol)]
    parts.append(f"{format_count(facts.max_threadblocks, 'threadblock')} a GPU")
    placements = [name for name, on in (("in place", facts.in_place), ("out of place", facts.out_of_place)) if on]
    parts.append(" and ".join(placements))
    parts.append(_sizes(facts))
    divisor = _divisor(facts)
    if divisor > 1:
        in_bytes = runtime.name == LEGACY.name and facts.kind in (Kind.ALLGATHER, Kind.BROADCAST)
        parts.append(f"used for counts{' of bytes' if in_bytes else ''} that {divisor} divides")
    if facts.root is not None:
        parts.append(f"root {facts.root}")
    if facts.flags_early:
        parts.append("but with LL it may overwrite what is still being sent: use LL128 or Simple")
    if facts.kind is None:
        parts.append("not compared with any collective, as --collective names none")
    return ", ".join(parts)


def _sizes(facts: ProgramFacts) -> str:
    """Sizes for which it declares itself, and up to which it could."""
    low, high, safe = facts.min_bytes, facts.max_bytes, facts.safe_max_bytes
    if high is None:
        return _from_size(low)
    runs = "at any size" if safe is None else f"up to {format_size(safe)}"
    return f"{'0' if low <= 0 else format_size(low)} to {format_size(high)}, safe {runs}"


def _from_size(low_bytes: int) -> str:
    """Sizes without an end."""
    return "any size" if low_bytes <= 0 else f"{format_size(low_bytes)} and more"


def _divisor(facts: ProgramFacts) -> int:
    """Number that must divide a call's count, given per rank for these three collectives, for the runtime to take the file."""
    for_each_rank = facts.kind in (Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.ALLTOALL)
    return facts.num_chunks_per_loop // math.gcd(facts.num_chunks_per_loop, facts.num_ranks if for_each_rank else 1)


def _describe_structure(path: Path, text: str, runtime: Runtime) -> str:
    from taccl_py.lowering.msccl_xml import parse_xml
    from taccl_py.report.structure import brief_structure, find_phases

    try:
        program = parse_xml(text, str(path), runtime)
    except InputError:  # a custom collective
        return ""
    words = brief_structure(find_phases(program))
    return f", {words}" if words else ""


def _describe_plan(facts: PlanFacts) -> str:
    from taccl_py.verify.mscclpp.grammar import UNLIMITED_BYTES

    parts = [f"{facts.kind or 'unknown collective'} for {MSCCLPP.name}", f"{facts.num_ranks} ranks"]
    parts.append(f"{format_count(facts.max_threadblocks, 'threadblock')} a GPU")
    parts.append("in place" if facts.in_place else "out of place")
    is_endless = facts.max_bytes == UNLIMITED_BYTES
    low, high = facts.min_bytes, facts.max_bytes
    parts.append(_from_size(low) if is_endless else f"{format_size(low)} to {format_size(high)}")
    parts.append(f"used for multiples of {format_size(facts.unit_bytes)}")
    if facts.root is not None:
        parts.append(f"root {facts.root}")
    return ", ".join(parts)


def print_result(result: dict[str, Any], *, verbose: bool) -> None:
    """Print a result as one line; verbose: with all that there is to say."""
    name = result["file"]
    if result["error"] is not None:
        click.echo(f"{name}: {click.style('bad', fg='red')}: {result['error'].removeprefix(name + ': ')}")
        return
    if result["good"]:
        click.echo(f"{name}: {click.style('good', fg='green')}: {result['facts']}{_assumed(result)}")
        for note in result["notes"] if verbose else ():
            click.echo(f"  {note}")
        return
    if result["verdict"] == "unsupported":
        _print_unsupported(result, verbose=verbose)
        return
    violations = [Violation(v["where"], v["rule"], v["what"]) for v in result["violations"]]
    first = min(violations, key=_distance_from_cause)
    others = Counter(violation.rule for violation in violations if violation is not first)
    more = ", ".join(rule if count == 1 else f"{count} x {rule}" for rule, count in sorted(others.items()))
    tail = _assumed(result) + (f" (and {more}; see --verbose)" if others and not verbose else "")
    click.echo(f"{name}: {click.style('bad', fg='red')}: {first}{tail}")
    if verbose:
        for violation in violations:
            if violation is not first:
                click.echo(f"  {violation}")


def _print_unsupported(result: dict[str, Any], *, verbose: bool) -> None:
    features = [UnsupportedFeature(one["where"], one["feature"], one["what"]) for one in result["unsupported"]]
    more = f" (and {len(features) - 1} more; see --verbose)" if len(features) > 1 and not verbose else ""
    more = _assumed(result) + more
    click.echo(f"{result['file']}: {click.style('unsupported', fg='yellow')}: {features[0]}{more}")
    for feature in features[1:] if verbose else ():
        click.echo(f"  {feature}")


def _assumed(result: dict[str, Any]) -> str:
    return f"; {result['assumed']}" if result["assumed"] else ""


def _distance_from_cause(violation: Violation) -> int:
    """The smaller, the likelier it is what the others follow from."""
    if violation.rule == "missing-attribute":
        # In an algorithm only some runtimes want it, which is the least trouble; other elements are nothing without it.
        return -1 if violation.where else 3
    return _RANK_OF_RULE.get(violation.rule, 0)

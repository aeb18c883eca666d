"""Results that other commands have written: schedules, folders of taccl synth, portfolios, catalogues."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from taccl_py.campaign.index import INDEX, read_index
from taccl_py.demand.files import read_demand
from taccl_py.errors import InputError, require_verdict
from taccl_py.jsonio import format_of, read_text
from taccl_py.lowering.msccl_xml import parse_xml
from taccl_py.portfolio.swap import NOTES
from taccl_py.report.items import Item
from taccl_py.report.progress import read_progress
from taccl_py.report.summaries import read_portfolio, read_runtime, told_command
from taccl_py.report.tables import SUMMARY_FILE
from taccl_py.schedule.demand_files import read_demand_schedule
from taccl_py.schedule.files import DEMAND_SCHEDULE_FORMAT, FORMAT, read_schedule
from taccl_py.units import SizeRange, format_size, natural_key
from taccl_py.verify.any_size import verify_any
from taccl_py.verify.demand import verify_demand_schedule

_SCHEDULE, _PROGRAM, _PROGRESS = "schedule.json", "algorithm.xml", "progress.json"
_DEMAND = "demand.json"
# Portfolio members are named after the sizes that they are for.
_SIZES = re.compile(r"-([0-9]+)-([0-9]+)\.json")


def read_results(path: Path) -> Iterator[Item]:
    """Algorithms of a schedule file, a folder with schedule.json, a portfolio's folder, or a catalogue.

    Raises
    ------
    InputError
        If there is nothing of that kind, or a file is wrong.
    InvalidArtifact
        If the verifier rejects a schedule.
    """
    if not path.is_dir():
        yield _item(path.stem if path.name != _SCHEDULE else path.parent.name or path.stem, path, None)
        return
    if (path / INDEX).is_file():
        for name, entry in read_index(path).items():
            place = path / entry["result"]
            yield _item(name, place / _SCHEDULE, place / _PROGRAM)
    elif (path / _SCHEDULE).is_file():
        yield _item(path.name or str(path), path / _SCHEDULE, path / _PROGRAM)
    else:
        members = sorted(file for file in (path / NOTES).glob("*.json") if _SIZES.search(file.name))
        loose = [] if members else _schedules_in(path)
        if not members and not loose:
            raise InputError(
                "holds no result; name a schedule file or a folder that taccl synth, sweep, pareto or groups has written",
                path=str(path),
            )
        yield from _members(path, members)
        for file in loose:
            is_whole = file.name == _SCHEDULE
            yield _item(file.parent.name if is_whole else file.stem, file, file.parent / _PROGRAM if is_whole else None)


def _schedules_in(path: Path) -> list[Path]:
    """Schedules of a folder of taccl pareto or taccl groups, or of the folders in it, one for each failure."""
    files = sorted(path.glob("*.json"), key=lambda file: natural_key(file.name))
    own = [file for file in files if format_of(read_text(file), str(file)) in (FORMAT, DEMAND_SCHEDULE_FORMAT)]
    return own or sorted(path.glob(f"*/{_SCHEDULE}"))


def _members(path: Path, members: Sequence[Path]) -> Iterator[Item]:
    """Algorithms of a portfolio's folder, named by the sizes that they are for; of several portfolios also by theirs."""
    found = map(read_portfolio, sorted((path / NOTES).glob(f"*-{SUMMARY_FILE}")))
    portfolios = [facts for facts in found if facts is not None]
    for file in members:
        match = _SIZES.search(file.name)
        sizes = SizeRange(int(match.group(1)), int(match.group(2))) if match is not None else None
        program = f"{file.stem}.xml"
        facts = next((one for one in portfolios if program in one.files), None)
        name = file.stem if sizes is None else f"{format_size(sizes.low_bytes)} to {format_size(sizes.high_bytes)}"
        if len(portfolios) > 1 or facts is None:
            name = f"{_SIZES.sub('', file.name)} {name}"
        item = _item(name, file, path / program, sizes)
        yield replace(item, portfolio=facts, position=facts.files[program]) if facts else item


def _item(name: str, schedule: Path, program: Path | None, sizes: SizeRange | None = None) -> Item:
    text = read_text(schedule)
    if format_of(text, str(schedule)) == DEMAND_SCHEDULE_FORMAT:
        return _demand_item(name, schedule, text)
    found = read_schedule(text, str(schedule))
    require_verdict(str(schedule), verify_any(found))
    has_program = program is not None and program.is_file()
    lowered = parse_xml(read_text(program), str(program)) if program is not None and has_program else None
    # A file of another search may lie beside a schedule that was copied, so only folders of one result bring theirs.
    progress = schedule.parent / _PROGRESS
    is_own = has_program and sizes is None and progress.is_file()
    summary = schedule.parent / SUMMARY_FILE
    runtime = read_runtime(summary) if has_program and sizes is None and summary.is_file() else None
    told = told_command(schedule.parent, found.makespan_us) if schedule.name == _SCHEDULE else ""
    return Item(name, found, lowered, sizes, read_progress(progress) if is_own else (), runtime=runtime, told=told)


def _demand_item(name: str, path: Path, text: str) -> Item:
    """Item of a demand's schedule, with the demand that was asked for where that lies beside it."""
    schedule = read_demand_schedule(text, str(path))
    asked = path.parent / _DEMAND
    is_known = asked.is_file()
    wanted = read_demand(read_text(asked), str(asked)) if is_known else None
    require_verdict(str(path), verify_demand_schedule(schedule, wanted))
    progress = path.parent / _PROGRESS
    is_whole = path.name == _SCHEDULE
    return Item(
        name,
        schedule,
        progress=read_progress(progress) if is_whole and progress.is_file() else (),
        asked=str(asked) if is_known else "",
        told=told_command(path.parent, schedule.makespan_us) if is_whole else "",
    )

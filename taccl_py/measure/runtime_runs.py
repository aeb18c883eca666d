"""Measured runs of MSCCL XML files: which log is of which file, and which of its rows the file was run for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from taccl_py.collective import Kind
from taccl_py.errors import InputError, require_verdict
from taccl_py.jsonio import read_text
from taccl_py.lowering.msccl_xml import parse_xml
from taccl_py.lowering.program import Program, chunks_of_size
from taccl_py.measure.nccl_tests import Log, LogRow, read_log, read_times
from taccl_py.runtimes import Runtime
from taccl_py.verify.msccl import verify_program

# Rows of one file that are used; of more, as many that are spread evenly.
_MOST_ROWS = 16
# Errors of the verifier about sizes that a file claims; rows of a log show that these are run.
_OF_SIZES = ("max-bytes-unsafe", "loop-limit", "count-limit")


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """Times of one MSCCL XML file.

    Attributes
    ----------
    name
        Name of the file.
    program
        Program that it holds.
    rows
        (size in bytes, microseconds), the launch of further GPUs of a process taken off.
    skipped
        Rows of the log for which the runtime does not take the file: other sizes, or sizes that its chunks do not divide.
    """

    name: str
    program: Program
    rows: tuple[tuple[int, float], ...]
    skipped: int


def read_runs(
    logs: Sequence[Path], files: Sequence[Path], runtime: Runtime, launch_per_gpu_us: float
) -> tuple[MeasuredRun, ...]:
    """Read logs and the files that they are of.

    Parameters
    ----------
    logs
        Logs of nccl-tests or rccl-tests, one for each file; or one CSV table of times (``.csv``) of all of them.
    files
        MSCCL XML files.
    runtime
        The runtime that ran them.
    launch_per_gpu_us
        Additional launch for each further GPU that one process drives, which is taken off.

    Raises
    ------
    InputError
        If a file cannot be read, logs and files do not go together, or no row is of a size that its file was run for.
    InvalidArtifact
        If the verifier rejects a file.
    """
    programs = {path: _read_program(path, runtime) for path in files}
    tables = [path for path in logs if path.suffix == ".csv"]
    if tables and len(logs) > 1:
        raise InputError("is a table of times, which stands alone; give it alone, or logs", path=str(tables[0]))
    if tables:
        return tuple(_of_table(tables[0], programs, runtime))
    runs = []
    for log, path in pair_logs(logs, files):
        program = programs[path]
        found = read_log(log, program.kind)
        if found.num_ranks not in (None, len(program.gpus)):
            raise InputError(f"is of {found.num_ranks} ranks, but {path} is for {len(program.gpus)}", path=str(log))
        runs.append(_run(path.name, str(log), program, _times(found, program, launch_per_gpu_us), runtime))
    return tuple(runs)


def pair_logs(logs: Sequence[Path], files: Sequence[Path]) -> list[tuple[Path, Path]]:
    """Say which log is of which file: the one of the same name up to its ending, or whose name begins with the file's; else by order.

    Raises
    ------
    InputError
        If names do not tell and there are not as many logs as files.
    """
    named = {log: _named_for(log, files) for log in logs}
    if all(named.values()) and len(set(named.values())) == len(logs) == len(files):
        return [(log, path) for log, path in named.items() if path is not None]
    if len(logs) != len(files):
        raise InputError(
            f"found {len(logs)} logs and {len(files)} XML files, whose names do not pair; give one log for each file, in the same order",
            path="command line", field="--xml",
        )  # fmt: skip
    return list(zip(logs, files, strict=True))


def _named_for(log: Path, files: Sequence[Path]) -> Path | None:
    """The file of whose name a log's begins, of several the longest; None if there is none or two are alike."""
    name = log.name
    fitting = [
        path for path in files if name.startswith(path.stem) and not name[len(path.stem) : len(path.stem) + 1].isalnum()
    ]
    longest = max((len(path.stem) for path in fitting), default=0)
    found = [path for path in fitting if len(path.stem) == longest]
    return found[0] if len(found) == 1 else None


def _read_program(path: Path, runtime: Runtime) -> Program:
    text = read_text(path)
    program = parse_xml(text, str(path), runtime)
    verdict = verify_program(text, runtime, kind=program.kind)
    require_verdict(str(path), [one for one in verdict.violations if one.rule not in _OF_SIZES], verdict.unsupported)
    return program


def _of_table(table: Path, programs: Mapping[Path, Program], runtime: Runtime) -> list[MeasuredRun]:
    by_name = {name: path for path in programs for name in (path.stem, path.name)}
    runs = []
    for times in read_times(table):
        path = by_name.get(times.file)
        if path is None:
            raise InputError(
                f"has times of {times.file!r}, and no XML file of that name was given; add it with --xml",
                path=str(table),
            )
        runs.append(_run(path.name, str(table), programs[path], list(times.rows), runtime))
    return runs


def _times(log: Log, program: Program, launch_per_gpu_us: float) -> list[tuple[int, float]]:
    """Sizes and times of the side of a log that a program is for: of both sides the geometric mean."""
    extra_us = launch_per_gpu_us * (log.gpus_per_process - 1)
    found = []
    for row in log.rows:
        sides = [time_us for time_us in _sides(row, program) if time_us is not None]
        if sides:
            time_us = math.exp(sum(map(math.log, sides)) / len(sides)) - extra_us
            if time_us <= 0:
                raise InputError(
                    f"has a time of {time_us + extra_us:g} us at {row.size_bytes} bytes, less than the {extra_us:g} us that the profile "
                    f"takes for the launch of {log.gpus_per_process} GPUs by one process; start from a profile with a smaller launch_per_gpu_us",
                    path=log.path,
                )  # fmt: skip
            found.append((row.size_bytes, time_us))
    return found


def _sides(row: LogRow, program: Program) -> tuple[float | None, ...]:
    of_placement = ((program.out_of_place, row.out_of_place_us), (program.in_place, row.in_place_us))
    return tuple(time_us for used, time_us in of_placement if used)


def _run(name: str, path: str, program: Program, rows: Sequence[tuple[int, float]], runtime: Runtime) -> MeasuredRun:
    chunks = chunks_of_size(program, runtime)
    counted = len(program.gpus) if program.kind in (Kind.GATHER, Kind.SCATTER) else 1
    used = [
        (size, time_us) for size, time_us in rows
        if size > 0 and size % chunks == 0 and program.min_bytes <= size / counted <= program.max_bytes
    ]  # fmt: skip
    if not used:
        raise InputError(
            f"has no row of a size that the runtime takes {name} for: a multiple of {chunks} bytes from {program.min_bytes} to "
            f"{program.max_bytes}", path=path,
        )  # fmt: skip
    if len(used) > _MOST_ROWS:
        last = len(used) - 1
        kept = [used[round(index * last / (_MOST_ROWS - 1))] for index in range(_MOST_ROWS)]
    else:
        kept = used
    return MeasuredRun(name, program, tuple(kept), len(rows) - len(used))

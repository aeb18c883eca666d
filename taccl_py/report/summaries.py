"""Facts of a report that only the summaries tell: times under a runtime profile, and what belongs to one portfolio."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from taccl_py.collective import ROOTED, parse_kind
from taccl_py.errors import InputError
from taccl_py.jsonio import Fields, format_of, read_json, read_text
from taccl_py.portfolio.swap import NOTES
from taccl_py.profiles.model import NEUTRAL
from taccl_py.report.tables import INDEX_FORMATS, PORTFOLIO_FORMAT, RESULT_FILE, SUMMARY_FILE, SUMMARY_FORMAT
from taccl_py.runtimes import LEGACY, LEGACY_CONFIG, RUNTIMES
from taccl_py.topology.machines import SHAPES


@dataclass(frozen=True, slots=True)
class RuntimePoint:
    """Predicted time of one size under a runtime profile, and its lower bound; the range is a file's number."""

    size_bytes: int
    time_us: float
    bound_us: float
    range: int = 0


@dataclass(frozen=True)
class RuntimeFacts:
    """Times under a runtime profile.

    Attributes
    ----------
    profile, evidence
        The profile's name, and where its numbers come from.
    points
        Sizes in order; empty under the neutral profile, which is links and ports alone.
    """

    profile: str = NEUTRAL
    evidence: str = ""
    points: tuple[RuntimePoint, ...] = ()

    @property
    def title(self) -> str:
        """Name and evidence of the profile for people."""
        return f"{self.profile}, {self.evidence}" if self.evidence else self.profile


@dataclass(frozen=True)
class PortfolioFacts:
    """A portfolio as its summary tells of it.

    Attributes
    ----------
    name
        Stem of its files.
    command
        Command that makes it.
    files
        Number of every file, by name.
    runtime
        Times under its runtime profile.
    """

    name: str
    command: str
    files: Mapping[str, int] = field(default_factory=dict)
    runtime: RuntimeFacts = field(default_factory=RuntimeFacts)


def read_portfolio(path: Path) -> PortfolioFacts | None:
    """Return the facts of a portfolio's summary; None if the file is something else.

    Raises
    ------
    InputError
        If the file cannot be read, or a field is wrong.
    """
    if format_of(read_text(path), str(path)) != PORTFOLIO_FORMAT:
        return None
    fields = Fields(read_json(path), str(path))
    names = [one.text("file") for one in fields.objects("ranges")]
    rows = list(fields.objects("sizes"))
    points = [_point(row, row.integer("range", 0, least=0)) for row in rows if row.has("runtime_us")]
    command = fields.text("command", "") or _command(fields, rows)
    runtime = _facts(fields, points)
    return PortfolioFacts(
        path.name.removesuffix("-summary.json"), command, {n: i for i, n in enumerate(names)}, runtime
    )


def read_runtime(path: Path) -> RuntimeFacts | None:
    """Return the time under a runtime profile that the summary of one answer tells; None if it tells none.

    Raises
    ------
    InputError
        If the file cannot be read, or a field is wrong.
    """
    if format_of(read_text(path), str(path)) != SUMMARY_FORMAT:
        return None
    fields = Fields(read_json(path), str(path))
    return _facts(fields, [_point(fields, 0)]) if fields.has("runtime_us") else None


def told_command(folder: Path, makespan_us: float) -> str:
    """Command that made the schedule in a folder of ``taccl synth``, which takes so long in microseconds; empty if its summary tells none, or is of another one."""
    with suppress(InputError):
        fields = Fields(read_json(folder / SUMMARY_FILE), SUMMARY_FILE)
        return fields.text("command", "") if fields.number("makespan_us") == makespan_us else ""
    return ""


def told_runtimes(paths: Iterable[Path], known: Collection[str] = RUNTIMES) -> set[str]:
    """Names of the runtimes, of those that are known, that algorithm files, or the files in folders, were made for.

    The summaries of `taccl synth` and `taccl sweep` beside them tell, of which one that cannot be read tells nothing, and the configuration of legacy MSCCL.
    """
    found = set()
    for path in paths:
        is_folder = os.path.isdir(path)
        folder = path if is_folder else path.parent
        if os.path.isfile(folder / LEGACY_CONFIG):
            found.add(LEGACY.name)
            continue
        for summary in (
            folder / SUMMARY_FILE,
            folder / RESULT_FILE,
            *sorted((folder / NOTES).glob(f"*-{SUMMARY_FILE}")),
        ):
            runtime, names = _told_runtime(summary)
            if runtime in known and (is_folder or path.name in names):
                found.add(runtime)
    return found


def told_instances(folder: Path) -> int:
    """Parts of every chunk that the summary in a folder of ``taccl synth`` tells; 1 if it tells none, or there is none that can be read."""
    with suppress(InputError):
        return Fields(read_json(folder / SUMMARY_FILE), SUMMARY_FILE).integer("instances", 1)
    return 1


def _told_runtime(summary: Path) -> tuple[str, set[str]]:
    """Runtime that a summary names, and the names of the files that it is of; nothing if it cannot be read."""
    with suppress(InputError):
        if format_of(read_text(summary), str(summary)) in INDEX_FORMATS:
            fields = Fields(read_json(summary), str(summary))
            return fields.text("runtime", ""), {Path(str(name)).name for name in fields.items("files", [])}
    return "", set()


def _facts(fields: Fields, points: list[RuntimePoint]) -> RuntimeFacts:
    points.sort(key=lambda point: point.size_bytes)
    return RuntimeFacts(fields.text("runtime_profile", NEUTRAL), fields.text("runtime_evidence", ""), tuple(points))


def _point(fields: Fields, number: int) -> RuntimePoint:
    return RuntimePoint(
        fields.integer("size_bytes", least=1), fields.number("runtime_us", least=0),
        fields.number("runtime_bound_us", least=0), number,
    )  # fmt: skip


def _command(fields: Fields, rows: list[Fields]) -> str:
    """Command of a portfolio whose summary does not hold it, by the facts that it holds."""
    kind = parse_kind(fields.text("collective"))
    sizes = [row.integer("size_bytes", least=1) for row in rows]
    name = fields.text("topology")
    formula = name.replace("-", ":", 1)
    machine = formula if formula.partition(":")[0] in {shape.name for shape in SHAPES} else name
    words = ["taccl", "synth", machine, str(kind), "--sizes", f"{min(sizes)}B:{max(sizes)}B"]
    words += ["--root", str(fields.integer("root", 0))] if kind in ROOTED else []
    sketch = fields.text("sketch", "")
    words += ["--sketch", sketch] if sketch else []
    words += ["--runtime-profile", fields.text("runtime_profile")] if fields.has("runtime_profile") else []
    return shlex.join([*words, "-o", "out/"])

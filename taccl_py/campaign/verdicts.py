"""A check's verdict as a JSON record, as tables, as JUnit XML and as Markdown; none of them holds a time of day."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from taccl_py.campaign.baseline import MetricChange, Verdict
from taccl_py.campaign.metrics import Metric
from taccl_py.units import format_time

COLUMNS = ("instance", "metric", "was", "is", "change", "tolerated")
_TIMES = (Metric.COST, Metric.REPLAY, Metric.BOUND)


def verdict_record(verdict: Verdict) -> dict[str, Any]:
    """Return the JSON object of a verdict; times are microseconds, changes parts of what was."""
    return {
        "passes": verdict.passes,
        "instances": verdict.num_instances,
        "worse": [_change(change) for change in verdict.worse],
        "better": [_change(change) for change in verdict.better],
        "tolerated": [_change(c) for c in verdict.changes if c.worsening > 0 and not c.is_worse],
        "missing": list(verdict.missing),
        "gone": list(verdict.gone),
        "failed": [{"instance": name, "error": error} for name, error in verdict.failed],
        "rewritten": list(verdict.rewritten),
        "other_machines": list(verdict.other_machines),
    }


def _change(change: MetricChange) -> dict[str, Any]:
    return {
        "instance": change.name, "metric": str(change.metric), "before": change.before, "now": change.now,
        "worsening": change.worsening, "threshold": change.threshold,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class TitledRows:
    """A table: its title, and cells under `COLUMNS`."""

    title: str
    cells: tuple[tuple[str, ...], ...]


def verdict_rows(verdict: Verdict) -> list[TitledRows]:
    """Tables of what got worse and what got better; none if nothing did."""
    both = (("got worse", verdict.worse), ("got better", verdict.better))
    return [TitledRows(title, tuple(tuple(_cells(change)) for change in changes)) for title, changes in both if changes]


def _cells(change: MetricChange) -> list[str]:
    values = [format_time(v) if change.metric in _TIMES else f"{v:g}" for v in (change.before, change.now)]
    # A bound that rises has got better, so its change has the other sign.
    part = -change.worsening if change.metric is Metric.BOUND else change.worsening
    return [change.name, str(change.metric), *values, f"{100 * part:+.3g} %", f"{100 * change.threshold:g} %"]


def verdict_notes(verdict: Verdict) -> list[str]:
    """Sentences for people, the last of which says how it ended."""
    notes = [f"{name} has no result: {error}" for name, error in verdict.failed]
    notes += [f"{name} is not in the baseline; taccl regress accept adds it" for name in verdict.missing]
    notes += [f"{name} is in the baseline only; taccl regress accept removes it" for name in verdict.gone]
    if verdict.other_machines:
        first, *others = verdict.other_machines
        more = f" and {len(others)} more" if others else ""
        notes.append(
            f"{first}{more}: the machine is not the one of the baseline, so changes may be its own; taccl regress accept "
            "writes down what it is now"
        )
    if verdict.rewritten:
        count = len(verdict.rewritten)
        notes.append(
            f"{count} {'program is' if count == 1 else 'programs are'} written otherwise with the same metrics"
        )
    worse = {change.name for change in verdict.worse}
    better = {change.name for change in verdict.better} - worse
    counts = f"{verdict.num_instances} instances, {len(worse)} worse, {len(better)} better"
    return [*notes, f"{'good' if verdict.passes else 'not good'}: {counts}"]


def junit_xml(names: Sequence[str], verdict: Verdict) -> str:
    """JUnit XML: a test case for every instance, failed if it got worse, in error if it has no result."""
    worse: dict[str, list[MetricChange]] = {}
    for change in verdict.worse:
        worse.setdefault(change.name, []).append(change)
    failed = dict(verdict.failed)
    missing = {*verdict.missing}
    counts = {
        "tests": len(names) + len(verdict.gone), "failures": len(worse) + len(missing) + len(verdict.gone),
        "errors": len(failed),
    }  # fmt: skip
    suite = ElementTree.Element("testsuite", {"name": "taccl regress"} | {key: str(n) for key, n in counts.items()})
    for name in [*names, *verdict.gone]:
        case = ElementTree.SubElement(suite, "testcase", {"classname": "taccl.regress", "name": name})
        if name in failed:
            ElementTree.SubElement(case, "error", {"message": failed[name]})
        elif name in worse:
            said = "; ".join(" ".join(_cells(change)[1:5]) for change in worse[name])
            ElementTree.SubElement(case, "failure", {"message": said})
        elif name in missing or name in verdict.gone:
            where = "suite" if name in missing else "baseline"
            ElementTree.SubElement(case, "failure", {"message": f"is in the {where} only"})
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def markdown(verdict: Verdict) -> str:
    """Text for a pull request or a GitHub step summary."""
    lines = [f"### Cost of algorithms: {verdict_notes(verdict)[-1]}", ""]
    for title, changes in (("Got worse", verdict.worse), ("Got better", verdict.better)):
        if changes:
            lines += [f"**{title}**", "", *_rows([COLUMNS, ["---"] * len(COLUMNS), *map(_cells, changes)]), ""]
    lines += [f"* {_escaped(note)}" for note in verdict_notes(verdict)[:-1]]
    return "\n".join(lines).rstrip() + "\n"


def _rows(rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(_escaped(cell) for cell in row)} |" for row in rows]


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")

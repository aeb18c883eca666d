"""Baseline: what a suite's results were, as a file that is reviewed, and what has changed since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taccl_py.campaign.metrics import Metric, measured
from taccl_py.campaign.suite import Suite
from taccl_py.campaign.work import CaseOutcome
from taccl_py.jsonio import Fields, canonical_json, read_json, write_atomically

FORMAT, VERSION = "taccl-baseline", 1
# Changes up to this part are the last digits, which may differ from machine to machine.
_SAME = 1e-7
# Steps of very large schedules are not counted, and a demand has no program.
_MAY_BE_NULL = (Metric.STEPS, Metric.THREADBLOCKS, Metric.CHANNELS)


@dataclass(frozen=True, slots=True)
class MetricChange:
    """A metric of an instance that is not what it was.

    Attributes
    ----------
    name, metric
        Which.
    before, now
        Values.
    worsening
        Relative change for the worse; negative if it got better.
    threshold
        How much of that is tolerated.
    """

    name: str
    metric: Metric
    before: float
    now: float
    worsening: float
    threshold: float

    @property
    def is_worse(self) -> bool:
        """True if the metric got worse by more than is tolerated."""
        return self.worsening > self.threshold


@dataclass(frozen=True)
class Verdict:
    """Result of a check against the baseline.

    Attributes
    ----------
    num_instances
        That were checked.
    changes
        Metrics that changed, worse ones first.
    missing
        Instances that the baseline does not know.
    gone
        Instances of the baseline that the suite does not have.
    failed
        Instances without a result, with the reason.
    rewritten
        Instances with the same metrics whose XML is another text.
    other_machines
        Instances whose machine is not what it was, so that changes need not be those of algorithms.
    """

    num_instances: int
    changes: tuple[MetricChange, ...]
    missing: tuple[str, ...]
    gone: tuple[str, ...]
    failed: tuple[tuple[str, str], ...]
    rewritten: tuple[str, ...]
    other_machines: tuple[str, ...]

    @property
    def worse(self) -> tuple[MetricChange, ...]:
        """Metrics that got worse by more than is tolerated."""
        return tuple(change for change in self.changes if change.is_worse)

    @property
    def better(self) -> tuple[MetricChange, ...]:
        """Metrics that got better."""
        return tuple(change for change in self.changes if change.worsening < 0)

    @property
    def passes(self) -> bool:
        """True if nothing got worse and baseline and suite name the same instances."""
        return not (self.worse or self.missing or self.gone or self.failed)


def read_baseline(path: Path) -> dict[str, dict[str, Any]]:
    """Instances of a baseline file by name.

    Raises
    ------
    InputError
        If the file is wrong.
    """
    fields = Fields(read_json(path), str(path))
    fields.header(FORMAT, VERSION)
    instances = fields.object("instances")
    fields.finish()
    found = {}
    for name in instances.names():
        entry = instances.object(name)
        values: dict[str, Any] = {metric.value: _value(entry, metric) for metric in Metric}
        values |= {"status": entry.text("status")}
        values |= {key: None if entry.raw(key) is None else entry.text(key) for key in ("protocol", "xml_sha256")}
        if entry.has("machine_sha256"):  # baselines did not always have it
            values["machine_sha256"] = entry.text("machine_sha256")
        entry.finish()
        found[name] = values
    return found


def _value(entry: Fields, metric: Metric) -> float | None:
    if metric in _MAY_BE_NULL and entry.raw(metric.value) is None:
        return None
    return entry.integer(metric.value) if metric.is_count else entry.number(metric.value)


def write_baseline(path: Path, outcomes: Sequence[CaseOutcome], others: dict[str, dict[str, Any]]) -> None:
    """Write what the results are now.

    Parameters
    ----------
    path
        Baseline file.
    outcomes
        Cases with results.
    others
        Entries of cases that were not carried out and stay as they were.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    entries = others | {each.case.name: measured(each.kept.record) for each in outcomes if each.kept is not None}
    value = {"format": FORMAT, "version": VERSION, "instances": dict(sorted(entries.items()))}
    write_atomically(path, canonical_json(value))


def compare(
    suite: Suite, outcomes: Sequence[CaseOutcome], known: dict[str, dict[str, Any]], *, is_whole: bool
) -> Verdict:
    """Compare results with a baseline.

    Parameters
    ----------
    suite
        Whose thresholds count.
    outcomes
        Results now.
    known
        The baseline's entries.
    is_whole
        Whether the outcomes are those of the whole suite, so that what is not among them is gone.
    """
    changes: list[MetricChange] = []
    missing, failed, rewritten, other_machines = [], [], [], []
    for outcome in outcomes:
        name = outcome.case.name
        if outcome.kept is None:
            failed.append((name, outcome.error))
            continue
        if name not in known:
            missing.append(name)
            continue
        now = measured(outcome.kept.record)
        if known[name].get("machine_sha256", now["machine_sha256"]) != now["machine_sha256"]:
            other_machines.append(name)
        found = _changes(name, known[name], now, suite.thresholds)
        changes += found
        if not found and known[name]["xml_sha256"] != now["xml_sha256"]:
            rewritten.append(name)
    names = {outcome.case.name for outcome in outcomes}
    changes.sort(key=lambda change: (not change.is_worse, -change.worsening, change.name, change.metric))
    gone = sorted(known.keys() - names) if is_whole else []
    return Verdict(
        len(outcomes),
        tuple(changes),
        tuple(missing),
        tuple(gone),
        tuple(failed),
        tuple(rewritten),
        tuple(other_machines),
    )


def _changes(
    name: str, before: dict[str, Any], now: dict[str, Any], thresholds: dict[Metric, float]
) -> list[MetricChange]:
    found = []
    for metric in Metric:
        worsening = metric.worsening(before[metric.value], now[metric.value])
        if abs(worsening) > _SAME:
            threshold = thresholds[metric]
            found.append(MetricChange(name, metric, before[metric.value], now[metric.value], worsening, threshold))
    return found

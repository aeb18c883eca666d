"""Metrics recorded of a result so that it can be compared with a later one."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

# Digits that are kept: the last ones of a floating-point number may differ from machine to machine.
_DIGITS = 9


class Metric(StrEnum):
    """Metrics, spelled as in suite files and baselines."""

    COST = "cost"
    REPLAY = "replay"
    BOUND = "bound"
    STEPS = "steps"
    THREADBLOCKS = "threadblocks"
    CHANNELS = "channels"

    @property
    def key(self) -> str:
        """Of a result's record."""
        return {Metric.COST: "makespan_us", Metric.REPLAY: "replay_us", Metric.BOUND: "bound_us"}.get(self, self.value)

    @property
    def is_count(self) -> bool:
        """True for a whole number; False for microseconds."""
        return self not in (Metric.COST, Metric.REPLAY, Metric.BOUND)

    @property
    def threshold(self) -> float:
        """By how much it may get worse, as a part of what it was, unless a suite says otherwise."""
        return 0.0 if self.is_count else 0.001

    def worsening(self, before: float | None, now: float | None) -> float:
        """Relative change for the worse; negative if it got better. A bound gets worse by going down.

        Nothing has changed where one of them is None, as steps of millions of messages are not counted and demands have no program.
        """
        if before is None or now is None or before == now:
            return 0.0
        change = (now - before) / abs(before) if before else float("inf")
        return -change if self is Metric.BOUND else change


def measured(record: dict[str, Any]) -> dict[str, Any]:
    """Return what a baseline keeps of a record: metrics, status, protocol, and digests of XML and machine; nulls of a demand, which has no program."""
    found: dict[str, Any] = {metric.value: _rounded(record.get(metric.key)) for metric in Metric}
    found |= {"status": record["status"], "protocol": record.get("protocol")}
    return found | {key: record[key] for key in ("xml_sha256", "machine_sha256")}


def _rounded(value: float | None) -> float | int | None:
    return value if value is None or isinstance(value, int) else float(f"{value:.{_DIGITS}g}")

"""Schedules of any size, each by the verifier that is up to it."""

from __future__ import annotations

from taccl_py.collective import Kind
from taccl_py.errors import Violation
from taccl_py.schedule.ir import Schedule
from taccl_py.verify.large import is_for_large, verify_large
from taccl_py.verify.schedule import verify_purpose, verify_schedule

_OTHER_SUMS = frozenset({"not-a-tree", "incomplete-sum"})


def verify_any(schedule: Schedule, *, kind: Kind | None = None, root: int | None = None) -> tuple[Violation, ...]:
    """Return errors to a schedule; none means that it is correct.

    Very large ones are verified as arrays, unless only the other verifier can follow how they sum.

    Parameters
    ----------
    schedule
        The schedule.
    kind, root
        Collective and root rank that it is meant for; compared where given.
    """
    if is_for_large(schedule):
        found = verify_large(schedule)
        if _OTHER_SUMS.isdisjoint(violation.rule for violation in found):
            return (*verify_purpose(schedule, kind, root), *found)
    return verify_schedule(schedule, kind=kind, root=root)

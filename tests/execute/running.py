"""Runs of a text, for tests."""

from taccl_py.errors import InvalidArtifact
from taccl_py.execute.plan import DataType, Operator
from taccl_py.execute.reader import read_plan
from taccl_py.execute.runs import Call, Conditions, run_local
from taccl_py.runtimes import EXECUTOR


def plan_of(file, **hints):
    return read_plan(file.text(), "test.xml", **hints)


def placements(plan):
    return [kept for kept, on in ((False, plan.out_of_place), (True, plan.in_place)) if on]


def outcomes(plan, *, size=4096, types=(DataType.INT32,), operators=(Operator.SUM,), **conditions):
    """Outcomes for every placement that a plan declares, type and operator."""
    where = Conditions(conditions.pop("runtime", EXECUTOR), **conditions)
    calls = [Call(size, t, op, place) for t in types for op in operators for place in placements(plan)]
    return [run_local(plan, call, where) for call in calls]


def violations(plan, **how):
    """Rules that a run breaks."""
    try:
        return ["wrong-result" for outcome in outcomes(plan, **how) if outcome.num_wrong]
    except InvalidArtifact as error:
        return [violation.rule for violation in error.violations]

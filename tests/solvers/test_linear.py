import math
import random
import sys
import threading
import time

import pulp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.errors import InputError, PackageMissing
from taccl_py.solvers.cp_sat import Status
from taccl_py.solvers.limits import Limits
from taccl_py.solvers.linear import LINEAR_SOLVERS, LinearModel, find_solver
from tests.instances import quiet_pulp
from tests.patience import ends_within

pytestmark = quiet_pulp
both = pytest.mark.parametrize("solver", ["highs", "cbc"])


def blending():
    """min 2x + y with x + y >= 5 and y <= 4: x = 1, y = 4, 6."""
    model = LinearModel("blending")
    x, y = model.real("x", 0.0, None), model.real("y", 0.0, 4.0)
    model.minimize([(x, 2.0), (y, 1.0)])
    model.at_least([(x, 1.0), (y, 1.0)], 5.0)
    return model, x, y


def cover():
    """Four sets with costs 5, 4, 3, 3 that cover pairs of three points: the third and the fourth, 6; the relaxation says 5."""
    model = LinearModel("cover")
    sets = [model.binary(f"set_{i}") for i in range(4)]
    model.minimize(zip(sets, (5.0, 4.0, 3.0, 3.0), strict=True))
    for members in ((0, 1, 2), (0, 2, 3), (1, 3)):
        model.at_least([(sets[i], 1.0) for i in members], 1.0)
    return model, sets


def market_split(num_rows=6, num_items=60):
    """A problem that no solver closes in the seconds given here, with a solution that is plain to see (the slacks)."""
    rng = random.Random(1)
    model = LinearModel("market")
    items = [model.binary(f"item_{i}") for i in range(num_items)]
    objective = [(item, float(rng.randrange(50, 100))) for item in items]
    for row in range(num_rows):
        weights = [rng.randrange(100) for _ in items]
        less, more = model.real(f"less_{row}", 0.0, None), model.real(f"more_{row}", 0.0, None)
        terms = [(item, float(weight)) for item, weight in zip(items, weights, strict=True)]
        model.equal([*terms, (less, 1.0), (more, -1.0)], float(sum(weights) // 2))
        objective += [(less, 1000.0), (more, 1000.0)]
    model.minimize(objective)
    return model


@both
def test_a_linear_program_is_solved(solver):
    model, x, y = blending()
    outcome = model.solve(solver, Limits(seconds=20.0))
    assert outcome.status is Status.OPTIMAL
    assert outcome.objective == pytest.approx(6.0)
    assert (x.varValue, y.varValue) == pytest.approx((1.0, 4.0))


@both
def test_an_integer_program_is_solved(solver):
    model, sets = cover()
    outcome = model.solve(solver, Limits(seconds=20.0))
    assert outcome.status is Status.OPTIMAL
    assert outcome.objective == pytest.approx(6.0)
    assert [round(one.varValue) for one in sets] == [0, 0, 1, 1]


def slots():
    """A part of the model of steps: a or b or c, d or e; a waits for d, and each use has its price. b and e: 10."""
    model = LinearModel("slots")
    a, b, c, d, e = (model.binary(name) for name in "abcde")
    early, late = model.real("early", 0.0, 5000.0), model.real("late", 0.0, 5000.0)
    model.minimize([(early, 1.0), (late, 1.0)])
    model.at_least([(a, 1.0), (d, -1.0)], 0.0)
    model.at_least([(late, 1.0), (e, -10.0)], 0.0)
    model.at_least([(late, 1.0), (c, -100.0)], 0.0)
    model.at_least([(early, 1.0), (a, -1100.0)], 0.0)
    model.equal([(a, 1.0), (b, 1.0), (c, 1.0)], 1.0)
    model.equal([(d, 1.0), (e, 1.0)], 1.0)
    return model


@both
def test_the_optimum_survives_presolve(solver):
    """HiGHS 1.14.0 says 1100."""
    outcome = slots().solve(solver, Limits(seconds=20.0))
    assert outcome.status is Status.OPTIMAL
    assert outcome.objective == pytest.approx(10.0)


@both
def test_every_kind_of_row_is_kept_and_terms_of_one_variable_add_up(solver):
    model = LinearModel("rows")
    x, y, z = (model.real(name, -10.0, 10.0) for name in "xyz")
    model.minimize([(x, 1.0), (y, 1.0), (z, -1.0)])
    model.at_least([(x, 1.0), (x, 1.0)], 3.0)
    model.equal([(y, 2.0), (x, 2.0)], 1.0)
    model.at_most([(z, 1.0), (y, 1.0)], 4.0)
    outcome = model.solve(solver, Limits(seconds=20.0))
    assert 2 * x.varValue >= 3.0 - 1e-6
    assert 2 * y.varValue + 2 * x.varValue == pytest.approx(1.0)
    assert z.varValue + y.varValue <= 4.0 + 1e-6
    assert outcome.objective == pytest.approx(-9.5)


@both
def test_a_contradiction_is_infeasible(solver):
    model, x, y = blending()
    model.at_most([(x, 1.0), (y, 1.0)], 4.0)
    outcome = model.solve(solver, Limits(seconds=20.0))
    assert outcome.status is Status.INFEASIBLE
    assert outcome.objective is None


@both
def test_a_time_limit_leaves_the_best_solution_so_far(solver):
    with ends_within(10):
        model = market_split()
        outcome = model.solve(solver, Limits(seconds=1.0))
    assert outcome.status is Status.FEASIBLE
    assert outcome.objective == pytest.approx(model.problem.objective.value())


@both
def test_a_warm_start_is_never_made_worse(solver):
    """CBC reads it from a file, HiGHS through its interface; neither finds as good a solution again by luck alone."""
    first = market_split()
    found = first.solve(solver, Limits(seconds=1.0))
    values = {variable.name: variable.varValue for variable in first.problem.variables()}
    second = market_split()
    second.set_start({variable: values[variable.name] for variable in second.problem.variables()})
    again = second.solve(solver, Limits(seconds=1.0))
    assert again.objective <= found.objective * (1 + 1e-6)


@both
def test_a_warm_start_that_breaks_a_row_does_no_harm(solver):
    model, sets = cover()
    model.set_start(dict.fromkeys(sets, 0.0))
    assert model.solve(solver, Limits(seconds=20.0)).objective == pytest.approx(6.0)


def test_an_interrupt_stops_highs_early_with_the_best_so_far():
    limits = Limits(seconds=300.0)
    threading.Timer(0.7, limits.stop.set).start()
    with ends_within(15):
        outcome = market_split().solve("highs", limits)
    assert outcome.status is Status.FEASIBLE


def test_an_unbounded_program_has_no_optimum():
    model = LinearModel("unbounded")
    x = model.real("x", 0.0, None)
    model.minimize([(x, -1.0)])
    model.at_least([(x, 1.0)], 2.0)
    assert model.solve("highs", Limits(seconds=5.0)).status is not Status.OPTIMAL


@settings(max_examples=10)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5),
    st.integers(1, 30),
)
def test_both_solvers_find_the_same_optimum_as_trying_everything(items, least):
    """Cheapest choice of items (cost, weight, volume) with enough weight and not too much volume."""
    best = math.inf
    for mask in range(1 << len(items)):
        chosen = [item for i, item in enumerate(items) if mask >> i & 1]
        if sum(w for _, w, _ in chosen) >= least and sum(v for *_, v in chosen) <= 20:
            best = min(best, sum(c for c, *_ in chosen))
    for solver in ("highs", "cbc"):
        model = LinearModel("items")
        x = [model.binary(f"x_{i}") for i in range(len(items))]
        model.minimize([(one, float(cost)) for one, (cost, _, _) in zip(x, items, strict=True)])
        model.at_least([(one, float(weight)) for one, (_, weight, _) in zip(x, items, strict=True)], float(least))
        model.at_most([(one, float(volume)) for one, (*_, volume) in zip(x, items, strict=True)], 20.0)
        outcome = model.solve(solver, Limits(seconds=20.0))
        if best == math.inf:
            assert outcome.status is Status.INFEASIBLE
        else:
            assert outcome.status is Status.OPTIMAL
            assert outcome.objective == pytest.approx(best)


def test_a_solver_is_found_by_our_name_or_pulps():
    assert find_solver("highs") == "HiGHS"
    assert find_solver("HiGHS") == "HiGHS"
    assert find_solver("cbc") in ("PULP_CBC_CMD", "COIN_CMD")
    assert find_solver("pulp_cbc_cmd") == "PULP_CBC_CMD"


@pytest.mark.parametrize("name", ["simplex", "", "highs2"])
def test_an_unknown_solver_is_refused_with_the_known_ones(name):
    with pytest.raises(InputError) as caught:
        find_solver(name)
    for known in ("cp-sat", *LINEAR_SOLVERS):
        assert known in str(caught.value)


@pytest.mark.parametrize("name", LINEAR_SOLVERS)
def test_a_known_solver_that_is_missing_is_reported_with_how_to_get_it(monkeypatch, name):
    names = pulp.listSolvers()
    monkeypatch.setattr(pulp, "listSolvers", lambda onlyAvailable=False: [] if onlyAvailable else names)  # noqa: N803
    with pytest.raises(PackageMissing) as caught:
        find_solver(name)
    assert name in str(caught.value)
    assert caught.value.remedy in str(caught.value)
    assert "install" in caught.value.remedy


def test_a_solver_of_pulp_that_is_missing_is_reported_too(monkeypatch):
    names = pulp.listSolvers()
    monkeypatch.setattr(pulp, "listSolvers", lambda onlyAvailable=False: [] if onlyAvailable else names)  # noqa: N803
    with pytest.raises(PackageMissing, match="GLPK_CMD"):
        find_solver("glpk_cmd")


def test_the_second_provider_serves_where_the_first_is_missing(monkeypatch):
    names = pulp.listSolvers()
    monkeypatch.setattr(pulp, "listSolvers", lambda onlyAvailable=False: ["COIN_CMD"] if onlyAvailable else names)  # noqa: N803
    assert find_solver("cbc") == "COIN_CMD"


def test_a_solver_that_breaks_is_reported_and_not_passed_through(monkeypatch):
    def breaks(*_args, **_kwargs):
        raise pulp.PulpSolverError("no licence")

    model, *_ = blending()
    monkeypatch.setattr(model.problem, "solve", breaks)
    monkeypatch.setattr("taccl_py.solvers.linear.find_solver", lambda _name: "GUROBI_CMD")
    with pytest.raises(PackageMissing, match="no licence"):
        model.solve("gurobi", Limits(seconds=5.0))


@pytest.mark.parametrize(("seconds", "clock_s", "allowed"), [(5.0, 100.0, (5.0, 5.0)), (100.0, 3.0, (0.05, 3.0))])
def test_a_solver_that_counts_no_work_gets_the_shorter_of_budget_and_clock(monkeypatch, seconds, clock_s, allowed):
    given = {}

    def solver(_name, **options):
        given.update(options)
        raise pulp.PulpSolverError("enough seen")

    model, *_ = blending()
    monkeypatch.setattr(model.pulp, "getSolver", solver)
    monkeypatch.setattr("taccl_py.solvers.linear.find_solver", lambda _name: "GUROBI_CMD")
    with pytest.raises(PackageMissing, match="enough seen"):
        model.solve("gurobi", Limits(seconds=seconds, by_work=True, ends_at_s=time.monotonic() + clock_s))
    assert allowed[0] <= given["timeLimit"] <= allowed[1]


def test_missing_pulp_is_reported_with_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pulp", None)
    with pytest.raises(PackageMissing) as caught:
        LinearModel("none")
    assert caught.value.remedy == "pip install pulp"

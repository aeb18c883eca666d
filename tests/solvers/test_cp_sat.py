import random
import sys
import threading

import pytest
from ortools.sat.python import cp_model

from taccl_py.errors import PackageMissing
from taccl_py.solvers.cp_sat import Status, import_cp_model, solve_cp
from taccl_py.solvers.limits import Limits
from tests.patience import ends_within


def knapsack():
    """Maximize 4a + 5b + 3c with 3a + 4b + 2c <= 6: b and c, 8 (a and c give 7)."""
    model = cp_model.CpModel()
    items = [model.new_bool_var(name) for name in "abc"]
    model.add(3 * items[0] + 4 * items[1] + 2 * items[2] <= 6)
    model.minimize(-4 * items[0] - 5 * items[1] - 3 * items[2])
    return model, items


def job_shop(jobs=14, machines=9, seed=0):
    """A job shop that takes CP-SAT much longer than any limit here, but has a schedule at once."""
    rng = random.Random(seed)
    model, horizon = cp_model.CpModel(), 10_000
    makespan = model.new_int_var(0, horizon, "makespan")
    on_machine = [[] for _ in range(machines)]
    for job in range(jobs):
        ready = 0
        for machine in rng.sample(range(machines), machines):
            size = rng.randrange(10, 100)
            start = model.new_int_var(0, horizon, f"start {job} {machine}")
            model.add(start >= ready)
            on_machine[machine].append(model.new_fixed_size_interval_var(start, size, f"{job} {machine}"))
            ready = start + size
        model.add(makespan >= ready)
    for intervals in on_machine:
        model.add_no_overlap(intervals)
    model.minimize(makespan)
    return model, makespan


def test_an_optimum_is_found_and_proved():
    model, items = knapsack()
    outcome = solve_cp(model, Limits(seconds=20.0))
    assert outcome.status is Status.OPTIMAL
    assert outcome.objective == -8.0
    assert [outcome.value(item) for item in items] == [0, 1, 1]


def test_a_contradiction_is_infeasible_and_has_no_objective():
    model, items = knapsack()
    model.add(items[0] + items[1] == 2)
    outcome = solve_cp(model, Limits(seconds=20.0))
    assert outcome.status is Status.INFEASIBLE
    assert outcome.objective is None


def test_progress_tells_every_better_objective():
    told = []
    model, _ = job_shop()
    outcome = solve_cp(model, Limits(work=0.2), told.append)
    assert told == sorted(set(told), reverse=True)
    assert told[-1] == outcome.objective


def test_a_time_limit_leaves_the_best_solution():
    model, makespan = job_shop()
    with ends_within(5):
        outcome = solve_cp(model, Limits(seconds=0.5))
    assert outcome.status is Status.FEASIBLE
    assert outcome.objective == outcome.value(makespan)


def test_a_work_limit_ends_at_the_same_point_every_time_with_the_same_seed():
    def solved(seed):
        model, _ = job_shop()
        outcome = solve_cp(model, Limits(work=0.1, seed=seed))
        assert outcome.status is Status.FEASIBLE
        starts = [outcome.value(model.get_int_var_from_proto_index(i)) for i in range(20)]
        return outcome.objective, outcome.work, starts

    first = solved(1)
    assert first == solved(1)
    assert first[-1] != solved(2)[-1]


def test_no_time_and_no_solution_is_unknown():
    outcome = solve_cp(job_shop(jobs=40, machines=20)[0], Limits(work=1e-9))
    assert outcome.status is Status.UNKNOWN
    assert outcome.objective is None


def test_an_interrupt_stops_early_with_the_best_so_far():
    limits = Limits(seconds=300.0)
    timer = threading.Timer(0.7, limits.stop.set)
    timer.start()
    with ends_within(15):
        outcome = solve_cp(job_shop()[0], limits)
    assert outcome.status is Status.FEASIBLE
    assert outcome.objective is not None


def test_a_model_that_makes_no_sense_is_our_mistake_and_is_raised():
    model = cp_model.CpModel()
    model.new_int_var(5, 3, "backwards")
    with pytest.raises(ValueError, match="invalid"):
        solve_cp(model, Limits(seconds=5.0))


def test_missing_or_tools_is_reported_with_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools.sat.python.cp_model", None)
    with pytest.raises(PackageMissing) as caught:
        import_cp_model()
    assert "OR-tools" in str(caught.value)
    assert caught.value.remedy == "pip install ortools"


def test_where_presolve_fails_it_is_left_out(monkeypatch):
    """As OR-tools 9.15 does on some models that nothing satisfies, found so while it merges duplicates."""
    solve, presolves = cp_model.CpSolver.solve, []

    def failing(solver, *arguments):
        presolves.append(solver.parameters.cp_model_presolve)
        if presolves[-1]:
            raise IndexError("absl::container_internal::raw_hash_map<>::at")
        return solve(solver, *arguments)

    monkeypatch.setattr(cp_model.CpSolver, "solve", failing)
    outcome = solve_cp(knapsack()[0], Limits(seconds=20.0))
    assert (outcome.status, outcome.objective, presolves) == (Status.OPTIMAL, -8.0, [True, False])

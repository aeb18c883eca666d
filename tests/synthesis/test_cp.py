"""Engine ``cp``: CP-SAT, and on without the symmetry."""

import pytest
from hypothesis import given, settings

from taccl_py.collective import Collective, Kind
from taccl_py.errors import InputError
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Demand, Events, Options, Proof
from taccl_py.synthesis.milp import synthesize_cp, synthesize_milp
from taccl_py.synthesis.plan import lift, plan_of
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.quotient import Quotient
from taccl_py.topology.catalog import load_topology
from taccl_py.verify.schedule import verify_schedule
from tests.instances import MB, demand_of_chunks, ring
from tests.synthesis.drawn import problems


def options(solver="auto"):
    return Options(solver, Limits(seconds=30.0))


def test_what_milp_proves_optimal_cp_does_too():
    demand = Demand(ring(4, alpha_us=0.0), Kind.ALLGATHER, 4 * MB)
    found = synthesize_cp(demand, options(), Events())
    assert found.proof is Proof.OPTIMAL
    assert found.schedule.makespan_us == synthesize_milp(demand, options(), Events()).schedule.makespan_us
    assert "without symmetry" not in found.stage_seconds


def test_it_goes_on_without_the_symmetry_and_is_never_slower_than_milp():
    demand, brief = Demand(load_topology("ndv2"), Kind.ALLREDUCE, 1 * MB), Options(limits=Limits(2.0, by_work=True))
    found = synthesize_cp(demand, brief, Events())
    assert "without symmetry" in found.stage_seconds
    assert verify_schedule(found.schedule) == ()
    assert found.schedule.makespan_us <= synthesize_milp(demand, brief, Events()).schedule.makespan_us


def test_another_solver_is_refused():
    with pytest.raises(InputError, match=r"cp-sat.*'highs'"):
        synthesize_cp(Demand(ring(4), Kind.ALLGATHER, MB), options("highs"), Events())


@given(problems(kinds=(Kind.ALLGATHER, Kind.BROADCAST, Kind.ALLTOALL), most_ranks=5))
@settings(max_examples=8)
def test_the_plan_of_a_schedule_is_the_schedule(drawn):
    collective = drawn.collective
    problem = Problem.build(drawn.topology, collective, None, MB).without_symmetry()
    schedule = synthesize_milp(
        demand_of_chunks(drawn.topology, collective, None, MB),
        Options(limits=Limits(seconds=0.2, by_work=True)),
        Events(),
    ).schedule
    quotient = Quotient.of(problem)
    plan = plan_of(quotient, schedule)
    if plan is not None:
        assert lift(quotient, plan).makespan_us <= schedule.makespan_us * (1 + 1e-9)


def test_a_chunk_on_a_link_that_is_not_allowed_has_no_plan():
    topology = ring(4)
    schedule = synthesize_milp(Demand(topology, Kind.BROADCAST, MB), options(), Events()).schedule
    other = Problem.build(topology, Collective(Kind.BROADCAST, 4, 1, root=2), None, MB).without_symmetry()
    assert plan_of(Quotient.of(other), schedule) is None

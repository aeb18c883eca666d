import pytest

from taccl_py.collective import Collective, Kind
from taccl_py.solvers.cp_sat import Status
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.models.linear_contiguity import solve_contiguity
from taccl_py.synthesis.plan import OrbitMessage, lift, plan_end
from taccl_py.topology.model import Link, Port
from taccl_py.verify.schedule import verify_schedule
from tests.instances import Instance, chain, machine, quiet_pulp, relay_between_nodes, small_messages
from tests.synthesis.tasks import search_for

pytestmark = quiet_pulp
ENOUGH = Limits(seconds=30.0)
both = pytest.mark.parametrize("solver", ["highs", "cbc"])


def contiguous(search, solver="highs", order=None):
    return solve_contiguity(search.task(joins=True), order or search.best_plan, solver, ENOUGH)


def buffer_of(num_chunks, alpha_us, beta_us_per_mb, num_ranks=2):
    return Instance(
        "buffer", chain(num_ranks, alpha_us, beta_us_per_mb), Collective(Kind.BROADCAST, num_ranks, num_chunks), 0.0
    )


@both
def test_neighbours_on_one_link_become_one_message(solver):
    search = search_for(buffer_of(4, 100.0, 1.0))
    assert search.best.makespan_us == 404.0
    plan, outcome = contiguous(search, solver)
    assert outcome.status is Status.OPTIMAL
    schedule = lift(search.quotient, plan)
    assert verify_schedule(schedule) == ()
    assert [message.chunks for message in schedule.messages] == [(0, 1, 2, 3)]
    assert schedule.makespan_us == 104.0


@both
def test_a_pipeline_stays_where_waiting_costs_more_than_alpha(solver):
    """Over two links one message of 2 takes 2 * (1 + 20) = 42, two take 11 + 11 + 11 = 33."""
    search = search_for(buffer_of(2, 1.0, 10.0, num_ranks=3))
    plan, outcome = contiguous(search, solver)
    assert outcome.status is Status.OPTIMAL
    assert lift(search.quotient, plan).makespan_us == pytest.approx(33.0)


@both
def test_routes_and_order_stay_and_the_result_is_never_slower(solver):
    for instance in (small_messages(), relay_between_nodes()):
        search = search_for(instance)
        plan, outcome = contiguous(search, solver)
        assert outcome.status is Status.OPTIMAL
        assert sorted(arc for batch in plan for arc in batch.arcs) == sorted(
            arc for batch in search.best_plan for arc in batch.arcs
        )
        assert plan_end(plan) <= plan_end(search.best_plan) * (1 + 1e-6)
        assert outcome.objective == pytest.approx(plan_end(plan), rel=1e-6)


def test_joined_chunks_leave_and_arrive_together():
    """TACCL's release forgets to equate their times; here the message waits for its last chunk and both come with it."""
    search = search_for(small_messages())
    q = search.quotient
    relayed_last = sorted(search.best_plan, key=lambda batch: batch.start)
    plan, _ = contiguous(search, order=tuple(relayed_last))
    schedule = lift(q, plan)
    assert verify_schedule(schedule) == ()
    assert schedule.makespan_us <= search.best.makespan_us


def test_a_message_that_passes_a_fast_port_frees_it_early():
    """The port is held for 2 of the 11 us, so the other link need not wait for the end."""
    links = [Link(0, 1, 1.0, 10.0, ports=(0,)), Link(0, 2, 1.0, 10.0, ports=(0,))]
    instance = Instance("port", machine(3, links, [Port("out", 1.0, 1.0)]), Collective(Kind.SCATTER, 3), 0.0)
    search = search_for(instance)
    plan, outcome = contiguous(search)
    assert outcome.status is Status.OPTIMAL
    assert outcome.objective / search.grid.units_per_us == pytest.approx(13.0)
    assert lift(search.quotient, plan).makespan_us == pytest.approx(13.0)


def test_the_order_of_the_given_plan_is_kept():
    search = search_for(buffer_of(3, 0.5, 10.0))
    arcs = [batch.arcs[0] for batch in search.best_plan]
    turned = tuple(OrbitMessage((arc,), float(i), float(i + 1)) for i, arc in enumerate(reversed(arcs)))
    plan, outcome = contiguous(search, order=turned)
    assert outcome.status is Status.OPTIMAL
    assert [batch.arcs for batch in sorted(plan, key=lambda b: b.start)] == [(arc,) for arc in reversed(arcs)]

"""Engines greedy, milp and steps on demands: answers worked out by hand, and random demands on data."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.errors import InputError
from taccl_py.execute.demand import RunnableDemand, draw_inputs, run_demand
from taccl_py.schedule.demand_files import write_demand_schedule
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.demands import solve_demand
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.traffic import PieceTraffic
from taccl_py.topology.model import Link, Topology
from taccl_py.verify.demand import verify_demand_schedule
from tests.demand.cases import demand_of, demands, full, is_near, ring, switch
from tests.instances import quiet_pulp

pytestmark = quiet_pulp
MB = 10**6
ENGINES = ("greedy", "milp", "steps")
QUICK = Limits(seconds=0.3, by_work=True)


def solve(topology, demand, engine, limits=QUICK):
    found = solve_demand(topology, demand, limits, engine=engine)
    assert verify_demand_schedule(found.schedule, demand) == ()
    assert found.schedule.makespan_us >= found.bound.time_us * (1 - 1e-9)
    return found


def line(ranks, alpha=1.0, beta=10.0):
    """Links to the next rank only."""
    return Topology("line", "test", (0,) * ranks, (), tuple(Link(a, a + 1, alpha, beta) for a in range(ranks - 1)))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_copy_is_taken_from_the_nearest_holder(engine):
    """Ranks 0 and 2 hold it; 2 is one hop from 3: 11 us, in one piece or in as many as there are."""
    found = solve(line(4), demand_of(4, [{"bytes": MB, "holds": [0, 2], "wants": [3]}]), engine)
    assert is_near(found.schedule.makespan_us, 11.0)
    assert found.schedule.origin.found_by == engine


@pytest.mark.parametrize("engine", ENGINES)
def test_a_sum_is_added_up_on_its_path(engine):
    """Three contributions go down a line of three hops, and each rank adds its own: 40 us for each link, and 2 hops more for the last piece."""
    found = solve(line(4, alpha=0.0), demand_of(4, [{"bytes": 4 * MB, "adds": [0, 1, 2], "wants": [3]}]), engine)
    # Four pieces take 10 us each over every link; in few steps two pieces go.
    assert found.schedule.makespan_us <= (80.0 if engine == "steps" else 60.0) * (1 + 1e-9)
    assert all(message.reduce for message in found.schedule.messages if message.link > 0)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_sum_that_two_want_goes_on_from_its_owner(engine):
    """Rank 1 sums what 0 and 2 add and tells 2: a message each of two links, then one back."""
    links = tuple(Link(a, b, 1.0, 10.0) for a, b in ((0, 1), (2, 1), (1, 2), (1, 0)))
    topology = Topology("middle", "test", (0,) * 3, (), links)
    found = solve(topology, demand_of(3, [{"bytes": 4, "adds": [0, 1, 2], "wants": [1, 2]}]), engine)
    assert is_near(found.schedule.makespan_us, 2.00008)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_rank_that_passed_a_sum_on_is_not_sent_it_again(engine):
    """All of the sum comes to rank 2 through rank 1, which adds nothing; rank 3 hangs on rank 1 alone, and gets it from there."""
    links = tuple(Link(a, b, 1.0, 10.0) for a, b in ((4, 0), (0, 1), (1, 2), (2, 1), (1, 3)))
    topology = Topology("star", "test", (0,) * 5, (), links)
    demand = demand_of(5, [{"bytes": MB, "adds": [0, 4], "wants": [2, 3]}])
    found = solve(topology, demand, engine)
    assert all((links[m.link].src, links[m.link].dst) != (2, 1) for m in found.schedule.messages)


@pytest.mark.parametrize("engine", [*ENGINES, "auto"])
def test_a_sum_may_be_completed_where_nobody_wants_it(engine):
    """Ranks 3 and 4 want it and have no link to each other or to anyone: rank 2 completes it, three messages of 64 bytes."""
    links = tuple(Link(a, b, 1.0, 10.0) for a, b in ((0, 2), (1, 2), (2, 3), (2, 4)))
    topology = Topology("fork", "test", (0,) * 5, (), links)
    found = solve(topology, demand_of(5, [{"bytes": 64, "adds": [0, 1], "wants": [3, 4]}]), engine)
    assert found.schedule.makespan_us <= 2.01


def test_nothing_to_move_is_no_work_for_any_engine():
    demand = demand_of(3, [{"bytes": 4, "holds": [0, 1], "wants": [0]}])
    for engine in ("auto", "cp", "flow", *ENGINES):
        assert solve(full(3), demand, engine).schedule.messages == ()


@pytest.mark.parametrize("engine", ["greedy", "steps"])
def test_pieces_go_together_where_alphas_count(engine):
    """Three small chunks leave rank 0, of which two go on: one message over each link, 10 us, where each by itself takes 15."""
    topology = Topology("chain", "test", (0,) * 3, (), (Link(0, 1, 5.0, 1.0), Link(1, 2, 5.0, 1.0)))
    demand = demand_of(3, [{"bytes": 64, "holds": [0], "wants": wants} for wants in ([1], [2], [1, 2])])
    assert solve(topology, demand, engine).schedule.makespan_us <= 10.001


def test_a_linear_program_takes_the_cheap_links():
    """Greedy rules take the short path for each of two pieces; the program sends one around."""
    costs = {(0, 1): 10.0, (0, 2): 2.0, (2, 1): 2.0}
    links = tuple(Link(a, b, 0.0, beta) for (a, b), beta in costs.items())
    found = solve(
        Topology("triangle", "test", (0,) * 3, (), links), demand_of(3, [{"bytes": 4 * MB, "holds": [0], "wants": [1]}]), "milp"
    )  # fmt: skip
    assert found.schedule.makespan_us <= 12.0 + 1e-6


@pytest.mark.parametrize("engine", ["milp", "steps"])
def test_what_is_too_much_for_a_model_is_refused(engine):
    demand = demand_of(40, [{"bytes": 4, "holds": [r], "wants": [(r + 1) % 40, (r + 2) % 40]} for r in range(40)])
    with pytest.raises(InputError, match="for up to 4000 pairs of a piece and a link"):
        solve_demand(full(40), demand, QUICK, engine=engine)


def test_pieces_of_a_demand_are_no_collective():
    problem = Problem.build(ring(3), PieceTraffic(3, ((0,),), ((1, 2),)), None, 8)
    with pytest.raises(ValueError, match="no collective"):
        _ = problem.collective


@settings(max_examples=25, deadline=None)
@given(
    demand=demands(most_ranks=5, most_chunks=4),
    make=st.sampled_from([full, ring, switch]),
    engine=st.sampled_from(ENGINES),
)
def test_random_demands_are_verified_and_right_on_data(demand, make, engine):
    found = solve(make(demand.num_ranks), demand, engine, Limits(seconds=0.1, by_work=True))
    done = run_demand(
        RunnableDemand.read(write_demand_schedule(found.schedule), "schedule.json"),
        draw_inputs(found.schedule.demand, 3),
    )
    assert done.num_wrong == 0, done.first_wrong

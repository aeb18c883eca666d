"""The engine for demands: costs worked out by hand, published figures, and random demands on data."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.api.demands import moe_demand
from taccl_py.api.machines import load_machine
from taccl_py.collective import ROOTED, Collective, Kind
from taccl_py.demand.variable import of_collective
from taccl_py.errors import Infeasible, InputError
from taccl_py.execute.demand import RunnableDemand, draw_inputs, run_demand
from taccl_py.pipeline.demands import synthesize_demand
from taccl_py.schedule.demand_files import write_demand_schedule
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import demand_bound
from taccl_py.synthesis.catalog import load_engine
from taccl_py.synthesis.demands import bound_of_demand, families, recognized, solve_demand
from taccl_py.synthesis.demands.classes import classes_of
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.topology.model import Link, Topology
from taccl_py.verify.demand import verify_demand_schedule
from tests.demand.cases import demand_of, demands, full, hosts, irregular, is_near, relabelled, ring, switch
from tests.demand.published import ALPA, ONE_TO_MANY, alpa_case, one_to_many, stragglar_case
from tests.instances import quiet_pulp

KB, MB = 1000, 10**6
QUICK = Limits(seconds=0.2, by_work=True)


def solve(topology, demand, limits=QUICK):
    found = solve_demand(topology, demand, limits)
    assert verify_demand_schedule(found.schedule, demand) == ()
    assert found.schedule.makespan_us >= found.bound.time_us * (1 - 1e-9)
    return found


def test_either_holder_sends_half():
    """Two holders with a link each: half of it over each takes half as long."""
    found = solve(full(3, alpha=0.0, beta=10.0), demand_of(3, [{"bytes": 2 * MB, "holds": [0, 1], "wants": [2]}]))
    assert is_near(found.schedule.makespan_us, 10.0)
    assert is_near(found.bound.time_us, 10.0)


def test_one_slow_link_is_passed_by(monkeypatch):
    """Ranks 0 and 2 have no link, and of two paths between them one is a hundred million times slower."""
    monkeypatch.setattr(families, "PARAMS", replace(families.PARAMS, most_looks=5000))
    costs = {(0, 1): 1e9, (1, 2): 10.0, (0, 3): 10.0, (3, 2): 10.0, (2, 0): 10.0}
    machine = Topology("slow", "test", (0,) * 4, (), tuple(Link(a, b, 0.0, beta) for (a, b), beta in costs.items()))
    found = solve(machine, demand_of(4, [{"bytes": 4 * MB, "holds": [0], "wants": [2]}]))
    assert found.schedule.makespan_us <= 100.0


def test_a_link_that_carries_next_to_nothing_cuts_nothing_into_small_pieces():
    """Pieces that such a link could carry in time would be so many that nothing else is tried."""
    machine = full(4, alpha=0.5, beta=20.0)
    links = tuple(
        replace(each, beta_us_per_mb=2e5) if (each.src, each.dst) == (0, 1) else each for each in machine.links
    )
    chunks = [
        {"bytes": (rank + 1) * MB, "holds": [rank], "wants": [other]}
        for rank in range(4)
        for other in range(4)
        if other != rank
    ]
    found = solve(replace(machine, links=links, symmetry=()), demand_of(4, chunks))
    assert found.schedule.makespan_us <= 1.25 * found.bound.time_us


def test_nothing_moves_where_all_is_there():
    found = solve(full(3), demand_of(3, [{"bytes": 5, "holds": [0, 1], "wants": [1]}]))
    assert found.schedule.messages == ()
    assert found.bound.time_us == 0.0


def test_a_sum_of_some_ranks_goes_to_another():
    """Two contributions to a third rank over its own links: both at once."""
    found = solve(full(3, alpha=1.0, beta=10.0), demand_of(3, [{"bytes": 4, "adds": [0, 1], "wants": [2]}]))
    assert is_near(found.schedule.makespan_us, 1.00004)


def test_ranks_that_add_to_a_sum_have_not_got_it_yet():
    """Two of three ranks exchange their parts: a message each way, where a Reduce to one of them would leave the other without."""
    found = solve(full(3, alpha=1.0, beta=10.0), demand_of(3, [{"bytes": 4, "adds": [0, 1], "wants": [0, 1]}]))
    assert is_near(found.schedule.makespan_us, 1.00004)


def test_a_sum_of_few_ranks_beside_one_of_all_is_not_sent_where_it_is_complete():
    """The schedule of an AllReduce brings its sum also to ranks that have all of the other sum already."""
    chunks = [
        {"bytes": 282, "adds": [0, 2, 3, 4, 1], "wants": [0, 1, 2, 3, 4]},
        {"bytes": 24, "adds": [0, 1], "wants": [2, 0]},
        {"bytes": 1, "holds": [0], "wants": [0]},
    ]
    found = solve(ring(5), demand_of(5, chunks))
    assert found.schedule.origin.found_by == "covered"


def test_a_rank_that_cannot_be_reached_is_named():
    line = full(3)
    apart = Topology("apart", "", (0, 0, 0), (), tuple(link for link in line.links if 2 not in (link.src, link.dst)))
    with pytest.raises(Infeasible, match="rank 2"):
        solve_demand(apart, demand_of(3, [{"bytes": 4, "holds": [0], "wants": [2]}]), QUICK)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(demand=demands(), make=st.sampled_from([full, ring, switch]))
def test_random_demands_are_verified_and_right_on_data(demand, make):
    found = solve(make(demand.num_ranks), demand, Limits(seconds=0.05, by_work=True))
    runnable = RunnableDemand.read(write_demand_schedule(found.schedule), "schedule.json")
    done = run_demand(runnable, draw_inputs(runnable.demand, 3))
    assert done.num_wrong == 0, done.first_wrong


def test_a_run_sees_what_is_missing():
    found = solve(full(3), demand_of(3, [{"bytes": 4, "holds": [0], "wants": [1, 2]}]))
    runnable = RunnableDemand.read(write_demand_schedule(found.schedule), "schedule.json")
    less = RunnableDemand(runnable.demand, runnable.messages[:-1])
    done = run_demand(less, draw_inputs(runnable.demand, 0))
    assert done.num_wrong > 0
    assert "than the demand promises" in done.first_wrong


# Every kind as a custom demand

# Machines of several shapes, and chunks of a rank.
KINDS_ON = [
    (full(2), 1), (ring(3), 3), (ring(4), 2), (ring(6), 1), (ring(8), 1), (switch(5), 2), (hosts(2, 2, inside=5.0), 1), (irregular(), 3),
]  # fmt: skip


def cost(topology, collective, chunk_bytes):
    size = collective.chunks_per_size * chunk_bytes
    asked = Demand(topology, collective.kind, size, collective.root)
    return load_engine("auto")(asked, Options(limits=QUICK), Events())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "chunks", "kind"),
    [
        (topology, chunks, kind)
        for row, (topology, chunks) in enumerate(KINDS_ON)
        for column, kind in enumerate(Kind)
        if (row + column) % 4 == 0
    ],
    ids=lambda one: getattr(one, "name", None) if isinstance(one, Topology) else str(one),
)
def test_every_kind_as_a_demand_costs_the_same(kind, topology, chunks):
    ranks = topology.num_ranks
    collective = Collective(kind, ranks, chunks, ranks - 1 if kind in ROOTED else 0)
    demand = of_collective(collective, 5040 * 100)
    order = random.Random(ranks).sample(range(ranks), ranks)
    place = random.Random(chunks).sample(range(len(demand.chunks)), len(demand.chunks))
    wanted = cost(topology, collective, 5040 * 100)
    for same in (demand, relabelled(demand, order if kind not in ROOTED else range(ranks), place)):
        answer = synthesize_demand(topology, same, QUICK, Events())
        assert answer.known is not None
        assert is_near(answer.synthesis.schedule.makespan_us, wanted.schedule.makespan_us, 1e-6)
        assert is_near(answer.synthesis.bound.time_us, wanted.bound.time_us, 1e-6)
        runnable = RunnableDemand.read(write_demand_schedule(answer.synthesis.schedule), "schedule.json")
        assert run_demand(runnable, draw_inputs(runnable.demand, 1)).num_wrong == 0


@pytest.mark.parametrize("kind", list(Kind))
def test_kinds_are_recognized_whatever_they_are_called(kind):
    collective = Collective(kind, 4, 2, 3 if kind in ROOTED else 0)
    demand = of_collective(collective, 600)
    order = [2, 0, 3, 1]
    known = recognized(relabelled(demand, order, list(range(len(demand.chunks)))[::-1]))
    assert known is not None
    assert (known.kind, known.size_bytes) == (kind, collective.chunks_per_size * 600)
    assert known.root == (order[3] if kind in ROOTED else 0)


@pytest.mark.parametrize("kind", list(Kind))
def test_one_chunk_of_another_size_or_one_more_holder_is_no_kind_and_solved(kind):
    demand = of_collective(Collective(kind, 4, 2, 1 if kind in ROOTED else 0), 4 * 600, "float32")
    number = next(n for n, chunk in enumerate(demand.chunks) if chunk.lacking)
    longer = [
        {"bytes": chunk.size_bytes * (1 + (n == number)), "wants": list(chunk.wanted)}
        | ({"adds": [list(t) for t in chunk.holders]} if chunk.is_sum else {"holds": list(chunk.holders[0])})
        for n, chunk in enumerate(demand.chunks)
    ]
    other = demand_of(4, longer, "float32")
    assert kind in (Kind.BROADCAST, Kind.REDUCE, Kind.ALLREDUCE) or recognized(other) is None
    held = [dict(chunk) for chunk in longer]
    first = held[number]
    if "holds" in first:
        first["holds"] = [*first["holds"], next(rank for rank in range(4) if rank not in first["holds"])]
        assert recognized(demand_of(4, held, "float32")) is None
    for topology, each in ((full(4), other), (ring(4), demand_of(4, held, "float32"))):
        found = solve(topology, each)
        runnable = RunnableDemand.read(write_demand_schedule(found.schedule), "schedule.json")
        assert run_demand(runnable, draw_inputs(runnable.demand, 1)).num_wrong == 0


def test_the_bound_of_a_demand_is_no_better_than_that_of_its_kind():
    """Cuts and distances alone; the bounds of kinds know more."""
    for kind in Kind:
        collective = Collective(kind, 4, 1, 0)
        own = bound_of_demand(ring(4), of_collective(collective, MB)).time_us
        assert own <= demand_bound(ring(4), kind, 0, collective.chunks_per_size * MB, QUICK).time_us * (1 + 1e-9)


# Published figures

# All planners are asked, and each has a share: a fifth of the budget of effort normal.
A_FEW_TRIALS = Limits(seconds=4.0, by_work=True)


@pytest.mark.slow
@pytest.mark.parametrize("case", ALPA)
def test_alpacomms_cases_reach_their_bounds(case):
    """10 Gb/s between hosts, inside them for nothing."""
    topology, demand, bound_ms, most = alpa_case(case)
    found = solve(topology, demand, A_FEW_TRIALS)
    assert is_near(found.bound.time_us / 1000, bound_ms, 1e-3)
    assert found.schedule.makespan_us <= found.bound.time_us * most


@pytest.mark.slow
@pytest.mark.parametrize("number", ONE_TO_MANY)
def test_one_host_to_many_is_faster_than_a_ring_of_a_hundred_pieces(number):
    found = solve(*one_to_many(number), A_FEW_TRIALS)
    assert found.schedule.makespan_us / 1000 <= ONE_TO_MANY[number]


@pytest.mark.parametrize("ranks", [4, 6, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (8, 12, 16, 24))])
def test_stragglars_allreduce_is_met(ranks):
    topology, demand, time_us = stragglar_case(ranks)
    found = solve(topology, demand, Limits(seconds=0.1 if ranks < 8 else 1.0 if ranks < 24 else 4.0, by_work=True))
    assert found.schedule.makespan_us <= time_us


def test_a_summand_that_two_hold_counts_once_where_one_is_behind_the_other():
    """On the line 4 - 1 - 0 - 3 rank 0 or 1 gives the first summand, and rank 4's passes both."""
    pairs = [(4, 1), (1, 0), (0, 3), (3, 2)]
    links = tuple(Link(a, b, 1.0, 10.0) for one, other in pairs for a, b in ((one, other), (other, one)))
    line = Topology("line", "", (0,) * 5, (), links)
    demand = demand_of(5, [{"bytes": 4, "adds": [[0, 1], [4]], "wants": [3]}])
    found = solve(line, demand)
    runnable = RunnableDemand.read(write_demand_schedule(found.schedule), "schedule.json")
    assert run_demand(runnable, draw_inputs(runnable.demand, 1)).num_wrong == 0


def test_sums_of_more_terms_than_a_type_counts_are_not_run():
    demand = demand_of(300, [{"bytes": 2, "adds": list(range(300)), "wants": [0]}], dtype="bfloat16")
    with pytest.raises(InputError, match="sums of 300 terms are not exact in bfloat16"):
        draw_inputs(demand, 0)


def test_inputs_that_overlap_in_a_chain_are_made_equal():
    """Rank r holds a chunk with rank r + 1 behind the one that it holds with rank r - 1, so that all twelve hold the same."""
    chunks = [{"bytes": 4, "holds": {str(rank): 0, str(rank + 1): 0}, "wants": [12]} for rank in reversed(range(11))]
    inputs = draw_inputs(demand_of(13, chunks), 0)
    assert all((each[:4] == inputs[0][:4]).all() for each in inputs[:12])


@pytest.mark.parametrize(("most", "plans"), [(1, 1), (7, 1), (8, 2), (31, 2), (32, 3)])
def test_pieces_are_cut_as_long_as_their_messages_are_few(monkeypatch, most, plans):
    """Two hops: 2 messages of the whole, which are always made, then 8 of 4 pieces and 32 of 16."""
    monkeypatch.setattr(families, "PARAMS", replace(families.PARAMS, most_messages=most))
    demand = demand_of(3, [{"bytes": MB, "holds": [0], "wants": [2]}])
    line = Topology("line", "test", (0,) * 3, (), (Link(0, 1, 0.5, 20.0), Link(1, 2, 0.5, 20.0)))
    made = families.PlanFamilies(line, demand, classes_of(demand), 1.0, None)
    found = made._trees(made._pieces_by((1,), 1.0))
    assert [len(schedule.messages) for schedule in found] == [2, 8, 32][:plans]


# One planner alone

COPIES = [{"bytes": 40 * KB, "holds": [n], "wants": [(n + 1) % 4, (n + 2) % 4]} for n in range(4)]
ALL_WANT = [{"bytes": 40 * KB, "holds": [n], "wants": [m for m in range(4) if m != n]} for n in range(4)]


@pytest.mark.parametrize(
    ("planner", "make", "chunks"),
    [
        ("direct", full, COPIES),
        ("trees", ring, COPIES),
        ("greedy", ring, ALL_WANT),
        ("greedy", ring, COPIES),
        ("flow", ring, COPIES),
        ("steps", ring, COPIES),
        ("milp", ring, COPIES),
        ("balance", lambda ranks: hosts(2, ranks // 2), [{"bytes": 40 * KB, "holds": [n], "wants": [3 - n]} for n in range(4)]),
        ("multicast", lambda ranks: hosts(2, ranks // 2), COPIES),
    ],
)  # fmt: skip
@quiet_pulp
def test_one_planner_alone_is_no_better_than_all(planner, make, chunks):
    machine, demand = make(4), demand_of(4, chunks)
    alone = synthesize_demand(machine, demand, QUICK, Events(), planner)
    assert alone.schedule.origin.found_by == planner
    everything = solve(machine, demand, Limits(seconds=1.0, by_work=True))
    assert everything.schedule.makespan_us <= alone.time_us * (1 + 1e-9)


@pytest.mark.parametrize(("planner", "make", "chunks"), [("direct", ring, COPIES), ("balance", full, COPIES)])
def test_a_planner_that_is_not_for_a_demand_is_refused(planner, make, chunks):
    with pytest.raises(InputError, match=f"engine {planner} has no schedule for this demand on .*: it is for "):
        synthesize_demand(make(4), demand_of(4, chunks), QUICK, Events(), planner)


def test_an_engine_of_collectives_takes_a_demand_that_is_one():
    machine, root = ring(4), Collective(Kind.BROADCAST, 4, 1, 0)
    found = synthesize_demand(machine, of_collective(root, 40 * KB), QUICK, Events(), "templates")
    assert found.known is not None
    assert found.schedule.origin.engine == "templates"
    with pytest.raises(InputError, match="engine templates is for the eight collectives"):
        synthesize_demand(machine, demand_of(4, COPIES), QUICK, Events(), "templates")


# All planners are asked, and no other one takes the time of these: five times the work of one planner is that of effort normal.
SHORT_OF_ALL = Limits(seconds=5.0, by_work=True)


def no_slower_than_each(topology, demand, engines):
    alone = replace(SHORT_OF_ALL, seconds=SHORT_OF_ALL.seconds / 5)
    best_us = min(solve_demand(topology, demand, alone, engine=engine).schedule.makespan_us for engine in engines)
    found = solve(topology, demand, SHORT_OF_ALL).schedule.makespan_us
    assert found <= best_us * 1.005
    return found


@pytest.mark.slow
def test_trees_leave_time_for_what_is_asked_after_them():
    """Trees of a sum of seven of eight ranks on eight GPUs take all the time there is, and list scheduling takes a moment."""
    demand = demand_of(8, [{"bytes": 262_144, "adds": list(range(7)), "wants": list(range(7))}])
    assert no_slower_than_each(load_machine("dgx1"), demand, ("greedy", "steps", "trees")) <= 8.2


def test_list_scheduling_is_asked_where_alphas_are_small():
    """The example of the reference: copies of two holders, and a sum."""
    whole = {"bytes": 3 * 2**20, "holds": [0, 1], "wants": [2, 3]}
    demand = demand_of(4, [whole, {"bytes": 2**20, "adds": [0, 1], "wants": [3]}], "float32")
    assert no_slower_than_each(load_machine("mesh:2x2"), demand, ("greedy", "flow")) <= 49.4


def test_other_planners_schedules_go_along_with_the_best():
    """Single links cannot win on links and ports, and were not even timed."""
    machine = load_machine("ndv5", nodes=2)
    demand = moe_demand("moe-dispatch", 16, experts=16, tokens=4, topk=4, token_bytes=7168)
    found = solve(machine, demand)
    by = {schedule.finder: schedule for schedule in found.runners_up}
    assert "direct" in by
    assert found.schedule.finder not in by
    for schedule in found.runners_up:
        assert verify_demand_schedule(schedule, demand) == ()
        assert schedule.makespan_us >= found.schedule.makespan_us
    assert solve_demand(machine, demand, QUICK, engine="multicast").runners_up == ()

"""Small demands by CP-SAT's model of messages, and what is nearly a collective by that collective's schedule."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import ROOTED, Collective, Kind
from taccl_py.demand.variable import of_collective
from taccl_py.errors import InputError
from taccl_py.execute.demand import RunnableDemand, draw_inputs, run_demand
from taccl_py.pipeline.demands import synthesize_demand
from taccl_py.schedule.demand_files import write_demand_schedule
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.demands import cover, recognized, solve_demand
from taccl_py.synthesis.demands.classes import classes_of
from taccl_py.synthesis.demands.cover import covered
from taccl_py.synthesis.demands.engine import CP
from taccl_py.synthesis.demands.params import PARAMS
from taccl_py.synthesis.engine import Events, Proof
from taccl_py.topology.model import Link, Topology
from taccl_py.verify.demand import verify_demand_schedule
from tests.demand.cases import demand_of, demands, full, is_near, relabelled, ring, switch

BRIEF = Limits(seconds=0.2, by_work=True)
QUICK = Limits(seconds=0.5, by_work=True)
ENOUGH = Limits(seconds=1.0, by_work=True)
KB = 1000


def solve(topology, demand, limits=QUICK, engine="auto"):
    """Verified answer that is right on data."""
    found = solve_demand(topology, demand, limits, engine=engine)
    assert verify_demand_schedule(found.schedule, demand) == ()
    assert found.schedule.makespan_us >= found.bound.time_us * (1 - 1e-9)
    runnable = RunnableDemand.read(write_demand_schedule(found.schedule), "schedule.json")
    assert run_demand(runnable, draw_inputs(runnable.demand, 1)).num_wrong == 0
    return found


# Worked out by hand: alpha 1 us, 10 us a megabyte.


def test_chunks_of_one_message_pay_alpha_once():
    """Two chunks from rank 0 to rank 1, the second to rank 2 as well: both in a message to rank 1, which over rank 2 would not come sooner."""
    line = [{"bytes": 100 * KB, "holds": [0], "wants": [1]}, {"bytes": 100 * KB, "holds": [0], "wants": [1, 2]}]
    found = solve(full(3, alpha=1.0, beta=10.0), demand_of(3, line), engine=CP)
    assert is_near(found.schedule.makespan_us, 1.0 + 2.0)


def test_either_of_two_holders_sends_what_is_wanted():
    """On a switch a port sends one message at a time: ranks 0 and 1 hold both chunks and serve one rank each."""
    chunks = [{"bytes": 100 * KB, "holds": [0, 1], "wants": [rank]} for rank in (2, 3)]
    found = solve(switch(4, alpha=1.0, beta=10.0), demand_of(4, chunks), engine=CP)
    assert is_near(found.schedule.makespan_us, 2.0)
    assert found.proof is Proof.OPTIMAL


def test_sums_meet_on_the_way():
    """Four ranks in a ring, each with two neighbours: two hops for the sum at rank 0, and rank 2's goes over a neighbour."""
    chunks = [{"bytes": 100 * KB, "adds": [0, 1, 2, 3], "wants": [0]}]
    found = solve(ring(4, alpha=1.0, beta=10.0), demand_of(4, chunks), engine=CP)
    assert found.schedule.makespan_us <= 4.0 * (1 + 1e-9)
    assert found.proof is not Proof.FEASIBLE


def test_a_summand_that_two_hold_is_added_once():
    chunks = [{"bytes": 4 * KB, "adds": [[0, 1], [2]], "wants": [3, 1]}]
    solve(ring(4), demand_of(4, chunks, "float32"), engine=CP)


def test_too_much_for_the_model_is_refused():
    many = [{"bytes": 4 * (1 + n), "holds": [n % 8], "wants": [(n + 1 + n // 8) % 8]} for n in range(56)]
    machine = full(8)
    assert 56 * len(machine.links) <= PARAMS.most_literals
    everywhere = [
        {"bytes": 4, "holds": [n % 8], "wants": sorted({(n + 1 + n // 8) % 8, (n + 2 + n // 8) % 8})} for n in range(80)
    ]
    with pytest.raises(InputError, match="engine cp"):
        solve_demand(machine, demand_of(8, [*many, *everywhere]), QUICK, engine=CP)


@settings(max_examples=8, deadline=None)
@given(demand=demands(most_ranks=4, most_chunks=3), make=st.sampled_from([full, ring]))
def test_random_small_demands_are_right_by_the_model(demand, make):
    solve(make(demand.num_ranks), demand, BRIEF, engine=CP)


# Every kind as a demand, by the model alone

ALONE = [kind for kind in Kind if kind is not Kind.ALLREDUCE]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "kind"),
    [
        *((switch(3, 0.5, 20.0), kind) for kind in ALONE),
        *((ring(4), kind) for kind in (Kind.REDUCE, Kind.SCATTER)),
        *((full(5), kind) for kind in ALONE[1::2]),
    ],
    ids=lambda one: str(one) if isinstance(one, Kind) else one.name,
)
def test_the_model_finds_what_a_kinds_engines_find(machine, kind):
    """Without being turned back into a kind; an AllReduce's exchanges are not in the model."""
    ranks = machine.num_ranks
    demand = of_collective(Collective(kind, ranks, 1, 1 if kind in ROOTED else 0), 1 * KB, "float32")
    order = random.Random(1).sample(range(len(demand.chunks)), len(demand.chunks))
    kinds = synthesize_demand(machine, demand, ENOUGH, Events())
    assert kinds.known is not None
    alone = solve(machine, relabelled(demand, range(ranks), order), ENOUGH, CP)
    assert alone.schedule.makespan_us <= kinds.time_us * 1.02


# What is nearly a kind


def near_kinds(kind, ranks, chunk_bytes):
    """A kind with one chunk of another size, with one more holder, and wanted by one rank less, as far as these are no kinds."""
    demand = of_collective(Collective(kind, ranks, 1, 1 if kind in ROOTED else 0), chunk_bytes, "float32")
    number = next(n for n, chunk in enumerate(demand.chunks) if chunk.lacking)
    rows = [
        {"bytes": chunk.size_bytes, "wants": list(chunk.wanted)}
        | ({"adds": [list(t) for t in chunk.holders]} if chunk.is_sum else {"holds": list(chunk.holders[0])})
        for chunk in demand.chunks
    ]

    def changed(**fields):
        return demand_of(ranks, [{**row, **fields} if n == number else row for n, row in enumerate(rows)], "float32")

    one = rows[number]
    yield changed(bytes=one["bytes"] * 2)
    if "holds" in one:
        yield changed(holds=[*one["holds"], next(rank for rank in range(ranks) if rank not in one["holds"])])
    if len(one["wants"]) > 2:
        yield changed(wants=one["wants"][:-1])
    if "adds" in one:
        yield changed(adds=one["adds"][:-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "kind"),
    [*((switch(4, 0.5, 20.0), kind) for kind in list(Kind)[::2]), *((ring(5), kind) for kind in list(Kind)[1::2])],
    ids=lambda one: str(one) if isinstance(one, Kind) else one.name,
)
def test_near_kinds_cost_hardly_more_than_the_kind(kind, machine):
    """A chunk twice as large may take as long as the kind with all chunks twice as large, all others no longer than the kind."""
    ranks = machine.num_ranks
    for demand in near_kinds(kind, ranks, 1 * KB):
        if recognized(demand) is not None:
            continue
        larger = max(chunk.size_bytes for chunk in demand.chunks)
        whole = of_collective(Collective(kind, ranks, 1, 1 if kind in ROOTED else 0), larger, "float32")
        kinds = synthesize_demand(machine, whole, BRIEF, Events())
        # All planners are asked, each of which has a share.
        assert (
            solve(machine, demand, replace(BRIEF, seconds=5 * BRIEF.seconds)).schedule.makespan_us
            <= kinds.time_us * 1.02
        )


@pytest.mark.parametrize("kind", list(Kind))
def test_a_kinds_schedule_serves_what_is_nearly_the_kind(kind):
    for demand in near_kinds(kind, 4, 1 * KB):
        for schedule in covered(switch(4), demand, classes_of(demand), QUICK):
            assert verify_demand_schedule(schedule, demand) == ()


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(demand=demands(most_ranks=4))
def test_whatever_covers_a_demand_serves_it(demand):
    """However much is wasted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cover, "PARAMS", replace(PARAMS, most_waste=1e9))
        for machine in (full(demand.num_ranks), ring(demand.num_ranks)):
            for schedule in covered(machine, demand, classes_of(demand), Limits(seconds=0.1, by_work=True)):
                assert verify_demand_schedule(schedule, demand) == ()


@pytest.mark.parametrize("wants", [[0, 1], [0, 1, 2]])
def test_what_is_not_needed_in_time_of_a_collective_is_left_out(wants, monkeypatch):
    """The AllReduce of a ring, without rank 3's part: what then begins earlier must not meet itself on its return."""
    monkeypatch.setattr(cover, "PARAMS", replace(PARAMS, most_waste=1e9))
    demand = demand_of(4, [{"bytes": 1, "adds": [0, 1, 2], "wants": wants}])
    for schedule in covered(ring(4), demand, classes_of(demand), Limits(seconds=0.1, by_work=True)):
        assert verify_demand_schedule(schedule, demand) == ()


def test_sums_for_different_ranks_take_the_shards_of_these():
    """The sum of ranks 1 and 3 is wanted by 1, who adds to it: shard 1 of ReduceScatter, not shard 0."""
    chunks = [{"bytes": 64, "adds": [rank, (rank + 2) % 4], "wants": [rank]} for rank in range(4)]
    demand = demand_of(4, chunks, "float32")
    for schedule in covered(full(4), demand, classes_of(demand), QUICK):
        assert verify_demand_schedule(schedule, demand) == ()


def test_where_the_collective_has_no_path_the_demand_may_have_one():
    """Rank 4 can be reached by nobody, and only a Broadcast wants it to be."""
    links = (*(Link(a, b, 0.5, 20.0) for a in range(4) for b in range(4) if a != b), Link(4, 0, 0.5, 20.0))
    apart = Topology("apart", "test", (0,) * 5, (), links)
    demand = demand_of(5, [{"bytes": 400, "holds": [0], "wants": [1, 2, 3]}])
    assert list(covered(apart, demand, classes_of(demand), QUICK)) == []
    assert solve(apart, demand).schedule.makespan_us == pytest.approx(0.5 + 400e-6 * 20.0)


def test_what_is_far_from_every_kind_gets_none():
    chunks = [{"bytes": 400, "holds": [0], "wants": [1]}, {"bytes": 4, "holds": [2], "wants": [3]}]
    demand = demand_of(4, chunks)
    assert list(covered(switch(4), demand, classes_of(demand), QUICK)) == []


def test_the_same_command_gives_the_same_schedule_twice():
    demand = next(near_kinds(Kind.ALLGATHER, 4, 1 * KB))
    first, second = (solve_demand(ring(4), demand, BRIEF).schedule for _ in range(2))
    assert write_demand_schedule(first) == write_demand_schedule(second)

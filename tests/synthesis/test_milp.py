"""The whole engine: optima of small instances, all solvers, determinism, interrupts, sketches that are really obeyed."""

import os
import random
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings

from taccl_py.collective import Collective, Kind
from taccl_py.errors import Infeasible, InputError, PackageMissing
from taccl_py.schedule.files import write_schedule
from taccl_py.schedule.ir import Message, Schedule
from taccl_py.sketch.model import Policy, Rotation, Sketch, Strategy, SwitchGroup
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Demand, Events, Options, Proof
from taccl_py.synthesis.milp import synthesize_milp
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link, Port
from taccl_py.verify.schedule import verify_schedule
from tests.instances import (
    COMBINING,
    INSTANCES,
    MB,
    Instance,
    chain,
    demand_of_chunks,
    full,
    machine,
    one_way_ring,
    quiet_pulp,
    ring,
    small_messages,
    two_nodes,
)
from tests.synthesis.drawn import draw_nodes, node_problems, problems
from tests.synthesis.exhaustive import least_time_us
from tests.synthesis.restrictions import breaks_own_first, load_inside_nodes, pairs_inside_nodes
from tests.synthesis.tasks import search_for

pytestmark = quiet_pulp
BRIEF = Limits(seconds=0.3, by_work=True)


def solve(instance, solver="auto", seconds=30.0, seed=0, limits=None, events=None):
    options = Options(solver, limits or Limits(seconds=seconds, seed=seed))
    demand = demand_of_chunks(instance.topology, instance.collective, instance.sketch, instance.chunk_bytes)
    return synthesize_milp(demand, options, events or Events())


def is_sound(synthesis):
    schedule = synthesis.schedule
    assert verify_schedule(schedule) == ()
    assert schedule.makespan_us >= synthesis.bound.time_us * (1 - 1e-9)
    assert (synthesis.proof is Proof.OPTIMAL) == synthesis.bound.is_reached_by(schedule.makespan_us)
    return True


def test_what_has_no_room_is_refused_before_anything_is_built():
    begun = time.monotonic()
    with pytest.raises(InputError, match="16256 links are more than 40000000 pairs; use another one"):
        synthesize_milp(Demand(full(128), Kind.ALLTOALL, MB), Options(), Events())
    assert time.monotonic() - begun < 5


# Known answers


@pytest.mark.parametrize("solver", ["cp-sat", "highs", "cbc"])
@pytest.mark.parametrize("instance", INSTANCES, ids=str)
def test_every_solver_finds_the_optimum_of_every_instance(instance, solver):
    synthesis = solve(instance, solver)
    assert is_sound(synthesis)
    assert synthesis.solver == solver
    assert synthesis.schedule.makespan_us == pytest.approx(instance.optimum_us)
    assert synthesis.bound.time_us <= instance.optimum_us * (1 + 1e-9)
    assert synthesis.schedule.collective == instance.collective
    assert synthesis.schedule.chunk_bytes == instance.chunk_bytes


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("solver", ["cp-sat", "highs"])
def test_every_collective_can_be_made(kind, solver):
    topology = load_topology("torus:2x3")
    root = 4 if kind in (Kind.BROADCAST, Kind.REDUCE, Kind.GATHER, Kind.SCATTER) else 0
    synthesis = solve(Instance("any", topology, Collective(kind, 6, 2, root), 0.0), solver, limits=BRIEF)
    assert is_sound(synthesis)


@settings(max_examples=20)
@given(problems(alphas_us=(0.0,)))
def test_without_alpha_a_proof_of_optimality_holds_against_everything(drawn):
    synthesis = solve(drawn)
    assert is_sound(synthesis)
    problem = search_for(drawn).quotient.problem
    best_us = least_time_us(problem, batches=False, most=5_000)
    if best_us is not None:
        assert synthesis.schedule.makespan_us >= best_us * (1 - 1e-9)
        if synthesis.proof is not Proof.FEASIBLE:
            assert synthesis.schedule.makespan_us == pytest.approx(best_us)


@settings(max_examples=6)
@given(node_problems())
def test_random_sketches_are_obeyed_by_valid_schedules(drawn):
    synthesis = solve(drawn, limits=Limits(seconds=0.2, by_work=True))
    assert is_sound(synthesis)
    permitted = search_for(drawn).quotient.problem.permitted
    messages = synthesis.schedule.messages
    assert all(permitted[chunk, message.link] for message in messages for chunk in message.chunks)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["auto", "highs", "cbc"])
@settings(max_examples=8)
@given(drawn=problems(kinds=tuple(Kind), most_chunks=16) | node_problems(kinds=tuple(Kind)))
def test_random_problems_give_valid_schedules_not_below_the_bound(solver, drawn):
    try:
        synthesis = solve(drawn, solver, limits=Limits(seconds=0.1, by_work=True))
    except (Infeasible, InputError):
        # For sums the sketch is read backwards, where it need not fit; each routed one here has a way for every chunk.
        assert drawn.collective.reduces
        assert drawn.sketch is not None
        return
    assert is_sound(synthesis)


def test_what_a_solver_starts_a_tolerance_too_early_is_still_waited_for():
    """Of this Scatter HiGHS had a relay send on what came to it just afterwards, and the exact times did not wait for that."""
    drawn = draw_nodes(random.Random(281081), kinds=tuple(Kind))
    assert is_sound(solve(drawn, "highs", seconds=1.0))


# What is claimed of the result


def test_a_proof_names_its_class():
    assert solve(one_way_ring()).proof is Proof.OPTIMAL
    in_class = Instance("port", machine(3, [Link(r, 0, 0.0, 10.0, ports=(0,)) for r in (1, 2)], [Port("in", 0, 4.0)]),
                        Collective(Kind.GATHER, 3), 14.0)  # fmt: skip
    assert solve(in_class).proof is Proof.IN_CLASS
    assert solve(in_class, "highs").proof is Proof.FEASIBLE, "a routing that is optimal without order proves nothing"


def faster(topology, collective, messages, scratch=None):
    """A schedule by hand, which must be right to say anything."""
    empty = ((),) * topology.num_ranks
    schedule = Schedule(topology, collective, MB, tuple(Message(*one) for one in messages), scratch or empty)
    assert verify_schedule(schedule) == ()
    return schedule.makespan_us


# Chunks that lie apart in the input can be neighbours in scratch, at sender and receiver: a schedule that the verifier accepts and
# that is faster than the one that is best with a chunk a message.
def test_no_schedule_is_faster_than_one_that_is_optimal_in_its_class():
    topology = machine(3, [Link(1, 2, 10.0, 2.0), Link(2, 0, 1.0, 2.0)])
    collective = Collective(Kind.SCATTER, 3, 1, 1)
    both = [(0, (0, 2), 0.0, 14.0), (1, (0,), 14.0, 17.0)]
    best_us = faster(topology, collective, both, ((), (0, 2), (0, 2)))
    synthesis = solve(Instance("scratch", topology, collective, best_us))
    assert synthesis.proof is Proof.FEASIBLE or synthesis.schedule.makespan_us <= best_us


def test_the_alpha_of_a_port_is_shared_by_neighbours_too():
    topology = machine(2, [Link(0, 1, 0.0, 2.0, ports=(0,))], [Port("out", 3.0, 1.0)])
    collective = Collective(Kind.BROADCAST, 2, 2)
    best_us = faster(topology, collective, [(0, (0, 1), 0.0, 5.0)])
    synthesis = solve(Instance("port alpha", topology, collective, best_us))
    assert synthesis.proof is Proof.FEASIBLE or synthesis.schedule.makespan_us <= best_us


# A message occupies its port from its start and arrives later; backwards the port would be occupied at the end, so what is
# proved of one direction says nothing of the other.
def test_a_reduce_over_links_with_latency_is_as_good_as_its_proof():
    links = [Link(1, 0, 0.0, 10.0, ports=(0,)), Link(2, 0, 0.0, 10.0, 5.0, ports=(0,))]
    topology, collective = machine(3, links, [Port("in", 0.0, 10.0)]), Collective(Kind.REDUCE, 3)
    best_us = faster(topology, collective, [(1, (0,), 0.0, 15.0, True), (0, (0,), 10.0, 20.0, True)])
    synthesis = solve(Instance("late reduce", topology, collective, best_us))
    assert synthesis.proof is Proof.FEASIBLE or synthesis.schedule.makespan_us <= best_us


def test_progress_is_told():
    class Heard(Events):
        def __init__(self):
            self.stages, self.incumbents, self.bounds = [], [], []

        def stage(self, name):
            self.stages.append(name)

        def incumbent(self, time_us):
            self.incumbents.append(time_us)

        def bound(self, time_us):
            self.bounds.append(time_us)

    heard = Heard()
    synthesis = solve(small_messages(), events=heard)
    assert "greedy" in heard.stages
    assert set(synthesis.stage_seconds) >= set(heard.stages)
    assert max(heard.bounds) == synthesis.bound.time_us
    assert min(heard.incumbents) == pytest.approx(synthesis.schedule.makespan_us, rel=1e-3)


# Symmetry


def test_a_symmetric_schedule_repeats_in_every_node():
    topology = two_nodes(3, {0: (0,)}, inside=(1.0, 10.0), between=(1.0, 20.0))
    sketch = Sketch("mine", rotations=(Rotation("node", "machine"),), connections={0: (0,)})
    schedule = solve(
        Instance("twins", topology, Collective(Kind.ALLGATHER, 6), 0.0, sketch=sketch), limits=BRIEF
    ).schedule
    ends = [(topology.links[m.link].src, topology.links[m.link].dst, m.chunks, m.start_us) for m in schedule.messages]
    turned = [((a + 3) % 6, (b + 3) % 6, tuple((c + 3) % 6 for c in chunks), start) for a, b, chunks, start in ends]
    assert sorted((a, b, sorted(c), t) for a, b, c, t in ends) == sorted((a, b, sorted(c), t) for a, b, c, t in turned)


def test_a_symmetry_that_rules_out_every_schedule_is_given_up():
    """The mirror would have ranks 1 and 3 deliver to rank 2 at once; without it there is a schedule."""
    sketch = Sketch("mine", permutations=((0, 3, 2, 1),))
    instance = Instance("mirror", ring(4, both_ways=True), Collective(Kind.BROADCAST, 4), 22.0, sketch=sketch)
    synthesis = solve(instance)
    assert is_sound(synthesis)
    assert synthesis.schedule.makespan_us == 22.0


# Sketches


def small_node(policy, chunks=1):
    """One node of a switch of 4 where AllGather takes 30 whichever pairs talk (a port each way, no alpha)."""
    ports = [Port(f"{way} {rank}", 0.0, 10.0) for rank in range(4) for way in ("out", "in")]
    links = [Link(a, b, 0.0, 10.0, ports=(2 * a, 2 * b + 1)) for a in range(4) for b in range(4) if a != b]
    words = {"strategy": Strategy(policy)} if policy in ("none", "minmax", "maxmin") else {
        "strategy": Strategy.SWITCH, "switches": (SwitchGroup((0, 1, 2, 3), Policy(policy)),),
    }  # fmt: skip
    sketch = Sketch("mine", chunks_per_rank=chunks, **words)
    return Instance(
        policy, machine(4, links, ports), Collective(Kind.ALLGATHER, 4, chunks), 30.0 * chunks, sketch=sketch
    )


@pytest.mark.parametrize("solver", ["cp-sat", "highs"])
def test_few_or_many_pairs_talk_as_the_policy_says(solver):
    found = {}
    for policy in ("uc-min", "free", "uc-max"):
        synthesis = solve(small_node(policy), solver)
        assert is_sound(synthesis)
        assert synthesis.schedule.makespan_us == 30.0
        found[policy] = len(pairs_inside_nodes(synthesis.schedule))
    assert 4 <= found["uc-min"] <= found["free"] <= found["uc-max"] <= 12


def test_where_there_is_room_a_policy_makes_a_difference():
    few, many = (len(pairs_inside_nodes(solve(small_node(policy)).schedule)) for policy in ("uc-min", "uc-max"))
    assert few < many == 12


@pytest.mark.parametrize("solver", ["cp-sat", "highs"])
def test_links_are_evenly_or_unevenly_busy_as_the_strategy_says(solver):
    synthesis = {policy: solve(small_node(policy, 2), solver) for policy in ("none", "minmax", "maxmin")}
    assert all(is_sound(one) and one.schedule.makespan_us == 60.0 for one in synthesis.values())
    load = {policy: load_inside_nodes(one.schedule).values() for policy, one in synthesis.items()}
    assert max(load["minmax"]) <= max(load["none"])
    assert min(load["maxmin"]) >= min(load["none"])


def relayed(kind, per_node, sender, receiver, chunks):
    topology = two_nodes(per_node, {sender: (receiver,)}, inside=(10.0, 1.0), between=(100.0, 5.0))
    sketch = Sketch(
        "mine", connections={sender: (receiver,)}, relays={sender: tuple(range(per_node))}, own_first=True,
        rotations=(Rotation("node", "machine"),), chunks_per_rank=chunks,
    )  # fmt: skip
    return Instance("relayed", topology, Collective(kind, 2 * per_node, chunks), 0.0, sketch=sketch)


@pytest.mark.parametrize("solver", ["cp-sat", "highs"])
@pytest.mark.parametrize(("kind", "per_node"), [(Kind.ALLGATHER, 3), (Kind.ALLTOALL, 2)])
def test_the_senders_own_chunks_leave_the_node_first(kind, per_node, solver):
    instance = relayed(kind, per_node, 0, 1, 1)
    synthesis = solve(instance, solver, limits=BRIEF)
    assert is_sound(synthesis)
    assert breaks_own_first(synthesis.schedule, instance.sketch) == []


def test_the_senders_own_chunks_leave_first_in_batches_too():
    broken = []
    for per_node, sender, receiver, chunks in ((3, 1, 0, 2), (4, 0, 3, 1), (4, 2, 0, 1)):
        instance = relayed(Kind.ALLTOALL, per_node, sender, receiver, chunks)
        broken += breaks_own_first(solve(instance, limits=BRIEF).schedule, instance.sketch)
    assert broken == []


def test_what_cannot_be_is_said_with_its_reason():
    with pytest.raises(Infeasible) as caught:
        solve(Instance("chain", chain(3), Collective(Kind.ALLGATHER, 3), 0.0))
    assert caught.value.restriction == "topology"
    nowhere = Sketch("mine", relays={1: (0, 1)})
    with pytest.raises(Infeasible) as caught:
        solve(Instance("relays", two_nodes(2, {0: (0,)}), Collective(Kind.ALLREDUCE, 4), 0.0, sketch=nowhere))
    assert caught.value.restriction == "inter_node.relays"
    with pytest.raises(InputError, match="mine: topology"):
        solve(replace(one_way_ring(), sketch=Sketch("mine", topology="dgx2")))


# Solvers


def test_without_or_tools_the_engine_works_and_cp_sat_says_what_to_install(monkeypatch):
    for name in ("ortools", "ortools.sat", "ortools.sat.python", "ortools.sat.python.cp_model"):
        monkeypatch.setitem(sys.modules, name, None)
    synthesis = solve(small_messages())
    assert (synthesis.solver, synthesis.schedule.makespan_us) == ("highs", pytest.approx(125.0))
    with pytest.raises(PackageMissing, match="pip install ortools"):
        solve(small_messages(), "cp-sat")


def test_an_unknown_solver_is_refused():
    with pytest.raises(InputError, match="is not a solver"):
        solve(one_way_ring(), "simplex")


# Determinism and limits

REPEATED = """
import sys
from tests.synthesis.test_milp import repeated
for solver in ("cp-sat", "highs"):
    sys.stdout.write(repeated(solver))
"""


def repeated(solver):
    """Text of a schedule whose search ends by its own limits of work, long before the time limit."""
    topology = two_nodes(2, {0: (1,)}, inside=(2.0, 3.0), between=(20.0, 11.0))
    sketch = Sketch("mine", rotations=(Rotation("node", "machine"),), strategy=Strategy.MINMAX)
    instance = Instance("again", topology, Collective(Kind.ALLGATHER, 4, 2), 0.0, sketch=sketch)
    synthesis = solve(instance, solver, seconds=600.0, seed=3)
    assert is_sound(synthesis)
    return write_schedule(synthesis.schedule)


@pytest.mark.slow
def test_the_same_question_has_the_same_answer_to_the_last_byte():
    """In this process twice, and in another one whose sets and dictionaries of text have another order."""
    here = {solver: repeated(solver) for solver in ("cp-sat", "highs")}
    assert repeated("cp-sat") == here["cp-sat"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", REPEATED],
        capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "PYTHONHASHSEED": "12345"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == here["cp-sat"] + here["highs"]


def test_an_interrupt_before_the_start_still_gives_a_schedule():
    limits = Limits(seconds=600.0)
    limits.stop.set()
    begun = time.monotonic()
    synthesis = solve(hard(), limits=limits)
    assert time.monotonic() - begun < 10.0
    assert verify_schedule(synthesis.schedule) == ()
    assert synthesis.proof is not Proof.OPTIMAL


@pytest.mark.parametrize("solver", ["cp-sat", "highs"])
def test_an_interrupt_ends_the_search_soon_with_the_best_so_far(solver):
    limits = Limits(seconds=600.0)
    timer = threading.Timer(1.0, limits.stop.set)
    timer.start()
    begun = time.monotonic()
    synthesis = solve(hard(), solver, limits=limits)
    taken = time.monotonic() - begun
    timer.cancel()
    assert taken < 15.0
    assert is_sound(synthesis)


@pytest.mark.parametrize("solver", ["cp-sat", "highs", "cbc"])
def test_a_time_limit_is_kept(solver):
    begun = time.monotonic()
    synthesis = solve(hard(), solver, seconds=1.0)
    assert time.monotonic() - begun < 12.0
    assert is_sound(synthesis)


def hard():
    """AllToAll of 12 ranks on a mesh: many arcs, no symmetry, far from the bound."""
    topology = load_topology("mesh:3x4,alpha_us=5,beta_us_per_mb=10")
    return Instance("hard", topology, Collective(Kind.ALLTOALL, 12), 0.0)


# AllReduce


@pytest.mark.parametrize("instance", COMBINING, ids=str)
def test_combining_collectives_are_made_for_the_machine_and_not_for_its_reverse(instance):
    schedule = solve(instance).schedule
    assert schedule.topology == instance.topology
    assert any(message.reduce for message in schedule.messages)


@pytest.mark.parametrize("topology", [full(3), ring(4), ring(4, both_ways=True), two_nodes(2, {0: (0,), 1: (1,)})])
def test_allreduce_takes_no_longer_than_two_allgathers(topology):
    gather, reduce = (
        solve(Instance("twice", topology, Collective(kind, topology.num_ranks), 0.0), seconds=10.0)
        for kind in (Kind.ALLGATHER, Kind.ALLREDUCE)
    )
    assert is_sound(reduce)
    assert reduce.schedule.makespan_us <= 2 * gather.schedule.makespan_us * (1 + 1e-6)


def test_a_search_without_time_leaves_its_messages_in_no_bad_order():
    """AllToAll on two MI250X nodes: in the order of the first plan 409 us, where the fullest port is busy for 200."""
    limits = Limits()
    limits.stop.set()
    demand = Demand(load_topology("mi250x", 2), Kind.ALLTOALL, 1 << 20)
    found = synthesize_milp(demand, Options(limits=limits), Events()).schedule
    assert found.makespan_us < 250
    assert not verify_schedule(found)

"""From a request to a verified schedule, and from a schedule to a program that keeps its promise."""

from dataclasses import replace
from functools import cache

import pytest

from taccl_py.collective import Kind
from taccl_py.errors import InputError, InvalidArtifact, LoweringError, Violation
from taccl_py.lowering.lower import Lowering, LoweringOptions, PortOrder
from taccl_py.pipeline import deliver, views
from taccl_py.pipeline.deliver import lower_and_verify, lower_best
from taccl_py.pipeline.resolve import Request, make_demand
from taccl_py.pipeline.search import synthesize
from taccl_py.runtimes import EXECUTOR, LEGACY, RCCL
from taccl_py.schedule.ir import Origin
from taccl_py.sketch.machine import load_machine
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import Bound
from taccl_py.synthesis.engine import Events, Options, Proof, Synthesis
from taccl_py.verify.schedule import verify_schedule
from tests.instances import quiet_pulp, write_taccl
from tests.lowering import cases
from tests.lowering.cases import MB, shared_nic

pytestmark = quiet_pulp

SHORT = Options(limits=Limits(seconds=0.5, workers=1, seed=7, by_work=True))


# Requests


def test_a_wrongbecomes_a_verified_schedule_that_says_where_it_comes_from():
    synthesis = synthesize(Request("ring:4", Kind.ALLGATHER, size_bytes=4 * MB, options=SHORT), Events())
    schedule = synthesis.schedule
    assert verify_schedule(schedule) == ()
    assert (schedule.topology.num_ranks, schedule.chunk_bytes) == (4, MB)
    origin = schedule.origin
    assert (origin.engine, origin.solver, origin.sketch, origin.seed) == ("milp", "cp-sat", "", 7)
    assert (origin.status, origin.bound_us) == (str(synthesis.proof), synthesis.bound.time_us)
    assert origin.bound_reason == synthesis.bound.reason


def test_the_sketch_of_a_wrongis_written_down():
    request = Request("torus:4x4", Kind.BROADCAST, "torus-4x4-translations", chunks_per_rank=1, options=SHORT)
    assert synthesize(request, Events()).schedule.origin.sketch == "torus-4x4-translations"


def test_a_sketch_says_how_many_nodes_and_chunks_there_are_unless_the_user_does():
    assert load_machine("ndv4", "rails").topology.num_nodes == 2
    assert load_machine("ndv2", "sk-1").topology.num_nodes == 1
    assert load_machine("ndv2", "sk-1", 4).topology.num_nodes == 4
    assert load_machine("ndv2-x2", "sk-1").topology.num_nodes == 2
    request = Request("dgx2", Kind.ALLGATHER, "sk-1", nodes=2)
    chunks = load_machine("dgx2", "sk-1", 2).sketch.chunks_per_rank
    assert chunks > 1
    assert make_demand(request).chunks_per_rank == chunks
    assert make_demand(replace(request, chunks_per_rank=3)).chunks_per_rank == 3
    assert make_demand(replace(request, sketch="")).chunks_per_rank is None


def test_without_a_size_it_is_a_megabyte():
    assert make_demand(Request("ring:4", Kind.ALLGATHER)).size_bytes == MB


def test_a_process_group_is_a_machine_of_its_own():
    demand = make_demand(Request("full:8", Kind.GATHER, ranks=(2, 3, 5), root=2))
    assert demand.topology.num_ranks == 3
    assert demand.root == 2


def test_a_taccl_profile_takes_its_nodes_and_connections_from_its_sketch(tmp_path):
    files = write_taccl(tmp_path, "NDv2_1MB", "ndv2-sk-1")
    machine = load_machine(str(files.profile), str(files.sketch))
    topology = machine.topology
    assert (topology.num_nodes, topology.num_ranks) == (2, 16)
    between = [(k.src, k.dst) for k in topology.links if topology.node_of[k.src] != topology.node_of[k.dst]]
    assert {(0, 9), (8, 1)} <= set(between)
    assert {rank for pair in between for rank in pair} == {0, 1, 8, 9}


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (Request("ring:4", Kind.ALLGATHER, root=1), "--root"),
        (Request("ring:4", Kind.GATHER, root=4), "--root"),
        (Request("ring:4", Kind.ALLGATHER, ranks=(0, 7)), "--ranks"),
        (Request("ring:4", Kind.ALLGATHER, options=Options("abacus")), "--solver"),
    ],
    ids=["a root where there is none", "a root that does not exist", "a rank that does not exist", "a solver"],
)
def test_what_a_wrongasks_wrongly_is_named_by_its_option(wrong, field):
    with pytest.raises(InputError) as caught:
        make_demand(wrong)
    assert (caught.value.path, caught.value.field) == ("command line", field)


def test_what_contradicts_itself_is_refused(tmp_path):
    files = write_taccl(tmp_path, "NDv2_1MB", "ndv2-sk-1")
    profile, sketch = str(files.profile), str(files.sketch)
    with pytest.raises(InputError, match="add --sketch"):
        load_machine(profile)
    with pytest.raises(InputError, match="leave --nodes out"):
        load_machine(profile, sketch, 4)
    with pytest.raises(InputError, match="leave one out"):
        make_demand(Request("ndv2", Kind.ALLGATHER, "sk-1", ranks=(0, 1)))


def answer(schedule, *runners_up, proof=Proof.OPTIMAL):
    bound = Bound(schedule.makespan_us, "made up")
    return Synthesis(schedule, bound, proof, "none", {}, tuple(runners_up))


def engine_that_finds(synthesis, monkeypatch):
    monkeypatch.setattr(views, "load_engine", lambda _name: lambda *_: synthesis)


def test_what_an_engine_gets_wrong_does_not_leave_the_pipeline(monkeypatch):
    good = cases.ring_allgather(4)
    engine_that_finds(answer(good), monkeypatch)
    assert synthesize(Request("ring:4", Kind.ALLGATHER), Events()).schedule.messages == good.messages
    engine_that_finds(answer(replace(good, messages=good.messages[:-1])), monkeypatch)
    with pytest.raises(InvalidArtifact) as caught:
        synthesize(Request("ring:4", Kind.ALLGATHER), Events())
    assert caught.value.violations


# Lowering


@pytest.fixture
def lowered_orders(monkeypatch):
    """Port orders of all calls of the lowering."""
    orders, program = [], Lowering.program

    def noted(self, port_order):
        orders.append(port_order)
        return program(self, port_order)

    monkeypatch.setattr(Lowering, "program", noted)
    return orders


@pytest.mark.parametrize(
    ("schedule", "tried"),
    [
        (cases.ring_allgather(4), [PortOrder.FREE]),
        (cases.urgent_relay(), [PortOrder.FREE, PortOrder.SENDS]),
        (cases.urgent_arrival(), [PortOrder.FREE, PortOrder.SENDS, PortOrder.BOTH]),
    ],
    ids=["no ports", "sends compete", "receives compete"],
)
@pytest.mark.parametrize("runtime", [EXECUTOR, RCCL, LEGACY], ids=lambda runtime: runtime.name)
def test_messages_take_turns_only_as_far_as_the_schedule_s_time_needs_it(schedule, tried, runtime, lowered_orders):
    lowered = lower_and_verify(schedule, LoweringOptions(runtime))
    assert lowered.replay.makespan_us == pytest.approx(schedule.makespan_us)
    assert lowered_orders == tried
    assert lowered.verdict.violations == ()


def test_forwards_that_hold_up_what_comes_behind_them_are_not_fused():
    """Scatter on the DGX-1, 1 GiB: what rank 1 passes on as it arrives, over a slower link, kept the root waiting for 6 %."""
    limits = Limits(seconds=20.0)
    schedule = synthesize(
        Request("dgx1", Kind.SCATTER, size_bytes=1 << 30, engine="flow", options=Options(limits=limits)), Events()
    ).schedule
    lowered = lower_and_verify(schedule, LoweringOptions(EXECUTOR))
    assert lowered.replay.makespan_us == pytest.approx(schedule.makespan_us, rel=0.003)
    assert lowered.port_order is not PortOrder.FREE


def test_turns_that_another_size_needed_are_taken_at_once(lowered_orders):
    lowered = lower_and_verify(cases.urgent_arrival(), LoweringOptions(EXECUTOR))
    assert lowered.port_order is PortOrder.BOTH
    lowered_orders.clear()
    again = lower_and_verify(cases.urgent_arrival(), LoweringOptions(EXECUTOR, port_order=lowered.port_order))
    assert lowered_orders == [PortOrder.BOTH]
    assert again.text == lowered.text


def test_turns_are_looked_for_though_time_is_up_but_not_for_long_when_the_user_wants_an_end(
    lowered_orders, monkeypatch
):
    schedule, options = cases.urgent_relay(), LoweringOptions(EXECUTOR)
    _, lowered = lower_best(answer(schedule), options, over=lambda: True)
    assert lowered.replay.makespan_us == pytest.approx(schedule.makespan_us)
    _, lowered = lower_best(answer(schedule), options, over=lambda: True, stopped=lambda: True)
    assert lowered.replay.makespan_us == pytest.approx(schedule.makespan_us)
    lowered_orders.clear()
    monkeypatch.setattr("taccl_py.pipeline.deliver._SOON_S", -1.0)
    _, lowered = lower_best(answer(schedule), options, over=lambda: True, stopped=lambda: True)
    assert lowered_orders == [PortOrder.FREE]
    assert lowered.replay.makespan_us > schedule.makespan_us


def test_where_turns_cannot_be_taken_the_program_without_them_is_the_answer(monkeypatch):
    """A step that waits cannot be fused, so there may be no room for it; what has room is still right."""
    program = Lowering.program

    def cramped(self, port_order):
        if port_order is not PortOrder.FREE:
            raise LoweringError("no room", runtime="executor", limit="max_steps")
        return program(self, port_order)

    monkeypatch.setattr(Lowering, "program", cramped)
    lowered = lower_and_verify(cases.urgent_relay(), LoweringOptions(EXECUTOR))
    assert lowered.replay.makespan_us == pytest.approx(30.0)


def test_what_the_lowering_gets_wrong_does_not_leave_the_pipeline(monkeypatch):
    emit = deliver.emit_xml
    monkeypatch.setattr(deliver, "emit_xml", lambda *given: emit(*given).replace('srcoff="0"', 'srcoff="1"'))
    with pytest.raises(InvalidArtifact) as caught:
        lower_and_verify(cases.ring_allgather(4), LoweringOptions(EXECUTOR))
    assert caught.value.violations


def test_a_text_that_says_something_else_than_the_program_does_not_leave_the_pipeline(monkeypatch):
    emit = deliver.emit_xml
    monkeypatch.setattr(deliver, "emit_xml", lambda *given: emit(*given).replace("allgather-test", "another-name"))
    with pytest.raises(ValueError, match="does not read back"):
        lower_and_verify(cases.ring_allgather(4), LoweringOptions(EXECUTOR))


def test_an_instance_carries_its_part_of_every_chunk():
    one, two = (
        lower_and_verify(cases.ring_allgather(4), LoweringOptions(EXECUTOR, instances=instances))
        for instances in (1, 2)
    )
    assert {move.size_bytes for move in one.replay.transfers} == {MB}
    assert {move.size_bytes for move in two.replay.transfers} == {MB / 2}
    assert one.replay.size_bytes == two.replay.size_bytes == 4 * MB


# Runners-up, where ranks share a NIC


def test_the_runner_up_whose_xml_keeps_its_promise_wins_and_nothing_is_proven_of_it():
    best, runner_up = shared_nic(direct=False), shared_nic(direct=True)
    assert (best.makespan_us, runner_up.makespan_us) == (30.0, 32.0)
    assert lower_and_verify(best, LoweringOptions(EXECUTOR)).replay.makespan_us == 40.0
    synthesis, lowered = lower_best(answer(best, runner_up), LoweringOptions(EXECUTOR))
    assert synthesis.schedule.messages == runner_up.messages
    assert lowered.replay.makespan_us == 32.0
    assert synthesis.proof is Proof.FEASIBLE
    assert synthesis.bound.time_us == 30.0


def test_the_origin_of_a_runner_up_is_that_of_the_answer_but_for_what_is_proven(monkeypatch):
    engine_that_finds(answer(shared_nic(direct=False), shared_nic(direct=True)), monkeypatch)
    synthesis = synthesize(Request("ring:4", Kind.BROADCAST, options=SHORT), Events())
    assert synthesis.schedule.origin.status == "optimal"
    chosen, _ = lower_best(synthesis, LoweringOptions(EXECUTOR))
    assert chosen.schedule.origin == replace(synthesis.schedule.origin, status="feasible")


def test_a_runner_up_of_a_race_is_told_from_its_winner(monkeypatch):
    won, lost = (Origin(name, "none", "", 0, "feasible", 1.0, "") for name in ("greedy", "trees"))
    best, runner_up = shared_nic(direct=False).with_origin(won), shared_nic(direct=True).with_origin(lost)
    engine_that_finds(answer(best, runner_up), monkeypatch)
    synthesis = synthesize(Request("ring:4", Kind.BROADCAST, engine="auto", options=SHORT), Events())
    assert synthesis.schedule.origin.found_by == "greedy"
    chosen, _ = lower_best(synthesis, LoweringOptions(EXECUTOR))
    assert chosen.schedule.messages == runner_up.messages
    assert (chosen.schedule.origin.engine, chosen.schedule.origin.found_by) == ("auto", "trees")


def test_no_runner_up_is_tried_when_the_best_keeps_its_promise(monkeypatch):
    best, runner_up = shared_nic(direct=True), shared_nic(direct=True, detour_us=33.0)
    tried = []
    verify = deliver.lower_and_verify
    monkeypatch.setattr(deliver, "lower_and_verify", lambda s, *rest: tried.append(s) or verify(s, *rest))
    found = answer(best, runner_up)
    assert lower_best(found, LoweringOptions(EXECUTOR))[0] is found
    assert tried == [best]


def test_when_time_is_up_the_first_program_is_the_one():
    found = answer(shared_nic(direct=False), shared_nic(direct=True))
    synthesis, lowered = lower_best(found, LoweringOptions(EXECUTOR), lambda: True)
    assert synthesis is found
    assert lowered.replay.makespan_us == 40.0


def test_a_runner_up_that_is_no_faster_in_the_end_changes_nothing():
    found = answer(shared_nic(direct=False), shared_nic(direct=True, detour_us=45.0))
    synthesis, lowered = lower_best(found, LoweringOptions(EXECUTOR))
    assert synthesis is found
    assert lowered.replay.makespan_us == 40.0


def test_a_runner_up_that_the_verifier_rejects_is_an_error_of_ours():
    runner_up = shared_nic(direct=True)
    found = answer(shared_nic(direct=False), replace(runner_up, messages=runner_up.messages[1:]))
    with pytest.raises(InvalidArtifact):
        lower_best(found, LoweringOptions(EXECUTOR))


def test_a_runner_up_that_the_runtime_has_no_room_for_is_passed_over(monkeypatch):
    best, runner_up = shared_nic(direct=False), shared_nic(direct=True)
    program = Lowering.program

    def cramped(self, port_order):
        if self._case.schedule is runner_up:
            raise LoweringError("no room", runtime="executor", limit="threadblocks")
        return program(self, port_order)

    monkeypatch.setattr(Lowering, "program", cramped)
    found = answer(best, runner_up)
    synthesis, lowered = lower_best(found, LoweringOptions(EXECUTOR))
    assert synthesis is found
    assert lowered.replay.makespan_us == 40.0


def test_where_the_runtime_has_no_room_for_the_answer_a_runner_up_takes_its_place(monkeypatch):
    best, runner_up = shared_nic(direct=False), shared_nic(direct=True)
    program, cramped = Lowering.program, [best]

    def with_room(self, port_order):
        if any(self._case.schedule.messages is schedule.messages for schedule in cramped):
            raise LoweringError("no room", runtime="executor", limit="nodes")
        return program(self, port_order)

    monkeypatch.setattr(Lowering, "program", with_room)
    synthesis, lowered = lower_best(answer(best, runner_up), LoweringOptions(EXECUTOR), lambda: True)
    assert synthesis.schedule.messages == runner_up.messages
    assert (synthesis.proof, lowered.replay.makespan_us) == (Proof.FEASIBLE, 32.0)
    cramped.append(runner_up)
    with pytest.raises(LoweringError, match="no room"):
        lower_best(answer(best, runner_up), LoweringOptions(EXECUTOR))


def test_choosing_among_runners_up_never_makes_the_xml_slower():
    """On two DGX-2 every NIC serves two GPUs."""
    options = LoweringOptions(EXECUTOR)
    found = synthesize(Request("dgx2", Kind.REDUCESCATTER, nodes=2, size_bytes=32 * MB, options=SHORT), Events())
    synthesis, lowered = lower_best(found, options)
    assert lowered.replay.makespan_us <= lower_and_verify(found.schedule, options).replay.makespan_us
    assert verify_schedule(synthesis.schedule) == ()
    assert synthesis.schedule is found.schedule or synthesis.proof is Proof.FEASIBLE


@cache
def symmetric():
    """AllToAll of six nodes of eight ranks: chunks lie together in an order of their own in scratch, and those of several nodes in the output."""
    request = Request("hpn:6", Kind.ALLTOALL, size_bytes=1 << 14, engine="hierarchy", options=SHORT)
    schedule = synthesize(request, Events()).schedule
    assert any(list(chunks) != sorted(chunks) for chunks in schedule.scratch)
    return schedule


@cache
def symmetric_whole():
    """Its program, of all ranks at once."""
    return lower_and_verify(symmetric(), LoweringOptions(EXECUTOR))


def test_a_large_symmetric_schedule_is_lowered_rank_by_rank(monkeypatch):
    schedule = symmetric()
    whole = symmetric_whole()
    monkeypatch.setattr(deliver, "_MANY_CHUNKS", 0)
    monkeypatch.setattr(deliver, "_MOST_CHUNKS", 0)
    monkeypatch.setattr(deliver, "Lowering", lambda *_: pytest.fail("all ranks at once"))
    lowered = lower_and_verify(schedule, LoweringOptions(EXECUTOR))
    assert lowered.verdict.violations == ()
    assert lowered.replay.makespan_us == pytest.approx(schedule.makespan_us)
    assert lowered.program.num_channels == whole.program.num_channels


def test_what_images_would_tear_apart_is_lowered_all_at_once_unless_it_is_very_large(monkeypatch):
    """Chunks of several nodes lie together at most ranks, and not at those where these are the last and the first nodes."""
    schedule = symmetric()
    whole = symmetric_whole()
    monkeypatch.setattr(deliver, "_MANY_CHUNKS", 0)
    monkeypatch.setattr(deliver, "_lower_by_ranks", lambda *_: pytest.fail("rank by rank"))
    assert lower_and_verify(schedule, LoweringOptions(EXECUTOR)).text == whole.text


def test_where_each_rank_stands_for_few_they_are_lowered_all_at_once(monkeypatch):
    """One rank of a node stands for those of six nodes."""
    schedule = symmetric()
    whole = symmetric_whole()
    monkeypatch.setattr(deliver, "_MANY_CHUNKS", 0)
    monkeypatch.setattr(deliver, "_MOST_CHUNKS", 0)
    monkeypatch.setattr(deliver, "_LEAST_IMAGES", 7)
    monkeypatch.setattr(deliver, "_lower_by_ranks", lambda *_: pytest.fail("rank by rank"))
    assert lower_and_verify(schedule, LoweringOptions(EXECUTOR)).text == whole.text


@pytest.mark.parametrize(
    "problem",
    [
        LoweringError("no room", runtime="executor", limit="max_steps"),
        InvalidArtifact("algorithm.xml", (Violation("", "race", "a race"),)),
    ],
)
def test_ranks_that_do_not_fit_together_are_lowered_all_at_once(monkeypatch, problem):
    def refuse(*_):
        raise problem

    schedule = symmetric()
    whole = symmetric_whole()
    monkeypatch.setattr(deliver, "_MANY_CHUNKS", 0)
    monkeypatch.setattr(deliver, "_MOST_CHUNKS", 0)
    monkeypatch.setattr(deliver, "_lower_by_ranks", refuse)
    assert lower_and_verify(schedule, LoweringOptions(EXECUTOR)).text == whole.text


def test_what_takes_longer_rank_by_rank_is_lowered_all_at_once(monkeypatch):
    schedule = symmetric()
    whole = symmetric_whole()
    slow = replace(whole, replay=replace(whole.replay, makespan_us=schedule.makespan_us * 1.01), text="slow")
    monkeypatch.setattr(deliver, "_MANY_CHUNKS", 0)
    monkeypatch.setattr(deliver, "_MOST_CHUNKS", 0)
    monkeypatch.setattr(deliver, "_lower_by_ranks", lambda *_: slow)
    assert lower_and_verify(schedule, LoweringOptions(EXECUTOR)).text == whole.text

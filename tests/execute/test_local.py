"""Programs that run in one process: right ones are right, and what is wrong is named."""

import random
import re

import pytest

from taccl_py.collective import Buffer
from taccl_py.errors import InputError, InvalidArtifact
from taccl_py.execute import runs
from taccl_py.execute.plan import DataType, Operator, cut_size
from taccl_py.execute.runs import Call, Conditions, run_local
from taccl_py.runtimes import EXECUTOR, RCCL
from tests.execute.running import outcomes, plan_of, violations
from tests.verify.msccl.files import (
    RIGHT_FILES,
    add,
    make_file,
    pair_allreduce,
    ring_allgather,
    ring_allreduce,
    step,
)
from tests.verify.msccl.test_broken_files import RUN_CASES, both_send_first

MIB = 1 << 20


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("name", RIGHT_FILES)
def test_right_files_give_the_right_result_for_every_type_and_operator(name, shuffled):
    plan = plan_of(RIGHT_FILES[name]())
    operators = tuple(Operator) if plan.reduces else (Operator.SUM,)
    found = outcomes(plan, types=tuple(DataType), operators=operators, shuffled=shuffled)
    assert found
    assert [outcome.first_wrong for outcome in found if outcome.num_wrong] == []


@pytest.mark.parametrize("name", RIGHT_FILES)
def test_right_files_give_the_right_result_when_chunks_go_in_slices(name):
    """LL carries 32 KiB a message, so that chunks of 100 000 bytes need four passes, the last of them short."""
    plan = plan_of(RIGHT_FILES[name]())
    size = 100_000 * plan.chunks_per_size
    cut = cut_size(plan, size, DataType.INT32, EXECUTOR)
    assert (cut.chunk_elements, cut.slice_elements, cut.num_passes) == (25_000, 8192, 4)
    assert [outcome.num_wrong for outcome in outcomes(plan, size=size, repeats=2)] == [0] * len(outcomes(plan))


@pytest.mark.parametrize(
    ("size", "chunk", "together"), [(1, 1, 71), (16 * 1024, 512, 16), (8 * 32768, 8192, 1), (3 * 32768, 3072, 2)]
)
def test_a_message_holds_as_many_chunks_as_its_payload(size, chunk, together):
    """8 chunks of int32 in LL, whose messages carry 32 KiB and never more than 71 chunks."""
    cut = cut_size(plan_of(both_send_first(1, 4)), size, DataType.INT32, EXECUTOR)
    assert (cut.chunk_elements, cut.chunks_per_operation) == (chunk, together)


# Races can end well, and overlapping cells are copied as they were. The others here: what a nop does to the kernel's count is
# for the verifier alone, and what is read too early is overwritten later.
HARMLESS = {"count_shifted_by_free_nop", "a_non_roots_cell_in_place"}
FOUND = {"deadlock", "fifo-deadlock", "unwritten-read", "mixed-sum", "double-counting", "wrong-result", "null-buffer",
         "input-overwritten"}  # fmt: skip
SAME = {"deadlock": {"deadlock"}, "fifo-deadlock": {"deadlock"}, "null-buffer": {"null-buffer"}}
CASES = [case for case in RUN_CASES if case.rule in FOUND and case.name not in HARMLESS]


@pytest.mark.parametrize("case", CASES, ids=[f"{case.rule}:{case.name}" for case in CASES])
def test_what_the_verifier_rejects_goes_wrong_on_real_data(case):
    file = case.make()
    case.change(file)
    plan = plan_of(file)
    assert SAME.get(case.rule, {"wrong-result", "null-buffer"}) & set(violations(plan))


def test_a_sum_that_counts_twice_is_named_by_rank_chunk_and_offset():
    file = pair_allreduce()
    file.step(1, 2, 2).update(srcbuf="i")
    outcome = outcomes(plan_of(file), size=64)[0]
    assert outcome.num_wrong == 16
    wrong = outcome.first_wrong
    assert (wrong.rank, wrong.buffer, wrong.chunk, wrong.offset) == (1, Buffer.OUTPUT, 0, 0)
    assert f"found {wrong.found}, {wrong.wanted} is right" in str(wrong)


def test_a_chunk_that_stays_away_is_named():
    file = ring_allgather(3, 2)
    file.step(2, 0, 2).update(dstoff=0, type="r", dstbuf="s")
    file.gpus[2].attributes["s_chunks"] = 2
    outcome = outcomes(plan_of(file), size=6 * 16)[0]
    assert (outcome.num_wrong, outcome.first_wrong.rank, outcome.first_wrong.chunk) == (8, 2, 0)


def test_an_input_that_was_changed_is_wrong_even_when_the_result_is_right():
    file = ring_allgather()
    add(file, 1, -1, -1, [step("cpy", "o1", "i0", after=(1, 0))])
    file.step(1, 1, 0)["hasdep"] = 1
    assert violations(plan_of(file)) == []
    add(file, 1, -1, -1, [step("cpy", "o0", "i0", after=(0, 1))])
    file.step(1, 0, 1)["hasdep"] = 1
    file.attributes["inplace"] = 0
    wrong = outcomes(plan_of(file))[0].first_wrong
    assert (wrong.rank, wrong.buffer) in {(1, Buffer.INPUT), (2, Buffer.OUTPUT)}


def refusal(plan, **how):
    with pytest.raises(InvalidArtifact) as error:
        outcomes(plan, **how)
    return error.value.violations


def test_a_deadlock_is_reported_as_a_cycle():
    """Both ranks send three messages before they receive any, and two fit."""
    first, *others = refusal(plan_of(both_send_first(3, proto="Simple")))
    assert first.where == "gpu 0 tb 0 step 2"
    assert first.what == (
        "waits for a free slot of its connection to rank 1 on channel 0; "
        "gpu 1 tb 0 step 2 waits for a free slot of its connection to rank 0 on channel 0; and so on around from gpu 0 tb 0"
    )
    assert others == []


def test_a_wait_for_a_threadblock_that_has_ended_is_no_cycle():
    file = pair_allreduce()
    file.step(0, 1, 1)["hasdep"] = 0
    (only,) = refusal(plan_of(file))
    assert only.what == "waits for step 1 of tb 1; and gpu 0 tb 1 has ended"


def test_a_message_that_nobody_sends_and_a_threadblock_that_does_not_exist_are_named():
    file = ring_allgather()
    file.gpus[0].blocks[0].steps.pop(0)
    assert "waits for a message from rank" in refusal(plan_of(file))[0].what
    file = ring_allgather()
    file.step(0, 1, 0).update(depid=7, deps=0)
    assert refusal(plan_of(file))[0].what == "waits for step 0 of tb 7; and nobody can give it that"


def test_messages_that_nobody_takes_are_left_over():
    file = ring_allgather()
    file.gpus[0].blocks[0].steps.append(step("s"))
    (only,) = refusal(plan_of(file))
    assert (only.where, only.rule) == ("gpu 0", "left-over")
    assert "rank 0 sends more on channel 0 than rank 1 takes" in only.what


def test_sender_and_receiver_that_count_differently_are_named():
    file = ring_allgather(3, 2)
    file.step(1, 0, 2)["cnt"] = 1
    (only,) = refusal(plan_of(file))
    assert (only.where, only.rule) == ("gpu 1 tb 0 step 2", "count-mismatch")


@pytest.mark.parametrize("offset", [-1, 3, 30])
def test_cells_outside_of_a_buffer_are_named(offset):
    file = ring_allgather()
    file.step(2, 1, 0)["dstoff"] = offset
    (only,) = refusal(plan_of(file))
    assert (only.where, only.rule) == ("gpu 2 tb 1 step 0", "outside-buffer")
    assert "output, which has 3" in only.what


def test_a_race_shows_when_threadblocks_take_turns_at_random():
    """The local copy is not ordered with the sum, and comes first only by the order of the threadblocks."""
    file = make_file("allreduce", 2, 1, (1, 1, 0), inplace=0)
    for rank in range(2):
        add(file, rank, -1, -1, [step("cpy", "i0", "o0")])
        add(file, rank, 1 - rank, 1 - rank, [step("s", "i0"), step("rrc", "i0", "o0")])
    plan = plan_of(file)
    assert violations(plan) == []
    found = [violations(plan, shuffled=True, seed=seed, size=64) for seed in range(20)]
    assert [] in found
    assert ["wrong-result"] in found


def test_a_program_is_stuck_only_at_sizes_where_its_messages_do_not_fit():
    """Four chunks in one step: one message while they fit, four above half of a Simple message, and two slots."""
    plan = plan_of(both_send_first(1, 4, proto="Simple"))
    assert violations(plan, size=8 * MIB) == []
    assert "deadlock" in violations(plan, size=8 * MIB + 8 * 4)


def test_runtimes_differ_in_what_a_message_holds():
    """LL of RCCL carries half as much."""
    plan = plan_of(both_send_first(5, 2))
    assert violations(plan, size=20 * 16384, runtime=EXECUTOR) == []
    assert "deadlock" in violations(plan, size=20 * 16384, runtime=RCCL)


def test_columns_are_those_of_nccl_tests():
    """Ring AllGather of 3 ranks: 100 bytes are 3 * 8 float32 = 96 bytes, 8 a rank; busbw is two thirds of algbw."""
    outcome = outcomes(plan_of(ring_allgather()), size=100, types=(DataType.FLOAT32,))[0]
    assert (outcome.size_bytes, outcome.count) == (96, 8)
    assert outcome.algbw_gbps == pytest.approx(96 / outcome.time_us / 1000)
    assert outcome.busbw_gbps == pytest.approx(outcome.algbw_gbps * 2 / 3)
    whole = outcomes(plan_of(ring_allreduce(4)), size=100, types=(DataType.FLOAT16,))[0]
    assert (whole.size_bytes, whole.count) == (96, 48)


def test_a_size_beyond_the_memory_is_refused():
    call = Call(1 << 36, DataType.INT8, Operator.SUM, in_place=False)
    with pytest.raises(InputError, match="write a smaller size"):
        run_local(plan_of(ring_allgather()), call, Conditions(EXECUTOR))


def test_a_size_beyond_the_memory_of_this_machine_is_refused_before_it_is_taken(monkeypatch):
    """Three ranks with inputs of a third of 3 MiB and outputs of all of it: 12 MiB."""
    for memory, refused in ((12 << 20, False), ((12 << 20) - 1, True)):
        monkeypatch.setattr(runs, "physical_bytes", lambda memory=memory: memory)
        call = Call(3 << 20, DataType.FLOAT32, Operator.SUM, in_place=False)
        if not refused:
            assert run_local(plan_of(ring_allgather(3)), call, Conditions(EXECUTOR)).num_wrong == 0
            continue
        with pytest.raises(InputError, match="needs 12MiB of memory"):
            run_local(plan_of(ring_allgather(3)), call, Conditions(EXECUTOR))


def test_corrupting_any_one_message_is_noticed(monkeypatch):
    """One bit of one element of one message, whichever it is."""
    from taccl_py.execute.local import LocalQueues

    rng = random.Random(3)
    for name in ("ring_allgather", "ring_allreduce", "direct_alltoall"):
        plan = plan_of(RIGHT_FILES[name]())
        sent, victim = [], [-1]
        push = LocalQueues.push

        def corrupted(self, connection, message, sent=sent, victim=victim, push=push):
            message = message.copy()
            if len(sent) == victim[0]:
                message.reshape(-1)[rng.randrange(message.size)] ^= 1
            sent.append(connection)
            push(self, connection, message)

        monkeypatch.setattr(LocalQueues, "push", corrupted)
        assert violations(plan) == []
        for number in range(len(sent)):
            sent.clear()
            victim[0] = number
            assert violations(plan) == ["wrong-result"]
        monkeypatch.undo()


def test_places_in_sentences_are_those_of_the_verifier():
    assert re.fullmatch(r"gpu \d+ tb \d+ step \d+", refusal(plan_of(both_send_first(3, proto="Simple")))[0].where)

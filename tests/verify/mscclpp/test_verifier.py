"""The verifier of MSCCL++ plans: right plans pass, and every way to break one is named."""

import copy

import pytest

from taccl_py.collective import Kind
from taccl_py.errors import InputError
from taccl_py.verify.mscclpp import is_plan, verify_plan
from tests.verify.mscclpp.plans import (
    NOP,
    block,
    cells,
    changed,
    far,
    flush,
    flushed_at_once,
    gpu,
    local,
    on,
    on_semaphores,
    ops_of,
    plan,
    put,
    rules,
    two_allgather,
    two_allgather_by_proxy,
    two_allreduce,
    verdict,
)

GOOD = [two_allgather, two_allgather_by_proxy, two_allreduce]


@pytest.mark.parametrize("make", GOOD)
def test_right_plans_pass(make):
    assert verdict(make()).violations == ()


def test_facts_are_those_of_the_plan():
    facts = verdict(two_allreduce()).facts
    assert (facts.kind, facts.num_ranks, facts.in_place, facts.root) == (Kind.ALLREDUCE, 2, False, None)
    assert (facts.max_threadblocks, facts.max_operations, facts.max_channels, facts.scratch_chunks) == (2, 11, 1, 1)


def test_a_plan_is_told_from_a_schedule():
    assert is_plan(two_allgather())
    assert not is_plan({"format": "taccl-schedule", "gpus": []})
    assert not is_plan([])


def drop(number, rank=0, tb=0):
    return lambda value: ops_of(value, rank, tb).pop(number)


def insert(number, operation, rank=0, tb=0):
    return lambda value: ops_of(value, rank, tb).insert(number, operation)


def replace(number, operation, rank=0, tb=0):
    def change(value):
        ops_of(value, rank, tb)[number] = operation

    return change


def put_all(key, content):
    return lambda value: value.update({key: content})


def of_gpu(key, content, rank=0):
    return lambda value: value["gpus"][rank].update({key: content})


# Operations of two_allgather: 0 rlxsignal, 1 nop, 2 rlxwait, 3 nop, 4 put, 5 nop, 6 signal, 7 wait, 8 nop.
BROKEN_ALLGATHER = {
    "nobody waits for the data": (drop(7), "signal-without-wait"),
    "nobody waits for the data, who may leave": (drop(7), "unawaited-write"),
    "a wait has no signal": (drop(6), "wait-without-signal"),
    "a wait too many": (insert(9, on("wait", 0)), "wait-without-signal"),
    "a signal too many": (insert(6, on("signal", 0)), "signal-without-wait"),
    "no word that the call has begun": (lambda v: [ops_of(v, r).pop(2) for r in (0, 1)], "before-entry"),
    "data before their signal": (drop(5), "missing-nop"),
    "data before what they wait for": (drop(3), "missing-nop"),
    "a signal without memory": (
        lambda v: [replace(6, on("rlxsignal", 0), r)(v) for r in (0, 1)],
        "unawaited-write",
    ),
    "everybody waits first": (lambda v: [ops_of(v, r).insert(0, ops_of(v, r).pop(2)) for r in (0, 1)], "deadlock"),
    "the wrong chunk": (replace(4, put(cells("o", 0), far(0, 1))), "race"),
    "a chunk that may have come meanwhile": (replace(4, put(cells("o", 1), far(0, 0))), "race"),
    "a chunk that nobody has written": (
        lambda v: (of_gpu("scratch_chunks", 1)(v), replace(4, put(cells("s", 0), far(0, 0)))(v)),
        "unwritten-read",
    ),
    "nothing put": (drop(4), "wrong-result"),
    "a buffer that lies elsewhere": (
        lambda v: v["gpus"][0]["remote_buffers"][0].update({"type": "i"}),
        "shifted-buffer",
    ),
    "a buffer that ends": (replace(4, put(cells("o", 2), far(0, 0))), "outside-buffer"),
    "sizes that differ": (replace(4, put(cells("o", 0, 2), far(0, 0))), "size-mismatch"),
    "two sources": (
        replace(4, {**put(cells("o", 0), far(0, 0)), "src_buff": [cells("o", 0), cells("o", 0)]}),
        "operand-count",
    ),
    "a local target": (replace(4, put(cells("o", 0), cells("o", 0))), "wrong-buffer"),
    "a remote buffer that is not there": (replace(4, put(cells("o", 0), far(1, 0))), "no-such-buffer"),
    "a channel that is not there": (replace(6, on("signal", 1)), "no-such-channel"),
    "a signal on nothing": (replace(6, {"name": "signal", "channel_type": "memory"}), "channel-count"),
    "a proxy's operation in memory": (replace(4, put(cells("o", 0), far(0, 0), name="pws", channels=[0])), "wrong-channel"),
    "a semaphore that is not there": (insert(0, on_semaphores("sem_release", 0)), "no-such-semaphore"),
    "an operation that does not exist": (replace(1, {"name": "noop"}), "unknown-operation"),
    "packets without their operands": (replace(1, {"name": "gstorepkt"}), "wrong-channel"),
    "packets where scratch has no room for them": (
        lambda v: (of_gpu("scratch_chunks", 1)(v), replace(1, local("cpkt", [cells("o", 0)], cells("s", 0)))(v)),
        "outside-buffer",
    ),
    "no such collective": (put_all("collective", "allgrope"), "collective"),
    "a collective that only people read so": (put_all("collective", "AllGather"), "collective"),
    "a collective of another runtime": (put_all("collective", "all_gather"), "collective"),
    "another collective": (put_all("collective", "alltoall"), "chunk-counts"),
    "sizes upside down": (lambda v: v.update(min_message_size=64, max_message_size=32), "size-range"),
    "sizes between two multiples of 32": (lambda v: v.update(min_message_size=33, max_message_size=63), "size-range"),
    "no size but 0": (put_all("max_message_size", 31), "size-range"),
    "sizes too large": (put_all("max_message_size", 1 << 40), "offset-overflow"),
    "chunks that are not aligned": (put_all("buffer_alignment", 24), "alignment"),
    "no threads": (put_all("num_threads_per_block", 0), "thread-count"),
    "more threads than a threadblock has": (put_all("num_threads_per_block", 2048), "thread-count"),
    "no chunks": (of_gpu("input_chunks", 0), "no-chunks"),
    "unlike chunks": (of_gpu("output_chunks", 4), "chunk-counts"),
    "gpus in disorder": (lambda v: v["gpus"].reverse(), "gpu-id"),
    "threadblocks in disorder": (lambda v: v["gpus"][0]["threadblocks"][0].update(id=1), "threadblock-id"),
    "a channel to nobody": (lambda v: v["gpus"][0]["channels"][0]["connected_to"].append(7), "unpaired-channel"),
    "a channel to itself": (lambda v: v["gpus"][0]["channels"][0]["connected_to"].append(0), "unpaired-channel"),
    "a buffer of nobody": (lambda v: v["gpus"][0]["remote_buffers"][0].update(rank=7), "no-such-buffer"),
    "a buffer closed to memory": (
        lambda v: v["gpus"][0]["remote_buffers"][0].update(access_channel_types=["port"]),
        "no-access",
    ),
    "too many operations": (lambda v: ops_of(v).extend([NOP] * 56), "too-many-operations"),
    "too many threadblocks": (
        lambda v: v["gpus"][0]["threadblocks"].extend(block(n, [], channels=(), remotes=()) for n in range(1, 110)),
        "too-many-threadblocks",
    ),
    "too many remote buffers": (
        lambda v: v["gpus"][0]["threadblocks"][0]["remote_buffer_refs"][0].update(remote_buffer_ids=[0] * 17),
        "too-many-buffers",
    ),
    "too many semaphores at once": (
        lambda v: (
            of_gpu("semaphores", [{"init_value": 0}] * 17)(v),
            insert(0, on_semaphores("sem_release", *range(17)))(v),
        ),
        "too-many-semaphores",
    ),
    "no part of a group": (
        replace(4, {**put(cells("o", 0), far(0, 0)), "tbg_info": {"tb_id": 2, "tbg_size": 2}}),
        "no-such-part",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN_ALLGATHER)
def test_a_broken_plan_is_refused_by_name(name):
    change, rule = BROKEN_ALLGATHER[name]
    assert rule in rules(changed(two_allgather(), change))


@pytest.mark.parametrize("spelled", ["AllGather", "all-gather", "all_gather", "ALLGATHER"])
def test_a_collective_is_spelled_as_the_runtime_compares_it(spelled):
    (found,) = verdict(two_allgather() | {"collective": spelled}).violations
    assert found.what.endswith("as it compares every letter; write allgather")


@pytest.mark.parametrize(("least", "most"), [(32, 32), (33, 64), (0, 32), (1, 63), (0, (1 << 64) - 1)])
def test_a_range_with_one_size_of_whole_aligned_chunks_is_enough(least, most):
    """Two chunks of output with 16 bytes each."""
    assert verdict(two_allgather() | {"min_message_size": least, "max_message_size": most}).violations == ()


def test_a_size_is_counted_as_the_runtime_does_it():
    facts = verdict(two_allgather()).facts
    assert facts.unit_bytes == 2 * 16
    assert verdict(two_allgather() | {"collective": "gather"}).facts.unit_bytes == 16


# Operations of two_allgather_by_proxy: 0 rlxsignal, 1 rlxwait, 2 nop, 3 pws, 4 flush, 5 wait, 6 nop.
BROKEN_PROXY = {
    "the proxy is not awaited": (drop(4), "unflushed-put"),
    "a put that nobody is told of": (
        lambda v: (replace(3, put(cells("o", 0), far(0, 0), "port", "put", [0]))(v), drop(5, 1)(v)),
        "unawaited-write",
    ),
    "no channel": (replace(3, put(cells("o", 0), far(0, 0), "port", "put")), "channel-count"),
    "the source is overwritten": (
        insert(4, local("copy", [cells("o", 0)], cells("o", 0))),
        "race",
    ),
}


@pytest.mark.parametrize("name", BROKEN_PROXY)
def test_a_proxy_that_is_too_late_is_named(name):
    change, rule = BROKEN_PROXY[name]
    assert rule in rules(changed(two_allgather_by_proxy(), change))


def test_a_put_with_a_flush_is_right():
    """The runtime took its source from a wrong place until its commit dc0b8d75."""
    assert rules(changed(two_allgather_by_proxy(), flushed_at_once)) == set()


def test_a_flush_that_names_no_destinations_does_nothing_and_is_remarked_on():
    value = changed(two_allgather_by_proxy(), replace(4, flush(0, places=0)))
    found = verdict(value)
    assert {one.rule for one in found.violations} == {"unflushed-put"}
    assert "gpu 0 tb 0 step 4: the runtime flushes none of its 1 channels" in found.notes[0]


@pytest.mark.parametrize(
    ("operation", "rule"),
    [
        (flush(0, places=2), "operand-count"),
        (flush(1), "no-such-channel"),
        (on("flush", 0), "wrong-channel"),
    ],
)
def test_a_flush_that_the_runtime_takes_for_another_is_refused(operation, rule):
    assert rule in rules(changed(two_allgather_by_proxy(), replace(4, operation)))


def three_gather_by_proxy():
    """GPU 0 puts its chunk to both others through two channels and flushes both at once."""
    ops = [
        on("rlxwait", 0, 1, kind="port"), NOP,
        *(put(cells("i", 0), far(one, 0), "port", "pws", [one]) for one in range(2)),
        NOP, flush(0, 1), NOP,
    ]  # fmt: skip
    other = [on("rlxsignal", 0, kind="port"), on("wait", 0, kind="port"), NOP]
    copied = [local("copy", [cells("i", 0)], cells("o", 0))]
    first = gpu(0, (1, 1, 0), [1, 2], [(1, "o"), (2, "o")], [
        block(0, ops, "port", channels=(0, 1), remotes=(0, 1)), block(1, copied, channels=(), remotes=()),
    ], "port")  # fmt: skip
    rest = [gpu(r, (1, 1, 0), [0], [], [block(0, copy.deepcopy(other), "port", remotes=())], "port") for r in (1, 2)]
    return plan("broadcast", [first, *rest], in_place=False)


def test_threads_meet_before_one_flushes_what_another_has_put():
    assert rules(three_gather_by_proxy()) == set()
    assert rules(changed(three_gather_by_proxy(), drop(4))) == {"missing-nop"}


def told_together(value):
    """In `three_gather_by_proxy`, one signal for both channels after both puts."""
    ops = ops_of(value)
    ops[2:4] = [put(cells("i", 0), far(one, 0), "port", "put", [one]) for one in range(2)]
    ops.insert(5, on("signal", 0, 1, kind="port"))


def test_threads_meet_before_one_tells_of_what_another_has_put():
    assert rules(changed(three_gather_by_proxy(), told_together)) == set()

    def too_soon(value):
        told_together(value)
        ops = ops_of(value)
        ops[4:6] = ops[5], ops[4]

    assert rules(changed(three_gather_by_proxy(), too_soon)) == {"missing-nop"}


# Operations of two_allreduce: 3 put, 6 wait, 7 nop, 8 sem_acquire, 9 nop, 10 re; second block: copy, nop, sem_release.
BROKEN_ALLREDUCE = {
    "the copy may come late": (
        lambda v: (drop(8)(v), of_gpu("semaphores", [])(v), drop(2, tb=1)(v)),
        "race",
    ),
    "a release that nobody takes": (drop(8), "semaphore-left-over"),
    "nobody releases": (drop(2, tb=1), "never-released"),
    "the data may come late": (lambda v: ops_of(v).append(ops_of(v).pop(6)), "race"),
    "counted twice": (
        replace(10, local("re", [cells("o", 0), cells("s", 0), cells("i", 0)], cells("o", 0))),
        "double-counting",
    ),
    "the input is overwritten": (replace(10, local("copy", [cells("s", 0)], cells("i", 0))), "input-overwritten"),
    "half of the sum": (drop(10), "wrong-result"),
    "too many sources": (replace(10, local("re", [cells("o", 0)] * 11, cells("o", 0))), "too-many-buffers"),
    "all threads at once": (drop(9), "missing-nop"),
}


@pytest.mark.parametrize(("largest", "reuse", "found"), [
    (1 << 26, True, set()),
    (1 << 27, False, set()),
    (1 << 27, True, {"scratch-overflow"}),
])  # fmt: skip
def test_scratch_that_plans_share_has_64_mebibytes(largest, reuse, found):
    """`two_allreduce` has as much scratch as input."""
    assert rules(two_allreduce() | {"reuse_resources": reuse, "max_message_size": largest}) == found


@pytest.mark.parametrize("name", BROKEN_ALLREDUCE)
def test_a_sum_that_goes_wrong_is_named(name):
    change, rule = BROKEN_ALLREDUCE[name]
    assert rule in rules(changed(two_allreduce(), change))


def test_what_is_missing_is_named_with_its_place():
    (violation,) = verdict(changed(two_allgather(), drop(6))).violations
    assert violation.where == "gpu 1 tb 0 step 7"
    assert "gpu 0 tb 0" in violation.what


def cycle():
    """Two threadblocks of a GPU that wait for each other's semaphore."""
    value = two_allgather()
    for rank in range(2):
        value["gpus"][rank]["semaphores"] = [{"init_value": 0}] * 2
        ops_of(value, rank)[0:0] = [on_semaphores("sem_acquire", 0), NOP, on_semaphores("sem_release", 1)]
        other = [on_semaphores("sem_acquire", 1), NOP, on_semaphores("sem_release", 0)]
        value["gpus"][rank]["threadblocks"].append(block(1, other, channels=(), remotes=()))
    return value


def test_a_circle_of_semaphores_is_a_deadlock_that_names_its_members():
    (violation,) = verdict(cycle()).violations
    assert violation.rule == "deadlock"
    assert "gpu 0 tb 0 step 0 waits for semaphore 0" in violation.what
    assert "gpu 0 tb 1 step 0 waits for semaphore 1" in violation.what


def test_a_semaphore_may_start_with_tokens():
    value = cycle()
    for rank in range(2):
        value["gpus"][rank]["semaphores"][0]["init_value"] = 1
    assert verdict(value).violations == ()


def barrier(number, blocks):
    return {"name": "barrier", "barrier_id": number, "num_threadblocks": blocks}


def with_barrier():
    """two_allreduce with a barrier in place of the semaphore."""
    value = two_allreduce()
    for rank in range(2):
        value["gpus"][rank]["semaphores"] = []
        ops_of(value, rank)[8:10] = [barrier(0, 2)]
        ops_of(value, rank, 1)[1:] = [barrier(0, 2)]
    return value


def test_threadblocks_that_meet_at_a_barrier_see_what_the_others_have_done():
    assert verdict(with_barrier()).violations == ()


def test_a_barrier_to_which_somebody_does_not_come_is_named():
    value = changed(with_barrier(), drop(1, tb=1))
    assert "never-released" in rules(value)


def one_more(value):
    """A third threadblock comes by the barrier of two, or alone to a barrier of its own."""
    value["gpus"][0]["threadblocks"].append(block(2, [barrier(0, 2)], channels=(), remotes=()))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (replace(1, barrier(0, 0), tb=1), "barrier-count"),
        (replace(1, barrier(0, 1), tb=1), "barrier-count"),
        (one_more, "barrier-count"),
        (lambda v: [replace(8, barrier(16, 2))(v), replace(1, barrier(16, 2), tb=1)(v)], "no-such-semaphore"),
    ],
)
def test_a_barrier_that_the_runtime_does_not_have_or_that_miscounts_is_refused(change, rule):
    assert rule in rules(changed(with_barrier(), change))


def shifted_by(cells_apart):
    """In a broadcast of two chunks, GPU 0 moves both by so many cells of its scratch before it puts them."""
    value = broadcast(0)
    for one in value["gpus"]:
        one.update(input_chunks=2, output_chunks=2, scratch_chunks=4)
    ops = ops_of(value)
    ops[2] = local("copy", [cells("i", 0, 2)], cells("o", 0, 2))
    ops[3:4] = [
        local("copy", [cells("i", 0, 2)], cells("s", 0, 2)), NOP,
        local("copy", [cells("s", 0, 2)], cells("s", cells_apart, 2)), NOP,
        put(cells("s", cells_apart, 2), far(0, 0, 2)),
    ]  # fmt: skip
    return value


def test_threads_may_not_move_cells_to_others_among_them():
    assert rules(shifted_by(2)) == set()
    assert rules(shifted_by(1)) == {"overlapping-cells"}


def broadcast(root):
    """Root 0 or 1 puts its input into the other's output; out of place."""
    other = 1 - root
    sender = [on("rlxwait", 0), NOP, local("copy", [cells("i", 0)], cells("o", 0)), put(cells("i", 0), far(0, 0)), NOP,
              on("signal", 0)]  # fmt: skip
    receiver = [on("rlxsignal", 0), on("wait", 0), NOP]
    gpus = [None, None]
    gpus[root] = gpu(root, (1, 1, 0), [other], [(other, "o")], [block(0, sender)])
    gpus[other] = gpu(other, (1, 1, 0), [root], [], [block(0, receiver, remotes=())])
    return plan("broadcast", gpus, in_place=False)


@pytest.mark.parametrize("root", [0, 1])
def test_the_root_is_found_by_executing_the_plan(root):
    found = verdict(broadcast(root))
    assert found.violations == ()
    assert found.facts.root == root
    assert "wrong-root" in rules(broadcast(root), root=1 - root)


def test_only_the_root_of_a_broadcast_has_an_input():
    value = broadcast(0)
    ops_of(value, 1).append(local("copy", [cells("i", 0)], cells("o", 0)))
    assert "null-buffer" in rules(value)


def test_what_was_asked_for_is_compared():
    assert "collective" in rules(two_allgather(), kind=Kind.ALLREDUCE)
    assert "wrong-root" in rules(two_allgather(), root=0)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda v: v.pop("inplace"), "inplace"),
        (lambda v: v["gpus"][1].pop("channels"), "gpus.1.channels"),
        (lambda v: v["gpus"][1].pop("remote_buffers"), "gpus.1.remote_buffers"),
        (lambda v: v["gpus"][0]["threadblocks"][0].pop("channels"), "gpus.0.threadblocks.0.channels"),
        (put_all("gpus", []), "gpus"),
        (of_gpu("threadblocks", 3), "gpus.0.threadblocks"),
        (replace(4, {"name": "put", "src_buff": [{"index": 0, "size": 1}]}), "gpus.0.threadblocks.0.ops.4.src_buff.0"),
        (replace(4, put(cells("x", 0), far(0, 0))), "gpus.0.threadblocks.0.ops.4.src_buff.0.type"),
        (replace(4, put(cells("o", -1), far(0, 0))), "gpus.0.threadblocks.0.ops.4.src_buff.0.index"),
    ],
)
def test_what_is_no_plan_is_bad_input_that_names_the_field(change, field):
    with pytest.raises(InputError) as caught:
        verdict(changed(two_allgather(), change))
    assert (caught.value.path, caught.value.field) == ("plan.json", field)


def test_what_is_no_json_is_bad_input():
    with pytest.raises(InputError, match="not valid JSON"):
        verify_plan("{", "plan.json")


@pytest.mark.parametrize(
    ("number", "name", "words"),
    [
        (6, "rlxsignal", "its last signal, step 6, is relaxed, which says nothing of memory; make it a signal"),
        (7, "rlxwait", "for it is relaxed, which says nothing of memory; make it a wait"),
    ],
)
def test_a_relaxed_last_signal_is_named_as_such(number, name, words):
    plan = changed(two_allgather(), lambda v: [replace(number, on(name, 0), r)(v) for r in (0, 1)])
    found = [one for one in verdict(plan).violations if one.rule == "unawaited-write"]
    assert found
    assert all(words in one.what for one in found)

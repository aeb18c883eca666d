"""What MSCCL++'s runtime has besides put, copy and re: right plans pass and run right, and what is broken in them is named."""

import json

import pytest

from taccl_py.execute.one_sided import read_one_sided
from taccl_py.execute.one_sided_local import run_one_sided
from taccl_py.execute.plan import DataType, Operator
from taccl_py.execute.runs import Call, Conditions
from taccl_py.runtimes import EXECUTOR
from taccl_py.verify.mscclpp.rules import FORMS
from tests.lowering.mscclpp.test_lower import IN, SCHEDULES, lowered
from tests.verify.mscclpp.features import (
    RIGHT,
    barrier,
    flushed_allgather,
    fused_allgather,
    got_allgather,
    grouped_allgather,
    kept_packets_allreduce,
    many_semaphores,
    multicast_packets,
    op,
    packet_allgather,
    packet_allreduce,
    packet_reducescatter,
    pair,
    part,
    passed_on_allgather,
    piped_allgather,
    proxied_packets,
    read_and_sent_allreduce,
    read_reducescatter,
    sent_sum_allreduce,
    two_groups,
)
from tests.verify.mscclpp.plans import (
    NOP,
    block,
    cells,
    changed,
    far,
    gpu,
    local,
    on,
    on_semaphores,
    ops_of,
    plan,
    put,
    rules,
    verdict,
)


def num_wrong(value, *, size=512, seeds=4):
    """Wrong elements of three calls one after the other, in some orders of turns."""
    plan = read_one_sided(json.dumps(value), "plan.json")
    call = Call(size, DataType.INT32, Operator.SUM, plan.in_place)
    conditions = [Conditions(EXECUTOR, repeats=3, seed=seed, shuffled=True) for seed in range(seeds)]
    return sum(run_one_sided(plan, call, one).num_wrong for one in conditions)


@pytest.mark.parametrize("make", RIGHT)
def test_right_plans_pass_and_run_right(make):
    found = verdict(make())
    assert (found.violations, found.unsupported) == ((), ())
    for size in (1, 48, 512):
        assert num_wrong(make(), size=size) == 0


def test_no_operation_of_our_own_plans_is_unsupported():
    used = {
        operation["name"]
        for make in SCHEDULES.values()
        for rank in lowered(make(), IN)["gpus"]
        for tb in rank["threadblocks"]
        for operation in tb["ops"]
    }
    assert used
    assert used <= set(FORMS)


def both(change):
    """Change that is made on both GPUs."""
    return lambda value: [change(value, rank) for rank in range(2)]


def dropped(number, tb=0):
    return both(lambda value, rank: ops_of(value, rank, tb).pop(number))


def placed(number, operation, tb=0):
    return both(lambda value, rank: ops_of(value, rank, tb).insert(number, operation))


def set_all(**fields):
    return lambda value: value.update(fields)


def inner(value, rank, tb):
    return next(one for one in ops_of(value, rank, tb) if one["name"] == "pipeline")["ops"]


BROKEN = {
    "a packet that nobody puts": (packet_allgather, lambda v: ops_of(v, 1).pop(0), "never-released"),
    "packets where others are not read yet": (
        packet_allgather,
        placed(1, op("ppkt", [cells("o", 0)], [far(0, 0)])),
        "race",
    ),
    "packets of the next call": (packet_allgather, set_all(use_double_scratch_buffer=False), "before-entry"),
    "data where packets are": (
        packet_allgather,
        lambda v: ops_of(v).insert(0, local("copy", [cells("i", 0)], cells("s", 1))) or v["gpus"][0].update(scratch_chunks=2),
        "mixed-packets",
    ),
    "packets in the output": (
        packet_allgather,
        lambda v: ops_of(v).insert(0, local("cpkt", [cells("i", 0)], cells("o", 0))),
        "wrong-buffer",
    ),
    "packets without room for them": (packet_allgather, set_all(protocol="Simple"), "outside-buffer"),
    "the wrong packet": (packet_allreduce, lambda v: ops_of(v)[2]["src_buff"][0].update(index=0), "wrong-result"),
    "a sum of the wrong chunks": (
        packet_reducescatter,
        lambda v: ops_of(v)[1]["src_buff"][0].update(index=1),
        "mixed-sum",
    ),
    "a sum that takes the other place of a packet": (
        kept_packets_allreduce,
        lambda v: ops_of(v)[1]["dst_buff"][2].update(index=2),
        "never-released",
    ),
    "what comes before it is asked for": (
        passed_on_allgather,
        lambda v: [ops_of(v, rank).insert(0, ops_of(v, rank).pop()) for rank in range(2)],
        "deadlock",
    ),
    "packets to a rank that never answers": (proxied_packets, lambda v: ops_of(v, 1).pop(2), "never-released"),
    "packets for one rank of a switch": (
        multicast_packets,
        lambda v: ops_of(v, 1)[1]["dst_buff"][0].update(index=0),
        "race",
    ),
    "an address for the other": (got_allgather, lambda v: ops_of(v)[3]["src_buff"][0].update(index=0), "wrong-result"),
    "a read after which nobody waits": (got_allgather, lambda v: ops_of(v, 0).__delitem__(slice(4, 6)), "wait-without-signal"),
    "a read that the other may not wait for": (
        read_reducescatter,
        both(lambda v, rank: ops_of(v, rank).__delitem__(slice(4, 7))),
        "unawaited-read",
    ),
    "a write after a relaxed signal": (
        read_and_sent_allreduce,
        both(lambda v, rank: ops_of(v, rank).__setitem__(5, on("rlxsignal", 0))),
        "unawaited-write",
    ),
    "a sum of what has not come": (sent_sum_allreduce, both(lambda v, rank: ops_of(v, rank).append(ops_of(v, rank).pop(6))), "race"),
    "a part that nobody waits for": (
        grouped_allgather,
        lambda v: [ops_of(v, rank, tb).pop(-4 if tb == 0 else -1) for rank in range(2) for tb in range(2)],
        "unawaited-write",
    ),
    "a part that nobody puts": (grouped_allgather, lambda v: ops_of(v, 0, 1).pop(1), "wrong-result"),
    "a part twice": (grouped_allgather, lambda v: ops_of(v, 0, 1)[1]["tbg_info"].update(tb_id=0), "wrong-result"),
    "another cut of the same bytes": (two_groups, lambda v: ops_of(v, 0, 1).pop(1) and ops_of(v, 0, 2).pop(1) and ops_of(v, 0, 3).pop(1), "race"),
    "a pipeline that does not tell": (piped_allgather, lambda v: inner(v, 0, 0).pop(2), "wait-without-signal"),
    "a pipeline that does not wait": (
        piped_allgather,
        lambda v: [inner(v, rank, 1).pop(1) for rank in range(2)] and [inner(v, rank, 0).pop(2) for rank in range(2)],
        "race",
    ),
    "a pipeline that goes too far": (
        piped_allgather,
        both(lambda v, rank: [one.update(iter_context={"unit_size": 64, "num_chunks": 2}) for one in (ops_of(v, rank)[3], ops_of(v, rank, 1)[0])]),
        "outside-buffer",
    ),
    "a pipeline that stops too soon": (
        piped_allgather,
        lambda v: ops_of(v)[3].update(iter_context={"unit_size": 64, "num_chunks": 0}),
        "wait-without-signal",
    ),
    "a unit that is not aligned": (piped_allgather, lambda v: ops_of(v)[3]["iter_context"].update(unit_size=24), "alignment"),
    "a pipeline in a pipeline": (
        piped_allgather,
        lambda v: inner(v, 0, 0).append({"name": "pipeline", "iter_context": {"unit_size": 64, "num_chunks": 1}, "ops": [NOP]}),
        "pipeline",
    ),
    "a pipeline of nothing": (piped_allgather, lambda v: ops_of(v)[3].update(ops=[]), "pipeline"),
    "a semaphore of 17 that nobody releases": (many_semaphores, lambda v: ops_of(v, 0, 17).pop(0), "never-released"),
    "a signal before what it tells of": (
        flushed_allgather,
        both(lambda v, rank: ops_of(v, rank).insert(3, ops_of(v, rank).pop(5))),
        "unawaited-write",
    ),
    "no flush": (flushed_allgather, dropped(6), "unflushed-put"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_named(name):
    make, change, rule = BROKEN[name]
    assert rule in rules(changed(make(), change))


def crossed():
    """Two threadblocks of each GPU put a chunk each, and share one channel to tell of that and to wait."""

    def blocks(_):
        def ops(chunk):
            return [
                on("rlxsignal", 0), on("rlxwait", 0), NOP, put(cells("i", chunk), far(0, chunk)), NOP, on("signal", 0),
                on("wait", 0), NOP, local("re", [cells("i", chunk), cells("s", chunk)], cells("o", chunk)),
            ]  # fmt: skip

        return [block(0, ops(0)), block(1, ops(1))]

    return pair("allreduce", (2, 2, 2), None, remotes=("s",), blocks=blocks, in_place=False)


def test_a_wait_on_a_shared_channel_may_be_ended_by_the_signal_of_another_threadblock():
    """Signals only count: the first one ends the first wait, whoever sends and waits."""
    assert "race" in rules(crossed())
    assert num_wrong(crossed(), seeds=40) > 0

    def met(value):
        for rank in range(2):
            for tb in range(2):
                ops_of(value, rank, tb).insert(8, barrier(0, 2))

    assert rules(changed(crossed(), met)) == set()


def test_whoever_has_taken_all_signals_of_a_shared_channel_has_heard_from_everybody():
    def blocks(_):
        sent = [put(cells("i", 0, 2), far(0, 0, 2)), NOP, on("signal", 0)]
        waits = [on("wait", 0), on("wait", 0), NOP]
        added = local("re", [cells("i", 0, 2), cells("s", 0, 2)], cells("o", 0, 2))
        entry = [on("rlxsignal", 0), on("rlxwait", 0), NOP]
        return [
            block(0, [*entry, barrier(0, 2), part(sent[0], 0, 2), *sent[1:], *waits, added]),
            block(1, [barrier(0, 2), part(sent[0], 1, 2), *sent[1:]]),
        ]

    value = pair("allreduce", (2, 2, 2), None, remotes=("s",), blocks=blocks, in_place=False)
    assert rules(value) == set()
    assert num_wrong(value) == 0
    assert "race" in rules(changed(value, lambda v: [ops_of(v, r).pop(7) for r in range(2)]))


def test_a_release_may_come_first_where_many_acquire():
    """Two threadblocks acquire one semaphore: in some order both go on, or a deadlock is found whoever comes first."""

    def blocks(rank):
        ops = [
            on("rlxsignal", 0),
            on("rlxwait", 0),
            NOP,
            put(cells("o", rank), far(0, rank)),
            NOP,
            on("signal", 0),
            on("wait", 0),
        ]
        taker = [on_semaphores("sem_acquire", 0)]
        return [
            block(0, [on_semaphores("sem_release", 0), *ops, on_semaphores("sem_release", 0)]),
            *(block(one, taker, channels=(), remotes=()) for one in (1, 2)),
        ]  # fmt: skip

    value = pair("allgather", (1, 2, 0), None, blocks=blocks, semaphores=1)
    assert rules(value) == set()
    assert "never-released" in rules(changed(value, lambda v: ops_of(v).pop(0)))


def test_a_channel_one_of_whose_ends_nobody_uses_is_remarked_on():
    """The runtime makes the other end itself; signals that nobody ever waits for disturb nobody."""

    def one_way(value):
        value["gpus"][0]["channels"][0]["connected_to"].append(1)
        value["gpus"][0]["threadblocks"][0]["channels"][0]["channel_ids"].append(1)
        ops_of(value).append(on("signal", 1))

    found = verdict(changed(got_allgather(), one_way))
    assert found.violations == ()
    assert any("gpu 0 has 2 memory channels to gpu 1" in note for note in found.notes)


def test_plain_data_in_a_doubled_scratch_are_looked_for_in_the_other_half_at_every_second_call():
    """Puts to others' scratch forget the half that copies of own scratch add."""
    value = changed(sent_sum_allreduce(), set_all(use_double_scratch_buffer=True))
    assert rules(value)
    assert num_wrong(value) > 0


def test_a_proxy_puts_packets_from_the_scratch_of_the_first_plan():
    def direct(value):
        for rank in range(2):
            ops_of(value, rank)[2]["name"] = "ppkt"

    assert rules(changed(proxied_packets(), direct)) == {"broken-operation"}
    assert rules(changed(proxied_packets(), direct) | {"reuse_resources": True}) == set()


@pytest.mark.parametrize("number", [16, 17, 33, 48])
def test_a_gpu_has_as_many_semaphores_as_the_plan_says(number):
    """MAX_DEVICE_SEMAPHORES is how many one operation can name (execution_common.hpp)."""
    assert rules(many_semaphores(number)) == set()


def test_semaphores_beyond_the_sixteenth_may_start_with_tokens():
    def with_tokens(value):
        for rank in range(2):
            value["gpus"][rank]["semaphores"][20]["init_value"] = 1
            more = on_semaphores("sem_release", 20)
            ops_of(value, rank, 21)[:] = [on_semaphores("sem_acquire", 20), more, more]

    assert rules(changed(many_semaphores(24), with_tokens)) == set()


def test_a_proxy_may_put_signal_and_flush_by_two_channels_at_once():
    """GPU 0 puts its input to both others in one operation; the runtime reads the right source since dc0b8d75."""
    ops = [
        on("rlxwait", 0, 1, kind="port"), NOP,
        op("pwsf", [cells("i", 0), cells("i", 0)], [far(0, 0), far(1, 0)], "port", [0, 1]),
        local("copy", [cells("i", 0)], cells("o", 0)),
    ]  # fmt: skip
    other = [on("rlxsignal", 0, kind="port"), on("wait", 0, kind="port"), NOP]
    first = gpu(
        0, (1, 1, 0), [1, 2], [(1, "o"), (2, "o")], [block(0, ops, "port", channels=(0, 1), remotes=(0, 1))], "port"
    )
    rest = [gpu(r, (1, 1, 0), [0], [], [block(0, list(other), "port", remotes=())], "port") for r in (1, 2)]
    value = plan("broadcast", [first, *rest], in_place=False)
    assert rules(value) == set()
    assert num_wrong(value) == 0
    assert rules(changed(value, lambda v: ops_of(v)[2].update(channel_ids=[0, 0]))) == {"wrong-peer"}
    assert rules(changed(value, lambda v: ops_of(v)[2].update(channel_ids=[0]))) == {"channel-count"}


def test_a_proxy_may_put_signal_and_flush_from_scratch():
    def from_scratch(value):
        for rank in range(2):
            value["gpus"][rank]["scratch_chunks"] = 2
            ops = ops_of(value, rank)
            ops[3]["src_buff"] = [cells("s", 1)]
            ops[0:0] = [local("copy", [cells("i", 0)], cells("s", 1)), NOP]

    assert rules(changed(fused_allgather(), from_scratch)) == set()
    assert num_wrong(changed(fused_allgather(), from_scratch)) == 0


def shared(value, most=1 << 29):
    return changed(value, set_all(reuse_resources=True, max_message_size=most))


def test_pipelines_that_go_round_in_scratch_need_somebody_who_holds_them_up():
    """64 MiB of shared scratch, 1 MiB a piece: the 65th piece comes where the first one may still be read."""
    value = piped_allgather(1 << 20)
    assert rules(shared(value, 1 << 27)) == set()
    assert "race" in rules(shared(value))
    found = verdict(changed(value, set_all(reuse_resources=True)))
    assert found.violations == ()
    assert any("messages of more than 134217728 bytes go wrong" in note for note in found.notes)


def test_buffers_and_sizes_of_groups_are_those_of_the_smallest_and_the_longest_chunks():
    value = changed(grouped_allgather(), set_all(min_message_size=4096, max_message_size=4096))
    assert rules(value) == set()


def sent_back(first, more=()):
    """GPU 0 sends its chunk by packets, and GPU 1 puts it back to where it came from; `first` and a block `more` read it at GPU 0 too."""
    ops = [
        *first, op("ppkt", [cells("o", 0)], [far(0, 0)]), local("upkt", [cells("s", 0)], cells("o", 1)), NOP, on("wait", 0),
    ]  # fmt: skip
    other = [
        op("ppkt", [cells("o", 1)], [far(0, 0)]), local("upkt", [cells("s", 0)], cells("o", 0)), NOP,
        put(cells("o", 0), far(1, 0)), NOP, on("signal", 0),
    ]  # fmt: skip
    blocks = [
        [block(0, ops), *(block(1 + i, list(one)) for i, one in enumerate(more))],
        [block(0, other, remotes=(0, 1))],
    ]
    gpus = [
        gpu(rank, (1, 2, 4), [1 - rank], [(1 - rank, "s"), (1 - rank, "o")], own) for rank, own in enumerate(blocks)
    ]
    return plan("allgather", gpus, protocol="LL", use_double_scratch_buffer=True)


def test_a_packet_proves_that_what_is_in_it_was_read():
    """The put back needs no signal: the data that it puts are those that were read."""
    assert rules(sent_back([])) == set()
    assert num_wrong(sent_back([])) == 0


def test_a_packet_proves_other_reads_only_where_threads_have_met():
    kept = local("copy", [cells("o", 0)], cells("s", 3))
    assert rules(sent_back([kept])) == {"race"}
    assert rules(sent_back([kept, NOP])) == set()
    assert rules(sent_back([], [[kept]])) == {"race"}


def test_two_packets_of_the_same_data_prove_what_both_prove():
    again = [op("ppkt", [cells("o", 0)], [far(0, 0)])]
    assert rules(sent_back([], [again])) == {"race"}


def test_reads_are_over_where_a_relaxed_signal_comes():
    """GPU 1 overwrites what GPU 0 has read; of what GPU 0 has written a relaxed signal tells nothing."""

    def made(first):
        reader = [on("rlxsignal", 0), on("wait", 0), NOP, *first, NOP, on("rlxsignal", 0), on("wait", 0), NOP]
        writer = [on("signal", 0), on("rlxwait", 0), on("rlxwait", 0), NOP, local("copy", [cells("s", 1)], cells("s", 0)),
                  NOP, put(cells("o", 1), far(1, 1)), NOP, on("signal", 0)]  # fmt: skip
        writer[0:0] = [local("copy", [cells("o", 1)], cells("s", one)) for one in (0, 1)] + [NOP]
        reader.append(put(cells("o", 0), far(1, 0)))
        reader += [NOP, on("signal", 0)]
        writer += [on("wait", 0)]
        gpus = [
            gpu(rank, (1, 2, 2), [1 - rank], [(1 - rank, "s"), (1 - rank, "o")], [block(0, ops, remotes=(0, 1))])
            for rank, ops in enumerate((reader, writer))
        ]
        return plan("allgather", gpus)

    assert rules(made([op("get", [far(0, 0)], [cells("s", 0)])])) == set()
    assert rules(made([put(cells("o", 0), far(0, 0))])) == {"race"}

"""Sums by a switch as the verifier sees them: one plan that is right, and that plan broken in one place."""

import copy

import pytest

from tests.verify.mscclpp.plans import NOP, block, cells, changed, gpu, local, on, ops_of, plan, rules, verdict


def by(channel, index, size=1):
    return {"switch_channel_id": channel, "index": index, "size": size}


def glres(index, channel=0):
    return {
        "name": "glres",
        "channel_type": "switch",
        "src_buff": [by(channel, index)],
        "dst_buff": [by(channel, index)],
    }


def group(*ranks, buffer="i"):
    return {
        "channel_type": "switch",
        "buffer_type": buffer,
        "rank_groups": [{"size": len(ranks), "ranks": list(ranks)}],
    }


def three_allreduce():
    """Each of three GPUs lets the switch sum its chunk and store it everywhere."""
    gpus = []
    for rank in range(3):
        both = [0, 1]
        ops = [
            on("rlxsignal", *both),
            on("rlxwait", *both),
            NOP,
            glres(rank),
            NOP,
            on("signal", *both),
            on("wait", *both),
            NOP,
        ]
        one = gpu(rank, (3, 3, 0), [peer for peer in range(3) if peer != rank], [],
                  [block(0, ops, channels=(0, 1), remotes=())])  # fmt: skip
        one["channels"].append(group(0, 1, 2))
        one["threadblocks"][0]["channels"].append({"channel_type": "switch", "channel_ids": [0]})
        gpus.append(one)
    return plan("allreduce", copy.deepcopy(gpus))


def everywhere(change):
    def changes(value):
        for rank in range(3):
            change(value, rank)

    return changes


def set_op(number, operation, rank=0):
    return lambda value: ops_of(value, rank).__setitem__(number, operation)


def set_groups(*groups):
    return everywhere(lambda value, rank: value["gpus"][rank]["channels"].__setitem__(1, group(*groups)))


def no_greeting(value, rank):
    ops = ops_of(value, rank)
    ops[0], ops[1] = NOP, NOP


def no_farewell(value, rank):
    ops = ops_of(value, rank)
    ops[5], ops[6] = NOP, NOP


def put_in_only_one_signal_less(value):
    """GPU 0 does not wait for GPU 2 at the end, which does not tell it."""
    ops_of(value, 0)[6] = on("wait", 0)
    ops_of(value, 2)[5] = on("signal", 1)


BROKEN = {
    "nobody says that the call has begun": (everywhere(no_greeting), "before-entry"),
    "nobody waits for the others at the end": (everywhere(no_farewell), "unawaited-write"),
    "one does not wait for one at the end": (put_in_only_one_signal_less, "unawaited-write"),
    "two ranks sum one chunk": (set_op(3, glres(1)), "race"),
    "no meeting before the signal": (lambda value: ops_of(value).__delitem__(4), "missing-nop"),
    "no meeting after the wait": (lambda value: ops_of(value).__delitem__(2), "missing-nop"),
    "a chunk that nobody sums": (set_op(3, NOP), "wrong-result"),
    "a sum over too few ranks": (lambda value: _leave_out(value), "wrong-result"),
    "a switch channel that not all have": (
        lambda value: value["gpus"][2]["channels"].__delitem__(1), "unpaired-channel",
    ),
    "a switch channel of others": (lambda value: value["gpus"][0]["channels"].__setitem__(1, group(1, 2)), "unpaired-channel"),
    "a switch channel of a rank that is not": (set_groups(0, 1, 2, 3), "unpaired-channel"),
    "a switch channel that the threadblock lacks": (set_op(3, glres(0, channel=1)), "no-such-channel"),
    "a chunk beyond the end": (set_op(3, glres(3)), "outside-buffer"),
    "a local buffer": (set_op(3, {**glres(0), "src_buff": [cells("i", 0)]}), "wrong-buffer"),
    "a switch channel in a copy": (set_op(3, local("copy", [cells("i", 0)], by(0, 0))), "wrong-buffer"),
    "no target": (set_op(3, {**glres(0), "dst_buff": []}), "operand-count"),
    "another type of channel": (set_op(3, {**glres(0), "channel_type": "memory"}), "wrong-channel"),
    "source and target of different sizes": (set_op(3, {**glres(0), "dst_buff": [by(0, 0, 2)]}), "size-mismatch"),
}  # fmt: skip


def _leave_out(value):
    """GPUs 0 and 1 sum the first chunk of theirs alone."""
    for rank in range(2):
        value["gpus"][rank]["channels"].append(group(0, 1))
        value["gpus"][rank]["threadblocks"][0]["channels"][1]["channel_ids"].append(1)
    ops_of(value)[3] = glres(0, channel=1)


def test_a_plan_in_which_the_switch_sums_is_good():
    found = verdict(three_allreduce())
    assert found.violations == ()
    assert found.facts.max_operations == 8


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_one_is_refused_by_name(name):
    change, rule = BROKEN[name]
    assert rule in rules(changed(three_allreduce(), change))


def test_out_of_place_sums_go_from_input_to_output():
    value = three_allreduce()
    value["inplace"] = False
    for rank in range(3):
        value["gpus"][rank]["channels"].append(group(0, 1, 2, buffer="o"))
        value["gpus"][rank]["threadblocks"][0]["channels"][1]["channel_ids"].append(1)
        ops_of(value, rank)[3]["dst_buff"] = [by(1, rank)]
    assert rules(value) == set()


def test_sums_of_all_may_be_stored_at_some_who_do_not_then_hold_the_result_everywhere():
    """The runtime looks up the channels of load and store one by one; here GPU 2 does not get the sum of the first chunk."""
    value = three_allreduce()
    _leave_out(value)
    ops_of(value)[3]["src_buff"] = [by(0, 0)]
    assert rules(value) == {"wrong-result"}
    assert all("gpu 2" in str(violation) for violation in verdict(value).violations)


def two_of_three_reduce():
    """GPU 0 lets the switch sum a chunk of all three, and store the sum at itself and GPU 1."""
    gpus = []
    for rank in range(3):
        ops = [on("rlxwait", 0, 1), NOP, glres(0), NOP, on("signal", 0, 1), NOP]
        if rank:
            ops = [on("rlxsignal", 0), NOP, on("wait", 0), NOP]
        peers = [0] if rank else [1, 2]
        one = gpu(rank, (1, 1, 0), peers, [], [block(0, ops, channels=tuple(range(len(peers))), remotes=())])
        one["channels"].append(group(0, 1, 2))
        if rank < 2:
            one["channels"].append(group(0, 1))
        if not rank:
            one["threadblocks"][0]["channels"].append({"channel_type": "switch", "channel_ids": [0, 1]})
            ops[2]["dst_buff"] = [by(1, 0)]
        gpus.append(one)
    return plan("reduce", copy.deepcopy(gpus))


def not_heard_of(value):
    """GPU 2 does not tell that it has begun."""
    ops_of(value)[0] = on("rlxwait", 0)
    ops_of(value, 2)[0] = NOP


def not_told(value):
    """GPU 2 is not told that its chunk has been loaded."""
    ops_of(value)[4] = on("signal", 0)
    ops_of(value, 2)[2] = NOP


def test_a_rank_from_which_a_switch_only_loads_has_begun_and_does_not_leave():
    assert rules(two_of_three_reduce()) == set()
    assert rules(changed(two_of_three_reduce(), not_heard_of)) == {"before-entry"}
    assert rules(changed(two_of_three_reduce(), not_told)) == {"unawaited-read"}


# Multicasts


def gstore(index, source=None, channel=0, size=1):
    return {
        "name": "gstore",
        "channel_type": "switch",
        "src_buff": [source or cells("o", index, size)],
        "dst_buff": [by(channel, index, size)],
    }


def three_allgather():
    """Each of three GPUs lets the switch store its chunk everywhere, in place."""
    value = three_allreduce()
    value["collective"] = "allgather"
    for rank, one in enumerate(value["gpus"]):
        one["input_chunks"] = 1
        one["channels"][1]["buffer_type"] = "o"
        ops_of(value, rank)[3] = gstore(rank)
    return value


def three_broadcast():
    """GPU 1 lets the switch store its chunk everywhere."""
    gpus = []
    for rank in range(3):
        ops = [on("rlxwait", 0, 1), NOP, gstore(0), NOP, on("signal", 0, 1), NOP]
        if rank != 1:
            ops = [on("rlxsignal", 0), NOP, on("wait", 0), NOP]
        peers = [0, 2] if rank == 1 else [1]
        one = gpu(rank, (1, 1, 0), peers, [], [block(0, ops, channels=tuple(range(len(peers))), remotes=())])
        one["channels"].append(group(0, 1, 2, buffer="o"))
        if rank == 1:
            one["threadblocks"][0]["channels"].append({"channel_type": "switch", "channel_ids": [0]})
        gpus.append(one)
    return plan("broadcast", copy.deepcopy(gpus))


def not_awaited(value):
    """GPU 1 does not tell GPU 2 that its chunk is there."""
    ops_of(value, 1)[4] = on("signal", 0)
    ops_of(value, 2)[2] = NOP


BROKEN_GATHER = {
    "nobody says that the call has begun": (everywhere(no_greeting), "before-entry"),
    "nobody waits for the others at the end": (everywhere(no_farewell), "unawaited-write"),
    "a share at another's place": (set_op(3, gstore(1, cells("o", 0))), "race"),
    "a share at another offset of its own": (set_op(3, gstore(0, cells("o", 1))), "race"),
    "a share that nobody stores": (set_op(3, NOP), "wrong-result"),
    "a share for too few ranks": (lambda value: _leave_out_of(value), "wrong-result"),
    "no meeting before the signal": (lambda value: ops_of(value).__delitem__(4), "missing-nop"),
    "a source by switch": (set_op(3, gstore(0, by(0, 0))), "wrong-buffer"),
    "a destination of one rank": (set_op(3, {**gstore(0), "dst_buff": [cells("o", 0)]}), "wrong-buffer"),
    "a switch channel that the threadblock lacks": (set_op(3, gstore(0, channel=1)), "no-such-channel"),
    "a chunk beyond the end": (set_op(3, gstore(2, size=2)), "outside-buffer"),
    "source and target of different sizes": (set_op(3, {**gstore(0), "src_buff": [cells("o", 0, 2)]}), "size-mismatch"),
    "another type of channel": (set_op(3, {**gstore(0), "channel_type": "memory"}), "wrong-channel"),
    "the shorter buffer of other ranks": (lambda value: _into_inputs(value), "shifted-buffer"),
}  # fmt: skip


def _leave_out_of(value):
    _leave_out(value)
    for rank in range(2):
        value["gpus"][rank]["channels"][2]["buffer_type"] = "o"
    ops_of(value)[3] = gstore(0, channel=1)


def _into_inputs(value):
    """The switch channel is over the inputs, which in place lie at another offset of the output on every rank."""
    for rank in range(3):
        value["gpus"][rank]["channels"][1]["buffer_type"] = "i"
        ops_of(value, rank)[3]["dst_buff"] = [by(0, 0)]


def test_plans_in_which_the_switch_multicasts_are_good():
    assert verdict(three_allgather()).violations == ()
    found = verdict(three_broadcast())
    assert (found.violations, found.facts.root) == ((), 1)


@pytest.mark.parametrize("name", BROKEN_GATHER)
def test_a_broken_multicast_is_refused_by_name(name):
    change, rule = BROKEN_GATHER[name]
    assert rule in rules(changed(three_allgather(), change))


def test_a_broadcast_whose_end_somebody_does_not_wait_for_is_refused():
    assert rules(changed(three_broadcast(), not_awaited)) == {"unawaited-write"}

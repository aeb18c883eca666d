"""Sums by a switch as the judge sees them: one plan that is right, and that plan broken in one place."""

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


def test_load_and_store_through_channels_of_different_ranks_are_refused():
    value = three_allreduce()
    _leave_out(value)
    ops_of(value)[3]["src_buff"] = [by(0, 0)]
    assert rules(value) == {"wrong-peer"}

"""Small plans written by hand, as JSON values that tests break in one place."""

import copy
import json

from taccl_py.verify.mscclpp import verify_plan

NOP = {"name": "nop"}


def cells(buffer, index, size=1):
    return {"type": buffer, "index": index, "size": size}


def far(buffer_id, index, size=1):
    return {"buffer_id": buffer_id, "index": index, "size": size}


def on(name, *channels, kind="memory"):
    return {"name": name, "channel_type": kind, "channel_ids": list(channels)}


def put(source, target, kind="memory", name="put", channels=None):
    ids = {} if channels is None else {"channel_ids": channels}
    return {"name": name, "channel_type": kind, **ids, "src_buff": [source], "dst_buff": [target]}


def local(name, sources, target):
    return {"name": name, "src_buff": sources, "dst_buff": [target]}


def on_semaphores(name, *numbers):
    return {"name": name, "semaphore_ids": list(numbers)}


def block(number, ops, kind="memory", channels=(0,), remotes=(0,)):
    return {
        "id": number,
        "channels": [{"channel_type": kind, "channel_ids": list(channels)}] if channels else [],
        "remote_buffer_refs": [{"access_channel_type": kind, "remote_buffer_ids": list(remotes)}] if remotes else [],
        "ops": ops,
    }


def gpu(number, chunks, peers, remotes, blocks, kind="memory", semaphores=0):
    given, wanted, scratch = chunks
    return {
        "id": number,
        "input_chunks": given,
        "output_chunks": wanted,
        "scratch_chunks": scratch,
        "channels": [{"channel_type": kind, "connected_to": list(peers)}] if peers else [],
        "remote_buffers": [{"rank": r, "type": t, "access_channel_types": [kind]} for r, t in remotes],
        "semaphores": [{"init_value": 0} for _ in range(semaphores)],
        "threadblocks": blocks,
    }


def plan(collective, gpus, *, in_place=True, **fields):
    return {"name": "made", "collective": collective, "protocol": "Simple", "inplace": in_place, "gpus": gpus, **fields}


def two_allgather():
    """Two GPUs put their chunk into each other's output, in place: what MSCCL++'s own tools write for it."""

    def ops(rank):
        return [
            on("rlxsignal", 0), NOP, on("rlxwait", 0), NOP,
            put(cells("o", rank), far(0, rank)), NOP,
            on("signal", 0), on("wait", 0), NOP,
        ]  # fmt: skip

    return plan("allgather", [gpu(r, (1, 2, 0), [1 - r], [(1 - r, "o")], [block(0, ops(r))]) for r in range(2)])


def two_allgather_by_proxy():
    """The same over the network."""

    def ops(rank):
        return [
            on("rlxsignal", 0, kind="port"), on("rlxwait", 0, kind="port"), NOP,
            put(cells("o", rank), far(0, rank), "port", "pws", [0]), flush(0),
            on("wait", 0, kind="port"), NOP,
        ]  # fmt: skip

    return plan(
        "allgather",
        [gpu(r, (1, 2, 0), [1 - r], [(1 - r, "o")], [block(0, ops(r), "port")], "port") for r in range(2)],
    )


def flush(*channels, places=None):
    """A flush; the runtime counts its destinations, which it does not write."""
    places = len(channels) if places is None else places
    return {**on("flush", *channels, kind="port"), "dst_buff": [cells("o", 0)] * places}


def flushed_at_once(value):
    """In `two_allgather_by_proxy`, one operation for the put, its signal and the flush."""
    for rank in range(2):
        ops_of(value, rank)[3:5] = [put(cells("o", rank), far(0, rank), "port", "pwsf", [0])]


def two_allreduce():
    """Each GPU puts its whole input into the other's scratch and adds what has come, out of place, in two threadblocks."""

    first = [
        on("rlxsignal", 0), on("rlxwait", 0), NOP,
        put(cells("i", 0), far(0, 0)), NOP, on("signal", 0),
        on("wait", 0), NOP, on_semaphores("sem_acquire", 0), NOP,
        local("re", [cells("o", 0), cells("s", 0)], cells("o", 0)),
    ]  # fmt: skip
    second = [local("copy", [cells("i", 0)], cells("o", 0)), NOP, on_semaphores("sem_release", 0)]
    return plan(
        "allreduce",
        [
            gpu(r, (1, 1, 1), [1 - r], [(1 - r, "s")], [block(0, copy.deepcopy(first)), block(1, copy.deepcopy(second), channels=(), remotes=())],
                semaphores=1)
            for r in range(2)
        ],
        in_place=False,
    )  # fmt: skip


def changed(value, change):
    """Copy of a plan after a change."""
    value = copy.deepcopy(value)
    change(value)
    return value


def ops_of(value, rank=0, number=0):
    return value["gpus"][rank]["threadblocks"][number]["ops"]


def verdict(value, **asked):
    return verify_plan(json.dumps(value), "plan.json", **asked)


def rules(value, **asked):
    return {violation.rule for violation in verdict(value, **asked).violations}

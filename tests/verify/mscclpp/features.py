"""Small plans of our own that use what MSCCL++'s runtime has besides put, copy and re: packets, groups, pipelines, shared channels."""

from tests.verify.mscclpp.plans import NOP, block, cells, far, flush, gpu, local, on, on_semaphores, plan, put

RELAXED_ENTRY = [on("rlxsignal", 0), on("rlxwait", 0), NOP]
LEAVE = [NOP, on("signal", 0), on("wait", 0), NOP]


def op(name, sources, targets, kind="memory", channels=None, **fields):
    ids = {} if channels is None else {"channel_ids": list(channels)}
    return {"name": name, "channel_type": kind, **ids, "src_buff": sources, "dst_buff": targets, **fields}


def part(operation, index, parts):
    return {**operation, "tbg_info": {"tb_id": index, "tbg_size": parts}}


def pipeline(unit, chunks, *ops):
    return {"name": "pipeline", "iter_context": {"unit_size": unit, "num_chunks": chunks}, "ops": list(ops)}


def barrier(number, blocks):
    return {"name": "barrier", "barrier_id": number, "num_threadblocks": blocks}


def pair(collective, chunks, ops, *, remotes=("o",), kind="memory", blocks=None, semaphores=0, **fields):
    """Plan of two GPUs that do the same: `ops` or `blocks` of a rank, and its remote buffers, which are the other's."""
    in_place = fields.pop("in_place", True)
    gpus = []
    for rank in range(2):
        own = blocks(rank) if blocks is not None else [block(0, ops(rank), kind, remotes=range(len(remotes)))]
        gpus.append(gpu(rank, chunks, [1 - rank], [(1 - rank, one) for one in remotes], own, kind, semaphores))
    return plan(collective, gpus, in_place=in_place, **fields)


LL = {"protocol": "LL", "use_double_scratch_buffer": True}


def packet_allgather():
    def ops(rank):
        return [
            op("ppkt", [cells("o", rank)], [far(0, 0)]),
            local("upkt", [cells("s", 0)], cells("o", 1 - rank)),
        ]

    return pair("allgather", (1, 2, 1), ops, remotes=("s",), **LL)


def passed_on_allgather():
    """A chunk is made packets at home, and these go on."""

    def ops(rank):
        return [
            local("cpkt", [cells("o", rank)], cells("s", rank)),
            op("rppkt", [cells("s", rank)], [far(0, rank)]),
            local("upkt", [cells("s", 1 - rank)], cells("o", 1 - rank)),
        ]

    return pair("allgather", (1, 2, 2), ops, remotes=("s",), **LL)


def proxied_packets():
    """The same over the network."""

    def ops(rank):
        return [
            local("cpkt", [cells("o", rank)], cells("s", rank)), NOP,
            op("rppkt", [cells("s", rank)], [far(0, rank)], "port", [0]),
            local("upkt", [cells("s", 1 - rank)], cells("o", 1 - rank)),
        ]  # fmt: skip

    return pair("allgather", (1, 2, 2), ops, remotes=("s",), kind="port", **LL)


def packet_allreduce():
    """Each GPU puts what the other adds, adds what comes, and sends the sum; then it stores the other's."""

    def ops(rank):
        own, other = rank, 1 - rank
        return [
            op("ppkt", [cells("i", other)], [far(0, 0)]),
            op("respkt", [cells("i", own), cells("s", 0)], [cells("i", own), far(0, 1)]),
            local("upkt", [cells("s", 1)], cells("i", other)),
        ]

    return pair("allreduce", (2, 2, 2), ops, remotes=("s",), **LL)


def kept_packets_allreduce():
    """The same, but sums are kept as packets (`recpkt`, `recspkt`) and `repkt` takes its own part of them."""

    def ops(rank):
        own, other = rank, 1 - rank
        return [
            op("ppkt", [cells("i", other)], [far(0, 0)]),
            op("recspkt", [cells("i", own), cells("s", 0)], [cells("i", own), cells("s", 2), far(0, 1)]),
            local("upkt", [cells("s", 1)], cells("i", other)),
        ]

    return pair("allreduce", (2, 2, 3), ops, remotes=("s",), **LL)


def packet_reducescatter():
    def ops(rank):
        return [
            op("ppkt", [cells("i", 1 - rank)], [far(0, 0)]),
            {**local("repkt", [cells("i", rank), cells("s", 0)], cells("o", 0))},
        ]

    return pair("reducescatter", (2, 1, 1), ops, remotes=("s",), in_place=False, **LL)


def recpkt_reducescatter():
    def ops(rank):
        first = local("recpkt", [cells("i", rank), cells("s", 0)], cells("s", 2))
        return [
            op("ppkt", [cells("i", 1 - rank)], [far(0, 0)]),
            {**first, "dst_buff": [cells("o", 0), cells("s", 1)]},
        ]

    return pair("reducescatter", (2, 1, 2), ops, remotes=("s",), in_place=False, **LL)


def multicast_packets():
    """Packets to all ranks of a switch channel at once."""
    gpus = []
    for rank in range(2):
        ops = [
            local("cpkt", [cells("o", rank)], cells("s", rank)),
            {
                "name": "gstorepkt", "channel_type": "switch", "src_buff": [cells("s", rank)],
                "dst_buff": [{"switch_channel_id": 0, "index": rank, "size": 1}],
            },
            local("upkt", [cells("s", 1 - rank)], cells("o", 1 - rank)),
        ]  # fmt: skip
        one = gpu(rank, (1, 2, 2), [], [], [block(0, ops, "switch", remotes=())])
        one["channels"] = [
            {"channel_type": "switch", "buffer_type": "s", "rank_groups": [{"size": 2, "ranks": [0, 1]}]}
        ]
        gpus.append(one)
    return plan("allgather", gpus, **LL)


def got_allgather():
    def ops(rank):
        return [*RELAXED_ENTRY, op("get", [far(0, 1 - rank)], [cells("o", 1 - rank)], channels=[0]), *LEAVE]

    return pair("allgather", (1, 2, 0), ops)


def read_reducescatter():
    """Whoever only reads may say so with relaxed signals."""

    def ops(rank):
        leave = [NOP, on("rlxsignal", 0), on("rlxwait", 0)]
        return [*RELAXED_ENTRY, op("rre", [cells("i", rank), far(0, rank)], [cells("o", 0)]), *leave]

    return pair("reducescatter", (2, 1, 0), ops, remotes=("i",), in_place=False)


def read_and_sent_allreduce():
    def ops(rank):
        return [*RELAXED_ENTRY, op("rres", [cells("i", rank), far(0, rank)], [cells("i", rank), far(0, rank)]), *LEAVE]

    return pair("allreduce", (2, 2, 0), ops, remotes=("i",))


def sent_sum_allreduce():
    def ops(rank):
        return [
            *RELAXED_ENTRY, put(cells("i", 1 - rank), far(1, 0)), NOP, on("signal", 0), on("wait", 0), NOP,
            op("res", [cells("i", rank), cells("s", 0)], [cells("i", rank), far(0, rank)]), *LEAVE,
        ]  # fmt: skip

    return pair("allreduce", (2, 2, 1), ops, remotes=("i", "s"))


def grouped_allgather():
    """Two threadblocks share the bytes of a put and its channel; one of them tells when both are done."""

    def blocks(rank):
        entry = [on("rlxsignal", 0), on("rlxwait", 0)]
        sent = put(cells("o", rank), far(0, rank))
        return [
            block(0, [*entry, barrier(0, 2), part(sent, 0, 2), barrier(0, 2), on("signal", 0), on("wait", 0), NOP]),
            block(1, [barrier(0, 2), part(sent, 1, 2), barrier(0, 2)]),
        ]

    return pair("allgather", (1, 2, 0), None, blocks=blocks)


def two_groups():
    """Three threadblocks fill scratch that two others, after a barrier, copy on."""

    def blocks(_):
        first = local("copy", [cells("i", 0, 2)], cells("s", 0, 2))
        second = local("copy", [cells("s", 0, 2)], cells("o", 0, 2))
        sent = [on("rlxsignal", 0), on("rlxwait", 0), NOP, put(cells("i", 0, 2), far(0, 2, 2)), NOP, on("signal", 0),
                on("wait", 0), NOP, barrier(0, 3), local("re", [cells("o", 0, 2), cells("s", 2, 2)], cells("o", 0, 2))]  # fmt: skip
        middle = [[part(first, one, 3), barrier(1, 3)] for one in range(3)]
        for one in range(2):
            middle[one] += [part(second, one, 2), barrier(0, 3)]
        return [block(0, sent), *(block(1 + one, ops, channels=(), remotes=()) for one, ops in enumerate(middle))]

    return pair("allreduce", (2, 2, 4), None, remotes=("s",), blocks=blocks, in_place=False)


def piped_allgather(unit=64):
    """One threadblock puts into scratch piece by piece, another one copies what has come; out of place."""

    def blocks(rank):
        loop = pipeline(unit, 1, put(cells("i", 0), far(0, 0)), NOP, on("signal", 0), on_semaphores("sem_release", 0))
        arrived = pipeline(
            unit, 1,
            on_semaphores("sem_acquire", 0), on("wait", 0), NOP, local("copy", [cells("s", 0)], cells("o", 1 - rank)),
        )  # fmt: skip
        own = local("copy", [cells("i", 0)], cells("o", rank))
        return [
            block(0, [*RELAXED_ENTRY, loop]),
            block(1, [arrived], remotes=()),
            block(2, [own], channels=(), remotes=()),
        ]

    return pair("allgather", (1, 2, 1), None, remotes=("s",), blocks=blocks, semaphores=1, in_place=False)


def many_semaphores(number=17):
    """Every threadblock of a GPU has a semaphore of its own, more than one operation could name."""

    def blocks(rank):
        ops = [*RELAXED_ENTRY, put(cells("o", rank), far(0, rank)), NOP, on("signal", 0), on("wait", 0), NOP]
        ops += [on_semaphores("sem_acquire", *range(one, min(one + 16, number))) for one in range(0, number, 16)]
        return [
            block(0, ops),
            *(block(1 + one, [on_semaphores("sem_release", one)], channels=(), remotes=()) for one in range(number)),
        ]

    return pair("allgather", (1, 2, 0), None, blocks=blocks, semaphores=number)


def flushed_allgather():
    """A put, its signal and the flush by a proxy, one after the other."""

    def ops(rank):
        return [
            on("signal", 0, kind="port"), on("wait", 0, kind="port"), NOP,
            put(cells("o", rank), far(0, rank), "port", "put", [0]), NOP, on("signal", 0, kind="port"), flush(0),
            on("wait", 0, kind="port"), NOP,
        ]  # fmt: skip

    return pair("allgather", (1, 2, 0), ops, kind="port")


def fused_allgather():
    """The same in one operation."""

    def ops(rank):
        return [
            on("rlxsignal", 0, kind="port"), on("rlxwait", 0, kind="port"), NOP,
            put(cells("o", rank), far(0, rank), "port", "pwsf", [0]), on("wait", 0, kind="port"), NOP,
        ]  # fmt: skip

    return pair("allgather", (1, 2, 0), ops, kind="port")


RIGHT = [
    packet_allgather, passed_on_allgather, proxied_packets, packet_allreduce, kept_packets_allreduce, packet_reducescatter,
    recpkt_reducescatter, multicast_packets, got_allgather, read_reducescatter, read_and_sent_allreduce,
    sent_sum_allreduce, grouped_allgather, two_groups, piped_allgather, many_semaphores, flushed_allgather,
    fused_allgather,
]  # fmt: skip

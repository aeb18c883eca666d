"""Programs whose measured times tell the costs of a runtime: all-pairs and ring AllGather and AllReduce.

They are written step by step, as the community's tools emit them, so that every term of a runtime profile stands out: one threadblock
sends and receives little or much, forwards over many hops, sums with or without neighbours that wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from taccl_py.collective import Address, Buffer, Kind
from taccl_py.lowering.program import Gpu, Op, Program, Protocol, Step, Threadblock

_NOWHERE = (Address(Buffer.INPUT, -1), Address(Buffer.OUTPUT, -1))
_ANY_SIZE = (1 << 63) - 1


def all_pairs_allgather(num_ranks: int, instances: int, protocol: Protocol) -> Program:
    """AllGather in which every rank sends its shard to every other one, each instance by a threadblock of its own.

    Parameters
    ----------
    num_ranks
        Number of ranks.
    instances
        Threadblocks, and channels, for each peer.
    protocol
        Protocol of the program.
    """

    def blocks(rank: int) -> Iterable[Threadblock]:
        for peer in _others(rank, num_ranks):
            for instance in range(instances):
                own, other = rank * instances + instance, peer * instances + instance
                yield Threadblock(peer, peer, instance, (_move(Op.SEND, own), _move(Op.RECV, other)))

    return _allgather("all_pairs", instances, instances, protocol, [tuple(blocks(rank)) for rank in range(num_ranks)])


def ring_allgather(num_ranks: int, channels: int, instances: int, protocol: Protocol) -> Program:
    """AllGather around the ring 0, 1, 2, ... in which the shard of rank r takes channel r modulo `channels` of each instance.

    A rank forwards in the order of distance. A threadblock has its channel's sends and receives; where it has only one of them, it
    comes first.

    Parameters
    ----------
    num_ranks
        Number of ranks.
    channels
        Channels of one instance.
    instances
        Copies side by side.
    protocol
        Protocol of the program.
    """

    def block(rank: int, channel: int, instance: int) -> Threadblock:
        steps: list[Step] = []
        for distance in range(num_ranks):
            source = (rank - distance) % num_ranks
            if source % channels == channel:
                cell = source * instances + instance
                steps += [_move(Op.RECV, cell)] if distance else []
                steps += [_move(Op.SEND, cell)] if distance < num_ranks - 1 else []
        sends, receives = (any(getattr(step.op, direction) for step in steps) for direction in ("sends", "receives"))
        return Threadblock(
            (rank + 1) % num_ranks if sends else -1,
            (rank - 1) % num_ranks if receives else -1,
            channel + channels * instance,
            tuple(steps),
        )

    def blocks(rank: int) -> tuple[Threadblock, ...]:
        found = [block(rank, channel, instance) for instance in range(instances) for channel in range(channels)]
        return tuple(sorted(found, key=lambda one: (one.send_peer, one.recv_peer, one.channel)))

    return _allgather(
        f"ring_{channels}", channels * instances, instances, protocol, [blocks(rank) for rank in range(num_ranks)]
    )


def all_pairs_allreduce(num_ranks: int, instances: int, protocol: Protocol) -> Program:
    """AllReduce in two steps: every rank gets its part of every other one, sums, and sends the sum to all of them.

    Sums are spread over the threadblocks of a rank: with those of the peers, each of which waits until all have received, one works
    that has no peer. Waits are gathered before the first sum, so that the runtimes fuse the sums.

    Parameters
    ----------
    num_ranks
        Number of ranks.
    instances
        Threadblocks, and channels, for each peer.
    protocol
        Protocol of the program.
    """
    gpus = [_allreduce_gpu(rank, num_ranks, instances) for rank in range(num_ranks)]
    name = f"ar_all_pairs_{instances}_{protocol.lower()}"
    return _program(name, Kind.ALLREDUCE, num_ranks * num_ranks * instances, instances, protocol, gpus)


def ring_allreduce(num_ranks: int, protocol: Protocol) -> Program:
    """AllReduce around the ring 0, 1, 2, ...: every rank adds to what it forwards, then the sums go around.

    One threadblock of a rank adds, another one hands the sums on, after the first one's last sum.

    Parameters
    ----------
    num_ranks
        Number of ranks.
    protocol
        Protocol of the program.
    """
    gpus = []
    for rank in range(num_ranks):
        adding, handing = list[Step](), list[Step]()
        for turn in range(num_ranks - 1):
            scratch = Address(Buffer.SCRATCH, turn)
            out, into = (Address(Buffer.INPUT, (rank - turn - late) % num_ranks) for late in (0, 1))
            last = turn == num_ranks - 2
            adding += [Step(Op.SEND, out, scratch, 1), Step(Op.RECV, into, scratch, 1)]
            adding.append(Step(Op.REDUCE, scratch, into, 1, has_dependent=last))
            out, into = (Address(Buffer.INPUT, (rank + 1 - turn - late) % num_ranks) for late in (0, 1))
            handing.append(Step(Op.SEND, out, out, 1, None if turn else (0, 3 * num_ranks - 4)))
            handing.append(Step(Op.RECV, into, into, 1))
        peers = (rank + 1) % num_ranks, (rank - 1) % num_ranks
        blocks = tuple(Threadblock(*peers, channel, tuple(steps)) for channel, steps in enumerate((adding, handing)))
        gpus.append(Gpu(rank, num_ranks, 0, num_ranks - 1, blocks))
    return _program(f"ar_ring_1_{protocol.lower()}", Kind.ALLREDUCE, num_ranks, 2, protocol, gpus)


def in_order(program: Program, order: Sequence[int]) -> Program:
    """The program around another ring: what it has rank p do, rank ``order[p]`` does; shards of an AllGather stay their ranks'."""
    each = program.num_chunks_per_loop // len(order)
    moves_shards = program.kind is Kind.ALLGATHER

    def address(one: Address) -> Address:
        if not moves_shards or one.offset < 0:
            return one
        return Address(one.buffer, order[one.offset // each] * each + one.offset % each)

    def peer(position: int) -> int:
        return order[position] if position >= 0 else position

    gpus = {}
    for position, gpu in enumerate(program.gpus):
        blocks = tuple(
            Threadblock(
                peer(block.send_peer),
                peer(block.recv_peer),
                block.channel,
                tuple(replace(step, src=address(step.src), dst=address(step.dst)) for step in block.steps),
            )
            for block in gpu.threadblocks
        )
        gpus[order[position]] = replace(gpu, rank=order[position], threadblocks=blocks)
    return replace(program, gpus=tuple(gpus[rank] for rank in range(len(order))))


def _allreduce_gpu(rank: int, num_ranks: int, instances: int) -> Gpu:
    blocks = []
    for place, peer in enumerate((-1, *_others(rank, num_ranks))):
        for instance in range(instances):
            # Threadblocks of one instance: first the one without a peer, then one for each peer.
            numbers = [instances * index + instance for index in range(num_ranks)]
            steps = _sum_steps(rank, num_ranks, instance, place, numbers)
            if peer >= 0:
                steps = [
                    *_scatter_steps(rank, num_ranks, instance, peer),
                    *steps,
                    *_gather_steps(rank, num_ranks, instance, peer, numbers),
                ]
            blocks.append(Threadblock(peer, peer, instance, tuple(steps)))
    scratch = (num_ranks - 1) * num_ranks * instances
    return Gpu(rank, num_ranks * num_ranks * instances, 0, scratch, tuple(blocks))


def _scatter_steps(rank: int, num_ranks: int, instance: int, peer: int) -> list[Step]:
    """Send the peer its part, and get ours from it."""
    base, scratch = instance * num_ranks * num_ranks, instance * (num_ranks - 1) * num_ranks
    theirs = Address(Buffer.SCRATCH, scratch + _place(rank, peer) * num_ranks)
    ours = Address(Buffer.SCRATCH, scratch + _place(peer, rank) * num_ranks)
    return [
        Step(Op.SEND, Address(Buffer.INPUT, base + peer * num_ranks), theirs, num_ranks),
        Step(Op.RECV, Address(Buffer.INPUT, base + rank * num_ranks), ours, num_ranks, has_dependent=True),
    ]


def _sum_steps(rank: int, num_ranks: int, instance: int, place: int, numbers: Sequence[int]) -> list[Step]:
    """Wait for what the other blocks receive, and sum the chunk of this block."""
    chunk = _others(rank, num_ranks)[place - 1] if place else rank
    target = Address(Buffer.INPUT, (instance * num_ranks + rank) * num_ranks + chunk)
    scratch = instance * (num_ranks - 1) * num_ranks + chunk
    waits = [(numbers[index], 1) for index in range(1, num_ranks) if index != place]
    sums = [
        Step(
            Op.REDUCE, Address(Buffer.SCRATCH, scratch + index * num_ranks), target, 1,
            waits[0] if not index and waits else None, index == num_ranks - 2,
        )
        for index in range(num_ranks - 1)
    ]  # fmt: skip
    return [*_nops(waits[1:]), *sums]


def _gather_steps(rank: int, num_ranks: int, instance: int, peer: int, numbers: Sequence[int]) -> list[Step]:
    """Wait for the sums of the other blocks, send the peer our part, and get its."""
    place = 1 + _place(peer, rank)
    base = instance * num_ranks * num_ranks
    own, other = (Address(Buffer.INPUT, base + one * num_ranks) for one in (rank, peer))
    waits = [(numbers[index], _last_sum(index, num_ranks)) for index in range(num_ranks) if index != place]
    return [
        *_nops(waits[1:]),
        Step(Op.SEND, own, own, num_ranks, waits[0]),
        Step(Op.RECV, other, other, num_ranks),
    ]


def _last_sum(place: int, num_ranks: int) -> int:
    """Step of a block's last sum: the block without a peer does nothing before its waits, of which the last is on the first sum."""
    waits = num_ranks - 2 if place else num_ranks - 1
    return (2 if place else 0) + max(0, waits - 1) + num_ranks - 2


def _nops(waits: Iterable[tuple[int, int]]) -> list[Step]:
    return [Step(Op.NOP, *_NOWHERE, 0, wait) for wait in waits]


def _others(rank: int, num_ranks: int) -> list[int]:
    return [other for other in range(num_ranks) if other != rank]


def _place(rank: int, among_others_of: int) -> int:
    """Place of a rank in the order of the others of another one."""
    return rank - (rank > among_others_of)


def _move(op: Op, cell: int) -> Step:
    return Step(op, Address(Buffer.OUTPUT, cell), Address(Buffer.OUTPUT, cell), 1)


def _allgather(
    family: str, channels: int, instances: int, protocol: Protocol, blocks: Sequence[tuple[Threadblock, ...]]
) -> Program:
    cells = len(blocks) * instances
    gpus = [Gpu(rank, 0, cells, 0, of_rank) for rank, of_rank in enumerate(blocks)]
    return _program(f"ag_{family}_{instances}_{protocol.lower()}", Kind.ALLGATHER, cells, channels, protocol, gpus)


def _program(name: str, kind: Kind, chunks: int, channels: int, protocol: Protocol, gpus: Sequence[Gpu]) -> Program:
    return Program(name, kind, chunks, channels, protocol, True, False, 0, _ANY_SIZE, tuple(gpus))

"""Compiled programs executed on numbers: ranks as processes that wait for their own messages alone, in any order."""

import random

import numpy as np

from taccl_py.collective import Buffer, Kind
from taccl_py.torch.steps import shared_address

CALLED = (Kind.ALLREDUCE, Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.ALLTOALL, Kind.BROADCAST)


def inputs(program, seed):
    """Input of every rank; one number is a chunk."""
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 1 << 30, program.input_chunks) for _ in range(program.num_ranks)]


def promised(program, given):
    """Outputs by the collective's definition."""
    ranks, length = range(program.num_ranks), program.output_chunks
    match program.kind:
        case Kind.ALLREDUCE:
            return [sum(given)] * len(ranks)
        case Kind.REDUCESCATTER:
            return [sum(given)[rank * length : (rank + 1) * length] for rank in ranks]
        case Kind.ALLGATHER:
            return [np.concatenate(given)] * len(ranks)
        case Kind.ALLTOALL:
            part = length // len(ranks)
            return [np.concatenate([each[rank * part : (rank + 1) * part] for each in given]) for rank in ranks]
        case Kind.BROADCAST:
            return [given[program.root]] * len(ranks)


class Process:
    """One rank: its buffers, its round, and how many of the round's messages are still on their way."""

    def __init__(self, program, rank, given):
        self.rounds, self.number, self.missing = program.rounds[rank], -1, 0
        lengths = {Buffer.INPUT: program.input_chunks, Buffer.OUTPUT: program.output_chunks}
        self.buffers = {buffer: np.full(length, -1) for buffer, length in lengths.items()}
        self.buffers[Buffer.SCRATCH] = np.full(program.scratch_chunks[rank], -1)
        if program.in_place:
            for buffer, length in lengths.items():
                other, first = shared_address(rank, *lengths.values(), buffer, 0)
                self.buffers[buffer] = self.buffers[other][first : first + length]
        if program.kind is not Kind.BROADCAST or rank == program.root:
            self.buffers[Buffer.INPUT][...] = given

    def cells(self, region):
        found = self.buffers[region.buffer][region.offset : region.end]
        assert len(found) == region.chunks
        return found

    def begin_round(self):
        """Operations of the next round, and its messages; None after the last one."""
        self.number += 1
        if self.number == len(self.rounds):
            return None
        one = self.rounds[self.number]
        for target, first, second in one.operations:
            self.cells(target)[...] = self.cells(first) if second is None else self.cells(first) + self.cells(second)
        self.missing = len(one.sends) + len(one.receives)
        return one


def run(program, given, seed=0):
    """Run to the end, with messages that travel and ranks that go on in any order, and return the processes.

    A message is read when it arrives, and not when it is sent: until then its sender may not touch it.
    """
    order = random.Random(seed)
    processes = [Process(program, rank, given[rank]) for rank in range(program.num_ranks)]
    sent, wanted, active = {}, {}, set(range(program.num_ranks))
    while active:
        ready = [("rank", rank) for rank in sorted(active) if not processes[rank].missing]
        ready += [("pair", pair) for pair in sorted(sent) if sent[pair] and wanted.get(pair)]
        assert ready, "ranks wait for each other"
        what, who = order.choice(ready)
        if what == "pair":
            src, dst = who
            source, target = sent[who].pop(0), wanted[who].pop(0)
            processes[dst].cells(target)[...] = processes[src].cells(source)
            processes[src].missing -= 1
            processes[dst].missing -= 1
            continue
        one = processes[who].begin_round()
        if one is None:
            active.remove(who)
            continue
        for message in one.sends:
            sent.setdefault((who, message.peer), []).append(message.region)
        for message in one.receives:
            wanted.setdefault((message.peer, who), []).append(message.region)
    assert not any(sent.values())
    assert not any(wanted.values())
    return processes


def wrong_ranks(program, seed):
    """Ranks whose output, or whose input of a call that is not in place, is not what it must be."""
    given = inputs(program, seed)
    processes = run(program, [each.copy() for each in given], seed)
    wrong = []
    for rank, (process, output) in enumerate(zip(processes, promised(program, given), strict=True)):
        kept = (
            program.in_place or program.kind is Kind.BROADCAST or (process.buffers[Buffer.INPUT] == given[rank]).all()
        )
        if not kept or not (process.buffers[Buffer.OUTPUT] == output).all():
            wrong.append(rank)
    return wrong

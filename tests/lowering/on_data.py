"""A program for XML on real data: threadblocks take turns at random, connections hold any number of messages. For tests of demands only."""

import random
from collections import deque

import numpy as np

from taccl_py.collective import Buffer
from taccl_py.execute.arithmetic import combine, storage_type
from taccl_py.execute.plan import DataType, Operator
from taccl_py.lowering.program import Op


class ProgramOnData:
    """Memories and connections of all ranks."""

    def __init__(self, program, demand, inputs, seed=0):
        self.program, self.order = program, random.Random(seed)
        self.data_type = DataType(demand.dtype)
        self.unit = (
            max(*demand.input_bytes, *demand.output_bytes) // program.num_chunks_per_loop // demand.element_bytes
        )
        stored = storage_type(self.data_type)
        self.memory = [
            {
                Buffer.INPUT: inputs[rank].copy(),
                Buffer.OUTPUT: np.zeros(demand.output_bytes[rank] // demand.element_bytes, dtype=stored),
                Buffer.SCRATCH: np.zeros(gpu.scratch_chunks * self.unit, dtype=stored),
            }
            for rank, gpu in enumerate(program.gpus)
        ]
        self.queues, self.done = {}, {}

    def run(self):
        """Run to the end; the outputs of all ranks."""
        blocks = [(gpu.rank, number, tb) for gpu in self.program.gpus for number, tb in enumerate(gpu.threadblocks)]
        while any(self.done.get((rank, number), 0) < len(tb.steps) for rank, number, tb in blocks):
            self.order.shuffle(blocks)
            assert any([self.advance(*block) for block in blocks]), "all threadblocks wait"
        assert not any(self.queues.values())
        return tuple(memory[Buffer.OUTPUT] for memory in self.memory)

    def advance(self, rank, number, tb):
        place = self.done.get((rank, number), 0)
        if place == len(tb.steps):
            return False
        step = tb.steps[place]
        if step.depends_on is not None and self.done.get((rank, step.depends_on[0]), 0) <= step.depends_on[1]:
            return False
        arriving = self.queues.setdefault((tb.recv_peer, rank, tb.channel), deque())
        if step.op.receives and not arriving:
            return False
        self.operate(rank, tb, step, arriving.popleft() if step.op.receives else None)
        self.done[rank, number] = place + 1
        return True

    def operate(self, rank, tb, step, value):
        if step.op in (Op.SEND, Op.COPY) or step.op.adds or step.op is Op.REDUCE:
            own = self.cells(rank, step.src, step.count)
            value = own.copy() if value is None else combine(Operator.SUM, self.data_type, value, own)
        if step.op is Op.REDUCE:
            value = combine(Operator.SUM, self.data_type, value, self.cells(rank, step.dst, step.count))
        if step.op not in (Op.SEND, Op.RECV_REDUCE_SEND, Op.NOP):
            self.cells(rank, step.dst, step.count)[...] = value
        if step.op.sends:
            self.queues.setdefault((rank, tb.send_peer, tb.channel), deque()).append(value)

    def cells(self, rank, address, count):
        first, end = address.offset * self.unit, (address.offset + count) * self.unit
        assert 0 <= first < end <= len(self.memory[rank][address.buffer])
        return self.memory[rank][address.buffer][first:end]

"""What connections carry, and what a transport that need not copy is asked."""

import numpy as np

from taccl_py.execute.arithmetic import NumpyCells
from taccl_py.execute.engine import MessageQueue, ThreadblockEngine, count_messages
from taccl_py.execute.local import LocalQueues
from taccl_py.execute.memory import RankMemory
from taccl_py.execute.mpi import _plan_credit
from taccl_py.execute.plan import DataType, Operator, cut_size
from taccl_py.runtimes import EXECUTOR
from tests.execute.running import plan_of
from tests.verify.msccl.files import direct_alltoall, ring_allreduce


def test_a_ring_of_four_carries_six_messages_a_link_and_slices_multiply_them():
    plan = plan_of(ring_allreduce(4))
    links = [MessageQueue(rank, (rank + 1) % 4, 0) for rank in range(4)]
    assert count_messages(plan, cut_size(plan, 4096, DataType.FLOAT32, EXECUTOR)) == dict.fromkeys(links, 6)
    payload = EXECUTOR.payload_bytes[plan.protocol]
    long = cut_size(plan, 4 * 3 * payload, DataType.FLOAT32, EXECUTOR)
    assert long.num_passes == 3
    assert count_messages(plan, long) == dict.fromkeys(links, 18)


def test_credits_are_only_for_messages_that_find_no_slot_free():
    plan = plan_of(ring_allreduce(4))
    cut = cut_size(plan, 4096, DataType.FLOAT32, EXECUTOR)
    assert set(_plan_credit(plan, cut, 2).awaited.values()) == {4}
    assert not _plan_credit(plan, cut, 6).awaited


class Lender(LocalQueues):
    """Takes cells as they are, and keeps one rank's for as long as it is told to."""

    def __init__(self, slots):
        super().__init__(slots)
        self.held, self.keeps, self.wanted = [], True, []

    @property
    def lends(self):
        return self.keeps and bool(self.held)

    def lend(self, connection, cells):
        self.push(connection, cells.copy())
        self.held.append(cells)
        return True

    def are_lent(self, cells):
        return any(np.shares_memory(cells, one) for one in self.held)

    def want(self, connection, cells):
        self.wanted.append((connection, cells.shape))


def test_cells_that_are_lent_are_not_written():
    """In place rank 0 of a ring AllReduce sends chunk 0 first, and gets it back summed up as its fourth message."""
    plan = plan_of(ring_allreduce(3))
    cut = cut_size(plan, 36, DataType.INT32, EXECUTOR)
    memories = {r: RankMemory(plan, cut, NumpyCells(DataType.INT32), r, in_place=True) for r in range(3)}
    for memory in memories.values():
        memory.fill(np.ones(9, dtype=np.int32))
    lender = Lender(8)
    engine = ThreadblockEngine(plan, cut, memories, lender, Operator.SUM, NumpyCells(DataType.INT32))
    for _ in range(20):
        for block in engine.blocks:
            engine.advance(block)
    waits = engine.waits(engine.blocks)
    assert waits
    assert "a message to leave the cells that it writes" in {wait.what for wait in waits}
    lender.keeps = False
    for _ in range(20):
        for block in engine.blocks:
            engine.advance(block)
    assert engine.blocks == []
    assert all((memory.elements("o") == 3).all() for memory in memories.values())


def test_a_threadblock_that_only_receives_says_where_its_message_may_go():
    plan = plan_of(direct_alltoall(3, 2))
    cut = cut_size(plan, 6 * 4 * 5, DataType.INT32, EXECUTOR)
    memories = {0: RankMemory(plan, cut, NumpyCells(DataType.INT32), 0, in_place=False)}
    lender = Lender(8)
    engine = ThreadblockEngine(plan, cut, memories, lender, Operator.SUM, NumpyCells(DataType.INT32))
    for block in engine.blocks:
        engine.advance(block)
    assert set(lender.wanted) == {(MessageQueue(1, 0, 0), (2, 5)), (MessageQueue(2, 0, 0), (2, 5))}

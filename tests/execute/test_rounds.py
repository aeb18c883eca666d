"""Rounds: all ranks find the same ones, each carries out its own part, and the result is right."""

import pytest

from taccl_py.errors import InvalidArtifact
from taccl_py.execute.arithmetic import NumpyCells
from taccl_py.execute.engine import MessageQueue, ThreadblockEngine
from taccl_py.execute.memory import RankMemory
from taccl_py.execute.plan import DataType, Operator, cut_size
from taccl_py.execute.rounds import Mailbox, Parcel, Round, find_rounds
from taccl_py.execute.runs import Call, collective_data
from taccl_py.runtimes import EXECUTOR
from tests.execute.running import placements, plan_of
from tests.verify.msccl.files import RIGHT_FILES, pair_allreduce, ring_allgather, step
from tests.verify.msccl.test_broken_files import both_send_first


class Rank:
    """One process: its own memory and its own ends of the connections."""

    def __init__(self, plan, cut, slots, rank, in_place, data):
        cells = NumpyCells(DataType.INT32)
        self.memory = RankMemory(plan, cut, cells, rank, in_place=in_place)
        data.fill(self.memory, rank)
        self.mailbox = Mailbox(slots)
        self.engine = ThreadblockEngine(plan, cut, {rank: self.memory}, self.mailbox, Operator.SUM, cells)
        self.rank = rank

    def work(self):
        for block in self.engine.blocks:
            self.engine.advance(block)
        self.mailbox.take_popped()
        return [(self.rank, *staged) for staged in self.mailbox.take_staged()]


def wrong_elements(plan, size, slots, in_place):
    """Run rank by rank, exchanging what the rounds say, and count wrong elements."""
    cut = cut_size(plan, size, DataType.INT32, EXECUTOR)
    data = collective_data(plan, cut, Call(size, DataType.INT32, Operator.SUM, in_place), 0)
    ranks = [Rank(plan, cut, slots, rank, in_place, data) for rank in range(plan.num_ranks)]
    for one in find_rounds(plan, cut, slots, in_place=in_place):
        staged = [message for rank in ranks for message in rank.work()]
        assert [Parcel(connection, message.size) for _, connection, message in staged] == list(one.parcels)
        for src, connection, message in staged:
            assert src == connection.src
            ranks[connection.dst].mailbox.deliver(connection, message)
        for rank in ranks:
            for connection in one.freed:
                rank.mailbox.free(connection)
    assert [rank.engine.blocks for rank in ranks] == [[]] * len(ranks)
    return sum(data.check(rank.memory, rank.rank).num_wrong for rank in ranks)


@pytest.mark.parametrize("chunk_bytes", [64, 100_000])
@pytest.mark.parametrize("name", RIGHT_FILES)
def test_ranks_that_only_know_their_own_part_get_the_right_result(name, chunk_bytes):
    plan = plan_of(RIGHT_FILES[name]())
    for in_place in placements(plan):
        slots = EXECUTOR.fifo_slots[plan.protocol]
        assert wrong_elements(plan, chunk_bytes * plan.chunks_per_size, slots, in_place) == 0


def rounds(file, size=64, slots=8):
    plan = plan_of(file)
    return find_rounds(plan, cut_size(plan, size, DataType.INT32, EXECUTOR), slots, in_place=False)


def test_a_ring_takes_a_round_for_each_hop_and_one_to_receive():
    """Every rank sends its chunk, then passes on what has come; the slot of a message is free when it was taken."""
    ring = [MessageQueue(rank, (rank + 1) % 3, 0) for rank in range(3)]
    sent = tuple(Parcel(connection, 5) for connection in ring)
    # A rank takes from its predecessor: rank 0 from 2.
    taken = (ring[2], ring[0], ring[1])
    assert rounds(ring_allgather(3)) == [Round(sent, ()), Round(sent, taken), Round((), taken)]


def test_a_slot_is_free_again_only_in_the_next_round():
    """Two messages with one slot: the second is sent in the round after that in which the first was taken."""
    file = both_send_first(1)
    for gpu in file.gpus:
        block = gpu.blocks[0]
        block.steps[:] = [*block.steps, *[dict(one) for one in block.steps]]
    assert [len(one.parcels) for one in rounds(file, slots=1)] == [2, 0, 2, 0]
    assert [len(one.parcels) for one in rounds(file, slots=2)] == [2, 2, 0]


def refusal(file):
    with pytest.raises(InvalidArtifact) as error:
        rounds(file)
    return error.value.violations[0]


def test_what_would_stop_is_known_before_anything_is_sent():
    assert "so on around from gpu 0" in refusal(both_send_first(9)).what
    file = pair_allreduce()
    file.step(0, 1, 1)["hasdep"] = 0
    assert "gpu 0 tb 1 has ended" in refusal(file).what
    file = ring_allgather()
    file.gpus[0].blocks[0].steps.append(step("s"))
    assert refusal(file).rule == "left-over"
    file = ring_allgather()
    file.step(2, 1, 0)["dstoff"] = 7
    assert (refusal(file).rule, refusal(file).where) == ("outside-buffer", "gpu 2 tb 1 step 0")
    file = ring_allgather(3, 2)
    file.step(1, 0, 2)["cnt"] = 1
    assert refusal(file).rule == "count-mismatch"

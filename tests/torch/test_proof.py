"""The proof refuses whatever was changed in a program that was right."""

from dataclasses import replace

import pytest

from taccl_py.collective import Buffer
from taccl_py.errors import InvalidArtifact
from taccl_py.torch.compile import compile_program
from taccl_py.torch.proof import require_right
from taccl_py.torch.steps import ChunkRun, LocalOperation, PeerMessage
from tests.execute.running import placements, plan_of
from tests.torch.programs import CALLED
from tests.verify.msccl.files import RIGHT_FILES, direct_alltoall, ring_allgather, ring_allreduce


def changed(program, rank, number, **parts):
    """The same program with another round of one rank."""
    rounds = [list(each) for each in program.rounds]
    rounds[rank][number] = replace(rounds[rank][number], **parts)
    return replace(program, rounds=tuple(map(tuple, rounds)))


def rule_of(program):
    with pytest.raises(InvalidArtifact) as refused:
        require_right(program)
    (violation,) = refused.value.violations
    return violation.rule


RING = compile_program(plan_of(ring_allreduce(4)), in_place=True)
GATHER = compile_program(plan_of(ring_allgather(3)), in_place=False)
EXCHANGE = compile_program(plan_of(direct_alltoall(3)), in_place=False)


def first_with_operations(program, rank):
    return next(number for number, one in enumerate(program.rounds[rank]) if one.operations)


def test_a_message_less_is_missed():
    assert rule_of(changed(RING, 0, 0, sends=())) == "count-mismatch"
    assert rule_of(changed(RING, 1, 0, receives=())) == "left-over"


def test_an_operation_less_or_twice_is_seen():
    number = first_with_operations(RING, 2)
    operations = RING.rounds[2][number].operations
    assert rule_of(changed(RING, 2, number, operations=())) == "wrong-result"
    assert rule_of(changed(RING, 2, number, operations=2 * operations)) == "wrong-sum"


def test_another_place_is_seen():
    (message,) = RING.rounds[0][0].sends
    elsewhere = PeerMessage(message.peer, message.region._replace(offset=1))
    assert rule_of(changed(RING, 0, 0, sends=(elsewhere,))) in ("wrong-sum", "wrong-result")
    outside = PeerMessage(message.peer, message.region._replace(offset=4))
    assert rule_of(changed(RING, 0, 0, sends=(outside,))) == "outside-buffer"


def test_what_lands_where_something_leaves_is_a_race():
    one = RING.rounds[0][0]
    onto = PeerMessage(one.receives[0].peer, one.sends[0].region)
    assert rule_of(changed(RING, 0, 0, receives=(onto,))) == "race"


def test_two_messages_that_land_in_one_place_are_a_race():
    one = EXCHANGE.rounds[0][0]
    first, second = one.receives
    assert rule_of(changed(EXCHANGE, 0, 0, receives=(first, PeerMessage(second.peer, first.region)))) == "race"


def test_an_operation_that_overwrites_a_part_of_what_it_reads_is_a_race():
    shifted = LocalOperation(ChunkRun(Buffer.OUTPUT, 1, 2), ChunkRun(Buffer.OUTPUT, 0, 2))
    assert rule_of(changed(RING, 0, 0, operations=(shifted,))) == "race"


def test_an_input_that_is_not_the_programs_must_stay():
    last = len(GATHER.rounds[0]) - 1
    spoil = LocalOperation(ChunkRun(Buffer.INPUT, 0, 1), ChunkRun(Buffer.OUTPUT, 1, 1))
    assert rule_of(changed(GATHER, 0, last, operations=(*GATHER.rounds[0][last].operations, spoil))) == "input-changed"


def test_a_sum_with_nothing_is_seen():
    scratch = ChunkRun(Buffer.SCRATCH, 0, 1)
    add = LocalOperation(scratch, scratch, ChunkRun(Buffer.OUTPUT, 0, 1))
    assert rule_of(changed(RING, 0, 0, operations=(add,))) == "nothing-there"


@pytest.mark.parametrize("name", [name for name, make in RIGHT_FILES.items() if plan_of(make()).kind in CALLED])
def test_no_message_of_a_right_program_can_be_left_out(name):
    """On one side, and on both sides at once."""
    plan = plan_of(RIGHT_FILES[name]())
    program = compile_program(plan, in_place=placements(plan)[0])
    for rank, rounds in enumerate(program.rounds):
        for number, one in enumerate(rounds):
            for index, message in enumerate(one.sends):
                left = changed(program, rank, number, sends=(*one.sends[:index], *one.sends[index + 1 :]))
                rule_of(left)
                theirs = left.rounds[message.peer][number]
                order = [each for each in theirs.receives if each.peer == rank]
                mine = [each for each in one.sends if each.peer == message.peer].index(message)
                kept = tuple(each for each in theirs.receives if each is not order[mine])
                rule_of(changed(left, message.peer, number, receives=kept))

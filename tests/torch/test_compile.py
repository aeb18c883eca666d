"""Programs become rounds that cannot hang, with as few messages and operations as may be, and give the right result."""

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from taccl_py.collective import Buffer
from taccl_py.errors import InvalidArtifact, LoweringError
from taccl_py.execute.reader import read_plan
from taccl_py.pipeline.deliver import lower_and_verify
from taccl_py.torch.compile import compile_program
from taccl_py.torch.steps import ChunkRun, LocalOperation, PeerMessage, RankRound
from tests.end_to_end.machines import cases
from tests.end_to_end.test_properties import LIMITS, greedy, wishes
from tests.execute.running import placements, plan_of
from tests.instances import quiet_pulp
from tests.torch.programs import CALLED, wrong_ranks
from tests.verify.msccl.files import RIGHT_FILES, add, make_file, nop, ring_allreduce, step
from tests.verify.msccl.test_broken_files import both_send_first

pytestmark = quiet_pulp

O, S = Buffer.OUTPUT, Buffer.SCRATCH  # noqa: E741


def compiled(file, *, in_place=True):
    return compile_program(plan_of(file), in_place=in_place)


# By hand


def test_a_ring_of_three_is_what_one_would_write_by_hand():
    """Rank 0 sends chunk 0, adds its chunk 2 and then its chunk 1, which is whole then; the sums go around to where they belong."""
    program = compiled(ring_allreduce(3))
    first, second = ChunkRun(S, 0, 1), ChunkRun(S, 1, 1)
    part = [ChunkRun(O, chunk, 1) for chunk in range(3)]

    def message(peer, region):
        return (PeerMessage(peer, region),)

    assert program.rounds[0] == (
        RankRound((), message(1, part[0]), message(2, first)),
        RankRound((LocalOperation(first, part[2], first),), message(1, first), message(2, second)),
        RankRound((LocalOperation(part[1], part[1], second),), message(1, part[1]), message(2, part[0])),
        RankRound((), message(1, part[0]), message(2, part[2])),
        RankRound((), (), ()),
    )
    assert program.scratch_chunks == (2, 2, 2)


def test_a_sent_chunk_that_a_later_step_of_the_round_overwrites_leaves_as_it_was():
    """Rank 0 sends its input 0, and in the same round a copy is written over it; rank 1 must get the old one."""
    file = make_file("alltoall", 2, 2, (2, 2, 1), outofplace=0)
    add(file, 0, 1, -1, [step("s", "i1", "o0", flag=1)])
    add(file, 0, -1, 1, [step("cpy", "i0", "s0"), step("cpy", "s0", "o1", after=(0, 0)), step("r", "o1", "o1")])
    add(file, 1, 0, -1, [step("s", "i0", "o1", flag=1)])
    add(file, 1, -1, 0, [nop((0, 0)), step("r", "o0", "o0")])
    program = compiled(file)
    (round_one, *_) = program.rounds[0]
    copies = [operation for operation in round_one.operations if operation.first == ChunkRun(O, 1, 1)]
    assert [message.region for message in round_one.sends] == [copies[0].target]
    assert wrong_ranks(program, 1) == []


def test_messages_of_several_instances_become_one():
    """Two instances of a ring on finer chunks: as many messages and operations as one has, each of two chunks."""
    chunks = ring_allreduce(4)
    twice = make_file("allreduce", 4, 8, (8, 8, 0))
    for rank, gpu in enumerate(chunks.gpus):
        for channel in range(2):
            for block in gpu.blocks:
                steps = [
                    {**one, "srcoff": 2 * one["srcoff"] + channel, "dstoff": 2 * one["dstoff"] + channel}
                    for one in block.steps
                ]
                attributes = block.attributes
                add(twice, rank, attributes["send"], attributes["recv"], steps, chan=channel)
    one, two = compiled(chunks), compiled(twice)

    def counts(program):
        return [[(len(each.operations), len(each.sends)) for each in rounds] for rounds in program.rounds]

    assert counts(two) == counts(one)
    assert wrong_ranks(two, 0) == []


# Any program


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", RIGHT_FILES)
def test_right_files_give_the_right_result_in_any_order(name, seed):
    plan = plan_of(RIGHT_FILES[name]())
    for in_place in placements(plan):
        if plan.kind in CALLED:
            assert wrong_ranks(compile_program(plan, in_place=in_place), seed) == []
        else:
            with pytest.raises(InvalidArtifact, match="none of the collectives"):
                compile_program(plan, in_place=in_place)


def check_case(case, options, seed):
    """A random schedule of a random machine, lowered, compiled and run."""
    schedule = greedy(case).schedule
    if schedule.collective.kind not in CALLED:
        reject()
    try:
        text = lower_and_verify(schedule, options).text
    except LoweringError as error:
        if error.limit not in LIMITS:
            raise
        reject()
    plan = read_plan(text, "algorithm.xml", root=schedule.collective.root)
    for in_place in placements(plan):
        assert wrong_ranks(compile_program(plan, in_place=in_place), seed) == []


relaxed = settings(suppress_health_check=list(HealthCheck))


@settings(relaxed, max_examples=3)
@given(case=cases(), options=wishes(), seed=st.integers(0, 99))
def test_what_leaves_the_tool_cannot_hang_and_is_right(case, options, seed):
    check_case(case, options, seed)


# Wrong programs


def test_a_program_that_waits_for_ever_is_refused():
    """Each rank takes a message before it sends one."""
    file = make_file("allreduce", 2, 1, (1, 1, 0))
    for rank in range(2):
        add(file, rank, 1 - rank, 1 - rank, [step("rrc", "i0", "o0"), step("s", "i0", "o0")])
    with pytest.raises(InvalidArtifact, match="deadlock"):
        compiled(file)


def test_more_messages_than_a_connection_holds_are_no_reason_to_stop():
    """On GPUs both ranks would wait for a free slot; here messages are not copied into any."""
    assert wrong_ranks(compiled(both_send_first(3, proto="Simple")), 0) == []


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda file: file.step(0, 0, 1).update(type="rcs"), "wrong-result"),
        (lambda file: file.step(0, 0, 1).update(srcoff=0), "wrong-sum"),
        (lambda file: file.step(1, 0, 0).update(cnt=2), "count-mismatch"),
        (lambda file: file.step(2, 0, 0).update(srcoff=7), "outside-buffer"),
        (lambda file: file.gpus[3].blocks[0].steps.pop(), "left-over"),
    ],
)
def test_a_wrong_program_is_refused_for_what_is_wrong(change, rule):
    file = ring_allreduce(4)
    change(file)
    with pytest.raises(InvalidArtifact) as refused:
        compiled(file)
    assert [violation.rule for violation in refused.value.violations] == [rule]

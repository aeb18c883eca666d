"""Chunks of an AllReduce that always travel together become one where steps cannot carry them all."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Collective, Kind
from taccl_py.errors import InputError
from taccl_py.lowering.fold import folded, sent_steps
from taccl_py.lowering.lower import LoweringOptions, lower
from taccl_py.pipeline.deliver import lower_and_verify, replay_at
from taccl_py.runtimes import EXECUTOR, MAX_COUNT
from taccl_py.schedule.ir import Schedule
from taccl_py.verify.schedule import verify_schedule
from tests.lowering import cases
from tests.lowering.execute import execute


def in_parts(schedule: Schedule, number: int) -> Schedule:
    """The same with every chunk cut into so many, which travel together."""

    def cut(chunks):
        return tuple(chunk * number + part for chunk in chunks for part in range(number))

    return replace(
        schedule,
        collective=replace(schedule.collective, chunks_per_rank=schedule.collective.chunks_per_rank * number),
        chunk_bytes=schedule.chunk_bytes / number,
        messages=tuple(replace(message, chunks=cut(message.chunks)) for message in schedule.messages),
        scratch=tuple(map(cut, schedule.scratch)),
    )


def longest(schedule: Schedule) -> int:
    return max(len(message.chunks) for message in schedule.messages)


@settings(max_examples=60)
@given(seed=st.integers(0, 10**9), number=st.sampled_from([2, 6, 24, 72, 144]))
def test_what_is_folded_is_the_same_schedule_and_gives_the_right_result(seed, number):
    fine = in_parts(cases.random_schedule(seed, Kind.ALLREDUCE), number)
    found = folded(fine)
    together = found.collective.together
    assert (together > 1) == (longest(fine) > MAX_COUNT)
    assert longest(found) <= MAX_COUNT
    assert together == 1 or longest(fine) > MAX_COUNT * max(n for n in range(1, together) if together % n == 0)
    assert found.size_bytes == pytest.approx(fine.size_bytes)
    unfolded = in_parts(replace(found, collective=replace(found.collective, together=1)), together)
    assert [message.chunks for message in unfolded.messages] == [message.chunks for message in fine.messages]
    assert unfolded.scratch == fine.scratch
    if together > 1:
        program = lower(fine, LoweringOptions(EXECUTOR))
        assert program.num_chunks_per_loop == fine.collective.num_chunks // together
        execute(program, found, EXECUTOR, seed=seed)


def test_a_message_of_many_chunks_takes_one_step_and_pays_once():
    schedule = in_parts(cases.recursive_doubling(4), 72)
    lowered = lower_and_verify(schedule, LoweringOptions(EXECUTOR))
    assert verify_schedule(schedule) == ()
    assert longest(schedule) == 4 * 72
    assert lowered.program.num_chunks_per_loop == 4 * 72 // 6
    assert lowered.replay.makespan_us == pytest.approx(schedule.makespan_us)
    assert lowered.replay.size_bytes == pytest.approx(schedule.size_bytes)
    twice = LoweringOptions(EXECUTOR, instances=2)
    program = lower(schedule, twice)
    assert program.num_chunks_per_loop == 2 * 4 * 72 // 6
    assert replay_at(program, schedule, EXECUTOR, 2).size_bytes == pytest.approx(schedule.size_bytes)


def test_chunks_that_part_somewhere_stay_apart():
    """Rank 0's messages end at an odd chunk."""
    plan = cases.Planner(cases.full(2), Collective(Kind.ALLREDUCE, 2, 60))
    for src, ends in ((0, (0, 75, 120)), (1, (0, 80, 120))):
        plan.there_us.clear()
        for first, end in itertools.pairwise(ends):
            plan.send(src, 1 - src, *range(first, end), reduce=True)
    schedule = plan.schedule()
    assert folded(schedule).collective.together == 5
    odd = replace(schedule, messages=(*schedule.messages, replace(schedule.messages[-1], chunks=tuple(range(81, 120)))))
    assert folded(odd) is odd


def test_chunks_that_are_not_neighbours_are_folded_run_by_run():
    plan = cases.Planner(cases.full(2), Collective(Kind.ALLREDUCE, 2, 80))
    plan.send(0, 1, *range(80, 120), *range(40), reduce=True)
    assert [message.chunks for message in folded(plan.schedule()).messages] == [(*range(40, 60), *range(20))]


def test_what_steps_can_carry_and_what_belongs_to_ranks_stays_as_it_is():
    for schedule in (cases.ring_allreduce(4, 71), cases.ring_allgather(4, 144), cases.tree_reduce(144)):
        assert folded(schedule) is schedule


@pytest.mark.parametrize(("kind", "together"), [(Kind.ALLGATHER, 2), (Kind.ALLREDUCE, 0), (Kind.ALLREDUCE, 5)])
def test_collectives_whose_chunks_cannot_count_as_one_are_refused(kind, together):
    with pytest.raises(InputError, match=f"{together} chunks of {kind} on 4 ranks cannot count as one"):
        Collective(kind, 4, 2, together=together)


def test_an_allreduce_of_larger_chunks_has_the_same_data():
    collective = Collective(Kind.ALLREDUCE, 4, 3, together=6)
    assert (collective.num_chunks, collective.input_chunks, collective.output_chunks) == (2, 2, 2)
    assert collective.chunk_bytes(1200.0) == 600.0
    assert collective.permuted_chunk(0, (1, 2, 3, 0)) is None
    assert collective.describe_chunk(1) == "chunk 1"


def test_a_message_of_more_chunks_than_a_step_carries_is_sent_in_several():
    schedule = in_parts(cases.ring_allreduce(2), 2 * MAX_COUNT)
    many = [steps for steps in sent_steps(schedule)]
    assert [[len(chunks) for chunks in steps] for steps in many] == [[MAX_COUNT, MAX_COUNT]] * len(schedule.messages)
    assert [sum(steps, ()) for steps in many] == [message.chunks for message in schedule.messages]
    assert all(len(steps) == 1 for steps in sent_steps(folded(schedule)))

from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Kind
from taccl_py.errors import InputError
from taccl_py.lowering import place
from taccl_py.lowering.buffers import BufferSizes
from taccl_py.lowering.coarse import CoarseChunks, run_ends
from taccl_py.lowering.message_ends import PlacementRules
from taccl_py.lowering.order import order_events
from tests.lowering import cases


def refined(schedule, lengths):
    """The same schedule, each chunk of a shard cut into so many."""
    collective = schedule.collective
    shard, ends = collective.chunks_per_rank, [0, *accumulate(lengths)]

    def runs(chunks):
        starts = [c // shard * ends[-1] + ends[c % shard] for c in chunks]
        return tuple(s + i for c, s in zip(chunks, starts, strict=True) for i in range(lengths[c % shard]))

    return replace(
        schedule,
        collective=replace(collective, chunks_per_rank=ends[-1]),
        messages=tuple(replace(message, chunks=runs(message.chunks)) for message in schedule.messages),
        scratch=tuple(map(runs, schedule.scratch)),
    )


@settings(max_examples=300)
@given(
    st.integers(0, 10**6), st.sampled_from(list(Kind)), st.lists(st.integers(1, 4), min_size=8, max_size=8),
    st.booleans(), st.booleans(), st.booleans(), st.integers(1, 3),
)  # fmt: skip
def test_placed_in_runs_or_chunk_by_chunk_is_the_same(seed, kind, lengths, aliased, fused, staged, instances):
    schedule = cases.random_schedule(seed, kind)
    fine = refined(schedule, [lengths[i % 8] for i in range(schedule.collective.chunks_per_rank)])
    events, sizes = order_events(fine), BufferSizes(fine.collective, instances, exact=False)
    rules = PlacementRules(
        aliased, aliased and seed % 2 == 0, fused, frozenset(range(0, 99, 3)) if staged else frozenset()
    )
    found = place.place_messages(fine, events, sizes, rules)
    assert found == place._placed(fine, events, sizes, rules).actions()


def test_runs_end_where_some_list_has_no_neighbour():
    assert list(run_ends((4, 5, 6, 9, 1, 2))) == [4, 7, 9, 10, 1, 3]
    assert list(run_ends(())) == []


def test_shards_are_cut_alike():
    schedule = refined(cases.ring_allgather(3, 2), [3, 2])
    coarse = CoarseChunks.of(schedule)
    assert coarse.edges == (0, 5)  # both chunks of a rank always go together
    first, *others = schedule.messages
    apart = replace(first, chunks=first.chunks[:2], end_us=first.end_us - 0.5)
    coarse = CoarseChunks.of(replace(schedule, messages=(apart, *others)))
    assert coarse.edges == (0, 2, 5)
    assert coarse.schedule.collective.num_chunks == 6


def test_chunks_that_are_all_apart_are_left_as_they_are():
    assert CoarseChunks.of(cases.ring_allgather(3, 1)) is None


@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.ALLREDUCE])
def test_an_allreduce_is_cut_over_the_whole_buffer_and_others_in_shards(kind):
    make = {Kind.ALLGATHER: cases.ring_allgather, Kind.ALLREDUCE: cases.ring_allreduce}[kind]
    coarse = CoarseChunks.of(refined(make(4, 1), [6]))
    assert coarse.schedule.collective.num_chunks == 4
    assert coarse.edges[-1] == (24 if kind is Kind.ALLREDUCE else 6)


def test_what_is_wrong_is_told_of_the_schedules_own_chunks():
    schedule = refined(cases.ring_allgather(3, 1), [4])
    broken = replace(schedule, messages=schedule.messages[:-1])
    rules = PlacementRules(aliased=False, identical=False, fused=True)
    with pytest.raises(InputError, match=r"chunk \d+ \(of rank \d, part 0\) never comes to rank"):
        place.place_messages(broken, order_events(broken), BufferSizes(broken.collective, 1, exact=False), rules)

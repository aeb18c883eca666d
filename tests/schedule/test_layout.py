from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Address, Buffer, Collective, Kind
from taccl_py.schedule.ir import Schedule
from taccl_py.schedule.layout import (
    UntimedMessage,
    _Cells,
    _Together,
    choose_scratch,
    contiguous_runs,
    leaders_first,
    place_of,
)
from tests.instances import MB, chain, full, machine, two_nodes
from tests.simulate.cases import schedules


def together(link, *chunks, start=0.0, reduce=False):
    return UntimedMessage(link, chunks, start, start + 1.0, reduce)


def runs_of(topology, collective, *untimed):
    scratch = choose_scratch(topology, collective, untimed)
    return [message.chunks for message in contiguous_runs(topology, collective, scratch, untimed)]


# Places


def test_scratch_comes_before_output_and_output_before_input():
    scatter = Collective(Kind.SCATTER, 3)
    assert place_of(scatter, {}, 2, 0) == Address(Buffer.INPUT, 2)
    assert place_of(scatter, {}, 0, 0) == Address(Buffer.OUTPUT, 0)
    assert place_of(scatter, {0: 5}, 0, 0) == Address(Buffer.SCRATCH, 5)
    assert place_of(scatter, {}, 2, 1) is None


@settings(max_examples=40)
@given(schedules())
def test_places_are_those_of_the_schedule(schedule):
    for rank in range(schedule.topology.num_ranks):
        index = schedule.scratch_index[rank]
        for chunk in range(schedule.collective.num_chunks):
            assert place_of(schedule.collective, index, chunk, rank) == schedule.address(chunk, rank)


# Scratch


def test_only_chunks_that_pass_through_need_scratch():
    topology, collective = chain(3), Collective(Kind.SCATTER, 3)
    untimed = [together(0, 1), together(0, 2), together(1, 2)]
    assert choose_scratch(topology, collective, untimed) == ((), (2,), ())
    assert choose_scratch(topology, Collective(Kind.BROADCAST, 3), [together(0, 0), together(1, 0)]) == ((), (), ())


def test_a_group_takes_its_wanted_chunk_along_into_scratch():
    """Chunks 1 and 2 are neighbours in the root's input; rank 1 wants 1 and passes 2 on: only in scratch they are together."""
    topology, collective = chain(3), Collective(Kind.SCATTER, 3)
    untimed = [together(0, 1, 2), together(1, 2, start=1.0)]
    assert choose_scratch(topology, collective, untimed) == ((), (1, 2), ())
    assert runs_of(topology, collective, *untimed) == [(1, 2), (2,)]


def test_scratch_is_ordered_so_that_groups_to_one_rank_stay_whole():
    """AllToAll: rank 1 relays what ranks 0 and 1 send to the two ranks of the other node, one group for each of these."""
    topology = two_nodes(2, {1: (0,)})
    collective = Collective(Kind.ALLTOALL, 4)
    across = topology.links_between[1, 2][0]
    inside = topology.links_between[0, 1][0]
    onward = topology.links_between[2, 3][0]
    untimed = [together(inside, 2), together(inside, 3)]
    untimed += [together(across, 2, 6, start=1.0), together(across, 3, 7, start=2.0), together(onward, 3, 7, start=3.0)]
    scratch = choose_scratch(topology, collective, untimed)
    assert scratch[1] == (2, 6, 3, 7), "by final rank, then by origin"
    assert scratch[2][:2] == (3, 7) or scratch[2] == (2, 6, 3, 7)
    assert runs_of(topology, collective, *untimed)[2:] == [(2, 6), (3, 7), (3, 7)]


def test_groups_that_are_parts_of_each_other_stay_whole_as_they_are_named():
    """Rank 1 passes 2 and 4 on, and 3 not: in the order of numbers they would be cut."""
    topology, collective = chain(5), Collective(Kind.SCATTER, 5)
    nested = [together(0, 1, 3, 2, 4), together(1, 2, 4, start=1.0)]
    scratch = choose_scratch(topology, collective, nested, as_named=True)
    assert scratch[:3] == ((1, 3, 2, 4), (1, 3, 2, 4), (2, 4))
    runs = contiguous_runs(topology, collective, scratch, nested)
    assert [message.chunks for message in runs] == [(1, 3, 2, 4), (2, 4)]
    assert runs_of(topology, collective, *nested) != [(1, 3, 2, 4), (2, 4)]


def test_groups_that_go_on_where_others_begin_or_end_stay_whole():
    """Of 1..6 rank 1 gets the middle four together, and passes the first three and the last three on."""
    topology, collective = chain(7), Collective(Kind.SCATTER, 7)
    overlapping = [together(0, 2, 3, 4, 5), together(1, 4, 5, 6, start=1.0), together(1, 1, 2, 3, start=2.0)]
    scratch = choose_scratch(topology, collective, overlapping, as_named=True)
    assert scratch[1] == (1, 2, 3, 4, 5, 6)


@settings(max_examples=100)
@given(
    st.sampled_from([Kind.ALLTOALL, Kind.SCATTER, Kind.ALLGATHER, Kind.REDUCESCATTER]),
    st.randoms(use_true_random=False),
)
def test_cuts_are_counted_as_places_say(kind, rng):
    collective = Collective(kind, 4, rng.choice((1, 2)))
    rank, chunks = rng.randrange(4), range(collective.num_chunks)
    groups = [tuple(rng.sample(chunks, rng.randint(1, 4))) for _ in range(rng.randint(1, 6))]
    scratch = rng.sample(chunks, rng.randint(0, 4))
    index, cuts = {chunk: position for position, chunk in enumerate(scratch)}, 0
    for group in groups:
        places = sorted(place for chunk in group if (place := place_of(collective, index, chunk, rank)) is not None)
        cuts += sum(two != Address(one.buffer, one.offset + 1) for one, two in pairwise(places))
    assert _Together.of(groups, _Cells(collective, rank, ())).cuts(scratch) == cuts


def test_scratch_without_groups_is_in_order_of_number():
    topology, collective = chain(3), Collective(Kind.SCATTER, 3, 3)
    untimed = [together(0, chunk, start=-chunk) for chunk in (8, 6, 7)]
    assert choose_scratch(topology, collective, untimed)[1] == (6, 7, 8)


# Cutting


def test_neighbours_in_a_buffer_stay_together_in_buffer_order():
    assert runs_of(chain(2), Collective(Kind.BROADCAST, 2, 4), together(0, 3, 1, 2)) == [(1, 2, 3)]


def test_a_gap_cuts():
    assert runs_of(chain(2), Collective(Kind.BROADCAST, 2, 5), together(0, 4, 0, 1, 3)) == [(0, 1), (3, 4)]


def test_the_end_of_a_shard_does_not_cut_a_gathered_buffer():
    assert runs_of(full(3), Collective(Kind.ALLGATHER, 3, 2), together(0, 1, 2, 3)) == [(1, 2, 3)]


def test_neighbours_at_the_sender_are_cut_where_they_lie_apart_at_the_receiver():
    """AllToAll from rank 0 straight to rank 1: the two chunks for it are neighbours at both ends, others are not wanted."""
    topology = full(2)
    collective = Collective(Kind.ALLTOALL, 2, 2)
    assert runs_of(topology, collective, together(0, 2, 3)) == [(2, 3)]
    gathered = Collective(Kind.GATHER, 3)
    star = machine(3, full(3).links)
    link = star.links_between[1, 0][0]
    assert runs_of(star, gathered, together(star.links_between[2, 1][0], 2), together(link, 1, 2, start=1.0))[1:] == [
        (1, 2)
    ], "both wait in scratch of rank 1"


def test_pieces_of_a_group_keep_its_link_times_and_kind():
    topology, collective = chain(2), Collective(Kind.REDUCE, 2, 3, 1)
    message = UntimedMessage(0, (0, 2), 5.0, 9.0, reduce=True)
    pieces = contiguous_runs(topology, collective, ((), ()), [message])
    assert pieces == [UntimedMessage(0, (0,), 5.0, 9.0, True), UntimedMessage(0, (2,), 5.0, 9.0, True)]


def test_a_packed_group_stays_whole_in_the_order_of_an_end_where_its_chunks_are_neighbours():
    topology, collective = chain(3), Collective(Kind.SCATTER, 3, 2)
    message = UntimedMessage(0, (5, 2, 4, 3), 0.0, 1.0, packed=True)
    [group] = contiguous_runs(topology, collective, ((), (4, 5), ()), [message])
    assert (group.chunks, group.packed) == ((2, 3, 4, 5), True), "neighbours in the input of rank 0"
    [apart] = contiguous_runs(topology, collective, ((), (4, 5), ()), [replace(message, chunks=(4, 2))])
    assert (apart.chunks, apart.packed) == ((2, 4), True), "nowhere neighbours: as the receiver keeps them"
    [together] = contiguous_runs(topology, collective, ((), (4, 5), ()), [replace(message, chunks=(5, 4))])
    assert (together.chunks, together.packed) == ((4, 5), False)
    [single] = contiguous_runs(topology, collective, ((), (4, 5), ()), [replace(message, chunks=(2,))])
    assert not single.packed
    sums = replace(message, chunks=(0, 2), reduce=True)
    [added] = contiguous_runs(topology, Collective(Kind.REDUCESCATTER, 3), ((2,), (2,), ()), [sums])
    assert (added.chunks, added.packed) == ((0, 2), True)
    [*parts] = contiguous_runs(topology, collective, ((), (4, 5), ()), [replace(message, packed=False)])
    assert [part.chunks for part in parts] == [(2, 3), (4, 5)]


def test_a_chunk_without_a_place_is_our_mistake():
    with pytest.raises(ValueError, match="chunk 2 has no place on link 0->1"):
        contiguous_runs(chain(3), Collective(Kind.SCATTER, 3), ((), (), ()), [together(0, 1, 2)])


@settings(max_examples=100)
@given(schedules(), st.randoms(use_true_random=False))
def test_pieces_are_neighbours_at_both_ends_and_nothing_is_lost(schedule, rng):
    """Batches thrown together from a valid schedule's messages, whatever they were there."""
    topology, collective = schedule.topology, schedule.collective
    carried = {}
    for message in schedule.messages:
        carried.setdefault((message.link, message.reduce), []).extend(message.chunks)
    untimed = []
    for (link, reduce), chunks in carried.items():
        chunks = list(dict.fromkeys(chunks))
        rng.shuffle(chunks)
        cut = rng.randrange(len(chunks)) + 1
        untimed += [
            UntimedMessage(link, tuple(part), 0.0, 1.0, reduce) for part in (chunks[:cut], chunks[cut:]) if part
        ]
    scratch = choose_scratch(topology, collective, untimed)
    runs = contiguous_runs(topology, collective, scratch, untimed)
    assert sorted((d.link, d.reduce, chunk) for d in untimed for chunk in d.chunks) == sorted(
        (d.link, d.reduce, chunk) for d in runs for chunk in d.chunks
    )
    view = Schedule(topology, collective, MB, (), scratch)
    for run in runs:
        link = topology.links[run.link]
        for rank in (link.src, link.dst):
            places = [view.address(chunk, rank) for chunk in run.chunks]
            assert None not in places
            for one, two in pairwise(places):
                assert (one.buffer, one.offset + 1) == (two.buffer, two.offset)


# Who goes first


@given(st.lists(st.integers(1, 4), max_size=6), st.sets(st.integers(0, 20)))
def test_leaders_never_come_after_others_and_nothing_is_lost(lengths, lead):
    ends = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    runs = [tuple(range(*pair)) for pair in pairwise(ends)]
    ordered = leaders_first(runs, lead)
    assert sorted(item for run in ordered for item in run) == list(range(ends[-1]))
    assert all(two == one + 1 for run in ordered for one, two in pairwise(run))
    last_leader = max((i for i, run in enumerate(ordered) if lead & set(run)), default=0)
    first_other = min((i for i, run in enumerate(ordered) if set(run) - lead), default=len(ordered))
    assert last_leader <= first_other


def test_runs_stay_whole_where_they_can():
    assert leaders_first([(0, 1), (3,)], ()) == [(0, 1), (3,)]
    assert leaders_first([(0, 1), (3,)], {3}) == [(3,), (0, 1)]
    assert leaders_first([(0, 1), (3, 4), (6,)], {1, 6}) == [(6,), (0, 1), (3, 4)]
    assert leaders_first([(0, 1), (3, 4)], {1, 3}) == [(1,), (3, 4), (0,)]

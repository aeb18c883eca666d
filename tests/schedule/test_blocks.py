"""Blocks of chunks that always go together: where they begin, their cells, and that they change nothing but the work."""

from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Collective, Kind
from taccl_py.schedule import timing
from taccl_py.schedule.ir import block_borders
from taccl_py.schedule.layout import ChunkBlocks, UntimedMessage
from taccl_py.schedule.timing import build_schedule, find_deliveries
from tests.instances import full


def test_runs_begin_and_end_at_borders():
    assert block_borders([]) == []
    assert block_borders([(3,)]) == [3, 4]
    assert block_borders([(0, 1, 2, 5), (2, 1)]) == [0, 1, 2, 3, 5, 6]


def test_a_block_is_of_one_rank_and_no_message_cuts_it():
    allgather = Collective(Kind.ALLGATHER, 3, 4)
    messages = [UntimedMessage(0, (2, 3, 4, 5), 0.0, 1.0), UntimedMessage(1, (6, 7), 0.0, 1.0, lead=frozenset({6}))]
    blocks = ChunkBlocks.of(allgather, messages)
    assert blocks.borders == (0, 2, 4, 6, 7, 8, 12)
    assert blocks.coarse(messages[0]).chunks == (1, 2)
    assert (blocks.coarse(messages[1]).chunks, blocks.coarse(messages[1]).lead) == ((3, 4), {3})
    assert (blocks.size((1, 2)), blocks.chunks((1, 2))) == (4, (2, 3, 4, 5))


@given(kind=st.sampled_from(Kind), ranks=st.integers(2, 4), chunks=st.integers(1, 4), data=st.data())
def test_blocks_are_neighbours_where_their_chunks_are(kind, ranks, chunks, data):
    collective = Collective(kind, ranks, chunks)
    cuts = data.draw(st.sets(st.integers(0, collective.num_chunks - 1)))
    blocks = ChunkBlocks.of(collective, [UntimedMessage(0, (cut,), 0.0, 1.0) for cut in cuts])
    for rank in range(ranks):
        for fine, coarse in (
            (collective.input_address, blocks.input_address),
            (collective.output_address, blocks.output_address),
        ):
            kept = [(block, coarse(block, rank)) for block in range(len(blocks.borders) - 1)]
            for block, cell in kept:
                assert (cell is None) == (fine(blocks.borders[block], rank) is None)
            placed = [(block, cell) for block, cell in kept if cell is not None]
            for block, cell in placed:
                behind = fine(blocks.borders[block + 1] - 1, rank)
                for other, there in placed:
                    before = fine(blocks.borders[other], rank)
                    follows = (before.buffer, before.offset) == (behind.buffer, behind.offset + 1)
                    assert ((there.buffer, there.offset) == (cell.buffer, cell.offset + 1)) == follows


@st.composite
def plans(draw):
    """Some collective on a full mesh, and messages of runs of its chunks that go from whoever may have them to anyone."""
    kind, ranks = draw(st.sampled_from(Kind)), draw(st.integers(2, 4))
    collective, machine = Collective(kind, ranks, draw(st.integers(1, 6))), full(ranks)
    messages = []
    for number in range(draw(st.integers(1, 12))):
        first = draw(st.integers(0, collective.num_chunks - 1))
        last = draw(st.integers(first, min(first + 5, collective.num_chunks - 1)))
        chunks = tuple(range(first, last + 1))
        if draw(st.booleans()):
            chunks = tuple(draw(st.permutations(chunks)))
        src = draw(st.integers(0, ranks - 1)) if collective.reduces else collective.source[first]
        senders = {src} if collective.reduces else {collective.source[chunk] for chunk in chunks}
        dst = draw(st.sampled_from([rank for rank in range(ranks) if rank != src]))
        if senders == {src}:
            link = machine.links_between[src, dst][0]
            reduce = collective.reduces and draw(st.booleans())
            messages.append(UntimedMessage(link, chunks, float(number), number + 1.0, reduce))
    return machine, collective, messages


@settings(max_examples=200)
@given(plan=plans())
def test_blocks_change_nothing(plan):
    machine, collective, messages = plan
    found = build_schedule(machine, collective, 1000.0, messages)
    of = ChunkBlocks.of
    try:
        ChunkBlocks.of = staticmethod(lambda collective, _: ChunkBlocks.single(collective))
        right = build_schedule(machine, collective, 1000.0, messages)
    finally:
        ChunkBlocks.of = of
    assert found.messages == right.messages
    assert [sorted(scratch) for scratch in found.scratch] == [sorted(scratch) for scratch in right.scratch]


@given(plan=plans())
def test_deliveries_are_the_same_without_companions(plan):
    machine, _, messages = plan
    found = find_deliveries(machine, messages)
    leave_out = timing.telling_chunks
    try:
        timing.telling_chunks = lambda groups: groups
        assert find_deliveries(machine, messages) == found
    finally:
        timing.telling_chunks = leave_out

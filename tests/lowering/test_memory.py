from hypothesis import given
from hypothesis import strategies as st

from taccl_py.collective import Buffer, Collective, Kind
from taccl_py.lowering.actions import RankAction
from taccl_py.lowering.buffers import BufferSizes
from taccl_py.lowering.cells import CellRange
from taccl_py.lowering.memory import CellHistory
from taccl_py.lowering.program import Op
from tests.lowering.blocks import copy, recv, send

PER_RANK = 4


def gather(kind=Kind.ALLGATHER):
    return BufferSizes(Collective(kind, 2, PER_RANK), 1, exact=False)


def accesses(actions, geometry, *, aliased):
    memory = CellHistory(actions, geometry, aliased=aliased)
    return [memory.access(action) for action in actions]


def test_a_writer_comes_after_all_readers_since_the_last_writer():
    actions = [recv(0, "s0-3", 0), send(1, "s0", 1), send(2, "s3", 2), recv(3, "s2-4", 3), send(4, "s0-4", 4)]
    assert accesses(actions, gather(), aliased=False) == [[], [0], [0], [2, 0], [3, 0]]


def test_in_place_the_own_part_of_the_output_is_the_input():
    actions = [send(0, "i0", 0, rank=1), recv(1, "o4", 1, rank=1), recv(2, "o0", 2, rank=1)]
    assert accesses(actions, gather(), aliased=True) == [[], [0], []]
    assert accesses(actions, gather(), aliased=False) == [[], [], []]


def test_in_place_a_copy_onto_itself_only_reads():
    actions = [copy(0, "i0-3", "o4-7", rank=1), send(1, "i0-3", 0, rank=1), send(2, "o4-7", 1, rank=1)]
    assert accesses(actions, gather(), aliased=True) == [[], [], [0]]


def by_cell(actions, geometry, *, aliased):
    """The same, cell by cell."""

    def places(view, action, run):
        found = []
        for offset in range(run.first, run.end) if run else ():
            below = geometry.input_under(action.rank, offset) if view and run.buffer is Buffer.OUTPUT else None
            found.append((action.rank, run.buffer, offset) if below is None else (action.rank, Buffer.INPUT, below))
        return found

    writer, readers, answers = {}, {}, []
    for action in actions:
        before = set()
        for view in range(1 + aliased):
            read, written = places(view, action, action.reads), places(view, action, action.writes)
            written = [] if action.op is Op.COPY and read == written else written
            before |= {writer[view, place] for place in read + written if (view, place) in writer}
            before |= {reader for place in written for reader in readers.get((view, place), ())}
            for place in read:
                readers.setdefault((view, place), []).append(action.order)
            for place in written:
                writer[view, place], readers[view, place] = action.order, []
        answers.append(sorted(before - {action.order}, reverse=True))
    return answers


@st.composite
def runs(draw):
    buffer = draw(st.sampled_from(list(Buffer)))
    end = PER_RANK if buffer is Buffer.INPUT else 2 * PER_RANK
    first = draw(st.integers(0, end - 1))
    return CellRange(buffer, first, draw(st.integers(1, end - first)))


@given(
    st.lists(st.tuples(st.sampled_from([Op.COPY, Op.REDUCE, Op.SEND]), st.integers(0, 1), runs(), runs()), max_size=12),
    st.sampled_from([Kind.ALLGATHER, Kind.GATHER, Kind.ALLREDUCE]),
    st.booleans(),
)
def test_stretches_of_cells_tell_the_same_as_single_cells(drawn, kind, aliased):
    actions = [
        RankAction(order, rank, op, reads, None if op is Op.SEND else writes)
        for order, (op, rank, reads, writes) in enumerate(drawn)
    ]
    geometry = gather(kind)
    assert accesses(actions, geometry, aliased=aliased) == by_cell(actions, geometry, aliased=aliased)

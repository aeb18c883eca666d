from taccl_py.collective import Collective, Kind
from taccl_py.lowering import dependencies
from taccl_py.lowering.buffers import BufferSizes
from taccl_py.lowering.dependencies import find_dependencies
from taccl_py.lowering.program import Op
from tests.lowering.blocks import act, add, block, copy, recv, send

GEOMETRY = BufferSizes(Collective(Kind.ALLREDUCE, 2, 50), 1, exact=False)


def waits(*ranks, aliased=False):
    return find_dependencies(ranks, GEOMETRY, aliased=aliased).waits


def test_a_reader_waits_for_the_writer_and_the_next_writer_for_the_reader():
    blocks = (
        block(recv(0, "s0", 0), recv(2, "s0", 2), recv_peer=1),
        block(send(1, "s0", 1), send(3, "s0", 3), send_peer=2),
    )
    assert waits(blocks) == {1: (0,), 2: (1,), 3: (2,)}


def test_what_is_in_order_anyway_is_not_waited_for():
    blocks = (
        block(recv(0, "s0", 0), recv(1, "s1", 1), recv_peer=1),
        block(send(2, "s1", 2), send(3, "s0", 3), send_peer=2),
        block(copy(4, "s0-1", "o0-1")),
    )
    assert waits(blocks) == {2: (1,), 4: (1,)}


def test_a_step_waits_for_several_when_none_of_them_implies_another():
    blocks = (
        block(recv(0, "s0", 0), recv_peer=1),
        block(recv(1, "s1", 1), recv_peer=2),
        block(send(2, "s0-1", 2), send_peer=3),
    )
    found = find_dependencies((blocks,), GEOMETRY, aliased=False)
    assert found.waits == {2: (0, 1)}
    assert found.flagged == {0, 1}


def there_and_back(count):
    """Rank 0 sends a cell, rank 1 sends it back; it returns to where it came from."""
    cells = "s0" if count == 1 else f"s0-{count - 1}"
    here = (block(send(0, cells, 0), send_peer=1), block(recv(3, cells, 1, rank=0), recv_peer=1))
    there = (block(recv(1, cells, 0, rank=1), recv_peer=0), block(send(2, cells, 1, rank=1), send_peer=0))
    return here, there


def test_a_message_tells_what_was_done_before_it_was_sent():
    assert waits(*there_and_back(1)) == {2: (1,)}


def test_a_message_of_several_cells_is_sent_back_only_when_all_of_it_is_there():
    assert waits(*there_and_back(3)) == {2: (1,)}


def test_a_message_of_several_cells_that_is_passed_on_piece_by_piece_tells_less():
    """The first piece can return before the last one has been read."""
    here, _ = there_and_back(3)
    there = (block(act(1, Op.RECV_COPY_SEND, "", "s0-2", rank=1, arrives=0, leaves=1), recv_peer=0, send_peer=0),)
    assert waits(here, there) == {3: (0,)}
    here, _ = there_and_back(1)
    there = (block(act(1, Op.RECV_COPY_SEND, "", "s0", rank=1, arrives=0, leaves=1), recv_peer=0, send_peer=0),)
    assert waits(here, there) == {}


def test_without_clocks_of_other_ranks_everything_is_waited_for(monkeypatch):
    monkeypatch.setattr(dependencies, "_CLOCK_BUDGET", 0)
    assert waits(*there_and_back(1)) == {2: (1,), 3: (0,)}


def test_in_place_an_output_cell_must_not_be_written_before_the_input_is_read():
    blocks = (block(send(0, "i3", 0), send_peer=1), block(recv(1, "o3", 1), recv_peer=1))
    assert waits(blocks, aliased=True) == {1: (0,)}
    assert waits(blocks) == {}


def test_a_copy_onto_itself_in_place_disturbs_no_reader():
    blocks = (block(send(0, "i3", 0), send_peer=1), block(copy(1, "i3", "o3")), block(send(2, "o3", 2), send_peer=2))
    assert waits(blocks, aliased=True) == {2: (1,)}


def test_waiting_for_a_send_is_told():
    blocks = (block(send(0, "s0", 0), send_peer=1), block(recv(1, "s0", 1), recv_peer=1))
    assert find_dependencies((blocks,), GEOMETRY, aliased=False).frees_source
    blocks = (block(recv(0, "s0", 0), recv_peer=1), block(send(1, "s0", 1), send_peer=1))
    assert not find_dependencies((blocks,), GEOMETRY, aliased=False).frees_source


def flagged(*actions):
    return find_dependencies(((block(*actions),),), GEOMETRY, aliased=False).flagged


def test_reductions_of_different_length_are_not_merged():
    assert flagged(add(0, "s0-1", "o0-1"), add(1, "s2-3", "o0-1")) == set()
    assert flagged(add(0, "s0-1", "o0-1"), add(1, "s2", "o0")) == {0}
    assert flagged(add(0, "s0-1", "o0-1"), add(1, "s2", "o2")) == set()
    assert flagged(add(0, "s0-1", "o0-1"), add(1, "i2", "o0")) == set()


def test_no_more_than_fifteen_reductions_are_merged():
    assert flagged(*(add(i, f"s{i}", "o0") for i in range(15))) == set()
    assert flagged(*(add(i, f"s{i}", "o0") for i in range(31))) == {14, 29}


def test_a_chain_of_sums_waits_for_all_its_sources_first_where_waits_are_gathered():
    blocks = (
        block(recv(0, "s0", 0), recv_peer=1),
        block(recv(1, "s1", 1), recv_peer=2),
        block(add(2, "s0", "o0"), add(3, "s1", "o0")),
        block(send(4, "o0", 2), send_peer=3),
    )
    plain = find_dependencies((blocks,), GEOMETRY, aliased=False)
    assert plain.waits == {2: (0,), 3: (1,), 4: (3,)}
    gathered = find_dependencies((blocks,), GEOMETRY, aliased=False, gather=True)
    assert gathered.waits == {2: (0, 1), 4: (3,)}
    assert gathered.flagged == {0, 1, 3}


def test_sums_whose_sources_arrive_one_after_another_are_not_gathered():
    """The third one arrives with the second one."""
    arrivals = [block(recv(number, f"s{number}", number), recv_peer=number + 1) for number in range(3)]
    sums = [add(3 + number, f"s{number}", "o0", ready_us=time_us) for number, time_us in enumerate((1.0, 2.0, 2.0))]
    blocks = (*arrivals, block(*sums), block(send(6, "o0", 3), send_peer=4))
    waits = find_dependencies((blocks,), GEOMETRY, aliased=False, gather=True).waits
    assert waits == {3: (0,), 4: (1, 2), 6: (5,)}


def test_who_waits_for_a_sum_inside_a_chain_waits_for_its_end():
    """The arrival of 4 overwrites what the first sum reads."""
    blocks = (
        block(recv(0, "s0", 0), recv(4, "s0", 2), recv_peer=1),
        block(recv(1, "s1", 1), recv_peer=2),
        block(add(2, "s0", "o0"), add(3, "s1", "o0")),
    )
    assert find_dependencies((blocks,), GEOMETRY, aliased=False).waits == {2: (0,), 3: (1,), 4: (2,)}
    assert find_dependencies((blocks,), GEOMETRY, aliased=False, gather=True).waits == {2: (0, 1), 4: (3,)}


def test_sums_into_other_cells_are_no_chain():
    blocks = (
        block(recv(0, "s0", 0), recv_peer=1),
        block(recv(1, "s1", 1), recv_peer=2),
        block(add(2, "s0", "o0"), add(3, "s1", "o1")),
    )
    assert find_dependencies((blocks,), GEOMETRY, aliased=False, gather=True).waits == {2: (0,), 3: (1,)}

from taccl_py.lowering.deadlock import FifoModel, Fifos
from taccl_py.lowering.program import Op
from tests.lowering.blocks import act, block, held_up, recv, send, transfer


def exchange(count):
    """Two ranks, one threadblock each: both send before they receive."""
    cells = f"0-{count - 1}" if count > 1 else "0"
    blocks = tuple(
        (
            block(
                send(10 * rank, f"i{cells}", rank, rank=rank),
                recv(10 * rank + 1, f"o{cells}", 1 - rank, rank=rank),
                recv_peer=1 - rank, send_peer=1 - rank,
            ),
        )
        for rank in (0, 1)
    )  # fmt: skip
    return blocks, {}, (transfer(0, 1, count=count), transfer(1, 0, count=count))


def stuck(program, slots, cells_per_operation):
    return [action.order for action in Fifos(*program).stuck(FifoModel(slots, cells_per_operation))]


def test_an_exchange_needs_room_for_a_whole_step():
    assert stuck(exchange(1), 1, 1) == []
    assert stuck(exchange(4), 3, 1) == [0, 10]
    assert stuck(exchange(4), 4, 1) == []
    assert stuck(exchange(4), 2, 2) == []
    assert stuck(exchange(4), 1, 2) == [0, 10]


def test_a_ring_of_fused_steps_needs_room_for_two():
    blocks = tuple(
        (
            block(
                send(10 * r, "i0", r, rank=r),
                act(10 * r + 1, Op.RECV_COPY_SEND, "", "o0", rank=r, arrives=(r - 1) % 3, leaves=3 + r),
                recv(10 * r + 2, "o1", 3 + (r - 1) % 3, rank=r),
                recv_peer=(r - 1) % 3, send_peer=(r + 1) % 3,
            ),
        )
        for r in range(3)
    )  # fmt: skip
    transfers = tuple(transfer(r, (r + 1) % 3) for r in range(3)) * 2
    assert stuck((blocks, {}, transfers), 1, 99) == [1, 11, 21]
    assert stuck((blocks, {}, transfers), 2, 99) == []


def test_a_cycle_of_waits_is_found():
    blocks = ((block(recv(0, "s0", 0), recv_peer=1), block(send(1, "s0", 1), send_peer=1)),)
    transfers = (transfer(1, 0), transfer(0, 1))
    other = ((block(recv(2, "s0", 1, rank=1), send(3, "s0", 0, rank=1), recv_peer=0, send_peer=0)),)
    assert stuck(((*blocks, other), {1: (0,)}, transfers), 9, 9) == [0, 1, 2]
    assert stuck(((*blocks, other), {0: (1,)}, transfers), 9, 9) == []


def test_what_makes_room_wakes_the_threadblock_stopped_there():
    """Rank 0 sends three single cells through one slot; rank 1 waits for another threadblock before it takes the second."""
    sender = (block(send(0, "i0", 0), send(1, "i1", 1), send(2, "i2", 2), send_peer=1),)
    receiver = (
        block(recv(3, "o0", 0, rank=1), recv(4, "o1", 1, rank=1), recv(6, "o2", 2, rank=1), recv_peer=0),
        block(act(5, Op.COPY, "i0", "o3", rank=1)),
    )
    transfers = (transfer(0, 1),) * 3
    assert stuck(((sender, receiver), {4: (5,)}, transfers), 1, 1) == []
    assert stuck(((sender, receiver), {4: (6,)}, transfers), 1, 1) == [2, 4]


def test_a_long_chain_that_stops_at_every_operation_is_run_in_no_time():
    """Threadblocks that stop at both of their connections are woken once by each, however often they have stopped there."""
    steps, ranks, cells = 40, 6, "0-7"

    def of_rank(rank):
        first, last = rank == 0, rank == ranks - 1
        op = Op.SEND if first else Op.RECV if last else Op.RECV_COPY_SEND
        actions = [
            act(
                rank * steps + i, op, f"i{cells}" if first else "", "" if first else f"o{cells}", rank=rank,
                arrives=-1 if first else (rank - 1) * steps + i, leaves=-1 if last else rank * steps + i,
            )
            for i in range(steps)
        ]  # fmt: skip
        return (block(*actions, recv_peer=rank - 1, send_peer=-1 if last else rank + 1),)

    transfers = tuple(transfer(rank, rank + 1, count=8) for rank in range(ranks - 1) for _ in range(steps))
    assert stuck((tuple(map(of_rank, range(ranks))), {}, transfers), 2, 1) == []


def test_receives_that_are_released_bring_what_others_wait_for_when_their_memory_is_free():
    """Three cells through one slot; the second and the third wait for a copy that waits for a fourth."""
    blocks, waits, transfers = held_up()
    execution = Fifos(blocks, waits, transfers).start(FifoModel(1, 1))
    assert [action.order for action in execution.stuck()] == [2, 5, 8, 9]
    execution.release([5])
    assert [action.order for action in execution.stuck()] == [3, 6, 8, 9]
    execution.release([6])
    assert execution.stuck() == ()


def test_a_released_receive_is_not_done_before_its_memory_is_free():
    blocks, waits, transfers = held_up()
    execution = Fifos(blocks, {**waits, 8: (5,)}, transfers).start(FifoModel(1, 1))
    execution.release([5, 6])
    assert [action.order for action in execution.stuck()] == [8, 9]


def test_a_long_chain_of_released_receives_is_no_deep_one():
    """Each waits for the one before it, and the first one for what is received last."""
    number = 3000
    sender = (block(*(send(order, "i0", order) for order in range(number + 1)), send_peer=1),)
    receiver = (block(*(recv(5000 + order, "o0", order, rank=1) for order in range(number + 1)), recv_peer=0),)
    waits = {5000 + order: (5000 + order - 1,) for order in range(1, number)} | {5000: (5000 + number,)}
    execution = Fifos((sender, receiver), waits, (transfer(0, 1),) * (number + 1)).start(FifoModel(1, 1))
    execution.release(range(5000, 5000 + number))
    assert execution.stuck() == ()


def test_models_that_are_alike_share_an_answer_and_others_do_not():
    """Steps of 4 cells: two of 2 or of 3 cells are the same two operations, and one of 4 is another."""
    fifos = Fifos(*exchange(4))
    for slots in (1, 2, 4, 1):
        for cells in (5, 4, 3, 2, 1):
            model = FifoModel(slots, cells)
            assert fifos.stuck(model) == fifos.start(model).stuck()
    assert fifos.stuck(FifoModel(1, 2)) is fifos.stuck(FifoModel(1, 3))
    assert fifos.stuck(FifoModel(1, 4)) == ()
    assert len(fifos.stuck(FifoModel(1, 3))) == 2


def test_what_passes_from_hand_to_hand_needs_no_room():
    """A chain over a rank that passes on what it receives, and one transfer after the other on each connection."""
    blocks = (
        (block(send(0, "i0-3", 0), send(1, "i0-3", 2), send_peer=1),),
        (
            block(
                act(2, Op.RECV_COPY_SEND, "", "o0-3", rank=1, arrives=0, leaves=1),
                recv(3, "o4-7", 2, rank=1),
                recv_peer=0, send_peer=2,
            ),
        ),
        (block(recv(4, "o0-3", 1, rank=2), recv_peer=1),),
    )  # fmt: skip
    transfers = (transfer(0, 1, count=4), transfer(1, 2, count=4), transfer(0, 1, count=4))
    fifos = Fifos(blocks, {}, transfers)
    assert fifos.passes_hand_to_hand
    assert fifos.start(FifoModel(1, 1)).stuck() == ()
    # The last rank takes it when the first one has sent the next, which the second one takes later.
    assert not Fifos(blocks, {4: (1,)}, transfers).passes_hand_to_hand
    assert Fifos(blocks, {4: (1,)}, transfers).stuck(FifoModel(1, 1)) != ()


def test_exchanges_and_circles_do_not_pass_from_hand_to_hand():
    assert not Fifos(*exchange(1)).passes_hand_to_hand
    ring = tuple(
        (block(act(r, Op.RECV_COPY_SEND, "", "o0", rank=r, arrives=(r - 1) % 3, leaves=r), recv_peer=(r - 1) % 3, send_peer=(r + 1) % 3),)
        for r in range(3)
    )  # fmt: skip
    transfers = tuple(transfer(r, (r + 1) % 3) for r in range(3))
    assert not Fifos(ring, {}, transfers).passes_hand_to_hand
    assert Fifos(ring, {}, transfers).stuck(FifoModel(9, 9)) != ()

"""Actions and threadblocks in short notation, for tests."""

from taccl_py.collective import Buffer
from taccl_py.lowering.actions import NONE, RankAction, StepTransfer
from taccl_py.lowering.cells import CellRange
from taccl_py.lowering.program import Op
from taccl_py.lowering.threadblocks import UnfinishedThreadblock


def cells(text):
    """Cells of a text such as ``o3`` or ``s0-4``."""
    if not text:
        return None
    first, _, last = text[1:].partition("-")
    return CellRange(Buffer(text[0]), int(first), int(last or first) - int(first) + 1)


def act(order, op, reads="", writes="", *, rank=0, arrives=NONE, leaves=NONE, beside=NONE, ready_us=0.0, busy_us=0.0):
    return RankAction(
        order, rank, op, cells(reads), cells(writes), arrives, leaves, beside, ready_us=ready_us, busy_us=busy_us
    )  # fmt: skip


def send(order, reads, transfer, **kwargs):
    return act(order, Op.SEND, reads, leaves=transfer, **kwargs)


def recv(order, writes, transfer, **kwargs):
    return act(order, Op.RECV, "", writes, arrives=transfer, **kwargs)


def copy(order, reads, writes, **kwargs):
    return act(order, Op.COPY, reads, writes, **kwargs)


def add(order, reads, writes, **kwargs):
    return act(order, Op.REDUCE, reads, writes, **kwargs)


def block(*actions, recv_peer=NONE, send_peer=NONE, channel=0):
    return UnfinishedThreadblock(actions[0].rank, recv_peer, send_peer, channel, actions)


def transfer(src, dst, *, link=0, count=1, message=0, start_us=0.0, instance=0):
    return StepTransfer(message, instance, link, src, dst, count, start_us)


def held_up():
    """Rank 1 waits with its second and third receive for a copy (8) that waits for what comes fourth (7); 9 waits for the third."""
    sender = (block(*(send(order, f"i{order}", order) for order in range(4)), send_peer=1),)
    receiver = (
        block(*(recv(4 + order, f"o{order}", order, rank=1) for order in range(4)), recv_peer=0),
        block(copy(8, "i0", "o4", rank=1)),
        block(copy(9, "i1", "o5", rank=1)),
    )
    return (sender, receiver), {5: (8,), 6: (8,), 8: (7,), 9: (6,)}, (transfer(0, 1),) * 4

from taccl_py.collective import Buffer
from taccl_py.lowering.actions import NONE, RankAction, StepTransfer, cut_actions
from taccl_py.lowering.cells import CellRange
from taccl_py.lowering.program import Op


def cut(count, instances):
    send = RankAction(0, 0, Op.SEND, CellRange(Buffer.INPUT, 4, count), None, leaves=0)
    recv = RankAction(1, 1, Op.RECV, None, CellRange(Buffer.OUTPUT, 10, count), arrives=0)
    return cut_actions((send, recv), (StepTransfer(0, 0, 0, 0, 1, count, 0.0),), instances)


def test_each_instance_gets_an_equal_part_of_neighbouring_cells_at_both_ends():
    work = cut(count=3, instances=2)
    assert [(a.reads or a.writes).first for a in work.actions] == [8, 11, 20, 23]
    assert [a.count for a in work.actions] == [3, 3, 3, 3]
    assert [a.leaves for a in work.actions if a.leaves != NONE] == [0, 1]
    assert [a.arrives for a in work.actions if a.arrives != NONE] == [0, 1]
    assert [(t.instance, t.count) for t in work.transfers] == [(0, 3), (1, 3)]


def test_the_parts_of_a_message_are_all_its_cells_once():
    for count in (1, 5, 71, 72, 200):
        for instances in (1, 2, 5):
            sends = [a for a in cut(count, instances).actions if a.op is Op.SEND]
            found = [offset for a in sends for offset in range(a.reads.first, a.reads.end)]
            assert found == list(range(4 * instances, (4 + count) * instances))
            assert max(a.count for a in sends) <= 71


def test_pieces_are_nearly_equal():
    assert [a.count for a in cut(143, 1).actions if a.op is Op.SEND] == [47, 48, 48]


def test_orders_are_places_in_the_list():
    work = cut(100, 3)
    assert [a.order for a in work.actions] == list(range(len(work.actions)))


def test_local_work_stays_beside_the_part_of_its_message():
    add = RankAction(1, 1, Op.REDUCE, CellRange(Buffer.SCRATCH, 0, 2), CellRange(Buffer.OUTPUT, 0, 2), beside=0)
    work = cut_actions((add,), (StepTransfer(0, 0, 0, 0, 1, 2, 0.0),), 2)
    assert [(a.beside, a.reads.first, a.writes.first) for a in work.actions] == [(0, 0, 0), (1, 2, 2)]

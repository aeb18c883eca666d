from dataclasses import replace

import pytest

from taccl_py.collective import Buffer, Collective, Kind
from taccl_py.errors import InputError
from taccl_py.lowering.buffers import BufferSizes
from taccl_py.lowering.cells import CellRange
from taccl_py.lowering.message_ends import PlacementRules
from taccl_py.lowering.order import order_events
from taccl_py.lowering.place import place_messages
from taccl_py.lowering.program import Op
from taccl_py.schedule.layout import UntimedMessage
from taccl_py.schedule.timing import build_schedule
from tests.lowering import cases

APART = PlacementRules(aliased=False, identical=False, fused=True)
EITHER = PlacementRules(aliased=True, identical=False, fused=True)
PLAIN = PlacementRules(aliased=True, identical=False, fused=False)


def place(schedule, rules=APART):
    geometry = BufferSizes(schedule.collective, 1, exact=False)
    return place_messages(schedule, order_events(schedule), geometry, rules)


def on(actions, rank, *ops):
    return [a for a in actions if a.rank == rank and (not ops or a.op in ops)]


def inputs(first, count=1):
    return CellRange(Buffer.INPUT, first, count)


def outputs(first, count=1):
    return CellRange(Buffer.OUTPUT, first, count)


def scratch(first, count=1):
    return CellRange(Buffer.SCRATCH, first, count)


def test_first_contribution_is_added_to_the_input_and_later_ones_to_the_sum():
    actions = place(cases.tree_reduce())
    adds = on(actions, 0, Op.RECV_REDUCE_COPY)
    assert [(a.reads, a.writes) for a in adds] == [(inputs(0), outputs(0)), (outputs(0), outputs(0))]
    adds = on(actions, 1, Op.RECV_REDUCE_COPY)
    assert [(a.reads, a.writes) for a in adds] == [(inputs(0), scratch(0)), (scratch(0), scratch(0))]


@pytest.mark.parametrize("rules", [APART, EITHER])
def test_a_sum_that_is_complete_is_stored_in_the_output_at_once_though_it_was_in_scratch_before(rules):
    """Recursive halving of four ranks: chunks 0 and 1 come to rank 0 together, in scratch, and the rest of chunk 0 behind them."""
    topology = cases.full(4)
    untimed = [(rank, rank ^ 2, (2 * ((rank ^ 2) // 2), 2 * ((rank ^ 2) // 2) + 1), 0.0) for rank in range(4)]
    untimed += [(rank, rank ^ 1, (rank ^ 1,), 10.0) for rank in range(4)]
    plan = [
        UntimedMessage(topology.links_between[src, dst][0], chunks, start, start + 9.0, reduce=True)
        for src, dst, chunks, start in untimed
    ]
    actions = on(place(build_schedule(topology, Collective(Kind.REDUCESCATTER, 4), 1e6, plan), rules), 0)
    assert [(a.reads, a.writes) for a in actions if a.op is Op.RECV_REDUCE_COPY] == [
        (inputs(0, 2), scratch(0, 2)),
        (scratch(0), outputs(0)),
    ]
    assert Op.COPY not in {a.op for a in actions}


def test_without_fused_steps_a_sum_of_two_is_made_of_a_copy_and_what_arrives_beside_it():
    actions = on(place(cases.tree_reduce(), PLAIN), 0)
    assert [(a.op, a.reads, a.writes) for a in actions] == [
        (Op.COPY, inputs(0), outputs(0)),
        (Op.RECV, None, scratch(0)),
        (Op.REDUCE, scratch(0), outputs(0)),
        (Op.RECV, None, scratch(1)),
        (Op.REDUCE, scratch(1), outputs(0)),
    ]


def test_without_fused_steps_a_sum_in_scratch_of_several_begins_with_a_copy_so_that_they_can_be_added_at_once():
    actions = on(place(cases.tree_reduce(), PLAIN), 1)
    assert [(a.op, a.reads, a.writes) for a in actions if a.op is not Op.SEND] == [
        (Op.COPY, inputs(0), scratch(0)),
        (Op.RECV, None, scratch(1)),
        (Op.REDUCE, scratch(1), scratch(0)),
        (Op.RECV, None, scratch(2)),
        (Op.REDUCE, scratch(2), scratch(0)),
    ]


def test_without_fused_steps_what_arrives_alone_is_stored_and_the_own_contribution_added():
    apart = replace(PLAIN, aliased=False)
    chain = cases.Planner(cases.machine(2, [(1, 0)]), Collective(Kind.REDUCE, 2))
    chain.send(1, 0, 0, reduce=True)
    actions = on(place(chain.schedule(), apart), 0)
    assert [(a.op, a.reads, a.writes, a.beside) for a in actions] == [
        (Op.RECV, None, outputs(0), -1),
        (Op.REDUCE, inputs(0), outputs(0), 0),
    ]


def test_without_fused_steps_a_sum_that_is_only_passed_on_is_left_where_it_is_made():
    actions = on(place(cases.ring_allreduce(3), PLAIN), 0)
    assert [(a.op, a.reads, a.writes, a.beside >= 0) for a in actions] == [
        (Op.SEND, inputs(2), None, False),
        (Op.RECV, None, scratch(0), False),
        (Op.REDUCE, inputs(1), scratch(0), True),
        (Op.SEND, scratch(0), None, False),
        (Op.RECV, None, scratch(1), False),
        (Op.REDUCE, inputs(0), scratch(1), True),
        (Op.COPY, scratch(1), outputs(0), False),
        (Op.SEND, scratch(1), None, False),
        (Op.RECV, None, outputs(2), False),
        (Op.SEND, outputs(2), None, False),
        (Op.RECV, None, outputs(1), False),
    ]


def test_a_sum_that_is_sent_on_with_others_is_not_left_where_it_is_made():
    plan = cases.Planner(cases.full(2), Collective(Kind.ALLREDUCE, 2, 1))
    plan.send(1, 0, 0, reduce=True)
    plan.send(0, 1, 0, 1)
    actions = on(place(plan.schedule(), PLAIN), 0)
    assert (Op.REDUCE, scratch(0), outputs(0)) in [(a.op, a.reads, a.writes) for a in actions]
    assert actions[-1].reads == outputs(0, 2)


def test_a_sum_of_which_a_part_is_replaced_before_it_is_sent_is_not_left_where_it_is_made():
    plan = cases.Planner(cases.full(2), Collective(Kind.ALLREDUCE, 2, 1))
    plan.send(1, 0, 0, 1, reduce=True)
    plan.send(1, 0, 0)
    plan.send(0, 1, 0, 1)
    actions = on(place(plan.schedule(), PLAIN), 0)
    assert (Op.REDUCE, scratch(0, 2), outputs(0, 2)) in [(a.op, a.reads, a.writes) for a in actions]
    assert actions[-1].reads == outputs(0, 2)


def test_sums_of_which_only_a_part_is_still_in_the_input_are_made_anywhere():
    """Chunk 1 has been copied beside chunk 0 before; the rest of the message must be copied for itself."""
    plan = cases.Planner(cases.full(2), Collective(Kind.ALLREDUCE, 2, 2))
    plan.send(1, 0, 0, reduce=True)
    plan.send(0, 1, 0, 1, reduce=True)
    plan.send(1, 0, 1, 2, reduce=True)
    actions = on(place(plan.schedule(), PLAIN), 0)
    assert [(a.op, a.writes, a.beside) for a in actions if a.writes == outputs(1, 2)] == [
        (Op.REDUCE, outputs(1, 2), -1)
    ]
    assert (Op.COPY, outputs(2), -1) in [(a.op, a.writes, a.beside) for a in actions]


def test_a_sum_that_the_schedule_would_keep_in_the_input_gets_scratch():
    schedule = cases.tree_reduce(2)
    schedule = replace(schedule, scratch=((),) * 7)
    adds = on(place(schedule), 1, Op.RECV_REDUCE_COPY)
    assert [a.writes for a in adds] == [scratch(0, 2), scratch(0, 2)]


def test_a_wanted_chunk_that_is_kept_in_scratch_is_copied_to_the_output():
    schedule = replace(cases.chain_broadcast(2, 2), scratch=((), (1, 0)))
    actions = on(place(schedule), 1)
    assert [(a.op, a.reads, a.writes) for a in actions] == [
        (Op.RECV, None, scratch(1)),
        (Op.COPY, scratch(1), outputs(0)),
        (Op.RECV, None, scratch(0)),
        (Op.COPY, scratch(0), outputs(1)),
    ]


def test_own_chunks_that_are_no_neighbours_in_the_input_are_copied_to_where_they_are():
    plan = cases.Planner(cases.full(3), Collective(Kind.SCATTER, 3), scratch=[[2, 1], [2, 1], []])
    plan.send(0, 1, 2, 1)
    plan.send(1, 2, 2)
    actions = place(plan.schedule())
    assert [(a.op, a.reads, a.writes) for a in on(actions, 0)] == [
        (Op.COPY, inputs(2), scratch(0)),
        (Op.COPY, inputs(1), scratch(1)),
        (Op.COPY, inputs(0), outputs(0)),
        (Op.SEND, scratch(0, 2), None),
    ]
    assert (Op.COPY, scratch(1), outputs(0)) in [(a.op, a.reads, a.writes) for a in on(actions, 1)]


def test_early_chunks_and_all_that_travel_with_them_are_kept_from_the_output_in_place():
    """One message brings chunks (1->0, parts 0 and 1); only the cell of part 1 is still needed."""
    plan = cases.Planner(cases.full(2), Collective(Kind.ALLTOALL, 2, 2))
    plan.send(0, 1, 2)
    plan.send(1, 0, 4, 5, not_before_us=50.0)
    plan.send(0, 1, 3, not_before_us=100.0)
    actions = on(place(plan.schedule(), EITHER), 0)
    assert [(a.op, a.reads, a.writes) for a in actions[2:]] == [
        (Op.RECV, None, scratch(0, 2)),
        (Op.COPY, scratch(0), outputs(2)),
        (Op.SEND, inputs(3), None),
        (Op.COPY, scratch(1), outputs(3)),
    ]
    assert on(place(plan.schedule(), APART), 0, Op.RECV)[0].writes == outputs(2, 2)


def test_staged_messages_arrive_in_spare_scratch():
    schedule = cases.recursive_doubling(2)
    staged = replace(APART, staged=frozenset({0}))
    receiver = schedule.topology.links[schedule.messages[0].link].dst
    actions = on(place(schedule, staged), receiver)
    assert [a.op for a in actions] == [Op.COPY, Op.SEND, Op.RECV, Op.REDUCE]
    assert [a.writes for a in actions if a.op is Op.RECV] == [scratch(0, 2)]


def packed_relay():
    """Rank 1 passes a chunk of rank 0 on to rank 2 together with one of its own; they are not neighbours anywhere."""
    plan = cases.Planner(cases.full(3), Collective(Kind.ALLTOALL, 3), scratch=[[], [2], []])
    plan.send(0, 1, 2)
    plan.send(1, 2, 2, 5)
    schedule = plan.schedule()
    return replace(schedule, messages=(schedule.messages[0], replace(schedule.messages[1], packed=True)))


def test_a_packed_message_is_copied_together_before_it_is_sent():
    actions = on(place(partial(packed_relay())), 1)
    assert [(a.op, a.reads, a.writes) for a in actions[:5]] == [
        (Op.COPY, inputs(2), scratch(2)),
        (Op.COPY, inputs(1), outputs(1)),
        (Op.RECV, None, scratch(0)),
        (Op.COPY, scratch(0), scratch(1)),
        (Op.SEND, scratch(1, 2), None),
    ]


def test_a_packed_message_arrives_in_spare_scratch_only_if_its_places_are_no_neighbours():
    """Chunks from ranks 0 and 1 are neighbours in the output of rank 2, unless they come in the other order."""
    schedule = partial(packed_relay())
    assert on(place(schedule), 2, Op.RECV)[0].writes == outputs(0, 2)
    turned = replace(schedule, messages=tuple(replace(m, chunks=m.chunks[::-1]) for m in schedule.messages))
    assert [(a.op, a.reads, a.writes) for a in on(place(turned), 2, Op.RECV, Op.COPY)][1:4] == [
        (Op.RECV, None, scratch(0, 2)),
        (Op.COPY, scratch(0), outputs(1)),
        (Op.COPY, scratch(1), outputs(0)),
    ]


def test_what_a_packed_message_adds_arrives_in_spare_scratch_if_its_places_are_no_neighbours():
    plan = cases.Planner(cases.full(2), Collective(Kind.ALLREDUCE, 2))
    plan.send(1, 0, 1, 0, reduce=True)
    plan.send(0, 1, 0, 1)
    schedule = plan.schedule()
    schedule = replace(schedule, messages=tuple(replace(m, packed=m.reduce) for m in schedule.messages))
    assert [(a.op, a.reads, a.writes) for a in on(place(schedule), 0)] == [
        (Op.COPY, inputs(0, 2), outputs(0, 2)),
        (Op.RECV, None, scratch(0, 2)),
        (Op.REDUCE, scratch(0), outputs(1)),
        (Op.REDUCE, scratch(1), outputs(0)),
        (Op.SEND, outputs(0, 2), None),
    ]
    assert [(a.op, a.reads, a.writes) for a in on(place(schedule), 1)][:3] == [
        (Op.COPY, inputs(1), scratch(0)),
        (Op.COPY, inputs(0), scratch(1)),
        (Op.SEND, scratch(0, 2), None),
    ]


def test_messages_that_are_not_packed_must_be_neighbours():
    schedule = partial(packed_relay())
    with pytest.raises(InputError, match="not neighbours"):
        place(
            replace(
                schedule, messages=tuple(replace(m, chunks=m.chunks[::-1], packed=False) for m in schedule.messages)
            )
        )


def partial(schedule):
    """The schedule with the other chunks sent directly."""
    sent = {(c, schedule.topology.links[m.link].dst) for m in schedule.messages for c in m.chunks}
    collective = schedule.collective
    plan = cases.Planner(schedule.topology, collective, scratch=[list(chunks) for chunks in schedule.scratch])
    plan.free_us = [100.0] * len(plan.free_us)
    for chunk, source in enumerate(collective.source):
        for rank in collective.wanted[chunk]:
            if rank != source and (chunk, rank) not in sent:
                plan.send(source, rank, chunk)
    return replace(schedule, messages=(*schedule.messages, *plan.messages))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda s: replace(s, messages=s.messages[1:]), "does not hold"),
        (lambda s: replace(s, messages=s.messages[:1]), "never comes to rank 0"),
        (lambda s: replace(s, scratch=((), (), ())), "has no place"),
        (lambda s: replace(s, scratch=((), (5, 4, 3, 2), ())), "not neighbours"),
    ],
)
def test_schedules_that_cannot_be_carried_out_are_refused(change, what):
    with pytest.raises(InputError, match=what):
        place(change(cases.relay_gather()))

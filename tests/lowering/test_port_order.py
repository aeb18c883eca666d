"""Turns: what waits for what, and that the XML keeps the schedule's order where ports compete."""

import pytest

from taccl_py.collective import Collective, Kind
from taccl_py.lowering.lower import LoweringOptions, PortOrder, lower
from taccl_py.lowering.port_order import find_turns, latest_first
from taccl_py.lowering.program import Op
from taccl_py.runtimes import EXECUTOR, RUNTIMES
from taccl_py.schedule.layout import UntimedMessage as Hop
from taccl_py.schedule.timing import build_schedule
from taccl_py.simulate.program_replay import replay_program
from taccl_py.topology.model import Link
from taccl_py.verify.schedule import verify_schedule
from tests.instances import chain
from tests.lowering import cases
from tests.lowering.blocks import block, recv, send, transfer
from tests.lowering.cases import machine_with_ports
from tests.lowering.execute import execute

# What waits for what


def out_of_rank_0(ports_of_links):
    """Links from rank 0 to ranks 1, 2, ... with these ports."""
    links = [Link(0, i + 1, 0.0, 10.0, ports=ports) for i, ports in enumerate(ports_of_links)]
    return machine_with_ports(len(links) + 1, links, 1 + max(port for ports in ports_of_links for port in ports))


def sends_at(*starts_us, instances=None):
    """Rank 0 sends one message to each of ranks 1, 2, ... over links 0, 1, ... at these times."""
    transfers = [
        transfer(0, i + 1, link=i, message=i, start_us=start_us, instance=instances[i] if instances else 0)
        for i, start_us in enumerate(starts_us)
    ]
    order = {i: place for place, i in enumerate(sorted(range(len(starts_us)), key=starts_us.__getitem__))}
    blocks = [block(send(order[i], "i0", i), send_peer=i + 1) for i in range(len(starts_us))]
    return (tuple(blocks),), transfers


def turns(blocks, transfers, topology, wanted=PortOrder.SENDS):
    return find_turns(blocks, transfers, topology, wanted)


def test_a_send_waits_for_the_one_before_it_at_the_port():
    topology = out_of_rank_0([(0,), (0,), (0,)])
    assert turns(*sends_at(20.0, 0.0, 10.0), topology) == {1: (0,), 2: (1,)}


def test_free_order_means_no_turns():
    assert turns(*sends_at(0.0, 10.0), out_of_rank_0([(0,), (0,)]), PortOrder.FREE) == {}


def test_sends_through_different_ports_do_not_wait_for_each_other():
    assert turns(*sends_at(0.0, 5.0), out_of_rank_0([(0,), (1,)])) == {}


def test_a_send_through_two_ports_waits_for_the_last_one_at_each():
    topology = out_of_rank_0([(0,), (1,), (0, 1)])
    assert turns(*sends_at(0.0, 1.0, 10.0), topology) == {2: (1, 0)}


def test_instances_take_turns_among_themselves():
    topology = out_of_rank_0([(0,)] * 4)
    assert turns(*sends_at(0.0, 1.0, 2.0, 3.0, instances=(0, 1, 0, 1)), topology) == {2: (0,), 3: (1,)}


def test_at_a_port_that_ranks_share_each_keeps_its_own_order():
    """A rank cannot wait for another one without a message."""
    links = [Link(0, 1, 0.0, 10.0, ports=(0,)), Link(0, 2, 0.0, 10.0, ports=(0,)), Link(3, 2, 0.0, 10.0, ports=(0,))]
    transfers = [transfer(0, 1), transfer(3, 2, link=2, start_us=10.0), transfer(0, 2, link=1, start_us=20.0)]
    blocks = (
        (block(send(0, "i0", 0), send_peer=1), block(send(2, "i0", 2), send_peer=2)),
        (block(send(1, "i0", 1, rank=3), send_peer=2),),
    )
    assert turns(blocks, transfers, machine_with_ports(4, links, 1)) == {2: (0,)}


def test_receives_take_turns_only_if_that_is_wanted():
    topology = machine_with_ports(3, [Link(1, 0, 0.0, 10.0, ports=(0,)), Link(2, 0, 0.0, 10.0, ports=(0,))], 1)
    blocks = ((block(recv(3, "o1", 0), recv_peer=1), block(recv(2, "o2", 1), recv_peer=2)),)
    transfers = [transfer(1, 0, start_us=10.0), transfer(2, 0, link=1, start_us=0.0)]
    assert turns(blocks, transfers, topology, PortOrder.SENDS) == {}
    assert turns(blocks, transfers, topology, PortOrder.BOTH) == {3: (2,)}


def test_nothing_waits_for_what_comes_later_in_the_order_of_actions():
    """Sequencing may put a message that starts first behind another one; waiting for it could stop the program."""
    topology = out_of_rank_0([(0,), (0,)])
    transfers = [transfer(0, 1, start_us=0.0), transfer(0, 2, link=1, start_us=10.0)]
    blocks = ((block(send(1, "i0", 0), send_peer=1), block(send(0, "i0", 1), send_peer=2)),)
    assert turns(blocks, transfers, topology) == {}


def test_two_lists_become_one_with_the_latest_first():
    assert latest_first((3, 1), (4, 3)) == [4, 3, 1]


# What it is good for


def replayed_us(schedule, order, runtime=EXECUTOR):
    program = lower(schedule, LoweringOptions(runtime, port_order=order))
    execute(program, schedule, runtime)
    return replay_program(
        program, schedule.topology, schedule.chunk_bytes, fifo_slots=runtime.fifo_slots[program.protocol]
    ).makespan_us


@pytest.mark.parametrize(
    ("schedule", "times_us"),
    [
        (cases.urgent_relay(), {PortOrder.FREE: 30.0, PortOrder.SENDS: 20.0, PortOrder.BOTH: 20.0}),
        (
            cases.urgent_relay_at_a_shared_port(),
            {PortOrder.FREE: 35.0, PortOrder.SENDS: 30.0, PortOrder.BOTH: 30.0},
        ),
        (cases.urgent_arrival(), {PortOrder.FREE: 40.0, PortOrder.SENDS: 40.0, PortOrder.BOTH: 30.0}),
    ],
    ids=["sends", "sends at a shared port", "receives"],
)
@pytest.mark.parametrize("runtime", RUNTIMES.values(), ids=list(RUNTIMES))
def test_turns_make_the_program_as_fast_as_its_schedule(schedule, times_us, runtime):
    assert verify_schedule(schedule) == ()
    assert schedule.makespan_us == min(times_us.values())
    assert {order: replayed_us(schedule, order, runtime) for order in PortOrder} == times_us


def operations(order):
    program = lower(cases.urgent_relay(), LoweringOptions(EXECUTOR, port_order=order))
    return [step.op for gpu in program.gpus for threadblock in gpu.threadblocks for step in threadblock.steps]


def test_a_fused_step_cannot_wait_for_its_turn_to_send_so_there_is_none():
    assert Op.RECV_COPY_SEND in operations(PortOrder.FREE)
    for order in (PortOrder.SENDS, PortOrder.BOTH):
        assert not any(op.receives and op.sends for op in operations(order))


def test_threadblocks_that_share_a_link_use_it_one_after_the_other():
    """Also without ports and in free order: the first send on the second channel waits for the last one on the first."""
    topology = cases.ring(2)
    transfers = [transfer(0, 1, message=i, start_us=10.0 * i) for i in range(4)]
    first = block(send(0, "i0", 0), send(1, "i1", 1), send_peer=1)
    second = block(send(2, "i2", 2), send(3, "i3", 3), send_peer=1, channel=1)
    assert turns(((second, first),), transfers, topology, PortOrder.FREE) == {2: (1,)}


def test_more_messages_than_a_threadblock_has_steps_cost_no_time():
    """A chain of three with 200 pieces, one after the other: four threadblocks of at most 64 steps on each link."""
    topology = chain(3, alpha_us=1.0, beta_us_per_mb=10.0)
    blocks = [Hop(link, (piece,), float(piece + link), piece + link + 1.0) for piece in range(200) for link in range(2)]
    schedule = build_schedule(topology, Collective(Kind.BROADCAST, 3, 200), 1e6, blocks)
    assert schedule.makespan_us == pytest.approx(201 * 11.0)
    program = lower(schedule, LoweringOptions(EXECUTOR))
    assert program.num_channels == 4
    assert replayed_us(schedule, PortOrder.FREE) == pytest.approx(schedule.makespan_us)

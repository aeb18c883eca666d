"""TACCL as a baseline: its three stages and its lowering on problems worked out by hand, and what it was seen to do."""

import pytest

from taccl_py.baselines.taccl.contiguity import solve_contiguity
from taccl_py.baselines.taccl.method import KINDS, Effort, run_taccl, sketches_for
from taccl_py.baselines.taccl.ordering import OrderedRouting, OrderingRule, find_parents, order_hops, rule_of
from taccl_py.baselines.taccl.program import TacclMessage, build_program, sends_of
from taccl_py.baselines.taccl.routing import RoutedChunk, solve_routing
from taccl_py.baselines.taccl.view import TacclView
from taccl_py.collective import Collective, Kind
from taccl_py.errors import Infeasible
from taccl_py.lowering.msccl_xml import emit_xml
from taccl_py.runtimes import LEGACY
from taccl_py.simulate.program_replay import replay_program
from taccl_py.sketch.model import FULLY_CONNECTED, Policy, Rotation, Sketch, Strategy, SwitchGroup
from taccl_py.solvers.limits import Limits
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link
from taccl_py.verify.msccl import verify_program
from tests.instances import MB, full, machine, nodes_with_nics, two_nodes

LIMITS = Limits(seconds=20, work=2)
ONE_TRY = Effort(chunk_counts=(1,), seeds=(0,), instances=(1,))
SWAP = (Rotation("node", "machine"),)


def relayed(alpha_us):
    """Two nodes of two ranks, 10 us inside; rank 0 sends to rank 1 of the other node, alpha + 50 us for each chunk."""
    topology = two_nodes(2, {0: (1,)}, between=(alpha_us, 50.0))
    sketch = Sketch("relay", connections={0: (1,)}, rotations=SWAP)
    return TacclView.of(topology, Collective(Kind.ALLGATHER, 4), sketch, MB)


def timetable(view):
    hops = solve_routing(view, LIMITS)
    return solve_contiguity(order_hops(view, hops, find_parents(view, hops), rule_of(view)), LIMITS)


def hop_on(view, chunk, src, dst, start_us=0.0):
    return RoutedChunk(chunk, view.topology.links_between[src, dst][0], start_us)


def test_routing_balances_loads_and_knows_no_shared_alphas():
    """Both chunks of a node cross at 90 us each: T = 180, whatever else is done."""
    view = relayed(alpha_us=40.0)
    hops = solve_routing(view, LIMITS)
    links = [(view.topology.links[h.link].src, view.topology.links[h.link].dst) for h in hops]
    assert len(hops) == 12
    assert links.count((0, 3)) == links.count((2, 1)) == 2


def test_chunks_go_together_between_nodes_where_that_saves_an_alpha():
    """Alone: 90 + 90 + 10. Together: 10 to the relay, 40 + 2 * 50, then one after the other 20 on the last link."""
    assert timetable(relayed(alpha_us=40.0)).makespan_us == pytest.approx(170)


def test_chunks_go_alone_where_waiting_costs_more():
    """Alone: 54 + 54 + 10. Together: 10 + 104 + 20."""
    assert timetable(relayed(alpha_us=4.0)).makespan_us == pytest.approx(118)


def test_chunks_that_go_together_are_one_message_of_the_program():
    view = relayed(alpha_us=40.0)
    table = timetable(view)
    program = build_program(view.topology, view.collective, sends_of(table), 1)
    counts = [
        step.count for tb in program.gpus[0].threadblocks if tb.send_peer == 3 for step in tb.steps if step.op.sends
    ]
    assert counts == [2]
    assert replay_program(program, view.topology, MB, fifo_slots=8).makespan_us == pytest.approx(170)


def test_a_nic_is_split_over_all_declared_connections_used_or_not():
    """2 senders to 2 receivers each: a fourth of the NIC for each link."""
    topology = nodes_with_nics(2, 2, inside_us=1.0, across_us=5.0)
    shared = machine(
        topology.num_ranks,
        [Link(k.src, k.dst, k.alpha_us, 20.0, ports=k.ports) for k in topology.links],
        [type(p)(p.name, 1.0, 20.0) for p in topology.ports],
        node_of=topology.node_of,
    )
    view = TacclView.of(shared, Collective(Kind.ALLGATHER, 4), Sketch("all", connections=FULLY_CONNECTED), MB)
    remote = next(i for i in range(len(shared.links)) if view.is_remote(i))
    assert view.chunk_us[remote] == pytest.approx(80.0)


def test_a_relay_off_the_shortest_path_is_taken_if_the_sketch_demands_it():
    """Rank 0 has a link to where its chunk goes, but rank 1 sends for it: three hops and not one (TACCL has no answer)."""
    topology = two_nodes(3, {0: (2,), 1: (0,)})
    sketch = Sketch("far", connections={0: (2,), 1: (0,)}, relays={0: (2,), 1: (0, 1)}, rotations=SWAP)
    view = TacclView.of(topology, Collective(Kind.ALLTOALL, 6), sketch, MB)
    way = [hop for hop in solve_routing(view, LIMITS) if hop.chunk == 0 * 6 + 5]
    ends = sorted((topology.links[h.link].src, topology.links[h.link].dst) for h in way)
    assert ends == [(0, 1), (1, 3), (3, 5)]


def test_with_switches_stage_one_s_times_decide_and_the_longest_path_breaks_ties():
    topology = full(4)
    switch = SwitchGroup((0, 1, 2, 3), Policy.UC_MIN)
    view = TacclView.of(
        topology, Collective(Kind.ALLGATHER, 4), Sketch("s", strategy=Strategy.SWITCH, switches=(switch,)), MB
    )
    assert rule_of(view) is OrderingRule.LONGEST_WAY
    hops = [hop_on(view, 0, 0, 1), hop_on(view, 0, 0, 2), hop_on(view, 0, 2, 3, 10.0), hop_on(view, 1, 1, 0, -1.0)]
    plan = order_hops(view, hops, [(), (), (1,), ()], OrderingRule.LONGEST_WAY)
    assert plan.hops == (hops[3], hops[1], hops[0], hops[2])
    assert plan.after == ((), (), (), (1,))


def test_in_one_node_the_order_is_made_from_the_end():
    """Three chunks over 0 -> 1: the one that goes on goes first, of equals the one that has come farther goes last."""
    view = TacclView.of(full(4), Collective(Kind.ALLGATHER, 4), Sketch("plain"), MB)
    assert rule_of(view) is OrderingRule.FROM_THE_END
    hops = [hop_on(view, 2, 2, 0), hop_on(view, 2, 0, 1), hop_on(view, 0, 0, 1), hop_on(view, 3, 3, 0), hop_on(view, 3, 0, 1),
            hop_on(view, 3, 1, 2)]  # fmt: skip
    order = order_hops(view, hops, [(), (0,), (), (), (3,), (4,)], OrderingRule.FROM_THE_END).hops
    link = hops[1].link
    assert [hop.chunk for hop in order if hop.link == link] == [3, 0, 2]


def test_between_nodes_own_chunks_go_before_others_that_are_ready_too():
    view = relayed(alpha_us=4.0)
    assert rule_of(view) is OrderingRule.SOONEST
    back = [hop_on(view, 2, 3, 2), hop_on(view, 3, 3, 2)]
    assert [hop.chunk for hop in order_hops(view, back, [(), ()], OrderingRule.SOONEST).hops] == [2, 3]
    foreign = [hop_on(view, 0, 3, 2), hop_on(view, 3, 3, 2)]
    assert [hop.chunk for hop in order_hops(view, foreign, [(), ()], OrderingRule.SOONEST).hops] == [3, 0]


def test_at_most_six_chunks_go_together():
    """Eight chunks at one rank, 100 us + 1 us each: two messages, not one."""
    topology = machine(2, [Link(0, 1, 100.0, 1.0), Link(1, 0, 100.0, 1.0)], node_of=(0, 1))
    view = TacclView.of(topology, Collective(Kind.ALLGATHER, 2, 8), Sketch("one"), MB)
    hops = tuple(hop_on(view, chunk, 0, 1) for chunk in range(8))
    assert solve_contiguity(OrderedRouting(view, hops, ((),) * 8), LIMITS).makespan_us == pytest.approx(208)


def test_joined_threadblocks_send_and_receive_in_turn():
    """Where all sends are in one step no block does both; a relay's block does."""
    topology = full(3)
    collective = Collective(Kind.ALLGATHER, 3)
    link = {pair: lanes[0] for pair, lanes in topology.links_between.items()}
    times = {
        (0, 1): (0, 0.0),
        (0, 2): (0, 11.0),
        (1, 0): (1, 11.0),
        (1, 2): (1, 0.0),
        (2, 0): (2, 0.0),
        (2, 1): (2, 11.0),
    }
    sends = [TacclMessage(chunk, link[pair], start, start + 11) for pair, (chunk, start) in times.items()]
    program = build_program(topology, collective, sends, 1)
    # All sends are in step 0, so no block may send and receive.
    assert all((tb.send_peer < 0) != (tb.recv_peer < 0) for gpu in program.gpus for tb in gpu.threadblocks)
    relay = [TacclMessage(0, link[0, 1], 0.0, 11.0), TacclMessage(0, link[1, 2], 11.0, 22.0)]
    fused = build_program(topology, collective, relay, 1).gpus[1].threadblocks
    assert [(tb.recv_peer, tb.send_peer) for tb in fused] == [(0, 2)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("instances", [1, 3])
def test_the_verifier_accepts_its_programs(kind, instances):
    topology = two_nodes(3, {0: (1,), 1: (0,)}, between=(5.0, 50.0))
    sketch = Sketch("pair", connections={0: (1,), 1: (0,)}, rotations=SWAP)
    effort = Effort(chunk_counts=(2,), seeds=(0,), instances=(instances,))
    (attempt,) = run_taccl(topology, kind, 12 * MB, [sketch], effort, LIMITS)
    verdict = verify_program(emit_xml(attempt.program, LEGACY), LEGACY, kind=kind)
    assert not verdict.violations
    assert attempt.replayed_us > 0


def test_sums_are_the_allgather_backwards_and_allreduce_is_both():
    """Two ranks, 1 us + 10 us/MB, a share of 1 MB each: 11 us there, 11 us back."""
    (attempt,) = run_taccl(full(2), Kind.ALLREDUCE, 2 * MB, [Sketch("two")], ONE_TRY, LIMITS)
    assert attempt.predicted_us == pytest.approx(22)
    assert attempt.replayed_us == pytest.approx(22)


def test_what_it_makes_no_runnable_files_of_is_left_out():
    assert not list(run_taccl(full(2), Kind.BROADCAST, MB, [Sketch("two")], ONE_TRY, LIMITS))


def test_a_sketch_that_leaves_no_path_is_left_out():
    narrow, wide = Sketch("narrow", links={0: (1,)}), Sketch("wide")
    found = run_taccl(full(3), Kind.ALLGATHER, 3 * MB, [narrow, wide], ONE_TRY, LIMITS)
    assert [attempt.sketch for attempt in found] == ["wide"]


def test_one_node_of_ndv2_takes_as_long_as_taccl_was_seen_to_take():
    """Microsoft's release predicts 3 or 4 messages of the fast links one after the other, and its file takes 5."""
    topology = load_topology("ndv2", 1)
    sketches = sketches_for(topology)[:1]
    effort = Effort(chunk_counts=(1,), seeds=(0, 1, 2, 3), instances=(1,))
    found = list(run_taccl(topology, Kind.ALLGATHER, 8 * MB, sketches, effort, LIMITS))
    fast_us = 0.3 + 23.0
    assert {round(each.predicted_us / fast_us, 1) for each in found} <= {3.0, 4.0, 5.0}
    assert all(3 * fast_us * 0.999 <= each.replayed_us <= 6 * fast_us * 1.001 for each in found)


def test_a_link_without_one_back_in_its_lane_carries_no_sums():
    """Two links from 0 to 1, one from 1 to 0: the first lane has both directions."""
    topology = machine(2, [Link(0, 1, 1.0, 10.0), Link(0, 1, 2.0, 10.0), Link(1, 0, 3.0, 10.0)])
    view = TacclView.of(topology, Collective(Kind.ALLGATHER, 2), Sketch("plain"), MB)
    assert view.reverse_link(0, 0) == 2
    assert view.backwards().alpha_us == (3.0, 2.0, 1.0)
    with pytest.raises(Infeasible, match="no link from rank 1 to rank 0"):
        view.reverse_link(0, 1)

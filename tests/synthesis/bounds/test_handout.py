"""What comes into a node late has to be handed out there."""

import heapq
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Collective, Kind
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import DemandBounds, demand_bound
from taccl_py.synthesis.bounds.crossing import Gate, NodeClasses
from taccl_py.synthesis.bounds.demand import _BoundedDemand
from taccl_py.synthesis.bounds.handout import Handout, _HandoutSearch, _HandoutStage
from taccl_py.synthesis.bounds.knowledge import Hub
from taccl_py.synthesis.bounds.net import Net
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.hierarchy.engine import synthesize_hierarchy
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.templates.library import template_schedules
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.fabrics import rail_nodes
from taccl_py.topology.machines import formula_topology
from taccl_py.topology.model import Link, Port
from taccl_py.topology.template import instantiate
from tests.instances import MB, machine
from tests.synthesis.drawn import joined_nodes
from tests.synthesis.exhaustive import least_time_us

KINDS = (Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.ALLREDUCE, Kind.BROADCAST, Kind.REDUCE)
# Nodes of 8 ranks on a switch, 0.3 us a message; each has a NIC, 2.6 us a message.
RAILS = Hub(Gate(2.6, 20.0, 2.6), 8, 1, 8, 0.2, Gate(0.3, 5.0, 0.3), 1, (0.0, 0.3, 0.6, 0.6, 0.9, 0.9, 0.9, 0.9))


@pytest.mark.parametrize(
    ("time_us", "known"),
    [
        (0.25, 1),
        (0.5, 2),
        (0.8, 4),
        (1.5, 8),
        (2.5, 8),
        (2.68, 9),  # what its NIC brought, which started before the other rank had heard anything
        (4.7, 8 + 8 * 8),  # and everything that each NIC can have brought, one message of a whole node
        (5.1, 8 + 8 * 8),
    ],
)
def test_ranks_of_two_rounds_are_known_one_round_after_the_other(time_us, known):
    cell_us = 0.02
    found = RAILS.learned(300, cell_us, 0.0).known
    assert found[int(time_us / cell_us)] == known


def test_bytes_delay_what_is_known():
    without, with_bytes = (RAILS.learned(300, 0.04, share_mb).known for share_mb in (0.0, 0.01))
    assert (with_bytes <= without).all()
    assert with_bytes[-1] < without[-1]


@pytest.mark.parametrize(
    ("time_us", "known"),
    [(0.28, 1.0), (0.55, 1.5), (0.8, 2.0), (1.1, 2.0), (1.35, 2.5), (1.6, 3.0), (2.1, 4.0), (2.4, 4.0)],
)
def test_shares_of_one_node_come_in_messages_that_double(time_us, known):
    """0.3 us a message, 0.5 us a share, one port: a rank has two shares after one message, and more only after two of them."""
    found = RAILS.learned(300, 0.01, 0.1).known
    assert found[int(time_us / 0.01) - 1] == pytest.approx(known, abs=0.021)


@pytest.mark.parametrize(("time_us", "shares"), [(2.7, 0), (3.0, 1), (3.3, 3), (3.6, 7), (5.0, 8)])
def test_what_came_late_is_handed_out_by_messages_that_double(time_us, shares):
    """Every NIC brings one share at 2.6 us; then a rank gets one, two and four of the others' in 0.3 us each, and not more than all."""
    found = RAILS.learned(300, 0.02, 0.0, np.ones(300)).handed
    assert found[0, int(time_us / 0.02)] == shares


def test_512_ranks_hand_out_in_rounds_of_three_messages():
    """64 nodes of 8 H800, AllGather of 1 MiB: with one alpha for all that is handed out, and none for what is passed on, it is 11.0."""
    handout = Handout(
        ((RAILS.gate, 8),),
        8,
        504,
        1.6,
        0.3,
        RAILS.hears_us,
        0.3,
        RAILS,
        RAILS,
        is_sum=False,
        both_ways=False,
        reason="",
    )
    assert 11.92 < handout.at(float(1 << 20), 5.44).time_us < 12.5


def test_a_slow_link_inside_hands_out_everything_after_the_first_message():
    """Nodes of two, one NIC of 1 us and 0.5 us/MB, 1 us and 8 us/MB between the two in either direction, shares of 1 MB.

    Each of the two ranks lacks 2 MB: 4 MB together. From 1 us on the links inside bring at most (T - 2) / 4 MB, and all messages of
    the NIC until T no more than (T - 1) / 0.5 MB, each to one rank. By averages over t, what comes in late is not handed out.
    """
    gate = Gate(1.0, 0.5, 1.0)
    hub = Hub(gate, 1, 1, 2, 0.125, Gate(1.0, 8.0, 1.0), 1, (0.0, 1.0))
    handout = Handout(
        ((gate, 1),), 2, 2, 0.25, 1.0, (0.0, 1.0), 1.0, hub, hub, is_sum=False, both_ways=False, reason=""
    )
    by_hand_us = (4 + 2 / 4 + 1 / 0.5) / (1 / 4 + 1 / 0.5)
    assert handout.at(4e6, by_hand_us * 0.6).time_us >= by_hand_us * 0.85
    assert handout.at(4e6, by_hand_us * 10).time_us == 0.0  # nothing is said below what is known


@pytest.mark.parametrize("share_mb", [0.003, 0.006, 0.025])
def test_the_last_message_still_has_to_be_told_to_all(share_mb):
    """Nodes of 8 behind one NIC of 2.6 us and 100 us/MB, 0.3 us and next to nothing for bytes inside.

    All 8 shares are gathered in three doublings, go in one message, and need three doublings more; every message after that pays 2.6 us.
    If all is known to all as soon as it has come, or a little has to be handed out in the last 0.3 us, it is 0.7 to 0.9 us less.
    """
    gate = Gate(2.6, 100.0, 2.6)
    hub = Hub(gate, 1, 1, 8, 1000.0, Gate(0.3, 0.001, 0.3), 1, RAILS.hears_us)
    handout = Handout(((gate, 1),), 8, 8, 8000.0, 0.3, RAILS.hears_us, 0.3, hub, hub, False, False, "")
    by_hand_us = 0.9 + 2.6 + 8 * share_mb * 100 + 0.9
    found_us = handout.at(16 * share_mb * MB, by_hand_us * 0.5).time_us
    assert by_hand_us * 0.99 < found_us < by_hand_us * (1 + 1e-4) + 8 * 0.001 * share_mb


def test_a_port_without_a_beta_lets_no_more_through_than_has_to_come():
    """What is limited by no bytes was without limit, and no program has that."""
    ends = [(0, 3, 1.0), (1, 2, 1.0), (2, 0, 1.0), (2, 1, 1.0), (3, 2, 10.0)]
    links = [Link(src, dst, 1.0, beta, ports=(0,) if (src, dst) == (2, 0) else ()) for src, dst, beta in ends]
    topology = machine(4, links, [Port("free", 1.0, 0.0)], node_of=(0, 0, 1, 1))
    # Rank 3 has 3 MB for the others, and only the slow link.
    assert demand_bound(topology, Kind.REDUCESCATTER, 0, 4 * MB).time_us == pytest.approx(31.0)


def test_gates_without_alpha_are_left_to_other_bounds():
    gate = Gate(0.0, 0.5, 0.0)
    hub = Hub(gate, 1, 1, 2, 0.125, Gate(1.0, 8.0, 1.0), 1, (0.0, 1.0))
    assert (
        Handout(((gate, 1),), 2, 2, 0.25, 1.0, (0.0, 1.0), 1.0, hub, hub, False, False, "").at(4e6, 1.0).time_us == 0.0
    )


def test_both_ends_of_a_sum_count():
    """Two ND A100 v4 nodes, 1 MiB: bandwidth alone says 7.8 us, and messages between nodes 8.7; what we find takes 15.3."""
    bounds = DemandBounds.of(load_topology("ndv4", 2), Kind.ALLREDUCE)
    found = bounds.at(float(1 << 20))
    assert 12.0 < found.time_us < 14.2
    assert found.reason == "handing out: what comes into node 0 late is handed out there, and collected before"


def test_a_sum_of_all_is_not_known_of_much_at_once():
    """512 H800: what two rounds of nodes can sum up of one byte they cannot of many; 9.5 us if they could."""
    bounds = DemandBounds.of(formula_topology("hpn:64"), Kind.ALLREDUCE)
    assert 9.9 < bounds.crossing(float(1 << 16)).time_us < 12.9


@pytest.mark.parametrize(
    ("name", "power", "least_us", "known_us"),
    [
        ("ndv4-x8", 20, 16.1, 25.75),
        ("ndv4-x8", 21, 24.9, 39.4),
        ("ndv4-x8", 22, 43.1, 60.4),
        ("ndv4-x4", 22, 38.3, 55.0),
    ],
)
def test_what_leaves_a_node_to_be_summed_up_is_not_what_comes_in_as_sum(name, power, least_us, known_us):
    """If one message did both for every byte, 15.3, 21.0, 39.3 and 34.1 us; up to what hierarchy finds."""
    found = demand_bound(load_topology(name), Kind.ALLREDUCE, 0, float(1 << power))
    assert least_us < found.time_us < known_us
    assert found.reason == "handing out: what comes into node 0 late is handed out there, and collected before"


def test_two_nodes_may_do_with_one_message_each():
    """Of two nodes one message of each brings the other its sums, and is all that leaves it."""
    handouts = [
        next(iter(_BoundedDemand(load_topology("ndv4", nodes), Kind.ALLREDUCE, 0).handouts(cluster_of(nodes))))
        for nodes in (2, 4)
    ]
    assert [each.apart for each in handouts] == [0.0, 0.75]


def cluster_of(nodes):
    return NodeClasses.of(Net.of(load_topology("ndv4", nodes)))


def crossing_messages(schedule, chunk):
    """Messages of a chunk between nodes, by arrival: from which node, to which one, and nodes whose sums it brings."""
    node_of, links = schedule.topology.node_of, schedule.topology.links
    known = [{node_of[rank]} for rank in range(schedule.topology.num_ranks)]
    coming, found = [], []
    messages = [message for message in schedule.messages if chunk in message.chunks]
    for number, message in enumerate(sorted(messages, key=lambda message: message.start_us)):
        while coming and coming[0][0] <= message.start_us * (1 + 1e-9):
            _, _, receiver, nodes = heapq.heappop(coming)
            known[receiver] |= nodes
        link = links[message.link]
        nodes = set(known[link.src])
        heapq.heappush(coming, (message.end_us, number, link.dst, nodes))
        if node_of[link.src] != node_of[link.dst]:
            found.append((message.end_us, number, node_of[link.src], node_of[link.dst], nodes))
    return [each[2:] for each in sorted(found)]


@settings(max_examples=5)
@given(st.integers(0, 2**32))
def test_until_the_first_node_has_a_sum_all_others_have_sent_and_afterwards_all_others_receive(seed):
    rng = random.Random(seed)
    node = rail_nodes("rails", rng.choice((1, 2, 3, 4)), rng.choice((50.0, 200.0)), rng.choice((5.0, 50.0)))
    demand = Demand(instantiate(node, rng.choice((3, 4, 5))), Kind.ALLREDUCE, 10.0 ** rng.uniform(3.5, 7))
    nodes = set(range(demand.topology.num_nodes))
    for schedule in [named.schedule for named in template_schedules(demand)][:6]:
        for chunk in range(0, schedule.collective.num_chunks, max(1, schedule.collective.num_chunks // 4)):
            messages = crossing_messages(schedule, chunk)
            has, place = {node: {node} for node in nodes}, 0
            while not (complete := {node for node in nodes if has[node] == nodes}):
                _, dst, brought = messages[place]
                has[dst] |= brought
                place += 1
            others = nodes - complete
            assert {src for src, _, _ in messages[:place]} >= others
            assert {dst for _, dst, _ in messages[place:]} >= others


@pytest.mark.parametrize("share_mb", [0.002, 0.05, 1.0])
def test_sums_are_known_later_than_without_bytes_and_sooner_than_shares(share_mb):
    to_one = RAILS.learned(300, 0.04, 0.0).known
    shares = RAILS.learned(300, 0.04, share_mb).known
    sums = RAILS.learned(300, 0.04, share_mb, summed=to_one).known
    assert (np.diff(sums) >= 0).all()
    assert (shares <= sums).all()
    assert (sums <= to_one).all()
    assert (sums < to_one).any()
    assert np.array_equal(RAILS.learned(300, 0.04, share_mb, summed=np.ones(300)).known, shares)


def test_what_a_rank_needs_to_know_sums_of_much():
    """A NIC takes 2.6 + 20 us for the sums that 8 ranks make of 1 MB, so these are of no use to others before that."""
    cell_us = 0.04
    to_one = RAILS.learned(1000, cell_us, 0.0).known
    sums = RAILS.learned(1000, cell_us, 1.0, summed=to_one).known
    assert sums[int(2.5 / cell_us)] <= 1 + 2.5 / 5 * 8
    assert to_one[int(2.5 / cell_us)] == 8


def contributions_brought(schedule):
    """Of every message to another node: contributions from outside it that its sender has heard of, for each chunk on average."""
    topology, chunks = schedule.topology, schedule.collective.num_chunks
    known = [[{rank} for _ in range(chunks)] for rank in range(topology.num_ranks)]
    coming = []
    for number, message in enumerate(schedule.messages):
        while coming and coming[0][0] <= message.start_us * (1 + 1e-9):
            _, _, receiver, brought = heapq.heappop(coming)
            for chunk, contributions in brought.items():
                known[receiver][chunk] |= contributions
        link = topology.links[message.link]
        brought = {chunk: set(known[link.src][chunk]) for chunk in message.chunks}
        heapq.heappush(coming, (message.end_us, number, link.dst, brought))
        node = topology.node_of[link.dst]
        if topology.node_of[link.src] != node:
            others = [sum(topology.node_of[rank] != node for rank in each) for each in brought.values()]
            yield message, sum(others) / chunks


@settings(max_examples=3)
@given(st.integers(0, 2**32))
def test_no_message_of_a_sum_stands_for_more_than_its_sender_can_know(seed):
    rng = random.Random(seed)
    node = rail_nodes("rails", rng.choice((2, 4)), rng.choice((50.0, 200.0)), rng.choice((5.0, 50.0)))
    demand = Demand(instantiate(node, rng.choice((2, 4, 8))), Kind.ALLREDUCE, 10.0 ** rng.uniform(3.5, 7))
    schedule = synthesize_hierarchy(demand, Options(limits=Limits(seconds=0.3, workers=1)), Events()).schedule
    handout = next(
        iter(_BoundedDemand(demand.topology, Kind.ALLREDUCE, 0).handouts(NodeClasses.of(Net.of(demand.topology))))
    )
    search = _HandoutSearch(handout, demand.size_bytes / MB, schedule.makespan_us, _HandoutStage(300, 1.0, 0.1))
    for message, contributions in contributions_brought(schedule):
        cell = min(search.cells - 1, int(message.start_us / search.cell_us * (1 + 1e-9)))
        (most,) = search.told.at(slice(cell, cell + 1)).of(len(message.chunks) / schedule.collective.num_chunks)
        assert contributions / handout.others <= most * (1 + 1e-9)


@pytest.mark.parametrize(
    ("name", "least_us", "known_us"), [("ndv4-x2", 6.95, 7.65), ("ndv5-x2", 5.4, 5.83), ("dgx2-x2", 12.95, 14.79)]
)
def test_allgather_of_a_megabyte_on_two_nodes(name, least_us, known_us):
    """Up to what we know to be possible; without following what has come it is 6.83, 5.31 and 11.97 us."""
    assert least_us < demand_bound(load_topology(name), Kind.ALLGATHER, 0, float(1 << 20)).time_us < known_us


def test_backwards_it_is_the_same():
    sizes = [float(1 << power) for power in (10, 18, 20, 24)]
    forth, back = (DemandBounds.of(formula_topology("hpn:9"), kind) for kind in (Kind.ALLGATHER, Kind.REDUCESCATTER))
    times = [[bounds.crossing(size).time_us for size in sizes] for bounds in (forth, back)]
    assert times[0] == pytest.approx(times[1], rel=5e-3)
    assert times[0] == sorted(times[0])


def test_what_the_other_node_of_a_broadcast_gets_late_is_handed_out():
    """Two ND A100 v4 nodes, 1 MiB: bandwidth alone says 8.1 us, the best that we know takes 14.7."""
    for kind, what in (
        (Kind.BROADCAST, "comes into node 1 late is handed out"),
        (Kind.REDUCE, "leaves node 1 early is collected"),
    ):
        found = DemandBounds.of(load_topology("ndv4", 2), kind, root=3).at(float(1 << 20))
        assert 10.4 < found.time_us < 12.0
        assert found.reason == f"handing out: what {what} there"


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.integers(1, 3), st.sampled_from([MB / 20, MB / 5, MB]))
def test_no_order_of_messages_of_a_broadcast_is_faster(seed, chunks, chunk_bytes):
    """Every order of messages with any chunks together is tried."""
    rng = random.Random(seed)
    topology = joined_nodes(rng, 2, rng.choice((2, 2, 3)), (0.5, 1.0, 3.0), (1.0, 10.0))
    collective = Collective(Kind.BROADCAST, topology.num_ranks, chunks, rng.randrange(topology.num_ranks))
    best_us = least_time_us(Problem.build(topology, collective, None, chunk_bytes), batches=True, most=2_000)
    if best_us is not None:
        size_bytes = chunk_bytes * collective.chunks_per_size
        assert demand_bound(topology, Kind.BROADCAST, collective.root, size_bytes).time_us <= best_us * (1 + 1e-9)


@settings(max_examples=6)
@given(st.integers(0, 2**32), st.sampled_from(KINDS))
def test_no_template_on_rails_is_faster(seed, kind):
    rng = random.Random(seed)
    node = rail_nodes("rails", rng.choice((2, 3, 4)), rng.choice((10.0, 50.0, 200.0)), rng.choice((5.0, 25.0)))
    demand = Demand(instantiate(node, rng.choice((2, 3, 4))), kind, 10.0 ** rng.uniform(3, 7))
    bound_us = demand_bound(demand.topology, kind, 0, demand.size_bytes).time_us
    for named in template_schedules(demand):
        assert bound_us <= named.schedule.makespan_us * (1 + 1e-9), named.name


@pytest.mark.parametrize(
    ("name", "kind", "power"),
    [
        *(("hpn:3", kind, 20) for kind in KINDS[::2]),
        *(("ndv4-x2", kind, 20) for kind in KINDS[1::2]),
        ("hpn:3", Kind.ALLREDUCE, 16),
        pytest.param("ndv4-x4", Kind.ALLREDUCE, 21, marks=pytest.mark.slow),
    ],
)
def test_the_pipelines_of_hierarchy_are_not_faster(name, kind, power):
    demand = Demand(load_topology(name), kind, float(1 << power))
    found = synthesize_hierarchy(demand, Options(limits=Limits(seconds=1.0, workers=1)), Events())
    assert demand_bound(demand.topology, kind, 0, demand.size_bytes).time_us <= found.schedule.makespan_us * (1 + 1e-9)


def test_what_is_known_never_falls():
    known = RAILS.learned(300, 0.04, 0.002).known
    assert (np.diff(known) >= 0).all()


def test_what_stands_for_all_gates_costs_no_more_than_any():
    assert Gate.quickest([Gate(1.0, 20.0, 3.0), Gate(2.0, 10.0, 2.5), Gate(1.5, 30.0, 4.0)]) == Gate(1.0, 10.0, 2.5)

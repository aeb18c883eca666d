"""Few messages between nodes, before which data is gathered and behind which it is handed out."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Collective, Kind
from taccl_py.errors import TacclError
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import DemandBounds, demand_bound, message_bound
from taccl_py.synthesis.bounds.crossing import Crossing, Gate, NodeClasses
from taccl_py.synthesis.bounds.net import Net
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.milp import synthesize_milp
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.templates.library import template_schedules
from taccl_py.topology.catalog import load_topology
from tests.instances import MB, quiet_pulp
from tests.synthesis.drawn import joined_nodes
from tests.synthesis.exhaustive import least_time_us

pytestmark = quiet_pulp

EVERYONE = (Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.ALLREDUCE, Kind.ALLTOALL)


def crossing(name, kind, size_bytes=1e-3):
    return DemandBounds.of(load_topology(name), kind).crossing(size_bytes)


@pytest.mark.parametrize("kind", EVERYONE)
def test_one_nic_a_node_sends_one_message_that_holds_everything(kind):
    """Two steps of 0.3 us to the NIC's rank and as many from the other one, 2.6 across."""
    bound = crossing("ndv2-x2", kind)
    assert bound.time_us == pytest.approx(0.6 + 2.6 + 0.6)
    assert bound.reason == "crossing: messages of 64 pairs of ranks into node 0, gathered before and handed out behind"


@pytest.mark.parametrize("kind", EVERYONE)
def test_a_nic_for_each_rank_divides_the_pairs(kind):
    """64 pairs through 8 NICs are 8 for each message: three doublings of 0.3 us, before or behind it."""
    assert crossing("ndv4-x2", kind).time_us == pytest.approx(2.6 + 0.9)


@pytest.mark.parametrize("name", ["ndv4-x2", "dgx2-x2", "ndv4-x3"])
def test_the_ways_into_a_node_are_its_nics(name):
    """Between two nodes the other one's NICs cost as much: mixed with its own they would be nine ways, and none of them full."""
    cluster = NodeClasses.of(Net.of(load_topology(name)))
    for machine in (cluster, cluster.reversed()):
        assert [len(machine.gates(frozenset({node}))) for node in range(2)] == [8, 8]


def test_two_ranks_a_nic_need_a_doubling_more():
    """256 pairs through 8 NICs are 32 for each message: five doublings."""
    assert crossing("dgx2-x2", Kind.ALLGATHER).time_us == pytest.approx(2.6 + 1.5)


def test_the_second_message_of_a_nic_brings_what_other_nodes_sent():
    """Four nodes, one NIC each: gathered in 0.6 us, two messages one after the other, handed out in 0.6 us."""
    assert crossing("ndv2-x4", Kind.ALLREDUCE).time_us == pytest.approx(0.6 + 2 * 2.6 + 0.6)


def test_three_messages_are_needed_where_two_cannot_hold_the_chunks():
    """192 pairs, at most 71 in a message: gathered in two steps, as 40 in the first of three would leave 152; the last is handed out."""
    bounds = DemandBounds.of(load_topology("ndv2-x4"), Kind.ALLTOALL)
    bound = bounds.crossing(1024.0, most_chunks=71)
    # 32 bytes for each pair, 105 us for a MB.
    assert bound.time_us == pytest.approx(0.6 + 3 * 2.6 + 192 * 32 * 105e-6 + 0.3)
    assert bound.reason.endswith("with at most 71 chunks in each")
    assert bound.time_us == message_bound(load_topology("ndv2-x4"), Kind.ALLTOALL, 1024.0, 71).time_us
    assert bounds.crossing(1024.0, most_chunks=192) == bounds.crossing(1024.0)


def test_alphas_of_many_messages_and_all_bytes_follow_each_other():
    """In AllToAll 960 pairs cross through 8 NICs, 16 in a message: one NIC takes 8 messages of 2.6 us and 120 pairs of 2 KiB."""
    topology = load_topology("hpn:16")
    bound = message_bound(topology, Kind.ALLTOALL, 2.0**18, 16)
    bytes_us = 120 * 2048 * 20e-6
    assert bound.time_us == pytest.approx(8 * 2.6 + bytes_us)
    # There is time for more messages than are looked at one by one; more are no help.
    larger = message_bound(topology, Kind.ALLTOALL, 2.0**23, 16)
    assert larger.time_us == pytest.approx(8 * 2.6 + 32 * bytes_us)
    # By hand: 64 pairs through one port, 4 in a message, are 16 messages of 1 us; each pair is 1 MB.
    free = Crossing(((Gate(1.0, 0.0, 1.0), 1),), (0.0,) * 8, (0.0,) * 8, 64, 1 / 64, 1, "by hand")
    assert free.at(64e6, most_chunks=4).time_us == pytest.approx(16.0)
    heavy = replace(free, gates=((Gate(1.0, 0.5, 1.0), 1),))
    assert heavy.at(64e6, most_chunks=4).time_us == pytest.approx(16.0 + 64 * 0.5)


def test_a_sum_is_one_chunk_however_many_add_to_it():
    bounds = DemandBounds.of(load_topology("ndv2-x4"), Kind.ALLREDUCE)
    assert bounds.at(1024.0, most_chunks=1) == bounds.at(1024.0)
    assert message_bound(load_topology("ndv2-x4"), Kind.ALLREDUCE, 1024.0, 1).time_us == 0.0


# The NIC takes 105 us for a MB. AllGather: half of the size crosses; AllToAll: 64 of 16 x 16 parts, each a 16th of the size.
@pytest.mark.parametrize(
    ("kind", "share"), [("allgather", 1 / 2), ("reducescatter", 1 / 2), ("allreduce", 1.0), ("alltoall", 64 / 16)]
)
def test_bytes_count_beside_the_alphas(kind, share):
    assert crossing("ndv2-x2", Kind(kind), 1000.0).time_us == pytest.approx(3.8 + 105 * share / 1000)


def test_one_node_and_a_root_have_no_such_bound():
    assert crossing("dgx1", Kind.ALLGATHER).time_us == 0.0
    assert crossing("ndv2-x2", Kind.BROADCAST).time_us == 0.0


def test_more_data_never_lowers_it():
    for kind in EVERYONE:
        bounds = DemandBounds.of(load_topology("ndv2-x4"), kind)
        times = [bounds.crossing(float(size)).time_us for size in (0, 1, 10**3, 10**5, 10**7, 10**9)]
        assert times == sorted(times)


@settings(max_examples=15)
@given(
    st.integers(0, 2**32),
    st.sampled_from([*EVERYONE, Kind.BROADCAST, Kind.REDUCE]),
    st.sampled_from([1.0, MB / 10, MB]),
)
def test_no_template_on_joined_nodes_is_faster(seed, kind, size_bytes):
    rng = random.Random(seed)
    topology = joined_nodes(rng, rng.choice((1, 2, 3, 4)), rng.choice((2, 2, 3, 4)), (0.5, 1.0, 3.0), (0.0, 1.0, 10.0))
    demand = Demand(topology, kind, size_bytes)
    bound_us = demand_bound(topology, kind, 0, size_bytes).time_us
    for named in template_schedules(demand):
        assert bound_us <= named.schedule.makespan_us * (1 + 1e-9), named.name


@settings(max_examples=15)
@given(st.integers(0, 2**32), st.sampled_from([Kind.ALLGATHER, Kind.BROADCAST]), st.sampled_from([1.0, MB]))
def test_nothing_at_all_is_faster_on_two_small_nodes(seed, kind, chunk_bytes):
    """Every order of messages with any chunks together is tried."""
    rng = random.Random(seed)
    topology = joined_nodes(
        rng, 2, rng.choice((2, 2, 3)) if kind is Kind.BROADCAST else 2, (0.5, 1.0, 3.0), (1.0, 10.0)
    )
    collective = Collective(kind, topology.num_ranks)
    best_us = least_time_us(Problem.build(topology, collective, None, chunk_bytes), batches=True, most=4_000)
    if best_us is not None:
        size_bytes = chunk_bytes * collective.chunks_per_size
        assert demand_bound(topology, kind, 0, size_bytes).time_us <= best_us * (1 + 1e-9)


@settings(max_examples=10)
@given(st.integers(0, 2**32), st.sampled_from(EVERYONE), st.sampled_from([1.0, MB / 10]))
def test_no_template_is_faster_than_the_bound_for_its_longest_message(seed, kind, size_bytes):
    rng = random.Random(seed)
    topology = joined_nodes(rng, rng.choice((2, 3, 4)), rng.choice((2, 3, 4)), (0.5, 1.0, 3.0), (0.0, 1.0, 10.0))
    for named in template_schedules(Demand(topology, kind, size_bytes, chunks_per_rank=1)):
        longest = max(len(message.chunks) for message in named.schedule.messages)
        bound_us = message_bound(topology, kind, size_bytes, longest).time_us
        assert bound_us <= named.schedule.makespan_us * (1 + 1e-9), named.name


@settings(max_examples=15)
@given(st.integers(0, 2**32), st.sampled_from([1.0, MB]))
def test_nothing_is_faster_with_chunks_that_travel_alone(seed, chunk_bytes):
    topology = joined_nodes(random.Random(seed), 2, 2, (0.5, 1.0, 3.0), (1.0, 10.0))
    collective = Collective(Kind.ALLGATHER, topology.num_ranks)
    best_us = least_time_us(Problem.build(topology, collective, None, chunk_bytes), batches=False, most=4_000)
    if best_us is not None:
        bounds = DemandBounds.of(topology, Kind.ALLGATHER)
        assert bounds.at(chunk_bytes * collective.chunks_per_size, most_chunks=1).time_us <= best_us * (1 + 1e-9)


@settings(max_examples=6)
@given(st.integers(0, 2**32), st.sampled_from(EVERYONE))
def test_no_engine_is_faster_on_small_nodes(seed, kind):
    rng = random.Random(seed)
    topology = joined_nodes(rng, 2, 2, (0.5, 1.0, 3.0), (1.0, 10.0))
    demand = replace(Demand(topology, kind, 1000.0), chunks_per_rank=1)
    try:
        found = synthesize_milp(demand, Options(limits=Limits(seconds=0.05, by_work=True)), Events())
    except TacclError:
        return
    assert demand_bound(topology, kind, 0, 1000.0).time_us <= found.schedule.makespan_us * (1 + 1e-9)

"""Broadcast in stripes: who tells whom, and what it costs."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Kind
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.catalog import load_engine
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.hierarchy.cluster import LaneCluster
from taccl_py.synthesis.hierarchy.rooted import CIRCULANT
from taccl_py.synthesis.hierarchy.stripes import striped, stripes_pipeline
from taccl_py.synthesis.templates.fitting import fitted
from taccl_py.synthesis.templates.messages import TemplatePlan
from taccl_py.synthesis.templates.site import TemplateSite
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.template import AlphaBeta, Nic, NodeSwitch, NodeTemplate, join_nodes
from taccl_py.verify.schedule import verify_schedule
from tests.instances import nodes_with_nics, two_nodes

MIB, GIB = 1 << 20, 1 << 30


def cluster_of(topology, size_bytes=MIB):
    return LaneCluster.of(TemplateSite(topology, size_bytes))


def gets_everywhere_once(pipeline):
    """Whether every rank but the root is sent each chunk, once, by one that has it."""
    has = {(pipeline.root, chunk) for chunk in range(pipeline.num_chunks)}
    for message in pipeline.messages():
        assert (message.src, *message.chunks) in has
        assert (message.dst, *message.chunks) not in has
        has.add((message.dst, *message.chunks))
    return len(has) == pipeline.site.topology.num_ranks * pipeline.num_chunks


@given(st.integers(2, 6), st.integers(2, 4), st.data())
@settings(max_examples=40)
def test_every_piece_of_every_stripe_gets_everywhere_once(nodes, ranks, data):
    cluster = cluster_of(nodes_with_nics(nodes, ranks, 0.5, 1.0))
    root = data.draw(st.integers(0, nodes * ranks - 1))
    stripes = data.draw(st.sampled_from(striped(cluster)))
    pipeline = stripes_pipeline(cluster, stripes, root, MIB).best(3 * ranks)
    assert pipeline.pieces == 3
    assert gets_everywhere_once(pipeline)


def node(ranks):
    everyone = tuple(range(ranks))
    return NodeTemplate(
        f"of-{ranks}", "", "", ranks,
        switches=(NodeSwitch("switch", everyone, AlphaBeta(0.5, 1.0)),) if ranks > 1 else (),
        nics=tuple(Nic(f"ib{rank}", (rank,), AlphaBeta(2.0, 40.0)) for rank in everyone),
    )  # fmt: skip


@given(st.lists(st.integers(1, 4), min_size=2, max_size=5).filter(lambda sizes: len({*sizes}) > 1), st.data())
@settings(max_examples=40)
def test_nodes_with_fewer_ranks_have_several_places_at_a_rank(sizes, data):
    cluster = cluster_of(join_nodes([node(size) for size in sizes], "uneven"))
    places, root = max(sizes), data.draw(st.integers(0, sum(sizes) - 1))
    variants = striped(cluster)
    assert variants
    assert not any(stripes.returns for stripes in variants)
    pipeline = stripes_pipeline(cluster, data.draw(st.sampled_from(variants)), root, MIB).best(2 * places)
    assert gets_everywhere_once(pipeline)


def test_stripes_of_a_larger_node_come_to_all_of_its_ranks():
    """A DGX-2 gets a sixteenth of the data at each of 16 ranks, two behind each NIC, and an ND H100 v5 node an eighth at each of eight."""
    topology = load_topology("ndv5+dgx2")
    cluster = cluster_of(topology)
    messages = stripes_pipeline(cluster, striped(cluster)[0], 0, MIB).best(16).messages()
    across = Counter(
        message.dst for message in messages if topology.node_of[message.src] != topology.node_of[message.dst]
    )
    assert across == dict.fromkeys(range(8, 24), 1)


def test_where_the_roots_own_stripe_comes_back_nobody_sends_or_gets_a_piece_more_than_others_inside():
    topology = load_topology("hpn:4")
    cluster = cluster_of(topology)
    chain, back = striped(cluster)[:2]
    counts = {}
    for stripes in (chain, back):
        messages = stripes_pipeline(cluster, stripes, 3, MIB).best(7 * 8).messages()
        inside = [message for message in messages if topology.node_of[message.src] == topology.node_of[message.dst]]
        counts[stripes.returns] = (
            max(Counter(message.dst for message in inside).values()),
            sum(topology.node_of[message.dst] == 0 for message in messages if message not in inside),
        )
    # Of seven pieces of eight stripes each rank gets seven stripes over NVSwitch, and the root's node the eighth over seven NICs.
    assert counts[True] == (7 * 7, 7 * 7)
    # Else those of the root's node get all eight from each other.
    assert counts[False] == (8 * 7, 0)


def test_ranks_that_are_not_all_linked_have_no_stripes():
    assert striped(cluster_of(two_nodes(2, {0: [0], 1: [1]})))
    assert not striped(cluster_of(two_nodes(2, {0: [0]})))
    assert not striped(cluster_of(load_topology("ndv2", 2)))


def test_planned_times_are_those_of_the_schedule():
    demand = Demand(load_topology("mi300x", 2), Kind.BROADCAST, GIB)
    cluster = cluster_of(demand.topology, GIB)
    pipeline = stripes_pipeline(cluster, striped(cluster)[1], 0, GIB).best(None)
    schedule = fitted(demand, TemplatePlan(pipeline.num_chunks, pipeline.messages()))
    assert schedule.makespan_us == pytest.approx(pipeline.end_us)
    assert verify_schedule(schedule) == ()


@pytest.mark.parametrize("machine", ["ndv5-x5", "ndv4-x8"])
def test_a_circulant_keeps_its_rounds(machine):
    demand = Demand(load_topology(machine), Kind.BROADCAST, 16 * MIB)
    cluster = cluster_of(demand.topology, 16 * MIB)
    stripes = next(each for each in striped(cluster) if each.between == CIRCULANT and not each.returns)
    pipeline = stripes_pipeline(cluster, stripes, 0, 16 * MIB).best(None)
    plan = TemplatePlan(pipeline.num_chunks, pipeline.messages())
    schedule = fitted(demand, plan, promised_us=pipeline.end_us)
    assert schedule.makespan_us == pytest.approx(pipeline.end_us, rel=0.01)
    # What comes late holds up what is there, or pieces overtake each other.
    assert fitted(demand, plan).makespan_us > schedule.makespan_us * 1.1
    assert verify_schedule(schedule) == ()


@pytest.mark.parametrize(
    ("kind", "machine", "nodes", "most_us"),
    [
        # An eighth through each link inside, 128 MiB at 50 GB/s, takes 2797 us, in 64 pieces 45 more, and the first one two
        # messages more. Handed out by others in the root's node: 3337.
        (Kind.BROADCAST, "mi300x", 2, 2940),
        (Kind.REDUCE, "mi300x", 2, 2940),
        # 7/8 at 200 GB/s in are 4697 us. Without the way back 5652.
        pytest.param(Kind.BROADCAST, "hpn:4", None, 5160, marks=pytest.mark.slow),
    ],
)
def test_large_buffers_go_in_stripes(kind, machine, nodes, most_us):
    demand = Demand(load_topology(machine, nodes), kind, GIB)
    answer = load_engine("hierarchy")(demand, Options(limits=Limits(seconds=1.0, by_work=True)), Events())
    assert answer.schedule.makespan_us <= most_us


def test_pieces_leave_one_period_after_the_other():
    cluster = cluster_of(load_topology("mi300x", 2), GIB)
    messages = stripes_pipeline(cluster, striped(cluster)[1], 0, GIB).best(8 * 8).messages()
    first = [min(m.start for m in messages if m.chunks[0] // 8 == piece) for piece in range(8)]
    periods = [later - earlier for earlier, later in pairwise(first)]
    assert periods == pytest.approx([periods[0]] * 7)

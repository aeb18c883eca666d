"""Rounds between nodes, and times of outlines worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl_py.synthesis.hierarchy.cluster import LaneCluster
from taccl_py.synthesis.hierarchy.outline import Outline, Peer, RankLoad, inside_steps, rounds_to_hear, timeline
from taccl_py.synthesis.hierarchy.stages import Stage, schedule_stages
from taccl_py.synthesis.templates.patterns import DIRECT, DOUBLING
from taccl_py.synthesis.templates.site import TemplateSite
from taccl_py.topology.catalog import load_topology


@given(st.integers(2, 200), st.integers(1, 16))
def test_every_way_brings_every_block_once_from_a_node_that_has_it(nodes, lanes):
    for rounds in rounds_to_hear(nodes, lanes):
        has = {0}
        for peers in rounds:
            brought = [peer.back + block for peer in peers for block in range(peer.blocks)]
            assert not has & set(brought)
            assert len(set(brought)) == len(brought)
            # The node so many places back has the same blocks, counted from itself.
            assert all(set(range(peer.blocks)) <= has for peer in peers)
            has |= set(brought)
        assert has == set(range(nodes))


def test_fewest_messages_are_doublings_and_fewest_rounds_is_one():
    ways = rounds_to_hear(4)
    assert tuple(Peer(back, 1) for back in (1, 2, 3)) in [way[0] for way in ways if len(way) == 1]
    assert ((Peer(1, 1),), (Peer(2, 2),)) in ways
    assert ((Peer(1, 1),), (Peer(2, 1),), (Peer(3, 1),)) in ways  # the last round is short


def test_eight_lanes_share_out_what_is_left_for_the_last_round_evenly():
    """8 of 63 other nodes in the first round, and of the other 55 each lane brings 7 or 6."""
    even = [way for way in rounds_to_hear(64, 8) if [len(peers) for peers in way] == [8, 8]]
    assert [[sorted(peer.blocks for peer in peers) for peers in way] for way in even] == [[[1] * 8, [6] + [7] * 7]]


def test_a_short_last_round_takes_the_same_from_every_lane():
    """33 nodes over four lanes: 1 + 4 + 20 are known after two rounds, and half of the other 8 come last, one from each peer."""
    ways = rounds_to_hear(33, 4)
    short = [way for way in ways if [len(peers) for peers in way] == [4, 4, 4, 4]]
    assert any([peer.blocks for peer in way[-1]] == [1, 1, 1, 1] for way in short)


def test_what_has_the_longest_way_to_go_starts_first():
    stages = [Stage((5.0,), 0, ()), Stage((1.0,), 0, ()), Stage((9.0,), 1, (1,)), Stage((2.0, 2.0), 0, (2,))]
    assert schedule_stages(stages) == 1 + 9 + 4
    assert [stage.start_us for stage in stages] == [1.0, 0.0, 1.0, 10.0]
    assert stages[3].starts_us() == [10.0, 12.0]


def test_resources_of_stages_have_any_numbers():
    """Neither -1 nor the largest number stands for another resource: both stages after the first begin at its end."""
    stages = [Stage((1.0,), 0, ()), Stage((5.0,), -1, (0,)), Stage((5.0,), 7, (0,)), Stage((2.0,), 0, (0,), also=7)]
    assert schedule_stages(stages) == 8.0
    assert [stage.start_us for stage in stages] == [0.0, 1.0, 1.0, 6.0]


def ndv4(nodes):
    return LaneCluster.of(TemplateSite(load_topology("ndv4", nodes), 65536.0))


def test_two_nodes_cross_once_and_double_inside():
    """2.6 us and 40 us/MB across; then 1, 2 and 4 shares at 0.3 us and 10/3 us/MB. The own node's shares double meanwhile."""
    outline = Outline(((Peer(1, 1),),), 1, DOUBLING, (1,))
    end_us = timeline(ndv4(2), outline, 65536.0).end_us
    assert end_us == pytest.approx(2.6 + 40 * 0.065536 + 3 * 0.3 + 7 * 0.065536 / 0.3)


def test_lanes_that_share_out_nodes_wait_for_each_others_parts():
    """Three other nodes over groups of 4 lanes: two doublings, one message of 4 shares, and then all three steps."""
    outline = Outline((tuple(Peer(back, 1) for back in (1, 2, 3)),), 4, DOUBLING, (1,))
    share_us = 0.001 / 0.3
    first = 2 * 0.3 + 3 * share_us
    last = 3 * 0.3 + (4 + 8 + 16) * share_us
    end_us = timeline(ndv4(4), outline, 1000.0).end_us
    assert end_us == pytest.approx(first + 2.6 + 40 * 0.004 + last)


def test_pieces_overlap():
    """Two pieces across, one after the other; the first is handed out while the second crosses."""
    outline = Outline(((Peer(1, 1),),), 1, DIRECT, (1, 1))
    piece = 0.131072
    end_us = timeline(ndv4(2), outline, piece * 1e6).end_us
    assert end_us == pytest.approx(2 * (2.6 + 40 * piece) + 7 * (0.3 + piece / 0.3))


def test_chunks_that_lie_apart_are_packed_up_to_a_limit():
    cluster = ndv4(2)
    small, large = RankLoad(1000.0, 100, False), RankLoad(1e6, 2, False)
    assert inside_steps(cluster, DIRECT, small, 1)[0] == pytest.approx(
        2 * 0.3 + 0.1 / 0.3
    )  # 71 chunks go together at most
    assert inside_steps(cluster, DIRECT, large, 1)[0] == pytest.approx(2 * 0.3 + 2 / 0.3)
    assert inside_steps(cluster, DIRECT, RankLoad(1e6, 2, True), 1)[0] == pytest.approx(0.3 + 2 / 0.3)


def test_links_of_a_full_mesh_work_at_the_same_time():
    cluster = LaneCluster.of(TemplateSite(load_topology("mi300x", 2), 1e5))
    steps = inside_steps(cluster, DIRECT, RankLoad(1e5, 1, True), 1)
    assert sum(steps) == pytest.approx(cluster.node_us(1e5))

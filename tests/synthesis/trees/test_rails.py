from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.runtimes import MAX_COUNT
from taccl_py.synthesis.trees.order import DispatchRule, PieceCosts, list_schedule
from taccl_py.synthesis.trees.packing import pack_trees
from taccl_py.synthesis.trees.rails import RailSearch, TreeRails, cut_messages
from taccl_py.synthesis.trees.transfers import PieceTransfer
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.degrade import Degradation, degraded, parse_link
from tests.instances import MB, ring
from tests.synthesis.trees.boxes import PER_BOX, boxes
from tests.synthesis.trees.test_order import check
from tests.synthesis.trees.test_packing import network_of, never

SHARE_BYTES = 16 * MB
COUNTS = [1 << bit for bit in range(11)]


def search(topology):
    rails = TreeRails.of(network_of(topology))
    return RailSearch(rails, lambda count: SHARE_BYTES / count, COUNTS, never)


def test_messages_become_smaller_the_less_is_left_and_none_is_left_over():
    blocks = cut_messages(2, 8, 0.5, 1.0, 1, MAX_COUNT)
    # 16 chunks: half of them are a whole share; of the last 8 half, then half of what is left (2, 1) and the rest.
    assert [(block.round, block.first, block.size) for block in blocks] == [
        (0, 0, 8), (1, 0, 4), (1, 4, 2), (1, 6, 1), (1, 7, 1)
    ]  # fmt: skip
    # A quarter of 16, then of 12 (3) and of 9 (2.25): three messages, as large as these are to each other.
    assert [block.size for block in cut_messages(2, 8, 0.25, 1.0, 1, MAX_COUNT) if not block.round] == [3, 3, 2]


@given(
    st.integers(1, 7), st.sampled_from([8, 16, 64, 128]), st.floats(0.05, 0.9), st.sampled_from([0.25, 0.5, 1.0]),
    st.integers(1, 4),
)  # fmt: skip
@settings(max_examples=60)
def test_messages_take_every_chunk_to_every_node_once_and_fit_a_step(rounds, count, taper, cap, least):
    blocks = cut_messages(rounds, count, taper, cap, least, MAX_COUNT)
    for number in range(rounds):
        own = [block for block in blocks if block.round == number]
        assert own[0].first == 0
        assert own[-1].first + own[-1].size == count
        assert all(one.first + one.size == other.first for one, other in pairwise(own))
    assert all(1 <= block.size <= MAX_COUNT for block in blocks)
    assert [block.round for block in blocks] == sorted(block.round for block in blocks)


def test_rails_join_places_and_repeat_the_links_of_a_node():
    network = network_of(boxes(3))
    rails = TreeRails.of(network)
    (root,) = network.roots
    assert [int(network.dst[link]) for link in rails.straight[0]] == [root + PER_BOX, root + 2 * PER_BOX]
    for step, links in enumerate(rails.inside):
        moved = [
            (src + step * PER_BOX, dst + step * PER_BOX) for src, dst in zip(rails.box.src, rails.box.dst, strict=True)
        ]
        assert [(network.src[link], network.dst[link]) for link in links] == moved


@pytest.mark.parametrize(
    "topology",
    [
        ring(4),
        boxes(1),
        degraded(boxes(2), Degradation((parse_link("0->8"),))),
        degraded(boxes(2), Degradation((parse_link("8->9"),))),
        boxes(3).subset(range(20)),
    ],
    ids=["no nodes", "one node", "a place out of reach", "a link less", "a smaller node"],
)
def test_there_are_no_rails_where_nodes_differ_or_places_are_out_of_reach(topology):
    assert TreeRails.of(network_of(topology)) is None


@pytest.mark.parametrize("topology", [boxes(2), boxes(4), load_topology("ndv2", 2)], ids=lambda each: each.name)
def test_every_rank_gets_every_chunk_once_in_a_plan_that_keeps_the_rules(topology):
    network = network_of(topology)
    choice = search(topology).best()
    check(choice.transfers, choice.costs, choice.plan)
    for root, own in enumerate(network.roots):
        got = [(int(network.dst[j.link]), p) for j in choice.transfers if j.root == root for p in range(j.piece, j.end)]
        ranks = [rank for rank in range(network.num_ranks) if rank != own]
        assert sorted(got) == [(rank, piece) for rank in ranks for piece in range(choice.num_chunks)]


def test_the_plan_is_near_to_the_time_of_the_nics():
    """Every NIC takes 3 shares of 16 MB in at 25 GB/s, 1920 us; a dozen messages pay 2.6 us each, the last is 1/32 of a share."""
    network = network_of(boxes(4))
    assert pack_trees(network, never).load_us * SHARE_BYTES / MB == pytest.approx(1920)
    choice = search(boxes(4)).best()
    assert 1920 + 3 * 2.6 < choice.plan.end_us < 1920 * 1.03
    crossing = [
        transfer
        for transfer in choice.transfers
        if network.src[transfer.link] // PER_BOX != network.dst[transfer.link] // PER_BOX
    ]
    assert len(crossing) < 20


def test_early_turns_go_first_and_jobs_of_different_turns_do_not_share_a_message():
    network = network_of(ring(2))
    transfers = [
        PieceTransfer(0, 2, 0, reduce=False, after=(), span=2),
        PieceTransfer(0, 0, 0, reduce=False, after=(), turn=1),
    ]
    transfers += [PieceTransfer(0, 1, 0, reduce=False, after=(), turn=2)]
    costs = PieceCosts.of(network, MB, (1, 1, 1, 1))
    plan = list_schedule(transfers, costs, DispatchRule(patience=1.0))
    assert [message.transfers for message in plan.messages] == [(0,), (1,), (2,)]
    check(transfers, costs, plan)


def test_neighbours_of_several_pieces_share_a_message_in_both_directions():
    network = network_of(ring(2))
    transfers = [
        PieceTransfer(0, first, 0, reduce=False, after=(), span=span)
        for first, span in ((2, 3), (0, 2), (5, 1), (7, 1))
    ]
    costs = PieceCosts.of(network, MB, (1,) * 8)
    plan = list_schedule(transfers, costs, DispatchRule(least=1e9))
    assert sorted(message.transfers for message in plan.messages) == [(1, 0, 2), (3,)]


def test_a_machine_whose_nodes_are_nearly_full_too_is_served_within_three_per_cent():
    """Eight MI250X boxes, 1 GiB: a NIC takes 7 x 8.39 MB at 16 GB/s, and links inside nodes are full for 85 % of that time."""
    network = network_of(load_topology("mi250x", 8))
    share = (1 << 30) / 128
    tries = iter(range(12))
    rails = TreeRails.of(network)
    choice = RailSearch(rails, lambda count: share / count, COUNTS, lambda: next(tries, None) is None).best()
    bound_us = 7 * share / MB * 1000 / 16
    assert bound_us < choice.plan.end_us < 1.03 * bound_us

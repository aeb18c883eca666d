from dataclasses import replace

import numpy as np
import pytest

from taccl_py.runtimes import MSCCLPP
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.trees.order import DispatchRule, OrderChoice, PieceCosts, list_schedule
from taccl_py.synthesis.trees.packing import SpanningTree, pack_trees
from taccl_py.synthesis.trees.params import PARAMS
from taccl_py.synthesis.trees.resize import resized
from taccl_py.synthesis.trees.shallow import PackedMachine, shallow_machines
from taccl_py.synthesis.trees.shared_trees import SharedTreeSet
from taccl_py.synthesis.trees.taper import TaperSearch, _TaperSetting, even_tree_sets, uneven_tree_set
from taccl_py.synthesis.trees.transfers import PieceTransfer, TreePiece, number_pieces, piece_transfers
from tests.instances import MB, ring
from tests.synthesis.trees.boxes import boxes
from tests.synthesis.trees.test_order import check
from tests.synthesis.trees.test_packing import network_of, never

SHARE_BYTES = 64 * MB
COUNTS = [1 << bit for bit in range(11)]


def search(topology):
    network = network_of(topology)
    machine = PackedMachine(network, pack_trees(network, never))
    return [
        TaperSearch(network, candidate, lambda count: SHARE_BYTES / count, COUNTS, never)
        for candidate in even_tree_sets(machine, never)
    ]


def test_first_cuts_of_all_parts_come_first_or_those_of_a_tree_together():
    trees = [SpanningTree(0, np.array([-1, 0])), SpanningTree(0, np.array([-1, 0])), SpanningTree(1, np.array([-1, 0]))]
    (mixed, other), (apart, _) = (number_pieces(trees, (3, 1, 2), apart=apart) for apart in (False, True))
    assert mixed == [TreePiece(0, 0), TreePiece(0, 1), TreePiece(1, 0), TreePiece(0, 2)]
    assert apart == [TreePiece(0, 0), TreePiece(0, 1), TreePiece(0, 2), TreePiece(1, 0)]
    assert other == [TreePiece(2, 0), TreePiece(2, 1)]


def test_a_search_looks_at_all_settings_next_to_one_that_the_tables_have():
    """From the first of each table there is one step to go, and from within two steps, down to the first and up to the last."""
    last = (1, len(PARAMS.taper_falls) - 1, len(PARAMS.tapers) - 1)
    assert set(_TaperSetting(0, 0, 0).neighbours(2)) == {
        _TaperSetting(1, 0, 0), _TaperSetting(0, 1, 0), _TaperSetting(0, 0, 1), _TaperSetting(0, 0, 0, stay=True)
    }  # fmt: skip
    assert set(_TaperSetting(1, 1, 1).neighbours(2)) == {
        _TaperSetting(0, 1, 1), _TaperSetting(1, 0, 1), _TaperSetting(1, 2, 1), _TaperSetting(1, 1, 0),
        _TaperSetting(1, 1, 2), _TaperSetting(1, 1, 1, stay=True),
    }  # fmt: skip
    assert len(_TaperSetting(*last).neighbours(2)) == 4


@pytest.mark.parametrize("topology", [ring(4), boxes(2)], ids=["ring", "boxes"])
def test_sizes_fall_and_fill_the_share(topology):
    for each in search(topology):
        choice = each.best()
        for sizes in choice.costs.chunks:
            assert sum(sizes) == choice.num_chunks
            assert choice.num_chunks in COUNTS
            assert list(sizes) == sorted(sizes, reverse=True)


def test_no_setting_nearby_is_better_than_the_best_plan():
    (first, *_) = search(boxes(2))
    choice = first.best()
    for taper in (0.0, choice.rule.taper):
        plan = list_schedule(choice.transfers, choice.costs, DispatchRule(taper=taper))
        assert plan.end_us >= choice.plan.end_us * (1 - 1e-9) or taper == 0.0


def test_trees_that_carry_more_have_more_pieces_and_all_pieces_have_chunks():
    network = network_of(boxes(2))
    (tree, *_) = pack_trees(network, never).trees
    candidate = uneven_tree_set(SharedTreeSet((tree, tree, tree), (0.7, 0.299, 0.001)))
    choice = TaperSearch(network, candidate, lambda count: SHARE_BYTES / count, COUNTS, never).best()
    (sizes,) = choice.costs.chunks
    cuts = next(cuts for cuts in candidate.cuts if sum(cuts) == len(sizes))
    assert cuts[0] > cuts[1] > cuts[2] == 1
    assert sum(sizes) == choice.num_chunks == 256
    assert sizes[-1] == 1
    assert sum(sizes[: cuts[0]]) == pytest.approx(0.7 * 256, abs=2)
    check(choice.transfers, choice.costs, choice.plan)


def test_a_root_that_stays_sends_all_to_one_receiver_before_the_next():
    """Three boxes: with two pieces over each tree, whole shares cross to one box and then to the other."""
    network = network_of(boxes(3))
    (tree, *_) = shallow_machines(network, pack_trees(network, never), 1.0, never)[0].packing.trees
    numbered = number_pieces([tree], (2,), apart=True)
    transfers = piece_transfers(network, [tree], numbered)
    costs = PieceCosts.of(network, MB, (1, 1))
    crossing = [
        i for i, transfer in enumerate(transfers) if network.src[transfer.link] // 8 != network.dst[transfer.link] // 8
    ]

    def receivers(rule):
        plan = list_schedule(transfers, costs, rule)
        check(transfers, costs, plan)
        sent = sorted(
            (message.start_us, network.dst[transfers[i].link])
            for message in plan.messages
            for i in message.transfers
            if i in crossing
        )
        return [int(receiver) for _, receiver in sent]

    one, other, *_ = receivers(DispatchRule())
    assert one != other
    first, second, third, fourth = receivers(DispatchRule(stay=True))
    assert first == second != third == fourth


def test_what_one_step_cannot_carry_pays_alpha_again():
    network = network_of(ring(2, alpha_us=1.0, beta_us_per_mb=10.0))
    costs = PieceCosts.of(network, MB / 100, (71, 29))
    assert costs.of_message(0, 71).time_us == pytest.approx(1.0 + 7.1)
    assert costs.of_message(0, 72).time_us == pytest.approx(2.0 + 7.2)
    unlimited = replace(costs, message_chunks=MSCCLPP.max_count)
    assert unlimited.of_message(0, 72).time_us == pytest.approx(1.0 + 7.2)


def over_a_slow_and_a_fast_link():
    """Two transfers of one root at once, in one piece each of the same size."""
    network = network_of(boxes(2))
    slow, fast = (
        next(i for i, link in enumerate(network.problem.topology.links) if (link.src, link.dst) == ends)
        for ends in ((0, 8), (0, 1))
    )
    transfers = (PieceTransfer(0, 0, slow, reduce=False, after=()), PieceTransfer(0, 1, fast, reduce=False, after=()))
    costs = PieceCosts.of(network, SHARE_BYTES / 2, (1, 1))
    rule = DispatchRule()
    return OrderChoice(transfers, costs, 2, rule, list_schedule(transfers, costs, rule))


def test_faster_links_get_larger_pieces():
    """Two transfers of one root, over a slow link and a fast one at once: twelve thirteenths go over the fast one."""
    choice = over_a_slow_and_a_fast_link()
    better = resized(choice, lambda count: SHARE_BYTES / count, COUNTS, Limits())
    # 25 and 300 GB/s: the fast link carries 12 of 13 parts, and both take 64 MB / 325 GB/s = 197 us.
    assert better.plan.end_us == pytest.approx(197 + 2.6, rel=0.05)
    assert sum(better.costs.chunks[0]) == better.num_chunks
    check(choice.transfers, better.costs, better.plan)


def test_pieces_of_more_chunks_than_a_message_carries_are_not_chosen():
    """On the machine before, twelve thirteenths of 104 chunks are 96, which one message of at most 71 chunks does not carry; of 8 chunks 7 are nearest."""
    choice = over_a_slow_and_a_fast_link()

    def best(most):
        limited = replace(choice, costs=replace(choice.costs, message_chunks=most))
        return resized(limited, lambda count: SHARE_BYTES / count, (8, 104), Limits()).num_chunks

    assert (best(1000), best(71)) == (104, 8)

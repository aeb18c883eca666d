"""What shape an algorithm has: rings, chains, direct sends, trees."""

import pytest

from taccl_py.lowering.lower import LoweringOptions
from taccl_py.lowering.lower import lower as lower_schedule
from taccl_py.lowering.msccl_xml import parse_xml
from taccl_py.report.structure import brief_structure, find_phases, structure_record
from taccl_py.runtimes import EXECUTOR
from tests.lowering.cases import recursive_doubling, tree_reduce
from tests.verify.msccl.files import RIGHT_FILES, ring_allgather, ring_allreduce

BRIEF = {
    "pair_allreduce": "direct sends",
    "ring_allreduce": "1 ring",
    "pairs_allreduce": "direct sends",
    "ring_allgather_of_batches": "1 ring",
    "direct_alltoall_of_batches": "direct sends",
    "chain_broadcast_from_1": "1 chain of 3 links",
    "chain_reduce_to_2": "1 chain of 3 links",
    "ring_reducescatter": "1 ring",
    "direct_gather_to_1": "direct sends",
    "direct_scatter_from_2": "direct sends",
}


def phases_of(file):
    return find_phases(parse_xml(file.text(), "test.xml", EXECUTOR))


@pytest.mark.parametrize("name", BRIEF)
def test_shapes_of_small_files_are_named(name):
    assert brief_structure(phases_of(RIGHT_FILES[name]())) == BRIEF[name]


def test_a_ring_is_told_with_its_ranks_in_order():
    sums, copies = phases_of(ring_allreduce(4))
    assert str(sums) == "sums go around 1 ring (0 1 2 3)"
    assert str(copies) == "copies go around 1 ring (0 1 2 3)"
    assert sums.rings == ((0, 1, 2, 3),)
    assert sorted(tree.root for tree in copies.trees) == [0, 1, 2, 3]


@pytest.mark.parametrize(("in_place", "out_of_place"), [(0, 1), (1, 0), (1, 1)])
def test_the_placement_does_not_change_the_shape(in_place, out_of_place):
    for make in (ring_allgather, ring_allreduce):
        file = make()
        file.attributes.update(inplace=in_place, outofplace=out_of_place)
        assert {phase.shape for phase in phases_of(file)} == {"ring"}


def program_of(schedule):
    return lower_schedule(schedule, LoweringOptions(EXECUTOR))


def test_a_tree_has_depth_and_fan():
    """Seven ranks: 3 and 4 send to 1, 5 and 6 to 2, and 1 and 2 to 0."""
    (sums,) = find_phases(program_of(tree_reduce()))
    assert (sums.shape, sums.gathers_sums) == ("trees", True)
    (record,) = structure_record([sums])
    assert (record["trees"], record["depth"], record["fan"]) == (1, 2, 2)
    assert record["text"] == "sums go along 1 tree of depth 2, at most 2 links at a rank"


def test_ranks_that_exchange_sums_are_no_tree():
    (sums,) = find_phases(program_of(recursive_doubling(4)))
    assert (sums.shape, sums.brief) == ("exchange", "exchanges in 2 hops")
    assert str(sums) == "sums are exchanged in both directions, in 2 hops"


def test_a_chain_with_one_root_is_no_ring():
    assert [phase.shape for phase in phases_of(RIGHT_FILES["chain_broadcast"]())] == ["chain"]

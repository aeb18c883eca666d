from dataclasses import replace

import pytest

from taccl_py.collective import Collective, Kind
from taccl_py.errors import LoweringError
from taccl_py.lowering.buffers import BufferSizes
from taccl_py.lowering.program import Protocol
from taccl_py.lowering.protocol import choose_protocol, largest_size_bytes, largest_size_with
from taccl_py.runtimes import EXECUTOR, LEGACY, RCCL
from taccl_py.topology.model import Medium
from tests.lowering import cases


def chosen(schedule, asked=None, **kwargs):
    return choose_protocol(schedule, asked, EXECUTOR, **kwargs).protocol


def sized(schedule, chunk_bytes):
    return replace(schedule, chunk_bytes=chunk_bytes)


def test_on_one_node_the_protocol_grows_with_the_size():
    """1 us/MB: LL's second copy of the bytes costs what it saves over LL128 (1.3 us) at about 1.4 MB."""
    schedule = cases.ring_allgather(4)
    assert chosen(sized(schedule, 1.3e6)) is Protocol.LL
    assert chosen(sized(schedule, 1.5e6)) is Protocol.LL128
    assert chosen(sized(schedule, 22.4e6)) is Protocol.LL128
    assert chosen(sized(schedule, 22.6e6)) is Protocol.SIMPLE


def test_between_nodes_there_is_no_ll128_and_ll_saves_more():
    schedule = cases.ring_allgather(4, nodes=(0, 1, 2, 3))
    assert chosen(sized(schedule, 11.2e6)) is Protocol.LL
    assert chosen(sized(schedule, 11.4e6)) is Protocol.SIMPLE


def test_between_nodes_with_near_nics_there_is_ll128():
    """1 us/MB: LL's second copy costs what it saves over LL128 (2.7 and 4.0 us a hop) at about 1.4 MB, and LL128's bytes what it saves over Simple at 150 MB."""
    schedule = near(cases.ring_allgather(4, nodes=(0, 1, 2, 3)))
    assert chosen(sized(schedule, 1.3e6)) is Protocol.LL
    assert chosen(sized(schedule, 1.5e6)) is Protocol.LL128
    assert chosen(sized(schedule, 149e6)) is Protocol.LL128
    assert chosen(sized(schedule, 151e6)) is Protocol.SIMPLE


def test_broadcast_over_nodes_with_near_nics_is_ll128_at_any_large_size():
    schedule = near(cases.chain_broadcast(3, nodes=(0, 0, 1)))
    assert chosen(sized(schedule, 1e9)) is Protocol.LL128


@pytest.mark.parametrize("medium", [medium for medium in Medium if medium is not Medium.NVLINK])
def test_near_nics_are_not_enough_where_nvlink_does_not_join_the_ranks_of_a_node(medium):
    schedule = near(inside(cases.ring_allgather(4, nodes=(0, 0, 1, 1)), medium))
    assert Protocol.LL128 not in {chosen(sized(schedule, 10.0**exponent)) for exponent in range(3, 10)}


def test_a_barred_protocol_is_chosen_only_if_there_is_no_other():
    schedule = sized(cases.ring_allgather(4), 1.0)
    assert chosen(schedule, barred=frozenset({Protocol.LL})) is Protocol.LL128
    assert chosen(schedule, barred=frozenset(Protocol)) is Protocol.LL


@pytest.mark.parametrize(
    "schedule", [cases.chain_broadcast(3, nodes=(0, 0, 1)), cases.tree_reduce(nodes=(0, 0, 1) * 2 + (1,))]
)
def test_simple_is_never_used_for_broadcast_and_reduce_over_several_nodes(schedule):
    assert chosen(sized(schedule, 1e9)) is Protocol.LL
    with pytest.raises(LoweringError, match="over a network hangs") as caught:
        chosen(schedule, Protocol.SIMPLE)
    assert caught.value.limit == "protocol"
    assert chosen(schedule, Protocol.LL128) is Protocol.LL128


def inside(schedule, medium):
    return replace(schedule, topology=replace(schedule.topology, inside=medium))


def near(schedule):
    return replace(schedule, topology=replace(schedule.topology, near_nics=True))


def test_over_pcie_there_is_no_ll128_which_it_would_break_up():
    schedule = inside(cases.ring_allgather(4), Medium.PCIE)
    assert chosen(sized(schedule, 2.7e6)) is Protocol.LL
    assert chosen(sized(schedule, 2.9e6)) is Protocol.SIMPLE
    assert chosen(inside(cases.chain_broadcast(3), Medium.PCIE), Protocol.SIMPLE) is Protocol.SIMPLE


def test_where_nothing_says_what_joins_the_gpus_there_is_no_ll128():
    schedule = inside(cases.ring_allgather(4), Medium.UNKNOWN)
    sizes = [10.0**exponent for exponent in range(3, 9)]
    assert {chosen(sized(schedule, size)) for size in sizes} == {Protocol.LL, Protocol.SIMPLE}


def test_hosts_of_one_rank_are_joined_by_a_network():
    assert chosen(sized(inside(cases.ring_allgather(4), Medium.NETWORK), 11.2e6)) is Protocol.LL
    assert chosen(sized(inside(cases.ring_allgather(4), Medium.NETWORK), 11.4e6)) is Protocol.SIMPLE
    schedule = inside(cases.chain_broadcast(3), Medium.NETWORK)
    assert chosen(sized(schedule, 1e9)) is Protocol.LL
    with pytest.raises(LoweringError, match="over a network hangs"):
        chosen(schedule, Protocol.SIMPLE)


def test_simple_is_used_for_broadcast_on_one_node_when_it_is_asked_for():
    assert chosen(cases.chain_broadcast(3), Protocol.SIMPLE) is Protocol.SIMPLE


def test_largest_size_keeps_the_loop_within_its_limit():
    geometry = BufferSizes(Collective(Kind.ALLREDUCE, 4, 1), 2, exact=False)
    assert largest_size_bytes(geometry, EXECUTOR, Protocol.LL) == 8 * 32768 * 65535
    assert largest_size_bytes(geometry, RCCL, Protocol.LL) == 8 * 16384 * 65535
    assert largest_size_bytes(geometry, EXECUTOR, Protocol.SIMPLE) == 8 * (1 << 21) * 65535
    assert largest_size_bytes(replace(geometry, instances=3), EXECUTOR, Protocol.SIMPLE) == 1 << 40


@pytest.mark.parametrize("kind", [Kind.ALLREDUCE, Kind.ALLGATHER])
def test_largest_size_of_legacy_is_what_its_counts_can_bear(kind):
    """Of elements, which may be bytes; of AllGather always of bytes."""
    geometry = BufferSizes(Collective(kind, 4, 1), 1, exact=True)
    assert largest_size_bytes(geometry, LEGACY, Protocol.SIMPLE) == (1 << 31) - 1
    assert largest_size_bytes(geometry, LEGACY, Protocol.LL) == (1 << 31) - 1


def test_sizes_up_to_which_an_operation_carries_several_cells():
    geometry = BufferSizes(Collective(Kind.ALLREDUCE, 4, 1), 1, exact=False)
    assert largest_size_with(3, geometry, EXECUTOR, Protocol.LL) == 4 * (32768 // 3)

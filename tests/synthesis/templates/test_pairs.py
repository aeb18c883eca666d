from functools import cache

from hypothesis import given, settings

from taccl_py.collective import Kind
from taccl_py.runtimes import MAX_COUNT
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.templates.library import template_schedules
from taccl_py.synthesis.templates.pairs import _messages_in_waves
from taccl_py.synthesis.templates.site import TemplateSite
from taccl_py.topology.catalog import load_topology
from taccl_py.verify.schedule import verify_schedule
from tests.instances import nodes_with_nics
from tests.synthesis.drawn import node_problems


@given(node_problems(kinds=(Kind.ALLTOALL,)))
@settings(max_examples=30)
def test_on_any_two_nodes_no_chunk_comes_back_to_where_it_was(drawn):
    for found in template_schedules(Demand(drawn.topology, Kind.ALLTOALL, 1000.0)):
        assert verify_schedule(found.schedule) == (), found.name


def test_leaders_of_four_nodes_pass_on_what_others_sent():
    """One NIC a node: to its leader in 3 us, two messages of 10 us instead of three, from the leader in 3 us."""
    found = template_schedules(Demand(nodes_with_nics(4, 4, 1.0, 10.0), Kind.ALLTOALL, 16.0))
    best = min(found, key=lambda each: each.schedule.makespan_us)
    assert best.name == "leaders 0 of 4, doubling"
    assert best.schedule.makespan_us == 3 + 2 * 10 + 3
    assert verify_schedule(best.schedule) == ()


@cache
def of_four_ndv2():
    demand = Demand(load_topology("ndv2-x4"), Kind.ALLTOALL, 1024.0)
    return {found.name: found.schedule for found in template_schedules(demand)}


def test_a_node_is_served_while_what_is_for_the_next_one_is_gathered():
    """Four NDv2: only the first node's 64 chunks of 32 bytes are waited for, three times they cross, the last 64 are dealt out."""
    found = of_four_ndv2()
    schedule = found["leaders 0 of 8, node by node"]
    crossing_us = 2.6 + 64 * 32 * 105e-6
    # A rank of two steps has 8 chunks for a node, and there are at most 32 on the way in one message.
    assert 3 * crossing_us + 4 * 0.3 < schedule.makespan_us < 3 * crossing_us + 4 * 0.3 + 4 * 32 * 32 * 46e-6
    assert schedule.makespan_us < 0.94 * found["leaders 0 of 8"].makespan_us
    assert verify_schedule(schedule) == ()


def test_no_packed_message_is_too_long_for_a_step():
    """Doubling between the leaders of four NDv2 nodes would put 128 chunks into one."""
    for name, schedule in of_four_ndv2().items():
        assert all(len(m.chunks) <= MAX_COUNT for m in schedule.messages if m.packed), name


def test_between_nodes_a_message_of_a_wave_takes_as_long_as_all_inside_one():
    """Two nodes of two: rank 1 is told first, and then crosses in the wave of the next node, which lasts for four messages."""
    site = TemplateSite(nodes_with_nics(2, 2, 1.0, 5.0), 1.0)
    crossing = [
        (message.start, message.end, message.src, message.dst) for message in _messages_in_waves((0, 1, 3), site)
    ]
    assert crossing == [(0, 1, 0, 1), (4, 8, 1, 3)]
    inside = [(message.start, message.end, message.src, message.dst) for message in _messages_in_waves((0, 1), site)]
    assert inside == [(4, 5, 0, 1)]

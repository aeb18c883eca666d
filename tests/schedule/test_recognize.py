"""Schedules of everyone's messages are found to be group schedules, and those with a message too many or too few are not."""

from dataclasses import replace

import pytest

from taccl_py.collective import Collective, Kind
from taccl_py.pipeline.resolve import Request
from taccl_py.pipeline.search import synthesize_group
from taccl_py.schedule.group import GROUP_KINDS, GroupSchedule
from taccl_py.schedule.ir import Message, Schedule
from taccl_py.schedule.recognize import as_group
from taccl_py.synthesis.engine import Events
from taccl_py.topology.machines import formula_topology

STEP = 20.5


def link(topology, src, dst):
    (found,) = topology.links_between[src, dst]
    return found


def exchange():
    """AllToAll on a ring of 4, two chunks for each pair; those for the rank opposite go through the next one."""
    topology = formula_topology("ring:4")
    to_next, to_last = link(topology, 0, 1), link(topology, 0, 3)
    hops = ((to_next, (4, 5)), (to_last, (6, 7)), (to_next, (2, 3)), (link(topology, 1, 2), (4, 5)))
    base = tuple(
        Message(hop, chunks, start * STEP, (start + 1) * STEP, packed=True)
        for start, (hop, chunks) in zip((0, 0, 1, 2), hops, strict=True)
    )
    return GroupSchedule(topology, Kind.ALLTOALL, 2, 0.5e6, ((1, 2, 3, 0),), base)


def contents(schedule):
    """What is sent when, whatever the order of the chunks of a message."""
    return sorted((m.link, sorted(m.chunks), m.start_us, m.end_us, m.reduce) for m in schedule.messages)


def test_the_base_is_what_the_first_rank_sends():
    found = as_group(exchange().expanded())
    assert [(found.topology.links[m.link].src, m.chunks) for m in found.base] == [
        (0, (4, 5)),
        (0, (6, 7)),
        (0, (2, 3)),
        # Of rank 3, for the rank opposite.
        (0, (26, 27)),
    ]
    assert (found.generators, found.roots) == (((1, 2, 3, 0),), (0,))
    assert contents(found.expanded()) == contents(exchange().expanded())


@pytest.mark.parametrize("kind", GROUP_KINDS)
@pytest.mark.parametrize("machine", ["torus:3x3", "hpn:2", "hypercube:3"])
def test_what_was_replicated_is_recognized(machine, kind):
    whole = synthesize_group(Request(machine, kind, size_bytes=1 << 20), Events()).schedule.expanded()
    found = as_group(whole)
    assert contents(found.expanded()) == contents(whole)
    assert found.num_messages == len(whole.messages)
    # Nodes stay in one piece, so that each rank of a node has a role of its own.
    assert len(found.roots) == (8 if machine == "hpn:2" else 1)


def test_scratch_is_in_the_order_of_the_roots():
    whole = exchange().expanded()
    turned = replace(whole, scratch=tuple(tuple(reversed(chunks)) for chunks in whole.scratch))
    assert whole.scratch[0] == (26, 27)
    assert as_group(whole).expanded().scratch == whole.scratch
    assert as_group(turned).expanded().scratch == turned.scratch


def test_one_message_that_differs_is_enough():
    whole = exchange().expanded()
    first = whole.messages[0]
    others = whole.messages[1:]
    for changed in (
        others,
        (*others, replace(first, start_us=1.0, end_us=1.0 + STEP)),
        (*others, replace(first, chunks=first.chunks[:1])),
        (*others, first, first),
    ):
        assert as_group(replace(whole, messages=changed)) is None


def test_without_symmetry_or_with_a_root_there_is_none():
    mesh = formula_topology("mesh:2x2")
    message = Message(link(mesh, 0, 1), (0,), 0.0, STEP)
    assert as_group(Schedule(mesh, Collective(Kind.ALLGATHER, 4), 1e6, (message,), ((),) * 4)) is None
    ring = formula_topology("ring:4")
    message = Message(link(ring, 0, 1), (0,), 0.0, STEP)
    assert as_group(Schedule(ring, Collective(Kind.BROADCAST, 4), 1e6, (message,), ((),) * 4)) is None

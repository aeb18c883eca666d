"""The critical path, on machines where it is plain to see."""

from dataclasses import replace
from itertools import pairwise

import pytest

from taccl_py.collective import Collective, Kind
from taccl_py.schedule.layout import UntimedMessage
from taccl_py.schedule.timing import build_schedule
from taccl_py.simulate.critical_path import critical_path
from tests.instances import MB, chain, full, machine, ring


def hops(schedule):
    return [
        (schedule.topology.links[schedule.messages[i].link].src, schedule.topology.links[schedule.messages[i].link].dst)
        for i in critical_path(schedule)
    ]


def test_on_a_chain_it_is_the_path_of_the_last_chunk():
    """Two chunks over two links of 10 us: the second one waits for the first, then goes on: 0->1, 0->1, 1->2."""
    topology = chain(3, alpha_us=0.0)
    drafts = [
        UntimedMessage(0, (0,), 0, 1),
        UntimedMessage(0, (1,), 1, 2),
        UntimedMessage(1, (0,), 1, 2),
        UntimedMessage(1, (1,), 2, 3),
    ]
    schedule = build_schedule(topology, Collective(Kind.BROADCAST, 3, 2), MB, drafts)
    assert schedule.makespan_us == pytest.approx(30)
    assert hops(schedule) in ([(0, 1), (0, 1), (1, 2)], [(0, 1), (1, 2), (1, 2)])


def test_a_busy_link_is_a_reason_where_nothing_has_to_arrive():
    """Rank 0 scatters over one link to rank 1 what is for rank 1 and, after it, a slow link to rank 2 that nobody waits for."""
    topology = machine(3, [link for link in full(3).links if link.src == 0])
    drafts = [UntimedMessage(0, (1,), 0, 1), UntimedMessage(1, (2,), 0, 1)]
    schedule = build_schedule(topology, Collective(Kind.SCATTER, 3), MB, drafts)
    assert len(critical_path(schedule)) == 1


def test_it_ends_with_the_last_message_and_leaves_no_time_out():
    topology = ring(5)
    drafts = [UntimedMessage(r, ((r - s) % 5,), s, s + 1) for s in range(4) for r in range(5)]
    schedule = build_schedule(topology, Collective(Kind.ALLGATHER, 5), MB, drafts)
    path = [schedule.messages[i] for i in critical_path(schedule)]
    assert path[0].start_us == 0
    assert path[-1].end_us == schedule.makespan_us
    assert all(one.end_us == pytest.approx(two.start_us) for one, two in pairwise(path))


def test_nothing_moves_on_no_path():
    topology = ring(3)
    drafts = [UntimedMessage(r, ((r - s) % 3,), s, s + 1) for s in range(2) for r in range(3)]
    schedule = build_schedule(topology, Collective(Kind.ALLGATHER, 3), MB, drafts)
    assert critical_path(replace(schedule, messages=())) == ()

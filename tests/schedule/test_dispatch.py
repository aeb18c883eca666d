"""List scheduling of messages on links and ports: by hand, and beside a plain search for the next start."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.schedule.dispatch import Dispatch, tails_us
from taccl_py.tolerances import LAST_DIGITS
from tests.instances import ring


def test_the_first_by_priority_goes_first_and_what_waits_for_it_when_it_has_arrived():
    """Of two messages on one link the second has priority; the third waits for it on another link."""
    links, uses = [0, 0, 1], [[(0, 2.0)], [(0, 1.0)], [(1, 1.0)]]
    dispatch = Dispatch(2, links, uses, [3.0, 4.0, 1.0], [(), (), (1,)], [1, 0, 2])
    assert dispatch.starts_us() == [1.0, 0.0, 4.0]


def test_moments_that_differ_by_rounding_are_one():
    """0.1 + 0.2 is a little more than 0.3: what comes then has priority over what comes at 0.3 on the link that both need."""
    links, uses = [0, 1, 0, 2, 2], [[(0, 0.1)], [(1, 0.3)], [(0, 0.2)], [(2, 1.0)], [(2, 1.0)]]
    dispatch = Dispatch(3, links, uses, [0.1, 0.3, 0.2, 1.0, 1.0], [(), (), (0,), (2,), (1,)], range(5))
    starts_us = dispatch.starts_us(LAST_DIGITS)
    assert starts_us[3] == 0.1 + 0.2
    assert starts_us[4] == 0.1 + 0.2 + 1.0


def test_tails_are_longest_paths_to_the_end():
    """0 is before 1 and 2, and both before 3; numbered the other way round, an order says so."""
    assert tails_us([1.0, 2.0, 5.0, 1.0], [(), (0,), (0,), (1, 2)]) == [7.0, 3.0, 6.0, 1.0]
    assert tails_us([1.0, 5.0, 2.0, 1.0], [(1, 2), (3,), (3,), ()], [3, 2, 1, 0]) == [1.0, 6.0, 3.0, 7.0]


@st.composite
def plans(draw):
    """Messages on a ring of four, each of which takes its link and what that shares with others, and waits for some before it."""
    topology = ring(4)
    count = draw(st.integers(1, 12))
    resources = st.sets(st.integers(0, topology.num_resources - 1), max_size=2)
    shared = [draw(resources) - {link} for link in range(len(topology.links))]
    links, uses, message_us, waits_for = [], [], [], []
    for number in range(count):
        links.append(draw(st.integers(0, len(topology.links) - 1)))
        lasts = draw(st.integers(1, 4))
        others = ((other, float(draw(st.integers(1, lasts)))) for other in sorted(shared[links[-1]]))
        uses.append([(links[-1], float(lasts)), *others])
        message_us.append(float(lasts + draw(st.integers(0, 2))))
        waits_for.append(tuple(draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else ()))
    order = draw(st.permutations(range(count)))
    return topology.num_resources, links, uses, message_us, waits_for, order


@given(plans())
@settings(max_examples=200, deadline=None)
def test_at_every_moment_the_first_that_can_start_does(plan):
    assert Dispatch(*plan).starts_us() == pytest.approx(slowly(plan))


def slowly(plan):
    """The same, looking at all messages for every start."""
    num_resources, _, uses, message_us, waits_for, order = plan
    free, starts = [0.0] * num_resources, {}
    while len(starts) < len(order):
        can = [
            (
                max(
                    [starts[j] + message_us[j] for j in waits_for[i]] + [free[resource] for resource, _ in uses[i]],
                    default=0.0,
                ),
                place,
                i,
            )
            for place, i in enumerate(order)
            if i not in starts and all(j in starts for j in waits_for[i])
        ]
        start, _, i = min(can)
        starts[i] = start
        for resource, lasts in uses[i]:
            free[resource] = start + lasts
    return [starts[i] for i in range(len(order))]

"""Steps of schedules: longest chains of messages that carry what others brought."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl_py.collective import Collective, Kind
from taccl_py.schedule.ir import Message, Schedule, rounding_us, sort_messages, steps_of
from taccl_py.synthesis.catalog import load_engine
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.topology.catalog import load_topology
from tests.simulate.cases import MB, both_ways, chain_broadcast, ring_allgather


def exchange(second_start_us):
    """Two ranks that add up each other's data; rank 1's message leaves at the time given."""
    topology = both_ways((0, 1))
    first, second = topology.links_between[0, 1][0], topology.links_between[1, 0][0]
    messages = (
        Message(first, (0,), 0.0, 11.0, True),
        Message(second, (0,), second_start_us, second_start_us + 11.0, True),
    )
    return Schedule(topology, Collective(Kind.ALLREDUCE, 2), MB, messages, ((), ()))


@pytest.mark.parametrize(("start_us", "steps"), [(0.0, (1, 1)), (10.9, (1, 1)), (11.0, (1, 2)), (11.0 - 1e-9, (1, 2))])
def test_a_message_in_flight_when_another_starts_is_no_step_before_it(start_us, steps):
    assert exchange(start_us).step_of == steps


def test_steps_of_copies_are_their_hops():
    assert ring_allgather(5).num_steps == 4
    assert chain_broadcast(4, 2).num_steps == 3


@pytest.mark.parametrize(("name", "steps"), [("full:4", 1), ("hypercube:3", 3)])
def test_sums_that_are_exchanged_take_one_step_each_time(name, steps):
    """1 KiB: all send to all at once, or along one dimension of the hypercube after the other."""
    demand = Demand(load_topology(name), Kind.ALLREDUCE, 1024.0)
    assert load_engine("templates")(demand, Options(), Events()).schedule.num_steps == steps


FULL = load_topology("full:3")
ONES = st.builds(
    lambda link, chunks, start_us, takes_us: Message(link, tuple(sorted(chunks)), start_us, start_us + takes_us, True),
    st.integers(0, len(FULL.links) - 1),
    st.frozensets(st.integers(0, 2), min_size=1),
    st.integers(0, 12).map(float),
    st.sampled_from([0.5, 1.0, 2.0, 7.0]),
)


def longest_chains(messages):
    """By the definition: one more than the longest chain to anything that has brought a chunk before the start."""
    makespan_us = max((message.end_us for message in messages), default=0.0)
    found = []
    for message in messages:
        latest_us = message.start_us + rounding_us(message.start_us, makespan_us)
        chains = [
            steps
            for other, steps in zip(messages, found, strict=False)
            if FULL.links[other.link].dst == FULL.links[message.link].src
            and other.end_us <= latest_us
            and set(other.chunks) & set(message.chunks)
        ]
        found.append(1 + max(chains, default=0))
    return tuple(found)


@given(st.lists(ONES, max_size=14))
def test_steps_are_longest_chains_whatever_overtakes_what(messages):
    ordered = sort_messages(messages)
    assert steps_of(FULL, ordered) == longest_chains(ordered)

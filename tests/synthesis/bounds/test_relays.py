"""Whether any choice of messages between sparse nodes serves everyone in time."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Collective, Kind
from taccl_py.errors import TacclError
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import DemandBounds, relay_bound
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.milp import synthesize_milp
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.templates.library import template_schedules
from taccl_py.topology.catalog import load_topology
from tests.instances import lines_of_three, quiet_pulp
from tests.synthesis.drawn import joined_nodes
from tests.synthesis.exhaustive import least_time_us

pytestmark = quiet_pulp

EVERYONE = (Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.ALLREDUCE, Kind.ALLTOALL)
LIMITS = Limits(seconds=20)


@pytest.mark.parametrize("kind", EVERYONE)
def test_who_is_near_whom_counts_and_not_only_how_many(kind):
    """Two lines of three ranks with a NIC each.

    With one hop of 1 us before or after 5 us across a message serves three pairs if its sender (hop before) or its receiver (hop
    after) is in the middle, else two. There are two such places, so that three messages serve at most 3 + 3 + 2 of nine pairs.
    Counting alone would say three times three, and 6 us.
    """
    topology = lines_of_three()
    bounds = DemandBounds.of(topology, kind, relays_from=0.0)
    assert replace(bounds, relays=None).at(0.0).time_us == pytest.approx(6.0)
    assert bounds.at(0.0).time_us == pytest.approx(7.0)
    assert bounds.at(0.0).reason == (
        "relays: messages out of node 0, one through each port, gathered before and handed out behind, serve all pairs of ranks"
        " no sooner"
    )


def test_a_second_message_in_time_takes_the_bound_away():
    """NICs of 0.5 us behind links of 5 us let two messages through by 6 us."""
    assert relay_bound(lines_of_three(nic_us=0.5), Kind.ALLGATHER, 6.0, LIMITS).time_us == 0.0


def test_what_is_known_already_is_not_proved_again():
    assert relay_bound(lines_of_three(), Kind.ALLGATHER, 7.0, LIMITS).time_us == 0.0


def test_one_node_and_a_root_have_no_such_bound():
    assert relay_bound(load_topology("dgx1"), Kind.ALLGATHER, 0.0, LIMITS).time_us == 0.0
    assert relay_bound(load_topology("ndv2-x2"), Kind.BROADCAST, 0.0, LIMITS).time_us == 0.0


def test_six_chips_of_two_mi250x_nodes_need_three_hops_beside_the_network():
    chips = load_topology("mi250x", 2).subset([*range(6), *range(16, 22)])
    bound = relay_bound(chips, Kind.ALLGATHER, 4.2, LIMITS)
    assert bound.time_us == pytest.approx(2.6 + 3 * 0.8)


def bound_us(topology, kind):
    return relay_bound(topology, kind, 0.0, LIMITS).time_us


@settings(max_examples=15)
@given(st.integers(0, 2**32))
def test_nothing_at_all_is_faster_on_two_small_nodes(seed):
    """Every order of messages with any chunks together is tried."""
    rng = random.Random(seed)
    topology = joined_nodes(rng, 2, 2, (0.5, 1.0, 3.0), (0.0, 1.0))
    problem = Problem.build(topology, Collective(Kind.ALLGATHER, 4), None, 1e-3)
    best_us = least_time_us(problem, batches=True, most=4_000)
    if best_us is not None:
        assert bound_us(topology, Kind.ALLGATHER) <= best_us * (1 + 1e-9)


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.sampled_from(EVERYONE))
def test_no_template_on_joined_nodes_is_faster(seed, kind):
    rng = random.Random(seed)
    topology = joined_nodes(rng, rng.choice((2, 3, 4)), rng.choice((2, 2, 3)), (0.5, 1.0, 3.0), (0.0, 1.0))
    least_us = bound_us(topology, kind)
    for named in template_schedules(Demand(topology, kind, 1e-3)):
        assert least_us <= named.schedule.makespan_us * (1 + 1e-9), named.name


@settings(max_examples=8)
@given(st.integers(0, 2**32), st.sampled_from(EVERYONE))
def test_no_engine_is_faster_on_small_nodes(seed, kind):
    topology = joined_nodes(random.Random(seed), 3, 2, (0.5, 1.0, 3.0), (0.0, 1.0))
    try:
        found = synthesize_milp(
            Demand(topology, kind, 1e-3, chunks_per_rank=1), Options(limits=Limits(seconds=0.2, by_work=True)), Events()
        )
    except TacclError:
        return
    assert bound_us(topology, kind) <= found.schedule.makespan_us * (1 + 1e-9)

"""The emulated machine that processes share: who is on it when, worked out by hand."""

import pytest

from taccl_py.measure.experiment import MeasuredFlow
from taccl_py.measure.shared_emulation import Throttle
from taccl_py.topology.machines import formula_topology
from tests.measure.machines import MACHINES


@pytest.fixture
def opened(tmp_path):
    """Open a machine so many times; each hold sees what the others do."""

    holds = []

    def make(topology, count=1, scale=1.0):
        Throttle.create(topology, tmp_path / "machine")
        holds.extend(Throttle(topology, tmp_path / "machine", scale) for _ in range(count))
        return holds

    yield make
    for hold in holds:
        hold.close()


def test_a_message_takes_alpha_and_beta_from_when_it_is_ready(opened):
    """2 us + 30 us/MB of 1 MB, ten times slower."""
    (ring,) = opened(formula_topology("ring:4,alpha_us=2,beta_us_per_mb=30"), scale=10)
    passage = ring.send(MeasuredFlow(0, 1), 1_000_000, 5.0)
    assert (passage.free_seconds, passage.due_seconds) == (pytest.approx(5.00032), pytest.approx(5.00032))


def test_flows_through_one_port_take_turns_in_any_process(opened):
    """NDv2-like: the NIC of node 0 is shared by all its ranks, and free again after 2.6 + 105 us."""
    one, other = opened(MACHINES["ndv2_like"](), 2)
    ends = [
        one.send(MeasuredFlow(0, 4), 10**6, 0.0),
        other.send(MeasuredFlow(1, 5), 10**6, 0.0),
        one.send(MeasuredFlow(0, 4), 10**6, 107.6e-6),
    ]
    assert [end.due_seconds for end in ends] == [pytest.approx(turn * 107.6e-6) for turn in (1, 2, 3)]
    assert other.send(MeasuredFlow(4, 0), 10**6, 0.0).due_seconds == pytest.approx(107.6e-6)


def test_a_gap_that_is_long_enough_is_used_and_one_that_is_not_is_left(opened):
    (ring,) = opened(formula_topology("ring:4,alpha_us=10,beta_us_per_mb=0"))
    flow = MeasuredFlow(0, 1)
    assert ring.send(flow, 0, 0.0).due_seconds == pytest.approx(10e-6)
    assert ring.send(flow, 0, 35e-6).due_seconds == pytest.approx(45e-6)
    assert ring.send(flow, 0, 12e-6).due_seconds == pytest.approx(22e-6)
    assert ring.send(flow, 0, 12e-6).due_seconds == pytest.approx(32e-6)
    assert ring.send(flow, 0, 0.0).due_seconds == pytest.approx(55e-6)


def test_what_is_cleared_is_forgotten_by_all(opened):
    one, other = opened(formula_topology("ring:4,alpha_us=10,beta_us_per_mb=0"), 2)
    one.send(MeasuredFlow(0, 1), 0, 0.0)
    other.clear()
    assert one.send(MeasuredFlow(0, 1), 0, 0.0).due_seconds == pytest.approx(10e-6)

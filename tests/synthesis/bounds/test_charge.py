"""How long several resources need together for a load."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl_py.synthesis.bounds.charge import idle_times, least_time
from taccl_py.synthesis.bounds.net import Net
from taccl_py.topology.model import Link, Port
from tests.instances import machine


def time_of(rates, idle_us, amount):
    return least_time(np.array(rates, dtype=float), np.array(idle_us, dtype=float), amount)


def test_resources_share_the_load_when_they_are_ready():
    assert time_of([1.0], [3.0], 10.0) == pytest.approx(13.0)
    assert time_of([1.0, 1.0], [0.0, 4.0], 10.0) == pytest.approx(7.0)
    assert time_of([1.0, 1.0], [0.0, 40.0], 10.0) == pytest.approx(10.0), "the second comes too late to help"


def test_what_never_serves_does_not_help():
    assert time_of([1.0, 5.0], [0.0, math.inf], 10.0) == pytest.approx(10.0)
    assert time_of([0.0], [0.0], 10.0) == math.inf
    assert time_of([1.0], [7.0], 0.0) == 0.0


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 50)), min_size=1, max_size=6), st.integers(1, 100))
def test_the_time_solves_the_equation(resources, amount):
    rates, idle_us = zip(*resources, strict=True)
    time_us = time_of(rates, idle_us, amount)
    served = sum(rate * max(0.0, time_us - idle) for rate, idle in resources)
    assert served == pytest.approx(amount)
    assert served <= amount, "rounding must not lift a bound"


def test_a_resource_is_idle_for_its_own_alpha_and_for_the_least_before_and_after_it():
    """The port has no alpha; what starts first (at 1) goes over the link with 5 us of latency, the other one ends at once."""
    links = [Link(0, 2, 3.0, 1.0, 5.0, (0,)), Link(1, 2, 4.0, 1.0, 0.0, (0,))]
    net = Net.of(machine(3, links, [Port("in", 0.0, 1.0), Port("unused", 0.0, 1.0)]))
    idle_us = idle_times(net, np.array([1.0, 2.0, 0.0]), np.array([0.0, 0.0, 10.0]))
    assert idle_us.tolist() == [3.0 + 1.0 + 15.0, 4.0 + 2.0 + 10.0, 1.0 + 10.0, math.inf]

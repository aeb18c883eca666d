import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Collective, Kind
from taccl_py.synthesis.grid import TimeGrid
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.quotient import Quotient
from taccl_py.topology.model import Link, Port
from tests.instances import MB, chain, machine
from tests.synthesis.drawn import problems


def grid_of(topology, chunk_bytes=MB, horizon_us=1000.0):
    problem = Problem.build(topology, Collective(Kind.BROADCAST, topology.num_ranks), None, chunk_bytes)
    return TimeGrid.of(Quotient.of(problem), horizon_us)


def test_costs_of_a_link_are_whole_units():
    grid = grid_of(chain(2, 0.3, 23.0, 1.5))
    scale = grid.units_per_us
    assert (grid.alpha[0], grid.beta[0], grid.latency[0]) == pytest.approx((0.3 * scale, 23 * scale, 1.5 * scale))
    assert grid.duration(0) == pytest.approx(24.8 * scale)
    assert grid.busy(0, 1) == pytest.approx([23.3 * scale])
    assert grid.busy(0, 3) == pytest.approx([69.3 * scale])


def test_a_slow_port_is_waited_for_and_a_fast_one_is_not():
    ports = [Port("slow", 0.0, 25.0), Port("fast", 0.0, 4.0)]
    grid = grid_of(machine(2, [Link(0, 1, 1.0, 10.0, ports=(0, 1))], ports))
    scale = grid.units_per_us
    assert grid.occupancy[0] == (11 * scale, 25 * scale, 4 * scale)
    assert grid.duration(0) == 25 * scale
    assert grid.duration(0, 2) == 50 * scale
    assert grid.busy(0, 2) == [21 * scale, 50 * scale, 8 * scale]
    fast = grid_of(machine(2, [Link(0, 1, 1.0, 10.0, ports=(0,))], ports[1:]))
    assert fast.duration(0) == 11 * fast.units_per_us


def test_neighbours_share_the_alpha_of_a_port():
    grid = grid_of(machine(2, [Link(0, 1, 0.0, 2.0, ports=(0,))], [Port("out", 3.0, 1.0)]))
    assert grid.busy(0, 2) == [4 * grid.units_per_us, 5 * grid.units_per_us]
    assert grid.alpha[0] > 0


def test_the_smallest_cost_is_resolved_and_the_horizon_fits():
    grid = grid_of(chain(2, 0.0, 0.001), horizon_us=10.0)
    assert grid.beta[0] >= 100
    long = grid_of(chain(2, 0.0, 0.001), horizon_us=1e7)
    assert 1e7 * long.units_per_us <= 2e7
    assert long.beta[0] >= 1, "a cost is never rounded to nothing"


def test_a_cost_that_is_tiny_beside_the_others_is_not_rounded_to_nothing():
    assert grid_of(chain(2, 1e-12, 1e-30), horizon_us=1e12).duration(0) == 2


def test_round_costs_are_exact():
    grid = grid_of(chain(2, 0.3, 23.0))
    assert (grid.alpha[0] / grid.units_per_us, grid.beta[0] / grid.units_per_us) == (0.3, 23.0)


@settings(max_examples=80)
@given(problems(), st.sampled_from([100.0, 12345.678, 1e6, 7.7e7]), st.floats(1.0, 1e9))
def test_costs_are_rounded_up_and_by_less_than_a_unit(drawn, chunk_bytes, horizon_us):
    problem = Problem.build(drawn.topology, drawn.collective, None, chunk_bytes)
    q = Quotient.of(problem)
    grid = TimeGrid.of(q, horizon_us)
    for arc, link in enumerate(q.link.tolist()):
        exact = problem.message_us(link) * grid.units_per_us
        assert exact - 1e-5 <= grid.duration(arc) < exact + 3 + 1e-5, "alpha, beta and latency are rounded one by one"
        for resource, units in zip(drawn.topology.resources_of[link], grid.occupancy[arc], strict=True):
            exact = drawn.topology.occupancy_us(resource, chunk_bytes) * grid.units_per_us
            assert exact - 1e-5 <= units < exact + 2 + 1e-5


# `Topology` takes such a port (it only names what shares it, a stub while a machine is being described).
def test_a_port_that_costs_nothing_does_no_harm():
    free = grid_of(machine(2, [Link(0, 1, 1.0, 10.0, ports=(0,))], [Port("free", 0.0, 0.0)]))
    assert free.duration(0) == 11 * free.units_per_us

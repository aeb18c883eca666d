from dataclasses import replace

import pytest

from taccl_py.collective import Collective, Kind
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.neighbourhood import improve, regroup
from taccl_py.topology.catalog import load_topology
from taccl_py.verify.schedule import verify_schedule
from tests.instances import Instance, chain, one_way_ring, small_messages
from tests.patience import ends_within
from tests.synthesis.tasks import search_for


def mesh(limits=None):
    """Broadcast of 6 chunks on a mesh of 2 x 3: the greedy start is far from good."""
    topology = load_topology("mesh:2x3,alpha_us=2,beta_us_per_mb=10")
    return search_for(Instance("mesh", topology, Collective(Kind.BROADCAST, 6, 6), 0.0), limits=limits)


def test_rounds_never_make_a_schedule_slower_and_usually_faster():
    search = mesh()
    before = search.best.makespan_us
    improve(search, 25)
    assert search.best.makespan_us < before
    assert search.best.makespan_us >= search.bound.time_us * (1 - 1e-9)
    assert verify_schedule(search.best) == ()


def test_the_same_seed_improves_in_the_same_way():
    """Two parts are solved side by side, but which of them finishes first decides nothing."""
    results = []
    for seed in (7, 7, 8):
        search = mesh(Limits(seconds=120.0, seed=seed))
        improve(search, 6)
        results.append(search.best)
    assert results[0] == results[1]
    assert results[0] != results[2]


def test_neighbours_are_joined_where_that_is_faster():
    search = search_for(Instance("buffer", chain(2, 100.0, 1.0), Collective(Kind.BROADCAST, 2, 4), 104.0))
    assert search.best.makespan_us == 404.0
    regroup(search)
    assert search.best.makespan_us == 104.0
    assert verify_schedule(search.best) == ()


def test_order_is_changed_where_only_that_lets_neighbours_be_joined():
    """The greedy order sends rank 1's own chunk first, so that rank 0's, its neighbour in front, comes too late to join."""
    search = search_for(small_messages())
    assert search.best.makespan_us == pytest.approx(222.0)
    improve(search, 12)
    assert search.best.makespan_us == pytest.approx(125.0)


def test_an_optimal_schedule_is_left_alone():
    search = search_for(one_way_ring())
    before = search.best
    improve(search, 100)
    assert search.best is before


def test_rounds_stop_when_told():
    search = mesh(Limits(seconds=600.0))
    search.limits.stop.set()
    with ends_within(5):
        improve(search, 10_000)


def test_nothing_happens_without_a_plan():
    search = replace(mesh(), best=None, best_plan=None)
    improve(search, 5)
    regroup(search)
    assert search.best is None

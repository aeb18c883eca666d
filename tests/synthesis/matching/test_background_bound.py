"""A bound is the same whoever computes it, and is computed elsewhere only where that pays."""

from contextlib import ExitStack
from dataclasses import replace

import pytest

from taccl_py.collective import Kind
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import demand_bound
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.matching import background_bound
from taccl_py.synthesis.matching.background_bound import BackgroundBound
from taccl_py.synthesis.matching.engine import synthesize_greedy
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.degrade import Degradation, degraded

MACHINE = degraded(
    load_topology("ndv4", 2).subset([*range(4), *range(8, 12)]), Degradation(missing_ports=("node 1 ib3 *",))
)
DEMAND = Demand(MACHINE, Kind.ALLREDUCE, 1 << 24, chunks_per_rank=1)


@pytest.mark.parametrize("fewest_ranks", [2, 1000])
def test_the_bound_is_that_of_the_demand(fewest_ranks, monkeypatch):
    monkeypatch.setattr(background_bound, "PARAMS", replace(background_bound.PARAMS, least_bound_ranks=fewest_ranks))
    with ExitStack() as stack:
        found = BackgroundBound(DEMAND, Limits(workers=2), stack, needed_soon=False)
        assert not found.is_known
        assert found.get() == demand_bound(DEMAND.topology, DEMAND.kind, 0, DEMAND.size_bytes)
        assert found.is_known


@pytest.mark.parametrize(("workers", "needed_soon"), [(1, False), (2, True)])
def test_no_process_is_started_where_there_is_no_other_processor_or_nothing_else_to_do(
    workers, needed_soon, monkeypatch
):
    monkeypatch.setattr(background_bound, "PARAMS", replace(background_bound.PARAMS, least_bound_ranks=2))
    monkeypatch.setattr(background_bound, "BackgroundCall", None)
    with ExitStack() as stack:
        assert BackgroundBound(DEMAND, Limits(workers=workers), stack, needed_soon=needed_soon).get().time_us > 0


def test_the_engine_tells_of_the_bound_and_answers_the_same(monkeypatch):
    told = []

    class Heard(Events):
        def bound(self, time_us):
            told.append(time_us)

    answers = []
    for fewest_ranks in (2, 1000):
        monkeypatch.setattr(
            background_bound, "PARAMS", replace(background_bound.PARAMS, least_bound_ranks=fewest_ranks)
        )
        answers.append(synthesize_greedy(DEMAND, Options(limits=Limits(seconds=0.5, workers=2, by_work=True)), Heard()))
    assert answers[0].schedule == answers[1].schedule
    assert answers[0].bound == answers[1].bound
    assert told == [answers[0].bound.time_us] * 2

"""A bound is the same whoever computes it, and is computed elsewhere only where that pays."""

import threading
from contextlib import ExitStack
from dataclasses import replace

from taccl_py.collective import Kind
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import demand_bound
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.known import bound_of
from taccl_py.synthesis.matching import background_bound
from taccl_py.synthesis.matching.background_bound import bound_beside
from taccl_py.synthesis.matching.engine import synthesize_greedy
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.degrade import Degradation, degraded

MACHINE = degraded(
    load_topology("ndv4", 2).subset([*range(4), *range(8, 12)]), Degradation(missing_ports=("node 1 ib3 *",))
)
DEMAND = Demand(MACHINE, Kind.ALLREDUCE, 1 << 24, chunks_per_rank=1)


def test_the_bound_is_that_of_the_demand(monkeypatch):
    monkeypatch.setattr(background_bound, "PARAMS", replace(background_bound.PARAMS, least_bound_ranks=2))
    with ExitStack() as stack:
        found = bound_beside(DEMAND, Limits(workers=2), stack).result(threading.Event())
    assert found == bound_of(DEMAND, Limits()) == demand_bound(DEMAND.topology, DEMAND.kind, 0, DEMAND.size_bytes)


def test_no_process_is_started_where_there_is_no_other_processor_or_nothing_else_to_do(monkeypatch):
    monkeypatch.setattr(background_bound, "BackgroundCall", None)
    with ExitStack() as stack:
        assert bound_beside(DEMAND, Limits(workers=2), stack) is None
        monkeypatch.setattr(background_bound, "PARAMS", replace(background_bound.PARAMS, least_bound_ranks=2))
        assert bound_beside(DEMAND, Limits(workers=1), stack) is None
    alike = Demand(load_topology("ndv4", 2), Kind.ALLGATHER, 1 << 24, chunks_per_rank=1)
    assert synthesize_greedy(alike, Options(limits=Limits(workers=2)), Events()).bound.time_us > 0


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

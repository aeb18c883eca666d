"""Attempts of matching give the same whoever carries them out, and need no processes where one of them is enough."""

import os
from dataclasses import replace

import pytest

from taccl_py.collective import Kind
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.matching import attempts
from taccl_py.synthesis.matching.attempts import Attempts, MatchingVariant, carry_out
from taccl_py.synthesis.matching.engine import synthesize_greedy
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.degrade import Degradation, degraded
from taccl_py.topology.machines import formula_topology

TRIES = [MatchingVariant(2, seed, seed % 2 == 0, 1000) for seed in range(4)]


def broken():
    """Two nodes, one of which has lost a NIC."""
    return degraded(load_topology("ndv4", 2), Degradation(missing_ports=("node 1 ib3 *",)))


@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.ALLREDUCE])
def test_other_processes_find_what_this_one_finds(kind, monkeypatch):
    demand = Demand(broken(), kind, 1 << 24)
    found = []
    for workers, worth in ((1, 0), (2, 0), (2, 1 << 30)):
        monkeypatch.setattr(attempts, "PARAMS", replace(attempts.PARAMS, least_process_messages=worth))
        with Attempts(demand, Limits(workers=workers), lambda: False, Limits(seconds=60).deadline()) as trying:
            found.append(list(trying.results(TRIES, 1000)))
    assert found[0] == found[1] == found[2]
    assert len(set(map(str, found[0]))) > 1  # seeds matter


def test_no_process_is_started_where_the_first_attempt_is_enough(monkeypatch):
    monkeypatch.setattr(attempts, "PARAMS", replace(attempts.PARAMS, least_process_messages=0))
    monkeypatch.setattr(attempts, "start_workers", None)
    demand = Demand(formula_topology("mesh:4x4"), Kind.ALLGATHER, 1 << 20)
    with Attempts(demand, Limits(workers=2), lambda: False, Limits(seconds=60).deadline()) as trying:
        assert next(trying.results(TRIES, 1000)) is not None


def test_what_processes_that_died_leave_is_done_here(monkeypatch):
    monkeypatch.setattr(attempts, "PARAMS", replace(attempts.PARAMS, least_process_messages=0))
    monkeypatch.setattr(attempts, "_carry_out_there", die)
    demand = Demand(formula_topology("mesh:4x4"), Kind.ALLGATHER, 1 << 20)
    with Attempts(demand, Limits(workers=2), lambda: False, Limits(seconds=60).deadline()) as trying:
        for _ in range(2):
            found = list(trying.results(TRIES[:3], 1000))
            assert found == [carry_out(demand, each, lambda: False) for each in TRIES[:3]]


def die(*_):
    os._exit(1)


def test_when_time_is_over_processes_come_to_an_end(monkeypatch):
    monkeypatch.setattr(attempts, "PARAMS", replace(attempts.PARAMS, least_process_messages=0))
    demand = Demand(formula_topology("mesh:16x16"), Kind.ALLGATHER, 1 << 20)
    with Attempts(demand, Limits(workers=2), lambda: True, Limits(seconds=0).deadline()) as trying:
        assert list(trying.results(TRIES, 1000)) == [None] * 4


def test_the_engine_answers_the_same_with_more_processors(monkeypatch):
    monkeypatch.setattr(attempts, "PARAMS", replace(attempts.PARAMS, least_process_messages=1000))
    demand = Demand(broken(), Kind.BROADCAST, 1 << 22, chunks_per_rank=4)
    one, two = (
        synthesize_greedy(demand, Options(limits=Limits(seconds=60, workers=workers)), Events()) for workers in (1, 2)
    )
    assert one.schedule == two.schedule


def test_chunks_fit_sizes_that_powers_of_two_do_not_divide():
    """Shares of 12 bytes are three elements, so three chunks at most, and no two."""
    machine = formula_topology("mesh:2x3")
    found = synthesize_greedy(Demand(machine, Kind.ALLGATHER, 6 * 12), Options(limits=Limits(seconds=20)), Events())
    assert found.schedule.collective.chunks_per_rank in (1, 3)

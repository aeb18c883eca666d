"""Plans that are kept beside the best one."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from taccl_py.collective import Kind
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.trees import engine
from taccl_py.synthesis.trees.kept import best_of, coarser, rivals
from taccl_py.synthesis.uneven import usable_counts
from taccl_py.topology.catalog import load_topology


def plan(end_us, num_chunks, num_messages, *, sized=False):
    """What stands for a plan: its time, pieces and messages."""
    drawn = SimpleNamespace(end_us=end_us, messages=range(num_messages))
    return SimpleNamespace(plan=drawn, num_chunks=num_chunks, transfers=range(num_messages), sized=sized)


def test_the_best_plan_is_the_coarsest_of_those_that_are_about_as_fast():
    fast, nearly = plan(100.0, 16, 160), plan(100.001, 8, 80)
    assert best_of([fast, nearly]) is nearly


def test_coarser_plans_have_fewer_pieces_and_fewer_messages():
    best = plan(100.0, 16, 160, sized=True)
    # Of a plan whose messages carry several pieces each, one with fewer pieces may have more messages, which helps nobody.
    short, long, slow = plan(101.0, 8, 80), plan(102.0, 4, 400), plan(200.0, 2, 20)
    assert coarser([best, short, long, slow]) == [short]


def test_a_rival_is_a_plan_for_which_sizes_can_be_found():
    best = plan(100.0, 16, 160, sized=True)
    near, large, far = plan(100.4, 32, 320), plan(100.2, 64, 640), plan(200.0, 8, 80)
    assert rivals(best, [best, near, large, far], 400) == [near]
    assert rivals(best, [best, near, large, far], 1000) == [large]
    # Where the best plan's sizes are still to be found, it needs none.
    assert rivals(plan(100.0, 16, 160), [near, large], 400) == []


@pytest.mark.parametrize("most_messages", [engine.UNEVEN.most_messages, 1])
def test_what_neither_serves_the_size_nor_can_be_cut_is_not_written_out(monkeypatch, most_messages):
    written = []
    monkeypatch.setattr(engine, "UNEVEN", replace(engine.UNEVEN, most_messages=most_messages))
    monkeypatch.setattr(engine, "fit_to_size", lambda answer, *_, **__: written.append(answer) or answer)
    demand = Demand(load_topology("ring:6"), Kind.BROADCAST, 64 << 20)
    limits = Limits(seconds=2.0, workers=1, by_work=True)
    engine.synthesize_trees(demand, Options(limits=limits), Events())
    counts = {schedule.collective.chunks_per_rank for schedule in (written[0].schedule, *written[0].runners_up)}
    assert counts & set(usable_counts(demand))
    assert counts.issubset(usable_counts(demand)) == (most_messages == 1)

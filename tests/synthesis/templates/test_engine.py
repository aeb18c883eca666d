"""The engine: the fastest template, an honest bound, and an end when it is asked for."""

import pytest

from taccl_py.collective import Kind
from taccl_py.errors import Infeasible, InputError, SynthesisError
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.catalog import load_engine
from taccl_py.synthesis.engine import Demand, Events, Options, Proof
from taccl_py.synthesis.templates.engine import synthesize_templates
from taccl_py.synthesis.templates.library import template_schedules
from tests.instances import chain, machine
from tests.synthesis.templates.machines import load

KIB, MIB = 1 << 10, 1 << 20


def answer(name, kind, size_bytes=KIB, **more):
    return synthesize_templates(Demand(load(name), kind, size_bytes, **more), Options(), Events())


class Heard(Events):
    def __init__(self):
        self.times = []

    def incumbent(self, time_us):
        self.times.append(time_us)


def test_it_is_on_the_list_of_engines():
    assert load_engine("templates") is synthesize_templates


@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.ALLREDUCE, Kind.ALLTOALL, Kind.SCATTER])
def test_the_fastest_template_wins_and_the_next_ones_follow(kind):
    demand = Demand(load("dgx1"), kind, MIB, chunks_per_rank=8)
    times = sorted(each.schedule.makespan_us for each in template_schedules(demand))
    found = synthesize_templates(demand, Options(), Events())
    answers = [found.schedule, *found.runners_up]
    assert [schedule.makespan_us for schedule in answers] == times[: len(answers)]


@pytest.mark.parametrize(
    ("name", "kind", "size_bytes"),
    [
        (name, kind, (KIB, 64 * MIB)[(row + column) % 2])
        for row, name in enumerate(("dgx1", "mi300x", "torus:4x4", "ndv2-x2"))
        for column, kind in enumerate(Kind)
    ],
)
def test_nothing_is_faster_than_the_bound(name, kind, size_bytes):
    found = answer(name, kind, size_bytes)
    assert found.schedule.makespan_us >= found.bound.time_us * (1 - 1e-9)
    assert (found.proof is Proof.OPTIMAL) == (found.gap < 1e-9)


@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.ALLTOALL, Kind.BROADCAST, Kind.GATHER])
def test_one_step_is_proved_optimal_where_every_pair_has_a_link(kind):
    assert answer("mi300x", kind).proof is Proof.OPTIMAL


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.ALLTOALL])
@pytest.mark.parametrize("name", ["dgx1", "dgx2", "ndv4", "ndv5", "mi300x", "torus:4x4", "hypercube:3"])
def test_one_kibibyte_is_within_a_tenth_of_the_bound(name, kind):
    """Where links or ports of one node are alike; the rest is for engines that search."""
    assert answer(name, kind).gap < 0.1


def test_better_templates_are_reported_as_they_come():
    heard = Heard()
    found = synthesize_templates(Demand(load("ndv4"), Kind.ALLREDUCE, KIB), Options(), heard)
    assert heard.times == sorted(heard.times, reverse=True)
    assert heard.times[-1] == found.schedule.makespan_us


def test_no_time_still_gives_the_first_template():
    demand = Demand(load("ndv4"), Kind.ALLREDUCE, KIB)
    limits = Limits()
    limits.stop.set()
    found = synthesize_templates(demand, Options(limits=limits), Events())
    assert found.schedule == next(template_schedules(demand)).schedule
    assert found.runners_up == ()


@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.ALLREDUCE, Kind.BROADCAST, Kind.ALLTOALL])
def test_more_chunks_than_can_be_timed_are_refused_at_once(kind):
    demand = Demand(load("dgx1"), kind, MIB, chunks_per_rank=40_000)
    with pytest.raises(InputError, match=r"40000 chunks a rank are .* ask for fewer chunks"):
        synthesize_templates(demand, Options(limits=Limits(seconds=1.0)), Events())


def test_a_machine_that_falls_apart_has_no_schedule():
    demand = Demand(machine(3, chain(2).links), Kind.ALLGATHER, KIB)
    with pytest.raises(SynthesisError) as caught:
        synthesize_templates(demand, Options(), Events())
    assert isinstance(caught.value, Infeasible)

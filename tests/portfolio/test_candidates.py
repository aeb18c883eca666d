"""Which engines run where, and in which order."""

from dataclasses import dataclass

import pytest

from taccl_py.collective import Kind
from taccl_py.portfolio import candidates
from taccl_py.portfolio.candidates import Probe, race_candidates
from taccl_py.simulate.cost_curve import CostCurve, CurvePiece
from taccl_py.synthesis.bounds import Bound, DemandBounds
from taccl_py.synthesis.engine import Demand, Events, Proof, Synthesis
from taccl_py.synthesis.race import RaceOutcome
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.degrade import Degradation, degraded
from taccl_py.units import BYTES_PER_MB


class Silent:
    """A racer whose runs find nothing, but are noted."""

    over = False

    def __init__(self):
        self.rounds = []

    def race_for(self, use, runs, _events):
        self.rounds.append([(run.engine, run.demand.size_bytes) for run in runs])
        return [use(RaceOutcome(run, None, "no")) for run in runs]


def test_quick_engines_answer_every_size_before_those_that_search_get_the_time_that_is_left():
    topology = load_topology("ndv4-x2")
    bounds = DemandBounds.of(topology, Kind.ALLTOALL)
    sizes = [1024.0, 2048.0, 4096.0, 8192.0, 10000.0]
    probes = [Probe(Demand(topology, Kind.ALLTOALL, size), bounds.at(size)) for size in sizes]
    racer = Silent()
    assert race_candidates(probes, racer, Events()) == []
    quick, last, constructive, between, *searching = racer.rounds
    assert quick == [(engine, size) for engine in ("hierarchy", "templates") for size in (10000.0, 1024.0)]
    assert last == [("hierarchy", 4096.0), ("flow", 10000.0), ("templates", 4096.0)]
    assert constructive == [("flow", size) for size in (4096.0, 1024.0)]
    assert between == [(engine, size) for size in (8192.0, 2048.0) for engine in ("templates", "hierarchy")]
    # Where nothing is known at all the first searches are no reason to leave out the others.
    assert searching[:2] == [[("milp", size) for size in (1024.0, 4096.0)], [("milp", 10000.0)]]


def test_sizes_far_apart_come_first_so_that_time_that_runs_out_leaves_no_wide_span_without_an_answer():
    topology = load_topology("ndv4-x2")
    bounds = DemandBounds.of(topology, Kind.ALLTOALL)
    sizes = [1024.0 * 2**number for number in range(17)]
    probes = [Probe(Demand(topology, Kind.ALLTOALL, size), bounds.at(size)) for size in sizes]
    racer = Silent()
    race_candidates(probes, racer, Events())
    first, second, third, *_ = [[(engine, sizes.index(size)) for engine, size in each] for each in racer.rounds]
    assert first == [(engine, place) for engine in ("hierarchy", "templates") for place in (16, 0, 8)]
    # Flows are asked at the largest size too, behind one answer of the first engine. Later rounds begin with what takes longest.
    assert second == [
        ("hierarchy", 12),
        ("flow", 16),
        ("hierarchy", 4),
        *(("templates", place) for place in (12, 4)),
    ]
    assert third == [(engine, place) for engine in ("hierarchy", "templates") for place in (14, 10, 6, 2)]


@dataclass(frozen=True)
class Timed:
    """What stands for a schedule."""

    makespan_us: float
    us_per_mb: float
    messages: tuple = ()


class Told:
    """A racer that finds what it is told, by engine and size, in us for a MB; runs are noted."""

    over = False

    def __init__(self, us_per_mb):
        self.us_per_mb, self.runs = us_per_mb, []

    def race_for(self, use, runs, _events):
        return [use(self._answer(run)) for run in runs]

    def _answer(self, run):
        size = run.demand.size_bytes
        self.runs.append((run.engine, size))
        if run.engine not in self.us_per_mb:
            return RaceOutcome(run, None, "no")
        us_per_mb = self.us_per_mb[run.engine](size)
        schedule = Timed(us_per_mb * size / BYTES_PER_MB, us_per_mb)
        return RaceOutcome(run, Synthesis(schedule, run.bound, Proof.FEASIBLE, "none", {}))


@pytest.fixture
def told_times(monkeypatch):
    """Racers that find what they are told."""

    def line(schedule, low, high):
        return CostCurve((CurvePiece(low, high, 0.0, schedule.us_per_mb),))

    monkeypatch.setattr(candidates, "require_valid", lambda _: None)
    monkeypatch.setattr(candidates, "cost_curve", line)
    return Told


@pytest.mark.parametrize(("gap", "asked"), [(2e-3, [16]), (5e-4, [])])
def test_trees_are_asked_at_the_largest_size_though_little_is_left_to_gain(told_times, gap, asked):
    topology = load_topology("ndv4-x2")
    sizes = [1024.0 * 2**number for number in range(17)]
    probes = [Probe(Demand(topology, Kind.ALLGATHER, s), Bound(s / BYTES_PER_MB, "made up")) for s in sizes]
    racer = told_times({"hierarchy": lambda _: 1 + gap})
    race_candidates(probes, racer, Events())
    assert [sizes.index(size) for engine, size in racer.runs if engine == "trees"] == asked


def test_what_is_left_to_hierarchy_is_asked_where_it_has_no_answer_though_another_has_one(told_times):
    """256 ranks, one NIC of which hears nothing any more: engine greedy answers at the largest size, which says nothing of small ones."""
    whole = load_topology("ndv4", 32)
    topology = degraded(whole, Degradation(missing_ports=("node 1 ib3 in",)))
    sizes = [1024.0 * 2**number for number in range(5)]
    probes = [Probe(Demand(topology, Kind.ALLREDUCE, size), Bound(1e-3, "made up")) for size in sizes]
    racer = told_times({"greedy": lambda _: 1e4})
    race_candidates(probes, racer, Events())
    assert ("greedy", sizes[-1]) in racer.runs
    assert {size for engine, size in racer.runs if engine == "templates"} == {sizes[0], sizes[2], sizes[4]}


def plan_of_root(schedule, low, high):
    """Curve of a plan that is the best one at its own size alone: the least time of all such plans grows as the root of the size."""
    return CostCurve((CurvePiece(low, high, schedule.makespan_us / 2, schedule.us_per_mb / 2),))


@pytest.mark.parametrize(
    ("curve", "us_per_mb", "asked"),
    [
        (plan_of_root, lambda size: 1e6 / size**0.5, range(17)),
        # One plan for all sizes: between two of them nothing can be gained.
        (None, lambda _: 1e4, (0, 8, 16)),
    ],
)
def test_an_engine_is_not_asked_between_sizes_whose_times_say_that_it_gains_nothing(
    told_times, monkeypatch, curve, us_per_mb, asked
):
    topology = load_topology("ndv4-x2")
    sizes = [1024.0 * 2**number for number in range(17)]
    probes = [Probe(Demand(topology, Kind.ALLTOALL, size), Bound(1e-3, "made up")) for size in sizes]
    if curve is not None:
        monkeypatch.setattr(candidates, "cost_curve", curve)
    racer = told_times({"hierarchy": us_per_mb, "templates": lambda size: 1.2 * us_per_mb(size)})
    race_candidates(probes, racer, Events())
    found = {engine: sorted(sizes.index(size) for e, size in racer.runs if e == engine) for engine in racer.us_per_mb}
    # Templates were beaten at all of these sizes.
    assert found == {"hierarchy": [*asked], "templates": [0, 8, 16]}


@pytest.mark.parametrize(
    ("slower", "asked"),
    [(-0.01, range(0, 13, 2)), (0.001, range(2, 13, 2)), (0.002, (6, 8, 10, 12)), (0.02, (8, 10, 12))],
)
def test_an_engine_is_not_asked_beyond_two_sizes_through_which_the_line_is_above_the_best(told_times, slower, asked):
    """Trees are asked from the largest size down, two at a time, where hierarchy is always twice as slow as the bound.

    Slower by 0.002 for every doubling below the largest size, they take 2.016 at size 8 and 8.032 at size 10, which is four times as large:
    0.512 by the line at size 6, where hierarchy takes 0.5, and 0.136 at size 4, where it takes 0.125.
    """
    topology = load_topology("ndv4-x2")
    sizes = [1024.0 * 2**number for number in range(13)]
    probes = [Probe(Demand(topology, Kind.ALLGATHER, s), Bound(s / BYTES_PER_MB, "made up")) for s in sizes]
    times = {"hierarchy": lambda _: 2.0, "trees": lambda size: 2.0 * (1 + slower * (12 - sizes.index(size)))}
    racer = told_times(times)
    race_candidates(probes, racer, Events())
    assert {sizes.index(size) for engine, size in racer.runs if engine == "trees"} == {*asked}


@pytest.mark.parametrize(("milp", "asked"), [(5.0, {4, 8}), (1.8, {2, 4, 6, 8})])
def test_searches_that_find_nothing_where_the_gap_is_widest_are_not_begun_where_it_is_narrower(told_times, milp, asked):
    """Hierarchy is at the bound at the smallest size, twice as slow at sizes 4 and 8, and between these at the others."""
    topology = load_topology("ndv4-x2")
    gaps = (0.0, 0.2, 0.5, 0.5, 1.0, 0.5, 0.5, 0.5, 1.0)
    sizes = [1024.0 * 2**number for number in range(9)]
    probes = [
        Probe(Demand(topology, Kind.ALLTOALL, size), Bound(2.0 / (1 + gap) * size / BYTES_PER_MB, "made up"))
        for size, gap in zip(sizes, gaps, strict=True)
    ]
    racer = told_times({"hierarchy": lambda _: 2.0, "milp": lambda _: milp})
    race_candidates(probes, racer, Events())
    assert {sizes.index(size) for engine, size in racer.runs if engine == "milp"} == asked


def test_when_time_is_up_it_is_not_found_out_what_else_could_run(monkeypatch):
    """To find sketches for narrower searches takes half a second and more."""
    demand = Demand(load_topology("ndv4-x2"), Kind.ALLREDUCE, 1e6)
    racer = Silent()
    racer.over = True
    for name in ("quick_runs", "constructive_runs", "searching_runs", "second_runs"):
        monkeypatch.setattr(candidates, name, None)
    assert race_candidates([Probe(demand, Bound(1.0, "any"))], racer, Events()) == []
    assert racer.rounds == []

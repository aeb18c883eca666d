"""Which engines run where, and in which order."""

from taccl_py.collective import Kind
from taccl_py.portfolio.candidates import Probe, race_candidates
from taccl_py.synthesis.bounds import DemandBounds
from taccl_py.synthesis.engine import Demand, Events
from taccl_py.synthesis.race import Outcome
from taccl_py.topology.catalog import load_topology


class Silent:
    """A racer whose runs find nothing, but are noted."""

    def __init__(self):
        self.rounds = []

    def race(self, runs, _events):
        self.rounds.append([(run.engine, run.demand.size_bytes) for run in runs])
        return [Outcome(run, None, "no") for run in runs]


def test_quick_engines_answer_every_size_before_those_that_search_get_the_time_that_is_left():
    topology = load_topology("ndv4-x2")
    bounds = DemandBounds.of(topology, Kind.ALLTOALL)
    sizes = [1024.0, 2048.0, 4096.0, 8192.0, 10000.0]
    probes = [Probe(Demand(topology, Kind.ALLTOALL, size), bounds.at(size)) for size in sizes]
    racer = Silent()
    assert race_candidates(probes, racer, Events()) == []
    quick, constructive, between, searching, _ = racer.rounds
    assert quick == [(engine, size) for size in (10000.0, 1024.0, 4096.0) for engine in ("templates", "hierarchy")]
    assert constructive == [("flow", size) for size in (10000.0, 4096.0, 1024.0)]
    assert between == [(engine, size) for size in (8192.0, 2048.0) for engine in ("templates", "hierarchy")]
    assert searching == [("milp", size) for size in (1024.0, 4096.0, 10000.0)]


def test_sizes_far_apart_come_first_so_that_time_that_runs_out_leaves_no_wide_span_without_an_answer():
    topology = load_topology("ndv4-x2")
    bounds = DemandBounds.of(topology, Kind.ALLGATHER)
    sizes = [1024.0 * 2**number for number in range(17)]
    probes = [Probe(Demand(topology, Kind.ALLGATHER, size), bounds.at(size)) for size in sizes]
    racer = Silent()
    race_candidates(probes, racer, Events())
    places = [sizes.index(size) for engine, size in racer.rounds[0] if engine == "templates"]
    assert places == [16, 0, 8, 4, 12, 2, 6, 10, 14]

import pytest

from taccl_py.collective import Collective, Kind
from taccl_py.errors import InputError
from taccl_py.sketch.catalog import list_sketches, load_sketch
from taccl_py.sketch.files import sketch_text
from taccl_py.synthesis.problem import Problem
from taccl_py.topology.catalog import load_topology
from tests.instances import MB

SKETCHES = {sketch.name: sketch for sketch in list_sketches()}
PLACES = [(name, nodes) for name, sketch in SKETCHES.items() for nodes in sketch.nodes]


def test_sketches_are_listed_by_name_and_each_says_what_it_is_for():
    assert list(SKETCHES) == sorted(SKETCHES)
    assert {"ndv2-sk-1", "ndv2-sk-2", "ndv2-sk-3", "dgx2-sk-1", "dgx2-sk-2"} <= set(SKETCHES)
    for sketch in SKETCHES.values():
        assert sketch.purpose
        assert sketch.topology
        assert sketch.nodes


def test_a_sketch_is_found_by_its_name_or_the_end_of_it():
    assert load_sketch("ndv2-sk-3") == SKETCHES["ndv2-sk-3"]
    assert load_sketch("sk-3", "ndv2") == SKETCHES["ndv2-sk-3"]
    assert load_sketch("sk-1", "dgx2-x2") == SKETCHES["dgx2-sk-1"]


def test_the_machine_of_a_sketch_may_be_named_by_its_gpu():
    assert load_sketch("rails", "a100-x2") == SKETCHES["ndv4-rails"]


def test_a_file_is_a_sketch_too(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(sketch_text(SKETCHES["dgx2-sk-2"]), encoding="utf-8")
    assert load_sketch(str(path)) == SKETCHES["dgx2-sk-2"]


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(InputError, match="did you mean ndv2-sk-1") as caught:
        load_sketch("ndv2-sk1")
    assert "taccl sketch list" in str(caught.value)
    with pytest.raises(InputError, match=r"did you mean ndv5-rails\b"):
        load_sketch("rail", "h100-x2")
    with pytest.raises(InputError, match="is not a sketch"):
        load_sketch("")
    with pytest.raises(InputError, match=r"missing\.json"):
        load_sketch("missing.json")


@pytest.mark.parametrize(("name", "nodes"), PLACES)
def test_every_shipped_sketch_fits_every_machine_that_it_names(name, nodes):
    """It fits, its symmetry holds, and it leaves a way for every chunk, both ways round for combining collectives."""
    sketch = SKETCHES[name]
    formula = ":" in sketch.topology
    topology = load_topology(sketch.topology, None if formula else nodes)
    assert topology.num_nodes == nodes
    collective = Collective(Kind.ALLGATHER, topology.num_ranks, sketch.chunks_per_rank)
    for machine in (topology, topology.reversed()):
        problem = Problem.build(machine, collective, sketch, MB)
        assert len(problem.generators) == len(sketch.generators(topology))


@pytest.mark.parametrize(("name", "nodes"), [pair for pair in PLACES if pair[1] > 1])
def test_every_shipped_sketch_leaves_a_path_for_alltoall(name, nodes):
    sketch = SKETCHES[name]
    topology = load_topology(sketch.topology, nodes)
    problem = Problem.build(topology, Collective(Kind.ALLTOALL, topology.num_ranks), sketch, MB)
    assert problem.allowed.any()


@pytest.mark.parametrize("name", list(SKETCHES))
def test_a_shipped_sketch_is_refused_by_other_machines(name):
    sketch = SKETCHES[name]
    with pytest.raises(InputError) as caught:
        sketch.check_fits(load_topology("ring:8"))
    assert caught.value.field == "topology"
    other = max(sketch.nodes) + 1
    if ":" not in sketch.topology:
        with pytest.raises(InputError) as caught:
            sketch.check_fits(load_topology(sketch.topology, other))
        assert caught.value.field == "nodes"

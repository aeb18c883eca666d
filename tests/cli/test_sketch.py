"""``taccl sketch``: sketches listed, shown, and tested against their machines."""

import pytest

from taccl_py.sketch.catalog import list_sketches, load_sketch
from taccl_py.sketch.files import read_sketch, sketch_text
from tests.cli.inputs import EXPANDED, NODE_FORM, SKETCH, TACCL_SKETCH, changed, write_json

SHIPPED = [sketch.name for sketch in list_sketches()]


def test_the_list_has_every_sketch(taccl):
    ended = taccl("sketch", "list")
    assert (ended.code, ended.err) == (0, "")
    for sketch in list_sketches():
        assert sketch.name in ended.out


def test_the_list_as_json(taccl):
    record = taccl("sketch", "list", "--json").json
    assert [sketch["name"] for sketch in record["sketches"]] == SHIPPED
    assert {tuple(sketch) for sketch in record["sketches"]} == {
        ("name", "topology", "nodes", "purpose", "chunks_per_rank")
    }
    assert all(sketch["purpose"] for sketch in record["sketches"])


@pytest.mark.parametrize("name", SHIPPED)
def test_every_sketch_is_shown_as_a_file_that_reads_back(taccl, folder, name):
    ended = taccl("sketch", "show", name)
    assert (ended.code, ended.err) == (0, "")
    (folder / "sketch.json").write_text(ended.out, encoding="utf-8")
    assert read_sketch(folder / "sketch.json") == load_sketch(name)
    assert taccl("sketch", "show", "sketch.json").out == ended.out


def test_a_sketch_of_taccl_is_shown_in_our_format(taccl, folder):
    ended = taccl("sketch", "show", write_json(folder / "taccl.json", TACCL_SKETCH))
    assert ended.code == 0
    (folder / "ours.json").write_text(ended.out, encoding="utf-8")
    assert read_sketch(folder / "ours.json") == read_sketch(folder / "taccl.json")


def test_show_writes_the_canonical_text(taccl):
    assert taccl("sketch", "show", "ndv2-sk-1").out == sketch_text(load_sketch("ndv2-sk-1"))


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_sketch_is_good_on_every_number_of_nodes_that_it_names(taccl, name):
    ended = taccl("sketch", "validate", name)
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert len(lines) == max(1, len(load_sketch(name).nodes))
    assert all(line.startswith(f"{name}: good on ") for line in lines)


def test_one_number_of_nodes_can_be_asked_for(taccl):
    assert taccl("sketch", "validate", "ndv2-sk-1", "--nodes", 2).out == "ndv2-sk-1: good on ndv2-x2\n"
    assert taccl("sketch", "validate", "sk-1", "--topology", "ndv2", "--nodes", 2).out == "ndv2-sk-1: good on ndv2-x2\n"


def test_json_tells_on_which_machines_a_sketch_is_good(taccl):
    found = taccl("sketch", "validate", "ndv2-sk-1", "--nodes", 2, "--json").json
    assert found == {"sketch": "ndv2-sk-1", "good": True, "topologies": ["ndv2-x2"]}


def test_a_number_of_nodes_that_the_sketch_is_not_for_is_refused(refuse):
    refuse(2, ["ndv2-sk-1.json", "nodes", "--nodes"], "sketch", "validate", "ndv2-sk-1", "--nodes", 3)


def test_nodes_of_a_formula_are_refused(refuse):
    refuse(2, ["nodes"], "sketch", "validate", "torus-4x4-translations", "--nodes", 2)


def test_a_sketch_of_ones_own_is_good(taccl, folder):
    machine, sketch = write_json(folder / "m.json", NODE_FORM), write_json(folder / "s.json", SKETCH)
    assert taccl("sketch", "validate", sketch, "--topology", machine, "--nodes", 2).out == "through-0: good on toy-x2\n"


def test_a_symmetry_that_is_none_is_named(refuse, folder):
    machine = write_json(folder / "m.json", NODE_FORM)
    sketch = write_json(folder / "s.json", changed(SKETCH, "symmetry.rotations", [{"by": 1, "within": "machine"}]))
    refuse(2, ["s.json", "symmetry.rotations.0", "costs something else", "remove it"], "sketch", "validate", sketch,
           "--topology", machine, "--nodes", 2)  # fmt: skip


def test_a_permutation_over_a_link_that_does_not_exist_is_named(refuse, folder):
    links = [link for link in EXPANDED["links"] if (link["from"], link["to"]) != (2, 1)]
    machine = write_json(folder / "m.json", {**EXPANDED, "links": links, "symmetry": []})
    sketch = {"format": "taccl-sketch", "version": 1, "name": "swap", "symmetry": {"permutations": [[1, 0, 2]]}}
    refuse(2, ["s.json", "symmetry.permutations.0", "which does not exist"], "sketch", "validate",
           write_json(folder / "s.json", sketch), "--topology", machine)  # fmt: skip


def test_a_sketch_that_leaves_no_path_is_infeasible_as_for_synth(taccl, refuse, folder):
    sketch = {"format": "taccl-sketch", "version": 1, "name": "few", "intra_node": {"links": {"0": [1], "1": [0]}}}
    words = ["chunk 0", "rank 0 to rank 2", "intra_node.links", "allow a path there"]
    name = write_json(folder / "s.json", sketch)
    refuse(3, words, "sketch", "validate", name, "--topology", "full:3")
    refuse(3, words, "synth", "full:3", "allgather", "--sketch", name)
    sketch["intra_node"]["links"] = {"0": [1], "1": [2]}
    ended = taccl("sketch", "validate", write_json(folder / "s.json", sketch), "--topology", "full:3")
    assert (ended.code, ended.out) == (0, "few: good on full-3\n")
    assert ended.err.startswith("note: on full-3 it serves only rooted collectives: chunk 1 ")
    assert taccl("synth", "full:3", "broadcast", "--sketch", name, "--effort", "quick").code == 0


def test_a_sketch_that_is_only_for_another_machine_is_refused(refuse):
    refuse(
        2, ["ndv2-sk-1.json", "topology", "written for ndv2"], "sketch", "validate", "ndv2-sk-1", "--topology", "dgx1"
    )


def test_a_suggested_sketch_can_be_used(taccl, folder):
    ended = taccl("sketch", "suggest", "ndv2", "allgather", "--nodes", "2", "--time-limit", "1.5", "-o", "mine.json")
    assert ended.code == 0, ended
    assert "wrote mine.json" in ended.err
    assert taccl("sketch", "validate", "mine.json").code == 0
    assert (
        taccl("synth", "ndv2", "allgather", "--nodes", "2", "--sketch", "mine.json", "--time-limit", "1", "--json").code
        == 0
    )
    assert (folder / "mine.json").exists()


def test_suggestions_are_sorted_by_time(taccl):
    record = taccl("sketch", "suggest", "ndv4", "alltoall", "--nodes", "2", "--time-limit", "1.5", "--json").json
    times = [suggestion["makespan_us"] for suggestion in record["suggestions"]]
    assert times == sorted(times)
    assert len(times) >= 2


def test_a_searched_sketch_is_named_in_the_answer(taccl):
    record = taccl(
        "synth", "ndv2", "allgather", "--nodes", "2", "--sketch", "auto", "--time-limit", "1.5", "--json"
    ).json
    assert record["sketch"].startswith("ndv2-")

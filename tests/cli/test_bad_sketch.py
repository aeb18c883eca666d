"""Broken sketches, ours and TACCL's: exit code 2 (3 where they leave no way), one sentence, nothing written."""

import pytest

from tests.cli.bad_input import bad, gone, table
from tests.cli.inputs import NODE_FORM, PROFILE, SKETCH, TACCL_SKETCH, changed, write_json


@pytest.mark.parametrize(
    "case",
    table(
        gone("format"),
        gone("version"),
        gone("name"),
        bad("another format", "format", "taccl-topology", "taccl-sketch"),
        bad("a later version", "version", 9, "version 1"),
        bad("an unknown field", "comment", 1, "not a known field"),
        bad("an unknown field inside", "inter_node.relay", {}, "not a known field", "relays"),
        bad("a strategy that is none", "intra_node.strategy", "fast", "none, switch, minmax, maxmin"),
        bad("a strategy without its switch", "intra_node.strategy", "switch", "list", field="intra_node.switches"),
        bad("a switch without its strategy", "intra_node.switches", [{"ranks": [0, 1]}], "say switch",
            field="intra_node.strategy"),
        bad("overlapping switches", "intra_node", {"strategy": "switch", "switches": [
            {"ranks": [0, 1]}, {"ranks": [1, 2]}]}, "overlaps switch 0", "rank 1", field="intra_node.switches.1"),
        bad("a switch of one rank", "intra_node", {"strategy": "switch", "switches": [{"ranks": [0]}]},
            "at least two", field="intra_node.switches.0"),
        bad("a switch with a rank twice", "intra_node", {"strategy": "switch", "switches": [{"ranks": [0, 0]}]},
            "different", field="intra_node.switches.0"),
        bad("a switch with a missing rank", "intra_node", {"strategy": "switch", "switches": [{"ranks": [0, 7]}]},
            "local rank 7 does not exist", field="intra_node.switches.0"),
        bad("an unknown policy", "intra_node", {"strategy": "switch", "switches": [
            {"ranks": [0, 1], "policy": "most"}]}, "uc-min", field="intra_node.switches.0.policy"),
        bad("a link that the machine lacks", "intra_node.links", {"0": [0]}, "no link", field="intra_node.links.0"),
        bad("links of a missing rank", "intra_node.links", {"4": [0]}, "rank 4", field="intra_node.links.4"),
        bad("links of no rank", "intra_node.links", {"x": [0]}, "local rank", field="intra_node.links.x"),
        bad("links to no rank", "intra_node.links", {"0": []}, "at least one", field="intra_node.links.0"),
        bad("connections by an unknown word", "inter_node.connections", "all", "direct, fully-connected"),
        bad("connections as a list", "inter_node.connections", [0], "an object"),
        bad("a connection to a missing rank", "inter_node.connections", {"0": [5]}, "local rank 5",
            field="inter_node.connections.0"),
        bad("a connection of a rank written twice", "inter_node.connections", {"0": [1], "00": [0]}, "rank 0",
            field="inter_node.connections.00"),
        bad("a relay that does not send", "inter_node.relays", {"0": [0], "1": [1]}, "no sender",
            field="inter_node.relays.1"),
        bad("a rank without a relay", "inter_node.relays", {"0": [0]}, "local rank 1", field="inter_node.relays"),
        bad("an order without relays", "inter_node", {"own_first": True}, "add it", field="inter_node.own_first"),
        bad("a rotation that does not divide", "symmetry.rotations", [{"by": 1, "within": 3}], "does not divide",
            field="symmetry.rotations.0"),
        bad("a rotation within nothing", "symmetry.rotations", [{"by": 1, "within": 0}], "at least 1",
            field="symmetry.rotations.0.within"),
        bad("a rotation by a word", "symmetry.rotations", [{"by": "much", "within": 2}], "node",
            field="symmetry.rotations.0.by"),
        bad("a rotation that is no symmetry", "symmetry.rotations", [{"by": 1, "within": "machine"}],
            "not a symmetry", "costs something else", "remove it", field="symmetry.rotations.0"),
        bad("a permutation of too few ranks", "symmetry.permutations", [[0, 1, 2]], "name each once",
            field="symmetry.permutations.0"),
        bad("a permutation with a rank twice", "symmetry.permutations", [[0, 0, 2, 3]], "name each once",
            field="symmetry.permutations.0"),
        bad("a permutation against the sketch itself", "symmetry.permutations", [[1, 0, 3, 2]],
            "does not preserve what the sketch allows", field="symmetry.permutations.0"),
        bad("no chunks", "chunks_per_rank", 0, "at least 1"),
        bad("chunks as text", "chunks_per_rank", "2", "a whole number is needed"),
        bad("another machine", "topology", "ndv2", "toy-x2", "edit a copy"),
        bad("another number of nodes", "nodes", [3], "--nodes"),
        bad("no node", "nodes", [0], "at least 1", field="nodes.0"),
    ),
)  # fmt: skip
def test_a_sketch_with_one_mistake_is_refused(refuse, folder, case):
    machine = write_json(folder / "machine.json", NODE_FORM)
    sketch = write_json(folder / "bad.json", case.of(SKETCH))
    refuse(case.code, [sketch, case.field, *case.words], "synth", machine, "allgather", "--nodes", 2, "--sketch", sketch,
           "-o", "out")  # fmt: skip


@pytest.mark.parametrize(
    ("place", "value", "restriction"),
    [
        pytest.param("inter_node", {"connections": {}}, "inter_node.connections", id="no connections"),
        pytest.param("intra_node.links", {"0": [1]}, "inter_node.connections", id="one-way links and one sender"),
    ],
)
def test_a_sketch_that_leaves_no_path_ends_with_3_and_names_chunk_rank_and_restriction(
    refuse, folder, place, value, restriction
):
    machine = write_json(folder / "machine.json", NODE_FORM)
    sketch = write_json(folder / "sketch.json", changed(SKETCH, place, value))
    sentence = refuse(3, [restriction, "allow a path"], "synth", machine, "allgather", "--nodes", 2, "--sketch", sketch,
                      "-o", "out")  # fmt: skip
    assert sentence.startswith("chunk 0 (of rank 0) cannot get from rank 0 to rank 2")


def test_links_that_leave_no_path_inside_a_node_are_named(refuse, folder):
    sketch = {"format": "taccl-sketch", "version": 1, "name": "line", "intra_node": {"links": {"0": [1], "1": [2]}}}
    name = write_json(folder / "sketch.json", sketch)
    sentence = refuse(3, ["intra_node.links"], "synth", "full:3", "alltoall", "--sketch", name, "-o", "out")
    assert "rank 1 to rank 0" in sentence


@pytest.mark.parametrize("collective", ["reducescatter", "allreduce", "reduce"])
def test_a_sketch_that_fits_a_one_way_machine_fits_it_for_sums_too(taccl, folder, collective):
    links = [{"from": r, "to": (r + 1) % 3, "alpha_us": 1, "beta_us_per_mb": 10} for r in range(3)]
    machine = {"format": "taccl-topology", "version": 1, "name": "oneway", "node_of": [0, 0, 0], "links": links}
    sketch = {"format": "taccl-sketch", "version": 1, "name": "all",
              "intra_node": {"links": {str(r): [(r + 1) % 3] for r in range(3)}}}  # fmt: skip
    names = write_json(folder / "machine.json", machine), write_json(folder / "sketch.json", sketch)
    assert taccl("sketch", "validate", names[1], "--topology", names[0]).code == 0
    ended = taccl("synth", names[0], collective, "--sketch", names[1])
    assert ended.code == 0, ended.err


@pytest.mark.parametrize(
    "case",
    table(
        gone("intranode_sketch"),
        gone("internode_sketch"),
        gone("symmetry_offsets"),
        gone("hyperparameters"),
        gone("internode_sketch.internode_conn"),
        bad("an unknown field", "comment", 1, "not a known field"),
        bad("no node", "nnodes", 0, "at least 1"),
        bad("nodes as text", "nnodes", "2", "a whole number is needed"),
        bad("an unknown strategy", "intranode_sketch.strategy", "fast", "none, switch, minmax, maxmin"),
        bad("a switch without policy", "intranode_sketch.switch_hyperedge_strategy", [], "give one each"),
        bad("an unknown policy", "intranode_sketch.switch_hyperedge_strategy", ["x"], "uc-min",
            field="intranode_sketch.switch_hyperedge_strategy.0"),
        bad("overlapping switches", "intranode_sketch", {"strategy": "switch", "switches": [[0, 1, 2], [2, 3]],
            "switch_hyperedge_strategy": ["uc-max", "uc-min"]}, "overlaps", field="intranode_sketch.switches.1"),
        bad("another relay strategy", "internode_sketch.strategy", "ring", "relay"),
        bad("an unknown connection", "internode_sketch.internode_conn", "all", "direct-map, fully-connected"),
        bad("a connection to a missing rank", "internode_sketch.internode_conn", {"0": [9]}, "rank 9",
            field="internode_sketch.internode_conn.0"),
        bad("a rank without a relay", "internode_sketch.gpus_to_sender_rev_map", {"0": [0]}, "local rank 1",
            field="internode_sketch.gpus_to_sender_rev_map"),
        bad("half an offset", "symmetry_offsets", [[4]], "[offset, group size]", field="symmetry_offsets.0"),
        bad("an empty group", "symmetry_offsets", [[4, 0]], "[offset, group size]", field="symmetry_offsets.0"),
        bad("a group that does not divide", "symmetry_offsets", [[1, 3]], "does not divide",
            field="symmetry_offsets.0"),
        bad("no chunks", "hyperparameters.input_chunkup", 0, "at least 1"),
        bad("an unknown hyperparameter", "hyperparameters.chunks", 1, "not a known field"),
    ),
)  # fmt: skip
def test_a_sketch_of_taccl_with_one_mistake_is_refused(refuse, folder, case):
    profile = write_json(folder / "profile.json", PROFILE)
    sketch = write_json(folder / "bad.json", case.of(TACCL_SKETCH))
    refuse(case.code, [sketch, case.field, *case.words], "synth", profile, "allgather", "--sketch", sketch, "-o", "out")


def test_a_sketch_of_taccl_says_how_many_nodes_there_are(refuse, folder):
    profile = write_json(folder / "profile.json", PROFILE)
    sketch = write_json(folder / "sketch.json", TACCL_SKETCH)
    refuse(2, [sketch, "nnodes", "leave --nodes out"], "synth", profile, "allgather", "--sketch", sketch, "--nodes", 3)


def test_an_unknown_sketch_is_refused_with_what_is_near(refuse):
    refuse(2, ["'ndv2-sk-9'", "ndv2-sk-1", "taccl sketch list"], "synth", "ndv2", "allgather", "--sketch", "ndv2-sk-9")


def test_a_sketch_for_another_machine_is_refused(refuse):
    refuse(
        2, ["ndv2-sk-1.json", "topology", "written for ndv2"], "synth", "ring:4", "allgather", "--sketch", "ndv2-sk-1"
    )


def test_a_sketch_for_another_number_of_nodes_is_refused(refuse):
    refuse(2, ["ndv2-sk-1.json", "nodes", "--nodes"], "synth", "ndv2", "allgather", "--nodes", 3, "--sketch", "sk-1")

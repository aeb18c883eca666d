import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.errors import InputError
from taccl_py.sketch.files import read_sketch, sketch_text
from taccl_py.sketch.model import Policy, Rotation, Sketch, Strategy, SwitchGroup
from tests.instances import TACCL_SKETCHES, taccl_sketch

EVERYTHING = {
    "format": "taccl-sketch",
    "version": 1,
    "name": "everything",
    "purpose": "Every field is used.",
    "topology": "dgx2",
    "nodes": [1, 2],
    "intra_node": {
        "strategy": "switch",
        "switches": [{"ranks": [0, 1], "policy": "uc-min"}, {"ranks": [2, 3]}],
        "links": {"0": [1], "1": [0, 2]},
    },
    "inter_node": {"connections": {"1": [0], "3": [2, 0]}, "relays": {"1": [0, 1], "3": [2, 3]}, "own_first": True},
    "symmetry": {
        "rotations": [{"by": 2, "within": "node"}, {"by": "node", "within": "machine"}, {"by": 1, "within": 4}],
        "permutations": [[1, 0, 3, 2]],
    },
    "chunks_per_rank": 2,
}


@pytest.fixture
def read(tmp_path):
    """Read a JSON value, or a text, as a sketch file."""

    def reader(value, name="file.json"):
        path = tmp_path / name
        path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
        return read_sketch(path)

    return reader


def changed(original, place, value):
    """A copy with one field changed, or left out where the value is ``...``."""
    content = copy.deepcopy(original)
    *way, last = place
    inner = content
    for key in way:
        inner = inner[key]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return content


# Our format


def test_every_field_is_read(read):
    assert read(EVERYTHING) == Sketch(
        name="everything",
        purpose="Every field is used.",
        topology="dgx2",
        nodes=(1, 2),
        strategy=Strategy.SWITCH,
        switches=(SwitchGroup((0, 1), Policy.UC_MIN), SwitchGroup((2, 3), Policy.FREE)),
        links={0: (1,), 1: (0, 2)},
        connections={1: (0,), 3: (2, 0)},
        relays={1: (0, 1), 3: (2, 3)},
        own_first=True,
        rotations=(Rotation(2, "node"), Rotation("node", "machine"), Rotation(1, 4)),
        permutations=((1, 0, 3, 2),),
        chunks_per_rank=2,
    )


def test_all_but_format_version_and_name_may_be_left_out(read):
    assert read({"format": "taccl-sketch", "version": 1, "name": "bare"}) == Sketch("bare")


@pytest.mark.parametrize("word", ["direct", "fully-connected"])
def test_connections_may_be_a_word(read, word):
    assert read(changed(EVERYTHING, ["inter_node", "connections"], word)).connections == word


@pytest.mark.parametrize(
    ("place", "value", "field", "what"),
    [
        (["format"], "taccl-topology", "format", "taccl-sketch"),
        (["format"], ..., "format", "missing"),
        (["version"], 2, "version", "reads version 1"),
        (["name"], "", "name", "text"),
        (["name"], ..., "name", "missing"),
        (["nodes"], [0], "nodes.0", "at least 1"),
        (["nodes"], 2, "nodes", "list"),
        (["inter_nodes"], {}, "inter_nodes", "not a known field"),
        (["intra_node"], [], "intra_node", "object"),
        (["intra_node", "strategy"], "swtch", "intra_node.strategy", "minmax"),
        (["intra_node", "switch"], [], "intra_node.switch", "not a known field"),
        (["intra_node", "switches", 0, "policy"], "uc-most", "intra_node.switches.0.policy", "uc-max"),
        (["intra_node", "switches", 1, "ranks", 0], -1, "intra_node.switches.1.ranks.0", "at least 0"),
        (["intra_node", "switches", 1, "rank"], 3, "intra_node.switches.1.rank", "not a known field"),
        (["intra_node", "switches", 1], [2, 3], "intra_node.switches.1", "object"),
        (["intra_node", "links"], [[0, 1]], "intra_node.links", "object"),
        (["intra_node", "links", "a"], [0], "intra_node.links.a", "local rank"),
        (["intra_node", "links", "0"], [], "intra_node.links.0", "empty"),
        (["inter_node", "connections"], "all", "inter_node.connections", "fully-connected"),
        (["inter_node", "connections"], 3, "inter_node.connections", "object"),
        (["inter_node", "connections", "1"], 0, "inter_node.connections.1", "list"),
        (["inter_node", "relays", "-1"], [0], "inter_node.relays.-1", "local rank"),
        (["inter_node", "own_first"], 1, "inter_node.own_first", "true or false"),
        (["inter_node", "relays"], ..., "inter_node.own_first", "relays is not given"),
        (["symmetry", "rotations", 0, "by"], -2, "symmetry.rotations.0.by", "at least 0"),
        (["symmetry", "rotations", 0, "within"], 0, "symmetry.rotations.0.within", "at least 1"),
        (["symmetry", "rotations", 1, "by"], "machine", "symmetry.rotations.1.by", "node"),
        (["symmetry", "rotations", 1, "within"], "rack", "symmetry.rotations.1.within", "machine"),
        (["symmetry", "rotations", 1, "within"], ..., "symmetry.rotations.1.within", "missing"),
        (["symmetry", "permutations", 0], 5, "symmetry.permutations.0", "list"),
        (["symmetry", "permutations", 0, 1], "0", "symmetry.permutations.0.1", "whole number"),
        (["symmetry", "offsets"], [], "symmetry.offsets", "not a known field"),
        (["chunks_per_rank"], 0, "chunks_per_rank", "at least 1"),
        (["chunks_per_rank"], 1.5, "chunks_per_rank", "whole number"),
    ],
)
def test_a_malformed_sketch_is_refused_with_its_file_and_the_field(read, tmp_path, place, value, field, what):
    with pytest.raises(InputError) as caught:
        read(changed(EVERYTHING, place, value))
    assert caught.value.path == str(tmp_path / "file.json")
    assert caught.value.field == field
    assert what in caught.value.what


# "1" and "01" are two keys of JSON and one rank; the later one silently replaces the earlier.
def test_a_rank_that_is_named_twice_is_refused(read):
    with pytest.raises(InputError):
        read(changed(EVERYTHING, ["inter_node", "connections"], {"1": [0], "3": [2], "01": [3]}))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"name": 1, "name": 2}'])
def test_a_text_that_is_no_sketch_is_refused(read, text):
    with pytest.raises(InputError):
        read(text)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError) as caught:
        read_sketch(tmp_path / "nothing.json")
    assert "nothing.json" in str(caught.value)


ranks = st.integers(0, 9)
rank_maps = st.none() | st.dictionaries(ranks, st.lists(ranks, min_size=1, max_size=3).map(tuple), max_size=4)


@st.composite
def sketches(draw):
    strategy = draw(st.sampled_from(Strategy))
    switches = ()
    if strategy is Strategy.SWITCH:
        groups = draw(st.sampled_from([((0, 1),), ((0, 1), (2, 3, 4)), ((0, 1), (1, 0))]))
        switches = tuple(SwitchGroup(group, draw(st.sampled_from(Policy))) for group in groups)
    connections = draw(rank_maps | st.sampled_from(["direct", "fully-connected"]))
    relays = draw(rank_maps)
    if relays is not None and isinstance(connections, dict):
        relays = {sender: served for sender, served in relays.items() if sender in connections}
    return Sketch(
        name=draw(st.text(min_size=1, max_size=8)),
        purpose=draw(st.text(max_size=8)),
        topology=draw(st.sampled_from(["", "ndv2", "torus:4x4"])),
        nodes=tuple(draw(st.lists(st.integers(1, 9), max_size=3))),
        strategy=strategy,
        switches=switches,
        links=draw(rank_maps),
        connections=connections,
        relays=relays,
        own_first=relays is not None and draw(st.booleans()),
        rotations=tuple(
            draw(
                st.lists(
                    st.builds(
                        Rotation,
                        st.integers(0, 9) | st.just("node"),
                        st.integers(1, 9) | st.sampled_from(["node", "machine"]),
                    ),
                    max_size=3,
                )
            )
        ),
        permutations=tuple(draw(st.lists(st.permutations(range(4)).map(tuple), max_size=2))),
        chunks_per_rank=draw(st.integers(1, 9)),
    )


@settings(max_examples=150)
@given(sketch=sketches())
def test_reading_undoes_writing(tmp_path_factory, sketch):
    path = tmp_path_factory.getbasetemp() / "written.json"
    text = sketch_text(sketch)
    path.write_text(text, encoding="utf-8")
    again = read_sketch(path)
    assert again == sketch
    assert sketch_text(again) == text


# TACCL's format


def test_taccls_relay_sketch_is_read_unchanged(read):
    sketch = read(TACCL_SKETCHES["dgx2-sk-1"], "sk1-dgx2-n2.json")
    odd = range(1, 16, 2)
    assert sketch == Sketch(
        name="sk1-dgx2-n2",
        purpose="TACCL sketch",
        nodes=(2,),
        strategy=Strategy.SWITCH,
        switches=(SwitchGroup(tuple(range(16)), Policy.UC_MIN),),
        connections={r: (r - 1,) for r in odd},
        relays={r: (r - 1, r) for r in odd},
        own_first=True,
        rotations=(Rotation(2, 16), Rotation(16, 32)),
        chunks_per_rank=2,
    )


def test_taccls_direct_map_and_fully_connected_are_read(read):
    assert read(TACCL_SKETCHES["ndv2-sk-3"]).connections == "direct"
    assert read(TACCL_SKETCHES["ndv2-sk-2"]).connections == "fully-connected"
    sketch = read(TACCL_SKETCHES["dgx2-sk-2"])
    assert sketch.connections == "direct"
    assert sketch.relays == {r: (r,) for r in range(16)}
    assert not sketch.own_first
    assert sketch.switches[0].policy is Policy.UC_MAX


def test_a_taccl_sketch_for_one_node_needs_nothing_about_others(read):
    sketch = read(TACCL_SKETCHES["ndv2-n1-6"])
    assert (sketch.nodes, sketch.connections, sketch.chunks_per_rank) == ((1,), None, 6)


def test_identical_switch_sets_of_taccl_are_kept_apart(read):
    sketch = read(taccl_sketch(1, switches=[range(4), range(4), range(4, 8)], policy="uc-max"))
    assert [group.ranks for group in sketch.switches] == [(0, 1, 2, 3), (0, 1, 2, 3), (4, 5, 6, 7)]


@pytest.mark.parametrize("strategy", ["minmax", "maxmin"])
def test_taccls_load_strategies_are_read(read, strategy):
    assert read(changed(taccl_sketch(1), ["intranode_sketch", "strategy"], strategy)).strategy == strategy


RELAYED = taccl_sketch(2, {"0": [1]}, offsets=[(8, 16)], switches=[range(8)], relays={"0": list(range(8))})


@pytest.mark.parametrize(
    ("place", "value", "field", "what"),
    [
        (["nnodes"], 0, "nnodes", "at least 1"),
        (["intranode_sketch"], ..., "intranode_sketch", "missing"),
        (["intranode_sketch", "strategy"], "relay", "intranode_sketch.strategy", "switch"),
        (["intranode_sketch", "switches"], ..., "intranode_sketch.switches", "missing"),
        (
            ["intranode_sketch", "switch_hyperedge_strategy"],
            ["uc-min", "uc-max"],
            "intranode_sketch.switch_hyperedge_strategy",
            "2 entries for 1 switches",
        ),
        (
            ["intranode_sketch", "switch_hyperedge_strategy", 0],
            "uc",
            "intranode_sketch.switch_hyperedge_strategy.0",
            "uc-min",
        ),
        (["intranode_sketch", "switches", 0, 3], -3, "intranode_sketch.switches.0.3", "at least 0"),
        (["internode_sketch"], ..., "internode_sketch", "missing"),
        (["internode_sketch", "strategy"], "ring", "internode_sketch.strategy", "relay"),
        (["internode_sketch", "internode_conn"], ..., "internode_sketch.internode_conn", "missing"),
        (["internode_sketch", "internode_conn"], "direct", "internode_sketch.internode_conn", "direct-map"),
        (["internode_sketch", "internode_conn", "x"], [0], "internode_sketch.internode_conn.x", "local rank"),
        (["internode_sketch", "chunk_to_relay_map"], [2, 1], "internode_sketch.chunk_to_relay_map", "not a known"),
        (["symmetry_offsets", 0], [8], "symmetry_offsets.0", "pair"),
        (["symmetry_offsets", 0], [8, 0], "symmetry_offsets.0", "pair"),
        (["symmetry_offsets"], ..., "symmetry_offsets", "missing"),
        (["hyperparameters"], ..., "hyperparameters", "missing"),
        (["hyperparameters", "input_chunkup"], 0, "hyperparameters.input_chunkup", "at least 1"),
        (["hyperparameters", "input_chunks"], 2, "hyperparameters.input_chunks", "not a known field"),
    ],
)
def test_a_malformed_taccl_sketch_is_refused_with_its_own_field(read, place, value, field, what):
    with pytest.raises(InputError) as caught:
        read(changed(RELAYED, place, value))
    assert caught.value.field == field
    assert what in caught.value.what


def test_ordering_without_relays_is_refused_in_taccls_format_too(read):
    with pytest.raises(InputError, match=r"internode_sketch\.enforce_ordering"):
        read(taccl_sketch(2, {"0": [1]}, enforce_ordering=True))

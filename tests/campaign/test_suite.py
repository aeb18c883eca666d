"""Suite files: a matrix in, cases with names out, and one sentence for what is wrong."""

import json

import pytest

from taccl_py.campaign.metrics import Metric
from taccl_py.campaign.suite import read_suite
from taccl_py.collective import Kind
from taccl_py.errors import InputError
from taccl_py.topology.files import topology_to_json
from taccl_py.topology.machines import formula_topology

HEADER = 'format = "taccl-suite"\nversion = 1\n'
ENTRY = '[[instances]]\ntopology = "ring:4"\ncollectives = "allgather"\nengines = "templates"\n'


def suite_of(tmp_path, text):
    path = tmp_path / "suite.toml"
    path.write_text(text, encoding="utf-8")
    return read_suite(path)


def test_an_entry_is_all_combinations_of_what_it_lists(tmp_path):
    text = HEADER + (
        '[defaults]\nengines = ["templates"]\n[thresholds]\ncost = 0.05\n'
        '[[instances]]\ntopology = "ndv4"\nnodes = [1, 2]\ncollectives = ["allgather", "AllReduce"]\n'
        'sizes = ["64KiB", "16MiB"]\nengines = ["milp", "trees"]\n'
        '[[instances]]\ntopology = "dgx1"\ncollectives = "broadcast"\nroot = 3\nchunks = 2\nranks = "0-3"\nseed = 7\n'
    )
    suite = suite_of(tmp_path, text)
    assert len(suite.cases) == 2 * 2 * 2 * 2 + 1
    assert suite.cases[0].name == "ndv4 x1 allgather 64KiB milp"
    assert (suite.cases[0].nodes, suite.cases[0].size_bytes, suite.cases[0].kind) == (1, 65536, Kind.ALLGATHER)
    last = suite.cases[-1]
    assert last.name == "dgx1 broadcast c2 root3 ranks0-3 seed7 templates"
    assert (last.root, last.chunks_per_rank, last.ranks, last.seed) == (3, 2, (0, 1, 2, 3), 7)
    assert suite.thresholds[Metric.COST] == 0.05
    assert suite.thresholds[Metric.STEPS] == 0


def test_files_are_looked_for_beside_the_suite(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/box.json").write_text(json.dumps(topology_to_json(formula_topology("ring:4"))), encoding="utf-8")
    (case,) = suite_of(tmp_path, HEADER + ENTRY.replace("ring:4", "mine/box.json")).cases
    assert case.topology == str(tmp_path / "mine/box.json")
    assert case.name.startswith("box ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("format = ", ["TOML"]),
        ('format = "other"\n', ["format", "'other'", "taccl-suite"]),
        (HEADER.replace("1", "2") + ENTRY, ["version", "2"]),
        (HEADER, ["instances"]),
        (HEADER + "instances = []\n", ["instances", "empty"]),
        (HEADER + ENTRY + "colour = 1\n", ["instances.0.colour", "not a known field"]),
        (HEADER + ENTRY.replace("allgather", "barrier"), ["instances.0.collectives", "'barrier'"]),
        (HEADER + ENTRY.replace("ring:4", "ndv9"), ["instances.0.topology", "'ndv9' is not a topology"]),
        (HEADER + ENTRY + "nodes = 2\n", ["instances.0.topology", "not multiplied"]),
        (HEADER + ENTRY + 'sketch = "sk-9"\n', ["instances.0.sketch", "'sk-9' is not a sketch"]),
        (HEADER + ENTRY.replace("templates", "magic"), ["instances.0.engines", "'magic'"]),
        (HEADER + ENTRY + 'sizes = ["big"]\n', ["instances.0.sizes", "'big'"]),
        (HEADER + ENTRY + "sizes = [1]\n", ["instances.0.sizes", "text"]),
        (HEADER + ENTRY + "nodes = 0\n", ["instances.0.nodes", "0"]),
        (HEADER + ENTRY + 'solver = "highs"\n', ["instances.0.solver", "'highs'", "cp-sat"]),
        (HEADER + ENTRY + 'sketch = "auto"\n', ["instances.0.sketch", "clock"]),
        (HEADER + ENTRY + "root = 1\n", ["instances.0.root", "found 1, and allgather has no root"]),
        (HEADER + ENTRY + ENTRY, ["instances", "ring:4 allgather templates", "2 times"]),
        (HEADER + "[thresholds]\nspeed = 1\n" + ENTRY, ["thresholds.speed"]),
        (HEADER + "[thresholds]\ncost = -1\n" + ENTRY, ["thresholds.cost"]),
        (HEADER + "defaults = 3\n" + ENTRY, ["defaults"]),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path, text, words):
    with pytest.raises(InputError) as caught:
        suite_of(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path / "suite.toml"))
    assert all(word in str(caught.value) for word in words), str(caught.value)

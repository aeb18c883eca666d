"""Near names, and every place that refuses a name asks for the near one."""

import pytest

from taccl_py.collective import parse_kind
from taccl_py.discover.gpus import parse_gpu
from taccl_py.errors import InputError
from taccl_py.jsonio import Fields
from taccl_py.profiles.catalog import load_profile
from taccl_py.sketch.catalog import load_sketch
from taccl_py.solvers.linear import find_solver
from taccl_py.spelling import did_you_mean, near_names, question
from taccl_py.synthesis.catalog import load_engine
from taccl_py.topology.catalog import load_topology
from tests.cli.running import run_here


def test_the_nearest_comes_first_and_case_and_hyphens_do_not_count():
    assert near_names("allredce", ["reduce", "alltoall", "allreduce"])[0] == "allreduce"
    assert near_names("SK_1", ["sk-2", "sk-1"]) == ("sk-1", "sk-2")
    assert near_names("zzz", ["sk-1", "ndv2"]) == ()


def test_at_most_three_are_named_and_none_is_no_question():
    assert len(near_names("ndv", ["ndv1", "ndv2", "ndv3", "ndv4"])) == 3
    assert question(["a"]) == "did you mean a? "
    assert question(["a", "b", "c"]) == "did you mean a, b or c? "
    assert did_you_mean("zzz", ["ndv2"]) == ""


def _field(name):
    fields = Fields({name: 1}, "file.json")
    fields.has("latency_us")
    fields.finish()


@pytest.mark.parametrize(
    ("refuse", "word", "near"),
    [
        (parse_kind, "allredce", "allreduce"), (parse_gpu, "mi300", "mi300x"), (load_engine, "greddy", "greedy"),
        (load_profile, "executor-h10", "executor-h100"), (load_sketch, "ndv2-sk1", "ndv2-sk-1"), (load_topology, "nvd2", "ndv2"),
        (load_topology, "tours:4x4", "torus"), (find_solver, "higs", "highs"), (_field, "latency", "latency_us"),
    ],
)  # fmt: skip
def test_refused_names_come_with_the_near_one(refuse, word, near):
    with pytest.raises(InputError, match=rf"did you mean ([\w:-]+(, | or ))*{near}\b"):
        refuse(word)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["chek"], "no such command 'chek'; did you mean check? see taccl --help"),
        (["topo", "shw"], "no such command 'shw'; did you mean show? see taccl topo --help"),
        (["check", "x", "--runtime", "rcl"], "did you mean rccl? see taccl check --help"),
        (["synth", "ndv2", "allgather", "--engine", "greddy"], "did you mean greedy? see taccl synth --help"),
        (["check", "x", "--verbos"], "no such option '--verbos'; did you mean --verbose? see taccl check --help"),
        (["zzzzzz"], "no such command 'zzzzzz'; see taccl --help"),
    ],
)
def test_commands_options_and_choices_are_answered_with_near_ones(capsys, arguments, words):
    done = run_here(capsys, *arguments)
    assert done.code == 2
    assert words in done.sentence
    assert done.sentence.count("did you mean") == words.count("did you mean")

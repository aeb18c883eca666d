"""Broken options: exit code 2 (5 for a limit of the runtime, 6 for a missing package), one sentence, nothing written."""

import os

import pytest

from tests.cli.inputs import NODE_FORM, write_json
from tests.cli.running import run_apart

SYNTH = ("synth", "ring:4", "allgather", "-o", "out")

# Options, and what the sentence must say.
WRONG = {
    "an unknown collective": (("synth", "ring:4", "barrier"), ["collective", "'barrier'", "allgather, "]),
    "a collective of check": (("check", "x.xml", "--collective", "barrier"), ["--collective", "'barrier'"]),
    "no size": ((*SYNTH, "--size", "0"), ["--size", "'0'", "positive"]),
    "a negative size": ((*SYNTH, "--size", "-1"), ["--size", "64KiB"]),
    "a size in words": ((*SYNTH, "--size", "big"), ["--size", "'big'", "64KiB"]),
    "a size with an exponent": ((*SYNTH, "--size", "1e6"), ["--size", "'1e6'", "1MB"]),
    "a size of an unknown unit": ((*SYNTH, "--size", "1ZB"), ["--size", "'1ZB'"]),
    "half a byte": ((*SYNTH, "--size", "0.5B"), ["--size", "whole number of bytes"]),
    "a size with a comma": ((*SYNTH, "--size", "1,5MB"), ["--size", "'1,5MB'"]),
    "an empty size": ((*SYNTH, "--size", ""), ["--size", "''"]),
    "a size that is not a number": ((*SYNTH, "--size", "nan"), ["--size", "'nan'"]),
    "least bytes in words": ((*SYNTH, "--min-bytes", "few"), ["--min-bytes", "'few'"]),
    "most bytes in words": ((*SYNTH, "--max-bytes", "many"), ["--max-bytes", "'many'"]),
    "a range that is upside down": ((*SYNTH, "--min-bytes", "2MB", "--max-bytes", "1MB"), ["--max-bytes", "2000000"]),
    "ranks in words": ((*SYNTH, "--ranks", "all"), ["--ranks", "'all'", "0-7"]),
    "a rank twice": ((*SYNTH, "--ranks", "0,1,0"), ["--ranks", "twice"]),
    "ranks that count down": ((*SYNTH, "--ranks", "3-1"), ["--ranks", "smaller rank first"]),
    "negative ranks": ((*SYNTH, "--ranks", "-1"), ["--ranks"]),
    "a rank that does not exist": ((*SYNTH, "--ranks", "0,9"), ["rank 9 does not exist", "0..3"]),
    "one rank": ((*SYNTH, "--ranks", "0"), ["at least 2 ranks"]),
    "a root out of range": (("synth", "ring:4", "broadcast", "--root", "4"), ["root 4 does not exist", "0..3"]),
    "a root out of the group": (("synth", "ring:4", "reduce", "--ranks", "0,1", "--root", "2"), ["root 2", "0..1"]),
    "a root where there is none": ((*SYNTH, "--root", "1"), ["--root", "leave --root out"]),
    "an unknown topology": (("synth", "ndv9", "allgather"), ["'ndv9'", "taccl topo list"]),
    "an unknown formula": (("synth", "cube:3", "allgather"), ["'cube:3'", "hypercube"]),
    "a formula without size": (("synth", "ring:", "allgather"), ["'ring:'", "whole number"]),
    "a ring of one": (("synth", "ring:1", "allgather"), ["'ring:1'", "at least 2"]),
    "a torus without width": (("synth", "torus:4x0", "allgather"), ["'torus:4x0'", "at least 2"]),
    "a machine beyond memory": (("synth", "ring:999999999", "allgather"), ["ring:999999999", "smaller size"]),
    "nodes beyond memory": (("synth", "ndv2-x999999999", "allgather"), ["999999999", "fewer nodes"]),
    "an unknown cost": (("synth", "ring:4,gamma=1", "allgather"), ["gamma=1", "alpha_us"]),
    "a cost that is not a number": (("synth", "ring:4,alpha_us=nan", "allgather"), ["alpha_us=nan", "from 0 to"]),
    "a negative cost": (("synth", "ring:4,alpha_us=-1", "allgather"), ["alpha_us=-1", "from 0 to"]),
    "an infinite cost": (("synth", "ring:4,beta_us_per_mb=inf", "allgather"), ["beta_us_per_mb=inf", "from 0 to"]),
    "a cost twice": (("synth", "ring:4,alpha_us=1,alpha_us=1", "allgather"), ["alpha_us", "twice"]),
    "links that cost nothing": (("synth", "ring:4,alpha_us=0,beta_us_per_mb=0", "allgather"), ["cost"]),
    "nodes of a formula": ((*SYNTH, "--nodes", "2"), ["ring:4", "leave the number of nodes out"]),
    "nodes of a machine without network": (("synth", "dgx1", "allgather", "--nodes", "2"), ["no NICs", "1 node"]),
    "two numbers of nodes": (("synth", "ndv2-x2", "allgather", "--nodes", "3"), ["contradict", "leave one"]),
    "ranks with a sketch": (
        ("synth", "ndv2", "allgather", "--sketch", "sk-1", "--ranks", "0-3"),
        ["--ranks", "sketch"],
    ),
    "trees of another engine": ((*SYNTH, "--trees", "2"), ["--trees", "--engine trees"]),
    "chunks that trees cannot share": (
        (*SYNTH, "--engine", "trees", "--trees", "3", "--chunks", "4"),
        ["--chunks", "multiple of --trees"],
    ),
    "a solver for an engine that has its own": (
        (*SYNTH, "--engine", "trees", "--solver", "cbc"),
        ["--solver", "--engine milp"],
    ),
    "another solver than that of cp": ((*SYNTH, "--engine", "cp", "--solver", "highs"), ["--solver", "--engine milp"]),
    "progress of many searches": (
        (*SYNTH, "--sizes", "1KiB:1MiB", "--progress", "progress.json"),
        ["--progress", "--sizes"],
    ),
    "an unknown solver": ((*SYNTH, "--solver", "abacus"), ["'abacus'", "cp-sat", "highs"]),
    "a range without end": (("simulate", "schedule.json", "--sizes", "1KiB"), ["--sizes", "1KiB:1GiB"]),
    "a range that counts down": (
        ("simulate", "schedule.json", "--sizes", "1MB:1KB"),
        ["--sizes", "smaller size first"],
    ),
    "a range of words": (("simulate", "schedule.json", "--sizes", "a:b"), ["'a'", "64KiB"]),
    "a sketch without topology": (("sketch", "validate", "sketch.json"), ["sketch.json", "topology", "--topology"]),
    "an unknown sketch": (("sketch", "show", "sk-1"), ["'sk-1'", "ndv2-sk-1"]),
    "an unknown topology to show": (("topo", "show", "ndv"), ["'ndv'", "ndv2"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_option_is_refused_in_one_sentence(refuse, files, name):
    write_json(files / "sketch.json", {"format": "taccl-sketch", "version": 1, "name": "any"})
    arguments, words = WRONG[name]
    refuse(2, words, *arguments)


# What click itself refuses.
MISUSED = {
    "no command": (("nothing",), "nothing"),
    "no collective": (("synth", "ring:4"), "COLLECTIVE"),
    "no topology": (("synth",), "TOPOLOGY"),
    "no file": (("check",), "FILES"),
    "no output": (("lower", "schedule.json"), "--output"),
    "no schedule": (("lower", "-o", "x.xml"), "SCHEDULE"),
    "an unknown option": ((*SYNTH, "--sise", "1MB"), "--sise"),
    "one argument too many": ((*SYNTH, "more"), "more"),
    "no nodes": ((*SYNTH, "--nodes", "0"), "--nodes"),
    "nodes in words": ((*SYNTH, "--nodes", "two"), "--nodes"),
    "no chunks": ((*SYNTH, "--chunks", "0"), "--chunks"),
    "a negative root": ((*SYNTH, "--root", "-1"), "--root"),
    "an unknown engine": ((*SYNTH, "--engine", "steam"), "--engine"),
    "an engine of demands": ((*SYNTH, "--engine", "balance"), "'balance' is for demands"),
    "no time": ((*SYNTH, "--time-limit", "0"), "--time-limit"),
    "time in words": ((*SYNTH, "--time-limit", "soon"), "--time-limit"),
    "a negative seed": ((*SYNTH, "--seed", "-1"), "--seed"),
    "an unknown runtime": ((*SYNTH, "--runtime", "nccl"), "--runtime"),
    "an unknown placement": ((*SYNTH, "--placement", "aside"), "--placement"),
    "an unknown protocol": ((*SYNTH, "--protocol", "TCP"), "--protocol"),
    "no instances": ((*SYNTH, "--instances", "0"), "--instances"),
    "too many instances": ((*SYNTH, "--instances", "33"), "--instances"),
    "an unknown runtime of check": (("check", "algorithm.xml", "--runtime", "nccl"), "--runtime"),
    "an unknown command of topo": (("topo", "draw"), "draw"),
    "an unknown command of sketch": (("sketch", "draw"), "draw"),
}


@pytest.mark.parametrize("name", MISUSED)
def test_a_command_that_is_misused_ends_with_2_and_names_the_option(taccl, files, name):
    arguments, word = MISUSED[name]
    before = sorted(os.listdir(files))
    ended = taccl(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert word in ended.err.splitlines()[-1]
    assert "Traceback" not in ended.err
    assert sorted(os.listdir(files)) == before


@pytest.mark.parametrize("name", ["no collective", "an unknown option", "no nodes", "an unknown engine"])
@pytest.mark.usefixtures("files")
def test_a_command_that_is_misused_gets_one_sentence(refuse, name):
    arguments, word = MISUSED[name]
    refuse(2, [word], *arguments)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("a rank that does not exist", "--ranks"),
        ("a root out of range", "--root"),
        ("one rank", "--ranks"),
        ("an unknown solver", "--solver"),
        ("a range of words", "--sizes"),
        ("a range that is upside down", "--max-bytes"),
    ],
)
@pytest.mark.usefixtures("files")
def test_the_sentence_names_the_option(refuse, name, option):
    refuse(2, [option], *WRONG[name][0])


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param((*SYNTH, "--size", "9" * 400), id="a size of 400 digits"),
        pytest.param((*SYNTH, "--max-bytes", "9" * 400), id="most bytes of 400 digits"),
        pytest.param(("synth", "ring:4,alpha_us=1e308,beta_us_per_mb=1e308", "allgather"), id="huge costs"),
    ],
)
def test_a_number_beyond_all_bounds_is_refused(refuse, arguments):
    refuse(2, [], *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param((*SYNTH, "--ranks", "0-99999999999"), id="ranks"),
        pytest.param((*SYNTH, "--chunks", "1000000000"), id="chunks", marks=pytest.mark.slow),
        pytest.param(("synth", "ring:200000", "allgather", "-o", "out"), id="a machine", marks=pytest.mark.slow),
        pytest.param(
            ("synth", "profile.json", "allgather", "--sketch", "sketch.json"), id="a profile", marks=pytest.mark.slow
        ),
    ],
)
def test_a_number_beyond_memory_is_refused(folder, arguments):
    write_json(folder / "profile.json", {"name": "p", "alpha": 1, "gpus_per_node": 100_000, "node_betas_list": [1],
                                         "node_invbws_list": [2]})  # fmt: skip
    write_json(folder / "sketch.json", {"nnodes": 1, "intranode_sketch": {"strategy": "none"}, "symmetry_offsets": [],
                                        "hyperparameters": {"input_chunkup": 1}})  # fmt: skip
    ended = run_apart(*arguments, cwd=folder, memory_mb=1500)
    assert ended.code in (2, 5), ended.err[-300:]
    assert ended.sentence


# Limits of runtimes.
BEYOND = {
    "a size beyond the loop": (("--max-bytes", "9999T"), ["10994016766132224", "lower the size"]),
    "a long name": (("--name", "x" * 64), ["64 characters", "63"]),
    "a name with a quote": (("--name", 'a"b'), ["letters, digits"]),
    "a name with a line end": (("--name", "a\nb"), ["letters, digits"]),
    "a name beyond ASCII": (("--name", "höhe"), ["letters, digits"]),
}


@pytest.mark.parametrize("name", BEYOND)
@pytest.mark.usefixtures("files")
def test_a_limit_of_the_runtime_ends_with_5(refuse, name):
    options, words = BEYOND[name]
    refuse(5, words, "lower", "schedule.json", "-o", "x.xml", *options)


def test_the_legacy_runtime_has_no_alltoall_in_place(refuse):
    refuse(
        5, ["in place", "'out'"], "synth", "ring:3", "alltoall", "--runtime", "legacy", "--placement", "in", "-o", "x"
    )


def test_a_broadcast_over_a_network_refuses_the_protocol_that_hangs(refuse, folder):
    name = write_json(folder / "machine.json", NODE_FORM)
    refuse(5, ["Simple", "use LL"], "synth", name, "broadcast", "--nodes", 2, "--protocol", "Simple", "-o", "x")


def test_more_threadblocks_than_can_run_at_once_end_with_5(refuse):
    options = ("--runtime", "rccl", "--instances", 32)
    refuse(5, ["256 threadblocks", "64 on RCCL", "fewer instances"], "synth", "full:9", "alltoall", *options, "-o", "x")


# Missing packages.


@pytest.mark.parametrize("solver", ["gurobi", "cplex", "mosek"])
def test_a_solver_that_is_not_installed_ends_with_6(refuse, monkeypatch, solver):
    import pulp

    monkeypatch.setattr(pulp, "listSolvers", lambda **options: [] if options.get("onlyAvailable") else ["GUROBI"])
    refuse(6, [solver, "not installed", "install"], *SYNTH, "--solver", solver)


def without(folder, *packages):
    """Environment in which these packages cannot be imported."""
    for package in packages:
        (folder / "hidden" / package).mkdir(parents=True)
        (folder / "hidden" / package / "__init__.py").write_text("raise ImportError('hidden by a test')\n")
    return {"PYTHONPATH": str(folder / "hidden")}


def test_a_missing_highs_ends_with_6_and_the_command_that_installs_it(folder):
    ended = run_apart(*SYNTH, "--solver", "highs", cwd=folder, env=without(folder, "highspy"))
    assert ended.code == 6
    assert "pip install" in ended.sentence
    assert not (folder / "out").exists()


def test_a_missing_pulp_ends_with_6_and_the_command_that_installs_it(folder):
    ended = run_apart(*SYNTH, "--solver", "cbc", cwd=folder, env=without(folder, "pulp"))
    assert ended.code == 6
    assert "pip install pulp" in ended.sentence
    assert not (folder / "out").exists()


def test_a_missing_ortools_ends_with_6_when_the_search_needs_it(folder):
    ended = run_apart("synth", "mesh:3x3", "alltoall", "--solver", "cp-sat", "-o", "out", cwd=folder,
                      env=without(folder, "ortools"))  # fmt: skip
    assert ended.code == 6
    assert "pip install ortools" in ended.sentence
    assert not (folder / "out").exists()


def test_a_missing_ortools_ends_with_6_whatever_is_asked_for(folder):
    ended = run_apart(*SYNTH, "--solver", "cp-sat", cwd=folder, env=without(folder, "ortools"))
    assert ended.code == 6

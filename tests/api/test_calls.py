"""Calls from Python: they say what the commands say, and refuse wrong arguments in one sentence that names them."""

import json
import threading
from dataclasses import FrozenInstanceError

import networkx
import numpy as np
import pytest

import taccl_py as taccl
from taccl_py.answer import Ended
from taccl_py.errors import InputError, TacclError, Violation
from taccl_py.synthesis.engine import Proof
from taccl_py.topology.files import topology_to_json
from tests.cli.running import run_here


@pytest.fixture(scope="module")
def answer():
    """Of a machine whose GPU is known, so that there is a runtime profile; trees are soon found."""
    return taccl.synthesize("dgx1", taccl.Kind.ALLGATHER, "1MB", engine="trees", effort="quick")


@pytest.fixture(scope="module")
def program(answer):
    return taccl.lower(answer)


def test_an_answer_has_its_bounds_each_with_scope_and_reason(answer):
    assert [each.scope for each in answer.bounds] == [taccl.Scope.PHYSICAL, taccl.Scope.RUNTIME]
    physical, under = answer.bounds
    assert physical.time_us <= answer.time_us
    assert physical.time_us < under.time_us
    assert physical.holds_for == "any algorithm"
    assert under.holds_for == "any algorithm under runtime profile executor-v100"
    assert physical.reason
    assert under.reason
    assert answer.gap() == pytest.approx(answer.time_us / physical.time_us - 1)
    assert answer.gap(taccl.Scope.RESTRICTED) is None
    assert answer.gap(taccl.Scope.RUNTIME) is None


def test_an_answer_says_where_it_comes_from_and_never_changes(answer):
    made = answer.provenance
    assert (made.engine, made.found_by, made.seed, made.version) == ("trees", "trees", 0, taccl.__version__)
    with pytest.raises(FrozenInstanceError):
        answer.proof = Proof.OPTIMAL


def test_the_bounds_are_those_of_the_call_and_of_the_command(capsys, answer):
    assert taccl.bound("dgx1", "allgather", "1MB") == answer.bounds
    (row,) = json.loads(run_here(capsys, "bound", "dgx1", "allgather", "--size", "1MB", "--json").out)["results"]
    told = [(row["bound_us"], row["bound_reason"]), (row["runtime_bound_us"], row["runtime_bound_reason"])]
    assert told == [(each.time_us, each.reason) for each in answer.bounds]


def test_a_number_of_chunks_has_a_bound_of_its_own():
    found = taccl.synthesize(
        "ring:4", "allgather", 4096, engine="milp", chunks=1, time_limit=1, runtime_profile="neutral"
    )
    physical, restricted = found.bounds
    assert (restricted.scope, restricted.holds_for) == (taccl.Scope.RESTRICTED, "1 chunk per rank")
    assert physical.time_us <= restricted.time_us <= found.time_us * (1 + 1e-9)
    assert found.proof is Proof.OPTIMAL
    assert found.ended is Ended.PROVED


def test_chunks_that_are_asked_for_are_not_cut_whatever_the_engine(answer):
    asked = taccl.synthesize("dgx1", "allgather", "1MB", engine="trees", chunks=2, time_limit=1)
    assert (answer.fixed_chunks, asked.fixed_chunks) == (False, True)
    assert taccl.lower(asked).schedule.collective.chunks_per_rank == 2


def test_a_converted_file_is_verified_by_the_rules_of_its_runtime(answer, tmp_path):
    file = taccl.lower(answer, instances=1).write(tmp_path / "any.xml")  # RCCL has room for few threadblocks
    for runtime in ("executor", "rccl", "legacy"):
        converted = taccl.convert(file, runtime)
        assert (converted.runtime.name, taccl.check(converted)) == (runtime, ())


def test_a_search_that_was_stopped_says_so():
    stop = threading.Event()
    stop.set()
    found = taccl.synthesize("torus:3x3", "alltoall", "1MB", engine="greedy", time_limit=60, stop=stop)
    assert found.ended is (Ended.PROVED if found.proof is not Proof.FEASIBLE else Ended.INTERRUPTED)


def test_a_program_is_right_and_takes_what_is_predicted(program, tmp_path):
    assert taccl.check(program, kind="allgather") == ()
    assert taccl.run(program, "64KiB").num_wrong == 0
    prediction = taccl.predict(program)
    assert prediction.time_us == pytest.approx(program.time_us)
    assert prediction.runtime_us == pytest.approx(program.runtime_us)
    assert prediction.best_us == prediction.runtime_us
    assert prediction.algbw_gbps == pytest.approx(1e6 / prediction.runtime_us / 1e3)
    path = program.write(tmp_path / "a.xml")
    again = taccl.predict(path, "1MB", machine="dgx1")
    assert again.runtime_us == pytest.approx(prediction.runtime_us)
    assert taccl.check(path) == ()
    assert taccl.run(path, 4096).num_wrong == 0
    assert taccl.check(taccl.convert(path)) == ()


def test_a_plan_for_one_sided_transfers_is_right_too(answer, tmp_path):
    plan = taccl.lower(answer, runtime="mscclpp")
    assert taccl.check(plan) == ()
    assert taccl.run(plan, "64KiB").num_wrong == 0
    assert taccl.predict(plan).time_us == pytest.approx(plan.time_us)
    assert taccl.check(plan.write(tmp_path / "plan.json"), kind="allgather") == ()


def test_a_schedule_is_checked_lowered_and_predicted_by_itself(answer):
    schedule = answer.schedule
    assert taccl.check(schedule) == ()
    (wrong,) = taccl.check(schedule, kind="alltoall")
    assert isinstance(wrong, Violation)
    assert taccl.predict(schedule).time_us == pytest.approx(schedule.makespan_us)
    assert taccl.predict(schedule).runtime_us is None
    lowered = taccl.lower(schedule, runtime="rccl", protocol="Simple", instances=1, runtime_profile="neutral")
    assert (lowered.runtime, lowered.runtime_us) == ("rccl", None)
    assert taccl.check(lowered) == ()


def test_a_machine_of_ones_own_graph_is_searched():
    graph = taccl.to_networkx(taccl.load_machine("ring:4"))
    graph.remove_edge(1, 2)
    found = taccl.synthesize(taccl.from_networkx(graph), "broadcast", "64KiB", root=1, engine="trees", time_limit=1)
    whole = taccl.bound("ring:4", "broadcast", "64KiB", root=1)[0]
    assert networkx.is_strongly_connected(graph)
    assert taccl.check(found) == ()
    assert found.bound().time_us > whole.time_us


def test_files_for_a_range_of_sizes_serve_all_of_it():
    found = taccl.synthesize_sizes("ring:4", "allgather", ("1KiB", "4KiB"), time_limit=1, runtime_profile="neutral")
    members = found.members
    assert (members[0].min_bytes, members[-1].max_bytes) == (1024, 4096)
    assert [one.max_bytes + 1 for one in members[:-1]] == [one.min_bytes for one in members[1:]]


def test_files_for_a_range_are_found_however_soon_the_clock_ends_an_effort():
    found = taccl.synthesize_sizes("ring:4", "allgather", ("1KiB", "4KiB"), time_limit=1e-3, effort="quick")
    assert (found.members[0].min_bytes, found.members[-1].max_bytes) == (1024, 4096)


def test_ours_stand_beside_those_of_nccl():
    found = taccl.compare("ring:4", "allgather", "4KiB:4KiB", time_limit=1)
    (row,) = found.rows
    assert row.bound_us <= row.ours_us
    assert row.baselines


WRONG = {
    "machine": (lambda: taccl.load_machine("dgx"), "'dgx' is not a topology; did you mean dgx"),
    "kind": (lambda: taccl.bound("ring:4", "allgater"), "arguments: kind: 'allgater' is not a collective"),
    "seed": (lambda: taccl.synthesize("ring:4", "allgather", seed=-1), "arguments: seed: found -1, a seed is a whole number"),
    "graph": (lambda: taccl.from_networkx(3), "arguments: graph: found int, a graph of networkx is needed"),
    "range": (lambda: taccl.synthesize_sizes("ring:4", "allgather", "4KiB"), "arguments: sizes: '4KiB' is not a range"),
    "pair of sizes": (lambda: taccl.synthesize_sizes("ring:4", "allgather", (0, 1)), "arguments: sizes: found 0;"),
    "size": (lambda: taccl.bound("ring:4", "allgather", -1), "arguments: size: found -1;"),
    "fraction": (lambda: taccl.bound("ring:4", "allgather", 1.5), "arguments: size: found 1.5;"),
    "root": (lambda: taccl.bound("ring:4", "broadcast", root=7), "arguments: root: root 7 does not exist"),
    "no root": (lambda: taccl.bound("ring:4", "allgather", root=1), "arguments: root: allgather has no root; leave root out"),
    "runtime": (lambda: taccl.bound("ring:4", "allgather", runtime="ncl"), "arguments: runtime: found 'ncl', use one of"),
    "profile": (lambda: taccl.bound("ring:4", "allgather", runtime_profile="x"), "arguments: runtime_profile: 'x' is not"),
    "solver": (
        lambda: taccl.synthesize("ring:4", "allgather", engine="trees", solver="highs"), "arguments: solver: engine trees does not",
    ),
    "engine": (lambda: taccl.synthesize("ring:4", "allgather", engine="tres", time_limit=1), "'tres' is not an engine"),
    "time limit": (lambda: taccl.synthesize("ring:4", "allgather", time_limit=0), "time_limit: found 0, a number"),
    "sizes": (lambda: taccl.synthesize_sizes("ring:4", "allgather", 4096), "arguments: sizes: found 4096;"),
    "no machine": (lambda: taccl.bound(8, "allgather"), "arguments: machine: found 8, a Topology or the name"),
    "text for a number": (
        lambda: taccl.bound("ring:4", "broadcast", root="2"), "arguments: root: found '2', a whole number is needed",
    ),
    "text for seconds": (
        lambda: taccl.synthesize("ring:4", "allgather", time_limit="2"), "arguments: time_limit: found '2', a number is",
    ),
    "no chunk": (
        lambda: taccl.synthesize("ring:4", "allgather", chunks=0), "arguments: chunks: found 0, one chunk a rank or more",
    ),
    "no number": (lambda: taccl.load_machine("ndv2", nodes=True), "arguments: nodes: found True, a whole number"),
    "text of a file": (lambda: taccl.check("<algo>\n</algo>"), "arguments: path: found a text of several lines"),
    "found": (lambda: taccl.lower("x.json"), "arguments: found: found str, an answer or a schedule is needed"),
    "what": (lambda: taccl.check(3), "arguments: what: found int,"),
    "file": (lambda: taccl.predict("none.xml"), "none.xml: "),
    "nodes": (lambda: taccl.load_machine("ring:4", 2), "'ring:4' is a whole machine"),
}  # fmt: skip


def test_numbers_may_be_those_of_numpy():
    found = taccl.bound("ring:4", "broadcast", np.int64(4096), root=np.int32(1))
    assert found == taccl.bound("ring:4", "broadcast", 4096, root=1)
    assert taccl.load_machine("ndv2", nodes=np.int8(2)).num_ranks == 16


def test_a_machine_may_be_a_path(tmp_path):
    path = tmp_path / "ring.json"
    path.write_text(json.dumps(topology_to_json(taccl.load_machine("ring:4"))))
    assert taccl.bound(path, "allgather", 4096) == taccl.bound("ring:4", "allgather", 4096)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_refused_in_one_sentence(name):
    call, words = WRONG[name]
    with pytest.raises(InputError) as caught:
        call()
    text = str(caught.value)
    assert words in text
    assert "--" not in text
    assert "\n" not in text


def test_other_errors_name_arguments_too(answer):
    with pytest.raises(TacclError) as caught:
        taccl.lower(answer, protocol="LL", instances=32, runtime_profile="neutral")
    assert "--" not in str(caught.value)


def test_a_file_without_its_machine_is_refused(program, tmp_path):
    path = program.write(tmp_path / "a.xml")
    with pytest.raises(InputError, match="does not say on which machine it runs; add machine"):
        taccl.predict(path)

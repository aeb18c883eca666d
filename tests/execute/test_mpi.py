"""One process for each rank under mpiexec: right results, and ends in bounded time when something is wrong."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

from taccl_py.demand.files import write_demand as write_demand_file
from taccl_py.lowering.mscclpp.demand import lower_demand_plan
from taccl_py.synthesis.demands import solve_demand
from tests.demand.cases import MIXED, QUICK, demand_of, full
from tests.execute.processes import (
    ROOT,
    errors,
    run_processes,
    write,
    write_demand,
    write_demand_program,
    write_samples,
)
from tests.instances import quiet_pulp
from tests.patience import assert_took
from tests.verify.msccl.files import (
    chain_broadcast,
    direct_alltoall,
    pair_allreduce,
    ring_allgather,
    ring_allreduce,
    step,
)
from tests.verify.msccl.test_broken_files import both_send_first

MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")

pytestmark = [
    quiet_pulp,
    pytest.mark.skipif(
        MPIEXEC is None or importlib.util.find_spec("mpi4py") is None,
        reason="mpi4py or mpiexec is not installed; pip install '.[mpi]'",
    ),
]


def under_mpi(num_ranks, *words, module="taccl_py", cwd=ROOT):
    """Run a module in so many processes."""
    return run_processes([MPIEXEC, "-n", num_ranks, sys.executable, "-m", module, *words], cwd=cwd)


@pytest.mark.parametrize("num_ranks", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_every_collective_on_three_machines_at_two_sizes(tmp_path, num_ranks):
    write_samples(tmp_path, num_ranks)
    ended = under_mpi(num_ranks, "folder", "mpi", tmp_path, module="tests.execute.process_driver")
    assert (ended.code, ended.err) == (0, "")
    results = ended.json
    assert len({name for name, _, _ in results}) == 24
    assert len(results) >= 24 * 2
    assert [row for row in results if row[1]] == []


def test_one_table_is_printed_and_times_are_measured(tmp_path):
    name = write(tmp_path, ring_allreduce(4))
    ended = under_mpi(
        4, "run", name, "--with", "mpi", "--sizes", "1KiB:4KiB", "--repeats", 3, "--json", "--topology", "ring:4"
    )
    assert (ended.code, ended.err) == (0, "")
    rows = ended.json["results"]
    assert [(row["size_bytes"], row["in_place"], row["num_wrong"]) for row in rows] == [
        (size, place, 0) for size in (1024, 2048, 4096) for place in (False, True)
    ]
    assert all(row["time_us"] > 0 and row["predicted_us"] > 0 for row in rows)


@pytest.mark.parametrize("words", [("test.xml",), ("nothing.xml",)])
def test_bad_input_is_told_once(tmp_path, words):
    write(tmp_path, ring_allreduce(4))
    ended = under_mpi(2, "run", *words, "--with", "mpi", cwd=tmp_path)
    assert ended.code == 2
    (sentence,) = errors(ended)
    assert ("mpiexec -n 4 taccl run" in sentence) or ("no such file" in sentence)


def test_a_deadlock_is_told_in_bounded_time_with_who_waits_for_whom(tmp_path):
    name = write(tmp_path, both_send_first(3, proto="Simple"))
    ended = under_mpi(2, "run", name, "--with", "mpi", "--timeout", 1)
    assert ended.code == 4
    (sentence,) = errors(ended)
    for word in (
        "gpu 0 tb 0 step 2",
        "free slot of its connection to rank 1",
        "so on around from gpu 0 tb 0",
        "[deadlock]",
    ):
        assert word in sentence
    assert_took(ended.seconds, 40)


def double_counting():
    file = pair_allreduce()
    file.step(1, 2, 2).update(srcbuf="i")
    return file


def counts_differently():
    file = ring_allgather(3, 2)
    file.step(1, 0, 2)["cnt"] = 1
    return file


def one_message_more():
    file = ring_allgather()
    file.gpus[0].blocks[0].steps.append(step("s"))
    return file


def one_message_less():
    file = ring_allgather()
    file.gpus[1].blocks[0].steps.pop(0)
    return file


def outside():
    file = ring_allgather()
    file.step(2, 1, 0)["dstoff"] = 7
    return file


def nobody_signals():
    file = pair_allreduce()
    file.step(1, 0, 1)["hasdep"] = 0
    return file


def waits_for_nobody():
    file = pair_allreduce()
    file.step(1, 2, 1)["depid"] = 9
    return file


def null_buffer():
    file = chain_broadcast(3)
    file.gpus[1].blocks[0].steps.append(step("cpy", "i0", "o0"))
    return file


def outside_when_it_comes():
    file = direct_alltoall(3, 2)
    file.step(2, 0, 1)["dstoff"] = 5
    return file


def chunk_that_stays_away():
    file = ring_allgather(3)
    file.gpus[2].blocks.pop(1)
    file.attributes.update(inplace=0)
    return file


FAULTS = {
    "double counting": (double_counting, 2, ["rank 1, chunk 0 of the output, offset 0", "[wrong-result]"]),
    "other counts": (counts_differently, 3, ["gpu 1 tb 0 step 2", "[count-mismatch]"]),
    "a message too many": (one_message_more, 3, ["rank 0 sends more on channel 0", "[left-over]"]),
    "a message too few": (one_message_less, 3, ["waits for a message from rank", "[deadlock]"]),
    "a step that nobody signals": (nobody_signals, 2, ["gpu 1 tb 2 step", "waits for step 1 of tb 0", "[deadlock]"]),
    "a threadblock that is not there": (
        waits_for_nobody,
        2,
        ["step 1 of tb 9; and nobody can give it that", "[deadlock]"],
    ),
    "a buffer that may be NULL": (
        null_buffer,
        3,
        ["gpu 1 tb 0 step 1", "the input, which may be NULL", "[null-buffer]"],
    ),
    "a chunk that stays away": (
        chunk_that_stays_away,
        3,
        ["rank 2, chunk 2 of the output, offset 0", "[wrong-result]"],
    ),
    "outside of a buffer where a message comes": (outside_when_it_comes, 3, ["gpu 2 tb 0 step 1", "[outside-buffer]"]),
    "outside of a buffer": (outside, 3, ["gpu 2 tb 1 step 0", "[outside-buffer]"]),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_named(tmp_path, name):
    make, num_ranks, words = FAULTS[name]
    ended = under_mpi(num_ranks, "run", write(tmp_path, make()), "--with", "mpi", "--timeout", 1, "--size", "1KiB")
    assert ended.code == 4
    (sentence,) = errors(ended)
    for word in words:
        assert word in sentence
    assert_took(ended.seconds, 40)


def test_a_corrupted_message_is_named_by_rank_chunk_and_offset(tmp_path):
    """In a ring AllGather of four the second message of rank 1 brings chunk 0 to rank 2, which sends it on to rank 3."""
    name = write(tmp_path, ring_allgather(4))
    words = ("corrupt", 1, "run", name, "--with", "mpi", "--size", 4 * 64, "--placement", "out", "--datatype", "int32")
    ended = under_mpi(4, *words, module="tests.execute.process_driver")
    assert ended.code == 4
    (sentence,) = errors(ended)
    assert "2 elements are wrong; rank 2, chunk 0 of the output, offset 15: found" in sentence


LONG = ("--with", "mpi", "--size", "64KiB", "--repeats", "1000000", "--timeout", "4")


def test_a_rank_that_is_killed_ends_the_others(tmp_path):
    name = write(tmp_path, ring_allreduce(4))
    ended = under_mpi(4, "signal", "mpi", "SIGKILL", 2, 0.5, "run", name, *LONG, module="tests.execute.process_driver")
    assert ended.code != 0
    assert "KILLED" in (ended.err + ended.out).upper()
    assert_took(ended.seconds, 60)


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_rank_that_stops_is_named(tmp_path, rank):
    name = write(tmp_path, ring_allreduce(4))
    ended = under_mpi(
        4, "signal", "mpi", "SIGSTOP", rank, 0.5, "run", name, *LONG, module="tests.execute.process_driver"
    )
    assert ended.code == 4
    assert_took(ended.seconds, 60)
    (sentence,) = errors(ended)
    assert f"rank {rank}: it has not answered for 4 seconds" in sentence
    assert "[lost-rank]" in sentence


def test_the_schedule_of_a_demand_runs_among_processes(tmp_path):
    name = write_demand(tmp_path)
    ended = under_mpi(4, "run", name, "--with", "mpi", "--json")
    assert ended.code == 0, ended.err
    assert (ended.json["demand"], ended.json["num_wrong"]) == ("my", 0)


@pytest.mark.slow
def test_a_demand_that_is_not_met_is_told_once(tmp_path):
    name = write_demand(tmp_path, leave_out=1)
    ended = under_mpi(4, "run", name, "--with", "mpi")
    assert ended.code != 0
    (sentence,) = errors(ended)
    assert "elements are wrong; rank" in sentence


def test_the_program_of_a_demand_runs_among_processes(tmp_path):
    ended = under_mpi(4, "run", *write_demand_program(tmp_path), "--with", "mpi", "--repeats", 2, "--json")
    assert ended.code == 0, ended.err
    assert (ended.json["demand"], ended.json["num_wrong"]) == ("my", 0)


@pytest.mark.slow
def test_the_program_of_a_demand_that_waits_for_ever_is_told_once(tmp_path):
    words = write_demand_program(tmp_path, without="s")
    ended = under_mpi(4, "run", *words, "--with", "mpi", "--timeout", 2)
    assert ended.code != 0
    (sentence,) = errors(ended)
    assert "algorithm.xml: gpu " in sentence
    assert "nobody can give it that [deadlock]" in sentence


def test_a_plan_of_a_demand_is_not_for_processes(tmp_path):
    demand = demand_of(4, MIXED, "float32")
    plan, file = tmp_path / "plan.json", tmp_path / "my.json"
    plan.write_text(lower_demand_plan(solve_demand(full(4), demand, QUICK).schedule).text, encoding="utf-8")
    file.write_text(write_demand_file(demand), encoding="utf-8")
    ended = under_mpi(1, "run", plan, "--demand", file, "--with", "mpi")
    assert ended.code == 2
    (sentence,) = errors(ended)
    assert "mpi executes XML files and schedules" in sentence
    assert "plan.json is an MSCCL++ plan; leave --with out" in sentence

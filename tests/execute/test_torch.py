"""One process for each rank under torchrun, with gloo."""

import importlib.util
import sys

import numpy as np
import pytest

from taccl_py.collective import Kind
from taccl_py.execute.arithmetic import combine, decode
from taccl_py.execute.plan import DataType, Operator
from taccl_py.execute.promise import CallTask, draw_input
from taccl_py.execute.torch_cells import TorchCells, load_torch
from tests.execute.processes import errors, run_processes, write, write_demand, write_demand_program, write_samples
from tests.instances import quiet_pulp
from tests.patience import assert_took
from tests.verify.msccl.files import ring_allreduce
from tests.verify.msccl.test_broken_files import both_send_first

pytestmark = [
    quiet_pulp,
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None, reason="torch is not installed; pip install '.[torch]'"
    ),
]


def under_torchrun(num_ranks, *words, module="taccl_py"):
    """Run a module in so many processes."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", num_ranks, "-m", module]
    return run_processes([sys.executable, *launcher, *words])


def in_copies(num_ranks, *words, module="taccl_py"):
    """The same without torchrun, in copies of a process that has imported everything."""
    return run_processes([sys.executable, "-m", "tests.execute.forked", num_ranks, module, *words])


@pytest.mark.parametrize("operator", Operator)
@pytest.mark.parametrize("data_type", DataType)
def test_torch_computes_what_numpy_computes(data_type, operator):
    cells = TorchCells(load_torch(), data_type)
    task = CallTask(Kind.ALLREDUCE, 2, 0, 256, 256, data_type, operator, 1)
    one, other = draw_input(task, 0), draw_input(task, 1)
    found = cells.unload(cells.combine(operator, cells.load(one), cells.load(other)))
    assert found.dtype == one.dtype
    assert np.array_equal(decode(found, data_type), decode(combine(operator, data_type, one, other), data_type))


def test_every_collective_on_three_machines_at_two_sizes(tmp_path):
    write_samples(tmp_path, 4)
    ended = in_copies(4, "folder", "torch", tmp_path, module="tests.execute.process_driver")
    assert ended.code == 0, ended.err
    results = ended.json
    assert len({name for name, _, _ in results}) == 24
    assert [row for row in results if row[1]] == []


def test_one_table_is_printed(tmp_path):
    words = ("run", write(tmp_path, ring_allreduce(4)), "--with", "torch", "--size", "64KiB", "--repeats", 3, "--json")
    ended = under_torchrun(4, *words)
    assert ended.code == 0, ended.err
    assert [(row["size_bytes"], row["in_place"], row["num_wrong"]) for row in ended.json["results"]] == [
        (65536, False, 0), (65536, True, 0),
    ]  # fmt: skip


def test_a_deadlock_is_known_before_anything_is_sent(tmp_path):
    name = write(tmp_path, both_send_first(3, proto="Simple"))
    ended = in_copies(2, "run", name, "--with", "torch")
    assert ended.code != 0
    (sentence,) = errors(ended)
    assert "so on around from gpu 0 tb 0" in sentence
    assert_took(ended.seconds, 40)


def test_nccl_is_refused_once_where_there_is_no_gpu(tmp_path):
    words = ("run", write(tmp_path, ring_allreduce(2)), "--with", "torch", "--backend", "nccl")
    ended = in_copies(2, *words)
    assert ended.code != 0
    (sentence,) = errors(ended)
    assert sentence.startswith(
        "command line: --backend: nccl needs a GPU, and torch finds none that it can use on the host of rank 0"
    )


def test_ranks_that_share_a_gpu_have_a_host_of_their_own_for_nccl(tmp_path):
    """With stand-ins for GPU and NCCL; the driver checks the hosts."""
    words = (
        "run",
        write(tmp_path, ring_allreduce(3)),
        "--with",
        "torch",
        "--backend",
        "nccl",
        "--repeats",
        2,
        "--json",
    )
    ended = in_copies(3, "pretend", "well", *words, module="tests.execute.process_driver")
    assert ended.code == 0, ended.err
    assert [row["num_wrong"] for row in ended.json["results"]] == [0, 0]
    assert all(row["time_us"] > 0 for row in ended.json["results"])


@pytest.mark.slow
def test_work_that_is_stuck_on_a_gpu_ends_in_bounded_time(tmp_path):
    words = ("run", write(tmp_path, ring_allreduce(2)), "--with", "torch", "--backend", "nccl", "--timeout", 4)
    ended = in_copies(2, "pretend", "stuck", *words, module="tests.execute.process_driver")
    assert ended.code != 0
    (sentence,) = errors(ended)
    assert "the run has not ended on the GPUs within 4 seconds; use a larger --timeout [stopped]" in sentence
    assert_took(ended.seconds, 60)


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_others(tmp_path):
    name = write(tmp_path, ring_allreduce(4))
    words = ("run", name, "--with", "torch", "--size", "64KiB", "--repeats", 1_000_000, "--timeout", 4)
    ended = under_torchrun(4, "signal", "torch", "SIGKILL", 2, 1, *words, module="tests.execute.process_driver")
    assert ended.code != 0
    assert "SIGKILL" in ended.err
    assert_took(ended.seconds, 60)


@pytest.mark.slow
def test_a_rank_that_stops_is_named_in_bounded_time(tmp_path):
    rank = 0
    name = write(tmp_path, ring_allreduce(4))
    words = ("run", name, "--with", "torch", "--size", "64KiB", "--repeats", 1_000_000, "--timeout", 4)
    ended = in_copies(4, "signal", "torch", "SIGSTOP", rank, 1, *words, module="tests.execute.process_driver")
    assert ended.code != 0
    (sentence,) = errors(ended)
    assert f"rank {rank}: it has not answered for 4 seconds" in sentence
    assert_took(ended.seconds, 60)


def test_the_schedule_of_a_demand_runs_among_processes(tmp_path):
    name = write_demand(tmp_path)
    ended = in_copies(4, "run", name, "--with", "torch", "--json")
    assert ended.code == 0, ended.err
    assert (ended.json["demand"], ended.json["num_wrong"]) == ("my", 0)


@pytest.mark.slow
def test_a_demand_that_is_not_met_is_told_once(tmp_path):
    name = write_demand(tmp_path, leave_out=1)
    ended = in_copies(4, "run", name, "--with", "torch")
    assert ended.code != 0
    (sentence,) = errors(ended)
    assert "elements are wrong; rank" in sentence


def test_the_program_of_a_demand_runs_among_processes(tmp_path):
    ended = in_copies(4, "run", *write_demand_program(tmp_path), "--with", "torch", "--repeats", 2, "--json")
    assert ended.code == 0, ended.err
    assert (ended.json["demand"], ended.json["num_wrong"]) == ("my", 0)


@pytest.mark.slow
def test_the_program_of_a_demand_that_waits_for_ever_is_told_once(tmp_path):
    words = write_demand_program(tmp_path, without="s")
    ended = in_copies(4, "run", *words, "--with", "torch", "--timeout", 2)
    assert ended.code != 0
    (sentence,) = errors(ended)
    assert "algorithm.xml: gpu " in sentence
    assert "nobody can give it that [deadlock]" in sentence

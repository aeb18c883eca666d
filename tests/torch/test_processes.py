"""Processes of torch with gloo: the same results as torch's own, and an error on all ranks where they do not agree."""

import importlib.util
import shutil
import sys

import pytest

from taccl_py.collective import Kind
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.pipeline.deliver import lower_and_verify
from taccl_py.pipeline.resolve import Request
from taccl_py.pipeline.search import synthesize
from taccl_py.runtimes import EXECUTOR
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Events, Options
from tests.execute.processes import run_processes
from tests.instances import quiet_pulp
from tests.patience import assert_took
from tests.torch.programs import CALLED

pytestmark = [
    quiet_pulp,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None, reason="torch is not installed; pip install '.[torch]'"
    ),
]


def start(num_ranks, mode, folder):
    """Run a mode of the driver in so many processes."""
    return run_processes([sys.executable, "-m", "tests.torch.driver", num_ranks, mode, folder])


def found_by(num_ranks, mode, folder):
    ended = start(num_ranks, mode, folder)
    assert ended.code == 0, ended.err
    return ended.json


def write_directory(folder, shape, num_ranks):
    """Files for every collective on one machine."""
    limits = Limits(seconds=60.0, workers=1)
    limits.stop.set()  # the first answer
    folder.mkdir(parents=True)
    for kind in CALLED:
        request = Request(
            topology=f"{shape}:{num_ranks}", kind=kind, size_bytes=1 << 16, root=int(kind is Kind.BROADCAST),
            options=Options(limits=limits),
        )  # fmt: skip
        text = lower_and_verify(synthesize(request, Events()).schedule, LoweringOptions(EXECUTOR)).text
        (folder / f"{kind}.xml").write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """Directories for four ranks, good and bad ones."""
    folder = tmp_path_factory.mktemp("directories")
    for shape in ("full", "ring"):
        write_directory(folder / shape, shape, 4)
    write_directory(folder / "two", "full", 2)
    write_directory(folder / "eight", "full", 8)
    text = (folder / "full" / "allreduce.xml").read_text(encoding="utf-8")
    for name, changed in {
        "other": (folder / "eight" / "allreduce.xml").read_text(encoding="utf-8"),
        "broken": text.replace('type="rrc"', 'type="r"'),
        "sizes": text.replace('minBytes="0"', 'minBytes="65536"'),
    }.items():
        assert changed != text
        (folder / name).mkdir()
        (folder / name / "allreduce.xml").write_text(changed, encoding="utf-8")
    shutil.rmtree(folder / "eight")
    (folder / "apart").mkdir()
    for kind, placement in (("allreduce", "inplace"), ("allgather", "outofplace"), ("alltoall", "outofplace")):
        text = (folder / "full" / f"{kind}.xml").read_text(encoding="utf-8")
        (folder / "apart" / f"{kind}.xml").write_text(
            text.replace(f'{placement}="1"', f'{placement}="0"'), encoding="utf-8"
        )
    return folder


def test_all_collectives_types_and_placements_are_as_torchs_own(tmp_path):
    for shape in ("full", "ring", "switch"):
        write_directory(tmp_path / shape, shape, 4)
    found = found_by(4, "collectives", tmp_path)
    assert found["log"] == []  # all of them by files
    assert {row[1] for row in found["results"]} == {
        "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast"
    }  # fmt: skip
    # three machines, three types, three sizes, eight calls and placements; three operators
    assert len(found["results"]) == 3 * (3 * 3 * 8 + 3)
    assert [row for row in found["results"] if row[-1]] == []


def test_calls_that_ranks_cannot_make_alike_are_errors_on_all_of_them_at_once(directories):
    cases = found_by(4, "refused", directories)["cases"]
    assert cases.pop("afterwards")["errors"] == 4 * [""]
    for name, case in cases.items():
        assert all(case["errors"]), name
        assert case["seconds"] < 60, name

    def has(name, words):
        return [words in error for error in cases[name]["errors"]]

    for name in ("sizes", "types", "functions", "operators", "roots", "placements"):
        assert has(f"different {name}", "ranks make different calls: rank") == 4 * [True]
    assert has("different directories", "rank 2: allreduce.xml ") == 4 * [True]
    assert has("different directories", "give all ranks the same directory") == 4 * [True]
    assert has("one is not contiguous", "all_reduce: tensor: is not contiguous") == 4 * [True]
    assert has("one is not contiguous", "rank 1: ") == [True, False, True, True]
    assert has("one is no tensor", "found list, a tensor is needed") == 4 * [True]
    assert has("wrong lengths", "has 64 elements, 4 ranks with 15 need 60") == 4 * [True]
    assert has("asynchronous", "async_op: is not supported") == 4 * [True]
    assert has("no group", "a process group of torch.distributed is needed") == 4 * [True]
    for name in ("wrong file on all", "wrong file on rank 1"):
        assert has(name, "gpu 0: in output chunk 0 chunk 0 of ranks 3 is, and chunk 0 of ranks 0+1+2+3") == 4 * [True]


def test_what_no_file_serves_is_left_to_the_backend_and_told_once(directories):
    cases = found_by(4, "left", directories)["cases"]
    outside = cases.pop("outside")["errors"]
    assert ["this process is not in the group" in error for error in outside] == [True, False, True, False]
    assert {name: case["errors"] for name, case in cases.items()} == dict.fromkeys(cases, 4 * [""])
    told = {
        name: line.removeprefix("the backend's own collective is called, as ")
        for name, case in cases.items()
        for line in case["log"]
    }
    assert told == {
        "elements": "chunks do not share out the elements of allreduce (63 elements, 4 chunks); said once",
        "no rank": "no file for allreduce is for 4 ranks; said once",
        "size": "no file for allreduce is for this size (256 bytes); said once",
        "empty": "the tensors of all_reduce are empty; said once",
        "no file for it": "no file is for broadcast; said once",
        "splits": "all_to_all_single with split sizes is left to it; said once",
        "root": "no file for broadcast is for root 3; said once",
        "bits": "all_reduce with RedOpType.BOR is left to it; said once",
    }


@pytest.mark.parametrize("how", ["size", "function", "new", "backend", "argument"])
def test_ranks_that_diverge_later_do_not_hang(directories, how):
    """Both calls have been agreed on before, or one of them is new, or is the backend's own, or one rank refuses its argument."""
    found = found_by(4, f"diverged_{how}", directories)
    assert all(found["errors"])
    assert all("ranks make different calls: rank" in error for error in found["errors"] if "contiguous" not in error)
    assert_took(found["seconds"], 20)


def test_a_rank_that_comes_late_is_waited_for(directories):
    found = found_by(4, "late", directories)
    assert found["case"]["errors"] == 4 * [""]
    assert [line for line in found["log"] if "not there yet: ranks [1]" in line] != []


def test_a_rank_that_dies_ends_the_others(directories):
    """It ends without a word in the middle of a call; gloo's connections to it are closed."""
    ended = start(4, "dying", directories)
    assert ended.code != 0
    assert "taccl_py.torch, rank 0: in all_reduce of 64 float32 elements (sum) by allreduce.xml" in ended.err
    assert_took(ended.seconds, 60)

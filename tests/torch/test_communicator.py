"""What `load` and a call refuse before there are other processes."""

import importlib.util
import sys

import pytest

import taccl_py.torch
from taccl_py.errors import InputError, PackageMissing
from tests.verify.msccl.files import ring_allreduce


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "ring.xml").write_text(ring_allreduce(4).text(), encoding="utf-8")
    return tmp_path


def test_a_missing_directory_and_a_time_that_is_none_are_refused(directory):
    with pytest.raises(InputError, match=r"cannot be read: No such file or directory"):
        taccl_py.torch.load(directory / "missing")
    for seconds in (0, -1.0, float("nan")):
        with pytest.raises(InputError, match="load: stall_seconds: found"):
            taccl_py.torch.load(directory, stall_seconds=seconds)


def test_without_torch_one_line_says_how_to_install_it(directory, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(PackageMissing, match=r"taccl_py.torch needs torch .* pip install '\.\[torch\]'"):
        taccl_py.torch.load(directory)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_without_a_process_group_a_call_says_what_to_do(directory):
    import torch

    comm = taccl_py.torch.load(str(directory))
    for group in (None, 3):
        with pytest.raises(InputError, match="group: there is no process group; call"):
            comm.all_reduce(torch.ones(4), group=group)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_block_closes_what_was_loaded_for_it(directory):
    """A call after the end would have nobody who watches it."""
    import torch

    with taccl_py.torch.load(directory) as comm:
        assert repr(comm) == f"Communicator({str(directory)!r})"
    with pytest.raises(InputError, match="all_reduce: the communicator is closed; load the directory again"):
        comm.all_reduce(torch.ones(4))

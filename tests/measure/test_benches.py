"""Benches of real processes, piece by piece, with stand-ins for what launchers provide."""

import time
from types import SimpleNamespace

import pytest

from taccl_py.measure import torch_bench
from taccl_py.measure.mpi_bench import MpiBench
from taccl_py.measure.torch_bench import TorchProcesses


@pytest.mark.parametrize("late_s", [0.05, -0.05])
def test_a_process_waits_for_the_common_start_and_no_longer(monkeypatch, late_s):
    """One that is late, by a negative time to go, does not wait at all."""
    slept = []
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    monkeypatch.setattr(time, "sleep", slept.append)
    begun = MpiBench._begin(SimpleNamespace(), SimpleNamespace(start_seconds=100.0 + late_s))
    assert begun == 100.0 + late_s
    assert slept == [pytest.approx(max(0.0, late_s))]


def torch_of(gpus):
    """PyTorch in one process that sees so many GPUs."""

    def gather(found, here):
        found[:] = [here]

    distributed = SimpleNamespace(
        init_process_group=lambda *_, **__: None, get_world_size=lambda: 1, get_rank=lambda: 0, all_gather_object=gather
    )
    cuda = SimpleNamespace(device_count=lambda: gpus)
    return SimpleNamespace(distributed=distributed, cuda=cuda, device=lambda kind, number: f"{kind}:{number}")


@pytest.mark.parametrize(
    ("gpus", "devices", "device"),
    [(1, None, "cuda:0"), (1, True, "cuda:0"), (1, False, None), (0, None, None), (0, False, None)],
)
def test_gpus_are_used_where_every_process_has_one_unless_they_are_refused(monkeypatch, gpus, devices, device):
    monkeypatch.setattr(torch_bench.platform, "node", lambda: "here")
    assert TorchProcesses(torch_of(gpus), devices=devices).device == device

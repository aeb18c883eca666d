"""What a process of several does in these tests: ``python -m tests.execute.process_driver MODE ...``."""

import json
import os
import signal
import sys
import threading
import time
import types
from pathlib import Path

from taccl_py.cli import main
from taccl_py.execute import torch_wire
from taccl_py.execute.mpi import MpiSession, _Messages
from taccl_py.execute.plan import DataType, Operator
from taccl_py.execute.reader import read_plan
from taccl_py.execute.runs import Call, Conditions
from taccl_py.execute.torch_cells import TorchCells, load_torch
from taccl_py.execute.torch_ranks import TorchSession
from taccl_py.runtimes import EXECUTOR
from tests.execute.running import placements


def run_folder(executor, folder):
    """Run all files of a folder at two sizes and in all placements, and print what came out as JSON."""
    session, results = MpiSession(60.0) if executor == "mpi" else TorchSession(60.0), []
    for number, path in enumerate(sorted(Path(folder).iterdir())):
        plan = read_plan(path.read_text(encoding="utf-8"), path.name)
        data_type = list(DataType)[number % len(DataType)]
        for chunk_bytes in (256, 3_200_000 // plan.num_ranks**2):
            for in_place in placements(plan):
                call = Call(chunk_bytes * plan.chunks_per_size, data_type, Operator.SUM, in_place)
                outcome = session.run(plan, call, Conditions(EXECUTOR))
                results.append([path.name, outcome.num_wrong, str(outcome.first_wrong)])
    if session.rank == 0:
        sys.stdout.write(json.dumps(results))
    session.close()


def run_with_signal(executor, name, rank, seconds, *arguments):
    """Run a command, where one process gets a signal a while after its first run has begun."""
    session = MpiSession if executor == "mpi" else TorchSession
    run = session.run

    def watched(self, *given):
        if self.rank == int(rank):
            timer = threading.Timer(float(seconds), lambda: os.kill(os.getpid(), getattr(signal, name)))
            timer.daemon = True
            timer.start()
        return run(self, *given)

    session.run = watched
    main(list(arguments))


def run_corrupted(rank, *arguments):
    """Run a command, where the last element of the second message that one process sends is another one."""
    push, sent = _Messages.push, []

    def corrupted(self, connection, message):
        sent.append(connection)
        if connection.src == int(rank) and len(sent) == 2:
            message = message.copy()
            message.reshape(-1)[-1] += 1
        push(self, connection, message)

    _Messages.push = corrupted
    main(list(arguments))


class HostEvent:
    """An event of a device that has done all its work when it is asked, or never has."""

    never = False

    def __init__(self, *, enable_timing):
        assert enable_timing

    def record(self):
        self.at = time.perf_counter()

    def query(self):
        return not self.never

    def elapsed_time(self, later):
        return 1e3 * (later.at - self.at)


def run_pretending(how, *arguments):
    """Run a command where torch has NCCL and one GPU for all; its messages go through gloo, and it may never get done."""
    torch, groups = load_torch(), []
    new_group = torch.distributed.new_group

    def open_group(*, backend, timeout):
        groups.append((backend, os.environ.get("NCCL_HOSTID"), timeout.total_seconds()))
        return new_group(backend="gloo", timeout=timeout)

    HostEvent.never = how == "stuck"
    torch.distributed.is_nccl_available = torch.cuda.is_available = lambda: True
    torch.distributed.new_group = open_group
    torch.cuda.device_count = lambda: 1
    torch.cuda.get_device_properties = lambda number: types.SimpleNamespace(uuid=f"GPU-{number}")
    torch.cuda.set_device = lambda _: None
    torch.cuda.synchronize = lambda: None
    torch.cuda.Event = HostEvent
    torch_wire.TorchCells = lambda torch, data_type, device: TorchCells(
        torch, data_type, device.replace("cuda:0", "cpu")
    )
    zeros = torch.zeros
    torch.zeros = lambda *shape, device="cpu", **more: zeros(
        *shape, device=str(device).replace("cuda:0", "cpu"), **more
    )
    try:
        main(list(arguments))
    finally:
        rank = os.environ["RANK"]
        hosts = [(backend, host.rpartition("-")[2]) for backend, host, _ in groups]
        assert hosts == [("nccl", rank)], groups


if __name__ == "__main__":
    modes = {"folder": run_folder, "signal": run_with_signal, "corrupt": run_corrupted, "pretend": run_pretending}
    modes[sys.argv[1]](*sys.argv[2:])

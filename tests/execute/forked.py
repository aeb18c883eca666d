"""Processes of torch without its launcher: ``python -m tests.execute.forked PROCESSES MODULE WORDS ...``.

They are copies of one that has imported everything, which takes longer than all they do. When one of them has failed, the others
have a moment to end by themselves, and are killed then.
"""

import os
import runpy
import signal
import socket
import sys
import time

import torch.distributed

import taccl_py.execute.torch_ranks  # noqa: F401

MOMENT_SECONDS = 1.0


def free_port():
    """A port of this host that nobody uses."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def started(rank, module, words):
    """Process of a rank."""
    child = os.fork()
    if not child:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        sys.argv = [module, *words]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        sys.exit(0)
    return child


def codes_of(children):
    """Exit codes of processes, and -9 for those that did not end when another one had failed."""
    codes, end = {}, None
    while len(codes) < len(children):
        for child in children:
            if child not in codes and (ended := os.waitpid(child, os.WNOHANG))[0]:
                codes[child] = os.waitstatus_to_exitcode(ended[1])
        if end is None and any(codes.values()):
            end = time.monotonic() + MOMENT_SECONDS
        if end is not None and time.monotonic() > end:
            for child in set(children) - set(codes):
                os.kill(child, signal.SIGKILL)
        time.sleep(0.02)
    return codes.values()


def main():
    num_ranks, module, *words = sys.argv[1:]
    port = free_port()
    os.environ |= {
        "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": num_ranks,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip
    children = [started(rank, module, words) for rank in range(int(num_ranks))]
    # As torchrun has it: in a process that none of them can stop.
    store = torch.distributed.TCPStore("localhost", port, is_master=True, wait_for_workers=False)
    codes = codes_of(children)
    del store
    sys.exit(next((code for code in codes if code > 0), int(any(codes))))


if __name__ == "__main__":
    main()

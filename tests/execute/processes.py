"""Commands of several processes, and what they run."""

import os
import signal
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path

from taccl_py.collective import Kind
from taccl_py.demand.files import write_demand as write_demand_file
from taccl_py.lowering.demand_xml import lower_demand_program
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.lowering.msccl_xml import emit_xml
from taccl_py.pipeline.deliver import lower_and_verify
from taccl_py.pipeline.resolve import Request
from taccl_py.pipeline.search import synthesize
from taccl_py.runtimes import EXECUTOR, LEGACY
from taccl_py.schedule.demand_files import write_demand_schedule
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.demands import solve_demand
from taccl_py.synthesis.engine import Events, Options
from tests.cli.running import Ended, environment
from tests.demand.cases import MIXED, QUICK, demand_of, full
from tests.patience import HANGS_SECONDS

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Timed(Ended):
    """How a command ended, and when."""

    seconds: float = 0.0


def run_processes(command, *, cwd=ROOT, seconds=HANGS_SECONDS):
    """Run a launcher; whatever happens, none of its processes is left behind."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [str(word) for word in command], cwd=cwd, env=environment({"PYTHONPATH": str(ROOT)}), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return Timed(process.returncode, out, err, time.perf_counter() - start)


def write(folder, file, name="test.xml"):
    """Write a file and return its path."""
    (folder / name).write_text(file.text(), encoding="utf-8")
    return folder / name


def write_demand(folder, *, leave_out=0):
    """Write the schedule of a demand, without its first messages, and return its path."""
    schedule = solve_demand(full(4), demand_of(4, MIXED, "float32"), QUICK).schedule
    schedule = replace(schedule, messages=schedule.messages[leave_out:])
    path = folder / "schedule.json"
    path.write_text(write_demand_schedule(schedule), encoding="utf-8")
    return path


def write_demand_program(folder, *, without=""):
    """Write the XML of a demand, but for its steps of one kind, and the demand; return the words that name them."""
    schedule = solve_demand(full(4), demand_of(4, MIXED, "float32"), QUICK).schedule
    text = emit_xml(lower_demand_program(schedule, LEGACY), LEGACY)
    program, demand = folder / "algorithm.xml", folder / "my.json"
    lines = [line for line in text.splitlines() if not without or f'type="{without}"' not in line]
    program.write_text("\n".join(lines), encoding="utf-8")
    demand.write_text(write_demand_file(schedule.demand), encoding="utf-8")
    return program, "--demand", demand


def errors(ended):
    """Sentences of the command, among what the launcher says."""
    return [line.removeprefix("error: ") for line in ended.err.splitlines() if line.startswith("error: ")]


def write_samples(folder, num_ranks):
    """Write a program for every collective and three machines of so many ranks."""
    limits = Limits(seconds=60.0, workers=1)
    limits.stop.set()  # the first answer
    for kind in Kind:
        for shape in ("ring", "full", "switch"):
            request = Request(
                topology=f"{shape}:{num_ranks}", kind=kind, size_bytes=1 << 16, options=Options(limits=limits)
            )
            text = lower_and_verify(synthesize(request, Events()).schedule, LoweringOptions(EXECUTOR)).text
            (folder / f"{kind}-{shape}.xml").write_text(text, encoding="utf-8")

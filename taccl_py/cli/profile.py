"""``taccl profile``: measure alpha, beta and shared ports."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from taccl_py.cli.options import (
    SIZE,
    UNPROBED_OUTPUT,
    FiniteRange,
    echo_json,
    inside_option,
    json_option,
    near_nics_option,
)
from taccl_py.cli.progress import counted_down
from taccl_py.errors import InputError, InvalidArtifact, TacclError, Violation
from taccl_py.jsonio import canonical_json, require_writable, write_atomically
from taccl_py.report.tables import print_table
from taccl_py.solvers.limits import INTERRUPTS
from taccl_py.topology.files import topology_to_json
from taccl_py.units import MAX_RANKS

if TYPE_CHECKING:
    from taccl_py.measure.experiment import Bench
    from taccl_py.measure.plan import ProfilePlan
    from taccl_py.measure.processes import LaunchedProcesses
    from taccl_py.measure.profiler import Profile
    from taccl_py.topology.model import Medium, Topology

_SHARED = "machine"
_LEAST_LARGEST = 4096
_LEAST_US = 5_000.0  # of all runs of an experiment on a real machine: a few turns of what else its processors do


@click.command(short_help="Measure alpha, beta and the ports that links share.")
@click.option(
    "--with",
    "transport",
    type=click.Choice(["mpi", "torch"]),
    default=None,
    help="Profile the processes that mpiexec or torchrun started, one for each rank.",
)
@click.option(
    "--backend",
    type=click.Choice(["gloo", "nccl"]),
    default=None,
    help="What torch moves: host memory, or that of GPUs; default: GPUs where every process has one.",
)
@click.option(
    "--emulate",
    default="",
    metavar="TOPOLOGY",
    help="Profile an emulated machine: a name, a formula or a file. With --with, messages of real processes take its time.",
)
@click.option(
    "--slow-down",
    type=FiniteRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Seconds here for a second of the emulated machine, with --with.",
)
@click.option("--nodes", type=click.IntRange(1), default=None, help="Number of nodes of that machine, or of --ranks.")
@click.option(
    "--ranks",
    type=click.IntRange(2, MAX_RANKS),
    default=None,
    help="Number of ranks of an unknown machine, for --plan.",
)
@inside_option("Default: that of the emulated machine, else unknown.")
@near_nics_option("Default: that of the emulated machine, else no.")
@click.option(
    "--largest",
    type=SIZE,
    default="4MiB",
    show_default=True,
    help="Largest message; where large ones are slower or faster, the costs are those of messages up to this size.",
)
@click.option("--all-pairs", is_flag=True, help="Measure every link at all sizes, not one of each class.")
@click.option(
    "--noise", type=FiniteRange(0, 1), default=0.0, help="Relative noise of emulated times, for example 0.01."
)
@click.option(
    "--repeats",
    type=click.IntRange(1, 1000),
    default=3,
    show_default=True,
    help="Runs of each experiment; the median counts.",
)
@click.option(
    "--record", type=UNPROBED_OUTPUT, default=None, help="Keep every result in this file, and go on from what is in it."
)
@click.option(
    "--against", default="", metavar="TOPOLOGY", help="End with exit code 4 where the machine is worse than this."
)
@click.option(
    "--tolerance",
    type=FiniteRange(0),
    default=0.1,
    show_default=True,
    help="Relative difference that --against allows.",
)
@click.option(
    "--plan",
    is_flag=True,
    help="Only print how many experiments a profile takes, and about how long: of a machine like that of --emulate, of an "
    "unknown one with --ranks, or of the processes that were started.",
)
@click.option("-o", "--output", type=UNPROBED_OUTPUT, default=None, help="Topology file to write.")
@json_option
def profile(as_json: bool, output: Path | None, **values: Any) -> int:  # fmt: skip
    """Measure a machine: alpha and beta of its links, and which of them share a port.

    Links that take as long as each other are one class, of which one is measured at all sizes. Ports are inferred: links run
    together, in stars and matchings; what takes longer than links alone and the ports found so far explain is narrowed down by
    group testing. A port that two ranks share is found as such where it is less than 1.85 times as fast as one of their links,
    and as a port of each of them otherwise, since one link of each does not fill it: see docs/machines.md. Ctrl-C ends it with
    what is known by then, which is a topology too; with --record it goes on from there.

    \b
    Examples:
      taccl profile --emulate dgx2 --noise 0.005 -o measured.json
      taccl profile --emulate ndv2 --nodes 2 --against ndv2-x2
      taccl profile --plan --ranks 128 --nodes 16

    \b
    Real processes:
      mpiexec -n 4 taccl profile --with mpi -o measured.json
      torchrun --nproc-per-node 4 --no-python taccl profile --with torch -o measured.json
    """
    job = _open_job(values)
    try:
        return _profile(job, values, output, as_json=as_json)
    except TacclError as error:
        if job is not None and job.rank:
            return error.exit_code  # rank 0 says it
        raise
    finally:
        if job is not None:
            job.close()


def _open_job(values: dict[str, Any]) -> LaunchedProcesses | None:
    """The processes that a launcher started, or None."""
    if values["transport"] == "mpi":
        from taccl_py.execute.mpi import load_mpi
        from taccl_py.measure.mpi_bench import MpiProcesses

        return MpiProcesses(load_mpi())
    if values["transport"] == "torch":
        from taccl_py.execute.torch_cells import load_torch
        from taccl_py.measure.torch_bench import TorchProcesses

        return TorchProcesses(load_torch(), devices=None if values["backend"] is None else values["backend"] == "nccl")
    return None


@dataclass(frozen=True)
class _Setup:
    """Parsed command line.

    Attributes
    ----------
    truth
        The machine that is emulated, or None.
    reference
        The machine that the one measured should not be worse than, or None.
    folder
        Where processes share the emulated machine, if there are several.
    """

    truth: Topology | None
    reference: Topology | None
    folder: str


def _prepare(job: LaunchedProcesses | None, values: dict[str, Any], output: Path | None) -> _Setup:
    from taccl_py.sketch.machine import load_machine

    _refuse_contradictions(job, values)
    if output is not None:
        require_writable(output, is_file=True)
    reference = load_machine(values["against"]).topology if values["against"] else None
    if not values["emulate"]:
        return _Setup(None, reference, "")
    truth = load_machine(values["emulate"], "", values["nodes"]).topology
    if job is None:
        return _Setup(truth, reference, "")
    from taccl_py.measure.processes import require_ranks
    from taccl_py.measure.shared_emulation import Throttle

    require_ranks(truth, job)
    folder = tempfile.mkdtemp(prefix="taccl-profile-")
    Throttle.create(truth, Path(folder) / _SHARED)
    return _Setup(truth, reference, folder)


def _refuse_contradictions(job: LaunchedProcesses | None, values: dict[str, Any]) -> None:
    def refuse(what: str, field: str) -> NoReturn:
        raise InputError(what, path="command line", field=field)

    if values["largest"] < _LEAST_LARGEST:
        refuse(f"{values['largest']} bytes are too few to tell beta; write {_LEAST_LARGEST} or more", "--largest")
    if values["backend"] and values["transport"] != "torch":
        refuse("is for --with torch; leave it out", "--backend")
    if values["ranks"] is not None and (not values["plan"] or values["emulate"] or job is not None):
        refuse("is the size of an unknown machine; it goes with --plan alone", "--ranks")
    if values["slow_down"] != 1 and (job is None or not values["emulate"]):
        refuse("is for real processes on an emulated machine; add --with and --emulate", "--slow-down")
    if values["noise"] and job is not None:
        refuse("is for machines emulated in one process; leave --with out", "--noise")
    if values["nodes"] is not None and not values["emulate"] and values["ranks"] is None:
        refuse("is the number of nodes of an emulated machine, or of --ranks", "--nodes")
    if job is not None and len(job.hosts) < 2:
        launcher = {"mpi": "mpiexec -n 4", "torch": "torchrun --nproc-per-node 4 --no-python"}[values["transport"]]
        words = f"{launcher} taccl profile --with {values['transport']}"
        refuse(f"one process has nobody to send to; start several, as in {words}", "--with")
    if job is None and not values["emulate"] and values["ranks"] is None:
        if values["plan"]:
            refuse("it needs a machine: add --ranks, --emulate TOPOLOGY or --with", "--plan")
        raise InputError("name the machine to profile with --with or --emulate TOPOLOGY", path="command line")
    if values["ranks"] is not None and values["ranks"] % (values["nodes"] or 1):
        refuse(f"{values['ranks']} ranks are no multiple of {values['nodes']} nodes; correct the number", "--nodes")


def _profile(job: LaunchedProcesses | None, values: dict[str, Any], output: Path | None, *, as_json: bool) -> int:
    setup = _prepare(job, values, output) if job is None else job.share(lambda: _prepare(job, values, output))
    if values["ranks"] is not None:
        _show_plan(_plan_unknown(values), as_json=as_json)
        return 0
    try:
        bench = _open_bench(job, setup, values)
        if job is not None and job.rank:
            # Interrupts reach all processes; rank 0 decides what becomes of them.
            for number in INTERRUPTS:
                signal.signal(number, signal.SIG_IGN)
            bench.serve()
            return 0
        try:
            _warn_if_crowded(job, values)
            return _lead(bench, setup, values, output, as_json=as_json)
        finally:
            if job is not None:
                bench.finish()
    finally:
        if setup.folder and job is not None and not job.rank:
            shutil.rmtree(setup.folder, ignore_errors=True)


def _warn_if_crowded(job: LaunchedProcesses | None, values: dict[str, Any]) -> None:
    """Say it where more ranks than processors send from memory to memory on this computer, and so take turns."""
    if job is None or values["emulate"] or values["backend"] == "nccl":
        return
    ranks, processors = job.hosts.count(job.hosts[0]), os.cpu_count() or 1
    if ranks > processors:
        click.echo(
            f"warning: {ranks} ranks on {processors} processors of {job.hosts[0]} take turns, and times are of that too; start no "
            "more ranks than processors",
            err=True,
        )


def _open_bench(job: LaunchedProcesses | None, setup: _Setup, values: dict[str, Any]) -> Any:
    from taccl_py.measure.emulate import EmulatedBench

    if job is None:
        return EmulatedBench(_given(setup.truth), values["noise"])
    if setup.truth is None:
        return job.bench(None)
    from taccl_py.measure.shared_emulation import Throttle

    return job.bench(Throttle(setup.truth, Path(setup.folder) / _SHARED, values["slow_down"]))


def _given(topology: Topology | None) -> Topology:
    if topology is None:
        raise ValueError("what is profiled in one process is emulated")
    return topology


def _lead(bench: Bench, setup: _Setup, values: dict[str, Any], output: Path | None, *, as_json: bool) -> int:
    """Measure, and tell; for rank 0."""
    from taccl_py.report.profiles import (
        plan_sentence,
        profile_record,
        profile_sentence,
        profile_tables,
        profile_warning,
    )

    expected = None
    if values["plan"] or values["transport"] is not None:
        plan = _plan(bench, setup, values)
        if values["plan"]:
            _show_plan(plan, as_json=as_json)
            return 0
        click.echo(plan_sentence(plan), err=True)
        expected = plan.experiments
    stop = threading.Event()
    with counted_down(stop, expected) as progress:
        found = _measure(bench, values, setup.truth, stop, progress)
    warning = profile_warning(found)
    if warning:
        click.echo(f"warning: {warning}", err=True)
    if output is not None:
        write_atomically(output, canonical_json(topology_to_json(found.topology)))
        click.echo(f"wrote {output}" + ("" if found.complete else ", of which not all was measured"), err=True)
        if _look_alike_reordered(found.topology):
            click.echo(
                f"note: nodes look the same in another order of their ranks: taccl topo align {output}", err=True
            )
    if as_json:
        echo_json(profile_record(found))
    else:
        for table in profile_tables(found):
            print_table(table)
        click.echo(profile_sentence(found))
    if not found.complete:
        raise KeyboardInterrupt
    if setup.reference is not None:
        _require_as_good(setup.reference, found.topology, values)
    return 0


def _look_alike_reordered(topology: Topology) -> bool:
    """True if nodes look the same, but only in another order of their ranks."""
    from taccl_py.topology.alignment import align_nodes
    from taccl_py.topology.difference import TOLERANCE

    try:
        return align_nodes(topology, TOLERANCE).changes
    except InputError:  # there is one node, or one is like no other
        return False


def _measure(
    bench: Bench,
    values: dict[str, Any],
    truth: Topology | None,
    stop: threading.Event,
    progress: Callable[[str, int], None],
) -> Profile:
    from taccl_py.measure.experiment import Counted, Stopped
    from taccl_py.measure.profiler import profile as measure
    from taccl_py.measure.record import Record

    real = values["transport"] is not None and not values["emulate"]
    least_us = _LEAST_US if real else 0.0
    counted = Counted(bench, values["repeats"], int(real), least_us, stop=stop, progress=progress)
    if values["record"] is not None:
        record = Record(values["record"], bench.name, len(bench.node_of))
        counted.known, counted.keep = record.known, record.keep
    try:
        found = measure(counted, all_pairs=values["all_pairs"], largest_bytes=values["largest"])
    except Stopped:
        raise KeyboardInterrupt from None
    near_nics = values["near_nics"] or (truth is not None and truth.near_nics)
    topology = replace(found.topology, inside=_inside(values["inside"], truth), near_nics=near_nics)
    return replace(found, topology=topology)


def _inside(asked: str | None, truth: Topology | None) -> Medium:
    from taccl_py.topology.model import Medium

    if asked is not None:
        return Medium(asked)
    return Medium.UNKNOWN if truth is None else truth.inside


def _require_as_good(reference: Topology, found: Topology, values: dict[str, Any]) -> None:
    from taccl_py.topology.difference import differences

    try:
        worse = [one for one in differences(reference, found, values["tolerance"]) if one.is_worse]
    except InputError as error:
        raise InputError(error.what, path=values["against"]) from None
    if worse:
        remedy = f"in the machine measured now, not as in {values['against']}; repair it, or record the machine again"
        violations = [Violation(one.what, "drift", f"is {one.change} {remedy}") for one in worse]
        raise InvalidArtifact(found.name, violations)


def _plan(bench: Bench, setup: _Setup, values: dict[str, Any]) -> ProfilePlan:
    from taccl_py.measure.plan import find_pace, plan_profile, usual_machine

    machine = setup.truth or usual_machine(bench.node_of, bench.pairs)
    # How fast an emulated machine in one process is follows from the machine.
    pace = None if values["transport"] is None else find_pace(bench, machine)
    return plan_profile(machine, values["repeats"], all_pairs=values["all_pairs"], pace=pace)


def _plan_unknown(values: dict[str, Any]) -> ProfilePlan:
    from taccl_py.measure.experiment import MeasuredFlow
    from taccl_py.measure.plan import plan_profile, usual_machine

    ranks = range(values["ranks"])
    pairs = [MeasuredFlow(src, dst) for src in ranks for dst in ranks if src != dst]
    machine = usual_machine([rank * (values["nodes"] or 1) // len(ranks) for rank in ranks], pairs)
    return plan_profile(machine, values["repeats"], all_pairs=values["all_pairs"])


def _show_plan(plan: ProfilePlan, *, as_json: bool) -> None:
    from taccl_py.report.profiles import plan_sentence

    if as_json:
        echo_json({"experiments": plan.experiments, "all_pairs": plan.all_pairs, "seconds": plan.seconds})
    else:
        click.echo(plan_sentence(plan))

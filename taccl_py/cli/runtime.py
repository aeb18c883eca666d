"""``taccl runtime``: runtime profiles, and their calibration by measured times."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taccl_py.api.policy import chosen_runtime
from taccl_py.cli.options import OUTPUT, echo_json, json_option, runtime_option
from taccl_py.errors import InputError
from taccl_py.jsonio import canonical_json, write_all, write_atomically
from taccl_py.report.tables import plain_table, print_table

if TYPE_CHECKING:
    from taccl_py.measure.runtime_fit import FittedRuntime, Residual
    from taccl_py.profiles.model import Figure, RuntimeProfile
    from taccl_py.runtimes import Runtime
    from taccl_py.topology.model import Topology

_nodes_option = click.option("--nodes", type=click.IntRange(1), default=None, help="Number of nodes of that topology.")
_UNITS = (("_us", "us"), ("_gbps", "GB/s"), ("_bytes", "bytes"))


@click.group(short_help="List, show and fit runtime profiles; which versions of runtimes load what.")
def runtime() -> None:
    """List, show and fit runtime profiles: what launch, protocols and threadblocks of a runtime cost on a kind of GPU.

    versions lists which versions of the runtimes load what.

    \b
    Examples:
      taccl runtime list
      taccl runtime show rccl-mi300x
      taccl runtime versions
      taccl runtime plan mi300x --runtime rccl -o calibration/
    """


@runtime.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """List the shipped runtime profiles.

    Example: taccl runtime list
    """
    from taccl_py.profiles.catalog import list_profiles

    profiles = list_profiles()
    if as_json:
        keys = ("name", "title", "runtime", "gpu", "source")
        echo_json({
            "profiles": [
                {**{key: getattr(one, key) for key in keys}, "evidence": _evidence(one)} for one in profiles
            ]
        })  # fmt: skip
        return
    rows = [(one.name, one.runtime, one.gpu, _evidence(one), one.source) for one in profiles]
    print_table(plain_table("Runtime profiles", ("name", "runtime", "GPU", "evidence", "source"), rows))


@runtime.command("versions")
@json_option
def versions_command(as_json: bool) -> None:
    """List which versions of which runtime load what: files, places, variables, calls, and where that was read.

    Example: taccl runtime versions
    """
    from taccl_py.releases import RELEASES

    if as_json:
        echo_json({"releases": [asdict(one) for one in RELEASES]})
        return
    for one in RELEASES:
        says = (
            ("loads", one.files), ("from", one.place), ("variables", ", ".join(one.variables)), ("runs", one.choice),
            ("warning", one.warning), ("source", one.source),
        )  # fmt: skip
        click.echo(f"{one.runtime}: {one.versions}")
        for word, text in says:
            if text:
                click.echo(f"  {word}: {text}")


@runtime.command("show")
@click.argument("profile", metavar="NAME|FILE")
@json_option
def show_command(profile: str, as_json: bool) -> None:
    """Show the values of a runtime profile with their units, where they come from, and whether they were measured.

    Example: taccl runtime show rccl-mi300x
    """
    from taccl_py.profiles.catalog import load_profile
    from taccl_py.profiles.files import profile_to_json

    found = load_profile(profile)
    if as_json:
        echo_json(profile_to_json(found))
        return
    click.echo(f"{found.name}: {found.title}")
    click.echo(f"source: {found.source}")
    rows = [
        (place.replace("/", " "), _value(place, one), "yes" if one.measured else "", _short(one, found))
        for place, one in found.figures.items()
    ]
    print_table(plain_table("Values", ("value", "is", "measured", "source"), rows))


def _evidence(profile: RuntimeProfile) -> str:
    return "" if profile.is_neutral else profile.evidence


def _value(place: str, figure: Figure) -> str:
    unit = next((unit for ending, unit in _UNITS if place.endswith(ending)), "")
    if place.startswith("fabric_us/"):
        unit = "us"
    return "no limit" if figure.value == float("inf") else f"{figure.value:.6g} {unit}".rstrip()


def _short(figure: Figure, profile: RuntimeProfile) -> str:
    return "" if figure.source == profile.source else figure.source


class _SeveralFiles(click.Command):
    """A command whose option ``--xml`` takes every word after it that ends in ``.xml``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Write the option before each of its files."""
        written: list[str] = []
        taking = False
        for place, word in enumerate(args):
            if taking and word.endswith(".xml") and args[place - 1] != "--xml":
                written.append("--xml")
            taking = word == "--xml" or (taking and (word.endswith(".xml") or args[place - 1] == "--xml"))
            written.append(word)
        return super().parse_args(ctx, written)


@runtime.command("fit", cls=_SeveralFiles)
@click.argument("logs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="LOG...")
@click.option(
    "--xml", "files", type=click.Path(path_type=Path), multiple=True, metavar="FILE...",
    help="MSCCL XML file of a log; further words that end in .xml are such files too. May be repeated.",
)  # fmt: skip
@click.option("--topology", default="", help="Machine on which they ran: name, formula or file.")
@_nodes_option
@runtime_option("Runtime that runs the files")
@click.option(
    "--start", default="auto", show_default=True, metavar="NAME|FILE",
    help="Profile to start from, which gives what the logs do not tell; auto takes that of the runtime on the machine's GPUs.",
)  # fmt: skip
@click.option("--fabric", default="", help="Network of logs of NCCL itself that needs a term of its own, such as efa.")
@click.option("--name", default="", help="Name of the profile; default: that of its file, or of runtime and machine.")
@click.option("-o", "--output", type=OUTPUT, default=None, help="Profile to write.")
@json_option
def fit_command(logs: tuple[Path, ...], files: tuple[Path, ...], output: Path | None, as_json: bool, **values: Any) -> None:  # fmt: skip
    """Fit a runtime profile to logs of nccl-tests or rccl-tests, made with MSCCL XML files; without any, to those of NCCL itself.

    LOG and FILE go together by name (one.log, one.xml), else by order. A CSV table with the columns file, size_bytes and time_us may
    stand in place of logs. Of a log the times of the placement count that its file is for. Launch, operations, hops, rates of
    threadblocks, sums, and the usable share of the links are fitted together; values that the logs leave open keep those of the
    profile that was started from, and are named. Logs of NCCL itself (or RCCL) scale four groups of values.

    \b
    Examples:
      taccl runtime fit ring.log --xml ring.xml --topology mi300x --runtime rccl -o profile.json
      taccl runtime fit times.csv --xml ring.xml --topology mi300x --runtime rccl -o profile.json
      taccl runtime fit ring.log --topology mi300x --runtime rccl -o profile.json
    """
    from taccl_py.measure.runtime_fit import starting_profile
    from taccl_py.sketch.machine import load_machine

    if not values["topology"]:
        raise InputError(
            "logs do not say what links a machine has; name the machine", path="command line", field="--topology"
        )
    topology = load_machine(values["topology"], "", values["nodes"]).topology
    ran = chosen_runtime(values["runtime"], topology)
    start = starting_profile(values["start"], ran.name, topology)
    name = values["name"] or (output.stem if output is not None else f"{ran.name}-{topology.name}")
    name = re.sub(r"[^A-Za-z0-9._-]+|^[^A-Za-z0-9]+", "-", name).strip("-") or "measured"
    if files:
        made, record, show = _fit_files(logs, files, ran, topology, start, name)
    else:
        made, record, show = _fit_nccl(logs, values["fabric"], topology, start, name)
    if output is not None:
        from taccl_py.profiles.files import profile_to_json

        write_atomically(output, canonical_json(profile_to_json(made)))
        click.echo(f"wrote {output}", err=True)
    if as_json:
        echo_json(record)
    else:
        show()


_Made = tuple["RuntimeProfile", dict[str, Any], Callable[[], None]]


def _fit_files(
    logs: Sequence[Path], files: Sequence[Path], runtime: Runtime, topology: Topology, start: RuntimeProfile, name: str
) -> _Made:
    """Profile fitted to runs of MSCCL XML files, what is told of it to programs, and what tells it to people."""
    from taccl_py.measure.runtime_fit import fit_runtime, measured_profile, program_observations, program_parameters
    from taccl_py.measure.runtime_runs import read_runs

    runs = read_runs(logs, files, runtime, start.launch_per_gpu_us)
    observations = [
        one for run in runs for one in program_observations(run.program, topology, start, run.rows, run.name)
    ]
    fit = fit_runtime(start, program_parameters(start, topology, [run.program for run in runs]), observations)
    source = f"{', '.join(path.name for path in logs[:9])}{' and others' if len(logs) > 9 else ''} on {topology.name}"
    made = measured_profile(fit, start, name=name, gpu=topology.gpu, source=source)
    skipped = sum(run.skipped for run in runs)
    return made, _fit_record(fit, made, start, skipped), lambda: _show_fit(fit, made, start, skipped)


def _fit_nccl(logs: Sequence[Path], fabric: str, topology: Topology, start: RuntimeProfile, name: str) -> _Made:
    """Profile scaled to logs of NCCL itself."""
    from dataclasses import replace

    from taccl_py.baselines.nccl_fit import SCALES, fit_scales, log_observations
    from taccl_py.baselines.nccl_time import nccl_machine
    from taccl_py.measure.nccl_tests import read_log

    if any(path.suffix == ".csv" for path in logs):
        raise InputError(
            "a table of times is of MSCCL XML files; name them, or give logs of NCCL itself",
            path="command line",
            field="--xml",
        )
    machine = nccl_machine(topology, fabric=fabric)
    observations = [one for path in logs for one in log_observations(read_log(path), machine)]
    fit = fit_scales(observations, start)
    source = (
        f"taccl runtime fit of NCCL itself: {', '.join(path.name for path in logs)} on {topology.name}; of {start.name}"
    )
    made = replace(fit.profile, name=name, gpu=topology.gpu, source=source)
    record = {
        "runtime_profile": name, "started_from": start.name, "residual": {"rows": len(observations), "median": fit.residual},
        "fitted": [each for each in SCALES if each not in fit.unidentified], "unidentified": list(fit.unidentified),
    }  # fmt: skip

    def show() -> None:
        scaled = ", ".join(each for each in SCALES if each not in fit.unidentified) or "nothing"
        click.echo(
            f"{name}: {start.name} scaled to {len(observations)} times of NCCL itself; half are within x{fit.residual:.3f}"
        )
        click.echo(f"scaled: {scaled}")
        if fit.unidentified:
            click.echo(f"not identified by these logs, as in {start.name}: {', '.join(fit.unidentified)}")

    return made, record, show


def _fit_record(fit: FittedRuntime, made: RuntimeProfile, start: RuntimeProfile, skipped: int) -> dict[str, Any]:
    def of(residual: Residual) -> dict[str, float]:
        return {"rows": residual.rows, "median": residual.median, "p90": residual.p90, "bias": residual.bias}

    return {
        "runtime_profile": made.name,
        "started_from": start.name,
        "skipped_rows": skipped,
        "residual": of(fit.residual),
        "protocols": {name: of(one) for name, one in fit.by_group.items()},
        "files": {name: of(one) for name, one in fit.by_source.items()},
        "fitted": dict(fit.fitted),
        "unidentified": list(fit.unidentified),
    }


def _show_fit(fit: FittedRuntime, made: RuntimeProfile, start: RuntimeProfile, skipped: int) -> None:
    def row(name: str, one: Residual) -> tuple[str, ...]:
        return (name, str(one.rows), f"x{one.median:.3f}", f"x{one.p90:.3f}", f"x{one.bias:.3f}")

    columns = ("of", "rows", "median", "90th percentile", "predicted over measured")
    rows = [row(name, one) for name, one in [*fit.by_source.items(), *fit.by_group.items(), ("all", fit.residual)]]
    print_table(plain_table("Predicted beside measured", columns, rows))
    values = [
        (place.replace("/", " "), _value(place, made.figures[place]),
         _value(place, start.figures[place]) if place in start.figures else "") for place in fit.fitted
    ]  # fmt: skip
    print_table(plain_table(f"Fitted values of {made.name}", ("value", "is", f"in {start.name}"), values))
    if fit.unidentified:
        places = ", ".join(place.removeprefix("protocols/").replace("/", " ") for place in fit.unidentified)
        click.echo(f"not identified by these logs, as in {start.name}: {places}")
    if skipped:
        click.echo(f"{skipped} rows are of sizes for which the runtime does not take their file")


@runtime.command("plan")
@click.argument("topology")
@_nodes_option
@runtime_option("Runtime that runs the files")
@click.option("-o", "--output", type=OUTPUT, required=True, metavar="DIR", help="Folder to write.")
@json_option
def plan_command(topology: str, nodes: int | None, runtime: str, output: Path, as_json: bool) -> None:
    """Write the MSCCL XML files whose logs identify a runtime profile, and a script with the commands to run.

    For each protocol: an all-pairs AllGather with one threadblock for each peer, a ring AllGather with eight threadblocks, and an
    all-pairs AllReduce whose sums are spread over threadblocks; around a ring where two ranks have no link, or there are more than 16.

    Example: taccl runtime plan mi300x --runtime rccl -o calibration/
    """
    from taccl_py.measure.runtime_plan import SCRIPT, plan_calibration
    from taccl_py.sketch.machine import load_machine

    machine = load_machine(topology, "", nodes).topology
    words = f"--topology {shlex.quote(topology)}" + (f" --nodes {nodes}" if nodes else "")
    plan = plan_calibration(machine, chosen_runtime(runtime, machine), words)
    for name in plan.texts:
        (output / name).parent.mkdir(parents=True, exist_ok=True)
    write_all({output / name: text for name, text in plan.texts.items()})
    (output / SCRIPT).chmod(0o755)
    if as_json:
        echo_json({"files": list(plan.texts), "runs": list(plan.runs), "fit": plan.fit_command})
        return
    click.echo(f"wrote {output}: {len(plan.runs)} files to run and {SCRIPT}")
    click.echo(f"run {output / SCRIPT} on the machine, and there: {plan.fit_command}")

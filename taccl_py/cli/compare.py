"""``taccl compare``: what we gain over what people have."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taccl_py.answer import Ended
from taccl_py.api.policy import AUTO, COMPARE_LIMIT_S, chosen_runtime
from taccl_py.cli.options import (
    KIND,
    OUTPUT_FILE,
    RANKS,
    SIZE_RANGE,
    budget_options,
    budgeted,
    echo_json,
    gpu_option,
    json_option,
    make_request,
    runtime_option,
    runtime_profile_option,
)
from taccl_py.errors import InputError
from taccl_py.runtimes import Runtime
from taccl_py.units import format_count, format_size

if TYPE_CHECKING:
    from taccl_py.baselines.compare import BaselineComparison, OwnFile
    from taccl_py.collective import Kind
    from taccl_py.measure.nccl_tests import Log
    from taccl_py.pipeline.resolve import Request

_SUBJECTS = ("nccl", "ours")
_TUNERS = ("nccl", "ncclx", "openmpi", "ucc")


@click.command(short_help="Compare our algorithms with NCCL's, for every size.")
@click.argument("topology")
@click.argument("collective", type=KIND)
@click.option("--nodes", type=click.IntRange(1), default=None, help="Number of nodes of a shipped machine.")
@click.option("--sketch", default="", help="Sketch for our algorithms and TACCL's; NCCL's know nothing of it.")
@click.option("--sizes", type=SIZE_RANGE, default="1KiB:4GiB", show_default=True, help="Range of sizes.")
@click.option("--ranks", type=RANKS, default=None, help="Process group, for example 0-7 or 0,2,4-6.")
@click.option("--root", type=click.IntRange(0), default=0, help="Root of Broadcast, Reduce, Gather, Scatter.")
@gpu_option("For NCCL's tuner; auto knows that of shipped machines.")
@click.option(
    "--cpu",
    type=click.Choice(["auto", "amd", "other"]),
    default="auto",
    show_default=True,
    help="Maker of the CPUs, for NCCL's tuner; auto knows that of shipped machines.",
)
@runtime_option("Runtime that ours must fit")
@click.option(
    "--nccl-graph",
    type=click.Path(path_type=Path),
    default=None,
    help="What NCCL_GRAPH_DUMP_FILE wrote on the machine; else NCCL's channels are estimated from the topology.",
)
@click.option(
    "--with-taccl",
    is_flag=True,
    help="Also TACCL's method, with --sketch or all shipped sketches of the machine; takes as long again.",
)
@runtime_profile_option
@click.option(
    "--fabric",
    default="",
    metavar="NAME",
    help="Network that the runtime profile has a term for, such as efa, tcpx, tcpxo; default: InfiniBand or RoCE.",
)
@click.option(
    "--with",
    "directory",
    type=click.Path(path_type=Path),
    default=None,
    help="Directory of algorithm files, as taccl synth and install write them, or one file, to compare instead of searching.",
)
@click.option(
    "--measured",
    multiple=True,
    metavar="[nccl=|ours=]LOG",
    help="Log of nccl-tests, set beside what is predicted: of NCCL itself, of our files, or (without a word) of either. May be repeated.",
)
@click.option(
    "--tuner",
    type=click.Choice(_TUNERS),
    default=None,
    help="Also write which of a library's own algorithms is fastest at which size, to --output: CSV for NCCL's example tuner plug-in, CSV or "
    "(FILE.json) JSON for NCCLX, JSON for Open MPI 6, a line for UCC.",
)
@click.option("-o", "--output", type=OUTPUT_FILE, default=None, help="File for --tuner.")
@budget_options(f"{COMPARE_LIMIT_S:g} s at most", "the search of ours, and that of variants of baselines,")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Random seed.")
@json_option  # fmt: skip
def compare(as_json: bool, **values: Any) -> None:
    """Compare our algorithms for COLLECTIVE on TOPOLOGY with NCCL's, for every size of a range.

    Baselines are rings, double binary trees, direct exchange, rings at two levels, and PAT, and on routed tori rings both ways,
    recursive doubling and Swing, as schedules on the same machine under the same costs, each in its fastest variant; the
    verifier checks them as it checks ours. NCCL's choice follows its own model of time. Our time is the replay of the program,
    which can be longer than its schedule, and so is TACCL's, with its own lowering. A speed-up is the time of the fastest
    baseline, or of the schedule of NCCL's choice, over ours.

    A second table has times under a runtime profile, with launch, protocols, channels and threadblocks: of our files, and of NCCL's
    ring, tree, NVLS, NVLSTree, or sends and receives. Where NCCL is faster there, the sizes are named that taccl install --leave
    leaves to it.

    \b
    Examples:
      taccl compare ring:4 allgather --sizes 1KiB:1MiB --time-limit 5
      taccl compare ndv4 allreduce --sizes 1MiB:1MiB --time-limit 5 --json
      taccl compare ndv2 allgather --sizes 1MiB:1MiB --with-taccl --time-limit 5
      taccl compare ndv2 allgather --nodes 2 --sizes 16MB:16MB --with out
      taccl compare ndv4 allgather --sizes 16MB:16MB --measured nccl=nccl.log --time-limit 5
      taccl compare ndv4 allreduce --sizes 1KiB:1GiB --time-limit 5 --tuner nccl -o tuner.csv
    """
    from taccl_py.baselines.compare import Given, Tuned, compare_sizes
    from taccl_py.baselines.nccl_graph import read_graphs
    from taccl_py.baselines.nccl_ranks import tuned_as
    from taccl_py.baselines.tuner import TunerTarget, require_choice
    from taccl_py.cli.progress import watched
    from taccl_py.lowering.lower import LoweringOptions
    from taccl_py.pipeline.resolve import resolve_machine
    from taccl_py.profiles.catalog import select_profile
    from taccl_py.report.comparison import comparison_record, comparison_tables, remedy
    from taccl_py.report.tables import print_table

    _require_tuner_with_output(values)
    stop = threading.Event()
    request = _request(values, stop)
    topology, directory = resolve_machine(request), values["directory"]
    runtime = chosen_runtime(values["runtime"], topology)
    selection = select_profile(values["runtime_profile"], runtime.name, topology)
    request = replace(request, profile=selection.profile)
    if values["tuner"] is not None:
        require_choice(values["collective"], selection.profile, TunerTarget(values["tuner"]))
    logs = [_log(word, values["collective"]) for word in values["measured"]]
    installed = None if directory is None else _installed(directory, runtime)
    gpu, cpu = values["gpu"], values["cpu"]
    generation = tuned_as(gpu) if gpu is not None else None
    graphs = read_graphs(values["nccl_graph"]) if values["nccl_graph"] is not None else None
    tuned = Tuned(generation, None if cpu == "auto" else cpu == "amd", graphs, values["fabric"])
    with watched(stop, in_vain="baselines") as events:
        comparison = compare_sizes(
            request,
            values["sizes"],
            LoweringOptions(runtime),
            tuned,
            events,
            Given(values["with_taccl"], installed, logs),
        )
    if selection.note:
        click.echo(f"note: times are those of links and ports alone, as {selection.note}", err=True)
    result = comparison_record(comparison)
    if directory is None:
        result["ended"] = str(Ended.of(request.options.limits, is_proved=False))
    if values["tuner"] is not None:
        result["tuner"] = _write_tuner(comparison, values["tuner"], values["output"], as_json=as_json)
    if as_json:
        echo_json(result)
        return
    tables = comparison_tables(result)
    tables[-1].caption = f"search ended: {result['ended']}" if "ended" in result else None
    for table in tables:
        print_table(table)
    if note := remedy(result, str(directory) if directory is not None else "DIRECTORY"):
        click.echo(note, err=True)
    if not comparison.tried_all:
        click.echo(
            "note: time was up before all variants of the baselines were tried; give more with --effort or --time-limit",
            err=True,
        )
    if values["with_taccl"] and (note := _without_taccl(result)):
        click.echo(note, err=True)


def _require_tuner_with_output(values: dict[str, Any]) -> None:
    """Refuse --tuner without a file, and a file without --tuner."""
    if values["tuner"] is not None and values["output"] is None:
        raise InputError("needs a file to write; name it with -o", path="command line", field="--tuner")
    if values["output"] is not None and values["tuner"] is None:
        raise InputError(
            f"is for --tuner; add --tuner with one of: {', '.join(_TUNERS)}", path="command line", field="--output"
        )


def _write_tuner(comparison: BaselineComparison, target: str, output: Path, *, as_json: bool) -> dict[str, Any]:
    """Write a tuner file and say so; facts for --json."""
    from taccl_py.baselines.tuner import TunerTarget, tuner_file
    from taccl_py.jsonio import write_atomically

    made = tuner_file(comparison, TunerTarget(target), output.name)
    write_atomically(output, made.text)
    if not as_json:
        spans = [f"{format_size(each.low_bytes)} to {format_size(each.high_bytes)}" for each in made.ours]
        faster = f"; ours takes over from {', '.join(spans)} where it is installed" if spans else ""
        click.echo(f"wrote {output}: {format_count(len(made.rules), 'rule')} for {target}{faster}", err=True)
    return {
        "target": target,
        "file": str(output),
        "rules": [
            {
                "low_bytes": rule.low_bytes,
                "high_bytes": rule.high_bytes,
                "algorithm": rule.algorithm,
                "protocol": rule.protocol,
            }
            for rule in made.rules
        ],
        "ours": [[each.low_bytes, each.high_bytes] for each in made.ours],
    }


def _request(values: dict[str, Any], stop: threading.Event) -> Request:
    """Request for the search, from parsed options.

    Raises
    ------
    InputError
        If a sketch is named although nothing is searched.
    """
    from taccl_py.synthesis.engine import Options

    if values["directory"] is not None and values["sketch"]:
        raise InputError(
            "--with compares files as they are, without a search; leave --sketch out",
            path="command line",
            field="--sketch",
        )
    return replace(
        make_request(values),
        engine=AUTO,
        options=Options(limits=budgeted(values, COMPARE_LIMIT_S, stop)),
    )


def _log(word: str, kind: Kind) -> tuple[str, Log]:
    """A log, and whose it is: ``nccl``, ``ours``, or either for the empty word."""
    from taccl_py.measure.nccl_tests import read_log

    subject, equals, path = word.partition("=")
    if equals and subject in _SUBJECTS:
        return subject, read_log(Path(path), kind)
    return "", read_log(Path(word), kind)


def _installed(directory: Path, runtime: Runtime) -> list[OwnFile]:
    """Algorithm files of a directory, or one file, verified."""
    from taccl_py.baselines.compare import OwnFile
    from taccl_py.portfolio.directory import read_offer, xml_files

    if not directory.exists():
        raise InputError(
            "there is no such file or directory; name what taccl synth or install wrote", path=str(directory)
        )
    return [OwnFile(read_offer(path, runtime).program, path.name, runtime) for path in xml_files([directory])]


def _without_taccl(result: dict[str, Any]) -> str:
    """A note for people where TACCL has no answer."""
    missing = sum("TACCL" not in row["baselines"] for row in result["sizes"])
    if not missing:
        return ""
    return (
        f"note: TACCL has no answer at {missing} of {format_count(len(result['sizes']), 'size')}: its time was up, or no sketch "
        "leaves every chunk a path; give more time with --time-limit, or another --sketch"
    )

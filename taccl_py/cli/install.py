"""``taccl install``: algorithm files into the directory that a runtime loads them from."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taccl_py.cli.options import LEFT, OUTPUT, echo_json, json_option, told_runtime, told_runtime_option
from taccl_py.errors import InputError
from taccl_py.jsonio import format_of, read_text
from taccl_py.releases import DEFAULT_FOLDER, DEFAULT_NAMES, cautions_about, loaded_by, warnings_about
from taccl_py.runtimes import LEGACY, LEGACY_CONFIG, MSCCLPP, PLAN_FOLDER, RUNTIMES, Runtime
from taccl_py.units import format_count

if TYPE_CHECKING:
    from taccl_py.portfolio.directory import Installation
    from taccl_py.portfolio.plans import PlanInstallation, PlanOffer


@click.command(short_help="Put algorithm files where a runtime loads them.")
@click.argument("sources", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "-o", "--output", type=OUTPUT, required=True, help="Directory to write; what it holds counts as named first."
)
@told_runtime_option("Runtime that will load them", MSCCLPP.name)
@click.option(
    "--at", "place", default=None, help="Where the directory will be on the machines; default: where it is here."
)
@click.option("--trim", is_flag=True, help="Where two files are for the same sizes, cut those of the one named later.")
@click.option(
    "--leave",
    type=LEFT,
    multiple=True,
    metavar="[COLLECTIVE:]LOW:HIGH",
    help="Sizes for which there is to be no file, so that NCCL's own algorithms run: 16MiB:1GiB, allreduce:64MiB:4GiB. May be repeated.",
)
@click.option(
    "--replace",
    "replaces",
    is_flag=True,
    help="Take away all files that the directory holds, as after a new synthesis.",
)
@click.option(
    "--default-names",
    type=click.Choice(list(DEFAULT_NAMES)),
    default=None,
    help="Version of MSCCL++ that is to find plans by itself too, in its cache directory: put them there under the names that it "
    "looks for.",
)
@json_option
def install(sources: tuple[Path, ...], output: Path, runtime: str, as_json: bool, **values: Any) -> None:
    """Put SOURCES, MSCCL XML files of any tool or directories with some, into a directory as a runtime wants it.

    Files are converted for the runtime and verified, one by one and together: only algorithm files, names that sort by size, and
    no two files for the same call; a file that is there already changes nothing. For the legacy runtime a configuration file is
    written too. The directory has all new files at once, or, if something goes wrong or it is killed, those it had. Stdout tells
    the environment variables to set; all ranks must see the same directory.

    Verdicts on files are remembered in the user's cache (TACCL_CACHE_DIR, else taccl in XDG_CACHE_HOME or the platform's folder; set
    and empty: nowhere), so that only what has changed is verified again; the cache may be deleted at any time.

    NCCL runs its own algorithms at sizes for which no file is; taccl compare says where they are faster, and --leave cuts files there.

    For mscclpp SOURCES are plans, or directories with some, as of taccl synth or taccl lower --to mscclpp-json. They are verified and
    written beside taccl_plans.py, which registers them with MSCCL++ 0.9 or newer by collective, ranks, size and placement: as python -m taccl_plans SCRIPT, or by a call
    of its own. Stdout has the launch line. By itself MSCCL++ looks only for an AllReduce of a few numbers of ranks, under
    --default-names.

    Warnings say which versions of the runtime load such files and which do not; taccl runtime versions tells all of it.

    \b
    Examples:
      taccl install out/algorithm.xml -o executor
      taccl install out -o executor --replace
      taccl install out old.xml -o rccl --runtime rccl --at /opt/algorithms
      taccl install out -o executor --leave 64MiB:4GiB
      taccl install plan.json -o plans --runtime mscclpp
    """
    from taccl_py.cli.cache import verdicts
    from taccl_py.cli.progress import shown_one_by_one
    from taccl_py.portfolio.directory import leave_to_nccl, plan_installation, read_offer, xml_files
    from taccl_py.portfolio.swap import sole_user, swap_files

    place, trim, replaces, leave = values["place"], values["trim"], values["replaces"], values["leave"]
    runtime, assumed = told_runtime(runtime, sources, MSCCLPP.name)
    if place is not None and not place:
        raise InputError("is empty; name a directory", path="command line", field="--at")
    at = (place if place is not None else str(output.absolute())).rstrip("/") or "/"
    if runtime != MSCCLPP.name and values["default_names"] is not None:
        raise InputError("is only for --runtime mscclpp; leave it out", path="command line", field="--default-names")
    if runtime == MSCCLPP.name:
        if leave:
            raise InputError(
                "MSCCL++ runs the plans that a program names; leave sizes out there",
                path="command line",
                field="--leave",
            )
        names = values["default_names"] or ""
        written = _install_plans(sources, output, trim=trim, replaces=replaces, default_names=names)
        _print_plans(written, output, at, as_json=as_json)
        return
    target, remembered = RUNTIMES[runtime], verdicts()
    with sole_user(output):
        old = _files_of_runtimes(output) if output.is_dir() else []
        kept = [] if replaces else [path for path in old if path.name != LEGACY_CONFIG]
        # Files in a directory of the legacy runtime count maxBytes as that does, whatever else they say.
        origin = LEGACY if any(path.name == LEGACY_CONFIG for path in old) else None
        files = [*((path, origin, True) for path in kept), *((path, None, False) for path in xml_files(sources))]
        with shown_one_by_one(files, lambda file: file[0].name) as shown:
            verify = remembered.verify_program
            offers = [read_offer(path, target, written, held=held, verify=verify) for path, written, held in shown]
            offers, notes = leave_to_nccl(offers, leave, target)
            found = plan_installation(offers, target, at, trim=trim, verify=verify)
        found = replace(found, notes=(*notes, *found.notes))
        swap_files(output, found.texts, [path.name for path in old])
    _print(found, output, target, assumed, as_json=as_json)


def _install_plans(
    sources: Sequence[Path], output: Path, *, trim: bool, replaces: bool, default_names: str
) -> PlanInstallation:  # fmt: skip
    from taccl_py.cli.cache import verdicts
    from taccl_py.cli.progress import shown_one_by_one
    from taccl_py.portfolio.plans import install_plans, read_plan_offer
    from taccl_py.portfolio.swap import sole_user, swap_files

    defaults = {name.file for names in DEFAULT_NAMES.values() for name in names}
    with sole_user(output):
        # Plans under other names in the default folder are of our own earlier versions, which MSCCL++ never found there.
        inside = [path for name in (PLAN_FOLDER, DEFAULT_FOLDER) for path in sorted((output / name).glob("*.json"))]
        old = [path for path in inside if not (path.parent.name == DEFAULT_FOLDER and path.name in defaults)]
        named = [file for path in sources for file in _plan_files(path)]
        files = [*((path, True) for path in ([] if replaces else old)), *((path, False) for path in named)]
        verify = verdicts().verify_plan
        with shown_one_by_one(files, lambda file: file[0].name) as shown:
            offers = [read_plan_offer(path, held=held, verify=verify) for path, held in shown]
            found = install_plans(offers, trim=trim, default_names=default_names)
        gone = inside if replaces else old
        swap_files(output, found.texts, [f"{path.parent.name}/{path.name}" for path in gone])
    return found


def _plan_files(source: Path) -> list[Path]:
    """Plans that a source names: it, or those in it, be it a folder of some, of taccl synth, or what this command has written."""
    if not source.is_dir():
        return [source]
    folder = source / PLAN_FOLDER if (source / PLAN_FOLDER).is_dir() else source
    # A plan names no format, as schedules and summaries of ours do.
    found = [file for file in sorted(folder.glob("*.json")) if format_of(read_text(file), str(file)) is None]
    if not found:
        raise InputError("holds no plans; name a directory that does", path=str(source))
    return found


def _print_plans(found: PlanInstallation, output: Path, place: str, *, as_json: bool) -> None:
    kinds = frozenset(str(offer.kind) for offer in found.offers)
    by_itself = any(name.startswith(f"{DEFAULT_FOLDER}/") for name in found.texts)
    environment = {"PYTHONPATH": place} | ({"MSCCLPP_CACHE_DIR": place} if by_itself else {})
    operations = frozenset().union(*(offer.operations for offer in found.offers))
    warnings = [*warnings_about(MSCCLPP.name), *cautions_about(kinds, operations)]
    if by_itself:
        warnings.append(
            "under its default names MSCCL++ takes a plan at every size in its range, and ends the program at one that the plan's "
            "aligned chunks do not divide"
        )
    launch = _launch_lines(max(found.offers, key=lambda offer: offer.num_ranks))
    if as_json:
        echo_json({
            "files": [str(output / name) for name in found.texts],
            "runtime": MSCCLPP.name,
            "environment": environment,
            "launch": launch,
            "facts": format_count(len(found.offers), "plan"),
            "notes": list(found.notes),
            "loaded_by": loaded_by(MSCCLPP.name),
            "warnings": warnings,
        })  # fmt: skip
        return
    ranks = ", ".join(sorted({f"{offer.kind} of {offer.num_ranks} ranks" for offer in found.offers}))
    facts = f"{format_count(len(found.offers), 'plan')}, {ranks}"
    _tell(found.notes, f"wrote {output}: {facts}", MSCCLPP.name, warnings)
    for name, value in environment.items():
        kept = "${PYTHONPATH:+:$PYTHONPATH}" if name == "PYTHONPATH" else ""
        click.echo(f"export {name}={shlex.quote(value)}{kept}")
    for line in launch:
        click.echo(f"# {line}")


def _launch_lines(offer: PlanOffer) -> list[str]:
    """Words on how a script on NCCL takes the plans, and how one on MSCCL++ does."""
    library = "$(python -c 'import mscclpp; print(mscclpp.get_lib())')/libmscclpp_nccl.so"
    on_node = offer.registered.ranks_per_node
    nodes = f"--nnodes {offer.num_ranks // on_node} --nproc-per-node {on_node}"
    return [
        f"LD_PRELOAD={library} torchrun {nodes} -m taccl_plans train.py",
        "import taccl_plans; taccl_plans.load(rank, num_ranks).execute(communicator, executor, collective, ...)",
    ]


def _tell(notes: Sequence[str], what: str, runtime: str, warnings: Sequence[str]) -> None:
    """Say on stderr what was done, which versions load it, and what to mind."""
    for note in notes:
        click.echo(note, err=True)
    click.echo(what, err=True)
    click.echo(f"loaded by {loaded_by(runtime)}", err=True)
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)


def _files_of_runtimes(output: Path) -> list[Path]:
    """XML files of the directory, the legacy runtime's configuration too; else a file or link stops a scan, or is somebody's."""
    files = sorted(path for path in output.iterdir() if path.is_symlink() or not path.is_dir())
    for path in files:
        if path.suffix != ".xml":
            raise InputError("is no algorithm file, and runtimes stop at such files; take it away", path=str(path))
    return files


def _print(found: Installation, output: Path, runtime: Runtime, assumed: str, *, as_json: bool) -> None:
    from taccl_py.report.directory import describe_directory

    facts, warnings = describe_directory(found.verdict, runtime), warnings_about(runtime.name)
    facts += f"; {assumed}" if assumed else ""
    if as_json:
        echo_json({
            "files": [str(output / name) for name in found.texts],
            "runtime": runtime.name,
            "environment": found.environment,
            "facts": facts,
            "connections": max(found.verdict.connections.values(), default=0),
            "connection_bytes": found.verdict.connection_bytes,
            "notes": list(found.notes),
            "loaded_by": loaded_by(runtime.name),
            "warnings": list(warnings),
        })  # fmt: skip
        return
    _tell(found.notes, f"wrote {output}: {facts}", runtime.name, warnings)
    for name, value in found.environment.items():
        click.echo(f"export {name}={shlex.quote(value)}")

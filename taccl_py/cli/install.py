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
from taccl_py.runtimes import LEGACY, LEGACY_CONFIG, MSCCLPP, PLAN_FOLDER, RUNTIMES, Runtime
from taccl_py.units import format_count

if TYPE_CHECKING:
    from taccl_py.portfolio.directory import Installation


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

    For mscclpp SOURCES are plans of taccl lower --to mscclpp-json. They are verified and go into the folder "default" of the
    directory, which is MSCCL++'s cache directory then; a program can also register them from there (ExecutionPlanRegistry).

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
    runtime = told_runtime(runtime, sources)
    at = (place if place is not None else str(output.absolute())).rstrip("/") or "/"
    if runtime == MSCCLPP.name:
        if leave:
            raise InputError(
                "MSCCL++ runs the plans that a program names; leave sizes out there",
                path="command line",
                field="--leave",
            )
        _install_plans(sources, output, at, trim=trim, replaces=replaces, as_json=as_json)
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
    _print(found, output, target, as_json=as_json)


def _install_plans(
    sources: Sequence[Path], output: Path, place: str, *, trim: bool, replaces: bool, as_json: bool
) -> None:  # fmt: skip
    from taccl_py.cli.cache import verdicts
    from taccl_py.cli.progress import shown_one_by_one
    from taccl_py.portfolio.plans import install_plans, read_plan_offer
    from taccl_py.portfolio.swap import sole_user, swap_files

    folder = output / PLAN_FOLDER
    with sole_user(output):
        old = sorted(folder.glob("*.json")) if folder.is_dir() else []
        named = [file for path in sources for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])]
        files = [*((path, True) for path in ([] if replaces else old)), *((path, False) for path in named)]
        verify = verdicts().verify_plan
        with shown_one_by_one(files, lambda file: file[0].name) as shown:
            offers = [read_plan_offer(path, held=held, verify=verify) for path, held in shown]
            found = install_plans(offers, trim=trim)
        swap_files(folder, found.texts, [path.name for path in old])
    environment = {"MSCCLPP_CACHE_DIR": place}
    if as_json:
        echo_json({
            "files": [str(folder / name) for name in found.texts],
            "runtime": MSCCLPP.name,
            "environment": environment,
            "facts": format_count(len(found.texts), "plan"),
            "notes": list(found.notes),
        })  # fmt: skip
        return
    for note in found.notes:
        click.echo(note, err=True)
    kinds = ", ".join(sorted({f"{offer.kind} of {offer.num_ranks} ranks" for offer in found.offers}))
    click.echo(f"wrote {folder}: {format_count(len(found.texts), 'plan')}, {kinds}", err=True)
    for name, value in environment.items():
        click.echo(f"export {name}={shlex.quote(value)}")


def _files_of_runtimes(output: Path) -> list[Path]:
    """XML files of the directory, the legacy runtime's configuration too; else a file or link stops a scan, or is somebody's."""
    files = sorted(path for path in output.iterdir() if path.is_symlink() or not path.is_dir())
    for path in files:
        if path.suffix != ".xml":
            raise InputError("is no algorithm file, and runtimes stop at such files; take it away", path=str(path))
    return files


def _print(found: Installation, output: Path, runtime: Runtime, *, as_json: bool) -> None:
    from taccl_py.report.directory import describe_directory

    facts = describe_directory(found.verdict, runtime)
    if as_json:
        echo_json({
            "files": [str(output / name) for name in found.texts],
            "runtime": runtime.name,
            "environment": found.environment,
            "facts": facts,
            "connections": max(found.verdict.connections.values(), default=0),
            "connection_bytes": found.verdict.connection_bytes,
            "notes": list(found.notes),
        })  # fmt: skip
        return
    for note in found.notes:
        click.echo(note, err=True)
    click.echo(f"wrote {output}: {facts}", err=True)
    for name, value in found.environment.items():
        click.echo(f"export {name}={shlex.quote(value)}")

"""``taccl install``: algorithm files into the directory that a runtime loads them from."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from taccl_py.cli.options import OUTPUT, echo_json, json_option
from taccl_py.errors import InputError
from taccl_py.jsonio import read_text, write_all
from taccl_py.portfolio.directory import Installation, Offer, plan_installation
from taccl_py.report.directory import describe_directory
from taccl_py.runtimes import RUNTIMES, Runtime


@click.command(short_help="Put algorithm files where a runtime loads them.")
@click.argument("sources", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "-o", "--output", type=OUTPUT, required=True, help="Directory to write; what it holds counts as named first."
)
@click.option(
    "--runtime",
    type=click.Choice(list(RUNTIMES)),
    default="executor",
    show_default=True,
    help="Runtime that will load them.",
)
@click.option(
    "--at", "place", default=None, help="Where the directory will be on the machines; default: where it is here."
)
@click.option("--trim", is_flag=True, help="Where two files are for the same sizes, cut those of the one named later.")
@click.option("--replace", "replaces", is_flag=True, help="Take away the XML files that the directory holds.")
@json_option
def install(
    sources: tuple[Path, ...], output: Path, runtime: str, place: str | None, trim: bool, replaces: bool, as_json: bool
) -> None:  # fmt: skip
    """Put SOURCES, MSCCL XML files of any tool or directories with some, into a directory as a runtime wants it.

    Files are converted for the runtime and judged, one by one and together: only algorithm files, names that sort by size, and
    no two files for the same call. For the legacy runtime a configuration file is written too. Stdout tells the environment
    variables to set; all ranks must see the same directory.

    \b
    Examples:
      taccl install out/algorithm.xml -o executor
      taccl install out old.xml -o rccl --runtime rccl --at /opt/algorithms
    """
    target = RUNTIMES[runtime]
    old = _algorithms_in(output) if output.is_dir() else []
    offers = [offer for path in [*([] if replaces else old), *_files(sources)] for offer in [_offer(path, target)]]
    at = place if place is not None else str(output.absolute())
    found = plan_installation(offers, target, at.rstrip("/") or "/", trim=trim)
    write_all({output / name: text for name, text in found.texts.items()})
    for path in old:
        if path.name not in found.texts:
            path.unlink(missing_ok=True)
    _print(found, output, target, as_json=as_json)


def _algorithms_in(output: Path) -> list[Path]:
    """XML files of the directory; anything else would stop the runtime's scan, or is somebody's."""
    files = sorted(path for path in output.iterdir() if not path.is_dir())
    for path in files:
        if path.suffix != ".xml":
            raise InputError("is no algorithm file, and runtimes stop at such files; take it away", path=str(path))
    return [path for path in files if path.name != "msccl-config.xml"]


def _files(sources: Sequence[Path]) -> list[Path]:
    """Sources, with directories replaced by the XML files in them."""
    files: list[Path] = []
    for path in sources:
        if not path.is_dir():
            files.append(path)
            continue
        inside = sorted(child for child in path.glob("*.xml") if child.is_file() and child.name != "msccl-config.xml")
        if not inside:
            raise InputError("holds no XML files; name a directory that does", path=str(path))
        files += inside
    return files


def _offer(path: Path, runtime: Runtime) -> Offer:
    from taccl_py.pipeline import convert_and_judge

    return Offer(convert_and_judge(read_text(path), str(path), runtime).program, str(path))


def _print(found: Installation, output: Path, runtime: Runtime, *, as_json: bool) -> None:
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

"""``taccl convert``: MSCCL XML of any tool for a runtime."""

from __future__ import annotations

from pathlib import Path

import click

from taccl_py.cli.options import KIND, echo_json, json_option, require_room_for_json
from taccl_py.cli.subject import PROGRAM, refuse_folder
from taccl_py.collective import Kind
from taccl_py.jsonio import read_text, write_atomically
from taccl_py.lowering.buffers import CallPlacement
from taccl_py.runtimes import RUNTIMES

_DECLARED = "declared"


@click.command("convert", short_help="Make MSCCL XML of any tool ready for a runtime.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--runtime",
    type=click.Choice(list(RUNTIMES)),
    default="executor",
    show_default=True,
    help="Runtime that will load it: MSCCL executor for NCCL, RCCL, or legacy MSCCL.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, allow_dash=True),
    required=True,
    help="XML file to write; - for stdout.",
)
@click.option(
    "--placement",
    type=click.Choice([_DECLARED, *map(str, CallPlacement)]),
    default=_DECLARED,
    show_default=True,
    help="Buffers for which it must be right; declared also tries both for files that can only name one.",
)
@click.option("--collective", type=KIND, default=None, help="Collective of a file that does not say it.")
@json_option
def convert_command(
    file: Path, runtime: str, output: Path, placement: str, collective: Kind | None, as_json: bool
) -> None:  # fmt: skip
    """Make FILE, the MSCCL XML of any tool and runtime, ready for one runtime.

    FILE may also be what TE-CCL wrote for an AllGather of whole chunks or an AllToAll (its JSON), which is lowered.

    Attributes that are missing are filled in, copies that no runtime executes become steps, fused steps are taken apart where
    the runtime has none, waits are written as its parser wants them, and maxBytes is lowered where the program would stop. The
    result is verified; nothing is written that the verifier rejects.

    \b
    Examples:
      taccl convert old.xml --runtime executor -o new.xml
      taccl convert out/algorithm.xml --runtime rccl -o rccl.xml
    """
    from taccl_py.pipeline.conversion import convert_and_verify

    require_room_for_json(output, as_json=as_json)
    refuse_folder(file, PROGRAM)
    wanted = None if placement == _DECLARED else CallPlacement(placement)
    found = convert_and_verify(read_text(file), str(file), RUNTIMES[runtime], kind=collective, placement=wanted)
    if str(output) == "-":
        click.echo(found.text, nl=False)
        return
    write_atomically(output, found.text)
    program = found.program
    if as_json:
        echo_json({
            "files": [str(output)],
            "collective": str(program.kind),
            "runtime": runtime,
            "protocol": str(program.protocol),
            "in_place": program.in_place,
            "out_of_place": program.out_of_place,
            "min_bytes": program.min_bytes,
            "max_bytes": program.max_bytes,
            "threadblocks": program.num_threadblocks,
            "threadblock_steps": program.num_steps,
            "notes": list(found.notes),
        })  # fmt: skip
        return
    places = [name for name, on in (("in place", program.in_place), ("out of place", program.out_of_place)) if on]
    click.echo(f"wrote {output}: {program.kind} for {runtime}, {' and '.join(places)}", err=True)
    for note in found.notes:
        click.echo(f"  {note}", err=True)

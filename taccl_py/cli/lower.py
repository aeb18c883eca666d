"""``taccl lower``: a schedule for a runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from taccl_py.cli.options import echo_json, json_option, lowering_options, make_lowering_options
from taccl_py.jsonio import read_text, write_atomically
from taccl_py.schedule.files import read_schedule


@click.command("lower", short_help="Lower a schedule to MSCCL XML for a runtime.")
@click.argument("schedule", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, allow_dash=True),
    required=True,
    help="XML file to write; - for stdout.",
)
@click.option("--name", default=None, help="Name of the algorithm in the file; default: collective and machine.")
@lowering_options
@json_option
def lower_command(schedule: Path, output: Path, as_json: bool, name: str | None, **values: Any) -> None:  # fmt: skip
    """Lower SCHEDULE (a schedule.json) to MSCCL XML.

    The schedule is judged first, and the XML text after it; nothing is written to which a judge objects.

    \b
    Example:
      taccl lower out/schedule.json --runtime rccl --placement in --instances 2 -o rccl.xml
    """
    from dataclasses import replace

    from taccl_py.pipeline import lower_and_judge, require_valid

    subject = read_schedule(read_text(schedule), str(schedule))
    require_valid(subject, str(schedule))
    lowered = lower_and_judge(subject, replace(make_lowering_options(values), name=name))
    program = lowered.program
    if str(output) == "-":
        click.echo(lowered.text, nl=False)
        return
    write_atomically(output, lowered.text)
    if as_json:
        echo_json({
            "files": [str(output)],
            "makespan_us": subject.makespan_us,
            "replay_us": lowered.replay.makespan_us,
            "runtime": values["runtime"],
            "protocol": str(program.protocol),
            "threadblocks": program.num_threadblocks,
            "threadblock_steps": program.num_steps,
            "channels": program.num_channels,
            "in_place": program.in_place,
            "out_of_place": program.out_of_place,
            "min_bytes": program.min_bytes,
            "max_bytes": program.max_bytes,
        })  # fmt: skip
        return
    click.echo(
        f"wrote {output}: {program.num_threadblocks} threadblocks a GPU, {program.num_channels} channels, "
        f"{program.protocol}, replayed {lowered.replay.makespan_us:.6g} (schedule {subject.makespan_us:.6g})",
        err=True,
    )

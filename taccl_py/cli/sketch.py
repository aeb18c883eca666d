"""``taccl sketch``: sketches by name."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import click

from taccl_py.answer import Ended
from taccl_py.cli.options import KIND, OUTPUT, SIZE, budget_options, budgeted, echo_json, json_option
from taccl_py.cli.progress import watched
from taccl_py.jsonio import write_atomically
from taccl_py.report.tables import plain_table, print_table, suggestion_record, suggestion_table
from taccl_py.sketch.catalog import list_sketches, load_sketch
from taccl_py.sketch.files import sketch_text, sketch_to_json
from taccl_py.synthesis.engine import Options
from taccl_py.units import format_ranks

# Seconds of effort normal.
_SECONDS = 60.0


@click.group(short_help="List, show, validate and suggest sketches.")
def sketch() -> None:
    """List, show, validate and suggest sketches.

    \b
    Examples:
      taccl sketch list
      taccl sketch show ndv2-sk-1
      taccl sketch validate my-sketch.json --topology ndv2 --nodes 2
      taccl sketch suggest ndv2 allgather --nodes 2 --size 16MB -o my-sketch.json
    """


@sketch.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """List the shipped sketches and what each is for.

    Example: taccl sketch list
    """
    sketches = list_sketches()
    if as_json:
        keys = ("name", "topology", "nodes", "purpose", "chunks_per_rank")
        echo_json({"sketches": [{key: sketch_to_json(s)[key] for key in keys} for s in sketches]})
        return
    rows = [(s.name, s.topology, format_ranks(s.nodes) or "any", str(s.chunks_per_rank), s.purpose) for s in sketches]
    print_table(plain_table("Sketches", ("name", "topology", "nodes", "chunks", "what it is for"), rows))


@sketch.command("show")
@click.argument("name")
def show_command(name: str) -> None:
    """Print a sketch, ours or TACCL's, in our format.

    Example: taccl sketch show ndv2-sk-1
    """
    click.echo(sketch_text(load_sketch(name)), nl=False)


@sketch.command("validate")
@click.argument("name")
@click.option("--topology", default="", help="Topology to test it against; default: the one that it names.")
@click.option(
    "--nodes", type=click.IntRange(1), default=None, help="Number of nodes; default: every count that it names."
)
@json_option
def validate_command(name: str, topology: str, nodes: int | None, as_json: bool) -> None:
    """Test a sketch against itself and its topology, symmetry and paths included.

    Exit code 3 if it leaves some ranks no path in any collective; a note if it serves only some roots of rooted ones.

    Example: taccl sketch validate ndv2-sk-1 --nodes 2
    """
    from taccl_py.errors import InputError
    from taccl_py.sketch.machine import load_machine
    from taccl_py.synthesis.restrict import require_some_paths
    from taccl_py.topology.automorphism import image_of_links

    subject = load_sketch(name, topology)
    machine = topology or subject.topology
    if not machine:
        raise InputError("names no topology; add --topology", path=subject.source, field="topology")
    named: list[int | None] = list(subject.nodes)
    counts = [nodes] if nodes is not None else named or [None]
    machines: list[str] = []
    for count in counts:
        loaded = load_machine(machine, name, count)
        for field, image in subject.generators(loaded.topology):
            mapped = image_of_links(loaded.topology, image)
            if isinstance(mapped, str):
                raise InputError(
                    f"is not a symmetry of {loaded.topology.name}: {mapped}; remove it or correct it",
                    path=subject.source,
                    field=subject.word(field),
                )
        if only := require_some_paths(loaded.topology, loaded.sketch or subject):
            click.echo(f"note: on {loaded.topology.name} it serves only rooted collectives: {only}", err=True)
        machines.append(loaded.topology.name)
    if as_json:
        echo_json({"sketch": subject.name, "good": True, "topologies": machines})
        return
    for name_of_machine in machines:
        click.echo(f"{subject.name}: good on {name_of_machine}")


@sketch.command("suggest")
@click.argument("topology")
@click.argument("collective", type=KIND)
@click.option("--nodes", type=click.IntRange(1), default=None, help="Number of nodes of a shipped machine.")
@click.option("--size", type=SIZE, default=None, help="Size as nccl-tests counts it. Default 1MB.")
@click.option("--chunks", type=click.IntRange(1), default=None, help="Chunks per rank; default: searched.")
@click.option("--root", type=click.IntRange(0), default=0, help="Root of Broadcast, Reduce, Gather, Scatter.")
@budget_options("60 s at most")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True, help="Random seed.")
@click.option("-o", "--output", type=OUTPUT, default=None, help="File for the best sketch.")
@json_option
def suggest_command(as_json: bool, output: Path | None, **values: Any) -> None:  # fmt: skip
    """Try sketches for COLLECTIVE on TOPOLOGY and write the best one, for a person to read and edit.

    Logical links, who talks between nodes, relays, symmetry and chunking are searched; the predicted time of each is printed.

    Example: taccl sketch suggest ndv2 allgather --nodes 2 --size 16MB -o my-sketch.json
    """
    from taccl_py.pipeline.resolve import Request
    from taccl_py.pipeline.search import suggest

    stop = threading.Event()
    request = Request(
        topology=values["topology"],
        kind=values["collective"],
        nodes=values["nodes"],
        size_bytes=values["size"],
        chunks_per_rank=values["chunks"],
        root=values["root"],
        options=Options(limits=budgeted(values, _SECONDS, stop)),
    )
    with watched(stop) as events:
        suggestions = suggest(request, events)
    best, ended = suggestions[0].sketch, str(Ended.of(request.options.limits, is_proved=False))
    if output is not None:
        write_atomically(output, sketch_text(best))
    if as_json:
        echo_json(
            {
                "suggestions": [suggestion_record(s) for s in suggestions],
                "file": str(output) if output else None,
                "ended": ended,
            }
        )
        return
    table = suggestion_table(suggestions)
    table.caption = f"search ended: {ended}"
    print_table(table)
    click.echo(
        f"wrote {output}" if output is not None else sketch_text(best), nl=output is not None, err=output is not None
    )

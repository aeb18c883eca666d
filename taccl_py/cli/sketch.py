"""``taccl sketch``: sketches by name."""

from __future__ import annotations

import click

from taccl_py.cli.options import echo_json, json_option
from taccl_py.pipeline import load_machine
from taccl_py.report.tables import plain_table, print_table
from taccl_py.sketch.catalog import list_sketches, load_sketch
from taccl_py.sketch.files import sketch_text, sketch_to_json
from taccl_py.units import format_ranks


@click.group(short_help="List, show and validate sketches.")
def sketch() -> None:
    """List, show and validate sketches.

    \b
    Examples:
      taccl sketch list
      taccl sketch show ndv2-sk-1
      taccl sketch validate my-sketch.json --topology ndv2 --nodes 2
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
def validate_command(name: str, topology: str, nodes: int | None) -> None:
    """Test a sketch against itself and its topology, symmetry included.

    Example: taccl sketch validate ndv2-sk-1 --nodes 2
    """
    from taccl_py.errors import InputError
    from taccl_py.synthesis.symmetry import image_of_links

    subject = load_sketch(name, topology)
    machine = topology or subject.topology
    if not machine:
        raise InputError("names no topology; add --topology", path=subject.source, field="topology")
    named: list[int | None] = list(subject.nodes)
    counts = [nodes] if nodes is not None else named or [None]
    for count in counts:
        formula = ":" in machine
        loaded = load_machine(machine, name, None if formula else count)
        for field, image in subject.generators(loaded.topology):
            mapped = image_of_links(loaded.topology, image)
            if isinstance(mapped, str):
                raise InputError(
                    f"is not a symmetry of {loaded.topology.name}: {mapped}; remove it or correct it",
                    path=subject.source,
                    field=subject.word(field),
                )
        click.echo(f"{subject.name}: good on {loaded.topology.name}")

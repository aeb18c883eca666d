"""``taccl topo``: topologies by name, and from what other tools know."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taccl_py.cli.options import (
    OUTPUT,
    SIZE,
    FiniteRange,
    echo_json,
    gpu_option,
    inside_option,
    json_option,
    near_nics_option,
    refuse_own_input,
)
from taccl_py.discover.formats import DumpFormat
from taccl_py.errors import InputError, InvalidArtifact, Violation
from taccl_py.jsonio import canonical_json, read_text, write_atomically
from taccl_py.report.tables import plain_table, print_table
from taccl_py.topology.catalog import list_topologies, name_of_file
from taccl_py.topology.difference import TOLERANCE
from taccl_py.topology.files import topology_to_json
from taccl_py.topology.machines import SHAPES
from taccl_py.units import MAX_RANKS, format_count, format_ranks

if TYPE_CHECKING:
    from taccl_py.topology.model import Topology


_tolerance_option = click.option(
    "--tolerance",
    type=FiniteRange(0),
    default=TOLERANCE,
    show_default=True,
    help="Relative difference of alpha, beta or latency up to which two figures are the same.",
)


@click.group(short_help="List, show, import, fit and compare topologies.")
def topo() -> None:
    """List, show, import, fit and compare topologies.

    \b
    Examples:
      taccl topo list
      taccl topo show ndv2 --nodes 2
      taccl topo show torus:4x4 --json > torus.json
      taccl topo import nccl-topo.xml -o mine.json
    """


@topo.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """List the shipped machines and the formulas.

    Example: taccl topo list
    """
    entries = list_topologies()
    if as_json:
        shipped = [
            {
                "name": e.name,
                "description": e.description,
                "ranks_per_node": e.ranks_per_node,
                "multi_node": e.multi_node,
            }
            for e in entries
        ]
        formulas = [{"name": s.name, "example": s.example, "description": s.description} for s in SHAPES]
        echo_json({"topologies": shipped, "formulas": formulas})
        return
    rows = [(e.name, str(e.ranks_per_node), "any" if e.multi_node else "1", e.description) for e in entries]
    rows += [(shape.example, "", "1", shape.description) for shape in SHAPES]
    print_table(plain_table("Topologies", ("name", "ranks a node", "nodes", "what it is"), rows))


@topo.command("show")
@click.argument("name")
@click.option("--nodes", type=click.IntRange(1), default=None, help="Number of nodes.")
@click.option("--sketch", default="", help="Sketch that completes a TACCL profile.")
@click.option("-o", "--output", type=OUTPUT, default=None, help="Write the expanded form to a file.")
@json_option
def show_command(name: str, nodes: int | None, sketch: str, output: Path | None, as_json: bool) -> None:
    """Show links and ports of a topology: a shipped name or its GPU (h100), a formula, or a file of ours or of TACCL.

    Example: taccl topo show ndv2 --nodes 2
    """
    from taccl_py.sketch.machine import load_machine

    topology = load_machine(name, sketch, nodes).topology
    if output is not None:
        write_atomically(output, canonical_json(topology_to_json(topology)))
        click.echo(f"wrote {output}", err=True)
    if as_json:
        echo_json(topology_to_json(topology))
    elif output is None:
        _show(topology)


@topo.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--nodes", type=click.IntRange(1), default=None, help="How many servers like that of the one file there are."
)
@click.option(
    "--format",
    "given",
    type=click.Choice([str(form) for form in DumpFormat]),
    default=None,
    help="Format of the files; default: by what stands in them.",
)
@gpu_option(
    "For the texts of nvidia-smi, rocm-smi and amd-smi, which name no rates; auto guesses by the links and says so."
)
@inside_option("Default: as the files say, unknown where they do not (networkx, TE-CCL).")
@near_nics_option("Default: as dumps of NCCL say, else no.")
@click.option("--name", default="", help="Name of the topology; default: that of the first file.")
@click.option("-o", "--output", type=OUTPUT, default=None, help="Topology file to write.")
@json_option
def import_command(files: tuple[Path, ...], output: Path | None, as_json: bool, **values: Any) -> None:  # fmt: skip
    """Make a topology of what other tools know of a machine; nothing is measured.

    FILES are one dump for each server, or one for all: a topology dump of NCCL or RCCL (NCCL_TOPO_DUMP_FILE), a graph dump
    (NCCL_GRAPH_DUMP_FILE; only the links that its channels use), the output of nvidia-smi topo -m, rocm-smi --showtopo or
    amd-smi topology, a networkx graph as node-link JSON (with switches), an input of TE-CCL, a topology that SCCL saved, a
    configuration of SyCCL, or a TACCL profile.

    Switches, NICs and PCIe become ports. Rates are those that NCCL and RCCL count with; alphas are stated defaults until they
    are measured, and the topology's source says so. Dumps of several hosts of a rack whose GPUs one NVLink switch joins are one
    node. Files that NCCL reads (NCCL_TOPO_FILE) are no dumps and are refused. Without --nodes, one server becomes a node that --nodes of other
    commands multiplies.

    \b
    Examples:
      taccl topo import nccl-topo.xml -o mine.json
      taccl topo import topo-m.txt --gpu h100 --nodes 4 -o cluster.json
    """
    from taccl_py.discover.importer import import_machine
    from taccl_py.topology.model import Medium

    refuse_own_input(output, *files)
    given = DumpFormat(values["given"]) if values["given"] else None
    gpu = values["gpu"].name if values["gpu"] is not None else ""
    inside = Medium(values["inside"]) if values["inside"] else None
    found = import_machine(
        files, name=values["name"], nodes=values["nodes"], given=given, gpu=gpu, inside=inside,
        near_nics=values["near_nics"],
    )  # fmt: skip
    for note in found.notes:
        click.echo(f"note: {note}", err=True)
    if output is not None:
        write_atomically(output, canonical_json(found.to_json()))
        click.echo(f"wrote {output}", err=True)
    if as_json:
        echo_json(found.to_json())
    elif output is None:
        _show(found.topology)


@topo.command("fit")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--by",
    type=click.Choice(["pair", "class"]),
    default="pair",
    show_default=True,
    help="A fit for each pair that was measured, or one for all pairs inside a node and one for all between nodes.",
)
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True, help="Number of nodes, all of one size.")
@click.option(
    "--ranks", type=click.IntRange(2, MAX_RANKS), default=None, help="Number of ranks; default: as the samples name."
)
@click.option(
    "--size", type=SIZE, default=None, help="Message size whose line counts where it breaks; default: the largest."
)
@inside_option("Default: unknown.")
@near_nics_option("Default: no.")
@click.option("--name", default="", help="Name of the topology; default: that of the first file.")
@click.option("-o", "--output", type=OUTPUT, default=None, help="Topology file to write.")
@json_option
def fit_command(files: tuple[Path, ...], output: Path | None, as_json: bool, **values: Any) -> None:  # fmt: skip
    """Fit alpha and beta of links to measured times, with residual, confidence, outliers and the sizes where the line breaks.

    FILES are CSV with the columns src, dst, size_bytes, time_us and perhaps serial (messages one after the other), joined (at
    once), together (label of what ran at the same time, which tells the ports that links share); or what osu_latency, osu_bw,
    nccl-tests' sendrecv_perf, CUDA's p2pBandwidthLatencyTest, nvbandwidth, TransferBench p2p, ib_write_bw or ib_write_lat
    printed; or records of taccl profile (--record). All of them are one set of samples. Where they are bandwidths of one size,
    alpha is NCCL's constant. Times of collectives are no samples of links: they are for taccl compare and taccl runtime fit.

    \b
    Examples:
      taccl topo fit samples.csv -o mine.json
      taccl topo fit osu_latency.txt osu_bw.txt --by class --ranks 16 --nodes 16 -o mine.json
      taccl topo fit p2pBandwidthLatencyTest.txt --inside pcie -o mine.json
    """
    from taccl_py.measure.assemble import ASSUMED, Grouping, fit_topology
    from taccl_py.measure.foreign import read_any
    from taccl_py.report.fits import fit_warnings, fits_record, fits_table
    from taccl_py.topology.model import Medium

    refuse_own_input(output, *files)
    samples = [one for path in files for one in read_any(read_text(path), str(path))]
    try:
        fitted = fit_topology(
            samples, values["name"] or name_of_file(files[0]), nodes=values["nodes"], ranks=values["ranks"],
            grouping=Grouping(values["by"]), size_bytes=values["size"],
            inside=Medium(values["inside"] or Medium.UNKNOWN),
        )  # fmt: skip
        fitted = replace(fitted, topology=replace(fitted.topology, near_nics=values["near_nics"]))
    except InputError as error:
        if error.field in ("ranks", "nodes"):
            raise InputError(error.what, path="command line", field=f"--{error.field}") from None
        raise InputError(error.what, path=", ".join(map(str, files))) from None
    if any(group.alpha_assumed for group in fitted.groups):
        click.echo(f"note: {ASSUMED}", err=True)
    for warning in fit_warnings(fitted, values["size"]):
        click.echo(f"warning: {warning}", err=True)
    if output is not None:
        write_atomically(output, canonical_json(topology_to_json(fitted.topology)))
        click.echo(f"wrote {output}", err=True)
    if as_json:
        echo_json(fits_record(fitted))
    else:
        print_table(fits_table(fitted))
        _show_ports(fitted.topology)


@topo.command("diff")
@click.argument("before")
@click.argument("after")
@click.option("--nodes", type=click.IntRange(1), default=None, help="Number of nodes of both.")
@_tolerance_option
@click.option("--check", is_flag=True, help="End with exit code 4 if AFTER is worse somewhere.")
@json_option
def diff_command(before: str, after: str, as_json: bool, **values: Any) -> None:
    """Tell what differs between two topologies of the same ranks: links and ports that came, went or cost something else.

    BEFORE and AFTER are names, formulas or files. Ports are compared by the links that share them, whatever their names. Worse
    is a link that is missing or slower, and a port that is new or slower.

    Example: taccl topo diff dgx1 dgx1 --tolerance 0.1 --check
    """
    from taccl_py.report.difference import difference_record, difference_table
    from taccl_py.sketch.machine import load_machine
    from taccl_py.topology.difference import differences

    recorded, present = (load_machine(name, "", values["nodes"]).topology for name in (before, after))
    try:
        found = differences(recorded, present, values["tolerance"])
    except InputError as error:
        raise InputError(error.what, path=after) from None
    record = difference_record(found, values["tolerance"])
    if as_json:
        echo_json(record)
    elif found:
        print_table(difference_table(found, f"{len(found)} differences, {record['worse']} for the worse"))
    else:
        click.echo(f"{after} is as {before}, within {values['tolerance']:.3g}")
    if values["check"] and record["worse"]:
        first = next(one for one in found if one.is_worse)
        what = f"{first.what} is {first.change}; repair it, or record the machine again"
        raise InvalidArtifact(after, [Violation("", "drift", what)] * record["worse"])


@topo.command("align")
@click.argument("topology")
@click.option("--nodes", type=click.IntRange(2), default=None, help="Number of nodes.")
@_tolerance_option
@click.option(
    "-o", "--output", type=OUTPUT, default=None, help="Topology file to write, with the ranks in the new order."
)
@json_option
def align_command(topology: str, output: Path | None, as_json: bool, **values: Any) -> None:
    """Order the ranks of every node so that all nodes look the same, as where virtual machines number their GPUs differently.

    TOPOLOGY is a name, formula or file; figures that are the same within the tolerance are made even. One algorithm then fits all nodes, and the search for it uses that they are alike. Start
    the processes of each node with the CUDA_VISIBLE_DEVICES (HIP_VISIBLE_DEVICES) that is printed for it.

    Example: taccl topo align ndv2 --nodes 2
    """
    from taccl_py.sketch.machine import load_machine
    from taccl_py.topology.alignment import align_nodes

    try:
        found = align_nodes(load_machine(topology, "", values["nodes"]).topology, values["tolerance"])
    except InputError as error:
        raise error if error.path else InputError(error.what, path=topology) from None
    if output is not None:
        write_atomically(output, canonical_json(topology_to_json(found.topology)))
        click.echo(f"wrote {output}", err=True)
    if as_json:
        echo_json({"changes": found.changes, "orders": [list(order) for order in found.orders]})
        return
    rows = [(f"node {node}", ",".join(map(str, order))) for node, order in enumerate(found.orders)]
    print_table(plain_table("Nodes look the same with these devices", ("node", "CUDA_VISIBLE_DEVICES"), rows))
    if not found.changes:
        click.echo("which is how they are numbered")


def _show(topology: Topology) -> None:
    from taccl_py.topology.model import Medium

    joined = {Medium.PCIE: ", PCIe inside", Medium.NETWORK: ", a network inside"}.get(topology.inside, "")
    click.echo(f"{topology.name}: {topology.num_ranks} ranks in {format_count(topology.num_nodes, 'node')}{joined}")
    click.echo(f"source: {topology.source}")
    if topology.inside is Medium.UNKNOWN and topology.num_nodes < topology.num_ranks:
        click.echo(
            "inside: unknown, so protocol LL128 is not chosen; the field inside of the file says what joins the ranks"
        )
    elif topology.inside is Medium.NVLINK and not topology.keeps_stores_whole:
        click.echo(
            "NICs: not known to be near (field near_nics of the file), so protocol LL128 is not chosen between nodes"
        )
    kinds: dict[tuple[bool, float, float, float], list[int]] = {}
    for index, link in enumerate(topology.links):
        inside = topology.is_inside(link)
        kinds.setdefault((not inside, link.alpha_us, link.beta_us_per_mb, link.latency_us), []).append(index)
    rows = []
    for (between, alpha_us, beta_us_per_mb, latency_us), links in sorted(kinds.items()):
        degree = Counter(topology.links[i].src for i in links)
        first = topology.links[links[0]]
        rows.append((
            "between nodes" if between else "inside a node", str(len(links)), f"{alpha_us:g}", f"{beta_us_per_mb:g}",
            f"{1000 / beta_us_per_mb:.4g}" if beta_us_per_mb > 0 else "", f"{latency_us:g}", format_ranks(sorted(degree))[:40],
            f"{first.src}->{first.dst}",
        ))  # fmt: skip
    columns = ("links", "number", "alpha us", "beta us/MB", "GB/s", "latency us", "from ranks", "for example")
    print_table(plain_table("Links", columns, rows))
    _show_ports(topology)


def _show_ports(topology: Topology) -> None:
    from taccl_py.report.ports import ports_table

    if topology.ports:
        print_table(ports_table(topology))

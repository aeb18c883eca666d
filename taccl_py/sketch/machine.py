"""Machines: topologies with the sketches that go with them, by name or file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from taccl_py.errors import InputError
from taccl_py.jsonio import read_json
from taccl_py.sketch.catalog import load_sketch
from taccl_py.sketch.model import Sketch, machine_name
from taccl_py.topology.catalog import is_taccl_profile, load_topology, topology_file
from taccl_py.topology.model import Topology
from taccl_py.topology.taccl_profile import profile_topology, read_profile


@dataclass(frozen=True)
class SketchedMachine:
    """A topology with the sketch that goes with it."""

    topology: Topology
    sketch: Sketch | None


def load_machine(topology: str | Topology, sketch: str = "", nodes: int | None = None) -> SketchedMachine:
    """Topology and sketch by name or file; a TACCL profile takes nodes, connections and switches from its sketch.

    A topology that is given itself is taken as it is.

    Raises
    ------
    InputError
        If one of them is wrong or they contradict each other.
    """
    if isinstance(topology, Topology):
        return _given_machine(topology, sketch, nodes)
    hints = load_sketch(sketch, topology) if sketch else None
    path = topology_file(topology)
    if path is not None and is_taccl_profile(read_json(path)):
        return _profile_machine(path, hints, nodes)
    if (
        nodes is None
        and hints is not None
        and hints.nodes
        and 1 not in hints.nodes
        and machine_name(topology) == topology
    ):
        nodes = min(hints.nodes)
    machine = load_topology(topology, nodes)
    if hints is not None:
        hints.check_fits(machine)
    return SketchedMachine(machine, hints)


def _given_machine(topology: Topology, sketch: str, nodes: int | None) -> SketchedMachine:
    if nodes is not None:
        raise InputError("the machine is given with all its nodes; leave the number of nodes out", field="nodes")
    hints = load_sketch(sketch, topology.name) if sketch else None
    if hints is not None:
        if topology.measured_chunk_bytes is not None:  # made of a TACCL profile, which its sketch need not name
            hints = replace(hints, topology="")
        hints.check_fits(topology)
    return SketchedMachine(topology, hints)


def _profile_machine(path: Path, sketch: Sketch | None, nodes: int | None) -> SketchedMachine:
    if sketch is None:
        raise InputError(
            "is a TACCL profile, which needs a sketch for its nodes and connections; add --sketch", path=str(path)
        )
    if nodes is None and len(sketch.nodes) != 1:
        raise InputError("the sketch leaves the number of nodes open; add --nodes", path=str(path))
    count = nodes if nodes is not None else sketch.nodes[0]
    if sketch.nodes and count not in sketch.nodes:
        raise InputError(
            f"the sketch is for {sketch.nodes[0]} nodes; leave --nodes out",
            path=sketch.source,
            field=sketch.word("nodes"),
        )
    profile = read_profile(path)
    sketch.check_local_ranks(profile.num_ranks)
    local = range(profile.num_ranks)
    connections: Mapping[int, list[int]] = {}
    if count > 1:
        found = {u: [v for v in local if sketch.connected(u, v)] for u in local}
        connections = {u: receivers for u, receivers in found.items() if receivers}
    switches = [group.ranks for group in sketch.switches]
    topology = profile_topology(profile, nodes=count, connections=connections, switches=switches)
    sketch = replace(sketch, topology="")
    sketch.check_fits(topology)
    return SketchedMachine(topology, sketch)

"""Topologies by name: the ones that come with the program, formulas, files, and machines of several sorts of nodes.

The shipped files lie inside the package where it is installed from a wheel, and beside it in a checkout.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from taccl_py.errors import InputError
from taccl_py.spelling import near_names, question
from taccl_py.topology.files import is_taccl_profile, read_template, read_topology, require_connected
from taccl_py.topology.machines import SHAPES, formula_topology, formulas_of_gpu, is_formula
from taccl_py.topology.model import Topology
from taccl_py.topology.template import NodeTemplate, join_nodes
from taccl_py.units import MAX_RANKS

__all__ = [
    "TopologyEntry",
    "canonical_name",
    "data_dir",
    "is_taccl_profile",
    "list_topologies",
    "load_topology",
    "machine_names",
    "topology_file",
]

_COUNTED = re.compile(r"(.+)-x([0-9]{1,9})")
_JOINT = "+"  # between the nodes of a mixed machine


@dataclass(frozen=True, slots=True)
class TopologyEntry:
    """One shipped topology.

    Attributes
    ----------
    name
        Name for `load_topology`.
    description
        One sentence.
    ranks_per_node
        Ranks of one node.
    multi_node
        Whether it has NICs, so that more than one node can be asked for.
    """

    name: str
    description: str
    ranks_per_node: int
    multi_node: bool


def data_dir(kind: Literal["topologies", "sketches"]) -> Path:
    """Folder of the shipped files of one kind.

    Raises
    ------
    InputError
        If the installation is not complete.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_data" / kind, package.parent / kind):
        if folder.is_dir():
            return folder
    raise InputError(f"the {kind} that come with the program are missing; install it again", path=str(package))


def list_topologies() -> tuple[TopologyEntry, ...]:
    """Return the shipped topologies, in order of name.

    Raises
    ------
    InputError
        If a shipped file was damaged.
    """
    entries = []
    for name, path in _shipped().items():
        template = read_template(path)
        entries.append(TopologyEntry(name, template.description, template.num_ranks, bool(template.nics)))
    return tuple(entries)


def machine_names() -> tuple[str, ...]:
    """Return names that `load_topology` takes: the shipped ones, GPUs that exactly one of them has, and examples of formulas."""
    gpus = [gpu for gpu, names in _by_gpu().items() if len(names) == 1 and gpu not in _shipped()]
    return (*_shipped(), *sorted(gpus), *(shape.example for shape in SHAPES))


def topology_file(name_or_path: str) -> Path | None:
    """Return the file that a text means, or None where it is a name or a formula.

    A path ends in ``.json`` or holds a separator. Any other text means a file only if it is no name and no formula, so that
    nothing in the working directory hides a machine.
    """
    path = Path(name_or_path)
    if _is_mixed(name_or_path):
        return None
    if path.suffix == ".json" or path.name != name_or_path:
        return path
    if _shipped_machine(name_or_path) is not None or is_formula(name_or_path):
        return None
    return path if path.is_file() else None


def name_of_file(path: Path) -> str:
    """Name for a machine that is made of a file, from the file's own."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", path.name.split(".")[0]).strip("-")
    return name if name[:1].isalpha() else f"machine-{name}".strip("-")


def canonical_name(name_or_path: str) -> str:
    """Return the shipped name that a GPU's name stands for (``ndv4-x2`` for ``a100-x2``); any other text as it is.

    Raises
    ------
    InputError
        If several shipped machines have that GPU.
    """
    if topology_file(name_or_path) is not None:
        return name_or_path
    shipped = _shipped_machine(name_or_path)
    if shipped is None:
        return name_or_path
    return shipped.path.stem if shipped.nodes is None else f"{shipped.path.stem}-x{shipped.nodes}"


def load_topology(name_or_path: str, nodes: int | None = None) -> Topology:
    """Return the machine of a shipped name (``ndv2``, ``ndv2-x2``), a formula (``ring:8``), a file, or nodes of several (``h100-x2+a100-x2``).

    Parameters
    ----------
    name_or_path
        A shipped name, with or without ``-x`` and a number of nodes; a formula; a file (see `topology_file`); or several names and files of
        nodes with a plus between them.
    nodes
        Number of nodes, for machines that are described by their node (None: as the name says, else 1).

    Raises
    ------
    InputError
        If there is no such machine, if its file is wrong, or if it cannot have so many nodes.
    """
    path = topology_file(name_or_path)
    if path is not None:
        return read_topology(path, nodes)
    if _is_mixed(name_or_path):
        return _mixed(name_or_path, nodes)
    shipped = _shipped_machine(name_or_path)
    if shipped is not None:
        if shipped.nodes is not None and nodes not in (None, shipped.nodes):
            raise InputError(f"{name_or_path!r} and {nodes} nodes contradict each other; leave one of them out")
        return read_topology(shipped.path, nodes if shipped.nodes is None else shipped.nodes)
    if not is_formula(name_or_path):
        raise _unknown(name_or_path, list(_shipped()))
    if nodes not in (None, 1):
        raise InputError(
            f"{name_or_path!r} is a whole machine and is not multiplied; leave the number of nodes out, "
            "or write a topology file with a node, its nics and a network"
        )
    return formula_topology(name_or_path)


def _is_mixed(text: str) -> bool:
    """True if a text means nodes of several sorts; a file of that very name is a file, and a formula has no plus."""
    return _JOINT in text and not is_formula(text) and not Path(text).is_file()


def _mixed(text: str, nodes: int | None) -> Topology:
    """The machine of ``NODE[-xN]+NODE[-xN]...``, whose nodes are numbered in that order."""
    if nodes is not None:
        raise InputError(f"{text!r} says itself how many nodes there are; leave the number of nodes out")
    templates: list[NodeTemplate] = []
    names: list[str] = []
    for part in text.split(_JOINT):
        path, count = _node_file(part.strip(), text)
        templates += [read_template(path)] * count
        names.append(path.stem if count == 1 else f"{path.stem}-x{count}")
    machine = join_nodes(templates, _JOINT.join(names))
    try:
        require_connected(machine)
    except InputError as error:
        raise InputError(f"{text!r}: {error.what.partition(';')[0]}; NICs of one plane reach each other") from None
    return machine


def _node_file(part: str, text: str) -> tuple[Path, int]:
    """File with the node of a part of a mixed machine, and how many of them there are."""
    counted = _COUNTED.fullmatch(part)
    name, count = (counted.group(1), int(counted.group(2))) if counted else (part, 1)
    if not 1 <= count <= MAX_RANKS:
        raise InputError(f"{text!r}: found {count} nodes of {name!r}, 1 to {MAX_RANKS} are possible")
    shipped = _shipped_machine(name)
    if shipped is not None:
        return shipped.path, count
    path = Path(name)
    if path.suffix == ".json" or path.name != name:
        return path, count
    raise InputError(
        f"{text!r}: {name!r} is no node; write shipped machines or files in node form with a plus between them, as in h100-x2+a100-x2"
    )


@dataclass(frozen=True, slots=True)
class _Shipped:
    """File of a shipped machine, and the number of nodes that its name was given with, if any."""

    path: Path
    nodes: int | None


def _shipped_machine(name: str) -> _Shipped | None:
    shipped = _shipped()
    if name in shipped:
        return _Shipped(shipped[name], None)
    counted = _COUNTED.fullmatch(name)
    if counted and counted.group(1) in shipped:
        return _Shipped(shipped[counted.group(1)], int(counted.group(2)))
    of_gpu = _by_gpu().get(_gpu_of(name), ())
    if len(of_gpu) > 1:
        raise InputError(
            f"{name!r} is the GPU of several machines; name one of {', '.join(of_gpu)} ('taccl topo list' describes them)"
        )
    return _Shipped(shipped[of_gpu[0]], int(counted.group(2)) if counted else None) if of_gpu else None


def _gpu_of(name: str) -> str:
    """GPU that a text may mean: ``a100``, ``H100-x2`` and ``dgx-h100`` without the rest."""
    counted = _COUNTED.fullmatch(name)
    return (counted.group(1) if counted else name).lower().removeprefix("dgx-")


@cache
def _by_gpu() -> dict[str, tuple[str, ...]]:
    """Shipped machines by the GPU that their files name, in order of name."""
    found: dict[str, list[str]] = {}
    for name, path in _shipped().items():
        gpu = read_template(path).gpu
        if gpu:
            found.setdefault(gpu, []).append(name)
    return {gpu: tuple(names) for gpu, names in found.items()}


def _shipped() -> dict[str, Path]:
    return {path.stem: path for path in sorted(data_dir("topologies").glob("*.json"))}


def _unknown(name: str, shipped: list[str]) -> InputError:
    gpu = _gpu_of(name)
    machines = formulas_of_gpu(gpu)
    if not machines:
        examples = {shape.name: shape.example for shape in SHAPES}
        names = near_names(name, [*shipped, *examples, *_by_gpu()])
        machines = tuple(examples.get(word, word) for word in names)
    return InputError(
        f"{name!r} is not a topology; {question(machines)}'taccl topo list' shows the shipped ones ({', '.join(shipped)}), "
        f"formulas are such as {SHAPES[0].example}, a file ends in .json"
    )

"""From files of other tools to one machine: which format each is in, and how several servers become one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree.ElementTree import Element

from taccl_py.discover.formats import DumpFormat
from taccl_py.discover.gpus import GPU_MODELS
from taccl_py.discover.graphs import is_sccl, is_teccl, read_sccl, read_teccl
from taccl_py.discover.node_link import read_node_link
from taccl_py.discover.rates import ALPHA_SOURCE
from taccl_py.discover.server import Box, node_of_box
from taccl_py.discover.smi_text import is_amd_text, read_amd_matrix, read_nvidia_matrix
from taccl_py.discover.syccl import is_syccl, read_syccl
from taccl_py.discover.xml_dump import are_trays, is_tray, parse_xml_root, read_graph_dump, read_topology_dumps
from taccl_py.errors import InputError
from taccl_py.jsonio import parse_json, read_text
from taccl_py.topology.catalog import name_of_file
from taccl_py.topology.files import is_taccl_profile, require_connected, template_to_json, topology_to_json
from taccl_py.topology.model import Medium, Topology
from taccl_py.topology.taccl_profile import profile_topology, read_profile
from taccl_py.topology.template import NodeTemplate, join_nodes

_SERVERS = {
    DumpFormat.NCCL: "topology dump of NCCL or RCCL (bandwidths as they count them)",
    DumpFormat.NCCL_GRAPH: "graph dump of NCCL (only what its channels use)",
    DumpFormat.NVIDIA_SMI: "matrix of nvidia-smi topo -m (rates as NCCL counts them)",
    DumpFormat.AMD_SMI: "matrix of rocm-smi or amd-smi (rates as RCCL counts them, where it states none)",
}
_AMD = {DumpFormat.NVIDIA_SMI: False, DumpFormat.AMD_SMI: True}
_SCCL_GPU = "v100"
_SCCL_UNIT = (
    f"SCCL states chunks of a round and no rates: one is counted as an NVLink of a {_SCCL_GPU}, "
    f"{GPU_MODELS[_SCCL_GPU].link_gbps:g} GB/s; name another GPU with --gpu"
)
_TRAYS = "the files are of trays of one rack, whose GPUs are taken to be on one NVLink switch; import files of other racks apart"
_APART = (
    "the dump is of one tray of a rack, and --nodes joins trays by their NICs; import the dumps of all trays of the rack, or one of a "
    "job on all of them, to have their GPUs on one NVLink switch"
)


@dataclass(frozen=True)
class Imported:
    """Machine that files describe.

    Attributes
    ----------
    topology
        The whole machine.
    template
        Its node, if it is made of one server as often as wanted and the number of servers was left open.
    formats
        Format of each file.
    notes
        Guesses, a sentence for each, for the user to correct.
    """

    topology: Topology
    template: NodeTemplate | None
    formats: tuple[DumpFormat, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> object:
        """The node form where the number of servers is open, else the expanded form."""
        return topology_to_json(self.topology) if self.template is None else template_to_json(self.template)


def recognise(text: str, path: str) -> DumpFormat:
    """Format of a text, by what stands in it.

    Raises
    ------
    InputError
        If it is none of them.
    """
    start = text.lstrip("\ufeff \t\r\n")[:1]
    if start == "<":
        # A comment or a declaration may come first.
        root = re.search(r"<([A-Za-z]\w*)", text)
        word = root.group(1) if root else ""
        if word in ("system", "graphs"):
            return DumpFormat.NCCL if word == "system" else DumpFormat.NCCL_GRAPH
        raise InputError(
            f"is XML with the element {word[:40]!r}, where system (a topology dump) or graphs (a graph dump) is needed",
            path=path,
        )
    if start == "{":
        return _recognise_json(text, path)
    if is_amd_text(text):
        return DumpFormat.AMD_SMI
    if re.search(r"\bGPU0\b", text):
        return DumpFormat.NVIDIA_SMI
    raise InputError(f"is in no known format; name it with --format ({', '.join(DumpFormat)})", path=path)


def _recognise_json(text: str, path: str) -> DumpFormat:
    value = parse_json(text, path)
    if is_teccl(value):
        return DumpFormat.TECCL
    if is_sccl(value):
        return DumpFormat.SCCL
    if is_syccl(value):
        return DumpFormat.SYCCL
    if is_taccl_profile(value):
        return DumpFormat.TACCL
    if "nodes" in value and ("links" in value or "edges" in value):
        return DumpFormat.NETWORKX
    if value.get("format") == "taccl-topology":
        raise InputError("is a topology of this program already; use it as it is", path=path)
    raise InputError(
        "is JSON that is neither a networkx graph (nodes and links), nor of TE-CCL (TopologyParams or capacity), nor of SCCL "
        "(sccl_type) or SyCCL (hosts, topo and link_spec), nor a TACCL profile (gpus_per_node); correct it or name another file",
        path=path,
    )


def import_machine(
    paths: Sequence[Path],
    *,
    name: str = "",
    nodes: int | None = None,
    given: DumpFormat | None = None,
    gpu: str = "",
    inside: Medium | None = None,
    near_nics: bool = False,
) -> Imported:
    """Return the machine that files of other tools describe.

    Parameters
    ----------
    paths
        One file for each server, or one for all.
    name
        Name of the machine; empty: that of the first file.
    nodes
        How many servers like that of a single file there are; None leaves it open.
    given
        Format of the files; None: by what stands in each.
    gpu
        GPU model (`taccl_py.discover.gpus.GPU_MODELS`), for texts that name no rates.
    inside
        Medium that joins the GPUs of a server; None: as the files say, unknown where they do not.
    near_nics
        True if NICs write into the memory of GPUs over PCIe switches alone, whatever the files say.

    Raises
    ------
    InputError
        If a file is wrong or in no known format, or files and options contradict each other.
    """
    if not paths:
        raise InputError("no file is named; name one for each server, or one for all")
    name = name or name_of_file(paths[0])
    texts = [read_text(path) for path in paths]
    formats = tuple(given or recognise(text, str(path)) for text, path in zip(texts, paths, strict=True))
    if nodes is not None and len(paths) > 1:
        raise InputError(
            f"{len(paths)} files are {len(paths)} servers; leave it out, or name one file",
            path="command line",
            field="--nodes",
        )
    whole = [path for path, form in zip(paths, formats, strict=True) if form not in _SERVERS]
    if whole and len(whole) == len(paths):
        topology = _whole(texts[0], paths, formats[0], name, nodes, gpu)
        topology = replace(
            topology, inside=inside or topology.inside, gpu=gpu, near_nics=near_nics or topology.near_nics
        )
        return Imported(topology, None, formats, (_SCCL_UNIT,) if formats[0] is DumpFormat.SCCL and not gpu else ())
    if whole:
        raise InputError("is a whole machine, the other files are servers; import it alone", path=str(whole[0]))
    boxes = _read_boxes(texts, paths, formats, gpu)
    servers = [_server(box, path, form, name, gpu) for box, path, form in boxes]
    servers = [
        replace(server, inside=inside or server.inside, near_nics=near_nics or server.near_nics) for server in servers
    ]
    notes = [box.guess for box, _, _ in boxes if box.guess] + [_TRAYS] * (len(boxes) < len(paths))
    if (nodes or 1) > 1 and formats[0] is DumpFormat.NCCL and is_tray(_root(texts[0], str(paths[0]), "system")):
        notes.append(_APART)
    several = servers if len(boxes) > 1 else servers * (nodes or 1)
    try:
        machine = join_nodes(several, name)
        require_connected(machine)
    except InputError as error:
        raise InputError(error.what, path=str(paths[0])) from None
    template = servers[0] if len(several) == 1 and nodes is None else None
    return Imported(machine, template, formats, tuple(dict.fromkeys(notes)))


def _read_boxes(
    texts: Sequence[str], paths: Sequence[Path], formats: Sequence[DumpFormat], gpu: str
) -> list[tuple[Box, Path, DumpFormat]]:
    """A server for each file, or one of all where they are trays of a rack."""
    if len(paths) > 1 and set(formats) == {DumpFormat.NCCL}:
        roots = [_root(text, str(path), "system") for text, path in zip(texts, paths, strict=True)]
        if are_trays(roots):
            return [(read_topology_dumps(roots, [str(path) for path in paths]), paths[0], DumpFormat.NCCL)]
    return [
        (_read_box(text, str(path), form, gpu), path, form)
        for text, path, form in zip(texts, paths, formats, strict=True)
    ]


def _server(box: Box, path: Path, form: DumpFormat, name: str, gpu: str) -> NodeTemplate:
    if box.model:
        _require_maker(gpu, GPU_MODELS[box.model].is_amd, form, str(path))
    box.model = gpu or box.model
    named = f"; the GPU was named: {gpu}" if gpu else f"; {box.guess}" if box.guess else ""
    source = f"{_SERVERS[form]}{named}; {ALPHA_SOURCE}"
    try:
        return node_of_box(box, name, f"{len(box.gpus)} GPUs, imported", source)
    except InputError as error:
        raise InputError(error.what, path=str(path)) from None


def _read_box(text: str, path: str, form: DumpFormat, gpu: str) -> Box:
    if form in _AMD:
        _require_maker(gpu, _AMD[form], form, path)
    try:
        if form is DumpFormat.NCCL:
            return read_topology_dumps([_root(text, path, "system")], [path])
        if form is DumpFormat.NCCL_GRAPH:
            return read_graph_dump(_root(text, path, "graphs"), path)
        return (read_nvidia_matrix if form is DumpFormat.NVIDIA_SMI else read_amd_matrix)(text, path, gpu)
    except InputError as error:
        if error.path is None:
            raise InputError(error.what, path=path) from None
        raise


def _require_maker(gpu: str, is_amd: bool, form: DumpFormat, path: str) -> None:
    """Refuse a GPU, if one is named, of another maker than the file's."""
    if gpu and GPU_MODELS[gpu].is_amd is not is_amd:
        wanted = ", ".join(model.name for model in GPU_MODELS.values() if model.is_amd is is_amd)
        what = (
            f"{gpu} is no GPU of the {_SERVERS[form].split(' (')[0]} in {path}; name one of {wanted}, or leave it out"
        )
        raise InputError(what, path="command line", field="--gpu")


def _root(text: str, path: str, word: str) -> Element:
    root = parse_xml_root(text, path)
    if root.tag != word:
        raise InputError(f"has the element {root.tag[:40]!r} where {word} is needed; name a dump", path=path)
    return root


def _whole(text: str, paths: Sequence[Path], form: DumpFormat, name: str, nodes: int | None, gpu: str) -> Topology:
    path = str(paths[0])
    if len(paths) > 1:
        raise InputError(f"is a whole machine ({form}) and cannot be joined to others; name one file", path=path)
    if nodes not in (None, 1):
        raise InputError(
            f"{path} is a whole machine ({form}) and is not multiplied; leave it out",
            path="command line",
            field="--nodes",
        )
    if form is DumpFormat.NETWORKX:
        return read_node_link(parse_json(text, path), path, name)
    if form is DumpFormat.TECCL:
        return read_teccl(parse_json(text, path), path, name)
    if form is DumpFormat.SYCCL:
        return read_syccl(parse_json(text, path), path, name)
    if form is DumpFormat.SCCL:
        return read_sccl(parse_json(text, path), path, name, GPU_MODELS[gpu or _SCCL_GPU].link_gbps)
    return profile_topology(read_profile(paths[0]), nodes=1, connections={}, switches=[])

"""``NCCL_GRAPH_FILE``: the channels that NCCL takes instead of those that its own search would find.

Format: ``ncclTopoGetGraphFromXmlSub`` and ``ncclTopoGetXmlFromGraph`` in ``src/graph/search.cc`` of NCCL 2.30.7. Graph 0 has rings,
graph 1 trees: in one node a tree is a chain, its first GPU the root (``ncclTopoPreset`` in ``src/graph/connect.cc``). A graph that is not in
the file is searched for, with as many channels. GPUs are named by their rank, and rank r is taken to be CUDA device r.
"""

from __future__ import annotations

import math
from itertools import pairwise
from xml.etree import ElementTree

from taccl_py.errors import InputError, LoweringError
from taccl_py.lowering.nccl.channels import TARGET, NcclChannels, Ring, children_of
from taccl_py.topology.model import Medium

_RING, _TREE = 0, 1
_PATTERN = {_RING: 4, _TREE: 3}
# NCCL's word for what is between the GPUs: only NVL and nearer may use LL128.
_PATH_OF = {Medium.NVLINK: "NVL", Medium.PCIE: "PHB", Medium.UNKNOWN: "PHB", Medium.NETWORK: "SYS"}
_NO_PARENT = -1


def write_graph(channels: NcclChannels, inside: Medium) -> str:
    """Text of the file.

    Parameters
    ----------
    channels
        Rings, or trees that are chains.
    inside
        What joins the GPUs.

    Raises
    ------
    LoweringError
        If a rank of a tree has several children.
    """
    number = _RING if channels.rings else _TREE
    orders = channels.rings or tuple(map(_chain_of, channels.trees))
    same = int(len(set(orders)) == 1)
    lines = ['<graphs version="1">']
    lines.append(
        f'  <graph id="{number}" pattern="{_PATTERN[number]}" crossnic="0" nchannels="{len(orders)}" speedintra="{channels.gbps!r}" '
        f'speedinter="{channels.gbps!r}" latencyinter="0" typeintra="{_PATH_OF[inside]}" typeinter="PIX" samechannels="{same}">'
    )
    for order in orders:
        lines += ["    <channel>", *(f'      <gpu dev="{rank:#x}" rank="{rank}"/>' for rank in order), "    </channel>"]
    return "\n".join([*lines, "  </graph>", "</graphs>", ""])


def _chain_of(parents: Ring) -> Ring:
    """Ranks from the root to the end of a tree without branches."""
    children = children_of(parents)
    branch = next((rank for rank, below in enumerate(children) if len(below) > 1), None)
    if branch is not None:
        raise LoweringError(
            f"in one node NCCL's trees are chains, and rank {branch} has {len(children[branch])} children; RCCL takes them (--to rccl-channels)",
            runtime=TARGET,
            limit="trees",
        )
    order = [parents.index(_NO_PARENT)]
    while children[order[-1]]:
        order.append(children[order[-1]][0])
    return tuple(order)


def read_channels(text: str, path: str) -> NcclChannels:
    """Channels of a file that `write_graph` or NCCL wrote, of its rings if it has both.

    Raises
    ------
    InputError
        If it is no such file, has neither rings nor trees, or a channel is not all ranks, each once.
    """
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise InputError(f"is not XML: {error}; name a file for NCCL_GRAPH_FILE", path=path) from None
    graphs = {graph.get("id"): graph for graph in root.iter("graph") if graph.find("channel") is not None}
    if root.tag != "graphs" or not graphs.keys() & {"0", "1"}:
        raise InputError(
            "has no graph of rings (id 0) or trees (id 1) with channels; name a file for NCCL_GRAPH_FILE", path=path
        )
    number = "0" if "0" in graphs else "1"
    graph = graphs[number]
    orders = tuple(_order(channel, place, path) for place, channel in enumerate(graph.iter("channel")))
    if graph.get("nchannels") != str(len(orders)) or len(set(map(len, orders))) > 1:
        raise InputError(
            f"found channels of {', '.join(str(len(order)) for order in orders)} GPUs, nchannels is {graph.get('nchannels')}; dump the "
            "graphs again",
            path=path,
            field=f"graph {number}",
        )
    rate_gbps = _rate(graph.get("speedintra", ""), path, f"graph {number}.speedintra")
    if number == "0":
        return NcclChannels(tuple(order[order.index(0) :] + order[: order.index(0)] for order in orders), (), rate_gbps)
    return NcclChannels((), tuple(map(_parents, orders)), rate_gbps)


def _rate(text: str, path: str, field: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < math.inf:
        raise InputError(f"found {text!r}, a rate in GB/s is needed; dump the graphs again", path=path, field=field)
    return found


def _order(channel: ElementTree.Element, place: int, path: str) -> Ring:
    words = [gpu.get("rank") or gpu.get("dev", "").removeprefix("0x") for gpu in channel.iter("gpu")]
    base = 10 if all(gpu.get("rank") for gpu in channel.iter("gpu")) else 16
    try:
        order = tuple(int(word, base) for word in words)
    except ValueError:
        order = ()
    if sorted(order) != list(range(len(words))) or not words:
        raise InputError(
            f"passes the GPUs {', '.join(words) or 'none'}, where all ranks from 0 are needed, each once; dump the graphs again",
            path=path,
            field=f"channel {place}",
        )
    return order


def _parents(order: Ring) -> Ring:
    parents = [_NO_PARENT] * len(order)
    for parent, child in pairwise(order):
        parents[child] = parent
    return tuple(parents)

"""Graph dumps of NCCL, the file that ``NCCL_GRAPH_DUMP_FILE`` names: the channels that its search really found."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from xml.etree import ElementTree

from taccl_py.baselines.nccl_tuner import Graph
from taccl_py.errors import InputError
from taccl_py.jsonio import read_text

# Numbers of the graphs in a dump.
_RING, _TREE, _NVLS = 0, 1, 3


@dataclass(frozen=True, slots=True)
class Graphs:
    """Graphs of a dump; those of tree and NVLS are None where NCCL found none."""

    ring: Graph
    tree: Graph | None
    nvls: Graph | None


def read_graphs(path: Path) -> Graphs:
    """Read a dump.

    Raises
    ------
    InputError
        If it is no dump, or an attribute is wrong.
    """
    try:
        root = ElementTree.fromstring(read_text(path))
    except ElementTree.ParseError as error:
        raise InputError(f"is not XML: {error}; name a file that NCCL_GRAPH_DUMP_FILE wrote", path=str(path)) from None
    if root.tag != "graphs":
        raise InputError(
            f"has the element {root.tag!r} where graphs is needed; name a file that NCCL_GRAPH_DUMP_FILE wrote",
            path=str(path),
        )
    found: dict[int, Graph] = {}
    for element in root.iter("graph"):
        number = round(_number(element, "id", path))
        channels = round(_number(element, "nchannels", path))
        if channels > 0:
            found[number] = Graph(
                channels,
                _number(element, "speedintra", path),
                _number(element, "speedinter", path),
                _number(element, "latencyinter", path, default=0.0),
            )
    if _RING not in found:
        raise InputError("has no ring (a graph with id 0 and channels); dump the graphs again", path=str(path))
    return Graphs(found[_RING], found.get(_TREE), found.get(_NVLS))


def _number(element: ElementTree.Element, name: str, path: Path, default: float | None = None) -> float:
    text = element.get(name)
    if text is None and default is not None:
        return default
    try:
        value = float(text or "")
    except ValueError:
        _fail(element, name, path, text)
    if not math.isfinite(value) or value < 0:
        _fail(element, name, path, text)
    return value


def _fail(element: ElementTree.Element, name: str, path: Path, text: str | None) -> NoReturn:
    number = element.get("id", "?")
    raise InputError(
        f"found {text!r}, a number of at least 0 is needed", path=str(path), field=f"graph {number}.{name}"
    )

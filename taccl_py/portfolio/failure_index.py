"""Folders of schedules for every single failure of a machine: the index that says which one serves which failure.

``failures.json``, version 1, beside ``topology.json`` (the whole machine) and a folder for each failure::

    {
      "format": "taccl-failures",
      "version": 1,
      ...
      "failures": [
        {"failure": "node 1 ib3 lost", "sort": "nic", "class": 0, "folder": "node-1-ib3-lost",
         "without_link": [], "slow_link": [], "without_port": ["node 1 ib3 *"], "slow_port": [], ...},
        ...
      ],
      "missing": [{"failure": "node 2 ib0 lost", "sort": "nic", ..., "reason": "interrupted"}]
    }

What failed is said as on the command line. Other fields are for people, and in docs/reference.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taccl_py.errors import InputError
from taccl_py.jsonio import Fields, read_json
from taccl_py.topology.degrade import Degradation, degraded, parse_link, parse_slow_link, parse_slow_port
from taccl_py.topology.files import read_topology
from taccl_py.topology.model import Topology

FORMAT = "taccl-failures"
VERSION = 1
INDEX = "failures.json"
WHOLE = "topology.json"


@dataclass(frozen=True, slots=True)
class PreparedFailure:
    """A failure and the folder with what serves it."""

    what: str
    degradation: Degradation
    folder: Path


@dataclass(frozen=True)
class FailureIndex:
    """The failures that a folder has schedules for, and their machine when it is whole."""

    topology: Topology
    failures: tuple[PreparedFailure, ...]

    def find(self, machine: Topology) -> PreparedFailure | None:
        """The failure that makes such a machine of the whole one; None if there is none."""
        for each in self.failures:
            there = degraded(self.topology, each.degradation)
            if (there.links, there.ports) == (machine.links, machine.ports):
                return each
        return None


def folder_names(whats: Iterable[str]) -> dict[str, str]:
    """Name of the folder of each failure, by its words; names differ."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for what in whats:
        stem = name = re.sub(r"[^A-Za-z0-9.]+", "-", what).strip("-.") or "failure"
        number = 1
        while name in taken:
            number += 1
            name = f"{stem}-{number}"
        taken.add(name)
        found[what] = name
    return found


def degradation_json(degradation: Degradation) -> dict[str, list[str]]:
    """A degradation in the words of the command line."""
    return {
        "without_link": list(map(str, degradation.missing)),
        "slow_link": list(map(str, degradation.slow)),
        "without_port": list(degradation.missing_ports),
        "slow_port": list(map(str, degradation.slow_ports)),
    }


def read_failure_index(folder: Path) -> FailureIndex:
    """Index of a folder.

    Raises
    ------
    InputError
        If it cannot be read, or is wrong.
    """
    fields = Fields(read_json(folder / INDEX), str(folder / INDEX))
    fields.header(FORMAT, VERSION)
    found = []
    for item in fields.objects("failures"):
        name = item.text("folder")
        if Path(name).name != name:
            item.fail("folder", f"found {name[:40]!r}, the name of a folder beside this file is needed")
        found.append(PreparedFailure(item.text("failure"), _read_degradation(item), folder / name))
    return FailureIndex(read_topology(folder / WHOLE), tuple(found))


def _read_degradation(item: Fields) -> Degradation:
    def words(key: str) -> list[str]:
        values = item.items(key)
        for value in values:
            if not isinstance(value, str):
                item.fail(key, f"found {value!r}, words as on the command line are needed")
        return values

    try:
        return Degradation(
            tuple(map(parse_link, words("without_link"))),
            tuple(map(parse_slow_link, words("slow_link"))),
            tuple(words("without_port")),
            tuple(map(parse_slow_port, words("slow_port"))),
        )
    except InputError as error:
        if error.path is not None:
            raise
        item.fail("failure", error.what)


def written_before(folder: Path) -> Mapping[str, Any]:
    """An earlier index of a folder; empty if there is none that can be read."""
    try:
        value = read_json(folder / INDEX)
    except InputError:
        return {}
    return value if isinstance(value, dict) and value.get("format") == FORMAT else {}

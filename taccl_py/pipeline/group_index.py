"""The index in a folder of process groups: the machine that they share, and which files are whose.

The form, version 1::

    {
      "format": "taccl-groups",
      "version": 1,
      "topology": {... the expanded form of a topology file, of the whole machine ...},
      "groups": [
        {"ranks": [0, 1, 2], "release_us": 0.0, "schedule": "group-0.json", "demand": null, "programs": []},
        ...
      ]
    }

``ranks`` are those of the machine, in the group's order, and behind them those that only pass its data on; ``programs`` are for
``demand``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from taccl_py.demand.files import read_demand
from taccl_py.errors import InputError
from taccl_py.jsonio import Fields, canonical_json, format_of, parse_json, read_text
from taccl_py.schedule.demand_files import read_demand_schedule
from taccl_py.schedule.files import DEMAND_SCHEDULE_FORMAT, INDEX_OF_GROUPS, read_schedule
from taccl_py.topology.files import topology_from_fields, topology_to_json
from taccl_py.topology.model import Topology
from taccl_py.units import MAX_COST_US
from taccl_py.verify.together import TimedGroup

VERSION = 1


@dataclass(frozen=True, slots=True)
class IndexedGroup:
    """A group of an index: its ranks, its start, and names of its files, which lie beside the index."""

    ranks: tuple[int, ...]
    release_us: float
    schedule: str
    demand: str | None = None
    programs: tuple[str, ...] = ()


def write_group_index(machine: Topology, groups: Sequence[IndexedGroup]) -> str:
    """Return the text of an index."""
    return canonical_json({
        "format": INDEX_OF_GROUPS,
        "version": VERSION,
        "topology": topology_to_json(machine),
        "groups": [
            {
                "ranks": list(group.ranks),
                "release_us": float(group.release_us),
                "schedule": group.schedule,
                "demand": group.demand,
                "programs": list(group.programs),
            }
            for group in groups
        ],
    })  # fmt: skip


def read_group_index(text: str, path: str) -> tuple[Topology, tuple[IndexedGroup, ...]]:
    """Machine and groups of an index's text.

    Raises
    ------
    InputError
        If the text is no index of a version that is understood.
    """
    fields = Fields(parse_json(text, path), path)
    fields.header(INDEX_OF_GROUPS, VERSION)
    machine = topology_from_fields(fields.object("topology"))
    groups = tuple(_read_group(item) for item in fields.objects("groups"))
    fields.finish()
    return machine, groups


def read_timed_group(folder: Path, group: IndexedGroup) -> TimedGroup:
    """A group of an index with its schedule and its demand, as the verifier takes it.

    Raises
    ------
    InputError
        If a file cannot be read, or is for another number of ranks.
    """
    path = folder / group.schedule
    text = read_text(path)
    if format_of(text, str(path)) != DEMAND_SCHEDULE_FORMAT:
        return TimedGroup(group.ranks, read_schedule(text, str(path)), group.release_us)
    schedule, asked = read_demand_schedule(text, str(path)), None
    if group.demand is not None:
        file = folder / group.demand
        asked = read_demand(read_text(file), str(file))
        if asked.num_ranks != len(group.ranks):
            raise InputError(
                f"is for {asked.num_ranks} ranks, and its group has {len(group.ranks)}; name the demand of the group",
                path=str(file),
            )
    return TimedGroup(group.ranks, schedule, group.release_us, asked)


def _read_group(item: Fields) -> IndexedGroup:
    group = IndexedGroup(
        tuple(item.integers("ranks", least=0)),
        item.number("release_us", most=MAX_COST_US),
        _file(item, "schedule", item.raw("schedule")),
        None if item.raw("demand") is None else _file(item, "demand", item.raw("demand")),
        tuple(_file(item, "programs", name) for name in item.items("programs")),
    )
    item.finish()
    return group


def _file(item: Fields, key: str, name: object) -> str:
    if not isinstance(name, str) or not name or Path(name).name != name:
        item.fail(key, f"found {str(name)[:40]!r}, the name of a file beside this one is needed")
    return name

"""Files of group schedules: the base and the generators, never the whole.

The form, version 1, with one line for each base message::

    {
      "format": "taccl-group-schedule",
      "version": 1,
      "kind": "allgather",
      "chunks_per_rank": 1,
      "chunk_bytes": 65536.0,
      "topology": {... the expanded form of a topology file ...},
      "generators": [[1, 2, 3, 0]],
      "origin": {...} or null,
      "base": [
        {"link": 0, "chunks": [0], "start_us": 0.0, "end_us": 2.5, "reduce": false},
        ...
      ]
    }

Base messages carry chunks of rank 0, or of the smallest rank of every role. What the fields mean is said in
`taccl_py.schedule.group`; ``origin`` is that of `taccl_py.schedule.files`.
"""

from __future__ import annotations

from taccl_py.collective import Kind
from taccl_py.jsonio import Fields, canonical_json, parse_json
from taccl_py.schedule.files import GROUP_FORMAT, message_line, origin_to_json, read_message, read_origin
from taccl_py.schedule.group import GROUP_KINDS, GroupSchedule
from taccl_py.topology.files import topology_from_fields, topology_to_json
from taccl_py.topology.model import Topology
from taccl_py.units import MAX_SIZE_BYTES

VERSION = 1


def write_group(schedule: GroupSchedule) -> str:
    """Return the text of a group schedule's file; equal schedules have equal texts.

    Raises
    ------
    ValueError
        If a time or a size is not finite; JSON has no such numbers.
    """
    head = {
        "format": GROUP_FORMAT,
        "version": VERSION,
        "kind": schedule.kind.value,
        "chunks_per_rank": schedule.chunks_per_rank,
        "chunk_bytes": float(schedule.chunk_bytes),
        "topology": topology_to_json(schedule.topology),
        "generators": [list(generator) for generator in schedule.generators],
        "origin": None if schedule.origin is None else origin_to_json(schedule.origin),
    }
    rows = ",\n".join("    " + message_line(message) for message in schedule.base)
    return canonical_json(head).removesuffix("\n}\n") + f',\n  "base": [\n{rows}\n  ]\n}}\n'


def read_group(text: str, path: str) -> GroupSchedule:
    """Group schedule of a file's text; times in microseconds, sizes in bytes.

    Parameters
    ----------
    text
        Content of the file.
    path
        Its name, for error messages.

    Raises
    ------
    InputError
        If the text is not such a file of a version that is understood, or refers to what does not exist.
    """
    fields = Fields(parse_json(text, path), path)
    fields.header(GROUP_FORMAT, VERSION)
    topology = topology_from_fields(fields.object("topology"))
    schedule = GroupSchedule(
        topology=topology,
        kind=Kind(fields.choice("kind", tuple(kind.value for kind in GROUP_KINDS))),
        chunks_per_rank=fields.integer("chunks_per_rank", least=1),
        chunk_bytes=fields.number("chunk_bytes", above=0.0, most=MAX_SIZE_BYTES),
        generators=_read_generators(fields, topology),
        base=tuple(read_message(item, topology, None) for item in fields.objects("base")),
        origin=None if fields.raw("origin") is None else read_origin(fields.object("origin")),
    )
    fields.finish()
    return schedule


def _read_generators(fields: Fields, topology: Topology) -> tuple[tuple[int, ...], ...]:
    lists = fields.items("generators")
    by_number = Fields({str(i): image for i, image in enumerate(lists)}, fields.path, f"{fields.pointer}/generators")
    generators = []
    for number in range(len(lists)):
        image = tuple(by_number.integers(str(number), least=0))
        if sorted(image) != list(range(topology.num_ranks)):
            by_number.fail(
                str(number), f"is no permutation of the ranks 0..{topology.num_ranks - 1}; name each of them once"
            )
        generators.append(image)
    return tuple(generators)

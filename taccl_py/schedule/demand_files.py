"""Files of schedules for demands: they carry demand and topology, so that they can be verified and replayed years later.

The form, version 1, with one line for each chunk and each message::

    {
      "format": "taccl-demand-schedule",
      "version": 1,
      "topology": {... the expanded form of a topology file ...},
      "origin": {... as in a schedule file ...} or null,
      "demand": {
        ... a demand file without format and version ...
      },
      "messages": [
        {"link": 5, "chunks": [0, 1], "start_us": 0.0, "end_us": 2.5, "reduce": false},
        ...
      ]
    }
"""

from __future__ import annotations

from dataclasses import replace

from taccl_py.demand.files import chunk_rows, head_json, read_demand_fields
from taccl_py.jsonio import Fields, canonical_json, parse_json, refuse_form
from taccl_py.schedule.files import DEMAND_SCHEDULE_FORMAT, message_line, origin_to_json, read_message, read_origin
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.topology.files import topology_from_fields, topology_to_json

VERSION = 1


def write_demand_schedule(schedule: DemandSchedule) -> str:
    """Return the text of a schedule's file; equal schedules have equal texts.

    Raises
    ------
    ValueError
        If a time is not finite; JSON has no such numbers.
    """
    head = {
        "format": DEMAND_SCHEDULE_FORMAT,
        "version": VERSION,
        "topology": topology_to_json(schedule.topology),
        "origin": None if schedule.origin is None else origin_to_json(schedule.origin),
    }
    demand = canonical_json(head_json(schedule.demand)).removesuffix("\n}\n").replace("\n", "\n  ")
    # A message of several chunks is packed here in any case.
    lines = [message_line(replace(message, packed=False)) for message in schedule.messages]
    rows = ",\n".join("    " + line for line in lines)
    messages = f"[\n{rows}\n  ]" if rows else "[]"
    return (
        canonical_json(head).removesuffix("\n}\n")
        + f',\n  "demand": {demand},\n    "chunks": {chunk_rows(schedule.demand, "    ")}\n  }},\n  "messages": {messages}\n}}\n'
    )


def read_demand_schedule(text: str, path: str) -> DemandSchedule:
    """Schedule of a file's text; times in microseconds.

    Parameters
    ----------
    text, path
        Content, and the file's name for errors.

    Raises
    ------
    InputError
        If it is no such file, or refers to what does not exist.
    """
    refuse_form(text, path, "XML", "a schedule (JSON)", "name the schedule that it was made of")
    fields = Fields(parse_json(text, path), path)
    fields.header(DEMAND_SCHEDULE_FORMAT, VERSION)
    topology = topology_from_fields(fields.object("topology"))
    inner = fields.object("demand")
    demand = read_demand_fields(inner)
    if demand.num_ranks != topology.num_ranks:
        inner.fail(
            "ranks", f"found {demand.num_ranks}, but the topology has {topology.num_ranks} ranks; they must be equal"
        )
    num_chunks = len(demand.chunks)
    messages = tuple(read_message(item, topology, num_chunks, says_packed=False) for item in fields.objects("messages"))
    origin = None if fields.raw("origin") is None else read_origin(fields.object("origin"))
    fields.finish()
    return DemandSchedule(topology, demand, messages, origin)

"""Schedule files: JSON that carries its own topology, so that a schedule can be verified and replayed years later.

The form, version 1, with one line for each message::

    {
      "format": "taccl-schedule",
      "version": 1,
      "collective": {"kind": "allgather", "num_ranks": 4, "chunks_per_rank": 1, "root": 0},
      "chunk_bytes": 65536.0,
      "topology": {... the expanded form of a topology file ...},
      "origin": {"engine": ..., "solver": ..., "sketch": ..., "seed": ..., "status": ...,
                 "bound_us": ..., "bound_reason": ..., "found_by": ...},
      "scratch": [[], [0, 3], [], []],
      "messages": [
        {"link": 5, "chunks": [0, 1], "start_us": 0.0, "end_us": 2.5, "reduce": false},
        ...
      ]
    }

``origin`` is null where it is not known, and has ``found_by`` where its engine is a race of several, and ``bound_holds_for`` where its bound is not one
for any algorithm. Numbers are written so that they read back as the same numbers. Reading
refuses what is not such a file; whether the messages make sense is for the verifier to say.
"""

from __future__ import annotations

import math

from taccl_py.collective import Collective, Kind
from taccl_py.errors import InputError
from taccl_py.jsonio import Fields, canonical_json, parse_json, refuse_form
from taccl_py.schedule.ir import ANY_ALGORITHM, Message, Origin, Schedule
from taccl_py.topology.files import topology_from_fields, topology_to_json
from taccl_py.topology.model import Topology
from taccl_py.units import MAX_SIZE_BYTES

FORMAT = "taccl-schedule"
GROUP_FORMAT = "taccl-group-schedule"  # that of `taccl_py.schedule.group_files`
INDEX_OF_GROUPS = "taccl-groups"  # that of `taccl_py.pipeline.group_index`
GROUP_INDEX = "groups.json"  # name of such an index
DEMAND_SCHEDULE_FORMAT = "taccl-demand-schedule"  # that of `taccl_py.schedule.demand_files`
VERSION = 1

_ADVICE = "name the schedule that it was made of, or use taccl check, show, simulate, run or install"
_DEMAND_ADVICE = "taccl check, show, simulate, trace and run --with local take it"
_PACKED = ', "packed": true'


def write_schedule(schedule: Schedule, written: dict[tuple[int, ...], str] | None = None) -> str:
    """Return the text of a schedule's file; equal schedules have equal texts.

    Parameters
    ----------
    schedule
        The schedule.
    written
        Texts of chunks that were written before, and will be: those of other schedules whose messages carry the same.

    Raises
    ------
    ValueError
        If a time or a size is not finite; JSON has no such numbers.
    """
    collective, origin = schedule.collective, schedule.origin
    head = {
        "format": FORMAT,
        "version": VERSION,
        "collective": {
            "kind": collective.kind.value,
            "num_ranks": collective.num_ranks,
            "chunks_per_rank": collective.chunks_per_rank,
            "root": collective.root,
        },
        "chunk_bytes": float(schedule.chunk_bytes),
        "topology": topology_to_json(schedule.topology),
        "origin": None if origin is None else origin_to_json(origin),
        "scratch": [list(chunks) for chunks in schedule.scratch],
    }
    texts = {} if written is None else written
    rows = ",\n".join("    " + _message_line(message, texts) for message in schedule.messages)
    messages = f"[\n{rows}\n  ]" if rows else "[]"
    # The canonical form would spread a message over several lines as soon as it is long; files are read by message.
    return canonical_json(head).removesuffix("\n}\n") + f',\n  "messages": {messages}\n}}\n'


def origin_to_json(origin: Origin) -> dict[str, str | int | float]:
    """Provenance as JSON."""
    fields: dict[str, str | int | float] = {
        "engine": origin.engine,
        "solver": origin.solver,
        "sketch": origin.sketch,
        "seed": origin.seed,
        "status": origin.status,
        "bound_us": float(origin.bound_us),
        "bound_reason": origin.bound_reason,
    }
    fields |= {"found_by": origin.found_by} if origin.found_by else {}
    return fields | ({"bound_holds_for": origin.holds_for} if origin.holds_for != ANY_ALGORITHM else {})


def message_line(message: Message) -> str:
    """One message as one line of JSON."""
    return _message_line(message, {})


def _message_line(message: Message, texts: dict[tuple[int, ...], str]) -> str:
    """The same; `texts` remembers the chunks of others. Schedules have millions of them, so the few fields are put together here."""
    chunks = texts.get(message.chunks)
    if chunks is None:
        chunks = texts[message.chunks] = ", ".join(map(str, message.chunks))
    start_us, end_us = float(message.start_us), float(message.end_us)
    if not (math.isfinite(start_us) and math.isfinite(end_us)):
        raise ValueError(f"a message goes from {start_us} to {end_us} us, which JSON cannot hold")
    return (
        f'{{"link": {message.link}, "chunks": [{chunks}], "start_us": {start_us!r}, "end_us": {end_us!r}, '
        f'"reduce": {"true" if message.reduce else "false"}{_PACKED if message.packed else ""}}}'
    )


def read_schedule(text: str, path: str) -> Schedule:
    """Schedule of a file's text; times in microseconds, sizes in bytes.

    Parameters
    ----------
    text
        Content of the file.
    path
        Its name, for error messages.

    Raises
    ------
    InputError
        If the text is not a schedule file of a version that is understood, or refers to what does not exist.
    """
    refuse_form(text, path, "XML", "a schedule (JSON)", _ADVICE)
    fields = Fields(parse_json(text, path), path)
    if fields.has("gpus") and not fields.has("format"):
        raise InputError(f"is a plan for MSCCL++, and a schedule is needed here; {_ADVICE}", path=path)
    if fields.has("format") and fields.raw("format") == GROUP_FORMAT:
        raise InputError(
            "is a group schedule, whose messages are not written down one by one; name the XML that taccl lower makes of it",
            path=path,
        )
    if fields.has("format") and fields.raw("format") == DEMAND_SCHEDULE_FORMAT:
        raise InputError(
            f"is the schedule of a demand, and one of a collective is needed here; {_DEMAND_ADVICE}", path=path
        )
    fields.header(FORMAT, VERSION)
    topology = topology_from_fields(fields.object("topology"))
    collective = _read_collective(fields.object("collective"), topology)
    schedule = Schedule(
        topology=topology,
        collective=collective,
        chunk_bytes=fields.number("chunk_bytes", above=0.0, most=MAX_SIZE_BYTES),
        messages=tuple(read_message(item, topology, collective.num_chunks) for item in fields.objects("messages")),
        scratch=_read_scratch(fields, collective),
        origin=None if fields.raw("origin") is None else read_origin(fields.object("origin")),
    )
    fields.finish()
    return schedule


def _read_collective(fields: Fields, topology: Topology) -> Collective:
    kind = Kind(fields.choice("kind", tuple(Kind)))
    num_ranks = fields.integer("num_ranks")
    if num_ranks != topology.num_ranks:
        fields.fail(
            "num_ranks", f"found {num_ranks}, but the topology has {topology.num_ranks} ranks; they must be equal"
        )
    chunks_per_rank = fields.integer("chunks_per_rank", least=1)
    root = fields.integer("root", least=0)
    fields.finish()
    try:
        return Collective(kind, num_ranks, chunks_per_rank, root)
    except InputError as error:
        fields.fail("", error.what)


def _read_scratch(fields: Fields, collective: Collective) -> tuple[tuple[int, ...], ...]:
    lists = fields.items("scratch")
    if len(lists) != collective.num_ranks:
        fields.fail("scratch", f"found {len(lists)} lists, one for each of the {collective.num_ranks} ranks is needed")
    # The lists have no names of their own; their numbers stand for them, so that an error names the rank.
    by_rank = Fields({str(rank): chunks for rank, chunks in enumerate(lists)}, fields.path, f"{fields.pointer}/scratch")
    return tuple(_read_chunks(by_rank, str(rank), collective.num_chunks) for rank in range(collective.num_ranks))


def read_message(fields: Fields, topology: Topology, num_chunks: int | None, *, says_packed: bool = True) -> Message:
    """Message from JSON.

    Parameters
    ----------
    fields
        Its object.
    topology
        The machine of its link.
    num_chunks
        Number of chunks that there are, or None if the numbers are not checked.
    says_packed
        True if the file may say that it is packed; else it is where it carries several chunks.

    Raises
    ------
    InputError
        If a field is missing or wrong.
    """
    link = fields.integer("link", least=0)
    if link >= len(topology.links):
        fields.fail("link", f"found {link}, but the topology has links 0..{len(topology.links) - 1}")
    chunks = _read_chunks(fields, "chunks", num_chunks)
    if not chunks:
        fields.fail("chunks", "found no chunk; name what the message carries or leave the message out")
    message = Message(
        link=link,
        chunks=chunks,
        start_us=fields.number("start_us", least=None),
        end_us=fields.number("end_us", least=None),
        reduce=fields.boolean("reduce"),
        packed=fields.boolean("packed", False) if says_packed else len(chunks) > 1,
    )
    fields.finish()
    return message


def _read_chunks(fields: Fields, key: str, num_chunks: int | None) -> tuple[int, ...]:
    chunks = tuple(fields.integers(key, least=0))
    for place, chunk in enumerate(chunks):
        if num_chunks is not None and chunk >= num_chunks:
            fields.fail(f"{key}/{place}", f"found {chunk}, but chunks are 0..{num_chunks - 1}")
    return chunks


def read_origin(fields: Fields) -> Origin:
    """Provenance from JSON.

    Raises
    ------
    InputError
        If a field is missing or wrong.
    """
    origin = Origin(
        engine=_text(fields, "engine"),
        solver=_text(fields, "solver"),
        sketch=_text(fields, "sketch"),
        seed=fields.integer("seed"),
        status=_text(fields, "status"),
        bound_us=fields.number("bound_us", least=None),
        bound_reason=_text(fields, "bound_reason"),
        found_by=fields.text("found_by", ""),
        holds_for=fields.text("bound_holds_for", ANY_ALGORITHM),
    )
    fields.finish()
    return origin


def _text(fields: Fields, key: str) -> str:
    """Text that must be there and may be empty."""
    fields.raw(key)
    return fields.text(key, "")

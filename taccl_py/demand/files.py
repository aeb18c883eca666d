"""Demand files: JSON that says what must move.

The form, version 1, with one line for each chunk::

    {
      "format": "taccl-demand",
      "version": 1,
      "name": "two pieces",
      "ranks": 4,
      "dtype": "float32",
      "input_bytes": [4194304, 4194304, 0, 0],
      "output_bytes": [0, 0, 3145728, 4194304],
      "chunks": [
        {"bytes": 3145728, "holds": {"0": 0, "1": 0}, "wants": {"2": 0, "3": 0}},
        {"bytes": 1048576, "adds": {"0": 3145728, "1": 3145728}, "wants": {"3": 3145728}}
      ]
    }

``holds`` names the ranks that have the chunk at the start, and at which byte of their input it lies: any of them may send it. ``adds`` names the
ranks whose contributions are added; a list of such maps is a list of terms, each held by any of its ranks. ``wants`` names the ranks that must
have it, and at which byte of their output. Without a ``name`` the demand is called like its file. In place of a map a list of ranks will do: the chunk then lies behind what stands before it. The
lengths of the buffers may be left out: they are as long as needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from taccl_py.demand.model import DTYPES, ChunkPlace, DataChunk, DataDemand
from taccl_py.errors import InputError
from taccl_py.jsonio import Fields, canonical_json, parse_json, refuse_form

FORMAT = "taccl-demand"
VERSION = 1
_MOST_DIGITS = 6


def write_demand(demand: DataDemand) -> str:
    """Return the text of a demand's file; equal demands have equal texts."""
    head = {"format": FORMAT, "version": VERSION, **head_json(demand)}
    return canonical_json(head).removesuffix("\n}\n") + f',\n  "chunks": {chunk_rows(demand, "  ")}\n}}\n'


def head_json(demand: DataDemand) -> dict[str, Any]:
    """All but the chunks, as JSON."""
    return {
        "name": demand.name,
        "ranks": demand.num_ranks,
        "dtype": demand.dtype,
        "input_bytes": list(demand.input_bytes),
        "output_bytes": list(demand.output_bytes),
    }


def chunk_rows(demand: DataDemand, indent: str) -> str:
    """The list of chunks as text, one line for each."""
    rows = ",\n".join(f"{indent}  {_chunk_line(chunk)}" for chunk in demand.chunks)
    return f"[\n{rows}\n{indent}]"


def _chunk_line(chunk: DataChunk) -> str:
    if not chunk.is_sum:
        had = f'"holds": {_map(chunk.terms[0])}'
    elif all(len(term) == 1 for term in chunk.terms):
        had = f'"adds": {_map(term[0] for term in chunk.terms)}'
    else:
        had = f'"adds": [{", ".join(_map(term) for term in chunk.terms)}]'
    return f'{{"bytes": {chunk.size_bytes}, {had}, "wants": {_map(chunk.wants)}}}'


def _map(regions: Iterable[ChunkPlace]) -> str:
    return json.dumps({str(rank): offset for rank, offset in regions})


def read_demand(text: str, path: str) -> DataDemand:
    """Demand of a file's text.

    Parameters
    ----------
    text, path
        Content, and the file's name for errors.

    Raises
    ------
    InputError
        If it is no such file, or the demand contradicts itself.
    """
    refuse_form(text, path, "XML", "a demand", "a demand is a JSON file, see the reference")
    fields = Fields(parse_json(text, path), path)
    fields.header(FORMAT, VERSION)
    return read_demand_fields(fields)


def read_demand_value(value: Mapping[str, Any], path: str) -> DataDemand:
    """Demand of a mapping with the fields of a file, with ``format`` and ``version`` or without, which errors call by a name.

    Ranks may be numbers where JSON has texts, and lists any sequences and sets.

    Raises
    ------
    InputError
        See `read_demand`.
    """
    fields = Fields({"format": FORMAT, "version": VERSION, "name": "unnamed", **_as_json(value, path)}, path)
    fields.header(FORMAT, VERSION)
    return read_demand_fields(fields)


def _as_json(value: Any, path: str) -> Any:
    """Value as JSON would have it: keys are texts, and numbers and sequences of any kind Python's own."""
    if isinstance(value, Mapping):
        found = {str(key): _as_json(item, path) for key, item in value.items()}
        if len(found) < len(value):
            raise InputError("has a key twice, as a number and as a text; keep one of them", path=path)
        return found
    if isinstance(value, Set):
        return [_as_json(item, path) for item in sorted(value, key=str)]
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_as_json(item, path) for item in value]
    if hasattr(value, "tolist"):  # numpy's arrays and numbers
        return value.tolist()
    return value


def read_demand_fields(fields: Fields) -> DataDemand:
    """Demand of JSON whose header has been read.

    Raises
    ------
    InputError
        See `read_demand`.
    """
    name = fields.text("name", Path(fields.path).stem)
    ranks = fields.integer("ranks")
    dtype = fields.choice("dtype", tuple(DTYPES), "uint8")
    lengths = {key: tuple(fields.integers(key)) if fields.has(key) else None for key in ("input_bytes", "output_bytes")}
    inputs, outputs = _BufferEnds(), _BufferEnds()
    chunks = tuple(_read_chunk(item, inputs, outputs) for item in fields.objects("chunks"))
    fields.finish()
    whole = {
        key: given if given is not None else ends.lengths(max(0, min(ranks, 1 << 16)))
        for (key, given), ends in zip(lengths.items(), (inputs, outputs), strict=True)
    }
    try:
        return DataDemand(name, ranks, chunks, whole["input_bytes"], whole["output_bytes"], dtype)
    except InputError as error:
        fields.fail(error.field or "", error.what)


class _BufferEnds:
    """Ends of the chunks that were read so far in the buffers of one kind."""

    def __init__(self) -> None:
        self._end: dict[int, int] = {}

    def place(self, rank: int, offset: int | None, size: int) -> ChunkPlace:
        """Place of a chunk, behind the others if none is given."""
        at = self._end.get(rank, 0) if offset is None else offset
        self._end[rank] = max(self._end.get(rank, 0), at + size)
        return ChunkPlace(rank, at)

    def lengths(self, ranks: int) -> tuple[int, ...]:
        """Lengths that hold all chunks."""
        return tuple(self._end.get(rank, 0) for rank in range(ranks))


def _read_chunk(fields: Fields, inputs: _BufferEnds, outputs: _BufferEnds) -> DataChunk:
    size = fields.integer("bytes", least=1)
    if fields.has("holds") == fields.has("adds"):
        fields.fail("", "needs either 'holds' (ranks that have it) or 'adds' (ranks whose contributions are added)")
    if fields.has("holds"):
        terms: tuple[tuple[ChunkPlace, ...], ...] = (_read_regions(fields, "holds", inputs, size),)
    else:
        terms = _read_terms(fields, inputs, size)
        if len(terms) < 2:
            fields.fail(
                "adds", f"found {len(terms)} contributions, at least 2 are needed; say 'holds' of what is only copied"
            )
    chunk = DataChunk(size, terms, _read_regions(fields, "wants", outputs, size))
    fields.finish()
    return chunk


def _read_terms(fields: Fields, inputs: _BufferEnds, size: int) -> tuple[tuple[ChunkPlace, ...], ...]:
    raw = fields.raw("adds")
    if isinstance(raw, list) and any(isinstance(item, dict | list) for item in raw):
        by_term = Fields({str(i): item for i, item in enumerate(raw)}, fields.path, f"{fields.pointer}/adds")
        return tuple(_read_regions(by_term, str(term), inputs, size) for term in range(len(raw)))
    return tuple((region,) for region in _read_regions(fields, "adds", inputs, size))


def _read_regions(fields: Fields, key: str, ends: _BufferEnds, size: int) -> tuple[ChunkPlace, ...]:
    """Ranks, with their offsets or without."""
    raw = fields.raw(key)
    if isinstance(raw, list):
        return tuple(ends.place(rank, None, size) for rank in fields.integers(key, least=0))
    if not isinstance(raw, dict):
        fields.fail(key, "needs a map from ranks to bytes of their buffer, or a list of ranks")
    places = fields.object(key)
    found = []
    for name in places.names():
        if not (name.isascii() and name.isdecimal() and len(name) <= _MOST_DIGITS and str(int(name)) == name):
            fields.fail(key, f"found {name!r}, the number of a rank is needed")
        found.append(ends.place(int(name), places.integer(name, least=0), size))
    return tuple(found)

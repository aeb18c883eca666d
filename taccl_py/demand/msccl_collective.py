"""Collectives of SCCL and msccl-tools as demands: the JSON that their ``serialization`` writes, alone or inside an algorithm.

Source: microsoft/msccl-tools 030a750, modules ``msccl.serialization`` and ``msccl.collectives`` (SCCL: the same with ``sccl_type``). A chunk has
the ranks that hold it (``pre``), those that must have it (``post``), and an address (``addr``). Chunks at one address are summands: who wants some of
them wants their sum. So a rank that holds several of them at the start holds their sum.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from taccl_py.demand.files import read_demand
from taccl_py.demand.model import DTYPES, ChunkPlace, DataChunk, DataDemand
from taccl_py.errors import InputError
from taccl_py.jsonio import Fields, parse_json, read_text
from taccl_py.units import MAX_RANKS

_TYPES = ("msccl_type", "sccl_type")
_COLLECTIVE, _ALGORITHM, _CHUNK = "collective", "algorithm", "chunk"


class _MscclChunk(NamedTuple):
    """Number of a chunk, who holds it, who must have it, and its address."""

    number: int
    pre: tuple[int, ...]
    post: tuple[int, ...]
    address: int


def is_msccl_collective(text: str, path: str) -> bool:
    """True if a text is the JSON of a collective, or of an algorithm with one, of SCCL or msccl-tools.

    Raises
    ------
    InputError
        If the text begins as JSON does and is none.
    """
    if text.lstrip()[:1] != "{" or not any(f'"{key}"' in text for key in _TYPES):
        return False
    value = parse_json(text, path)
    return any(value.get(key) in (_COLLECTIVE, _ALGORITHM) for key in _TYPES)


def read_demand_file(path: Path, size_bytes: int | None = None, dtype: str | None = None) -> DataDemand:
    """Demand of a file of ours, or of a collective of SCCL or msccl-tools, which says no sizes.

    Parameters
    ----------
    path
        The file.
    size_bytes
        Bytes of all addresses of a collective together; they are equal, and at least one element.
    dtype
        Type of a collective's elements; None is float32.

    Raises
    ------
    InputError
        If it is neither, contradicts itself, or a demand file comes with a size or a type.
    """
    text = read_text(path)
    if is_msccl_collective(text, str(path)):
        return read_msccl_collective(text, str(path), size_bytes, dtype)
    demand = read_demand(text, str(path))
    for field, value in (("--size", size_bytes), ("--dtype", dtype)):
        if value is not None:
            raise InputError(
                f"is part of a demand file, which {path} is; leave it out", path="command line", field=field
            )
    return demand


def read_msccl_collective(text: str, path: str, size_bytes: int | None = None, dtype: str | None = None) -> DataDemand:
    """Demand of a collective's JSON; for the parameters and errors see `read_demand_file`."""
    fields = Fields(parse_json(text, path), path)
    if any(fields.has(key) and fields.raw(key) == _ALGORITHM for key in _TYPES):
        fields = fields.object(_COLLECTIVE)
    _require_type(fields, _COLLECTIVE)
    name, ranks = fields.text("name"), fields.integer("nodes", least=2, most=MAX_RANKS)
    if fields.has("triggers") and fields.object("triggers").names():
        fields.fail("triggers", "says that chunks come to be when others arrive, which no demand states; leave it out")
    chunks = [_read_chunk(number, item, ranks) for number, item in enumerate(fields.objects("chunks"))]
    by_address: defaultdict[int, list[_MscclChunk]] = defaultdict(list)
    for chunk in chunks:
        by_address[chunk.address].append(chunk)
    addresses = sorted({chunk.address for chunk in chunks if chunk.post})
    if not addresses:
        fields.fail("chunks", "found no chunk that anybody wants; nothing would move")
    element = DTYPES[dtype or "float32"]
    unit = max(1, (1_000_000 if size_bytes is None else size_bytes) // len(addresses) // element) * element
    inputs = _places([(rank, chunk.address) for chunk in chunks for rank in chunk.pre], unit)
    outputs = _places([(rank, chunk.address) for chunk in chunks for rank in chunk.post], unit)
    made = tuple(
        DataChunk(
            unit,
            tuple(tuple(inputs[rank, address] for rank in term) for term in terms),
            tuple(outputs[rank, address] for rank in wants),
        )
        for address in addresses
        for terms, wants in _sums(by_address[address], fields)
    )
    lengths = [[0] * ranks, [0] * ranks]
    for length, places in zip(lengths, (inputs, outputs), strict=True):
        for rank, offset in places.values():
            length[rank] = max(length[rank], offset + unit)
    try:
        return DataDemand(name, ranks, made, tuple(lengths[0]), tuple(lengths[1]), dtype or "float32")
    except InputError as error:
        raise InputError(error.what, path=path, field="chunks") from None


def _require_type(fields: Fields, needed: str) -> None:
    """Refuse an object of another type."""
    key = next((key for key in _TYPES if fields.has(key)), _TYPES[0])
    found: Any = fields.raw(key)
    if found != needed:
        fields.fail(key, f"found {found!r}, {needed!r} is needed")


def _read_chunk(number: int, fields: Fields, ranks: int) -> _MscclChunk:
    _require_type(fields, _CHUNK)
    found = {}
    for key in ("pre", "post"):
        found[key] = tuple(sorted(set(fields.integers(key, least=0))))
        if found[key] and found[key][-1] >= ranks:
            fields.fail(key, f"found rank {found[key][-1]}, ranks are 0..{ranks - 1}")
    if found["post"] and not found["pre"]:
        fields.fail("pre", "found no rank that holds it, and some want it; name one")
    return _MscclChunk(number, found["pre"], found["post"], fields.integer("addr", least=0))


def _places(held: Iterable[tuple[int, int]], unit: int) -> dict[tuple[int, int], ChunkPlace]:
    """Place of each address in a rank's buffer: those that it has, one behind the other."""
    place: defaultdict[int, count[int]] = defaultdict(count)
    return {(rank, address): ChunkPlace(rank, next(place[rank]) * unit) for rank, address in sorted(set(held))}


def _sums(chunks: Sequence[_MscclChunk], fields: Fields) -> list[tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]]:
    """Terms of each sum at one address, and who wants it; ranks that want other summands want another sum."""
    by_summands: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank in sorted({rank for chunk in chunks for rank in chunk.post}):
        by_summands[tuple(chunk.number for chunk in chunks if rank in chunk.post)].append(rank)
    held = {chunk.number: chunk.pre for chunk in chunks}
    found = []
    for numbers, wants in by_summands.items():
        # Summands that lie on the same ranks lie there as their sum.
        terms = tuple(dict.fromkeys(held[number] for number in numbers))
        for rank in {rank for term in terms for rank in term}:
            mixed = [number for number in held if rank in held[number] and number not in numbers]
            if sum(rank in term for term in terms) > 1 or (mixed and any(rank in held[number] for number in numbers)):
                fields.fail(
                    "chunks",
                    f"rank {rank} holds several summands of address {chunks[0].address} as one, and the sum that rank {wants[0]} wants needs them apart",
                )
        found.append((terms, tuple(wants)))
    return found

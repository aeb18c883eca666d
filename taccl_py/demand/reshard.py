"""Resharding: a tensor sharded over one mesh of ranks becomes one sharded over another, as a demand.

Placements are those of PyTorch's DTensor, one for each axis of the mesh: ``S0`` (sharded along dimension 0 of the tensor, as `torch.chunk` cuts
it: pieces of ceil(n / k), the last ones shorter or empty), ``R`` (replicated), ``P`` (every rank along the axis holds a summand). Several
axes that shard one dimension cut it one after the other, the first axis first.

The boxes in which the cuts of both sides part the tensor are the chunks. A rank's buffers hold its boxes one behind the other, in the order of
the tensor, each box contiguous by itself: what DTensor packs before it communicates.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from taccl_py.demand.model import DTYPES, ChunkPlace, DataChunk, DataDemand
from taccl_py.errors import InputError
from taccl_py.units import MAX_RANKS, MAX_SIZE_BYTES, format_ranks, parse_ranks

_SHAPE = re.compile(r"[0-9]{1,12}(x[0-9]{1,12})*")
_PLACEMENT = re.compile(r"S([0-9]{1,3})|R|P")
_MOST_BOXES = 1 << 18

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class TensorBox:
    """A part of a tensor: from `low` up to, but not including, `high`, in every dimension."""

    low: tuple[int, ...]
    high: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        """Elements in it."""
        return math.prod(high - low for low, high in zip(self.low, self.high, strict=True))


@dataclass(frozen=True, slots=True)
class Sharding:
    """A tensor's placement on a mesh.

    Attributes
    ----------
    ranks
        Ranks of the mesh, the last axis fastest.
    mesh
        Lengths of its axes.
    placements
        For every axis the tensor's dimension that is sharded along it, or ``R`` or ``P``.
    """

    ranks: tuple[int, ...]
    mesh: tuple[int, ...]
    placements: tuple[int | str, ...]

    def spans(self, shape: Sequence[int], coordinate: Sequence[int]) -> tuple[Span, ...]:
        """Part of the tensor that the rank at a place of the mesh has, in every dimension."""
        found = [(0, length) for length in shape]
        for placement, parts, part in zip(self.placements, self.mesh, coordinate, strict=True):
            if isinstance(placement, int):
                found[placement] = _chunk(found[placement], parts, part)
        return tuple(found)

    def summand(self, coordinate: Sequence[int]) -> tuple[int, ...]:
        """Which summand the rank at a place of the mesh holds."""
        return tuple(part for placement, part in zip(self.placements, coordinate, strict=True) if placement == "P")

    def places(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Ranks with their places on the mesh."""
        return zip(self.ranks, product(*map(range, self.mesh)), strict=True)

    def __str__(self) -> str:
        """Text form, as it is parsed."""
        words = (f"S{one}" if isinstance(one, int) else one for one in self.placements)
        return f"{format_ranks(self.ranks)}:{'x'.join(map(str, self.mesh))}:{','.join(words)}"


def _chunk(span: Span, parts: int, part: int) -> Span:
    """Part of a span as torch.chunk cuts it."""
    low, high = span
    size = -(-(high - low) // parts)
    return (min(high, low + part * size), min(high, low + (part + 1) * size))


def parse_shape(text: str) -> tuple[int, ...]:
    """Lengths of a tensor's dimensions, such as ``1024x1024x512``.

    Raises
    ------
    InputError
        If it is no such text.
    """
    if not _SHAPE.fullmatch(text):
        raise InputError(f"{text!r} is no shape; write lengths such as 1024x1024x512")
    shape = tuple(map(int, text.split("x")))
    if 0 in shape:
        raise InputError(f"{text!r} holds nothing; every length is at least 1")
    return shape


def parse_sharding(text: str) -> Sharding:
    """Sharding of a text such as ``0-15:4x4:S0,R``: ranks, mesh, and one placement for each axis of the mesh.

    Raises
    ------
    InputError
        If it is no such text, or its parts do not fit each other.
    """
    parts = text.split(":")
    if len(parts) != 3:
        raise InputError(f"{text!r} is no sharding; write ranks, mesh and placements, such as 0-15:4x4:S0,R")
    ranks, mesh = parse_ranks(parts[0]), parse_shape(parts[1])
    placements: list[int | str] = []
    for word in parts[2].split(","):
        match = _PLACEMENT.fullmatch(word.strip())
        if match is None:
            raise InputError(
                f"{word!r} is no placement; write S0 (sharded along dimension 0), R (replicated) or P (a summand)"
            )
        placements.append(match[0] if match[1] is None else int(match[1]))
    if math.prod(mesh) != len(ranks):
        raise InputError(f"a mesh of {parts[1]} has {math.prod(mesh)} places, and there are {len(ranks)} ranks")
    if len(placements) != len(mesh):
        raise InputError(
            f"found {len(placements)} placements, one for each of the {len(mesh)} axes of the mesh is needed"
        )
    if len(set(ranks)) < len(ranks):
        raise InputError("a rank is named twice; name every rank once")
    return Sharding(ranks, mesh, tuple(placements))


@dataclass(frozen=True)
class Resharding:
    """A resharding as a demand.

    Attributes
    ----------
    demand
        What moves; chunk c is box c.
    boxes
        Parts of the tensor.
    """

    demand: DataDemand
    boxes: tuple[TensorBox, ...]


def reshard(shape: Sequence[int], dtype: str, source: Sharding, target: Sharding, num_ranks: int) -> Resharding:
    """Demand of a resharding.

    Parameters
    ----------
    shape, dtype
        Of the tensor.
    source, target
        Where it is, and where it is to be.
    num_ranks
        Ranks of the machine.

    Raises
    ------
    InputError
        If the shardings do not fit the tensor or the machine, or the target is a partial sum.
    """
    _require_fit(shape, dtype, source, "--from", num_ranks)
    _require_fit(shape, dtype, target, "--to", num_ranks)
    if "P" in target.placements:
        raise InputError(
            "P, a summand, is where a tensor can come from and not where it can go; use S or R", field="--to"
        )
    held, wanted = _by_span(shape, source), _by_span(shape, target)
    boxes = _boxes(shape, [*held, *wanted])
    size = DTYPES[dtype]
    inputs, outputs = [0] * num_ranks, [0] * num_ranks
    chunks = []
    for box, having, wanting in zip(boxes, _by_box(boxes, held), _by_box(boxes, wanted), strict=True):
        size_bytes = box.num_elements * size
        terms: dict[tuple[int, ...], list[ChunkPlace]] = {}
        for rank, coordinate in having:
            terms.setdefault(source.summand(coordinate), []).append(ChunkPlace(rank, inputs[rank]))
            inputs[rank] += size_bytes
        wants = []
        for rank, _ in wanting:
            wants.append(ChunkPlace(rank, outputs[rank]))
            outputs[rank] += size_bytes
        chunks.append(DataChunk(size_bytes, tuple(map(tuple, terms.values())), tuple(wants)))
    demand = DataDemand("reshard", num_ranks, tuple(chunks), tuple(inputs), tuple(outputs), dtype)
    return Resharding(demand, boxes)


def _require_fit(shape: Sequence[int], dtype: str, sharding: Sharding, field: str, num_ranks: int) -> None:
    if math.prod(shape) * DTYPES[dtype] > MAX_SIZE_BYTES:
        raise InputError(f"the tensor has more than {MAX_SIZE_BYTES} bytes; use a smaller one", field="--shape")
    for placement in sharding.placements:
        if isinstance(placement, int) and placement >= len(shape):
            raise InputError(
                f"S{placement} shards a dimension that the tensor does not have; its {len(shape)} dimensions count from 0",
                field=field,
            )
    if max(sharding.ranks) >= min(num_ranks, MAX_RANKS):
        raise InputError(f"rank {max(sharding.ranks)} does not exist, ranks are 0..{num_ranks - 1}", field=field)


_Having = dict[tuple[Span, ...], list[tuple[int, tuple[int, ...]]]]


def _by_span(shape: Sequence[int], sharding: Sharding) -> _Having:
    """Ranks and their places on the mesh, by the part of the tensor that they have."""
    found: _Having = {}
    for rank, coordinate in sharding.places():
        spans = sharding.spans(shape, coordinate)
        if all(low < high for low, high in spans):
            found.setdefault(spans, []).append((rank, coordinate))
    return found


def _boxes(shape: Sequence[int], parts: Sequence[tuple[Span, ...]]) -> tuple[TensorBox, ...]:
    """The parts that all cuts make of the tensor, in its order."""
    cuts = [sorted({0, length, *(edge for part in parts for edge in part[axis])}) for axis, length in enumerate(shape)]
    number = math.prod(len(each) - 1 for each in cuts)
    if number > _MOST_BOXES:
        raise InputError(
            f"the cuts of both sides make {number} boxes, at most {_MOST_BOXES} are possible", field="--shape"
        )
    return tuple(
        TensorBox(*map(tuple, zip(*spans, strict=True))) for spans in product(*(tuple(pairwise(each)) for each in cuts))
    )


def _by_box(boxes: Sequence[TensorBox], parts: _Having) -> list[list[tuple[int, tuple[int, ...]]]]:
    """For every box the ranks that have it; no box reaches over the end of a part."""
    lows = [sorted(set(each)) for each in zip(*(box.low for box in boxes), strict=True)]
    number_of = {box.low: number for number, box in enumerate(boxes)}
    found: list[list[tuple[int, tuple[int, ...]]]] = [[] for _ in boxes]
    for spans, ranks in parts.items():
        inside = [each[bisect_left(each, a) : bisect_left(each, b)] for each, (a, b) in zip(lows, spans, strict=True)]
        for low in product(*inside):
            found[number_of[low]] += ranks
    return found

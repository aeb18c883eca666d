"""Packing: which chunks of a planned message may be copied together before it is sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from taccl_py.schedule.layout import UntimedMessage
from taccl_py.synthesis.templates.messages import cut_by_most
from taccl_py.synthesis.templates.params import PARAMS


def most_packed(chunk_bytes: float, message_chunks: int) -> int:
    """Chunks that go together at most where they have to be copied together first; below 2 none do."""
    return min(message_chunks, int(PARAMS.most_packed_bytes / chunk_bytes))


def packed_parts(message: UntimedMessage, chunk_bytes: float, message_chunks: int) -> Iterator[UntimedMessage]:
    """The message in parts whose chunks may be copied together.

    What lies together in as few parts is not cut: the runtime cuts it as it cuts what lies together. It is copied if it is small.
    """
    most, number = most_packed(chunk_bytes, message_chunks), len(message.chunks)
    parts, runs = -(-number // max(1, most)), len(chunk_runs(message.chunks))
    if most < 2:
        yield message
    elif runs <= parts:
        # Neighbours in number may lie apart where they are kept on the way; where they do not, nothing is copied.
        packed = number * chunk_bytes <= PARAMS.most_packed_bytes
        yield message if packed == message.packed else replace(message, packed=packed)
    else:
        for chunks in cut_by_most(message.chunks, most):
            yield replace(message, chunks=chunks, packed=True)


def chunk_runs(chunks: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of chunks that follow each other: the first one of each, and the one after its last."""
    ordered = sorted(chunks)
    breaks = [place for place in range(1, len(ordered)) if ordered[place] != ordered[place - 1] + 1]
    return [(ordered[low], ordered[high - 1] + 1) for low, high in pairwise([0, *breaks, len(ordered)])]

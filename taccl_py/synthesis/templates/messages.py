"""Messages of a template, before links are chosen.

A template is written in messages between ranks with planned times of which only the order counts. The exact times come from
`taccl_py.schedule.timing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from taccl_py.schedule.layout import UntimedMessage
from taccl_py.topology.model import Topology


@dataclass(frozen=True, slots=True)
class TemplateMessage:
    """Chunks that one rank sends to another.

    Attributes
    ----------
    src, dst
        Ranks.
    chunks
        Chunk numbers.
    start, end
        Planned times in any unit.
    reduce
        Whether the receiver adds them to what it holds.
    """

    src: int
    dst: int
    chunks: tuple[int, ...]
    start: float
    end: float
    reduce: bool = False


TemplateMessages = tuple[TemplateMessage, ...]


@dataclass(frozen=True, slots=True, order=True)
class SharedMessage:
    """A message before it is known what shares it."""

    start: float
    end: float
    src: int
    dst: int


def with_chunks(carried: Mapping[SharedMessage, list[int]]) -> TemplateMessages:
    """Messages in order, each with the chunks that share it."""
    return tuple(
        TemplateMessage(message.src, message.dst, tuple(sorted(chunks)), message.start, message.end)
        for message, chunks in sorted(carried.items())
    )


@dataclass(frozen=True, slots=True)
class TemplatePlan:
    """A template fitted to a machine.

    Attributes
    ----------
    chunks_per_rank
        Of the collective.
    messages
        What it does.
    name
        What it is, where several are told apart.
    """

    chunks_per_rank: int
    messages: TemplateMessages
    name: str = ""


def end_of(messages: Iterable[TemplateMessage]) -> float:
    """Time of the last arrival."""
    return max((message.end for message in messages), default=0.0)


def shifted(messages: Iterable[TemplateMessage], by: float) -> TemplateMessages:
    """The same messages later."""
    return tuple([TemplateMessage(m.src, m.dst, m.chunks, m.start + by, m.end + by, m.reduce) for m in messages])


def in_order(messages: Iterable[TemplateMessage]) -> TemplateMessages:
    """Messages in the order of their starts; those that start together stay as they are."""
    return tuple(sorted(messages, key=lambda message: message.start))


def in_turn(*parts: TemplateMessages) -> TemplateMessages:
    """All messages of one part, then those of the next."""
    found: list[TemplateMessage] = []
    for part in parts:
        found += shifted(part, end_of(found))
    return tuple(found)


def turned(messages: TemplateMessages, *, reduce: bool) -> TemplateMessages:
    """Every message in the other direction at the mirrored time; what spread copies collects sums, or what it spread."""
    end = end_of(messages)
    return tuple(
        TemplateMessage(m.dst, m.src, m.chunks, end - m.end, end - m.start, reduce) for m in reversed(messages)
    )


def in_pieces(messages: TemplateMessages, pieces: tuple[tuple[int, ...], ...]) -> TemplateMessages:
    """Messages of pieces as messages of the chunks of each piece; empty pieces stay at home."""
    found = []
    for m in messages:
        chunks = tuple([chunk for piece in m.chunks for chunk in pieces[piece]])
        if chunks:
            found.append(TemplateMessage(m.src, m.dst, chunks, m.start, m.end, m.reduce))
    return tuple(found)


def cut(num_chunks: int, num_pieces: int) -> tuple[tuple[int, ...], ...]:
    """Chunks 0..n-1 as so many runs of neighbours, as equal as they can be."""
    borders = [num_chunks * i // num_pieces for i in range(num_pieces + 1)]
    return tuple(tuple(range(borders[i], borders[i + 1])) for i in range(num_pieces))


def cut_by_most(chunks: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
    """Chunks as runs of so many at most, as equal as they can be."""
    for part in cut(len(chunks), -(-len(chunks) // most)):
        yield tuple(chunks[place] for place in part)


def as_untimed(topology: Topology, chunk_bytes: float, messages: TemplateMessages) -> list[UntimedMessage] | None:
    """Messages on the cheapest links, parallel ones in turn; None if two ranks have no link."""
    load_us = [0.0] * len(topology.links)
    untimed = []
    for message in messages:
        links = topology.links_between.get((message.src, message.dst))
        if links is None:
            return None
        link = links[0]
        if len(links) > 1:
            size = len(message.chunks) * chunk_bytes
            link = min(links, key=lambda i: load_us[i] + topology.message_us(i, size))
            load_us[link] += topology.message_us(link, size)
        untimed.append(UntimedMessage(link, message.chunks, message.start, message.end, message.reduce))
    return untimed

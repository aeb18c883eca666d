"""Images of schedules: the same messages on another machine, which is the first one with its ranks renamed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taccl_py.collective import ROOTED, Collective, Kind
from taccl_py.errors import InputError
from taccl_py.schedule.ir import Message, Schedule
from taccl_py.topology.model import Topology

# Chunks of these belong to no rank: where data begins and ends is the same, whatever the ranks are called.
OF_NO_RANK = frozenset({Kind.ALLREDUCE, Kind.BROADCAST, Kind.REDUCE})


def image_of_schedule(schedule: Schedule, topology: Topology, renaming: Sequence[int]) -> Schedule:
    """The schedule with rank r renamed ``renaming[r]``, on the machine that is its own one so renamed.

    Chunks that belong to a rank go with it. Messages whose chunks then lie apart in a buffer are packed.

    Parameters
    ----------
    schedule
        A schedule.
    topology
        The other machine.
    renaming
        New name of every rank; the root keeps its own.

    Raises
    ------
    InputError
        If the other machine lacks a link, or the root moves.
    """
    collective, known = schedule.collective, schedule.topology
    chunks = renamed_chunks(collective, renaming)
    scratch: list[tuple[int, ...]] = [()] * known.num_ranks
    for rank, kept in enumerate(schedule.scratch):
        scratch[renaming[rank]] = kept if chunks is None else tuple(chunks[chunk] for chunk in kept)
    messages = []
    for message in schedule.messages:
        link = known.links[message.link]
        lanes = topology.links_between.get((renaming[link.src], renaming[link.dst]), ())
        lane = known.lane[message.link]
        if lane >= len(lanes):
            raise InputError(f"{topology.name} has no image of link {link.src}->{link.dst} of {known.name}")
        carried = message.chunks if chunks is None else tuple([chunks[chunk] for chunk in message.chunks])
        messages.append(Message(lanes[lane], carried, message.start_us, message.end_us, message.reduce, message.packed))
    image = replace(schedule, topology=topology, messages=tuple(messages), scratch=tuple(scratch))
    return (image if chunks is None else _packed(image)).as_image_of(schedule)


def renamed_chunks(collective: Collective, renaming: Sequence[int]) -> list[int] | None:
    """New number of every chunk; None where chunks belong to no rank, and keep theirs.

    Raises
    ------
    InputError
        If the root moves.
    """
    image = tuple(renaming)
    if image[collective.root] != collective.root and collective.kind in ROOTED:
        raise InputError(f"the root {collective.root} would become {image[collective.root]}")
    if collective.kind in OF_NO_RANK:
        return None
    found = [collective.permuted_chunk(chunk, image) for chunk in range(collective.num_chunks)]
    return [chunk for chunk in found if chunk is not None]


def _packed(schedule: Schedule) -> Schedule:
    """The schedule with those messages packed whose chunks do not lie one behind the other at both ends."""
    messages = [
        message if message.packed or _is_contiguous(schedule, message) else replace(message, packed=True)
        for message in schedule.messages
    ]
    return replace(schedule, messages=tuple(messages))


def _is_contiguous(schedule: Schedule, message: Message) -> bool:
    link = schedule.topology.links[message.link]
    for rank in (link.src, link.dst):
        first = schedule.address(message.chunks[0], rank)
        for number, chunk in enumerate(message.chunks):
            there = schedule.address(chunk, rank)
            if first is None or there is None or there != replace(first, offset=first.offset + number):
                return False
    return True

"""Group schedules recognized in schedules: engines that solve one node or one rank for all write down everyone's messages.

A symmetry of the machine that takes every message to another one of the schedule, at the same time and with the images of its chunks,
is one of the schedule. Of those that are, the translations (`taccl_py.topology.translations`) make it a group schedule, whose base is
what the roots send.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from taccl_py.collective import Kind
from taccl_py.schedule.group import GROUP_KINDS, GroupSchedule
from taccl_py.schedule.ir import Message, Schedule
from taccl_py.topology.model import Topology
from taccl_py.topology.translations import Translations

_Key = tuple[int, frozenset[int], float, float, bool]


def as_group(schedule: Schedule) -> GroupSchedule | None:
    """The same schedule as base and symmetry; None if it is not symmetric, or its collective has a root.

    The symmetry is sought among the machine's own generators; of several nodes, those that leave nodes in one piece, so that chunks of
    ranks of one node stay neighbours.
    """
    topology, collective = schedule.topology, schedule.collective
    if collective.kind not in GROUP_KINDS or not schedule.messages or not topology.symmetry:
        return None
    present = Counter(map(_key, schedule.messages))
    whole = [image for image in topology.symmetry if topology.num_nodes == 1 or _moves_whole_nodes(topology, image)]
    kept = [image for image in whole if _keeps(schedule, present, image)]
    translations = Translations.of(kept, topology.num_ranks)
    if translations is None:
        return None
    roots = set(translations.roots)
    base = (
        # Chunks that are neighbours may have images that are not.
        replace(message, packed=len(message.chunks) > 1)
        for message in schedule.messages
        if topology.links[message.link].src in roots
    )
    return GroupSchedule(
        topology, collective.kind, collective.chunks_per_rank, schedule.chunk_bytes, translations.generators, tuple(base),
        schedule.origin, tuple(schedule.scratch[root] for root in translations.roots),
    )  # fmt: skip


def _moves_whole_nodes(topology: Topology, image: Sequence[int]) -> bool:
    """True if neighbouring ranks of a node are neighbours in the image too."""
    return all(image[rank] + 1 == image[then] for ranks in topology.node_ranks for rank, then in pairwise(ranks))


def _key(message: Message) -> _Key:
    return message.link, frozenset(message.chunks), message.start_us, message.end_us, message.reduce


def _keeps(schedule: Schedule, present: Counter[_Key], image: Sequence[int]) -> bool:
    """True if a rank permutation takes messages to messages of the schedule."""
    topology, moved = schedule.topology, _moved_chunks(schedule, image)
    for message in schedule.messages:
        link = topology.links[message.link]
        lanes, lane = topology.links_between.get((image[link.src], image[link.dst]), ()), topology.lane[message.link]
        if lane >= len(lanes):
            return False
        there = replace(message, link=lanes[lane], chunks=tuple(moved[chunk] for chunk in message.chunks))
        if present[_key(there)] != present[_key(message)]:
            return False
    return True


def _moved_chunks(schedule: Schedule, image: Sequence[int]) -> list[int]:
    """Image of every chunk: it is one of a rank's shard, or of what a rank has for another one."""
    collective = schedule.collective
    owners = list(image)
    if collective.kind is Kind.ALLTOALL:
        owners = [src * len(image) + dst for src in image for dst in image]
    parts = range(collective.chunks_per_rank)
    return [owner * collective.chunks_per_rank + part for owner in owners for part in parts]

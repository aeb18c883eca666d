"""Schedules from schedules: combining collectives are routed ones run backwards, and AllReduce is two of them in a row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, groupby, pairwise
from operator import itemgetter

from taccl_py.collective import Collective, Kind
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.schedule.ir import Schedule
from taccl_py.schedule.layout import ChunkBlocks, UntimedMessage
from taccl_py.schedule.timing import build_schedule, dispatch_messages, find_deliveries, time_messages
from taccl_py.tolerances import RELATIVE
from taccl_py.topology.model import Topology

_COMBINED = {Kind.BROADCAST: Kind.REDUCE, Kind.ALLGATHER: Kind.REDUCESCATTER}


def untimed_messages(schedule: Schedule | DemandSchedule, offset: float = 0.0) -> list[UntimedMessage]:
    """The messages of a schedule as a plan, all times shifted by `offset`."""
    return [
        UntimedMessage(m.link, m.chunks, m.start_us + offset, m.end_us + offset, m.reduce, packed=m.packed)
        for m in schedule.messages
    ]


def backwards(schedule: Schedule, topology: Topology) -> list[UntimedMessage]:
    """Plan of the combining collective: every message reversed, at the mirrored time, adding instead of storing.

    Parameters
    ----------
    schedule
        A Broadcast or AllGather on ``topology.reversed()``.
    topology
        The machine that the combining collective runs on.
    """
    original = [0] * len(topology.links)
    for link, turned in enumerate(topology.reversed_link()):
        original[turned] = link
    end = schedule.makespan_us
    return [
        UntimedMessage(original[m.link], m.chunks, end - m.end_us, end - m.start_us, reduce=True, packed=m.packed)
        for m in schedule.messages
    ]


def is_reversible(topology: Topology, chunk_bytes: float) -> bool:
    """True if schedules of single chunks can be run backwards at the mirrored times.

    A message occupies its ports from its start. Backwards it would have to from its end, which is the same but for a shift if
    all that shares a port arrives equally long after it has left the port.
    """
    after: dict[int, float] = {}
    for index in range(len(topology.links)):
        for resource in topology.resources_of[index]:
            delay = topology.message_us(index, chunk_bytes) - topology.occupancy_us(resource, chunk_bytes)
            if abs(after.setdefault(resource, delay) - delay) > RELATIVE * max(1.0, delay):
                return False
    return True


def combining(schedule: Schedule, topology: Topology) -> Schedule:
    """Reduce from a Broadcast, or ReduceScatter from an AllGather, on the reversed machine."""
    collective = replace(schedule.collective, kind=_COMBINED[schedule.collective.kind])
    return _reordered(build_schedule(topology, collective, schedule.chunk_bytes, backwards(schedule, topology)))


def allreduce(gather: Schedule, reversed_gather: Schedule) -> Schedule:
    """AllReduce: the reversed AllGather backwards, then the AllGather; a chunk starts out as soon as its sum is complete.

    Parameters
    ----------
    gather
        AllGather on the machine.
    reversed_gather
        AllGather on the reversed machine.
    """
    topology = gather.topology
    collective = Collective(Kind.ALLREDUCE, gather.collective.num_ranks, gather.collective.chunks_per_rank)
    first = backwards(reversed_gather, topology)
    second = untimed_messages(gather, offset=reversed_gather.makespan_us)
    return _reordered(build_schedule(topology, collective, gather.chunk_bytes, [*first, *second]))


def reduce_of(schedule: Schedule, root: int) -> Schedule:
    """Reduce from an AllReduce: what arrives at the root, and all that this waits for; the root's own part may be added elsewhere."""
    topology, whole = schedule.topology, schedule.collective
    untimed = untimed_messages(schedule)
    needs = find_deliveries(topology, untimed)
    kept = {number for number, message in enumerate(untimed) if topology.links[message.link].dst == root}
    waiting = list(kept)
    while waiting:
        new = needs[waiting.pop()] - kept
        kept |= new
        waiting += new
    collective = Collective(Kind.REDUCE, whole.num_ranks, whole.num_chunks, root)
    return build_schedule(topology, collective, schedule.chunk_bytes, [untimed[number] for number in sorted(kept)])


def _reordered(schedule: Schedule) -> Schedule:
    """The same messages in another order at the ports if that is faster; mirrored times are best where they can be kept."""
    return schedule if is_reversible(schedule.topology, schedule.chunk_bytes) else dispatched(schedule)


def dispatched(schedule: Schedule) -> Schedule:
    """The same messages, sent in an order of their own if that is faster: of those that could go first, what has the longest path to go."""
    messages = dispatch_messages(schedule.topology, schedule.chunk_bytes, untimed_messages(schedule))
    other = replace(schedule, messages=messages)
    return other if other.makespan_us < schedule.makespan_us else schedule


def mirrored(schedule: Schedule) -> Schedule | None:
    """The same schedule on the reversed machine, or None if that machine differs from this one.

    Every message keeps its ranks and its times; ports are the other machine's own.
    """
    topology = schedule.topology
    turned = topology.reversed()
    link_of = _links_between_the_same(topology, turned)
    if link_of is None or not all(_same_cost(topology, link, turned, other) for link, other in enumerate(link_of)):
        return None
    untimed = [replace(message, link=link_of[message.link]) for message in untimed_messages(schedule)]
    copy = build_schedule(turned, schedule.collective, schedule.chunk_bytes, untimed)
    return copy if copy.makespan_us <= schedule.makespan_us * (1 + RELATIVE) else None


def links_of_own_reverse(topology: Topology) -> list[int] | None:
    """Link of the reversed machine for each link, if both machines are one but for the numbers of links and ports; else None."""
    turned = topology.reversed()
    link_of = _links_between_the_same(topology, turned)
    if link_of is None:
        return None
    pairs: set[tuple[int, int]] = set()
    for link, other in enumerate(link_of):
        here, there = topology.resources_of[link], turned.resources_of[other]
        if len(here) != len(there) or topology.links[link].latency_us != turned.links[other].latency_us:
            return None
        pairs.update(zip(here, there, strict=True))
    is_one_to_one = len(pairs) == len({one for one, _ in pairs}) == len({two for _, two in pairs})
    costs_the_same = all(topology.resource_cost[one] == turned.resource_cost[two] for one, two in pairs)
    return link_of if is_one_to_one and costs_the_same else None


def _links_between_the_same(topology: Topology, turned: Topology) -> list[int] | None:
    """Link of the reversed machine that joins the same ranks, for each link; None if there are not as many."""
    found = []
    for index, link in enumerate(topology.links):
        lanes = turned.links_between.get((link.src, link.dst), ())
        if topology.lane[index] >= len(lanes):
            return None
        found.append(lanes[topology.lane[index]])
    return found


def _same_cost(one: Topology, link: int, other: Topology, other_link: int) -> bool:
    costs = sorted(one.resource_cost[r] for r in one.resources_of[link])
    others = sorted(other.resource_cost[r] for r in other.resources_of[other_link])
    return costs == others and one.links[link].latency_us == other.links[other_link].latency_us


def in_pieces(schedule: Schedule, pieces: int, most_messages: float = math.inf) -> Schedule | None:
    """The same paths with the largest messages in at least so many pieces that follow each other, and others in pieces no larger than those.

    Forwards and sums then start with the first piece while others are still in flight. Chunks that always go together are cut at the same
    places in all messages, so that what arrives is what is sent on; chunks are cut where there are not enough of them. Messages that meet
    in one sum, which neither wait nor are waited for, begin with different pieces if there are enough, so that only one of the sums is
    left when the last pieces arrive. The result may be invalid where a message must not start after the arrival of another. It is None if it
    has more than so many messages.
    """
    cut, parts_of = _pieces_of_messages(schedule, pieces)
    if sum(map(len, parts_of)) > most_messages:
        return None
    first = _first_pieces(schedule, [len(parts) for parts in parts_of])
    collective = replace(schedule.collective, chunks_per_rank=schedule.collective.chunks_per_rank * cut)
    untimed: list[UntimedMessage] = []
    for number, (message, parts) in enumerate(zip(schedule.messages, parts_of, strict=True)):
        turn = first.get(number, 0)
        start, rate = message.start_us, (message.end_us - message.start_us) / (len(message.chunks) * cut)
        for part in (*parts[turn:], *parts[:turn]):
            end = start + rate * len(part)
            untimed.append(UntimedMessage(message.link, part, start, end, message.reduce, packed=message.packed))
            start = end
    return build_schedule(schedule.topology, collective, schedule.chunk_bytes / cut, untimed)


def largest_message(schedule: Schedule) -> int:
    """Chunks of the largest message."""
    return max((len(message.chunks) for message in schedule.messages), default=1)


def _pieces_of_messages(schedule: Schedule, pieces: int) -> tuple[int, list[list[tuple[int, ...]]]]:
    """Number of parts of each chunk, of which the largest messages can be cut into equal pieces; and those that each piece of each message has.

    Chunks that always go together are a block. Large blocks are several pieces; small ones that follow each other are one as far as a
    message has them all.
    """
    untimed, largest = untimed_messages(schedule), largest_message(schedule)
    cut = pieces // math.gcd(pieces, largest)
    most = largest * cut // pieces
    blocks = ChunkBlocks.of(schedule.collective, untimed)
    parts_of: list[list[tuple[int, range]]] = []
    number = room = 0
    for first, end in pairwise(border * cut for border in blocks.borders):
        size = end - first
        count = -(-size // most)
        if size > room:
            number, room = number + 1, most
        room = room - size if count == 1 else 0
        places = [first + size * part // count for part in range(count + 1)]
        parts_of.append([(number + part, range(*ends)) for part, ends in enumerate(pairwise(places))])
        number += count - 1
    return cut, [
        [tuple(chain.from_iterable(part for _, part in of_piece)) for _, of_piece in groupby(
            chain.from_iterable(parts_of[block] for block in blocks.coarse(message).chunks), key=itemgetter(0)
        )]
        for message in untimed
    ]  # fmt: skip


def _first_pieces(schedule: Schedule, pieces: Sequence[int]) -> dict[int, int]:
    """Piece that comes first, of messages that meet in one sum, which neither wait for others nor are waited for."""
    links = schedule.topology.links
    sent = {(links[message.link].src, chunk) for message in schedule.messages for chunk in message.chunks}
    came = {(links[message.link].dst, chunk) for message in schedule.messages for chunk in message.chunks}
    meeting: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for number, message in enumerate(schedule.messages):
        src, dst = links[message.link].src, links[message.link].dst
        if message.reduce and all((src, c) not in came and (dst, c) not in sent for c in message.chunks):
            meeting.setdefault((dst, message.chunks), []).append(number)
    return {
        number: place * pieces[number] // len(numbers)
        for numbers in meeting.values()
        if len(numbers) <= pieces[numbers[0]]
        for place, number in enumerate(numbers)
    }


def resized(schedule: Schedule, chunk_bytes: float) -> Schedule:
    """The same decisions with chunks of another size; its provenance, which is of one size, is left out."""
    messages = time_messages(schedule.topology, chunk_bytes, untimed_messages(schedule))
    return replace(schedule, chunk_bytes=chunk_bytes, messages=messages, origin=None)

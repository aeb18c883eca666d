"""The verifier of group schedules: looks at the base and the symmetry, and never at the whole.

Why that is enough. If the generators are symmetries of the machine, commute, and no combination of them keeps one rank in place and
moves another, they generate a group with exactly one element for every pair of ranks that can be taken to each other. So every link
sees each base message of its orbit once; a port whose orbit is smaller than the group sees it several times, at the same time. Times
on one link or port are right if those of the base are right on the orbit. What a rank does with its data is what the smallest rank
that it can be taken to, its *root*, does with its own, renamed, and different ranks' data has nothing to do with each other but for
links and ports.

Nothing is taken from the code that makes group schedules. Times are compared as in `taccl_py.verify.schedule`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from taccl_py.collective import Kind
from taccl_py.errors import Violation
from taccl_py.schedule.group import GROUP_KINDS, GroupSchedule
from taccl_py.schedule.ir import Message
from taccl_py.topology.model import Topology
from taccl_py.verify.moments import arrival_us, slack_us

IntArray = NDArray[np.int64]


def verify_group(schedule: GroupSchedule) -> tuple[Violation, ...]:
    """Return all errors to a group schedule; none means that the whole schedule is correct.

    Rules: ``collective``, ``chunk-size``, ``not-a-permutation``, ``not-a-symmetry``, ``not-commuting``, ``not-free``,
    ``no-such-link``, ``no-such-chunk``, ``not-packed``, ``bad-time``, ``wrong-duration``, ``overlap``, ``not-held``, ``redundant``,
    ``wrong-reduce``, ``missing``, ``incomplete-sum``.
    """
    if schedule.kind not in GROUP_KINDS:
        return (Violation("", "collective", f"{schedule.kind} has a root, which a symmetry would move"),)
    if not (math.isfinite(schedule.chunk_bytes) and schedule.chunk_bytes > 0 and schedule.chunks_per_rank > 0):
        return (
            Violation("", "chunk-size", f"a chunk has {schedule.chunk_bytes} bytes; size and number must be above 0"),
        )
    found = list(_check_group(schedule))
    label = _orbits(schedule.topology.num_ranks, [np.array(g, dtype=np.int64) for g in schedule.generators])
    roots = np.unique(label).tolist()
    found += [] if found else _check_free(schedule, label, roots)
    found += _check_messages(schedule, roots)
    if found:
        return tuple(found)
    found += _check_overlaps(schedule, len(label) // len(roots))
    found += _check_data(schedule, roots)
    return tuple(found)


def _check_group(schedule: GroupSchedule) -> Iterable[Violation]:
    topology = schedule.topology
    size = topology.num_ranks
    images = []
    for number, generator in enumerate(schedule.generators):
        where = f"generator {number}"
        if sorted(generator) != list(range(size)):
            yield Violation(where, "not-a-permutation", f"is no permutation of the ranks 0..{size - 1}")
            return
        if _resource_image(topology, generator) is None:
            yield Violation(where, "not-a-symmetry", "does not take every link to one of the same cost and ports")
        images.append(np.array(generator, dtype=np.int64))
    for number, image in enumerate(images):
        for other in range(number):
            if not np.array_equal(image[images[other]], images[other][image]):
                yield Violation(f"generator {number}", "not-commuting", f"does not commute with generator {other}")


def _check_free(schedule: GroupSchedule, label: IntArray, roots: Sequence[int]) -> Iterable[Violation]:
    """Check that elements that take rank 0 to the same rank are the same: they take all other roots to the same ranks too.

    As there are then as many elements as there are ranks that rank 0 is taken to, and every other root is taken to as many, an element
    that keeps a rank in place, and by commuting all that it can be taken to, is one of those that keep rank 0 in place.
    """
    members = np.bincount(label, minlength=len(label))[roots]
    if (members != members[0]).any():
        other = roots[int(np.argmax(members != members[0]))]
        yield Violation(
            "", "not-free", f"rank 0 is taken to {members[0]} ranks, and rank {other} to another number of them"
        )
        return
    images = [np.array(generator, dtype=np.int64) for generator in schedule.generators]
    taken = np.full((len(label), len(roots)), -1, dtype=np.int64)
    taken[0] = roots
    front = np.zeros(1, dtype=np.int64)
    while len(front):
        new = []
        for image in images:
            there, goes = image[front], image[taken[front]]
            fresh = taken[there, 0] < 0
            taken[there[fresh]] = goes[fresh]
            new.append(there[fresh])
            wrong = np.argwhere(taken[there] != goes)
            if len(wrong):
                root = roots[int(wrong[0, 1])]
                yield Violation("", "not-free", f"some combination keeps rank 0 in place and moves rank {root}")
                return
        front = np.concatenate(new) if new else front[:0]


def _resource_image(topology: Topology, image: Sequence[int]) -> IntArray | None:
    """Image of every link and port under a renaming of the ranks, or None if it is no symmetry."""
    num_links = len(topology.links)
    taken = np.full(topology.num_resources, -1, dtype=np.int64)
    for index, link in enumerate(topology.links):
        lanes = topology.links_between.get((image[link.src], image[link.dst]), ())
        lane = topology.lane[index]
        if lane >= len(lanes):
            return None
        other = topology.links[lanes[lane]]
        if (link.alpha_us, link.beta_us_per_mb, link.latency_us) != (
            other.alpha_us, other.beta_us_per_mb, other.latency_us
        ) or len(link.ports) != len(other.ports):  # fmt: skip
            return None
        taken[index] = lanes[lane]
        for port, to in zip(link.ports, other.ports, strict=True):
            here, there = topology.ports[port], topology.ports[to]
            same = (here.alpha_us, here.beta_us_per_mb) == (there.alpha_us, there.beta_us_per_mb)
            if not same or taken[num_links + port] not in (-1, num_links + to):
                return None
            taken[num_links + port] = num_links + to
    unused = taken < 0
    taken[unused] = np.flatnonzero(unused)
    return taken if len(np.unique(taken)) == len(taken) else None


def _check_messages(schedule: GroupSchedule, roots: Sequence[int]) -> Iterable[Violation]:
    topology = schedule.topology
    known = _chunks_of(schedule, roots)
    for number, message in enumerate(schedule.base):
        where = f"base message {number}"
        if not 0 <= message.link < len(topology.links):
            yield Violation(where, "no-such-link", f"uses link {message.link} of {len(topology.links)}")
            continue
        chunks = message.chunks
        if not chunks or len(set(chunks)) < len(chunks) or not known.issuperset(chunks):
            yield Violation(
                where, "no-such-chunk", f"carries {chunks}; those of {_names(roots)} that move may, each once"
            )
            continue
        if message.packed != (len(chunks) > 1) or (message.reduce and len(chunks) > 1):
            yield Violation(where, "not-packed", "several chunks are packed, and not added; a single one is not packed")
        if not (math.isfinite(message.start_us) and math.isfinite(message.end_us) and message.start_us >= 0):
            yield Violation(where, "bad-time", f"goes from {message.start_us} to {message.end_us} us")
            continue
        right = topology.message_us(message.link, schedule.chunk_bytes * len(chunks))
        took = message.end_us - message.start_us
        if abs(took - right) > slack_us(right, message.end_us):
            yield Violation(where, "wrong-duration", f"takes {took:.9g} us; {right:.9g} us are right on this link")


def _chunks_of(schedule: GroupSchedule, roots: Sequence[int]) -> set[int]:
    """Chunks of the roots that have to move."""
    size, parts = schedule.topology.num_ranks, schedule.chunks_per_rank
    shards = list(roots)
    if schedule.kind is Kind.ALLTOALL:
        shards = [root * size + rank for root in roots for rank in range(size) if rank != root]
    return {shard * parts + part for shard in shards for part in range(parts)}


def _names(roots: Sequence[int]) -> str:
    return f"rank{'s' if len(roots) > 1 else ''} {', '.join(map(str, roots[:8]))}{', ...' if len(roots) > 8 else ''}"


def _check_overlaps(schedule: GroupSchedule, elements: int) -> Iterable[Violation]:
    """On every orbit of links and of ports, one message at a time."""
    topology = schedule.topology
    images = [_resource_image(topology, generator) for generator in schedule.generators]
    orbit = _orbits(topology.num_resources, [image for image in images if image is not None])
    members = np.bincount(orbit, minlength=topology.num_resources)
    users: dict[int, list[int]] = {}
    for number, message in enumerate(schedule.base):
        for resource in topology.resources_of[message.link]:
            users.setdefault(int(orbit[resource]), []).append(number)
    for resource in sorted(users):
        copies = elements // int(members[resource])
        if copies > 1 and topology.occupancy_us(resource, schedule.chunk_bytes) > 0:
            yield Violation(
                f"base message {users[resource][0]}", "overlap",
                f"occupies {topology.resource_name(resource)} {copies} times at once, as its symmetry keeps it in place",
            )  # fmt: skip
            continue
        free = -math.inf
        for number in sorted(users[resource], key=lambda i: schedule.base[i].start_us):
            start = schedule.base[number].start_us
            size_bytes = schedule.chunk_bytes * len(schedule.base[number].chunks)
            occupancy = topology.occupancy_us(resource, size_bytes)
            if start < free:
                yield Violation(
                    f"base message {number}", "overlap",
                    f"starts at {start:.9g} us, when {topology.resource_name(resource)} or an image of it is still busy",
                )  # fmt: skip
            free = start + occupancy - slack_us(occupancy, start + occupancy)


def _orbits(size: int, images: list[IntArray]) -> IntArray:
    """Smallest member of every element's orbit, found by walking."""
    label = np.full(size, -1, dtype=np.int64)
    steps = [image.tolist() for image in images]
    for first in range(size):
        if label[first] >= 0:
            continue
        label[first] = first
        front = [first]
        while front:
            element = front.pop()
            for step in steps:
                if label[step[element]] < 0:
                    label[step[element]] = first
                    front.append(step[element])
    return label


def _check_data(schedule: GroupSchedule, roots: Sequence[int]) -> Iterable[Violation]:
    kind, size, parts = schedule.kind, schedule.topology.num_ranks, schedule.chunks_per_rank
    carried: dict[int, list[tuple[int, Message]]] = {}
    for number, message in enumerate(schedule.base):
        for chunk in message.chunks:
            carried.setdefault(chunk, []).append((number, message))
        if message.reduce and kind in (Kind.ALLGATHER, Kind.ALLTOALL):
            yield Violation(f"base message {number}", "wrong-reduce", f"adds, but {kind} sums nothing")
    for chunk in sorted(_chunks_of(schedule, roots)):
        messages, shard = carried.get(chunk, []), chunk // parts
        if kind is Kind.ALLTOALL:
            yield from _check_spread(schedule, messages, {shard // size: 0.0}, (shard % size,))
        else:
            yield from _check_chunk(schedule, messages, shard)


def _check_chunk(schedule: GroupSchedule, messages: list[tuple[int, Message]], root: int) -> Iterable[Violation]:
    """Violations in one chunk's messages, of a collective in which everyone wants, or sums, everything."""
    kind = schedule.kind
    sums = [(number, message) for number, message in messages if message.reduce]
    copies = [(number, message) for number, message in messages if not message.reduce]
    ready_us = 0.0
    if kind is not Kind.ALLGATHER:
        yield from _check_sum(schedule, sums, root)
        ready_us = max((arrival_us(m) for _, m in sums if schedule.topology.links[m.link].dst == root), default=0.0)
    if kind is Kind.REDUCESCATTER:
        for number, _ in copies:
            yield Violation(f"base message {number}", "wrong-reduce", f"does not add; in {kind} everything does")
    else:
        yield from _check_spread(schedule, copies, {root: ready_us}, range(schedule.topology.num_ranks))


def _check_spread(
    schedule: GroupSchedule, messages: list[tuple[int, Message]], held: dict[int, float], wanting: Iterable[int]
) -> Iterable[Violation]:
    """A chunk spreads from its root: nobody sends it before having it, nobody gets it twice, all who want it get it."""
    (root,) = held
    for number, message in sorted(messages, key=lambda item: (item[1].start_us, item[1].end_us)):
        link = schedule.topology.links[message.link]
        where = f"base message {number}"
        if held.get(link.src, math.inf) > message.start_us:
            yield Violation(
                where, "not-held", f"starts at {message.start_us:.9g} us, before rank {link.src} has the chunk"
            )
        if link.dst in held:
            yield Violation(
                where, "redundant", f"brings the chunk to rank {link.dst}, which has it or gets it otherwise"
            )
        held[link.dst] = arrival_us(message)
    for rank in wanting:
        if rank not in held:
            yield Violation(f"rank {rank}", "missing", f"a chunk of rank {root} that it wants never arrives")


def _check_sum(schedule: GroupSchedule, messages: list[tuple[int, Message]], root: int) -> Iterable[Violation]:
    """Every rank but the root sends its sum on once, after all that is added to it has arrived; so all of it reaches the root."""
    links = schedule.topology.links
    sent: dict[int, int] = {}
    latest_us: dict[int, float] = {}
    for number, message in messages:
        src, dst = links[message.link].src, links[message.link].dst
        if src in sent or src == root:
            yield Violation(f"base message {number}", "redundant", f"adds what rank {src} holds a second time")
        sent[src] = number
        latest_us[dst] = max(latest_us.get(dst, 0.0), arrival_us(message))
    for rank in range(schedule.topology.num_ranks):
        if rank == root:
            continue
        if rank not in sent:
            yield Violation(
                f"rank {rank}", "incomplete-sum", f"its contribution to the sum of rank {root} is never sent on"
            )
        elif schedule.base[sent[rank]].start_us < latest_us.get(rank, 0.0):
            yield Violation(
                f"base message {sent[rank]}",
                "incomplete-sum",
                f"leaves rank {rank} before all that is added there has come",
            )

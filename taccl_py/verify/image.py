"""The verifier of images: schedules and programs that are others, already verified, with the ranks renamed.

What is right stays right if ranks are renamed and the machine with them, as long as what every rank holds at first and wants at the end
is renamed likewise. So of an image it is enough that the renaming is one, that it takes one machine to the other, and that it takes
the messages, or the steps, of the one to those of the other, each exactly once and nothing else. Data that belongs to no rank (all of
AllReduce, Broadcast and Reduce) keeps its place; data that belongs to ranks moves with them, and must lie in one piece where it did.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from taccl_py.collective import ROOTED, Address, Collective, Kind
from taccl_py.errors import Violation
from taccl_py.schedule.ir import Message, Schedule
from taccl_py.topology.model import Topology

# Buffers that hold a part for each rank; the part of rank r is the r-th.
_PARTED = {
    Kind.ALLREDUCE: "", Kind.BROADCAST: "", Kind.REDUCE: "", Kind.ALLGATHER: "o", Kind.GATHER: "o", Kind.REDUCESCATTER: "i",
    Kind.SCATTER: "i", Kind.ALLTOALL: "io",
}  # fmt: skip
# Of these the chunks of a loop are those of one part.
_OF_ONE_PART = (Kind.GATHER, Kind.SCATTER)
_GPU = re.compile(r'<gpu id="([0-9]+)"')
_PEERS = re.compile(r' send="(-?[0-9]+)" recv="(-?[0-9]+)"')
_CELLS = re.compile(r'srcbuf="([ios])" srcoff="([0-9]+)" dstbuf="([ios])" dstoff="([0-9]+)" cnt="([0-9]+)"')
_LOOP = re.compile(r'nchunksperloop="([0-9]+)"')


def verify_image(image: Schedule, known: Schedule, renaming: Sequence[int]) -> tuple[Violation, ...]:
    """Return errors to a schedule that is said to be another one renamed; none means that it is as correct as that.

    Parameters
    ----------
    image
        The schedule.
    known
        A schedule that the verifier accepts.
    renaming
        Name in the image of every rank of the other.

    Rules: ``renaming``, ``collective``, ``machine``, ``scratch``, ``messages``, ``not-contiguous``.
    """
    ranks, collective = known.topology.num_ranks, known.collective
    if sorted(renaming) != list(range(ranks)) or image.topology.num_ranks != ranks:
        return (Violation("", "renaming", f"the new names are not those of {ranks} ranks, each once"),)
    if image.collective != collective or image.chunk_bytes != known.chunk_bytes:
        return (Violation("", "collective", "it is for another collective, or for chunks of another size"),)
    if collective.kind in ROOTED and renaming[collective.root] != collective.root:
        return (Violation("", "renaming", f"the root {collective.root} becomes {renaming[collective.root]}"),)
    links = _renamed_links(known.topology, image.topology, renaming)
    if isinstance(links, str):
        return (Violation("", "machine", links),)
    chunks = _renamed_chunks(collective, renaming)
    for rank, kept in enumerate(known.scratch):
        if image.scratch[renaming[rank]] != tuple(chunks[chunk] for chunk in kept):
            return (
                Violation(f"rank {renaming[rank]}", "scratch", f"it keeps other chunks in scratch than rank {rank}"),
            )
    return _compare_messages(image, known, links, chunks)


def _compare_messages(
    image: Schedule, known: Schedule, links: Sequence[int], chunks: Sequence[int]
) -> tuple[Violation, ...]:
    keeps = not _PARTED[known.collective.kind]  # every chunk its number
    moved = [
        Message(
            links[m.link],
            m.chunks if keeps else tuple([chunks[c] for c in m.chunks]),
            m.start_us, m.end_us, m.reduce, m.packed,
        )
        for m in known.messages
    ]  # fmt: skip
    there = sorted(moved, key=_order)
    if len(there) != len(image.messages):
        what = f"there are {len(image.messages)} messages, and {len(there)} in what it is an image of"
        return (Violation("", "messages", what),)
    for number, (mine, theirs) in enumerate(zip(sorted(image.messages, key=_order), there, strict=True)):
        if mine != theirs and mine != replace(theirs, packed=True):
            where = image.topology.links[mine.link]
            what = f"no message {where.src}->{where.dst} at {mine.start_us:g} us with these chunks has this image"
            return (Violation(f"message {number} in order of time", "messages", what),)
        if not mine.packed and len(mine.chunks) > 1 and not _lies_in_one_piece(image, mine):
            return (Violation(f"message {number} in order of time", "not-contiguous", "its chunks lie apart now"),)
    return ()


def _order(message: Message) -> tuple[float, int, tuple[int, ...], float, bool]:
    return message.start_us, message.link, message.chunks, message.end_us, message.reduce


def _lies_in_one_piece(schedule: Schedule, message: Message) -> bool:
    if not _PARTED[schedule.collective.kind]:
        return True
    link = schedule.topology.links[message.link]
    for rank in (link.src, link.dst):
        first = schedule.address(message.chunks[0], rank)
        if first is None:
            return False
        for number, chunk in enumerate(message.chunks):
            if schedule.address(chunk, rank) != Address(first.buffer, first.offset + number):
                return False
    return True


def _renamed_chunks(collective: Collective, renaming: Sequence[int]) -> Sequence[int]:
    parts, ranks = collective.chunks_per_rank, len(renaming)
    if not _PARTED[collective.kind]:
        return range(collective.num_chunks)
    owners = list(renaming)
    if collective.kind is Kind.ALLTOALL:
        owners = [source * ranks + target for source in renaming for target in renaming]
    return [owner * parts + part for owner in owners for part in range(parts)]


def _renamed_links(known: Topology, image: Topology, renaming: Sequence[int]) -> list[int] | str:
    """Link of the image for every link of the machine that is known, or why one machine is not the other renamed."""
    if len(image.links) != len(known.links):
        return f"{image.name} has {len(image.links)} links, and {known.name} {len(known.links)}"
    found: list[int] = []
    port_of: dict[int, int] = {}
    for number, link in enumerate(known.links):
        ends = renaming[link.src], renaming[link.dst]
        lanes, lane = image.links_between.get(ends, ()), known.lane[number]
        if lane >= len(lanes):
            return f"{image.name} has no link {ends[0]}->{ends[1]} for {link.src}->{link.dst}"
        other = image.links[lanes[lane]]
        if replace(other, src=link.src, dst=link.dst, ports=link.ports) != link or len(other.ports) != len(link.ports):
            return f"link {ends[0]}->{ends[1]} costs something else than {link.src}->{link.dst}"
        for mine, theirs in zip(link.ports, other.ports, strict=True):
            one, two = known.ports[mine], image.ports[theirs]
            same_cost = (one.alpha_us, one.beta_us_per_mb) == (two.alpha_us, two.beta_us_per_mb)
            if port_of.setdefault(mine, theirs) != theirs or not same_cost:
                return f"port {one.name!r} is not {two.name!r} renamed"
        found.append(lanes[lane])
    if len(set(port_of.values())) < len(port_of):
        return "two ports have become one"
    return found


def verify_program_image(text: str, known: str, renaming: Sequence[int], kind: Kind) -> tuple[Violation, ...]:
    """Return errors to the MSCCL XML of a program that is said to be another one renamed; none means that it is as correct as that.

    Parameters
    ----------
    text
        The text.
    known
        Text that the verifier accepts, in the form that this tool writes.
    renaming
        Name in the image of every rank of the other.
    kind
        Collective of both; the caller knows that the renaming keeps the root.

    Rules: ``renaming``, ``program``.
    """
    if sorted(renaming) != list(range(len(renaming))):
        return (Violation("", "renaming", "the new names are not those of all ranks, each once"),)
    mine, theirs = _by_rank(text), _by_rank(known)
    if mine is None or theirs is None or set(mine) != set(theirs) or mine.get(-1) != theirs.get(-1):
        return (Violation("", "program", "its head, or its list of ranks, is another one"),)
    loop = _LOOP.search(theirs[-1])
    chunks = int(loop.group(1)) if loop else 0
    cells = _RankPlaces(renaming, _PARTED[kind], chunks if kind in _OF_ONE_PART else chunks // len(renaming))
    for rank, new in enumerate(renaming):
        moved = cells.moved(_PEERS.sub(lambda peers: _renamed_peers(peers, renaming), theirs[rank]))
        if moved is None or mine[new] != moved:
            what = f"it does not do what rank {rank} does, renamed"
            return (Violation(f"gpu {new}", "program", what),)
    return ()


def _by_rank(text: str) -> dict[int, str] | None:
    """Text of every rank by its number, and under -1 that before the first one; None if a rank stands twice."""
    parts = _GPU.split(text)
    ranks = [int(number) for number in parts[1::2]]
    if len(set(ranks)) < len(ranks):
        return None
    # Behind the last rank, wherever it stands, the text ends.
    bodies = [body.removesuffix("</algo>\n").rstrip() for body in parts[2::2]]
    return {-1: parts[0], **dict(zip(ranks, bodies, strict=True))}


def _renamed_peers(peers: re.Match[str], renaming: Sequence[int]) -> str:
    send, receive = (int(peer) if int(peer) < 0 else renaming[int(peer)] for peer in peers.groups())
    return f' send="{send}" recv="{receive}"'


class _RankPlaces:
    """Places of data that belongs to ranks."""

    def __init__(self, renaming: Sequence[int], buffers: str, part: int) -> None:
        self._renaming, self._buffers, self._part = renaming, buffers, part
        self._torn = False

    def moved(self, text: str) -> str | None:
        """The steps of a rank with such places renamed; None if what a step handles together would not lie together."""
        if not self._buffers:
            return text
        found = _CELLS.sub(self._step, text)
        return None if self._torn else found

    def _step(self, step: re.Match[str]) -> str:
        source, source_at, target, target_at, count = step.groups()
        src, dst = (
            self._place(buffer, int(at), int(count)) for buffer, at in ((source, source_at), (target, target_at))
        )
        return f'srcbuf="{source}" srcoff="{src}" dstbuf="{target}" dstoff="{dst}" cnt="{count}"'

    def _place(self, buffer: str, at: int, count: int) -> int:
        if buffer not in self._buffers or self._part < 1:
            return at
        first, last = at // self._part, (at + max(count, 1) - 1) // self._part
        if last >= len(self._renaming):
            self._torn = True
            return at
        names = self._renaming[first : last + 1]
        self._torn |= list(names) != list(range(names[0], names[0] + len(names)))
        return names[0] * self._part + at % self._part

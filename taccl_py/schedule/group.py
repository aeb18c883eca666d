"""Group schedules: what is done with rank 0's data, and the symmetry that does the same with everyone's.

A group schedule has *base* messages, which carry chunks of rank 0 (those that start at it, or are summed there), and generators
of a regular group of translations (`taccl_py.topology.translations`). For every translation each base message is sent at the
same time over the translated link, with the translated chunk. So the whole schedule has as many messages as the base times the
number of ranks, ends when the base ends, and any rank's part of it can be written down alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from taccl_py.collective import Collective, Kind, busbw_factor
from taccl_py.errors import InputError
from taccl_py.schedule.ir import Message, Origin, Schedule, sort_messages
from taccl_py.topology.model import Topology
from taccl_py.topology.translations import IntArray, Translations
from taccl_py.units import algbw_gbps

# Messages beyond which the expanded form would not fit into the memory of an ordinary machine.
MOST_EXPANDED = 4_000_000

GROUP_KINDS = (Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.ALLREDUCE, Kind.ALLTOALL)


@dataclass(frozen=True)
class GroupSchedule:
    """Base messages and the symmetry that repeats them.

    Attributes
    ----------
    topology, kind
        The machine and what must move on it: one of `GROUP_KINDS`.
    chunks_per_rank
        How finely shares are cut.
    chunk_bytes
        Size of one chunk for which the times hold.
    generators
        Rank permutations that commute with each other and together take rank 0 to every rank.
    base
        Messages that carry chunks of rank 0, sorted by (start, link, chunks), packed if there are several. Chunks have the numbers that they have in
        the collective, where those of rank 0 come first.
    origin
        Provenance, or None.
    """

    topology: Topology
    kind: Kind
    chunks_per_rank: int
    chunk_bytes: float
    generators: tuple[tuple[int, ...], ...]
    base: tuple[Message, ...]
    origin: Origin | None = None

    def __post_init__(self) -> None:
        """Put the messages into their one order."""
        object.__setattr__(self, "base", sort_messages(self.base))

    @property
    def makespan_us(self) -> float:
        """Time at which the last message has arrived."""
        return max((message.end_us for message in self.base), default=0.0)

    @property
    def num_messages(self) -> int:
        """Messages of the whole schedule."""
        return len(self.base) * self.topology.num_ranks

    @cached_property
    def collective(self) -> Collective:
        """The collective.

        Raises
        ------
        InputError
            If it has too many chunks to be written down.
        """
        return Collective(self.kind, self.topology.num_ranks, self.chunks_per_rank)

    @property
    def size_bytes(self) -> float:
        """Size as nccl-tests counts it."""
        return self.chunk_bytes * self.topology.num_ranks * self.chunks_per_rank

    @property
    def busbw_gbps(self) -> float:
        """Bus bandwidth, 0 if nothing has to move."""
        if not self.base:
            return 0.0
        return algbw_gbps(self.size_bytes, self.makespan_us) * busbw_factor(self.kind, self.topology.num_ranks)

    @cached_property
    def _translations(self) -> Translations:
        found = Translations.of(self.generators, self.topology.num_ranks)
        if found is None or len(found.generators) < len(self.generators):
            raise InputError("the generators do not commute, or do not take rank 0 to every rank; check the schedule")
        return found

    @cached_property
    def _ends(self) -> tuple[IntArray, IntArray]:
        links = [self.topology.links[message.link] for message in self.base]
        return np.array([k.src for k in links], dtype=np.int64), np.array([k.dst for k in links], dtype=np.int64)

    def sent_by(self, rank: int) -> tuple[Message, ...]:
        """Messages that a rank sends.

        Raises
        ------
        InputError
            If the generators are not those of a regular group of symmetries.
        """
        src, dst = self._ends
        return self._images(src, rank, self._translations.carried(src, rank, dst), sender=True)

    def received_by(self, rank: int) -> tuple[Message, ...]:
        """Messages that a rank receives; see `sent_by`."""
        src, dst = self._ends
        return self._images(dst, rank, self._translations.carried(dst, rank, src), sender=False)

    def _images(self, pinned: IntArray, rank: int, other: IntArray, *, sender: bool) -> tuple[Message, ...]:
        """Images of the base under the translations that take each message's `pinned` end to `rank`."""
        topology, size = self.topology, self.topology.num_ranks
        owner = self._translations.carried(pinned, rank, 0).tolist()
        k = self.chunks_per_rank
        most = max((len(message.chunks) for message in self.base), default=0)
        # Rows of messages with fewer chunks than others are filled with their last one.
        rows = [message.chunks + message.chunks[-1:] * (most - len(message.chunks)) for message in self.base]
        wanting = np.array(rows, dtype=np.int64).reshape(len(rows), most) // k
        sink = self._translations.carried(pinned[:, None], rank, wanting).tolist()
        found = []
        for message, peer, source, targets in zip(self.base, other.tolist(), owner, sink, strict=True):
            pairs = [source * size + t for t in targets] if self.kind is Kind.ALLTOALL else [source] * most
            chunks = tuple(pair * k + chunk % k for pair, chunk in zip(pairs, message.chunks, strict=False))
            lanes = topology.links_between.get((rank, peer) if sender else (peer, rank), ())
            lane = topology.lane[message.link]
            if lane >= len(lanes):
                raise InputError(f"a translation of link {message.link} does not exist; check the schedule")
            found.append(Message(lanes[lane], chunks, message.start_us, message.end_us, message.reduce, message.packed))
        return sort_messages(found)

    def messages(self) -> Iterator[Message]:
        """Every message of the whole schedule, sender by sender."""
        for rank in range(self.topology.num_ranks):
            yield from self.sent_by(rank)

    def carried_to(self, rank: int) -> tuple[int, ...]:
        """Where every rank goes under the translation that takes rank 0 to `rank`; see `sent_by`."""
        return tuple(self._translations.carried(0, rank, np.arange(self.topology.num_ranks)).tolist())

    def orbit_of(self, links: Collection[int]) -> dict[int, int]:
        """Number of the orbit of each link: which one it is, among those of rank 0, when its sender is taken to rank 0."""
        topology = self.topology
        known = sorted(links)
        src = np.array([topology.links[link].src for link in known], dtype=np.int64)
        dst = np.array([topology.links[link].dst for link in known], dtype=np.int64)
        to = self._translations.carried(src, 0, dst).tolist()
        return {link: topology.links_between[0, end][topology.lane[link]] for link, end in zip(known, to, strict=True)}

    def part(self, rank: int) -> Schedule:
        """Return the messages that a rank sends and receives as a schedule, which is not whole.

        Of what others relay it has no more in their scratch than what they get from the rank or give to it.
        """
        messages = (*self.sent_by(rank), *self.received_by(rank))
        return Schedule(
            self.topology, self.collective, self.chunk_bytes, messages, self._scratch(messages), self.origin
        )

    def expanded(self) -> Schedule:
        """Return the whole schedule.

        Raises
        ------
        InputError
            If it is too large to be written down at once, or is no group schedule.
        """
        if self.num_messages > MOST_EXPANDED:
            raise InputError(
                f"the whole schedule has {self.num_messages} messages, more than {MOST_EXPANDED}; ask for the part of one rank"
            )
        everything = tuple(self.messages())
        return Schedule(
            self.topology, self.collective, self.chunk_bytes, everything, self._scratch(everything), self.origin
        )

    def _scratch(self, messages: Iterable[Message]) -> tuple[tuple[int, ...], ...]:
        """Chunks that ranks only relay, or add up for others."""
        size = self.topology.num_ranks
        relayed: list[set[int]] = [set() for _ in range(size)]
        if self.kind in (Kind.ALLTOALL, Kind.REDUCESCATTER):
            for message in messages:
                link = self.topology.links[message.link]
                # Of the last rank of a pair, or of the rank that owns the sum.
                relayed[link.dst].update(c for c in message.chunks if c // self.chunks_per_rank % size != link.dst)
                if self.kind is Kind.ALLTOALL:
                    relayed[link.src].update(c for c in message.chunks if c // self.chunks_per_rank // size != link.src)
        return tuple(tuple(sorted(chunks)) for chunks in relayed)

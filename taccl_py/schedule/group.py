"""Group schedules: what is done with the data of one rank of each role, and the symmetry that does the same with everyone's.

A group schedule has generators of a free group of translations (`taccl_py.topology.translations`) and *base* messages, which carry
chunks of the roots (those that start there, or are summed there): of rank 0 where all ranks can be taken to each other, else of the
smallest rank of every role. For every translation each base message is sent at the same time over the translated link, with the
translated chunk. So the whole schedule has as many messages as the base times the number of translations, ends when the base ends,
and any rank's part of it can be written down alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from taccl_py.arrays import BoolArray, IntArray
from taccl_py.collective import Collective, Kind, busbw_factor
from taccl_py.errors import InputError
from taccl_py.schedule.ir import Message, Origin, Schedule, sort_messages
from taccl_py.topology.ends import ends_of
from taccl_py.topology.model import Topology
from taccl_py.topology.translations import Translations
from taccl_py.units import algbw_gbps

# Messages beyond which the expanded form would not fit into the memory of an ordinary machine.
MOST_EXPANDED = 4_000_000
# Messages up to which the expanded form is lowered as a whole where ranks cannot be lowered one by one.
MOST_WHOLE = 20_000

GROUP_KINDS = (Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.ALLREDUCE, Kind.ALLTOALL)


@dataclass(frozen=True)
class GroupSchedule:
    """Base messages and the symmetry that repeats them.

    Attributes
    ----------
    topology, kind
        The machine and what must move on it: one of `GROUP_KINDS`.
    chunks_per_rank
        How finely shards are cut.
    chunk_bytes
        Size of one chunk for which the times hold.
    generators
        Rank permutations that commute with each other, and of which no combination keeps one rank in place and moves another.
    base
        Messages that carry chunks of the roots, sorted by (start, link, chunks), packed if there are several. Chunks have the numbers
        that they have in the collective.
    origin
        Provenance, or None.
    scratch
        Of every root, the chunks that it only relays, in the order in which it keeps them; by number if it is left out, as in files.
    """

    topology: Topology
    kind: Kind
    chunks_per_rank: int
    chunk_bytes: float
    generators: tuple[tuple[int, ...], ...]
    base: tuple[Message, ...]
    origin: Origin | None = None
    scratch: tuple[tuple[int, ...], ...] = ()

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
        return len(self.base) * self._translations.size

    @property
    def roots(self) -> tuple[int, ...]:
        """Smallest rank of every role."""
        return self._translations.roots

    def root_of(self, rank: int) -> int:
        """Return the root of a rank's role."""
        return self._translations.roots[int(self._translations.role[rank])]

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
            raise InputError(
                "the generators do not commute, or keep one rank in place and move another; check the schedule"
            )
        return found

    @cached_property
    def _ends(self) -> tuple[IntArray, IntArray]:
        return ends_of([self.topology.links[message.link] for message in self.base])

    def sent_by(self, rank: int) -> tuple[Message, ...]:
        """Messages that a rank sends.

        Raises
        ------
        InputError
            If the generators are not those of a free group of symmetries.
        """
        return self._images(*self._ends, rank, sender=True)

    def received_by(self, rank: int) -> tuple[Message, ...]:
        """Messages that a rank receives; see `sent_by`."""
        src, dst = self._ends
        return self._images(dst, src, rank, sender=False)

    def _images(self, pinned: IntArray, far: IntArray, rank: int, *, sender: bool) -> tuple[Message, ...]:
        """Images of the base under the translations that take each message's `pinned` end, if it has that role, to `rank`."""
        topology, carried, role = self.topology, self._translations.carried, self._translations.role
        here = np.flatnonzero(role[pinned] == role[rank]).tolist()
        base = [self.base[number] for number in here]
        pinned, far = pinned[here], far[here]
        k = self.chunks_per_rank
        most = max((len(message.chunks) for message in base), default=0)
        # Rows of messages with fewer chunks than others are filled with their last one.
        rows = [message.chunks + message.chunks[-1:] * (most - len(message.chunks)) for message in base]
        moved = self._moved(np.array(rows, dtype=np.int64).reshape(len(rows), most) // k, pinned[:, None], rank)
        found = []
        for message, peer, shards in zip(base, carried(pinned, rank, far).tolist(), moved.tolist(), strict=True):
            chunks = tuple(part * k + chunk % k for part, chunk in zip(shards, message.chunks, strict=False))
            lanes = topology.links_between.get((rank, peer) if sender else (peer, rank), ())
            lane = topology.lane[message.link]
            if lane >= len(lanes):
                raise InputError(f"a translation of link {message.link} does not exist; check the schedule")
            found.append(Message(lanes[lane], chunks, message.start_us, message.end_us, message.reduce, message.packed))
        return sort_messages(found)

    def _moved(self, shards: IntArray, start: IntArray | int, end: int) -> IntArray:
        """Images of shards (what one rank has for another one, in AllToAll) under the translations that take `start` to `end`."""
        carried, size = self._translations.carried, self.topology.num_ranks
        if self.kind is not Kind.ALLTOALL:
            return carried(start, end, shards)
        return carried(start, end, shards // size) * size + carried(start, end, shards % size)

    def messages(self) -> Iterator[Message]:
        """Every message of the whole schedule, sender by sender."""
        for rank in range(self.topology.num_ranks):
            yield from self.sent_by(rank)

    def carried_to(self, rank: int) -> tuple[int, ...]:
        """Image of every rank under the translation that takes the root of its role to `rank`; see `sent_by`."""
        everyone = np.arange(self.topology.num_ranks)
        return tuple(self._translations.carried(self.root_of(rank), rank, everyone).tolist())

    def stay_neighbours(self, first: int, last: int) -> bool:
        """True if ranks that follow each other do so under every translation."""
        return bool(self._followed[first:last].all())

    @cached_property
    def _followed(self) -> BoolArray:
        """Mask of the ranks that every translation takes, with the next rank, to neighbours in the same order."""
        role = self._translations.role
        torn = np.zeros(len(role), dtype=np.bool_)
        torn[-1] = True
        for generator in self._translations.generators:
            torn[:-1] |= np.diff(np.array(generator)) != 1
        # Every rank of a role is taken to the ranks that any one of them is taken to.
        return ~np.isin(role, role[torn])

    @property
    def seams(self) -> frozenset[int]:
        """Last chunks of shards whose rank some translation parts from the next one; with `stay_neighbours`, where ranges may not go on."""
        ends = (np.flatnonzero(~self._followed) + 1) * self.chunks_per_rank - 1
        return frozenset(ends.tolist())

    def orbit_of(self, links: Collection[int]) -> dict[int, int]:
        """Number of the orbit of each link: which one it is, among those of the roots, when its sender is taken to its root."""
        topology, group = self.topology, self._translations
        known = sorted(links)
        src = np.array([topology.links[link].src for link in known], dtype=np.int64)
        dst = np.array([topology.links[link].dst for link in known], dtype=np.int64)
        root = np.array(group.roots, dtype=np.int64)[group.role[src]]
        ends = zip(known, root.tolist(), group.carried(src, root, dst).tolist(), strict=True)
        return {link: topology.links_between[start, end][topology.lane[link]] for link, start, end in ends}

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
        return tuple(tuple(self._in_order(rank, chunks)) for rank, chunks in enumerate(relayed))

    def _in_order(self, rank: int, chunks: set[int]) -> list[int]:
        """Chunks in the order in which a rank keeps them in scratch."""
        if not self.scratch or not chunks:
            return sorted(chunks)
        role, k = int(self._translations.role[rank]), self.chunks_per_rank
        kept = np.array(self.scratch[role], dtype=np.int64)
        there = self._moved(kept // k, self.roots[role], rank) * k + kept % k
        return [chunk for chunk in there.tolist() if chunk in chunks]

"""Survey of messages: where each is sent from, how it is taken in, what must be copied before.

A rank's own contribution lies in its input; everything else that it holds lies in the chunk's *home* (output or scratch,
`taccl_py.lowering.homes`). A message of own contributions alone goes straight from the input if they are neighbours
there. Any other message goes from home, and own contributions in it are *fetched* (copied) to their homes first. A packed
message whose chunks are not neighbours goes through spare scratch: copied there from wherever they are, and from there to
their homes, or added to what is there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import pairwise

from taccl_py.collective import Address, Buffer
from taccl_py.errors import InputError
from taccl_py.lowering.actions import NONE
from taccl_py.lowering.order import Event
from taccl_py.lowering.subject import CellSchedule

START = -1


class MessageHandling(Enum):
    """Way in which a message is sent or taken in."""

    SEND = auto()
    STORE = auto()
    UNPACK = auto()  # store at home, through spare scratch if the homes are not neighbours
    STORE_LATER = auto()  # into spare scratch first, home when the home is free
    ADD = auto()  # one fused step: local operand plus what arrives, stored at home
    ADD_OWN = auto()  # store at home, then add the own contribution from the input
    ADD_ARRIVED = auto()  # store in spare scratch, then add that to the home
    ADD_SPARE = auto()  # store in spare scratch, then add the own contribution there; the sum is sent from there
    ADD_APART = auto()  # packed: store in spare scratch, then add that to homes that are not neighbours


_STORES = (MessageHandling.STORE, MessageHandling.UNPACK, MessageHandling.STORE_LATER)
_FROM_SPARE = (MessageHandling.ADD_ARRIVED, MessageHandling.ADD_APART)


@dataclass(frozen=True, slots=True)
class MessageEnd:
    """One end of a message.

    Attributes
    ----------
    event, message, rank
        Place in the order of time, which message, whose end.
    chunks
        The message's chunks.
    handling
        How the message is sent or taken in.
    straight
        Whether all of it is the rank's own contribution and can be read in the input as one piece.
    fetch
        Own chunks that must be copied home before.
    beside
        Whether the local work of it must be done by the threadblock that receives.
    spare_of
        For a send: the message in whose spare scratch the chunks are, or `NONE`.
    since
        For a packed send: event after which each chunk is in its home, or `START` if it is still an own contribution.
    keep
        Chunks that must be copied from spare scratch to their homes.
    """

    event: int
    message: int
    rank: int
    chunks: tuple[int, ...]
    handling: MessageHandling
    straight: bool
    fetch: tuple[int, ...] = ()
    beside: bool = False
    spare_of: int = NONE
    since: tuple[int, ...] = ()
    keep: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PlacementRules:
    """Rules that placing has to respect.

    Attributes
    ----------
    aliased
        Input and output may be the same memory.
    identical
        They certainly are.
    fused
        The runtime has steps that receive and add.
    staged
        Messages that must not wait for the home of their chunks to become free: they arrive in spare scratch.
    subject
        The only rank that counts, of whose messages alone the schedule consists: the others hold what they send, and what becomes
        of what they get is not looked at. None if all count.
    seams
        Offsets of input and output whose chunk is no neighbour of the next one, as it is not in the images of the subject's program.
    """

    aliased: bool
    identical: bool
    fused: bool
    staged: frozenset[int] = frozenset()
    subject: int | None = None
    seams: frozenset[int] = frozenset()

    def counts(self, rank: int) -> bool:
        """True if the schedule holds all messages that a rank sends and receives."""
        return self.subject is None or rank == self.subject


@dataclass(frozen=True, slots=True)
class Survey:
    """Everything that placing must know before it gives out cells; lists are indexed by rank.

    Attributes
    ----------
    uses
        In the order of time.
    last_arrival
        Event at which a chunk arrives for the last time.
    last_read
        Event at which an own chunk is read in the input for the last time.
    fetched
        Own chunks that are copied home for a message.
    """

    uses: tuple[MessageEnd, ...]
    last_arrival: tuple[dict[int, int], ...]
    last_read: tuple[dict[int, int], ...]
    fetched: tuple[frozenset[int], ...]


def spans_seam(first: Address, count: int, seams: frozenset[int]) -> bool:
    """True if there is a seam between chunks that follow each other from an address on."""
    if first.buffer is Buffer.SCRATCH or not seams:
        return False
    return any(offset in seams for offset in range(first.offset, first.offset + count - 1))


def survey_messages(schedule: CellSchedule, events: tuple[Event, ...], rules: PlacementRules) -> Survey:
    """Find out what each message means for its two ranks.

    Raises
    ------
    InputError
        If a rank sends a chunk that it does not hold.
    """
    surveyor = _Surveyor(schedule, rules)
    uses = [surveyor.use(index, event) for index, event in enumerate(events)]
    if rules.aliased and not rules.identical:
        _keep_sums_apart(uses, schedule)
    return Survey(
        tuple(uses),
        tuple(surveyor.last_arrival),
        tuple(surveyor.last_read),
        tuple(frozenset(chunks) for chunks in surveyor.fetched),
    )


def _keep_sums_apart(uses: list[MessageEnd], schedule: CellSchedule) -> None:
    """Leave sums of two in spare scratch where that saves the copy of the own contribution to the output.

    That is possible if the sum is only sent as it is, until another one takes its place or for good. A sum that is wanted
    is copied to the output meanwhile.
    """
    of_rank: list[list[MessageEnd]] = [[] for _ in range(schedule.collective.num_ranks)]
    for use in reversed(uses):
        if use.handling is MessageHandling.ADD_ARRIVED and use.beside:
            _keep_sum_apart(use, of_rank[use.rank], uses)
        of_rank[use.rank].append(use)


def _keep_sum_apart(use: MessageEnd, later: list[MessageEnd], uses: list[MessageEnd]) -> None:
    """Decide that for one message; `later` are the uses of its rank after it, latest first."""
    chunks, replaced = set(use.chunks), set[int]()
    senders: list[MessageEnd] = []
    for other in reversed(later):
        touched = chunks.intersection(other.chunks)
        if not touched:
            continue
        if other.handling in _STORES:
            replaced |= touched
        elif not touched <= replaced:
            if other.handling is not MessageHandling.SEND or other.chunks != use.chunks or replaced:
                return
            senders.append(other)
    keep = tuple(chunk for chunk in use.chunks if chunk not in replaced)
    if keep and not senders:
        return  # the sum is all that is wanted: better to copy the own contribution while nothing has arrived yet
    uses[use.event] = replace(use, handling=MessageHandling.ADD_SPARE, fetch=(), keep=keep)
    for other in senders:
        uses[other.event] = replace(other, spare_of=use.message)


class _Surveyor:
    """Walks through the events, knowing which chunks have come to which rank."""

    def __init__(self, schedule: CellSchedule, rules: PlacementRules) -> None:
        self._schedule = schedule
        self._rules = rules
        num_ranks = schedule.collective.num_ranks
        self.last_arrival: list[dict[int, int]] = [{} for _ in range(num_ranks)]
        self.last_read: list[dict[int, int]] = [{} for _ in range(num_ranks)]
        self.fetched: list[set[int]] = [set() for _ in range(num_ranks)]
        self._additions: dict[tuple[int, int], int] = {}
        for message in schedule.messages:
            dst = schedule.topology.links[message.link].dst
            for chunk in message.chunks if message.reduce else ():
                self._additions[chunk, dst] = self._additions.get((chunk, dst), 0) + 1

    def use(self, index: int, event: Event) -> MessageEnd:
        """Return what the event means, and remember what it changes."""
        message = self._schedule.messages[event.message]
        link = self._schedule.topology.links[message.link]
        rank = link.dst if event.arrives else link.src
        chunks = message.chunks
        straight = self._straight(rank, chunks)
        handling = self._handling_of(event.message, rank, straight) if event.arrives else MessageHandling.SEND
        if (handling is MessageHandling.SEND or handling is MessageHandling.ADD) and self._rules.counts(rank):
            self._require_held(event.message, rank, chunks)
        fetch: tuple[int, ...] = ()
        since: tuple[int, ...] = ()
        packed = message.packed and not straight
        if packed and handling is MessageHandling.SEND:
            since = tuple(self.last_arrival[rank].get(chunk, START) for chunk in chunks)
        elif handling in _FROM_SPARE or (handling in (MessageHandling.SEND, MessageHandling.ADD) and not straight):
            # In the order of the input where those of the message do not lie together anyway.
            ordered = sorted(chunks) if handling is MessageHandling.ADD_APART else chunks
            fetch = tuple(c for c in ordered if c not in self.last_arrival[rank] and c not in self.fetched[rank])
        self._remember(index, rank, chunks, handling, straight and handling not in _FROM_SPARE)
        for chunk, event_before in zip(chunks, since, strict=False):
            if event_before == START:
                self.last_read[rank].setdefault(chunk, START)
        for chunk in fetch:
            self.fetched[rank].add(chunk)
            self.last_read[rank].setdefault(chunk, START)
        beside = (
            handling in (MessageHandling.ADD_OWN, MessageHandling.ADD_ARRIVED)
            and event.message not in self._rules.staged
            and straight
            and len(fetch) in (0, len(chunks))
            and all(self._additions[chunk, rank] == 1 for chunk in chunks)
        )
        return MessageEnd(index, event.message, rank, chunks, handling, straight, fetch, beside, since=since)

    def _remember(
        self, index: int, rank: int, chunks: tuple[int, ...], handling: MessageHandling, reads_input: bool
    ) -> None:
        arrives = handling is not MessageHandling.SEND
        for chunk in chunks:
            if reads_input and handling not in _STORES:
                self.last_read[rank][chunk] = index
            if arrives:
                self.last_arrival[rank][chunk] = index

    def _straight(self, rank: int, chunks: tuple[int, ...]) -> bool:
        """True if the chunks are own contributions, untouched so far, that lie one after the other in the input."""
        arrived = self.last_arrival[rank]
        if chunks[0] in arrived:
            return False
        collective = self._schedule.collective
        first = collective.input_address(chunks[0], rank)
        if first is None:
            return False
        for step, chunk in enumerate(chunks):
            address = collective.input_address(chunk, rank)
            if chunk in arrived or address is None or address.offset != first.offset + step:
                return False
        return not spans_seam(first, len(chunks), self._rules.seams)

    def _require_held(self, message: int, rank: int, chunks: tuple[int, ...]) -> None:
        collective = self._schedule.collective
        for chunk in chunks:
            if chunk not in self.last_arrival[rank] and collective.input_address(chunk, rank) is None:
                raise InputError(
                    f"message {message} takes {collective.describe_chunk(chunk)} from rank {rank}, which does not hold "
                    "it then; check the schedule"
                )

    def _handling_of(self, index: int, rank: int, straight: bool) -> MessageHandling:
        message = self._schedule.messages[index]
        staged = index in self._rules.staged
        if not message.reduce and message.packed:
            return MessageHandling.UNPACK
        if not message.reduce:
            return MessageHandling.STORE_LATER if staged else MessageHandling.STORE
        if message.packed and not self._together(rank, message.chunks):
            return MessageHandling.ADD_APART
        if self._rules.fused and not staged:
            return MessageHandling.ADD
        if straight and not staged and self._own_apart(rank, message.chunks):
            return MessageHandling.ADD_OWN
        return MessageHandling.ADD_ARRIVED

    def _together(self, rank: int, chunks: tuple[int, ...]) -> bool:
        """True if the schedule keeps the chunks one after the other."""
        places = [self._schedule.address(chunk, rank) for chunk in chunks]
        first = places[0]
        return (first is None or not spans_seam(first, len(chunks), self._rules.seams)) and all(
            one is not None and two is not None and one.buffer is two.buffer and two.offset == one.offset + 1
            for one, two in pairwise(places)
        )

    def _own_apart(self, rank: int, chunks: tuple[int, ...]) -> bool:
        """True if an arriving message may be stored at home before the own contribution is added to it.

        The home must be other memory than the input. A sum in the output must have one writer: runtimes without fused
        steps do not promise that a threadblock sees what another one has just written there when it reads it with `re`.
        Where several messages are added, the own contribution is copied before they come, so that one step adds up all of them.
        """
        for chunk in chunks:
            home = self._schedule.address(chunk, rank)
            if self._additions[chunk, rank] > 1:
                return False
            if self._rules.aliased and home is not None and home.buffer is Buffer.OUTPUT:
                return False
        return True

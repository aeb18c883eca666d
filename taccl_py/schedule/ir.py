"""Schedule: the timed messages that implement a collective on a topology.

A *message* carries one or more chunks over one link as one piece: it pays alpha once. Therefore its chunks must be
neighbours, in the same order, in the buffers at both ends; or it is *packed*, which means that the sender copies them
together before and the receiver copies them to their places, or adds them there, afterwards. Where a rank keeps a chunk is fixed by these rules, first
match wins (`Schedule.address`):

1. a chunk listed in ``scratch[rank]`` is in the scratch buffer, at its position in that list;
2. a chunk that the rank wants is in the output buffer, where the collective says;
3. otherwise it is the rank's own contribution, in the input buffer, where the collective says.

Local copies between these places (input to output, input or scratch to output) cost nothing in the model; lowering makes
them real steps and keeps them off the critical path where it can.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Self

from taccl_py.collective import Address, Buffer, Collective
from taccl_py.pickles import pickled_by_fields
from taccl_py.tolerances import LAST_DIGITS, RELATIVE
from taccl_py.topology.model import Topology
from taccl_py.units import algbw_gbps


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class Message:
    """Chunks that cross one link together.

    Attributes
    ----------
    link
        Index into ``topology.links``.
    chunks
        Chunk numbers in buffer order.
    start_us
        When the message begins to occupy its link and ports.
    end_us
        When it has arrived and can be used.
    reduce
        True if the receiver adds it to what it holds of these chunks, False if it stores it.
    packed
        Whether its chunks may lie anywhere.
    """

    link: int
    chunks: tuple[int, ...]
    start_us: float
    end_us: float
    reduce: bool = False
    packed: bool = False


# Said of bounds that hold for all schedules on the machine.
ANY_ALGORITHM = "any algorithm"


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a schedule: how it was made; written into its file. Only the turns in which schedules of several engines are lowered depend on it.

    Attributes
    ----------
    engine, solver, sketch
        Names; the sketch is empty when none was given.
    seed
        Random seed.
    status
        ``optimal``, ``optimal-in-class`` or ``feasible``.
    bound_us, bound_reason
        Best proven lower bound on the time, and what it comes from.
    holds_for
        The schedules for which it is proven: ``any algorithm``, or those with a number of chunks, a sketch, or short messages.
    found_by
        The engine whose answer this is, where `engine` is a race of several; else empty.
    """

    engine: str
    solver: str
    sketch: str
    seed: int
    status: str
    bound_us: float
    bound_reason: str
    found_by: str = ""
    holds_for: str = ANY_ALGORITHM


class MessagesInOrder:
    """Messages of a schedule in their one order, and what follows from them: the base of schedules of all kinds.

    Attributes
    ----------
    topology
        The machine.
    messages
        Sorted by (start, link, chunks).
    origin
        Provenance, or None.
    """

    topology: Topology
    messages: tuple[Message, ...]
    origin: Origin | None

    def __post_init__(self) -> None:
        """Put the messages into their one order."""
        object.__setattr__(self, "messages", sort_messages(self.messages))

    @property
    def subject(self) -> str:
        """Name of what the messages do."""
        raise NotImplementedError

    @property
    def finder(self) -> str:
        """Engine that found it, in a race or alone; empty if that is not known."""
        return "" if self.origin is None else self.origin.found_by or self.origin.engine

    @cached_property
    def makespan_us(self) -> float:
        """Time at which the last message has arrived."""
        return max((message.end_us for message in self.messages), default=0.0)

    @cached_property
    def step_of(self) -> tuple[int, ...]:
        """For every message the length of the longest chain of messages that ends with it, each carrying what the one before brought.

        A message still in flight when another starts is no part of it: ranks that exchange sums do so in one step.
        """
        return steps_of(self.topology, self.messages)

    @cached_property
    def num_steps(self) -> int:
        """Longest chain of messages that wait for each other's data (a synchronous runtime's step count)."""
        return max(self.step_of, default=0)

    def with_origin(self, origin: Origin) -> Self:
        """Return the same schedule with its provenance; a copy, as to sort a million messages again takes seconds."""
        found = copy(self)
        object.__setattr__(found, "origin", origin)
        return found

    def __str__(self) -> str:
        """Text form: one line for each message."""
        lines = [f"{self.subject} on {self.topology.name}: {len(self.messages)} messages, {self.makespan_us:.6g} us"]
        for message in self.messages:
            link = self.topology.links[message.link]
            verb = "reduce" if message.reduce else "copy"
            chunks = ",".join(map(str, message.chunks))
            lines.append(
                f"{message.start_us:12.4f} {message.end_us:12.4f}  {link.src:3d} -> {link.dst:<3d} {verb} {chunks}"
            )
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Schedule(MessagesInOrder):
    """Timed messages that implement a collective.

    Attributes
    ----------
    topology, collective
        The machine and what must move on it.
    chunk_bytes
        Size of one chunk for which the times hold.
    messages
        Sorted by (start, link, chunks).
    scratch
        For every rank, the chunks that it keeps in scratch, in the order in which they lie there.
    origin
        Provenance, or None.
    """

    topology: Topology
    collective: Collective
    chunk_bytes: float
    messages: tuple[Message, ...]
    scratch: tuple[tuple[int, ...], ...]
    origin: Origin | None = None

    @property
    def subject(self) -> str:
        """Name of the collective."""
        return self.collective.kind

    @property
    def size_bytes(self) -> float:
        """Size as nccl-tests counts it."""
        return self.chunk_bytes * self.collective.chunks_per_size

    @property
    def algbw_gbps(self) -> float | None:
        """Algorithm bandwidth, or None where nothing moves."""
        return algbw_gbps(self.size_bytes, self.makespan_us) if self.messages else None

    @property
    def busbw_gbps(self) -> float | None:
        """Bus bandwidth, or None where nothing moves."""
        algbw = self.algbw_gbps
        return None if algbw is None else algbw * self.collective.busbw_factor

    @cached_property
    def scratch_index(self) -> tuple[dict[int, int], ...]:
        """Position of every scratch chunk, per rank."""
        return tuple({chunk: index for index, chunk in enumerate(chunks)} for chunks in self.scratch)

    def address(self, chunk: int, rank: int) -> Address | None:
        """Address at which the rank keeps the chunk (the rules are in the module's text), or None if it never has it."""
        index = self.scratch_index[rank].get(chunk)
        if index is not None:
            return Address(Buffer.SCRATCH, index)
        return self.collective.output_address(chunk, rank) or self.collective.input_address(chunk, rank)

    def as_image_of(self, known: Schedule) -> Schedule:
        """The same schedule, which has as many steps as another one of which it is an image, if these are counted; a copy."""
        found = copy(self)
        if "num_steps" in vars(known):
            object.__setattr__(found, "num_steps", known.num_steps)
        return found


def steps_of(topology: Topology, messages: Sequence[Message]) -> tuple[int, ...]:
    """Step of every message of a schedule, see `MessagesInOrder.step_of`; messages are in their one order."""
    makespan_us = max((message.end_us for message in messages), default=0.0)
    # Of every chunk at every rank the arrivals in order of time, each of a later step than those before it.
    arrivals: list[defaultdict[int, list[tuple[float, int]]]] = [defaultdict(list) for _ in range(topology.num_ranks)]
    # Those that always go together with the one before tell nothing more.
    firsts = set(block_borders({message.chunks for message in messages}))
    steps = []
    for message in messages:
        link = topology.links[message.link]
        latest_us = message.start_us + rounding_us(message.start_us, makespan_us)
        there, step = arrivals[link.src], 0
        chunks = [chunk for chunk in message.chunks if chunk in firsts]
        for chunk in chunks:
            for end_us, brought in reversed(there.get(chunk, ())):
                if end_us <= latest_us:
                    step = max(step, brought)
                    break
        steps.append(step + 1)
        there, arrival = arrivals[link.dst], (message.end_us, step + 1)
        for chunk in chunks:
            _note_arrival(there[chunk], arrival)
    return tuple(steps)


def block_borders(groups: Iterable[Iterable[int]]) -> list[int]:
    """Chunks at which a run of any group begins, or before which one ends, in order; runs are chunks that follow each other."""
    found = set[int]()
    for group in groups:
        following = -1
        for chunk in group:
            if chunk != following:
                found.add(chunk)
                found.add(following)
            following = chunk + 1
        found.add(following)
    return sorted(found - {-1})


def telling_chunks(groups: Sequence[tuple[int, ...]]) -> Sequence[tuple[int, ...]]:
    """Chunks of each group without those that always go together with the one before, of which nothing else is to be told."""
    if sum(map(len, groups)) < 2 * len(groups):
        return groups
    different = set(groups)
    firsts = set(block_borders(different))
    telling = {group: tuple(filter(firsts.__contains__, group)) for group in different}
    return [telling[group] for group in groups]


def _note_arrival(known: list[tuple[float, int]], arrival: tuple[float, int]) -> None:
    """Add the time and the step of an arrival to those in order, unless an earlier one is of as late a step."""
    end_us, step = arrival
    place = len(known)
    while place and known[place - 1][0] > end_us:
        place -= 1
    if place and known[place - 1][1] >= step:
        return
    last = place
    while last < len(known) and known[last][1] <= step:
        last += 1
    known[place:last] = [arrival]


def rounding_us(moment_us: float, whole_us: float) -> float:
    """By how much a moment of a plan that takes `whole_us` can differ from one that is the same.

    Where a plan was turned around in time, moments near 0 are differences of late ones.
    """
    return max(RELATIVE * abs(moment_us), LAST_DIGITS * whole_us)


def sort_messages(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Messages in the order that files and text use."""
    return tuple(sorted(messages, key=attrgetter("start_us", "link", "chunks")))

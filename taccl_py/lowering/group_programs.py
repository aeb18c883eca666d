"""Programs of group schedules, rank by rank, without the whole schedule ever being written down.

What a rank does follows from its own messages, so one rank of each role is lowered with these alone, and the others' programs are the
images of its program (`taccl_py.lowering.images`): memory is that of one rank's part, whatever the number of ranks. Where an image would tear
neighbouring chunks apart every rank is lowered by itself. Its peers then decide on their side what they send together and in which
order; as all ranks do the same the two sides agree, which `find_disagreement` looks at.

All ranks do the same at the same time, so whatever passes a port out of turn does so everywhere, and the time lost
adds up over the rounds. So where there are ports, each rank keeps the schedule's order of its sends from the outset
(`taccl_py.lowering.port_order`), at the price of fused steps; what it receives then comes in the schedule's order too, as messages to
one rank have no other reason to overtake each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from taccl_py.errors import LoweringError
from taccl_py.lowering.channels import LinkOrbits, Roles
from taccl_py.lowering.images import RankImages
from taccl_py.lowering.lower import LoweredRank, LoweringOptions, PortOrder, lower_rank
from taccl_py.lowering.program import Gpu, Program
from taccl_py.schedule.group import GroupSchedule

# Roots are lowered anew where one needs more channels for a link than the rank at its other end; more channels leave less to each.
_MOST_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Patterns:
    """Programs of the roots of a group schedule, and what they have in common with those of all ranks.

    Attributes
    ----------
    programs
        By root.
    options
        With the protocol and the order at ports that were chosen.
    roles, spread
        Actions that send and receive over every orbit of links, and how many channels those have that need more than one for each instance.
    seams
        Where chunks are not neighbours, as they are not in some image; empty if each rank's program may use those that it has.
    """

    programs: dict[int, Program]
    options: LoweringOptions
    roles: Mapping[int, Roles]
    spread: Mapping[int, int]
    seams: frozenset[int] = frozenset()


def lower_patterns(schedule: GroupSchedule, options: LoweringOptions, seams: frozenset[int] = frozenset()) -> Patterns:
    """Programs of the roots, with their sends in turn if there are ports and room for the steps that wait.

    Parameters
    ----------
    schedule
        A group schedule that the verifier accepts.
    options
        The runtime and the user's wishes.
    seams
        Where chunks shall not count as neighbours: `GroupSchedule.seams` makes sure that images are whole, and costs some copies.

    Raises
    ------
    LoweringError
        If a limit of the runtime cannot be kept.
    InputError
        If an option is impossible, or the schedule is not valid.
    """
    if schedule.topology.ports and options.port_order is PortOrder.FREE:
        with suppress(LoweringError):
            return _lower_roots(schedule, replace(options, port_order=PortOrder.SENDS), seams)
    return _lower_roots(schedule, options, seams)


def lower_ranks(schedule: GroupSchedule, patterns: Patterns, ranks: Iterable[int]) -> Iterator[Program]:
    """Programs of some ranks, one after the other; in each of them the other ranks' GPUs do nothing.

    Parameters
    ----------
    schedule, patterns
        A group schedule and its patterns.
    ranks
        Which ranks.

    Raises
    ------
    LoweringError, InputError
        See `lower_patterns`.
    """
    images = _images(schedule, patterns)
    for rank in ranks:
        if images is None:
            yield _lower_one(schedule, patterns, rank)
        else:
            yield alone(patterns.programs[schedule.root_of(rank)], images.of(rank))


def _lower_roots(schedule: GroupSchedule, options: LoweringOptions, seams: frozenset[int]) -> Patterns:
    """Programs of the roots; all use the protocol that the first one chose, and both ends of a link as many channels."""
    links = schedule.topology.links
    orbits = set(schedule.orbit_of({message.link for message in schedule.base}).values())
    roles = {orbit: Roles(links[orbit].src, schedule.root_of(links[orbit].dst)) for orbit in orbits}
    spread: dict[int, int] = {}
    for _ in range(_MOST_ROUNDS):
        found = Patterns({}, options, roles, spread, seams)
        for root in schedule.roots:
            program = found.programs[root] = _lower_one(schedule, found, root)
            found = replace(found, options=replace(options, protocol=program.protocol))
        needed = _channels_needed(schedule, found)
        if all(number <= spread.get(orbit, 1) for orbit, number in needed.items()):
            break
        spread = {orbit: max(number, spread.get(orbit, 1)) for orbit, number in needed.items()}
    return found


def _channels_needed(schedule: GroupSchedule, patterns: Patterns) -> dict[int, int]:
    """Channels for each instance of every orbit of links."""
    topology, needed = schedule.topology, dict[int, int]()
    for root, program in patterns.programs.items():
        channels: dict[tuple[int, int], set[int]] = {}
        for tb in program.gpus[root].threadblocks:
            for ends in ((root, tb.send_peer), (tb.recv_peer, root)):
                channels.setdefault(ends, set()).add(tb.channel)
        known = [topology.links_between[ends] for ends in channels if min(ends) >= 0]
        for link, orbit in schedule.orbit_of([link for links in known for link in links]).items():
            ends = topology.links[link].src, topology.links[link].dst
            lanes = len(topology.links_between[ends])
            own = sum(channel % lanes == topology.lane[link] for channel in channels[ends])
            needed[orbit] = max(needed.get(orbit, 1), own // patterns.options.instances)
    return needed


def has_images(schedule: GroupSchedule, patterns: Patterns) -> bool:
    """True if other ranks' programs are images of the roots', so that only these are lowered."""
    return _images(schedule, patterns) is not None


def _images(schedule: GroupSchedule, patterns: Patterns) -> RankImages | None:
    """Images of the roots' programs, or None if they would not be whole or would not fit together."""
    roots = [program.gpus[root] for root, program in patterns.programs.items()]
    images = RankImages(schedule, roots, patterns.options.instances)
    if not images.are_whole:
        return None
    agree = all(find_disagreement(gpu, {peer: images.of(peer) for peer in find_peers(gpu)}) is None for gpu in roots)
    return images if agree else None


def _lower_one(schedule: GroupSchedule, patterns: Patterns, rank: int) -> Program:
    part = schedule.part(rank)
    orbits = LinkOrbits(schedule.orbit_of({m.link for m in part.messages}), patterns.roles, patterns.spread)
    program = lower_rank(part, LoweredRank(rank, orbits, patterns.seams), patterns.options)
    return alone(program, program.gpus[rank])


def alone(program: Program, gpu: Gpu) -> Program:
    """The program with that GPU's part alone."""
    idle = (Gpu(other, 0, 0, 0, ()) for other in range(len(program.gpus)))
    return replace(program, gpus=tuple(gpu if other.rank == gpu.rank else other for other in idle))


def join_ranks(programs: Sequence[Program]) -> Program:
    """One program of those of all ranks, in order."""
    first = programs[0]
    return replace(
        first,
        num_channels=max(program.num_channels for program in programs),
        max_bytes=min(program.max_bytes for program in programs),
        gpus=tuple(program.gpus[rank] for rank, program in enumerate(programs)),
    )


def find_peers(gpu: Gpu) -> list[int]:
    """Ranks that a rank talks to."""
    return sorted({peer for tb in gpu.threadblocks for peer in (tb.send_peer, tb.recv_peer) if peer >= 0})


def require_agreement(gpu: Gpu, others: Mapping[int, Gpu], options: LoweringOptions) -> None:
    """Raise LoweringError if a rank and its peers do not agree on what they send together."""
    disagreement = find_disagreement(gpu, others)
    if disagreement is not None:
        raise LoweringError(
            f"lowered one by one, {disagreement} do not agree on what goes together; use taccl synth, which lowers all at once",
            runtime=options.runtime.name, limit="connection",
        )  # fmt: skip


def find_disagreement(gpu: Gpu, others: Mapping[int, Gpu]) -> str | None:
    """Ranks and channel where one side sends in other pieces than the other side expects, or None if all agree."""
    for _, other in sorted(others.items()):
        for channel in sorted({tb.channel for one in (gpu, other) for tb in one.threadblocks}):
            for sender, receiver in ((gpu, other), (other, gpu)):
                sent = _counts(sender, receiver.rank, channel, sends=True)
                if sent != _counts(receiver, sender.rank, channel, sends=False):
                    return f"ranks {sender.rank} and {receiver.rank} on channel {channel}"
    return None


def _counts(gpu: Gpu, peer: int, channel: int, *, sends: bool) -> list[int]:
    """Chunks of every operation on one side of a connection, in order."""
    return [
        step.count
        for tb in gpu.threadblocks
        if tb.channel == channel and (tb.send_peer if sends else tb.recv_peer) == peer
        for step in tb.steps
        if (step.op.sends if sends else step.op.receives)
    ]

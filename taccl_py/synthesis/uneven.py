"""Chunks of unequal size: what makes a plan faster, and what makes it fit the size.

A plan fixes which chunks go together over which links and in which order. With chunks of equal size that leaves links idle
where a piece has a longer path than another, or leaves later. The sizes are free as long as the chunks of one rank's shard (of
the whole buffer where it is all the same) fill it, and then the time is the longest chain of messages: a linear program in the
sizes and the starts. Its sizes are made multiples of a finer chunk, and the plan is timed anew.

Runtimes use a program only for counts that its chunks divide. So the finer chunks also turn an answer with, say, seven pieces a
rank into one that serves a power of two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from taccl_py.collective import Collective, Kind
from taccl_py.schedule.ir import Schedule
from taccl_py.schedule.layout import UntimedMessage
from taccl_py.schedule.timing import PlanDependences, build_schedule
from taccl_py.schedule.transform import untimed_messages
from taccl_py.solvers.limits import Limits, Over, never
from taccl_py.synthesis.apportion import apportion
from taccl_py.synthesis.engine import Demand, Proof, Synthesis
from taccl_py.synthesis.sizes import Chains, MessageTime, PortTurn, Sizes, best_sizes, undominated
from taccl_py.synthesis.sums import adds_up
from taccl_py.units import BYTES_PER_MB, MAX_CHUNK_COPIES

# Sizes are counted in elements of so many bytes; smaller ones are more, and what divides these divides them.
_ELEMENT_BYTES = 4


@dataclass(frozen=True)
class Params:
    """Numbers of chunks of unequal size.

    Attributes
    ----------
    most_messages
        Messages of a plan up to which a linear program finds sizes. Measured: of 12 plans of more, 64 MiB to 1 GiB on 8 x ndv4, 4 x ndv2 and
        torus:8x8, one became faster, by 0.11 %, in up to 20 s each.
    most_reordered
        Messages up to which it does so again for another order. Guess.
    order_factor
        Times as slow that a new order may be with the sizes of the one before, for sizes to be found again. Measured: of 241 new orders, on
        irregular machines, MI250X and ND nodes, the 61 that became faster were slower by 13.9 % at most at first, and 26 others by over 15 %.
    most_pairs
        Pairs of message and chunk of a plan, which are the program's entries: half a million take minutes. Guess.
    most_chunks
        Chunks of a rank's buffer. Guess.
    chunk_step
        Times as many chunks from one try to the next, at least. Guess.
    cut_factor
        Times as slow as the best so far that a plan with the best sizes may be to be cut. Measured: engine trees, AllReduce of 4 GiB
        on 2 x ndv4, a quarter of its time, the same answer.
    least_gain
        Part of the time that sizes, or finer chunks, have to save: a count that more chunks divide is rarer. Guess.
    least_gain_of_many
        The same for a plan of more than `most_reordered` messages, whose linear program takes seconds and whose cut loses some of it. Measured:
        of seven such plans on eight ND A100 v4 nodes, 16 and 32 MiB, whose programs save 0.2 to 0.5 %, none became faster by more than 0.1 %.
    most_gain_of_many
        Part of the time that sizes save at most for a plan of more than `most_reordered` messages. Measured: 3.3 % for 13 plans of engines
        hierarchy and trees on ndv4, ndv2 and mi300x of two and four nodes, where plans of fewer messages gain up to 8.5.
    runner_up_factor
        Times as slow as the best one that schedules may be which are kept. Guess.
    """

    most_messages: int = 8_000
    most_reordered: int = 2_000
    order_factor: float = 1.15
    most_pairs: int = 300_000
    most_chunks: int = 16384
    chunk_step: float = 1.5
    cut_factor: float = 1.005
    least_gain: float = 1e-3
    least_gain_of_many: float = 5e-3
    most_gain_of_many: float = 0.04
    runner_up_factor: float = 1.25


PARAMS = Params()


def fit_to_size(answer: Synthesis, demand: Demand, limits: Limits, *, sized: Sequence[Schedule] = ()) -> Synthesis:
    """The answer, its schedules cut so that they serve the demanded size and are as fast as they can be; the best one first.

    Nothing is changed where the chunk count was demanded, or a sketch says how chunks may move.

    Parameters
    ----------
    answer, demand
        What was found, and for what.
    limits
        Time, and the user's interrupt.
    sized
        Schedules of the answer whose chunks have the best sizes already; they are cut only if none serves the demanded size.
    """
    if demand.chunks_per_rank is not None or demand.sketch is not None:
        return answer
    deadline = limits.deadline()
    finer = FinerChunks.of(demand)
    # What takes long is left for the end, as time may be over by then.
    given = sorted(
        (answer.schedule, *answer.runners_up),
        key=lambda each: (len(each.messages) > PARAMS.most_reordered, each.makespan_us),
    )
    even = found = [each for each in given if each.collective.chunks_per_rank in finer.counts]
    for schedule in given:
        if found and any(schedule is each for each in sized):
            continue
        if deadline.over():
            break
        # What is slower than the best serves where that has too many chunks, if nothing coarser does.
        has_coarser = any(each.collective.chunks_per_rank <= schedule.collective.chunks_per_rank for each in even)
        least_us = min(each.makespan_us for each in found) if has_coarser else math.inf
        faster = recut(schedule, finer, limits.within(deadline.left), most_us=least_us * PARAMS.cut_factor)
        found = found if faster is None else [*found, faster]
    # An answer that cannot be cut so stays; better one that serves other sizes only than none.
    fastest = min(given, key=lambda each: each.makespan_us)
    if not found:
        found = [_equal_cut(fastest, finer, limits.within(deadline.left)) or fastest]
    best, *others = sorted(found, key=lambda each: (each.makespan_us, each.collective.chunks_per_rank))
    nearly = min(even, key=lambda each: each.makespan_us, default=best)
    if nearly.makespan_us <= best.makespan_us * (1 + PARAMS.least_gain):
        best, others = nearly, [each for each in (best, *others) if each is not nearly]
    proof = answer.proof if best is answer.schedule else Proof.of(best.makespan_us, answer.bound)
    near = tuple(each for each in others if each.makespan_us <= best.makespan_us * PARAMS.runner_up_factor)
    return replace(answer, schedule=best, proof=proof, runners_up=near)


def usable_counts(demand: Demand) -> tuple[int, ...]:
    """Chunks per rank that cut the demanded size into whole elements, or powers of two where one chunk does not do so either."""
    shard = demand.collective(1)
    elements = shard.chunk_bytes(demand.size_bytes) / _ELEMENT_BYTES
    copies = shard.num_chunks * shard.num_ranks
    most = max(1, min(PARAMS.most_chunks // shard.chunks_per_size, MAX_CHUNK_COPIES // copies))
    if elements >= 1 and elements == int(elements):
        return tuple(count for count in range(1, most + 1) if int(elements) % count == 0)
    return tuple(1 << bit for bit in range(most.bit_length()))


def ever_finer(counts: Iterable[int], step: float) -> Iterator[int]:
    """The first of ascending counts, and of the others each that is at least so many times the one before."""
    last = 0
    for count in counts:
        if count >= step * last:
            last = count
            yield count


@dataclass(frozen=True)
class FinerChunks:
    """Chunks that a plan may be cut into.

    Attributes
    ----------
    counts
        Chunks per rank that serve the size, ascending.
    message_chunks
        Chunks that one message can carry in the runtime.
    """

    counts: Sequence[int]
    message_chunks: int

    @staticmethod
    def of(demand: Demand) -> FinerChunks:
        """Finer chunks that serve a demand."""
        return FinerChunks(usable_counts(demand), demand.message_chunks)


def recut(schedule: Schedule, finer: FinerChunks, limits: Limits, *, most_us: float = math.inf) -> Schedule | None:
    """The same plan with chunks of unequal size, made of one of the numbers of finer chunks; None if that is no faster.

    Sizes are found for the plan's order on links and ports, then an order for the sizes, and so on while that helps.

    Parameters
    ----------
    schedule
        A schedule whose chunks are of equal size. If its own count is not one of the finer ones, any result will do.
    finer
        Chunks to cut it into.
    limits
        Time, and the user's interrupt.
    most_us
        The plan is not cut if no sizes make it this fast, in its first order.

    Raises
    ------
    PackageMissing
        If highspy is not installed.
    """
    shards = _shards(schedule.collective)
    pairs, num_messages = sum(len(message.chunks) for message in schedule.messages), len(schedule.messages)
    if len(shards[0]) == 1 or num_messages > PARAMS.most_messages or pairs > PARAMS.most_pairs:
        return None
    is_large = num_messages > PARAMS.most_reordered
    if is_large and schedule.makespan_us * (1 - PARAMS.most_gain_of_many) > most_us:
        return None
    least_gain = PARAMS.least_gain_of_many if is_large else PARAMS.least_gain
    deadline = limits.deadline()
    plan = PlanDependences.of(schedule.topology, untimed_messages(schedule))
    best = schedule if schedule.collective.chunks_per_rank in finer.counts else None
    least_us = math.inf
    while not deadline.over():
        known_us = least_us if best is None else min(least_us, best.makespan_us)
        below_us = min(known_us * (1 - least_gain), most_us)
        found = _best_sizes(schedule, plan, shards, below_us, limits.within(deadline.left))
        if found is None or found.time_us > below_us:
            break
        least_us = found.time_us
        best = _best_cut(schedule, plan, shards, found, finer, best)
        is_no_faster = found.time_us > schedule.makespan_us * (1 - PARAMS.least_gain)
        if is_no_faster or is_large:
            break
        sizes_bytes = [
            schedule.chunk_bytes * sum(found.sizes[chunk] for chunk in message.chunks) for message in plan.untimed
        ]
        reordered = plan.dispatched(sizes_bytes)
        if max(message.end for message in reordered) > found.time_us * PARAMS.order_factor:
            break
        plan = PlanDependences.of(schedule.topology, reordered)
    return None if best is schedule else best


def _equal_cut(schedule: Schedule, finer: FinerChunks, limits: Limits) -> Schedule | None:
    """The same plan with chunks as equal as one of the counts allows."""
    equal = Sizes((1.0,) * schedule.collective.num_chunks, 0.0)
    plan = PlanDependences.of(schedule.topology, untimed_messages(schedule))
    return _best_cut(schedule, plan, _shards(schedule.collective), equal, finer, None, limits.countdown())


def _best_cut(
    schedule: Schedule,
    plan: PlanDependences,
    shards: list[range],
    found: Sizes,
    finer: FinerChunks,
    best: Schedule | None,
    over: Over = never,
) -> Schedule | None:
    """The best so far, or a faster cut with chunks of the found sizes: the fewest chunks that are about as good as any number.

    Where time is over, the fewest chunks have to do, or the next ones.
    """
    if best is not None and found.time_us > best.makespan_us * (1 - PARAMS.least_gain):
        return best
    cuts, times_us = [], list[float]()
    counts = [count for count in finer.counts if count >= schedule.collective.chunks_per_rank]
    for count in ever_finer(counts, PARAMS.chunk_step):
        cut = _ChunkCut.of(schedule, shards, found, count, finer.message_chunks)
        cuts.append(cut)
        times_us.append(cut.time_us(schedule, plan))
        # What is too many chunks for one message only becomes more messages with finer ones, which take longer to time.
        if (over() and len(cuts) > 1) or (
            cut.is_split(plan.untimed) and times_us[-1] > min(times_us) * PARAMS.runner_up_factor
        ):
            break
    limit_us = min(times_us, default=math.inf) * (1 + PARAMS.least_gain)
    for cut, time_us in zip(cuts, times_us, strict=True):
        if time_us <= limit_us and (best is None or time_us < best.makespan_us * (1 - PARAMS.least_gain)):
            made = cut.schedule(schedule, plan.untimed)
            if made is not None and (best is None or made.makespan_us < best.makespan_us):
                return made
            break
    return best


def _shards(collective: Collective) -> list[range]:
    """Chunks among which data can be moved: they start at the same places and are wanted at the same places."""
    size = collective.num_chunks if collective.kind is Kind.ALLREDUCE else collective.chunks_per_rank
    return [range(first, first + size) for first in range(0, collective.num_chunks, size)]


def _best_sizes(
    schedule: Schedule, plan: PlanDependences, shards: list[range], below_us: float, limits: Limits
) -> Sizes | None:
    """Sizes for which the longest chain of messages is shortest; None if that is not below a time, as far as that is soon known."""
    topology = schedule.topology
    chunk_mb = schedule.chunk_bytes / BYTES_PER_MB

    def costs(link: int) -> list[MessageTime]:
        latency_us = topology.links[link].latency_us
        return undominated(
            [MessageTime(alpha_us + latency_us, beta * chunk_mb) for alpha_us, beta in topology.link_costs[link]]
        )

    costs_of = {link: costs(link) for link in {message.link for message in plan.untimed}}
    chains = Chains(
        shards,
        [message.chunks for message in plan.untimed],
        [costs_of[message.link] for message in plan.untimed],
        [sorted(brought_by) for brought_by in plan.deliveries],
        list(_in_turn(schedule, plan)),
        schedule.makespan_us,
    )
    return best_sizes(chains, limits, below_us=below_us)


def _in_turn(schedule: Schedule, plan: PlanDependences) -> Iterator[PortTurn]:
    """For every resource, the messages that follow each other there."""
    last: dict[int, int] = {}
    for message in plan.order:
        for resource in schedule.topology.resources_of[plan.untimed[message].link]:
            if resource in last:
                alpha_us, beta = schedule.topology.resource_cost[resource]
                yield PortTurn(
                    last[resource], message, MessageTime(alpha_us, beta * schedule.chunk_bytes / BYTES_PER_MB)
                )
            last[resource] = message


@dataclass(frozen=True, slots=True)
class _ChunkCut:
    """Numbers of finer chunks that each chunk becomes, that a rank then has, and that one message can carry."""

    units: tuple[int, ...]
    chunks_per_rank: int
    most: int

    @staticmethod
    def of(schedule: Schedule, shards: list[range], found: Sizes, chunks_per_rank: int, most: int) -> _ChunkCut:
        """As near to the sizes as whole chunks are."""
        factor = chunks_per_rank / schedule.collective.chunks_per_rank
        units: list[int] = []
        for shard in shards:
            units += apportion([found.sizes[chunk] for chunk in shard], round(factor * len(shard)))
        return _ChunkCut(tuple(units), chunks_per_rank, most)

    def time_us(self, schedule: Schedule, plan: PlanDependences) -> float:
        """About how long the plan then takes."""
        chunk_bytes = schedule.chunk_bytes * schedule.collective.chunks_per_rank / self.chunks_per_rank
        lengths = [sum(self.units[chunk] for chunk in message.chunks) for message in plan.untimed]
        sizes_bytes = [
            chunk_bytes * min(self.most, units - first) for units in lengths for first in range(0, units, self.most)
        ]
        return plan.cut([-(-units // self.most) for units in lengths]).time_us(sizes_bytes)

    def is_split(self, untimed: Sequence[UntimedMessage]) -> bool:
        """True if some message becomes several, as it would have too many chunks."""
        return any(sum(self.units[chunk] for chunk in message.chunks) > self.most for message in untimed)

    def schedule(self, schedule: Schedule, untimed: Sequence[UntimedMessage]) -> Schedule | None:
        """The plan so cut; None if sums come out wrong."""
        collective = replace(schedule.collective, chunks_per_rank=self.chunks_per_rank)
        chunk_bytes = schedule.chunk_bytes * schedule.collective.chunks_per_rank / self.chunks_per_rank
        ends = list(accumulate(self.units))
        finer = []
        for message in untimed:
            chunks = tuple(part for c in message.chunks for part in range(ends[c] - self.units[c], ends[c]))
            for first in range(0, len(chunks), self.most):
                finer.append(replace(message, chunks=chunks[first : first + self.most]))
        made = build_schedule(schedule.topology, collective, chunk_bytes, finer)
        return made if not collective.reduces or adds_up(made) else None

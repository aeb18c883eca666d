"""From a plan of the whole machine to one for a damaged machine: weights, stand-ins, chunks of unequal size, exact times.

Where a NIC is slow or gone, what crosses it becomes less, and other ranks of its node stand in for the rest: for a part of the data two
ranks of a node change their parts, and data that begins or ends at one of them takes one more message inside the node. How much goes
which way, a linear program says (`weights.py`). The order of the plan stays, or what has the longest path to go is sent first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from taccl_py.collective import Collective, Kind
from taccl_py.grouping import grouped
from taccl_py.schedule.ir import Schedule
from taccl_py.schedule.layout import UntimedMessage
from taccl_py.schedule.timing import PlanDependences
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.damage.params import PARAMS
from taccl_py.synthesis.damage.routes import ChunkBlock, Damage, Exchange, ExchangePartners, JoinedMessage
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.templates.messages import TemplateMessage, TemplatePlan, in_order
from taccl_py.synthesis.templates.packing import chunk_runs
from taccl_py.synthesis.uneven import ever_finer, usable_counts
from taccl_py.synthesis.weights import PlanPart, best_weights
from taccl_py.units import BYTES_PER_MB


@dataclass(frozen=True)
class WeighedPlan:
    """A plan on a damaged machine, with weights.

    Attributes
    ----------
    damage
        The plan, whose chunks may be of another size than the demand's, and the machine.
    parts
        Parts of its blocks with their weights.
    demand
        What is wanted, on the machine as it is.
    time_us
        About how long it takes in few chunks.
    """

    damage: Damage
    parts: list[_WeighedPart]
    demand: Demand
    time_us: float

    def cuts(self) -> Iterator[tuple[float, PlanCut]]:
        """The plan in chunks, and about how long each takes: the fewest, the most, and less and less."""
        least, *others = _counts(self.damage.plan.collective, self.demand, len(self.parts))
        yield self.time_us, PlanCut.of(self.damage, self.parts, least)
        for count in reversed(others):
            cut = PlanCut.of(self.damage, self.parts, count)
            yield cut.time_us(self.demand), cut

    def cut_for_steps(self) -> PlanCut | None:
        """The plan in the most chunks of which one step of the runtime carries any message; None where there are too few, or it is fixed."""
        counts = usable_counts(self.demand) if self.demand.chunks_per_rank is None else ()
        cuts = (PlanCut.of(self.damage, self.parts, count) for count in reversed(counts))
        return next((cut for cut in cuts if cut.longest <= self.demand.message_chunks), None)

    def whole_parts(self) -> PlanCut:
        """The plan with one chunk for each part, all of the same size."""
        parts = sorted(self.parts, key=lambda part: (part.block.chunks[0], part.order))
        return PlanCut(self.damage, len(parts), tuple(parts), tuple(range(n, n + 1) for n in range(len(parts))))


def weighed_plans(plan: Schedule, demand: Demand, limits: Limits) -> Iterator[WeighedPlan]:
    """A plan of the whole machine on a damaged one, with weights of several sorts.

    Parameters
    ----------
    plan
        Schedule on the whole machine, of a collective other than a ReduceScatter or Reduce, which are others backwards.
    demand
        What is wanted, on the machine as it is.
    limits
        Time, and the user's interrupt.

    Raises
    ------
    PackageMissing
        If highspy is not installed.
    """
    used, spared = (Damage(plan, demand.topology, spares_slow=spares) for spares in (False, True))
    # For small messages a little more over a slow link takes longer than it takes others to carry everything.
    for damage in (used, spared) if spared.images != used.images else (used,):
        for parts in _weighings(damage, limits):
            count = next(_counts(plan.collective, demand, len(parts)), None)
            if count is not None:
                yield WeighedPlan(damage, parts, demand, PlanCut.of(damage, parts, count).time_us(demand))


def _counts(collective: Collective, demand: Demand, parts: int) -> Iterator[int]:
    """Numbers of chunks per rank for which parts have some chunks each, and ever more of them, up to what can be written down."""
    counts = usable_counts(demand) if demand.chunks_per_rank is None else (demand.chunks_per_rank,)
    per_rank = collective.chunks_per_rank
    ranks = collective.num_chunks // per_rank
    least = max(1, PARAMS.chunks_of_part * parts // ranks)
    fine = [count for count in counts if count * ranks <= PARAMS.most_chunks] or list(counts[:1])
    first = next((number for number, count in enumerate(fine) if count >= least), len(fine) - 1)
    return ever_finer(fine[first:], PARAMS.finer)


def _weighings(damage: Damage, limits: Limits) -> Iterator[list[_WeighedPart]]:
    """Weights in proportion to what is left, and what the linear program says, also of others that stand in."""
    if damage.plan.collective.kind in (Kind.ALLREDUCE, Kind.BROADCAST):
        yield from filter(None, [_in_proportion(damage)])
    # Where each rank's data is its own, weights alone move little of it. Where other nodes are slower, their lanes are needed, also
    # those that the damaged node has lost, and only its own ranks stand in for each other.
    first = ExchangePartners.IN_ALL_NODES if damage.by_lanes else ExchangePartners.IN_ITS_NODE
    sorts = [(first, False), (ExchangePartners.NONE, False), (ExchangePartners.NONE, True)]
    sorts += [(ExchangePartners.IN_ITS_NODE, False)] if damage.by_lanes else []
    for partners, by_load in sorts:
        weighed = _weighed(damage, limits, partners, by_load=by_load)
        if weighed is not None:
            yield weighed
            if partners is not ExchangePartners.NONE:
                yield _in_turns(weighed)


def _in_turns(weighed: Sequence[_WeighedPart]) -> list[_WeighedPart]:
    """Parts with the same weights on average, where each block goes one way as a whole: fewer messages, none of which wait for each other."""
    by_block = grouped((part.block, part) for part in weighed)
    owed: defaultdict[tuple[int, ...], defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
    found = []
    for block in sorted(
        by_block, key=lambda block: (block.messages[:1], block.chunks[0])
    ):  # messages are in order of time
        parts = by_block[block]
        debts = owed[tuple(part.order for part in parts)]
        for part in parts:
            debts[part.order] += part.amount
        total = sum(part.amount for part in parts)
        chosen = max(parts, key=lambda part: debts[part.order])
        debts[chosen.order] -= total
        found.append(replace(chosen, amount=total))
    return found


@dataclass(frozen=True, slots=True)
class _WeighedPart:
    """Part of a block: how much of it goes with which exchange, in chunks of the plan; and the class that has this weight."""

    block: ChunkBlock
    exchange: Exchange
    amount: float
    order: int


def _in_proportion(damage: Damage) -> list[_WeighedPart] | None:
    """Every block in proportion to the slowest part of what is left of its links."""
    weights = [damage.rate(block) for block in damage.blocks]
    total = sum(weight * len(block.chunks) for weight, block in zip(weights, damage.blocks, strict=True))
    if not total:
        return None
    factor = damage.plan.collective.num_chunks / total
    order = {weight: number for number, weight in enumerate(sorted(set(weights)))}
    return [
        _WeighedPart(block, {}, factor * weight * len(block.chunks), order[weight])
        for weight, block in zip(weights, damage.blocks, strict=True)
        if weight
    ]


def _weighed(damage: Damage, limits: Limits, partners: ExchangePartners, *, by_load: bool) -> list[_WeighedPart] | None:
    """All parts of all blocks with their amounts."""
    columns: dict[tuple[object, ...], list[tuple[ChunkBlock, Exchange]]] = defaultdict(list)
    for block in damage.blocks:
        key = _class_of(damage, block, by_load=by_load)
        for number, exchange in enumerate([{}, *damage.exchanges(block, partners)]):
            if damage.route(block, exchange) is not None and damage.detours(block, exchange) is not None:
                columns[*key, number].append((block, exchange))
    amount = defaultdict[int, float](float)
    for block in damage.blocks:
        amount[block.group] += len(block.chunks)
    if not columns or len({key[0] for key in columns}) < len(amount):
        return None
    row: dict[int, int] = {}
    loads = [_loads_us(damage, members, row) for members in columns.values()]
    if len(loads) * len(row) > PARAMS.most_entries:
        return None
    dense = np.zeros((len(loads), len(row)))
    for number, load in enumerate(loads):
        for resource, value in load.items():
            dense[number, row[resource]] = value
    parts = [
        PlanPart(members[0][0].group, float(sum(len(block.chunks) for block, _ in members)), dense[number])
        for number, members in enumerate(columns.values())
    ]
    weights = best_weights(parts, dict(amount), limits)
    if weights is None:
        return None
    return [
        _WeighedPart(block, exchange, weight * len(block.chunks), order)
        for order, (weight, members) in enumerate(zip(weights, columns.values(), strict=True))
        for block, exchange in members
        if weight > 0
    ]


def _class_of(damage: Damage, block: ChunkBlock, *, by_load: bool) -> tuple[object, ...]:
    """Blocks that meet the same damage have one weight, or only those that load it alike."""
    if not by_load:
        if damage.damaged_ranks:
            return block.group, tuple(sorted(damage.met_ranks(block).intersection(damage.damaged_ranks)))
        met = (i for i in block.messages if damage.plan.messages[i].link in damage.changed)
        return block.group, tuple(sorted(met)[:1])
    uses: defaultdict[int, int] = defaultdict(int)
    for number in block.messages:
        link = damage.plan.messages[number].link
        if link in damage.changed:
            image = damage.images[link]
            for resource in (-1 - link,) if image is None else damage.topology.resources_of[image]:
                uses[resource] += 1
    left = {
        resource: count for resource, count in uses.items() if resource < 0 or resource >= len(damage.topology.links)
    }
    return block.group, tuple(sorted((left or uses).items()))


def _loads_us(damage: Damage, members: Sequence[tuple[ChunkBlock, Exchange]], row: dict[int, int]) -> dict[int, float]:
    """Time that the blocks of a class keep each resource busy; new resources get a row."""
    found: defaultdict[int, float] = defaultdict(float)
    topology = damage.topology
    for block, exchange in members:
        size_mb = len(block.chunks) * damage.plan.chunk_bytes / BYTES_PER_MB
        used = [link for _, link in damage.route(block, exchange) or ()]
        used += [link for link in damage.detours(block, exchange) or () if link is not None]
        for link in used:
            for resource in topology.resources_of[link]:
                row.setdefault(resource, len(row))
                found[resource] += size_mb * topology.resource_cost[resource][1]
    return found


@dataclass(frozen=True)
class PlanCut:
    """A plan cut into whole chunks.

    Attributes
    ----------
    damage
        The plan and the machine.
    chunks_per_rank
        Of what it becomes.
    parts, chunks
        Parts of blocks that have some, and the chunks of each.
    """

    damage: Damage
    chunks_per_rank: int
    parts: tuple[_WeighedPart, ...]
    chunks: tuple[range, ...]

    @staticmethod
    def of(damage: Damage, weighed: Sequence[_WeighedPart], chunks_per_rank: int) -> PlanCut:
        """As near to the weights as whole chunks are: what has one weight is never off by more than one in all."""
        plan = damage.plan
        factor = chunks_per_rank / plan.collective.chunks_per_rank
        units: dict[int, int] = {}
        for numbers in grouped((part.block.group, number) for number, part in enumerate(weighed)).values():
            total = sum(weighed[number].amount for number in numbers)
            whole = round(
                factor
                * sum(len(block.chunks) for block in damage.blocks if block.group == weighed[numbers[0]].block.group)
            )
            ends = np.cumsum([weighed[number].amount for number in numbers]) * (whole / total)
            rounded = [0, *np.floor(ends + 0.5).astype(int).tolist()]
            rounded[-1] = whole
            units.update({number: high - low for number, (low, high) in zip(numbers, pairwise(rounded), strict=True)})
        placed = sorted(
            range(len(weighed)), key=lambda number: (weighed[number].block.chunks[0], weighed[number].order)
        )
        at = 0
        parts, chunks = [], []
        for number in placed:
            if units[number]:
                parts.append(weighed[number])
                chunks.append(range(at, at + units[number]))
            at += units[number]
        return PlanCut(damage, chunks_per_rank, tuple(parts), tuple(chunks))

    @property
    def longest(self) -> int:
        """Chunks of the longest message."""
        coarse = self.messages([(number,) for number in range(len(self.parts))])
        return max((sum(len(self.chunks[part]) for part in message.chunks) for message in coarse), default=0)

    def messages(self, pieces: Sequence[tuple[int, ...]]) -> list[UntimedMessage]:
        """The plan's messages, where each part stands for so many chunks."""
        together: defaultdict[JoinedMessage, list[int]] = defaultdict(list)
        found: list[UntimedMessage] = []
        for part, chunks in zip(self.parts, pieces, strict=True):
            route = self.damage.joined(self.damage.route(part.block, part.exchange) or [])
            for message in route:
                together[message] += chunks
            first, last = self.damage.detours(part.block, part.exchange) or (None, None)
            if first is not None:
                start = min((message.start_us for message in route), default=0.0)
                found.append(UntimedMessage(first, chunks, start - self._detour_us(first, part), start))
            if last is not None:
                end = max((message.end_us for message in route), default=0.0)
                found.append(UntimedMessage(last, chunks, end, end + self._detour_us(last, part)))
        for message, carried in together.items():
            found.append(UntimedMessage(message.link, tuple(carried), message.start_us, message.end_us, message.reduce))
        return found

    def _detour_us(self, link: int, part: _WeighedPart) -> float:
        return self.damage.topology.message_us(link, len(part.block.chunks) * self.damage.plan.chunk_bytes)

    def time_us(self, demand: Demand) -> float:
        """About how long it takes, in the better of two orders."""
        chunk_bytes = demand.chunk_bytes(demand.collective(self.chunks_per_rank))
        coarse = self.messages([(number,) for number in range(len(self.parts))])
        if not self.damage.plan.collective.reduces:
            # Places in the output are fixed, so that parts which do not follow each other go alone.
            coarse = [replace(each, chunks=tuple(range(*run))) for each in coarse for run in chunk_runs(each.chunks)]
        size = [len(chunks) * chunk_bytes for chunks in self.chunks]
        sizes_bytes = [sum(size[part] for part in message.chunks) for message in coarse]
        plan = PlanDependences.of(demand.topology, coarse)
        return min(plan.time_us(sizes_bytes), max((each.end for each in plan.dispatched(sizes_bytes)), default=0.0))

    def plan(self) -> TemplatePlan:
        """The messages between ranks."""
        links = self.damage.topology.links
        fine = self.messages([tuple(chunks) for chunks in self.chunks])
        first = min((message.start for message in fine), default=0.0)
        messages = (
            TemplateMessage(links[m.link].src, links[m.link].dst, m.chunks, m.start - first, m.end - first, m.reduce)
            for m in fine
        )
        return TemplatePlan(self.chunks_per_rank, in_order(messages))

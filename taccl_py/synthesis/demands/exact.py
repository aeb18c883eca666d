"""Small demands by CP-SAT: one model of all messages, then the same with a few pieces set free at a time.

The model is `taccl_py.synthesis.models.cp_messages`. It begins with the best schedule of the planners whose pieces it shares. Where it is
solved to the end, nothing with the same pieces and so many messages a link is faster, on the model's grid of times.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from taccl_py.demand import DataDemand
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.schedule.ir import Message
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds.bound import Bound
from taccl_py.synthesis.demands.classes import ChunkClass, DemandCut
from taccl_py.synthesis.demands.dispatch import MessageCosts, PlannedMessage, timed_messages
from taccl_py.synthesis.demands.params import PARAMS
from taccl_py.synthesis.demands.plan import DemandPlan
from taccl_py.synthesis.models.cp_messages import (
    CarriedPiece,
    MessagePiece,
    MessageTask,
    TimedLoad,
    solve_messages,
)
from taccl_py.topology.model import Topology


@dataclass(frozen=True)
class ExactStep:
    """A schedule of the search, and whether nothing of its class is faster."""

    schedule: DemandSchedule
    is_proved: bool


def fits_exactly(topology: Topology, classes: Sequence[ChunkClass], count: int) -> bool:
    """True if so many pieces of each class make a model that is small enough."""
    return len(classes) * count * len(topology.links) <= PARAMS.most_literals


def exact_schedules(
    topology: Topology,
    demand: DataDemand,
    classes: Sequence[ChunkClass],
    count: int,
    begin: Sequence[DemandSchedule],
    bound: Bound,
    limits: Limits,
) -> Iterator[ExactStep]:
    """Schedules with so many pieces of each class, each faster than the one before.

    Parameters
    ----------
    topology, demand, classes
        The machine and what must move.
    count
        Pieces of each class.
    begin
        Schedules of which the best with these pieces is the beginning; there is none without.
    bound
        Lower bound on the time.
    limits
        When to stop.
    """
    search = _ExactSearch(topology, demand, classes, count, bound, limits)
    known = [found for found in begin if search.loads_of(found) is not None]
    if not known:
        return
    best = min(known, key=lambda schedule: schedule.makespan_us)
    yield from search.run(best)


class _ExactSearch:
    """Pieces, costs and the time that is left."""

    def __init__(
        self,
        topology: Topology,
        demand: DataDemand,
        classes: Sequence[ChunkClass],
        count: int,
        bound: Bound,
        limits: Limits,
    ) -> None:
        self._topology, self._bound, self._limits = topology, bound, limits
        self._deadline = limits.deadline()
        self._ends = [(link.src, link.dst) for link in topology.links]
        self._pieces: list[MessagePiece] = []
        self._chunks: list[tuple[int, ...]] = []
        cut = DemandCut(demand)
        for each in classes:
            for parts in each.cut(demand, count):
                self._chunks.append(cut.number(parts))
                self._pieces.append(MessagePiece(sum(size for *_, size in parts), each.terms, each.wants))
        # A chunk of the demand that is cut lies where no other one does.
        self._cut = cut.demand()
        self._piece_at = {
            self._cut.chunks[chunk].wants[0]: (number, self._cut.chunks[chunk].size_bytes)
            for number, chunks in enumerate(self._chunks)
            for chunk in chunks
        }

    def run(self, best: DemandSchedule) -> Iterator[ExactStep]:
        """Improve a schedule with these pieces."""
        step = self._solved(best, None, PARAMS.whole_work)
        if step is not None:
            best = step.schedule
            yield step
            if step.is_proved:
                return
        draw = random.Random(self._limits.seed)
        failures, size = 0, PARAMS.fewest_free
        while not self._deadline.over() and failures < PARAMS.most_failures:
            if self._bound.is_reached_by(best.makespan_us):
                return
            size = min(size, len(self._pieces))
            step = self._solved(best, self._drawn(best, draw, size), PARAMS.part_work)
            if step is not None and step.schedule.makespan_us < best.makespan_us * (1 - PARAMS.least_step):
                best, failures = step.schedule, 0
                yield step
            else:
                failures += 1
                size = min(size + 1, PARAMS.most_free) if failures % PARAMS.patience == 0 else size

    def _drawn(self, best: DemandSchedule, draw: random.Random, size: int) -> frozenset[int]:
        """Pieces to set free: some of one link or port, or of one rank, or any."""
        everything = range(len(self._pieces))
        rule = draw.randrange(3)
        near: list[int] = []
        if rule == 0:
            resource = draw.randrange(self._topology.num_resources)
            near = sorted(
                {
                    one.piece
                    for load in self.loads_of(best) or ()
                    if resource in self._topology.resources_of[load.link]
                    for one in load.carried
                }
            )
        elif rule == 1:
            rank = draw.randrange(self._topology.num_ranks)
            near = [p for p in everything if rank in self._pieces[p].holders or rank in self._pieces[p].wants]
        draw.shuffle(near)
        rest = [p for p in everything if p not in near]
        return frozenset([*near, *draw.sample(rest, len(rest))][:size])

    def _solved(self, best: DemandSchedule, free: frozenset[int] | None, work: float) -> ExactStep | None:
        hint = self.loads_of(best)
        if hint is None:
            return None
        task = MessageTask(
            self._topology,
            self._pieces,
            hint,
            lower_us=min(self._bound.time_us, best.makespan_us),
            upper_us=best.makespan_us,
            units=PARAMS.time_units,
            more=PARAMS.more_messages,
        )
        outcome = solve_messages(task, free, self._limits.within(self._deadline.left, work))
        if outcome.loads is None:
            return None
        found = self._timed(outcome.loads)
        faster = found if found.makespan_us < best.makespan_us else best
        return ExactStep(faster, outcome.is_proved)

    def loads_of(self, schedule: DemandSchedule) -> tuple[TimedLoad, ...] | None:
        """Messages of a schedule; None if it has other pieces, or adds what is replaced."""
        found = []
        for message in schedule.messages:
            carried: dict[int, int] = {}
            for chunk in message.chunks:
                one = schedule.demand.chunks[chunk]
                number, size = self._piece_at.get(one.wants[0], (-1, 0))
                if size != one.size_bytes:
                    return None
                carried[number] = carried.get(number, 0) + size
            for number, size in carried.items():
                piece = self._pieces[number]
                if size != piece.size_bytes or message.reduce < (piece.is_sum and len(piece.wants) == 1):
                    return None
            found.append(
                TimedLoad(message.link, message.start_us, tuple(CarriedPiece(p, message.reduce) for p in carried))
            )
        return tuple(found) if self._are_trees(found) else None

    def _are_trees(self, loads: Sequence[TimedLoad]) -> bool:
        """True if partial sums leave each rank once, towards one owner, and copies come to each rank once."""
        ends = self._ends
        leaving: set[tuple[int, int]] = set()
        entering: set[tuple[int, int]] = set()
        for load in loads:
            src, dst = ends[load.link]
            for one in load.carried:
                key, seen = ((one.piece, src), leaving) if one.adds else ((one.piece, dst), entering)
                if key in seen:
                    return False
                seen.add(key)
        for load in loads:
            for one in load.carried:
                src, dst = ends[load.link]
                piece = self._pieces[one.piece]
                if one.adds and len(piece.wants) == 1 and (one.piece, dst) not in leaving and dst != piece.wants[0]:
                    return False
        for number, piece in enumerate(self._pieces):
            if not piece.is_sum:
                continue
            owners = {ends[load.link][1] for load in loads for one in load.carried if one == CarriedPiece(number, True)}
            if len({rank for rank in owners if (number, rank) not in leaving}) != 1:
                return False
            if any(sum((number, rank) in leaving for rank in term) > 1 for term in piece.terms):
                return False
        return True

    def _timed(self, loads: Sequence[TimedLoad]) -> DemandSchedule:
        """Schedule of a plan: in its order, or in a better one."""
        came: dict[tuple[int, int], list[int]] = {}
        messages: list[PlannedMessage] = []
        for number, load in enumerate(loads):
            src, dst = self._ends[load.link]
            after = sorted({before for one in load.carried for before in came.get((one.piece, src), ())})
            chunks = tuple(chunk for one in load.carried for chunk in self._chunks[one.piece])
            size = sum(self._pieces[one.piece].size_bytes for one in load.carried)
            messages.append(PlannedMessage(load.link, chunks, size, tuple(after), load.carried[0].adds, load.start_us))
            for one in load.carried:
                came.setdefault((one.piece, dst), []).append(number)
        plan = DemandPlan(self._topology, self._cut, tuple(messages))
        kept = replace(plan.timed(), messages=self._in_order(messages))
        return min(kept, plan.timed(), key=lambda schedule: schedule.makespan_us)

    def _in_order(self, messages: Sequence[PlannedMessage]) -> tuple[Message, ...]:
        """Messages as early as their order on links and ports allows."""
        costs = MessageCosts(self._topology, messages)
        free_us = [0.0] * self._topology.num_resources
        starts: list[float] = []
        for message, uses, _ in zip(messages, costs.uses, costs.message_us, strict=True):
            arrived = [starts[before] + costs.message_us[before] for before in message.after]
            start = max([0.0, *arrived, *(free_us[resource] for resource, _ in uses)])
            starts.append(start)
            for resource, occupied_us in uses:
                free_us[resource] = start + occupied_us
        return timed_messages(messages, starts, costs)

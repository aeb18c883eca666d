"""Relays: groups whose data may pass through ranks outside of them, each alone or all planned as one demand.

The ranks of a relayed schedule are those of the group and, behind them, those that pass something on; these have no data of their own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from taccl_py.demand import DTYPES, ChunkPlace, DataChunk, DataDemand
from taccl_py.grouping import grouped
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.schedule.ir import Message
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.demands import solve_demand
from taccl_py.synthesis.engine import Events
from taccl_py.synthesis.together.orders import GroupMember
from taccl_py.synthesis.together.tasks import GroupTask
from taccl_py.topology.model import Topology


def relayed(machine: Topology, task: GroupTask, limits: Limits, events: Events) -> GroupMember:
    """Schedule of one group over all ranks of the machine.

    Raises
    ------
    Infeasible
        If some rank cannot be reached.
    """
    placed = task.demand.placed(task.ranks, machine.num_ranks)
    return _narrowed(solve_demand(machine, placed, limits, events).schedule, task)


def planned_jointly(
    machine: Topology, tasks: Sequence[GroupTask], limits: Limits, events: Events
) -> list[GroupMember] | None:
    """Schedules of all groups from one plan for all that they want, so that they keep out of each other's way.

    None where one group's elements are so long that another's chunks cannot be cut between them.

    Raises
    ------
    Infeasible
        If some rank cannot be reached.
    """
    joint = _JointDemand(machine, tasks)
    if joint.demand is None:
        return None
    schedule = solve_demand(machine, joint.demand, limits, events).schedule
    return [
        _narrowed(part, task)
        for part, task in zip(joint.parted(schedule), tasks, strict=True)
    ]  # fmt: skip


class _JointDemand:
    """All that groups want as one demand: buffers of a rank lie one behind the other, in the order of its groups."""

    def __init__(self, machine: Topology, tasks: Sequence[GroupTask]) -> None:
        self._machine = machine
        self._own = [task.demand.placed(task.ranks, machine.num_ranks) for task in tasks]
        self._inputs, self._outputs = (
            [list(accumulate(lengths, initial=0)) for lengths in zip(*of_groups, strict=True)]
            for of_groups in ([d.input_bytes for d in self._own], [d.output_bytes for d in self._own])
        )

    @property
    def demand(self) -> DataDemand | None:
        """The demand; None if its chunks cannot be cut alike."""
        dtype = max((each.dtype for each in self._own), key=lambda one: DTYPES[one])
        if any(chunk.size_bytes % DTYPES[dtype] for each in self._own for chunk in each.chunks):
            return None
        chunks = tuple(self._moved(chunk, group, 1) for group, each in enumerate(self._own) for chunk in each.chunks)
        inputs, outputs = (tuple(ends[-1] for ends in of_ranks) for of_ranks in (self._inputs, self._outputs))
        return DataDemand("groups", self._machine.num_ranks, chunks, inputs, outputs, dtype)

    def _moved(self, chunk: DataChunk, group: int, sign: int) -> DataChunk:
        """A chunk with its places in the joint buffers, or (sign -1) in those of its group."""

        def moved(places: Sequence[ChunkPlace], ends: list[list[int]]) -> tuple[ChunkPlace, ...]:
            return tuple(ChunkPlace(rank, offset + sign * ends[rank][group]) for rank, offset in places)

        terms = tuple(moved(term, self._inputs) for term in chunk.terms)
        return DataChunk(chunk.size_bytes, terms, moved(chunk.wants, self._outputs))

    def parted(self, schedule: DemandSchedule) -> list[DemandSchedule]:
        """Schedule of each group; a message that carries chunks of several is one of each."""
        number_of: list[tuple[int, int]] = []
        chunks: list[list[DataChunk]] = [[] for _ in self._own]
        for chunk in schedule.demand.chunks:
            rank, offset = chunk.wants[0]
            group = bisect_right(self._outputs[rank], offset) - 1
            number_of.append((group, len(chunks[group])))
            chunks[group].append(self._moved(chunk, group, -1))
        demands = [
            DataDemand(own.name, own.num_ranks, tuple(mine), own.input_bytes, own.output_bytes, own.dtype)
            for own, mine in zip(self._own, chunks, strict=True)
        ]
        messages: list[list[Message]] = [[] for _ in self._own]
        for message in schedule.messages:
            for group, numbers in grouped(number_of[chunk] for chunk in message.chunks).items():
                size = sum(demands[group].chunks[number].size_bytes for number in numbers)
                end_us = message.start_us + self._machine.message_us(message.link, size)
                packed = len(numbers) > 1
                messages[group].append(replace(message, chunks=tuple(numbers), end_us=end_us, packed=packed))
        return [
            DemandSchedule(self._machine, demand, tuple(mine), schedule.origin)
            for demand, mine in zip(demands, messages, strict=True)
        ]


def _narrowed(schedule: DemandSchedule, task: GroupTask) -> GroupMember:
    """The group's ranks and those that pass something on, and the schedule for them alone."""
    machine = schedule.topology
    used = {rank for m in schedule.messages for rank in (machine.links[m.link].src, machine.links[m.link].dst)}
    ranks = (*task.ranks, *sorted(used - set(task.ranks)))
    place, seen = {rank: number for number, rank in enumerate(ranks)}, machine.subset(ranks)
    messages = []
    for message in schedule.messages:
        link = machine.links[message.link]
        lanes = seen.links_between[place[link.src], place[link.dst]]
        messages.append(replace(message, link=lanes[machine.lane[message.link]]))
    own = DemandSchedule(seen, schedule.demand.among(ranks), tuple(messages), schedule.origin)
    return GroupMember(ranks, own, task.release_us)

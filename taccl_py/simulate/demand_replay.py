"""Replay of a schedule of a demand: its order is kept, its times are computed again, with all chunks larger or smaller by one factor.

A message starts when its link and ports have served those before it, and what had arrived by its start in the schedule has arrived.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from taccl_py.errors import InputError
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.simulate.schedule_replay import arrived_by
from taccl_py.simulate.timeline import Timeline, Transfer, sort_transfers


def replay_demand(schedule: DemandSchedule, size_bytes: float | None = None) -> Timeline:
    """Replay a valid schedule.

    Parameters
    ----------
    schedule
        A schedule that the verifier accepts.
    size_bytes
        All bytes that have to come somewhere; None is as many as the demand says.

    Raises
    ------
    InputError
        If the size is not positive.
    """
    total = schedule.demand.total_bytes
    wanted = float(total) if size_bytes is None else float(size_bytes)
    if total and not (math.isfinite(wanted) and wanted > 0):
        raise InputError(f"{wanted} bytes cannot be replayed; the size must be finite and above 0")
    transfers = []
    for index, (message, turn) in enumerate(
        zip(schedule.messages, _turns(schedule, wanted / total if total else 1.0), strict=True)
    ):
        link = schedule.topology.links[message.link]
        transfers.append(
            Transfer(message.link, link.src, link.dst, turn.start_us, turn.end_us, turn.size_bytes, message=index)
        )
    makespan_us = max((transfer.end_us for transfer in transfers), default=0.0)
    return Timeline(makespan_us, sort_transfers(transfers), wanted, 1.0)


def demand_critical_path(schedule: DemandSchedule) -> tuple[int, ...]:
    """Indices into ``schedule.messages`` of one chain of messages, each of which starts when the one before lets it, that ends last.

    Where data and a link or port let a message start at the same time, the data count as the reason.
    """
    turns = _turns(schedule, 1.0)
    path = []
    at = max(range(len(turns)), key=lambda index: turns[index].end_us, default=-1)
    while at >= 0:
        path.append(at)
        at = turns[at].because
    return tuple(reversed(path))


@dataclass(frozen=True, slots=True)
class _DemandTurn:
    """When a message goes, and which other one it waits for last (-1: none)."""

    start_us: float
    end_us: float
    size_bytes: float
    because: int


def _turns(schedule: DemandSchedule, factor: float) -> list[_DemandTurn]:
    """Turns of all messages, with all chunks larger or smaller by a factor."""
    topology = schedule.topology
    # When each link and port is free, and who made it wait so long.
    free: list[tuple[float, int]] = [(0.0, -1)] * topology.num_resources
    arrived: dict[tuple[int, int], list[int]] = {}
    found: list[_DemandTurn] = []
    for index, message in enumerate(schedule.messages):
        link, size = topology.links[message.link], factor * schedule.size_bytes(message.chunks)
        ends = (link.src, link.dst) if message.reduce else (link.src,)
        before = {other for chunk in message.chunks for rank in ends for other in arrived.get((chunk, rank), ())}
        start_us, because = 0.0, -1
        for other in sorted(before):
            if found[other].end_us > start_us and arrived_by(schedule.messages[other], message.start_us):
                start_us, because = found[other].end_us, other
        resources = topology.resources_of[message.link]
        for resource in resources:
            if free[resource][0] > start_us:
                start_us, because = free[resource]
        for resource in resources:
            free[resource] = (start_us + topology.occupancy_us(resource, size), index)
        for chunk in message.chunks:
            arrived.setdefault((chunk, link.dst), []).append(index)
        found.append(_DemandTurn(start_us, start_us + topology.message_us(message.link, size), size, because))
    return found

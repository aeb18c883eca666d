"""Replay of a schedule of a demand: its order is kept, its times are computed again, with all chunks larger or smaller by one factor.

A message starts when its link and ports have served those before it, and what had arrived by its start in the schedule has arrived.
"""

from __future__ import annotations

import math

from taccl_py.errors import InputError
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.simulate.timeline import Timeline, Transfer, sort_transfers

_TOLERANCE = 1e-6
_ULPS = 16


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
    factor = wanted / total if total else 1.0
    topology = schedule.topology
    free_us = [0.0] * topology.num_resources
    arrived: dict[tuple[int, int], list[int]] = {}
    ends_us: list[float] = []
    transfers = []
    for index, message in enumerate(schedule.messages):
        link, size = topology.links[message.link], factor * schedule.size_bytes(message.chunks)
        ends = (link.src, link.dst) if message.reduce else (link.src,)
        before = {other for chunk in message.chunks for rank in ends for other in arrived.get((chunk, rank), ())}
        waits = [other for other in before if _has_arrived(schedule, other, message.start_us)]
        resources = topology.resources_of[message.link]
        start_us = max([free_us[resource] for resource in resources] + [ends_us[other] for other in waits])
        for resource in resources:
            free_us[resource] = start_us + topology.occupancy_us(resource, size)
        ends_us.append(start_us + topology.message_us(message.link, size))
        for chunk in message.chunks:
            arrived.setdefault((chunk, link.dst), []).append(index)
        transfers.append(Transfer(message.link, link.src, link.dst, start_us, ends_us[-1], size, message=index))
    return Timeline(max(ends_us, default=0.0), sort_transfers(transfers), wanted, 1.0)


def _has_arrived(schedule: DemandSchedule, index: int, time_us: float) -> bool:
    message = schedule.messages[index]
    slack_us = _TOLERANCE * (message.end_us - message.start_us) + _ULPS * math.ulp(message.end_us)
    return message.end_us - slack_us <= time_us

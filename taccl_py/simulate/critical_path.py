"""The critical path: the chain of messages, each of which starts when the one before lets it, that ends last."""

from __future__ import annotations

from taccl_py.schedule.ir import Schedule
from taccl_py.simulate.schedule_replay import decisions
from taccl_py.units import BYTES_PER_MB


def critical_path(schedule: Schedule) -> tuple[int, ...]:
    """Indices into ``schedule.messages`` of one critical path, in order of time; empty if nothing moves.

    A message waits for chunks to arrive, or for its link or a port to be free. Where both let it start at the same time, what
    arrives counts as the reason.

    Parameters
    ----------
    schedule
        A schedule that the verifier accepts.
    """
    chunk_mb = schedule.chunk_bytes / BYTES_PER_MB
    free_us = [0.0] * schedule.topology.num_resources
    last_user = [-1] * schedule.topology.num_resources
    arrival_us: list[float] = []
    reason: list[int] = []
    for index, turn in enumerate(decisions(schedule)):
        start_us, because = 0.0, -1
        for other in turn.waits_for:
            if arrival_us[other] > start_us:
                start_us, because = arrival_us[other], other
        for resource in turn.resources:
            if free_us[resource] > start_us:
                start_us, because = free_us[resource], last_user[resource]
        occupied_us = [occupancy.at(chunk_mb) for occupancy in turn.occupancies]
        for resource, occupancy_us in zip(turn.resources, occupied_us, strict=True):
            free_us[resource] = start_us + occupancy_us
            last_user[resource] = index
        arrival_us.append(start_us + max(occupied_us) + turn.latency_us)
        reason.append(because)
    path = []
    at = max(range(len(arrival_us)), key=arrival_us.__getitem__, default=-1)
    while at >= 0:
        path.append(at)
        at = reason[at]
    return tuple(reversed(path))

"""Replay of a schedule at any size: its decisions are kept, its times are computed again.

The decisions of a schedule are the order in which messages take turns on each link and each port, and for each message
the arrivals that it waits for, as far as they have happened by its start: those of its chunks at its sender, and of what is stored
at its receiver before it is added there, which it would be lost under. With these fixed a message starts as soon as all that it
waits for is done, so a replay at the schedule's own size is never slower than the schedule itself.

An arrival that a message does not wait for is no part of what it carries, however early another size makes it happen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, partial

from taccl_py.errors import InputError
from taccl_py.schedule.ir import Message, Schedule, telling_chunks
from taccl_py.simulate.timeline import Timeline, Transfer, sort_transfers
from taccl_py.tolerances import SAME_MOMENT, ULPS
from taccl_py.topology.model import Topology
from taccl_py.units import BYTES_PER_MB


@dataclass(frozen=True, slots=True)
class AffineTime:
    """A time that depends on the chunk size: ``fixed_us + us_per_mb * megabytes of one chunk``."""

    fixed_us: float
    us_per_mb: float

    def at(self, chunk_mb: float) -> float:
        """Time in microseconds."""
        return self.fixed_us + self.us_per_mb * chunk_mb


@dataclass(frozen=True, slots=True)
class ReplayTurn:
    """One message of a replay.

    Attributes
    ----------
    link
        Index into ``topology.links``.
    num_chunks
        Chunks that it carries.
    waits_for
        Messages that must have arrived before it starts, as indices.
    resources
        Links and ports that it occupies.
    occupancies
        How long it occupies each of `resources`.
    latency_us
        From the end of the longest occupancy to the arrival.
    """

    link: int
    num_chunks: int
    waits_for: tuple[int, ...]
    resources: tuple[int, ...]
    occupancies: tuple[AffineTime, ...]
    latency_us: float


def decisions(schedule: Schedule) -> tuple[ReplayTurn, ...]:
    """Return what a schedule decides about each of its messages.

    The order is that of ``schedule.messages``. It keeps every order of a valid schedule: a message comes after those
    before it on its link and ports, and after those that it waits for.
    """
    topology = schedule.topology
    arrived: dict[tuple[int, int], list[int]] = {}
    stored: dict[tuple[int, int], list[int]] = {}
    adds = any(message.reduce for message in schedule.messages)
    arrivals_us = [_arrival_us(message) for message in schedule.messages]
    uses_of = cache(partial(_uses, topology))  # very many messages are alike
    turns: list[ReplayTurn] = []
    telling = telling_chunks([message.chunks for message in schedule.messages])
    for index, (message, chunks) in enumerate(zip(schedule.messages, telling, strict=True)):
        link = topology.links[message.link]
        before = {other for chunk in chunks for other in arrived.get((chunk, link.src), ())}
        if message.reduce:
            before |= {other for chunk in chunks for other in stored.get((chunk, link.dst), ())}
        waits_for = sorted(other for other in before if arrivals_us[other] <= message.start_us)
        for chunk in chunks:
            arrived.setdefault((chunk, link.dst), []).append(index)
            if adds and not message.reduce:
                stored.setdefault((chunk, link.dst), []).append(index)
        size = len(message.chunks)
        resources, occupancies = uses_of(message.link, size)
        turns.append(ReplayTurn(message.link, size, tuple(waits_for), resources, occupancies, link.latency_us))
    return tuple(turns)


def _uses(topology: Topology, link: int, size: int) -> tuple[tuple[int, ...], tuple[AffineTime, ...]]:
    """Links and ports that so many chunks occupy, and for how long each."""
    resources = tuple(dict.fromkeys(topology.resources_of[link]))
    costs = [topology.resource_cost[resource] for resource in resources]
    return resources, tuple(AffineTime(alpha_us, beta_us_per_mb * size) for alpha_us, beta_us_per_mb in costs)


def _arrival_us(message: Message) -> float:
    """Time from which on a message counts as arrived."""
    slack_us = SAME_MOMENT * (message.end_us - message.start_us) + ULPS * math.ulp(message.end_us)
    return message.end_us - slack_us


def arrived_by(message: Message, time_us: float) -> bool:
    """True if a message counts as arrived by a time."""
    return _arrival_us(message) <= time_us


def replay_schedule(schedule: Schedule, chunk_bytes: float) -> Timeline:
    """Replay the decisions of a valid schedule with chunks of another size.

    Parameters
    ----------
    schedule
        A schedule that the verifier accepts.
    chunk_bytes
        Size of one chunk, whole or not.

    Raises
    ------
    InputError
        If the size is not positive.
    """
    if not (math.isfinite(chunk_bytes) and chunk_bytes > 0):
        raise InputError(f"a chunk of {chunk_bytes} bytes cannot be replayed; the size must be finite and above 0")
    topology = schedule.topology
    chunk_mb = chunk_bytes / BYTES_PER_MB
    free_us = [0.0] * topology.num_resources
    arrival_us: list[float] = []
    transfers: list[Transfer] = []
    for index, turn in enumerate(decisions(schedule)):
        start_us = max([free_us[r] for r in turn.resources] + [arrival_us[other] for other in turn.waits_for])
        longest_us = 0.0
        for resource, occupancy in zip(turn.resources, turn.occupancies, strict=True):
            occupancy_us = occupancy.at(chunk_mb)
            free_us[resource] = start_us + occupancy_us
            longest_us = max(longest_us, occupancy_us)
        end_us = start_us + longest_us + turn.latency_us
        arrival_us.append(end_us)
        link = topology.links[turn.link]
        transfers.append(
            Transfer(turn.link, link.src, link.dst, start_us, end_us, turn.num_chunks * chunk_bytes, message=index)
        )
    collective = schedule.collective
    return Timeline(
        makespan_us=max(arrival_us, default=0.0),
        transfers=sort_transfers(transfers),
        size_bytes=chunk_bytes * collective.chunks_per_size,
        busbw_factor=collective.busbw_factor,
    )

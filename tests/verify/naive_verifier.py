"""A slow verifier of schedules for cross-checks: compares messages by pairs and asks back in time what a rank holds."""

import math
from collections import Counter
from dataclasses import replace
from itertools import combinations

from taccl_py.collective import Buffer


def naive_verdict(schedule):
    """Whether a schedule is right, told by pairs of messages and by asking back in time."""
    return (
        all(lasts_right(schedule, m) and lies_right(schedule, m) for m in schedule.messages)
        and not any(collide(schedule, a, b) for a, b in combinations(schedule.messages, 2))
        and ends_right(schedule)
    )


def occupied(schedule, message):
    """How long the message occupies its link and each of its ports."""
    link = schedule.topology.links[message.link]
    megabytes = len(message.chunks) * schedule.chunk_bytes / 1e6
    users = {"link": link} | {port: schedule.topology.ports[port] for port in link.ports}
    return {
        (message.link if name == "link" else "port", name): cost.alpha_us + cost.beta_us_per_mb * megabytes
        for name, cost in users.items()
    }


def lasts_right(schedule, message):
    right_us = max(occupied(schedule, message).values()) + schedule.topology.links[message.link].latency_us
    return message.start_us >= 0 and abs(message.end_us - message.start_us - right_us) <= 1e-5 * right_us


def lies_right(schedule, message):
    link = schedule.topology.links[message.link]
    for rank in (link.src, link.dst):
        places = [schedule.address(chunk, rank) for chunk in message.chunks]
        if None in places or (rank == link.dst and places[0].buffer is Buffer.INPUT):
            return False
        if places != [replace(places[0], offset=places[0].offset + step) for step in range(len(places))]:
            return False
    return True


def collide(schedule, a, b):
    mine, others = occupied(schedule, a), occupied(schedule, b)
    return any(
        min(a.start_us + mine[name], b.start_us + others[name]) - max(a.start_us, b.start_us) > 1e-5 * mine[name]
        for name in mine.keys() & others.keys()
    )


def content(schedule, chunk, rank, time_us):
    """How often each contribution is in what the rank holds; None when something went wrong on the way."""
    collective, topology = schedule.collective, schedule.topology
    held = Counter({rank: 1} if collective.reduces or collective.source[chunk] == rank else {})
    whole = collective.num_ranks if collective.reduces else 1
    arriving = [m for m in schedule.messages if chunk in m.chunks and topology.links[m.link].dst == rank]
    for m in sorted(arriving, key=lambda m: m.end_us):
        if m.end_us > time_us + 1e-5 * (m.end_us - m.start_us):
            continue
        brought = content(schedule, chunk, topology.links[m.link].src, m.start_us)
        wrong_kind = m.reduce and not collective.reduces
        if not brought or wrong_kind or held.total() == whole or (not m.reduce and brought == held):
            return None
        held = held + brought if m.reduce else brought
        if max(held.values()) > 1:
            return None
    return held


def ends_right(schedule):
    collective = schedule.collective
    whole = collective.num_ranks if collective.reduces else 1
    for chunk in range(collective.num_chunks):
        for rank in range(collective.num_ranks):
            held = content(schedule, chunk, rank, math.inf)
            if held is None or (rank in collective.wanted[chunk] and held.total() != whole):
                return False
    return True

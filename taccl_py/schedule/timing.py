"""From a plan to a schedule: the one place where messages are charged their time.

A plan fixes which chunks go together over which links and in which order. Times follow: every message starts as soon as its
chunks are at the sender and its link and ports have served the messages planned before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from taccl_py.collective import Collective
from taccl_py.schedule.ir import Message, Schedule
from taccl_py.schedule.layout import Draft, choose_scratch, contiguous_runs
from taccl_py.topology.model import Topology


def build_schedule(
    topology: Topology, collective: Collective, chunk_bytes: float, drafts: Sequence[Draft], *, as_named: bool = False
) -> Schedule:
    """Place chunks, cut batches that are not contiguous, and time the messages exactly.

    Parameters
    ----------
    topology, collective, chunk_bytes
        The problem.
    drafts
        Planned messages; their times must be consistent with each other (a chunk arrives before it is sent on).
    as_named
        How scratch is laid out, see `taccl_py.schedule.layout.choose_scratch`.
    """
    scratch = choose_scratch(topology, collective, drafts, as_named=as_named)
    runs = contiguous_runs(topology, collective, scratch, drafts)
    return Schedule(topology, collective, chunk_bytes, time_messages(topology, chunk_bytes, runs), scratch)


def time_messages(topology: Topology, chunk_bytes: float, drafts: Sequence[Draft]) -> tuple[Message, ...]:
    """Earliest times of messages that keep the plan's order on every link and port and wait for the same deliveries."""
    order = sorted(range(len(drafts)), key=lambda i: (drafts[i].start, i))
    deliveries: dict[tuple[int, int], list[int]] = {}
    for i in order:
        dst = topology.links[drafts[i].link].dst
        for chunk in drafts[i].chunks:
            deliveries.setdefault((chunk, dst), []).append(i)
    free_us = [0.0] * topology.num_resources
    end_us = [0.0] * len(drafts)
    messages = []
    for i in order:
        draft = drafts[i]
        src = topology.links[draft.link].src
        tolerance = 1e-9 * max(1.0, abs(draft.start))
        start = 0.0
        for chunk in draft.chunks:
            for j in deliveries.get((chunk, src), ()):
                if drafts[j].end <= draft.start + tolerance:
                    start = max(start, end_us[j])
        size = len(draft.chunks) * chunk_bytes
        resources = topology.resources_of[draft.link]
        start = max(start, *(free_us[r] for r in resources))
        for r in resources:
            free_us[r] = start + topology.occupancy_us(r, size)
        end_us[i] = start + topology.message_us(draft.link, size)
        messages.append(Message(draft.link, draft.chunks, start, end_us[i], draft.reduce))
    return tuple(messages)

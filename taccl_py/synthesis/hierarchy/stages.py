"""Stages: what all nodes do at the same time, and a list schedule of them on what they occupy.

Nodes are alike, so one node and one lane stand for all, and the schedule of a pipeline is found without a look at single messages.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from taccl_py.schedule.dispatch import followers


@dataclass(slots=True)
class Stage:
    """A round or a part of a wave.

    Attributes
    ----------
    step_us
        Duration of each of its steps, one after the other.
    resource
        What it occupies: one stage at a time.
    after
        Stages that it waits for.
    start_us
        When it starts; set by `schedule_stages`.
    also
        What it occupies besides, or None.
    """

    step_us: tuple[float, ...]
    resource: int
    after: tuple[int, ...]
    start_us: float = 0.0
    also: int | None = None

    @property
    def end_us(self) -> float:
        """Time when it has arrived."""
        return self.start_us + sum(self.step_us)

    def starts_us(self) -> list[float]:
        """Starts of its steps."""
        found, at = [], self.start_us
        for step in self.step_us:
            found.append(at)
            at += step
        return found


def add_stage(
    stages: list[Stage], step_us: Iterable[float], resource: int, *after: int, also: int | None = None
) -> int:
    """Append a stage, see `Stage`, and return its number."""
    stages.append(Stage(tuple(step_us), resource, after, also=also))
    return len(stages) - 1


def schedule_stages(stages: Sequence[Stage]) -> float:
    """Set the starts, those with the longest path to the end first wherever several could start; return the end in us."""
    users = followers([stage.after for stage in stages])
    lasts_us = [sum(stage.step_us) for stage in stages]
    rest_us = lasts_us.copy()
    for number in reversed(range(len(stages))):
        if users[number]:
            rest_us[number] += max([rest_us[user] for user in users[number]])
    left = [len(set(stage.after)) for stage in stages]
    # What can start at the earliest comes first; of several at that time, what has the longest path to go.
    ready = [(0.0, -rest_us[number], number) for number, count in enumerate(left) if not count]
    heapq.heapify(ready)
    free_us: defaultdict[int, float] = defaultdict(float)
    ends_us = [0.0] * len(stages)
    while ready:
        at, rest, number = ready[0]
        stage = stages[number]
        free = free_us[stage.resource] if stage.also is None else max(free_us[stage.resource], free_us[stage.also])
        if free > at:
            # Something else has begun there; what waits can only start later than it could before.
            heapq.heapreplace(ready, (free, rest, number))
            continue
        heapq.heappop(ready)
        stage.start_us = at
        end_us = ends_us[number] = free_us[stage.resource] = at + lasts_us[number]
        if stage.also is not None:
            free_us[stage.also] = end_us
        for user in users[number]:
            left[user] -= 1
            if not left[user]:
                start_us = max([ends_us[before] for before in stages[user].after])
                heapq.heappush(ready, (start_us, -rest_us[user], user))
    return max(ends_us, default=0.0)


def keep_order(stages: Sequence[Stage], order: Sequence[int]) -> float:
    """Set the starts, as early as a given order allows in which none comes before what it waits for; return the end in us."""
    free_us: dict[int, float] = {}
    for number in order:
        stage = stages[number]
        occupied = [stage.resource] if stage.also is None else [stage.resource, stage.also]
        turns = (free_us.get(resource, 0.0) for resource in occupied)
        stage.start_us = max(0.0, *turns, *(stages[before].end_us for before in stage.after))
        free_us.update(dict.fromkeys(occupied, stage.end_us))
    return max(free_us.values(), default=0.0)

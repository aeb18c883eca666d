"""Stages: what all nodes do at the same time, and a list schedule of them on what they occupy.

Nodes are alike, so one node and one lane stand for all, and the schedule of a pipeline is found without a look at single messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from taccl_py.schedule.dispatch import Dispatch, longest_first


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
    lasts_us = [sum(stage.step_us) for stage in stages]
    waits_for = [stage.after for stage in stages]
    occupied = [(stage.resource,) if stage.also is None else (stage.resource, stage.also) for stage in stages]
    # Resources may have any numbers, also negative ones.
    places = {resource: place for place, resource in enumerate({r: None for resources in occupied for r in resources})}
    queues: dict[tuple[int, ...], int] = {}
    starts_us = Dispatch(
        len(places),
        [queues.setdefault(resources, len(queues)) for resources in occupied],
        [[(places[r], us) for r in resources] for resources, us in zip(occupied, lasts_us, strict=True)],
        lasts_us,
        waits_for,
        longest_first(lasts_us, waits_for),
    ).starts_us()
    for stage, start_us in zip(stages, starts_us, strict=True):
        stage.start_us = start_us
    return max((start + lasts for start, lasts in zip(starts_us, lasts_us, strict=True)), default=0.0)


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

"""An emulated machine: events under the port rule of a known topology, with noise, in this process.

It is ground truth for the profiler and shares nothing with it: a message starts when its link and all its ports are free, and
of those that could start the one that has waited longest does.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from taccl_py.errors import InputError
from taccl_py.measure.experiment import Experiment, MeasuredFlow
from taccl_py.topology.model import Topology


@dataclass
class EmulatedBench:
    """A bench that is a topology.

    Attributes
    ----------
    topology
        True machine; the profiler may not look at it.
    noise
        Standard deviation of the logarithm of every time.
    seed
        Seed of the noise.
    """

    topology: Topology
    noise: float = 0.0
    seed: int = 0
    _dice: random.Random = field(init=False)

    def __post_init__(self) -> None:
        """Start the noise."""
        self._dice = random.Random(self.seed)

    @property
    def name(self) -> str:
        """Name for people."""
        return self.topology.name

    @property
    def node_of(self) -> tuple[int, ...]:
        """Node of every rank."""
        return self.topology.node_of

    @property
    def pairs(self) -> tuple[MeasuredFlow, ...]:
        """Pairs with a link."""
        return tuple(MeasuredFlow(src, dst) for src, dst in self.topology.links_between)

    def run(self, experiment: Experiment) -> tuple[float, ...]:
        """Emulate an experiment.

        Raises
        ------
        InputError
            If two ranks have no link.
        """
        links = []
        for flow in experiment.flows:
            found = self.topology.links_between.get((flow.src, flow.dst))
            if found is None:
                raise InputError(f"{self.name} has no link {flow.src}->{flow.dst}")
            links.append(found[0])
        if len(links) == 1:
            resources = self.topology.resources_of[links[0]]
            period = max(self.topology.occupancy_us(resource, experiment.size_bytes) for resource in resources)
            alone = (experiment.messages - 1) * period + self.topology.message_us(links[0], experiment.size_bytes)
            return (self._disturbed(alone),)
        return tuple(map(self._disturbed, self._together(links, experiment)))

    def _disturbed(self, time_us: float) -> float:
        return time_us * math.exp(self._dice.gauss(0, self.noise)) if self.noise else time_us

    def _together(self, links: Sequence[int], experiment: Experiment) -> list[float]:
        free: dict[int, float] = {}
        left = [experiment.messages] * len(links)
        done = [0.0] * len(links)
        # When each flow could start, when its last message left the link, and its place. The first of these may be later by now.
        waiting = [(0.0, 0.0, index) for index in range(len(links))]
        while waiting:
            known, ready, index = waiting[0]
            link = links[index]
            resources = self.topology.resources_of[link]
            start = max(free.get(resource, 0.0) for resource in resources)
            if start > known:
                heapq.heapreplace(waiting, (start, ready, index))
                continue
            for resource in resources:
                free[resource] = start + self.topology.occupancy_us(resource, experiment.size_bytes)
            left[index] -= 1
            done[index] = start + self.topology.message_us(link, experiment.size_bytes)
            if left[index]:
                heapq.heapreplace(waiting, (free[link], free[link], index))
            else:
                heapq.heappop(waiting)
        return done

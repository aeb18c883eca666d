"""Lower bound for several process groups at once: the slowest one alone, and what several bring through the same links and ports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from taccl_py.arrays import BoolArray, IntArray
from taccl_py.demand import DataDemand
from taccl_py.synthesis.bounds import Bound, demand_bound
from taccl_py.synthesis.bounds.bound import best_of
from taccl_py.synthesis.bounds.charge import Charge, idle_times
from taccl_py.synthesis.bounds.cut import CutFinder
from taccl_py.synthesis.bounds.net import Net
from taccl_py.synthesis.demands import bound_of_demand
from taccl_py.synthesis.together.tasks import GroupTask
from taccl_py.topology.model import Topology
from taccl_py.units import BYTES_PER_MB, format_count, format_size


def together_bound(machine: Topology, tasks: Sequence[GroupTask], *, relay: bool = False) -> Bound:
    """Lower bound for what all groups do at once.

    What must cross a cut (out of or into a node, or a rank of several groups, or from node to node) is added up over all groups whose
    links all lie in the cover of one of them, or of all, behind the earliest of their releases.

    Parameters
    ----------
    machine
        What they share.
    tasks
        The groups, and what each does when.
    relay
        Whether data may pass through ranks outside of their group.

    Raises
    ------
    Infeasible
        If some rank cannot be reached.
    """
    return best_of([*(_alone(machine, task, relay=relay) for task in tasks), *_Shared(machine, tasks, relay).bounds()])


def _alone(machine: Topology, task: GroupTask, *, relay: bool) -> Bound:
    """Bound of a group by itself, behind its release."""
    if relay:
        bound = bound_of_demand(machine, task.demand.placed(task.ranks, machine.num_ranks))
    elif isinstance(task.what, DataDemand):
        bound = bound_of_demand(machine.subset(task.ranks), task.what)
    else:
        bound = demand_bound(machine.subset(task.ranks), task.what.kind, task.what.root, task.what.size_bytes)
    reason = f"{bound.reason}, behind the release at {task.release_us:g} us" if task.release_us else bound.reason
    return replace(bound, time_us=bound.time_us + task.release_us, reason=reason)


@dataclass(frozen=True)
class _GroupCut:
    """Load that a group must bring over a cut, and its links that cross it."""

    size_bytes: float
    links: IntArray
    release_us: float


class _Shared:
    """Cuts of a machine that groups share."""

    def __init__(self, machine: Topology, tasks: Sequence[GroupTask], relay: bool) -> None:
        self._machine, self._tasks = machine, tasks
        self._net = Net.of(machine)
        self._finder = CutFinder(self._net)
        self._idle_us = idle_times(self._net, np.zeros(machine.num_ranks), np.zeros(machine.num_ranks))
        self._usable: list[BoolArray] = []
        for task in tasks:
            is_member = np.ones(machine.num_ranks, dtype=bool)
            if not relay:
                is_member = np.isin(np.arange(machine.num_ranks), task.ranks)
            self._usable.append(is_member[self._net.src] & is_member[self._net.dst])
        self._resources = [set(resources) for resources in machine.resources_of]

    def bounds(self) -> Iterator[Bound]:
        """Bounds of all cuts."""
        everyone = np.arange(self._machine.num_ranks)
        nodes = [(f"node {node}", inside) for node, inside in enumerate(self._machine.node_ranks)]
        count = np.bincount([rank for task in self._tasks for rank in task.ranks], minlength=len(everyone))
        ranks = [(f"rank {rank}", (int(rank),)) for rank in np.flatnonzero(count > 1)]
        for name, inside in [*(nodes if len(nodes) > 1 else ()), *ranks]:
            is_inside = np.isin(everyone, inside)
            for is_near, direction in ((is_inside, "out of"), (~is_inside, "into")):
                near = frozenset(map(int, np.flatnonzero(is_near)))
                crossing = is_near[self._net.src] & ~is_near[self._net.dst]
                sizes = [task.crossing_bytes(near) for task in self._tasks]
                yield from self._over(crossing, sizes, f"go {direction} {name}")
        node_of = self._net.node_of
        sizes = [task.transfer_bytes(self._machine.node_of) for task in self._tasks]
        yield from self._over(node_of[self._net.src] != node_of[self._net.dst], sizes, "go from node to node")

    def _over(self, is_crossing: BoolArray, sizes: Sequence[float], how: str) -> Iterator[Bound]:
        """Bounds of one cut: of all groups, and of those that have no other way than the resources of one of them."""
        groups = [
            _GroupCut(size, np.flatnonzero(usable & is_crossing), task.release_us)
            for size, usable, task in zip(sizes, self._usable, self._tasks, strict=True)
            if size > 0
        ]
        if not groups:
            return
        every = np.unique(np.concatenate([group.links for group in groups]))
        covers: dict[tuple[int, ...], IntArray] = {}
        for links in {tuple(each): each for each in [every, *(group.links for group in groups)]}.values():
            cover = self._finder.cheapest_cover(links)
            if cover is not None:
                covers[tuple(map(int, cover))] = cover
        for key, cover in covers.items():
            within = set(key)
            served = [group for group in groups if all(self._resources[link] & within for link in group.links)]
            for release_us in sorted({group.release_us for group in served}):
                late = [group.size_bytes for group in served if group.release_us >= release_us]
                text = f"bandwidth: {format_size(sum(late))} of {format_count(len(late), 'group')} {how}"
                text += f", behind the release at {release_us:g} us" if release_us else ""
                amount = sum(late) / BYTES_PER_MB
                bound = Charge.cut(self._net, cover, self._idle_us, amount, text).at(BYTES_PER_MB)
                yield replace(bound, time_us=bound.time_us + release_us)

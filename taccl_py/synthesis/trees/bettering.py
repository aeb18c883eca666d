"""Better plans from the best ones of a search: other orders of the same messages, and better sizes of pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from taccl_py.synthesis.trees.justify import justified, searched
from taccl_py.synthesis.trees.order import OrderChoice, TransferTimes
from taccl_py.synthesis.trees.params import PARAMS
from taccl_py.synthesis.trees.resize import resized
from taccl_py.synthesis.trees.work import TreeSearch


@dataclass(frozen=True)
class Bettering:
    """Rounds by which plans are made better.

    Attributes
    ----------
    work
        The search that they are from.
    is_enough
        Whether some plans are so good, or time is so far gone, that the search may end.
    chunk_bytes
        Size of a chunk of a shard, given their number.
    counts
        Numbers of chunks that a shard may have, ascending; none if sizes are not free.
    """

    work: TreeSearch
    is_enough: Callable[[list[OrderChoice]], bool]
    chunk_bytes: Callable[[int], float]
    counts: Sequence[int]

    def bettered(self, found: list[OrderChoice]) -> list[OrderChoice]:
        """Some plans, with the best of them in other orders and with better sizes."""
        with self.work.stage("order"):
            for choice in _fastest(found, PARAMS.most_shaken):
                found = [*found, *self._shaken(choice, found)]
        with self.work.stage("sizes"):
            found = [*found, *self.resized(found)]
        for _ in range(PARAMS.most_bettered):
            before_us = min((choice.plan.end_us for choice in found), default=0.0)
            reordered = self._searched(found)
            with self.work.stage("sizes"):
                found += [*reordered, *self.resized(reordered)]
            if min((choice.plan.end_us for choice in found), default=0.0) > before_us * (1 - PARAMS.least_gain):
                break
        return found

    def resized(self, before: list[OrderChoice]) -> list[OrderChoice]:
        """The best plans with better sizes."""
        found: list[OrderChoice] = []
        for choice in _fastest(_small(before) if self.counts else [], PARAMS.most_resized):
            if self.is_enough([*before, *found]):
                break
            better = resized(choice, self.chunk_bytes, self.counts, self.work.left())
            found += [] if better is None else [better]
        return found

    def _searched(self, before: list[OrderChoice]) -> list[OrderChoice]:
        """The best plan with its messages in a better order."""
        if not self.counts or self.is_enough(before):
            return []
        with self.work.stage("order"):
            return [searched(choice, self.work.limits.seed, self.work.over) for choice in _fastest(_small(before), 1)]

    def _shaken(self, choice: OrderChoice, before: list[OrderChoice]) -> list[OrderChoice]:
        """The same in a slightly different order, a number of times."""
        found: list[OrderChoice] = []
        times = TransferTimes(choice.transfers, choice.costs)
        for seed in range(1, min(PARAMS.most_restarts, PARAMS.restart_messages // len(choice.transfers)) + 1):
            if choice.rule is None or self.is_enough([*before, *found]):
                break
            rule = replace(choice.rule, seed=self.work.limits.seed + seed)
            found.append(replace(choice, rule=rule, plan=justified(times, times.list_schedule(rule))))
        return found


def _fastest(found: list[OrderChoice], most: int) -> list[OrderChoice]:
    return sorted(found, key=lambda choice: choice.plan.end_us)[:most]


def _small(found: list[OrderChoice]) -> list[OrderChoice]:
    """Plans whose orders and sizes are soon found."""
    return [choice for choice in found if len(choice.transfers) <= PARAMS.most_sized_messages]

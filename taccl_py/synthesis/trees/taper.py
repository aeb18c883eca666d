"""Pieces that become smaller to the end, on shallow trees.

Equal pieces lose twice: many of them pay alpha many times, and few of them leave links idle while the last one runs down its
tree. A piece's size may fall from cut to cut instead, and neighbours share messages while much is left to do. How many trees
and cuts there are, how fast sizes fall and how much may be shared is found by going from the best setting to its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from taccl_py.synthesis.sizes import apportion
from taccl_py.synthesis.trees.jobs import gather_jobs, interleaved
from taccl_py.synthesis.trees.network import Network
from taccl_py.synthesis.trees.order import Choice, Costs, Rule, list_schedule
from taccl_py.synthesis.trees.packing import Over
from taccl_py.synthesis.trees.rounding import Forest, round_packing
from taccl_py.synthesis.trees.shallow import Ground

# Numbers of trees for each root, and how many of them are searched: those with the least loads.
_PARTS = (1, 2, 3, 4, 6, 8)
_MOST_FORESTS = 3
_CUTS = (1, 2, 3, 4, 5, 6, 8)
# Size of a piece in parts of the one before it.
_FALLS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
_TAPERS = (0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.3)
_FIRST_SETTING = (2, 2, 5)
# Places in trees beyond which there are not more of them.
_MOST_PLACES = 4200
# Jobs beyond which no plans are made.
_MOST_JOBS = 16_000
# Chunks of a piece on average, at least.
_CHUNKS_OF_A_PIECE = 8
# Loads that differ by less are alike.
_DIGITS = 3


def even_forests(ground: Ground, over: Over) -> list[Forest]:
    """Whole trees for those numbers of them that load links and ports most evenly."""
    places = len(ground.network.roots) * (ground.network.num_ranks - 1)
    forests = []
    for parts in _PARTS:
        if parts == 1 or (parts * places <= _MOST_PLACES and not over()):
            forests.append(round_packing(ground.network, ground.packing, parts, over))
    return sorted(forests, key=lambda forest: (round(forest.load_us, _DIGITS), forest.parts))[:_MOST_FORESTS]


@dataclass(frozen=True, slots=True)
class _Setting:
    """Positions in the tables above."""

    cuts: int
    fall: int
    taper: int

    def neighbours(self) -> list[_Setting]:
        """Settings that differ in one thing."""
        near = [replace(self, cuts=self.cuts + step) for step in (1, -1)]
        near += [replace(self, fall=self.fall + step) for step in (1, -1)]
        near += [replace(self, taper=self.taper + step) for step in (1, -1)]
        return [
            s for s in near if 0 <= s.cuts < len(_CUTS) and 0 <= s.fall < len(_FALLS) and 0 <= s.taper < len(_TAPERS)
        ]


@dataclass(frozen=True)
class TaperSearch:
    """Search over settings for the trees of a forest.

    Attributes
    ----------
    network
        The machine.
    forest
        Trees.
    chunk_bytes
        Size of a chunk, given their number.
    counts
        Numbers of chunks that a rank's share may have.
    over
        Whether time is up.
    """

    network: Network
    forest: Forest
    chunk_bytes: Callable[[int], float]
    counts: Sequence[int]
    over: Over

    def best(self) -> Choice | None:
        """The best plan, if there is one."""
        best: Choice | None = None
        known: dict[_Setting, Choice | None] = {}
        front = [_Setting(*_FIRST_SETTING)]
        while front:
            setting = front.pop(0)
            if setting in known or (self.over() and best is not None):
                continue
            choice = known[setting] = self._planned(setting)
            if choice is not None and (best is None or choice.plan.end_us < best.plan.end_us):
                best = choice
                front = setting.neighbours()
        return best

    def _planned(self, setting: _Setting) -> Choice | None:
        """The plan of a setting; None if it has too many pieces."""
        cuts = _CUTS[setting.cuts]
        forest = self.forest
        sizes = _sizes(forest.parts, cuts, _FALLS[setting.fall], self.counts)
        if sizes is None or len(forest.trees) * (self.network.num_ranks - 1) * cuts > _MOST_JOBS:
            return None
        jobs = interleaved(gather_jobs(self.network, forest, cuts), forest.parts, cuts)
        costs = Costs.of(self.network, self.chunk_bytes(sum(sizes)), sizes)
        rule = Rule(taper=_TAPERS[setting.taper])
        return Choice(tuple(jobs), costs, sum(sizes), rule, list_schedule(jobs, costs, rule))


def _sizes(parts: int, cuts: int, fall: float, counts: Sequence[int]) -> tuple[int, ...] | None:
    """Chunks of every piece, cut by cut, for a count that is large enough to tell sizes apart; None if all are too small."""
    count = min((count for count in counts if count >= _CHUNKS_OF_A_PIECE * parts * cuts), default=0)
    if not count:
        return None
    weights = [fall**cut for cut in range(cuts) for _ in range(parts)]
    return tuple(1 + more for more in apportion(weights, count - len(weights)))

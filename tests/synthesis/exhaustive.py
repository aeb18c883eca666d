"""Best time of a tiny routed problem by trying everything, written without a look at the engines.

Messages are added in order of their starts, each as early as its chunks, link and ports allow; some such order gives an
optimal schedule. With `batches` any chunks may share a message, wherever they lie, so the result is then a lower bound on
what a schedule can do; without, it is exact where no link and no port has an alpha (there a batch never helps).
"""

import math
from dataclasses import dataclass, field

PRECISION = 1e-9


class TooLargeError(Exception):
    """There are more partial schedules than one wants to try."""


@dataclass
class _Partial:
    """A schedule that has been begun."""

    holds_us: dict  # (chunk, rank) -> since when
    free_us: list  # of every resource
    last_start_us: float
    end_us: float
    missing: int


@dataclass(frozen=True)
class _Move:
    """A message that may come next."""

    end_us: float
    start_us: float
    link: int
    chunks: tuple


@dataclass
class _Exhaustive:
    problem: object
    batches: bool
    most: int
    best_us: float = math.inf
    tried: int = 0
    seen: dict = field(default_factory=dict)

    def run(self):
        collective = self.problem.collective
        wanted = sum(
            rank != collective.source[chunk] for chunk, ranks in enumerate(collective.wanted) for rank in ranks
        )
        holds = {(chunk, rank): 0.0 for chunk, rank in enumerate(collective.source)}
        self._extend(_Partial(holds, [0.0] * self.problem.topology.num_resources, 0.0, 0.0, wanted))
        return self.best_us

    def _extend(self, partial):
        self.tried += 1
        if self.tried > self.most:
            raise TooLargeError
        if not partial.missing:
            self.best_us = min(self.best_us, partial.end_us)
            return
        if self._is_dominated(partial):
            return
        for move in sorted(self._moves(partial), key=lambda m: (m.end_us, m.start_us, m.link, m.chunks)):
            if move.end_us < self.best_us - PRECISION:
                self._extend(self._after(partial, move))

    def _is_dominated(self, partial):
        """Whether an earlier partial schedule has delivered the same and is nowhere later."""
        delivered = tuple(sorted(partial.holds_us))
        times = [partial.holds_us[key] for key in delivered]
        times += [max(free, partial.last_start_us) for free in partial.free_us]
        times += [partial.last_start_us, partial.end_us]
        others = self.seen.setdefault(delivered, [])
        if any(all(mine >= theirs - PRECISION for mine, theirs in zip(times, known, strict=True)) for known in others):
            return True
        others.append(times)
        return False

    def _moves(self, partial):
        topology, permitted = self.problem.topology, self.problem.permitted
        for index, link in enumerate(topology.links):
            ready = [
                chunk
                for chunk in range(self.problem.collective.num_chunks)
                if permitted[chunk, index]
                and (chunk, link.src) in partial.holds_us
                and (chunk, link.dst) not in partial.holds_us
            ]
            for chunks in _subsets(ready) if self.batches else [(chunk,) for chunk in ready]:
                start = max(
                    *(partial.free_us[resource] for resource in topology.resources_of[index]),
                    *(partial.holds_us[chunk, link.src] for chunk in chunks),
                    0.0,
                )
                if start >= partial.last_start_us - PRECISION:
                    end = start + topology.message_us(index, len(chunks) * self.problem.chunk_bytes)
                    yield _Move(end, start, index, chunks)

    def _after(self, partial, move):
        topology, wanted = self.problem.topology, self.problem.collective.wanted
        size = len(move.chunks) * self.problem.chunk_bytes
        dst = topology.links[move.link].dst
        free = list(partial.free_us)
        for resource in topology.resources_of[move.link]:
            free[resource] = move.start_us + topology.occupancy_us(resource, size)
        gained = sum(dst in wanted[chunk] for chunk in move.chunks)
        return _Partial(
            partial.holds_us | {(chunk, dst): move.end_us for chunk in move.chunks},
            free,
            move.start_us,
            max(partial.end_us, move.end_us if gained else 0.0),
            partial.missing - gained,
        )


def _subsets(items):
    for mask in range(1, 1 << len(items)):
        yield tuple(item for place, item in enumerate(items) if mask >> place & 1)


def least_time_us(problem, batches, most=20_000):
    """Best time of a `Problem`, or None if that takes more than `most` partial schedules."""
    try:
        return _Exhaustive(problem, batches, most).run()
    except TooLargeError:
        return None

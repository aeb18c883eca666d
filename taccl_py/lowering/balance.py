"""Balance: threadblocks in proportion to their work, where the links of a machine carry unequal amounts.

Without it every link has as many threadblocks as every other, and a threadblock that receives adds up what comes. On a machine whose
links are unlike, a few threadblocks then take most of the time: on a MI250X, links inside packages carry three times as much as others.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from taccl_py.collective import Buffer
from taccl_py.lowering.actions import NONE, RankAction, RankWork
from taccl_py.lowering.cells import CellRange
from taccl_py.lowering.local_work import by_rank

# Halvings of the interval in which the load of a threadblock is sought: less than a hundredth of it is left.
_HALVINGS = 10

# Threadblocks for local work take over sums as long as they have no more than this part of what the busiest receiver has: what they do waits
# in line. Measured: mi250x, ReduceScatter of 8 MiB, `--effort quick`, 197 us without, and with 0.25, 0.5 and 1 173, 158 and 174.
_MOST_BUSY = 0.5


@dataclass(frozen=True, slots=True)
class ThreadblockBalance:
    """Actions that may be done anywhere taken from busy threadblocks, and channels for busy links.

    Attributes
    ----------
    work
        The same work; some actions are not beside a transfer any more.
    spread
        Channels per instance of the links that need more than one.
    """

    work: RankWork
    spread: Mapping[int, int]

    @staticmethod
    def of(work: RankWork, num_ranks: int, max_threadblocks: int) -> ThreadblockBalance:
        """Balance of work for so many threadblocks on a GPU."""
        loads = _Loads.of(work, num_ranks)
        spread = loads.spread(max_threadblocks)
        moved = {
            transfer for rank in range(num_ranks) for transfer in _moved(work, loads, spread, rank, max_threadblocks)
        }
        if moved:
            actions = (replace(each, beside=NONE) if each.beside in moved else each for each in work.actions)
            work = RankWork(tuple(actions), work.transfers)
        return ThreadblockBalance(work, {link: number for link, number in spread.items() if number > 1})


@dataclass(frozen=True)
class _Loads:
    """Cells that threadblocks have to work on.

    Attributes
    ----------
    of_link
        Of each link and instance.
    messages
        On each link.
    links_of
        Links of each rank, at both ends.
    actions
        Of each rank.
    """

    of_link: dict[int, float]
    messages: dict[int, int]
    links_of: list[set[int]]
    actions: list[list[RankAction]]

    @staticmethod
    def of(work: RankWork, num_ranks: int) -> _Loads:
        """Loads of work."""
        cells, messages = defaultdict[int, float](float), defaultdict[int, set[int]](set)
        links_of: list[set[int]] = [set() for _ in range(num_ranks)]
        instances = 1 + max((each.instance for each in work.transfers), default=0)
        for each in work.transfers:
            cells[each.link] += each.count / instances
            messages[each.link].add(each.message)
            links_of[each.src].add(each.link)
            links_of[each.dst].add(each.link)
        numbers = {link: len(found) for link, found in messages.items()}
        return _Loads(dict(cells), numbers, links_of, by_rank(work.actions, num_ranks))

    def spread(self, max_threadblocks: int) -> dict[int, int]:
        """Channels of every link, for the least load of threadblocks with which they fit, but not less than that of the link with least to do."""
        local = [float(sum(each.count for each in actions if each.is_local)) for actions in self.actions]
        least, most = min(self.of_link.values(), default=1.0), max(self.of_link.values(), default=1.0)
        if self._fits(least, local, max_threadblocks):
            return self._at(least)
        for _ in range(_HALVINGS):
            middle = math.sqrt(least * most)
            if self._fits(middle, local, max_threadblocks):
                most = middle
            else:
                least = middle
        return self._at(most)

    def _at(self, load: float) -> dict[int, int]:
        return {link: max(1, min(self.messages[link], round(cells / load))) for link, cells in self.of_link.items()}

    def _fits(self, load: float, local: Sequence[float], max_threadblocks: int) -> bool:
        spread = self._at(load)
        return all(
            sum(spread[link] for link in links) + math.ceil(cells / load) <= max_threadblocks
            for links, cells in zip(self.links_of, local, strict=True)
        )


def _moved(work: RankWork, loads: _Loads, spread: Mapping[int, int], rank: int, max_threadblocks: int) -> Iterator[int]:
    """Transfers of a rank whose sums threadblocks for local work take over, those of the busiest receivers first, as long as these stay busier."""
    room = max_threadblocks - sum(spread[link] for link in loads.links_of[rank])
    sizes, movable = _sums_beside(work, loads.actions[rank])
    local = sum(each.count for each in loads.actions[rank] if each.is_local and each.beside == NONE)
    of_link = {link: loads.of_link[link] + sum(sizes[each] for each in found) for link, found in movable.items()}
    heap = [(-cells / spread[link], link) for link, cells in of_link.items()]
    heapify(heap)
    while heap and room > 0:
        load, link = heappop(heap)
        transfer = movable[link].pop()
        if (local + sizes[transfer]) / room > _MOST_BUSY * -load:
            return
        local += sizes[transfer]
        of_link[link] -= sizes[transfer]
        if movable[link]:
            heappush(heap, (-of_link[link] / spread[link], link))
        yield transfer


def _sums_beside(work: RankWork, actions: Sequence[RankAction]) -> tuple[dict[int, int], dict[int, list[int]]]:
    """Cells of the local work beside each transfer that a rank receives, and by link the transfers whose work another threadblock may do.

    Runtimes do not promise that a sum sees what another threadblock has just written to its place in the output.
    """
    sizes: dict[int, int] = defaultdict(int)
    arrived, stays = dict[int, CellRange | None](), set[int]()
    for each in actions:
        arrived[each.arrives] = each.writes
        if each.beside != NONE:
            sizes[each.beside] += each.count
            if (
                each.writes is not None
                and each.writes.buffer is Buffer.OUTPUT
                and each.writes == arrived.get(each.beside)
            ):
                stays.add(each.beside)
    movable: dict[int, list[int]] = {}
    for transfer in sizes:
        if transfer not in stays:
            movable.setdefault(work.transfers[transfer].link, []).append(transfer)
    return sizes, movable

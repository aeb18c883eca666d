"""Local improvement: what a few chunks do is taken out of a schedule and found anew, a limited number of times.

After *ruin and recreate* (Schrimpf, Schneider, Stamm-Wilbrandt, Dueck 2000). Of the chunks on a chain of messages that ends last, and
some others, all messages are taken out; then each chunk spreads anew, to whom it reaches first through the gaps that the others
leave. What ends no later is kept, so that the search also wanders between equally good schedules.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from taccl_py.collective import Collective
from taccl_py.schedule.ir import Message
from taccl_py.synthesis.matching.fabric import Fabric
from taccl_py.synthesis.matching.least import least_us
from taccl_py.synthesis.matching.params import PARAMS
from taccl_py.synthesis.matching.timetable import Delivery, EnteredLink, Timetable
from taccl_py.tolerances import RELATIVE
from taccl_py.work import count_work


def affordable_tries(links: int, messages: int) -> int:
    """Number of tries on a machine with so many links and a schedule of so many messages; 0 where that is too few."""
    tries = min(PARAMS.most_tries, PARAMS.regrow_work // (messages + PARAMS.link_work * links))
    return tries if tries >= PARAMS.fewest_tries else 0


@dataclass(frozen=True)
class RegrowTask:
    """Chunks, the ranks that have them, and those that want them.

    Attributes
    ----------
    sources
        Rank that has each chunk at the start.
    wanted
        Ranks that want each chunk: one, or all.
    least_us
        Time that no schedule beats whose messages carry one chunk each, as far as that is known.
    """

    sources: Sequence[int]
    wanted: Sequence[Sequence[int]]
    least_us: float

    @staticmethod
    def of(fabric: Fabric, collective: Collective) -> RegrowTask:
        """Of a routed collective."""
        return RegrowTask(collective.source, collective.wanted, least_us(fabric, collective))


def regrown(
    fabric: Fabric,
    task: RegrowTask,
    grown: Sequence[Message],
    seed: int,
    over: Callable[[], bool],
    *,
    effort: int = 1,
) -> Sequence[Message]:
    """Messages of a schedule that is no slower than the one given; the same one where there are too many to try anything.

    Parameters
    ----------
    fabric
        The machine.
    task
        See `RegrowTask`.
    grown
        A schedule, of one chunk in each message.
    seed
        Of what is tried.
    over
        Asked now and then whether to give up.
    effort
        How many times as often as usual it is tried.
    """
    tries = effort * affordable_tries(len(fabric.src), len(grown))
    if not tries:
        return grown
    search = _RegrowSearch(fabric, task, grown, seed)
    least = task.least_us * (1 + RELATIVE)
    in_vain, before_us = 0, search.end_us
    for _ in range(tries):
        if search.end_us <= least or in_vain >= max(PARAMS.fewest_tries, tries * PARAMS.vain_part) or over():
            break
        search.try_once()
        in_vain = in_vain + 1 if search.end_us >= before_us else 0
        before_us = search.end_us
    search.table.close_up()
    return search.table.grown()


class _PathOffer(NamedTuple):
    """A next link for a chunk; tuples, as they are put in order."""

    end_us: float
    chance: float
    chunk: int
    entry: EnteredLink


class _RegrowSearch:
    def __init__(self, fabric: Fabric, task: RegrowTask, grown: Sequence[Message], seed: int) -> None:
        self._fabric, self._sources, self._wanted = fabric, task.sources, task.wanted
        self._random = random.Random(seed)
        self.table = Timetable(fabric, task.sources, grown)
        self._accepted = 0
        self._close_up()

    def _close_up(self) -> None:
        self.table.close_up()
        self.end_us, self._last = self.table.last()

    def _accept(self, taken: Sequence[Delivery], put: Sequence[Delivery]) -> None:
        """Go on from what was put in place of others; gaps are closed now and then, and where it ends sooner."""
        gone = set(taken)
        self._last = [delivery for delivery in self._last if delivery not in gone]
        self._last += [each for each in put if self.table.end_us(each) * (1 + RELATIVE) >= self.end_us]
        self._accepted += 1
        if not self._last or self._accepted % PARAMS.closed_up_every == 0:
            self._close_up()

    def try_once(self) -> None:
        """Let some chunks spread anew; if something then arrives later than all did before, it stays as it was."""
        taken: list[tuple[Delivery, EnteredLink]] = []
        chunks = self._chosen()
        for chunk in chunks:
            for rank in list(self.table.entries[chunk]):
                delivery = Delivery(chunk, rank)
                taken.append((delivery, self.table.take(delivery)))
        if self._random.random() < 0.5:
            self._random.shuffle(chunks)
        put: list[Delivery] = []
        if all(self._spread(group, put) for group in self._groups(chunks)):
            self._accept([delivery for delivery, _ in taken], put)
            return
        for delivery in put:
            self.table.take(delivery)
        for delivery, entry in taken:
            self.table.put(delivery.chunk, entry)

    def _chosen(self) -> list[int]:
        """Chunks on a chain of messages that ends last, that which ends it first, and perhaps others."""
        chain = list(dict.fromkeys(self._chain()))
        number = self._random.choice(PARAMS.regrown_chunks)
        chosen = chain[:1] + self._random.sample(chain[1:], min(number, len(chain)) - 1)
        if self._random.random() < 0.5:
            chosen += self._random.sample(range(len(self._sources)), min(number, len(self._sources)))
        return list(dict.fromkeys(chosen))

    def _chain(self) -> list[int]:
        """Chunks of messages each of which starts when the one before it in the chain lets it, from the last to the first."""
        at = self._random.choice(self._last)
        chunks = [at.chunk]
        while reasons := self.table.reasons(at):
            at = self._random.choice(reasons)
            chunks.append(at.chunk)
        return chunks

    def _groups(self, chunks: list[int]) -> list[list[int]]:
        """Groups of chunks that spread at the same time: each chunk alone, or all."""
        is_alone = len(self._wanted[chunks[0]]) == 1 or self._random.random() < 0.5
        return [[chunk] for chunk in chunks] if is_alone else [chunks]

    def _spread(self, chunks: list[int], put: list[Delivery]) -> bool:
        """Bring chunks to all who want them; False as soon as that takes longer than before."""
        if len(self._wanted[chunks[0]]) == 1:
            return self._send(chunks[0], put)
        waiting: list[_PathOffer] = []
        for chunk in chunks:
            self._offer(chunk, self._sources[chunk], 0.0, waiting)
        latest_us = self.end_us * (1 + RELATIVE)
        while waiting:
            offer = heapq.heappop(waiting)
            chunk, (link, start_us) = offer.chunk, offer.entry
            if self._fabric.dst[link] in self.table.entries[chunk]:
                continue
            if offer.end_us > latest_us:
                return False
            now_us = self.table.earliest_us(link, start_us)
            if now_us > start_us:  # something has been put there meanwhile
                count_work("regrown", 1)
                heapq.heappush(waiting, self._offered(chunk, link, now_us))
                continue
            put.append(self.table.put(chunk, offer.entry))
            self._offer(chunk, self._fabric.dst[link], offer.end_us, waiting)
        return True

    def _offer(self, chunk: int, rank: int, ready_us: float, waiting: list[_PathOffer]) -> None:
        """Links from a rank that has got a chunk to those that lack it."""
        reached, source = self.table.entries[chunk], self._sources[chunk]
        count_work("regrown", len(self._fabric.links_from[rank]))
        for link in self._fabric.links_from[rank]:
            dst = self._fabric.dst[link]
            if dst != source and dst not in reached:
                start_us = self.table.earliest_us(link, ready_us)
                heapq.heappush(waiting, self._offered(chunk, link, start_us))

    def _offered(self, chunk: int, link: int, start_us: float) -> _PathOffer:
        return _PathOffer(
            start_us + self.table.message_us[link], self._random.random(), chunk, EnteredLink(link, start_us)
        )

    def _send(self, chunk: int, put: list[Delivery]) -> bool:
        """Send a chunk that one rank wants along the path on which it arrives first; False if that is later than before."""
        fabric, source = self._fabric, self._sources[chunk]
        (target,) = self._wanted[chunk]
        entered: dict[int, int] = {}
        waiting = [(0.0, 0.0, source, -1)]
        while target not in entered:
            ready_us, _, rank, link = heapq.heappop(waiting)
            if rank in entered:
                continue
            entered[rank] = link
            count_work("regrown", len(fabric.links_from[rank]))
            for onward in fabric.links_from[rank]:
                if fabric.dst[onward] not in entered:
                    end_us = self.table.earliest_us(onward, ready_us) + self.table.message_us[onward]
                    heapq.heappush(waiting, (end_us, self._random.random(), fabric.dst[onward], onward))
        path = []
        while target != source:
            path.append(entered[target])
            target = fabric.src[entered[target]]
        ready_us = 0.0
        for link in reversed(path):
            entry = EnteredLink(link, self.table.earliest_us(link, ready_us))
            put.append(self.table.put(chunk, entry))
            ready_us = entry.start_us + self.table.message_us[link]
        return ready_us <= self.end_us * (1 + RELATIVE)

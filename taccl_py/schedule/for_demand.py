"""Schedule of a demand: timed messages that bring chunks of any size to those who want them.

A message carries one or more chunks over one link as one piece and pays alpha once for all of them: its sender packs them, wherever they lie,
and its receiver puts them where they belong. At its receiver a message that reduces is added to what the rank holds of the chunk, a summand of
its own or a partial sum that has arrived before; where it holds nothing, it is stored. Any other message takes the place of what is held.

The demand may be cut finer than the one that was asked for; its buffers are the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from taccl_py.demand import DataDemand
from taccl_py.schedule.ir import Message, MessagesInOrder, Origin, sort_messages
from taccl_py.topology.model import Topology
from taccl_py.units import algbw_gbps

_MOST_NAME = 63


@dataclass(frozen=True)
class DemandSchedule(MessagesInOrder):
    """Timed messages that meet a demand.

    Attributes
    ----------
    topology, demand
        The machine and what must move on it, in the chunks that move.
    messages
        Sorted by (start, link, chunks).
    origin
        Provenance, or None.
    """

    topology: Topology
    demand: DataDemand
    messages: tuple[Message, ...]
    origin: Origin | None = None

    @property
    def subject(self) -> str:
        """Name of the demand."""
        return self.demand.name

    def size_bytes(self, chunks: Sequence[int]) -> int:
        """Bytes of a message that carries these chunks."""
        return sum(self.demand.chunks[chunk].size_bytes for chunk in chunks)

    @property
    def algbw_gbps(self) -> float | None:
        """All bytes that had to come somewhere, over the time; None where nothing moves."""
        return algbw_gbps(self.demand.total_bytes, self.makespan_us) if self.messages else None

    def coalesced(self) -> DemandSchedule:
        """The same messages with fewer chunks: parts that lie behind one another everywhere and that the same messages carry are one."""
        carriers: list[list[int]] = [[] for _ in self.demand.chunks]
        for number, message in enumerate(self.messages):
            for chunk in message.chunks:
                carriers[chunk].append(number)
        runs: list[list[int]] = []
        for _, parts in self.demand.wholes():
            runs += [list(run) for _, run in groupby(parts, key=carriers.__getitem__)]
        if len(runs) == len(carriers):
            return self
        runs.sort()
        new_of = {part: new for new, run in enumerate(runs) for part in run}
        chunks = tuple(
            self.demand.chunks[run[0]].part(0, sum(self.demand.chunks[part].size_bytes for part in run)) for run in runs
        )
        messages = [
            replace(message, chunks=carried, packed=message.packed and len(carried) > 1)
            for message in self.messages
            for carried in [tuple(dict.fromkeys(new_of[chunk] for chunk in message.chunks))]
        ]
        return replace(self, demand=replace(self.demand, chunks=chunks), messages=sort_messages(messages))

    @property
    def name(self) -> str:
        """Name of demand and machine, in signs that a file can hold."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{self.demand.name}-{self.topology.name}")[:_MOST_NAME]

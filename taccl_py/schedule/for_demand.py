"""Schedule of a demand: timed messages that bring chunks of any size to those who want them.

A message carries one or more chunks over one link as one piece and pays alpha once for all of them: its sender packs them, wherever they lie,
and its receiver puts them where they belong. At its receiver a message that reduces is added to what the rank holds of the chunk, a summand of
its own or a partial sum that has arrived before; where it holds nothing, it is stored. Any other message takes the place of what is held.

The demand may be cut finer than the one that was asked for; its buffers are the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from taccl_py.demand import DataDemand
from taccl_py.schedule.ir import Message, MessagesInOrder, Origin
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

    @property
    def name(self) -> str:
        """Name of demand and machine, in signs that a file can hold."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{self.demand.name}-{self.topology.name}")[:_MOST_NAME]

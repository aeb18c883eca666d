"""Schedule of a demand: timed messages that bring chunks of any size to those who want them.

A message carries one or more chunks over one link as one piece and pays alpha once for all of them: its sender packs them, wherever they lie,
and its receiver puts them where they belong. At its receiver a message that reduces is added to what the rank holds of the chunk, a summand of
its own or a partial sum that has arrived before; where it holds nothing, it is stored. Any other message takes the place of what is held.

The demand may be cut finer than the one that was asked for; its buffers are the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property

from taccl_py.demand import DataDemand
from taccl_py.schedule.ir import Message, Origin, sort_messages, steps_of
from taccl_py.topology.model import Topology
from taccl_py.units import algbw_gbps

_MOST_NAME = 63


@dataclass(frozen=True)
class DemandSchedule:
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

    def __post_init__(self) -> None:
        """Put the messages into their one order."""
        object.__setattr__(self, "messages", sort_messages(self.messages))

    @cached_property
    def makespan_us(self) -> float:
        """Time at which the last message has arrived."""
        return max((message.end_us for message in self.messages), default=0.0)

    def size_bytes(self, chunks: Sequence[int]) -> int:
        """Bytes of a message that carries these chunks."""
        return sum(self.demand.chunks[chunk].size_bytes for chunk in chunks)

    @cached_property
    def step_of(self) -> tuple[int, ...]:
        """Step of every message, as of other schedules."""
        return steps_of(self.topology, self.messages)

    @property
    def num_steps(self) -> int:
        """Longest chain of messages that wait for each other's data."""
        return max(self.step_of, default=0)

    @property
    def algbw_gbps(self) -> float | None:
        """All bytes that had to come somewhere, over the time; None where nothing moves."""
        return algbw_gbps(self.demand.total_bytes, self.makespan_us) if self.messages else None

    @property
    def name(self) -> str:
        """Name of demand and machine, in signs that a file can hold."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{self.demand.name}-{self.topology.name}")[:_MOST_NAME]

    def with_origin(self, origin: Origin) -> DemandSchedule:
        """Return the same schedule with its provenance."""
        found = copy(self)
        object.__setattr__(found, "origin", origin)
        return found

    def __str__(self) -> str:
        """Text form: one line for each message."""
        lines = [
            f"{self.demand.name} on {self.topology.name}: {len(self.messages)} messages, {self.makespan_us:.6g} us"
        ]
        for message in self.messages:
            link = self.topology.links[message.link]
            verb = "reduce" if message.reduce else "copy"
            chunks = ",".join(map(str, message.chunks))
            lines.append(
                f"{message.start_us:12.4f} {message.end_us:12.4f}  {link.src:3d} -> {link.dst:<3d} {verb} {chunks}"
            )
        return "\n".join(lines) + "\n"

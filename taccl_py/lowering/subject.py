"""Subject of lowering: messages that carry cells between places in the buffers of ranks, of a collective or of a demand."""

from __future__ import annotations

from typing import Protocol

from taccl_py.collective import Address, Kind
from taccl_py.schedule.ir import Message
from taccl_py.topology.model import Topology


class CellCollective(Protocol):
    """Chunks with their places: a `taccl_py.collective.Collective`, or the cells of a demand, which has no kind."""

    @property
    def kind(self) -> Kind | None:
        """Which of the eight; None for a demand."""

    @property
    def num_ranks(self) -> int:
        """R."""

    @property
    def num_chunks(self) -> int:
        """C."""

    @property
    def chunks_per_rank(self) -> int:
        """Chunks of one rank's shard, where there are shards."""

    @property
    def root(self) -> int:
        """Root, where there is one."""

    @property
    def input_chunks(self) -> int:
        """Length of the longest input in chunks."""

    @property
    def output_chunks(self) -> int:
        """Length of the longest output in chunks."""

    @property
    def reduces(self) -> bool:
        """True if contributions are summed."""

    @property
    def wanted(self) -> tuple[tuple[int, ...], ...]:
        """Ranks that hold each chunk at the end."""

    def input_address(self, chunk: int, rank: int) -> Address | None:
        """Place of the chunk, or of its contribution, at a rank at the start; None if it has none."""

    def output_address(self, chunk: int, rank: int) -> Address | None:
        """Place in which a rank must have the chunk at the end; None if it does not want it."""

    def describe_chunk(self, chunk: int) -> str:
        """Name of a chunk for people."""


class CellSchedule(Protocol):
    """Messages of such chunks: a `taccl_py.schedule.ir.Schedule`, or what is made of the schedule of a demand."""

    @property
    def topology(self) -> Topology:
        """The machine."""

    @property
    def collective(self) -> CellCollective:
        """Chunks that move."""

    @property
    def chunk_bytes(self) -> float:
        """Size of a chunk."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """In their one order."""

    @property
    def scratch(self) -> tuple[tuple[int, ...], ...]:
        """For every rank, the chunks that it keeps in scratch."""

    @property
    def makespan_us(self) -> float:
        """When the last message has arrived."""

    def address(self, chunk: int, rank: int) -> Address | None:
        """Place in which the rank keeps the chunk."""

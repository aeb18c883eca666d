"""Images of a rank's program: what all ranks do where they are symmetric, from what one of each role does.

The translation that takes the root of a role to another rank renames peers, and moves the shards of ranks in the buffers; scratch,
steps, threadblocks, channels and dependencies stay.
"""

from __future__ import annotations

from collections.abc import Iterable

from taccl_py.collective import Address, Buffer
from taccl_py.lowering.program import Gpu, Step, Threadblock
from taccl_py.schedule.group import GroupSchedule


class RankImages:
    """Programs of all ranks, each made when it is asked for."""

    def __init__(self, schedule: GroupSchedule, patterns: Iterable[Gpu], instances: int) -> None:
        """Prepare.

        Parameters
        ----------
        schedule
            Knows the translations.
        patterns
            Programs of the roots.
        instances
            Cells that every chunk is cut into.
        """
        collective = schedule.collective
        self._schedule = schedule
        self._patterns = {pattern.rank: pattern for pattern in patterns}
        self._shard = schedule.chunks_per_rank * instances
        lengths = {Buffer.INPUT: collective.input_chunks, Buffer.OUTPUT: collective.output_chunks}
        self._of_all = {buffer for buffer, chunks in lengths.items() if chunks > schedule.chunks_per_rank}

    @property
    def are_whole(self) -> bool:
        """True if no step copies cells of several ranks' shards, unless these are neighbours in every image too."""
        return all(
            address.buffer not in self._of_all
            or self._schedule.stay_neighbours(
                address.offset // self._shard, (address.offset + max(step.count, 1) - 1) // self._shard
            )
            for pattern in self._patterns.values()
            for tb in pattern.threadblocks
            for step in tb.steps
            for address in (step.src, step.dst)
        )

    def of(self, rank: int) -> Gpu:
        """Program of a rank."""
        pattern = self._patterns[self._schedule.root_of(rank)]
        if rank == pattern.rank:
            return pattern
        image = (*self._schedule.carried_to(rank), -1)  # the last for peer -1, which is none
        moved: dict[Address, Address] = {}
        threadblocks = tuple(
            Threadblock(
                image[tb.send_peer],
                image[tb.recv_peer],
                tb.channel,
                tuple(
                    Step(
                        step.op,
                        moved.get(step.src) or self._moved(step.src, image, moved),
                        moved.get(step.dst) or self._moved(step.dst, image, moved),
                        step.count,
                        step.depends_on,
                        step.has_dependent,
                    )
                    for step in tb.steps
                ),
            )
            for tb in pattern.threadblocks
        )
        return Gpu(rank, pattern.input_chunks, pattern.output_chunks, pattern.scratch_chunks, threadblocks)

    def _moved(self, address: Address, image: tuple[int, ...], moved: dict[Address, Address]) -> Address:
        """Place of the cell in the image; `moved` remembers it."""
        found = address
        if address.buffer in self._of_all and address.offset >= 0:
            owner, cell = divmod(address.offset, self._shard)
            found = Address(address.buffer, image[owner] * self._shard + cell)
        moved[address] = found
        return found

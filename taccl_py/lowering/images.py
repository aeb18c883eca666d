"""Images of programs: what all ranks do where they are symmetric, from what one of each role does; and whole programs renamed.

The translation that takes the root of a role to another rank renames peers, and moves the shards of ranks in the buffers; scratch,
steps, threadblocks, channels and dependencies stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from taccl_py.collective import Address, Buffer, Kind
from taccl_py.lowering.program import Gpu, Program, Step, Threadblock
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


# Buffers that hold a shard of every rank; in other collectives all is one shard.
OF_ALL_RANKS = {
    Kind.ALLGATHER: (Buffer.OUTPUT,), Kind.GATHER: (Buffer.OUTPUT,), Kind.REDUCESCATTER: (Buffer.INPUT,),
    Kind.SCATTER: (Buffer.INPUT,), Kind.ALLTOALL: (Buffer.INPUT, Buffer.OUTPUT),
}  # fmt: skip


def image_of_program(program: Program, renaming: Sequence[int]) -> Program | None:
    """The program with rank r renamed ``renaming[r]``; None if a step handles shards of several ranks that are then not neighbours.

    Parameters
    ----------
    program
        A program of one of the collectives.
    renaming
        New name of every rank; the root keeps its own.
    """
    moved = _MovedCells(program, renaming)
    image = (*renaming, -1)  # the last for peer -1, which is none
    gpus: list[Gpu] = [*program.gpus]
    for gpu in program.gpus:
        blocks = [
            replace(tb, send_peer=image[tb.send_peer], recv_peer=image[tb.recv_peer], steps=moved.steps(tb))
            for tb in gpu.threadblocks
        ]
        gpus[renaming[gpu.rank]] = replace(gpu, rank=renaming[gpu.rank], threadblocks=tuple(blocks))
    return None if moved.are_torn else replace(program, gpus=tuple(gpus))


class _MovedCells:
    """Places of shards under a renaming of the ranks.

    Attributes
    ----------
    are_torn
        Whether a step was found whose cells would not be neighbours.
    """

    def __init__(self, program: Program, renaming: Sequence[int]) -> None:
        self.are_torn = False
        self._renaming = renaming
        self._buffers = OF_ALL_RANKS.get(program.known_kind, ())
        is_of_one_rank = program.kind in (Kind.GATHER, Kind.SCATTER)
        self._shard = program.num_chunks_per_loop // (1 if is_of_one_rank else len(program.gpus))

    def steps(self, tb: Threadblock) -> tuple[Step, ...]:
        """Steps of a threadblock, with their cells where they are then."""
        if not self._buffers:
            return tb.steps
        return tuple(
            replace(step, src=self._moved(step.src, step.count), dst=self._moved(step.dst, step.count))
            for step in tb.steps
        )

    def _moved(self, address: Address, count: int) -> Address:
        if address.buffer not in self._buffers or address.offset < 0:
            return address
        owner, cell = divmod(address.offset, self._shard)
        last = (address.offset + max(count, 1) - 1) // self._shard
        there = self._renaming[owner]
        self.are_torn |= any(self._renaming[owner + step] != there + step for step in range(last - owner + 1))
        return Address(address.buffer, there * self._shard + cell)

"""Instances as copies: a program side by side with itself, every copy with its part of each chunk, none waiting for another.

Cells stay neighbours where a rank's shard is cut into as many equal parts as there are copies: every copy has the cells of one part in
the order of the shard.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from taccl_py.collective import Address, Buffer
from taccl_py.errors import LoweringError
from taccl_py.lowering.buffers import BufferSizes
from taccl_py.lowering.images import OF_ALL_RANKS
from taccl_py.lowering.limits import require_limits, require_sizes
from taccl_py.lowering.program import Gpu, Program, Protocol, Step, Threadblock
from taccl_py.lowering.protocol import flag_is_early, largest_size_bytes, largest_size_with
from taccl_py.runtimes import MAX_OFFSET, Runtime


@dataclass(frozen=True)
class OneInstance:
    """A program with one instance, of which others are copies.

    Attributes
    ----------
    program
        The program.
    geometry
        Sizes of its buffers.
    runtime
        For which it is.
    least_cells
        Fewest cells that an operation must carry, for it to come to its end, by the slots of a connection; none where it never does.
    """

    program: Program
    geometry: BufferSizes
    runtime: Runtime
    least_cells: Mapping[int, int]

    def copies(self, number: int, protocol: Protocol, max_bytes: int | None = None) -> Program:
        """Program of so many copies under a protocol.

        Parameters
        ----------
        number
            Number of copies, at least 1.
        protocol
            Their protocol.
        max_bytes
            Largest size, as the runtime counts it, for which the program must be usable; None is the largest for which it is safe.

        Raises
        ------
        LoweringError
            If a step carries data of several ranks' shards, or a limit of the runtime cannot be kept.
        """
        runtime, program = self.runtime, self.program
        cells = self.least_cells.get(runtime.fifo_slots[protocol])
        if cells is None:
            raise self._error(f"connections of {protocol} hold too little for this program", "fifo_slots")
        if flag_is_early(runtime, protocol) and protocol is not program.protocol:
            raise self._error(f"with protocol {protocol} flags may come too early for this program", "protocol")
        sizes = replace(self.geometry, instances=number * self.geometry.instances)
        safe = largest_size_bytes(sizes, runtime, protocol)
        if cells > 1:
            safe = min(safe, largest_size_with(cells, sizes, runtime, protocol))
        if (max_bytes or program.min_bytes) > safe:
            raise self._error(f"with protocol {protocol} this program is safe up to {safe} bytes", "max_bytes")
        shard = self._shard_cells
        copied = replace(
            program,
            num_chunks_per_loop=program.num_chunks_per_loop * number,
            num_channels=program.num_channels * number,
            protocol=protocol,
            max_bytes=safe if max_bytes is None else max_bytes,
            gpus=tuple(self._copied(gpu, number, shard) for gpu in program.gpus),
        )
        require_limits(copied, runtime)
        require_sizes(copied, runtime)
        return copied

    def can_be(self, number: int) -> bool:
        """True if offsets of so many copies are within the runtime's."""
        if self.geometry.collective.kind is None:
            return True  # there are no copies, whose error says why
        return all(self.last_offset(buffer, number) <= MAX_OFFSET for buffer in Buffer)

    def last_offset(self, buffer: Buffer, number: int) -> int:
        """Last offset of a buffer that a step of so many copies names."""
        if buffer is Buffer.SCRATCH:
            return max((number - 1) * scratch + last for scratch, last in self._last_cells[buffer])
        shard = self._shard_cells
        owner, cell = divmod(max(last for _, last in self._last_cells[buffer]), shard)
        return (owner * number + number - 1) * shard + cell

    @cached_property
    def _last_cells(self) -> dict[Buffer, list[tuple[int, int]]]:
        """Of every buffer: cells of scratch, and the last offset that a step names, of each rank."""
        found: dict[Buffer, list[tuple[int, int]]] = {buffer: [] for buffer in Buffer}
        for gpu in self.program.gpus:
            last = dict.fromkeys(Buffer, 0)
            for step in (step for block in gpu.threadblocks for step in block.steps):
                for address in (step.src, step.dst):
                    last[address.buffer] = max(last[address.buffer], address.offset)
            for buffer, offset in last.items():
                found[buffer].append((gpu.scratch_chunks, offset))
        return found

    @property
    def _shard_cells(self) -> int:
        collective = self.geometry.collective
        if collective.kind is None:
            raise self._error("data of a demand have no shards", "copies")
        cells = max(collective.input_chunks, collective.output_chunks) * self.geometry.instances
        return cells // collective.num_ranks if collective.kind in OF_ALL_RANKS else cells

    def _copied(self, gpu: Gpu, number: int, shard: int) -> Gpu:
        """Part of one rank, so many times."""
        blocks, channels = gpu.threadblocks, self.program.num_channels

        def place(address: Address, count: int, copy: int) -> Address:
            if address.offset < 0:
                return address
            if address.buffer is Buffer.SCRATCH:
                return Address(address.buffer, copy * gpu.scratch_chunks + address.offset)
            owner, cell = divmod(address.offset, shard)
            if cell + count > shard:
                raise self._error("a step carries data of several ranks", "copies")
            return Address(address.buffer, (owner * number + copy) * shard + cell)

        def moved(step: Step, copy: int) -> Step:
            wait = step.depends_on and (copy * len(blocks) + step.depends_on[0], step.depends_on[1])
            source, target = place(step.src, step.count, copy), place(step.dst, step.count, copy)
            return Step(step.op, source, target, step.count, wait, step.has_dependent)

        return Gpu(
            gpu.rank,
            gpu.input_chunks * number,
            gpu.output_chunks * number,
            gpu.scratch_chunks * number,
            tuple(
                Threadblock(
                    tb.send_peer,
                    tb.recv_peer,
                    copy * channels + tb.channel,
                    tuple(moved(each, copy) for each in tb.steps),
                )
                for copy in range(number)
                for tb in blocks
            ),
        )

    def _error(self, why: str, limit: str) -> LoweringError:
        return LoweringError(f"instances cannot be copies: {why}", runtime=self.runtime.name, limit=limit)

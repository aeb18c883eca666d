"""The records of an execution plan, and their JSON.

Offsets and counts are in chunks. Operations name channels and remote buffers by their place in the lists of their threadblock,
which name them by their place in the lists of the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from taccl_py.collective import Buffer
from taccl_py.jsonio import canonical_json
from taccl_py.lowering.cells import CellRange

MEMORY, PORT, SWITCH = "memory", "port", "switch"
SIMPLE, PACKETS = "Simple", "LL"  # protocols


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a threadblock; what it does not use is left empty.

    Attributes
    ----------
    name
        As MSCCL++ spells it.
    channel_type
        ``memory``, ``port`` or ``switch``, or empty.
    channels
        Channels that it signals, waits on or flushes.
    semaphores
        Semaphores that it releases or acquires.
    sources
        Local cells that it reads.
    target
        Local cells that it writes, or cells of the remote buffer `remote`.
    remote
        Remote buffer, or None.
    summed
        Switch channel by which `sources` are those of all its ranks, added up; or None.
    stored
        Switch channel by which `target` is the cells of all its ranks; or None.
    part
        Which part of its bytes this threadblock does, of how many that a group of threadblocks shares; or None, for all of them.
    inner, unit_bytes, count
        Of a loop (``pipeline``): its operations, the bytes of each of them that a pass does, and how many cells they have.
    """

    name: str
    channel_type: str = ""
    channels: tuple[int, ...] = ()
    semaphores: tuple[int, ...] = ()
    sources: tuple[CellRange, ...] = ()
    target: CellRange | None = None
    remote: int | None = None
    summed: int | None = None
    stored: int | None = None
    part: tuple[int, int] | None = None
    inner: tuple[Operation, ...] = ()
    unit_bytes: int = 0
    count: int = 0

    @property
    def fraction(self) -> float:
        """Share of the cells that this threadblock does."""
        return 1.0 if self.part is None else 1.0 / self.part[1]


@dataclass(frozen=True, slots=True)
class SwitchChannel:
    """A switch channel: the ranks that it joins, in order, and which buffer of theirs."""

    buffer: Buffer
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RemoteBuffer:
    """A buffer of another rank, and the type of channels by which it is reached."""

    rank: int
    buffer: Buffer
    channel_type: str


@dataclass(frozen=True, slots=True)
class PlanBlock:
    """A threadblock: its operations; channels by type and remote buffers by type, as places in the lists of the GPU."""

    operations: tuple[Operation, ...]
    channels: dict[str, tuple[int, ...]]
    remotes: dict[str, tuple[int, ...]]

    @property
    def all_operations(self) -> Iterator[Operation]:
        """Operations, those in loops too."""
        return (one for outer in self.operations for one in (outer, *outer.inner))

    @property
    def num_operations(self) -> int:
        """Number of operations as the runtime counts them."""
        return sum(1 for _ in self.all_operations)


@dataclass(frozen=True, slots=True)
class PlanGpu:
    """One rank: buffer lengths, peers of its channels by type, remote buffers, semaphores, threadblocks, switch channels."""

    rank: int
    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    peers: dict[str, tuple[int, ...]]
    remotes: tuple[RemoteBuffer, ...]
    num_semaphores: int
    blocks: tuple[PlanBlock, ...]
    groups: tuple[SwitchChannel, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """An execution plan.

    Attributes
    ----------
    name, collective
        Name of the algorithm, and the runtime's name of the collective.
    in_place
        Whether input and output are the same memory.
    alignment_bytes
        Every chunk of a size is a multiple of it.
    min_bytes, max_bytes
        Sizes, as the runtime counts them, for which it may be selected; both inclusive.
    gpus
        One for each rank, in order.
    protocol
        ``Simple``, or ``LL`` for one by packets.
    """

    name: str
    collective: str
    in_place: bool
    alignment_bytes: int
    min_bytes: int
    max_bytes: int
    gpus: tuple[PlanGpu, ...]
    protocol: str = SIMPLE

    @property
    def chunks_per_size(self) -> int:
        """Chunks that a size as nccl-tests counts it is spread over: those of the longer buffer."""
        return max(max(gpu.input_chunks, gpu.output_chunks) for gpu in self.gpus)

    @property
    def unit_bytes(self) -> int:
        """Of what a size as nccl-tests counts it must be a multiple for the runtime to run the plan."""
        return self.alignment_bytes * self.chunks_per_size

    @property
    def num_threadblocks(self) -> int:
        """Most threadblocks on one GPU."""
        return max(len(gpu.blocks) for gpu in self.gpus)

    @property
    def num_operations(self) -> int:
        """Most operations in one threadblock."""
        return max((block.num_operations for gpu in self.gpus for block in gpu.blocks), default=0)

    @property
    def num_channels(self) -> int:
        """Most channels on one GPU."""
        return max(sum(map(len, gpu.peers.values())) for gpu in self.gpus)


def emit_plan(plan: Plan) -> str:
    """Return the JSON of a plan."""
    return canonical_json({
        "name": plan.name,
        "collective": plan.collective,
        "protocol": plan.protocol,
        "inplace": plan.in_place,
        "reuse_resources": False,
        "use_double_scratch_buffer": plan.protocol == PACKETS,  # else a call may overwrite packets of the one before
        "buffer_alignment": plan.alignment_bytes,
        "num_threads_per_block": 1024,
        "min_message_size": plan.min_bytes,
        "max_message_size": plan.max_bytes,
        "gpus": [_gpu(gpu) for gpu in plan.gpus],
    })  # fmt: skip


def _gpu(gpu: PlanGpu) -> dict[str, Any]:
    return {
        "id": gpu.rank,
        "input_chunks": gpu.input_chunks,
        "output_chunks": gpu.output_chunks,
        "scratch_chunks": gpu.scratch_chunks,
        "channels": [
            *({"channel_type": kind, "connected_to": list(peers)} for kind, peers in gpu.peers.items()),
            *({"channel_type": SWITCH, **_group(group)} for group in gpu.groups),
        ],
        "remote_buffers": [
            {"rank": one.rank, "type": str(one.buffer), "access_channel_types": [one.channel_type]}
            for one in gpu.remotes
        ],
        "semaphores": [{"init_value": 0}] * gpu.num_semaphores,
        "threadblocks": [
            {
                "id": number,
                "channels": [{"channel_type": kind, "channel_ids": list(ids)} for kind, ids in block.channels.items()],
                "remote_buffer_refs": [
                    {"access_channel_type": kind, "remote_buffer_ids": list(ids)} for kind, ids in block.remotes.items()
                ],
                "ops": [_operation(operation) for operation in block.operations],
            }
            for number, block in enumerate(gpu.blocks)
        ],
    }


def _group(group: SwitchChannel) -> dict[str, Any]:
    return {"buffer_type": str(group.buffer), "rank_groups": [{"size": len(group.ranks), "ranks": list(group.ranks)}]}


def _operation(operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {"name": operation.name}
    if operation.channel_type:
        found["channel_type"] = operation.channel_type
    if operation.channels:
        found["channel_ids"] = list(operation.channels)
    if operation.semaphores:
        found["semaphore_ids"] = list(operation.semaphores)
    if operation.sources:
        found["src_buff"] = [_operand(cells, operation.summed) for cells in operation.sources]
    if operation.target is not None:
        target = operation.target
        if operation.remote is None:
            found["dst_buff"] = [_operand(target, operation.stored)]
        else:
            found["dst_buff"] = [{"buffer_id": operation.remote, "index": target.first, "size": target.count}]
    if operation.inner:
        found["iter_context"] = {"unit_size": operation.unit_bytes, "num_chunks": operation.count}
        found["ops"] = [_operation(one) for one in operation.inner]
    if operation.part is not None:
        number, size = operation.part
        found["tbg_info"] = {"tb_id": number, "tbg_size": size}
    if operation.name in ("re", "repkt", "glres"):
        found["reduce_op"] = "sum"
    if operation.name == "flush":
        # The runtime flushes as many channels as there are destinations, so there is one for each, and nothing is written.
        found["dst_buff"] = [_operand(CellRange(Buffer.OUTPUT, 0, 1), None)] * len(operation.channels)
    return found


def _operand(cells: CellRange, switch: int | None) -> dict[str, Any]:
    """Cells of a local buffer, or of the buffer of a switch channel at all its ranks."""
    where: dict[str, Any] = {"type": str(cells.buffer)} if switch is None else {"switch_channel_id": switch}
    return where | {"index": cells.first, "size": cells.count}

"""Program: what one runtime executes, as small frozen records (Program > Gpu > Threadblock > Step).

Offsets and counts are in chunks; the size of a chunk is decided by the call: ``size / num_chunks_per_loop``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from taccl_py.collective import Address, Kind
from taccl_py.pickles import pickled_by_fields
from taccl_py.runtimes import CUSTOM, Runtime

# The count of a call is for each rank, and its size that of all.
_COUNTED_BY_RANK = frozenset({Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.ALLTOALL})


class Op(StrEnum):
    """Kinds of step, spelled as in MSCCL XML."""

    SEND = "s"
    RECV = "r"
    RECV_COPY_SEND = "rcs"
    RECV_REDUCE_SEND = "rrs"
    RECV_REDUCE_COPY = "rrc"
    RECV_REDUCE_COPY_SEND = "rrcs"
    COPY = "cpy"
    REDUCE = "re"
    NOP = "nop"

    @property
    def receives(self) -> bool:
        """True if the step takes a message from the receive peer."""
        return self in (
            Op.RECV, Op.RECV_COPY_SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_COPY_SEND
        )  # fmt: skip

    @property
    def sends(self) -> bool:
        """True if the step gives a message to the send peer."""
        return self in (Op.SEND, Op.RECV_COPY_SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND)

    @property
    def adds(self) -> bool:
        """True if the step adds the message that it takes to a local operand."""
        return self in (Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND)


class Protocol(StrEnum):
    """Protocols of the NCCL family."""

    SIMPLE = "Simple"
    LL = "LL"
    LL128 = "LL128"


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class Step:
    """One instruction of a threadblock.

    Attributes
    ----------
    op
        Operation of the step.
    src, dst
        First cell read and first cell written. For `Op.RECV_REDUCE_COPY` and its kin ``src`` is the local operand; for a
        plain send or receive the other side's address is given for information. `Op.RECV_COPY_SEND` has ``dst`` as both.
    count
        Number of neighbouring chunks (0 for `Op.NOP`).
    depends_on
        (threadblock id, step index) of the same GPU that must have finished, or None.
    has_dependent
        Whether some other threadblock waits for this step.
    """

    op: Op
    src: Address
    dst: Address
    count: int
    depends_on: tuple[int, int] | None = None
    has_dependent: bool = False


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class Threadblock:
    """A block that runs its steps in order, with at most one send peer and one receive peer (-1 for none)."""

    send_peer: int
    recv_peer: int
    channel: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One rank's threadblocks and the sizes of its buffers in chunks (0 for a buffer that is not used)."""

    rank: int
    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    threadblocks: tuple[Threadblock, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A lowered algorithm.

    Attributes
    ----------
    name
        Name of the algorithm, at most 63 characters.
    kind
        Collective; None for a demand.
    num_chunks_per_loop
        Chunks that the runtime divides a call's size by (MSCCL's nchunksperloop): those of the larger of input and output,
        but of one rank's shard for Gather and Scatter, whose size the runtimes count per rank.
    num_channels
        Channels 0..n-1 are used.
    protocol
        See `Protocol`.
    in_place, out_of_place
        For which placements of the user's buffers the program is correct.
    min_bytes, max_bytes
        Sizes, as the runtime counts them, for which it may be selected; both inclusive.
    gpus
        One for each rank, in order.
    """

    name: str
    kind: Kind | None
    num_chunks_per_loop: int
    num_channels: int
    protocol: Protocol
    in_place: bool
    out_of_place: bool
    min_bytes: int
    max_bytes: int
    gpus: tuple[Gpu, ...]

    @property
    def known_kind(self) -> Kind:
        """Collective of a program that is not for a demand."""
        if self.kind is None:
            raise ValueError(f"{self.name} is for a demand, which is none of the collectives")
        return self.kind

    @property
    def num_threadblocks(self) -> int:
        """Most threadblocks on one GPU."""
        return max(len(gpu.threadblocks) for gpu in self.gpus)

    @property
    def num_steps(self) -> int:
        """Most steps in one threadblock."""
        return max((len(tb.steps) for gpu in self.gpus for tb in gpu.threadblocks), default=0)

    def __str__(self) -> str:
        """Text form: one line for each step."""
        places = [text for used, text in ((self.in_place, "in place"), (self.out_of_place, "out of place")) if used]
        lines = [
            f"{self.name}: {self.kind}, {self.protocol}, {self.num_channels} channels, {self.num_chunks_per_loop} chunks, "
            f"{' and '.join(places) or 'nowhere'}, {self.min_bytes}..{self.max_bytes} bytes"
        ]
        for gpu in self.gpus:
            sizes = f"input {gpu.input_chunks}, output {gpu.output_chunks}, scratch {gpu.scratch_chunks}"
            lines.append(f"rank {gpu.rank}: {sizes}")
            for number, tb in enumerate(gpu.threadblocks):
                peers = [f"from {tb.recv_peer}"] if tb.recv_peer >= 0 else []
                peers += [f"to {tb.send_peer}"] if tb.send_peer >= 0 else []
                lines.append(f"  threadblock {number}: {' '.join(peers) or 'local'}, channel {tb.channel}")
                lines.extend(f"    {index:2d} {_step_text(step)}" for index, step in enumerate(tb.steps))
        return "\n".join(lines) + "\n"


def chunks_of_size(program: Program, runtime: Runtime | None = None) -> int:
    """Chunks that a size is spread over, counted as nccl-tests does.

    Parameters
    ----------
    program
        The program.
    runtime
        For which it is; None is any that knows all collectives by name. One that takes Gather and Scatter for custom
        collectives counts the whole buffer for them, and not one rank's shard.
    """
    shared = program.kind in (Kind.GATHER, Kind.SCATTER)
    custom = shared and runtime is not None and runtime.collectives.get(program.known_kind) == CUSTOM
    return program.num_chunks_per_loop * (len(program.gpus) if shared and not custom else 1)


def count_divisor(program: Program) -> int:
    """Divisor that the count of a call must have for runtimes to take the file; three collectives count for each rank."""
    chunks = program.num_chunks_per_loop
    return chunks // math.gcd(chunks, len(program.gpus) if program.kind in _COUNTED_BY_RANK else 1)


def size_divisor(program: Program, runtime: Runtime | None = None) -> int:
    """Number of elements that a size, counted as nccl-tests does, must be a multiple of for a runtime to take the file."""
    for_each_rank = len(program.gpus) if program.kind in _COUNTED_BY_RANK else 1
    return math.lcm(max(chunks_of_size(program, runtime), 1), for_each_rank)


def _step_text(step: Step) -> str:
    """Op, what it reads and writes, what it waits for (``@threadblock.step``), and ``!`` if somebody waits for it."""
    cells = f"{_cells_text(step.src, step.count)} > {_cells_text(step.dst, step.count)}" if step.count else ""
    wait = f"@{step.depends_on[0]}.{step.depends_on[1]}" if step.depends_on else ""
    return f"{step.op:4s} {cells:19s} {wait:6s}{'!' if step.has_dependent else ''}".rstrip()


def _cells_text(first: Address, count: int) -> str:
    last = f"-{first.offset + count - 1}" if count > 1 else ""
    return f"{first.buffer}{first.offset}{last}"

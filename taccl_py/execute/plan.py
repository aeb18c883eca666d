"""Executable program: the threadblocks of an algorithm file, the lengths of its buffers, and how data are cut for them.

Nothing here needs numpy, so that options can be read without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from taccl_py.collective import COMBINING, ROOTED, Address, Buffer, Kind
from taccl_py.demand import DataDemand
from taccl_py.errors import InputError
from taccl_py.runtimes import CUSTOM, MAX_COUNT, Runtime
from taccl_py.units import nearest_within


class DataType(StrEnum):
    """Types of elements, by numpy's names."""

    INT8 = "int8"
    UINT8 = "uint8"
    INT32 = "int32"
    UINT32 = "uint32"
    INT64 = "int64"
    UINT64 = "uint64"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"

    @property
    def size_bytes(self) -> int:
        """Bytes of an element."""
        return int("".join(sign for sign in self.value if sign.isdecimal())) // 8

    @property
    def is_float(self) -> bool:
        """True if the type has a fraction."""
        return "float" in self.value


class Operator(StrEnum):
    """Operator with which a collective combines contributions; ``avg`` is a sum that the caller divides."""

    SUM = "sum"
    PROD = "prod"
    MIN = "min"
    MAX = "max"
    AVG = "avg"


class Backend(StrEnum):
    """Backend that carries messages of torch's processes; ``auto`` is NCCL where each has a GPU for itself, gloo elsewhere."""

    AUTO = "auto"
    GLOO = "gloo"
    NCCL = "nccl"


@dataclass(frozen=True, slots=True)
class StepAction:
    """Action of the steps of one type.

    Attributes
    ----------
    receives, sends
        Whether a message comes from the receive peer, and whether one goes to the send peer.
    reads, writes
        Whether the source, and whether the target address, is used.
    accumulates
        Whether the target is an operand too.
    """

    receives: bool = False
    sends: bool = False
    reads: bool = False
    writes: bool = False
    accumulates: bool = False


ACTIONS = {
    "s": StepAction(sends=True, reads=True),
    "r": StepAction(receives=True, writes=True),
    "rcs": StepAction(receives=True, sends=True, writes=True),
    "rrs": StepAction(receives=True, sends=True, reads=True),
    "rrc": StepAction(receives=True, reads=True, writes=True),
    "rrcs": StepAction(receives=True, sends=True, reads=True, writes=True),
    "cpy": StepAction(reads=True, writes=True),
    "re": StepAction(reads=True, writes=True, accumulates=True),
    "nop": StepAction(),
}


@dataclass(frozen=True, slots=True)
class Dependency:
    """A step of another threadblock of the same rank, by its ``s``."""

    threadblock: int
    step: int


@dataclass(frozen=True, slots=True)
class Step:
    """One step; `number` is its ``s``, `signals` whether it tells others that it is done."""

    number: int
    type: str
    source: Address
    target: Address
    count: int
    waits_for: Dependency | None
    signals: bool

    @property
    def action(self) -> StepAction:
        """Action of the step."""
        return ACTIONS[self.type]


@dataclass(frozen=True, slots=True)
class Threadblock:
    """Steps in their order, with at most one peer to send to and one to receive from (-1 for none)."""

    id: int
    send_peer: int
    recv_peer: int
    channel: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class ExecutableRank:
    """Threadblocks of one rank, by id, and the lengths of its buffers in chunks."""

    rank: int
    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    threadblocks: tuple[Threadblock, ...]


@dataclass(frozen=True, slots=True)
class ExecutablePlan:
    """An algorithm file, ready to run.

    Attributes
    ----------
    name
        Name in errors.
    kind
        Collective; None for a demand, whose ranks have buffers of lengths of their own.
    root
        Root of a rooted collective, else 0.
    shard_chunks
        Chunks of one rank's shard; of the whole buffer for AllReduce, Broadcast and Reduce; 0 for a demand.
    protocol
        As written.
    in_place, out_of_place
        For which placements of the user's buffers the file declares itself.
    ranks
        One for each rank, in order.
    min_bytes, max_bytes
        Sizes for which the file declares itself, both inclusive; a maximum of 0 is no limit.
    """

    name: str
    kind: Kind | None
    root: int
    shard_chunks: int
    protocol: str
    in_place: bool
    out_of_place: bool
    ranks: tuple[ExecutableRank, ...]
    min_bytes: int
    max_bytes: int

    @property
    def num_ranks(self) -> int:
        """R."""
        return len(self.ranks)

    @property
    def collective(self) -> Kind:
        """The collective.

        Raises
        ------
        ValueError
            If the file is for a demand.
        """
        if self.kind is None:
            raise ValueError(f"{self.name} is for a demand")
        return self.kind

    @property
    def reduces(self) -> bool:
        """True if it is a collective that combines contributions."""
        return self.kind in COMBINING

    @property
    def input_chunks(self) -> int:
        """Length of the longest input; those of a collective are equal."""
        return max(rank.input_chunks for rank in self.ranks)

    @property
    def output_chunks(self) -> int:
        """Length of the longest output; those of a collective are equal."""
        return max(rank.output_chunks for rank in self.ranks)

    @property
    def chunks_per_size(self) -> int:
        """Chunks that a size of the collective, as nccl-tests counts it, is spread over."""
        return _whole(self.collective, self.shard_chunks, self.num_ranks)

    def declared_bytes(self, size_bytes: int) -> int:
        """Size in bytes nearest to another one for which the file declares itself."""
        return nearest_within(size_bytes, self.min_bytes, self.max_bytes)

    def has_buffer(self, buffer: Buffer, rank: int, *, in_place: bool) -> bool:
        """True if a rank's buffer exists; where it does not, the caller may pass NULL."""
        if rank == self.root or self.kind not in ROOTED:
            return True
        if buffer is Buffer.INPUT:
            return self.kind is not Kind.SCATTER and (in_place or self.kind is not Kind.BROADCAST)
        if buffer is Buffer.OUTPUT:
            return self.kind is not Kind.GATHER and (in_place or self.kind is not Kind.REDUCE)
        return True


@dataclass(frozen=True, slots=True)
class SizeCut:
    """Cut of data of one size.

    Attributes
    ----------
    chunk_elements
        Elements of a chunk.
    slice_elements
        Elements of every chunk that one pass over the steps moves; longer chunks take several passes.
    chunks_per_operation
        Neighbouring chunks that one message carries at most.
    """

    chunk_elements: int
    slice_elements: int
    chunks_per_operation: int

    @property
    def num_passes(self) -> int:
        """Number of times that the steps are run through."""
        return -(-self.chunk_elements // self.slice_elements)


def cut_size(plan: ExecutablePlan, size_bytes: int, data_type: DataType, runtime: Runtime) -> SizeCut:
    """Cut for the largest possible size up to the wanted one, but at least one element a chunk.

    As the kernels do: a message holds what the protocol's payload holds, and a chunk that is larger goes in slices.
    """
    elements = max(1, size_bytes // (data_type.size_bytes * plan.chunks_per_size))
    return cut_chunks(plan, elements, data_type, runtime)


def cut_chunks(plan: ExecutablePlan, elements: int, data_type: DataType, runtime: Runtime) -> SizeCut:
    """Cut for chunks of so many elements."""
    payload = runtime.payload_bytes[plan.protocol]
    together = min(MAX_COUNT, max(1, payload // (elements * data_type.size_bytes)))
    return SizeCut(elements, min(elements, payload // data_type.size_bytes), together)


def shard_of(kind: Kind, num_ranks: int, chunks_per_loop: int, spelling: str) -> int:
    """Chunks of one rank's shard (of the whole buffer where there are no shards) for an ``nchunksperloop``.

    Raises
    ------
    InputError
        If the ranks cannot share them out.
    """
    counts_all = kind in (Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.ALLTOALL)
    if not counts_all and not (spelling == CUSTOM and kind in (Kind.GATHER, Kind.SCATTER)):
        return chunks_per_loop
    if chunks_per_loop % num_ranks:
        raise InputError(
            f"{chunks_per_loop} chunks cannot be shared out among {num_ranks} ranks; use a multiple of the ranks"
        )
    return chunks_per_loop // num_ranks


def buffer_chunks(kind: Kind, shard_chunks: int, num_ranks: int) -> tuple[int, int]:
    """Lengths of every rank's input and output."""
    whole = _whole(kind, shard_chunks, num_ranks)
    return (
        shard_chunks if kind in (Kind.ALLGATHER, Kind.GATHER) else whole,
        shard_chunks if kind in (Kind.REDUCESCATTER, Kind.SCATTER) else whole,
    )


def _whole(kind: Kind, shard_chunks: int, num_ranks: int) -> int:
    """Chunks of all shards."""
    shared = kind in (Kind.ALLREDUCE, Kind.BROADCAST, Kind.REDUCE)
    return shard_chunks * (1 if shared else num_ranks)


def demand_chunks(demand: DataDemand, num_ranks: int, longest_chunks: int) -> list[tuple[int, int]]:
    """Lengths of every rank's input and output, for a file in which the longest buffer of all has so many chunks.

    Raises
    ------
    InputError
        If the file cannot be for the demand.
    """
    if num_ranks != demand.num_ranks:
        raise InputError(
            f"is for {num_ranks} ranks, and the demand has {demand.num_ranks}; give the one that it was made for"
        )
    longest = demand.longest_bytes
    unit_bytes = longest // max(1, longest_chunks)
    if longest_chunks < 1 or longest % longest_chunks or unit_bytes % demand.element_bytes:
        raise InputError(
            f"counts {longest_chunks} chunks in the longest buffer, and the demand's has {longest} bytes of {demand.dtype}, which that does not "
            "divide into whole elements; give the demand that it was made for"
        )
    for name, lengths in (("input", demand.input_bytes), ("output", demand.output_bytes)):
        for rank, length in enumerate(lengths):
            if length % unit_bytes:
                raise InputError(
                    f"has chunks of {unit_bytes} bytes, and the {name} of rank {rank} has {length} in the demand; give the one that it was made for"
                )
    pairs = zip(demand.input_bytes, demand.output_bytes, strict=True)
    return [(given // unit_bytes, wanted // unit_bytes) for given, wanted in pairs]


def find_root(kind: Kind, ranks: Sequence[ExecutableRank]) -> int | None:
    """Root of a rooted collective: the one rank that receives nothing, or sends nothing; None if that does not tell."""
    if kind not in ROOTED:
        return 0
    starts = kind in (Kind.BROADCAST, Kind.SCATTER)
    found = [rank.rank for rank in ranks if not _moves(rank, receives=starts)]
    return found[0] if len(found) == 1 else None


def _moves(rank: ExecutableRank, *, receives: bool) -> bool:
    steps = [step.action for tb in rank.threadblocks for step in tb.steps]
    return any(action.receives if receives else action.sends for action in steps)

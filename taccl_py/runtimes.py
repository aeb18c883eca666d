"""Facts about the runtimes: limits, spellings, buffer geometry. Data only; no behaviour.

Read from the sources of microsoft/msccl b23e9cd (``legacy``, NCCL 2.12), Azure/msccl-executor-nccl c6f6b36 (``executor``,
NCCL 2.23) and ROCm/rccl 0cbce2a (``rccl``, NCCL 2.21): ``src/include/msccl/msccl_struct.h``, ``msccl_parser.cc`` (or
``src/graph/topo.cc``), ``msccl_kernel*.h``, ``devcomm.h`` and ``init.cc`` of each. MSCCL++, which loads execution plans (JSON)
instead of XML: microsoft/mscclpp 1f5f065, ``src/core/executor`` and ``python/mscclpp/language``. The lowering keeps these limits
and the verifier tests them; neither takes the other's word for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from taccl_py.collective import Kind
from taccl_py.units import ALIGNED_BYTES

MAX_XML_NODES = 4095  # MAX_NODES 4096, the document itself takes one
MAX_XML_CHILDREN = 1024  # MAX_SUBS; not checked by any runtime, overflows
MAX_XML_ATTRIBUTES = 16  # MAX_ATTR_COUNT; later ones are dropped
MAX_XML_VALUE = 255  # value buffers have 256 bytes and are not checked
MAX_NAME = 63  # MSCCL_MAX_ALGO_NAME
MAX_COUNT = 71  # MSCCL_MAX_COUNT 72, exclusive
UNLIMITED_COUNT = (1 << 31) - 1  # more chunks than any message has
MAX_DEPENDENCY_THREADBLOCK = 127  # depid is an int8
MAX_REDUCE_CHAIN = 15  # MSCCL_MAX_REDUCE_FUSION 16; a chain of 16 drops its destination in Simple
MAX_PEERS_PER_CHANNEL = 32  # MSCCL_MAX_NUM_THREAD_BLOCKS_PER_CHANNEL
MAX_OFFSET = 32767  # int16
V100_THREADBLOCKS = 80  # its SMs; the runtimes for NVIDIA's GPUs are verified by the 108 of an A100
CUSTOM = "custom"  # spelling of a collective that the runtime knows nothing of
PLAN_FOLDER = "plans"  # where an installation keeps MSCCL++ plans, beside the module that registers them
LEGACY_CONFIG = "msccl-config.xml"  # what we call the file that tells the legacy runtime which files to load
LOOP_LIMIT = 65536  # MSCCL_MAX_ITER


@dataclass(frozen=True, slots=True)
class Runtime:
    """One runtime.

    Attributes
    ----------
    name, title
        Short name for options, long name for people.
    max_channels
        Channels 0..max-1 exist.
    max_threadblocks
        Most threadblocks on a GPU that the parser accepts.
    resident_threadblocks
        Most that certainly run at the same time (SMs or CUs of the smallest GPU that it is used with); more can hang.
    max_steps
        Steps of one threadblock in a default build.
    fused
        Whether the fused receive operations (rcs, rrs, rrc, rrcs) can run.
    collectives
        Spelling of each collective that it can select.
    uncalled
        Kinds for which its library has no call, so that a file for one is loaded and never selected.
    payload_bytes
        Bytes that one FIFO operation carries, for each protocol.
    fifo_slots
        Operations that can be outstanding on a connection, for each protocol.
    max_bytes_exclusive
        Whether ``maxBytes`` itself is outside of the range.
    max_bytes_zero
        Meaning of ``maxBytes="0"``: ``unlimited`` or ``never``.
    max_size_bytes
        Largest size that it can count, also where each element is one byte.
    checks_chunk_counts
        Whether i_chunks and o_chunks must fit nchunksperloop exactly.
    max_algorithms
        Files that it loads at most.
    connection_bytes
        Buffers of one connection, which the receiving GPU holds for all protocols.
    max_count
        Chunks that one message can carry.
    """

    name: str
    title: str
    max_channels: int
    max_threadblocks: int
    resident_threadblocks: int
    max_steps: int
    fused: bool
    collectives: dict[Kind, str]
    uncalled: frozenset[Kind]
    payload_bytes: dict[str, int]
    fifo_slots: dict[str, int]
    max_bytes_exclusive: bool
    max_bytes_zero: str
    max_size_bytes: int
    checks_chunk_counts: bool
    max_algorithms: int
    connection_bytes: int
    max_count: int = MAX_COUNT


_COMMON = {
    Kind.ALLREDUCE: "allreduce",
    Kind.ALLGATHER: "allgather",
    Kind.ALLTOALL: "alltoall",
    Kind.BROADCAST: "broadcast",
    Kind.REDUCE: "reduce",
}
_MODERN = {**_COMMON, Kind.REDUCESCATTER: "reducescatter", Kind.GATHER: "gather", Kind.SCATTER: "scatter"}
_NVIDIA_PAYLOAD = {"Simple": 2097152, "LL": 32768, "LL128": 576000}
_NVIDIA_CONNECTION = 4194304 + 524288 + 4915200  # NCCL_BUFFSIZE, NCCL_LL_BUFFSIZE, NCCL_LL128_BUFFSIZE
_FIFO_SLOTS = {"Simple": 2, "LL": 8, "LL128": 8}

EXECUTOR = Runtime(
    name="executor",
    title="MSCCL executor for NCCL",
    max_channels=32,
    max_threadblocks=1024,
    resident_threadblocks=108,
    max_steps=64,
    fused=True,
    collectives=_MODERN,
    uncalled=frozenset({Kind.GATHER, Kind.SCATTER}),  # RCCL has ncclGather and ncclScatter
    payload_bytes=_NVIDIA_PAYLOAD,
    fifo_slots=_FIFO_SLOTS,
    max_bytes_exclusive=False,
    max_bytes_zero="unlimited",
    max_size_bytes=(1 << 63) - 1,
    checks_chunk_counts=False,
    max_algorithms=1024,  # MSCCL_MAX_NUM_ALGOS
    connection_bytes=_NVIDIA_CONNECTION,
)
RCCL = Runtime(
    name="rccl",
    title="RCCL",
    max_channels=32,
    max_threadblocks=64,
    resident_threadblocks=64,
    max_steps=64,
    fused=False,
    collectives=_MODERN,
    uncalled=frozenset(),
    payload_bytes={"Simple": 2097152, "LL": 16384, "LL128": 50176},
    fifo_slots=_FIFO_SLOTS,
    max_bytes_exclusive=False,
    max_bytes_zero="unlimited",
    max_size_bytes=(1 << 63) - 1,
    checks_chunk_counts=False,
    max_algorithms=1024,  # MSCCL_MAX_NUM_ALGOS
    connection_bytes=4194304 + 262144 + 458752,
)
LEGACY = Runtime(
    name="legacy",
    title="legacy MSCCL",
    max_channels=32,
    max_threadblocks=216,
    resident_threadblocks=108,
    max_steps=256,
    fused=True,
    collectives={**_COMMON, Kind.REDUCESCATTER: "reduce_scatter", Kind.GATHER: CUSTOM, Kind.SCATTER: CUSTOM},
    uncalled=frozenset(),
    payload_bytes=_NVIDIA_PAYLOAD,
    fifo_slots=_FIFO_SLOTS,
    max_bytes_exclusive=True,
    max_bytes_zero="never",
    max_size_bytes=(1 << 31) - 1,  # totalCount is an int, of elements, for AllGather and Broadcast of bytes
    checks_chunk_counts=True,
    max_algorithms=4,  # MSCCL_MAX_NUM_ALGOS
    connection_bytes=_NVIDIA_CONNECTION,
)
RUNTIMES = {runtime.name: runtime for runtime in (EXECUTOR, RCCL, LEGACY)}


def loading_variables(runtime: Runtime, place: str) -> dict[str, str]:
    """Environment variables with which a runtime loads the files in a directory, by name."""
    if runtime.name == EXECUTOR.name:
        return {"NCCL_MSCCL_ENABLE": "1", "MSCCL_ALGO_DIR": place}
    if runtime.name == RCCL.name:
        return {"RCCL_MSCCL_ENABLE": "1", "RCCL_MSCCL_FORCE_ENABLE": "1", "MSCCL_ALGO_DIR": place}
    return {"MSCCL_CONFIG": f"{place}/{LEGACY_CONFIG}"}


@dataclass(frozen=True, slots=True)
class PlanRuntime:
    """A runtime that executes one-sided plans; apart from operations and alignment its loader checks none of these limits.

    Attributes
    ----------
    name, title, version
        Short name for options, long name for people, and where the facts come from.
    max_operations
        Operations of a threadblock.
    max_channels
        Channels of one type, and remote buffers reached by one type, that a threadblock can use.
    max_channels_at_once, max_buffers_at_once
        Channels, and buffers, that one operation can name.
    max_semaphores
        Semaphores that one operation can name (a GPU has as many as the plan says), and barriers of a GPU.
    max_threadblocks
        Most that certainly run at the same time (SMs of an A100); more can wait for each other forever.
    max_threads
        Threads of a threadblock, of which each serves one of the channels or semaphores that an operation names.
    alignment_bytes
        Every chunk is a multiple of it.
    max_offset_bytes
        Largest offset inside an operation.
    shared_scratch_bytes
        Length of the scratch of plans that reuse resources.
    collectives
        Spelling of each collective.
    other_collectives
        Those that its own tools write and that are none of ours.
    sum_types
        Types of elements that it can add up.
    max_count
        Chunks that one message can carry: any number, as an operation names bytes.
    """

    name: str
    title: str
    version: str
    max_operations: int
    max_channels: int
    max_channels_at_once: int
    max_buffers_at_once: int
    max_semaphores: int
    max_threadblocks: int
    max_threads: int
    alignment_bytes: int
    max_offset_bytes: int
    shared_scratch_bytes: int
    collectives: dict[Kind, str]
    other_collectives: tuple[str, ...]
    sum_types: tuple[str, ...]
    max_count: int = UNLIMITED_COUNT


MSCCLPP = PlanRuntime(
    name="mscclpp",
    title="MSCCL++",
    version="microsoft/mscclpp 1f5f065",
    max_operations=64,  # MAX_OPERATION
    max_channels=16,
    max_channels_at_once=8,
    max_buffers_at_once=10,
    max_semaphores=16,
    max_threadblocks=108,
    max_threads=1024,
    alignment_bytes=ALIGNED_BYTES,
    max_offset_bytes=(1 << 32) - 1,
    shared_scratch_bytes=1 << 26,  # PREDFINED_SCRATCH_SIZE
    collectives={kind: str(kind) for kind in Kind},
    other_collectives=("sendrecv",),  # python/mscclpp/language/collectives.py
    sum_types=("int32", "uint32", "uint8", "float16", "bfloat16", "float32"),  # src/core/executor/execution_kernel.cu
)

"""Releases and what they load: those of each runtime, which files they take from where, and for which calls. Data only.

Read from the sources that each row names; nothing here was tried on GPUs. ``taccl install`` and ``taccl doctor`` say what of it
concerns the files at hand, ``taccl runtime versions`` shows all of it, and a test compares the table in README.md with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from taccl_py.runtimes import EXECUTOR, LEGACY, MSCCLPP, RCCL

DEFAULT_FOLDER = "default"  # of MSCCL++'s cache directory, where it looks for a few names


@dataclass(frozen=True, slots=True)
class DefaultName:
    """A file that MSCCL++ looks for by itself.

    Attributes
    ----------
    file
        Its name; the sizes in it are only a name, those in the plan count.
    num_ranks, ranks_per_node
        Of which communicators it serves the AllReduce.
    """

    file: str
    num_ranks: int
    ranks_per_node: int


_TWO_NODES = DefaultName("allreduce_2nodes_1K_64K.json", 16, 8)
DEFAULT_NAMES = {
    "0.9": (_TWO_NODES, DefaultName("allreduce_2nodes_64K_2M.json", 16, 8)),
    "0.10": (
        _TWO_NODES,
        DefaultName("allreduce_2nodes_128K_2M.json", 16, 8),
        DefaultName("allreduce_4nodes_1K_64K.json", 32, 8),
        DefaultName(
            "allreduce_4nodes_128K_2M.json", 64, 4
        ),  # as written there; its own plan of that name is for 32 ranks
    ),
}


@dataclass(frozen=True, slots=True)
class Release:
    """Neighbouring versions of a runtime that load the same.

    Attributes
    ----------
    runtime
        Its name in options.
    versions
        As people know them.
    loads_ours
        Whether files that taccl writes for the runtime run there.
    files
        What it takes, and under which names.
    place
        Where it looks for them.
    variables
        Environment variables that decide that.
    choice
        For which calls it runs a file.
    warning
        What goes wrong there; empty if nothing does.
    source
        Where that was read.
    """

    runtime: str
    versions: str
    loads_ours: bool
    files: str
    place: str
    variables: tuple[str, ...]
    choice: str
    warning: str
    source: str


_XML_CHOICE = (
    "the first file, by path, for the collective, the number of ranks and the placement, with minBytes <= size <= maxBytes and a "
    "count that the chunks divide; Sum, Prod, Max, Min"
)
_REGISTERED = (
    "what a registered selector names; sizes that are multiples of 16 bytes for each chunk, float16, bfloat16, float32, 8-bit "
    "floats, int32 and uint32, sums only"
)

RELEASES = (
    Release(
        runtime=EXECUTOR.name,
        versions="NCCL 2.23.4 of Azure/msccl-executor-nccl (December 2024, the last)",
        loads_ours=True,
        files="MSCCL XML, every file of the directory, whatever its name",
        place="MSCCL_ALGO_DIR, else msccl-algorithms beside libnccl.so, ../share/nccl/msccl-algorithms, /usr/share/nccl/msccl-algorithms",
        variables=("NCCL_MSCCL_ENABLE", "MSCCL_ALGO_DIR"),
        choice=_XML_CHOICE + "; AllReduce, AllGather, ReduceScatter, AllToAll, Broadcast, Reduce",
        warning="",
        source="Azure/msccl-executor-nccl c6f6b36, src/misc/msccl/msccl_lifecycle.cc, msccl_parser.cc",
    ),
    Release(
        runtime=EXECUTOR.name,
        versions="NVIDIA's NCCL, every version",
        loads_ours=False,
        files="none",
        place="",
        variables=(),
        choice="",
        warning="NVIDIA's own NCCL loads no algorithm files and ignores these variables",
        source="NVIDIA/nccl 5067397 (2.30.7) has no such code",
    ),
    Release(
        runtime=RCCL.name,
        versions="packages of ROCm 7.2 and earlier (RCCL 2.27.7 and before)",
        loads_ours=True,
        files="MSCCL XML, every file of the directory, whatever its name",
        place="MSCCL_ALGO_DIR, else msccl-algorithms beside librccl.so, ../share/rccl/msccl-algorithms",
        variables=("RCCL_MSCCL_ENABLE", "RCCL_MSCCL_FORCE_ENABLE", "MSCCL_ALGO_DIR"),
        choice=_XML_CHOICE.replace(", by path,", ", as the file system lists them,")
        + "; AllReduce, AllGather, ReduceScatter, AllToAll, Broadcast, Reduce, Gather, Scatter",
        warning="",
        source="ROCm/rccl 0cbce2a, src/misc/msccl/msccl_lifecycle.cc; ROCm/rocm-systems projects/rccl/CHANGELOG.md",
    ),
    Release(
        runtime=RCCL.name,
        versions="builds of TheRock and previews before ROCm 7.13",
        loads_ours=False,
        files="none",
        place="",
        variables=(),
        choice="",
        warning="RCCL of TheRock's builds and of the previews after ROCm 7.2 is built without MSCCL's kernels and runs no file",
        source="ROCm/TheRock issue 56 (ENABLE_MSCCL_KERNEL=OFF)",
    ),
    Release(
        runtime=RCCL.name,
        versions="ROCm 7.13 and later (RCCL 2.28.3 and later)",
        loads_ours=False,
        files="none",
        place="",
        variables=(),
        choice="",
        warning="RCCL of ROCm 7.13 and later has no MSCCL: it ignores these variables, and mscclLoadAlgo and mscclRunAlgo do nothing",
        source="ROCm/rocm-systems pull request 4340 and projects/rccl/CHANGELOG.md, RCCL 2.28.3 for ROCm 7.13",
    ),
    Release(
        runtime=LEGACY.name,
        versions="NCCL 2.12.12 of microsoft/msccl (September 2023, the last)",
        loads_ours=True,
        files="MSCCL XML, at most 4 files, those that are named",
        place="MSCCL_CONFIG names a file that names them, or MSCCL_XML_FILES does",
        variables=("MSCCL_CONFIG", "MSCCL_XML_FILES", "NCCL_ALGO"),
        choice=(
            "the first file for the collective, the number of ranks and the placement, with minBytes <= size < maxBytes and a count "
            "that the chunks divide; Sum, Prod, Max, Min; AllReduce only if NCCL_ALGO names MSCCL, AllGather, ReduceScatter, "
            "AllToAll, Broadcast, Reduce, custom collectives"
        ),
        warning="",
        source="microsoft/msccl b23e9cd, src/graph/topo.cc, src/init.cc, src/enqueue.cc",
    ),
    Release(
        runtime=MSCCLPP.name,
        versions="MSCCL++ 0.6 and 0.7",
        loads_ours=False,
        files="plans of an older grammar (inputChunks, chunkGroups)",
        place="every file of MSCCLPP_EXECUTION_PLAN_DIR",
        variables=("MSCCLPP_EXECUTION_PLAN_DIR",),
        choice="",
        warning="MSCCL++ 0.6 and 0.7 read plans of another grammar and fail on these",
        source="microsoft/mscclpp v0.6.0, v0.7.0, src/executor/execution_plan.cc, apps/nccl/src/nccl.cu",
    ),
    Release(
        runtime=MSCCLPP.name,
        versions="MSCCL++ 0.8",
        loads_ours=True,
        files="plans without recpkt, recspkt, gstore and gstorepkt; every file of the directory",
        place="MSCCLPP_EXECUTION_PLAN_DIR",
        variables=("MSCCLPP_EXECUTION_PLAN_DIR",),
        choice=(
            "the first plan, as the file system lists them, for the collective and the placement, with min_message_size <= size < "
            "max_message_size, whatever the number of ranks, and with any root; AllReduce, AllGather, ReduceScatter, Broadcast"
        ),
        warning="MSCCL++ 0.8 does not look at the number of ranks: keep plans of one number of ranks in the directory",
        source="microsoft/mscclpp v0.8.0, apps/nccl/src/nccl.cu, src/executor/execution_plan.cc",
    ),
    Release(
        runtime=MSCCLPP.name,
        versions="MSCCL++ 0.9",
        loads_ours=True,
        files="plans that a program registers; from the cache only "
        + " and ".join(one.file for one in DEFAULT_NAMES["0.9"]),
        place=f"the registering module; $MSCCLPP_CACHE_DIR/{DEFAULT_FOLDER}",
        variables=("MSCCLPP_CACHE_DIR",),
        choice=_REGISTERED + "; AllReduce, AllGather, ReduceScatter, Broadcast",
        warning="",
        source="microsoft/mscclpp v0.9.0, src/ext/collectives/algorithm_collection_builder.cc, src/ext/nccl, python/mscclpp",
    ),
    Release(
        runtime=MSCCLPP.name,
        versions="MSCCL++ 0.10 and later (read to August 2026)",
        loads_ours=True,
        files="plans that a program registers; from the cache only "
        + ", ".join(one.file for one in DEFAULT_NAMES["0.10"]),
        place=f"the registering module; $MSCCLPP_CACHE_DIR/{DEFAULT_FOLDER}",
        variables=("MSCCLPP_CACHE_DIR",),
        choice=_REGISTERED + "; AllReduce, AllGather, ReduceScatter, Broadcast",
        warning="",
        source="microsoft/mscclpp v0.10.0 and 1f5f065, the same files",
    ),
)
# Operations of plans that older versions of MSCCL++ do not know, and end the program at (src/core/executor/execution_plan.cc).
OPERATIONS_SINCE = {"recpkt": "0.9", "recspkt": "0.9", "gstore": "0.10", "gstorepkt": "0.10"}
MSCCLPP_REGISTERS = (0, 9)  # the first version in which a program registers plans
ROCM_WITHOUT_MSCCL = (7, 13)  # the first without

_ONLY_SUMS = (
    "the NCCL library of MSCCL++ does not tell a selector the operator, and plans only sum: leave sizes at which the program reduces "
    "by another one without a plan"
)
_MIXED = (
    "plans by packets take turns with two halves of scratch by the number of the call, so a plan with a root between two calls can let a "
    "fast rank overwrite packets that a slow one has not read: leave one of the two sorts out"
)
_ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
_PACKETS = frozenset({"ppkt", "rppkt", "cpkt", "gstorepkt"})
# By MSCCL++'s NCCL library, src/ext/nccl/nccl.cc.
_ASKED = frozenset({"allreduce", "allgather", "reducescatter", "broadcast"})


def releases_of(runtime: str) -> tuple[Release, ...]:
    """All releases of a runtime, the oldest first."""
    return tuple(one for one in RELEASES if one.runtime == runtime)


def loaded_by(runtime: str) -> str:
    """Versions of a runtime that run the files written for it, as part of a sentence."""
    return "; ".join(one.versions for one in releases_of(runtime) if one.loads_ours)


def warnings_about(runtime: str) -> tuple[str, ...]:
    """Faults of files in some version of a runtime, a sentence each, without a full stop."""
    return tuple(one.warning for one in releases_of(runtime) if one.warning)


def cautions_about(collectives: frozenset[str], operations: frozenset[str]) -> tuple[str, ...]:
    """Cautions about plans for MSCCL++ that are for these collectives and use these operations."""
    newer = tuple(
        f"{name} is in these plans, which MSCCL++ has since {since}"
        for name, since in OPERATIONS_SINCE.items()
        if name in operations
    )
    sums = (_ONLY_SUMS,) if collectives & {"allreduce", "reducescatter", "reduce"} else ()
    mixed = (_MIXED,) if collectives & _ROOTED and operations & _PACKETS else ()
    uncalled = sorted(collectives - _ASKED)
    called = f"the NCCL library of MSCCL++ asks for no plan at {', '.join(uncalled)}: call execute for it"
    return (*newer, *mixed, *sums, *((called,) if uncalled else ()))

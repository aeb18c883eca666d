"""Rules: for every range of sizes the fastest of the algorithms that a library has.

NCCL's and NCCLX's are its own algorithms with their protocols, by their times under the runtime profile. Open MPI's and UCC's are those
that do what one of the baselines does, by that baseline's time on links and ports.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from taccl_py.baselines.compare import BaselineComparison, ComparedSize
from taccl_py.baselines.library import Family
from taccl_py.baselines.nccl_time import DIRECT
from taccl_py.baselines.nccl_tuner import NcclAlgorithm
from taccl_py.collective import Kind
from taccl_py.errors import LoweringError
from taccl_py.lowering.program import Protocol
from taccl_py.profiles.model import RuntimeProfile
from taccl_py.units import SizeRange


class TunerTarget(StrEnum):
    """Libraries that read such files, as spelled on the command line."""

    NCCL = "nccl"
    NCCLX = "ncclx"
    OPEN_MPI = "openmpi"
    UCC = "ucc"


TITLES = {
    TunerTarget.NCCL: "NCCL",
    TunerTarget.NCCLX: "NCCLX",
    TunerTarget.OPEN_MPI: "Open MPI",
    TunerTarget.UCC: "UCC",
}
OF_NCCL = (TunerTarget.NCCL, TunerTarget.NCCLX)
# Words of NCCL's tuners (``parseAlgorithm`` and ``parseProtocol`` of the example plug-in, which NCCLX has too).
NCCL_WORDS = {
    NcclAlgorithm.RING: "ring", NcclAlgorithm.TREE: "tree", NcclAlgorithm.NVLS: "nvls", NcclAlgorithm.NVLS_TREE: "nvls_tree",
    NcclAlgorithm.PAT: "pat",
}  # fmt: skip
NCCL_PROTOCOLS = {Protocol.LL: "ll", Protocol.LL128: "ll128", Protocol.SIMPLE: "simple"}
NCCL_KINDS = (Kind.ALLREDUCE, Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.BROADCAST, Kind.REDUCE)
# What does what a baseline does. Open MPI main 8efebee (``coll_tuned_*_decision.c``), by the collectives' names there.
OPEN_MPI_NAMES = {
    Kind.ALLGATHER: "allgather", Kind.ALLREDUCE: "allreduce", Kind.ALLTOALL: "alltoall", Kind.BROADCAST: "bcast",
    Kind.REDUCE: "reduce", Kind.REDUCESCATTER: "reduce_scatter", Kind.GATHER: "gather", Kind.SCATTER: "scatter",
}  # fmt: skip
_OPEN_MPI: Mapping[Kind, Mapping[Family, str]] = {
    Kind.ALLGATHER: {Family.RING: "ring", Family.DIRECT: "direct-messaging"},
    Kind.ALLREDUCE: {Family.RING: "ring"},
    Kind.ALLTOALL: {Family.DIRECT: "linear"},
    Kind.BROADCAST: {Family.RING: "pipeline", Family.DIRECT: "basic_linear"},
    Kind.REDUCE: {Family.RING: "pipeline", Family.DIRECT: "linear"},
    Kind.REDUCESCATTER: {Family.RING: "ring"},
    Kind.GATHER: {Family.DIRECT: "basic_linear"},
    Kind.SCATTER: {Family.DIRECT: "basic_linear"},
}
# UCC master 8263de4 (tables of ``tl/ucp``). Its size of a ReduceScatter is the receive buffer's: the whole in place, a part of it else.
UCC_NAMES = {Kind.ALLGATHER: "allgather", Kind.ALLREDUCE: "allreduce", Kind.ALLTOALL: "alltoall"}
_UCC: Mapping[Kind, Mapping[Family, str]] = {
    Kind.ALLGATHER: {Family.RING: "ring", Family.DIRECT: "linear"},
    Kind.ALLREDUCE: {Family.RING: "ring", Family.TREE: "dbt"},
    Kind.ALLTOALL: {Family.DIRECT: "pairwise"},
}
MPI_WORDS = {TunerTarget.OPEN_MPI: _OPEN_MPI, TunerTarget.UCC: _UCC}


@dataclass(frozen=True, slots=True)
class TunerRule:
    """An algorithm for a range of sizes.

    Attributes
    ----------
    kind
        Collective.
    low_bytes, high_bytes
        Smallest and largest size, both included, as nccl-tests counts them.
    algorithm, protocol
        The library's words; the protocol is empty where it has none.
    num_ranks, num_nodes
        Of the communicator; a library that knows nothing of nodes has 0 there.
    """

    kind: Kind
    low_bytes: int
    high_bytes: int
    algorithm: str
    protocol: str
    num_ranks: int
    num_nodes: int


def require_choice(kind: Kind, profile: RuntimeProfile, target: TunerTarget) -> None:
    """Refuse what no file of a library can say, before anything is compared.

    Raises
    ------
    LoweringError
        If the library has no such choice for the collective, or the profile tells no times of it.
    """
    title = TITLES[target]
    if target not in OF_NCCL:
        if kind not in MPI_WORDS[target]:
            raise _refusal(f"no algorithm of {title} for {kind} is one of the baselines", target)
    elif kind not in NCCL_KINDS:
        raise _refusal(f"{title} makes {kind} of single sends and receives, and asks no tuner", target)
    elif profile.is_neutral:
        raise _refusal(
            "times of NCCL's algorithms and protocols need a runtime profile, and only links and ports are known; name one with "
            "--runtime-profile",
            target,
        )


def rules_of(comparison: BaselineComparison, target: TunerTarget) -> tuple[TunerRule, ...]:
    """Rules for every size of a comparison, each up to the next size that has another.

    Raises
    ------
    LoweringError
        If the library has no such choice for the collective, or its times are not known.
    """
    kind, topology = comparison.demand.kind, comparison.demand.topology
    require_choice(kind, comparison.profile, target)
    nodes = topology.num_nodes if target in OF_NCCL else 0
    rules: list[TunerRule] = []
    for row, high_bytes in _with_ends(comparison.rows):
        chosen = _fastest(row, kind, target)
        if chosen is None:
            needed = " or ".join(words_of(target, kind))
            raise _refusal(
                f"{TITLES[target]} has {needed} for {kind}, which the links of {topology.name} do not allow", target
            )
        if rules and (rules[-1].algorithm, rules[-1].protocol) == chosen:
            rules[-1] = replace(rules[-1], high_bytes=high_bytes)
        else:
            rules.append(TunerRule(kind, row.size_bytes, high_bytes, *chosen, topology.num_ranks, nodes))
    return tuple(rules)


def ours_takes_over(comparison: BaselineComparison) -> tuple[SizeRange, ...]:
    """Ranges of sizes at which our files are not slower than NCCL under the runtime profile, so that they are better installed."""
    found: list[SizeRange] = []
    for row, high_bytes in _with_ends(comparison.rows):
        if row.runtime_us is None or row.is_slower:
            continue
        if found and found[-1].high_bytes == row.size_bytes - 1:
            found[-1] = SizeRange(found[-1].low_bytes, high_bytes)
        else:
            found.append(SizeRange(row.size_bytes, high_bytes))
    return tuple(found)


def _with_ends(rows: Sequence[ComparedSize]) -> Iterator[tuple[ComparedSize, int]]:
    """Rows, each with the last size before the next one; the last row is for its own size alone."""
    for row, after in zip(rows, (*rows[1:], None), strict=True):
        yield row, row.size_bytes if after is None else after.size_bytes - 1


def _fastest(row: ComparedSize, kind: Kind, target: TunerTarget) -> tuple[str, str] | None:
    """Words for the fastest algorithm and its protocol; None if the machine allows none of the library's."""
    if target in OF_NCCL:
        best = min((each for each in row.nccl_runtime if each.algorithm != DIRECT), key=lambda each: each.time_us)
        return NCCL_WORDS[NcclAlgorithm(best.algorithm)], NCCL_PROTOCOLS[best.protocol]
    words = MPI_WORDS[target][kind]
    baseline = min(
        (each for each in row.baselines if each.family in words), key=lambda each: each.time_us, default=None
    )
    return None if baseline is None else (words[baseline.family], "")


def _refusal(why: str, target: TunerTarget) -> LoweringError:
    return LoweringError(f"no tuner file for {TITLES[target]}: {why}", runtime=str(target), limit="tuner")


def words_of(target: TunerTarget, kind: Kind) -> Sequence[str]:
    """Algorithms that a file may name for a collective."""
    if target in OF_NCCL:
        return list(NCCL_WORDS.values())
    return list(MPI_WORDS[target].get(kind, {}).values())

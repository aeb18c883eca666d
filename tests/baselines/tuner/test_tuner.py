"""Tuner files: ranges by the fastest algorithm, and every target reads back as what was written."""

import json
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.baselines.compare import BaselineComparison, BaselineTime, ComparedSize
from taccl_py.baselines.library import Family
from taccl_py.baselines.nccl_time import NcclTime
from taccl_py.baselines.tuner import TunerRule, TunerTarget, read_tuner, require_choice, rules_of, tuner_file
from taccl_py.baselines.tuner.ncclx import aligned
from taccl_py.baselines.tuner.rules import MPI_WORDS, NCCL_KINDS, OF_NCCL, words_of
from taccl_py.baselines.tuner.tuner_file import _write
from taccl_py.collective import Kind
from taccl_py.errors import InputError, LoweringError
from taccl_py.lowering.program import Protocol
from taccl_py.profiles.catalog import load_profile, neutral_profile
from taccl_py.units import SizeRange
from tests.instances import machine

KI = 1024
LL, LL128, SIMPLE = Protocol.LL, Protocol.LL128, Protocol.SIMPLE


def row(size, nccl=(), baselines=(), runtime_us=None, ours_us=1.0):
    """A row with NCCL's times (algorithm, protocol, us) and baselines' (family, us)."""
    return ComparedSize(
        size, ours_us, "greedy", 1.0, tuple(BaselineTime(family, "v", us) for family, us in baselines), None, is_direct=False,
        runtime_us=runtime_us, nccl_runtime=tuple(NcclTime(*each) for each in nccl),
    )  # fmt: skip


def compared(kind, rows, num_ranks=8, nodes=1, profile="executor-a100"):
    node_of = tuple(rank * nodes // num_ranks for rank in range(num_ranks))
    topology = machine(num_ranks, [], node_of=node_of)
    demand = SimpleNamespace(kind=kind, topology=topology)
    known = neutral_profile() if profile is None else load_profile(profile)
    return BaselineComparison(demand, None, known, tuple(rows))


def nccl_rows():
    """Tree LL up to 4 KiB, then ring LL128, then NVLS; ours is faster from 4 KiB to 16 KiB."""
    return [
        row(1 * KI, [("Ring", LL, 9.0), ("Tree", LL, 8.0)], runtime_us=9.0),
        row(2 * KI, [("Ring", LL, 9.0), ("Tree", LL, 8.5)], runtime_us=9.0),
        row(4 * KI, [("Ring", LL128, 9.0), ("Tree", LL, 9.5)], runtime_us=8.0),
        row(8 * KI, [("Ring", LL128, 9.0), ("Tree", LL, 9.5)], runtime_us=8.0),
        row(16 * KI, [("Ring", SIMPLE, 10.0), ("NVLS", SIMPLE, 9.5)], runtime_us=11.0),
    ]


def test_a_rule_ends_where_another_algorithm_is_faster():
    comparison = compared(Kind.ALLREDUCE, nccl_rows(), nodes=2)
    assert rules_of(comparison, TunerTarget.NCCL) == (
        TunerRule(Kind.ALLREDUCE, 1 * KI, 4 * KI - 1, "tree", "ll", 8, 2),
        TunerRule(Kind.ALLREDUCE, 4 * KI, 16 * KI - 1, "ring", "ll128", 8, 2),
        TunerRule(Kind.ALLREDUCE, 16 * KI, 16 * KI, "nvls", "simple", 8, 2),
    )


def test_the_file_for_nccls_plug_in():
    """Its columns are those of the plug-in; 0 channels are NCCL's own."""
    made = tuner_file(compared(Kind.ALLREDUCE, nccl_rows(), nodes=2), TunerTarget.NCCL, "t.csv")
    assert made.text.splitlines() == [
        "# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff",
        "# from 4096 to 16383 bytes installed files of ours are faster",
        "allreduce,1024,4095,tree,ll,0,2,8,-1,-1",
        "allreduce,4096,16383,ring,ll128,0,2,8,-1,-1",
        "allreduce,16384,16384,nvls,simple,0,2,8,-1,-1",
    ]
    assert made.ours == (SizeRange(4 * KI, 16 * KI - 1),)


def test_the_files_for_ncclx():
    comparison = compared(Kind.ALLREDUCE, nccl_rows(), nodes=2)
    text = tuner_file(comparison, TunerTarget.NCCLX, "t.csv").text
    assert text.splitlines()[2:] == [
        "allreduce,[128,512),tree,ll,-1,2,4", "allreduce,[512,2048),ring,ll128,-1,2,4", "allreduce,[2048,2049),nvls,simple,-1,2,4",
    ]  # fmt: skip
    first = json.loads(tuner_file(comparison, TunerTarget.NCCLX, "t.json").text)["rules"][0]
    assert first == {
        "filter": {"collective": "allreduce", "bytesPerRank": "[128,512)", "nNodes": 2, "nLocalRanks": 4},
        "config": {"algorithm": "tree", "protocol": "ll"},
    }


def test_ncclx_counts_whole_bytes_of_ranks():
    """With 8 ranks 1001 to 1999 bytes are the sizes of 126 to 249 bytes a rank, which begin at 1008 and end before 2000."""
    rule = TunerRule(Kind.ALLREDUCE, 1001, 1999, "ring", "ll", 8, 1)
    assert aligned([rule]) == (replace(rule, low_bytes=1008, high_bytes=1999),)
    with pytest.raises(LoweringError, match="no size compared is a multiple of 8 bytes"):
        aligned([replace(rule, high_bytes=1001)])
    with pytest.raises(LoweringError, match="8 ranks are on 3 nodes"):
        aligned([replace(rule, num_nodes=3)])


def mpi_rows():
    """A tree is the fastest at first, then a ring; direct exchange is faster than both, and neither library has that for AllReduce."""
    times = (
        [(Family.DIRECT, 1.0), (Family.RING, 9.0), (Family.TREE, 5.0)],
        [(Family.DIRECT, 1.0), (Family.RING, 9.0), (Family.TREE, 12.0)],
    )
    return [row(1 * KI, baselines=times[0]), row(4 * KI, baselines=times[1]), row(8 * KI, baselines=times[1])]


def test_the_line_for_ucc():
    """Ranges that meet share the size where they do."""
    made = tuner_file(compared(Kind.ALLREDUCE, mpi_rows(), profile=None), TunerTarget.UCC, "t")
    assert made.text == "export UCC_TL_UCP_TUNE='allreduce:1024-4096:[8]:@dbt#allreduce:4096-8193:[8]:@ring'\n"
    assert made.ours == ()


def test_the_rules_for_open_mpi():
    """It has no double binary tree."""
    made = tuner_file(compared(Kind.ALLREDUCE, mpi_rows(), profile=None), TunerTarget.OPEN_MPI, "t.json")
    entry = {
        "comm_size_min": 8,
        "comm_size_max": 8,
        "rules": [{"msg_size_min": 1024, "msg_size_max": 8192, "alg": "ring"}],
    }
    assert json.loads(made.text) == {"rule_file_version": 3, "module": "tuned", "collectives": {"allreduce": [entry]}}


@pytest.mark.parametrize(
    ("target", "kind", "profile", "says"),
    [
        (TunerTarget.NCCL, Kind.ALLTOALL, "executor-a100", "NCCL makes alltoall of single sends and receives"),
        (TunerTarget.NCCLX, Kind.GATHER, "executor-a100", "NCCLX makes gather of single sends"),
        (TunerTarget.NCCL, Kind.ALLREDUCE, None, "--runtime-profile"),
        (TunerTarget.UCC, Kind.REDUCESCATTER, None, "no algorithm of UCC for reducescatter is one of the baselines"),
        (TunerTarget.UCC, Kind.BROADCAST, None, "no algorithm of UCC for broadcast"),
    ],
)
def test_what_a_library_cannot_be_told_is_refused(target, kind, profile, says):
    known = neutral_profile() if profile is None else load_profile(profile)
    with pytest.raises(LoweringError, match=says):
        require_choice(kind, known, target)
    with pytest.raises(LoweringError, match=says):
        rules_of(compared(kind, [row(KI)], profile=profile), target)


def test_a_machine_that_allows_none_of_a_librarys_algorithms_is_refused():
    rows = [row(KI, baselines=[(Family.PAT, 1.0)])]
    with pytest.raises(
        LoweringError, match="UCC has ring or linear for allgather, which the links of test do not allow"
    ):
        rules_of(compared(Kind.ALLGATHER, rows, profile=None), TunerTarget.UCC)


@st.composite
def some_rules(draw, target):
    """Rules of one collective with ranges that follow on each other."""
    kind = draw(st.sampled_from(NCCL_KINDS if target in OF_NCCL else sorted(MPI_WORDS[target])))
    nodes, local = draw(st.integers(1, 9)), draw(st.integers(2, 9))
    ends = sorted(draw(st.sets(st.integers(0, 1 << 40), min_size=2, max_size=6)))
    found = []
    for low, high in pairwise(ends):
        protocol = draw(st.sampled_from(["ll", "ll128", "simple"])) if target in OF_NCCL else ""
        of_nodes = nodes if target in OF_NCCL else 0
        found.append(
            TunerRule(
                kind, low, high - 1, draw(st.sampled_from(words_of(target, kind))), protocol, nodes * local, of_nodes
            )
        )
    return tuple(found)


@settings(max_examples=40)
@given(st.data(), st.sampled_from(list(TunerTarget)), st.sampled_from(["t.csv", "t.json"]))
def test_every_target_reads_back(data, target, name):
    rules = data.draw(some_rules(target))
    if target is TunerTarget.NCCLX:
        try:
            rules = aligned(rules)
        except LoweringError:
            return
    ours = (SizeRange(1, 2),) if target in OF_NCCL else ()
    assert read_tuner(_write(rules, ours, target, name), target, name) == rules


OPEN_MPI = '{"rule_file_version": 3, "module": "tuned", "collectives": {"allreduce": [%s]}}'
NCCLX = '{"rules": [{"filter": {"collective": "allreduce", "bytesPerRank": "%s", "nNodes": 1, "nLocalRanks": 8}, "config": {"algorithm": "%s", "protocol": "ll"}}]}'


@pytest.mark.parametrize(
    ("target", "name", "text", "says"),
    [
        ("nccl", "t", "allreduce,0,1,ring", "line 1: has 4 columns"),
        ("nccl", "t", "# x\n\nalltoall,0,1,ring,ll,0,1,8", "line 3: found the collective 'alltoall'"),
        ("nccl", "t", "allreduce,0,1,rings,ll,0,1,8", "found the algorithm 'rings'"),
        ("nccl", "t", "allreduce,0,1,ring,LL,0,1,8", "found the protocol 'LL'"),
        ("nccl", "t", "allreduce,0,1k,ring,ll,0,1,8", "found '1k', a whole number"),
        ("nccl", "t", "allreduce,2,1,ring,ll,0,1,8", "counts down"),
        ("ncclx", "t", "allreduce,[0,1),ring,ll,-1,1", "has 6 columns"),
        ("ncclx", "t", "allreduce,[1,1),ring,ll,-1,1,8", r"found the range '\[1,1\)'"),
        ("ncclx", "t", "allreduce,*,ring,ll,-1,1,8", r"found the range '\*'"),
        ("ncclx", "t", "allreduce,[0,1),ring,ll,-1,*,8", r"found '\*', a whole number"),
        ("ncclx", "t.json", NCCLX % ("[0,4)", "wheel"), "rules/0: found the algorithm 'wheel'"),
        ("ncclx", "t.json", NCCLX % ("0-4", "ring"), "rules/0: found the range '0-4'"),
        ("ncclx", "t.json", '{"rules": 1}', "rules"),
        ("openmpi", "t", "{}", "rule_file_version"),
        ("openmpi", "t", '{"rule_file_version": 2, "module": "tuned", "collectives": {}}', "is for version 2"),
        ("openmpi", "t", OPEN_MPI.replace("allreduce", "barrier") % "", "found the collective 'barrier'"),
        ("openmpi", "t", OPEN_MPI % '{"comm_size_min": 4, "comm_size_max": 8, "rules": []}', "comm_size_max: found 8"),
        ("openmpi", "t", OPEN_MPI % '{"comm_size_min": 4, "comm_size_max": 4, "rules": [{"msg_size_min": 2, "msg_size_max": 1, "alg": "ring"}]}',
         "msg_size_max: found 1"),
        ("openmpi", "t", OPEN_MPI % '{"comm_size_min": 4, "comm_size_max": 4, "rules": [{"msg_size_min": 0, "msg_size_max": 1, "alg": "wheel"}]}',
         "found the algorithm 'wheel'"),
        ("ucc", "t", "UCC_TL_NCCL_TUNE=inf", "does not set UCC_TL_UCP_TUNE"),
        ("ucc", "t", "it's", "does not set"),
        ("ucc", "t", "", "does not set"),
        ("ucc", "t", "UCC_TL_UCP_TUNE=allreduce:0-4k:@0", "found the rule 'allreduce:0-4k:@0'"),
        ("ucc", "t", "UCC_TL_UCP_TUNE=allreduce:4-4:[8]:@ring", "found the rule"),
        ("ucc", "t", "UCC_TL_UCP_TUNE=bcast:0-4:[8]:@ring", "found the collective 'bcast'"),
        ("ucc", "t", "UCC_TL_UCP_TUNE=allreduce:0-4:[8]:@wheel", "found the algorithm 'wheel'"),
    ],
)  # fmt: skip
def test_broken_files_are_refused(target, name, text, says):
    with pytest.raises(InputError, match=says):
        read_tuner(text, TunerTarget(target), name)


def test_lines_are_short_enough_for_the_plug_in():
    """It reads 255 characters, and would take what is behind them for a line of its own."""
    rule = TunerRule(Kind.REDUCESCATTER, (1 << 62) - 1, 1 << 62, "nvls_tree", "simple", 16384, 2048)
    text = _write((rule,), (SizeRange(1 << 62, 1 << 62),), TunerTarget.NCCL, "t")
    assert max(map(len, text.splitlines())) < 255

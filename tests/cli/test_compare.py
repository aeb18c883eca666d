"""``taccl compare``: one row a size, in the table as in JSON."""

import json
import threading
from pathlib import Path

import pytest

from taccl_py.baselines import compare
from taccl_py.collective import Kind
from taccl_py.errors import Interrupted
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.pipeline import Request
from taccl_py.runtimes import RUNTIMES
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Events, Options
from taccl_py.units import SizeRange
from tests.cli.inputs import PROFILE, TACCL_SKETCH, write_json

SMALL = ("compare", "ring:4,alpha_us=1,beta_us_per_mb=10", "allgather", "--sizes", "4KB:4MB", "--time-limit", 3)


def test_sizes_are_compared_with_what_the_machine_allows(taccl):
    """AllGather on a two-way ring: at 4 MB rings take 3 hops of 1 MB halves, 3 * 6, and the bound is 1 + 15 or more."""
    ended = taccl(*SMALL, "--json")
    assert ended.code == 0, ended.err
    result = json.loads(ended.out)
    assert result["nccl_tuner"] is None
    last = result["sizes"][-1]
    assert last["size_bytes"] == 4_000_000
    assert last["baselines"]["ring"] == {"time_us": pytest.approx(18), "variant": "2 rings"}
    assert set(last["baselines"]) == {"ring"}
    assert last["speedup"] == pytest.approx(18 / last["ours_us"])
    assert last["speedup_nccl"] is None
    assert all(row["bound_us"] <= row["ours_us"] * (1 + 1e-9) for row in result["sizes"])
    assert [row["size_bytes"] for row in result["sizes"]] == sorted(row["size_bytes"] for row in result["sizes"])


def test_nccls_choice_is_there_where_the_gpus_are_known(taccl):
    ended = taccl(*SMALL, "--gpu", "ampere", "--cpu", "amd", "--json")
    assert ended.code == 0, ended.err
    result = json.loads(ended.out)
    assert result["nccl_tuner"]["gpu"] == "ampere"
    assert result["nccl_tuner"]["amd_cpu"] is True
    first = result["sizes"][0]
    assert (first["nccl"]["algorithm"], first["nccl"]["protocol"]) == ("Ring", "LL")
    assert first["speedup_nccl"] == pytest.approx(first["baselines"]["ring"]["time_us"] / first["ours_us"])


def test_the_table_has_a_column_for_every_baseline(taccl):
    ended = taccl("compare", "full:4", "allreduce", "--sizes", "1MB:1MB", "--time-limit", 2)
    assert ended.code == 0, ended.err
    assert all(
        word in ended.out for word in ("ring", "double binary tree", "direct", "NCCL chooses", "speed-up", "1MB")
    )
    assert "PAT" not in ended.out


def test_a_taccl_profile_is_refused(taccl, folder):
    write_json(folder / "profile.json", PROFILE)
    write_json(folder / "sketch.json", TACCL_SKETCH)
    ended = taccl("compare", "profile.json", "allgather", "--sketch", "sketch.json")
    assert ended.code == 2
    assert "--sizes" in ended.err


def test_what_nccl_makes_of_sends_and_receives_is_compared_with_the_direct_schedule(taccl):
    ended = taccl("compare", "full:4", "alltoall", "--sizes", "1MB:1MB", "--gpu", "volta", "--time-limit", 2, "--json")
    assert ended.code == 0, ended.err
    (row,) = ended.json["sizes"]
    assert row["nccl"]["algorithm"] == "send and receive"
    assert row["speedup_nccl"] == pytest.approx(row["baselines"]["direct"]["time_us"] / row["ours_us"])


def test_taccl_is_one_more_baseline_where_there_is_a_sketch(taccl, refuse):
    """Two ranks, 1 us + 10 us/MB, half a megabyte each: 6 us is all that there is to find."""
    sketch = {"format": "taccl-sketch", "version": 1, "name": "pair"}
    Path("pair.json").write_text(json.dumps(sketch))
    few = ("compare", "full:2,alpha_us=1,beta_us_per_mb=10", "allgather", "--sizes", "1MB:1MB", "--time-limit", 2)
    ended = taccl(*few, "--sketch", "pair.json", "--with-taccl", "--json")
    assert ended.code == 0, ended.err
    (row,) = ended.json["sizes"]
    assert row["baselines"]["TACCL"]["time_us"] == pytest.approx(6)
    assert row["baselines"]["TACCL"]["variant"].startswith("pair, 1 chunk, ")
    refuse(2, ["--with-taccl", "--sketch"], *few, "--with-taccl")
    refuse(2, ["--with-taccl", "allgather, alltoall, allreduce"], "compare", "full:4", "broadcast", "--with-taccl")


def test_sizes_for_which_taccl_had_no_time_are_told(taccl, monkeypatch):
    """Time passes only in TACCL's method, all of it at the first of three sizes."""

    def slow(*asked):
        passed.append(asked[2])
        return iter(())

    class Clock:
        left = property(lambda _: 0.0 if passed else 2.0)

    passed = []
    monkeypatch.setattr(compare, "run_taccl", slow)
    monkeypatch.setattr(compare, "Deadline", lambda _: Clock())
    sketch = {"format": "taccl-sketch", "version": 1, "name": "pair"}
    Path("pair.json").write_text(json.dumps(sketch))
    words = ("compare", "full:2,alpha_us=1,beta_us_per_mb=10", "allgather", "--sizes", "1MB:4MB", "--time-limit", 2)
    ended = taccl(*words, "--sketch", "pair.json", "--with-taccl")
    assert (ended.code, passed) == (0, [1e6])
    assert "note: TACCL has no answer at 3 of 3 sizes" in ended.err


def test_a_graph_dump_that_is_none_is_refused(refuse, folder):
    (folder / "dump.xml").write_text("<system/>")
    refuse(2, ["dump.xml", "NCCL_GRAPH_DUMP_FILE"], "compare", "ring:4", "allgather", "--nccl-graph", "dump.xml")


def test_the_users_end_is_heard_before_anything_is_searched(monkeypatch):
    """Baselines of 16 ranks take ten seconds; after the search they would be waited for, so they come first."""
    monkeypatch.setattr(compare, "synthesize_portfolio", None)
    stop = threading.Event()
    stop.set()
    request = Request("ring:4", Kind.ALLGATHER, engine="auto", options=Options(limits=Limits(stop=stop)))
    with pytest.raises(Interrupted):
        compare.compare_sizes(
            request, SizeRange(1024, 1024), LoweringOptions(RUNTIMES["executor"]), compare.Tuned(), Events()
        )

"""Demands from Python."""

import json
import re
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import taccl_py as taccl
from taccl_py.api.demands import demand_seconds
from taccl_py.api.policy import AUTO, DEMAND_LIMIT_S, default_seconds
from taccl_py.errors import InputError, LoweringError
from taccl_py.schedule.demand_files import write_demand_schedule
from tests.demand.cases import demand_of, full, is_near

MB = 10**6
HELD_TWICE = {"ranks": 3, "chunks": [{"bytes": 2 * MB, "holds": [0, 1], "wants": [2]}]}


def of_ranks(holds, wants):
    return {"ranks": 3, "chunks": ({"bytes": np.int64(16), "holds": holds, "wants": wants},)}


def test_a_mapping_is_synthesized_checked_replayed_and_run(tmp_path):
    """Two holders with a link each of 10 us a megabyte send half of it each."""
    demand = taccl.load_demand(HELD_TWICE)
    machine = full(3, alpha=0.0, beta=10.0)
    answer = taccl.synthesize_demand(machine, demand, effort="quick")
    assert is_near(answer.time_us, 10.0)
    assert (answer.proof, answer.ended, answer.known, answer.gap) == ("optimal", "proved", None, 0.0)
    (bound,) = taccl.bound(machine, demand)
    assert is_near(bound.time_us, 10.0)
    assert taccl.check(answer, demand=demand) == taccl.check(answer.schedule) == ()
    assert is_near(taccl.predict(answer).time_us, 10.0)
    assert is_near(taccl.predict(answer.schedule, "4MB").time_us, 20.0)
    assert taccl.run(answer).num_wrong == 0
    path = tmp_path / "schedule.json"
    path.write_text(write_demand_schedule(answer.schedule))
    assert taccl.check(path) == ()
    assert is_near(taccl.predict(path).time_us, 10.0)


@pytest.mark.parametrize("runtime", ["mscclpp", "legacy"])
def test_a_demand_is_lowered_checked_replayed_and_run(tmp_path, runtime):
    """Half a megabyte or so over each of two links of 10 us a megabyte; a program pays no more on links and ports."""
    demand = taccl.load_demand(HELD_TWICE)
    answer = taccl.synthesize_demand(full(3, alpha=0.0, beta=10.0), demand, effort="quick")
    made = taccl.lower(answer, runtime=runtime)
    assert made.text == taccl.lower(answer.schedule, runtime=runtime).text
    assert (made.runtime, made.demand, made.runtime_us) == (runtime, demand, None)
    assert is_near(made.time_us, 10.0)
    assert is_near(taccl.predict(made).time_us, 10.0)
    assert taccl.run(made).num_wrong == 0
    path = made.write(tmp_path / ("plan.json" if runtime == "mscclpp" else "algorithm.xml"))
    other = taccl.load_demand({"ranks": 3, "chunks": [{"bytes": 2 * MB, "holds": [0], "wants": [1, 2]}]})
    assert taccl.check(made) == taccl.check(made, demand=demand) == taccl.check(path, demand=demand) == ()
    for what in (made, path):
        with suppress(InputError):  # buffers of other lengths may make it no file for that demand at all
            assert taccl.check(what, demand=other) != ()


def test_a_demand_is_for_mscclpp_unless_legacy_is_named_and_for_no_other():
    answer = taccl.synthesize_demand(full(3), taccl.load_demand(HELD_TWICE), effort="quick")
    assert taccl.lower(answer).runtime == "mscclpp"
    with pytest.raises(LoweringError, match="no call is for a demand"):
        taccl.lower(answer, runtime="executor")
    for options in ({"protocol": "LL"}, {"instances": 2}, {"placement": "in"}, {"runtime_profile": "neutral"}):
        with pytest.raises(InputError, match="is for the eight collectives"):
            taccl.lower(answer, **options)
    with pytest.raises(InputError, match="a demand has its own sizes"):
        taccl.run(taccl.lower(answer), "1MB")
    with pytest.raises(InputError, match="name the demand instead"):
        taccl.check(taccl.lower(answer), kind="allgather")


def test_another_demand_than_that_of_the_schedule_is_an_error():
    answer = taccl.synthesize_demand(full(3), taccl.load_demand(HELD_TWICE), effort="quick")
    other = taccl.load_demand({"ranks": 3, "chunks": [{"bytes": MB, "holds": [0, 1], "wants": [2]}]})
    assert [violation.rule for violation in taccl.check(answer, demand=other)] == ["demand"]


def test_a_mapping_may_name_ranks_by_numbers_in_any_sequence():
    """Only JSON needs texts as keys, and lists."""
    asked = taccl.load_demand(of_ranks({"0": 0, "1": 16}, {"2": 32}))
    assert taccl.load_demand(of_ranks({0: 0, np.int64(1): np.int64(16)}, {2: np.int32(32)})) == asked
    asked = taccl.load_demand(of_ranks([0, 1], [2]))
    for ranks in ((0, 1), range(2), {0, 1}, np.array([0, 1])):
        assert taccl.load_demand(of_ranks(ranks, (2,))) == asked


@pytest.mark.parametrize("form", ["lists", "array", "csv", "json"])
def test_counts_are_lists_arrays_or_files(tmp_path, form):
    counts = [[0, 5, 0], [1, 0, 2], [0, 0, 0]]
    given = {"lists": counts, "array": np.array(counts)}.get(form)
    if given is None:
        given = tmp_path / f"counts.{form}"
        given.write_text(json.dumps(counts) if form == "json" else "\n".join(" ".join(map(str, r)) for r in counts))
    demand = taccl.load_demand("AllToAllv", given, dtype="fp16")
    assert [(c.size_bytes, c.holders, c.wanted) for c in demand.chunks] == [
        (10, ((0,),), (1,)), (2, ((1,),), (0,)), (4, ((1,),), (2,)),
    ]  # fmt: skip


def test_other_formulas():
    assert taccl.load_demand("allgatherv", [1, 0, 2]).total_bytes == 6
    assert taccl.load_demand("reducescatterv", [1, 0, 2]).dtype == "float32"
    assert taccl.load_demand("sendrecv", [(0, 3, 7)], ranks=4).total_bytes == 7


def test_exchanges_of_experts_are_drawn_or_given():
    """Rank 0's token goes to experts 2 and 3 on rank 1, once; that of rank 1 stays where it is."""
    for given in ([[2, 3], [2, -1]], np.array([[2, 3], [2, -1]])):
        demand = taccl.moe_demand("moe-dispatch", 2, experts=4, token_bytes=64, routing=given)
        assert demand.total_bytes == 64
    assert taccl.moe_demand("moe-dispatch", 2, experts=4, token_bytes="64B", routing=given) == demand
    drawn = taccl.moe_demand("MoE_combine", 2, experts=4, token_bytes=64, tokens=8, topk=2)
    assert (drawn.name, drawn.dtype) == ("moe-combine", "bfloat16")


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"exchange": "moe"}, "exchange"),
        ({"token_bytes": 0}, "token_bytes"),
        ({"token_bytes": 3, "dtype": "fp32"}, "token_bytes"),
        ({"dtype": "real"}, "dtype"),
        ({"skew": "zipf"}, "skew"),
        ({"topk": None}, "topk"),
        ({"topk": 9}, "topk"),
        ({"topk": 0}, "topk: found 0, at least 1 is needed"),
        ({"tokens": 0}, "tokens: found 0, at least 1 is needed"),
        ({"ranks": 0}, "ranks: found 0, at least 1 is needed"),
        ({"experts": 0}, "experts: found 0, at least 1 is needed"),
        ({"expert_groups": 0}, "expert_groups: found 0, at least 1 is needed"),
        ({"seed": -1}, "arguments: seed: found -1, a seed is a whole number from 0 to 2147483647"),
        ({"experts": 3, "topk": 1}, "experts"),
        ({"routing": [[0, 1]]}, "tokens"),
        ({"routing": [[0, 9]], "tokens": None, "topk": None}, "routing"),
        ({"routing": "no-such.csv", "tokens": None, "topk": None}, "no-such.csv"),
        ({"routing": [[0, 1]] * 3, "tokens": None, "topk": None}, "routing"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_exchange_is_named(changed, text):
    right = {"exchange": "moe-dispatch", "ranks": 2, "experts": 4, "token_bytes": 64, "tokens": 4, "topk": 2}
    with pytest.raises(InputError, match=text):
        taccl.moe_demand(**{**right, **changed})


def test_a_resharding_and_what_comes_of_it():
    """The halves of a matrix of 4 by 4 bytes by rows become halves by columns: each rank sends a quarter."""
    found = taccl.reshard_demand((4, 4), "0-1:2:S0", "0-1:2:S1", dtype="int8")
    assert len(found.boxes) == 4
    assert found.demand.total_bytes == 8
    answer = taccl.synthesize_demand(full(2, alpha=1.0, beta=0.0), found, effort="quick")
    assert is_near(answer.time_us, 1.0)


def test_a_demand_that_is_a_collective_says_so():
    answer = taccl.synthesize_demand("ring:4", taccl.load_demand("allgatherv", [1000] * 4), effort="quick")
    assert answer.known is not None
    assert (answer.known.kind, answer.known.size_bytes) == ("allgather", 4000)
    assert is_near(answer.bound.time_us, taccl.bound("ring:4", "allgather", 4000)[0].time_us)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: taccl.load_demand("no-such.json"), "no-such.json: there is no such file"),
        (lambda: taccl.load_demand(3), "arguments: what: found int"),
        (lambda: taccl.load_demand("alltoallv"), "arguments: counts: alltoallv needs counts"),
        (lambda: taccl.load_demand("alltoallv", [[1, 2]]), "arguments: counts: found counts for 1 ranks"),
        (lambda: taccl.load_demand("alltoallv", [[0, 1.5], [1, 0]]), "arguments: counts: found 1.5, a whole number"),
        (lambda: taccl.load_demand("alltoallv", [[0, 1], [1]]), "arguments: counts: row 1 has 1 counts"),
        (lambda: taccl.load_demand("alltoallv", []), "arguments: counts: found no counts"),
        (lambda: taccl.load_demand("sendrecv", [(0, 1, 2)]), "arguments: ranks: sendrecv needs the number of ranks"),
        (lambda: taccl.load_demand(HELD_TWICE, [1]), "arguments: counts: is for alltoallv"),
        (lambda: taccl.load_demand({**HELD_TWICE, "chunk": []}), "the demand: chunk"),
        (lambda: taccl.load_demand(of_ranks({0: 0, "0": 0}, [1])), "the demand: has a key twice, as a number and as a text"),
        (lambda: taccl.reshard_demand((4, 4), "0-1:2:S0", "0-1:2:P"), "arguments: target: P, a summand"),
        (lambda: taccl.reshard_demand((4, 4), "0-1:2:S0", "0-1:2"), "arguments: target: '0-1:2' is no sharding"),
        (lambda: taccl.synthesize_demand("ring:4", taccl.load_demand(HELD_TWICE)), "arguments: machine: ring-4 has 4"),
        (lambda: taccl.synthesize_demand("ring:4", HELD_TWICE), "arguments: demand: found dict"),
        (lambda: taccl.bound("ring:4", taccl.load_demand(HELD_TWICE), 5), "size: is for the eight collectives"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(call, text):
    with pytest.raises(taccl.TacclError, match=re.escape(text)):
        call()


def test_a_demand_is_for_schedules_of_demands_and_a_kind_for_the_others():
    demand = taccl.load_demand(HELD_TWICE)
    answer = taccl.synthesize_demand(full(3), demand, effort="quick")
    with pytest.raises(taccl.TacclError, match="kind: is for the eight collectives"):
        taccl.check(answer, kind="allgather")
    with pytest.raises(taccl.TacclError, match="size: a demand has its own sizes"):
        taccl.run(answer, 4)
    with pytest.raises(taccl.TacclError, match="demand: is for schedules and programs of demands"):
        taccl.check(taccl.synthesize("ring:3", "allgather", effort="quick").schedule, demand=demand)


def test_the_script_in_the_documentation_works(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"## Demands\n.+?```python\n(.+?)```", page, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "docs/api.md", "exec"), {"__name__": "__main__"})
    assert re.fullmatch(
        r"[\d.]+ us, [\d.]+ % above [\d.]+ us \(.+\)\n0 errors, 0 wrong elements, 0 of the plan\n",
        capsys.readouterr().out,
    )


def test_a_demand_is_searched_as_long_as_a_collective():
    broadcast = demand_of(5, [{"bytes": 100, "holds": [0], "wants": [1, 2, 3, 4]}])
    half = demand_of(5, [{"bytes": 100, "holds": [0], "wants": [1, 2]}])
    assert demand_seconds(broadcast, AUTO) == demand_seconds(half, AUTO) == default_seconds(AUTO, longer=False)
    assert demand_seconds(broadcast, "cp") == demand_seconds(half, "greedy") == DEMAND_LIMIT_S
    large = taccl.load_demand("alltoallv", [[64] * 160 for _ in range(160)])
    assert demand_seconds(large, AUTO) == DEMAND_LIMIT_S


@pytest.mark.slow
def test_a_demand_that_is_a_collective_costs_the_same_by_default():
    demand = demand_of(5, [{"bytes": 504_000, "holds": [0], "wants": [0, 1, 2, 3, 4]}])
    found = taccl.synthesize_demand("ring:5", demand, effort="quick")
    kind = taccl.synthesize("ring:5", "broadcast", 504_000, effort="quick", engine="auto", runtime_profile="neutral")
    assert is_near(found.time_us, kind.time_us)
    assert is_near(found.bound.time_us, kind.bounds[0].time_us)

"""Rows of a comparison at which NCCL is faster, and the remedy that is named for them."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from taccl_py.baselines.compare import BaselineComparison, ComparedSize, MeasuredLog, MeasuredSize
from taccl_py.baselines.nccl_time import NcclTime
from taccl_py.collective import Kind
from taccl_py.lowering.program import Protocol
from taccl_py.profiles.catalog import load_profile
from taccl_py.report.comparison import comparison_record, comparison_tables, remedy
from taccl_py.synthesis.engine import Demand
from taccl_py.topology.catalog import load_topology
from taccl_py.units import SizeRange, parse_left


def _compared(ours_us: dict[int, float | None]) -> BaselineComparison:
    """Sizes at which NCCL takes 10 us and ours this long."""
    rows = [
        ComparedSize(size, time_us, "greedy" if time_us else "", 1.0, (), None, is_direct=False, runtime_us=time_us,
                     nccl_runtime=(NcclTime("Ring", Protocol.LL, 12.0), NcclTime("Tree", Protocol.SIMPLE, 10.0)))
        for size, time_us in ours_us.items()
    ]  # fmt: skip
    demand = Demand(load_topology("ndv4"), Kind.ALLREDUCE, 0, 8192.0)
    return BaselineComparison(demand, None, load_profile("executor-a100"), tuple(rows))


def test_slower_sizes_are_left_up_to_the_next_faster_one() -> None:
    compared = _compared({1024: 9.0, 2048: 11.0, 4096: 12.0, 8192: 9.9, 16384: 10.05, 32768: 20.0, 65536: None})
    assert compared.left == (SizeRange(2048, 8191), SizeRange(32768, 65535))
    assert [row.is_slower for row in compared.rows] == [False, True, True, False, False, True, False]


def test_the_remedy_is_a_command() -> None:
    result = comparison_record(_compared({1024: 9.0, 2048: 11.0, 4096: 12.0, 8192: 9.9}))
    note = remedy(result, "my files")
    words = shlex.split(note.partition("taccl install ")[2])
    assert words == ["my files", "-o", "INSTALLED", "--leave", "allreduce:2048:8191"]
    left = parse_left(words[-1])
    assert (left.kind, left.sizes) == ("allreduce", SizeRange(2048, 8191))
    assert [bool(row["remedy"]) for row in result["sizes"]] == [False, True, True, False]


def test_a_span_in_words_ends_below_the_size_at_which_ours_is_faster() -> None:
    result = comparison_record(_compared({1024: 9.0, 2048: 11.0, 4096: 12.0, 8192: 9.9, 16384: 12.0}))
    assert "NCCL is faster at 2KiB to below 8KiB, 16KiB; leave these sizes to it" in remedy(result, "out")
    assert "is faster at 2KiB to 4KiB" in remedy({**result, "left_to_nccl": [[2048, 4096]]}, "out")


def test_logs_stand_beside_the_library_of_the_profile() -> None:
    log = MeasuredLog("run.log", "nccl", (MeasuredSize(1024, 11.0, NcclTime("Ring", Protocol.LL, 12.0), None),))
    for profile, library in (("executor-a100", "NCCL"), ("rccl-mi300x", "RCCL")):
        compared = replace(_compared({1024: 9.0}), profile=load_profile(profile), measured=(log,))
        *_, table = comparison_tables(comparison_record(compared))
        assert str(table.title).startswith(f"Measured of {library}: run.log; predicted under")
        assert f"; {library} off by x1.09 in the median" in str(table.title)
        assert str(table.columns[2].header) == f"{library} predicted"


def test_no_remedy_where_ours_is_faster_and_no_file_where_it_never_is() -> None:
    assert remedy(comparison_record(_compared({1024: 9.0, 2048: 8.0})), "out") == ""
    assert "install no file" in remedy(comparison_record(_compared({1024: 19.0, 2048: 18.0})), "out")


def test_the_table_has_a_column_for_each_of_nccls_algorithms() -> None:
    result = comparison_record(_compared({1024: 9.0, 2048: None}))
    table, _ = comparison_tables(result)
    assert [str(column.header) for column in table.columns] == [
        "size", "ours", "NCCL Ring", "NCCL Tree", "NCCL's best", "over NCCL", "remedy",
    ]  # fmt: skip
    assert "executor-a100, not measured" in str(table.title)
    assert result["sizes"][0]["speedup_runtime"] == pytest.approx(10 / 9)
    assert result["sizes"][1]["speedup_runtime"] is None

"""The report of a portfolio: one line for its files, times under its runtime profile, the command that makes it."""

import json
import math
import re

import pytest

from taccl_py.campaign.results import read_results
from taccl_py.collective import Kind
from taccl_py.report.figures import sweep_figure, topology_figure
from taccl_py.report.items import size_sweeps
from taccl_py.report.markdown import report_markdown
from taccl_py.report.page import report_page
from taccl_py.schedule.files import write_schedule
from tests.report.results import SIZES, item

STEM = "allgather-0004-both-executor-ring-4"
RANGES = ((4096, 9999), (10000, 65536))
COMMAND = "taccl synth ring:4 allgather --sizes 4KiB:64KiB --seed 7 -o out/"


@pytest.fixture(scope="module")
def schedule():
    return write_schedule(item("ring:4", Kind.ALLGATHER).schedule)


def write_portfolio(folder, schedule, stem=STEM, **changes):
    """A folder as taccl synth --sizes writes it, of one algorithm in two files; a change to None takes a key away."""
    notes = folder / "taccl"
    notes.mkdir(parents=True, exist_ok=True)
    names = [f"{stem}-{low:013d}-{high:013d}" for low, high in RANGES]
    for name in names:
        (notes / f"{name}.json").write_text(schedule)
    sizes = [1 << power for power in range(12, 17)]
    rows = [
        {"size_bytes": size, "makespan_us": 5.0, "bound_us": 4.0, "range": int(size >= 10000), "runtime_us": 9.0 + size / 8192,
         "runtime_bound_us": 8.0}
        for size in sizes
    ]  # fmt: skip
    facts = {
        "format": "taccl-portfolio", "collective": "allgather", "topology": "ring-4", "root": 0, "sketch": "",
        "ranges": [{"file": f"{name}.xml"} for name in names], "sizes": rows, "runtime_profile": "executor-a100",
        "runtime_evidence": "not measured", "command": COMMAND,
    }  # fmt: skip
    facts = {key: value for key, value in (facts | changes).items() if value is not None}
    (notes / f"{stem}-summary.json").write_text(json.dumps(facts))
    return folder


@pytest.fixture
def items(tmp_path, schedule):
    return list(read_results(write_portfolio(tmp_path, schedule)))


def test_files_are_named_by_their_sizes(items):
    assert [one.name for one in items] == ["4KiB to 9.765KiB", "9.766KiB to 64KiB"]


def test_one_line_is_the_best_of_all_files_and_its_gap_has_no_holes(items):
    (sweep,) = size_sweeps(items, SIZES)
    runtime, plain = sweep.lines
    assert (runtime.name, plain.name) == (
        "best of 2 files, profile executor-a100",
        "best of 2 files, links and ports alone",
    )
    assert [p.size_bytes for p in plain.points] == [4096, 8192, 9999, 10000, 16384, 32768, 65536]
    assert [p.size_bytes for p in sweep.bound] == [4096, 8192, 16384, 32768, 65536]
    assert all(point.bound_us > 0 and point.gap >= 0 for point in plain.points)
    assert [point.name for point in plain.points] == ["4KiB to 9.765KiB"] * 3 + ["9.766KiB to 64KiB"] * 4
    traces = [trace for trace in sweep_figure(sweep).data if trace.yaxis == "y3"]
    assert [len(trace.y) for trace in traces] == [5, 7]
    assert all(None not in trace.y for trace in traces)


def test_times_under_the_profile_are_those_of_the_summary(items):
    (sweep,) = size_sweeps(items, SIZES)
    runtime = sweep.lines[0]
    assert [point.time_us for point in runtime.points] == [9.5, 10, 11, 13, 17]
    assert runtime.points[0].gap == pytest.approx(1.5 / 8)
    assert [point.name for point in runtime.points] == ["4KiB to 9.765KiB"] * 2 + ["9.766KiB to 64KiB"] * 3
    assert {point.time_us for line in sweep.runtime_bounds for point in line.points} == {8}


@pytest.mark.parametrize("write", ["page", "markdown"])
def test_a_report_names_profile_and_command_once(items, write):
    sweeps = size_sweeps(items, SIZES)
    text = report_markdown("P", items, sweeps) if write == "markdown" else report_page("P", items, sweeps, 1)
    assert "under runtime profile executor-a100, not measured" in text
    assert text.count(COMMAND) == 1
    assert "10 us at 8KiB" in text
    assert "17 us at 64KiB" in text
    assert "taccl synth ring:4 allgather --size " not in text


def test_the_command_of_an_older_summary_is_made_of_its_facts(tmp_path, schedule):
    first, _ = read_results(write_portfolio(tmp_path, schedule, command=None))
    wanted = "taccl synth ring:4 allgather --sizes 4096B:65536B --runtime-profile executor-a100 -o out/"
    assert first.portfolio.command == wanted


def test_without_runtime_times_there_is_one_line(tmp_path, schedule):
    rows = [{"size_bytes": size, "range": 0} for size in (4096, 65536)]
    items = list(read_results(write_portfolio(tmp_path, schedule, sizes=rows, runtime_profile="neutral")))
    (sweep,) = size_sweeps(items, SIZES)
    assert [line.name for line in sweep.lines] == ["best of 2 files"]
    assert "links and ports alone (runtime profile neutral)" in report_markdown("P", items, [sweep])
    assert "runtime time" not in report_markdown("P", items, [sweep])


def test_portfolios_of_one_folder_are_lines_of_their_own(tmp_path, schedule):
    write_portfolio(tmp_path, schedule)
    other = STEM.replace("executor", "rccl")
    items = list(read_results(write_portfolio(tmp_path, schedule, other, runtime_profile="rccl-mi300x")))
    assert len({one.name for one in items}) == 4
    (sweep,) = size_sweeps(items, SIZES)
    assert len({line.name for line in sweep.lines}) == len(sweep.lines) == 4


def test_the_legend_lies_beside_the_figure(items):
    (sweep,) = size_sweeps(items, SIZES)
    layout = sweep_figure(sweep).layout
    assert layout.legend.x > 1
    assert layout.legend.xanchor == "left"
    assert all(len(part) <= 28 for trace in sweep_figure(sweep).data for part in re.split("<br>", trace.name))


@pytest.mark.parametrize(("topology", "nodes"), [("dgx1", 1), ("dgx2", 2), ("ndv4", 2), ("ndv4", 5), ("ring:64", 1)])
def test_neither_dots_nor_nodes_overlap_in_the_drawing(topology, nodes):
    one = item(topology, Kind.ALLGATHER, nodes)
    figure = topology_figure(one)
    dots = figure.data[-1]
    wide, high = (max(side) - min(side) for side in (dots.x, dots.y))
    size, margin = dots.marker.size, figure.layout.margin.t
    # A page is at least so wide; plotly keeps both axes to one scale.
    pixels = min((figure.layout.height - 2 * margin) / (high + 1), (1100 - 2 * margin) / (wide + 1))
    places = list(zip(dots.x, dots.y, strict=True))
    apart = min(math.dist(a, b) for number, a in enumerate(places) for b in places[:number])
    assert apart * pixels > size
    groups = [[places[rank] for rank in ranks] for ranks in one.schedule.topology.node_ranks]
    centres = [tuple(sum(axis) / len(group) for axis in zip(*group, strict=True)) for group in groups]
    reach = max(math.dist(centre, place) for centre, group in zip(centres, groups, strict=True) for place in group)
    between = [math.dist(a, b) for number, a in enumerate(centres) for b in centres[:number]]
    assert all(distance > 2 * reach for distance in between)

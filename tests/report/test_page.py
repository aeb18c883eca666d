"""Reports as text: what a page, Markdown and pictures hold, without a browser."""

import re
from dataclasses import replace

import matplotlib
import pytest
from matplotlib.figure import Figure

from taccl_py.collective import Kind
from taccl_py.report.figures import _radius, sweep_figure, timeline_figure, topology_figure
from taccl_py.report.items import SizeLine, size_sweeps
from taccl_py.report.markdown import report_markdown
from taccl_py.report.page import report_page
from taccl_py.report.picture import _sweep, _timeline, draw
from taccl_py.units import SizeRange
from tests.report.results import SIZES, item


@pytest.fixture(scope="module")
def gather():
    return item("ring:4", Kind.ALLGATHER, size_bytes=1_000_000)


@pytest.fixture(scope="module")
def sums():
    return item("dgx1", Kind.ALLREDUCE)


@pytest.fixture(scope="module")
def sweeps(gather, sums):
    return size_sweeps([gather, sums], SIZES)


def test_a_sweep_has_20_sizes_and_stays_above_its_bound(sweeps):
    assert [sweep.title for sweep in sweeps] == ["allgather on ring-4, 4 ranks", "allreduce on dgx1, 8 ranks"]
    for sweep in sweeps:
        (line,) = sweep.lines
        assert [point.size_bytes for point in line.points] == [float(1 << power) for power in range(10, 30)]
        assert all(point.gap >= -1e-9 for point in line.points)
        assert len(sweep.bound) == 20


def test_times_of_a_sweep_are_those_of_the_algorithm(gather):
    """Half of every quarter goes each way around, 3 hops of 0.5 us + 20 us/MB with an eighth of the data: 1 MB 9, 4 MB 31.5."""
    (sweep,) = size_sweeps([gather], SizeRange(1_000_000, 4_000_000))
    assert [point.time_us for point in sweep.lines[0].points] == pytest.approx([9, 16.5, 31.5])
    assert sweep.lines[0].points[0].busbw_gbps == pytest.approx(1e6 / 9 / 1000 * 3 / 4)


def test_an_algorithm_for_some_sizes_is_drawn_for_these(gather):
    (sweep,) = size_sweeps([replace(gather, sizes=SizeRange(3000, 5000))], SIZES)
    assert [point.size_bytes for point in sweep.lines[0].points] == [3000, 4096, 5000]
    assert all(point.bound_us > 0 for point in sweep.lines[0].points)


def test_a_timeline_has_a_bar_for_every_message_and_frames_the_critical_ones(sums):
    (bars,) = timeline_figure(sums).data
    assert len(bars.x) == len(sums.schedule.messages)
    assert max(begin + length for begin, length in zip(bars.base, bars.x, strict=True)) == pytest.approx(
        sums.schedule.makespan_us
    )
    assert sum(width > 1 for width in bars.marker.line.width) == len(sums.critical) > 1
    assert sorted(map(len, bars.customdata)) == sorted(len(message.chunks) for message in sums.schedule.messages)


def test_the_machine_has_a_line_for_every_pair_that_talks_and_a_dot_for_every_rank(sums):
    traces = topology_figure(sums).data
    links = sums.schedule.topology.links
    pairs = {(links[m.link].src, links[m.link].dst) for m in sums.schedule.messages}
    assert {tuple(trace.meta) for trace in traces if trace.mode == "lines"} == pairs
    assert len(traces[-1].x) == 8


def test_a_sweep_figure_has_time_bandwidth_and_gap(sweeps):
    traces = sweep_figure(sweeps[0]).data
    assert [trace.yaxis for trace in traces] == ["y", "y2", "y3", "y", "y2"]


def test_a_page_is_one_file_that_tells_how_to_make_it_again(gather, sums, sweeps):
    page = report_page("Two <algorithms>", [gather, sums], sweeps, 6)
    assert page.startswith("<!DOCTYPE html>")
    assert "<h1>Two &lt;algorithms&gt;</h1>" in page
    assert "taccl synth ring:4 allgather --size 1000000B --engine templates --seed 0" in page
    outside = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"(src|href)\s*=", outside)
    assert "<script src" not in page
    assert page == report_page("Two <algorithms>", [gather, sums], sweeps, 6)


def test_only_so_many_algorithms_get_figures(gather, sums, sweeps):
    page = report_page("Two", [gather, sums], sweeps, 1)
    assert 'id="timeline-0"' in page
    assert 'id="timeline-1"' not in page
    assert "1 further algorithms" in page


def test_markdown_has_the_fastest_of_every_size(gather, sums, sweeps):
    text = report_markdown("Both | of them", [gather, sums], sweeps)
    assert text.startswith("## Both \\| of them\n")
    assert text.count("\n| 1MiB |") == 2
    assert "`taccl synth dgx1 allreduce --size 1048576B" in text
    columns = {line.count(" | ") for line in text.splitlines() if line.startswith("| 1")}
    assert columns == {5}


@pytest.mark.parametrize(("form", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_pictures_are_the_same_every_time(gather, sweeps, form, begins):
    one, two = (draw([gather], sweeps[:1], form) for _ in range(2))
    assert one.startswith(begins)
    assert one == two


def test_a_bound_at_one_size_is_seen(sweeps):
    """A dotted line of one point is nothing: the legend named a bound that no picture showed."""
    sweep = sweeps[0]
    for number, html, marker in ((1, "markers", "_"), (2, "lines", "")):
        line = SizeLine("bound, profile p", sweep.bound[:number], "p")
        sweep = replace(sweep, runtime_bounds=(line,))
        drawn = [trace.mode for trace in sweep_figure(sweep).data if trace.name == "bound, profile p"]
        assert drawn == [html, html]
        part = Figure()
        _sweep(sweep, part)
        shown = [found.get_marker() for found in part.axes[0].lines if found.get_label() == "bound, profile p"]
        assert shown == [marker]


def test_a_timeline_has_room_for_ranks_that_send_nothing():
    axis = Figure().subplots()
    _timeline(item("ring:4", Kind.GATHER), axis, matplotlib)
    assert axis.get_ylim() == (3.5, -0.5)


@pytest.mark.parametrize(("number", "radius"), [(1, 0.0), (2, 0.5), (6, 1.0), (4, 2**-0.5)])
def test_neighbours_of_a_cycle_are_as_far_apart_as_asked(number, radius):
    assert _radius(number, 3.0) == pytest.approx(3 * radius)

"""The page in a headless browser: it loads without an error or a request, and zoom and the choice of a chunk work."""

import shutil

import pytest

from taccl_py.collective import Kind
from taccl_py.report.items import size_sweeps
from taccl_py.report.page import report_page
from tests.report.results import SIZES, item

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
sync_api = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")


@pytest.fixture(scope="module")
def items():
    return [item("ndv4", kind) for kind in (Kind.ALLREDUCE, Kind.ALLTOALL)]


@pytest.fixture(scope="module")
def page(items, tmp_path_factory):
    """The open page, with all errors and requests that it made."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(report_page("ndv4", items, size_sweeps(items, SIZES), 6), encoding="utf-8")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1200, "height": 900})
        opened.complaints, opened.requests = [], []
        opened.on("pageerror", lambda error: opened.complaints.append(str(error)))
        opened.on("console", lambda said: opened.complaints.append(said.text) if said.type == "error" else None)
        opened.on("request", lambda request: opened.requests.append(request.url))
        opened.goto(path.as_uri())
        opened.wait_for_selector("#timeline-1 .point")
        yield opened
        browser.close()


def bars(page, number):
    return page.locator(f"#timeline-{number} .barlayer .point")


def test_it_loads_without_an_error_and_asks_nobody(page):
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:", "blob:"))] == []


@pytest.mark.parametrize("number", [0, 1])
def test_the_timeline_has_as_many_bars_as_sends(page, items, number):
    assert bars(page, number).count() == len(items[number].schedule.messages)


def test_the_sweep_has_20_sizes(page):
    (points, lines) = page.evaluate("[document.getElementById('sweep-0').data[0].x.length, 5]")
    assert points == 20
    assert page.evaluate("document.getElementById('sweep-0').data.length") == lines


def test_dragging_zooms_in_and_a_double_click_out(page, items):
    plot = page.locator("#timeline-0 .nsewdrag").first
    page.evaluate("document.getElementById('timeline-0').scrollIntoView()")
    box = plot.bounding_box()
    span = "document.getElementById('timeline-0')._fullLayout.xaxis.range"
    before = page.evaluate(span)
    page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 25, steps=5)
    page.mouse.up()
    page.wait_for_function(f"{span}[1] < {before[1]} - 0.1")
    low, high = page.evaluate(span)
    assert high - low == pytest.approx((before[1] - before[0]) / 4, rel=0.05)
    assert before[1] >= items[0].schedule.makespan_us
    page.mouse.dblclick(box["x"] + 0.5 * box["width"], box["y"] + 20)
    page.wait_for_function(f"Math.abs({span}[1] - {before[1]}) < 1e-6")


def test_choosing_a_chunk_fades_all_others(page, items):
    schedule = items[1].schedule
    page.select_option("#chunk-1", "3")
    opacity = page.evaluate("Array.from(document.getElementById('timeline-1').data[0].marker.opacity)")
    with_it = sum(3 in message.chunks for message in schedule.messages)
    assert sum(value > 0.5 for value in opacity) == with_it > 0
    pairs = page.evaluate(
        "document.getElementById('topology-1').data.filter(t => t.mode === 'lines' && t.opacity === 1).map(t => t.meta)"
    )
    links = schedule.topology.links
    crossed = {(links[m.link].src, links[m.link].dst) for m in schedule.messages if 3 in m.chunks}
    assert {tuple(pair) for pair in pairs} == crossed
    page.select_option("#chunk-1", "")
    opacity = page.evaluate("Array.from(document.getElementById('timeline-1').data[0].marker.opacity)")
    assert min(opacity) > 0.5


def test_by_rank_every_bar_is_in_the_row_of_its_sender(page):
    page.locator("#timeline-0 .updatemenu-button", has_text="by rank").click()
    page.wait_for_function("document.getElementById('timeline-0').data[0].y[0] === 'rank 0'")
    rows = page.evaluate("new Set(document.getElementById('timeline-0').data[0].y).size")
    assert rows == 8
    assert page.complaints == []


def test_the_figures_are_drawn(page, tmp_path):
    """A blank picture would have one colour, or two."""
    from matplotlib.image import imread

    page.locator("#timeline-1").screenshot(path=tmp_path / "timeline.png")
    picture = imread(tmp_path / "timeline.png")
    colours = {tuple(round(float(part), 1) for part in pixel[:3]) for row in picture[::3] for pixel in row[::3]}
    assert len(colours) > 20

"""``taccl report``: what it reads, what it writes, what it refuses."""

import json
import sys

import pytest

SIZES = ("--sizes", "1KiB:1MiB")


@pytest.mark.parametrize("name", ["report.html", "report.md", "report.png", "report.svg"])
def test_every_form_is_written_from_the_name_of_the_file(taccl, files, name):
    ended = taccl("report", "schedule.json", "-o", name, *SIZES, "--json")
    assert ended.code == 0, ended.err
    assert ended.json["format"] == name.partition(".")[2]
    assert (files / name).stat().st_size > 500


def test_a_folder_brings_its_program(taccl, files):
    assert taccl("report", ".", "-o", "report.html", *SIZES).code == 0
    page = (files / "report.html").read_text()
    assert "Threadblocks (" in page
    assert "links and ports alone (runtime profile neutral)" in page
    assert taccl("report", "schedule.json", "-o", "report.html", *SIZES).code == 0
    assert "Threadblocks (" not in (files / "report.html").read_text()


def test_a_catalogue_and_a_portfolio_are_reported_whole(taccl, folder):
    text = 'format = "taccl-suite"\nversion = 1\n[[instances]]\ntopology = "ring:4"\ncollectives = ["allgather", "alltoall"]\n'
    (folder / "suite.toml").write_text(text + 'sizes = "1MB"\nengines = "templates"\n')
    assert taccl("sweep", "suite.toml", "-o", "catalogue", "--workers", 1).code == 0
    ended = taccl("report", "catalogue", "-o", "report.md", *SIZES, "--json")
    assert ended.json["algorithms"] == ["ring:4 allgather 1MB templates", "ring:4 alltoall 1MB templates"]
    made = taccl(
        "synth", "ring:4", "allgather", "--sizes", "4KiB:64KiB", "--time-limit", 2, "-o", "portfolio", "--json"
    )
    ended = taccl("report", "portfolio", "-o", "report.md", *SIZES, "--json")
    assert len(ended.json["algorithms"]) == len(made.json["ranges"])
    assert "| 64KiB |" in (folder / "report.md").read_text()
    assert "links and ports alone (runtime profile neutral)" in (folder / "report.md").read_text()
    assert "| 128KiB |" not in (folder / "report.md").read_text()


def test_the_command_of_an_answer_is_the_one_that_made_it(taccl, folder):
    made = ("synth", "ring:4", "allreduce", "--size", "64KiB", "--effort", "quick")
    words = "`taccl synth ring:4 allreduce --size 64KiB --effort quick -o out/`"
    assert taccl(*made, "-o", "one", "--json").json["command"] == words.strip("`")
    for place in ("one", "one/schedule.json"):
        assert taccl("report", place, "-o", "r.md", *SIZES).code == 0
        assert words in (folder / "r.md").read_text()
    # Of another schedule, which was written over the first one alone, the summary tells nothing.
    assert taccl(*made[:-2], "--engine", "templates", "--seed", 3, "-o", "one/schedule.json").code == 0
    assert taccl("report", "one/schedule.json", "-o", "r.md", *SIZES).code == 0
    assert "--engine templates --seed 3" in (folder / "r.md").read_text()


@pytest.mark.usefixtures("folder")
def test_folders_of_several_schedules_are_reported_whole(taccl):
    """Of pareto and groups the files themselves, of single failures the folder of each."""
    assert taccl("pareto", "ring:4", "allgather", "-o", "points").code == 0
    assert taccl("groups", "ring:4", "allgather", "--group", "0,1/2,3", "-o", "groups").code == 0
    failures = ("--single-failures", "gpu-link", "--size", "1MB", "--effort", "quick")
    assert taccl("synth", "ring:3", "allgather", *failures, "-o", "failures").code == 0
    names = {
        each: taccl("report", each, "-o", "r.md", *SIZES, "--json").json["algorithms"]
        for each in ("points", "groups", "failures")
    }
    assert names == {
        "points": ["c2-s2-r3"],
        "groups": ["group-0", "group-1"],
        "failures": ["link-0-1-lost", "link-0-2-lost", "link-1-2-lost"],
    }


def test_equal_names_are_told_apart(taccl, files):
    ended = taccl("report", "schedule.json", "schedule.json", "-o", "r.md", *SIZES, "--json")
    names = ended.json["algorithms"]
    assert len(set(names)) == 2
    assert all(name in (files / "r.md").read_text() for name in names)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("schedule.json", "-o", "report.pdf"), ["report.pdf", ".html"]),
        (("schedule.json", "-o", "x.md", "--format", "png"), ["x.md", ".png"]),
        (("algorithm.xml", "-o", "x.md"), ["algorithm.xml"]),
        (("empty", "-o", "x.md"), ["empty", "no result"]),
        (("nothing.json", "-o", "x.md"), ["nothing.json"]),
    ],
)
def test_what_is_no_result_is_refused(refuse, files, arguments, words):
    (files / "empty").mkdir()
    refuse(2, words, "report", *arguments)


@pytest.mark.parametrize(("name", "package"), [("r.html", "plotly"), ("r.png", "matplotlib")])
def test_a_missing_package_is_one_line_that_names_the_extra(refuse, files, monkeypatch, name, package):
    for module in [module for module in sys.modules if module.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    refuse(6, [package, "pip install '.[report]'"], "report", "schedule.json", "-o", name, *SIZES)
    assert not (files / name).exists()


def test_the_progress_of_a_search_is_recorded_and_drawn(taccl, folder):
    made = taccl(
        *("synth", "dgx1", "allgather", "--runtime-profile", "neutral", "--time-limit", 1),
        *("-o", "out", "--progress", "out/progress.json", "--json"),
    )
    assert made.code == 0, made.err
    points = json.loads((folder / "out/progress.json").read_text())["points"]
    assert [p["seconds"] for p in points] == sorted(p["seconds"] for p in points)
    best = min(p["incumbent_us"] for p in points if p["incumbent_us"] is not None)
    assert best == pytest.approx(made.json["makespan_us"])
    assert max(p["bound_us"] for p in points if p["bound_us"] is not None) <= best * (1 + 1e-9)
    assert taccl("report", "out", "-o", "r.html", *SIZES).code == 0
    assert 'id="progress-0"' in (folder / "r.html").read_text()
    assert taccl("report", "out/schedule.json", "-o", "r.html", *SIZES).code == 0
    assert 'id="progress-0"' not in (folder / "r.html").read_text()
    (folder / "out/progress.json").write_text('{"format": "taccl-progress", "version": 1, "points": [{"seconds": -1}]}')
    ended = taccl("report", "out", "-o", "r.html", *SIZES)
    assert ended.code == 2
    assert "progress.json: points.0" in ended.err


def test_a_range_of_sizes_has_no_one_progress(refuse):
    refuse(2, ["--progress", "--sizes"], "synth", "ring:4", "allgather", "--sizes", "1KiB:2KiB", "--progress", "p.json")

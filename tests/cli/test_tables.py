"""Tables of commands on a terminal of 80 columns: no figure is cut or broken."""

import re

import pytest

FIGURE = re.compile(r"\d[\d.]*(?: (?:us|ms|GB/s|%))?")
# What takes no time to search for is the same when it is asked for again.
STEADY = {
    "bound": ("bound", "ring:8", "allgather", "--sizes", "1KiB:1GiB"),
    "pareto": ("pareto", "ring:4", "allgather"),
    "sketches": ("sketch", "list"),
    "machine": ("topo", "show", "ndv4", "--nodes", 2),
}
SEARCHED = {
    "compare": ("compare", "ring:4", "allgather", "--sizes", "1MiB:2MiB", "--time-limit", 0.5),
    "sizes": ("synth", "ring:4", "allgather", "--sizes", "1MiB:2MiB", "--time-limit", 0.5),
}


@pytest.fixture
def rows(taccl, monkeypatch):
    """Cells of the tables that a command prints on a terminal of so many columns, line by line."""

    def run(columns, command):
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", str(columns))
        ended = taccl(*command)
        assert ended.code == 0, ended
        assert "…" not in ended.out
        lines = re.sub(r"\x1b\[[0-9;]*m", "", ended.out).splitlines()
        return [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]

    return run


@pytest.mark.parametrize("command", STEADY.values(), ids=STEADY)
def test_a_narrow_terminal_shows_the_figures_of_a_wide_one(rows, command):
    narrow, wide = ([cell for row in rows(n, command) for cell in row if FIGURE.fullmatch(cell)] for n in (80, 400))
    assert narrow == wide != []


@pytest.mark.parametrize("command", SEARCHED.values(), ids=SEARCHED)
def test_a_row_of_figures_stays_in_one_line(rows, command):
    found = rows(80, command)
    assert found
    assert all(cell for row in found for cell in row)

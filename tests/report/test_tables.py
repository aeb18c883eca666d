"""Tables at the widths of terminals: texts take several lines, figures are never cut."""

import re

import pytest

from taccl_py.report.tables import plain_table, print_table
from taccl_py.units import format_rate, format_time


@pytest.fixture
def printed(monkeypatch, capsys):
    """Print a table as on a terminal of so many columns, and return its lines."""

    def lines(table, columns):
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", str(columns))
        print_table(table)
        return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()

    return lines


TIMES = [format_time(10.0**power / 3) for power in range(-1, 9)]
TEXT = "the worst cut through the links and ports of a machine of many ranks, which are all busy all of the time"
PATH = f"catalogue/{'allgather-on-a-machine-' * 3}1.json"


@pytest.mark.parametrize("columns", [20, 80, 120, 300])
def test_no_figure_is_cut_and_no_text_loses_a_character(printed, columns):
    rows = [(time, format_rate(123.4), *[time] * 7, TEXT, PATH) for time in TIMES]
    header = ("predicted time", "algbw <=", *["the time of a baseline"] * 7, "what binds", "result")
    lines = printed(plain_table("a title that is not short", header, rows), columns)
    text = "\n".join(lines)
    assert "…" not in text
    for time in TIMES:
        assert text.count(f" {time} ") == 8
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    assert " ".join(row[-2] for row in cells).split() == TEXT.split() * len(rows)
    assert "".join(row[-1] for row in cells) == PATH * len(rows)


def test_a_table_is_as_wide_as_the_terminal_while_only_texts_and_headers_have_to_give_way(printed):
    header = ("the lower bound", "the bandwidth of the algorithm", "the bandwidth of the bus", "what binds")
    lines = printed(plain_table("t", header, [("15.3 us", "100 GB/s", "94 GB/s", TEXT)]), 80)
    assert max(map(len, lines)) <= 80
    assert any(" 15.3 us " in line and " 100 GB/s " in line and " 94 GB/s " in line for line in lines)


def test_a_table_that_fits_has_every_row_in_one_line(printed):
    lines = printed(plain_table("t", ("a long header", "b"), [("1", TEXT[:50])]), 80)
    assert [line for line in lines if TEXT[:50] in line] == [f"│ 1             │ {TEXT[:50]} │"]
    assert sum("a long header" in line for line in lines) == 1


def test_a_title_is_broken_and_does_not_widen_the_table_beyond_the_terminal(printed):
    lines = printed(plain_table(TEXT, ("a",), [("1",)]), 80)
    assert max(map(len, lines)) <= 80
    assert " ".join(" ".join(lines[:2]).split()) == TEXT

"""Lower envelopes of cost curves over whole sizes."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl_py.portfolio.envelope import SizeSpan, lower_envelope
from taccl_py.simulate.cost_curve import CostCurve, CurvePiece

LOW, HIGH = 1_000, 100_000_000


def line(fixed_us, us_per_mb):
    return CostCurve((CurvePiece(LOW, HIGH, fixed_us, us_per_mb),))


def bent(fixed_us, slopes, borders):
    """Convex curve whose slope changes at the borders."""
    pieces, intercept, start = [], fixed_us, LOW
    for slope, end in zip(slopes, [*borders, HIGH], strict=True):
        if pieces:
            intercept = pieces[-1].time_us(start) - slope * start / 1e6
        pieces.append(CurvePiece(start, end, intercept, slope))
        start = end
    return CostCurve(tuple(pieces))


def test_one_curve_serves_the_whole_range():
    assert lower_envelope([line(1.0, 1.0)], LOW, HIGH) == [SizeSpan(0, LOW, HIGH)]


def test_two_lines_change_places_where_they_cross():
    """1 + 2x = 3 + x at x = 2 MB."""
    assert lower_envelope([line(1.0, 2.0), line(3.0, 1.0)], LOW, HIGH) == [
        SizeSpan(0, LOW, 2_000_000),
        SizeSpan(1, 2_000_001, HIGH),
    ]


def test_a_line_that_is_never_the_fastest_gets_no_span():
    spans = lower_envelope([line(1.0, 2.0), line(2.9, 1.9), line(3.0, 1.0)], LOW, HIGH)
    assert [span.choice for span in spans] == [0, 2]


def test_of_equal_curves_the_first_is_used():
    assert lower_envelope([line(1.0, 1.0), line(1.0, 1.0)], LOW, HIGH) == [SizeSpan(0, LOW, HIGH)]


def test_a_curve_can_win_twice():
    """A bent curve dips below a straight one between 2 MB and 5 MB only."""
    curve = bent(2.0, [1.0, 4.0], [4_000_000])
    straight = line(0.0, 2.0)
    spans = lower_envelope([straight, curve], LOW, HIGH)
    assert spans == [SizeSpan(0, LOW, 2_000_000), SizeSpan(1, 2_000_001, 5_000_000), SizeSpan(0, 5_000_001, HIGH)]


def test_a_tolerance_saves_spans():
    """At the crossings the straight line is 0 % slower, in between at most a third: 8 us instead of 6 us at 4 MB."""
    curve = bent(2.0, [1.0, 4.0], [4_000_000])
    assert lower_envelope([line(0.0, 2.0), curve], LOW, HIGH, tolerance=0.34) == [SizeSpan(0, LOW, HIGH)]
    assert len(lower_envelope([line(0.0, 2.0), curve], LOW, HIGH, tolerance=0.32)) == 3


def test_a_range_of_one_size_has_one_span():
    assert lower_envelope([line(9.0, 1.0), line(1.0, 1.0)], 5_000, 5_000) == [SizeSpan(1, 5_000, 5_000)]


@st.composite
def curves(draw):
    number = draw(st.integers(1, 4))
    slopes = sorted(draw(st.lists(st.integers(1, 400), min_size=number, max_size=number, unique=True)))
    borders = st.integers(LOW + 1, HIGH - 1)
    ends = sorted(draw(st.lists(borders, min_size=number - 1, max_size=number - 1, unique=True)))
    return bent(float(draw(st.integers(0, 1_000))), [float(slope) for slope in slopes], ends)


@given(st.lists(curves(), min_size=1, max_size=6), st.sampled_from([0.0, 0.01, 0.3]), st.data())
def test_spans_leave_nothing_out_and_are_as_fast_as_promised(drawn, tolerance, data):
    spans = lower_envelope(drawn, LOW, HIGH, tolerance)
    assert spans[0].min_bytes == LOW
    assert spans[-1].max_bytes == HIGH
    for one, other in pairwise(spans):
        assert other.min_bytes == one.max_bytes + 1
    for span in spans:
        inside = st.integers(span.min_bytes, span.max_bytes)
        for size in (span.min_bytes, span.max_bytes, data.draw(inside)):
            best = min(curve.time_us(size) for curve in drawn)
            assert drawn[span.choice].time_us(size) <= best * (1 + tolerance) * (1 + 1e-9)


@pytest.mark.parametrize("tolerance", [0.0, 0.05])
def test_more_tolerance_never_costs_spans(tolerance):
    family = [line(float(i * i), 100.0 / (i + 1)) for i in range(12)]
    exact = lower_envelope(family, LOW, HIGH)
    assert len(lower_envelope(family, LOW, HIGH, tolerance)) <= len(exact)

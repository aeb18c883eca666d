"""Sizes as text."""

import pytest

from taccl_py.units import format_size, natural_key, parse_size, relative_gap


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (1, "1B"),
        (1000, "1KB"),
        (1024, "1KiB"),
        (1500, "1.465KiB"),
        (16000, "16KB"),
        (5461000, "5.461MB"),
        (4294960000, "4.29496GB"),
        (10**13, "10000GB"),
        (1 << 30, "1GiB"),
        (3 << 29, "1.5GiB"),
    ],
)
def test_sizes_are_told_in_the_largest_unit_and_exactly_where_thousands_are_whole(size_bytes, text):
    assert format_size(size_bytes) == text
    if size_bytes != 1500:
        assert parse_size(text) == size_bytes


def test_decimal_fractions_of_a_unit_are_exact():
    """4.1 times a million is not a whole number of binary digits."""
    assert parse_size("4.29496GB") == 4294960000
    assert [parse_size(f"{tenths / 1000:.3f}MB") for tenths in range(1, 20000)] == [1000 * k for k in range(1, 20000)]


def test_numbers_in_names_sort_as_numbers():
    names = ["rank 10 in", "rank 2 out", "٣ out", "rank 2 in", "7", "node 1 ib3 in", ""]
    assert sorted(names, key=natural_key) == [
        "",
        "7",
        "node 1 ib3 in",
        "rank 2 in",
        "rank 2 out",
        "rank 10 in",
        "٣ out",
    ]


@pytest.mark.parametrize(
    ("time_us", "bound_us", "gap"), [(3.0, 2.0, 0.5), (2.0, 2.0, 0.0), (1.9999, 2.0, 0.0), (3.0, 0.0, 0.0)]
)
def test_a_gap_is_never_below_zero_and_none_without_a_bound(time_us, bound_us, gap):
    assert relative_gap(time_us, bound_us) == gap

"""Sizes as text."""

import re

import pytest

from taccl_py.units import format_rate, format_size, natural_key, parse_size, relative_gap


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (1, "1B"),
        (1000, "1000B"),
        (1024, "1KiB"),
        (1500, "1.465KiB"),
        (16000, "15.62KiB"),
        (10**6, "976.6KiB"),
        (16 * 10**6, "15.26MiB"),
        (1023 << 10, "1023KiB"),
        ((1 << 20) - 1, "1MiB"),
        (10**13, "9.095TiB"),
        (1 << 54, "16PiB"),
        (1 << 62, "4EiB"),
        (1 << 30, "1GiB"),
        (3 << 29, "1.5GiB"),
    ],
)
def test_sizes_are_told_in_the_largest_binary_unit(size_bytes, text):
    assert format_size(size_bytes) == text


def test_rates_have_no_exponent():
    texts = [format_rate(rate) for rate in (0.03818, 396.2, 999.4, 999.6, 2028.0, 123456.0)]
    assert texts == ["0.0382 GB/s", "396 GB/s", "999 GB/s", "1000 GB/s", "2028 GB/s", "123456 GB/s"]


def test_sizes_of_tables_grow_in_one_system_of_units():
    """Powers of two and of ten, and what lies beside them."""
    units = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50, "EiB": 1 << 60}
    sizes = sorted({max(1, base**power + more) for base in (2, 10) for power in range(16) for more in (-1, 0, 1)})
    told = []
    for size in sizes:
        number, unit = re.fullmatch(r"([0-9.]+)([A-Za-z]+)", format_size(size)).groups()
        told.append(float(number) * units[unit])
        assert told[-1] == pytest.approx(size, rel=5e-4)
    assert told == sorted(told)


def test_decimal_fractions_of_a_unit_are_exact():
    """4.1 times a million is not a whole number of binary digits."""
    assert parse_size("4.29496GB") == 4294960000
    assert [parse_size(text) for text in ("3PB", "3p", "1EiB", "1.5e", "2EB")] == [
        3 * 10**15,
        3 << 50,
        1 << 60,
        3 << 59,
        2 * 10**18,
    ]
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

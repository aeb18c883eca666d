"""Fits of made-up times whose alpha and beta are known."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.errors import InputError
from taccl_py.measure.fitting import fit_samples
from taccl_py.measure.samples import Sample

SIZES = [1 << power for power in range(10, 27, 2)]  # 1 KiB to 64 MiB


def line(size, alpha, beta):
    return alpha + beta * size / 1e6


def drawn(alpha, beta, noise=0.0, seed=1, repeats=5, sizes=SIZES):
    dice = random.Random(seed)
    return [
        Sample(0, 1, size, line(size, alpha, beta) * math.exp(dice.gauss(0, noise)))
        for size in sizes
        for _ in range(repeats)
    ]


def test_exact_times_give_the_exact_line_and_no_error():
    (only,) = fit_samples(drawn(2.5, 40)).lines
    assert (only.alpha_us, only.beta_us_per_mb) == (pytest.approx(2.5), pytest.approx(40))
    assert (only.points, only.outliers, only.residual) == (45, 0, pytest.approx(0, abs=1e-9))
    assert only.alpha_error_us == pytest.approx(0, abs=1e-6)


def test_two_samples_are_a_line_without_confidence():
    (only,) = fit_samples([Sample(0, 1, 0, 3.0), Sample(0, 1, 1_000_000, 13.0)]).lines
    assert (only.alpha_us, only.beta_us_per_mb, only.alpha_error_us) == (pytest.approx(3), pytest.approx(10), None)


def test_serial_messages_pay_alpha_each_and_joined_ones_once():
    """8 messages of 1 MB: 8 (5 + 10) = 120 one after the other, 5 + 80 = 85 at once."""
    (only,) = fit_samples([Sample(0, 1, 10**6, 120.0, serial=8), Sample(0, 1, 10**6, 85.0, joined=8)]).lines
    assert (only.alpha_us, only.beta_us_per_mb) == (pytest.approx(5), pytest.approx(10))


@settings(max_examples=30)
@given(st.floats(0.5, 50), st.floats(2, 200), st.integers(0, 1000))
def test_noise_of_two_percent_leaves_alpha_within_ten_and_beta_within_three_percent(alpha, beta, seed):
    only = fit_samples(drawn(alpha, beta, noise=0.02, seed=seed)).at(None)
    assert only.alpha_us == pytest.approx(alpha, rel=0.1)
    assert only.beta_us_per_mb == pytest.approx(beta, rel=0.03)


def test_the_true_line_is_mostly_within_the_confidence_interval():
    inside = 0
    for seed in range(60):
        only = fit_samples(drawn(3, 30, noise=0.02, seed=seed)).at(None)
        inside += abs(only.beta_us_per_mb - 30) <= only.beta_error_us_per_mb
    assert inside >= 50  # 95 % of 60 is 57; fewer than 50 would be a wrong interval


def test_outliers_are_rejected_and_counted():
    samples = drawn(3, 30, noise=0.01)
    spoilt = [
        Sample(0, 1, one.size_bytes, one.time_us * 7) if index % 9 == 4 else one for index, one in enumerate(samples)
    ]
    (only,) = fit_samples(spoilt).lines
    assert only.outliers == 5
    assert (only.alpha_us, only.beta_us_per_mb) == (pytest.approx(3, rel=0.05), pytest.approx(30, rel=0.02))


def test_a_protocol_switch_is_found_where_it_is():
    """Eager up to 64 KiB: 1 us and 200 us/MB; above: 12 us and 40 us/MB."""
    sizes = [1 << power for power in range(10, 27)]
    samples = [
        Sample(0, 1, size, line(size, *((1, 200) if size <= 1 << 16 else (12, 40))) * (1 + 0.005 * (-1) ** turn))
        for size in sizes
        for turn in range(4)
    ]
    fit = fit_samples(samples)
    assert fit.breaks_bytes == (1 << 17,)
    assert (fit.at(4096).alpha_us, fit.at(4096).beta_us_per_mb) == (
        pytest.approx(1, rel=0.05),
        pytest.approx(200, rel=0.05),
    )
    assert (fit.at(None).alpha_us, fit.at(None).beta_us_per_mb) == (
        pytest.approx(12, rel=0.05),
        pytest.approx(40, rel=0.02),
    )


@pytest.mark.parametrize("seed", range(10))
def test_noise_alone_breaks_no_line(seed):
    assert fit_samples(drawn(3, 30, noise=0.04, seed=seed)).breaks_bytes == ()


def test_neither_alpha_nor_beta_is_negative():
    only = fit_samples([Sample(0, 1, 10**6, 5.0), Sample(0, 1, 2 * 10**6, 30.0)]).at(None)
    assert only.alpha_us == 0
    flat = fit_samples([Sample(0, 1, 10**6, 30.0), Sample(0, 1, 2 * 10**6, 20.0)]).at(None)
    assert flat.beta_us_per_mb == 0


def test_one_size_is_not_enough():
    with pytest.raises(InputError, match="at least two, small and large"):
        fit_samples([Sample(0, 1, 1024, 3.0)] * 5)

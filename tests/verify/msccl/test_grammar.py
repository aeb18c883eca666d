"""Numbers as the C library reads them."""

from __future__ import annotations

import ctypes
import ctypes.util

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl_py.verify.msccl.grammar import c_integer


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12), ("-7", -7), ("+7", 7), (" 8", 8), ("0x1F", 31), ("-0X10", -16), ("010", 8), ("09", 0), ("12abc", 12),
        ("0x", 0), ("", 0), ("abc", 0), ("1e3", 1), ("--1", 0), ("- 1", 0), ("00", 0), ("٣", 0),
    ],
)  # fmt: skip
def test_numbers_have_the_value_of_strtol(text: str, value: int) -> None:
    assert c_integer(text) == value


@given(st.text(alphabet="0123456789abcdefxX+- \t.", max_size=12))
def test_numbers_have_the_value_of_the_real_strtol(text: str) -> None:
    library = ctypes.util.find_library("c")
    if library is None:
        pytest.skip("there is no C library to compare with")
    strtoll = ctypes.CDLL(library).strtoll
    strtoll.restype = ctypes.c_longlong
    assert c_integer(text) == strtoll(text.encode(), None, 0)

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl_py.execute.arithmetic import combine, decode, divide, encode
from taccl_py.execute.plan import DataType, Operator


def bf16(*values):
    return encode(np.array(values, dtype=np.float32), DataType.BFLOAT16)


@pytest.mark.parametrize(
    ("value", "bits"),
    [(1.0, 0x3F80), (-2.0, 0xC000), (0.0, 0x0000), (1.00390625, 0x3F80), (1.01171875, 0x3F82), (3.39e38, 0x7F7F)],
)
def test_bfloat16_is_the_upper_half_of_a_float32_rounded_to_even(value, bits):
    """1 + 2^-8 lies between 1 (even) and 1 + 2^-7, 1 + 3 * 2^-8 between 1 + 2^-7 (odd) and 1 + 2^-6."""
    assert bf16(value)[0] == bits


def test_bfloat16_keeps_infinity_and_what_is_no_number():
    assert list(bf16(np.inf, -np.inf)) == [0x7F80, 0xFF80]
    assert bf16(3.4e38)[0] == 0x7F80
    nan = np.array([0x7F800001], dtype=np.uint32).view(np.float32)
    assert np.isnan(decode(encode(nan, DataType.BFLOAT16), DataType.BFLOAT16))[0]


@given(st.integers(0, 0xFFFF))
def test_every_bfloat16_survives_decoding_and_encoding(bits):
    stored = np.array([bits], dtype=np.uint16)
    numbers = decode(stored, DataType.BFLOAT16)
    if not np.isnan(numbers[0]):
        assert encode(numbers, DataType.BFLOAT16)[0] == bits


def test_a_bfloat16_sum_is_rounded_after_every_addition():
    """256 + 1 lies between 256 and 258 and goes to the even one."""
    total = combine(Operator.SUM, DataType.BFLOAT16, bf16(256.0), bf16(1.0))
    assert decode(total, DataType.BFLOAT16)[0] == 256.0


@pytest.mark.parametrize(
    ("operator", "result"),
    [(Operator.SUM, -106), (Operator.PROD, 12), (Operator.MIN, 50), (Operator.MAX, 100), (Operator.AVG, -106)],
)
def test_integers_wrap_around(operator, result):
    """100 + 50 = 150 = 256 - 106; 100 * 50 = 5000 = 19 * 256 + 136, and 136 = 256 - 120."""
    result = -120 if operator is Operator.PROD else result
    one, other = np.array([100], dtype=np.int8), np.array([50], dtype=np.int8)
    assert combine(operator, DataType.INT8, one, other)[0] == result


def test_averages_of_integers_are_cut_towards_zero():
    assert list(divide(np.array([7, -7, 8, 0], dtype=np.int32), DataType.INT32, 4)) == [1, -1, 2, 0]
    assert list(divide(np.array([7], dtype=np.float32), DataType.FLOAT32, 4)) == [1.75]
    assert list(decode(divide(bf16(7.0), DataType.BFLOAT16, 4), DataType.BFLOAT16)) == [1.75]

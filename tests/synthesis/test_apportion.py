from taccl_py.synthesis.apportion import apportion


def test_whole_parts_go_to_the_largest_remainders():
    assert apportion([1.5, 1.0, 0.5], 4) == [2, 1, 1]
    assert apportion([2.0, 1.0, 0.0], 8) == [5, 3, 0]
    assert apportion([0.0, 3.0, 1.0], 8) == [0, 6, 2]


def test_of_equal_remainders_the_first_is_rounded_up():
    assert apportion([1.0, 1.0, 1.0], 7) == [3, 2, 2]

"""Types of the arrays that the package counts in, and places in runs of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


def places_in_runs(lengths: IntArray) -> IntArray:
    """Place of every member in its run, 0, 1 and so on, where runs of these lengths follow each other."""
    before = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum())) - np.repeat(before, lengths)

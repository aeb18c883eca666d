"""Ends of links as arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from taccl_py.arrays import IntArray
from taccl_py.topology.model import Link


def ends_of(links: Sequence[Link]) -> tuple[IntArray, IntArray]:
    """Ranks that links lead from, and those that they lead to, [link]."""
    return np.array([k.src for k in links], dtype=np.int64), np.array([k.dst for k in links], dtype=np.int64)

"""Weights of parts of a plan, worked out by hand."""

import numpy as np
import pytest

from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.weights import PlanPart, best_weights

LIMITS = Limits(seconds=60, workers=1)


def test_weights_share_out_what_is_left():
    """Three lanes, one of which takes twice as long: 2 : 2 : 1 of 3, each busy for 12."""
    parts = [PlanPart(0, 1.0, np.array(load)) for load in ([10.0, 0, 0], [0, 10.0, 0], [0, 0, 20.0])]
    found = best_weights(parts, {0: 3.0}, LIMITS)
    assert found is not None
    assert found == pytest.approx((1.2, 1.2, 0.6), rel=1e-3)


def test_weights_that_decide_nothing_are_even():
    parts = [PlanPart(0, 1.0, np.array(load)) for load in ([10.0, 1.0], [10.0, 1.0], [10.0, 0.0])]
    found = best_weights(parts, {0: 3.0}, LIMITS)
    assert found is not None
    assert found == pytest.approx((1.0, 1.0, 1.0), abs=1e-3)

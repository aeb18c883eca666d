"""``scripts/predict``: the time of an AllGather on this computer, as predicted from a profile and as it is."""

import sys

import pytest

from tests.execute.processes import ROOT, run_processes
from tests.measure.launching import LAUNCHERS, NOT_IN_CI


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [LAUNCHERS[0], pytest.param("torch", marks=[*LAUNCHERS[1].marks, NOT_IN_CI])])
def test_prediction_and_measurement_stand_side_by_side_with_the_error(launcher):
    """Times are this computer's, whatever else it does; that the error is that of the two times is not."""
    ended = run_processes(
        [sys.executable, ROOT / "scripts" / "predict", "--with", launcher, "--ranks", "2", "--repeats", "1", "64KiB"],
        seconds=300,
    )
    assert ended.code == 0, ended.err
    way, size, predicted, measured, error, unit, _ = ended.out.splitlines()[-1].split()
    assert (way, size, unit) == (launcher, "64KiB", "%")
    assert float(predicted) > 0
    # All three are rounded: the larger the error, the more of that shows.
    assert float(error) == pytest.approx(100 * (float(predicted) / float(measured) - 1), rel=0.01, abs=1)

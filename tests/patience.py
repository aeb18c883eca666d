"""How long tests wait: limits are in seconds of an idle computer, and stretch with how slow and how busy this one is."""

import contextlib
import os
import time

HANGS_SECONDS = 300
"""What has not ended by then never will, however busy the computer is."""

# Seconds that an idle computer takes for the loop below.
_LOOP_SECONDS = 0.1


@contextlib.contextmanager
def ends_within(seconds):
    """Fail if what is done here takes longer than so many seconds of an idle computer.

    It is asked of what would otherwise go on for far longer: that an interrupt or a limit is heeded. How fast things are is for
    the benchmarks.
    """
    begun = time.monotonic()
    yield
    assert_took(time.monotonic() - begun, seconds)


def assert_took(taken_seconds, seconds):
    """Fail if so long is more than so many seconds of an idle computer."""
    # Slowness is asked for only if need be, and then, when whatever keeps the computer busy is likely to be there still.
    in_time = taken_seconds < seconds or taken_seconds < seconds * _slowness()
    assert in_time, f"it took {taken_seconds:.1f} s and should end in {seconds} s"


def _slowness():
    """How many times as long as on an idle computer things take here and now: at least 1.

    Tests beside this one share caches, memory and halves of cores with it, which a short loop does not feel: with them it is
    counted as three times as much (measured in CI: 1.6 times was not enough, the loop saw nothing).
    """
    beside = 3 if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1 else 1
    begun = time.monotonic()
    total = 0
    for number in range(2_000_000):
        total += number
    return beside * max(1.0, (time.monotonic() - begun) / _LOOP_SECONDS)

"""Moments: when a message counts as arrived, and up to which difference two times are one moment."""

from __future__ import annotations

import math

from taccl_py.schedule.ir import Message
from taccl_py.tolerances import SAME_MOMENT, ULPS


def slack_us(duration_us: float, at_us: float) -> float:
    """Difference up to which two times, `duration_us` after one another, count as one moment."""
    return SAME_MOMENT * duration_us + ULPS * math.ulp(at_us)


def arrival_us(message: Message) -> float:
    """Earliest time at which the message counts as arrived; never before its own start."""
    found_us = message.end_us - slack_us(abs(message.end_us - message.start_us), message.end_us)
    return max(found_us, message.start_us)

"""Numbers that several engines share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Params:
    """Numbers that several engines share.

    Attributes
    ----------
    runner_up_factor
        Schedules up to so many times as slow as the best one are kept beside it, as their programs may be faster.
        Guess.
    most_runners_up
        Schedules that an answer keeps beside the best one. Guess.
    poll_seconds
        Seconds between two looks at the deadline and the user's interrupt while another process works. Guess.
    jitter
        Relative random change of the order in which messages are dispatched, in restarts. Guess.
    """

    runner_up_factor: float = 1.12
    most_runners_up: int = 4
    poll_seconds: float = 0.1
    jitter: float = 0.3


COMMON = Params()

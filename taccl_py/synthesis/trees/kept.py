"""Which of a search's plans are kept: the best one, and others that may serve where it cannot."""

from __future__ import annotations

from taccl_py.synthesis.params import COMMON
from taccl_py.synthesis.trees.order import OrderChoice
from taccl_py.synthesis.trees.params import PARAMS


def best_of(found: list[OrderChoice]) -> OrderChoice:
    """The fastest plan; of those that are about as fast, the one with the fewest pieces."""
    limit_us = min(choice.plan.end_us for choice in found) * (1 + PARAMS.least_gain)
    return min((c for c in found if c.plan.end_us <= limit_us), key=lambda c: (c.num_chunks, c.plan.end_us))


def rivals(best: OrderChoice, found: list[OrderChoice], most_messages: float) -> list[OrderChoice]:
    """The fastest plan of not too many messages whose sizes are to be chosen, if it may become faster than the best one, whose sizes are."""
    close = [
        c
        for c in found
        if not c.sized
        and c.plan.end_us <= best.plan.end_us * PARAMS.unsized_factor
        and len(c.plan.messages) <= most_messages
    ]
    return sorted(close, key=lambda c: c.plan.end_us)[:1] if best.sized else []


def coarser(found: list[OrderChoice]) -> list[OrderChoice]:
    """Plans with fewer pieces and messages than the best one, the fastest first: connections hold only so many messages in the XML."""
    best = best_of(found)
    limit_us = best.plan.end_us * COMMON.runner_up_factor
    most_messages = max(PARAMS.most_runner_up_messages, len(best.transfers) // 2)
    fastest: dict[int, OrderChoice] = {}
    for choice in sorted(found, key=lambda c: c.plan.end_us):
        is_short = len(choice.transfers) <= most_messages and len(choice.plan.messages) < len(best.plan.messages)
        if choice.num_chunks < best.num_chunks and choice.plan.end_us <= limit_us and is_short:
            fastest.setdefault(choice.num_chunks, choice)
    return list(fastest.values())[: COMMON.most_runners_up]

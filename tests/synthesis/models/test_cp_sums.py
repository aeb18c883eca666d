"""Exchanges of sums: every contribution reaches everyone exactly once, retraced here without the model."""

import pytest

from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.models.cp_sums import SumStep, exchange_sums

LIMITS = Limits(seconds=60)


def grid(rows, columns):
    """Ranks of a grid, each next to those beside, above and below."""
    places = [(r, c) for r in range(rows) for c in range(columns)]
    return tuple(tuple(j for j, (s, d) in enumerate(places) if abs(r - s) + abs(c - d) == 1) for r, c in places)


def complete(size):
    return tuple(tuple(j for j in range(size) if j != i) for i in range(size))


def carried_out(neighbours, plan, rounds):
    """What ranks of one node hold at the end, as lists of the (node, rank) that contributed; both nodes do the same."""
    holds = [{(0, rank): 1} for rank in range(len(neighbours))]
    sent = None
    for t in range(rounds):
        before = [dict(held) for held in holds]
        for step in plan.steps:
            if step.round == t:
                assert step.src in neighbours[step.dst]
                given = before[step.src]
                holds[step.dst] = added(holds[step.dst], given) if step.adds else dict(given)
        sent = [dict(held) for held in holds] if t == 0 else sent
    for meeting in plan.meetings:
        came = {(1, rank): number for (_, rank), number in sent[meeting.src].items()}
        holds[meeting.dst] = added(holds[meeting.dst], came) if meeting.adds else came
    before = [dict(held) for held in holds]
    for meeting in plan.meetings:
        if meeting.hub != meeting.dst:
            assert meeting.dst in neighbours[meeting.hub]
            holds[meeting.hub] = added(holds[meeting.hub], before[meeting.dst])
    hubs = {meeting.hub for meeting in plan.meetings}
    assert all(rank in hubs or hubs & set(neighbours[rank]) for rank in range(len(neighbours)))
    return [holds[hub] for hub in sorted(hubs)]


def added(one, other):
    return {key: one.get(key, 0) + other.get(key, 0) for key in one.keys() | other.keys()}


@pytest.mark.parametrize(
    ("neighbours", "rounds", "groups"),
    [(complete(2), 2, 1), (complete(4), 2, 1), (complete(4), 2, 2), (grid(2, 2), 3, 2), (grid(2, 3), 4, 2)],
)
def test_hubs_hold_everything_once(neighbours, rounds, groups):
    plan = exchange_sums(neighbours, rounds, groups, LIMITS)
    everything = {(node, rank): 1 for node in (0, 1) for rank in range(len(neighbours))}
    assert plan is not None
    assert carried_out(neighbours, plan, rounds) == [everything] * groups
    assert sorted(meeting.src for meeting in plan.meetings) == list(range(len(neighbours)))
    assert sorted(meeting.dst for meeting in plan.meetings) == list(range(len(neighbours)))


def test_a_rank_is_not_told_and_added_to_at_once():
    plan = exchange_sums(grid(2, 3), 4, 2, LIMITS)
    told = {(step.round, step.dst) for step in plan.steps if not step.adds}
    assert all(
        step == SumStep(step.round, step.src, step.dst, False) for step in plan.steps if (step.round, step.dst) in told
    )


def test_one_hub_of_a_line_of_four_is_too_few():
    """Nobody in a line of four is next to all others."""
    assert exchange_sums(grid(1, 4), 4, 1, LIMITS) is None

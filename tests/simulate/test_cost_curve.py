from dataclasses import replace
from itertools import pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Collective, Kind
from taccl_py.errors import InputError
from taccl_py.schedule.ir import Message, Schedule
from taccl_py.simulate.cost_curve import CostCurve, CurvePiece, cost_curve
from taccl_py.simulate.schedule_replay import decisions, replay_schedule
from taccl_py.topology.model import Link, Port
from tests.simulate.cases import MB, machine, ring_allgather, schedules

LOW, HIGH = 100.0, 1e9


def one_message(alpha_us, beta_us_per_mb, *ports):
    link = Link(0, 1, alpha_us, beta_us_per_mb, 0.5, tuple(range(len(ports))))
    named = [Port(f"port {i}", alpha, beta) for i, (alpha, beta) in enumerate(ports)]
    topology = machine(2, [link, Link(1, 0, 1.0, 1.0)], named)
    message = Message(0, (0,), 0.0, topology.message_us(0, MB))
    return Schedule(topology, Collective(Kind.BROADCAST, 2), MB, (message,), ((), ()))


def test_a_ring_is_one_line():
    (piece,) = cost_curve(ring_allgather(4), 1000, 4e9).pieces
    assert (piece.from_bytes, piece.to_bytes) == (1000, 4e9)
    assert piece.intercept_us == pytest.approx(3 * 1.0)
    assert piece.us_per_mb == pytest.approx(3 * 10.0 / 4)


def test_two_costs_of_one_message_meet_where_they_are_equal():
    """1 + 10 x = 5 + x at x = 4/9."""
    first, second = cost_curve(one_message(5.0, 1.0, (1.0, 10.0)), 1000, 10 * MB).pieces
    assert (first.intercept_us, first.us_per_mb) == (5.5, 1.0)
    assert (second.intercept_us, second.us_per_mb) == (1.5, 10.0)
    assert first.to_bytes == second.from_bytes == pytest.approx(MB * 4 / 9, rel=1e-14)


def test_three_costs_of_one_message_make_three_pieces():
    """9 + x, 5 + 2 x, 1 + 10 x meet at 4 and 1/2: the middle one is nowhere the largest, until it is raised to 6."""
    two = cost_curve(one_message(9.0, 1.0, (5.0, 2.0), (1.0, 10.0)), 1000, 10 * MB)
    assert [piece.us_per_mb for piece in two.pieces] == [1.0, 10.0]
    three = cost_curve(one_message(9.0, 1.0, (8.5, 2.0), (1.0, 10.0)), 1000, 10 * MB)
    assert [piece.us_per_mb for piece in three.pieces] == [1.0, 2.0, 10.0]
    assert [piece.to_bytes for piece in three.pieces] == pytest.approx([0.5 * MB, 7.5 / 8 * MB, 10 * MB])


def test_a_line_that_touches_the_envelope_in_a_corner_only_is_no_piece():
    """9 + x, 5 + 5 x and 1 + 9 x all meet at x = 1."""
    curve = cost_curve(one_message(9.0, 1.0, (5.0, 5.0), (1.0, 9.0)), 1000, 10 * MB)
    assert [piece.us_per_mb for piece in curve.pieces] == [1.0, 9.0]
    assert curve.pieces[0].to_bytes == pytest.approx(MB, rel=1e-14)


def test_a_line_that_rises_a_little_above_the_corner_of_two_others_is_a_piece():
    """9 + x and 1 + 9 x are 10 where they meet at x = 1; 5.001 + 5 x is 10.001 there."""
    curve = cost_curve(one_message(9.0, 1.0, (5.001, 5.0), (1.0, 9.0)), 1000, 10 * MB)
    assert [piece.us_per_mb for piece in curve.pieces] == [1.0, 5.0, 9.0]
    assert [piece.to_bytes for piece in curve.pieces] == pytest.approx([3.999 / 4 * MB, 4.001 / 4 * MB, 10 * MB])


@pytest.mark.parametrize("costs", list(permutations([(9.0, 1.0), (5.0, 5.0), (1.0, 9.0)])))
@pytest.mark.parametrize(("low", "high", "slope"), [(1000, MB, 1.0), (MB, 10 * MB, 9.0)])
def test_a_breakpoint_at_an_end_of_the_range_makes_no_piece_without_length(low, high, slope, costs):
    (piece,) = cost_curve(one_message(*costs[0], *costs[1:]), low, high).pieces
    assert piece.us_per_mb == slope
    assert (piece.from_bytes, piece.to_bytes) == (low, high)


def test_a_range_of_one_size_is_a_point():
    (piece,) = cost_curve(ring_allgather(4), MB, MB).pieces
    assert (piece.from_bytes, piece.to_bytes) == (MB, MB)
    assert piece.time_us(MB) == pytest.approx(3 * (1.0 + 2.5))


def test_a_schedule_without_messages_costs_nothing():
    curve = cost_curve(replace(ring_allgather(3), messages=()), 1, MB)
    assert curve.pieces == (CurvePiece(1, MB, 0.0, 0.0),)


def test_the_text_has_a_line_for_each_piece():
    assert str(CostCurve((CurvePiece(1000, 1 << 20, 12.5, 3.0), CurvePiece(1 << 20, 2 << 30, 10.0, 4.25)))) == (
        "     1000B .. 1MiB       12.5 us + 3 us/MB\n"
        "      1MiB .. 2GiB       10 us + 4.25 us/MB\n"
    )  # fmt: skip


@pytest.mark.parametrize("size", [99, 100_001])
def test_a_size_outside_of_the_range_is_refused(size):
    curve = cost_curve(ring_allgather(3), 100, 100_000)
    assert curve.time_us(100) < curve.time_us(100_000)
    with pytest.raises(InputError, match="outside of the curve"):
        curve.time_us(size)


@pytest.mark.parametrize(("low", "high"), [(0, 10), (-1, 10), (10, 9), (1, float("inf")), (float("nan"), 1)])
def test_a_range_that_is_none_is_refused(low, high):
    with pytest.raises(InputError, match="no range"):
        cost_curve(ring_allgather(3), low, high)


@settings(max_examples=150)
@given(schedules(delays=True), st.lists(st.floats(LOW, HIGH), min_size=1, max_size=8))
def test_the_curve_is_what_a_replay_says_at_every_size(schedule, sizes):
    curve = cost_curve(schedule, LOW, HIGH)
    for size in [*sizes, LOW, HIGH, *(piece.to_bytes for piece in curve.pieces)]:
        replayed = replay_schedule(schedule, size / schedule.collective.chunks_per_size).makespan_us
        assert curve.time_us(size) == pytest.approx(replayed, rel=1e-10)


@settings(max_examples=150)
@given(schedules(delays=True))
def test_the_pieces_follow_each_other_ever_steeper(schedule):
    curve = cost_curve(schedule, LOW, HIGH)
    assert (curve.min_bytes, curve.max_bytes) == (LOW, HIGH)
    for left, right in pairwise(curve.pieces):
        assert left.from_bytes < left.to_bytes == right.from_bytes < right.to_bytes
        assert left.us_per_mb < right.us_per_mb
        assert left.time_us(left.to_bytes) == pytest.approx(right.time_us(left.to_bytes), rel=1e-12)


def all_chains(schedule):
    """Cost (fixed, per MB of a chunk) of every chain of messages that wait for each other, by brute force."""
    topology = schedule.topology
    turns = decisions(schedule)

    def starts(index):
        turn = turns[index]
        ways = {(0.0, 0.0)}
        for before in range(index):
            other = turns[before]
            for resource in set(turn.resources) & set(other.resources):
                alpha, beta = topology.resource_cost[resource]
                ways |= {(a + alpha, b + beta * other.num_chunks) for a, b in starts(before)}
            if before in turn.waits_for:
                ways |= ends(before)
        return ways

    def ends(index):
        turn = turns[index]
        latency = topology.links[turn.link].latency_us
        costs = [topology.resource_cost[resource] for resource in turn.resources]
        return {(a + alpha + latency, b + beta * turn.num_chunks) for a, b in starts(index) for alpha, beta in costs}

    return set().union(*(ends(index) for index in range(len(turns))))


@settings(max_examples=60)
@given(schedules(kinds=(Kind.BROADCAST, Kind.REDUCE, Kind.SCATTER, Kind.GATHER)))
def test_every_breakpoint_is_a_corner_of_the_envelope_of_all_chains(schedule):
    schedule = replace(schedule, messages=schedule.messages[:6])
    chains = all_chains(schedule)
    curve = cost_curve(schedule, LOW, HIGH)
    chunks = schedule.collective.chunks_per_size

    def longest(size):
        return max(a + b * size / chunks / MB for a, b in chains)

    for piece in curve.pieces:
        middle = (piece.from_bytes + piece.to_bytes) / 2
        assert curve.time_us(middle) == pytest.approx(longest(middle), rel=1e-12)
        assert any(
            (a, b / chunks) == pytest.approx((piece.intercept_us, piece.us_per_mb), rel=1e-9, abs=1e-9)
            for a, b in chains
        )
    for left, right in pairwise(curve.pieces):
        corner = left.to_bytes
        assert curve.time_us(corner) == pytest.approx(longest(corner), rel=1e-12)
        for side, piece in ((corner * (1 - 1e-6), left), (corner * (1 + 1e-6), right)):
            assert piece.time_us(side) == pytest.approx(longest(side), rel=1e-12)

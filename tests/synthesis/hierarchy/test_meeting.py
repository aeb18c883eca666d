"""Sums and copies inside nodes."""

from taccl_py.synthesis.hierarchy.meeting import (
    ChunkSpan,
    ExchangeMessage,
    NodeExchange,
    NodeShard,
    Want,
    joined,
    sliced,
)

RANKS = ((10, 11, 12, 13),)
ALL = frozenset(range(4))
WHOLE = ChunkSpan(0, 4)


def wants(held, lanes, span=WHOLE):
    return {0: [Want(NodeShard(span, frozenset(held)), frozenset(lanes))]}


def test_sums_go_to_the_lane_that_wants_them_in_as_many_steps_as_digits():
    first, second = NodeExchange(RANKS, (2, 2)).steps(wants(ALL, {1}), upwards=False)
    assert set(first) == {ExchangeMessage(12, 10, ((0, 4),), True), ExchangeMessage(13, 11, ((0, 4),), True)}
    assert second == (ExchangeMessage(10, 11, ((0, 4),), True),)


def test_lanes_that_all_want_a_sum_exchange_theirs():
    first, second = NodeExchange(RANKS, (2, 2)).steps(wants(ALL, ALL), upwards=False)
    assert {(sending.src, sending.dst) for sending in first} == {(10, 12), (12, 10), (11, 13), (13, 11)}
    assert {(sending.src, sending.dst) for sending in second} == {(10, 11), (11, 10), (12, 13), (13, 12)}
    assert all(sending.adds for sending in (*first, *second))


def test_what_one_lane_has_is_copied():
    first, second = NodeExchange(RANKS, (2, 2)).steps(wants({0}, ALL), upwards=True)
    assert first == (ExchangeMessage(10, 11, ((0, 4),), False),)
    assert set(second) == {ExchangeMessage(10, 12, ((0, 4),), False), ExchangeMessage(11, 13, ((0, 4),), False)}


def test_four_may_meet_at_once_and_the_first_sum_is_stored_where_there_is_none():
    (step,) = NodeExchange(RANKS, (4,)).steps(wants({1, 2, 3}, {0}), upwards=False)
    assert step == (
        ExchangeMessage(11, 10, ((0, 4),), False),
        ExchangeMessage(12, 10, ((0, 4),), True),
        ExchangeMessage(13, 10, ((0, 4),), True),
    )


def test_shares_that_lie_together_go_together():
    listed = [
        Want(NodeShard(ChunkSpan(0, 2), ALL), frozenset({0})),
        Want(NodeShard(ChunkSpan(2, 4), ALL), frozenset({0})),
    ]
    first, _ = NodeExchange(RANKS, (2, 2)).steps({0: listed}, upwards=False)
    assert {sending.spans for sending in first} == {((0, 4),)}


def test_what_is_there_early_joins_what_comes_late():
    shard = NodeShard(ChunkSpan(0, 4), ALL, early=frozenset({0, 2}))
    steps, left = NodeExchange(RANKS, (2, 2)).early_steps({0: [shard]})
    assert steps == [(ExchangeMessage(12, 10, ((0, 4),), True),), (ExchangeMessage(10, 11, ((0, 4),), True),)]
    assert left == {0: [NodeShard(ChunkSpan(0, 4), frozenset({1, 3}))]}


def test_slices_are_nearly_equal_and_empty_ones_vanish():
    assert [sliced(ChunkSpan(3, 8), index, 3) for index in range(3)] == [(3, 4), (4, 6), (6, 8)]
    assert joined([ChunkSpan(4, 6), ChunkSpan(2, 2), ChunkSpan(0, 4)]) == ((0, 6),)

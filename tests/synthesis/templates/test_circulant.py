"""Rounds of a circulant graph: nobody sends what it lacks, nobody sends or receives twice at a time, and no round is too many."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl_py.collective import Kind
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.templates.circulant import Circulant
from taccl_py.synthesis.templates.library import template_schedules
from taccl_py.topology.catalog import load_topology

MIB = 1 << 20


@given(st.integers(2, 300), st.integers(1, 40), st.randoms())
def test_pieces_reach_all_ranks_in_the_fewest_rounds(num_ranks, pieces, random):
    ranks = random.sample(range(num_ranks), num_ranks)
    rounds = Circulant.of(num_ranks)
    messages = list(rounds.messages(tuple(ranks), pieces))
    held = {rank: set(range(pieces)) if rank == ranks[0] else set() for rank in ranks}
    at = defaultdict(list)
    for message in messages:
        assert message.end == message.start + 1
        at[message.start].append(message)
    for start in sorted(at):
        assert (
            len({message.src for message in at[start]}) == len({message.dst for message in at[start]}) == len(at[start])
        )
        assert all(held[message.src].issuperset(message.chunks) for message in at[start])
        for message in at[start]:
            held[message.dst].update(message.chunks)
    assert all(len(has) == pieces for has in held.values())
    assert len(messages) == pieces * (num_ranks - 1)  # everything comes once
    # 2^q ranks can know the last piece q rounds after it leaves the root, which sends the others before.
    assert max(at) + 1 <= pieces - 1 + (num_ranks - 1).bit_length()


def test_three_ranks_by_hand():
    """In even rounds everyone sends to the next rank, in odd ones to the one after that; 3 pieces take 4 rounds."""
    messages = [
        (message.start, message.src, message.dst, message.chunks) for message in Circulant.of(3).messages((0, 1, 2), 3)
    ]
    root_sends = [(0, 0, 1, (0,)), (1, 0, 2, (1,)), (2, 0, 1, (2,)), (3, 0, 2, (2,))]
    others_pass_on = [(2, 1, 2, (0,)), (3, 2, 1, (1,))]
    assert sorted(messages) == sorted(root_sends + others_pass_on)


def test_the_number_of_pieces_balances_rounds_and_what_is_sent_again():
    # 16 ranks, 4 rounds more: (n + 3) (0.5 + 21 / n) is 33.75 at 11 and at 12; at 1 it is 86, at 100 it is 73.
    assert Circulant.of(16).best_pieces(0.5, 21.0) in (11, 12)
    assert Circulant.of(16).best_pieces(1.0, 0.0) == 1
    assert Circulant.of(16).best_pieces(0.0, 1.0) > 1 << 20


@pytest.mark.parametrize(
    ("kind", "machine", "size_bytes", "most_us"),
    [
        # 11 pieces and 3 rounds more of 0.5 + 20 * 1.048576 / 11 us each.
        (Kind.BROADCAST, "switch:16", MIB, 33.8),
        # 359 pieces would take 21836 us; 256 or 512 divide the size. Trees with slots at ports took 21978.
        (Kind.REDUCE, "switch:16", 1024 * MIB, 21900),
        # 19 or 20 pieces and 6 rounds more of 0.3 + 18.64 / n; a chain of 72 ranks or trees took 37.
        (Kind.REDUCE, "nvl72:1", 16 * MIB, 32.1),
        (Kind.BROADCAST, "nvl72:1", 1024 * MIB, 1290),
    ],
)
def test_on_a_switch_broadcast_and_reduce_take_the_fewest_rounds(kind, machine, size_bytes, most_us):
    found = template_schedules(Demand(load_topology(machine), kind, size_bytes), 1.0)
    assert min(each.schedule.makespan_us for each in found) <= most_us

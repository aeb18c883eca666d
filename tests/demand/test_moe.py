"""Dispatch and combine of a mixture of experts: places by hand, laws of routers, files."""

import json

import numpy as np
import pytest

from taccl_py.demand import ChunkPlace
from taccl_py.demand.moe import RouterLaw, moe_combine, moe_dispatch, read_routing
from taccl_py.errors import InputError

# Two ranks with two experts each and two tokens each: rank 0's go to both and to rank 1, rank 1's nowhere and to itself.
ROUTING = np.array([[0, 3], [2, 3], [-1, -1], [2, -1]])


def test_a_token_goes_once_to_each_rank_of_its_experts():
    demand = moe_dispatch(ROUTING, 4, 2, 10)
    assert [(c.size_bytes, c.terms[0][0], c.wants) for c in demand.chunks] == [
        (10, ChunkPlace(0, 0), (ChunkPlace(0, 0), ChunkPlace(1, 0))),
        (10, ChunkPlace(0, 10), (ChunkPlace(1, 10),)),
        (10, ChunkPlace(1, 10), (ChunkPlace(1, 20),)),
    ]
    assert demand.input_bytes == (20, 20)
    assert demand.output_bytes == (10, 30)
    assert demand.total_bytes == 20


def test_combine_is_dispatch_backwards():
    one, other = moe_dispatch(ROUTING, 4, 2, 10), moe_combine(ROUTING, 4, 2, 10)
    assert (one.input_bytes, one.output_bytes) == (other.output_bytes, other.input_bytes)
    for forth, back in zip(one.chunks, other.chunks, strict=True):
        assert tuple(place for (place,) in back.terms) == forth.wants
        assert (back.wants,) == forth.terms
    assert [chunk.is_sum for chunk in other.chunks] == [True, False, False]


def test_tokens_that_go_together_are_one_chunk():
    demand = moe_dispatch(np.array([[1], [1], [0], [1], [1], [1]]), 2, 2, 4)
    assert [(c.size_bytes, c.wants[0]) for c in demand.chunks] == [
        (8, ChunkPlace(1, 0)), (4, ChunkPlace(0, 0)), (12, ChunkPlace(1, 8)),
    ]  # fmt: skip


def test_a_law_keeps_to_groups_and_draws_no_expert_twice():
    drawn = RouterLaw(32, 6, groups=8, topk_groups=2).draw(4, 50, seed=1)
    assert drawn.shape == (200, 6)
    assert all(len(set(row)) == 6 for row in drawn.tolist())
    assert max(len(set(row)) for row in (drawn // 4).tolist()) == 2
    assert (drawn == RouterLaw(32, 6, groups=8, topk_groups=2).draw(4, 50, seed=1)).all()


def test_distinct_nodes_of_even_top_8_of_256():
    """A token's experts lie on n (1 - C(256 - 256/n, 8) / C(256, 8)) of n nodes: 3.61 of 4, 5.29 of 8."""
    drawn = RouterLaw(256, 8).draw(8, 1000, seed=0)
    for nodes, expected in ((4, 3.61), (8, 5.29)):
        found = np.mean([len(set(row)) for row in (drawn // (256 // nodes)).tolist()])
        assert found == pytest.approx(expected, abs=0.05)


def test_skew_makes_some_experts_popular():
    counts = [np.bincount(RouterLaw(64, 4, exponent=e).draw(4, 500, seed=2).ravel(), minlength=64) for e in (0.0, 1.0)]
    assert counts[0].max() < 200 < counts[1].max()


@pytest.mark.parametrize(
    ("law", "field"),
    [
        ((10, 2, 3, 1), "--expert-groups"), ((8, 2, 2, 3), "--topk-groups"), ((8, 5, 4, 2), "--topk"), ((8, 9), "--topk"),
    ],
)  # fmt: skip
def test_laws_that_cannot_be(law, field):
    with pytest.raises(InputError) as refused:
        RouterLaw(*law)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("routing", "experts", "words"),
    [
        ([[0], [1], [0]], 2, "3 tokens"), ([[0], [1]], 3, "3 experts"), ([[-1], [-1]], 2, "no token goes"),
    ],
)  # fmt: skip
def test_routings_that_do_not_fit(routing, experts, words):
    with pytest.raises(InputError, match=words):
        moe_dispatch(np.array(routing), experts, 2, 4)


def test_routings_of_files(tmp_path):
    rows = [[0, 3], [2], [-1, -1], [1, 2]]
    (tmp_path / "r.csv").write_text("0,3\n2\n-1,-1\n1,2\n")
    (tmp_path / "r.json").write_text(json.dumps(rows))
    np.save(tmp_path / "r.npy", np.array([[0, 3], [2, -1], [-1, -1], [1, 2]]))
    for name in ("r.csv", "r.json", "r.npy"):
        assert read_routing(tmp_path / name, 4).tolist() == [[0, 3], [2, -1], [-1, -1], [1, 2]]
    with pytest.raises(InputError, match="found expert 3"):
        read_routing(tmp_path / "r.csv", 3)
    (tmp_path / "bad.csv").write_text("0,-2\n")
    with pytest.raises(InputError, match="found -2"):
        read_routing(tmp_path / "bad.csv", 3)

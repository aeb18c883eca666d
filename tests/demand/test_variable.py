"""Demands by formula, and counts from files."""

import numpy as np
import pytest

from taccl_py.collective import Collective, Kind
from taccl_py.demand import ChunkPlace
from taccl_py.demand.counts import parse_skew, read_counts, read_pairs, zipf_counts
from taccl_py.demand.formula import by_skew
from taccl_py.demand.variable import Variable, allgatherv, alltoallv, of_collective, reducescatterv, sendrecv
from taccl_py.errors import InputError


def test_alltoallv_leaves_out_what_is_nothing():
    demand = alltoallv([[0, 3], [2, 1]], "float16")
    assert [(c.size_bytes, c.terms[0][0], c.wants[0]) for c in demand.chunks] == [
        (6, ChunkPlace(0, 0), ChunkPlace(1, 0)),
        (4, ChunkPlace(1, 0), ChunkPlace(0, 0)),
        (2, ChunkPlace(1, 4), ChunkPlace(1, 6)),
    ]
    assert demand.input_bytes == (6, 6)
    assert demand.output_bytes == (4, 8)
    assert demand.total_bytes == 10


def test_even_counts_lie_as_in_alltoall():
    assert alltoallv([[7] * 3] * 3).chunks == of_collective(Collective(Kind.ALLTOALL, 3), 7).chunks


def test_allgatherv_and_reducescatterv_mirror_each_other():
    one, other = allgatherv([1, 0, 2]), reducescatterv([1, 0, 2], "uint8")
    assert one.input_bytes == other.output_bytes == (1, 0, 2)
    assert one.output_bytes == other.input_bytes == (3, 3, 3)
    assert other.chunks[1].terms == ((ChunkPlace(0, 1),), (ChunkPlace(1, 1),), (ChunkPlace(2, 1),))


def test_sends_of_a_pipeline_lie_in_their_order():
    demand = sendrecv([(0, 1, 4), (0, 2, 4), (1, 2, 8)], 3)
    assert demand.input_bytes == (8, 8, 0)
    assert demand.chunks[2].wants == (ChunkPlace(2, 4),)


@pytest.mark.parametrize(
    "make",
    [
        lambda: alltoallv([[1, 2], [3]]),
        lambda: alltoallv([[1]]),
        lambda: alltoallv([[0, 0], [0, 0]]),
        lambda: allgatherv([1, -1]),
        lambda: reducescatterv([0, 0]),
        lambda: sendrecv([(0, 0, 1)], 2),
        lambda: sendrecv([(0, 5, 1)], 2),
        lambda: sendrecv([(0, 1, 0)], 2),
    ],
)
def test_what_cannot_be_is_refused(make):
    with pytest.raises(InputError):
        make()


def test_counts_are_read_from_csv_json_and_numpy(tmp_path):
    rows = [[0, 3], [2, 1]]
    (tmp_path / "a.csv").write_text("# to rank 0, to rank 1\n0, 3\n2 1\n")
    (tmp_path / "a.json").write_text("[[0, 3], [2, 1]]")
    np.save(tmp_path / "a.npy", np.array(rows, dtype=np.int32))
    assert [read_counts(tmp_path / name) for name in ("a.csv", "a.json", "a.npy")] == [rows] * 3


def test_one_count_in_a_line_is_one_row(tmp_path):
    (tmp_path / "a.csv").write_text("5\n6\n7\n")
    assert read_counts(tmp_path / "a.csv") == [[5, 6, 7]]


@pytest.mark.parametrize(
    "text", ["", "1,x", "1,-2", "[1.5]", "[]", "[[1], 2]", "99999999999999999999", "0,,1,5", "1;2;,3"]
)
def test_other_counts_are_refused(tmp_path, text):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InputError):
        read_counts(tmp_path / "a.csv")


def test_spreadsheets_write_a_mark_before_the_first_count(tmp_path):
    (tmp_path / "a.csv").write_text("\ufeff1, 2,\n3\t4\n", encoding="utf-8")
    assert read_counts(tmp_path / "a.csv") == [[1, 2], [3, 4]]


def test_a_negative_count_is_called_one(tmp_path):
    (tmp_path / "a.csv").write_text("1,-2")
    with pytest.raises(InputError, match="found -2"):
        read_counts(tmp_path / "a.csv")


def test_a_torn_archive_is_no_numpy_array(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(InputError, match="no numpy array"):
        read_counts(tmp_path / "a.npy")


def test_counts_of_very_large_sizes_are_not_negative():
    assert all(count >= 0 for row in zipf_counts(2, 2**62 - 1, 100.0, 0) for count in row)


def test_numpy_files_hold_integers(tmp_path):
    np.save(tmp_path / "a.npy", np.array([0.5]))
    np.save(tmp_path / "b.npy", np.zeros((1, 1, 1), dtype=int))
    (tmp_path / "c.npy").write_bytes(b"no numpy")
    for name in ("a.npy", "b.npy", "c.npy"):
        with pytest.raises(InputError):
            read_counts(tmp_path / name)


def test_pairs_have_three_numbers(tmp_path):
    (tmp_path / "a.csv").write_text("0,1,100\n1,2,50\n")
    assert read_pairs(tmp_path / "a.csv") == [(0, 1, 100), (1, 2, 50)]
    (tmp_path / "a.csv").write_text("0,1\n")
    with pytest.raises(InputError):
        read_pairs(tmp_path / "a.csv")


def test_zipf_spreads_over_receivers():
    counts = zipf_counts(8, 1000, 1.0, seed=3)
    assert counts == zipf_counts(8, 1000, 1.0, seed=3)
    assert all(sum(row) == 1000 for row in counts)
    harmonic = sum(1 / k for k in range(1, 9))
    assert sorted(counts[0], reverse=True)[0] == round(1000 / harmonic)
    assert zipf_counts(4, 100, 0.0, seed=0)[0] == [25] * 4


def test_drawn_counts_are_whole_units_of_plans_where_the_size_is():
    for variable in (Variable.ALLTOALLV, Variable.ALLGATHERV, Variable.REDUCESCATTERV):
        for dtype in ("uint8", "float32"):
            demand = by_skew(variable, "zipf:1", 48_000, 8, dtype, 3)
            assert all(chunk.size_bytes % 16 == 0 for chunk in demand.chunks)
            total = sum(chunk.size_bytes for chunk in demand.chunks)
            assert total == 48_000 * (8 if variable is Variable.ALLTOALLV else 1)
    odd = by_skew(Variable.ALLGATHERV, "zipf:0", 1001, 2, "uint8", 0)
    assert sorted(chunk.size_bytes for chunk in odd.chunks) == [500, 501]
    few = by_skew(Variable.ALLGATHERV, "zipf:0", 32, 4, "uint8", 0)
    assert [chunk.size_bytes for chunk in few.chunks] == [8] * 4


def test_skews():
    assert parse_skew("zipf:0.5") == 0.5
    for text in ("zipf", "zipf:-1", "pareto:1", "zipf:1e9"):
        with pytest.raises(InputError):
            parse_skew(text)

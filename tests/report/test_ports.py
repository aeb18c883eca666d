"""Equal ports in one row, under a name from which each of them can be read."""

import pytest

from taccl_py.report.ports import fold_names, ports_table
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.degrade import Degradation, degraded, parse_slow_port


def column(table, number):
    return list(table.columns[number].cells)


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([f"node {n} ib{i} {way}" for n in range(2) for i in range(8) for way in ("in", "out")],
         [("node 0-1 ib0-7 in", 16), ("node 0-1 ib0-7 out", 16)]),
        # Not every pair is there, so one range for both would name ports that do not exist.
        ([f"router {a} to {b}" for a in range(3) for b in range(3) if a != b],
         [("router 0 to 1-2", 2), ("router 1 to 0,2", 2), ("router 2 to 0-1", 2)]),
        ([f"node {rank // 8} rank {rank} in" for rank in range(16)], [("node 0-1 rank 0-15 in", 16)]),
        ([f"node {node} rank {rank}" for node in range(2) for rank in range(4) if rank != node],
         [("node 0 rank 1-3", 3), ("node 1 rank 0,2-3", 3)]),
        (["ib0", "ib2", "ib3", "mlx"], [("ib0,2-3", 3), ("mlx", 1)]),
        (["nic 00", "nic 01", "nic 1"], [("nic 00", 1), ("nic 01", 1), ("nic 1", 1)]),
        ([], []),
    ],
)  # fmt: skip
def test_folded_names_stand_for_exactly_the_given_ones(names, folded):
    assert sorted(fold_names(names)) == sorted(folded)


@pytest.mark.parametrize(("machine", "rows"), [("ndv4-x64", 4), ("dgx2-x2", 4), ("dragonfly:2", 16), ("fattree:4", 40)])
def test_a_table_of_hundreds_of_ports_has_few_rows_and_counts_all(machine, rows):
    topology = load_topology(machine)
    table = ports_table(topology)
    assert sum(map(int, column(table, 1))) == len(topology.ports)
    assert table.row_count <= rows < len(topology.ports)


def test_a_slow_port_has_a_row_of_its_own():
    slow = degraded(load_topology("ndv4-x2"), Degradation((), (), (), (parse_slow_port("node 1 ib3 out:0.5"),)))
    assert "node 1 ib3 out" in column(ports_table(slow), 0)
    assert "node 0-1 ib0-7 in" in column(ports_table(slow), 0)

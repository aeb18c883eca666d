"""Programs from whose times a runtime profile is fitted."""

import pytest

from taccl_py.measure.runtime_plan import plan_calibration
from taccl_py.runtimes import EXECUTOR
from taccl_py.topology.catalog import load_topology


@pytest.mark.parametrize(("machine", "sums"), [("full:4", "ar_all_pairs_1"), ("ring:4", "ar_ring_1")])
def test_all_pairs_send_where_all_are_linked_and_others_around_a_ring(machine, sums):
    runs = plan_calibration(load_topology(machine), EXECUTOR, machine).runs
    assert [run for run in runs if run.startswith("ar_")] == [
        f"{sums}_{protocol}" for protocol in ("simple", "ll", "ll128")
    ]
    assert any("all_pairs" in run for run in runs) == (machine == "full:4")

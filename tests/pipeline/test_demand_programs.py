"""Programs of demands: as many threadblocks as pay under the machine's runtime profile."""

import pytest

from taccl_py.demand.variable import alltoallv
from taccl_py.errors import InputError, LoweringError
from taccl_py.lowering.mscclpp.demand import lower_demand_plan
from taccl_py.pipeline.demand_programs import demand_to_plan, demand_to_xml
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.demands import solve_demand
from taccl_py.topology.catalog import load_topology
from taccl_py.verify.mscclpp import verify_plan
from tests.demand.cases import full

COUNTS = [[0 if src == dst else (1 + (src + 2 * dst) % 5) << 16 for dst in range(8)] for src in range(8)]


def planned(topology, group=None):
    demand = alltoallv(COUNTS, "float32")
    schedule = solve_demand(topology, demand, Limits(seconds=0.1, by_work=True)).schedule
    made = demand_to_plan(schedule, demand, group=group)
    assert verify_plan(made.text, "plan.json", demand=demand).violations == ()
    return made


def test_on_gpus_with_a_profile_groups_are_as_large_as_pays():
    """A threadblock of an H100 copies some 20 GB/s, and NVLink carries twenty times as much: 0.3 to 1.3 MB go to each of seven ranks."""
    machine = load_topology("ndv5")
    single, best = planned(machine, 1), planned(machine)
    assert single.group == 1 < best.group
    assert single.profile == best.profile == "mscclpp-h100"
    assert best.runtime_us < 0.5 * single.runtime_us
    assert best.program.num_threadblocks == best.group * single.program.num_threadblocks


def test_where_two_threadblocks_find_no_room_no_larger_group_is_tried(monkeypatch):
    """Groups of any size share out the same tasks, which took a minute each time where these were many."""
    tried = []

    def lowered(schedule, name, group):
        tried.append(group)
        if group > 1:
            raise LoweringError("no room", runtime="mscclpp", limit="max_operations")
        return lower_demand_plan(schedule, name, group)

    monkeypatch.setattr("taccl_py.pipeline.demand_programs.lower_demand_plan", lowered)
    assert planned(load_topology("ndv5")).group == 1
    assert tried == [1, 2]


def test_without_a_profile_there_is_one_threadblock_unless_more_are_asked_for():
    made = planned(full(8))
    assert (made.group, made.runtime_us, made.profile) == (1, None, None)
    assert planned(full(8), 4).group == 4


def test_xml_has_no_groups():
    demand = alltoallv(COUNTS, "float32")
    schedule = solve_demand(full(8), demand, Limits(seconds=0.1, by_work=True)).schedule
    with pytest.raises(InputError, match="--group"):
        demand_to_xml(schedule, demand, group=2)

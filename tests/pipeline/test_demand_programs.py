"""Programs of demands: as many threadblocks as pay under the machine's runtime profile."""

from dataclasses import replace

import pytest

from taccl_py.api.machines import load_machine
from taccl_py.demand.variable import alltoallv
from taccl_py.errors import InputError, LoweringError
from taccl_py.lowering.mscclpp.demand import lower_demand_plan
from taccl_py.pipeline.demand_programs import DEMAND_TARGETS
from taccl_py.solvers.limits import Limits, always
from taccl_py.synthesis.demands import solve_demand
from taccl_py.topology.catalog import load_topology
from taccl_py.verify.mscclpp import verify_plan
from tests.demand.cases import full

PLAN, XML = DEMAND_TARGETS
COUNTS = [[0 if src == dst else (1 + (src + 2 * dst) % 5) << 16 for dst in range(8)] for src in range(8)]


def planned(topology, group=None):
    demand = alltoallv(COUNTS, "float32")
    schedule = solve_demand(topology, demand, Limits(seconds=0.1, by_work=True)).schedule
    made = PLAN.lower(schedule, demand, group=group)
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
        XML.lower(schedule, demand, group=2)


# What ranks of one node have for those of another, four each.
MOVED = [[(1 + (src + dst) % 3) << 16 if src < 8 <= dst and (dst - src) % 8 < 4 else 0 for dst in range(16)] for src in range(16)]  # fmt: skip


def moved(machine):
    """A demand, and its schedules with evened lanes and by single links."""
    demand = alltoallv(MOVED, "uint8")
    limits = Limits(seconds=0.1, by_work=True)
    return demand, [solve_demand(machine, demand, limits, engine=engine).schedule for engine in ("balance", "direct")]


def test_the_program_of_a_slower_schedule_is_taken_where_it_is_faster():
    """Lanes that are evened out take less time on links and ports, and more operations."""
    demand, (evened, single) = moved(load_machine("ndv5", nodes=2))
    assert evened.makespan_us < single.makespan_us
    own = PLAN.lower(evened, demand)
    chosen, made = PLAN.lower_best(PLAN.soon_lowered([evened, single]), demand)
    assert chosen is single
    assert made.runtime_us < 0.9 * own.runtime_us
    assert verify_plan(made.text, "plan.json", demand=demand).violations == ()
    assert PLAN.lower_best([evened, single], demand, always)[0] is evened
    assert PLAN.soon_lowered([single, evened])[0] is single


def test_without_a_profile_only_the_answer_is_lowered():
    """Links and ports are what it is the best on."""
    _, schedules = moved(load_machine("mi300x", nodes=2))
    for target in DEMAND_TARGETS:
        assert target.soon_lowered(schedules) == schedules[:1]


def test_where_the_answer_has_too_many_messages_others_are_lowered():
    _, (evened, single) = moved(load_machine("ndv5", nodes=2))
    short = replace(PLAN, most_messages=len(single.messages))
    assert len(evened.messages) > short.most_messages
    assert short.soon_lowered([evened, single]) == [single]
    assert replace(PLAN, most_messages=1).soon_lowered([evened, single]) == []


def test_xml_is_timed_where_its_runtime_has_a_profile():
    demand, (_, single) = moved(load_machine("ndv4", nodes=2))
    made = XML.lower(single, demand)
    assert made.profile == "legacy-a100"
    assert set(made.runtime_facts) == {"runtime_us", "runtime_profile"}
    assert made.runtime_us > single.makespan_us

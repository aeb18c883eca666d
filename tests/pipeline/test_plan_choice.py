"""Protocol and instances of a plan: those that are fastest at the schedule's size, as a profile says."""

from dataclasses import replace

import pytest

from taccl_py.errors import LoweringError
from taccl_py.lowering.buffers import CallPlacement
from taccl_py.lowering.mscclpp import PlanOptions
from taccl_py.pipeline.plan_choice import choose_plan
from taccl_py.profiles.catalog import load_profile, neutral_profile
from taccl_py.simulate.plan_replay import RuntimePlanReplay
from tests.lowering.cases import chain_broadcast, direct_allreduce, direct_alltoall, ring_allgather

H100 = load_profile("mscclpp-h100")
OPTIONS = PlanOptions(CallPlacement.IN_PLACE)


def of_size(schedule, size_bytes):
    """The same schedule for another size, on links of about 400 GB/s."""
    links = tuple(replace(link, alpha_us=0.7, beta_us_per_mb=2.5) for link in schedule.topology.links)
    chunk_bytes = size_bytes / schedule.collective.chunks_per_size
    return replace(schedule, topology=replace(schedule.topology, links=links), chunk_bytes=chunk_bytes)


def chosen(schedule, profile=H100, protocol=None, instances=None, options=OPTIONS):
    return choose_plan(schedule, options, profile, protocol, instances)


def test_packets_win_where_they_are_small_and_end_where_signals_win():
    small = chosen(of_size(ring_allgather(4), 4096))
    plan = small.lowered.plan
    assert (plan.protocol, small.instances) == ("LL", 1)
    large = chosen(of_size(ring_allgather(4), 16 << 20))
    assert large.lowered.plan.protocol == "Simple"
    assert large.instances > 1
    assert large.lowered.plan.max_bytes > 1 << 30
    # The plan by packets is for the sizes at which it is the faster one of the two.
    simple = chosen(of_size(ring_allgather(4), 4096), protocol="Simple").lowered.plan
    schedule = of_size(ring_allgather(4), 4096)
    times = [
        RuntimePlanReplay(one, schedule.collective.kind, schedule.topology, H100).time_us
        for one in (plan, simple)
    ]  # fmt: skip
    assert times[0](plan.max_bytes) < times[1](plan.max_bytes)
    assert times[0](2 * plan.max_bytes) >= times[1](2 * plan.max_bytes)
    assert small.runtime_us == times[0](4096)


def test_what_is_asked_for_is_done():
    schedule = of_size(direct_allreduce(4), 16 << 10)
    for protocol in ("Simple", "LL"):
        for instances in (1, 2):
            found = chosen(schedule, protocol=protocol, instances=instances)
            assert (found.lowered.plan.protocol, found.instances) == (protocol, instances)
    ended = chosen(schedule, protocol="LL", options=replace(OPTIONS, max_bytes=1 << 20)).lowered.plan
    assert ended.max_bytes == 1 << 20


def test_without_a_profile_it_is_signals_and_one_instance():
    schedule = of_size(direct_alltoall(4), 4096)
    found = chosen(schedule, neutral_profile(), options=PlanOptions())
    assert (found.lowered.plan.protocol, found.instances, found.runtime_us) == ("Simple", 1, None)
    assert chosen(schedule, neutral_profile(), "LL", 2, PlanOptions()).lowered.plan.protocol == "LL"


def test_a_collective_that_has_no_packets_has_signals():
    schedule = of_size(chain_broadcast(3), 1024)
    assert chosen(schedule).lowered.plan.protocol == "Simple"
    with pytest.raises(LoweringError, match="use protocol Simple"):
        chosen(schedule, protocol="LL")


def test_a_size_that_no_plan_runs_has_a_plan_all_the_same():
    """1000 bytes are no multiple of four aligned chunks."""
    found = chosen(of_size(ring_allgather(4), 1000))
    assert (found.lowered.plan.protocol, found.instances) == ("Simple", 1)
    assert found.runtime_us > 0


def test_twice_the_instances_must_be_worth_it():
    """At the size of a cell more threadblocks change nothing."""
    found = chosen(of_size(direct_alltoall(4), 64 * 64), protocol="Simple", options=PlanOptions())
    assert found.instances == 1

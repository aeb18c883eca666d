"""Protocol and instances of a plan: those that are fastest at the schedule's size, as a profile says."""

from dataclasses import replace

import pytest

from taccl_py.errors import LoweringError
from taccl_py.lowering.buffers import CallPlacement
from taccl_py.lowering.mscclpp import PlanOptions
from taccl_py.pipeline import plan_choice
from taccl_py.pipeline.deliver import lower_plan_and_verify
from taccl_py.pipeline.plan_choice import PlanWishes, choose_among, choose_plan
from taccl_py.profiles.catalog import load_profile, neutral_profile
from taccl_py.simulate.plan_replay import RuntimePlanReplay
from tests.lowering.cases import (
    chain_broadcast,
    direct_allreduce,
    direct_alltoall,
    recursive_doubling,
    ring_allgather,
    ring_allreduce,
)

H100 = load_profile("mscclpp-h100")
OPTIONS = PlanOptions(CallPlacement.IN_PLACE)


def of_size(schedule, size_bytes):
    """The same schedule for another size, on links of about 400 GB/s."""
    links = tuple(replace(link, alpha_us=0.7, beta_us_per_mb=2.5) for link in schedule.topology.links)
    chunk_bytes = size_bytes / schedule.collective.chunks_per_size
    return replace(schedule, topology=replace(schedule.topology, links=links), chunk_bytes=chunk_bytes)


def chosen(schedule, profile=H100, protocol=None, instances=None, options=OPTIONS):
    return choose_plan(schedule, options, profile, PlanWishes(protocol, instances))


def test_packets_win_where_they_are_small_and_end_where_signals_win():
    small = chosen(of_size(ring_allgather(4), 4096))
    plan = small.lowered.plan
    assert (plan.protocol, small.options.instances) == ("LL", 1)
    large = chosen(of_size(ring_allgather(4), 16 << 20))
    assert large.lowered.plan.protocol == "Simple"
    assert large.options.group > 1
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


def test_a_size_at_which_no_plan_runs_is_served_as_the_one_next_to_it():
    """Four ranks and 16 bytes: nothing runs at 1,000,010 bytes; 1,000,000 are a multiple of 64."""
    odd, even = (chosen(of_size(direct_allreduce(4), size)) for size in (1_000_010, 1_000_000))
    assert 1_000_010 % even.lowered.plan.unit_bytes
    assert even.options.instances * even.options.group > 1
    assert odd.options == even.options
    assert odd.runtime_us == pytest.approx(even.runtime_us, rel=1e-3)


def test_what_is_asked_for_is_done():
    schedule = of_size(direct_allreduce(4), 16 << 10)
    for protocol in ("Simple", "LL"):
        for instances in (1, 2):
            found = chosen(schedule, protocol=protocol, instances=instances)
            assert (found.lowered.plan.protocol, found.options.instances) == (protocol, instances)
    ended = chosen(schedule, protocol="LL", options=replace(OPTIONS, max_bytes=1 << 20)).lowered.plan
    assert ended.max_bytes == 1 << 20


def test_a_chain_goes_through_pieces_in_loops():
    """What each rank passes on is one large chunk; several threadblocks share it, and pass on pieces of it."""
    found = chosen(of_size(chain_broadcast(4, k=1), 16 << 20))
    assert found.options.loop_bytes > 0
    assert found.options.instances > 1
    schedule = of_size(chain_broadcast(4, k=1), 16 << 20)
    asked = choose_plan(schedule, OPTIONS, H100, PlanWishes(loop_bytes=1 << 20))
    assert (asked.options.loop_bytes, asked.options.instances, asked.options.group) == (1 << 20, 1, 1)
    alone = choose_plan(schedule, OPTIONS, H100, PlanWishes(instances=1))
    assert found.runtime_us < asked.runtime_us < alone.runtime_us


def test_groups_leave_sizes_a_plan_that_instances_do_not():
    """An odd number of 16 bytes in a chunk cannot be cut into 2 instances."""
    schedule = of_size(ring_allgather(4), 4 * 16 * 32769)
    found = chosen(schedule, protocol="Simple")
    assert found.options.group > 1
    assert round(schedule.size_bytes) % found.lowered.plan.unit_bytes == 0
    asked = choose_plan(schedule, OPTIONS, H100, PlanWishes("Simple", group=3))
    assert asked.options.group == 3
    assert asked.lowered.plan.num_threadblocks == 3


def test_without_a_profile_it_is_signals_and_one_instance():
    schedule = of_size(direct_alltoall(4), 4096)
    found = chosen(schedule, neutral_profile(), options=PlanOptions())
    assert (found.lowered.plan.protocol, found.options.instances, found.runtime_us) == ("Simple", 1, None)
    assert chosen(schedule, neutral_profile(), "LL", 2, PlanOptions()).lowered.plan.protocol == "LL"


def test_a_collective_that_has_no_packets_has_signals():
    schedule = of_size(chain_broadcast(3), 1024)
    assert chosen(schedule).lowered.plan.protocol == "Simple"
    with pytest.raises(LoweringError, match="use protocol Simple"):
        chosen(schedule, protocol="LL")


def test_a_small_size_that_no_plan_runs_is_served_as_the_one_next_to_it():
    """1000 bytes are no multiple of four aligned chunks, and 1024 are."""
    odd, even = (chosen(of_size(ring_allgather(4), size)) for size in (1000, 1024))
    assert odd.options == even.options
    assert odd.lowered.plan.protocol == "LL"


@pytest.mark.parametrize("ranks", [3, 5])
def test_ranks_that_do_not_divide_the_size_have_as_wide_plans_as_at_a_size_that_they_divide(ranks):
    """16 MiB are no calls of 3 or 5 ranks; the plan for them is that for calls nearby, and no plan of one threadblock."""
    asked, near = (chosen(of_size(ring_allgather(ranks), size)) for size in (16 << 20, ranks << 22))
    assert asked.options == near.options
    assert asked.options.group > 1


def test_twice_the_instances_must_be_worth_it():
    """At the size of a cell more threadblocks change nothing."""
    found = chosen(of_size(direct_alltoall(4), 64 * 64), protocol="Simple", options=PlanOptions())
    assert found.options.instances == 1


def test_a_protocol_alone_leaves_open_how_a_plan_is_cut():
    assert not PlanWishes().says_cut
    assert not PlanWishes(protocol="LL").says_cut
    assert PlanWishes(instances=2).says_cut
    assert PlanWishes(group=2).says_cut
    assert PlanWishes(loop_bytes=1024).says_cut


def test_of_several_schedules_the_one_with_the_fastest_plan_is_taken():
    """On a ring of four ranks six messages follow each other; by doubling there are two."""
    slow, fast = (of_size(make(4), 4096) for make in (ring_allreduce, recursive_doubling))
    schedule, choice = choose_among([slow, fast], OPTIONS, H100, PlanWishes())
    assert schedule is fast
    assert choice.runtime_us == chosen(fast).runtime_us < chosen(slow).runtime_us


def test_on_links_and_ports_alone_the_first_schedule_that_fits_is_taken(monkeypatch):
    one, other = (of_size(make(4), 4096) for make in (ring_allreduce, recursive_doubling))
    schedule, choice = choose_among([one, other], OPTIONS, neutral_profile(), PlanWishes())
    assert schedule is one
    assert choice.runtime_us is None

    def refuse_one(schedule, options):
        if schedule is not other:
            raise LoweringError("too much", runtime="MSCCL++", limit=64)
        return lower_plan_and_verify(schedule, options)

    monkeypatch.setattr(plan_choice, "lower_plan_and_verify", refuse_one)
    schedule, _ = choose_among([one, other], OPTIONS, neutral_profile(), PlanWishes())
    assert schedule is other
    with pytest.raises(LoweringError, match="too much"):
        choose_among([one, one], OPTIONS, neutral_profile(), PlanWishes())


def test_once_time_is_up_no_other_schedule_is_tried():
    slow, fast = (of_size(make(4), 4096) for make in (ring_allreduce, recursive_doubling))
    schedule, _ = choose_among([slow, fast], OPTIONS, H100, PlanWishes(), over=lambda: True)
    assert schedule is slow

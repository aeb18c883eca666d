"""Process groups at once: what they share is added up in the bound, and data may pass through ranks outside of their group."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import ROOTED, Kind
from taccl_py.demand import ChunkPlace, DataChunk, DataDemand
from taccl_py.demand.variable import sendrecv
from taccl_py.errors import Infeasible, InputError
from taccl_py.pipeline.process_groups import AskedGroup, synthesize_groups
from taccl_py.pipeline.resolve import Request
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.schedule.ir import Schedule
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.demands import KnownDemand
from taccl_py.synthesis.engine import Events, Options
from taccl_py.synthesis.together import GroupTask, together_bound
from taccl_py.topology.model import Link, Port, Topology
from taccl_py.verify.together import TimedGroup, verify_together
from tests.demand.cases import full, ring, switch
from tests.random_machines import random_machine

MB = 1_000_000


def together(machine, groups, *, relay=False, size_bytes=MB):
    options = Options(limits=Limits(seconds=0.2, workers=1, by_work=True))
    request = Request(machine, Kind.ALLGATHER, size_bytes=size_bytes, engine="", options=options)
    return synthesize_groups(request, groups, Events(), relay=relay)


def nodes(count, gpus, nics):
    """Nodes of GPUs that reach each other in 1 us per MB, and other nodes by NICs (one for each, or shared in order) of 10 us per MB."""
    ports = [Port(f"{n}.{k} {way}", 0.0, 10.0) for n in range(count) for k in range(nics) for way in ("out", "in")]

    def link(a, b):
        if a // gpus == b // gpus:
            return Link(a, b, 0.0, 1.0)
        out, into = (2 * (r // gpus * nics + r % gpus * nics // gpus) for r in (a, b))
        return Link(a, b, 0.0, 1.0, 0.0, (out, into + 1))

    ranks = range(count * gpus)
    links = tuple(link(a, b) for a in ranks for b in ranks if a != b)
    return Topology(f"{count} nodes", "test", tuple(r // gpus for r in ranks), tuple(ports), links)


def parts_of(found):
    return [
        TimedGroup(
            ranks, schedule, task.release_us, task.demand if isinstance(schedule, DemandSchedule) else None
        )
        for task, ranks, schedule in zip(found.tasks, found.ranks, found.schedules, strict=True)
    ]  # fmt: skip


def known(kind, ranks, size_bytes=MB, root=0, release_us=0.0):
    return GroupTask(ranks, KnownDemand(kind, root, size_bytes), release_us)


@pytest.mark.parametrize("kind", list(Kind))
def test_what_must_cross_is_the_same_by_the_formula_of_a_kind_and_by_its_chunks(kind):
    ranks, root = (5, 1, 4, 0), 2 if kind in ROOTED else 0
    task = known(kind, ranks, 64 * 64, root)
    as_demand = replace(task, what=task.demand)
    for near in ({5}, {4}, {5, 1}, {4, 0, 3}, {2}, {0, 1, 2, 4, 5}):
        assert task.crossing_bytes(near) == as_demand.crossing_bytes(near), near
    assert task.transfer_bytes((0, 0, 1, 2, 1, 2)) >= as_demand.transfer_bytes((0, 0, 1, 2, 1, 2)) > 0


def asked(size_bytes):
    """AllReduce by groups of ndv4, by whatever engines are best."""
    options = Options(limits=Limits(seconds=1.0, workers=1, by_work=True))
    return Request("ndv4", Kind.ALLREDUCE, size_bytes=size_bytes, engine="", options=options)


def test_groups_that_share_ranks_leave_each_other_room():
    """AllReduce of 0-3 and 2-5: in turn 2 x 1.5 x 64 MiB through each port; 128 MiB must leave rank 2 in any case, where 0 and 1 do the sums."""
    found = synthesize_groups(asked(64 << 20), [AskedGroup((0, 1, 2, 3)), AskedGroup((2, 3, 4, 5))], Events())
    assert found.one_after_another_us == pytest.approx(2 * 1.5 * (64 << 20) / 300e3, rel=0.01)
    assert found.bound.time_us == pytest.approx(2 * (64 << 20) / 300e3, rel=0.01)
    assert found.makespan_us < 0.9 * found.one_after_another_us
    assert not verify_together(found.machine, parts_of(found))


def test_groups_by_themselves_are_solved_by_another_engine_where_the_quick_one_is_far_from_the_bound():
    """Two groups of four ranks on NVSwitch that share nothing: each sums 1 KiB in two steps of 0.3 us, and the quick engine takes six."""
    request = asked(1 << 10)
    groups = [AskedGroup((0, 1, 2, 3)), AskedGroup((4, 5, 6, 7))]
    found = synthesize_groups(request, groups, Events())
    assert found.makespan_us == pytest.approx(0.607, rel=0.001)
    assert found.alone_us == pytest.approx((0.607, 0.607), rel=0.001)
    named = synthesize_groups(replace(request, engine="greedy"), groups, Events())
    assert named.makespan_us > 2 * found.makespan_us, "an engine that is named is the only one"


def test_groups_over_one_nic_take_the_sum_of_their_loads_though_another_nic_is_hardly_used():
    """Ranks 0 and 1 share a NIC, 2 and 3 another: two groups of 1 MB over the first take 20 us, a third over the second 10."""
    machine = nodes(2, 4, 2)
    tasks = [known(Kind.REDUCE, ranks) for ranks in ((4, 0), (5, 1), (6, 2))]
    bound = together_bound(machine, tasks)
    assert bound.time_us == pytest.approx(20.0)
    assert bound.reason == "bandwidth: 1.907MiB of 2 groups go out of node 0"
    found = together(machine, [AskedGroup(task.ranks, Kind.REDUCE) for task in tasks])
    assert found.makespan_us == pytest.approx(20.0)
    assert found.one_after_another_us == pytest.approx(30.0)
    late = [tasks[0], replace(tasks[1], release_us=4.0), replace(tasks[2], release_us=12.0)]
    assert together_bound(machine, late).time_us == pytest.approx(22.0), "the third by itself"


def test_groups_with_a_common_rank_take_the_sum_of_what_it_sends():
    """Rank 0 sends 1 MB to each of two groups over a port of 2 us per MB and an alpha of 3."""
    machine = switch(4)
    groups = [AskedGroup(ranks, Kind.BROADCAST) for ranks in ((0, 1), (0, 2))]
    found = together(machine, groups)
    assert found.bound.time_us == pytest.approx(7.0)
    assert found.bound.reason == "bandwidth: 1.907MiB of 2 groups go out of rank 0"
    assert found.makespan_us == pytest.approx(10.0), "two messages pay two alphas"


def test_a_pair_of_nodes_uses_the_nics_of_other_ranks_only_if_they_may_relay():
    """1 MB from rank 0 to rank 4 over a NIC of 10 us per MB; with three more NICs that takes a fourth, and a little inside the nodes."""
    machine, pair = nodes(2, 4, 4), [AskedGroup((0, 4), sendrecv([(0, 1, MB)], 2))]
    relayed = together(machine, pair, relay=True)
    assert relayed.bound.time_us == pytest.approx(2.5)
    assert relayed.makespan_us <= 2.5 * 1.25
    assert relayed.ranks[0][:2] == (0, 4)
    assert set(relayed.ranks[0]) == set(range(8))
    other = [AskedGroup((1, 2), Kind.BROADCAST)]
    alone = together(machine, pair + other)
    assert alone.makespan_us == pytest.approx(10.0)
    assert alone.ranks == ((0, 4), (1, 2))
    both = together(machine, pair + other, relay=True)
    assert both.makespan_us <= 2.5 * 1.3
    assert verify_together(machine, parts_of(both)) == ()


def test_groups_that_relay_keep_out_of_each_others_way():
    """Two pairs over four NICs: 1 MB each is half a MB a NIC, where each alone would use all four."""
    machine = nodes(2, 4, 4)
    found = together(machine, [AskedGroup((rank, rank + 4), sendrecv([(0, 1, MB)], 2)) for rank in (0, 1)], relay=True)
    assert found.bound.time_us == pytest.approx(5.0)
    assert found.makespan_us <= 5.0 * 1.2
    assert verify_together(machine, parts_of(found)) == ()


def test_ranks_without_a_path_between_them_need_relays():
    machine, groups = ring(4), [AskedGroup((0, 2), Kind.ALLREDUCE), AskedGroup((1, 2), Kind.ALLGATHER)]
    with pytest.raises(Infeasible, match="outside of a group"):
        together(machine, groups)
    found = together(machine, groups, relay=True)
    assert found.ranks[0][:2] == (0, 2)
    assert set(found.ranks[0][2:]) <= {1, 3}
    assert verify_together(machine, parts_of(found)) == ()


def test_the_verifier_objects_to_relays_that_do_not_bring_what_the_group_wants():
    machine = nodes(2, 4, 4)
    found = together(machine, [AskedGroup((0, 4), sendrecv([(0, 1, MB)], 2))], relay=True)
    (part,) = parts_of(found)
    assert verify_together(machine, [part]) == ()
    last = max(part.schedule.messages, key=lambda message: message.start_us)
    kept = tuple(message for message in part.schedule.messages if message is not last)

    def rules(changed):
        return {violation.rule for violation in verify_together(machine, [changed])}

    assert rules(replace(part, schedule=replace(part.schedule, messages=kept))) == {"missing"}
    assert rules(replace(part, asked=sendrecv([(0, 1, MB + 1)], 2))) == {"demand"}
    assert rules(replace(part, asked=sendrecv([(1, 0, MB)], 2))) == {"demand"}
    assert rules(replace(part, ranks=(*part.ranks[:2], *part.ranks[4:], *part.ranks[2:4]))) <= {"other-machine"}
    again = replace(part, schedule=replace(part.schedule, messages=(*part.schedule.messages, last)))
    assert "overlap" in rules(again)


def test_sizes_that_cannot_be_cut_are_rounded_up_where_data_pass_through_others():
    found = together(full(4), [AskedGroup((0, 1, 2), Kind.ALLGATHER, 1000)], relay=True)
    assert found.tasks[0].what.size_bytes == 1008


def test_a_demand_for_another_number_of_ranks_is_refused():
    demand = sendrecv([(0, 1, MB)], 2)
    with pytest.raises(InputError, match=r"the group 0-2 has 3 ranks, and the demand sendrecv is for 2"):
        together(full(4), [AskedGroup((0, 1, 2), demand), AskedGroup((0, 1))])


def test_groups_that_share_ranks_may_ask_for_a_collective_that_quick_engines_do_not_know():
    groups = [AskedGroup((0, 1, 2), Kind.GATHER, MB, 0), AskedGroup((0, 1, 3))]
    machine = ring(4)
    found = together(machine, groups)
    assert found.makespan_us <= found.one_after_another_us
    assert verify_together(machine, parts_of(found)) == ()


@st.composite
def drawn_groups(draw):
    """A small machine and two or three groups on it: collectives and demands of sums and copies, with starts."""
    machine = random_machine(draw(st.integers(0, 10_000)), 4, 7)
    groups = []
    for _ in range(draw(st.integers(2, 3))):
        count = draw(st.integers(2, machine.num_ranks))
        ranks = tuple(draw(st.permutations(range(machine.num_ranks)))[:count])
        release_us = draw(st.sampled_from((0.0, 0.0, 7.0)))
        if draw(st.booleans()):
            root = draw(st.integers(0, count - 1))
            kind = draw(st.sampled_from(list(Kind)))
            groups.append(
                AskedGroup(ranks, kind, draw(st.integers(1, 20)) * 5040, root if kind in ROOTED else None, release_us)
            )
            continue
        size, sums = draw(st.integers(1, 50)) * 1000, draw(st.booleans())
        held = tuple((ChunkPlace(rank, 0),) for rank in range(count - 1)) if sums else ((ChunkPlace(0, 0),),)
        chunk = DataChunk(size, held, (ChunkPlace(count - 1, 0),))
        lengths = (size,) * count
        groups.append(AskedGroup(ranks, DataDemand("one", count, (chunk,), lengths, lengths), release_us=release_us))
    return machine, groups


@pytest.mark.slow
@settings(max_examples=5)
@given(drawn_groups(), st.booleans())
def test_random_groups_are_right_and_never_slower_than_in_turn(drawn, relay):
    machine, groups = drawn
    try:
        found = together(machine, groups, relay=relay)
    except Infeasible:
        assert not relay
        return
    assert found.bound.time_us <= found.makespan_us * (1 + 1e-9)
    assert found.makespan_us <= found.one_after_another_us * (1 + 1e-9)
    assert verify_together(machine, parts_of(found)) == ()
    for group, schedule, ranks in zip(groups, found.schedules, found.ranks, strict=True):
        assert ranks[: len(group.ranks)] == group.ranks
        assert relay or (ranks == group.ranks and isinstance(schedule, Schedule | DemandSchedule))

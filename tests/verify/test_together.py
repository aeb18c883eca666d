"""The verifier of several groups rejects what is wrong with one of them, and to ports that two of them use at once."""

from dataclasses import replace

import pytest

from taccl_py.collective import Kind
from taccl_py.synthesis.demands import KnownDemand
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.matching.engine import synthesize_greedy
from taccl_py.synthesis.together import GroupMember, GroupTask, makespan_us, orders, together_bound
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.machines import formula_topology
from taccl_py.topology.model import Link, Port, Topology
from taccl_py.verify.together import TimedGroup, verify_together

KINDS = (Kind.ALLGATHER, Kind.ALLREDUCE, Kind.ALLTOALL)


def members_of(machine, groups, kind, size_bytes=4e6):
    return [
        GroupMember(
            ranks, synthesize_greedy(Demand(machine.subset(ranks), kind, size_bytes), Options(), Events()).schedule
        )
        for ranks in groups
    ]


def parts_of(groups, schedules):
    return [TimedGroup(ranks, schedule) for ranks, schedule in zip(groups, schedules, strict=True)]


def bound_of(machine, groups, kind, size_bytes):
    return together_bound(machine, [GroupTask(ranks, KnownDemand(kind, 0, int(size_bytes))) for ranks in groups])


def two_pairs():
    """Pairs 0-1 and 2-3, whose links all pass one port of 2 us per megabyte; the links alone take 1."""
    links = [Link(a, b, 0.0, 1.0, 0.0, (0,)) for pair in ((0, 1), (2, 3)) for a, b in (pair, pair[::-1])]
    return Topology("pairs", "", (0, 0, 1, 1), (Port("trunk", 0.0, 2.0),), tuple(links))


NDV2_HALVES = ((0, 1, 8, 9), (4, 5, 12, 13))


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind is Kind.ALLGATHER else pytest.mark.slow) for kind in KINDS]
)
def test_groups_that_share_nics_take_no_longer_than_in_turn_and_are_right(kind):
    machine = load_topology("ndv2", 2)
    members = members_of(machine, NDV2_HALVES, kind)
    found = orders(machine, members)
    in_turn_us = sum(member.schedule.makespan_us for member in members)
    assert makespan_us(found[0]) <= in_turn_us * (1 + 1e-9)
    assert makespan_us(found[-1]) <= in_turn_us * 1.1, "an order in which ports wait for nothing"
    bound = bound_of(machine, NDV2_HALVES, kind, 4e6)
    for schedules in found:
        assert verify_together(machine, parts_of(NDV2_HALVES, schedules)) == ()
        assert makespan_us(schedules) >= bound.time_us * (1 - 1e-9)


def test_groups_that_share_nothing_take_as_long_as_the_longest():
    machine = formula_topology("ring:8")
    groups = ((0, 1, 2), (3, 4, 5, 6, 7))
    members = members_of(machine, groups, Kind.ALLGATHER)
    best = orders(machine, members)[0]
    assert makespan_us(best) == pytest.approx(max(member.schedule.makespan_us for member in members))
    assert verify_together(machine, parts_of(groups, best)) == ()


def test_a_shared_port_serves_both_groups_in_turn():
    """AllGather of 2 MB in pairs: each of four messages of 1 MB takes the trunk for 2 us."""
    machine, groups = two_pairs(), ((0, 1), (2, 3))
    members = members_of(machine, groups, Kind.ALLGATHER, 2e6)
    best = orders(machine, members)[0]
    assert makespan_us(best) == pytest.approx(8.0)
    assert verify_together(machine, parts_of(groups, best)) == ()


def test_groups_on_one_port_at_the_same_time_are_objected_to():
    machine, groups = two_pairs(), ((0, 1), (2, 3))
    members = members_of(machine, groups, Kind.ALLGATHER, 2e6)
    both = verify_together(machine, parts_of(groups, [member.schedule for member in members]))
    assert {violation.rule for violation in both} == {"overlap"}
    assert "trunk" in both[0].what


def test_what_is_wrong_in_one_group_is_told_with_its_number():
    machine, groups = two_pairs(), ((0, 1), (2, 3))
    one, two = orders(machine, members_of(machine, groups, Kind.ALLGATHER, 2e6))[0]
    short = replace(two, messages=two.messages[:-1])
    found = verify_together(machine, parts_of(groups, [one, short]))
    assert {violation.rule for violation in found} == {"missing"}
    assert all(violation.where.startswith("group 1 ") for violation in found)


def test_groups_with_a_rank_twice_or_of_another_machine_are_objected_to():
    machine, groups = two_pairs(), ((0, 1), (2, 3))
    good = orders(machine, members_of(machine, groups, Kind.ALLGATHER, 2e6))[0]

    def rules(on, ranks):
        return {violation.rule for violation in verify_together(on, parts_of(ranks, good))}

    assert rules(machine, ((0, 1), (0, 1))) == set()
    assert rules(machine, ((0, 1), (1, 1))) == {"rank-twice"}
    assert rules(machine, ((0, 1), (2, 9))) == {"no-such-rank"}
    assert rules(machine, ((0, 2), (1, 3))) == {"other-machine"}
    faster = replace(machine, ports=(Port("trunk", 0.0, 1.5),))
    assert rules(faster, groups) == {"other-machine"}


def test_the_bound_adds_up_what_groups_bring_through_a_node():
    """Two groups of one rank a node; a NIC of 10 us per megabyte for each node carries the 1 MB of both in and out."""
    ports = [Port(f"{node} {way}", 0.0, 10.0) for node in (0, 1) for way in ("out", "in")]
    links = [Link(a, b, 0.0, 1.0, 0.0, (0, 3)) for a in (0, 1) for b in (2, 3)]
    links += [Link(b, a, 0.0, 1.0, 0.0, (2, 1)) for a in (0, 1) for b in (2, 3)]
    machine = Topology("nodes", "", (0, 0, 1, 1), tuple(ports), tuple(links))
    bound = bound_of(machine, ((0, 2), (1, 3)), Kind.ALLREDUCE, 1e6)
    assert bound.time_us == pytest.approx(20.0)
    assert "of 2 groups go out of node 0" in bound.reason
    assert bound_of(machine, ((0, 2), (1, 3)), Kind.ALLGATHER, 1e6).time_us == pytest.approx(10.0)


def test_the_bound_adds_up_the_transfers_of_sums_between_nodes():
    """Three nodes of a rank of each of two groups: 2 groups x 4 transfers of 1 MB over 3 NICs of 10 us per megabyte."""
    ports = [Port(f"{node} {way}", 0.0, 10.0) for node in range(3) for way in ("out", "in")]
    links = [
        Link(2 * a + group, 2 * b + group, 0.0, 1.0, 0.0, (2 * a, 2 * b + 1))
        for group in (0, 1)
        for a in range(3)
        for b in range(3)
        if a != b
    ]
    machine = Topology("nodes", "", (0, 0, 1, 1, 2, 2), tuple(ports), tuple(links))
    bound = bound_of(machine, ((0, 2, 4), (1, 3, 5)), Kind.ALLREDUCE, 1e6)
    assert bound.time_us == pytest.approx(80 / 3)
    assert bound.reason == "bandwidth: 7.629MiB of 2 groups go from node to node"


def test_a_group_waits_for_its_release():
    """AllGather of 2 MB in two pairs over a trunk of 2 us per megabyte; the second pair may start at 7 us, the first takes 4 until then."""
    machine = two_pairs()
    one, two = members_of(machine, ((0, 1), (2, 3)), Kind.ALLGATHER, 2e6)
    late = replace(two, release_us=7.0)
    for schedules in orders(machine, [one, late]):
        parts = [TimedGroup(one.ranks, schedules[0]), TimedGroup(two.ranks, schedules[1], 7.0)]
        assert verify_together(machine, parts) == ()
        assert makespan_us(schedules) == pytest.approx(11.0)
    early = [TimedGroup(one.ranks, one.schedule), TimedGroup(two.ranks, two.schedule, 7.0)]
    assert {violation.rule for violation in verify_together(machine, early)} == {"too-early"}
    bound = together_bound(
        machine,
        [
            GroupTask((0, 1), KnownDemand(Kind.ALLGATHER, 0, 2_000_000)),
            GroupTask((2, 3), KnownDemand(Kind.ALLGATHER, 0, 2_000_000), 7.0),
        ],
    )
    assert bound.time_us == pytest.approx(11.0)
    assert "behind the release at 7 us" in bound.reason


def test_groups_of_two_kinds_and_sizes_with_common_ranks_share_a_trunk():
    """Both groups have all four ports' time: an AllGather of 2 MB and a ReduceScatter of 4 MB in a pair are 2 x 1 + 2 x 2 MB at 2 us."""
    machine = two_pairs()
    (one,), (two,) = (
        members_of(machine, ((0, 1),), *way) for way in ((Kind.ALLGATHER, 2e6), (Kind.REDUCESCATTER, 4e6))
    )
    best = orders(machine, [one, two])[0]
    assert makespan_us(best) == pytest.approx(12.0)
    assert verify_together(machine, parts_of(((0, 1), (0, 1)), best)) == ()

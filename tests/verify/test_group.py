"""The verifier of group schedules rejects everything that is wrong with the whole, and to nothing else."""

from dataclasses import replace
from itertools import product

import pytest

from taccl_py.collective import Kind
from taccl_py.schedule.group import GroupSchedule
from taccl_py.schedule.ir import Message
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds.bound import Bound
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.matching.replicate import replicate
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.machines import formula_topology
from taccl_py.topology.model import Link, Port, Topology
from taccl_py.verify.group import verify_group
from taccl_py.verify.schedule import verify_schedule

KINDS = (Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.ALLREDUCE, Kind.ALLTOALL)


def made(formula, kind, chunks=None):
    demand = Demand(load_topology(formula), kind, 4e6, chunks_per_rank=chunks)
    return replicate(demand, Limits(), Bound(0.0, ""))


def rules(schedule):
    return {violation.rule for violation in verify_group(schedule)}


def changed(schedule, number, **fields):
    base = list(schedule.base)
    base[number] = replace(base[number], **fields)
    return replace(schedule, base=tuple(base))


# Machines whose ranks play several roles take longer: each has two kinds.
ALIKE = ("ring:5", "torus:3x4", "twisted:2x4", "hypercube:3", "switch:5", "hpn:2", "fattree:4")
OF_ROLES = (
    ("ndv2-x2", Kind.ALLGATHER), ("ndv2-x2", Kind.ALLTOALL), ("dgx1", Kind.REDUCESCATTER), ("dgx1", Kind.ALLTOALL),
    ("dragonfly:1", Kind.ALLGATHER), ("dragonfly:1", Kind.ALLREDUCE),
)  # fmt: skip


@pytest.mark.parametrize(("formula", "kind"), [*product(ALIKE, KINDS), *OF_ROLES])
def test_both_verifiers_agree_on_what_is_good(formula, kind):
    schedule = made(formula, kind)
    assert verify_group(schedule) == ()
    assert verify_schedule(schedule.expanded()) == ()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("formula", "chunks"), [("torus:3x3", 1), ("torus:3x3", 2), ("dgx1", 1)])
def test_both_verifiers_reject_a_message_left_out(kind, formula, chunks):
    schedule = made(formula, kind, chunks)
    for number in range(len(schedule.base)):
        broken = replace(schedule, base=schedule.base[:number] + schedule.base[number + 1 :])
        assert rules(broken) & {"missing", "not-held", "incomplete-sum"}, number
        assert verify_schedule(broken.expanded()), number


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("formula", ["torus:3x3", "dgx1"])
def test_both_verifiers_reject_a_message_that_is_sent_too_early(kind, formula):
    schedule = made(formula, kind, 1)
    for number, message in enumerate(schedule.base):
        if message.start_us == 0:
            continue
        moved = changed(schedule, number, start_us=0.0, end_us=message.end_us - message.start_us)
        assert bool(verify_group(moved)) == bool(verify_schedule(moved.expanded())), number
        # On a torus, where all links are busy from the start, there is never room.
        assert formula == "dgx1" or verify_group(moved), number


def test_a_message_sent_twice_a_wrong_duration_and_a_wrong_kind_are_seen():
    schedule = made("torus:3x3", Kind.ALLGATHER)
    last = schedule.base[-1]
    again = replace(last, start_us=last.end_us, end_us=2 * last.end_us - last.start_us)
    assert rules(replace(schedule, base=(*schedule.base, again))) == {"redundant"}
    assert rules(changed(schedule, 0, end_us=1.0)) == {"wrong-duration"}
    assert "wrong-reduce" in rules(changed(schedule, 0, reduce=True))
    assert rules(changed(schedule, 0, chunks=(1,))) == {"no-such-chunk"}
    assert rules(changed(schedule, 0, link=10_000)) == {"no-such-link"}
    assert rules(changed(schedule, 0, start_us=-1.0)) == {"bad-time"}
    assert rules(replace(schedule, chunk_bytes=float("nan"))) == {"chunk-size"}
    assert rules(replace(schedule, kind=Kind.BROADCAST)) == {"collective"}


@pytest.mark.parametrize(
    ("size_bytes", "roots", "instead"),
    [
        (4e6, 1, {"missing", "not-held"}),
        (24e3, 8, {"not-held"}),
    ],  # by rails; by delegates, who send on what did not come
)
def test_chunks_that_go_together_are_verified_one_by_one(size_bytes, roots, instead):
    demand = Demand(formula_topology("hpn:3"), Kind.ALLTOALL, size_bytes)
    schedule = replicate(demand, Limits(), Bound(0.0, ""))
    assert len(schedule.roots) == roots
    number, message = next((i, m) for i, m in enumerate(schedule.base) if len(m.chunks) > 1)
    assert verify_group(schedule) == ()
    assert verify_schedule(schedule.expanded()) == ()
    assert rules(changed(schedule, number, packed=False)) == {"not-packed"}
    assert rules(changed(schedule, number, chunks=(*message.chunks[1:], message.chunks[1]))) == {"no-such-chunk"}
    assert rules(changed(schedule, number, chunks=message.chunks[:-1])) == {"wrong-duration"}
    other = next(m.chunks for m in schedule.base if len(m.chunks) > 1 and m.chunks != message.chunks)
    assert rules(changed(schedule, number, chunks=other)) == instead


def test_sums_that_leave_twice_or_are_stored_are_seen():
    schedule = made("ring:4", Kind.REDUCESCATTER)
    last = schedule.base[-1]
    again = replace(last, start_us=last.end_us, end_us=2 * last.end_us - last.start_us)
    assert "redundant" in rules(replace(schedule, base=(*schedule.base, again)))
    assert "wrong-reduce" in rules(changed(schedule, 0, reduce=False))


def test_symmetry_that_is_none_is_seen():
    schedule = made("ring:4", Kind.ALLGATHER)
    assert rules(replace(schedule, generators=((1, 0, 2, 3),))) == {"not-a-symmetry"}
    assert rules(replace(schedule, generators=((0, 1, 1, 3),))) == {"not-a-permutation"}
    assert rules(replace(schedule, generators=((1, 2, 3, 0), (0, 3, 2, 1)))) == {"not-commuting"}
    assert rules(replace(schedule, generators=((2, 3, 0, 1),))) == {"missing"}, "rank 1 has another role then"


@pytest.mark.parametrize("generators", [((1, 0, 2, 3),), ((1, 0, 2, 3), (0, 1, 3, 2))])
def test_symmetry_that_keeps_a_rank_in_place_and_moves_another_is_seen(generators):
    # Of the second pair each ranks 0 and 1, and ranks 2 and 3, are taken to each other, but four combinations do so.
    schedule = replace(made("full:4", Kind.ALLGATHER), generators=generators)
    assert rules(schedule) >= {"not-free"}


def test_a_link_of_another_cost_spoils_the_symmetry():
    schedule = made("ring:4", Kind.ALLGATHER)
    links = list(schedule.topology.links)
    links[3] = replace(links[3], alpha_us=9.0)
    slower = replace(schedule.topology, links=tuple(links))
    assert "not-a-symmetry" in rules(replace(schedule, topology=slower))


def test_a_port_that_symmetry_keeps_in_place_is_occupied_several_times_at_once():
    """Both ranks send at once through one port that they share; nothing else is wrong."""
    links = (Link(0, 1, 0.5, 20.0, ports=(0,)), Link(1, 0, 0.5, 20.0, ports=(0,)))
    topology = Topology("pair", "invented", (0, 0), (Port("bus", 0.0, 10.0),), links)
    schedule = GroupSchedule(topology, Kind.ALLGATHER, 1, 1e6, ((1, 0),), (Message(0, (0,), 0.0, 20.5),))
    assert rules(schedule) == {"overlap"}
    assert {v.rule for v in verify_schedule(schedule.expanded())} == {"overlap"}


def test_two_messages_on_one_orbit_at_once_are_seen():
    schedule = made("torus:3x3", Kind.ALLGATHER)
    orbit_mates = [
        (i, j)
        for i, one in enumerate(schedule.base)
        for j, two in enumerate(schedule.base)
        if i < j and _step(schedule, one) == _step(schedule, two)
    ]
    i, j = orbit_mates[0]
    first = schedule.base[i]
    clash = changed(schedule, j, start_us=first.start_us + 0.1, end_us=first.end_us + 0.1)
    assert "overlap" in rules(clash)


def _step(schedule, message):
    """Direction of a message on a torus of 3 x 3."""
    link = schedule.topology.links[message.link]
    return (link.dst // 3 - link.src // 3) % 3, (link.dst - link.src) % 3

"""Large schedules go to the verifier that is up to them, and those that sum in another way than it can follow to the other one."""

from dataclasses import replace

from taccl_py.collective import Collective, Kind
from taccl_py.schedule.ir import Message, Schedule
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.matching.engine import synthesize_greedy
from taccl_py.topology.machines import formula_topology
from taccl_py.verify import any_size, large
from taccl_py.verify.any_size import verify_any


def made(kind):
    return synthesize_greedy(Demand(formula_topology("ring:4"), kind, 4e6), Options(), Events()).schedule


def forbidden(*_args, **_options):
    raise AssertionError("the other verifier was asked")


def test_small_ones_are_verified_message_by_message(monkeypatch):
    monkeypatch.setattr(any_size, "verify_large", forbidden)
    assert verify_any(made(Kind.ALLREDUCE)) == ()


def test_large_ones_are_verified_as_arrays(monkeypatch):
    monkeypatch.setattr(large, "LARGE", 3)
    monkeypatch.setattr(any_size, "verify_schedule", forbidden)
    schedule = made(Kind.ALLGATHER)
    assert verify_any(schedule) == ()
    assert {v.rule for v in verify_any(replace(schedule, messages=schedule.messages[1:]))} <= {"missing", "not-held"}
    assert {v.rule for v in verify_any(schedule, kind=Kind.ALLREDUCE, root=1)} == {"collective", "wrong-root"}


def test_sums_that_are_no_tree_get_a_second_opinion(monkeypatch):
    """Two ranks swap what they have and add it: right, but no tree."""
    monkeypatch.setattr(large, "LARGE", 1)
    ring = formula_topology("ring:2,alpha_us=1,beta_us_per_mb=1")
    machine = replace(ring, links=ring.links[:1] + ring.links[-1:])
    swap = tuple(Message(link, (chunk,), 2.0 * chunk, 2.0 * chunk + 2.0, True) for link in (0, 1) for chunk in (0, 1))
    assert verify_any(Schedule(machine, Collective(Kind.ALLREDUCE, 2), 1e6, swap, ((), ()))) == ()

"""The verifier of large schedules rejects everything that the verifier of all schedules rejects, and not to trees."""

from dataclasses import replace

import pytest

from taccl_py.collective import Kind
from taccl_py.schedule.ir import Message, Schedule
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.matching.engine import synthesize_greedy
from taccl_py.synthesis.matching.owners import owner_schedule
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.degrade import Degradation, degraded
from taccl_py.topology.machines import formula_topology
from taccl_py.verify import large
from taccl_py.verify.large import is_for_large, verify_large
from taccl_py.verify.schedule import verify_schedule


def made(formula, kind, chunks=None):
    demand = Demand(formula_topology(formula), kind, 4e6, chunks_per_rank=chunks)
    return synthesize_greedy(demand, Options(), Events()).schedule


BROKEN = Degradation(missing_ports=("node 1 ib3 *",))
CASES = [
    ("ring:5", Kind.ALLGATHER),
    ("mesh:2x3", Kind.ALLREDUCE),
    ("mesh:2x3", Kind.BROADCAST),
    ("ring:4", Kind.ALLREDUCE),
]


def changed(schedule, number, **fields):
    messages = list(schedule.messages)
    messages[number] = replace(messages[number], **fields)
    return replace(schedule, messages=tuple(messages))


def variants(schedule, number):
    """Ways to spoil a message."""
    message = schedule.messages[number]
    yield replace(schedule, messages=schedule.messages[:number] + schedule.messages[number + 1 :])
    length = message.end_us - message.start_us
    for earlier in (length / 2, length, 2 * length):
        if message.start_us - earlier >= 0:
            yield changed(schedule, number, start_us=message.start_us - earlier, end_us=message.end_us - earlier)
    yield changed(schedule, number, end_us=message.end_us + length)
    yield changed(schedule, number, reduce=not message.reduce)
    yield changed(schedule, number, link=(message.link + 1) % len(schedule.topology.links))
    yield changed(schedule, number, chunks=((message.chunks[0] + 1) % schedule.collective.num_chunks,))
    yield changed(schedule, number, chunks=(message.chunks[0], message.chunks[0]))
    late_us = schedule.makespan_us
    again = Message(message.link, message.chunks, late_us, late_us + length, message.reduce)
    yield replace(schedule, messages=(*schedule.messages, again))


@pytest.mark.parametrize(("formula", "kind"), CASES)
@pytest.mark.parametrize("batch", [1, 10, 10_000])
def test_it_accepts_what_is_right(formula, kind, batch, monkeypatch):
    monkeypatch.setattr(large, "_BATCH", batch)
    schedule = made(formula, kind)
    assert verify_schedule(schedule) == ()
    assert verify_large(schedule) == ()


@pytest.mark.parametrize(("formula", "kind"), CASES)
@pytest.mark.parametrize("batch", [1, 10_000])
def test_it_rejects_wherever_the_other_verifier_does(formula, kind, batch, monkeypatch):
    monkeypatch.setattr(large, "_BATCH", batch)
    schedule = made(formula, kind, 1)
    objected = 0
    for number in range(len(schedule.messages)):
        for broken in variants(schedule, number):
            if verify_schedule(broken):
                objected += 1
                assert verify_large(broken), (number, broken.messages[number])
    assert objected > 5 * len(schedule.messages)


def test_chunks_that_travel_together_are_verified_together_and_right():
    schedule = owner_schedule(degraded(load_topology("ndv4", 2), BROKEN), 1e8, 2)
    assert max(len(message.chunks) for message in schedule.messages) > 1
    assert verify_schedule(schedule) == ()
    assert verify_large(schedule) == ()
    for number in range(0, len(schedule.messages), 151):
        for broken in variants(schedule, number):
            assert not verify_schedule(broken) or verify_large(broken), number


def test_times_that_are_no_times_are_told_and_nothing_else():
    schedule = made("ring:4", Kind.ALLGATHER)
    for fields in ({"start_us": float("nan")}, {"end_us": float("inf")}, {"start_us": -1.0}):
        assert {violation.rule for violation in verify_large(changed(schedule, 3, **fields))} == {"bad-time"}


def test_what_does_not_exist_is_told_and_nothing_else():
    schedule = made("ring:4", Kind.ALLGATHER)
    assert {v.rule for v in verify_large(changed(schedule, 3, link=99))} == {"no-such-link"}
    assert {v.rule for v in verify_large(changed(schedule, 3, chunks=(99,)))} == {"no-such-chunk"}
    assert {v.rule for v in verify_large(replace(schedule, chunk_bytes=0.0))} == {"chunk-size"}
    assert {v.rule for v in verify_large(replace(schedule, scratch=((1,), (), (), ())))} == {"scratch-shape"}


def test_a_sum_that_is_no_tree_is_not_verified_here():
    """Two ranks swap what they have and add it: right, but no tree."""
    topology = formula_topology("ring:2,alpha_us=1,beta_us_per_mb=1")
    machine = replace(topology, links=topology.links[:1] + topology.links[-1:])
    schedule = Schedule(
        machine,
        made("ring:2", Kind.ALLREDUCE).collective,
        1e6,
        tuple(Message(link, (chunk,), 2.0 * chunk, 2.0 * chunk + 2.0, True) for link in (0, 1) for chunk in (0, 1)),
        ((), ()),
    )
    assert verify_schedule(schedule) == ()
    assert {violation.rule for violation in verify_large(schedule)} >= {"incomplete-sum"}


def test_only_large_ones_without_scratch_are_verified_here(monkeypatch):
    schedule = made("ring:4", Kind.ALLREDUCE)
    assert not is_for_large(schedule)
    monkeypatch.setattr(large, "LARGE", 3)
    assert is_for_large(schedule)
    assert not is_for_large(made("ring:4", Kind.REDUCESCATTER))

"""Local improvement: never slower, right, repeatable, and as good as messages of one chunk can be where that is known."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Kind
from taccl_py.schedule.ir import Message, Schedule
from taccl_py.synthesis.matching import regrow
from taccl_py.synthesis.matching.least import least_us
from taccl_py.synthesis.matching.regrow import RegrowTask, affordable_tries, regrown
from taccl_py.topology.machines import formula_topology
from taccl_py.verify.schedule import verify_schedule
from taccl_py.work import RATES, work_seconds
from tests.synthesis.matching.drawn import matched, torn, with_ports

ROUTED = (Kind.ALLGATHER, Kind.BROADCAST, Kind.ALLTOALL)


def never():
    return False


def end_us(grown):
    return max(hop.end_us for hop in grown)


def schedule(fabric, collective, grown, chunk_bytes=1e5):
    relayed = [set() for _ in range(collective.num_ranks)]
    for hop in grown:
        dst = fabric.dst[hop.link]
        relayed[dst].update(chunk for chunk in hop.chunks if dst not in collective.wanted[chunk])
    messages = tuple(Message(hop.link, hop.chunks, hop.start_us, hop.end_us) for hop in grown)
    return Schedule(fabric.topology, collective, chunk_bytes, messages, tuple(tuple(sorted(c)) for c in relayed))


@pytest.mark.parametrize(
    ("machine", "kind"),
    [(torn(3, 24), Kind.ALLGATHER), (torn(6, 8), Kind.ALLGATHER), (formula_topology("dragonfly:1"), Kind.ALLGATHER)],
)
def test_what_matching_leaves_behind_is_made_good(machine, kind):
    fabric, collective, grown = matched(machine, kind)
    assert end_us(grown) > 1.05 * least_us(fabric, collective)
    assert end_us(regrown(fabric, RegrowTask.of(fabric, collective), grown, 0, never)) == pytest.approx(
        least_us(fabric, collective)
    )


def test_an_alltoall_of_a_mesh_is_at_the_bound_of_the_links_through_its_middle():
    # 8 times 8 chunks cross the middle each way, over 4 links.
    fabric, collective, grown = matched(formula_topology("mesh:4x4"), Kind.ALLTOALL)
    least = 16 * fabric.sorts[0].message_us
    assert end_us(grown) == pytest.approx(17 * fabric.sorts[0].message_us)
    assert end_us(regrown(fabric, RegrowTask.of(fabric, collective), grown, 0, never)) == pytest.approx(least)


@pytest.mark.parametrize(("kind", "least_links"), [(Kind.ALLGATHER, 12), (Kind.ALLTOALL, 3)])
def test_work_is_counted_by_the_links_that_are_looked_at(kind, least_links, monkeypatch):
    """A chunk that goes to four ranks, all linked, looks at the three links out of each; one for a single rank at those of its source."""
    monkeypatch.setattr(regrow, "affordable_tries", lambda *_: 1)
    fabric, collective, grown = matched(formula_topology("full:4"), kind)
    before = work_seconds()
    regrown(fabric, replace(RegrowTask.of(fabric, collective), least_us=0.0), grown, 0, never)
    assert (work_seconds() - before) / RATES.regrown >= least_links * (1 - 1e-9)


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(2, 6), st.sampled_from(ROUTED), st.booleans())
def test_it_is_never_slower_and_the_verifier_agrees(seed, ranks, kind, has_ports):
    machine = with_ports(torn(seed, ranks), seed) if has_ports else torn(seed, ranks)
    fabric, collective, grown = matched(machine, kind, chunks=2, seed=seed)
    better = regrown(fabric, RegrowTask.of(fabric, collective), grown, seed, never)
    assert least_us(fabric, collective) * (1 - 1e-9) <= end_us(better) <= end_us(grown) * (1 + 1e-9)
    assert verify_schedule(schedule(fabric, collective, better)) == ()


def test_the_same_seed_gives_the_same_and_an_interrupt_ends_it(monkeypatch):
    monkeypatch.setattr(regrow, "PARAMS", replace(regrow.PARAMS, most_tries=100))
    fabric, collective, grown = matched(formula_topology("mesh:4x4"), Kind.ALLTOALL)
    given = (fabric, RegrowTask.of(fabric, collective), grown)
    assert regrown(*given, 1, never) == regrown(*given, 1, never)
    assert regrown(*given, 1, never) != regrown(*given, 2, never)
    assert end_us(regrown(*given, 1, never, effort=3)) <= end_us(regrown(*given, 1, never))
    asked = []

    def after_three():
        asked.append(None)
        return len(asked) > 3

    assert end_us(regrown(*given, 1, after_three)) <= end_us(given[2])
    assert len(asked) == 4


def test_the_larger_the_schedule_the_fewer_the_tries_and_large_ones_are_left_alone(monkeypatch):
    assert affordable_tries(10, 10) >= affordable_tries(10, 1000) >= affordable_tries(1000, 1000) > 0
    assert affordable_tries(100, 100_000) == 0
    monkeypatch.setattr(regrow, "PARAMS", replace(regrow.PARAMS, regrow_work=1000))
    fabric, collective, grown = matched(formula_topology("mesh:4x4"), Kind.ALLTOALL)
    assert regrown(fabric, RegrowTask.of(fabric, collective), grown, 0, never) is grown

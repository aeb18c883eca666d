"""New schedules after a failure."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Collective, Kind
from taccl_py.errors import Infeasible, InputError
from taccl_py.pipeline import replan as pipeline
from taccl_py.pipeline.replan import Remedy, replan
from taccl_py.schedule.layout import UntimedMessage
from taccl_py.schedule.timing import build_schedule
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.catalog import load_engine
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.degrade import Degradation, LinkChoice, SlowLink, degraded
from taccl_py.verify.schedule import verify_schedule
from tests.instances import MB, quiet_pulp

pytestmark = quiet_pulp


def options(seconds=2.0):
    return Options(limits=Limits(seconds=seconds, workers=1, by_work=True))


def direct(name):
    """AllGather of 1 MB a rank in which every rank sends to every other one."""
    topology = load_topology(name)
    untimed = [UntimedMessage(k, (link.src,), 0, 1) for k, link in enumerate(topology.links)]
    return build_schedule(topology, Collective(Kind.ALLGATHER, topology.num_ranks), MB, untimed)


def by_templates(name, kind=Kind.ALLREDUCE):
    return load_engine("templates")(Demand(load_topology(name), kind, 1e6), options(), Events()).schedule


def remedies(found):
    return {each.remedy: each for each in found.tried}


def test_the_old_schedule_is_timed_on_what_is_left():
    """Two ranks, 1 us and 10 us a MB: at half the bandwidth 1 + 20 us, and there is nothing else to do."""
    old = direct("full:2,alpha_us=1,beta_us_per_mb=10")
    assert old.makespan_us == pytest.approx(11.0)
    slow = degraded(old.topology, Degradation(slow=(SlowLink(LinkChoice(0, 1, both_ways=False), 0.5),)))
    found = replan(old, slow, options(), Events())
    assert remedies(found)[Remedy.RETIMED].schedule.makespan_us == pytest.approx(21.0)
    assert found.synthesis.schedule.makespan_us == pytest.approx(21.0)
    assert found.synthesis.schedule.topology is slow
    (taken,) = [each.schedule for each in found.tried if each.remedy is found.remedy]
    assert not any(each is taken for each in found.synthesis.runners_up)


def test_what_used_a_link_that_is_gone_is_said_and_another_schedule_found():
    """With the link between 0 and 1 gone, their shards go over rank 2: no faster than two messages of 11 us."""
    old = direct("full:3,alpha_us=1,beta_us_per_mb=10")
    left = degraded(old.topology, Degradation(missing=(LinkChoice(0, 1),)))
    found = replan(old, left, options(), Events())
    assert remedies(found)[Remedy.RETIMED].schedule is None
    assert remedies(found)[Remedy.RETIMED].reason == "it uses what is gone: 0->1, 1->0"
    assert found.remedy in (Remedy.SEARCHED, Remedy.REWEIGHED)
    assert found.synthesis.schedule.makespan_us >= 22.0
    assert verify_schedule(found.synthesis.schedule) == ()


def test_a_wrong_remedy_leaves_the_others(monkeypatch):
    old = direct("full:3")
    slow = degraded(old.topology, Degradation(slow=(SlowLink(LinkChoice(0, 1), 0.5),)))
    monkeypatch.setattr(pipeline, "mended", lambda plan, *_: replace(plan, messages=plan.messages[1:]))
    found = replan(old, slow, options(), Events())
    wrong = remedies(found)[Remedy.REWEIGHED]
    assert wrong.schedule is None
    assert wrong.reason.startswith("its schedule is wrong, which is a mistake of taccl: ")
    assert found.remedy is not Remedy.REWEIGHED
    assert verify_schedule(found.synthesis.schedule) == ()


def test_the_old_schedule_is_the_first_to_be_lowered_beside_the_answer():
    """With a tenth of the bandwidth between 0 and 1 their shards go over others."""
    old = by_templates("full:4", Kind.ALLGATHER)
    slow = degraded(old.topology, Degradation(slow=(SlowLink(LinkChoice(0, 1), 0.1),)))
    found = replan(old, slow, options(), Events())
    assert found.remedy is not Remedy.RETIMED
    assert found.synthesis.kept == 1
    assert found.synthesis.runners_up[0] is remedies(found)[Remedy.RETIMED].schedule


def test_without_time_the_old_schedule_goes_on():
    old = direct("full:3")
    slow = degraded(old.topology, Degradation(slow=(SlowLink(LinkChoice(0, 1), 0.5),)))
    found = replan(old, slow, Options(limits=Limits(seconds=0.0, workers=1)), Events())
    assert (found.remedy, found.synthesis.kept) == (Remedy.RETIMED, 0)
    assert remedies(found)[Remedy.SEARCHED].reason == "no time was left"


@pytest.mark.slow
@settings(max_examples=8)
@given(
    st.sampled_from(("ring:4", "full:4", "mesh:2x3", "hypercube:8", "ndv2")), st.sampled_from(tuple(Kind)), st.data()
)
def test_nothing_is_slower_than_going_on_and_all_is_valid(name, kind, data):
    try:
        old = by_templates(name, kind)
    except InputError:
        return
    link = data.draw(st.sampled_from(old.topology.links))
    choice = LinkChoice(link.src, link.dst, both_ways=data.draw(st.booleans()))
    if data.draw(st.booleans()):
        damage = Degradation(slow=(SlowLink(choice, data.draw(st.sampled_from((0.25, 0.5, 0.9)))),))
    else:
        damage = Degradation(missing=(choice,))
    try:
        machine = degraded(old.topology, damage)
        found = replan(old, machine, Options(limits=Limits(seconds=0.3, workers=1)), Events())
    except (InputError, Infeasible):
        return
    best = found.synthesis.schedule
    for each in found.tried:
        assert (each.schedule is None) == bool(each.reason)
        if each.schedule is not None:
            assert verify_schedule(each.schedule) == ()
            assert best.makespan_us <= each.schedule.makespan_us
            assert each.schedule.topology is machine
    assert best.makespan_us >= found.synthesis.bound.time_us * (1 - 1e-9)
    assert best.collective.kind is kind
    assert best.size_bytes == pytest.approx(old.size_bytes)


def test_another_machine_is_refused():
    with pytest.raises(InputError, match="for 3 ranks, and the machine has 4"):
        replan(direct("full:3"), load_topology("full:4"), options(), Events())

"""Verify of images: renamed schedules and programs, and such as only look like it."""

import re
from dataclasses import replace

import pytest

from taccl_py.collective import ROOTED, Collective, Kind
from taccl_py.lowering.images import image_of_program
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.lowering.msccl_xml import emit_xml
from taccl_py.pipeline.deliver import lower_and_verify
from taccl_py.runtimes import EXECUTOR
from taccl_py.schedule.image import image_of_schedule
from taccl_py.schedule.ir import Message, Schedule
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.catalog import load_engine
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.degrade import degraded
from taccl_py.topology.failures import failure_classes, parse_sorts, single_failures
from taccl_py.verify.any_size import verify_any
from taccl_py.verify.image import verify_image, verify_program_image
from taccl_py.verify.msccl import verify_program


def known(kind, machine="full:5", sorts="gpu-link"):
    """A schedule for the first failure, its program, and the class."""
    whole = load_topology(machine)
    root = 0 if kind in ROOTED else None
    failures = failure_classes(whole, single_failures(whole, parse_sorts(sorts)), root)[0]
    there = degraded(whole, failures.first.degradation)
    limits = Limits(seconds=0.1, by_work=True)
    engine = load_engine("flow" if kind in (Kind.GATHER, Kind.SCATTER) else "greedy")
    schedule = engine(Demand(there, kind, 1 << 20), Options(limits=limits), Events()).schedule
    return whole, failures, schedule


@pytest.fixture(scope="module")
def broadcast():
    return known(Kind.BROADCAST)


@pytest.fixture(scope="module")
def allgather():
    whole, failures, schedule = known(Kind.ALLGATHER)
    lowered = lower_and_verify(schedule, LoweringOptions(EXECUTOR))
    image = failures.images[-1]
    there = image_of_schedule(schedule, degraded(whole, image.failure.degradation), image.renaming)
    program = image_of_program(lowered.program, image.renaming)
    return schedule, there, image.renaming, lowered, emit_xml(program, EXECUTOR)


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(Kind))
def test_what_is_accepted_as_an_image_the_other_verifiers_accept_too(kind):
    whole, failures, schedule = known(kind)
    lowered = lower_and_verify(schedule, LoweringOptions(EXECUTOR))
    whole_programs = 0
    for image in failures.images[1::3]:
        machine = degraded(whole, image.failure.degradation)
        there = image_of_schedule(schedule, machine, image.renaming)
        assert verify_image(there, schedule, image.renaming) == ()
        assert verify_any(there, kind=kind) == ()
        assert there.makespan_us == schedule.makespan_us
        program = image_of_program(lowered.program, image.renaming)
        if program is not None:
            whole_programs += 1
            text = emit_xml(program, EXECUTOR)
            assert verify_program_image(text, lowered.text, image.renaming, kind) == ()
            assert verify_program(text, EXECUTOR, kind=kind).violations == ()
    assert whole_programs


def rules(image, schedule, renaming):
    return [violation.rule for violation in verify_image(image, schedule, renaming)]


def test_an_image_of_an_allgather_is_accepted(allgather):
    schedule, there, renaming, lowered, text = allgather
    assert rules(there, schedule, renaming) == []
    assert text != lowered.text
    assert verify_program_image(text, lowered.text, renaming, Kind.ALLGATHER) == ()


def test_an_image_has_the_steps_of_what_it_is_an_image_of(allgather):
    schedule, there, renaming, _, _ = allgather
    uncounted = image_of_schedule(replace(schedule), there.topology, renaming)
    assert "num_steps" not in vars(uncounted)
    steps = schedule.num_steps
    counted = image_of_schedule(schedule, there.topology, renaming)
    assert vars(counted)["num_steps"] == steps == uncounted.num_steps
    assert "num_steps" not in vars(replace(counted, messages=counted.messages[1:]))


def test_a_renaming_is_a_permutation_that_keeps_the_root(allgather, broadcast):
    schedule, there, renaming, lowered, text = allgather
    twice = (renaming[1], *renaming[1:])
    assert rules(there, schedule, twice) == ["renaming"]
    assert [v.rule for v in verify_program_image(text, lowered.text, twice, Kind.ALLGATHER)] == ["renaming"]
    _, _, rooted = broadcast
    assert rules(rooted, rooted, (1, 0, 2, 3, 4)) == ["renaming"]


def test_another_machine_is_no_image(allgather):
    schedule, there, renaming, _, _ = allgather
    links = there.topology.links
    slower = replace(there.topology, links=(replace(links[0], beta_us_per_mb=links[0].beta_us_per_mb * 2), *links[1:]))
    assert rules(replace(there, topology=slower), schedule, renaming) == ["machine"]
    assert rules(replace(there, topology=replace(there.topology, links=links[1:])), schedule, renaming) == ["machine"]
    assert rules(schedule, schedule, renaming) == ["machine"]  # the link that is lost is another one


def test_ports_that_become_one_are_seen():
    whole, failures, schedule = known(Kind.ALLREDUCE, "switch:3", "gpu-port:0.5")
    same = (0, 1, 2)
    assert rules(schedule, schedule, same) == []
    names = [port.name for port in schedule.topology.ports]
    one, other = names.index("node 0 rank 1 switch out"), names.index("node 0 rank 2 switch out")
    shared = tuple(
        replace(link, ports=tuple(one if port == other else port for port in link.ports))
        for link in schedule.topology.links
    )
    both = replace(schedule, topology=replace(schedule.topology, links=shared))
    assert rules(both, schedule, same) == ["machine"]
    # Rank 0 has slow ports, and not rank 1.
    slow = degraded(whole, failures.images[1].failure.degradation)
    assert rules(replace(schedule, topology=slow), schedule, same) == ["machine"]


@pytest.mark.parametrize("harm", ["late", "dropped", "twice", "chunk", "reduce", "link"])
def test_a_message_that_is_no_image_is_seen(allgather, harm):
    schedule, there, renaming, _, _ = allgather
    first, *others = there.messages
    messages = {
        "late": (replace(first, start_us=first.start_us + 1, end_us=first.end_us + 1), *others),
        "dropped": tuple(others),
        "twice": (first, first, *others),
        "chunk": (
            replace(first, chunks=((first.chunks[0] + 1) % there.collective.num_chunks, *first.chunks[1:])),
            *others,
        ),
        "reduce": (replace(first, reduce=True), *others),
        "link": (replace(first, link=(first.link + 1) % len(there.topology.links)), *others),
    }
    assert rules(replace(there, messages=messages[harm]), schedule, renaming) == ["messages"]


def test_chunks_that_come_to_lie_apart_are_packed():
    whole = load_topology("full:3")
    collective = Collective(Kind.ALLGATHER, 3)
    # Of its own message that is enough: rank 1 passes on to rank 2 the chunks of ranks 0 and 1, which are neighbours.
    link = whole.links_between[1, 2][0]
    here = Schedule(whole, collective, 8.0, (Message(link, (0, 1), 0.0, 1.0),), ((), (), ()))
    there = image_of_schedule(here, whole, (0, 2, 1))
    assert [(message.chunks, message.packed) for message in there.messages] == [((0, 2), True)]
    assert rules(there, here, (0, 2, 1)) == []
    (packed,) = there.messages
    loose = replace(there, messages=(replace(packed, packed=False),))
    assert rules(loose, here, (0, 2, 1)) == ["not-contiguous"]


def test_scratch_goes_with_the_ranks(allgather):
    schedule, there, renaming, _, _ = allgather
    kept = replace(schedule, scratch=((1,), *schedule.scratch[1:]))
    assert rules(there, kept, renaming) == ["scratch"]


@pytest.mark.parametrize(
    ("pattern", "instead"),
    [
        (r'<tb id="0" send="([0-9])"', r'<tb id="0" send="9"'),
        (r'chan="0"', 'chan="1"'),
        (r' srcoff="[0-9]+"', ' srcoff="3000"'),
        (r' cnt="1"', ' cnt="2"'),
        (r' nchunksperloop="', ' nchunksperloop="1'),
        (r'<gpu id="4"', '<gpu id="3"'),
        (r"      <step .*\n", ""),
        (r' depid="-1"', ' depid="0"'),
    ],
)
def test_a_program_that_is_no_image_is_seen(allgather, pattern, instead):
    _, _, renaming, lowered, text = allgather
    harmed, number = re.subn(pattern, instead, text, count=1)
    assert number == 1
    assert [v.rule for v in verify_program_image(harmed, lowered.text, renaming, Kind.ALLGATHER)] == ["program"]


def test_steps_that_would_be_torn_apart_have_no_image():
    text = (
        '<algo nchunksperloop="4" ngpus="4">\n'
        + "".join(
            f'  <gpu id="{rank}">\n    <tb id="0" send="-1" recv="-1" chan="0">\n      <step type="cpy" srcbuf="i" srcoff="0" dstbuf="o" '
            'dstoff="1" cnt="2" depid="-1"/>\n    </tb>\n  </gpu>\n'
            for rank in range(4)
        )
        + "</algo>\n"
    )
    assert verify_program_image(text, text, (0, 1, 2, 3), Kind.ALLGATHER) == ()
    assert verify_program_image(text, text, (1, 0, 2, 3), Kind.ALLREDUCE) == ()
    assert [v.rule for v in verify_program_image(text, text, (0, 2, 1, 3), Kind.ALLGATHER)] == ["program"]

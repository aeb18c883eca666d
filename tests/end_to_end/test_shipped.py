"""Every machine and sketch that comes with the program, from its name to XML for every runtime and placement.

Each place (a machine, with a sketch or without) is tried with one collective always, for every runtime and placement (some that
take long for one); and with every fourth one in the slow part, where these take turns.
"""

from dataclasses import dataclass
from itertools import product

import pytest

from taccl_py.collective import ROOTED, Kind
from taccl_py.lowering.lower import CallPlacement, LoweringOptions
from taccl_py.pipeline.deliver import lower_and_verify
from taccl_py.pipeline.resolve import Request
from taccl_py.pipeline.search import synthesize
from taccl_py.runtimes import EXECUTOR, RCCL
from taccl_py.schedule.files import read_schedule, write_schedule
from taccl_py.simulate.schedule_replay import replay_schedule
from taccl_py.sketch.catalog import list_sketches
from taccl_py.sketch.machine import load_machine
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Events, Options
from taccl_py.topology.catalog import list_topologies
from taccl_py.verify.msccl import verify_program
from taccl_py.verify.schedule import verify_schedule
from tests.instances import quiet_pulp

pytestmark = quiet_pulp

FORMULAS = ("ring:8", "torus:4x4", "mesh:4x4", "hypercube:3", "full:8", "switch:16")
# Latency counts, both count, bandwidth counts.
SIZES = (16 << 10, 1 << 20, 64 << 20)
SEARCH_S = 0.4
WAYS = tuple(product((EXECUTOR, RCCL), CallPlacement))
PLACEMENTS = {
    CallPlacement.BOTH: (True, True),
    CallPlacement.IN_PLACE: (True, False),
    CallPlacement.OUT_OF_PLACE: (False, True),
}


@dataclass(frozen=True)
class Place:
    """Something that a user can name: machine, sketch and number of nodes."""

    topology: str
    sketch: str = ""
    nodes: int | None = None

    def __str__(self):
        return "-".join(filter(None, [self.sketch or self.topology, f"x{self.nodes}" if self.nodes else ""]))


@dataclass(frozen=True)
class Case:
    """A collective of a size at a place."""

    place: Place
    kind: Kind
    size_bytes: int

    def __str__(self):
        return f"{self.place}-{self.kind}"


def places():
    """Every machine alone (and as two nodes where it has NICs), and every sketch with every number of nodes that it names."""
    for entry in list_topologies():
        for nodes in (1, 2) if entry.multi_node else (1,):
            yield Place(entry.name, nodes=nodes)
    for sketch in list_sketches():
        for nodes in sketch.nodes:
            yield Place(sketch.topology, sketch.name, None if sketch.topology in FORMULAS else nodes)
    for formula in FORMULAS:
        yield Place(formula)


PLACES = tuple(places())
PRODUCT = tuple(
    Case(place, kind, SIZES[(row + column) % len(SIZES)])
    for row, place in enumerate(PLACES)
    for column, kind in enumerate(Kind)
)
# The next collective at every place: each occurs several times. Beginning with the fifth spares the largest machines AllToAll.
FEW = tuple(PRODUCT[row * len(Kind) + (row + 4) % len(Kind)] for row in range(len(PLACES)))
# Those that take long become XML in one way.
LONG = (
    "dgx2-sk-1-x2-allreduce",
    "torus-4x4-translations-allreduce",
    "mi250x-x2-allgather",
    "ndv2-sk-1-x4-reducescatter",
)
# Every fourth case, beginning with another collective at the next place.
MORE = tuple(
    number for number, case in enumerate(PRODUCT) if sum(divmod(number, len(Kind))) % 4 == 0 and case not in FEW
)


def synthesized(case):
    """The engine's answer for the last rank as root, where there is one: what holds for rank 0 may be luck."""
    place = case.place
    last = load_machine(place.topology, place.sketch, place.nodes).topology.num_ranks - 1
    request = Request(
        topology=place.topology,
        kind=case.kind,
        sketch=place.sketch,
        nodes=place.nodes,
        size_bytes=case.size_bytes,
        root=last if case.kind in ROOTED else 0,
        options=Options(limits=Limits(seconds=SEARCH_S, workers=1)),
    )
    return synthesize(request, Events())


def require_all_good(case, calls):
    """Schedule and XML for runtimes and placements are right and keep their promises, read again from their texts."""
    synthesis = synthesized(case)
    schedule = read_schedule(write_schedule(synthesis.schedule), "schedule.json")
    assert schedule == synthesis.schedule
    assert verify_schedule(schedule) == ()
    least_us = synthesis.bound.time_us * (1 - 1e-9)
    assert schedule.makespan_us >= least_us
    assert replay_schedule(schedule, schedule.chunk_bytes).makespan_us == pytest.approx(schedule.makespan_us)
    for runtime, placement in calls:
        lowered = lower_and_verify(schedule, LoweringOptions(runtime, placement))
        require_good_text(case, schedule, lowered.text, runtime, placement)
        assert lowered.replay.makespan_us >= least_us, (runtime.name, placement)


def require_good_text(case, schedule, text, runtime, placement):
    """What ``taccl check`` says about the file alone: it is good, and it is what was asked for."""
    verdict = verify_program(text, runtime)
    assert verdict.violations == (), (runtime.name, placement)
    facts = verdict.facts
    assert (facts.kind, facts.num_ranks) == (case.kind, schedule.topology.num_ranks)
    assert (facts.in_place, facts.out_of_place) == PLACEMENTS[placement]
    assert facts.root == (schedule.collective.root if case.kind in ROOTED else None)
    # Runtimes count one rank's share for these two.
    counted = case.size_bytes / (facts.num_ranks if case.kind in (Kind.GATHER, Kind.SCATTER) else 1)
    assert facts.min_bytes <= counted
    assert facts.max_bytes is None or counted <= facts.max_bytes
    assert facts.safe_max_bytes is None or counted <= facts.safe_max_bytes


def test_the_few_cases_have_every_place_collective_and_size():
    assert {case.place for case in FEW} == set(PLACES)
    assert {case.kind for case in FEW} == set(Kind)
    assert {case.size_bytes for case in FEW} == set(SIZES)
    assert {PRODUCT[number].place for number in MORE} == set(PLACES)
    assert {PRODUCT[number].kind for number in MORE} == set(Kind)


@pytest.mark.parametrize("case", FEW, ids=str)
def test_one_collective_at_every_place_becomes_good_xml(case):
    require_all_good(case, WAYS[:1] if str(case) in LONG else WAYS)


@pytest.mark.slow
@pytest.mark.parametrize("number", MORE, ids=lambda n: str(PRODUCT[n]))
def test_more_collectives_at_every_place_become_good_xml(number):
    row, column = divmod(number, len(Kind))
    require_all_good(PRODUCT[number], [WAYS[(row // 3 + column) % len(WAYS)]])

"""TACCL's published machines and sketches: what its released program predicts, or what exact ordering makes of its routes, is
the most that a schedule of ours may take. A search is stopped as soon as it gets there.

Times of the 1MB profiles are in us, of the 1KB profiles in 0.01 us, as in TACCL's files.
"""

from dataclasses import dataclass

import pytest

from taccl_py.collective import Collective, Kind
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.pipeline.deliver import lower_and_verify
from taccl_py.runtimes import EXECUTOR
from taccl_py.sketch.machine import load_machine
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.catalog import load_engine
from taccl_py.synthesis.engine import Options, Proof, Synthesis
from taccl_py.verify.schedule import verify_schedule
from tests.instances import StopAt, demand_of_chunks, quiet_pulp, write_taccl
from tests.synthesis.restrictions import breaks_own_first

pytestmark = quiet_pulp


@dataclass(frozen=True)
class Case:
    """A collective on one of TACCL's machines, and the most that it may take."""

    profile: str
    sketch: str
    kind: Kind
    most: float
    is_proven: bool = False  # that no schedule is faster

    def __str__(self) -> str:
        return f"{self.kind} {self.sketch} {self.profile[-3:]}"


CASES = (
    Case("NDv2_1MB", "ndv2-n1", Kind.ALLGATHER, 69.0, True),
    Case("NDv2_1MB", "ndv2-n1-6", Kind.ALLGATHER, 322.0, True),
    Case("NDv2_1MB", "ndv2-sk-1", Kind.ALLGATHER, 920.0),
    Case("NDv2_1KB", "ndv2-sk-1", Kind.ALLGATHER, 510.0),
    Case("NDv2_1MB", "ndv2-sk-3", Kind.ALLGATHER, 911.6, True),
    Case("NDv2_1MB", "ndv2-sk-1", Kind.ALLTOALL, 6800.0),
    Case("DGX2_1MB", "dgx2-sk-1", Kind.ALLGATHER, 496.0, True),
    Case("DGX2_1MB", "dgx2-sk-2", Kind.ALLGATHER, 332.6, True),
    Case("DGX2_1KB", "dgx2-sk-2", Kind.ALLGATHER, 600.0),
    # TACCL calls this one infeasible: its hop-shortest paths exclude the relays that its sketch demands.
    Case("DGX2_1MB", "dgx2-sk-1", Kind.ALLTOALL, 6887.0),
)


def synthesize(folder, profile, sketch, kind, most=None, *, engine="milp", solver="auto"):
    """Solve a case from TACCL's files, until it is as fast as `most`."""
    files = write_taccl(folder, profile, sketch)
    machine = load_machine(str(files.profile), str(files.sketch))
    collective = Collective(kind, machine.topology.num_ranks, machine.sketch.chunks_per_rank)
    limits = Limits(seconds=60.0)
    events = StopAt(most or 0.0, limits.stop)
    demand = demand_of_chunks(machine.topology, collective, machine.sketch, machine.topology.measured_chunk_bytes)
    return load_engine(engine)(demand, Options(solver, limits), events)


@dataclass(frozen=True)
class Solved:
    """A case with its answer, and whether the sketch's word about own chunks was kept."""

    case: Case
    synthesis: Synthesis
    own_first: bool


@pytest.fixture(scope="module", params=CASES, ids=str)
def solved(request, tmp_path_factory):
    case = request.param
    folder = tmp_path_factory.mktemp("taccl")
    synthesis = synthesize(folder, case.profile, case.sketch, case.kind, case.most)
    sketch = load_machine(str(folder / f"{case.profile}.json"), str(folder / f"{case.sketch}.json")).sketch
    return Solved(case, synthesis, not breaks_own_first(synthesis.schedule, sketch))


def test_a_published_case_takes_no_longer_than_its_target(solved):
    case, schedule = solved.case, solved.synthesis.schedule
    assert verify_schedule(schedule) == ()
    assert schedule.makespan_us <= case.most * (1 + 1e-9)
    assert schedule.makespan_us >= solved.synthesis.bound.time_us * (1 - 1e-9)
    assert solved.own_first
    if case.is_proven:
        assert solved.synthesis.proof is Proof.OPTIMAL
        assert schedule.makespan_us == pytest.approx(case.most)
        assert solved.synthesis.bound.time_us == pytest.approx(case.most)


def test_the_program_of_a_published_case_keeps_its_promise(solved):
    schedule = solved.synthesis.schedule
    lowered = lower_and_verify(schedule, LoweringOptions(EXECUTOR))
    assert lowered.replay.makespan_us <= schedule.makespan_us * 1.01


# AllReduce is a ReduceScatter and an AllGather; the target is twice the AllGather that the same search finds.
@pytest.mark.parametrize(
    ("profile", "sketch", "most"), [("NDv2_1MB", "ndv2-sk-1", 930.0), ("DGX2_1MB", "dgx2-sk-2", 333.0)]
)
def test_allreduce_takes_no_longer_than_two_allgathers_and_keeps_its_promise(tmp_path, profile, sketch, most):
    gather = synthesize(tmp_path, profile, sketch, Kind.ALLGATHER, most)
    reduce = synthesize(tmp_path, profile, sketch, Kind.ALLREDUCE, 2 * gather.schedule.makespan_us)
    assert gather.schedule.makespan_us <= most
    assert verify_schedule(reduce.schedule) == ()
    assert reduce.schedule.makespan_us <= 2 * gather.schedule.makespan_us * (1 + 1e-6)
    lowered = lower_and_verify(reduce.schedule, LoweringOptions(EXECUTOR))
    assert lowered.replay.makespan_us <= reduce.schedule.makespan_us * 1.01


# The long tail


@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "kind", "most", "target", "engine"),
    [
        # Without a target, as the command line would search.
        ("NDv2_1MB", Kind.ALLTOALL, 6800.0, None, "milp"),
        # A template wins: with whole units per chunk 485, with the costs that they were rounded from 479.2.
        ("DGX2_1KB", Kind.ALLGATHER, 485.0, 485.0, "auto"),
    ],
)
def test_a_full_search_gets_below_what_is_published(tmp_path, profile, kind, most, target, engine):
    sketch = f"{profile[:4].lower()}-sk-1"
    synthesis = synthesize(tmp_path, profile, sketch, kind, target, engine=engine)
    assert verify_schedule(synthesis.schedule) == ()
    assert synthesis.schedule.makespan_us <= most
    lowered = lower_and_verify(synthesis.schedule, LoweringOptions(EXECUTOR))
    assert lowered.replay.makespan_us <= synthesis.schedule.makespan_us * 1.01


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["highs", "cbc"])
def test_linear_solvers_get_below_what_taccl_predicts(tmp_path, solver):
    """Its released program predicts 92, 988.4 and 957.6 for these."""
    for profile, sketch, most in (
        ("NDv2_1MB", "ndv2-n1", 92.0),
        ("NDv2_1MB", "ndv2-sk-1", 988.4),
        ("DGX2_1MB", "dgx2-sk-2", 444.6),
    ):
        synthesis = synthesize(tmp_path, profile, sketch, Kind.ALLGATHER, most, solver=solver)
        assert verify_schedule(synthesis.schedule) == ()
        assert synthesis.schedule.makespan_us <= most

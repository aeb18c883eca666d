"""Random machines, sketches, collectives and options: what leaves the tool is right, and as fast as it says."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, event, given, reject, settings
from hypothesis import strategies as st

from taccl_py.errors import Infeasible, InputError, LimitReached, LoweringError
from taccl_py.lowering.lower import CallPlacement, LoweringOptions, PortOrder
from taccl_py.lowering.program import Protocol
from taccl_py.pipeline.deliver import lower_and_verify
from taccl_py.runtimes import EXECUTOR, LEGACY, RCCL
from taccl_py.schedule.files import read_schedule, write_schedule
from taccl_py.simulate.schedule_replay import replay_schedule
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.catalog import ENGINE_NAMES, load_engine
from taccl_py.synthesis.engine import Demand, Events, Options, Synthesis
from taccl_py.verify.schedule import verify_schedule
from tests.end_to_end.machines import Case, cases
from tests.instances import quiet_pulp
from tests.lowering.execute import execute

pytestmark = quiet_pulp

ROUNDING = 1e-9
# "auto" is a race of the others, each in a process of its own.
ENGINES = [name for name in ENGINE_NAMES if name != "auto"]
# What a runtime may really be too small for.
LIMITS = {"threadblocks", "max_steps", "max_channels", "protocol", "placement", "max_bytes", "fifo_slots"}


@dataclass(frozen=True)
class Found:
    """A case with the engine's answer."""

    case: Case
    synthesis: Synthesis

    @property
    def schedule(self):
        return self.synthesis.schedule

    @property
    def least_us(self):
        return self.synthesis.bound.time_us * (1 - ROUNDING)


def found(case, engine, limits):
    """The engine's answer; a drawn sketch may leave no path for some chunk, and not every engine serves everything."""
    chunks_per_rank = case.chunks_per_rank if engine == "milp" else None
    demand = Demand(case.topology, case.kind, case.size_bytes, case.root, case.sketch, chunks_per_rank)
    expected = (Infeasible,) if engine == "milp" else (Infeasible, InputError, LimitReached)
    try:
        return Found(case, load_engine(engine)(demand, Options(limits=limits), Events()))
    except expected as error:
        event(f"no answer: {type(error).__name__}")
        reject()


def greedy(case):
    """The first answer, without a search: the same one every time, so that failures can be made smaller."""
    limits = Limits(seconds=60.0, workers=1)
    limits.stop.set()
    return found(case, "milp", limits)


def searched(case, engine):
    """What a short search finds; other engines than the first know no sketches."""
    return found(case if engine == "milp" else replace(case, sketch=None), engine, Limits(seconds=0.3, workers=1))


@st.composite
def wishes(draw):
    """Options of the lowering."""
    return LoweringOptions(
        runtime=draw(st.sampled_from([EXECUTOR, RCCL, LEGACY])),
        placement=draw(st.sampled_from(CallPlacement)),
        protocol=draw(st.sampled_from([None, None, *Protocol])),
        instances=draw(st.sampled_from([1, 1, 2, 3])),
        max_threadblocks=draw(st.sampled_from([None, None, 4, 6])),
        port_order=draw(st.sampled_from(PortOrder)),
        times_blocks=draw(st.booleans()),
    )


def require_sound(answer):
    """The schedule survives its file, its verifier and its replay."""
    schedule = answer.schedule
    assert verify_schedule(schedule) == ()
    assert schedule.makespan_us >= answer.least_us
    assert read_schedule(write_schedule(schedule), "schedule.json") == schedule
    replay = replay_schedule(schedule, schedule.chunk_bytes)
    assert replay.makespan_us == pytest.approx(schedule.makespan_us, rel=ROUNDING)


def require_good_xml(answer, options):
    """The XML passes its verifier (else lower_and_verify raises), runs rightly, and is not faster than what is possible."""
    try:
        lowered = lower_and_verify(answer.schedule, options)
    except LoweringError as error:
        event(f"refused for its {error.limit}")
        if error.limit not in LIMITS:
            raise
        return
    execute(lowered.program, answer.schedule, options.runtime, instances=options.instances)
    # Instances cut chunks, and the bound is for whole ones.
    if options.instances == 1:
        assert lowered.replay.makespan_us >= answer.least_us


def require_all_good(answer, options):
    require_sound(answer)
    require_good_xml(answer, options)


slow_to_draw = settings(suppress_health_check=list(HealthCheck))
every_engine = pytest.mark.parametrize("engine", ENGINES)


@settings(slow_to_draw, max_examples=100)
@given(case=cases(), options=wishes())
def test_a_first_answer_becomes_xml_that_is_right_and_no_faster_than_possible(case, options):
    require_all_good(greedy(case), options)


@every_engine
@settings(slow_to_draw, max_examples=12)
@given(case=cases(), options=wishes())
def test_what_an_engine_finds_becomes_xml_that_is_right_and_no_faster_than_possible(engine, case, options):
    require_all_good(searched(case, engine), options)

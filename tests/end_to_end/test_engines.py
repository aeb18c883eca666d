"""Every engine on the smallest machines: an answer that becomes good XML, or a sentence that names the option."""

import pytest

from taccl_py.collective import Kind
from taccl_py.errors import InputError
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.pipeline.deliver import lower_and_verify
from taccl_py.pipeline.resolve import Request
from taccl_py.pipeline.search import synthesize
from taccl_py.runtimes import EXECUTOR, RCCL
from taccl_py.simulate.schedule_replay import replay_schedule
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.catalog import ENGINE_NAMES
from taccl_py.synthesis.engine import Events, Options
from tests.instances import quiet_pulp

pytestmark = quiet_pulp

# Two ranks leave no room for anything that engines do with the others; three are no power of two.
MACHINES = ("full:2", "switch:2", "ring:3")
SIZES = (1, 1 << 20, 1 << 33)
SEARCH_S = 0.2


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("machine", MACHINES)
# "auto" is a race of the others, each in a process of its own.
@pytest.mark.parametrize("engine", [name for name in ENGINE_NAMES if name != "auto"])
def test_every_engine_serves_the_smallest_machines_or_says_what_to_use_instead(engine, machine, kind):
    for size_bytes in SIZES:
        limits = Limits(seconds=SEARCH_S, workers=1, by_work=True)
        request = Request(machine, kind, size_bytes=size_bytes, engine=engine, options=Options(limits=limits))
        try:
            synthesis = synthesize(request, Events())
        except InputError as error:
            assert engine != "milp"
            assert "use --engine" in str(error)  # noqa: PT017
            return
        schedule = synthesis.schedule
        least_us = synthesis.bound.time_us * (1 - 1e-9)
        assert schedule.makespan_us >= least_us
        assert replay_schedule(schedule, schedule.chunk_bytes).makespan_us == pytest.approx(schedule.makespan_us)
        for runtime in (EXECUTOR, RCCL):
            assert lower_and_verify(schedule, LoweringOptions(runtime)).replay.makespan_us >= least_us

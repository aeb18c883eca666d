"""Everything that the tool makes on small random machines runs to the right result, in any order of the threadblocks."""

from hypothesis import HealthCheck, event, given, reject, settings
from hypothesis import strategies as st

from taccl_py.collective import COMBINING
from taccl_py.errors import LoweringError
from taccl_py.execute.plan import DataType, Operator
from taccl_py.execute.reader import read_plan
from taccl_py.pipeline.deliver import lower_and_verify
from tests.end_to_end.machines import cases
from tests.end_to_end.test_properties import LIMITS, greedy, wishes
from tests.execute.running import outcomes
from tests.instances import quiet_pulp

pytestmark = quiet_pulp

slow_to_draw = settings(suppress_health_check=list(HealthCheck))
three_types = st.lists(st.sampled_from(DataType), min_size=3, max_size=3, unique=True)


def require_right(text, collective, *, runtime, types, seed):
    plan = read_plan(text, "algorithm.xml", kind=collective.kind, root=collective.root)
    assert (plan.in_place, plan.out_of_place) != (False, False)
    operators = (Operator.SUM, Operator.PROD) if collective.kind in COMBINING else (Operator.SUM,)
    # Half a KiB a chunk, and as much as goes in several slices.
    sizes = (512 * plan.chunks_per_size, 40_000 * plan.chunks_per_size)
    for size in sizes:
        found = outcomes(plan, size=size, types=types, operators=operators, runtime=runtime, shuffled=True, seed=seed)
        assert [str(outcome.first_wrong) for outcome in found if outcome.num_wrong] == []


def check(case, options, types, seed):
    schedule = greedy(case).schedule
    try:
        lowered = lower_and_verify(schedule, options)
    except LoweringError as error:
        event(f"refused for its {error.limit}")
        if error.limit not in LIMITS:
            raise
        reject()
    require_right(lowered.text, schedule.collective, runtime=options.runtime, types=types, seed=seed)


@settings(slow_to_draw, max_examples=40)
@given(case=cases(), options=wishes(), types=three_types, seed=st.integers(0, 99))
def test_what_leaves_the_tool_is_right_on_real_data(case, options, types, seed):
    check(case, options, types, seed)

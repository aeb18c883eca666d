from hypothesis import given, settings

from taccl_py.collective import Kind
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.templates.library import template_schedules
from taccl_py.verify.schedule import judge_schedule
from tests.synthesis.drawn import node_problems


@given(node_problems(kinds=(Kind.ALLTOALL,)))
@settings(deadline=None, max_examples=60)
def test_on_any_two_nodes_no_chunk_comes_back_to_where_it_was(drawn):
    for found in template_schedules(Demand(drawn.topology, Kind.ALLTOALL, 1000.0)):
        assert judge_schedule(found.schedule) == (), found.name

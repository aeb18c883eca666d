from dataclasses import replace

import pytest

from taccl_py.collective import Kind
from taccl_py.schedule.ir import Origin
from taccl_py.synthesis.bounds import Bound
from taccl_py.synthesis.engine import Demand, Proof, Synthesis
from taccl_py.synthesis.messages import bounded_by_messages
from taccl_py.synthesis.templates.library import template_schedules
from tests.instances import nodes_with_nics


def best_template(per_node):
    """AllToAll of three nodes, one NIC of 10 us a node; of two ranks: 1 us, two messages of four chunks, 1 us."""
    demand = Demand(nodes_with_nics(3, per_node, 1.0, 10.0), Kind.ALLTOALL, 6.0)
    schedule = min((each.schedule for each in template_schedules(demand)), key=lambda each: each.makespan_us)
    origin = Origin("templates", "none", "", 0, str(Proof.FEASIBLE), 12.0, "latency")
    return Synthesis(schedule.with_origin(origin), Bound(12.0, "latency"), Proof.FEASIBLE, "none", {})


def test_messages_that_carry_less_have_to_be_more():
    """Eight chunks, four in a message: the first one waits for a step; the last one can bring one rank what all others have for it."""
    found = best_template(per_node=2)
    limited = bounded_by_messages(found, 4)
    assert found.schedule.makespan_us == 22.0
    assert limited.bound.time_us == pytest.approx(21.0)
    assert limited.proof is Proof.FEASIBLE
    assert limited.schedule.origin == replace(
        found.schedule.origin,
        bound_us=limited.bound.time_us,
        bound_reason=limited.bound.reason,
        holds_for="messages of at most 4 chunks",
    )


def test_what_is_at_that_bound_is_optimal():
    limited = bounded_by_messages(best_template(per_node=1), 1)
    assert limited.bound.time_us == pytest.approx(limited.schedule.makespan_us) == 20.0
    assert limited.proof is Proof.OPTIMAL
    assert limited.schedule.origin.status == "optimal"


def test_what_carries_more_than_the_limit_keeps_its_bound():
    found = best_template(per_node=2)
    assert bounded_by_messages(found, 3) is found


def test_a_better_bound_is_kept():
    found = replace(best_template(per_node=2), bound=Bound(22.0, "somebody knew"))
    assert bounded_by_messages(found, 4) is found


def test_only_messages_between_nodes_are_limited():
    """Inside the nodes more may go together: nothing there says how many messages a NIC needs."""
    found = best_template(per_node=2)
    links, node_of = found.schedule.topology.links, found.schedule.topology.node_of
    first = found.schedule.messages[0]
    assert node_of[links[first.link].src] == node_of[links[first.link].dst]
    longer = replace(first, chunks=tuple(range(6)))
    schedule = replace(found.schedule, messages=(longer, *found.schedule.messages[1:]))
    assert bounded_by_messages(replace(found, schedule=schedule), 4).bound.time_us == pytest.approx(21.0)

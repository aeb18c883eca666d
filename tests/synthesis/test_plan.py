import pytest

from taccl_py.collective import Collective, Kind
from taccl_py.sketch.model import Rotation, Sketch
from taccl_py.synthesis.grid import TimeGrid
from taccl_py.synthesis.plan import OrbitMessage, chains, lift, on_grid, plan_end
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.quotient import Quotient
from taccl_py.verify.schedule import verify_schedule
from tests.instances import MB, chain, ring, two_nodes


def quotient_of(topology, kind, sketch=None, chunks=1):
    return Quotient.of(Problem.build(topology, Collective(kind, topology.num_ranks, chunks), sketch, MB))


def arc_of(q, chunk, src, dst):
    """Arc whose orbit has a member that carries the chunk from one rank to another."""
    links = q.problem.topology.links
    wanted = (chunk, src, dst)
    (found,) = [a for a in range(q.num_arcs) if wanted in {(c, links[k].src, links[k].dst) for c, k in q.members(a)}]
    return found


def lines(schedule):
    links = schedule.topology.links
    return [(m.start_us, links[m.link].src, links[m.link].dst, m.chunks) for m in schedule.messages]


def test_the_end_of_a_plan_is_its_last_arrival():
    assert plan_end(()) == 0
    assert plan_end((OrbitMessage((0,), 0.0, 5.0), OrbitMessage((1,), 1.0, 3.0))) == 5.0


def test_runs_follow_their_predecessors():
    joins = {1: 0, 2: 1, 5: 4, 7: 6}
    assert chains([0, 1, 2], joins) == [(0, 1, 2)]
    assert chains([2, 1, 0], joins) == [(0, 1, 2)]
    assert chains([0, 2], joins) == [(0,), (2,)]
    assert chains([1, 2, 5, 4, 9], joins) == [(1, 2), (4, 5), (9,)]
    assert chains([], joins) == []


def test_a_plan_becomes_messages_at_their_earliest_times():
    q = quotient_of(chain(3), Kind.BROADCAST, chunks=2)
    plan = [
        OrbitMessage((arc_of(q, 0, 0, 1),), 5.0, 6.0),
        OrbitMessage((arc_of(q, 1, 0, 1),), 6.0, 7.0),
        OrbitMessage((arc_of(q, 0, 1, 2), arc_of(q, 1, 1, 2)), 100.0, 200.0),
    ]
    schedule = lift(q, plan)
    assert lines(schedule) == [(0.0, 0, 1, (0,)), (11.0, 0, 1, (1,)), (22.0, 1, 2, (0, 1))]
    assert schedule.makespan_us == 22.0 + 21.0
    assert verify_schedule(schedule) == ()


def test_every_member_of_an_orbit_is_sent():
    q = quotient_of(ring(4), Kind.ALLGATHER)
    steps = [OrbitMessage((arc_of(q, 0, hop, hop + 1),), hop * 11.0, (hop + 1) * 11.0) for hop in range(3)]
    schedule = lift(q, steps)
    assert lines(schedule) == [
        (hop * 11.0, rank, (rank + 1) % 4, ((rank - hop) % 4,)) for hop in range(3) for rank in range(4)
    ]
    assert verify_schedule(schedule) == ()


def test_a_batch_is_cut_where_its_chunks_are_no_neighbours():
    """Rank 3's output has the chunks of ranks 0 and 2 apart, whatever the plan says."""
    topology = two_nodes(3, {0: (0,)}, inside=(1.0, 10.0), between=(1.0, 10.0))
    q = quotient_of(topology, Kind.ALLGATHER, Sketch("mine", connections={0: (0,)}))
    arcs = tuple(arc_of(q, chunk, 0, 3) for chunk in (0, 1, 2))
    first = [OrbitMessage((arc_of(q, chunk, chunk, 0),), 0.0, 11.0) for chunk in (1, 2)]
    together = lift(q, [*first, OrbitMessage(arcs, 11.0, 42.0)])
    assert lines(together)[-1] == (11.0, 0, 3, (0, 1, 2))
    apart = lift(q, [*first, OrbitMessage((arcs[0], arcs[2]), 11.0, 32.0)])
    between = [line for line in lines(apart) if line[1:3] == (0, 3)]
    assert between == [(0.0, 0, 3, (0,)), (11.0, 0, 3, (2,))]


def test_of_a_batch_that_is_cut_the_senders_own_chunks_go_first():
    topology = two_nodes(3, {2: (0,)}, inside=(1.0, 10.0), between=(1.0, 10.0))
    sketch = Sketch("mine", connections={2: (0,)}, relays={2: (0, 1, 2)}, own_first=True)
    q = quotient_of(topology, Kind.ALLGATHER, sketch)
    plan = [
        OrbitMessage((arc_of(q, 0, 0, 2),), 0.0, 11.0),
        OrbitMessage((arc_of(q, 0, 2, 3), arc_of(q, 2, 2, 3)), 11.0, 32.0),
    ]
    start_of = {
        chunk: start for start, src, dst, chunks in lines(lift(q, plan)) for chunk in chunks if (src, dst) == (2, 3)
    }
    assert start_of[2] <= start_of[0]


def test_on_the_grid_a_plan_is_as_long_as_its_schedule():
    sketch = Sketch("mine", connections={1: (0,)}, rotations=(Rotation("node", "machine"),))
    topology = two_nodes(2, {1: (0,)}, inside=(1.0, 10.0), between=(100.0, 10.0))
    q = quotient_of(topology, Kind.ALLGATHER, sketch)
    grid = TimeGrid.of(q, 1000.0)
    own, relayed = arc_of(q, 1, 1, 2), arc_of(q, 0, 1, 2)
    plan = [
        OrbitMessage((arc_of(q, 0, 0, 1), ), 0.0, 1.0),
        OrbitMessage((arc_of(q, 1, 1, 0), ), 0.0, 1.0),
        OrbitMessage((relayed, own), 1.0, 2.0),
        OrbitMessage((arc_of(q, 0, 2, 3), arc_of(q, 1, 2, 3)), 2.0, 3.0),
    ]  # fmt: skip
    joins = {own: relayed, arc_of(q, 1, 2, 3): arc_of(q, 0, 2, 3)}
    schedule = lift(q, plan)
    assert verify_schedule(schedule) == ()
    assert schedule.makespan_us == 11.0 + 120.0 + 21.0
    assert plan_end(on_grid(q, grid, joins, plan)) / grid.units_per_us == pytest.approx(152.0)
    alone = on_grid(q, grid, {}, plan)
    assert plan_end(alone) / grid.units_per_us == pytest.approx(11.0 + 2 * 110.0 + 11.0), "alpha for every chunk"
    assert all(len(batch.arcs) == 1 for batch in alone)

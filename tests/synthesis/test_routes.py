from hypothesis import given, settings

from taccl_py.collective import Collective, Kind
from taccl_py.sketch.model import Sketch
from taccl_py.synthesis.bounds import quickest
from taccl_py.synthesis.grid import TimeGrid
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.quotient import Quotient
from taccl_py.synthesis.routes import FAR, Routes
from tests.instances import MB, chain, ring, two_nodes
from tests.synthesis.drawn import problems

RELAYED = Sketch("mine", connections={1: (0,)}, relays={1: (0, 1)}, own_first=True)


def routes_of(topology, kind=Kind.ALLGATHER, sketch=None):
    q = Quotient.of(Problem.build(topology, Collective(kind, topology.num_ranks), sketch, MB))
    grid = TimeGrid.of(q, 1000.0)
    return q, grid, Routes.of(q, grid)


def test_distances_along_a_chain():
    q, grid, routes = routes_of(chain(4), Kind.BROADCAST)
    unit = grid.units_per_us
    assert q.source.tolist() == [True, False, False, False]
    assert routes.earliest == (0, 11 * unit, 22 * unit, 33 * unit)
    assert routes.hops == (0, 1, 2, 3)
    assert [len(arcs) for arcs in routes.out] == [1, 1, 1, 0]
    assert [len(arcs) for arcs in routes.into] == [0, 1, 1, 1]


def test_what_is_far_from_its_goal_is_more_urgent():
    _, _, routes = routes_of(chain(4), Kind.BROADCAST)
    assert routes.remaining[0] > routes.remaining[1] > routes.remaining[2] > routes.remaining[3] > 0


def test_a_relay_that_nobody_is_reached_through_is_not_urgent():
    q, _, routes = routes_of(ring(4, both_ways=True), Kind.SCATTER)
    relays = [state for state in range(q.num_states) if not q.required[state] and not q.source[state]]
    assert relays
    assert any(routes.remaining[state] for state in relays), "the chunk for the rank across passes one of them"


def test_a_state_that_nothing_leads_to_is_far():
    mirrored = Sketch("mine", permutations=((0, 3, 2, 1),))
    _, _, routes = routes_of(ring(4, both_ways=True), Kind.BROADCAST, mirrored)
    assert max(routes.earliest) == FAR


@settings(max_examples=50)
@given(problems())
def test_earliest_times_are_shortest_paths(drawn):
    problem = Problem.build(drawn.topology, drawn.collective, None, drawn.chunk_bytes)
    q = Quotient.of(problem.without_symmetry())
    grid = TimeGrid.of(q, 1e4)
    routes = Routes.of(q, grid)
    cost = [0.0] * len(drawn.topology.links)
    for arc in range(q.num_arcs):
        cost[q.link[arc]] = grid.duration(arc)
    for arc in range(q.num_arcs):
        chunk, link = q.members(arc)[0]
        usable = [k for a in range(q.num_arcs) for c, k in q.members(a) if c == chunk]
        distance = quickest(drawn.topology, [drawn.collective.source[chunk]], usable, cost)
        assert routes.earliest[q.head[arc]] == distance[drawn.topology.links[link].dst]


def test_own_chunks_precede_every_relayed_chunk_on_links_between_nodes():
    q, _, routes = routes_of(two_nodes(2, {1: (0,)}), Kind.ALLGATHER, RELAYED)
    named = {(q.members(own)[0], q.members(other)[0]) for own, other in routes.own_first_pairs}
    links = q.problem.topology.links_between
    assert named == {((1, links[1, 2][0]), (0, links[1, 2][0])), ((3, links[3, 0][0]), (2, links[3, 0][0]))}


def test_no_order_is_wanted_without_the_word():
    topology = two_nodes(2, {1: (0,)})
    assert routes_of(topology, Kind.ALLGATHER, Sketch("mine", connections={1: (0,)}))[2].own_first_pairs == ()
    assert routes_of(topology)[2].own_first_pairs == ()

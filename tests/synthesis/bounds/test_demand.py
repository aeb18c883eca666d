"""Bounds for every algorithm on a machine: published figures, hand-made machines, and schedules that must not be faster."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import COMBINING, Collective, Kind
from taccl_py.errors import Infeasible, InputError
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import DemandBounds, best_bound, demand, demand_bound, message_bound
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.milp import synthesize_milp
from taccl_py.synthesis.problem import Problem
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link, Port, Topology
from tests.instances import MB, chain, demand_of_chunks, full, machine, quiet_pulp, ring, star_in, two_nodes
from tests.synthesis.drawn import problems
from tests.synthesis.exhaustive import least_time_us

pytestmark = quiet_pulp

# So large that alpha and latency are lost in the digits that are compared.
HUGE = 1e15


def per_share(name, kind):
    """Time for each MB of a rank's share, at a size where bandwidth is all."""
    topology = load_topology(name)
    return demand_bound(topology, kind, 0, HUGE).time_us / (HUGE / MB) * topology.num_ranks


# Figures of ForestColl and of max-flow programs for these machines, in ms for a share of a GB.
@pytest.mark.parametrize(
    ("name", "kind", "time_ms"),
    [
        ("ndv4", "allgather", 7 / 300), ("ndv4-x2", "allgather", 3 / 65), ("ndv4-x4", "allgather", 0.12),
        ("ndv4-x8", "allgather", 0.28), ("ndv5-x2", "allgather", 0.03), ("mi250x", "allgather", 14 / 300),
        ("mi250x-x2", "allgather", 15 / 166), ("ndv4-x2", "alltoall", 0.32), ("ndv5-x2", "alltoall", 0.16),
        ("mi250x", "alltoall", 0.64 / 3),
    ],
)  # fmt: skip
def test_published_throughput_of_multi_node_machines(name, kind, time_ms):
    assert per_share(name, Kind(kind)) == pytest.approx(1000 * time_ms, rel=1e-6)


# A DGX-1 link has 25 GB/s, 40 us a MB; SCCL counts in shares over one such link.
@pytest.mark.parametrize(
    ("kind", "rounds"),
    [
        ("allgather", 7 / 6), ("reducescatter", 7 / 6), ("gather", 7 / 6), ("scatter", 7 / 6), ("broadcast", 8 / 6),
        ("reduce", 8 / 6), ("alltoall", 8 / 3), ("allreduce", 14 / 6),
    ],
)  # fmt: skip
def test_known_rounds_of_a_dgx1(kind, rounds):
    assert per_share("dgx1", Kind(kind)) == pytest.approx(40 * rounds, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "kind", "rounds"),
    [
        ("ring:8", "allgather", 7 / 2), ("ring:8", "alltoall", 8), ("ring:8", "broadcast", 8 / 2), ("torus:4x4", "allgather", 15 / 4),
        ("torus:8x8", "allgather", 63 / 4), ("torus:4x4x4", "allgather", 63 / 6), ("hypercube:3", "alltoall", 4),
        ("switch:16", "allreduce", 30), ("mesh:4x4", "allgather", 15 / 2),
    ],
)  # fmt: skip
def test_known_rounds_of_formulas(name, kind, rounds):
    assert per_share(f"{name},alpha_us=0,beta_us_per_mb=1", Kind(kind)) == pytest.approx(rounds, rel=1e-6)


def test_the_worst_cut_is_named():
    reasons = {
        name: demand_bound(load_topology(name), Kind.ALLGATHER, 0, HUGE).reason
        for name in ("ndv4-x2", "ndv2-x2", "dgx1", "mi250x")
    }
    assert reasons["ndv4-x2"] == "bandwidth: 93.8 % of the data through rank 0's ports in"
    assert reasons["ndv2-x2"] == "bandwidth: 50 % of the data through node 0's ports in"
    assert reasons["dgx1"].endswith("'s links in")
    assert reasons["mi250x"].startswith("bandwidth: 87.5 % of the data through the links from ranks ")
    scatter = demand_bound(load_topology("switch:4"), Kind.SCATTER, 2, HUGE)
    assert scatter.reason == "bandwidth: 75 % of the data through rank 2's ports out"


def test_small_sizes_are_bound_by_alpha():
    """16 ranks behind single ports: whatever the size, the number that knows something doubles in every alpha."""
    switch = load_topology("switch:16,alpha_us=1,beta_us_per_mb=10")
    for kind in Kind:
        bound = demand_bound(switch, kind, 0, 16.0)
        assert bound.time_us == pytest.approx(4.0, rel=1e-4), kind
        assert bound.reason.startswith("bandwidth: everything" if kind in (Kind.BROADCAST, Kind.REDUCE) else "fan-"), (
            kind
        )
    line = chain(5, alpha_us=2.0, latency_us=1.0)
    for kind, root in ((Kind.BROADCAST, 0), (Kind.REDUCE, 4)):
        bounds = DemandBounds.of(line, kind, root)
        assert bounds.latency.time_us == 12.0
        assert bounds.latency.reason == "latency: quickest path from rank 0 to rank 4"
        assert bounds.at(16.0).time_us == pytest.approx(12.0, rel=1e-4)


@pytest.mark.parametrize(
    ("machine_name", "time_us"),
    [
        # 10.49 us and 1 us until the last of it has left; then two ranks know it, and 14 others are told in three doublings.
        ("switch:16,alpha_us=1,beta_us_per_mb=10", 10.48576 + 1 + 3),
        # Over 7 links at a time, and every rank can have been told by the root.
        ("full:8,alpha_us=1,beta_us_per_mb=10", 10.48576 / 7 + 1),
    ],
)
def test_what_leaves_the_root_last_still_has_to_be_passed_on(machine_name, time_us):
    for kind in (Kind.BROADCAST, Kind.REDUCE):
        charges = DemandBounds.of(load_topology(machine_name), kind).charges
        passed_on = [charge.at(1 << 20) for charge in charges if "everything" in charge.reason]
        assert max(bound.time_us for bound in passed_on) == pytest.approx(time_us)


def test_what_leaves_the_root_s_node_last_still_has_to_be_passed_on_to_other_nodes():
    """64 nodes with 8 NICs of 50 GB/s, 2.6 us a message: an eighth each, then 9 nodes know it, and the other 55 need a round more."""
    charges = DemandBounds.of(load_topology("hpn:64"), Kind.BROADCAST).charges
    (bound,) = [charge.at(1 << 20) for charge in charges if "leaves node 0" in charge.reason]
    assert bound.time_us == pytest.approx(20 * 1.048576 / 8 + 2.6 + 2.6)


def test_the_way_to_a_cut_and_from_it_counts():
    """Broadcast over a chain: the last link is idle until something can be there (2 + 1), and pays alpha and latency (3)."""
    topology = machine(3, [Link(0, 1, 2.0, 1.0, 1.0), Link(1, 2, 2.0, 10.0, 1.0)])
    assert demand_bound(topology, Kind.BROADCAST, 0, 10 * MB).time_us == pytest.approx(3.0 + 3.0 + 100.0)
    assert demand_bound(topology, Kind.GATHER, 2, 3 * MB).time_us == pytest.approx(2.0 + 20.0 + 1.0)


def test_allreduce_moves_everything_in_and_out_and_twice_between_groups():
    """The slow leaf gives and takes all of it once; four equal ranks need 2 * 3 transfers over 4 links."""
    slow = machine(3, [Link(0, 1, 0.0, 1.0), Link(1, 0, 0.0, 1.0), Link(1, 2, 0.0, 100.0), Link(2, 1, 0.0, 100.0)])
    assert demand_bound(slow, Kind.ALLREDUCE, 0, MB).time_us == pytest.approx(100.0)
    assert demand_bound(ring(4, alpha_us=0.0), Kind.ALLREDUCE, 0, MB).time_us == pytest.approx(2 * 3 * 10.0 / 4)
    nodes = two_nodes(2, {1: (0,)}, num_nodes=3)
    bound = demand_bound(nodes, Kind.ALLREDUCE, 0, MB)
    assert bound.time_us == pytest.approx(2 * 2 * 50.0 / 6)
    assert bound.reason == "bandwidth: 2(3-1) transfers of everything between nodes"


def test_more_data_and_a_slower_machine_never_lower_a_bound():
    topology = load_topology("ndv4-x2").subset([0, 1, 2, 3, 8, 9, 10, 11])
    slower = replace(topology, links=tuple(replace(k, alpha_us=k.alpha_us + 1) for k in topology.links))
    for kind in Kind:
        bounds = DemandBounds.of(topology, kind)
        times = [bounds.at(float(size)).time_us for size in (1, 10**3, 10**6, 10**9)]
        assert times == sorted(times)
        assert demand_bound(slower, kind, 0, 1000.0).time_us > times[1]


def test_one_analysis_serves_all_sizes():
    topology = load_topology("dgx1")
    bounds = DemandBounds.of(topology, Kind.BROADCAST, 3)
    for size in (1e3, 1e6, 1e9):
        assert bounds.at(size) == demand_bound(topology, Kind.BROADCAST, 3, size)
        assert bounds.at(size).time_us == max(
            b.time_us for b in (bounds.latency, bounds.spread, bounds.bandwidth(size))
        )


def test_a_wrong_symmetry_is_not_used():
    """One link is slower than the rotation says: the rank behind it needs longest, whichever rank stands for all."""
    links = [Link(r, (r + 1) % 4, 0.0, 10.0 if r != 2 else 30.0) for r in range(4)]
    turned = machine(4, links, symmetry=[(1, 2, 3, 0)])
    assert demand_bound(turned, Kind.ALLGATHER, 0, 4 * MB).time_us == pytest.approx(3 * 30.0)


def test_what_cannot_be_done_is_said():
    with pytest.raises(Infeasible, match=r"no path of links from rank 1 to rank 0"):
        demand_bound(chain(3), Kind.ALLGATHER, 0, 1.0)
    with pytest.raises(Infeasible, match=r"no path of links from rank 2 to rank 0"):
        demand_bound(machine(3, [Link(1, 0, 1.0, 1.0), Link(0, 2, 1.0, 1.0)]), Kind.GATHER, 0, 1.0)
    with pytest.raises(InputError, match="allgather has no root"):
        demand_bound(full(3), Kind.ALLGATHER, 1, 1.0)
    with pytest.raises(InputError, match="root 3 does not exist"):
        demand_bound(full(3), Kind.BROADCAST, 3, 1.0)


@pytest.mark.parametrize("kind", Kind)
def test_nodes_that_nothing_joins_are_refused(kind):
    apart = machine(4, [Link(a, a ^ 1, 1.0, 1.0) for a in range(4)], node_of=(0, 0, 1, 1))
    with pytest.raises(Infeasible, match="no path of links"):
        DemandBounds.of(apart, kind)


def test_who_wants_nothing_need_not_be_reached():
    assert demand_bound(star_in(3, Port("in", 0.0, 10.0)), Kind.GATHER, 0, 4 * MB).time_us == pytest.approx(30.0)


def test_the_best_bound_is_the_best():
    """Fan-out is what chunks do not know of: one chunk of a byte to 16 ranks behind single ports."""
    topology = load_topology("switch:16,alpha_us=1,beta_us_per_mb=10")
    problem = Problem.build(topology, Collective(Kind.BROADCAST, 16), None, 1.0)
    assert best_bound(problem, Limits()).time_us == pytest.approx(4.0, rel=1e-3)
    whole = Problem.build(topology, Collective(Kind.BROADCAST, 16), None, 10 * MB)
    assert best_bound(whole, Limits()).time_us >= demand_bound(topology, Kind.BROADCAST, 0, 10 * MB).time_us


# Against everything


def is_below_everything(drawn, chunk_bytes):
    problem = Problem.build(drawn.topology, drawn.collective, None, chunk_bytes)
    best_us = least_time_us(problem, batches=True, most=3_000)
    if best_us is None:
        return True
    collective = drawn.collective
    size = chunk_bytes * collective.chunks_per_size
    return demand_bound(drawn.topology, collective.kind, collective.root, size).time_us <= best_us * (1 + 1e-9)


@settings(max_examples=40)
@given(problems(most_chunks=4, mixed_latency=True), st.sampled_from([1.0, MB / 10, MB]))
def test_no_schedule_of_a_tiny_problem_is_faster(drawn, chunk_bytes):
    assert is_below_everything(drawn, chunk_bytes)


@settings(max_examples=100)
@given(problems(kinds=(Kind.BROADCAST,), most_ranks=6, most_chunks=1), st.sampled_from([1.0, MB]))
def test_no_broadcast_of_one_chunk_is_faster(drawn, chunk_bytes):
    assert is_below_everything(drawn, chunk_bytes)


@settings(max_examples=8)
@given(problems(kinds=tuple(COMBINING), most_ranks=4, most_chunks=8, mixed_latency=True))
def test_no_sum_that_an_engine_finds_is_faster(drawn):
    demand = demand_of_chunks(drawn.topology, drawn.collective, None, drawn.chunk_bytes)
    found = synthesize_milp(demand, Options(limits=Limits(seconds=0.05, by_work=True)), Events())
    bound = demand_bound(demand.topology, demand.kind, demand.root, demand.size_bytes)
    assert bound.time_us <= found.schedule.makespan_us * (1 + 1e-9)


@pytest.mark.parametrize("kind", [Kind.ALLGATHER, Kind.REDUCESCATTER])
def test_what_has_crossed_a_cut_must_still_get_to_the_farthest_rank_behind_it(kind):
    """3 MB enter a node over one link of 100 us/MB and 1 us; the last of it is two hops of 0.5 us from the farthest rank."""
    inside = [(a + n, b + n) for n in (0, 3) for a, b in ((0, 1), (1, 0), (1, 2), (2, 1))]
    links = [Link(a, b, 0.0, 1e-3, 0.5) for a, b in inside] + [Link(a, b, 0.0, 100.0, 1.0) for a, b in ((0, 3), (3, 0))]
    topology = machine(6, links, node_of=(0, 0, 0, 1, 1, 1))
    bound = demand_bound(topology, kind, 0, 6 * MB)
    assert bound.time_us == pytest.approx(302.0)
    assert bound.reason.startswith("bandwidth: 50 % of the data through node")


def test_of_a_link_and_its_port_that_let_the_same_through_the_one_with_the_larger_alpha_counts():
    """1 MB to a rank takes 3 + 10 us on the way in, where a port and a link of 0.5 us are equally fast."""
    ports = [Port(f"{rank} {way}", 3.0, beta) for rank in range(2) for way, beta in (("out", 1.0), ("in", 10.0))]
    topology = machine(2, [Link(0, 1, 0.5, 10.0, ports=(0, 3)), Link(1, 0, 0.5, 10.0, ports=(2, 1))], ports)
    for kind in (Kind.BROADCAST, Kind.ALLTOALL, Kind.ALLREDUCE):
        size = 2 * MB if kind is Kind.ALLTOALL else MB
        assert demand_bound(topology, kind, 0, size).time_us == pytest.approx(13.0)


def test_bounds_do_not_depend_on_the_numbers_of_the_nodes():
    links = tuple(Link(a, b, 1.0 if a // 2 == b // 2 else 4.0, 10.0) for a in range(4) for b in range(4) if a != b)
    for kind in (Kind.ALLGATHER, Kind.ALLREDUCE, Kind.ALLTOALL):
        found = {
            demand_bound(Topology("pairs", "invented", nodes, (), links), kind, 0, 1e3).time_us
            for nodes in ((0, 0, 1, 1), (1, 1, 0, 0))
        }
        assert len(found) == 1


def test_latency_passes_before_a_port_is_occupied_where_time_runs_backwards():
    """Rank 1 sends its part of one sum straight to rank 0, which takes 5 us after the port, and that of another through rank 3.

    So the port that both take is busy in the beginning and in the end, and latency before or after it is never in its way.
    """
    ports = [Port("one way", 0.5, 10.0), Port("across", 0.3, 46.0)]
    crossing = {(1, 0): (5.0, (1,)), (1, 2): (5.0, (1,)), (1, 3): (5.0, ()), (3, 0): (0.0, (1,)), (3, 2): (0.0, (0, 1))}
    pairs = [(src, dst) for src in range(4) for dst in range(4) if src != dst]
    links = [Link(*pair, 0.5, 10.0, *crossing.get(pair, (0.0, ()))) for pair in pairs]
    topology = machine(4, links, ports, node_of=(0, 0, 1, 1))
    reached_us = 6.7176  # by the schedule of the first sentence, for 16 KiB a rank
    assert demand_bound(topology, Kind.REDUCESCATTER, 0, 65536).time_us <= reached_us
    demand = Demand(topology, Kind.REDUCESCATTER, 65536, 0, None, 1)
    found = synthesize_milp(demand, Options(limits=Limits(seconds=1.0, workers=1)), Events())
    assert found.bound.time_us <= reached_us


def test_what_takes_long_is_left_out_when_time_is_up_and_the_rest_holds(monkeypatch):
    """Two ND A100 v4 nodes, 1 MiB: the NICs' bandwidth stays, what is handed out late does not; and what is given in any case is given."""
    monkeypatch.setattr(demand, "_LEAST_SECONDS", 0.0)
    topology, stopped = load_topology("ndv4", 2), Limits()
    stopped.stop.set()
    whole = DemandBounds.of(topology, Kind.ALLGATHER)
    left = DemandBounds.of(topology, Kind.ALLGATHER, limits=stopped, relays_from=1024.0)
    assert whole.handouts
    assert (left.handouts, left.relays) == ((), None)
    assert 0 < left.at(1 << 20).time_us <= whole.at(1 << 20).time_us
    assert whole.at(1 << 20, over=lambda: True).time_us < whole.at(1 << 20).time_us
    monkeypatch.setattr(demand, "_LEAST_SECONDS", 100.0)
    assert demand_bound(topology, Kind.ALLGATHER, 0, 1 << 20, stopped) == whole.at(1 << 20)


def test_a_bound_on_messages_is_not_looked_for_when_time_is_up():
    topology = load_topology("ndv4", 2)
    assert message_bound(topology, Kind.ALLTOALL, 1 << 30, 1).time_us > 0
    assert message_bound(topology, Kind.ALLTOALL, 1 << 30, 1, lambda: True).time_us == 0

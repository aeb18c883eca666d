"""One root, replicated: costs worked out by hand, on machines up to thousands of ranks."""

import math
from dataclasses import replace

import pytest

from taccl_py.collective import Kind
from taccl_py.schedule.group import GROUP_KINDS
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import demand_bound
from taccl_py.synthesis.bounds.bound import Bound
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.matching.replicate import replicate, why_not
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.machines import formula_topology
from taccl_py.topology.model import Link, Port, Topology
from taccl_py.verify.group import verify_group
from taccl_py.verify.schedule import verify_schedule

NO_BOUND = Bound(0.0, "")
# Costs of TACOS's machines: 50 GiB/s and 0.5 us.
TACOS = "alpha_us=0.5,beta_us_per_mb=18.62645149230957"
SHARE = 1 << 20


def replicated(topology, kind, share_bytes=1e6, chunks=1, seed=0):
    demand = Demand(topology, kind, share_bytes * topology.num_ranks, chunks_per_rank=chunks)
    return replicate(demand, Limits(seed=seed), NO_BOUND)


@pytest.mark.parametrize(
    ("formula", "steps"),
    [
        ("torus:4x4", 4), ("torus:8x8", 16), ("torus:16x16", 64), ("torus:32x32", 256), ("ring:9", 4), ("ring:64", 32),
        ("torus:3x3x3", 5), ("torus:8x8x8", 86), ("torus:16x16x16", 683), ("twisted:8x16", 32), ("hypercube:6", 11), ("full:32", 1),
        ("switch:12", 11), ("fattree:4", 15),
    ],
)  # fmt: skip
def test_allgather_takes_no_more_steps_than_a_rank_needs_to_receive_all(formula, steps):
    topology = formula_topology(formula)
    fewest = math.ceil((topology.num_ranks - 1) / len({k.dst for k in topology.links if k.src == 0}))
    assert steps == fewest or topology.ports
    schedule = replicated(topology, Kind.ALLGATHER)
    assert schedule.makespan_us == pytest.approx(steps * topology.message_us(0, 1e6))


@pytest.mark.parametrize(
    ("formula", "tacos_us"), [("torus:8x8", 340.53), ("torus:16x16", 1302.03), ("torus:32x32", 5168.06)]
)
def test_tori_are_faster_than_those_of_tacos(formula, tacos_us):
    topology = formula_topology(f"{formula},{TACOS}")
    assert replicated(topology, Kind.ALLGATHER, SHARE).makespan_us < tacos_us * 0.995


def test_sums_take_as_long_as_copies_and_allreduce_twice_as_long():
    for formula in ("torus:4x6", "hpn:3"):
        topology = formula_topology(formula)
        gather, scatter, both = (
            replicated(topology, kind).makespan_us for kind in (Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.ALLREDUCE)
        )
        assert scatter == pytest.approx(gather)
        assert both == pytest.approx(2 * gather)


def test_alltoall_on_a_ring_of_5_is_bound_by_its_links():
    # One hop to 1, two to 2: 3 messages on each of the two orbits of links, one after another.
    topology = formula_topology("ring:5")
    assert replicated(topology, Kind.ALLTOALL).makespan_us == pytest.approx(3 * topology.message_us(0, 1e6))


def test_alltoall_spreads_equal_ways_over_both_directions():
    # Of a ring of 4 only the chunk for the rank opposite has a choice: 1 + 2 messages on one orbit and 1 on the other with one
    # chunk, and 2 + 2 on each with two chunks.
    topology = formula_topology("ring:4")
    one = replicated(topology, Kind.ALLTOALL, chunks=1)
    two = replicated(topology, Kind.ALLTOALL, chunks=2)
    assert one.makespan_us == pytest.approx(3 * topology.message_us(0, 1e6))
    assert two.makespan_us == pytest.approx(4 * topology.message_us(0, 0.5e6))
    assert verify_schedule(two.expanded()) == ()


def test_large_sizes_are_cut_finer_where_that_pays():
    topology = load_topology("ndv5", 4)
    demand = Demand(topology, Kind.ALLGATHER, 2**30)
    free = replicate(demand, Limits(), NO_BOUND)
    assert free.chunks_per_rank > 1
    assert free.makespan_us < 0.95 * replicated(topology, Kind.ALLGATHER, 2**30 / 32).makespan_us
    assert verify_group(free) == ()


@pytest.mark.parametrize(("kind", "nodes"), [(Kind.ALLGATHER, 64), (Kind.REDUCESCATTER, 16), (Kind.ALLREDUCE, 16)])
def test_hundreds_of_gpus_on_rails_are_near_the_bound(kind, nodes):
    topology = formula_topology(f"hpn:{nodes}")
    bound = demand_bound(topology, kind, 0, 2**30)
    schedule = replicate(Demand(topology, kind, 2**30, chunks_per_rank=1), Limits(), bound)
    assert verify_group(schedule) == ()
    assert bound.time_us <= schedule.makespan_us <= bound.time_us * 1.05


def test_what_256_gpus_have_for_a_node_goes_there_together():
    # 31 messages of 8 chunks of 2 MiB through each NIC, 2.6 us and 20 us/MB, instead of 248 of one chunk.
    topology = formula_topology("hpn:32")
    bound = demand_bound(topology, Kind.ALLTOALL, 0, 2**29)
    schedule = replicate(Demand(topology, Kind.ALLTOALL, 2**29), Limits(), bound)
    assert verify_group(schedule) == ()
    assert max(len(message.chunks) for message in schedule.base) == 8
    sent_us = 31 * (2.6 + 8 * 2.097152 * 20)
    assert max(bound.time_us, sent_us) <= schedule.makespan_us <= 1.02 * bound.time_us


def test_alltoall_of_a_torus_of_512_ranks_is_at_the_bound_of_its_links():
    # A rank has (0 + 1 + 2 + 3 + 4 + 3 + 2 + 1) * 64 hops to make along each of 3 sides, over two links each: 512 steps.
    topology = formula_topology("torus:8x8x8")
    assert replicated(topology, Kind.ALLTOALL).makespan_us == pytest.approx(512 * topology.message_us(0, 1e6))


def test_machines_without_translations_are_left_to_others():
    assert replicated(formula_topology("mesh:3x3"), Kind.ALLGATHER) is None


@pytest.mark.parametrize(
    ("machine", "roles"),
    [
        ("dgx2-x2", 2),
        ("ndv2-x2", 8),
        ("mi250x-x2", 4),
        ("dgx1", 2),
        ("dragonfly:1", 2),
    ],
)
@pytest.mark.parametrize("kind", GROUP_KINDS)
def test_where_ranks_differ_one_of_each_role_is_solved(machine, roles, kind):
    topology = load_topology(machine)
    schedule = replicated(topology, kind)
    assert len(schedule.roots) == roles
    assert verify_group(schedule) == ()
    assert schedule.makespan_us >= demand_bound(topology, kind, 0, 1e6 * topology.num_ranks).time_us


def test_what_comes_through_the_one_nic_of_a_node_is_for_all_its_ranks():
    # 56 chunks of 4 MB of other nodes come in one after the other; the rest is the way inside the last node.
    topology = load_topology("ndv2", 8)
    schedule = replicated(topology, Kind.ALLGATHER, 4e6)
    (nic_us,) = {
        topology.message_us(i, 4e6)
        for i, k in enumerate(topology.links)
        if topology.node_of[k.src] != topology.node_of[k.dst]
    }
    entering = [
        m
        for m in schedule.base
        if topology.node_of[topology.links[m.link].dst] not in (0, topology.node_of[topology.links[m.link].src])
    ]
    assert len(entering) == 8 * 7
    assert 56 * nic_us < schedule.makespan_us < 1.2 * 56 * nic_us


def test_roots_trees_and_ways_are_improved_together():
    # Trees as they grow end 27 % above the bound, with two chunks.
    topology = load_topology("ndv2", 4)
    bound = demand_bound(topology, Kind.ALLGATHER, 0, 2**24)
    schedule = replicate(Demand(topology, Kind.ALLGATHER, 2**24, chunks_per_rank=1), Limits(), bound)
    assert verify_group(schedule) == ()
    assert schedule.makespan_us < 1.15 * bound.time_us
    cube = load_topology("dgx1")
    # 16 MiB: 255.9 us with the ways that balance links alone.
    assert replicate(Demand(cube, Kind.ALLTOALL, 2**24), Limits(), NO_BOUND).makespan_us < 240


def test_trees_of_one_node_whose_links_differ_are_improved_for_longer():
    # Two chunks: 66.6 us with the usual effort, bound 50.1.
    topology = load_topology("mi250x")
    demand = Demand(topology, Kind.ALLGATHER, 2**24, chunks_per_rank=2)
    assert replicate(demand, Limits(), NO_BOUND).makespan_us < 61


def test_a_link_whose_orbit_serves_both_its_ends_is_left_alone():
    # Ports of a rank are used both ways: a message to the next rank takes two of them, which are images of each other.
    ports = tuple(Port(f"rank {rank}", 1, 10) for rank in range(4))
    ring = [Link(a, b, 1, 10, 0, (a, b)) for a in range(4) for b in ((a + 1) % 4, (a - 1) % 4)]
    topology = Topology("half duplex", "", (0,) * 4, ports, tuple(ring), ((1, 2, 3, 0),))
    assert replicated(topology, Kind.ALLGATHER) is None
    loose = [Link(a, (a + 2) % 4, 1, 90) for a in range(4)] + [Link(a, (a + 1) % 4, 1, 90) for a in range(4)]
    free = replace(
        topology, links=tuple(k for k in ring if (k.src, k.dst) not in {(x.src, x.dst) for x in loose}) + tuple(loose)
    )
    schedule = replicated(free, Kind.ALLGATHER)
    assert verify_group(schedule) == ()
    assert not any(topology.ports and free.links[m.link].ports for m in schedule.base)


def test_what_cannot_be_replicated_is_said():
    ring = formula_topology("ring:4")
    assert why_not(Demand(ring, Kind.ALLGATHER, 1e6)) is None
    assert "has a root" in why_not(Demand(ring, Kind.BROADCAST, 1e6))


def test_the_same_seed_gives_the_same_schedule_and_another_one_may_not():
    topology = formula_topology("torus:4x4")
    one, two, three = (replicated(topology, Kind.ALLGATHER, seed=seed) for seed in (1, 1, 5))
    assert one == two
    assert one != three

"""Engine greedy: right on machines of any shape, and no worse than TACOS on its own."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Kind
from taccl_py.errors import Infeasible, InputError, LimitReached
from taccl_py.sketch.catalog import load_sketch
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Demand, Events, Options, Proof
from taccl_py.synthesis.matching.engine import synthesize_greedy
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.degrade import Degradation, degraded
from taccl_py.topology.machines import formula_topology
from taccl_py.topology.model import Link, Topology
from taccl_py.verify.schedule import verify_schedule
from tests.synthesis.matching.drawn import torn

KINDS = (Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.ALLREDUCE, Kind.BROADCAST, Kind.REDUCE, Kind.ALLTOALL)
# 50 GiB/s and 0.5 us, and a share of 1 MiB for every rank, as TACOS was measured with.
TACOS = "alpha_us=0.5,beta_us_per_mb=18.62645149230957"
SHARE = 1 << 20


def greedy(topology, kind, size_bytes=1e6, *, chunks=None, root=0, seed=0, seconds=60.0):
    demand = Demand(topology, kind, size_bytes, root, None, chunks)
    return synthesize_greedy(demand, Options(limits=Limits(seconds, seed=seed, by_work=True)), Events())


def uneven_mesh(wide, high, across_gibps, down_gibps, alpha_us):
    """Mesh with other links in one direction than in the other."""
    links = []
    for y in range(high):
        for x in range(wide):
            for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1)):
                if 0 <= x + dx < wide and 0 <= y + dy < high:
                    beta = 1000 / ((across_gibps if dx else down_gibps) * 1.073741824)
                    links.append(Link(y * wide + x, (y + dy) * wide + x + dx, alpha_us, beta))
    return Topology("uneven", "TACOS's tests", (0,) * (wide * high), (), tuple(links))


@pytest.mark.parametrize(
    ("formula", "chunks", "tacos_us"),
    [
        ("mesh:4x4", 1, 160.25), ("mesh:4x4", 4, 161.48), ("mesh:8x8", 1, 641.00), ("mesh:2x2x2", 3, 49.07), ("torus:4x4", 1, 80.12),
        ("torus:4x4", 4, 80.74), ("torus:8x8", 1, 340.53), ("ring:8", 2, 82.12), ("ring:16", 1, 160.25),
        ("torus:3x3x3", 1, 100.16), ("torus:4x4x4", 4, 231.46), ("full:16", 1, 20.04),
    ],
)  # fmt: skip
def test_no_worse_than_tacos(formula, chunks, tacos_us):
    topology = formula_topology(f"{formula},{TACOS}")
    found = greedy(topology, Kind.ALLGATHER, SHARE * topology.num_ranks, chunks=chunks)
    assert verify_schedule(found.schedule) == ()
    assert found.bound.time_us <= found.schedule.makespan_us <= tacos_us * 1.0001


@pytest.mark.parametrize(
    ("mesh", "chunks", "tacos_us"),
    [((5, 5, 50, 75, 0.5), 1, 8806.0), ((8, 5, 80, 35, 1.0), 2, 9259.75), ((5, 8, 80, 35, 1.0), 2, 9259.75)],
)
def test_better_than_what_is_left_of_tacos_on_uneven_meshes_once_data_is_sent_after_it_has_come(mesh, chunks, tacos_us):
    found = greedy(uneven_mesh(*mesh), Kind.ALLGATHER, 2**30, chunks=chunks)
    assert verify_schedule(found.schedule) == ()
    assert found.schedule.makespan_us < tacos_us


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, kind) for name in ("mesh:3x3", "dgx1", "dragonfly:1") for kind in KINDS),
        *(pytest.param("ndv2-x2", kind, marks=pytest.mark.slow) for kind in KINDS[::2]),
        *(pytest.param("hpn:2,planes=2", kind, marks=pytest.mark.slow) for kind in KINDS[1::2]),
    ],
)
def test_every_collective_is_right_on_every_shape(name, kind):
    topology = load_topology(name)
    root = topology.num_ranks - 1 if kind in (Kind.BROADCAST, Kind.REDUCE) else 0
    found = greedy(topology, kind, root=root, chunks=2, seconds=0.5)
    assert verify_schedule(found.schedule, kind=kind) == ()
    assert found.schedule.makespan_us >= found.bound.time_us * (1 - 1e-9)


@settings(max_examples=15)
@given(st.integers(0, 10_000), st.integers(2, 7), st.sampled_from(KINDS), st.sampled_from((1, 3)))
def test_torn_machines_are_served(seed, ranks, kind, chunks):
    found = greedy(torn(seed, ranks), kind, chunks=chunks, seed=seed, seconds=0.5)
    assert verify_schedule(found.schedule) == ()


def test_an_alltoall_around_a_failed_nic_takes_no_more_messages_than_the_other_nics_need():
    # 64 chunks of 64 KiB come to node 1 over 7 NICs: 10 over one of them, one after the other.
    topology = degraded(load_topology("ndv4", 2), Degradation(missing_ports=("node 1 ib3 *",)))
    found = greedy(topology, Kind.ALLTOALL, 2**20, chunks=1).schedule
    assert found.makespan_us == pytest.approx(10 * (2.6 + 40 * 0.065536))
    assert verify_schedule(found) == ()


def test_the_answer_is_optimal_where_the_bound_is_reached():
    found = greedy(formula_topology("full:6"), Kind.ALLGATHER, 6e6, chunks=1)
    assert found.proof is Proof.OPTIMAL
    assert found.schedule.makespan_us == pytest.approx(20.5)


def test_the_same_seed_gives_the_same_schedule():
    one, two = (greedy(formula_topology("mesh:4x4"), Kind.ALLGATHER, seed=3).schedule for _ in range(2))
    assert one == two


def test_an_interrupt_ends_the_search():
    options = Options(limits=Limits())
    options.limits.stop.set()
    with pytest.raises(LimitReached, match="give more time"):
        synthesize_greedy(Demand(formula_topology("mesh:4x4"), Kind.ALLGATHER, 1e6), options, Events())


def test_what_it_is_not_for_is_refused_with_a_remedy():
    with pytest.raises(InputError, match="found gather; use --engine milp or flow"):
        greedy(formula_topology("ring:4"), Kind.GATHER)
    topology, sketch = load_topology("ndv2", 2), load_sketch("sk-1", "ndv2")
    with pytest.raises(InputError, match="does not look at sketches"):
        synthesize_greedy(Demand(topology, Kind.ALLGATHER, 1e6, 0, sketch), Options(), Events())
    with pytest.raises(InputError, match="more than the 40000 that engine greedy can match; use --engine templates"):
        greedy(formula_topology("mesh:16x16"), Kind.ALLTOALL)


@pytest.mark.slow
def test_a_mesh_of_256_ranks_is_at_the_bound_in_steps():
    topology = formula_topology("mesh:16x16")
    found = greedy(topology, Kind.ALLGATHER, 1e6 * 256, chunks=1)
    assert found.schedule.makespan_us == pytest.approx(128 * topology.message_us(0, 1e6))


@pytest.mark.parametrize("kind", ["allgather", "alltoall", "allreduce", "reducescatter", "broadcast", "reduce"])
@pytest.mark.parametrize("links", [(), (Link(1, 0, 1.0, 1.0), Link(1, 2, 1.0, 1.0))], ids=["no links", "one way"])
def test_a_machine_that_falls_apart_is_refused(kind, links):
    topology = Topology("apart", "made up", (0, 0, 1), (), links)
    with pytest.raises(Infeasible, match="it has no path of links from rank"):
        synthesize_greedy(Demand(topology, Kind(kind), 1e6), Options(), Events())

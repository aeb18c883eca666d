"""Engine hierarchy: right on clusters of all sorts, as fast as can be worked out by hand, and faster than what it replaces."""

from dataclasses import dataclass

import pytest

from taccl_py.collective import Kind
from taccl_py.errors import InputError
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.pipeline.deliver import lower_and_verify
from taccl_py.runtimes import EXECUTOR
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.hierarchy import engine
from taccl_py.synthesis.hierarchy.engine import synthesize_hierarchy
from taccl_py.synthesis.hierarchy.params import PARAMS
from taccl_py.synthesis.hierarchy.strategies import strategies
from taccl_py.synthesis.templates.engine import synthesize_templates
from taccl_py.synthesis.templates.fitting import fitted
from taccl_py.synthesis.trees.engine import synthesize_trees
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.degrade import Degradation, degraded
from taccl_py.verify.schedule import verify_schedule

KINDS = (Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.ALLREDUCE, Kind.BROADCAST, Kind.REDUCE, Kind.ALLTOALL)
MIB = 1 << 20
OPTIONS = Options(limits=Limits(seconds=1.0, workers=1, by_work=True))


def small_cluster(nodes, ranks):
    """Nodes of the first ranks of an ND A100 v4."""
    return load_topology("ndv4", nodes).subset([8 * node + rank for node in range(nodes) for rank in range(ranks)])


def solved(topology, kind, size_bytes, engine=synthesize_hierarchy, **more):
    return engine(Demand(topology, kind, float(size_bytes), **more), OPTIONS, Events()).schedule


@pytest.mark.parametrize(
    ("nodes", "ranks", "kind"),
    [(*shape, kind) for shape in ((2, 4), (3, 2)) for kind in KINDS[::2]]
    + [(*shape, kind) for shape in ((4, 3), (5, 1)) for kind in KINDS[1::2]],
)
def test_every_way_is_right(nodes, ranks, kind):
    demand = Demand(small_cluster(nodes, ranks), kind, float(MIB), root=nodes * ranks - 1 if kind in KINDS[3:5] else 0)
    found = list(strategies(demand, Limits()))
    for way in found[:: max(1, len(found) // 12)]:
        schedule = fitted(demand, way.plan())
        if schedule is not None:
            assert verify_schedule(schedule) == ()
    assert verify_schedule(synthesize_hierarchy(demand, OPTIONS, Events()).schedule) == ()


@pytest.mark.parametrize(
    ("ranks", "kind"),
    [
        *(([0, 1, 2, 3, 4, 8, 9, 10], kind) for kind in KINDS[:5:2]),
        *(([0, 8, 9, 10, 16, 17], kind) for kind in KINDS[1:5]),
    ],
)
def test_uneven_nodes_are_served(ranks, kind):
    topology = load_topology("ndv4", 3).subset(ranks)
    schedule = solved(topology, kind, MIB)
    assert verify_schedule(schedule) == ()


@pytest.mark.parametrize(
    ("machine", "kind"),
    [
        (machine, kind)
        for row, machine in enumerate(("ndv2", "dgx2", "mi300x"))
        for column, kind in enumerate(KINDS[:5])
        if (row + column) % 2 == 0
    ],
)
def test_shared_nics_full_meshes_and_sparse_nodes_are_served(machine, kind):
    schedule = solved(load_topology(machine, 2), kind, 256 << 10)
    assert verify_schedule(schedule) == ()


@pytest.mark.parametrize("kind", KINDS)
def test_nodes_that_have_lost_a_rail_are_served_over_the_others(kind):
    """Two nodes without a NIC each, of different rails: two are left for all."""
    lost = Degradation(missing_ports=("node 1 nic2 *", "node 2 nic1 out"))
    topology = degraded(load_topology("hpn:3").subset([8 * n + rank for n in range(3) for rank in range(4)]), lost)
    assert verify_schedule(solved(topology, kind, MIB)) == ()


def test_broadcast_goes_on_over_the_rails_that_are_left():
    """By templates, rank after rank, it takes 1.9 times the bound (and on six nodes of eight ranks, 1 GiB, 3.5 times)."""
    lost = Degradation(missing_ports=("node 1 nic2 *",))
    topology = degraded(load_topology("hpn:3").subset([8 * n + rank for n in range(3) for rank in range(4)]), lost)
    found = synthesize_hierarchy(Demand(topology, Kind.BROADCAST, 64.0 * MIB, root=6), OPTIONS, Events())
    assert verify_schedule(found.schedule) == ()
    assert found.gap < 0.25


def test_allgather_of_two_nodes_crosses_once_and_doubles():
    """2.6 us and 40 us/MB across; then 1, 2 and 4 shares at 0.3 us and 10/3 us/MB."""
    schedule = solved(load_topology("ndv4", 2), Kind.ALLGATHER, MIB)
    assert schedule.makespan_us == pytest.approx(2.6 + 40 * 0.065536 + 3 * 0.3 + 7 * 0.065536 / 0.3)


def test_allgather_over_lanes_that_share_out_the_other_nodes():
    """All 8 shares of a node in one message to each of 7 nodes: 0.9 us and 7 shares before, 8 shares across; behind, 8, 16 and 32."""
    schedule = solved(load_topology("ndv4", 8), Kind.ALLGATHER, 64 * 1000)
    before, across = 0.9 + 0.007 / 0.3, 2.6 + 40 * 0.008
    assert schedule.makespan_us <= before + across + 0.9 + 7 * 0.008 / 0.3 + 1e-9


def test_alltoall_keeps_the_lanes_busy_from_beginning_to_end():
    """Two messages of 32 pairs of 65536 bytes each over every lane, and little before and behind."""
    schedule = solved(load_topology("ndv4", 2), Kind.ALLTOALL, 16 * MIB)
    across = 2 * 2.6 + 40 * 64 * 0.065536 * 2
    assert across <= schedule.makespan_us <= 1.02 * across


@pytest.mark.parametrize(
    ("size_bytes", "kind"),
    [
        (256 << 10, Kind.ALLGATHER),
        (256 << 10, Kind.BROADCAST),
        pytest.param(4 * MIB, Kind.ALLREDUCE, marks=pytest.mark.slow),
    ],
)
def test_middle_sizes_are_faster_than_templates_and_trees_on_two_nodes(size_bytes, kind):
    topology = load_topology("ndv4", 2)
    others = (solved(topology, kind, size_bytes, engine) for engine in (synthesize_templates, synthesize_trees))
    assert solved(topology, kind, size_bytes).makespan_us <= min(other.makespan_us for other in others) * (1 + 1e-9)


@pytest.mark.slow
def test_allreduce_is_at_most_an_allgather_twice():
    topology = load_topology("ndv4", 2)
    allgather, allreduce = (solved(topology, kind, 16 * MIB) for kind in (Kind.ALLGATHER, Kind.ALLREDUCE))
    assert verify_schedule(allreduce) == ()
    assert allreduce.makespan_us <= 2 * allgather.makespan_us * (1 + 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_programs_keep_what_schedules_promise(kind):
    schedule = solved(load_topology("ndv4", 2), kind, MIB)
    lowered = lower_and_verify(schedule, LoweringOptions(EXECUTOR))
    assert lowered.replay.makespan_us <= 1.03 * schedule.makespan_us


def test_the_number_of_chunks_can_be_given():
    schedule = solved(load_topology("ndv4", 2), Kind.ALLGATHER, MIB, chunks_per_rank=9)
    assert schedule.collective.chunks_per_rank == 9


def test_what_it_is_not_for_is_said():
    topology = load_topology("ndv4", 2)
    with pytest.raises(InputError, match="use --engine"):
        solved(topology, Kind.GATHER, MIB)
    with pytest.raises(InputError, match="use --engine"):
        solved(load_topology("ndv4", 1), Kind.ALLGATHER, MIB)
    with pytest.raises(InputError, match="cannot share 7 chunks a rank"):
        solved(topology, Kind.BROADCAST, MIB, chunks_per_rank=7)


def test_after_many_schedules_and_much_work_in_vain_only_better_promises_are_kept(monkeypatch):
    @dataclass
    class Lasting:
        makespan_us: float
        messages: tuple = ()

    work_s = [7.0]
    monkeypatch.setattr(engine, "work_seconds", lambda: work_s[0])
    written = engine._WrittenOut([Lasting(100.0)])
    assert [written.makes_needless(estimate_us) for estimate_us in (129.0, 131.0)] == [False, True]
    for _ in range(PARAMS.most_in_vain):
        assert not written.take(Lasting(100.0))
    assert not written.makes_needless(129.0)
    work_s[0] += PARAMS.patient_seconds + 0.1
    assert [written.makes_needless(estimate_us) for estimate_us in (101.0, 103.0)] == [False, True]
    assert written.take(Lasting(99.0))
    assert not written.makes_needless(128.0)
    assert (written.best_us, len(written.found)) == (99.0, PARAMS.most_in_vain + 1)

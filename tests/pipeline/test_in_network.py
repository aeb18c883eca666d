"""Plans by switch beside the bound: known times on one ND H100 v5 node, and no plan below what is proved."""

import json

import pytest

from taccl_py.collective import Collective, Kind
from taccl_py.errors import LoweringError
from taccl_py.lowering.mscclpp import NodeRails, PlanOptions, lower_plan
from taccl_py.pipeline.in_network import lower_by_switch, switch_runtime_us, switch_times_us
from taccl_py.profiles.catalog import load_profile, neutral_profile
from taccl_py.schedule.ir import Schedule
from taccl_py.synthesis.bounds import DemandBounds
from taccl_py.topology.catalog import load_topology
from tests.lowering.cases import MB


def wanted(machine, kind, *, chunk_bytes=MB, chunks_per_rank=1, root=0):
    """A schedule without messages: plans by switch ask only for machine, chunks and size."""
    topology = load_topology(machine)
    collective = Collective(Kind(kind), topology.num_ranks, chunks_per_rank, root)
    return Schedule(topology, collective, chunk_bytes, (), ((),) * topology.num_ranks)


@pytest.mark.parametrize(
    ("kind", "time_us", "bound_us"),
    [
        # 450 GB/s and 0.3 us; 9 MB through each port out and in, and 8 sums, which are loaded before they are stored.
        ("allreduce", 9 / 0.45 + 8 * 0.3 + 0.3, 8 / 0.45 + 0.3),
        ("allgather", 8 / 0.45 + 8 * 0.3, 7 / 0.45 + 0.3),
        ("broadcast", 1 / 0.45 + 0.3, 1 / 0.45 + 0.3),
    ],
)
def test_one_node_takes_what_its_ports_take(kind, time_us, bound_us):
    found = lower_by_switch(wanted("ndv5", kind), PlanOptions())
    assert found.replay.makespan_us == pytest.approx(time_us, rel=1e-3)
    assert found.bound.time_us == pytest.approx(bound_us, rel=1e-3)
    assert found.gap == pytest.approx(time_us / bound_us - 1, abs=2e-3)


@pytest.mark.parametrize(
    ("size_mb", "owners", "time_us"),
    [
        # Each port pays 0.3 us for every owner and carries what owners share once more; a sum is loaded 0.3 us before it is stored.
        (0.001, 1, 2 * 0.001 / 0.45 + 0.3 + 0.3),
        (0.8, 2, 1.5 * 0.8 / 0.45 + 0.6 + 0.3),
        (8, 8, 9 / 0.45 + 2.4 + 0.3),
    ],
)
def test_the_smaller_an_allreduce_the_fewer_ranks_own_it(size_mb, owners, time_us):
    found = lower_by_switch(wanted("ndv5", "allreduce", chunk_bytes=size_mb * MB / 8), PlanOptions())
    assert found.options.owners == owners
    assert found.replay.makespan_us == pytest.approx(time_us, rel=2e-3)


@pytest.mark.parametrize("kind", ["allreduce", "allgather", "broadcast"])
@pytest.mark.parametrize("chunk_bytes", [16, 4096, 8 * MB])
@pytest.mark.parametrize("instances", [1, 4])
def test_no_plan_is_faster_than_the_bound(kind, chunk_bytes, instances):
    found = lower_by_switch(wanted("ndv5", kind, chunk_bytes=chunk_bytes), PlanOptions(instances=instances))
    assert found.replay.makespan_us >= found.bound.time_us * (1 - 1e-9)


@pytest.mark.parametrize("kind", ["allreduce", "allgather", "broadcast"])
@pytest.mark.parametrize("chunk_bytes", [64, 1 << 16, 1 << 22])
def test_no_plan_of_two_nodes_is_faster_than_the_bound(kind, chunk_bytes):
    found = lower_by_switch(wanted("ndv5-x2", kind, chunk_bytes=chunk_bytes), PlanOptions())
    assert found.replay.makespan_us >= found.bound.time_us * (1 - 1e-9)


def test_two_nodes_are_faster_than_messages_can_be_and_large_sizes_go_in_more_pieces():
    sizes = [1 << 10, 64 << 20]
    found = [lower_by_switch(wanted("ndv5-x2", "allreduce", chunk_bytes=one / 16), PlanOptions()) for one in sizes]
    assert [(one.options.owners, one.options.pieces) for one in found] == [(1, 1), (8, 4)]
    messages = DemandBounds.of(load_topology("ndv5-x2"), Kind.ALLREDUCE).at(sizes[1]).time_us
    assert found[1].bound.time_us < found[1].replay.makespan_us < messages


def test_over_several_nodes_small_data_is_sent_to_all_and_large_data_relayed():
    for chunk_bytes, rails in ((64, NodeRails.DIRECT), (1 << 22, NodeRails.RELAYED)):
        for kind in ("allreduce", "broadcast"):
            schedule = wanted(
                "ndv5-x4", kind, chunk_bytes=chunk_bytes, chunks_per_rank=1 if kind == "allreduce" else 16
            )
            assert lower_by_switch(schedule, PlanOptions()).options.rails is rails, (kind, chunk_bytes)


def test_of_cuts_that_do_not_divide_the_size_none_is_taken_if_another_does():
    """24 ranks: 64 MiB is a multiple of 8 pieces and not of 24, as three nodes that share out sums would need."""
    found = lower_by_switch(wanted("ndv5-x3", "allreduce", chunk_bytes=(64 << 20) / 24), PlanOptions())
    assert (64 << 20) % (16 * found.lowered.plan.chunks_per_size) == 0


@pytest.mark.parametrize(
    ("machine", "kind"),
    [*((machine, kind) for machine in ("ndv5", "ndv5-x2") for kind in ("allreduce", "allgather", "broadcast")),
     ("ndv5-x4", "broadcast")],
)  # fmt: skip
def test_times_asked_for_many_sizes_at_once_are_those_of_the_plans(machine, kind):
    sizes = [1 << 12, 1 << 26]
    topology = load_topology(machine)
    times = switch_times_us(topology, Kind(kind), 0, sizes)
    for size_bytes, time_us in zip(sizes, times, strict=True):
        chunk_bytes = size_bytes / Collective(Kind(kind), topology.num_ranks).chunks_per_size
        assert (
            time_us == lower_by_switch(wanted(machine, kind, chunk_bytes=chunk_bytes), PlanOptions()).replay.makespan_us
        )


@pytest.mark.parametrize(
    ("machine", "kind", "size_bytes"),
    [("ndv4", "allreduce", 1 << 20), ("ndv5", "reduce", 1 << 20), ("ndv5", "allreduce", 1000), ("ndv5-x16", "broadcast", 1 << 20)],
)  # fmt: skip
def test_where_there_is_no_plan_for_a_size_there_is_no_time(machine, kind, size_bytes):
    """The machine has no such switch, the collective no such plan, the size no whole chunks, or there are too many ranks to ask."""
    assert switch_times_us(load_topology(machine), Kind(kind), 0, [size_bytes]) == [None]


@pytest.mark.parametrize("refused", [*NodeRails, None])
def test_rails_between_nodes_that_do_not_fit_leave_the_other_ones(monkeypatch, refused):
    """As where a root would need port channels to more than 16 other nodes at once."""

    def lowered(schedule, options):
        if refused in (None, options.rails):
            raise LoweringError(f"{options.rails} does not fit", runtime="mscclpp", limit="port channels")
        return lower_plan(schedule, options)

    monkeypatch.setattr("taccl_py.pipeline.in_network.lower_plan", lowered)
    schedule, sizes = wanted("ndv5-x3", "broadcast", chunk_bytes=1 << 20), [1 << 20]
    if refused is None:
        with pytest.raises(LoweringError, match="direct does not fit"):
            lower_by_switch(schedule, PlanOptions())
        assert switch_times_us(schedule.topology, Kind.BROADCAST, 0, sizes) == [None]
        return
    found = lower_by_switch(schedule, PlanOptions())
    assert found.options.rails is not refused
    assert switch_times_us(schedule.topology, Kind.BROADCAST, 0, sizes) == [found.replay.makespan_us]


def test_a_root_with_more_other_nodes_than_it_has_port_channels_relays(tmp_path):
    switch = {"name": "nv", "ranks": "all", "alpha_us": 0.3, "bandwidth_gbps": 450, "multicast": True}
    nics = [{"name": f"ib{r}", "ranks": [r], "alpha_us": 2.6, "bandwidth_gbps": 50} for r in range(2)]
    node = {"ranks": 2, "switches": [switch], "nics": nics}
    value = {"format": "taccl-topology", "version": 1, "name": "many", "description": "made up", "source": "made up"}
    (tmp_path / "many.json").write_text(json.dumps(value | {"node": node, "network": {"reach": "rail"}}))
    topology = load_topology(str(tmp_path / "many.json"), 18)
    schedule = Schedule(topology, Collective(Kind.BROADCAST, 36), float(1 << 20), (), ((),) * 36)
    assert lower_by_switch(schedule, PlanOptions()).options.rails is NodeRails.RELAYED


def test_limits_of_the_smallest_cut_are_told():
    with pytest.raises(LoweringError, match="semaphores"):
        lower_by_switch(wanted("ndv5-x2", "allreduce"), PlanOptions(instances=17))


def test_under_a_profile_as_many_threadblocks_let_the_switch_work_as_pay():
    """64 MB: each of 8 owners has 8 MB, which one threadblock of 18 GB/s moves more slowly than the ports at the share of NVLS."""
    profile, schedule = load_profile("mscclpp-h100"), wanted("ndv5", "allreduce", chunk_bytes=8 * MB)
    found = lower_by_switch(schedule, PlanOptions(), profile)
    assert found.options.instances == 2
    single = lower_by_switch(schedule, PlanOptions(), profile, 1)
    assert single.options.instances == 1
    assert found.runtime_us < 0.98 * single.runtime_us
    assert switch_runtime_us(schedule, PlanOptions(), profile) == found.runtime_us
    assert switch_runtime_us(schedule, PlanOptions(), neutral_profile()) is None
    assert switch_runtime_us(wanted("ndv4", "allreduce"), PlanOptions(), profile) is None
    assert lower_by_switch(schedule, PlanOptions()).runtime_us is None

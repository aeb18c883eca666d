"""Bounds under a runtime profile: worked out by hand, and against replays of random small machines."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Collective, Kind
from taccl_py.errors import LoweringError
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.lowering.program import Protocol
from taccl_py.pipeline.deliver import lower_and_verify
from taccl_py.profiles.catalog import load_profile, neutral_profile
from taccl_py.profiles.model import ProtocolCosts, RuntimeProfile
from taccl_py.profiles.view import with_alphas_side_by_side
from taccl_py.runtimes import RUNTIMES
from taccl_py.simulate.runtime_replay import RuntimeReplay
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds import DemandBounds
from taccl_py.synthesis.bounds.runtime import likely_views, runtime_bound
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.matching.engine import synthesize_greedy
from taccl_py.topology.model import Link, Medium, Port
from tests.instances import MB, full, machine


def profile_of(**protocols):
    return RuntimeProfile("test", "test", "executor", "test", "made up", protocols, most_threadblocks=4)


def bound(topology, profile, kind, size, physical_us=lambda size: size / MB * 10):
    return runtime_bound(physical_us, topology, profile, kind, size)


def test_launch_wire_operation_and_hop_by_hand():
    """Two ranks: 2 MB cost 20 us; with wire 2 it is 40, the hop adds 3, the launch 5. Of 1 byte there are operation and hop."""
    costs = ProtocolCosts(launch_us=5.0, op_us=2.0, hop_near_us=3.0, wire=2.0)
    found = bound(full(2), profile_of(Simple=costs), Kind.ALLGATHER, 2 * MB)
    assert found.time_us == pytest.approx(5 + 40 + 3)
    assert bound(full(2), profile_of(Simple=costs), Kind.ALLGATHER, 1).time_us == pytest.approx(5 + 2 + 3)
    assert found.reason.startswith("Simple")


def test_all_threadblocks_of_a_gpu_feed_it():
    """Four threadblocks of 0.1 GB/s take in the half of 2 MB that a rank gets in 2500 us."""
    found = bound(full(2), profile_of(Simple=ProtocolCosts(tb_gbps=0.1)), Kind.ALLGATHER, 2 * MB)
    assert found.time_us == pytest.approx(1e6 / (4 * 0.1 * 1000))


def test_the_protocol_with_the_least_bound_counts_and_the_neutral_profile_changes_nothing():
    slow, quick = ProtocolCosts(launch_us=9.0), ProtocolCosts(launch_us=1.0, wire=2.0)
    profile = profile_of(LL=quick, Simple=slow)
    assert bound(full(2), profile, Kind.ALLGATHER, 1000).reason.startswith("LL:")
    assert bound(full(2), profile, Kind.ALLGATHER, 10 * MB).reason.startswith("Simple")
    assert bound(full(2), neutral_profile(), Kind.ALLGATHER, MB).time_us == 10.0
    views = likely_views(lambda size: size / MB * 10, full(2), profile, Kind.ALLGATHER, 1000, ["LL", "Simple"])
    assert [view.protocol for view in views] == ["LL"]


@st.composite
def small_machines(draw):
    """Rings both ways with some chords, 2 to 4 ranks, costs such as NVLink's, and a port that some links share."""
    number = draw(st.integers(2, 4))
    pairs = {(rank, (rank + 1) % number) for rank in range(number)} | {
        ((rank + 1) % number, rank) for rank in range(number)
    }
    chords = [(a, b) for a in range(number) for b in range(number) if a != b and (a, b) not in pairs]
    pairs |= set(draw(st.lists(st.sampled_from(chords), unique=True))) if chords else set()
    cost = st.tuples(st.sampled_from([0.3, 0.8, 2.6]), st.sampled_from([4.0, 20.0, 100.0]))
    sharing = set(draw(st.lists(st.sampled_from(sorted(pairs)), unique=True)))
    links = [Link(*pair, *draw(cost), ports=(0,) if pair in sharing else ()) for pair in sorted(pairs)]
    ports = [Port("shared", *draw(cost))] if sharing else []
    inside = draw(st.sampled_from([Medium.NVLINK, Medium.PCIE]))
    return replace(machine(number, links, ports), inside=inside)


@settings(max_examples=6, deadline=None)
@given(
    small_machines(),
    st.sampled_from([Kind.ALLGATHER, Kind.ALLREDUCE, Kind.ALLTOALL, Kind.BROADCAST]),
    st.sampled_from([4096.0, 1 << 20, 64 << 20]),
    st.sampled_from(["rccl-mi300x", "executor-a100", "executor-h100", "legacy-v100"]),
    st.sampled_from([1, 2, 4]),
)
def test_physical_bound_runtime_bound_and_replay_come_in_this_order(topology, kind, size, name, instances):
    profile = load_profile(name)
    demand = Demand(topology, kind, size)
    schedule = synthesize_greedy(demand, Options(limits=Limits(seconds=0.3, by_work=True)), Events()).schedule
    physical = DemandBounds.of(topology, kind)
    machine_of_bounds = with_alphas_side_by_side(topology)
    relaxed = DemandBounds.of(machine_of_bounds, kind)
    under = runtime_bound(lambda each: relaxed.at(each).time_us, machine_of_bounds, profile, kind, size).time_us
    assert physical.at(size).time_us <= under * (1 + 1e-9)
    for protocol in (Protocol.LL, Protocol.LL128, Protocol.SIMPLE):
        options = LoweringOptions(RUNTIMES[profile.runtime], protocol=protocol, instances=instances)
        try:
            program = lower_and_verify(schedule, options).program
        except LoweringError:
            continue
        assert under <= RuntimeReplay(program, topology, profile).time_us(size) * (1 + 1e-9)


def test_a_profile_never_changes_the_physical_bound():
    topology = full(4)
    collective = Collective(Kind.ALLGATHER, 4)
    size = collective.chunks_per_size * MB
    assert bound(topology, neutral_profile(), Kind.ALLGATHER, size).time_us == size / MB * 10

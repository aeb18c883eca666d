"""Chunks that one message can carry: a limit of the runtime that comes with the demand, and none for MSCCL++."""

import pytest

from taccl_py.collective import Kind
from taccl_py.pipeline.resolve import Request, make_demand
from taccl_py.runtimes import MAX_COUNT, MSCCLPP
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.catalog import load_engine
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link, Topology
from taccl_py.verify.schedule import verify_schedule

MIB = 1 << 20


def found(name, kind, engine, message_chunks, nodes=None):
    demand = Demand(load_topology(name, nodes), kind, MIB, message_chunks=message_chunks)
    schedule = load_engine(engine)(demand, Options(limits=Limits(seconds=0.2, by_work=True)), Events()).schedule
    assert verify_schedule(schedule) == ()
    return schedule


def longest(schedule):
    return max(len(message.chunks) for message in schedule.messages)


@pytest.mark.parametrize(
    ("name", "nodes", "engine"),
    [("full:4", None, "templates"), pytest.param("ndv4", 2, "hierarchy", marks=pytest.mark.slow)],
)
def test_without_the_limit_chunks_are_finer_and_the_schedule_faster(name, nodes, engine):
    limited = found(name, Kind.BROADCAST, engine, MAX_COUNT, nodes)
    free = found(name, Kind.BROADCAST, engine, MSCCLPP.max_count, nodes)
    assert longest(limited) <= MAX_COUNT < longest(free)
    assert free.makespan_us < limited.makespan_us


def test_without_a_size_there_are_as_many_chunks_as_costs_were_measured_with():
    """Each is 64 kB: 1 + 0.064 * 2 us on a link. A size that is given counts."""
    links = tuple(Link(a, b, 1.0, 2.0) for a in range(3) for b in range(3) if a != b)
    machine = Topology("profile", "test", (0,) * 3, (), links, measured_chunk_bytes=64_000)
    for asked, size_bytes in ((None, 3 * 64_000), (2, 6 * 64_000)):
        demand = make_demand(Request(machine, Kind.ALLGATHER, chunks_per_rank=asked))
        assert (demand.chunks_per_rank, demand.size_bytes) == (asked, size_bytes)
    assert make_demand(Request(machine, Kind.ALLGATHER, size_bytes=3000)).size_bytes == 3000
    schedule = load_engine("auto")(demand, Options(limits=Limits(seconds=0.2, by_work=True)), Events()).schedule
    assert schedule.collective.chunks_per_rank == 2
    assert verify_schedule(schedule) == ()
    assert schedule.makespan_us == pytest.approx(1.0 + 2 * 0.064 * 2.0)

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.simulate.arbiter import Arbiter, Request
from taccl_py.topology.model import Link, Port
from tests.simulate.cases import MB, machine, ring


def serve(topology, requests):
    """Start time of every request, by owner; alarms are answered as a caller must."""
    arbiter = Arbiter(topology)
    moments = {request.time_us for request in requests}
    alarms, starts = {}, {}
    while moments:
        now = min(moments)
        moments.remove(now)
        fresh = [request for request in requests if request.time_us == now]
        settlement = arbiter.settle(now, fresh, alarms.pop(now, []))
        for alarm in settlement.alarms:
            moments.add(alarm.time_us)
            alarms.setdefault(alarm.time_us, []).append(alarm.resource)
        for grant in settlement.grants:
            starts[grant.request.owner] = grant.start_us
    return starts


def serve_slowly(topology, requests):
    """The same by looking at every request again whenever anything has changed."""
    busy_until = [0.0] * topology.num_resources
    waiting = sorted(requests)
    moments = {request.time_us for request in requests}
    starts = {}
    while moments:
        now = min(moments)
        moments.remove(now)
        for request in list(waiting):
            resources = topology.resources_of[request.link]
            if request.time_us <= now and all(busy_until[r] <= now for r in resources):
                waiting.remove(request)
                starts[request.owner] = now
                for r in resources:
                    busy_until[r] = now + topology.occupancy_us(r, request.size_bytes)
                    moments.add(busy_until[r])
    return starts


def test_requests_of_one_link_are_served_in_the_order_of_time_rank_and_threadblock():
    topology = ring(3)
    order = [(0.0, 2, 0), (1.0, 0, 3), (1.0, 1, 2), (1.0, 1, 5)]
    requests = [Request(False, t, r, tb, 0, MB, owner) for owner, (t, r, tb) in enumerate(order)]
    assert serve(topology, requests[::-1]) == {0: 0.0, 1: 11.0, 2: 22.0, 3: 33.0}


def crossing():
    """Three links into rank 3 behind ports P, P and Q, and Q."""
    links = [
        Link(0, 3, 1.0, 10.0, ports=(0,)),
        Link(1, 3, 1.0, 10.0, ports=(0, 1)),
        Link(2, 3, 1.0, 10.0, ports=(1,)),
    ]
    return machine(4, links, [Port("P", 1.0, 20.0), Port("Q", 1.0, 30.0)])


def test_a_request_that_waits_is_overtaken_on_a_resource_that_it_could_not_use_yet():
    """Rank 1 waits for P until 21; Q is free, so rank 2 takes it until 31, and rank 1 starts then."""
    requests = [Request(False, 0.0, rank, 0, rank, MB, rank) for rank in range(3)]
    assert serve(crossing(), requests) == {0: 0.0, 2: 0.0, 1: 31.0}


def test_a_request_is_not_overtaken_where_all_that_it_needs_is_free():
    requests = [Request(False, 0.0, rank, 0, rank, MB, rank) for rank in (1, 2)]
    assert serve(crossing(), requests) == {1: 0.0, 2: 31.0}


def test_a_grant_tells_when_the_link_is_free_and_when_the_data_are_there():
    topology = machine(2, [Link(0, 1, 1.0, 10.0, 0.25, (0,))], [Port("P", 2.0, 20.0)])
    (grant,) = Arbiter(topology).settle(5.0, [Request(False, 5.0, 0, 0, 0, 2 * MB, 9)], []).grants
    assert (grant.start_us, grant.link_free_us, grant.arrival_us) == (5.0, 26.0, 47.25)
    assert grant.request.owner == 9


def test_a_port_without_a_cost_keeps_nobody_waiting():
    links = [Link(0, 2, 1.0, 10.0, ports=(0,)), Link(1, 2, 1.0, 10.0, ports=(0,))]
    topology = machine(3, links, [Port("backplane", 0.0, 0.0)])
    requests = [Request(False, 0.0, rank, tb, rank, MB, 2 * rank + tb) for rank in range(2) for tb in range(2)]
    assert serve(topology, requests) == {0: 0.0, 2: 0.0, 1: 11.0, 3: 11.0}


def test_rounding_keeps_nobody_waiting():
    topology = machine(2, [Link(0, 1, 0.1, 10.0)])
    arbiter = Arbiter(topology)
    arbiter.settle(0.2, [Request(False, 0.2, 0, 0, 0, 0.0, 0)], [])
    assert 0.1 + 0.2 > 0.3
    (grant,) = arbiter.settle(0.3, [Request(False, 0.3, 0, 0, 0, 0.0, 1)], []).grants
    assert grant.start_us == 0.1 + 0.2


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32))
def test_starts_are_those_of_a_slow_arbiter_that_looks_at_everything_every_time(seed):
    rng = random.Random(seed)
    ports = [Port(f"port {i}", float(rng.randrange(1, 6)), 0.0) for i in range(4)]
    links = [
        Link(src, 9, float(rng.randrange(1, 6)), 0.0, ports=tuple(rng.sample(range(4), rng.randrange(4))))
        for src in range(rng.randrange(1, 9))
    ]
    topology = machine(10, links, ports)
    requests = [
        Request(False, float(rng.randrange(8)), links[link].src, owner, link, 1.0, owner)
        for owner in range(rng.randrange(1, 30))
        for link in (rng.randrange(len(links)),)
    ]
    assert serve(topology, requests) == pytest.approx(serve_slowly(topology, requests))

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.simulate.arbiter import Arbiter, TransferRequest
from taccl_py.topology.model import Link, Port
from tests.simulate.cases import MB, machine, ring


@dataclass(frozen=True)
class Promotion:
    """The receiver of an owner's message begins to wait for it."""

    time_us: float
    owner: int


def serve(topology, requests, promotions=()):
    """Start time of every request, by owner; alarms are answered as a caller must."""
    arbiter = Arbiter(topology)
    moments = {event.time_us for event in (*requests, *promotions)}
    alarms, starts = {}, {}
    while moments:
        now = min(moments)
        moments.remove(now)
        for promotion in promotions:
            if promotion.time_us == now:
                arbiter.promote(promotion.owner)
        fresh = [request for request in requests if request.time_us == now]
        settlement = arbiter.settle(now, fresh, alarms.pop(now, []))
        for alarm in settlement.alarms:
            moments.add(alarm.time_us)
            alarms.setdefault(alarm.time_us, []).append(alarm.resource)
        for grant in settlement.grants:
            assert grant.request.owner not in starts, "started twice"
            starts[grant.request.owner] = grant.start_us
    return starts


def serve_slowly(topology, requests, promotions=()):
    """The same by looking at every request again whenever anything has changed."""
    busy_until = [0.0] * topology.num_resources
    waiting = list(requests)
    moments = {event.time_us for event in (*requests, *promotions)}
    starts = {}
    while moments:
        now = min(moments)
        moments.remove(now)
        awaited = {promotion.owner for promotion in promotions if promotion.time_us == now}
        for i, request in enumerate(waiting):
            # Who asks in this moment knows by himself whether he is awaited.
            if request.owner in awaited and request.time_us < now:
                waiting[i] = request._replace(early=False)
        for request in sorted(waiting):
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
    requests = [TransferRequest(False, t, r, tb, 0, MB, owner) for owner, (t, r, tb) in enumerate(order)]
    assert serve(topology, requests[::-1]) == {0: 0.0, 1: 11.0, 2: 22.0, 3: 33.0}


def test_a_request_whose_receiver_is_not_there_goes_after_those_that_are_awaited():
    """Owner 0 occupies the link until 11; owner 1 asked before owner 2, but nobody waits for its message yet."""
    early = TransferRequest(True, 1.0, 0, 1, 0, MB, 1)
    requests = [TransferRequest(False, 0.0, 0, 0, 0, MB, 0), early, TransferRequest(False, 2.0, 0, 2, 0, MB, 2)]
    assert serve(ring(3), requests) == {0: 0.0, 2: 11.0, 1: 22.0}


def test_a_request_whose_receiver_is_not_there_starts_all_the_same_when_nobody_else_wants_to():
    assert serve(ring(3), [TransferRequest(True, 3.0, 0, 0, 0, MB, 0)]) == {0: 3.0}


def test_a_request_that_becomes_awaited_goes_where_it_would_have_been():
    requests = [TransferRequest(early, float(t), 0, t, 0, MB, t) for t, early in enumerate([False, True, False, True])]
    assert serve(ring(3), requests) == {0: 0.0, 2: 11.0, 1: 22.0, 3: 33.0}
    assert serve(ring(3), requests, [Promotion(5.0, 1)]) == {0: 0.0, 1: 11.0, 2: 22.0, 3: 33.0}
    assert serve(ring(3), requests, [Promotion(5.0, 3)]) == {0: 0.0, 2: 11.0, 3: 22.0, 1: 33.0}


def test_nothing_happens_when_a_request_becomes_awaited_twice_or_after_its_start_or_before_it_is_made():
    requests = [TransferRequest(early, float(t), 0, t, 0, MB, t) for t, early in enumerate([False, True, False])]
    needless = [Promotion(0.0, 2), Promotion(5.0, 1), Promotion(6.0, 1), Promotion(12.0, 1), Promotion(30.0, 0)]
    assert serve(ring(3), requests, needless) == {0: 0.0, 1: 11.0, 2: 22.0}


def test_a_request_that_is_not_early_is_not_changed_by_becoming_awaited():
    requests = [TransferRequest(False, float(t), 0, t, 0, MB, t) for t in range(3)]
    assert serve(ring(3), requests, [Promotion(5.0, 2)]) == serve(ring(3), requests)


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
    requests = [TransferRequest(False, 0.0, rank, 0, rank, MB, rank) for rank in range(3)]
    assert serve(crossing(), requests) == {0: 0.0, 2: 0.0, 1: 31.0}


def test_a_request_that_became_awaited_keeps_that_when_it_has_to_wait_for_another_resource():
    """Rank 1 waits for P until 21, then for Q, which rank 2 took at 0 for 31; at 31 it goes before rank 2's second message."""
    requests = [TransferRequest(False, 0.0, rank, 0, rank, MB, rank) for rank in (0, 2)]
    requests += [TransferRequest(True, 0.0, 1, 0, 1, MB, 1), TransferRequest(False, 25.0, 2, 1, 2, MB, 3)]
    assert serve(crossing(), requests) == {0: 0.0, 2: 0.0, 3: 31.0, 1: 62.0}
    assert serve(crossing(), requests, [Promotion(5.0, 1)]) == {0: 0.0, 2: 0.0, 1: 31.0, 3: 62.0}


def test_a_request_is_not_overtaken_where_all_that_it_needs_is_free():
    requests = [TransferRequest(False, 0.0, rank, 0, rank, MB, rank) for rank in (1, 2)]
    assert serve(crossing(), requests) == {1: 0.0, 2: 31.0}


def test_a_grant_tells_when_the_link_is_free_and_when_the_data_are_there():
    topology = machine(2, [Link(0, 1, 1.0, 10.0, 0.25, (0,))], [Port("P", 2.0, 20.0)])
    (grant,) = Arbiter(topology).settle(5.0, [TransferRequest(False, 5.0, 0, 0, 0, 2 * MB, 9)], []).grants
    assert (grant.start_us, grant.link_free_us, grant.arrival_us) == (5.0, 26.0, 47.25)
    assert grant.request.owner == 9


def test_a_port_without_a_cost_keeps_nobody_waiting():
    links = [Link(0, 2, 1.0, 10.0, ports=(0,)), Link(1, 2, 1.0, 10.0, ports=(0,))]
    topology = machine(3, links, [Port("backplane", 0.0, 0.0)])
    requests = [TransferRequest(False, 0.0, rank, tb, rank, MB, 2 * rank + tb) for rank in range(2) for tb in range(2)]
    assert serve(topology, requests) == {0: 0.0, 2: 0.0, 1: 11.0, 3: 11.0}


def test_rounding_keeps_nobody_waiting():
    topology = machine(2, [Link(0, 1, 0.1, 10.0)])
    arbiter = Arbiter(topology)
    arbiter.settle(0.2, [TransferRequest(False, 0.2, 0, 0, 0, 0.0, 0)], [])
    assert 0.1 + 0.2 > 0.3
    (grant,) = arbiter.settle(0.3, [TransferRequest(False, 0.3, 0, 0, 0, 0.0, 1)], []).grants
    assert grant.start_us == 0.1 + 0.2


@settings(max_examples=400)
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
        TransferRequest(rng.random() < 0.4, float(rng.randrange(8)), links[link].src, owner, link, 1.0, owner)
        for owner in range(rng.randrange(1, 30))
        for link in (rng.randrange(len(links)),)
    ]
    promotions = [
        Promotion(float(rng.randrange(40)), request.owner)
        for request in requests
        if request.early and rng.random() < 0.7
    ]
    starts = serve(topology, requests, promotions)
    assert len(starts) == len(requests)
    assert starts == pytest.approx(serve_slowly(topology, requests, promotions))

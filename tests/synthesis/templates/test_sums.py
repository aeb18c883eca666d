"""Exchanged sums: what the check of the exact times must see."""

import itertools

import pytest

from taccl_py.collective import Collective, Kind
from taccl_py.schedule.layout import UntimedMessage
from taccl_py.schedule.timing import build_schedule
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.sums import adds_up
from taccl_py.synthesis.templates.library import template_schedules
from taccl_py.synthesis.templates.patterns import DIRECT, exchange
from taccl_py.synthesis.templates.site import TemplateSite
from taccl_py.topology.model import Link, Port
from tests.instances import MB, full, machine
from tests.synthesis.templates.machines import load


def everyone_to_everyone(topology):
    """AllReduce in one step, as far as ports let it be one."""
    num_ranks = topology.num_ranks
    drafts = [UntimedMessage(link, tuple(range(num_ranks)), 0, 1, reduce=True) for link in range(len(topology.links))]
    return build_schedule(topology, Collective(Kind.ALLREDUCE, num_ranks), MB, drafts)


def test_links_of_their_own_let_three_ranks_exchange_sums_in_one_step():
    assert adds_up(everyone_to_everyone(full(3)))


def test_a_port_that_makes_senders_take_turns_spoils_the_exchange():
    """The second message of a rank would carry what came meanwhile."""
    ports = [Port(f"out {rank}", 1.0, 10.0) for rank in range(3)]
    links = [Link(link.src, link.dst, 1.0, 10.0, 0.0, (link.src,)) for link in full(3).links]
    assert not adds_up(everyone_to_everyone(machine(3, links, ports)))


def test_a_sum_that_lacks_somebody_does_not_add_up():
    topology = full(3)
    drafts = [UntimedMessage(0, (0, 1, 2), 0, 1, reduce=True)]
    assert not adds_up(build_schedule(topology, Collective(Kind.ALLREDUCE, 3), MB, drafts))


def through_one_port(latency_us):
    """Three ranks, each with a port for both of its links out, which a message holds for 11 us and leaves so much later."""
    ports = [Port(f"out {rank}", 1.0, 10.0) for rank in range(3)]
    links = [Link(link.src, link.dst, 1.0, 10.0, latency_us, (link.src,)) for link in full(3).links]
    return TemplateSite(machine(3, links, ports), MB)


@pytest.mark.parametrize("latency_us", [0.0, 21.0])
def test_an_exchange_that_ports_spoil_is_not_made(latency_us):
    """Three chunks take 31 us each; the second message leaves then, and the first one arrives with the latency after that."""
    site = through_one_port(latency_us)
    messages = exchange(site, ((0, 1, 2),), DIRECT, (0, 1, 2))
    assert (messages is not None) == (latency_us > 0)
    sums = adds_up(everyone_to_everyone(site.topology))
    assert sums == (latency_us > 0)


def test_messages_as_small_as_their_latency_may_be_exchanged():
    """Of four ranks' ports the third message begins after two alphas, before which one alpha and the latency are over, or not."""
    for latency_us, possible in ((0.9, False), (1.1, True)):
        ports = [Port(f"out {rank}", 1.0, 10.0) for rank in range(4)]
        links = [Link(link.src, link.dst, 1.0, 10.0, latency_us, (link.src,)) for link in full(4).links]
        messages = exchange(TemplateSite(machine(4, links, ports), 0.0), ((0, 1, 2, 3),), DIRECT, (0,))
        assert (messages is not None) == possible


def names(name, kind=Kind.ALLREDUCE, size_bytes=1024):
    found = template_schedules(Demand(load(name), kind, size_bytes))
    return [each.name for each in sorted(found, key=lambda each: each.schedule.makespan_us)]


def test_small_sums_are_exchanged_and_large_ones_halved():
    assert names("ndv4")[0].startswith("exchange doubling")
    assert names("mi300x")[0].startswith("exchange direct")
    assert not any(name.startswith(("exchange", "tree")) for name in names("ndv4", size_bytes=1 << 28)[:3])


@pytest.mark.parametrize("kind", [Kind.ALLREDUCE, Kind.ALLTOALL])
def test_what_is_likely_to_be_fast_is_timed_first(kind):
    """40 ranks on a switch: straight to everyone takes 39 messages, and timing all templates longer than a search may."""
    demand = Demand(load("switch:40"), kind, 1 << 16)
    first, *_ = each = list(itertools.islice(template_schedules(demand, 1.25), 4))
    assert first.schedule.makespan_us <= 1.25 * min(one.schedule.makespan_us for one in each)
    assert first.schedule.makespan_us < 15  # straight to everyone: 19.5 us of alphas alone, twice that for sums


def test_on_sparse_machines_a_few_ranks_meet():
    assert names("mi250x")[0].startswith("meeting of")
    assert names("ring:8")[0].startswith("meeting of")
    assert not any(name.startswith("meeting") for name in names("dgx2"))

"""Sums from routed schedules: whatever the machine, what comes out must pass the verifier."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taccl_py.collective import Collective, Kind
from taccl_py.schedule.layout import UntimedMessage
from taccl_py.schedule.timing import build_schedule
from taccl_py.schedule.transform import (
    allreduce,
    backwards,
    combining,
    in_pieces,
    is_reversible,
    mirrored,
    reduce_of,
    untimed_messages,
)
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.model import Link, Port
from taccl_py.verify.schedule import verify_schedule
from tests.instances import MB, chain, full, machine, ring, two_nodes
from tests.simulate.cases import Planner, random_jobs, random_topology, ring_allgather

SIZES = (100.0, 65536.0, 1e6, 3e7)


def routed(rng, topology, collective, chunk_bytes):
    """A random valid schedule of a routed collective: every chunk goes by its own random tree."""
    planner = Planner(topology, collective, chunk_bytes)
    jobs = {chunk: random_jobs(rng, topology, collective, chunk) for chunk in range(collective.num_chunks)}
    while any(jobs.values()):
        chunk = rng.choice([chunk for chunk, left in jobs.items() if left])
        link, reduce = jobs[chunk].pop(0)
        planner.send(link, chunk, reduce=reduce)
    schedule = planner.schedule()
    assert verify_schedule(schedule) == ()
    return schedule


def plain_topology(rng, num_ranks):
    """Links that cost the same all the time they are used: no latency, no ports."""
    pairs = [(r, (r + 1) % num_ranks) for r in range(num_ranks)]
    pairs += [tuple(rng.sample(range(num_ranks), 2)) for _ in range(2 * num_ranks)]
    return machine(num_ranks, [Link(a, b, rng.choice([0.0, 2.6]), rng.choice([8.0, 46.0])) for a, b in pairs])


seeds = st.integers(0, 2**32)


# Pieces


def sums_at(rank, collective, num_ranks=4):
    """Everything that a rank sums up, from each other rank over a link of its own."""
    topology = full(num_ranks)
    sources = [other for other in range(num_ranks) if other != rank]
    untimed = [UntimedMessage(topology.links_between[src, rank][0], (rank,), 0, 1, reduce=True) for src in sources]
    return build_schedule(topology, collective, MB, untimed)


def chunks_by_link(schedule):
    found = {}
    for message in sorted(schedule.messages, key=lambda each: each.start_us):
        found.setdefault(message.link, []).extend(message.chunks)
    return list(found.values())


@pytest.mark.parametrize(
    ("pieces", "orders"),
    [
        (2, [[0, 1], [0, 1], [0, 1]]),
        (3, [[0, 1, 2], [1, 2, 0], [2, 0, 1]]),
        (4, [[0, 1, 2, 3], [1, 2, 3, 0], [2, 3, 0, 1]]),
    ],
)
def test_messages_that_meet_in_one_sum_begin_with_different_pieces_if_there_are_enough(pieces, orders):
    cut = in_pieces(sums_at(1, Collective(Kind.REDUCESCATTER, 4)), pieces)
    assert chunks_by_link(cut) == [[pieces + piece for piece in order] for order in orders]


def test_messages_of_a_sum_that_is_sent_on_all_begin_with_the_first_piece():
    """The chain's second message waits for the first piece of its first one, and that is waited for."""
    topology = chain(3)
    untimed = [UntimedMessage(topology.links_between[r, r + 1][0], (0,), r, r + 1, reduce=True) for r in range(2)]
    cut = in_pieces(build_schedule(topology, Collective(Kind.REDUCE, 3, 1, 2), MB, untimed), 2)
    assert verify_schedule(cut) == ()
    assert chunks_by_link(cut) == [[0, 1], [0, 1]]


def test_only_messages_that_are_larger_than_the_pieces_are_cut():
    """Chunks stay whole where there are enough of them."""
    cut = in_pieces(relayed((0, 1, 2, 3), (4,)), 2)
    assert cut.collective.chunks_per_rank == 5
    assert chunks_of_messages(cut) == [(0, 1), (2, 3), (4,)]


def test_chunks_are_cut_where_there_are_not_enough_of_them():
    cut = in_pieces(relayed((0, 1, 2), (3,)), 2)
    assert cut.collective.chunks_per_rank == 8
    assert cut.chunk_bytes == MB / 2
    assert chunks_of_messages(cut) == [(0, 1, 2), (3, 4, 5), (6, 7)]


def test_what_arrives_is_cut_as_it_is_sent_on():
    """Rank 1 gets four chunks at once and sends the first one to rank 2 before the others: then that is a message of its own."""
    schedule = relayed((0, 1, 2, 3), onward=((0,), (1, 2, 3)))
    assert chunks_of_messages(in_pieces(schedule, 1)) == chunks_of_messages(schedule)
    cut = in_pieces(schedule, 2)
    assert verify_schedule(cut) == ()
    assert chunks_of_messages(cut) == [(0,), (1,), (2, 3)]


def test_small_neighbours_stay_one_piece():
    """Of six chunks, sent on one by one, two are a piece each."""
    schedule = relayed(tuple(range(6)), onward=tuple((chunk,) for chunk in range(6)))
    assert chunks_of_messages(in_pieces(schedule, 3))[:3] == [(0, 1), (2, 3), (4, 5)]


def relayed(*groups, onward=()):
    """Broadcast of groups of chunks of 1 MB from rank 0 to rank 1 and, in the same groups unless others are given, to rank 2."""
    topology, step = chain(3), 100.0
    untimed = [
        UntimedMessage(topology.links_between[0, 1][0], g, i * step, (i + 1) * step) for i, g in enumerate(groups)
    ]
    later = len(groups) * step
    onward = onward or groups
    untimed += [
        UntimedMessage(topology.links_between[1, 2][0], g, later + i * step, later + (i + 1) * step)
        for i, g in enumerate(onward)
    ]
    chunks = sum(map(len, groups))
    return build_schedule(topology, Collective(Kind.BROADCAST, 3, chunks, 0), MB, untimed)


def chunks_of_messages(schedule):
    """Chunks of messages, in their order; of what is sent on in the same groups, once."""
    return list(dict.fromkeys(m.chunks for m in sorted(schedule.messages, key=lambda each: (each.link, each.start_us))))


# Turning around


def test_a_schedule_as_a_plan_can_be_shifted():
    schedule = ring_allgather(3)
    first, shifted = untimed_messages(schedule), untimed_messages(schedule, offset=5.0)
    assert [(d.link, d.chunks, d.start, d.end) for d in first] == [
        (m.link, m.chunks, m.start_us, m.end_us) for m in schedule.messages
    ]
    assert [(d.start, d.end) for d in shifted] == [(d.start + 5.0, d.end + 5.0) for d in first]


def test_backwards_every_message_is_reversed_at_the_mirrored_time():
    topology = chain(3)
    schedule = build_schedule(
        topology,
        Collective(Kind.BROADCAST, 3),
        MB,
        [UntimedMessage(0, (0,), 0.0, 11.0), UntimedMessage(1, (0,), 11.0, 22.0)],
    )
    original = topology.reversed()
    turned = backwards(schedule, original)
    ends = [(original.links[d.link].src, original.links[d.link].dst, d.start, d.end, d.reduce) for d in turned]
    assert sorted(ends) == [(1, 0, 11.0, 22.0, True), (2, 1, 0.0, 11.0, True)]


def test_parallel_links_keep_their_own_cost_backwards():
    links = [Link(0, 1, 1.0, 10.0), Link(1, 0, 1.0, 5.0), Link(0, 1, 1.0, 30.0)]
    topology = machine(2, links)
    turned = topology.reversed()
    fast, slow = turned.links_between[1, 0]
    schedule = build_schedule(
        turned,
        Collective(Kind.BROADCAST, 2, 2, 1),
        MB,
        [UntimedMessage(fast, (0,), 0.0, 1.0), UntimedMessage(slow, (1,), 0.0, 1.0)],
    )
    reduced = combining(schedule, topology)
    assert verify_schedule(reduced) == ()
    cost = {m.chunks: topology.links[m.link].beta_us_per_mb for m in reduced.messages}
    assert cost == {(0,): 10.0, (1,): 30.0}


@settings(max_examples=100)
@given(seeds, st.sampled_from([Kind.BROADCAST, Kind.ALLGATHER]))
def test_sums_made_backwards_are_right_on_any_machine(seed, kind):
    """Ports that are slower or faster than links, latency, parallel links."""
    rng = random.Random(seed)
    topology = random_topology(rng, rng.randrange(2, 6))
    root = rng.randrange(topology.num_ranks) if kind is Kind.BROADCAST else 0
    collective = Collective(kind, topology.num_ranks, rng.choice([1, 2, 3]), root)
    forwards = routed(rng, topology.reversed(), collective, rng.choice(SIZES))
    reduced = combining(forwards, topology)
    assert verify_schedule(reduced) == ()
    assert reduced.topology == topology
    assert reduced.collective.kind is (Kind.REDUCE if kind is Kind.BROADCAST else Kind.REDUCESCATTER)
    assert (reduced.collective.root, reduced.chunk_bytes) == (root, forwards.chunk_bytes)


@settings(max_examples=60)
@given(seeds)
def test_on_plain_links_a_sum_takes_no_longer_than_the_routed_schedule(seed):
    rng = random.Random(seed)
    topology = plain_topology(rng, rng.randrange(2, 6))
    collective = Collective(Kind.ALLGATHER, topology.num_ranks, rng.choice([1, 2]))
    forwards = routed(rng, topology.reversed(), collective, MB)
    assert combining(forwards, topology).makespan_us <= forwards.makespan_us * (1 + 1e-9)


@settings(max_examples=150)
@given(seeds)
def test_on_a_reversible_machine_a_sum_of_single_chunks_takes_no_longer(seed):
    """Whatever the ports, if all of them cost the same and all links do."""
    rng = random.Random(seed)
    drawn = random_topology(rng, rng.randrange(2, 5))
    costs = {"alpha_us": rng.choice([0.0, 3.0]), "beta_us_per_mb": rng.choice([1.0, 10.0])}
    ports = [replace(port, alpha_us=1.0, beta_us_per_mb=5.0) for port in drawn.ports]
    topology = machine(drawn.num_ranks, [replace(link, latency_us=2.0, **costs) for link in drawn.links], ports)
    assert is_reversible(topology, MB)
    forwards = routed(rng, topology.reversed(), Collective(Kind.ALLGATHER, topology.num_ranks), MB)
    assert all(len(message.chunks) == 1 for message in forwards.messages)
    assert combining(forwards, topology).makespan_us <= forwards.makespan_us * (1 + 1e-9)


def test_links_that_arrive_differently_late_behind_a_port_cannot_be_reversed():
    port = Port("in", 0.0, 10.0)
    for other, expected in (((0.0, 10.0, 0.0), True), ((0.0, 10.0, 5.0), False), ((0.0, 20.0, 0.0), False)):
        links = [Link(1, 0, 0.0, 10.0, ports=(0,)), Link(2, 0, *other, ports=(0,))]
        assert is_reversible(machine(3, links, [port]), MB) is expected


def test_with_latency_a_sum_takes_no_longer_either():
    """Turned around by their ends, a message with latency and one without would change places at the port."""
    links = [Link(1, 0, 0.0, 10.0, ports=(0,)), Link(2, 0, 0.0, 10.0, 5.0, ports=(0,))]
    topology = machine(3, links, [Port("in", 0.0, 10.0)])
    turned = topology.reversed()
    far, near = turned.links_between[0, 2][0], turned.links_between[0, 1][0]
    drafts = [UntimedMessage(far, (0,), 0.0, 15.0), UntimedMessage(near, (0,), 10.0, 20.0)]
    broadcast = build_schedule(turned, Collective(Kind.BROADCAST, 3), MB, drafts)
    assert broadcast.makespan_us == 20.0
    assert combining(broadcast, topology).makespan_us == 20.0


# AllReduce


@settings(max_examples=100)
@given(seeds)
def test_allreduce_is_right_on_any_machine(seed):
    rng = random.Random(seed)
    topology = random_topology(rng, rng.randrange(2, 6))
    collective = Collective(Kind.ALLGATHER, topology.num_ranks, rng.choice([1, 2]))
    size = rng.choice(SIZES)
    gather = routed(rng, topology, collective, size)
    reversed_gather = routed(rng, topology.reversed(), collective, size)
    reduced = allreduce(gather, reversed_gather)
    assert verify_schedule(reduced) == ()
    assert reduced.collective == Collective(Kind.ALLREDUCE, topology.num_ranks, collective.chunks_per_rank)
    assert reduced.topology == topology


@pytest.mark.parametrize("root", [0, 2])
def test_a_reduce_is_the_part_of_an_allreduce_that_serves_the_root(root):
    """Four ranks that add up a chunk each: all 12 sums, one of them with the root's contribution, and 3 of the 12 copies."""
    topology = full(4)
    pairs = [(src, dst, number) for number, (src, dst) in enumerate((link.src, link.dst) for link in topology.links)]
    untimed = [UntimedMessage(number, (dst,), 0.0, 1.0, reduce=True) for _, dst, number in pairs]
    untimed += [UntimedMessage(number, (src,), 1.0, 2.0) for src, _, number in pairs]
    whole = build_schedule(topology, Collective(Kind.ALLREDUCE, 4), MB, untimed)
    part = reduce_of(whole, root)
    assert not verify_schedule(whole)
    assert not verify_schedule(part)
    assert part.collective == Collective(Kind.REDUCE, 4, 4, root)
    assert sorted(message.reduce for message in part.messages) == [False] * 3 + [True] * 12
    assert part.makespan_us == pytest.approx(whole.makespan_us)


@settings(max_examples=60)
@given(seeds)
def test_on_plain_links_allreduce_takes_no_longer_than_its_halves(seed):
    rng = random.Random(seed)
    topology = plain_topology(rng, rng.randrange(2, 6))
    collective = Collective(Kind.ALLGATHER, topology.num_ranks)
    gather = routed(rng, topology, collective, MB)
    reversed_gather = routed(rng, topology.reversed(), collective, MB)
    together = allreduce(gather, reversed_gather)
    assert together.makespan_us <= (gather.makespan_us + reversed_gather.makespan_us) * (1 + 1e-9)


def test_a_sum_that_is_complete_starts_out_before_others_are():
    """Rank 0 reduces its chunk over a fast link and need not wait for the slow one."""
    topology = machine(2, [Link(0, 1, 0.0, 10.0), Link(1, 0, 0.0, 40.0)])
    gather = build_schedule(
        topology,
        Collective(Kind.ALLGATHER, 2),
        MB,
        [UntimedMessage(0, (0,), 0.0, 10.0), UntimedMessage(1, (1,), 0.0, 40.0)],
    )
    turned = topology.reversed()
    to_one, to_zero = turned.links_between[0, 1][0], turned.links_between[1, 0][0]
    back = build_schedule(
        turned,
        Collective(Kind.ALLGATHER, 2),
        MB,
        [UntimedMessage(to_one, (0,), 0.0, 40.0), UntimedMessage(to_zero, (1,), 0.0, 10.0)],
    )
    reduced = allreduce(gather, back)
    assert verify_schedule(reduced) == ()
    starts = {(m.chunks, m.reduce): m.start_us for m in reduced.messages}
    assert starts[(1,), True] == 0.0
    assert starts[(1,), False] == 40.0, "over the slow link, which the other chunk's part holds until then"
    assert starts[(0,), False] == 40.0
    assert reduced.makespan_us == 80.0


# The same machine backwards


@pytest.mark.parametrize("name", ["ring:5", "torus:3x3", "hypercube:3", "switch:6", "full:4", "ndv2", "dgx2"])
@pytest.mark.parametrize("seed", range(3))
def test_on_a_machine_that_is_its_own_reverse_a_schedule_serves_both_directions(name, seed):
    rng = random.Random(seed)
    topology = load_topology(name)
    collective = Collective(Kind.ALLGATHER, topology.num_ranks)
    gather = routed(rng, topology, collective, MB)
    turned = mirrored(gather)
    assert turned is not None
    assert verify_schedule(turned) == ()
    assert turned.topology == topology.reversed()
    assert turned.makespan_us <= gather.makespan_us * (1 + 1e-9)
    ends = [(topology.links[m.link].src, topology.links[m.link].dst, m.chunks) for m in gather.messages]
    links = turned.topology.links
    assert sorted(ends) == sorted((links[m.link].src, links[m.link].dst, m.chunks) for m in turned.messages)
    reduced = allreduce(gather, turned)
    assert verify_schedule(reduced) == ()
    assert reduced.makespan_us <= 2 * gather.makespan_us * (1 + 1e-9)


@pytest.mark.parametrize(
    "topology",
    [
        ring(3),
        machine(2, [Link(0, 1, 0.0, 10.0), Link(1, 0, 0.0, 11.0)]),
        machine(2, [Link(0, 1, 0.0, 10.0), Link(1, 0, 0.0, 10.0, 1.0)]),
        machine(2, [Link(0, 1, 0.0, 10.0), Link(0, 1, 0.0, 10.0), Link(1, 0, 0.0, 10.0)]),
        machine(2, [Link(0, 1, 0.0, 10.0, ports=(0,)), Link(1, 0, 0.0, 10.0)], [Port("p", 1.0, 1.0)]),
    ],
)
def test_a_machine_that_differs_backwards_is_not_mirrored(topology):
    """Other links, other costs, another latency, fewer lanes, another port."""
    num_ranks = topology.num_ranks
    gather = routed(random.Random(0), topology, Collective(Kind.ALLGATHER, num_ranks), MB)
    if mirrored(gather) is not None:
        used = {m.link for m in gather.messages}
        assert len(used) < len(topology.links), "only the links that are used have to be there"
    else:
        assert mirrored(gather) is None


def test_a_mirror_image_that_would_be_slower_is_none():
    """Both links out of rank 0 share a port; backwards it is both links into it that do."""
    links = [Link(0, r, 0.0, 10.0, ports=(0,)) for r in (1, 2)] + [Link(r, 0, 0.0, 10.0, ports=(1,)) for r in (1, 2)]
    links[2], links[3] = Link(1, 0, 0.0, 10.0, ports=(1,)), Link(2, 0, 0.0, 10.0, ports=(2,))
    topology = machine(3, links, [Port(f"port {i}", 0.0, 10.0) for i in range(3)])
    into = Collective(Kind.GATHER, 3)
    gather = build_schedule(
        topology, into, MB, [UntimedMessage(topology.links_between[r, 0][0], (r,), 0.0, 10.0) for r in (1, 2)]
    )
    assert gather.makespan_us == 10.0
    assert mirrored(gather) is None


def test_two_nodes_joined_both_ways_are_their_own_reverse_and_one_way_joined_ones_are_not():
    both, crossed = two_nodes(2, {0: (0,), 1: (1,)}), two_nodes(2, {1: (0,)})
    for topology, is_same in ((both, True), (crossed, False), (full(3), True)):
        gather = routed(random.Random(1), topology, Collective(Kind.ALLGATHER, topology.num_ranks), MB)
        assert (mirrored(gather) is not None) is is_same

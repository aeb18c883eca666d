"""Machines and valid schedules for tests: by hand, and at random."""

import random
from dataclasses import dataclass, field, replace

from taccl_py.collective import Collective, Kind
from taccl_py.schedule.ir import Message, Schedule
from taccl_py.topology.model import Link, Medium, Port, Topology

MB = 1_000_000


def machine(num_ranks, pairs, *, alpha_us=1.0, beta_us_per_mb=1.0, nodes=None, name="test", latency_us=0.0):
    links = tuple(Link(a, b, alpha_us, beta_us_per_mb, latency_us) for a, b in pairs)
    return Topology(name, "made up", tuple(nodes or (0,) * num_ranks), (), links, inside=Medium.NVLINK)


def ring(num_ranks, **kwargs):
    return machine(num_ranks, [(r, (r + 1) % num_ranks) for r in range(num_ranks)], **kwargs)


def full(num_ranks, **kwargs):
    return machine(num_ranks, [(a, b) for a in range(num_ranks) for b in range(num_ranks) if a != b], **kwargs)


@dataclass
class Planner:
    """Sends each message as soon as its link is free and its chunks are there."""

    topology: Topology
    collective: Collective
    chunk_bytes: float = MB
    messages: list = field(default_factory=list)
    scratch: list = None

    def __post_init__(self):
        self.free_us = [0.0] * len(self.topology.links)
        self.there_us = {}
        self.scratch = self.scratch or [[] for _ in range(self.topology.num_ranks)]

    def link(self, src, dst, lane=0):
        return self.topology.links_between[src, dst][lane]

    def send(self, src, dst, *chunks, reduce=False, lane=0, not_before_us=0.0):
        link = self.link(src, dst, lane)
        start = max(not_before_us, self.free_us[link], *(self.there_us.get((c, src), 0.0) for c in chunks))
        size = len(chunks) * self.chunk_bytes
        end = start + self.topology.message_us(link, size)
        self.free_us[link] = start + self.topology.occupancy_us(link, size)
        for chunk in chunks:
            self.there_us[chunk, dst] = max(end, self.there_us.get((chunk, dst), 0.0))
        self.messages.append(Message(link, tuple(chunks), start, end, reduce))
        return end

    def schedule(self):
        return Schedule(
            self.topology, self.collective, self.chunk_bytes, tuple(self.messages), tuple(map(tuple, self.scratch))
        )


def ring_allgather(num_ranks, k=1, **kwargs):
    plan = Planner(ring(num_ranks, **kwargs), Collective(Kind.ALLGATHER, num_ranks, k))
    for hop in range(num_ranks - 1):
        for rank in range(num_ranks):
            owner = (rank - hop) % num_ranks
            plan.send(rank, (rank + 1) % num_ranks, *range(owner * k, owner * k + k))
    return plan.schedule()


def ring_reducescatter_messages(plan, num_ranks, k):
    for hop in range(num_ranks - 1):
        for rank in range(num_ranks):
            owner = (rank - hop - 1) % num_ranks
            plan.send(rank, (rank + 1) % num_ranks, *range(owner * k, owner * k + k), reduce=True)


def ring_reducescatter(num_ranks, k=1):
    plan = Planner(ring(num_ranks), Collective(Kind.REDUCESCATTER, num_ranks, k))
    for rank in range(num_ranks):
        # Its own share ends in the output, that of the rank before it starts here and never comes.
        keeps = {rank, (rank - 1) % num_ranks}
        plan.scratch[rank] = [c for c in range(num_ranks * k) if c // k not in keeps]
    ring_reducescatter_messages(plan, num_ranks, k)
    return plan.schedule()


def ring_allreduce(num_ranks, k=1, **kwargs):
    plan = Planner(ring(num_ranks, **kwargs), Collective(Kind.ALLREDUCE, num_ranks, k))
    ring_reducescatter_messages(plan, num_ranks, k)
    for hop in range(num_ranks - 1):
        for rank in range(num_ranks):
            owner = (rank - hop) % num_ranks
            plan.send(rank, (rank + 1) % num_ranks, *range(owner * k, owner * k + k))
    return plan.schedule()


def recursive_doubling(num_ranks, k=1, per_message=None, **kwargs):
    plan = Planner(full(num_ranks, **kwargs), Collective(Kind.ALLREDUCE, num_ranks, k))
    chunks = range(num_ranks * k)
    size = per_message or len(chunks)
    distance, now_us = 1, 0.0
    while distance < num_ranks:
        ends = []
        for rank in range(num_ranks):
            for first in range(0, len(chunks), size):
                plan.there_us.clear()  # a round sends what the round before has brought, not what it brings itself
                ends.append(
                    plan.send(rank, rank ^ distance, *chunks[first : first + size], reduce=True, not_before_us=now_us)
                )
        distance, now_us = 2 * distance, max(ends)
    return plan.schedule()


def relay_alltoall(k=1):
    """Three ranks in a ring: every second hop goes by way of the middle rank, together with its own chunks."""
    collective = Collective(Kind.ALLTOALL, 3, k)

    def chunks(src, dst):
        return list(range((src * 3 + dst) * k, (src * 3 + dst) * k + k))

    plan = Planner(ring(3), collective)
    for rank in range(3):
        before, after = (rank - 1) % 3, (rank + 1) % 3
        plan.scratch[rank] = chunks(before, after) + chunks(rank, after)
    for rank in range(3):
        plan.send(rank, (rank + 1) % 3, *chunks(rank, (rank + 2) % 3))
    for rank in range(3):
        before, after = (rank - 1) % 3, (rank + 1) % 3
        for chunk in chunks(before, after) + chunks(rank, after):
            plan.send(rank, after, chunk)
    return plan.schedule()


def direct_alltoall(num_ranks, k=1, **kwargs):
    plan = Planner(full(num_ranks, **kwargs), Collective(Kind.ALLTOALL, num_ranks, k))
    for shift in range(1, num_ranks):
        for rank in range(num_ranks):
            peer = (rank + shift) % num_ranks
            plan.send(rank, peer, *range((rank * num_ranks + peer) * k, (rank * num_ranks + peer) * k + k))
    return plan.schedule()


def direct_allreduce(num_ranks, k=1):
    """Everybody sends everybody its part of each share, the sums come back."""
    plan = Planner(full(num_ranks), Collective(Kind.ALLREDUCE, num_ranks, k))
    for reduce in (True, False):
        for shift in range(1, num_ranks):
            for rank in range(num_ranks):
                peer = (rank + shift) % num_ranks
                owner = peer if reduce else rank
                plan.send(rank, peer, *range(owner * k, owner * k + k), reduce=reduce)
    return plan.schedule()


def chain_broadcast(num_ranks, k=2, **kwargs):
    pairs = [(r, r + 1) for r in range(num_ranks - 1)]
    plan = Planner(machine(num_ranks, pairs, **kwargs), Collective(Kind.BROADCAST, num_ranks, k))
    for chunk in range(k):
        for rank in range(num_ranks - 1):
            plan.send(rank, rank + 1, chunk)
    return plan.schedule()


def tree_reduce(k=1, **kwargs):
    """Ranks 3, 4 to 1; 5, 6 to 2; 1, 2 to 0."""
    pairs = [(3, 1), (4, 1), (5, 2), (6, 2), (1, 0), (2, 0)]
    plan = Planner(machine(7, pairs, **kwargs), Collective(Kind.REDUCE, 7, k))
    plan.scratch[1] = plan.scratch[2] = list(range(k))
    for src, dst in pairs:
        plan.send(src, dst, *range(k), reduce=True)
    return plan.schedule()


def relay_gather(k=2):
    """Rank 2 sends its share by way of rank 1, which sends it on together with its own."""
    plan = Planner(machine(3, [(2, 1), (1, 0)]), Collective(Kind.GATHER, 3, k))
    plan.scratch[1] = list(range(k, 3 * k))
    plan.send(2, 1, *range(2 * k, 3 * k))
    plan.send(1, 0, *range(k, 3 * k))
    return plan.schedule()


def chain_scatter(num_ranks=3, k=2):
    pairs = [(r, r + 1) for r in range(num_ranks - 1)]
    plan = Planner(machine(num_ranks, pairs), Collective(Kind.SCATTER, num_ranks, k))
    for rank in range(1, num_ranks):
        plan.scratch[rank] = list(range((rank + 1) * k, num_ranks * k))
    for rank in range(num_ranks - 1):
        chunks = range((rank + 1) * k, num_ranks * k)
        plan.send(rank, rank + 1, *chunks[:k])
        if chunks[k:]:
            plan.send(rank, rank + 1, *chunks[k:])
    return plan.schedule()


def machine_with_ports(num_ranks, links, num_ports):
    """Machine whose ports all take 10 us for a chunk."""
    ports = tuple(Port(f"port {i}", 0.0, 10.0) for i in range(num_ports))
    return Topology("test", "made up", (0,) * num_ranks, ports, tuple(links), inside=Medium.NVLINK)


def crossing(topology, src, dst, chunk, start_us, end_us, lane=0):
    return Message(topology.links_between[src, dst][lane], (chunk,), start_us, end_us)


def urgent_relay():
    """Broadcast of 0 to 2 first, which passes it on to 3, and then to 1, through one port: 20 us.

    If rank 0 serves rank 1 first, rank 3 gets the chunk at 30.
    """
    links = [Link(0, 1, 0.0, 10.0, ports=(0,)), Link(0, 2, 0.0, 10.0, ports=(0,)), Link(2, 3, 0.0, 10.0)]
    topology = machine_with_ports(4, links, 1)
    messages = (
        crossing(topology, 0, 2, 0, 0.0, 10.0),
        crossing(topology, 0, 1, 0, 10.0, 20.0),
        crossing(topology, 2, 3, 0, 10.0, 20.0),
    )
    return Schedule(topology, Collective(Kind.BROADCAST, 4, 1), MB, messages, ((),) * 4)


def urgent_relay_at_a_shared_port():
    """The same where rank 4, too, uses the port, to pass the chunk on to 5, and the way from 2 to 3 takes 15: 30 us, else 35."""
    links = [Link(0, 1, 0.0, 10.0, ports=(0,)), Link(0, 2, 0.0, 10.0, ports=(0,)), Link(2, 3, 0.0, 15.0)]
    links += [Link(0, 4, 0.0, 10.0), Link(4, 5, 0.0, 10.0, ports=(0,))]
    topology = machine_with_ports(6, links, 1)
    messages = (
        crossing(topology, 0, 2, 0, 0.0, 10.0),
        crossing(topology, 0, 4, 0, 0.0, 10.0),
        crossing(topology, 0, 1, 0, 10.0, 20.0),
        crossing(topology, 2, 3, 0, 10.0, 25.0),
        crossing(topology, 4, 5, 0, 20.0, 30.0),
    )
    return Schedule(topology, Collective(Kind.BROADCAST, 6, 1), MB, messages, ((),) * 6)


def urgent_arrival():
    """AllGather of 3 ranks where the chunks of ranks 1 and 2 come to rank 0 through one port and leave over links of 10, 20.

    The one with the long way ahead (rank 2's) must come first: 30 us, else 40.
    """
    way_in = [Link(1, 0, 0.0, 10.0, ports=(0,)), Link(2, 0, 0.0, 10.0, ports=(0,))]
    topology = machine_with_ports(3, [*way_in, *[Link(0, 1, 0.0, 20.0)] * 2, *[Link(0, 2, 0.0, 10.0)] * 2], 1)
    messages = (
        crossing(topology, 2, 0, 2, 0.0, 10.0),
        crossing(topology, 0, 1, 0, 0.0, 20.0),
        crossing(topology, 0, 2, 0, 0.0, 10.0),
        crossing(topology, 1, 0, 1, 10.0, 20.0),
        crossing(topology, 0, 1, 2, 10.0, 30.0, lane=1),
        crossing(topology, 0, 2, 1, 20.0, 30.0, lane=1),
    )
    return Schedule(topology, Collective(Kind.ALLGATHER, 3), MB, messages, ((),) * 3)


def random_machine(rng, num_ranks):
    """A ring and some more links, some of them twice, all of different cost."""
    pairs = [(r, (r + 1) % num_ranks) for r in range(num_ranks)]
    pairs += [(r, (r - 1) % num_ranks) for r in range(num_ranks) if rng.random() < 0.5]
    for _ in range(rng.randrange(2 * num_ranks)):
        a, b = rng.randrange(num_ranks), rng.randrange(num_ranks)
        if a != b:
            pairs.append((a, b))
    latency_us = rng.choice([0.0, 0.0, 2.0])
    links = [Link(a, b, rng.choice([0.5, 1.0, 2.0]), rng.choice([1.0, 2.0]), latency_us) for a, b in pairs]
    return Topology(
        "random", "made up", tuple(r * 2 // num_ranks for r in range(num_ranks)), (), tuple(links), inside=Medium.NVLINK
    )


def random_tree(rng, topology, source, wanting):
    """Links of a random tree from the source that reaches all of `wanting`, parents first."""
    reached, tree, into = {source}, [], {}
    while not set(wanting) <= reached:
        border = [i for i, link in enumerate(topology.links) if link.src in reached and link.dst not in reached]
        link = rng.choice(border)
        reached.add(topology.links[link].dst)
        into[topology.links[link].dst] = link
        tree.append(link)
    needed, ranks = set(), list(wanting)
    while ranks:
        rank = ranks.pop()
        if rank != source and into[rank] not in needed:
            needed.add(into[rank])
            ranks.append(topology.links[into[rank]].src)
    return [link for link in tree if link in needed]


def random_routed(rng, topology, collective, *, target=None):
    """A random valid schedule of a routed collective; neighbours often travel together.

    With `target`, neighbours are neighbours in the buffers of that collective too. Messages may be packed.
    """
    packs = rng.random() < 0.3
    trees = {}
    for chunk in range(collective.num_chunks):
        alike = chunk and rng.random() < 0.7 and collective.source[chunk - 1] == collective.source[chunk]
        if alike and collective.wanted[chunk - 1] == collective.wanted[chunk]:
            trees[chunk] = trees[chunk - 1]
        else:
            trees[chunk] = random_tree(rng, topology, collective.source[chunk], collective.wanted[chunk])
    scratch = scratch_lists(rng, topology, target or collective, trees, backwards=target is not None)
    frame = Schedule(topology, target or collective, MB, (), scratch)
    there = {(chunk, collective.source[chunk]): 0.0 for chunk in trees}
    todo = {(chunk, link) for chunk, tree in trees.items() for link in tree}
    free_us, messages = [0.0] * len(topology.links), []
    while todo:
        ready = sorted((c, link) for c, link in todo if (c, topology.links[link].src) in there)
        chunk, link = rng.choice(ready)
        src, dst = topology.links[link].src, topology.links[link].dst
        chunks = [chunk]
        while (
            rng.random() < 0.8
            and (chunks[-1] + 1, link) in ready
            and all(follow(frame.address(chunks[-1], rank), frame.address(chunks[-1] + 1, rank)) for rank in (src, dst))
        ):
            chunks.append(chunks[-1] + 1)
        packed = packs and rng.random() < 0.7
        if packed:
            others = [c for c, used in ready if used == link and c not in chunks]
            chunks += rng.sample(others, rng.randrange(len(others) + 1))
        start = max(free_us[link], *(there[c, src] for c in chunks)) + rng.choice([0.0, 0.0, 0.0, 1.5])
        free_us[link] = start + topology.occupancy_us(link, len(chunks) * MB)
        end = start + topology.message_us(link, len(chunks) * MB)
        messages.append(Message(link, tuple(chunks), start, end, packed=packed))
        for c in chunks:
            there[c, dst] = end
            todo.discard((c, link))
    return replace(frame, collective=collective, messages=tuple(messages))


def follow(one, other):
    return one is not None and other is not None and (one.buffer, one.offset + 1) == (other.buffer, other.offset)


def scratch_lists(rng, topology, collective, trees, *, backwards):
    """Places for what passes through, and sometimes for own chunks beside it."""
    lists = [set() for _ in range(topology.num_ranks)]
    for chunk, tree in trees.items():
        for index in tree:
            link = topology.links[index]
            rank = link.src if backwards else link.dst
            if rank not in collective.wanted[chunk]:
                lists[rank].add(chunk)
            other = link.dst if backwards else link.src
            if rng.random() < 0.3 and other not in collective.wanted[chunk]:
                lists[other].add(chunk)
    return tuple(tuple(sorted(chunks)) for chunks in lists)


def reverse(schedule, collective):
    """Run backwards on the machine with every link turned around, adding."""
    to = schedule.topology.reversed_link()
    end_us = max(m.end_us for m in schedule.messages)
    messages = [
        replace(m, link=to[m.link], start_us=end_us - m.end_us, end_us=end_us - m.start_us, reduce=True)
        for m in schedule.messages
    ]
    return replace(schedule, topology=schedule.topology.reversed(), collective=collective, messages=tuple(messages))


def random_schedule(seed, kind):
    """A random valid schedule of a collective on a random machine."""
    rng = random.Random(seed)
    num_ranks = rng.randrange(2, 6)
    topology = random_machine(rng, num_ranks)
    k = rng.choice([1, 1, 2, 3])
    root = rng.randrange(num_ranks) if kind in (Kind.BROADCAST, Kind.REDUCE, Kind.GATHER, Kind.SCATTER) else 0
    collective = Collective(kind, num_ranks, k, root)
    if not collective.reduces:
        return random_routed(rng, topology, collective)
    if kind is Kind.ALLREDUCE:
        scatter = Collective(Kind.ALLGATHER, num_ranks, k)
        first = reverse(random_routed(rng, topology.reversed(), scatter, target=collective), collective)
        second = random_routed(rng, topology, scatter, target=collective)
        shift_us = first.makespan_us
        later = [replace(m, start_us=m.start_us + shift_us, end_us=m.end_us + shift_us) for m in second.messages]
        return replace(first, messages=first.messages + tuple(later))
    return reverse(random_routed(rng, topology.reversed(), collective.dual(), target=collective), collective)


def shared_nic(*, direct, detour_us=32.0):
    """Broadcast from 4 by 0 and 1, whose links out (to 2, and to 3) share a NIC; rank 5 gets it from 3, or directly from 4.

    By way of 3 it takes 30 us if rank 1 goes first at the NIC, which no program can make sure: rank 0 asks at the same time.
    Directly it takes 32 us, whoever goes first.
    """
    links = [
        Link(4, 0, 0.0, 10.0), Link(4, 1, 0.0, 10.0), Link(0, 2, 0.0, 10.0, ports=(0,)),
        Link(1, 3, 0.0, 10.0, ports=(0,)), Link(3, 5, 0.0, 10.0), Link(4, 5, 0.0, detour_us),
    ]  # fmt: skip
    topology = machine_with_ports(6, links, 1)
    messages = [crossing(topology, 4, 0, 0, 0.0, 10.0), crossing(topology, 4, 1, 0, 0.0, 10.0)]
    if direct:
        messages += [crossing(topology, 4, 5, 0, 0.0, detour_us)]
        messages += [crossing(topology, 0, 2, 0, 10.0, 20.0), crossing(topology, 1, 3, 0, 20.0, 30.0)]
    else:
        messages += [crossing(topology, 1, 3, 0, 10.0, 20.0)]
        messages += [crossing(topology, 0, 2, 0, 20.0, 30.0), crossing(topology, 3, 5, 0, 20.0, 30.0)]
    return Schedule(topology, Collective(Kind.BROADCAST, 6, 1, 4), MB, tuple(messages), ((),) * 6)

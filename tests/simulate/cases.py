"""Small machines and valid schedules for tests: written down by hand, or drawn at random.

A `Planner` puts each message at the earliest time at which its link and ports are free and its chunks have arrived, in
the order in which it is told of them; so a schedule's times are right by construction and every message is held up by
something.
"""

import random
from dataclasses import dataclass, field

from hypothesis import strategies as st

from taccl_py.collective import Collective, Kind
from taccl_py.schedule.ir import Message, Schedule
from taccl_py.topology.model import Link, Port, Topology

MB = 1_000_000


def machine(num_ranks, links, ports=()):
    return Topology("test", "made up", (0,) * num_ranks, tuple(ports), tuple(links))


def ring(num_ranks, alpha_us=1.0, beta_us_per_mb=10.0):
    return machine(num_ranks, [Link(r, (r + 1) % num_ranks, alpha_us, beta_us_per_mb) for r in range(num_ranks)])


def both_ways(*pairs, alpha_us=1.0, beta_us_per_mb=10.0):
    num_ranks = 1 + max(max(pair) for pair in pairs)
    links = [Link(a, b, alpha_us, beta_us_per_mb) for pair in pairs for a, b in (pair, pair[::-1])]
    return machine(num_ranks, links)


@dataclass
class Planner:
    topology: Topology
    collective: Collective
    chunk_bytes: float
    messages: list = field(default_factory=list)

    def __post_init__(self):
        self.free_us = [0.0] * self.topology.num_resources
        self.arrival_us = {}
        self.scratch = [[] for _ in range(self.topology.num_ranks)]

    def send(self, link, *chunks, reduce=False, not_before_us=0.0):
        src, dst = self.topology.links[link].src, self.topology.links[link].dst
        resources = self.topology.resources_of[link]
        size = len(chunks) * self.chunk_bytes
        start = max(
            [not_before_us]
            + [self.free_us[r] for r in resources]
            + [self.arrival_us.get((chunk, src), 0.0) for chunk in chunks]
        )
        end = start + self.topology.message_us(link, size)
        for r in resources:
            self.free_us[r] = start + self.topology.occupancy_us(r, size)
        for chunk in chunks:
            self.arrival_us[chunk, dst] = max(end, self.arrival_us.get((chunk, dst), 0.0))
            self._place(chunk, dst)
        self.messages.append(Message(link, tuple(chunks), start, end, reduce))

    def _place(self, chunk, rank):
        if self.collective.output_address(chunk, rank) is None and chunk not in self.scratch[rank]:
            self.scratch[rank].append(chunk)

    def hop(self, src, dst, *chunks, reduce=False, not_before_us=0.0):
        link = self.topology.links_between[src, dst][0]
        self.send(link, *chunks, reduce=reduce, not_before_us=not_before_us)

    def schedule(self):
        return Schedule(
            self.topology, self.collective, self.chunk_bytes, tuple(self.messages), tuple(map(tuple, self.scratch))
        )


def ring_allgather(num_ranks, chunk_bytes=MB, topology=None):
    planner = Planner(topology or ring(num_ranks), Collective(Kind.ALLGATHER, num_ranks), chunk_bytes)
    for step in range(num_ranks - 1):
        for rank in range(num_ranks):
            planner.hop(rank, (rank + 1) % num_ranks, (rank - step) % num_ranks)
    return planner.schedule()


def ring_allreduce(num_ranks, chunk_bytes=MB):
    planner = Planner(ring(num_ranks), Collective(Kind.ALLREDUCE, num_ranks), chunk_bytes)
    for step in range(num_ranks - 1):
        for rank in range(num_ranks):
            planner.hop(rank, (rank + 1) % num_ranks, (rank - step) % num_ranks, reduce=True)
    for step in range(num_ranks - 1):
        for rank in range(num_ranks):
            planner.hop(rank, (rank + 1) % num_ranks, (rank + 1 - step) % num_ranks)
    return planner.schedule()


def recursive_doubling(chunk_bytes=MB):
    """AllReduce of 4 ranks by whole buffers: every rank sends a partial sum, gets more, and sends again."""
    topology = both_ways((0, 1), (2, 3), (0, 2), (1, 3))
    message_us = topology.message_us(0, 4 * chunk_bytes)
    messages = [
        Message(topology.links_between[src, dst][0], (0, 1, 2, 3), step * message_us, (step + 1) * message_us, True)
        for step, distance in enumerate((1, 2))
        for src in range(4)
        for dst in (src ^ distance,)
    ]
    return Schedule(topology, Collective(Kind.ALLREDUCE, 4), chunk_bytes, tuple(messages), ((),) * 4)


def chain_broadcast(num_ranks, num_chunks, chunk_bytes=MB):
    planner = Planner(ring(num_ranks), Collective(Kind.BROADCAST, num_ranks, chunks_per_rank=num_chunks), chunk_bytes)
    for chunk in range(num_chunks):
        for rank in range(num_ranks - 1):
            planner.hop(rank, rank + 1, chunk)
    return planner.schedule()


def relayed_scatter(chunk_bytes=MB):
    """Rank 0 sends its two far chunks to rank 1 as one message; rank 1 keeps one and passes the other on."""
    planner = Planner(both_ways((0, 1), (1, 2)), Collective(Kind.SCATTER, 3), chunk_bytes)
    planner.scratch[1] = [1, 2]
    planner.hop(0, 1, 1, 2)
    planner.hop(1, 2, 2)
    return planner.schedule()


# Random ones


def random_topology(rng, num_ranks):
    """A ring in both directions, more links (parallel ones too), and ports that several links share."""
    pairs = [(r, (r + 1) % num_ranks) for r in range(num_ranks)]
    pairs += [(b, a) for a, b in pairs]
    pairs += [tuple(rng.sample(range(num_ranks), 2)) for _ in range(rng.randrange(2 * num_ranks))]
    ports = [
        Port(f"port {i}", rng.choice([0.2, 0.5, 2.0]), rng.choice([0.0, 3.0, 12.0, 40.0])) for i in range(num_ranks)
    ]
    links = [
        Link(
            src, dst,
            alpha_us=rng.choice([0.3, 1.0, 2.6]),
            beta_us_per_mb=rng.choice([8.0, 23.0, 46.0]),
            latency_us=rng.choice([0.0, 0.0, 1.7]),
            ports=tuple(rng.sample(range(num_ranks), rng.randrange(3) if num_ranks > 2 else 1)),
        )
        for src, dst in pairs
    ]  # fmt: skip
    return machine(num_ranks, links, ports)


def random_tree(rng, topology, root, wanted, inward=False):
    """Links of a tree that joins `root` to all of `wanted`, from the root outwards; `inward` trees point at the root."""
    reached, tree = {root}, []
    while len(reached) < topology.num_ranks:
        ways = [
            (index, link.src if inward else link.dst)
            for index, link in enumerate(topology.links)
            if (link.dst if inward else link.src) in reached and (link.src if inward else link.dst) not in reached
        ]
        index, rank = rng.choice(ways)
        reached.add(rank)
        tree.append((index, rank))
    needed = set(wanted) - {root}
    kept = []
    for index, rank in reversed(tree):
        if rank in needed:
            link = topology.links[index]
            needed.add(link.dst if inward else link.src)
            kept.append(index)
    return kept[::-1]


def random_jobs(rng, topology, collective, chunk):
    """(link, reduce) of every message that brings one chunk where it is wanted, in an order that works."""
    everyone = range(collective.num_ranks)
    wanted = collective.wanted[chunk]
    if not collective.reduces:
        return [(link, False) for link in random_tree(rng, topology, collective.source[chunk], wanted)]
    root = rng.choice(wanted)
    gathering = random_tree(rng, topology, root, everyone, inward=True)
    jobs = [(link, True) for link in reversed(gathering)]
    return jobs + [(link, False) for link in random_tree(rng, topology, root, wanted)]


def random_schedule(rng, kinds=tuple(Kind), delays=False):
    num_ranks = rng.randrange(2, 6)
    kind = rng.choice(kinds)
    root = rng.randrange(num_ranks) if kind in (Kind.BROADCAST, Kind.REDUCE, Kind.GATHER, Kind.SCATTER) else 0
    collective = Collective(kind, num_ranks, rng.choice([1, 2]), root)
    topology = random_topology(rng, num_ranks)
    planner = Planner(topology, collective, rng.choice([100.0, 1000.0, 65536.0, 1e6, 3e7]))
    together = collective.chunks_per_rank == 2 and rng.random() < 0.5
    groups = [tuple(range(c, c + 1 + together)) for c in range(0, collective.num_chunks, 1 + together)]
    jobs = {group: random_jobs(rng, topology, collective, group[0]) for group in groups}
    while any(jobs.values()):
        group = rng.choice([group for group in groups if jobs[group]])
        link, reduce = jobs[group].pop(0)
        latest = max(planner.arrival_us.values(), default=0.0)
        wait_us = rng.choice([0.0, 0.0, rng.random() * latest]) if delays else 0.0
        planner.send(link, *group, reduce=reduce, not_before_us=wait_us)
    return planner.schedule()


def schedules(kinds=tuple(Kind), delays=False):
    return st.integers(0, 2**32).map(lambda seed: random_schedule(random.Random(seed), kinds, delays))

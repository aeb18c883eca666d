"""Problems with one chunk for each shard: what flow and paths are found for, and its parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from taccl_py.arrays import BoolArray, IntArray
from taccl_py.synthesis.distances import distances
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.flow.paths import FlowPair
from taccl_py.synthesis.flow.rounding import Routing
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.symmetry import Generator, orbit_labels, orbits_of_ranks, share_ports
from taccl_py.topology.ends import ends_of
from taccl_py.topology.model import Topology


def whole_shards(demand: Demand) -> Problem:
    """The problem with one chunk for each shard, and the part of its symmetry that acts freely.

    Raises
    ------
    InputError, Infeasible
        If the sketch contradicts the machine or leaves some chunk no path.
    """
    parts = demand.chunks_per_rank or 1
    shard_bytes = demand.chunk_bytes(demand.collective(parts)) * parts
    return _with_free_symmetry(Problem.build(demand.topology, demand.collective(1), demand.sketch, shard_bytes))


def with_port_owners(problem: Problem) -> Problem | None:
    """The problem when only one rank of those that share a port may use it; None if no port is shared or some path is lost.

    Ranks cannot wait for each other's messages at a port in a program, so only a port with one user keeps its planned order.
    """
    return _narrowed(problem, _owners_links(problem.topology)[None, :])


def with_rails(problem: Problem) -> Problem | None:
    """The problem when ranks send to other nodes only to their own likes, and what is theirs by themselves where they can.

    What goes to all ranks of a node then crosses in few large messages and is spread there. None if this is so anyway or if
    some path is lost.
    """
    topology = problem.topology
    local, node = topology.local_rank, topology.node_of
    inside = np.array([node[link.src] == node[link.dst] for link in topology.links])
    src, _ = ends_of(topology.links)
    rails = np.array([local[link.src] == local[link.dst] for link in topology.links])
    used = problem.permitted.any(axis=0) & rails & ~inside
    source = np.array(problem.collective.source, dtype=np.int64)
    by_itself = np.isin(source, src[used])[:, None] & (src[None, :] != source[:, None])
    return _narrowed(problem, inside[None, :] | (used[None, :] & ~by_itself))


def _narrowed(problem: Problem, kept: BoolArray) -> Problem | None:
    permitted = problem.permitted & kept
    if np.array_equal(permitted, problem.permitted):
        return None
    src, dst = ends_of(problem.topology.links)
    for chunk, (sink, *_) in enumerate(problem.collective.wanted):
        usable, source = permitted[chunk], problem.collective.source[chunk]
        if np.isinf(distances(problem.topology.num_ranks, src[usable], dst[usable], [source])[sink]):
            return None
    return _with_free_symmetry(replace(problem, permitted=permitted))


def _owners_links(topology: Topology) -> BoolArray:
    """Links all of whose ports are used by their first rank: of the senders, or of the receivers where those are fewer."""
    senders: list[set[int]] = [set() for _ in topology.ports]
    receivers: list[set[int]] = [set() for _ in topology.ports]
    for link in topology.links:
        for port in link.ports:
            senders[port].add(link.src)
            receivers[port].add(link.dst)
    owned = np.ones(len(topology.links), dtype=bool)
    for index, link in enumerate(topology.links):
        for port in link.ports:
            if len(senders[port]) <= len(receivers[port]):
                owned[index] &= link.src == min(senders[port])
            else:
                owned[index] &= link.dst == min(receivers[port])
    return owned


def _with_free_symmetry(problem: Problem) -> Problem:
    kept: tuple[Generator, ...] = ()
    for generator in problem.generators:
        if _acts_freely(problem, (*kept, generator)):
            kept = (*kept, generator)
    return replace(problem, generators=kept)


def _acts_freely(problem: Problem, generators: tuple[Generator, ...]) -> bool:
    """True if images of a path never meet: a path and its images then load all links and ports of an orbit alike.

    A group acts freely on ranks if the orbit of every chunk is as large as that of its source, which says that whatever
    keeps the source in place keeps all ranks there. Images of a link must not share a port either.
    """
    topology, collective = problem.topology, problem.collective
    if any(not np.array_equal(problem.permitted[np.ix_(g.chunk, g.link)], problem.permitted) for g in generators[-1:]):
        return False
    rank_label = orbits_of_ranks(topology, generators)
    chunk_label = orbit_labels(collective.num_chunks, [g.chunk for g in generators])
    ranks, chunks = np.bincount(rank_label), np.bincount(chunk_label)
    if not np.array_equal(chunks[chunk_label], ranks[rank_label[np.array(collective.source)]]):
        return False
    return not share_ports(topology, generators)


def in_parts(problem: Problem, pairs: tuple[FlowPair, ...], routing: Routing) -> Problem:
    """The problem with every shard in parts that have one path each, the symmetry's images included."""
    parts, links = routing.parts, len(problem.topology.links)
    collective = replace(problem.collective, chunks_per_rank=parts)
    generators = tuple(replace(g, chunk=_by_parts(g.chunk, parts)) for g in problem.generators)
    first = [
        (pair.chunk * parts + part) * links + link
        for pair, paths in zip(pairs, routing.links, strict=True)
        for part, path in enumerate(paths)
        for link in path
    ]
    allowed = np.zeros(collective.num_chunks * links, dtype=bool)
    new = np.array(first, dtype=np.int64)
    while len(new):
        allowed[new] = True
        images = [g.chunk[new // links] * links + g.link[new % links] for g in generators]
        new = np.unique(np.concatenate([image[~allowed[image]] for image in images])) if images else new[:0]
    permitted: BoolArray = np.repeat(problem.permitted, parts, axis=0)
    return replace(
        problem, traffic=collective, chunk_bytes=problem.chunk_bytes / parts, generators=generators,
        permitted=permitted, allowed=allowed.reshape(permitted.shape),
    )  # fmt: skip


def _by_parts(image: IntArray, parts: int) -> IntArray:
    """Image of every part when parts keep their number within the shard."""
    return np.asarray((image[:, None] * parts + np.arange(parts)[None, :]).reshape(-1), dtype=np.int64)

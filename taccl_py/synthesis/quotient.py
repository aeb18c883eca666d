"""Quotient: the routing and scheduling problem with one variable for each orbit of the symmetry group.

A *state* is "rank v holds chunk c"; an *arc* carries one chunk over one link, from state (c, u) to state (c, v). The group
acts on states, arcs, links and ports. All members of an orbit do the same thing at the same time, so an engine decides
once for each orbit and every member is scheduled: nobody ever writes an equation between members.

Two members of an arc orbit that would meet on one link or port, or deliver to one state, cannot act at the same time; such
orbits are left out. What is left looks like a small problem of the same kind, which is why engines know nothing of groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from taccl_py.arrays import BoolArray, IntArray
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.symmetry import orbit_labels, orbits_of_resources
from taccl_py.topology.ends import ends_of


@dataclass(frozen=True)
class Quotient:
    """Orbits of a problem. Indices 0..N-1 number state orbits, 0..A-1 arc orbits, 0..Q-1 resource orbits.

    Attributes
    ----------
    problem
        The full problem.
    source, required
        Whether a state holds at the start, and whether it must hold at the end, [state].
    tail, head
        State orbits that an arc leaves and enters, [arc].
    link
        A representative link for costs, [arc].
    link_orbit
        Resource orbit of the arc's link, [arc]; arcs of one link orbit share each of its links.
    resources
        Resource orbits that an arc occupies, its link first, then the ports, [arc].
    resource_orbit
        Orbit number of every link and port of the topology, [resource].
    member_start, member_chunk, member_link
        Members of arc a are entries ``member_start[a]..member_start[a+1]-1`` of the two flat arrays.
    """

    problem: Problem
    source: BoolArray
    required: BoolArray
    tail: IntArray
    head: IntArray
    link: IntArray
    link_orbit: IntArray
    resources: tuple[tuple[int, ...], ...]
    resource_orbit: IntArray
    member_start: IntArray
    member_chunk: IntArray
    member_link: IntArray

    @property
    def num_arcs(self) -> int:
        """A."""
        return len(self.tail)

    @property
    def num_states(self) -> int:
        """N."""
        return len(self.source)

    def members(self, arc: int) -> list[tuple[int, int]]:
        """(chunk, link) of every member of an arc orbit."""
        part = slice(self.member_start[arc], self.member_start[arc + 1])
        return list(zip(self.member_chunk[part].tolist(), self.member_link[part].tolist(), strict=True))

    @staticmethod
    def of(problem: Problem) -> Quotient:
        """Form the orbits of a problem."""
        # All allowed (chunk, link) pairs, numbered.
        chunk, link = np.nonzero(problem.allowed)
        number = np.full(problem.allowed.shape, -1, dtype=np.int64)
        number[chunk, link] = np.arange(len(chunk))
        labels = orbit_labels(len(chunk), [number[g.chunk[chunk], g.link[link]] for g in problem.generators])
        keep = _free_of_conflicts(problem, chunk, link, labels)
        order = np.argsort(labels[keep], kind="stable")
        chunk, link, label = chunk[keep][order], link[keep][order], labels[keep][order]
        first = np.flatnonzero(np.concatenate(([True], label[1:] != label[:-1]))) if len(label) else np.zeros(0, int)
        return _assemble(problem, chunk, link, first)


def _free_of_conflicts(problem: Problem, chunk: IntArray, link: IntArray, labels: IntArray) -> IntArray:
    """Indices of arcs whose orbit uses no link, port or arriving state twice."""
    topology = problem.topology
    _, dst = ends_of(problem.topology.links)
    bad = np.zeros(len(labels), dtype=bool)
    state = chunk * topology.num_ranks + dst[link]
    bad |= _repeated(labels, state, bad.shape[0])
    bad |= _repeated(labels, link, bad.shape[0])
    count = np.array([len(k.ports) for k in topology.links], dtype=np.int64)[link]
    port_of_link = [k.ports for k in topology.links]
    ports = np.array([port for k in link.tolist() for port in port_of_link[k]], dtype=np.int64)
    owner = np.repeat(np.arange(len(labels)), count)
    bad[owner[_repeated(labels[owner], ports, len(owner))]] = True
    bad_labels = np.unique(labels[bad])
    return np.flatnonzero(~np.isin(labels, bad_labels))


def _repeated(labels: IntArray, values: IntArray, size: int) -> BoolArray:
    """Mask of the entries whose (label, value) occurs more than once."""
    if not size:
        return np.zeros(0, dtype=bool)
    key = labels * (int(values.max()) + 1) + values
    _, inverse, counts = np.unique(key, return_inverse=True, return_counts=True)
    return np.asarray(counts[inverse] > 1)


def _assemble(problem: Problem, chunk: IntArray, link: IntArray, first: IntArray) -> Quotient:
    """Number states and resources of the kept arcs and gather everything by orbit."""
    ranks = problem.topology.num_ranks
    src, dst = ends_of(problem.topology.links)
    state_images = [(g.chunk[:, None] * ranks + np.array(g.rank)[None, :]).reshape(-1) for g in problem.generators]
    state_label = orbit_labels(problem.traffic.num_chunks * ranks, state_images)
    source_state = _states(ranks, problem.traffic.holders)
    rep_chunk, rep_link = chunk[first], link[first]
    tails = state_label[rep_chunk * ranks + src[rep_link]]
    heads = state_label[rep_chunk * ranks + dst[rep_link]]
    needed = _states(ranks, problem.traffic.wanted)
    needed_label = np.unique(state_label[np.setdiff1d(needed, source_state)])
    states = np.unique(np.concatenate([tails, heads, needed_label]))
    resource_orbit = orbits_of_resources(problem.topology, problem.generators)
    return Quotient(
        problem=problem,
        source=np.isin(states, state_label[source_state]),
        required=np.isin(states, needed_label),
        tail=np.searchsorted(states, tails),
        head=np.searchsorted(states, heads),
        link=rep_link,
        link_orbit=resource_orbit[rep_link],
        resources=tuple(
            tuple(dict.fromkeys(int(resource_orbit[r]) for r in problem.topology.resources_of[k]))
            for k in rep_link.tolist()
        ),
        resource_orbit=resource_orbit,
        member_start=np.append(first, len(chunk)),
        member_chunk=chunk,
        member_link=link,
    )


def _states(ranks: int, of_chunk: Sequence[Sequence[int]]) -> IntArray:
    """States of every chunk at some ranks."""
    return np.array([chunk * ranks + rank for chunk, those in enumerate(of_chunk) for rank in those], dtype=np.int64)

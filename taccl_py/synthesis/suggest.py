"""Sketch search: sketches that a designer might try on a machine, each solved, the best first.

A sketch is made of four independent ideas: which links inside a node to use (all, or only the fastest class), who talks between
nodes (everybody, equal local ranks, one sender for each port that leaves the node), whose chunks a sender relays (anybody's,
its own, or those of the ranks that reach it soonest), and how finely shards are cut. Symmetry is the machine's own, where the
links that are left have it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from taccl_py.collective import Collective, Kind
from taccl_py.errors import TacclError
from taccl_py.grouping import grouped
from taccl_py.sketch.model import DIRECT, Rotation, Sketch
from taccl_py.synthesis.bounds import quickest
from taccl_py.synthesis.engine import Demand, Events, Synthesis
from taccl_py.synthesis.problem import Problem, keeps_order
from taccl_py.synthesis.quotient import Quotient
from taccl_py.synthesis.race import EngineRun, Racer
from taccl_py.synthesis.symmetry import Generator, make_generator
from taccl_py.topology.model import Topology
from taccl_py.units import BYTES_PER_MB


@dataclass(frozen=True)
class Params:
    """Numbers of suggested sketches.

    Attributes
    ----------
    finer_chunk_counts
        Chunks per rank with which the best sketches are tried again. Guess.
    most_refined
        Sketches that are tried again. Guess.
    most_pairs
        Pairs of chunk and link of one run, at most. Guess.
    """

    finer_chunk_counts: tuple[int, ...] = (2, 4)
    most_refined: int = 3
    most_pairs: int = 300_000


PARAMS = Params()


@dataclass(frozen=True)
class Suggestion:
    """A sketch and what it leads to."""

    sketch: Sketch
    synthesis: Synthesis


@dataclass(frozen=True)
class _Idea:
    """A restriction, with the words for it."""

    name: str
    purpose: str
    restrictions: dict[str, object]


def suggest_sketches(demand: Demand, racer: Racer, events: Events) -> list[Suggestion]:
    """Solve the sketches that fit a demand, the fastest first; of equally fast ones the simpler.

    All ideas are tried with one chunk per rank (or the demand's number), the best few with more.

    Parameters
    ----------
    demand
        What is asked, without a sketch.
    racer
        Carries out the runs.
    events
        Progress.
    """
    found = _solve(demand, list(candidate_sketches(demand, demand.chunks_per_rank or 1)), racer, events)
    if demand.chunks_per_rank is None:
        finer = [
            replace(s.sketch, name=f"{s.sketch.name}-c{chunks}", chunks_per_rank=chunks)
            for s in found[: PARAMS.most_refined]
            for chunks in PARAMS.finer_chunk_counts
            if demand.collective(chunks).num_chunks * len(demand.topology.links) <= PARAMS.most_pairs
        ]
        found = _in_order([*found, *_solve(demand, finer, racer, events)])
    return found


def _solve(demand: Demand, sketches: Sequence[Sketch], racer: Racer, events: Events) -> list[Suggestion]:
    runs = [EngineRun("milp", replace(demand, sketch=s, chunks_per_rank=s.chunks_per_rank)) for s in sketches]
    outcomes = zip(sketches, racer.race(runs, events), strict=True)
    return _in_order([Suggestion(s, outcome.synthesis) for s, outcome in outcomes if outcome.synthesis is not None])


def _in_order(found: Sequence[Suggestion]) -> list[Suggestion]:
    """Fastest first, and what was there first of equally fast ones."""
    return sorted(found, key=lambda s: round(s.synthesis.schedule.makespan_us, 9))


def candidate_sketches(demand: Demand, chunks: int) -> Iterator[Sketch]:
    """Sketches that fit the machine and leave every chunk a path, the simplest first."""
    for inside in _link_ideas(demand.topology):
        for between in _connection_ideas(demand.topology):
            sketch = _sketch(demand, inside, between, chunks)
            if sketch is not None:
                yield sketch


def connection_sketches(demand: Demand, chunks: int) -> list[Sketch]:
    """Of the candidates those that only say who talks between nodes, what leaves the fewest choices first.

    Symmetries that part neighbours are left out: messages of several chunks would not survive them.
    """
    inside, *_ = _link_ideas(demand.topology)
    _anybody, *between = _connection_ideas(demand.topology)
    found = [
        replace(sketch, permutations=tuple(image for image in sketch.permutations if keeps_order(image)))
        for idea in between
        if (sketch := _sketch(demand, inside, idea, chunks)) is not None
    ]
    return sorted(reversed(found), key=lambda sketch: _num_choices(demand, sketch, chunks))


def _num_choices(demand: Demand, sketch: Sketch, chunks: int) -> int:
    """Pairs of chunk and link that symmetry does not exchange, on the machine as it is."""
    routed = _routed(demand, chunks)
    return Quotient.of(Problem.build(demand.topology, routed, sketch, demand.chunk_bytes(routed))).num_arcs


def _routed(demand: Demand, chunks: int) -> Collective:
    """The collective that is routed: of a sum the one that it is, run backwards, or half of it."""
    collective = demand.collective(chunks)
    return collective.dual() or (replace(collective, kind=Kind.ALLGATHER) if collective.reduces else collective)


def _sketch(demand: Demand, inside: _Idea, between: _Idea, chunks: int) -> Sketch | None:
    topology = demand.topology
    machine = topology.name.rpartition("-x")[0] if topology.num_nodes > 1 else topology.name
    name = "-".join(part for part in (machine, inside.name, between.name) if part)
    sketch = Sketch(
        name=name,
        purpose=f"{demand.kind} by search: {inside.purpose}{between.purpose}.",
        topology=machine if topology.num_nodes > 1 else "",
        nodes=(topology.num_nodes,),
        chunks_per_rank=chunks,
        **inside.restrictions,  # type: ignore[arg-type]
        **between.restrictions,  # type: ignore[arg-type]
    )
    try:
        sketch.check_fits(topology)
        routed = _routed(demand, chunks)
        problems = [Problem.build(topology, routed, sketch, demand.chunk_bytes(routed))]
        if demand.collective(chunks).reduces:
            backwards = topology.reversed()
            problems.append(Problem.build(backwards, routed, sketch.for_sums(backwards), demand.chunk_bytes(routed)))
    except TacclError:  # the machine has no such links, or a chunk has no path left
        return None
    kept = [
        image
        for image in topology.symmetry
        if all(isinstance(make_generator(p.topology, routed, p.permitted, image), Generator) for p in problems)
    ]
    turns = [turn for turn in (_as_rotation(topology, image) for image in kept) if turn is not None]
    others = tuple(image for image in kept if _as_rotation(topology, image) is None)
    return replace(sketch, rotations=tuple(turns), permutations=others)


def _as_rotation(topology: Topology, image: tuple[int, ...]) -> Rotation | None:
    """The rotation that a permutation is, in a person's words, or None."""
    size = len(topology.node_ranks[0])
    for rotation in (Rotation("node", "machine"), *(Rotation(step, "node") for step in range(1, size))):
        if Sketch("any", rotations=(rotation,)).generators(topology) == (("symmetry.rotations.0", image),):
            return rotation
    return None


def _link_ideas(topology: Topology) -> Iterator[_Idea]:
    """All links of a node, and only its fastest class where there are several."""
    yield _Idea("", "all links of a node", {})
    node = topology.node_ranks[0]
    local = {rank: index for index, rank in enumerate(node)}
    inside = [link for link in topology.links if link.src in local and link.dst in local]
    costs = {link.beta_us_per_mb for link in inside}
    if len(costs) > 1:
        fast = grouped((local[k.src], local[k.dst]) for k in inside if k.beta_us_per_mb == min(costs))
        links = {src: tuple(sorted(set(dsts))) for src, dsts in fast.items()}
        yield _Idea("fast", "only the fastest links of a node", {"links": links})


def _connection_ideas(topology: Topology) -> Iterator[_Idea]:
    """Ideas for the connections between nodes."""
    if topology.num_nodes == 1:
        yield _Idea("", "", {})
        return
    yield _Idea("any", ", any connection between nodes", {})
    yield _Idea("rails", ", equal local ranks talk between nodes", {"connections": DIRECT})
    own = {local: (local,) for local in range(len(topology.node_ranks[0]))}
    yield _Idea(
        "own", ", equal local ranks talk between nodes, each for itself", {"connections": DIRECT, "relays": own}
    )
    doors = _doors(topology)
    if len(doors) == len(topology.node_ranks[0]):
        return
    for name, shift, words in (("relay", 0, "the same"), ("pair", 1, "another")):
        if any(shift >= len(ranks) for ranks in doors):
            continue
        connections = {ranks[0]: (ranks[shift],) for ranks in doors}
        purpose = f", one sender for each NIC to {words} rank of the other node"
        yield _Idea(name, purpose, {"connections": connections})
        if len(connections) > 1:
            relays = _nearest_senders(topology, sorted(connections))
            purpose += ", each for the ranks near it"
            yield _Idea(f"{name}-near", purpose, {"connections": connections, "relays": relays})


def _doors(topology: Topology) -> list[tuple[int, ...]]:
    """Local ranks behind each of the ports through which a node is left, those with the quickest path first.

    Of the ports of a link it is the slowest one of the sender's side; a link without ports is a door of its own.
    """
    here, there = topology.node_ranks[0], topology.node_ranks[1]
    quickest_us: dict[int, dict[int, float]] = {}
    for index, link in enumerate(topology.links):
        if link.src in here and link.dst in there:
            mine = link.ports[: (len(link.ports) + 1) // 2]
            door = max(mine, key=lambda port: (topology.ports[port].beta_us_per_mb, port), default=-1 - link.src)
            ranks = quickest_us.setdefault(door, {})
            local = topology.local_rank[link.src]
            ranks[local] = min(ranks.get(local, math.inf), topology.message_us(index, BYTES_PER_MB))
    return [tuple(sorted(ranks, key=lambda r: (ranks[r], r))) for _, ranks in sorted(quickest_us.items())]


def _nearest_senders(topology: Topology, senders: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """For every sender the local ranks that reach it soonest, evenly where several are equally near."""
    node = topology.node_ranks[0]
    cost_us = [topology.message_us(link, BYTES_PER_MB) for link in range(len(topology.links))]
    inside = [i for i, link in enumerate(topology.links) if link.src in node and link.dst in node]
    served: dict[int, list[int]] = {sender: [] for sender in senders}
    for local, rank in enumerate(node):
        far_us = quickest(topology, [rank], inside, cost_us)
        nearest = min(senders, key=lambda sender: (far_us[node[sender]], len(served[sender]), sender))
        served[nearest].append(local)
    return {sender: tuple(ranks) for sender, ranks in served.items() if ranks}

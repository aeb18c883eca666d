"""Bound on small sizes where nodes are sparse inside: which messages could serve all pairs of ranks in two nodes at all.

The bound on crossings (`taccl_py.synthesis.bounds.crossing`) counts how many pairs a message can serve. Here it is asked whether there
are messages that serve *all* pairs: ranks differ in whom they can reach, so messages overlap in what they carry. As long as data
cannot cross twice, what rank a of one node has for rank b of another crosses once, in a message that serves both; and ports
without time for a second message serve one. If no choice of messages serves all pairs by T, the time is at least the next one
at which a message can serve more.
"""

from __future__ import annotations

from taccl_py.collective import Kind
from taccl_py.solvers.limits import Deadline, Limits
from taccl_py.synthesis.bounds.bound import Bound
from taccl_py.synthesis.bounds.net import OrbitMembers
from taccl_py.synthesis.bounds.passage import LatencyMachine
from taccl_py.synthesis.models.relay_cover import has_no_choice
from taccl_py.topology.model import Topology

KINDS = (Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.ALLREDUCE, Kind.ALLTOALL)
# Larger machines and more relays are not looked at.
_MOST_RANKS, _MOST_RELAYS, _MOST_NODES = 32, 1000, 2
_PRECISION = 1e-9


def relay_bound(topology: Topology, kind: Kind, known_us: float, limits: Limits) -> Bound:
    """Bound on what crosses between nodes; 0 where it is not above another one.

    Parameters
    ----------
    topology, kind
        The machine and the collective.
    known_us
        The bound to raise.
    limits
        Time for proofs; what is proved by then is returned.
    """
    nothing = Bound(0.0, "relays")
    if kind not in KINDS or topology.num_nodes < 2 or topology.num_ranks > _MOST_RANKS:
        return nothing
    passage = LatencyMachine.of(topology)
    deadline = limits.deadline()
    best = nothing
    nodes = sorted({topology.node_of[rank] for rank in OrbitMembers.of_machine(topology).ranks()})
    for node in nodes[:_MOST_NODES]:
        time_us = _out_of(passage, node, max(known_us, best.time_us), deadline, limits)
        if time_us > best.time_us:
            reason = (
                f"relays: messages out of node {node}, one through each port, gathered before and handed out behind, serve all pairs"
                " of ranks no sooner"
            )
            best = Bound(time_us, reason)
    return best


def _out_of(passage: LatencyMachine, node: int, known_us: float, deadline: Deadline, limits: Limits) -> float:
    """Least time in which what a node has can get to all others, if it is above what is known, else 0."""
    links = passage.out_of(node)
    times_us = passage.times_us(links)
    proved_us = 0.0
    for before_us, time_us in zip([0.0, *times_us], times_us, strict=False):
        if time_us <= known_us * (1 + _PRECISION):
            continue
        if time_us > passage.twice_us * (1 + _PRECISION) or deadline.over():
            break
        cover = passage.cover(links, before_us, time_us)
        if len(cover.relays) > _MOST_RELAYS or not has_no_choice(cover, limits.within(deadline.left)):
            break
        proved_us = time_us
    return proved_us

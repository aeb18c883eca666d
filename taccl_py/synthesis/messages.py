"""Proof of an answer once it is known how many chunks a message of the runtime can carry."""

from __future__ import annotations

from dataclasses import replace

from taccl_py.schedule.ir import ANY_ALGORITHM, Origin
from taccl_py.solvers.limits import Over, never
from taccl_py.synthesis.bounds import message_bound
from taccl_py.synthesis.engine import Proof, Synthesis


def bounded_by_messages(synthesis: Synthesis, most_chunks: int, over: Over = never) -> Synthesis:
    """Return the answer with the bound for messages of so many chunks, if its own messages are such and that is the better bound.

    Only messages between nodes count. Where time is over, it may be a weaker one.
    """
    schedule = synthesis.schedule
    topology = schedule.topology
    longest = max(
        (len(m.chunks) for m in schedule.messages if not topology.is_inside(topology.links[m.link])), default=0
    )
    if longest > most_chunks:
        return synthesis
    bound = message_bound(schedule.topology, schedule.collective.kind, schedule.size_bytes, most_chunks, over)
    if bound.time_us <= synthesis.bound.time_us:
        return synthesis
    proof = Proof.OPTIMAL if bound.is_reached_by(schedule.makespan_us) else synthesis.proof
    if schedule.origin is not None:
        origin = replace(
            schedule.origin,
            status=str(proof),
            bound_us=bound.time_us,
            bound_reason=bound.reason,
            holds_for=_held(schedule.origin, most_chunks),
        )
        schedule = schedule.with_origin(origin)
    return replace(synthesis, schedule=schedule, bound=bound, proof=proof)


def _held(origin: Origin, most_chunks: int) -> str:
    messages = f"messages of at most {most_chunks} chunks"
    return messages if origin.holds_for == ANY_ALGORITHM else f"{origin.holds_for}, {messages}"

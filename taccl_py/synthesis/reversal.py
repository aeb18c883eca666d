"""A Reduce from the Broadcast of the reversed machine: its exact times backwards, and the sizes of its chunks.

Turned around before it is timed, a plan loses what later messages wait for in the other direction; up to half of the time.
"""

from __future__ import annotations

from dataclasses import replace

from taccl_py.collective import Kind
from taccl_py.schedule.transform import combining
from taccl_py.synthesis.engine import Demand, Engine, Events, Options, Proof, Synthesis
from taccl_py.synthesis.known import known_bound


def reduce_by_broadcast(engine: Engine, demand: Demand, options: Options, events: Events) -> Synthesis:
    """The answer for a Reduce of an engine that knows Broadcast.

    Raises
    ------
    TacclError
        What the engine raises.
    """
    # The bound first: if the machine falls apart, that is said of the Reduce.
    bound = known_bound(demand, options)
    there = replace(demand, kind=Kind.BROADCAST, topology=demand.topology.reversed())
    answer = engine(there, replace(options, bound=bound), events)
    found = [combining(spread, demand.topology) for spread in (answer.schedule, *answer.runners_up)]
    best, *others = sorted(found, key=lambda schedule: schedule.makespan_us)
    proof = Proof.of(best.makespan_us, answer.bound)
    return replace(answer, schedule=best, proof=proof, runners_up=tuple(others))

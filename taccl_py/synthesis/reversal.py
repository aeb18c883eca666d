"""A Reduce from the Broadcast of the reversed machine: its exact times backwards, and the sizes of its chunks.

Turned around before it is timed, a plan loses what later messages wait for in the other direction; up to half of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taccl_py.collective import Kind
from taccl_py.schedule.ir import Schedule
from taccl_py.schedule.transform import combining, links_of_reverse, mirrored
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
    answer, spreads = _broadcasts(engine, demand, replace(options, bound=bound), events)
    found = [combining(spread, demand.topology) for spread in spreads]
    best, *others = sorted(found, key=lambda schedule: schedule.makespan_us)
    proof = Proof.of(best.makespan_us, answer.bound)
    return replace(answer, schedule=best, proof=proof, runners_up=tuple(others))


def _broadcasts(
    engine: Engine, demand: Demand, options: Options, events: Events
) -> tuple[Synthesis, Sequence[Schedule]]:
    """An answer for the Broadcast, and its schedules on the reversed machine.

    Where that costs the same, the Broadcast is found on the machine itself: whatever depends on the order of links is as good or bad as there.
    """
    there, deadline = replace(demand, kind=Kind.BROADCAST), options.limits.deadline()
    turned = demand.topology.reversed()
    if links_of_reverse(demand.topology, turned) is not None:
        answer = engine(there, options, events)
        found = [copy for each in (answer.schedule, *answer.runners_up) if (copy := mirrored(each)) is not None]
        if found:
            return answer, found
    left = replace(options, limits=options.limits.within(deadline.left))
    answer = engine(replace(there, topology=turned), left, events)
    return answer, (answer.schedule, *answer.runners_up)

"""A Reduce from the Broadcast of the reversed machine: its exact times backwards, and the sizes of its chunks.

Turned around before it is timed, a plan loses what later messages wait for in the other direction; up to half of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taccl_py.collective import Kind
from taccl_py.schedule.ir import Schedule
from taccl_py.schedule.transform import combining, links_of_own_reverse
from taccl_py.synthesis.engine import Demand, Engine, Events, Options, Synthesis
from taccl_py.synthesis.known import known_bound
from taccl_py.topology.model import Topology

# What is routed for each collective: sums are copies run backwards.
ROUTED = {
    Kind.BROADCAST: Kind.BROADCAST,
    Kind.REDUCE: Kind.BROADCAST,
    Kind.ALLGATHER: Kind.ALLGATHER,
    Kind.REDUCESCATTER: Kind.ALLGATHER,
    Kind.ALLREDUCE: Kind.ALLGATHER,
    Kind.ALLTOALL: Kind.ALLTOALL,
}


def reduce_by_broadcast(engine: Engine, demand: Demand, options: Options, events: Events) -> Synthesis:
    """The answer for a Reduce of an engine that knows Broadcast.

    Raises
    ------
    TacclError
        What the engine raises.
    """
    # The bound first: if the machine falls apart, that is said of the Reduce.
    bound = known_bound(demand, options)
    there, turned = replace(demand, kind=Kind.BROADCAST), demand.topology.reversed()
    # Where both are one machine it is asked itself, so that what depends on the order of links is as good as for a Broadcast.
    link_of = links_of_own_reverse(demand.topology)
    answer = engine(there if link_of else replace(there, topology=turned), replace(options, bound=bound), events)
    spreads = [answer.schedule, *answer.runners_up]
    if link_of:
        spreads = [_on(turned, link_of, spread) for spread in spreads]
    found = [combining(spread, demand.topology) for spread in spreads]
    return answer.with_schedules(sorted(found, key=lambda schedule: schedule.makespan_us))


def _on(turned: Topology, link_of: Sequence[int], schedule: Schedule) -> Schedule:
    """The schedule with the numbers that links have on the reversed machine."""
    messages = tuple(replace(message, link=link_of[message.link]) for message in schedule.messages)
    return replace(schedule, topology=turned, messages=messages)

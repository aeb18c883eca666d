"""Search for schedules that fit a runtime: engines run on the machine as its protocols see it.

There operations cost what the runtime profile says, so that Simple gets fewer and larger messages than LL. What is found is timed
again on the machine itself, and is a candidate like others: the replay of programs decides (`taccl_py.pipeline.select`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain, zip_longest

from taccl_py.collective import Kind
from taccl_py.errors import Infeasible, LimitReached
from taccl_py.lowering.protocol import possible_protocols
from taccl_py.profiles.model import RuntimeProfile
from taccl_py.profiles.view import machine_under
from taccl_py.schedule.ir import Origin, Schedule
from taccl_py.schedule.timing import dispatch_messages, time_messages
from taccl_py.schedule.transform import reduce_of, untimed_messages
from taccl_py.solvers.limits import Limits, Over
from taccl_py.synthesis.bounds.runtime import ProtocolView, likely_views
from taccl_py.synthesis.catalog import load_engine
from taccl_py.synthesis.engine import Demand, Engine, Events, Options, Proof, Synthesis
from taccl_py.synthesis.justify import with_better_starts
from taccl_py.topology.model import Topology
from taccl_py.verify.any_size import verify_any
from taccl_py.work import work_set_aside

# The engine that also searches on the machine as protocols see it, and its part of the time for the machine itself. Measured: two ND A100 v4
# nodes, effort quick: AllReduce of 1 MiB with a NIC at half 60.2 us with 0.6, 50.8 with 0.55; AllReduce of 64 MiB 617 us with 0.5, 561 with 0.55.
_VIEWED_ENGINE, _OWN_SHARE = "auto", 0.55
# The engine of AllReduces of which a Reduce is made, which is soon done, and the one beside it where sums are steps of their own, which
# leave the root more to do than anybody else. Measured: mi250x, 8 MiB, 350 -> 219 us.
_WHOLE_ENGINE, _WHOLE_ENGINE_OF_SUMS = "templates", "greedy"
# Ranks up to which that is asked, which then takes a second or two. Guess.
_MOST_RANKS_OF_SUMS = 32
# Time that must be left for each such search, as a part of what the search on the machine itself took, which it does not undercut by far.
# Measured: two ND A100 v4 nodes with a NIC at half, AllGather of 16 MiB, effort quick, where the machine itself takes three quarters of the
# time, 125 -> 104 us.
_LEAST_LEFT = 0.2


def search(
    demand: Demand, engine_name: str, options: Options, profile: RuntimeProfile | None, events: Events
) -> Synthesis:
    """Answer of an engine; under a runtime profile, schedules that are found on the machine as protocols see it are runners-up.

    Parameters
    ----------
    demand, engine_name, options
        Demand and engine; ``auto`` without a sketch also searches as protocols see the machine.
    profile
        The runtime profile, or None for links and ports alone.
    events
        Progress.

    Raises
    ------
    TacclError
        Errors of the engine.
    """
    engine = load_engine(engine_name)
    if engine_name != _VIEWED_ENGINE:
        deadline = options.limits.deadline()
        answer = engine(demand, options, events)
        return with_better_starts(answer, demand, options.limits.within(deadline.left))
    if profile is None or profile.is_neutral or demand.sketch is not None:
        return engine(demand, options, events)
    limits = options.limits
    over, deadline = limits.countdown(), limits.deadline()
    own = replace(options, limits=limits.within(limits.seconds * _OWN_SHARE))
    synthesis = engine(demand, own, events)
    spent_s = limits.seconds - deadline.left
    if limits.by_work and spent_s > own.limits.seconds:
        # What it counts beyond its share is not taken from the searches as protocols see the machine.
        spent_s = own.limits.seconds
        deadline = limits.within(limits.seconds - spent_s).deadline()
    least_s = _LEAST_LEFT * spent_s
    views = likely_views(
        lambda size: synthesis.bound.time_us * max(1.0, size / demand.size_bytes),
        demand.topology, profile, demand.kind, demand.size_bytes,
        [str(each) for each in possible_protocols(demand.topology, demand.kind)],
    )  # fmt: skip
    found = [list(synthesis.runners_up)]
    for view in views:
        part = replace(options, limits=limits.within(limits.seconds * (1 - _OWN_SHARE) / len(views)))
        if deadline.left >= least_s and not _has_ended(limits, over):
            events.stage(f"search for {view.protocol}")
            with suppress(LimitReached, Infeasible):
                found.append(schedules_under(demand, profile, view, engine, part))
        if not _has_ended(limits, over):
            found.extend(_parts_of_allreduces(demand, profile, view, part, synthesis.schedule.origin))
    if len(found) == 1:
        return synthesis
    # The best of every view come first, and the machine itself is one: not all of them are lowered.
    seen = {synthesis.schedule.messages: synthesis.schedule}
    for schedule in chain.from_iterable(zip_longest(*found)):
        if schedule is not None:
            seen.setdefault(schedule.messages, schedule)
    return replace(synthesis, runners_up=tuple(seen.values())[1:])


def _has_ended(limits: Limits, over: Over) -> bool:
    """True if the clock or the user has ended the search, and not only work that is done."""
    return limits.stop.is_set() or limits.is_cut or (over() and not limits.by_work)


def schedules_under(
    demand: Demand, profile: RuntimeProfile, view: ProtocolView, engine: Engine, options: Options
) -> list[Schedule]:
    """Schedules that an engine finds on the machine as a protocol sees it, with the times of the machine itself."""
    machine = machine_under(demand.topology, profile, view.protocol, view.instances)
    answer = engine(replace(demand, topology=machine), options, Events())
    return list(chain.from_iterable(retimed(each, demand.topology) for each in (answer.schedule, *answer.runners_up)))


def _parts_of_allreduces(
    demand: Demand, profile: RuntimeProfile, view: ProtocolView, options: Options, origin: Origin | None
) -> Iterator[list[Schedule]]:
    """Of a Reduce inside a node: the parts of AllReduces of each engine that is asked that serve the root.

    Where an addition of its own takes long, as under RCCL, it is better that the root sends its contributions to those who add up parts.
    Measured: MI300X, 1 MiB, 37.3 -> 27.9 us. They are soon found, and also asked for where a budget of work is done: MI250X, 24 MiB,
    643 -> 584 us.
    """
    for name in engines_of_wholes(demand, profile):
        with suppress(LimitReached, Infeasible):
            with work_set_aside():  # or no time would be left for other protocols
                found = list(_of_allreduce(name, demand, profile, view, options, origin))
            yield found


def engines_of_wholes(demand: Demand, profile: RuntimeProfile) -> list[str]:
    """Engines of AllReduces of which parts are to be tried; none if the demand is no Reduce inside a node, of any number of chunks."""
    if demand.kind is not Kind.REDUCE or demand.topology.num_nodes > 1 or demand.chunks_per_rank is not None:
        return []
    is_apart = profile.adds_apart and demand.topology.num_ranks <= _MOST_RANKS_OF_SUMS
    return [_WHOLE_ENGINE, _WHOLE_ENGINE_OF_SUMS] if is_apart else [_WHOLE_ENGINE]


def _of_allreduce(
    engine_name: str,
    demand: Demand,
    profile: RuntimeProfile,
    view: ProtocolView,
    options: Options,
    origin: Origin | None,
) -> Iterator[Schedule]:
    """The parts of an engine's AllReduces that serve the root of a Reduce."""
    whole = replace(demand, kind=Kind.ALLREDUCE, root=0)
    for schedule in schedules_under(whole, profile, view, load_engine(engine_name), options):
        part = reduce_of(schedule, demand.root)
        if origin is not None:
            part = part.with_origin(replace(origin, engine=engine_name, status=str(Proof.FEASIBLE)))
        if not verify_any(part):
            yield part


def retimed(schedule: Schedule, topology: Topology) -> Iterator[Schedule]:
    """The schedule with the times of another machine of the same links, if it is valid there.

    With other times a message may start after the arrival of something that it was to go before, which sums cannot bear.
    """
    untimed = untimed_messages(schedule)
    for timing in (time_messages, dispatch_messages):
        moved = replace(schedule, topology=topology, messages=timing(topology, schedule.chunk_bytes, untimed))
        if not verify_any(moved):
            yield moved
            break

"""The library: all templates of a demand, as schedules."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from taccl_py.arrays import BoolArray
from taccl_py.collective import Kind
from taccl_py.errors import InputError
from taccl_py.schedule.ir import Schedule
from taccl_py.schedule.layout import UntimedMessage
from taccl_py.schedule.timing import build_schedule
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.restrict import find_allowed_links
from taccl_py.synthesis.sums import adds_up
from taccl_py.synthesis.templates.messages import TemplateMessage, TemplatePlan, as_untimed, cut_by_most, turned
from taccl_py.synthesis.templates.packing import packed_parts
from taccl_py.synthesis.templates.pairs import alltoall_plans
from taccl_py.synthesis.templates.params import PARAMS
from taccl_py.synthesis.templates.roots import broadcast_plans, scatter_plans
from taccl_py.synthesis.templates.shares import share_plans
from taccl_py.synthesis.templates.site import IsUsefulAt, TemplateSite, is_small
from taccl_py.synthesis.templates.spreading import allgather_plans
from taccl_py.synthesis.templates.sums import allreduce_plans
from taccl_py.topology.model import Topology


@dataclass(frozen=True, slots=True)
class NamedSchedule:
    """A template's schedule.

    Attributes
    ----------
    name
        What the template is.
    schedule
        It on the machine, timed for the demanded size.
    """

    name: str
    schedule: Schedule


def template_schedules(demand: Demand, within: float = math.inf) -> Iterator[NamedSchedule]:
    """Every template that fits the machine, in an order that depends on the machine and the size alone: what is likely to be fast first.

    Parameters
    ----------
    demand
        What is wanted.
    within
        Leave out templates that cannot be faster than so many times the fastest one so far; by default none.

    Raises
    ------
    InputError
        If there is a sketch for sums, or one that does not fit the machine.
    """
    permits = _Permits.of(demand)
    limit_us = math.inf

    def is_useful_at(least_us: float) -> bool:
        return least_us <= limit_us

    for lot in _lots(_plans(demand, is_useful_at)):
        for fitted in sorted(_fitting(demand, lot), key=lambda fitted: fitted.busiest_us):
            if not is_useful_at(fitted.busiest_us):
                break
            schedule = _timed(demand, fitted)
            if schedule is not None and permits(schedule):
                limit_us = min(limit_us, within * schedule.makespan_us)
                yield NamedSchedule(fitted.plan.name, schedule)


def _lots(plans: Iterable[TemplatePlan]) -> Iterator[list[TemplatePlan]]:
    """Different plans, as many at once as one likes to keep."""
    seen: set[frozenset[TemplateMessage]] = set()
    lot: list[TemplatePlan] = []
    for plan in plans:
        key = frozenset(plan.messages)
        if key not in seen:
            seen.add(key)
            lot.append(plan)
            if sum(len(each.messages) for each in lot) > PARAMS.compared_messages:
                yield lot
                lot = []
    yield lot


@dataclass(frozen=True, slots=True)
class _FittedTemplate:
    """A plan on the links of a machine, and how long the busiest link or port is busy if no message is cut."""

    plan: TemplatePlan
    untimed: list[UntimedMessage]
    busiest_us: float


def _fitting(demand: Demand, plans: Iterable[TemplatePlan]) -> Iterator[_FittedTemplate]:
    """The plans whose ranks are linked."""
    for plan in plans:
        chunk_bytes = demand.chunk_bytes(demand.collective(plan.chunks_per_rank))
        untimed = as_untimed(demand.topology, chunk_bytes, plan.messages)
        if untimed is not None:
            yield _FittedTemplate(plan, untimed, _busiest_us(demand.topology, chunk_bytes, untimed))


@dataclass(frozen=True)
class _Permits:
    """Links that a sketch lets each chunk use; all of them without one."""

    permitted: BoolArray | None
    own_first: bool

    @staticmethod
    def of(demand: Demand) -> _Permits:
        sketch = demand.sketch
        if sketch is None:
            return _Permits(None, own_first=False)
        collective = demand.collective(demand.chunks_per_rank or 1)
        if collective.reduces:
            raise InputError(
                "engine templates knows nothing of sketches for sums; leave --sketch out or use --engine milp"
            )
        sketch.check_fits(demand.topology)
        return _Permits(find_allowed_links(demand.topology, collective, sketch).permitted, sketch.own_first)

    def __call__(self, schedule: Schedule) -> bool:
        """True if the schedule keeps to the sketch."""
        if self.permitted is None:
            return True
        if schedule.collective.num_chunks != len(self.permitted):
            return False
        keeps = all(self.permitted[list(message.chunks), message.link].all() for message in schedule.messages)
        return keeps and (not self.own_first or self._own_first(schedule))

    @staticmethod
    def _own_first(schedule: Schedule) -> bool:
        """True if no sender's own chunk leaves for another node after others over the same link."""
        topology, source = schedule.topology, schedule.collective.source
        late: set[int] = set()
        for message in schedule.messages:
            link = topology.links[message.link]
            if not topology.is_inside(link):
                own = [source[chunk] == link.src for chunk in message.chunks]
                if any(own) and message.link in late:
                    return False
                if not all(own):
                    late.add(message.link)
        return True


def _timed(demand: Demand, fitted: _FittedTemplate) -> Schedule | None:
    """The plan with exact times, or None if its sums come out wrong."""
    topology, collective, untimed = demand.topology, demand.collective(fitted.plan.chunks_per_rank), fitted.untimed
    chunk_bytes = demand.chunk_bytes(collective)
    packed = [part for message in untimed for part in _packed(demand, chunk_bytes, message)]
    whole = [
        one for message in untimed for one in ((message,) if message.reduce else _packed(demand, chunk_bytes, message))
    ]
    schedule = build_schedule(topology, collective, chunk_bytes, whole)
    if len(schedule.messages) > len(untimed):  # messages were cut
        others = [build_schedule(topology, collective, chunk_bytes, untimed, as_named=True)]
        others += [build_schedule(topology, collective, chunk_bytes, packed)] if collective.reduces else []
        schedule = min((schedule, *others), key=lambda each: each.makespan_us)
        if topology.num_ranks <= PARAMS.most_small_ranks:
            large = [part for message in untimed for part in packed_parts(message, chunk_bytes, demand.message_chunks)]
            other = build_schedule(topology, collective, chunk_bytes, large)
            schedule = other if other.makespan_us < schedule.makespan_us * PARAMS.copy_factor else schedule
    return schedule if demand.kind is not Kind.ALLREDUCE or adds_up(schedule) else None


def _packed(demand: Demand, chunk_bytes: float, message: UntimedMessage) -> Iterator[UntimedMessage]:
    """The message, not to be cut if it is small: then the copies that keep it whole cost less than the alphas that they save.

    It is cut where the runtime's messages carry so many chunks and no more.
    """
    if not is_small(demand.topology, message.link, len(message.chunks) * chunk_bytes):
        yield message
        return
    for chunks in cut_by_most(message.chunks, demand.message_chunks):
        yield replace(message, chunks=chunks, packed=True)


def _busiest_us(topology: Topology, chunk_bytes: float, untimed: list[UntimedMessage]) -> float:
    """Time for which the busiest link or port is busy if no message is cut."""
    busy_us = [0.0] * topology.num_resources
    for message in untimed:
        for resource in topology.resources_of[message.link]:
            busy_us[resource] += topology.occupancy_us(resource, len(message.chunks) * chunk_bytes)
    return max(busy_us)


def _plans(demand: Demand, is_useful_at: IsUsefulAt) -> Iterator[TemplatePlan]:
    """Templates of a kind that may be of use, as far as that is known before they are made.

    Those that collect are those that spread, turned around, on the reversed machine.
    """
    kind, chunks = demand.kind, demand.chunks_per_rank
    one_chunk = demand.collective(chunks or 1)
    chunk_bytes = demand.chunk_bytes(one_chunk) * one_chunk.chunks_per_rank
    site, back = (
        TemplateSite(topology, chunk_bytes, demand.message_chunks)
        for topology in (demand.topology, demand.topology.reversed())
    )
    match kind:
        case Kind.ALLGATHER:
            yield from allgather_plans(site, chunks, is_useful_at)
        case Kind.REDUCESCATTER:
            yield from _turned(allgather_plans(back, chunks, is_useful_at), reduce=True)
        case Kind.BROADCAST:
            yield from broadcast_plans(site, demand.root, chunks, is_useful_at)
        case Kind.REDUCE:
            yield from _turned(broadcast_plans(back, demand.root, chunks, is_useful_at), reduce=True)
        case Kind.SCATTER:
            yield from scatter_plans(site, demand.root, chunks or 1)
        case Kind.GATHER:
            yield from _turned(scatter_plans(back, demand.root, chunks or 1), reduce=False)
        case Kind.ALLTOALL:
            yield from alltoall_plans(site, chunks or 1)
        case Kind.ALLREDUCE:
            yield from allreduce_plans(site, back, chunks, is_useful_at)
            yield from share_plans(demand)


def _turned(plans: Iterator[TemplatePlan], *, reduce: bool) -> Iterator[TemplatePlan]:
    for plan in plans:
        yield TemplatePlan(plan.chunks_per_rank, turned(plan.messages, reduce=reduce), plan.name)

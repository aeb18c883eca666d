"""All baselines of a collective on a machine that are schedules of our own."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from taccl_py.baselines.direct import direct_plans, pat_plans
from taccl_py.baselines.rings import hierarchical_plans, ring_plans
from taccl_py.baselines.tori import torus_plans
from taccl_py.baselines.trees import tree_plans
from taccl_py.collective import Collective, Kind
from taccl_py.schedule.ir import Schedule
from taccl_py.schedule.timing import build_schedule, dispatch_messages
from taccl_py.schedule.transform import untimed_messages
from taccl_py.synthesis.sums import adds_up
from taccl_py.synthesis.templates.messages import TemplatePlan, as_untimed, turned
from taccl_py.synthesis.templates.ring_patterns import DOUBLED, RINGS, SWING
from taccl_py.synthesis.templates.site import TemplateSite
from taccl_py.topology.model import Topology


class Family(StrEnum):
    """The baselines, by the names that people know; TACCL's are programs (`taccl_py.baselines.taccl`), the others schedules."""

    RING = "ring"
    TREE = "double binary tree"
    DIRECT = "direct"
    HIERARCHICAL = "hierarchical"
    PAT = "PAT"
    TWO_WAY_RINGS = RINGS
    RECURSIVE_DOUBLING = DOUBLED
    SWING = SWING
    TACCL = "TACCL"


# An order that is faster by less than this is no variant of its own.
_WORTH_IT = 0.005
# Kinds that are another one turned around, on the reversed machine.
_TURNED = {Kind.REDUCESCATTER: Kind.ALLGATHER, Kind.REDUCE: Kind.BROADCAST, Kind.GATHER: Kind.SCATTER}


@dataclass(frozen=True)
class BaselineVariant:
    """Variant of a baseline.

    Attributes
    ----------
    name
        Number of rings, channels or pieces, in words.
    schedule
        It on the machine.
    """

    name: str
    schedule: Schedule


@dataclass(frozen=True)
class Baseline:
    """A baseline with all its variants; none where the machine's links or the collective do not allow it."""

    family: Family
    variants: tuple[BaselineVariant, ...]


def baselines_of(
    topology: Topology, kind: Kind, root: int, size_bytes: float, families: Collection[Family] = tuple(Family)
) -> tuple[Baseline, ...]:
    """Every baseline; what cannot be has no variants.

    Parameters
    ----------
    topology
        The machine.
    kind, root
        The collective.
    size_bytes
        Size as nccl-tests counts it, by which links are compared where there is a choice.
    families
        Those that are wanted; by default all.
    """
    return tuple(
        Baseline(family, tuple(_variants(family, topology, kind, root, size_bytes)))
        for family in Family
        if family in families and family is not Family.TACCL
    )  # fmt: skip


def _variants(
    family: Family, topology: Topology, kind: Kind, root: int, size_bytes: float
) -> Iterator[BaselineVariant]:
    chunk_bytes = Collective(kind, topology.num_ranks, 1, root).chunk_bytes(size_bytes)
    site, back = TemplateSite(topology, chunk_bytes), TemplateSite(topology.reversed(), chunk_bytes)
    base = _TURNED.get(kind)
    plans = _plans(family, site, back, kind, root) if base is None else _plans(family, back, site, base, root)
    for plan in plans:
        messages = plan.messages if base is None else turned(plan.messages, reduce=kind is not Kind.GATHER)
        collective = Collective(kind, topology.num_ranks, plan.chunks_per_rank, root)
        size = collective.chunk_bytes(size_bytes)
        untimed = as_untimed(topology, size, messages)
        if untimed is None:
            continue
        schedule = build_schedule(topology, collective, size, untimed)
        if kind is Kind.ALLREDUCE and not adds_up(schedule):
            continue  # what is exchanged does not cross at this size
        yield from _in_orders(plan.name, schedule)
        if len(schedule.messages) > len(untimed):  # messages were cut, because their chunks are no neighbours
            staged = build_schedule(topology, collective, size, untimed, as_named=True)
            yield from _in_orders(f"{plan.name}, staged", staged)


def _in_orders(name: str, schedule: Schedule) -> Iterator[BaselineVariant]:
    """The schedule in its plan's order, and in the order in which messages are ready where that is faster."""
    yield BaselineVariant(name, schedule)
    topology, chunk_bytes = schedule.topology, schedule.chunk_bytes
    ready_first = replace(schedule, messages=dispatch_messages(topology, chunk_bytes, untimed_messages(schedule)))
    if ready_first.makespan_us < schedule.makespan_us * (1 - _WORTH_IT):
        yield BaselineVariant(f"{name}, as it comes", ready_first)


def _plans(family: Family, site: TemplateSite, back: TemplateSite, kind: Kind, root: int) -> Iterator[TemplatePlan]:
    match family:
        case Family.RING:
            yield from ring_plans(site, kind, root)
        case Family.TREE if kind is Kind.ALLREDUCE:
            yield from tree_plans(site)
        case Family.DIRECT:
            yield from direct_plans(site, back, kind, root)
        case Family.HIERARCHICAL:
            yield from hierarchical_plans(site, back, kind)
        case Family.PAT if kind is Kind.ALLGATHER:
            yield from pat_plans(site)
        case Family.TWO_WAY_RINGS | Family.RECURSIVE_DOUBLING | Family.SWING if kind is Kind.ALLREDUCE:
            yield from torus_plans(site, family.value)

"""Loads of ports by the operations that a plan has switches do.

A multicast (``gstore``) leaves its sender once and enters every rank of its group once, the sender too if it is one of them. A sum
(``glres``) leaves every rank that is loaded from, enters the rank that asked for it, leaves that again and enters every rank where
it is stored. A port of a rank is what all its links through the switch share; where they share nothing, each of these links
carries as much.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from taccl_py.errors import InputError
from taccl_py.lowering.plan import SWITCH, Operation, Plan, PlanBlock, PlanGpu
from taccl_py.simulate.arbiter import ResourceLoad, SwitchPath
from taccl_py.topology.model import Switch, Topology

BY_SWITCH = frozenset({"glres", "gstore"})


@dataclass(frozen=True, slots=True, order=True)
class Errand:
    """Operation of a switch: rank that asks for it, ranks whose cells are added up (none: a multicast), ranks where it stores."""

    rank: int
    summed: tuple[int, ...]
    stored: tuple[int, ...]


def errand_of(gpu: PlanGpu, block: PlanBlock, operation: Operation) -> Errand:
    """Return what an operation asks a switch to do."""
    if operation.stored is None:
        raise ValueError("an operation of a switch names no switch channel")
    groups = [gpu.groups[number].ranks for number in block.channels[SWITCH]]
    summed = () if operation.summed is None else groups[operation.summed]
    return Errand(gpu.rank, summed, groups[operation.stored])


def find_switch_paths(plan: Plan, topology: Topology) -> dict[Errand, SwitchPath]:
    """Path of every operation that a plan has a switch do.

    Raises
    ------
    InputError
        If the topology has no switch that can do it.
    """
    used = {
        errand_of(gpu, block, operation)
        for gpu in plan.gpus
        for block in gpu.blocks
        for operation in block.all_operations
        if operation.name in BY_SWITCH
    }
    ports: dict[tuple[str, int, bool], tuple[int, ...]] = {}
    return {errand: _switch_path(plan, topology, errand, ports) for errand in sorted(used)}


def _switch_path(
    plan: Plan, topology: Topology, errand: Errand, ports: dict[tuple[str, int, bool], tuple[int, ...]]
) -> SwitchPath:  # fmt: skip
    switch = _switch_for(plan, topology, errand)

    def ends(rank: int, *, outward: bool) -> tuple[int, ...]:
        key = (switch.name, rank, outward)
        if key not in ports:
            ports[key] = _ports(topology, switch, rank, outward=outward)
        return ports[key]

    loads: Counter[int] = Counter()
    if errand.summed:
        loads.update(
            {one for rank in errand.summed for one in ends(rank, outward=True)} | set(ends(errand.rank, outward=False))
        )
    loads.update(
        {one for rank in errand.stored for one in ends(rank, outward=False)} | set(ends(errand.rank, outward=True))
    )
    links = [topology.links[link] for link in _links(topology, switch, errand.rank, outward=True)]
    # A sum has been loaded before it is stored.
    latency_us = max(link.latency_us + (link.alpha_us if errand.summed else 0.0) for link in links)
    return SwitchPath(tuple(ResourceLoad(resource, share) for resource, share in sorted(loads.items())), latency_us)


def _switch_for(plan: Plan, topology: Topology, errand: Errand) -> Switch:
    """Switch that joins all ranks concerned by links, and can do it."""
    ranks = {errand.rank, *errand.summed, *errand.stored}
    for one in topology.switches:
        joined = ranks <= set(one.ranks) and all((a, b) in topology.links_between for a in ranks for b in ranks - {a})
        if joined and one.multicast and (one.reduce or not errand.summed):
            return one
    does = "add up what ranks {} hold" if errand.summed else "multicast to ranks {}"
    needed = "multicasts and reduces" if errand.summed else "multicasts"
    named = ", ".join(map(str, errand.summed or errand.stored))
    raise InputError(
        f"plan {plan.name} lets a switch {does.format(named)}, and topology {topology.name} has none that {needed} among them; "
        "replay it on the machine that it was made for"
    )


def _links(topology: Topology, switch: Switch, rank: int, *, outward: bool) -> list[int]:
    """Links of a rank to, or from, the others of its switch."""
    others = [other for other in switch.ranks if other != rank]
    pairs = [(rank, other) if outward else (other, rank) for other in others]
    return [topology.links_between[pair][0] for pair in pairs if pair in topology.links_between]


def _ports(topology: Topology, switch: Switch, rank: int, *, outward: bool) -> tuple[int, ...]:
    """Resources that all links of a rank through a switch share in one direction; if there are none, those links."""
    links = _links(topology, switch, rank, outward=outward)
    shared = set.intersection(*(set(topology.resources_of[link]) for link in links))
    if len(links) == 1:  # of the two sides of a single link
        resources = topology.resources_of[links[0]]
        shared = set(resources[:2] if outward else (resources[0], resources[-1]))
    return tuple(sorted(shared)) or tuple(links)

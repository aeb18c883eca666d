"""Lower bound on the time of a call under a runtime profile, for any algorithm and any of the runtime's protocols.

It follows from the bound on links and ports. Under a protocol every byte costs its share of flags and moves at the usable rate
of the wires, so that a size costs at least what a larger one costs without a runtime; an arrival comes an operation and a hop
after that; some data cross nodes; a GPU receives no faster than all its threadblocks together, and sends inside its node no faster than
the profile says; and the launch comes on top. The least over all protocols is the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taccl_py.collective import Kind
from taccl_py.profiles.model import ProtocolCosts, RuntimeProfile
from taccl_py.profiles.view import is_far, usable_shares, with_alphas_side_by_side
from taccl_py.solvers.limits import Limits, Over, always, never
from taccl_py.synthesis.bounds.bound import Bound
from taccl_py.synthesis.bounds.demand import DemandBounds
from taccl_py.topology.model import Topology

# Protocols are searched under whose bound is within this factor of the least, and at most so many. Guess.
_LIKELY, _MOST_VIEWS = 1.5, 2
# Threadblocks that may feed a link when schedules are searched: as many as instances are ever tried. The replay decides how many fit.
_MOST_INSTANCES = 16
# Bytes that the rank that receives most receives at least, as a part of the size, for n ranks.
_RECEIVED: dict[Kind, Callable[[int], float]] = {
    **dict.fromkeys(Kind, lambda n: (n - 1) / n),
    Kind.ALLREDUCE: lambda n: 2 * (n - 1) / n,
    Kind.BROADCAST: lambda _: 1.0,
    Kind.REDUCE: lambda _: 1.0,
    Kind.SCATTER: lambda n: 1 / n,
}
# The same of the rank that sends most. Of Broadcast and Reduce all but one of n ranks receive, or send, everything.
_SENT: dict[Kind, Callable[[int], float]] = {
    **dict.fromkeys(Kind, lambda n: (n - 1) / n),
    Kind.ALLREDUCE: lambda n: 2 * (n - 1) / n,
    Kind.GATHER: lambda n: 1 / n,
}


def runtime_bound(
    physical_us: Callable[[float], float],
    topology: Topology,
    profile: RuntimeProfile,
    kind: Kind,
    size_bytes: float,
    *,
    quick_us: Callable[[float], float] = lambda _: 0.0,
) -> Bound:
    """Lower bound under a profile: no program of any protocol is faster.

    Parameters
    ----------
    physical_us
        Bound on links and ports of `topology` for a size in bytes, in microseconds.
    topology, profile
        Machine, whose alphas are side by side where they do not follow each other
        (`taccl_py.profiles.view.with_alphas_side_by_side`), and runtime profile.
    kind, size_bytes
        The collective, and its size as nccl-tests counts it.
    quick_us
        A bound as `physical_us`, no better, that is soon found.
    """
    if profile.is_neutral:
        return Bound(physical_us(size_bytes), "links and ports")
    bounds: dict[str, float] = {}
    # The most promising first: what is known of the others without the bound on wires may be enough to leave them out.
    quick = {
        name: _bound_of(costs, quick_us, topology, profile, kind, size_bytes)
        for name, costs in profile.protocols.items()
    }
    for name in sorted(quick, key=quick.__getitem__):
        if not bounds or quick[name] < min(bounds.values()):
            bounds[name] = _bound_of(profile.protocols[name], physical_us, topology, profile, kind, size_bytes)
    least = min(bounds, key=bounds.__getitem__)
    launch_us = profile.protocols[least].launch_us
    return Bound(bounds[least], f"{least}: launch {launch_us:.3g} us, then links, hops and threadblocks")


@dataclass(frozen=True)
class RuntimeBounds:
    """Lower bounds under a profile for all sizes.

    Attributes
    ----------
    topology
        The machine, its alphas side by side where they do not follow each other.
    kind, profile
        The collective and the runtime profile.
    physical
        Bounds on links and ports of that machine.
    """

    topology: Topology
    kind: Kind
    profile: RuntimeProfile
    physical: DemandBounds

    @staticmethod
    def of(topology: Topology, kind: Kind, root: int, profile: RuntimeProfile, limits: Limits) -> RuntimeBounds:
        """Analyse a machine.

        Raises
        ------
        InputError, Infeasible
            See `taccl_py.synthesis.bounds.DemandBounds.of`.
        """
        machine = topology if profile.is_neutral else with_alphas_side_by_side(topology)
        return RuntimeBounds(machine, kind, profile, DemandBounds.of(machine, kind, root, limits))

    def at(self, size_bytes: float, *, over: Over = never) -> Bound:
        """Bound for a size as nccl-tests counts it; where time is over, what takes long to evaluate is left out."""

        def physical_us(size: float) -> float:
            return self.physical.at(size, over=over).time_us

        def quick_us(size: float) -> float:
            return self.physical.at(size, over=always).time_us

        return runtime_bound(physical_us, self.topology, self.profile, self.kind, size_bytes, quick_us=quick_us)


@dataclass(frozen=True, slots=True)
class ProtocolView:
    """A protocol and a number of instances under which a machine is worth a search."""

    protocol: str
    instances: int


def likely_views(
    physical_us: Callable[[float], float],
    topology: Topology,
    profile: RuntimeProfile,
    kind: Kind,
    size_bytes: float,
    protocols: Sequence[str],
) -> list[ProtocolView]:
    """Protocols whose bound at a size is within `_LIKELY` of the least, the least first.

    Parameters
    ----------
    physical_us, topology, profile, kind, size_bytes
        As for `runtime_bound`.
    protocols
        Protocols that are possible.
    """
    bounds = {
        name: _bound_of(profile.protocols[name], physical_us, topology, profile, kind, size_bytes)
        for name in protocols
        if name in profile.protocols
    }
    ordered = sorted(bounds, key=bounds.__getitem__)
    near = [name for name in ordered if bounds[name] <= _LIKELY * bounds[ordered[0]]]
    return [ProtocolView(name, _MOST_INSTANCES) for name in near[:_MOST_VIEWS]]


def _bound_of(
    costs: ProtocolCosts,
    physical_us: Callable[[float], float],
    topology: Topology,
    profile: RuntimeProfile,
    kind: Kind,
    size_bytes: float,
) -> float:
    usable = usable_shares(topology, profile)
    hops, shares = {False: costs.hop_near_us, True: costs.hop_far_us}, {False: usable.near, True: usable.far}
    kinds = {is_far(topology, link.src, link.dst) for link in topology.links} or {False}
    # What comes last through a link or a port is seen a hop later. And something crosses nodes, where there are several.
    wires_us = physical_us(size_bytes * costs.wire / max(shares[far] for far in kinds)) + min(
        hops[far] for far in kinds
    )
    farthest_us = costs.op_us + hops[max(kinds)]
    received = size_bytes * _RECEIVED[kind](topology.num_ranks) / profile.most_threadblocks
    fed_us = received / (1000 * costs.tb_gbps)
    sent = 0.0 if True in kinds else size_bytes * costs.wire * _SENT[kind](topology.num_ranks)
    sent_us = sent / (1000 * profile.gpu_gbps)
    return costs.launch_us + max(wires_us, farthest_us, fed_us, sent_us)

"""Lower bounds for every algorithm on a machine, whatever its chunks: data may be cut as finely as one likes.

* *latency*: the quickest way of the smallest message to the farthest rank that needs something (or whose data is needed).
* *fan-out* and *fan-in*: how fast something can become known where ports serve one message after another.
* *crossing*: what has to cross into a node comes in few messages, before which it is gathered and after which it is handed out;
  and handing out what comes late takes its time.
* *relays*: the same where nodes are sparse inside: whether any choice of such messages serves everyone. This takes seconds, so it is
  only found where it is asked for.
* *bandwidth*: the worst cut, and all cuts together where links share ports, which is exact for collectives in which everyone who wants
  something wants everything (`taccl_py.synthesis.bounds.loads`); the multicommodity flow for AllToAll; for AllReduce cuts (a sum must
  leave and enter every set of ranks whole) with the number of transfers that sums need between groups of ranks, and the best packing of trees
  through roots as far as it is certified (`taccl_py.synthesis.bounds.roots`).

A bound on bandwidth is linear in the size but for alphas and latencies, which is why one analysis of a machine serves all
sizes.

All this is for messages. Where switches multicast and add up (``by_switch``), distance and cuts remain
(`taccl_py.synthesis.bounds.in_network`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from taccl_py.arrays import BoolArray, FloatArray, IntArray
from taccl_py.collective import ROOTED, Collective, Kind
from taccl_py.errors import Infeasible, InputError
from taccl_py.solvers.limits import Limits, Over, never, until
from taccl_py.synthesis.bounds.bound import Bound, best_of
from taccl_py.synthesis.bounds.charge import Charge, crossing_idle_times, idle_times
from taccl_py.synthesis.bounds.crossing import Crossing, NodeClasses, crossings
from taccl_py.synthesis.bounds.cut import CutFinder, ResourceCut
from taccl_py.synthesis.bounds.division import worst_divisions
from taccl_py.synthesis.bounds.flow import alltoall_charge
from taccl_py.synthesis.bounds.growth import growth_bound
from taccl_py.synthesis.bounds.handout import Handout, handouts, rooted_handouts
from taccl_py.synthesis.bounds.in_network import helpful_switches, keeps_apart, without_messages
from taccl_py.synthesis.bounds.loads import LoadBound, copy_loads, sum_loads
from taccl_py.synthesis.bounds.net import Net, OrbitMembers
from taccl_py.synthesis.bounds.relays import relay_bound
from taccl_py.synthesis.bounds.roots import pack_roots
from taccl_py.synthesis.bounds.spread import distance_bound, fan_out_bound, told_after_first
from taccl_py.topology.model import Switch, Topology
from taccl_py.units import format_count, format_ranks

# Data flows from the root, or to it.
_FROM_ROOT = frozenset({Kind.BROADCAST, Kind.SCATTER})
_TO_ROOT = frozenset({Kind.GATHER, Kind.REDUCE})
# Backwards on the machine turned around these are collectives in which data is copied and not summed or dealt out.
_BACKWARDS = frozenset({Kind.REDUCESCATTER, Kind.REDUCE, Kind.SCATTER})
# Everyone wants, or has, something of everyone, or all of one.
_SPREADING = frozenset(Kind) - {Kind.GATHER, Kind.SCATTER}
# Bandwidth is the reason of a bound that exceeds it no more than so.
_PLAIN = 1 + 1e-3
_SECONDS = 10.0
# What is quickly found is found, whatever the time limit is.
_LEAST_SECONDS = 1.0
# Links and ports with a smaller part of the largest price are not named.
_PRICED = 1e-6
# Starts times links up to which distances and growths are looked at from all starts; beyond it, from some.
_MOST_STEPS = 20_000_000


@dataclass(frozen=True, slots=True)
class SizeBounds:
    """Best bounds of every sort for one size; see `DemandBounds`."""

    latency: Bound
    spread: Bound
    bandwidth: Bound
    crossing: Bound

    @property
    def best(self) -> Bound:
        """Best of all, for the plainest reason that explains nearly all of it: of large sizes bandwidth does, and alphas add a little."""
        best = best_of([self.latency, self.spread, self.bandwidth, self.crossing])
        return replace(best, reason=self.bandwidth.reason) if best.time_us <= self.bandwidth.time_us * _PLAIN else best


@dataclass(frozen=True)
class DemandBounds:
    """Bounds of one collective on one machine, for all sizes.

    Attributes
    ----------
    latency, spread
        Bounds that do not depend on the size: distance, and the better one of fan-out and fan-in.
    charges
        Those on bandwidth.
    crossings, handouts
        Those on messages between nodes.
    relays
        That on which messages between nodes serve everyone, if it was asked for; it does not depend on the size.
    """

    latency: Bound
    spread: Bound
    charges: tuple[Charge, ...]
    crossings: tuple[Crossing, ...] = ()
    handouts: tuple[Handout, ...] = ()
    relays: Bound | None = None

    @staticmethod
    def by_switch(topology: Topology, kind: Kind, root: int = 0) -> DemandBounds:
        """Analyse the machine for algorithms that let its switches multicast and add up, as well as send messages.

        Parameters
        ----------
        topology
            The machine.
        kind, root
            The collective.

        Raises
        ------
        InputError
            If the root does not exist, there is only one rank, or no switch helps with the collective.
        Infeasible
            See `of`.
        """
        _require_root(topology, kind, root)
        switches = helpful_switches(topology, kind)
        if not switches:
            raise InputError(
                f"no switch of topology {topology.name} multicasts or reduces what {kind} could use; leave --switch out",
                path="command line",
                field="--switch",
            )
        machine = _BoundedDemand(topology, kind, root, switches)
        latency = machine.latency()
        charges = tuple(machine.charges(Limits(seconds=_SECONDS)))
        return DemandBounds(latency, Bound(0.0, "a switch tells many at once"), charges)

    @staticmethod
    def of(
        topology: Topology, kind: Kind, root: int = 0, limits: Limits | None = None, *, relays_from: float | None = None
    ) -> DemandBounds:
        """Analyse the machine.

        Parameters
        ----------
        topology
            The machine.
        kind, root
            The collective.
        limits
            Time, by default without end but for what needs a solver; what is proved by then is returned. A second it is always.
        relays_from
            Smallest size of interest in bytes if the bound on relays is wanted, which takes seconds where it is of use.

        Raises
        ------
        InputError
            If the root does not exist or there is only one rank.
        Infeasible
            If there is no path between ranks that need each other's data.
        """
        _require_root(topology, kind, root)
        over = never if limits is None else limits.countdown(least_seconds=_LEAST_SECONDS)
        limits = limits or Limits(seconds=_SECONDS)
        machine = _BoundedDemand(topology, kind, root)
        latency = machine.latency()  # first: the others take it for granted that there are ways
        charges = tuple(until(over, machine.charges(limits)))
        spread = best_of(until(over, machine.spread()))
        found = DemandBounds(latency, spread, charges)
        cluster = NodeClasses.of(machine.net) if kind in _SPREADING and not over() else None
        if cluster is not None:
            crossing = tuple(until(over, machine.crossings(cluster)))
            found = replace(found, crossings=crossing, handouts=tuple(until(over, machine.handouts(cluster))))
        if relays_from is None or over():
            return found
        relays = relay_bound(topology, kind, found.at(relays_from, over=over).time_us, limits)
        return replace(found, relays=relays) if relays.time_us > 0 else found

    def bandwidth(self, size_bytes: float) -> Bound:
        """Best bound on bandwidth for a size as nccl-tests counts it."""
        return best_of(charge.at(size_bytes) for charge in self.charges)

    def crossing(self, size_bytes: float, most_chunks: int | None = None, over: Over = never) -> Bound:
        """Best bound on messages between nodes, of so many chunks at most, for a size as nccl-tests counts it, found in time."""
        best = best_of(crossing.at(size_bytes, most_chunks) for crossing in self.crossings)
        least_us = max(best.time_us, self.latency.time_us, self.spread.time_us, self.bandwidth(size_bytes).time_us)
        for handout in self.handouts:
            if over():
                break
            best = best_of([best, handout.at(size_bytes, least_us)])
            least_us = max(least_us, best.time_us)
        return best_of([best] if self.relays is None else [best, self.relays])

    def by_sort(self, size_bytes: float, most_chunks: int | None = None, *, over: Over = never) -> SizeBounds:
        """Best bounds of every sort for a size as nccl-tests counts it, and for messages of so many chunks at most.

        Where time is over, bounds that take long to evaluate are left out.
        """
        crossing = self.crossing(size_bytes, most_chunks, over)
        return SizeBounds(self.latency, self.spread, self.bandwidth(size_bytes), crossing)

    def at(self, size_bytes: float, most_chunks: int | None = None, *, over: Over = never) -> Bound:
        """Best of all bounds for a size; see `by_sort`."""
        return self.by_sort(size_bytes, most_chunks, over=over).best


def demand_bound(topology: Topology, kind: Kind, root: int, size_bytes: float, limits: Limits | None = None) -> Bound:
    """Best lower bound for a collective of one size that holds for every algorithm on the machine.

    Parameters
    ----------
    topology
        The machine.
    kind, root
        The collective; the root is 0 where it has none.
    size_bytes
        Size as nccl-tests counts it.
    limits
        Time; what is proved by then is returned. A second it is always.

    Raises
    ------
    InputError, Infeasible
        See `DemandBounds.of`.
    """
    over = never if limits is None else limits.countdown(least_seconds=_LEAST_SECONDS)
    return DemandBounds.of(topology, kind, root, limits).at(size_bytes, over=over)


def require_ways(topology: Topology, kind: Kind, root: int) -> None:
    """Refuse a machine that falls apart.

    Raises
    ------
    Infeasible
        If there is no path between ranks that need each other's data.
    """
    net = Net.of(topology)
    directions = [net] * (kind not in _TO_ROOT) + [net.reversed()] * (kind not in _FROM_ROOT)
    if not all(np.isfinite(each.quickest_from([root])).all() for each in directions):
        _BoundedDemand(topology, kind, root).latency()


def message_bound(topology: Topology, kind: Kind, size_bytes: float, most_chunks: int, over: Over = never) -> Bound:
    """Bound on messages between nodes of so many chunks at most; 0 where the number of chunks limits nothing, or time is over.

    A chunk is at most what one rank has, or has for one other; what all ranks sum up together may be one.
    """
    if kind in ROOTED or kind is Kind.ALLREDUCE or (kind is not Kind.ALLTOALL and topology.num_ranks <= most_chunks):
        return best_of([])
    if over():
        return best_of([])
    machine = _BoundedDemand(topology, kind, 0)
    cluster = NodeClasses.of(machine.net)
    crossings = machine.crossings(cluster) if cluster is not None else iter(())
    return best_of(c.at(size_bytes, most_chunks) for c in until(over, crossings))


class _BoundedDemand:
    """One collective on one machine."""

    def __init__(self, topology: Topology, kind: Kind, root: int, switches: tuple[Switch, ...] = ()) -> None:
        self.topology, self.kind, self.root, self.switches = topology, kind, root, switches
        self.net = Net.of(topology)
        if switches:
            self.topology, self.net = without_messages(topology, switches)
        self.orbits = OrbitMembers.of_machine(self.topology)
        self._node_of = self.net.node_of
        self._starts = [root] if kind in ROOTED else self._some(self.orbits.ranks())

    def _some(self, ranks: list[int]) -> list[int]:
        """As many of some ranks as the machine's size allows: one of each sort first, rank 0 among them.

        The farthest of fewer starts is a weaker bound, but one.
        """
        most = max(1, _MOST_STEPS // max(1, self.net.num_links))
        if len(ranks) <= most:
            return ranks
        return sorted(list(dict.fromkeys([ranks[0], *self._sorts(), *ranks]))[:most])

    def latency(self) -> Bound:
        """Distance of the ranks that are farthest apart."""
        towards = self.kind in _TO_ROOT
        net = self.net.reversed() if towards else self.net
        others = np.arange(net.num_ranks)[None, :] != np.array(self._starts)[:, None]
        farthest = distance_bound(net, self._starts, others, backwards=towards)
        if not np.isfinite(farthest.time_us):
            self._refuse(self._starts, others)
        return farthest

    def spread(self) -> Iterator[Bound]:
        """Fan-out from those who have something, or fan-in to those who want something of everyone."""
        if self.kind not in _TO_ROOT:
            yield from (bound(self.net, self._starts, inward=False) for bound in (fan_out_bound, growth_bound))
        if self.kind not in _FROM_ROOT:
            back = self.net.reversed()
            yield from (bound(back, self._starts, inward=True) for bound in (fan_out_bound, growth_bound))

    def crossings(self, cluster: NodeClasses) -> Iterator[Crossing]:
        """Bounds on messages between nodes."""
        return crossings(cluster, self.kind, self._nodes(self._sorts()), self.orbits)

    def handouts(self, cluster: NodeClasses) -> Iterator[Handout]:
        """Bounds on messages between nodes whose data is then handed out."""
        if self.kind in ROOTED:
            return rooted_handouts(cluster, self.kind, self.root, self.orbits)
        return handouts(cluster, self.kind, self._nodes(self._sorts()), self.orbits)

    def _refuse(self, starts: list[int], others: BoolArray) -> None:
        net = self.net.reversed() if self.kind in _TO_ROOT else self.net
        row, rank = np.argwhere(np.isinf(net.quickest_from(starts)) & others)[0].tolist()
        ends = (rank, starts[row]) if self.kind in _TO_ROOT else (starts[row], rank)
        raise Infeasible(
            f"{self.kind} is impossible on {self.topology.name}: it has no path of links from rank {ends[0]} to rank {ends[1]}",
            chunk=0, source=ends[0], rank=ends[1], restriction="topology",
        )  # fmt: skip

    def charges(self, limits: Limits) -> Iterator[Charge]:
        """Bounds on bandwidth."""
        num_ranks = self.net.num_ranks
        if self.kind is Kind.ALLTOALL:
            yield from self._dealing_cuts()
            yield alltoall_charge(self.net, self.orbits, limits)
        elif self.kind is Kind.ALLREDUCE:
            # Whatever one rank contributes has to get to all others, and the sum of what they contribute to it.
            for backwards in (False, True):
                yield from self._cuts(self._from_one(0, backwards, is_sum=True))
            yield from self._transfers()
            yield from self._summed()
        elif self.kind in (Kind.BROADCAST, Kind.REDUCE):
            yield from self._copied(self._from_one(self.root, self.kind in _BACKWARDS, is_sum=False))
        else:
            to_one = self.kind in (Kind.GATHER, Kind.SCATTER)
            sinks = [self.root] if to_one else self.orbits.ranks()
            is_sink = (np.arange(num_ranks) == self.root) | (not to_one)
            supply = np.full(num_ranks, 1 / num_ranks)
            yield from self._copied(_Copying(supply, is_sink, sinks, self.kind in _BACKWARDS))

    def _from_one(self, rank: int, backwards: bool, is_sum: bool) -> _Copying:
        supply = (np.arange(self.net.num_ranks) == rank).astype(np.float64)
        return _Copying(supply, supply == 0, self.orbits.enough_for(rank), backwards, is_sum)

    def _copied(self, copying: _Copying) -> Iterator[Charge]:
        """Cuts one by one, and all together where links share ports; without ports the worst one says as much."""
        yield from self._cuts(copying)
        if self.switches or not self.topology.ports:  # switches store at many what they carry once
            return
        net = self.net.reversed() if copying.backwards else self.net
        orbits = OrbitMembers.of_machine(self.topology, self.root) if self.kind in ROOTED else self.orbits
        sinks = np.flatnonzero(copying.is_sink & (orbits.rank == np.arange(net.num_ranks))).tolist()
        found = copy_loads(net, orbits, copying.supply, sinks)
        if found is not None:
            yield self._shared(found, copying.backwards)

    def _summed(self) -> Iterator[Charge]:
        """Cuts and divisions of sums together, and trees through roots as far as they are certified."""
        if self.switches:
            return
        together = sum_loads(self.net, self.orbits, [group_of for _, group_of in self._divisions()])
        if together is not None:
            yield self._shared(together, backwards=False)
        packing = pack_roots(self.net, self.orbits, together.amount_us if together is not None else 0.0)
        if packing is not None:
            reason = "bandwidth: the best packing of trees into roots and out of them over all links and ports"
            yield Charge(packing.certified.weights, self._idle(), packing.certified.amount_us, reason)

    def _shared(self, found: LoadBound, backwards: bool) -> Charge:
        """Charge of several cuts and divisions."""
        reason = f"bandwidth: {self._requirements(found, backwards)}"
        return Charge(found.weights, self._idle(), found.amount_us, reason)

    def _requirements(self, found: LoadBound, backwards: bool) -> str:
        """Rows that bind, in words."""
        net = self.net.reversed() if backwards else self.net
        first, *others = found.binding
        if first.is_cut:
            priced = net.use_resource[first.crossing(net)[net.use_link]]
            resources = np.unique(priced[found.weights[priced] > _PRICED * found.weights.max()])
            through = self._name(ResourceCut(resources, first.group_of == 0, first.least_mb), backwards)
            what = f"{100 * first.least_mb:.3g} % of the data through {through}"
        else:
            what = f"2({len(np.unique(first.group_of))}-1) transfers of everything between groups of ranks"
        if not others:
            return what
        shares = "shares" if len(others) == 1 else "share"
        return f"{what}, and {format_count(len(others), 'more cut')} that {shares} links and ports"

    def _cuts(self, copying: _Copying) -> Iterator[Charge]:
        """The worst cut, and those around ranks and nodes, which may be worse for small sizes."""
        net = self.net.reversed() if copying.backwards else self.net
        finder = CutFinder(net)
        from_root = self.kind in (Kind.BROADCAST, Kind.REDUCE)
        head_us = net.quickest_from([self.root])[0] if from_root else np.zeros(net.num_ranks)
        cuts = [finder.worst(copying.supply, copying.sinks)]
        for near in self._sides():
            behind = copying.behind(near)
            if behind > 0:
                resources = finder.cheapest_cover(np.flatnonzero(near[net.src] & ~near[net.dst]))
                cuts.append(ResourceCut(resources, near, behind) if resources is not None else None)
        for cut in cuts:
            if cut is not None:
                reason = f"bandwidth: {100 * cut.supply:.3g} % of the data through {self._name(cut, copying.backwards)}"
                idle_us = crossing_idle_times(net, cut.near, copying.is_sink, head_us)
                yield Charge.cut(self.net, cut.resources, idle_us, cut.supply, reason)
        if from_root and not self.switches:  # a switch may tell all at once
            yield from self._passed_on(net, finder, copying.backwards)

    def _passed_on(self, net: Net, finder: CutFinder, backwards: bool) -> Iterator[Charge]:
        """Everything has to leave the root, and its node, so early that the last of it can still be passed on to all."""
        for group_of, what in (
            (np.arange(net.num_ranks), f"rank {self.root}"),
            (net.node_of, f"node {net.node_of[self.root]}"),
        ):
            start = int(group_of[self.root])
            crossing = np.flatnonzero((group_of[net.src] == start) & (group_of[net.dst] != start))
            resources = finder.cheapest_cover(crossing) if len(crossing) else None
            if resources is not None:
                after_us = told_after_first(net, group_of, start) + float(net.latency_us[crossing].min())
                how = f"gets together and then into {what}" if backwards else f"leaves {what} and is then passed on"
                yield Charge.cut(self.net, resources, net.alpha_us + after_us, 1.0, f"bandwidth: everything {how}")

    def _dealing_cuts(self) -> Iterator[Charge]:
        """AllToAll: cuts around ranks and nodes and between the halves, which need no program and are easily named."""
        finder, idle_us, num_ranks = CutFinder(self.net), self._idle(), self.net.num_ranks
        half = np.arange(num_ranks) < num_ranks // 2
        for near in (*self._sides(), half, ~half):
            resources = finder.cheapest_cover(np.flatnonzero(near[self.net.src] & ~near[self.net.dst]))
            if resources is not None:
                pairs = int(near.sum()) * int((~near).sum())
                cut = ResourceCut(resources, near, pairs / num_ranks)
                reason = f"bandwidth: the parts of {pairs} pairs through {self._name(cut, backwards=False)}"
                yield Charge.cut(self.net, resources, idle_us, cut.supply, reason)

    def _sides(self) -> Iterator[BoolArray]:
        """Single ranks, single nodes, and everything but those; one of each sort."""
        ranks = self._sorts()
        sides = [np.arange(self.net.num_ranks) == rank for rank in ranks]
        sides += [self._node_of == node for node in self._nodes(ranks)]
        for side in sides:
            yield side
            yield ~side

    def _sorts(self) -> list[int]:
        """One rank of each sort: of an orbit, with the same bandwidth out and in, and of the root's node or not."""
        net = self.net
        beta = np.maximum(net.sum_over_links(net.beta_us_per_mb), 1e-9)
        rates = [np.bincount(ends, weights=1 / beta, minlength=net.num_ranks) for ends in (net.src, net.dst)]
        own = self._node_of == self._node_of[self.root]
        rooted = self.kind in ROOTED
        found: dict[tuple[object, ...], int] = {}
        for rank in range(net.num_ranks) if rooted else self.orbits.ranks():
            place = (rank == self.root, bool(own[rank])) if rooted else ()
            found.setdefault((*place, *(f"{rate[rank]:.6g}" for rate in rates)), rank)
        return list(found.values())

    def _nodes(self, ranks: list[int]) -> list[int]:
        """Nodes of some ranks, if there are several nodes at all."""
        return sorted({int(self._node_of[rank]) for rank in ranks}) if self.topology.num_nodes > 1 else []

    def _idle(self) -> FloatArray:
        nothing = np.zeros(self.net.num_ranks)
        head = self.net.quickest_from([self.root])[0] if self.kind in _FROM_ROOT else nothing
        tail = self.net.reversed().quickest_from([self.root])[0] if self.kind in _TO_ROOT else nothing
        return idle_times(self.net, head, tail)

    def _transfers(self) -> Iterator[Charge]:
        """Sums of parts of k groups that all k groups need: each piece goes from group to group at least 2(k - 1) times."""
        finder, idle_us = CutFinder(self.net), self._idle()
        for name, group_of in self._divisions():
            groups = len(np.unique(group_of))
            if groups < 2 or not keeps_apart(self.switches, group_of):
                continue
            resources = finder.cheapest_cover(np.flatnonzero(group_of[self.net.src] != group_of[self.net.dst]))
            if resources is not None:
                reason = f"bandwidth: 2({groups}-1) transfers of everything between {name}"
                yield Charge.cut(self.net, resources, idle_us, 2.0 * (groups - 1), reason)

    def _divisions(self) -> Iterator[tuple[str, IntArray]]:
        """Groups of ranks, with a name: those that are easily named first, and others that may say more."""
        ranks, node_of = np.arange(self.net.num_ranks), self._node_of
        yield "ranks", ranks
        yield "nodes", node_of
        for node in self._nodes(self._sorts()):
            yield f"ranks of node {node} and the rest", np.where(node_of == node, ranks, -1)
        if self.switches:
            return  # what a switch adds up goes over no tree
        for group_of in worst_divisions(self.net, self.orbits):
            members = [np.flatnonzero(group_of == group).tolist() for group in np.unique(group_of).tolist()]
            if 1 < len(members) < len(ranks) and [list(node) for node in self.topology.node_ranks] != members:
                yield f"{len(members)} groups of ranks, {format_ranks(max(members, key=len))} one of them", group_of

    def _name(self, cut: ResourceCut, backwards: bool) -> str:
        """Words for a cut."""
        giving, taking = (~cut.near, cut.near) if backwards else (cut.near, ~cut.near)
        is_port = cut.resources >= self.net.num_links
        what = "ports" if is_port.all() else "links and ports" if is_port.any() else "links"
        for ranks, way in ((taking, "in"), (giving, "out")):
            owner = self._owner(np.flatnonzero(ranks).tolist())
            if owner:
                return f"{owner}'s {what} {way}"
        taking_ranks, giving_ranks = (format_ranks(np.flatnonzero(side).tolist()) for side in (taking, giving))
        return f"the {what} from ranks {giving_ranks} to ranks {taking_ranks}"

    def _owner(self, ranks: list[int]) -> str:
        if len(ranks) == 1:
            return f"rank {ranks[0]}"
        nodes = self.topology.node_ranks
        return next((f"node {node}" for node, members in enumerate(nodes) if list(members) == ranks), "")


@dataclass(frozen=True)
class _Copying:
    """A collective in which everyone who wants something wants everything.

    Attributes
    ----------
    supply
        Share of the size that every rank has, [rank].
    is_sink
        Who wants everything, [rank].
    sinks
        Sinks to which enough flows only if enough flows to all of them.
    backwards
        Whether it takes place on the machine turned around.
    is_sum
        Whether every set of ranks has as much to give as one rank: a part of every sum (AllReduce).
    """

    supply: FloatArray
    is_sink: BoolArray
    sinks: list[int]
    backwards: bool
    is_sum: bool = False

    def behind(self, near: BoolArray) -> float:
        """Share of the size that has to get from some ranks to the others."""
        if self.is_sum:
            return float(self.supply.max())
        return float(self.supply[near].sum()) if (self.is_sink & ~near).any() else 0.0


def _require_root(topology: Topology, kind: Kind, root: int) -> None:
    """Refuse what no collective can be; how many chunks it might have is of no importance here."""
    Collective(Kind.BROADCAST, topology.num_ranks, 1, root)
    if root and kind not in ROOTED:
        raise InputError(f"{kind} has no root; leave the root out", field="root")

"""Topology: directed links between ranks, and the ports that links share.

The cost model, used by every part of the program that prints a microsecond:

* A message of ``n`` bytes on link ``l`` occupies the link for ``alpha + beta * n`` from its start, and every port of the
  link for the port's own ``alpha + beta * n`` from the same start. A link and a port serve one message at a time.
* The message has arrived when the slowest of them is done, plus the link's ``latency_us`` (propagation that occupies
  nothing).

A port whose beta is smaller than the betas of its links therefore lets several links through, one staggered behind the
other, at its own rate: a NIC or a trunk is shared when it is used and free when it is not. A switch is an egress and an
ingress port per rank.

Resources are numbered: link ``l`` is resource ``l``, port ``p`` is resource ``len(links) + p``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cached_property
from itertools import starmap
from operator import attrgetter
from typing import Any

from taccl_py.errors import InputError
from taccl_py.pickles import pickled_by_fields
from taccl_py.units import BYTES_PER_MB, MAX_COST_US, MAX_RANKS, MIN_COST_US

GPUS_TOGETHER = "+"  # between the models of a machine's GPUs


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class Port:
    """Something that links share and take turns on: a NIC, a switch port, a PCIe uplink.

    Attributes
    ----------
    name
        Name for people, unique in its topology.
    alpha_us, beta_us_per_mb
        Time that a message occupies the port: ``alpha_us + beta_us_per_mb * megabytes``.
    """

    name: str
    alpha_us: float
    beta_us_per_mb: float


class Medium(StrEnum):
    """Medium that joins the ranks of a node; of several in one machine the later one here counts."""

    NVLINK = "nvlink"  # or xGMI, or anything else that stores 128 bytes at once
    UNKNOWN = "unknown"  # nothing says it; protocols are chosen as for PCIe
    PCIE = "pcie"
    NETWORK = "network"


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class Link:
    """One directed connection from one rank to another.

    Attributes
    ----------
    src, dst
        Ranks.
    alpha_us, beta_us_per_mb
        Time that a message occupies the link: ``alpha_us + beta_us_per_mb * megabytes``.
    latency_us
        Propagation after that, which occupies nothing.
    ports
        Indices of the ports that it shares, the sender's side first.
    """

    src: int
    dst: int
    alpha_us: float
    beta_us_per_mb: float
    latency_us: float = 0.0
    ports: tuple[int, ...] = ()


_LINK_COLUMNS = attrgetter(*(each.name for each in fields(Link)))


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch that does more than to pass messages on; the links through it are links like others.

    Attributes
    ----------
    name
        Name for people.
    ranks
        Ranks that it joins, in order.
    multicast, reduce
        Whether it can store what one rank sends at all of them, and give one rank the sum of what all of them hold.
    """

    name: str
    ranks: tuple[int, ...]
    multicast: bool
    reduce: bool


def _cost_error(costs: Sequence[float]) -> str:
    """Error in some costs, or empty."""
    wrong = next((cost for cost in costs if cost != 0 and not MIN_COST_US <= cost <= MAX_COST_US), None)
    if wrong is None:
        return ""
    return f"found the cost {wrong}, 0 or a number from {MIN_COST_US:g} to {MAX_COST_US:g} is needed"


@dataclass(frozen=True)
class Topology:
    """A machine: ranks 0..R-1, links, ports.

    Attributes
    ----------
    name
        Name for people and file names.
    source
        Where the figures come from.
    node_of
        Node of every rank; nodes are numbered 0, 1, 2 and so on.
    ports, links
        See `Port` and `Link`; links are sorted by (src, dst).
    symmetry
        Generators (rank permutations) believed to be automorphisms; engines check them before use.
    measured_chunk_bytes
        Size of the messages that the costs were measured with, or None if they hold for all sizes.
    switches
        Switches that multicast or reduce. Messages of schedules, and so bounds, do not use it; plans may.
    inside
        Medium that joins the ranks of a node. Times are those of links and ports; protocols of runtimes depend on it.
    gpu
        Model of the GPUs, such as ``a100``; empty if unknown, and models in order of name where nodes have different ones, such as
        ``a100+h100``. Runtime profiles depend on it.
    near_nics
        True if NICs write into the memory of GPUs themselves, over PCIe switches alone. Protocols depend on it.

    Raises
    ------
    InputError
        If a node has no rank, or a link or a port is impossible.
    """

    name: str
    source: str
    node_of: tuple[int, ...]
    ports: tuple[Port, ...]
    links: tuple[Link, ...]
    symmetry: tuple[tuple[int, ...], ...] = ()
    measured_chunk_bytes: int | None = None
    switches: tuple[Switch, ...] = ()
    inside: Medium = Medium.UNKNOWN
    gpu: str = ""
    near_nics: bool = False

    def __post_init__(self) -> None:
        """Sort the links and check that everything refers to something."""
        object.__setattr__(self, "links", tuple(sorted(self.links, key=attrgetter("src", "dst"))))
        if not self.node_of:
            raise InputError(f"topology {self.name}: it has no ranks")
        if self.num_ranks > MAX_RANKS:
            raise InputError(f"topology {self.name}: it has {self.num_ranks} ranks, at most {MAX_RANKS} are possible")
        empty = missing_node(self.node_of)
        if empty is not None:
            raise InputError(f"topology {self.name}: node {empty} has no rank; number the nodes 0, 1, 2 and so on")
        if len({port.name for port in self.ports}) != len(self.ports):
            raise InputError(f"topology {self.name}: two ports have one name")
        for port in self.ports:
            violation = _cost_error((port.alpha_us, port.beta_us_per_mb))
            if violation:
                raise InputError(f"topology {self.name}: port {port.name}: {violation}")
        fine: set[tuple[float, ...]] = set()
        for link in self.links:
            violation = self._link_error(link, fine)
            if violation:
                raise InputError(f"topology {self.name}: link {link.src}->{link.dst}: {violation}")
        for switch in self.switches:
            if not switch.ranks or not 0 <= min(switch.ranks) <= max(switch.ranks) < self.num_ranks:
                raise InputError(f"topology {self.name}: switch {switch.name} joins a rank that does not exist")

    def _link_error(self, link: Link, fine: set[tuple[float, ...]]) -> str:
        """Error in a link, or empty; there may be a million, so that costs known to be fine are not looked at again."""
        ports = link.ports
        for rank in (link.src, link.dst):
            if not 0 <= rank < len(self.node_of):
                return f"rank {rank} does not exist, ranks are 0..{self.num_ranks - 1}"
        if link.src == link.dst:
            return "a link joins two different ranks"
        if ports and not 0 <= min(ports) <= max(ports) < len(self.ports):
            return "names a port that does not exist"
        if len(set(ports)) != len(ports):
            return "names a port twice"
        costs = (link.alpha_us, link.beta_us_per_mb, link.latency_us)
        if costs in fine:
            return ""
        if link.alpha_us == 0 and link.beta_us_per_mb == 0:
            return "alpha and beta are both 0; give the link a cost"
        violation = _cost_error(costs)
        if not violation:
            fine.add(costs)
        return violation

    def __getstate__(self) -> dict[str, Any]:
        """Links as columns for other processes, as there may be a million, and nothing that can be found out again."""
        state = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**state, "links": tuple(zip(*map(_LINK_COLUMNS, self.links), strict=True))}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Put the links together again, which have been looked at before."""
        self.__dict__.update(state, links=tuple(starmap(Link, zip(*state["links"], strict=True))))

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.node_of)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return max(self.node_of) + 1

    @property
    def num_resources(self) -> int:
        """Number of links and ports."""
        return len(self.links) + len(self.ports)

    @cached_property
    def node_ranks(self) -> tuple[tuple[int, ...], ...]:
        """Ranks of every node, in order of node number."""
        found: list[list[int]] = [[] for _ in range(self.num_nodes)]
        for rank, node in enumerate(self.node_of):
            found[node].append(rank)
        return tuple(map(tuple, found))

    def is_inside(self, link: Link) -> bool:
        """True if a link joins two ranks of one node."""
        return self.node_of[link.src] == self.node_of[link.dst]

    @property
    def gpu_models(self) -> tuple[str, ...]:
        """Models of its GPUs; one empty text if they are not known."""
        return tuple(self.gpu.split(GPUS_TOGETHER))

    @cached_property
    def has_even_nodes(self) -> bool:
        """True if all nodes have as many ranks."""
        return len({len(ranks) for ranks in self.node_ranks}) == 1

    @cached_property
    def local_rank(self) -> tuple[int, ...]:
        """Position of every rank inside its node."""
        local = [0] * self.num_ranks
        for ranks in self.node_ranks:
            for position, rank in enumerate(ranks):
                local[rank] = position
        return tuple(local)

    @cached_property
    def links_between(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """Link indices for every (src, dst) that is connected; several when links are parallel."""
        found: dict[tuple[int, int], list[int]] = {}
        for index, link in enumerate(self.links):
            found.setdefault((link.src, link.dst), []).append(index)
        return {pair: tuple(indices) for pair, indices in found.items()}

    @cached_property
    def links_from(self) -> tuple[tuple[int, ...], ...]:
        """Link indices of every rank from which links lead, [rank]."""
        found: list[list[int]] = [[] for _ in range(self.num_ranks)]
        for index, link in enumerate(self.links):
            found[link.src].append(index)
        return tuple(map(tuple, found))

    @cached_property
    def lane(self) -> tuple[int, ...]:
        """Position of every link among its parallel links."""
        lanes = [0] * len(self.links)
        for indices in self.links_between.values():
            for position, index in enumerate(indices):
                lanes[index] = position
        return tuple(lanes)

    @cached_property
    def resources_of(self) -> tuple[tuple[int, ...], ...]:
        """Resources that a message on each link occupies: the link itself, then its ports."""
        first_port = len(self.links)
        return tuple((i, *(first_port + port for port in link.ports)) for i, link in enumerate(self.links))

    @cached_property
    def resource_cost(self) -> tuple[tuple[float, float], ...]:
        """(alpha_us, beta_us_per_mb) of every resource."""
        costs = [(link.alpha_us, link.beta_us_per_mb) for link in self.links]
        return tuple(costs + [(port.alpha_us, port.beta_us_per_mb) for port in self.ports])

    @cached_property
    def link_costs(self) -> tuple[tuple[tuple[float, float], ...], ...]:
        """(alpha_us, beta_us_per_mb) of the resources that a message on each link occupies."""
        return tuple(tuple(self.resource_cost[resource] for resource in each) for each in self.resources_of)

    def resource_name(self, resource: int) -> str:
        """Name of a resource for people."""
        if resource < len(self.links):
            link = self.links[resource]
            lane = f" (lane {self.lane[resource]})" if len(self.links_between[link.src, link.dst]) > 1 else ""
            return f"link {link.src}->{link.dst}{lane}"
        return self.ports[resource - len(self.links)].name

    def occupancy_us(self, resource: int, size_bytes: float) -> float:
        """Time that a message of `size_bytes` occupies a resource."""
        alpha_us, beta_us_per_mb = self.resource_cost[resource]
        return alpha_us + beta_us_per_mb * size_bytes / BYTES_PER_MB

    @property
    def keeps_stores_whole(self) -> bool:
        """True if stores of 128 bytes arrive whole everywhere, without which protocol LL128 takes wrong data for right.

        PCIe between GPUs does not promise that, nor do NICs beyond a CPU. Between nodes the rule is NCCL's own (``graph/tuning.cc`` of
        2.30.7): paths up to ``PXB``, with GPUDirect RDMA.
        """
        return self.inside is Medium.NVLINK and (self.num_nodes == 1 or self.near_nics)

    def default_bytes(self, chunks_per_size: int) -> int:
        """Size of a collective, as nccl-tests counts it, where none is given: chunks as they were measured, else 1 MB."""
        return BYTES_PER_MB if self.measured_chunk_bytes is None else self.measured_chunk_bytes * chunks_per_size

    def us_per_mb(self, link: int) -> float:
        """Time of a megabyte on whichever of the resources of a link is slowest."""
        return max(beta for _, beta in self.link_costs[link])

    def message_us(self, link: int, size_bytes: float) -> float:
        """Time from the start of a message to its arrival."""
        slowest = max([alpha_us + beta * size_bytes / BYTES_PER_MB for alpha_us, beta in self.link_costs[link]])
        return slowest + self.links[link].latency_us

    def reversed(self) -> Topology:
        """Return the machine with every link turned around."""
        links = tuple(Link(k.dst, k.src, k.alpha_us, k.beta_us_per_mb, k.latency_us, k.ports[::-1]) for k in self.links)
        switches = tuple(Switch(one.name, one.ranks, one.reduce, one.multicast) for one in self.switches)
        return Topology(
            self.name, self.source, self.node_of, self.ports, links, self.symmetry, self.measured_chunk_bytes, switches,
            self.inside, self.gpu, self.near_nics,
        )  # fmt: skip

    def reversed_link(self) -> tuple[int, ...]:
        """For every link of this topology, the index of the same link in `reversed`."""
        order = sorted(range(len(self.links)), key=lambda i: (self.links[i].dst, self.links[i].src))
        index_of = [0] * len(order)
        for position, link in enumerate(order):
            index_of[link] = position
        return tuple(index_of)

    def subset(self, ranks: Sequence[int]) -> Topology:
        """Return the machine that a process group sees: these ranks, renumbered in the order given, and their links.

        Raises
        ------
        InputError
            If a rank does not exist, or is named twice.
        """
        for rank in ranks:
            if not 0 <= rank < self.num_ranks:
                raise InputError(f"rank {rank} does not exist, ranks are 0..{self.num_ranks - 1}", field="ranks")
        if len(set(ranks)) < len(ranks):
            raise InputError("a rank is named twice; name every rank once", field="ranks")
        new = {rank: index for index, rank in enumerate(ranks)}
        nodes = {node: index for index, node in enumerate(dict.fromkeys(self.node_of[r] for r in ranks))}
        kept = [k for k in self.links if k.src in new and k.dst in new]
        used = sorted({port for link in kept for port in link.ports})
        port_index = {port: index for index, port in enumerate(used)}
        links = tuple(
            Link(
                new[k.src], new[k.dst], k.alpha_us, k.beta_us_per_mb, k.latency_us,
                tuple(port_index[port] for port in k.ports),
            )
            for k in kept
        )  # fmt: skip
        symmetry = tuple(
            tuple(new[image[rank]] for rank in ranks)
            for image in self.symmetry
            if all(image[rank] in new for rank in ranks)
        )
        joined = [(one, tuple(sorted(new[rank] for rank in one.ranks if rank in new))) for one in self.switches]
        switches = tuple(Switch(one.name, of, one.multicast, one.reduce) for one, of in joined if len(of) > 1)
        return Topology(
            self.name, self.source, tuple(nodes[self.node_of[r]] for r in ranks),
            tuple(self.ports[port] for port in used), links, symmetry, self.measured_chunk_bytes, switches,
            self.inside, self.gpu, self.near_nics,
        )  # fmt: skip


def missing_node(node_of: Collection[int]) -> int | None:
    """Smallest number of a node without a rank, where the nodes are numbered 0, 1, 2 and so on; None if each has one."""
    present = set(node_of)
    return next((node for node in range(len(present)) if node not in present), None)

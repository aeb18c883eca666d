"""Sketch: what the designer knows about a good algorithm. It restricts and advises; it never changes a topology.

All ranks in a sketch are *local*: 0..ranks_per_node-1, the same in every node, except in `Symmetry.permutations`, which
name every rank of the machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import NoReturn

from taccl_py.errors import InputError
from taccl_py.topology.model import Topology


class Strategy(StrEnum):
    """Preference of an engine among links of a node, besides finishing early."""

    NONE = "none"
    SWITCH = "switch"  # follow the policy of each switch
    MINMAX = "minmax"  # make the busiest link less busy
    MAXMIN = "maxmin"  # make the idlest link busier


class Policy(StrEnum):
    """Policy for the number of different pairs that talk through a switch."""

    UC_MIN = "uc-min"  # few: large messages, connections cost bandwidth
    UC_MAX = "uc-max"  # many: small messages, fewer hops
    FREE = "free"


DIRECT = "direct"
FULLY_CONNECTED = "fully-connected"
NODE = "node"
MACHINE = "machine"

# Suffix that several nodes of a machine add to its name.
_COUNT = re.compile(r"-x[0-9]+$")


def machine_name(topology_name: str) -> str:
    """Return a topology's name (``ndv2-x2``) without the number of nodes (``ndv2``)."""
    return _COUNT.sub("", topology_name)


def is_machine(topology_name: str, wanted: str) -> bool:
    """True if a topology's name (``ndv2-x2``, ``torus-4x4``) is that of a machine (``ndv2``, ``torus:4x4``)."""
    return topology_name == wanted or machine_name(topology_name) == wanted.replace(":", "-")


@dataclass(frozen=True, slots=True)
class SwitchGroup:
    """Local ranks that talk through one switch, and the policy for it."""

    ranks: tuple[int, ...]
    policy: Policy = Policy.FREE


@dataclass(frozen=True, slots=True)
class Rotation:
    """Symmetry ``r -> (r mod within + by) mod within + within * (r div within)``.

    `by` may be the word ``node`` (ranks per node), `within` may be ``node`` or ``machine``.
    """

    by: int | str
    within: int | str


@dataclass(frozen=True)
class Sketch:
    """Restrictions and hints for a synthesis.

    Attributes
    ----------
    name, purpose
        Name, and one sentence that says what the sketch is for.
    topology
        Name of the topology that it is written for; empty for any.
    nodes
        Node counts that it is written for; empty for any.
    strategy
        See `Strategy`.
    switches
        See `SwitchGroup`; any two are disjoint or identical.
    links
        Local links that may be used inside a node (local rank to local ranks); None for all.
    connections
        Who sends to whom between nodes: ``direct`` (i to i), ``fully-connected``, a mapping from local sender to local
        receivers, or None for whatever the topology has.
    relays
        For every local sender the local ranks whose chunks it sends to other nodes; None if anyone may.
    own_first
        Whether a sender sends its own chunks to other nodes before those of others.
    rotations, permutations
        Symmetry: generators of the group under which the algorithm repeats.
    chunks_per_rank
        Chunks of one rank's shard.
    source
        File that it was read from, for error messages.
    words
        The file's own words for our fields where they differ, for error messages.
    """

    name: str
    purpose: str = ""
    topology: str = ""
    nodes: tuple[int, ...] = ()
    strategy: Strategy = Strategy.NONE
    switches: tuple[SwitchGroup, ...] = ()
    links: Mapping[int, tuple[int, ...]] | None = None
    connections: Mapping[int, tuple[int, ...]] | str | None = None
    relays: Mapping[int, tuple[int, ...]] | None = None
    own_first: bool = False
    rotations: tuple[Rotation, ...] = ()
    permutations: tuple[tuple[int, ...], ...] = ()
    chunks_per_rank: int = 1
    source: str = field(default="", compare=False)
    words: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        for name in ("links", "connections", "relays"):
            value = getattr(self, name)
            if isinstance(value, Mapping):
                object.__setattr__(self, name, MappingProxyType(dict(sorted(value.items()))))
        self._check_switches()
        self._check_relays()
        if self.chunks_per_rank < 1:
            self.refuse("chunks_per_rank", f"found {self.chunks_per_rank}, at least 1 is needed")

    def __getstate__(self) -> dict[str, object]:
        """Plain mappings, which can cross to another process; read-only ones cannot."""
        return {k: dict(v) if isinstance(v, MappingProxyType) else v for k, v in self.__dict__.items()}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Make the mappings read-only again."""
        for name, value in state.items():
            object.__setattr__(self, name, MappingProxyType(value) if isinstance(value, dict) else value)

    def refuse(self, name: str, what: str) -> NoReturn:
        """Raise an `InputError` about one field."""
        raise InputError(what, path=self.source or f"sketch {self.name}", field=self.word(name))

    def word(self, name: str) -> str:
        """Return what the sketch's file calls one of our fields, or a part of one (``inter_node.relays.3``)."""
        parts = name.split(".")
        for length in range(len(parts), 0, -1):
            found = self.words.get(".".join(parts[:length]))
            if found is not None:
                return ".".join([found, *parts[length:]])
        return name

    def _check_switches(self) -> None:
        if self.strategy is Strategy.SWITCH and not self.switches:
            self.refuse("intra_node.switches", "the strategy is switch but no switch is listed; list the local ranks")
        if self.switches and self.strategy is not Strategy.SWITCH:
            self.refuse("intra_node.strategy", f"switches are listed but the strategy is {self.strategy}; say switch")
        for i, one in enumerate(self.switches):
            if len(one.ranks) < 2 or len(set(one.ranks)) != len(one.ranks):
                self.refuse(f"intra_node.switches.{i}", "a switch joins at least two different ranks")
            for j, other in enumerate(self.switches[:i]):
                common = set(one.ranks) & set(other.ranks)
                if common and set(one.ranks) != set(other.ranks):
                    self.refuse(
                        f"intra_node.switches.{i}",
                        f"overlaps switch {j} in rank {min(common)}; two switches are disjoint or join the same ranks",
                    )

    def _check_relays(self) -> None:
        if self.own_first and self.relays is None:
            relays = self.word("inter_node.relays")
            self.refuse("inter_node.own_first", f"orders what relays send, but {relays} is not given; add it")
        if self.relays is None or not isinstance(self.connections, Mapping):
            return
        for sender in self.relays:
            if sender not in self.connections:
                self.refuse(
                    f"inter_node.relays.{sender}",
                    f"rank {sender} is no sender in {self.word('inter_node.connections')}; add it there",
                )

    def connected(self, sender: int, receiver: int) -> bool:
        """True if the sketch lets local rank `sender` send to local rank `receiver` of another node."""
        if self.connections is None or self.connections == FULLY_CONNECTED:
            return True
        if isinstance(self.connections, str):
            return sender == receiver
        return receiver in self.connections.get(sender, ())

    def senders_of(self, local_rank: int) -> tuple[int, ...] | None:
        """Local senders that may carry a local rank's chunks to other nodes, or None for any."""
        if self.relays is None:
            return None
        return tuple(sender for sender, ranks in self.relays.items() if local_rank in ranks)

    def check_fits(self, topology: Topology) -> None:
        """Refuse a topology that the sketch contradicts.

        Raises
        ------
        InputError
            Naming the field of the sketch.
        """
        if self.topology and not is_machine(topology.name, self.topology):
            self.refuse(
                "topology", f"is written for {self.topology}, not for {topology.name}; use it there or edit a copy"
            )
        sizes = {len(ranks) for ranks in topology.node_ranks}
        uses_local_ranks = self.switches or self.links or self.relays or isinstance(self.connections, Mapping)
        if uses_local_ranks and len(sizes) > 1:
            self.refuse("topology", f"{topology.name} has nodes of different size, local ranks would be ambiguous")
        if self.nodes and topology.num_nodes not in self.nodes:
            counts = ", ".join(map(str, self.nodes))
            self.refuse("nodes", f"is written for {counts} nodes, the topology has {topology.num_nodes}; use --nodes")
        self.check_local_ranks(max(sizes))
        self._check_links(topology)
        for i in range(len(self.permutations)):
            self._check_permutation(i, topology.num_ranks)
        self.generators(topology)

    def check_local_ranks(self, ranks_per_node: int) -> None:
        """Refuse local ranks that a node does not have, and ranks that nobody relays for.

        Raises
        ------
        InputError
            Naming the field of the sketch.
        """
        named: list[tuple[str, int]] = []
        for i, switch in enumerate(self.switches):
            named += [(f"intra_node.switches.{i}", rank) for rank in switch.ranks]
        for where, mapping in (
            ("intra_node.links", self.links),
            ("inter_node.connections", self.connections),
            ("inter_node.relays", self.relays),
        ):
            if isinstance(mapping, Mapping):
                named += [(f"{where}.{key}", rank) for key, ranks in mapping.items() for rank in (key, *ranks)]
        for where, rank in named:
            if not 0 <= rank < ranks_per_node:
                self.refuse(where, f"local rank {rank} does not exist, a node has ranks 0..{ranks_per_node - 1}")
        if self.relays is not None:
            served = {rank for ranks in self.relays.values() for rank in ranks}
            missing = sorted(set(range(ranks_per_node)) - served)
            if missing:
                self.refuse(
                    "inter_node.relays", f"no sender relays the chunks of local rank {missing[0]}; add it to one"
                )

    def _check_links(self, topology: Topology) -> None:
        self._check_local_links(topology)
        if topology.num_nodes > 1:
            self._check_connections(topology)

    def _check_local_links(self, topology: Topology) -> None:
        node = topology.node_ranks[0]
        for src, dsts in (self.links or {}).items():
            for dst in dsts:
                if (node[src], node[dst]) not in topology.links_between:
                    self.refuse(f"intra_node.links.{src}", f"{topology.name} has no link from rank {src} to rank {dst}")

    def _check_connections(self, topology: Topology) -> None:
        here, there = topology.node_ranks[0], topology.node_ranks[1]
        if isinstance(self.connections, Mapping):
            for src, dsts in self.connections.items():
                for dst in dsts:
                    if (here[src], there[dst]) not in topology.links_between:
                        self.refuse(
                            f"inter_node.connections.{src}",
                            f"{topology.name} has no link from rank {src} of a node to rank {dst} of another",
                        )
        elif self.connections is not None and not any(
            (here[src], there[dst]) in topology.links_between
            for src in range(len(here))
            for dst in range(len(there))
            if self.connected(src, dst)
        ):
            self.refuse(
                "inter_node.connections", f"{topology.name} has no link between nodes that {self.connections} allows"
            )

    def for_sums(self, reversed_topology: Topology) -> Sketch:
        """Return the sketch for the reversed machine, where the routed collective runs whose mirror image is a sum.

        A sum goes backwards over the links of the sketch, so there the sketch is read as it stands: senders and receivers change
        roles. Where it lists links that are one-way, nothing can go backwards over them; it is turned around with the machine
        then, so that sums take the listed links themselves.

        Parameters
        ----------
        reversed_topology
            The machine with every link turned around.
        """
        try:
            self._check_links(reversed_topology)
        except InputError:
            connections, relays = self.connections, self.relays
            if isinstance(connections, Mapping):
                if relays is not None:
                    relays = _handed_on(relays, connections)
                connections = _turned(connections)
            return replace(self, links=_turned(self.links), connections=connections, relays=relays)
        return self

    def _check_permutation(self, index: int, num_ranks: int) -> None:
        permutation = self.permutations[index]
        if sorted(permutation) != list(range(num_ranks)):
            self.refuse(
                f"symmetry.permutations.{index}",
                f"is not a permutation of all ranks 0..{num_ranks - 1}; name each once",
            )

    def generators(self, topology: Topology) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Generators of the symmetry group as (field name, image of every rank); not yet checked to be automorphisms.

        Raises
        ------
        InputError
            If a rotation does not fit the number of ranks.
        """
        ranks_per_node = len(topology.node_ranks[0])
        words = {NODE: ranks_per_node, MACHINE: topology.num_ranks}
        found = []
        for i, rotation in enumerate(self.rotations):
            where = f"symmetry.rotations.{i}"
            by = words[rotation.by] if isinstance(rotation.by, str) else rotation.by
            within = words[rotation.within] if isinstance(rotation.within, str) else rotation.within
            if within < 1 or topology.num_ranks % within:
                self.refuse(where, f"rotates within {within} ranks, which does not divide {topology.num_ranks} ranks")
            image = tuple((r % within + by) % within + within * (r // within) for r in range(topology.num_ranks))
            if image != tuple(range(topology.num_ranks)):
                found.append((where, image))
        found += [(f"symmetry.permutations.{i}", p) for i, p in enumerate(self.permutations)]
        return tuple(found)


def _turned(pairs: Mapping[int, Sequence[int]] | None) -> dict[int, tuple[int, ...]] | None:
    """Senders of every receiver, from the receivers of every sender."""
    if pairs is None:
        return None
    receivers = sorted({receiver for listed in pairs.values() for receiver in listed})
    return {receiver: tuple(s for s, listed in pairs.items() if receiver in listed) for receiver in receivers}


def _handed_on(
    relays: Mapping[int, Sequence[int]], connections: Mapping[int, Sequence[int]]
) -> dict[int, tuple[int, ...]]:
    """Relays of the turned connections: a receiver takes over the ranks of all relays that send to it."""
    ranks_of: dict[int, set[int]] = {}
    for sender, ranks in relays.items():
        for receiver in connections[sender]:
            ranks_of.setdefault(receiver, set()).update(ranks)
    return {receiver: tuple(sorted(ranks)) for receiver, ranks in sorted(ranks_of.items())}

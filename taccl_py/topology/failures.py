"""Single failures of a machine: every NIC, link between GPUs or GPU port that may be lost or slow, and which of them are alike.

Two failures are alike if some symmetry of the machine takes one to the other (and the root of the collective to itself): what serves
one serves the other with its ranks renamed. Symmetries are those that the machine is believed to have, and regular ones that are
sought; each is checked.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from glob import escape
from typing import TYPE_CHECKING

from taccl_py.errors import InputError
from taccl_py.spelling import did_you_mean
from taccl_py.topology.degrade import Degradation, LinkChoice, SlowLink, SlowPort
from taccl_py.topology.model import Topology
from taccl_py.topology.template import Side
from taccl_py.units import natural_key

if TYPE_CHECKING:
    from taccl_py.arrays import IntArray

_OF_NODE = re.compile(r"node ([0-9]+) ")
_SIDES = tuple(f" {side}" for side in Side)


class FailureKind(StrEnum):
    """Things that fail, spelled as on the command line."""

    NIC = "nic"
    GPU_LINK = "gpu-link"
    GPU_PORT = "gpu-port"


@dataclass(frozen=True, slots=True)
class FailureSort:
    """Kind of thing that fails, and the part of its bandwidth that is left: 0 where it is lost."""

    kind: FailureKind
    share: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind}:{self.share:g}" if self.share else str(self.kind)


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that fails.

    Attributes
    ----------
    name
        The thing: ``node 1 ib3``, ``link 0-3``.
    sort
        What it is, and what is left of it.
    degradation
        The same for `degraded`.
    ports, links
        Numbers of the ports, or of the links, that fail.
    """

    name: str
    sort: FailureSort
    degradation: Degradation
    ports: frozenset[int] = frozenset()
    links: frozenset[int] = frozenset()

    @property
    def what(self) -> str:
        """The failure in words."""
        return f"{self.name} at {self.sort.share:g}" if self.sort.share else f"{self.name} lost"


@dataclass(frozen=True, slots=True)
class FailureImage:
    """A failure, and the renaming of the ranks that takes the first one of its class to it."""

    failure: Failure
    renaming: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FailureClass:
    """Failures that are alike; the first one is its own image."""

    images: tuple[FailureImage, ...]

    @property
    def first(self) -> Failure:
        """The one that stands for all."""
        return self.images[0].failure


def parse_sorts(text: str) -> tuple[FailureSort, ...]:
    """Sorts of failures of a text: ``nic,gpu-link,nic:0.5``.

    Raises
    ------
    InputError
        If a word is none, stands twice, or the part of a bandwidth is not above 0 and below 1.
    """
    found: list[FailureSort] = []
    for word in text.split(","):
        name, colon, share = word.strip().partition(":")
        if name not in tuple(FailureKind):
            known = ", ".join(FailureKind)
            raise InputError(
                f"{word.strip()[:40]!r} is no kind of failure; {did_you_mean(name, FailureKind)}use {known}, and nic:0.5 for half the bandwidth"
            )
        sort = FailureSort(FailureKind(name), _share(share, word) if colon else 0.0)
        if sort in found:
            raise InputError(f"{word.strip()!r} stands twice; keep one of them")
        found.append(sort)
    return tuple(found)


def _share(text: str, word: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 1e-9 <= share < 1:
        raise InputError(
            f"{word.strip()[:40]!r}: write the part of the bandwidth that is left, above 0 and below 1, as in nic:0.5"
        )
    return share


def single_failures(topology: Topology, sorts: Sequence[FailureSort]) -> tuple[Failure, ...]:
    """Every failure of these sorts, in the order of sorts and names.

    Parameters
    ----------
    topology
        The machine. Its NICs are the ports next to the network that links between nodes share; ``NAME out`` and ``NAME in`` are one. A
        link between GPUs is all links between two ranks of a node that share no ports, both ways. A port of a GPU is one inside a
        node that all links from, or to, one rank share.
    sorts
        What may fail.

    Raises
    ------
    InputError
        If it has nothing of a sort.
    """
    found: list[Failure] = []
    for sort in sorts:
        of_sort = _links_fail(topology, sort) if sort.kind is FailureKind.GPU_LINK else _ports_fail(topology, sort)
        if not of_sort:
            raise InputError(f"{topology.name} has no {sort.kind} that could fail: {_LACKS[sort.kind]}")
        found += sorted(of_sort, key=lambda failure: natural_key(failure.name))
    return tuple(found)


_LACKS = {
    FailureKind.NIC: "no links between nodes that share a port; leave it out",
    FailureKind.GPU_LINK: "its ranks are joined over ports that links share (a switch, PCIe); use gpu-port",
    FailureKind.GPU_PORT: "no links inside a node share a port of one rank; use gpu-link",
}


def _links_fail(topology: Topology, sort: FailureSort) -> list[Failure]:
    pairs: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    for index, link in enumerate(topology.links):
        if topology.is_inside(link):
            pairs[min(link.src, link.dst), max(link.src, link.dst)].add(index)
    found = []
    for (low, high), links in pairs.items():
        if not any(topology.links[index].ports for index in links):
            choice = LinkChoice(low, high)
            fault = Degradation(slow=(SlowLink(choice, sort.share),)) if sort.share else Degradation((choice,))
            found.append(Failure(f"link {choice}", sort, fault, links=frozenset(links)))
    return found


def _ports_fail(topology: Topology, sort: FailureSort) -> list[Failure]:
    ports = _nic_ports(topology) if sort.kind is FailureKind.NIC else _gpu_ports(topology)
    things: defaultdict[str, set[int]] = defaultdict(set)
    for port in ports:
        name = topology.ports[port].name
        things[next((name.removesuffix(side) for side in _SIDES if name.endswith(side)), name)].add(port)
    found = []
    for name, members in things.items():
        patterns = _patterns(topology, name, members)
        slow = tuple(SlowPort(pattern, sort.share) for pattern in patterns) if sort.share else ()
        fault = Degradation(missing_ports=() if slow else patterns, slow_ports=slow)
        found.append(Failure(name, sort, fault, ports=frozenset(members)))
    return found


def _patterns(topology: Topology, name: str, members: set[int]) -> tuple[str, ...]:
    """Patterns that the names of these ports fit and no others: one with a star where that is so."""
    short = f"{escape(name)} *"
    fitting = {index for index, port in enumerate(topology.ports) if fnmatchcase(port.name, short)}
    return (short,) if fitting == members else tuple(escape(topology.ports[port].name) for port in sorted(members))


def _nic_ports(topology: Topology) -> set[int]:
    """The last port of the sender's node, and the first one of the receiver's, on every link between nodes; none that links inside share."""
    owner = _nodes_of_ports(topology)
    found: set[int] = set()
    inside: set[int] = set()
    for link in topology.links:
        source, target = topology.node_of[link.src], topology.node_of[link.dst]
        if source == target:
            inside.update(link.ports)
            continue
        found.update([port for port in link.ports if owner[port] == source][-1:])
        found.update([port for port in link.ports if owner[port] == target][:1])
    return found - inside


def _nodes_of_ports(topology: Topology) -> list[int | None]:
    """Node of every port: by its name, else the one node that all its links leave, or reach; of two that of its side of the links."""
    ends: list[tuple[set[int], set[int]]] = [(set(), set()) for _ in topology.ports]
    is_behind = [False] * len(topology.ports)
    for link in topology.links:
        for place, port in enumerate(link.ports):
            ends[port][0].add(topology.node_of[link.src])
            ends[port][1].add(topology.node_of[link.dst])
            is_behind[port] = 2 * place >= len(link.ports)
    found: list[int | None] = []
    for port, (one, sides) in enumerate(zip(topology.ports, ends, strict=True)):
        named = _OF_NODE.match(one.name)
        if named and int(named.group(1)) in sides[0] | sides[1]:
            found.append(int(named.group(1)))
            continue
        of_one = [min(nodes) for nodes in sides if len(nodes) == 1]
        found.append(of_one[-1 if is_behind[port] else 0] if of_one else None)
    return found


def _gpu_ports(topology: Topology) -> set[int]:
    """Ports of links inside a node all of which leave, or reach, one rank."""
    ends: defaultdict[int, tuple[set[int], set[int]]] = defaultdict(lambda: (set(), set()))
    inside: set[int] = set()
    for link in topology.links:
        for port in link.ports:
            ends[port][0].add(link.src)
            ends[port][1].add(link.dst)
        if topology.is_inside(link):
            inside.update(link.ports)
    return {port for port in inside if min(map(len, ends[port])) == 1}


def failure_classes(topology: Topology, failures: Sequence[Failure], root: int | None) -> tuple[FailureClass, ...]:
    """Failures by class, in the order of the first of each.

    Parameters
    ----------
    topology
        The whole machine.
    failures
        What may fail.
    root
        Root of the collective, which symmetries leave in place; None if it has none.
    """
    generators = list(_generators(topology))
    number = {(one.sort, one.ports, one.links): index for index, one in enumerate(failures)}
    moves = [
        [
            number.get(
                (one.sort, frozenset(ports[list(one.ports)].tolist()), frozenset(links[list(one.links)].tolist()))
            )
            for one in failures
        ]
        for _, links, ports in generators
    ]
    renamings = [image for image, _, _ in generators]
    classes: list[FailureClass] = []
    known: set[int] = set()
    for first in range(len(failures)):
        if first in known:
            continue
        images = _reached(first, root, renamings, moves)
        known |= images.keys()
        everyone = range(topology.num_ranks)
        classes.append(
            FailureClass(
                tuple(
                    FailureImage(failures[each], _composed(images[each], renamings, everyone))
                    for each in sorted(images)
                )
            )
        )
    return tuple(classes)


def _reached(
    first: int, root: int | None, renamings: Sequence[tuple[int, ...]], moves: Sequence[Sequence[int | None]]
) -> dict[int, tuple[int, ...]]:
    """Failures that symmetries with the root in place take the first one to, and the generators that do so, in their order."""
    place = -1 if root is None else root
    start = (place, first)
    came: dict[tuple[int, int], tuple[tuple[int, int], int]] = {}
    waiting, seen = deque([start]), {start}
    while waiting:
        state = waiting.popleft()
        for which, (renaming, move) in enumerate(zip(renamings, moves, strict=True)):
            then = move[state[1]]
            if then is None:
                continue
            after = (state[0] if root is None else renaming[state[0]], then)
            if after not in seen:
                seen.add(after)
                came[after] = (state, which)
                waiting.append(after)
    found: dict[int, tuple[int, ...]] = {}
    for state in seen:
        if state[0] == place:
            steps: list[int] = []
            at = state
            while at != start:
                at, which = came[at]
                steps.append(which)
            found[state[1]] = tuple(reversed(steps))
    return found


def _composed(steps: Iterable[int], renamings: Sequence[tuple[int, ...]], everyone: Iterable[int]) -> tuple[int, ...]:
    image = tuple(everyone)
    for step in steps:
        image = tuple(renamings[step][rank] for rank in image)
    return image


def _generators(topology: Topology) -> Iterator[tuple[tuple[int, ...], IntArray, IntArray]]:
    """Renamings of the ranks that leave the machine as it is, each with the images of links and ports."""
    from taccl_py.topology.automorphism import LinkImages  # loads numpy, which --help does without

    images = LinkImages(topology)
    for renaming in dict.fromkeys([*topology.symmetry, *_candidates(topology)]):
        mapped = images.of(renaming)
        if not isinstance(mapped, str):
            yield renaming, *mapped


def _candidates(topology: Topology) -> Iterator[tuple[int, ...]]:
    """Regular renamings of the nodes, and of the ranks of all nodes at once, and an exchange of the first two of either."""
    from taccl_py.topology.automorphism import regular_renamings

    nodes = topology.node_ranks
    if not topology.has_even_nodes:
        return
    places = tuple(range(len(nodes[0])))
    same = tuple(range(len(nodes)))
    moves = [
        (same, local) for local in (*regular_renamings(len(places)), (1, 0, *places[2:])) if len(local) == len(places)
    ]
    moves += [
        (order, places) for order in (*regular_renamings(len(nodes)), (1, 0, *same[2:])) if len(order) == len(same)
    ]
    for order, local in moves:
        renaming = [0] * topology.num_ranks
        for node, ranks in enumerate(nodes):
            for place, rank in enumerate(ranks):
                renaming[rank] = nodes[order[node]][local[place]]
        yield tuple(renaming)

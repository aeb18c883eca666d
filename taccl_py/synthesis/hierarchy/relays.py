"""Small messages between sparse nodes: every port sends once, and who relays what to whom serves all pairs of ranks in time.

What ranks near a sender have is gathered before it sends, and the receiver hands out what comes to those near it. Which ranks send to
which, and after how much gathering, is chosen for one node; all others do the same with the nodes that follow them.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.bounds.passage import LatencyMachine
from taccl_py.synthesis.hierarchy.params import PARAMS
from taccl_py.synthesis.models.relay_cover import Relay, choose_relays
from taccl_py.synthesis.templates.messages import SharedMessage, TemplateMessages, with_chunks
from taccl_py.tolerances import ABSOLUTE_US, FINE_DIGITS
from taccl_py.topology.model import Topology


@dataclass(frozen=True, slots=True)
class Visit:
    """Arrival of data at a rank of a node: its sender (None if it comes from another node), start and end."""

    before: int | None
    start_us: float
    end_us: float


@dataclass(frozen=True)
class Relays:
    """Messages out of the first node that serve all pairs of ranks, and what they take.

    Attributes
    ----------
    passage
        The machine.
    chosen
        The messages; other nodes send the same ones on.
    end_us
        When everyone has been told.
    """

    passage: LatencyMachine
    chosen: tuple[Relay, ...]
    end_us: float

    @staticmethod
    def of(topology: Topology, limits: Limits) -> Relays | None:
        """Find the soonest; None where nodes are not alike, or none are found in time or before something could cross twice."""
        if topology.num_nodes < 2 or topology.num_ranks > PARAMS.most_relay_ranks:
            return None
        passage = LatencyMachine.of(topology)
        alike = alike_links(passage)
        if not alike:
            return None
        links = tuple(alike)
        deadline = limits.deadline()
        for time_us in passage.times_us(links):
            if deadline.over():
                return None
            cover = passage.cover(links, time_us, until_us=0.0, alike=alike)
            if len(cover.relays) > PARAMS.most_relays or time_us > passage.twice_us:
                return None
            chosen = choose_relays(cover, limits.within(min(PARAMS.relay_seconds, deadline.left)))
            if chosen is not None:
                return Relays(passage, chosen, time_us)
        return None

    def allgather(self) -> TemplateMessages:
        """AllGather of one chunk of each rank."""
        writer = _RelayWriter(self.passage.net.topology, lambda piece, _: piece.src)
        for src in self._nodes[0]:
            own = self._visits({src: 0.0})
            for rank, visit in own.items():
                writer.hand(rank, visit, RelayPiece(src, src))
            for node in range(1, len(self._nodes)):
                self._gather(writer, src, node)
        return writer.messages()

    def alltoall(self, message_chunks: int) -> TemplateMessages | None:
        """AllToAll of one chunk for each pair of ranks; None if a message would carry more chunks than it can."""
        writer = _RelayWriter(self.passage.net.topology, lambda piece, ranks: piece.src * ranks + piece.dst)
        behind = {relay: self._visits({self._end(relay): self._arrival_us(relay)}) for relay in self.chosen}
        carried: Counter[Relay] = Counter()
        for src in self._nodes[0]:
            own = self._visits({src: 0.0})
            for dst in range(self.passage.net.num_ranks):
                piece = RelayPiece(src, dst)
                if dst in own:
                    writer.follow(own, dst, piece)
                    continue
                serving = [relay for relay in self.chosen if src in relay.told and dst in relay.reached]
                relay = min(serving, key=lambda each: (carried[each], each.link))
                carried[relay] += 1
                writer.follow(own, self._begin(relay), piece)
                writer.hand(self._end(relay), self._crossing(relay), piece)
                writer.follow(behind[relay], dst, piece)
        return writer.messages() if max(carried.values()) <= message_chunks else None

    @cached_property
    def _nodes(self) -> tuple[tuple[int, ...], ...]:
        return self.passage.net.topology.node_ranks

    @cached_property
    def _first_us(self) -> float:
        """Time when the first of the messages arrives."""
        return min(self._arrival_us(relay) for relay in self.chosen)

    @cached_property
    def _inside(self) -> tuple[tuple[_RelayStep, ...], ...]:
        """Links from every rank to its neighbours in its node."""
        net = self.passage.net
        found: list[list[_RelayStep]] = [[] for _ in range(net.num_ranks)]
        crossing = set(self.passage.crossing)
        for link in range(net.num_links):
            if link not in crossing:
                found[net.src[link]].append(_RelayStep(int(net.dst[link]), float(net.least_message_us[link])))
        return tuple(tuple(steps) for steps in found)

    def _begin(self, relay: Relay) -> int:
        return int(self.passage.net.src[relay.link])

    def _end(self, relay: Relay) -> int:
        return int(self.passage.net.dst[relay.link])

    def _arrival_us(self, relay: Relay) -> float:
        return relay.start_us + float(self.passage.net.least_message_us[relay.link])

    def _crossing(self, relay: Relay) -> Visit:
        return Visit(self._begin(relay), relay.start_us, self._arrival_us(relay))

    def _gather(self, writer: _RelayWriter, src: int, node: int) -> None:
        """A rank's chunk into another node, over the messages by which it comes soonest."""
        ends = self._nodes[node]
        coming = {self._end(relay): relay for relay in self.chosen if src in relay.told and self._end(relay) in ends}
        for rank, visit in self._visits({rank: self._arrival_us(relay) for rank, relay in coming.items()}).items():
            writer.hand(rank, self._crossing(coming[rank]) if visit.before is None else visit, RelayPiece(src, src))

    def _visits(self, roots_us: Mapping[int, float]) -> dict[int, Visit]:
        """Quickest paths inside a node from ranks that have something from given times on.

        Nothing is under way when the first message from another node arrives, so that links are free for what it brings.
        """
        found: dict[int, Visit] = {}
        queue = [(time_us, -1, rank, time_us) for rank, time_us in sorted(roots_us.items())]
        heapq.heapify(queue)
        while queue:
            end_us, before, rank, start_us = heapq.heappop(queue)
            if rank not in found:
                found[rank] = Visit(None if before < 0 else before, start_us, end_us)
                for step in self._inside[rank]:
                    waits = (
                        end_us < self._first_us - ABSOLUTE_US and end_us + step.least_us > self._first_us + ABSOLUTE_US
                    )
                    begin_us = self._first_us if waits else end_us
                    heapq.heappush(queue, (begin_us + step.least_us, rank, step.dst, begin_us))
        return found


@dataclass(frozen=True, slots=True)
class _RelayStep:
    """A link inside a node."""

    dst: int
    least_us: float


@dataclass(frozen=True, slots=True)
class RelayPiece:
    """Data of a rank of the first node for another; both the same where it is for all."""

    src: int
    dst: int


class _RelayWriter:
    """Messages of all nodes, written for the first one."""

    def __init__(self, topology: Topology, number: Callable[[RelayPiece, int], int]) -> None:
        self._topology, self._number = topology, number
        self._carried: dict[SharedMessage, dict[RelayPiece, None]] = {}

    def hand(self, rank: int, visit: Visit, piece: RelayPiece) -> None:
        """A piece to a rank."""
        if visit.before is not None:
            message = SharedMessage(
                round(visit.start_us, FINE_DIGITS), round(visit.end_us, FINE_DIGITS), visit.before, rank
            )
            self._carried.setdefault(message, {})[piece] = None

    def follow(self, visits: Mapping[int, Visit], rank: int, piece: RelayPiece) -> None:
        """A piece to a rank over all ranks before it."""
        visit = visits[rank]
        while visit.before is not None:
            self.hand(rank, visit, piece)
            rank, visit = visit.before, visits[visit.before]

    def messages(self) -> TemplateMessages:
        """Everything that has been written, for all nodes."""
        sent: dict[SharedMessage, list[int]] = {}
        for image in node_turns(self._topology):
            for message, pieces in self._carried.items():
                same = replace(message, src=image[message.src], dst=image[message.dst])
                chunks = (self._number(RelayPiece(image[piece.src], image[piece.dst]), len(image)) for piece in pieces)
                sent.setdefault(same, []).extend(chunks)
        return with_chunks(sent)


def node_turns(topology: Topology) -> list[tuple[int, ...]]:
    """Every node in the place of the first one, and the others in the places of those that follow it."""
    nodes, local = topology.node_ranks, topology.local_rank
    return [
        tuple(nodes[(node + by) % len(nodes)][local[rank]] for rank, node in enumerate(topology.node_of))
        for by in range(len(nodes))
    ]


def alike_links(passage: LatencyMachine) -> dict[int, tuple[int, ...]]:
    """For every link out of the first node those by which other nodes do the same; empty where nodes are not alike."""
    net, topology = passage.net, passage.net.topology
    if not topology.has_even_nodes:
        return {}
    images = node_turns(topology)
    if any(not np.allclose(passage.inside_us[np.ix_(image, image)], passage.inside_us) for image in images):
        return {}
    found = {}
    for link in passage.out_of(0):
        ends = topology.links[link]
        same = [topology.links_between.get((image[ends.src], image[ends.dst]), ()) for image in images]
        lane = topology.lane[link]
        if all(lane < len(links) for links in same):
            costs = {round(float(net.least_message_us[links[lane]]), FINE_DIGITS) for links in same}
            if len(costs) == 1:
                found[link] = tuple(links[lane] for links in same)
    return found

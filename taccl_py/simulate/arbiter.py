"""Arbiter of links and ports: requests that want several resources at once, served in their order.

A request starts when all its resources are free. Among those that could start, one whose receiver already waits for the
data goes before one whose receiver is not there yet (its message would fill the connection's buffer and stall), then the
earliest goes first. A request that still waits for one resource does not keep others from the rest: nothing stands idle that
somebody could use.

Every waiting request is filed under one of the resources that it finds busy. When that resource becomes free the
requests filed there are tried in order until it is taken again, so a request is looked at only when its case may have
changed.

What a switch does for several ranks (`SwitchPath`) is many small packets that ports pass on among others. It does not wait until all its
ports are free: each takes its share of it after what was asked of it before, and it is over when all have. Under a runtime
profile all requests are served so (`ResourceQueues`).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from taccl_py.tolerances import LAST_DIGITS
from taccl_py.topology.model import Topology
from taccl_py.units import BYTES_PER_MB


class TransferRequest(NamedTuple):
    """A message that wants to start; a tuple, as large replays compare requests millions of times.

    Attributes
    ----------
    early
        Whether its receiver is not waiting for it yet.
    time_us
        When it was made.
    rank, threadblock
        Who made it; decides between requests of one moment.
    link
        Link to use; a number after the last link is a path over a switch (`SwitchPath`).
    size_bytes
        Size of the message.
    owner
        Index by which the caller knows who asked.
    """

    early: bool
    time_us: float
    rank: int
    threadblock: int
    link: int
    size_bytes: float
    owner: int


@dataclass(frozen=True, slots=True)
class ResourceLoad:
    """Times that all bytes of a request go through a resource."""

    resource: int
    share: float


@dataclass(frozen=True, slots=True)
class SwitchPath:
    """Loads of what a switch does for several ranks, and the latency after that."""

    loads: tuple[ResourceLoad, ...]
    latency_us: float


@dataclass(frozen=True, slots=True)
class SwitchUse:
    """A resource that is busy with a part of what a switch does."""

    resource: int
    start_us: float
    end_us: float
    size_bytes: float


@dataclass(frozen=True, slots=True)
class Grant:
    """A request that has started.

    Attributes
    ----------
    request
        The request.
    start_us
        When.
    link_free_us
        When it leaves its link.
    arrival_us
        When its data have arrived.
    uses
        Of a path over a switch, when each of its resources is busy with it.
    """

    request: TransferRequest
    start_us: float
    link_free_us: float
    arrival_us: float
    uses: tuple[SwitchUse, ...] = ()


@dataclass(frozen=True, slots=True)
class Alarm:
    """A moment in which a resource that somebody waits for becomes free."""

    time_us: float
    resource: int


@dataclass(frozen=True, slots=True)
class Settlement:
    """Decisions of one moment: the requests that start, and when to ask again."""

    grants: tuple[Grant, ...]
    alarms: tuple[Alarm, ...]


class Server(Protocol):
    """Server of requests for links and ports."""

    def settle(self, now_us: float, fresh: Sequence[TransferRequest], freed: Sequence[int]) -> Settlement:
        """Start every request that can start now; see `Arbiter.settle`."""
        ...


class Arbiter:
    """State of all links and ports of a topology, and paths over its ports, which are numbered after the links."""

    def __init__(self, topology: Topology, paths: Sequence[SwitchPath] = ()) -> None:
        self._topology = topology
        self._resources = [tuple(dict.fromkeys(resources)) for resources in topology.resources_of]
        self._latency_us = [link.latency_us for link in topology.links]
        self._paths = tuple(paths)
        self._busy_until_us = [0.0] * topology.num_resources
        # A resource has requests filed under it only while it is busy, and then an alarm is set for its end.
        self._filed: list[list[TransferRequest]] = [[] for _ in range(topology.num_resources)]
        # The valid entry of every owner whose request is filed, and where; promoting leaves an outdated entry behind.
        self._waiting: dict[int, tuple[TransferRequest, int]] = {}
        self._grants: list[Grant] = []
        self._alarms: list[Alarm] = []

    def settle(self, now_us: float, fresh: Sequence[TransferRequest], freed: Sequence[int]) -> Settlement:
        """Start every request that can start now.

        Parameters
        ----------
        now_us
            The present moment, in microseconds; it never goes back.
        fresh
            Requests made in this moment.
        freed
            Resources whose alarms have gone off, each once.
        """
        limit_us = now_us + LAST_DIGITS * now_us
        # Each candidate is the first of its queue: a fresh request, or the first one filed under a free resource.
        candidates = [(request, -1) for request in fresh]
        candidates += [(self._filed[resource][0], resource) for resource in freed if self._has_filed(resource)]
        heapq.heapify(candidates)
        while candidates:
            request, place = heapq.heappop(candidates)
            if place >= 0:
                if self._busy_until_us[place] > limit_us:
                    continue
                heapq.heappop(self._filed[place])
                del self._waiting[request.owner]
            if request.link >= len(self._resources):
                self._share_out(request, now_us)
                continue
            last_free = max(self._resources[request.link], key=self._busy_until_us.__getitem__)
            if self._busy_until_us[last_free] > limit_us:
                self._file(request, last_free)
            else:
                self._start(request, max(now_us, self._busy_until_us[last_free]))
            if place >= 0 and self._busy_until_us[place] <= limit_us and self._has_filed(place):
                heapq.heappush(candidates, (self._filed[place][0], place))
        settlement = Settlement(tuple(self._grants), tuple(self._alarms))
        self._grants.clear()
        self._alarms.clear()
        return settlement

    def promote(self, owner: int) -> None:
        """Take note that a receiver has begun to wait for the message of an owner, whose request may be waiting."""
        if owner not in self._waiting:
            return
        request, resource = self._waiting[owner]
        if request.early:
            promoted = request._replace(early=False)
            self._waiting[owner] = (promoted, resource)
            heapq.heappush(self._filed[resource], promoted)

    def _has_filed(self, resource: int) -> bool:
        """True if a request waits for a resource; drops outdated entries from the front of its queue."""
        queue = self._filed[resource]
        while queue and self._waiting.get(queue[0].owner, (None, -1)) != (queue[0], resource):
            heapq.heappop(queue)
        return bool(queue)

    def _file(self, request: TransferRequest, resource: int) -> None:
        if not self._has_filed(resource):
            self._alarms.append(Alarm(self._busy_until_us[resource], resource))
        heapq.heappush(self._filed[resource], request)
        self._waiting[request.owner] = (request, resource)

    def _share_out(self, request: TransferRequest, now_us: float) -> None:
        """Let each port of a path over a switch take its load after what it has to do already."""
        path = self._paths[request.link - len(self._resources)]
        uses = []
        for load in path.loads:
            size_bytes = request.size_bytes * load.share
            start_us = max(now_us, self._busy_until_us[load.resource])
            free_us = start_us + self._topology.occupancy_us(load.resource, size_bytes)
            self._busy_until_us[load.resource] = free_us
            uses.append(SwitchUse(load.resource, start_us, free_us, size_bytes))
            if self._has_filed(load.resource):
                self._alarms.append(Alarm(free_us, load.resource))
        end_us = max((use.end_us for use in uses), default=now_us)
        self._grants.append(Grant(request, now_us, end_us, end_us + path.latency_us, tuple(uses)))

    def _start(self, request: TransferRequest, start_us: float) -> None:
        longest_us = 0.0
        for resource in self._resources[request.link]:
            occupancy_us = self._topology.occupancy_us(resource, request.size_bytes)
            longest_us = max(longest_us, occupancy_us)
            self._busy_until_us[resource] = start_us + occupancy_us
            if self._has_filed(resource):
                self._alarms.append(Alarm(start_us + occupancy_us, resource))
        latency_us = self._latency_us[request.link]
        self._grants.append(
            Grant(
                request=request,
                start_us=start_us,
                link_free_us=self._busy_until_us[self._resources[request.link][0]],
                arrival_us=start_us + longest_us + latency_us,
            )
        )


@dataclass(frozen=True, slots=True)
class RequestCost:
    """Cost of a request on a resource.

    Attributes
    ----------
    resource
        Link or port.
    alpha_us, beta_us_per_mb
        Fixed time and time for the bytes of a request that is alone.
    busy_us
        Fixed time that also keeps others waiting.
    after_us
        Fixed time after the resource has served it, while it serves others.
    """

    resource: int
    alpha_us: float
    beta_us_per_mb: float
    busy_us: float
    after_us: float


class ResourceQueues:
    """Resources that serve requests one after the other, each resource for itself.

    A request starts when it is made, takes its time of each resource after what was asked of it before, and is over when all
    have served it, and never sooner than one alone. Nobody is kept from a resource by the wait for another one.

    Parameters
    ----------
    costs
        For every link, and after them for every path over a switch, the resources and what a request takes of them.
    latencies_us
        Time from there until the data have arrived.
    """

    def __init__(self, costs: Sequence[Sequence[RequestCost]], latencies_us: Sequence[float]) -> None:
        self._costs, self._latencies_us = costs, latencies_us
        self._free_us: dict[int, float] = {}

    def settle(self, now_us: float, fresh: Sequence[TransferRequest], freed: Sequence[int]) -> Settlement:  # noqa: ARG002
        """Serve all requests of this moment, in their order; nobody has to be asked again."""
        return Settlement(tuple(self._serve(request, now_us) for request in sorted(fresh)), ())

    def _serve(self, request: TransferRequest, now_us: float) -> Grant:
        uses = []
        end_us = now_us
        for cost in self._costs[request.link]:
            start_us = max(now_us, self._free_us.get(cost.resource, 0.0))
            bytes_us = cost.beta_us_per_mb * request.size_bytes / BYTES_PER_MB
            free_us = start_us + cost.busy_us + bytes_us
            self._free_us[cost.resource] = free_us
            uses.append(SwitchUse(cost.resource, start_us, free_us, request.size_bytes))
            end_us = max(end_us, free_us + cost.after_us, now_us + cost.alpha_us + bytes_us)
        return Grant(request, now_us, end_us, end_us + self._latencies_us[request.link], tuple(uses))

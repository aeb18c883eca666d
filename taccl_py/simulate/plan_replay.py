"""Replay of an MSCCL++ plan: how long its threadblocks take on a topology, event by event.

* A threadblock does its operations in order. A put through a memory channel asks for the link to its peer and the link's
  ports, and holds the threadblock until it has left the link. A put through a port channel is a request to that channel's
  proxy, which carries out one after the other; the threadblock goes on, and at a ``flush`` (part of ``pwsf``) waits until all that it
  has put through those channels has arrived.
* A signal is there when all that its threadblock has put to that peer before has arrived; that of ``pws`` and ``pwsf`` when
  their data have. The n-th wait on a channel is for the n-th signal. Semaphores count.
* Of several links between two ranks the n-th threadblock that puts to that peer uses the n-th, and around again.
* A multicast by a switch (``gstore``) occupies its sender's port out once and each receiver's port in once. A sum (``glres``)
  occupies the ports out of all ranks that it adds up and the port in of the rank that asked for it, and is then multicast; it
  arrives an alpha later, for it is loaded first.
* Packets are there when the put that brings them has arrived; an operation that reads them waits for that.
* Threadblocks of a group each move their part of an operation's bytes, and loops go through the pieces of their operations.
* Signals themselves, the handshake at the start, local copies and sums take no time.

Requests for links and ports are served as in `taccl_py.simulate.program_replay`.

Under a runtime profile (`RuntimePlanReplay`) what takes no time above has its cost:

* A put by a threadblock holds it for ``op + bytes / rate of a threadblock`` or until link and ports have carried what was asked of
  them, whichever is longer. Each of these takes ``alpha + wire * bytes * beta / usable share`` after what came before it
  (`taccl_py.simulate.arbiter.Queues`). NVLink's alpha keeps nobody waiting (`taccl_py.profiles.view.serial_alphas`); elsewhere
  threadblocks of a rank that put to the same peer share one. What a switch does is served likewise, at the share of NVLink that
  it reaches.
* A put through a port channel holds its threadblock for the ``op`` of the request. A message occupies a NIC for a time of its
  own beside its bytes.
* A signal is seen a hop after all that it stands for has arrived: the far hop on port channels and between nodes, else the near
  one; a flush ends a far hop after what it waits for. A relaxed signal stands for nothing, waits for no memory fence, and is
  seen after the shortest hop of the profile.
* A copy takes ``op + bytes / copy rate``, a sum ``reduce + bytes of all that it reads / reduce rate``.
* A call begins and ends with its launch. Waits, semaphores and meetings of the threads of a block cost nothing of their own.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from dataclasses import dataclass, field

from taccl_py.collective import Buffer, Collective, Kind
from taccl_py.errors import InputError, InvalidArtifact, Violation
from taccl_py.lowering.cells import CellRange
from taccl_py.lowering.plan import PORT, Operation, Plan, PlanBlock
from taccl_py.profiles.model import ProtocolCosts, RuntimeProfile
from taccl_py.profiles.view import (
    far_resources,
    is_far,
    serial_alphas,
    switch_share,
    usable_shares,
)
from taccl_py.simulate.arbiter import (
    Arbiter,
    Grant,
    RequestCost,
    ResourceQueues,
    Server,
    SwitchPath,
    TransferRequest,
)
from taccl_py.simulate.in_network import BY_SWITCH, Errand, errand_of, find_switch_paths
from taccl_py.simulate.plan_lanes import (
    ChannelLane,
    GpuSemaphore,
    PacketCell,
    PlanAction,
    lanes_of,
    packet_cells,
    packet_parts,
    put_peer,
    turned,
    unrolled,
)
from taccl_py.simulate.plan_pace import FREE, PUTS, READS_PACKETS, PlanPace
from taccl_py.simulate.timeline import SwitchWork, Timeline, Transfer, sort_transfers
from taccl_py.tolerances import LAST_DIGITS
from taccl_py.topology.model import Topology


def replay_plan(plan: Plan, kind: Kind | None, topology: Topology, chunk_bytes: float) -> Timeline:
    """Replay a plan with chunks of one size.

    Parameters
    ----------
    plan, kind
        A plan that the verifier accepts, and its collective; None for a demand.
    topology
        Machine with the plan's ranks.
    chunk_bytes
        Size of one chunk, whole or not.

    Raises
    ------
    InputError
        If the size is not positive, or the topology has other ranks or lacks a link or a switch that the plan uses.
    InvalidArtifact
        If the plan names what it does not have, or comes to a stop before its end.
    """
    if not (math.isfinite(chunk_bytes) and chunk_bytes > 0):
        raise InputError(f"a chunk of {chunk_bytes} bytes cannot be replayed; the size must be finite and above 0")
    _require_fit(plan, topology)
    paths = find_switch_paths(plan, topology)
    replay = _PlanRun(plan, topology, paths, chunk_bytes, Arbiter(topology, tuple(paths.values())), FREE)
    replay.run()
    return Timeline(
        makespan_us=replay.end_us,
        transfers=sort_transfers(replay.transfers),
        size_bytes=chunk_bytes * plan.chunks_per_size,
        busbw_factor=1.0 if kind is None else Collective(kind, topology.num_ranks).busbw_factor,
        switched=tuple(sorted(replay.switched, key=lambda work: (work.start_us, work.rank, work.threadblock))),
    )


class RuntimePlanReplay:
    """Replays of one plan on one machine under one runtime profile, at any size.

    Under the neutral profile times are those of `replay_plan`.

    Parameters
    ----------
    plan, kind
        A plan to which the verifier does not object, and its collective; None for a demand.
    topology
        Machine with the plan's ranks.
    profile
        The runtime profile.

    Raises
    ------
    InputError
        If the machine has other ranks, or lacks a link or a switch that the plan uses.
    """

    def __init__(self, plan: Plan, kind: Kind | None, topology: Topology, profile: RuntimeProfile) -> None:
        _require_fit(plan, topology)
        self._plan, self._kind, self._topology, self._profile = plan, kind, topology, profile
        self._paths = find_switch_paths(plan, topology)
        self._links = _choose_links(plan, topology)

    def time_us(self, size_bytes: float, *, protocol: str | None = None) -> float:
        """Time of a call.

        Parameters
        ----------
        size_bytes
            Size as nccl-tests counts it.
        protocol
            Protocol whose costs the operations have; None is the plan's. LL for a plan of puts and signals is as if they were packets.

        Raises
        ------
        InputError
            If the size is not positive or the profile lacks the protocol.
        InvalidArtifact
            If the plan names what it does not have, or comes to a stop before its end.
        """
        if not (math.isfinite(size_bytes) and size_bytes > 0):
            raise InputError(f"a size of {size_bytes} bytes cannot be replayed; it must be finite and above 0")
        costs = self._profile.costs_of(protocol or self._plan.protocol)
        chunk_bytes = size_bytes / self._plan.chunks_per_size
        if self._profile.is_neutral:
            return replay_plan(self._plan, self._kind, self._topology, chunk_bytes).makespan_us
        relaxed_us = min(each.hop_near_us for each in (costs, *self._profile.protocols.values()))
        replay = _PlanRun(
            self._plan, self._topology, self._paths, chunk_bytes, self._queues(costs), PlanPace(costs, relaxed_us)
        )
        replay.run()
        return costs.launch_us + replay.end_us

    def _queues(self, costs: ProtocolCosts) -> ResourceQueues:
        """Links, ports and switches as the profile sees them."""
        topology, profile = self._topology, self._profile
        far, usable, switch = far_resources(topology), usable_shares(topology, profile), switch_share(topology, profile)
        serial = serial_alphas(topology)
        sharing = Counter((rank, peer) for rank, _, peer in self._links)

        def cost(resource: int, share: float, parallel: int, part: float) -> RequestCost:
            alpha_us, beta = topology.resource_cost[resource]
            beta *= costs.wire * part / share
            if not serial[resource]:
                return RequestCost(resource, alpha_us, beta, 0.0, alpha_us)
            nic_us = profile.nic_message_us if far[resource] else 0.0
            return RequestCost(resource, alpha_us + nic_us, beta, alpha_us / parallel + nic_us, 0.0)

        of_links = [
            [
                cost(each, usable.far if far[each] else usable.near, sharing[link.src, link.dst] or 1, 1.0)
                for each in dict.fromkeys(resources)
            ]
            for link, resources in zip(topology.links, topology.resources_of, strict=True)
        ]
        asking = _askers(self._plan)
        of_paths = [
            [cost(load.resource, switch, asking[errand], load.share) for load in path.loads]
            for errand, path in self._paths.items()
        ]
        latencies_us = [
            *(link.latency_us for link in topology.links),
            *(path.latency_us for path in self._paths.values()),
        ]
        return ResourceQueues([*of_links, *of_paths], latencies_us)


def _require_fit(plan: Plan, topology: Topology) -> None:
    if len(plan.gpus) != topology.num_ranks:
        raise InputError(
            f"plan {plan.name} is for {len(plan.gpus)} ranks, topology {topology.name} has {topology.num_ranks}; replay it on "
            "the machine that it was made for"
        )


@dataclass(slots=True, eq=False)
class _PlanBlockState:
    """State of a threadblock; `landed_us` is when its last put to each peer arrives, `taken` what it has waited for.

    `worked` is whether it has spent the time of an operation itself, `latest` its last put through each proxy.
    """

    index: int
    rank: int
    number: int
    record: PlanBlock
    actions: tuple[PlanAction, ...]
    position: int = 0
    taken: int = 0
    asked: bool = False
    worked: bool = False
    unsent: Counter[ChannelLane] = field(default_factory=Counter)
    latest: dict[ChannelLane, int] = field(default_factory=dict)
    flushed: tuple[ChannelLane, ...] = ()
    landed_us: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Flow:
    """One put: the threadblock that asked, its link and size, and the lane of the proxy that carries it out (None: the threadblock itself).

    `signals` are told when it has arrived, and `packets` are there.

    An operation of a switch has a path over it instead of a link, lands at `ranks`, and may be a sum.
    """

    block: _PlanBlockState
    position: int
    link: int
    size_bytes: float
    lane: ChannelLane | None
    signals: int = 0
    ranks: tuple[int, ...] = ()
    adds_up: bool = False
    packets: tuple[PacketCell, ...] = ()


class _PlanRun:
    def __init__(
        self, plan: Plan, topology: Topology, paths: dict[Errand, SwitchPath], chunk_bytes: float, server: Server, pace: PlanPace
    ) -> None:  # fmt: skip
        self._plan = plan
        self._topology = topology
        self._chunk_bytes = chunk_bytes
        self._parts = packet_parts(plan)
        blocks = [(gpu.rank, number, one) for gpu in plan.gpus for number, one in enumerate(gpu.blocks)]
        self._blocks = [
            _PlanBlockState(index, *each, unrolled(each[2], chunk_bytes)) for index, each in enumerate(blocks)
        ]
        self._lanes = [lanes_of(gpu) for gpu in plan.gpus]
        self._links = _choose_links(plan, topology)
        self._path_of = {errand: len(topology.links) + number for number, errand in enumerate(paths)}
        self._server, self._pace = server, pace
        self._flows: list[_Flow] = []
        self._fresh: list[int] = []
        self._freed: list[int] = []
        self._proxies: dict[ChannelLane, deque[int]] = {}
        self._tokens: Counter[ChannelLane | GpuSemaphore] = Counter()
        self._waiting: dict[ChannelLane | GpuSemaphore, deque[_PlanBlockState]] = {}
        self._there: set[PacketCell] = set()
        self._readers: dict[PacketCell, list[_PlanBlockState]] = {}
        self._ready = deque(self._blocks)
        self._events: list[tuple[float, int, str, int]] = []
        self._tick = 0
        self._signals: list[ChannelLane] = []
        self._now_us = 0.0
        self.end_us = 0.0
        self.transfers: list[Transfer] = []
        self.switched: list[SwitchWork] = []

    def run(self) -> None:
        """Let everything happen."""
        self._go_on()
        while self._events:
            limit_us = self._events[0][0] * (1 + LAST_DIGITS)
            while self._events and self._events[0][0] <= limit_us:
                time_us, _, happening, index = heapq.heappop(self._events)
                self._now_us = max(self._now_us, time_us)
                self._happen(happening, index)
            self._go_on()
        stuck = [block for block in self._blocks if block.position < len(block.actions)]
        if stuck:
            raise InvalidArtifact(self._plan.name, [self._explain(block) for block in stuck])

    def _at(self, time_us: float, happening: str, index: int) -> None:
        self._tick += 1
        heapq.heappush(self._events, (time_us, self._tick, happening, index))

    def _happen(self, happening: str, index: int) -> None:
        if happening == "free":
            self._freed.append(index)
        elif happening == "signal":
            self._give(self._signals[index])
        elif happening == "worked":
            self._ready.append(self._blocks[index])
        elif happening == "sent":
            flow = self._flows[index]
            if flow.lane is None:
                self._finish(flow.block)
                return
            queue = self._proxies[flow.lane]
            queue.popleft()
            if queue:
                self._fresh.append(queue[0])
        else:
            flow = self._flows[index]
            self._bring(flow.packets)
            if flow.lane is not None:
                self._leave(flow.block, flow.lane, flow.signals)

    def _go_on(self) -> None:
        while self._ready:
            self._advance(self._ready.popleft())
        requests = [self._request(number) for number in self._fresh]
        settlement = self._server.settle(self._now_us, requests, self._freed)
        self._fresh.clear()
        self._freed.clear()
        for alarm in settlement.alarms:
            self._at(alarm.time_us, "free", alarm.resource)
        for grant in settlement.grants:
            self._depart(grant)

    def _request(self, number: int) -> TransferRequest:
        flow = self._flows[number]
        return TransferRequest(
            False, self._now_us, flow.block.rank, flow.block.number, flow.link, flow.size_bytes, number
        )  # fmt: skip

    def _depart(self, grant: Grant) -> None:
        number = grant.request.owner
        flow = self._flows[number]
        free_us, arrival_us = grant.link_free_us, grant.arrival_us
        if flow.lane is None:
            # A threadblock that is slower than the links ends later than they do.
            done_us = grant.request.time_us + self._pace.moves_us(flow.size_bytes)
            free_us, arrival_us = max(free_us, done_us), arrival_us + max(0.0, done_us - free_us)
        self._at(arrival_us + self._seen_us(flow), "arrived", number)
        if flow.link >= len(self._topology.links):
            # Its threadblock loads and stores what the switch adds up, so it is held until all that is done.
            self._at(arrival_us, "sent", number)
            self.switched.append(
                SwitchWork(
                    flow.block.rank, flow.block.number, self._place(flow), flow.adds_up, flow.ranks, grant.start_us,
                    arrival_us, flow.size_bytes, grant.uses,
                )
            )  # fmt: skip
            for rank in flow.ranks:
                flow.block.landed_us[rank] = max(flow.block.landed_us.get(rank, 0.0), arrival_us)
            self.end_us = max(self.end_us, arrival_us)
            return
        self._at(free_us, "sent", number)
        link = self._topology.links[flow.link]
        flow.block.landed_us[link.dst] = max(flow.block.landed_us.get(link.dst, 0.0), arrival_us)
        self.end_us = max(self.end_us, arrival_us)
        self.transfers.append(
            Transfer(
                flow.link, link.src, link.dst, grant.start_us, arrival_us, flow.size_bytes,
                threadblock=flow.block.number, step=self._place(flow),
            )
        )  # fmt: skip

    def _place(self, flow: _Flow) -> int:
        """Place of its operation in the threadblock; of a loop's, that of the loop."""
        return flow.block.actions[flow.position].position

    def _seen_us(self, flow: _Flow) -> float:
        """Time between the arrival of what a proxy has put, or of a packet, and its being seen."""
        if flow.lane is not None:
            return self._pace.costs.hop_far_us
        if not flow.packets:
            return 0.0
        link = self._topology.links[flow.link]
        far = is_far(self._topology, link.src, link.dst)
        return self._pace.costs.hop_far_us if far else self._pace.costs.hop_near_us

    def _bring(self, packets: tuple[PacketCell, ...]) -> None:
        """Let packets be there; who waits for them goes on."""
        for one in packets:
            self._there.add(one)
            self._ready.extend(self._readers.pop(one, ()))

    # Threadblocks

    def _advance(self, block: _PlanBlockState) -> None:
        while block.position < len(block.actions):
            operation = block.actions[block.position].operation
            if not (self._see(block, operation) and self._work(block, operation) and self._do(block, operation)):
                break
            block.position, block.taken, block.worked = block.position + 1, 0, False
        self.end_us = max(self.end_us, self._now_us)

    def _finish(self, block: _PlanBlockState) -> None:
        """End an operation that held its threadblock."""
        block.position, block.asked, block.worked = block.position + 1, False, False
        self._ready.append(block)

    def _see(self, block: _PlanBlockState, operation: Operation) -> bool:
        """Wait for the packets that an operation reads; whether all are there."""
        if block.worked or operation.name not in READS_PACKETS:
            return True
        sources = [cells for cells in operation.sources if cells.buffer is Buffer.SCRATCH]
        for one in (packet for cells in sources for packet in self._packets(block.rank, cells, operation)):
            if one not in self._there:
                self._readers.setdefault(one, []).append(block)
                return False
        return True

    def _work(self, block: _PlanBlockState, operation: Operation) -> bool:
        """Spend the time that an operation takes of its threadblock; whether that is over."""
        if not block.worked:
            block.worked = True
            works_us = self._pace.works_us(operation, self._chunk_bytes * block.actions[block.position].share)
            if works_us > 0:
                self._at(self._now_us + works_us, "worked", block.index)
                return False
        return True

    def _do(self, block: _PlanBlockState, operation: Operation) -> bool:
        """Begin an operation; whether the threadblock goes on at once."""
        if operation.name in PUTS:
            return self._put(block, operation)
        if operation.name in BY_SWITCH:
            return self._ask_switch(block, operation)
        if operation.name == "flush":
            return self._flush(block, operation)
        if operation.name in ("signal", "rlxsignal"):
            self._signal(block, operation)
        elif operation.name == "sem_release":
            for number in operation.semaphores:
                self._give(GpuSemaphore(block.rank, number))
        elif operation.name in ("wait", "rlxwait"):
            return self._take(block, [turned(self._lane(block, operation, one)) for one in operation.channels])
        elif operation.name == "sem_acquire":
            return self._take(block, [GpuSemaphore(block.rank, number) for number in operation.semaphores])
        elif operation.name == "cpkt" and operation.target is not None:
            self._bring(self._packets(block.rank, operation.target, operation))
        return True

    def _moved_bytes(self, block: _PlanBlockState, target: CellRange) -> float:
        return target.count * self._chunk_bytes * block.actions[block.position].share

    def _packets(self, rank: int, cells: CellRange, operation: Operation) -> tuple[PacketCell, ...]:
        return packet_cells(rank, cells, operation.part, self._parts)

    def _lane(self, block: _PlanBlockState, operation: Operation, place: int) -> ChannelLane:
        kind = operation.channel_type
        return self._lanes[block.rank][kind][block.record.channels[kind][place]]

    def _put(self, block: _PlanBlockState, operation: Operation) -> bool:
        if block.asked or operation.target is None:
            return not block.asked
        peer = put_peer(self._plan.gpus[block.rank], block.record, operation)
        link = self._links[block.rank, block.number, peer]
        size_bytes = self._moved_bytes(block, operation.target)
        packets = self._packets(peer, operation.target, operation) if operation.name in ("ppkt", "rppkt") else ()
        number = len(self._flows)
        if operation.channel_type != PORT:
            block.asked = True
            self._flows.append(_Flow(block, block.position, link, size_bytes, None, packets=packets))
            self._fresh.append(number)
            return False
        lane = self._lane(block, operation, operation.channels[0])
        signals = int(operation.name in ("pws", "pwsf"))
        self._flows.append(_Flow(block, block.position, link, size_bytes, lane, signals, packets=packets))
        block.unsent[lane] += 1
        block.latest[lane] = number
        queue = self._proxies.setdefault(lane, deque())
        queue.append(number)
        if len(queue) == 1:
            self._fresh.append(number)
        if operation.name == "pwsf":
            block.asked, block.flushed = True, (lane,)
        return not block.asked

    def _leave(self, block: _PlanBlockState, lane: ChannelLane, signals: int) -> None:
        """End a put by a proxy: its data are there, and threadblocks that wait for them go on."""
        for _ in range(signals):
            self._give(lane)
        block.unsent[lane] -= 1
        if block.flushed and not any(block.unsent[one] for one in block.flushed):
            block.flushed = ()
            self._finish(block)

    def _flush(self, block: _PlanBlockState, operation: Operation) -> bool:
        """Wait for proxies; whether they are done already."""
        lanes = tuple(self._lane(block, operation, one) for one in operation.channels)
        if any(block.unsent[lane] for lane in lanes):
            block.asked, block.flushed = True, lanes
        return not block.asked

    def _ask_switch(self, block: _PlanBlockState, operation: Operation) -> bool:
        """Let a switch multicast, or load sums and store them."""
        if block.asked or operation.target is None:
            return not block.asked
        errand = errand_of(self._plan.gpus[block.rank], block.record, operation)
        size_bytes = self._moved_bytes(block, operation.target)
        self._fresh.append(len(self._flows))
        self._flows.append(
            _Flow(
                block, block.position, self._path_of[errand], size_bytes, None, ranks=errand.stored, adds_up=bool(errand.summed)
            )
        )  # fmt: skip
        block.asked = True
        return False

    def _signal(self, block: _PlanBlockState, operation: Operation) -> None:
        for place in operation.channels:
            lane = self._lane(block, operation, place)
            if operation.name == "signal" and block.unsent[lane]:
                # A proxy tells it after what it has been asked for before.
                self._flows[block.latest[lane]].signals += 1
                continue
            landed_us = block.landed_us.get(lane.dst, 0.0) if operation.name == "signal" else 0.0
            when_us = max(landed_us, self._now_us) + self._hop_us(lane, relaxed=operation.name == "rlxsignal")
            if when_us <= self._now_us:
                self._give(lane)
            else:
                self._at(when_us, "signal", len(self._signals))
                self._signals.append(lane)

    def _hop_us(self, lane: ChannelLane, *, relaxed: bool) -> float:
        if lane.kind == PORT or is_far(self._topology, lane.src, lane.dst):
            return self._pace.costs.hop_far_us
        return self._pace.relaxed_us if relaxed else self._pace.costs.hop_near_us

    def _give(self, what: ChannelLane | GpuSemaphore) -> None:
        self._tokens[what] += 1
        if self._waiting.get(what):
            self._ready.append(self._waiting[what].popleft())

    def _take(self, block: _PlanBlockState, what: list[ChannelLane] | list[GpuSemaphore]) -> bool:
        """Take a token of each; whether all were there."""
        for one in what[block.taken :]:
            if not self._tokens[one]:
                self._waiting.setdefault(one, deque()).append(block)
                return False
            self._tokens[one] -= 1
            block.taken += 1
        return True

    def _explain(self, block: _PlanBlockState) -> Violation:
        operation, position, _ = block.actions[block.position]
        where = f"gpu {block.rank} tb {block.number} op {position}"
        return Violation(where, "deadlock", f"{operation.name} waits for a signal that never comes; ask taccl check")


def _askers(plan: Plan) -> Counter[Errand]:
    """Number of threadblocks that ask a switch for each errand."""
    return Counter(
        errand
        for gpu in plan.gpus
        for block in gpu.blocks
        for errand in {errand_of(gpu, block, each) for each in block.all_operations if each.name in BY_SWITCH}
    )


def _choose_links(plan: Plan, topology: Topology) -> dict[tuple[int, int, int], int]:
    """Link for every rank, threadblock and peer."""
    found: dict[tuple[int, int, int], int] = {}
    for gpu in plan.gpus:
        seen: Counter[int] = Counter()
        for number, block in enumerate(gpu.blocks):
            peers = {put_peer(gpu, block, one) for one in block.all_operations if one.name in PUTS}
            for peer in sorted(peers):
                links = topology.links_between.get((gpu.rank, peer))
                if links is None:
                    raise InputError(
                        f"plan {plan.name} puts from rank {gpu.rank} to rank {peer} (gpu {gpu.rank} tb {number}), but topology "
                        f"{topology.name} has no such link; replay it on the machine that it was made for"
                    )
                found[gpu.rank, number, peer] = links[seen[peer] % len(links)]
                seen[peer] += 1
    return found

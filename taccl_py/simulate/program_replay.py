"""Replay of a lowered program: how long its threadblocks take on a topology, event by event.

* A threadblock runs its steps in order. A step begins when the step before it has finished and the step that it depends
  on has finished; a nop is a step that only waits.
* A step that receives waits until the next message of its connection (src, dst, channel) has arrived. That takes no
  time.
* A step that sends (a fused one: after it has received) waits for a free slot of its connection, then asks for its link
  and the link's ports, and occupies each of them for the time that the cost model says. Between two ranks with several
  links channel c uses link ``c mod number of links``. The step has finished when the message leaves the link; the data
  arrive when the cost model says.
* A slot is taken from the moment in which the sender asks for its link until the receiving step has finished.
* Local copies and reductions take no time.

Requests for links and ports are served in the order of time, then rank, then threadblock, but those whose receiver already
waits for the data before the others (`taccl_py.simulate.arbiter`).
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum

from taccl_py.collective import Collective
from taccl_py.errors import InputError, InvalidArtifact, Violation
from taccl_py.lowering.program import Op, Program, Step, chunks_of_size
from taccl_py.runtimes import Runtime
from taccl_py.simulate.arbiter import Arbiter, Grant, TransferRequest
from taccl_py.simulate.timeline import Timeline, Transfer, sort_transfers
from taccl_py.tolerances import LAST_DIGITS
from taccl_py.topology.model import Topology

_RECEIVES = frozenset(op for op in Op if op.receives)
_SENDS = frozenset(op for op in Op if op.sends)


def replay_program(
    program: Program, topology: Topology, chunk_bytes: float, *, fifo_slots: int, chunks_per_size: int | None = None
) -> Timeline:
    """Replay a program with chunks of one size.

    Parameters
    ----------
    program
        A program that the verifier accepts.
    topology
        Machine with the program's ranks.
    chunk_bytes
        Size of one chunk, whole or not.
    fifo_slots
        Messages that can be outstanding on a connection.
    chunks_per_size
        Chunks that the size of the timeline is spread over; None: `taccl_py.lowering.program.chunks_of_size`.

    Raises
    ------
    InputError
        If size or slots are not positive, or the topology has other ranks or lacks a link that the program uses.
    InvalidArtifact
        If the program refers to a step or a peer that it does not have, or comes to a stop before its end; the
        violations name the deadlock cycle.
    """
    if not (math.isfinite(chunk_bytes) and chunk_bytes > 0):
        raise InputError(f"a chunk of {chunk_bytes} bytes cannot be replayed; the size must be finite and above 0")
    if fifo_slots < 1:
        raise InputError(f"a connection with {fifo_slots} slots passes nothing; give it at least 1")
    if len(program.gpus) != topology.num_ranks:
        raise InputError(
            f"program {program.name} is for {len(program.gpus)} ranks, topology {topology.name} has {topology.num_ranks}; "
            "replay it on the machine that it was made for"
        )
    size_bytes = chunk_bytes * (chunks_per_size or chunks_of_size(program))
    return _ProgramReplay(program, topology, chunk_bytes, fifo_slots).run(size_bytes)


def replay_at_size(program: Program, runtime: Runtime, topology: Topology, size_bytes: float) -> Timeline:
    """Replay a program of a runtime at a size as nccl-tests counts it; errors are those of `replay_program`."""
    whole, slots = chunks_of_size(program, runtime), runtime.fifo_slots[program.protocol]
    return replay_program(program, topology, size_bytes / whole, fifo_slots=slots, chunks_per_size=whole)


class _ReplayPhase(IntEnum):
    """Phase of a threadblock in its present step."""

    DEPENDENCY = 0
    RECEIVE = 1
    SLOT = 2
    SEND = 3


class _Happening(IntEnum):
    """Kinds of event."""

    FREE = 0
    ARRIVAL = 1
    SENT = 2


@dataclass(slots=True, eq=False)
class _QueueState:
    """State of the queue between two ranks on one channel; `arrived` messages wait, `sending` blocks can fill it."""

    index: int
    src: int
    dst: int
    channel: int
    arrived: int = 0
    taken: int = 0
    receivers: deque[_ProgramBlockState] = field(default_factory=deque)
    senders: deque[_ProgramBlockState] = field(default_factory=deque)
    sending: list[_ProgramBlockState] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _ProgramBlockState:
    """State of a threadblock; `waiters` are threadblocks that depend on one of its steps."""

    index: int
    rank: int
    number: int
    steps: tuple[Step, ...]
    receives_from: _QueueState
    sends_to: _QueueState
    link: int
    position: int = 0
    phase: _ReplayPhase = _ReplayPhase.DEPENDENCY
    waiters: dict[int, list[_ProgramBlockState]] = field(default_factory=dict)


class _ProgramReplay:
    """One run: a heap of events, and the threadblocks that can go on."""

    def __init__(self, program: Program, topology: Topology, chunk_bytes: float, fifo_slots: int) -> None:
        self._program = program
        self._topology = topology
        self._chunk_bytes = chunk_bytes
        self._slots = fifo_slots
        self._connections: dict[tuple[int, int, int], _QueueState] = {}
        self._connection_list: list[_QueueState] = []
        self._blocks: list[_ProgramBlockState] = []
        self._first_block: list[int] = []
        self._build_blocks()
        self._arbiter = Arbiter(topology)
        self._now_us = 0.0
        self._end_us = 0.0
        self._events: list[tuple[float, _Happening, int]] = []
        self._ready: deque[_ProgramBlockState] = deque(self._blocks)
        self._fresh: list[_ProgramBlockState] = []
        self._freed: list[int] = []
        self._awaited: list[_QueueState] = []
        self._transfers: list[Transfer] = []

    def run(self, size_bytes: float) -> Timeline:
        """Let everything happen, for a collective of this size."""
        self._go_on()
        while self._events:
            first_us = self._events[0][0]
            limit_us = first_us + LAST_DIGITS * first_us
            while self._events and self._events[0][0] <= limit_us:
                time_us, happening, index = heapq.heappop(self._events)
                self._now_us = max(self._now_us, time_us)
                self._happen(happening, index)
            self._go_on()
        self._require_end()
        kind = self._program.kind
        return Timeline(
            makespan_us=self._end_us,
            transfers=sort_transfers(self._transfers),
            size_bytes=size_bytes,
            busbw_factor=1.0 if kind is None else Collective(kind, self._topology.num_ranks).busbw_factor,
        )

    # Building

    def _build_blocks(self) -> None:
        for rank, gpu in enumerate(self._program.gpus):
            self._first_block.append(len(self._blocks))
            for number, threadblock in enumerate(gpu.threadblocks):
                block = _ProgramBlockState(
                    index=len(self._blocks),
                    rank=rank,
                    number=number,
                    steps=threadblock.steps,
                    receives_from=self._connection(threadblock.recv_peer, rank, threadblock.channel),
                    sends_to=self._connection(rank, threadblock.send_peer, threadblock.channel),
                    link=-1,
                )
                self._blocks.append(block)
                block.sends_to.sending.append(block)
                self._check_steps(block)
                if any(step.op in _SENDS for step in block.steps):
                    block.link = self._link(block)

    def _connection(self, src: int, dst: int, channel: int) -> _QueueState:
        found = self._connections.get((src, dst, channel))
        if found is None:
            found = _QueueState(len(self._connection_list), src, dst, channel)
            self._connections[src, dst, channel] = found
            self._connection_list.append(found)
        return found

    def _check_steps(self, block: _ProgramBlockState) -> None:
        for position, step in enumerate(block.steps):
            wrong = self._wrong_reference(block, step)
            if wrong:
                where = f"gpu {block.rank} tb {block.number} step {position}"
                raise InvalidArtifact(self._program.name, [Violation(where, "no-such-reference", wrong)])

    def _wrong_reference(self, block: _ProgramBlockState, step: Step) -> str:
        if step.op in _SENDS and block.sends_to.dst < 0:
            return f"{step.op} sends, but its threadblock has no send peer"
        if step.op in _RECEIVES and block.receives_from.src < 0:
            return f"{step.op} receives, but its threadblock has no receive peer"
        if step.depends_on is not None:
            other, target = step.depends_on
            blocks = self._program.gpus[block.rank].threadblocks
            if not (0 <= other < len(blocks) and 0 <= target < len(blocks[other].steps)):
                return f"{step.op} depends on tb {other} step {target}, which does not exist"
        return ""

    def _link(self, block: _ProgramBlockState) -> int:
        src, dst = block.rank, block.sends_to.dst
        links = self._topology.links_between.get((src, dst))
        if links is None:
            raise InputError(
                f"program {self._program.name} sends from rank {src} to rank {dst} (gpu {src} tb {block.number}), but "
                f"topology {self._topology.name} has no such link; replay it on the machine that it was made for"
            )
        return links[block.sends_to.channel % len(links)]

    # Running

    def _happen(self, happening: _Happening, index: int) -> None:
        if happening is _Happening.FREE:
            self._freed.append(index)
        elif happening is _Happening.ARRIVAL:
            connection = self._connection_list[index]
            connection.arrived += 1
            if connection.receivers:
                self._ready.append(connection.receivers.popleft())
        else:
            block = self._blocks[index]
            self._finish(block)
            self._ready.append(block)

    def _go_on(self) -> None:
        """Let every threadblock go as far as it can in this moment, then share out links and ports."""
        while self._ready:
            self._advance(self._ready.popleft())
        for connection in self._awaited:
            for sender in connection.sending:
                self._arbiter.promote(sender.index)
        self._awaited.clear()
        fresh = [self._request(block) for block in self._fresh]
        settlement = self._arbiter.settle(self._now_us, fresh, self._freed)
        self._fresh.clear()
        self._freed.clear()
        for alarm in settlement.alarms:
            heapq.heappush(self._events, (alarm.time_us, _Happening.FREE, alarm.resource))
        for grant in settlement.grants:
            self._depart(grant)

    def _depart(self, grant: Grant) -> None:
        block = self._blocks[grant.request.owner]
        heapq.heappush(self._events, (grant.link_free_us, _Happening.SENT, block.index))
        heapq.heappush(self._events, (grant.arrival_us, _Happening.ARRIVAL, block.sends_to.index))
        self._end_us = max(self._end_us, grant.arrival_us)
        self._transfers.append(
            Transfer(
                link=block.link,
                src=block.rank,
                dst=block.sends_to.dst,
                start_us=grant.start_us,
                end_us=grant.arrival_us,
                size_bytes=grant.request.size_bytes,
                threadblock=block.number,
                step=block.position,
            )
        )

    def _advance(self, block: _ProgramBlockState) -> None:
        """Run steps until one must wait; then leave the threadblock where it will be found."""
        while block.position < len(block.steps):
            step = block.steps[block.position]
            if block.phase is _ReplayPhase.DEPENDENCY:
                if self._waits_for_step(block, step):
                    return
                block.phase = _ReplayPhase.RECEIVE
            if block.phase is _ReplayPhase.RECEIVE:
                if step.op in _RECEIVES:
                    if not block.receives_from.arrived:
                        block.receives_from.receivers.append(block)
                        self._awaited.append(block.receives_from)
                        return
                    block.receives_from.arrived -= 1
                block.phase = _ReplayPhase.SLOT
            if step.op in _SENDS:
                self._ask_for_link(block)
                return
            self._finish(block)

    def _waits_for_step(self, block: _ProgramBlockState, step: Step) -> bool:
        if step.depends_on is None:
            return False
        other, target = step.depends_on
        dependency = self._blocks[self._first_block[block.rank] + other]
        if dependency.position > target:
            return False
        dependency.waiters.setdefault(target, []).append(block)
        return True

    def _ask_for_link(self, block: _ProgramBlockState) -> None:
        connection = block.sends_to
        if connection.taken >= self._slots:
            connection.senders.append(block)
            return
        connection.taken += 1
        block.phase = _ReplayPhase.SEND
        self._fresh.append(block)

    def _request(self, block: _ProgramBlockState) -> TransferRequest:
        size_bytes = block.steps[block.position].count * self._chunk_bytes
        early = not block.sends_to.receivers
        return TransferRequest(early, self._now_us, block.rank, block.number, block.link, size_bytes, block.index)

    def _finish(self, block: _ProgramBlockState) -> None:
        """End the present step: free the slot that it received from, and wake threadblocks that depend on it."""
        step = block.steps[block.position]
        if step.op in _RECEIVES:
            connection = block.receives_from
            connection.taken -= 1
            if connection.senders:
                self._ready.append(connection.senders.popleft())
        self._ready.extend(block.waiters.pop(block.position, ()))
        block.position += 1
        block.phase = _ReplayPhase.DEPENDENCY
        self._end_us = max(self._end_us, self._now_us)

    # The end

    def _require_end(self) -> None:
        stuck = [block for block in self._blocks if block.position < len(block.steps)]
        if stuck:
            raise InvalidArtifact(
                self._program.name, [Violation(_place(block), "deadlock", self._why(block)) for block in stuck]
            )

    def _why(self, block: _ProgramBlockState) -> str:
        step = block.steps[block.position]
        if block.phase is _ReplayPhase.DEPENDENCY and step.depends_on is not None:
            other, target = step.depends_on
            dependency = self._blocks[self._first_block[block.rank] + other]
            return f"{step.op} waits for step {target} of tb {other}, which is {_progress(dependency)}"
        if block.phase is _ReplayPhase.RECEIVE:
            source = block.receives_from
            peers = [other for other in self._blocks if other.sends_to is source]
            what, whom = "a message", f"rank {source.src} on channel {source.channel}"
        else:
            target_queue = block.sends_to
            peers = [other for other in self._blocks if other.receives_from is target_queue]
            what = f"one of the {self._slots} slots"
            whom = f"its connection to rank {target_queue.dst} on channel {target_queue.channel}"
        waits = f"{step.op} waits for {what} of {whom}"
        if not peers:
            return f"{waits}, but no threadblock is at the other end"
        states = "; ".join(f"gpu {peer.rank} tb {peer.number} is {_progress(peer)}" for peer in peers)
        return f"{waits}, where {states}"


def _place(block: _ProgramBlockState) -> str:
    return f"gpu {block.rank} tb {block.number} step {block.position}"


def _progress(block: _ProgramBlockState) -> str:
    return f"at step {block.position}" if block.position < len(block.steps) else "at its end"

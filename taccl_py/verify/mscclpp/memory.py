"""Cells of all ranks while a plan is executed: values, accesses, and whether these were in order.

Packets (microsoft/mscclpp 1f5f065, include/mscclpp/packet_device.hpp) hold data and the number of the call; who reads one waits
until the number is right. So the first packet of a call in a place is awaited by its readers, and nothing else has to order them;
a second one in the same place looks alike. What a packet proves is only that the data in it were read: not that its threadblock is
done with anything, and nothing of memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from taccl_py.collective import Buffer
from taccl_py.verify.msccl.findings import Findings
from taccl_py.verify.msccl.semantics import UNWRITTEN, WRONG, Contents
from taccl_py.verify.mscclpp.grammar import Plan
from taccl_py.verify.mscclpp.network import ChannelNetwork, ThreadblockSeat
from taccl_py.verify.mscclpp.spans import CellTransfer, PlanStep, Sizing, Span
from taccl_py.verify.mscclpp.tally import CERTAIN, LOOSE, READ, Clock
from taccl_py.verify.mscclpp.workers import Access, ExecutedThreadblock, Origin, ProxyRequest

_NAMES = {Buffer.INPUT: "the input", Buffer.OUTPUT: "the output", Buffer.SCRATCH: "scratch"}


@dataclass(slots=True)
class _Cell:
    """Last accesses to a cell."""

    written: list[Access] = field(default_factory=list)
    read: list[Access] = field(default_factory=list)


@dataclass(slots=True)
class _Packet:
    """A place for a packet: its value, what that proves, and accesses to it.

    A second packet of the same data changes nothing, but readers may have seen either packet.

    Attributes
    ----------
    again
        True if other data were there before; `past` are their readers.
    """

    value: int
    begun: Clock
    origins: frozenset[Origin]
    written: list[Access]
    again: bool = False
    past: list[Access] = field(default_factory=list)
    read: list[Access] = field(default_factory=list)


@dataclass(slots=True)
class _Unit:
    """Value and proofs while one cell of data is moved."""

    begun: Clock
    origins: set[Origin]
    value: int | None = None


@dataclass(frozen=True, slots=True)
class FarAccess:
    """Accesses to another rank's memory, by the column that tells of their end."""

    column: int
    rank: int
    verb: str


class PlanMemory:
    """All cells.

    Parameters
    ----------
    plan, sizing
        A plan without structural mistakes, and the length of its chunks.
    network
        Its connections.
    contents
        Values of all cells.
    findings
        What to reject.
    """

    def __init__(
        self, plan: Plan, sizing: Sizing, network: ChannelNetwork, contents: Contents, findings: Findings
    ) -> None:
        self._plan = plan
        self._sizing = sizing
        self._network = network
        self._contents = contents
        self._findings = findings
        self._cells: dict[tuple[int, int], _Cell] = {}
        self._packets: dict[tuple[int, int], _Packet] = {}
        self._writers: dict[tuple[int, int], list[ThreadblockSeat]] = {}
        self._of_packets: set[tuple[int, int]] = set()
        self._num_accesses = 0
        self.far: dict[FarAccess, list[Access]] = {}
        self.proxied: list[tuple[ExecutedThreadblock, Access, bool, tuple[Origin, ...]]] = []
        self.early: dict[tuple[int, int, int], str] = {}  # packets written into a rank that may not have begun the call

    def expect(self, seat: ThreadblockSeat, steps: Iterable[PlanStep]) -> None:
        """Say what a threadblock will do, so that it is known what cells are for packets and who writes them."""
        for step in steps:
            for move in step.moves:
                for span in (*move.sources, *move.targets):
                    for number in range(move.count if span.packets else 0):
                        self._of_packets |= {(span.rank, span.cell(number)), (span.rank, span.cell(number) + 1)}
                for span in move.targets:
                    for number in range(move.count if span.packets else 0):
                        self._writers.setdefault((span.rank, span.cell(number)), []).append(seat)

    def writers(self, rank: int, cell: int) -> list[ThreadblockSeat]:
        """Threadblocks that write a packet."""
        return self._writers.get((rank, cell), [])

    def name(self, rank: int, buffer: Buffer, cell: int, *, packets: bool = False) -> str:
        """Name of a cell for people, by its chunk."""
        offset = cell - self._contents.setting.regions[rank].base(buffer)
        if buffer is Buffer.SCRATCH and self._plan.doubles_scratch:
            offset %= max(1, self._sizing.scratch_cells(self._plan, self._plan.gpus[rank]) // 2)
        offset //= 2 if packets else 1
        length = self._sizing.scratch_pieces if buffer is Buffer.SCRATCH else None
        return f"{buffer}[{offset // (length or self._sizing.pieces)}]"

    def is_ready(self, worker: ExecutedThreadblock) -> bool:
        """True if all packets for which the present step waits have come."""
        if worker.missing is not None and worker.missing not in self._packets:
            return False
        awaited = (
            (span.rank, span.cell(number))
            for move in worker.step.moves
            for span in move.sources
            if span.packets and span.awaited
            for number in range(move.count)
        )
        worker.missing = next((packet for packet in awaited if packet not in self._packets), None)
        return worker.missing is None

    def carry_out(self, worker: ExecutedThreadblock) -> None:
        """Carry out the transfers of the present step."""
        for move in worker.step.moves:
            self._check_overlap(worker, move)
            access = self._access(worker, move)
            known = worker.known_to(move.thread if move.proxied else -2)
            if worker.step.operation.name == "rppkt" and move.proxied:
                known = np.maximum(known, worker.known_to(-1))  # threads meet in between
            self._check_begun(worker, move, known, access)
            sent = any(span.packets for span in (*move.sources, *move.targets))
            start = self._network.without_memory(worker.shown(known)) if sent else known
            units = [self._read_unit(worker, move, number, access, known, start) for number in range(move.count)]
            for number, unit in enumerate(units):
                self._write_unit(worker, move, number, access, known, unit)
            if any(span.packets for span in move.sources) and units:
                worker.hear(-1, np.maximum.reduce([unit.begun for unit in units]))
                worker.fresh.update(*(unit.origins for unit in units))
            if move.proxied:
                self._ask(worker, move, access)
            else:
                worker.touched = worker.position

    def _access(self, worker: ExecutedThreadblock, move: CellTransfer) -> Access:
        self._num_accesses += 1
        number, where = self._num_accesses, worker.step.where
        if not move.proxied:
            return Access(number, worker.seat, worker.position, where, worker.column, worker.position + 1, False)
        channel = worker.step.channels[move.thread]
        column = self._network.request_column(worker.seat, channel, move.thread)
        count = len(worker.requests.get((channel, move.thread), ())) + 1
        return Access(number, worker.seat, worker.position, where, column, count, True)

    def _ask(self, worker: ExecutedThreadblock, move: CellTransfer, access: Access) -> None:
        asked = worker.requests.setdefault((worker.step.channels[move.thread], move.thread), [])
        asked.append(ProxyRequest(worker.position, access.column))
        (source,) = move.sources
        origins = tuple((access.number, source.rank, source.cell(one)) for one in range(move.count))
        self.proxied.append((worker, access, source.packets, origins))

    # One cell of data

    def _read_unit(
        self, worker: ExecutedThreadblock, move: CellTransfer, number: int, access: Access, known: Clock, start: Clock
    ) -> _Unit:
        unit = _Unit(start, set())
        for span in move.sources:
            cell = span.cell(number)
            if span.packets:
                value = self._read_packet(worker, span, cell, access, known, unit)
            else:
                value = self._read(worker, span, cell, access, known)
            unit.origins.add((access.number, span.rank, cell))
            if unit.value is None:
                unit.value = value
            else:
                unit.value = self._contents.add([unit.value], [value], worker.step.where)[0]
        return unit

    def _write_unit(
        self, worker: ExecutedThreadblock, move: CellTransfer, number: int, access: Access, known: Clock, unit: _Unit
    ) -> None:
        for span in move.targets:
            if span.packets:
                self._write_packet(worker, span, span.cell(number), access, known, unit)
            else:
                self._write(worker, span, span.cell(number), access, known, unit)

    def _read(self, worker: ExecutedThreadblock, span: Span, cell: int, access: Access, known: Clock) -> int:
        state = self._cells.setdefault((span.rank, cell), _Cell())
        for other in state.written:
            self._require_order(worker, span, other, access, known)
        state.read.append(access)
        value = self._contents.cells[span.rank][cell]
        if (span.rank, cell) in self._of_packets:
            what = f"it reads {self.name(span.rank, span.buffer, cell)} as data, where packets are too"
            self._findings.violation(worker.step.where, "mixed-packets", f"{what}; use other chunks of scratch")
            return WRONG
        if value == UNWRITTEN:
            what = f"it reads {self.name(span.rank, span.buffer, cell)}, which nobody has written; write it first and wait for that"
            self._findings.violation(worker.step.where, "unwritten-read", what)
            return WRONG
        return value

    def _write(
        self, worker: ExecutedThreadblock, span: Span, cell: int, access: Access, known: Clock, unit: _Unit
    ) -> None:
        state = self._cells.setdefault((span.rank, cell), _Cell())
        self._require_turn(worker, span, cell, state, access, known, unit)
        state.written, state.read = [access], []
        if (span.rank, cell) in self._of_packets:
            what = f"it writes data to {self.name(span.rank, span.buffer, cell)}, where packets are too, which they may look like"
            self._findings.violation(worker.step.where, "mixed-packets", f"{what}; use other chunks of scratch")
        self._contents.cells[span.rank][cell] = WRONG if unit.value is None else unit.value

    def _read_packet(
        self, worker: ExecutedThreadblock, span: Span, cell: int, access: Access, known: Clock, unit: _Unit
    ) -> int:
        packet = self._packets.get((span.rank, cell))
        if packet is None:
            what = f"it reads a packet in {self.name(span.rank, span.buffer, cell, packets=True)}, which nobody has written"
            self._findings.violation(worker.step.where, "unwritten-read", f"{what}; write it first and wait for that")
            return WRONG
        for other in packet.written if packet.again else packet.written[: not span.awaited]:
            self._require_order(worker, span, other, access, known)
        packet.read.append(access)
        unit.begun = np.maximum(unit.begun, packet.begun)
        unit.origins |= packet.origins
        return packet.value

    def _write_packet(
        self, worker: ExecutedThreadblock, span: Span, cell: int, access: Access, known: Clock, unit: _Unit
    ) -> None:
        value = WRONG if unit.value is None else unit.value
        if span.rank != worker.gpu.id and not unit.begun[CERTAIN][self._network.begun_column(span.rank)]:
            self.early.setdefault((worker.gpu.id, span.rank, cell), worker.step.where)
        packet = self._packets.get((span.rank, cell))
        if packet is None:
            self._packets[span.rank, cell] = _Packet(value, unit.begun, frozenset(unit.origins), [access])
            return
        if value == packet.value != WRONG:
            proves_less = not packet.origins <= unit.origins or bool((unit.begun < packet.begun).any())
            if packet.read and proves_less:
                self._require_turn(worker, span, cell, packet, access, known, unit)
            packet.begun = np.minimum(packet.begun, unit.begun)
            packet.origins &= unit.origins
            packet.written.append(access)
            return
        self._require_turn(worker, span, cell, packet, access, known, unit)
        packet.value, packet.begun, packet.origins = value, unit.begun, frozenset(unit.origins)
        packet.past += packet.read
        packet.written, packet.read, packet.again = [access], [], True

    def packet_readers(self, rank: int, cell: int) -> list[Access]:
        """Accesses that have read a packet."""
        packet = self._packets.get((rank, cell))
        return [] if packet is None else [*packet.past, *packet.read]

    # Order

    def _require_turn(
        self, worker: ExecutedThreadblock, span: Span, cell: int, state: _Cell | _Packet, access: Access, known: Clock, unit: _Unit
    ) -> None:  # fmt: skip
        """Require that all who have touched a cell are done with it."""
        proven = [one for one in state.read if self._is_proven(worker, one, span.rank, cell, unit)]
        for other in state.read:
            if other not in proven:
                self._require_order(worker, span, other, access, known, row=READ)
        for other in state.written if not proven else ():
            self._require_order(worker, span, other, access, known)

    def _is_proven(self, worker: ExecutedThreadblock, other: Access, rank: int, cell: int, unit: _Unit) -> bool:
        """True if a value that has come by packets shows that somebody has read a cell."""
        origin = other.number, rank, cell
        return origin in unit.origins or origin in worker.origins

    def _require_order(
        self, worker: ExecutedThreadblock, span: Span, other: Access, access: Access, known: Clock, row: int = CERTAIN
    ) -> None:
        if other is access or (other.seat == access.seat and other.position == access.position):
            return
        same = other.seat == worker.seat and not other.proxied
        if other.position <= worker.met if same else known[row][other.column] >= other.count:
            return
        name = f"{_NAMES[span.buffer]} of gpu {span.rank}"
        if same:
            what = f"it touches cells of {name} as {other.where} does, and the threads have not met since"
            self._findings.violation(access.where, "missing-nop", f"{what}; put a nop between")
            return
        what = f"it touches cells of {name} that {other.where} may still be using"
        if known[LOOSE][other.column] >= other.count:
            what = f"{what}, as threads have not met between that, what tells of it, and this"
            self._findings.violation(access.where, "missing-nop", f"{what}; put a nop between")
        else:
            self._findings.violation(access.where, "race", f"{what}; wait for a signal that comes after that")

    def _check_begun(self, worker: ExecutedThreadblock, move: CellTransfer, known: Clock, access: Access) -> None:
        """Report plain accesses to ranks that may not have begun the call, and keep those that somebody has to wait for."""
        for verb, spans in (("reads from", move.sources), ("writes into", move.targets)):
            ranks = {span.rank for span in spans if span.rank != worker.gpu.id and not span.packets}
            for rank in sorted(ranks):
                column = self._network.begun_column(rank)
                if not known[CERTAIN][column]:
                    what = f"it {verb} gpu {rank}, which may not have begun this call, so its buffers may be in use"
                    rule, advice = "before-entry", f"wait for a signal of gpu {rank} first"
                    if known[LOOSE][column]:
                        rule, advice = "missing-nop", "put a nop after the wait for its signal"
                    self._findings.violation(worker.step.where, rule, f"{what}; {advice}")
                self.far.setdefault(FarAccess(access.column, rank, verb), []).append(access)

    def _check_overlap(self, worker: ExecutedThreadblock, move: CellTransfer) -> None:
        """Report cells that are moved to others among them: threads read and write in any order."""
        written = {(span.rank, span.start) for span in move.targets if not span.packets}
        for span in move.sources:
            near = (abs(span.start - first) for rank, first in written if rank == span.rank and not span.packets)
            if any(0 < distance < move.count for distance in near):
                what = f"what it reads from {self.name(span.rank, span.buffer, span.start)} on overlaps what it writes"
                self._findings.violation(worker.step.where, "overlapping-cells", f"{what}; go through others")

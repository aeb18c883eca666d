"""Are all accesses ordered: what happened before what, by program order, flags and messages.

For every operation the set of operations that certainly came before it is kept as the bits of one whole number, as long as
somebody may still ask for it. A waiting threadblock knows of the first operation whose flag can end its wait and of
everything before that; a receiver knows of everything before the send. That a sender found room says nothing: no runtime
promises that the reader's work is visible then. Two accesses to one cell, one of them a write, must be ordered.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from taccl_py.collective import Address, Buffer
from taccl_py.verify.msccl.findings import Findings, place
from taccl_py.verify.msccl.grammar import COPY, SEND
from taccl_py.verify.msccl.operations import Operation, Plan
from taccl_py.verify.msccl.semantics import Setting

_NOBODY = -1


@dataclass(frozen=True, slots=True)
class Past:
    """Operations that certainly came before another one: bits of a whole number, and which bit is whose."""

    bits: int
    bit_of: Sequence[int]

    def __contains__(self, operation: int) -> bool:
        """Whether the operation is among them."""
        return bool(self.bits >> self.bit_of[operation] & 1)


@dataclass(frozen=True, slots=True)
class Handovers:
    """What threadblocks of a GPU leave to each other in ways that not every runtime orders.

    Attributes
    ----------
    through_input
        Whether a step reads from the input buffer what another threadblock wrote there.
    of_sent_cells
        Whether a step overwrites what another threadblock sends, and has nothing but the flag of the send to wait for.
    """

    through_input: bool
    of_sent_cells: bool


class RaceCheck:
    """Accesses to all cells in one setting, checked in the order of `find_races`; the attributes are those of `Handovers`."""

    def __init__(self, plan: Plan, setting: Setting, findings: Findings) -> None:
        self.through_input = self.of_sent_cells = False
        self._plan = plan
        self._setting = setting
        self._findings = findings
        self._writer = [[_NOBODY] * region.num_cells for region in setting.regions]
        self._readers: list[list[tuple[int, ...]]] = [[()] * region.num_cells for region in setting.regions]

    def access(self, operation: Operation, past: Past) -> None:
        """Record an operation whose predecessors are `past`."""
        gpu = self._plan.blocks[operation.block].gpu
        for address in operation.reads:
            self._read(operation, gpu, address, past)
        for address in operation.writes:
            if not self._keeps_cells(operation, gpu):
                self._write(operation, gpu, address, past)

    def _keeps_cells(self, operation: Operation, gpu: int) -> bool:
        """Whether it copies cells onto themselves, which nobody who reads them meanwhile can notice."""
        source, target = operation.step.source, operation.step.target
        return operation.step.type == COPY and self._range(gpu, source, 1) == self._range(gpu, target, 1)

    def _range(self, gpu: int, address: Address, count: int) -> slice:
        start = self._setting.regions[gpu].base(address.buffer) + address.offset
        return slice(start, start + count)

    def _read(self, operation: Operation, gpu: int, address: Address, past: Past) -> None:
        cells = self._range(gpu, address, operation.step.count)
        for writer in set(self._writer[gpu][cells]):
            if writer == _NOBODY or self._plan.operations[writer].block == operation.block:
                continue
            if writer not in past:
                self._report(operation, "reads", writer, "writes", address)
            elif address.buffer is Buffer.INPUT:
                self.through_input = True
        readers = self._readers[gpu]
        renewed = {old: self._with_reader(old, operation) for old in set(readers[cells])}
        readers[cells] = [renewed[old] for old in readers[cells]]

    def _write(self, operation: Operation, gpu: int, address: Address, past: Past) -> None:
        cells = self._range(gpu, address, operation.step.count)
        writers, readers = self._writer[gpu], self._readers[gpu]
        for writer in sorted(set(writers[cells])):
            if writer != _NOBODY and writer != operation.index and writer not in past:
                self._report(operation, "writes", writer, "writes", address)
        for reader in sorted({reader for group in set(readers[cells]) for reader in group}):
            if reader != operation.index and reader not in past:
                self._report(operation, "writes", reader, "reads", address)
            elif self._plan.operations[reader].step.type == SEND and any(
                w.operation == reader for w in operation.waits
            ):
                self.of_sent_cells = True
        writers[cells] = [operation.index] * operation.step.count
        readers[cells] = [()] * operation.step.count

    def _with_reader(self, readers: tuple[int, ...], operation: Operation) -> tuple[int, ...]:
        """Readers since the last write: of each threadblock the latest one stands for the earlier ones."""
        others = [reader for reader in readers if self._plan.operations[reader].block != operation.block]
        return (*others, operation.index)

    def _report(self, operation: Operation, verb: str, other: int, others_verb: str, address: Address) -> None:
        first, second = self._plan.operations[other], operation
        block, other_block = self._plan.blocks[second.block], self._plan.blocks[first.block]
        where = place(block.gpu, block.id, second.step.index)
        what = (
            f"it {verb} cells from {address.buffer}[{address.offset}] on that step {first.step.index} of tb"
            f" {other_block.id} {others_verb}, and nothing orders the two; make one wait for the other"
        )
        self._findings.violation(where, "race", what)


def find_races(
    plan: Plan,
    order: Sequence[int],
    settings: Sequence[Setting],
    found: Sequence[Findings],
    *,
    messages_order: bool = True,
) -> Handovers:
    """Object to accesses that nothing orders.

    Mostly flags alone order what threadblocks of a GPU do, which is soon seen GPU by GPU; only if they do not, messages count too.

    Parameters
    ----------
    plan, order
        All operations, and an order of them that respects queues and flags.
    settings, found
        Every way to run the program, and where its objections go.
    messages_order
        Whether messages count too where flags alone do not order everything; they cannot where some ranks stand for all.
    """
    trials = [Findings() for _ in settings] if messages_order else found
    checks = [RaceCheck(plan, setting, trial) for setting, trial in zip(settings, trials, strict=True)]
    _follow_flags(plan, order, checks)
    if messages_order and any(trial.violations() for trial in trials):
        checks = [RaceCheck(plan, setting, findings) for setting, findings in zip(settings, found, strict=True)]
        _follow_all(plan, order, checks)
    return Handovers(any(check.through_input for check in checks), any(check.of_sent_cells for check in checks))


def _follow_flags(plan: Plan, order: Sequence[int], checks: Sequence[RaceCheck]) -> None:
    """Run the checks with what operations of one GPU know of each other by flags and program order."""
    past_of_block = [0] * len(plan.blocks)
    past_of_flag: dict[int, int] = {}
    bit_of = _bits_in_gpu(plan)
    awaited = {wait.operation for operation in plan.operations for wait in operation.waits}
    for index in order:
        operation = plan.operations[index]
        before = past_of_block[operation.block]
        for wait in operation.waits:
            if wait.operation is not None:
                before |= past_of_flag[wait.operation]
        for check in checks:
            check.access(operation, Past(before, bit_of))
        past = before | 1 << bit_of[index]
        past_of_block[operation.block] = past
        if index in awaited:
            past_of_flag[index] = past


def _bits_in_gpu(plan: Plan) -> list[int]:
    """Position of every operation among those of its GPU."""
    counts = Counter[int]()
    positions = [0] * len(plan.operations)
    for block in plan.blocks:
        for operation in block.operations:
            positions[operation.index] = counts[block.gpu]
            counts[block.gpu] += 1
    return positions


def _follow_all(plan: Plan, order: Sequence[int], checks: Sequence[RaceCheck]) -> None:
    """Run the checks with all that is known, by messages too."""
    waiters = Counter(wait.operation for operation in plan.operations for wait in set(operation.waits))
    past_of_block = [0] * len(plan.blocks)
    past_of_flag: dict[int, int] = {}
    bit_of = range(len(plan.operations))
    messages: list[deque[int]] = [deque() for _ in plan.connections]
    for index in order:
        operation = plan.operations[index]
        before = past_of_block[operation.block]
        for wait in set(operation.waits):
            if wait.operation is not None:
                before |= past_of_flag[wait.operation]
                waiters[wait.operation] -= 1
                if not waiters[wait.operation]:
                    del past_of_flag[wait.operation]
        if operation.inbound is not None:
            before |= messages[operation.inbound].popleft()
        for check in checks:
            check.access(operation, Past(before, bit_of))
        past = before | 1 << index
        past_of_block[operation.block] = past
        if waiters[index]:
            past_of_flag[index] = past
        if operation.outbound is not None:
            messages[operation.outbound].append(past)

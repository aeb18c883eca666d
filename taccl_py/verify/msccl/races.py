"""Are all accesses ordered: what happened before what, by program order, flags and messages.

For every operation the set of operations that certainly came before it is kept as the bits of one whole number, as long as
somebody may still ask for it. A waiting threadblock knows of the first operation whose flag can end its wait and of
everything before that; a receiver knows of everything before the send. That a sender found room says nothing: no runtime
promises that the reader's work is visible then. Two accesses to one cell, one of them a write, must be ordered.

A step of several chunks is one message only as long as a message can carry them. Above that size it is several, one after
another, and the receiver has the first before the sender has read what is in the last.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from taccl_py.collective import Address, Buffer
from taccl_py.runtimes import MAX_COUNT
from taccl_py.verify.msccl.findings import Findings, place
from taccl_py.verify.msccl.grammar import COPY, SEND
from taccl_py.verify.msccl.operations import KernelOperation, KernelProgram, split_order, split_plan
from taccl_py.verify.msccl.semantics import RunSetting

_NOBODY = -1


@dataclass(frozen=True, slots=True)
class Past:
    """Operations that certainly came before another one: bits of a whole number, and which bit is whose."""

    bits: int
    bit_of: Sequence[int]

    def __contains__(self, operation: int) -> bool:
        """True if the operation is in the set."""
        return bool(self.bits >> self.bit_of[operation] & 1)


@dataclass(frozen=True, slots=True)
class HappensBefore:
    """Rules that order operations of different threadblocks.

    Attributes
    ----------
    messages
        Whether messages do; they cannot where some ranks stand for all.
    flags_of_sends
        Whether the flag of a send says that its source has been read.
    """

    messages: bool
    flags_of_sends: bool = True


@dataclass(frozen=True, slots=True)
class AccessOrder:
    """Findings of `find_races` on accesses that are ordered.

    Attributes
    ----------
    through_input
        Whether a step reads from the input buffer what another threadblock wrote there.
    fewest_chunks
        Fewest chunks that a message may carry without a race; 1 if any number is good.
    reason
        The first race where it carries fewer, else empty.
    """

    through_input: bool
    fewest_chunks: int = 1
    reason: str = ""


class RaceCheck:
    """Accesses to all cells in one setting, checked in the order of `find_races`; `through_input` as in `AccessOrder`."""

    def __init__(self, plan: KernelProgram, setting: RunSetting, findings: Findings) -> None:
        self.through_input = False
        self._plan = plan
        self._setting = setting
        self._findings = findings
        self._writer = [[_NOBODY] * region.num_cells for region in setting.regions]
        self._readers: list[list[tuple[int, ...]]] = [[()] * region.num_cells for region in setting.regions]

    def access(self, operation: KernelOperation, past: Past) -> None:
        """Record an operation whose predecessors are `past`."""
        gpu = self._plan.blocks[operation.block].gpu
        for address in operation.reads:
            self._read(operation, gpu, address, past)
        for address in operation.writes:
            if not self._keeps_cells(operation, gpu):
                self._write(operation, gpu, address, past)

    def _keeps_cells(self, operation: KernelOperation, gpu: int) -> bool:
        """True if the operation copies cells onto themselves, which a concurrent reader cannot notice."""
        source, target = operation.step.source, operation.step.target
        return operation.step.type == COPY and self._range(gpu, source, 1) == self._range(gpu, target, 1)

    def _range(self, gpu: int, address: Address, count: int) -> slice:
        start = self._setting.regions[gpu].base(address.buffer) + address.offset
        return slice(start, start + count)

    def _read(self, operation: KernelOperation, gpu: int, address: Address, past: Past) -> None:
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

    def _write(self, operation: KernelOperation, gpu: int, address: Address, past: Past) -> None:
        cells = self._range(gpu, address, operation.step.count)
        writers, readers = self._writer[gpu], self._readers[gpu]
        for writer in sorted(set(writers[cells])):
            if writer != _NOBODY and writer != operation.index and writer not in past:
                self._report(operation, "writes", writer, "writes", address)
        for reader in sorted({reader for group in set(readers[cells]) for reader in group}):
            if reader != operation.index and reader not in past:
                self._report(operation, "writes", reader, "reads", address)
        writers[cells] = [operation.index] * operation.step.count
        readers[cells] = [()] * operation.step.count

    def _with_reader(self, readers: tuple[int, ...], operation: KernelOperation) -> tuple[int, ...]:
        """Readers since the last write: of each threadblock the latest one stands for the earlier ones."""
        others = [reader for reader in readers if self._plan.operations[reader].block != operation.block]
        return (*others, operation.index)

    def _report(self, operation: KernelOperation, verb: str, other: int, others_verb: str, address: Address) -> None:
        first, second = self._plan.operations[other], operation
        block, other_block = self._plan.blocks[second.block], self._plan.blocks[first.block]
        where = place(block.gpu, block.id, second.step.index)
        what = (
            f"it {verb} cells from {address.buffer}[{address.offset}] on that step {first.step.index} of tb"
            f" {other_block.id} {others_verb}, and nothing orders the two; make one wait for the other"
        )
        self._findings.violation(where, "race", what)


def find_races(
    plan: KernelProgram,
    order: Sequence[int],
    settings: Sequence[RunSetting],
    found: Sequence[Findings],
    promises: HappensBefore,
) -> AccessOrder:
    """Report accesses that nothing orders when every step is one message; tell from which size on there are more of them.

    Mostly flags alone order what threadblocks of a GPU do, which is soon seen GPU by GPU; only if they do not, messages count too,
    at first as if none carried more than one chunk.

    Parameters
    ----------
    plan, order
        All operations, and an order of them that respects queues and flags.
    settings, found
        Every setting of the program, and where its errors go.
    promises
        Rules that order operations.
    """
    trial = _RaceTrial(settings)
    _follow_flags(plan, order, trial.checks(plan), promises)
    if trial.is_racy and promises.messages:
        trial = _RaceTrial(settings)
        _follow_all(plan, order, trial.checks(plan), promises, chunks_per_message=1)
        if trial.is_racy:
            return _find_split(plan, order, settings, found, promises)
    return trial.report(found)


def _find_split(
    plan: KernelProgram,
    order: Sequence[int],
    settings: Sequence[RunSetting],
    found: Sequence[Findings],
    promises: HappensBefore,
) -> AccessOrder:
    """The same, message by message, for messages of fewer and fewer chunks."""
    trial = _RaceTrial(settings)
    _follow_all(plan, order, trial.checks(plan), promises, MAX_COUNT)
    seen = trial.report(found)
    if trial.is_racy:
        return seen
    tried = plan
    for chunks in range(max(operation.step.count for operation in plan.operations) - 1, 0, -1):
        split = split_plan(plan, chunks)
        if len(split.operations) == len(tried.operations):
            continue
        tried, trial = split, _RaceTrial(settings)
        _follow_all(split, split_order(order, plan, chunks), trial.checks(split), promises, chunks)
        if trial.is_racy:
            return AccessOrder(seen.through_input, chunks + 1, trial.reason)
    return seen


class _RaceTrial:
    """Errors in every setting that are not yet anybody's."""

    def __init__(self, settings: Sequence[RunSetting]) -> None:
        self._settings = settings
        self._found = [Findings() for _ in settings]
        self._checks: list[RaceCheck] = []

    def checks(self, plan: KernelProgram) -> list[RaceCheck]:
        """New checks, whose errors are kept here."""
        self._checks = [
            RaceCheck(plan, setting, found) for setting, found in zip(self._settings, self._found, strict=True)
        ]
        return self._checks

    @property
    def is_racy(self) -> bool:
        return any(found.violations() for found in self._found)

    @property
    def reason(self) -> str:
        violation = next(each for found in self._found for each in found.violations())
        return f"{violation.where}: {violation.what}"

    def report(self, found: Sequence[Findings]) -> AccessOrder:
        """Hand the errors over."""
        for mine, theirs in zip(self._found, found, strict=True):
            for violation in mine.violations():
                theirs.violation(violation.where, violation.rule, violation.what)
        return AccessOrder(any(check.through_input for check in self._checks))


def _follow_flags(
    plan: KernelProgram, order: Sequence[int], checks: Sequence[RaceCheck], promises: HappensBefore
) -> None:
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
            past_of_flag[index] = past if promises.flags_of_sends or operation.step.type != SEND else before


def _bits_in_gpu(plan: KernelProgram) -> list[int]:
    """Position of every operation among those of its GPU."""
    counts = Counter[int]()
    positions = [0] * len(plan.operations)
    for block in plan.blocks:
        for operation in block.operations:
            positions[operation.index] = counts[block.gpu]
            counts[block.gpu] += 1
    return positions


@dataclass(frozen=True, slots=True)
class _MessageKnowledge:
    """Operations known to receivers of a step's messages before the first one, and when they have them all."""

    at_first: int
    at_last: int


def _follow_all(
    plan: KernelProgram,
    order: Sequence[int],
    checks: Sequence[RaceCheck],
    promises: HappensBefore,
    chunks_per_message: int,
) -> None:
    """Run the checks with all that is known, by messages too; of a step of more chunks the first message tells only what came before."""
    waiters = Counter(wait.operation for operation in plan.operations for wait in set(operation.waits))
    past_of_block = [0] * len(plan.blocks)
    past_of_flag: dict[int, int] = {}
    bit_of = range(len(plan.operations))
    messages: list[deque[_MessageKnowledge]] = [deque() for _ in plan.connections]
    for index in order:
        operation = plan.operations[index]
        before = past_of_block[operation.block]
        for wait in set(operation.waits):
            if wait.operation is not None:
                before |= past_of_flag[wait.operation]
                waiters[wait.operation] -= 1
                if not waiters[wait.operation]:
                    del past_of_flag[wait.operation]
        message = _MessageKnowledge(0, 0) if operation.inbound is None else messages[operation.inbound].popleft()
        before |= message.at_first
        for check in checks:
            check.access(operation, Past(before, bit_of))
        past = before | message.at_last | 1 << index
        past_of_block[operation.block] = past
        if waiters[index]:
            past_of_flag[index] = past if promises.flags_of_sends or operation.step.type != SEND else before
        if operation.outbound is not None:
            at_once = operation.step.count <= chunks_per_message
            messages[operation.outbound].append(_MessageKnowledge(past if at_once else before, past))

"""Rules about steps: their numbers, addresses, dependencies and how the runtimes fuse them."""

from __future__ import annotations

from taccl_py.collective import Buffer
from taccl_py.runtimes import (
    MAX_COUNT,
    MAX_DEPENDENCY_THREADBLOCK,
    MAX_OFFSET,
    MAX_REDUCE_CHAIN,
    MAX_XML_CHILDREN,
    RCCL,
    Runtime,
)
from taccl_py.verify.msccl.findings import Findings, place
from taccl_py.verify.msccl.geometry import BufferLengths
from taccl_py.verify.msccl.grammar import NOP, AlgoElement, Gpu, Step, Threadblock
from taccl_py.verify.msccl.operations import FusedStep, FusedThreadblock, fuse
from taccl_py.verify.msccl.rules import capped_threads


def check_steps(algorithm: AlgoElement, geometry: BufferLengths | None, runtime: Runtime, findings: Findings) -> None:
    """All rules about steps."""
    threads = capped_threads(algorithm)
    for gpu in algorithm.gpus:
        lengths = _usable_chunks(gpu, geometry)
        for tb in gpu.threadblocks:
            _check_step_count(gpu, tb, runtime, findings)
            for step in tb.steps:
                where = place(gpu.id, tb.id, step.index)
                _check_number(step, where, runtime, findings)
                _check_flag(step, where, findings)
                _check_count(step, where, findings)
                _check_peers(step, tb, where, findings)
                _check_addresses(step, lengths, where, findings)
                _check_fused(step, where, runtime, findings)
            fused = fuse(tb)
            _check_nops(gpu, tb, fused, findings)
            _check_waits(gpu, tb, fused, threads, findings)
            for operation in fused.operations:
                if len(operation.steps) > 1:
                    _check_chain(gpu, tb, operation, runtime, findings)
        _check_dependencies(gpu, findings)


def _check_step_count(gpu: Gpu, tb: Threadblock, runtime: Runtime, findings: Findings) -> None:
    steps = len(tb.steps)
    if steps > runtime.max_steps:
        what = f"{steps} steps; a default build of {runtime.title} has room for {runtime.max_steps}"
        findings.violation(place(gpu.id, tb.id), "step-limit", what)
    if steps > MAX_XML_CHILDREN:
        what = f"{steps} steps; more than {MAX_XML_CHILDREN} overwrite memory"
        findings.violation(place(gpu.id, tb.id), "child-limit", what)
    if steps == 0:
        findings.note("some threadblocks have no steps and do nothing")


def _check_number(step: Step, where: str, runtime: Runtime, findings: Findings) -> None:
    if step.number != step.index:
        what = f"s={step.number} at position {step.index}; number the steps 0, 1, 2, ... in file order, nops included"
        findings.violation(where, "step-number", what)
    if step.number >= runtime.max_steps:
        what = f"s={step.number}; a default build of {runtime.title} has steps 0..{runtime.max_steps - 1}"
        findings.violation(where, "step-limit", what)


def _check_flag(step: Step, where: str, findings: Findings) -> None:
    if step.type == NOP:
        if step.flags:
            findings.note("some nops have hasdep=1; a nop raises no flag")
    elif step.flags not in (0, 1):
        findings.violation(where, "has-dependent", f"hasdep={step.flags}; write 0 or 1")


def _check_count(step: Step, where: str, findings: Findings) -> None:
    if step.type == NOP:
        if step.count:
            findings.note("some nops have a cnt other than 0, which is not read")
    elif step.count < 1:
        findings.violation(where, "count-range", f"cnt={step.count}; a step moves at least 1 chunk", fatal=True)
    elif step.count > MAX_COUNT:
        findings.violation(where, "count-range", f"cnt={step.count}; at most {MAX_COUNT}, use several steps")


def _check_peers(step: Step, tb: Threadblock, where: str, findings: Findings) -> None:
    if step.does.sends and tb.send_peer < 0:
        what = f"{step.type} sends, and the threadblock has send={tb.send_peer}"
        findings.violation(where, "missing-peer", what, fatal=True)
    if step.does.receives and tb.recv_peer < 0:
        what = f"{step.type} receives, and the threadblock has recv={tb.recv_peer}"
        findings.violation(where, "missing-peer", what, fatal=True)


def _usable_chunks(gpu: Gpu, geometry: BufferLengths | None) -> dict[Buffer, int]:
    """Length of each buffer: as declared, and not more than the user's buffers have."""
    lengths = {buffer: gpu.declared_chunks(buffer) for buffer in Buffer}
    if geometry is not None:
        for buffer in (Buffer.INPUT, Buffer.OUTPUT):
            lengths[buffer] = min(lengths[buffer], geometry.chunks(buffer))
    return lengths


def _check_addresses(step: Step, lengths: dict[Buffer, int], where: str, findings: Findings) -> None:
    for used, end, address in ((step.does.reads, "src", step.source), (step.does.writes, "dst", step.target)):
        if not used:
            continue
        size = lengths[address.buffer]
        if address.offset < 0 or address.offset + step.count > size:
            what = f"{end}off={address.offset} cnt={step.count} leaves buffer {address.buffer}, which has {size} chunks here"
            findings.violation(where, "buffer-bounds", what, fatal=True)
        if address.offset > MAX_OFFSET:
            what = f"{end}off={address.offset}; offsets end at {MAX_OFFSET}"
            findings.violation(where, "offset-limit", what, fatal=True)


def _check_fused(step: Step, where: str, runtime: Runtime, findings: Findings) -> None:
    if step.does.fused and not runtime.fused:
        what = f"{runtime.title} is built without {step.type}; use r, re and s in its place"
        findings.violation(where, "fused-operation", what)


def _check_nops(gpu: Gpu, tb: Threadblock, fused: FusedThreadblock, findings: Findings) -> None:
    for step in tb.steps:
        if step.type == NOP and step.depends_on is None:
            what = "a nop without a dependency shifts the kernel's count of the steps after it; remove it"
            findings.violation(place(gpu.id, tb.id, step.index), "nop-without-dependency", what)
    if fused.dropped:
        what = "its last nops wait for nothing, since no step follows them; remove them"
        findings.violation(place(gpu.id, tb.id, tb.steps[-1].index), "trailing-nop", what)
    for operation in fused.operations:
        first = operation.steps[0]
        if operation.collected and first.depends_on is None:
            what = (
                f"{len(operation.collected)} dependencies were collected before this step, which has none itself; the parser"
                " refuses that, put the last of them on the step"
            )
            findings.violation(place(gpu.id, tb.id, first.index), "dependency-chain", what)


def _check_waits(
    gpu: Gpu, tb: Threadblock, fused: FusedThreadblock, threads: int | None, findings: Findings
) -> None:  # fmt: skip
    """Each dependency of an operation needs a thread; there are enough for all steps of a threadblock where no cap is set."""
    for operation in fused.operations:
        waits = len(operation.collected)
        if threads is not None and waits > threads:
            what = f"it waits for {waits} steps, each with a thread of its own, and nthreads leaves it {threads}; raise nthreads"
            findings.violation(place(gpu.id, tb.id, operation.steps[0].index), "dependency-count", what)


def _check_chain(gpu: Gpu, tb: Threadblock, operation: FusedStep, runtime: Runtime, findings: Findings) -> None:
    first, last = operation.steps[0], operation.steps[-1]
    where = place(gpu.id, tb.id, first.index)
    length = len(operation.steps)
    if length > MAX_REDUCE_CHAIN and runtime.name == RCCL.name:
        findings.note(
            f"a chain of {length} reductions is fused; {runtime.title} can, other runtimes stop at {MAX_REDUCE_CHAIN}"
        )
    elif length > MAX_REDUCE_CHAIN:
        what = (
            f"the runtime fuses {length} reductions from here on into one; at most {MAX_REDUCE_CHAIN}, break the chain"
        )
        findings.violation(where, "reduce-chain-length", what)
    counts = sorted({step.count for step in operation.steps})
    if len(counts) > 1:
        what = f"the reductions fused from here to step {last.index} have cnt {counts}; all are run with {last.count}"
        findings.violation(where, "reduce-chain-count", what, fatal=True)
    for step in operation.swallowed:
        what = f"this nop stands between reductions that are fused into one, so step {last.index} does not wait for it"
        findings.violation(place(gpu.id, tb.id, step.index), "reduce-chain-nop", what)


def _check_dependencies(gpu: Gpu, findings: Findings) -> None:
    steps = {(tb.id, step.number): step for tb in gpu.threadblocks for step in reversed(tb.steps)}
    lengths = {tb.id: len(tb.steps) for tb in gpu.threadblocks}
    wanted: set[tuple[int, int]] = set()
    for tb in gpu.threadblocks:
        for step in tb.steps:
            if step.depends_on is None:
                continue
            owner, number = step.depends_on.threadblock, step.depends_on.step
            wanted.add((owner, number))
            _check_dependency(step, place(gpu.id, tb.id, step.index), lengths, steps.get((owner, number)), findings)
            if owner == tb.id:
                findings.note("some steps depend on their own threadblock, which runs in order anyway")
    unused = sum(1 for (tb, number), step in steps.items() if step.flags and (tb, number) not in wanted)
    if unused:
        findings.note("some steps have hasdep=1 and nobody waits for them, which only costs time")


def _check_dependency(step: Step, where: str, lengths: dict[int, int], target: Step | None, findings: Findings) -> None:
    if step.depends_on is None:
        return
    owner, number = step.depends_on.threadblock, step.depends_on.step
    if owner > MAX_DEPENDENCY_THREADBLOCK:
        what = f"depid={owner}; the runtimes keep it in 8 bits, at most {MAX_DEPENDENCY_THREADBLOCK}"
        findings.violation(where, "dependency-threadblock", what)
    if owner > max(lengths):
        what = f"depid={owner}: the last threadblock of the GPU is {max(lengths)}"
        findings.violation(where, "dependency-target", what, fatal=True)
    elif owner not in lengths:
        return  # a gap in the ids, which is rejected by itself
    elif target is None and 0 <= number < lengths[owner]:
        return  # steps are not numbered as they stand, and that is rejected by itself
    elif target is None:
        what = f"deps={number}: threadblock {owner} has steps 0..{lengths[owner] - 1}"
        findings.violation(where, "dependency-target", what)
    elif target.type == NOP:
        what = f"it waits for step {number} of threadblock {owner}, a nop, which raises no flag; wait for a real step"
        findings.violation(where, "dependency-on-nop", what)
    elif not target.flags:
        what = f"it waits for step {number} of threadblock {owner}, which has hasdep=0 and raises no flag; set hasdep=1"
        findings.violation(where, "dependency-unflagged", what)

"""A program of any origin for a runtime.

Copies become steps, fused steps are taken apart where the runtime has none, and waits are written as its parser wants them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from taccl_py.collective import Address, Buffer, Collective, Kind
from taccl_py.errors import InputError
from taccl_py.lowering.buffers import CallPlacement, placement_flags
from taccl_py.lowering.foreign import ForeignFile, LocalCopy, counted_by, runs_of
from taccl_py.lowering.limits import require_limits
from taccl_py.lowering.msccl_xml import UNLIMITED_BYTES
from taccl_py.lowering.program import Gpu, Op, Program, Step, Threadblock
from taccl_py.runtimes import CUSTOM, LEGACY, LOOP_LIMIT, MAX_COUNT, Runtime

_FUSED = (Op.RECV_COPY_SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_COPY_SEND)
_NOWHERE = (Address(Buffer.INPUT, -1), Address(Buffer.OUTPUT, -1))


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """Target of a conversion: runtime and placements.

    Attributes
    ----------
    runtime
        Where the program is to run.
    in_place, out_of_place
        For which placements.
    adds_to_target
        Whether ``rrc`` adds to what lies at its destination, as TACCL means it: there its source is the sender's address.
    unfused
        Whether fused steps are taken apart although the runtime has them: one waits for room to send before it receives.
    """

    runtime: Runtime
    in_place: bool
    out_of_place: bool
    adds_to_target: bool = False
    unfused: bool = False


def conversions(file: ForeignFile, runtime: Runtime, placement: CallPlacement | None) -> list[ConvertOptions]:
    """Readings of a file, the most useful first.

    Raises
    ------
    LoweringError
        If the runtime has no calls of the placement.
    """
    program = file.program
    declared = CallPlacement.BOTH
    if program.in_place != program.out_of_place:
        declared = CallPlacement.IN_PLACE if program.in_place else CallPlacement.OUT_OF_PLACE
    wanted = [placement] if placement is not None else [declared]
    if placement is None and file.legacy and runtime.name != LEGACY.name:
        wanted.insert(0, CallPlacement.BOTH)
    meanings = (False, True) if any(file.copies) else (False,)
    flags = [placement_flags(one, runtime, program.known_kind) for one in wanted]
    fused = any(step.op in _FUSED for gpu in program.gpus for tb in gpu.threadblocks for step in tb.steps)
    return [
        ConvertOptions(runtime, one.in_place, one.out_of_place, meaning, apart)
        for apart in ((False, True) if fused and runtime.fused else (False,))
        for one in flags
        for meaning in meanings
    ]


@dataclass(slots=True, eq=False)
class _ConvertedStep:
    """A step that moves something, and those of other threadblocks that must have been done."""

    op: Op
    src: Address
    dst: Address
    count: int
    waits: list[_ConvertedStep] = field(default_factory=list)

    @property
    def touched(self) -> list[Address]:
        """First cells of what it reads and writes on this rank."""
        reads = self.op in (Op.SEND, Op.COPY, Op.REDUCE) or self.op.adds
        writes = self.op not in (Op.SEND, Op.RECV_REDUCE_SEND)
        return [self.src] * reads + [self.dst] * writes


@dataclass(slots=True)
class _ConvertedBlock:
    """A threadblock of acts."""

    send_peer: int
    recv_peer: int
    channel: int
    acts: list[_ConvertedStep]


def convert(file: ForeignFile, options: ConvertOptions) -> Program:
    """Return the program for a runtime.

    Raises
    ------
    InputError
        If a step waits for one that does not exist.
    LoweringError
        If a limit of the runtime cannot be kept.
    """
    program, runtime = file.program, options.runtime
    gpus = []
    for gpu, copies in zip(program.gpus, file.copies, strict=True):
        blocks = _take_apart(gpu)
        if options.adds_to_target:
            _add_to_target(blocks)
        if options.out_of_place:
            _insert_copies(blocks, copies)
        scratch = gpu.scratch_chunks
        if options.unfused or not runtime.fused:
            scratch = _unfuse(blocks, scratch, in_place=options.in_place)
        lengths = _lengths(file, gpu, blocks, runtime)
        gpus.append(Gpu(gpu.rank, lengths[Buffer.INPUT], lengths[Buffer.OUTPUT], scratch, _put_together(blocks)))
    chunks = counted_by(program, runtime, custom=file.custom)
    converted = replace(
        program,
        num_chunks_per_loop=chunks,
        max_bytes=_max_bytes(program, chunks, runtime),
        in_place=options.in_place,
        out_of_place=options.out_of_place,
        gpus=tuple(gpus),
    )
    require_limits(converted, runtime)
    return converted


def _max_bytes(program: Program, chunks: int, runtime: Runtime) -> int:
    """Largest size as written; but no more than the runtime can count, unless it knows a word for no limit."""
    if program.max_bytes == UNLIMITED_BYTES and runtime.max_bytes_zero == "unlimited":
        return program.max_bytes
    rounds_bytes = LOOP_LIMIT * chunks * runtime.payload_bytes[program.protocol]
    return min(program.max_bytes, rounds_bytes, runtime.max_size_bytes)


def _take_apart(gpu: Gpu) -> list[_ConvertedBlock]:
    """Acts with all they wait for; nops go."""
    acts = [[_ConvertedStep(step.op, step.src, step.dst, step.count) for step in tb.steps] for tb in gpu.threadblocks]
    for number, tb in enumerate(gpu.threadblocks):
        pending: list[_ConvertedStep] = []
        for step, act in zip(tb.steps, acts[number], strict=True):
            if step.depends_on is not None:
                pending.append(_waited(acts, gpu.rank, number, step.depends_on))
            if step.op is not Op.NOP:
                act.waits, pending = pending, []
    return [
        _ConvertedBlock(tb.send_peer, tb.recv_peer, tb.channel, [act for act in of_block if act.op is not Op.NOP])
        for tb, of_block in zip(gpu.threadblocks, acts, strict=True)
    ]


def _waited(acts: list[list[_ConvertedStep]], rank: int, number: int, depends_on: tuple[int, int]) -> _ConvertedStep:
    """Step that a dependency names, or if that is a nop, the one that it belongs to."""
    block, index = depends_on
    steps = acts[block] if block < len(acts) else []
    target = next((act for act in steps[index:] if act.op is not Op.NOP), None) if index < len(steps) else None
    if target is None:
        raise InputError(
            f"threadblock {number} of rank {rank} waits for step {index} of threadblock {block}, which does not exist"
        )
    return target


def _add_to_target(blocks: Sequence[_ConvertedBlock]) -> None:
    for act in [act for block in blocks for act in block.acts]:
        if act.op in (Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_COPY_SEND):
            act.src = act.dst


def _insert_copies(blocks: list[_ConvertedBlock], copies: Sequence[LocalCopy]) -> None:
    """Copy before anything else: whoever touches what is copied waits for it."""
    if not copies:
        return
    made = [
        _ConvertedStep(
            Op.COPY, Address(Buffer.INPUT, first.input_chunk), Address(Buffer.OUTPUT, first.output_chunk), count
        )
        for first, count in runs_of(copies, MAX_COUNT)
    ]
    copied = {copy.output_chunk for copy in copies}
    for block in blocks:
        for act in block.acts:
            outputs = [address.offset for address in act.touched if address.buffer is Buffer.OUTPUT]
            if any(copied.intersection(range(offset, offset + act.count)) for offset in outputs):
                act.waits.append(made[-1])
                break
    blocks.append(_ConvertedBlock(-1, -1, 0, made))


def _unfuse(blocks: Sequence[_ConvertedBlock], scratch: int, *, in_place: bool) -> int:
    """Receive, add and send one after the other; returns the scratch that is needed now."""
    for block in blocks:
        private = Address(Buffer.SCRATCH, scratch)
        parts = [_parts(act, private, in_place=in_place) for act in block.acts]
        used = [part.count for of_act in parts for part in of_act if private in (part.src, part.dst)]
        scratch += max(used, default=0)
        block.acts = [part for of_act in parts for part in of_act]
    return scratch


def _parts(act: _ConvertedStep, private: Address, *, in_place: bool) -> list[_ConvertedStep]:
    """Steps of which an act consists; it is the last of them, so that a wait for it is one for all."""
    count, src, dst = act.count, act.src, act.dst
    if act.op is Op.RECV_COPY_SEND:
        parts = [_ConvertedStep(Op.RECV, src, dst, count), _ConvertedStep(Op.SEND, dst, dst, count)]
    elif act.op is Op.RECV_REDUCE_SEND:
        parts = [_ConvertedStep(Op.RECV, src, private, count), _ConvertedStep(Op.REDUCE, src, private, count)]
        parts.append(_ConvertedStep(Op.SEND, private, dst, count))
    elif act.op.adds:
        if src == dst:
            parts = [_ConvertedStep(Op.RECV, src, private, count), _ConvertedStep(Op.REDUCE, private, dst, count)]
        elif _may_overlap(src, dst, count, in_place=in_place):
            # A message must not be stored over the cells that it is added to.
            parts = [_ConvertedStep(Op.RECV, src, private, count), _ConvertedStep(Op.REDUCE, src, private, count)]
            parts.append(_ConvertedStep(Op.COPY, private, dst, count))
        else:
            parts = [_ConvertedStep(Op.RECV, src, dst, count), _ConvertedStep(Op.REDUCE, src, dst, count)]
        parts += [_ConvertedStep(Op.SEND, dst, dst, count)] * (act.op is Op.RECV_REDUCE_COPY_SEND)
    else:
        return [act]
    parts[0].waits = act.waits
    last = parts.pop()
    act.op, act.src, act.dst, act.waits = last.op, last.src, last.dst, []
    return [*parts, act]


def _may_overlap(one: Address, other: Address, count: int, *, in_place: bool) -> bool:
    """True if two ranges of cells can be the same memory."""
    if one.buffer is other.buffer:
        return abs(one.offset - other.offset) < count
    return in_place and Buffer.SCRATCH not in (one.buffer, other.buffer)


def _lengths(file: ForeignFile, gpu: Gpu, blocks: Sequence[_ConvertedBlock], runtime: Runtime) -> dict[Buffer, int]:
    """Lengths of input and output to declare: as before, but the true ones where a buffer was not used or is counted anew."""
    program, ranks = file.program, len(file.program.gpus)
    used = {address.buffer for block in blocks for act in block.acts for address in act.touched}
    lengths = {Buffer.INPUT: gpu.input_chunks, Buffer.OUTPUT: gpu.output_chunks}
    if program.kind not in (Kind.GATHER, Kind.SCATTER):
        per_rank = program.kind in (Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.ALLTOALL)
        true = Collective(program.known_kind, ranks, program.num_chunks_per_loop // (ranks if per_rank else 1))
        whole = {Buffer.INPUT: true.input_chunks, Buffer.OUTPUT: true.output_chunks}
        return {buffer: length or whole[buffer] * (buffer in used) for buffer, length in lengths.items()}
    chunks = counted_by(program, runtime, custom=file.custom)
    lone = Buffer.OUTPUT if program.kind is Kind.GATHER else Buffer.INPUT
    if runtime.collectives.get(program.kind) == CUSTOM:
        # Only the buffers of the ranks tell what a custom collective is.
        return {buffer: chunks if buffer is not lone or buffer in used else 0 for buffer in lengths}
    return {buffer: chunks * (ranks if buffer is lone else 1) * (buffer in used) for buffer in lengths}


def _put_together(blocks: Sequence[_ConvertedBlock]) -> tuple[Threadblock, ...]:
    """Threadblocks with nops for all waits of a step but the last."""
    owner = {id(act): number for number, block in enumerate(blocks) for act in block.acts}
    order = {id(act): index for block in blocks for index, act in enumerate(block.acts)}
    waits: dict[int, list[_ConvertedStep]] = {}
    for number, block in enumerate(blocks):
        for act in block.acts:
            latest: dict[int, _ConvertedStep] = {}
            for target in sorted(act.waits, key=lambda one: order[id(one)]):
                if owner[id(target)] != number or order[id(target)] >= order[id(act)]:
                    latest[owner[id(target)]] = target
            waits[id(act)] = [latest[key] for key in sorted(latest)]
    places = {}
    for number, block in enumerate(blocks):
        index = 0
        for act in block.acts:
            index += max(0, len(waits[id(act)]) - 1)
            places[id(act)] = (number, index)
            index += 1
    flagged = {id(target) for targets in waits.values() for target in targets}
    return tuple(
        Threadblock(
            block.send_peer,
            block.recv_peer,
            block.channel,
            tuple(
                step
                for act in block.acts
                for step in _steps(act, [places[id(target)] for target in waits[id(act)]], id(act) in flagged)
            ),
        )
        for block in blocks
    )


def _steps(act: _ConvertedStep, waits: list[tuple[int, int]], flagged: bool) -> list[Step]:
    nops = [Step(Op.NOP, *_NOWHERE, 0, place) for place in waits[:-1]]
    return [*nops, Step(act.op, act.src, act.dst, act.count, waits[-1] if waits else None, flagged)]

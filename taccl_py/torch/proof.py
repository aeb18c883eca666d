"""Proof that a compiled program is right: all ranks executed on names of chunks and of who has contributed to them.

It knows nothing of how the program was compiled, so whatever the file says, and whatever was joined or moved, a program that passes
gives the collective's result. Every chunk's value is a chunk of the collective and the set of ranks whose contributions are in it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from taccl_py.collective import Buffer, Kind
from taccl_py.errors import InvalidArtifact
from taccl_py.execute.trouble import Trouble
from taccl_py.torch.steps import ChunkRun, CompiledProgram, LocalOperation, PeerMessage, shared_address


class ChunkValue(NamedTuple):
    """A chunk of the collective, and the ranks whose contributions are summed in it, one bit each."""

    chunk: int
    ranks: int


_Cells = dict[Buffer, list[ChunkValue | None]]


def require_right(program: CompiledProgram) -> None:
    """Execute a program on names.

    Raises
    ------
    InvalidArtifact
        If ranks do not send what others take, something is used that is not there, a contribution counts twice, the result is not
        what the collective promises, or a call that is not in place changes its input.
    """
    try:
        memories = [_start(program, rank) for rank in range(program.num_ranks)]
        for number in range(len(program.rounds[0])):
            _run_round(program, memories, number)
        for rank, cells in enumerate(memories):
            _check_end(program, rank, cells)
    except Trouble as trouble:
        raise InvalidArtifact(program.name, [trouble.violation]) from None


def _start(program: CompiledProgram, rank: int) -> _Cells:
    """Buffers of a rank before the call; input and output in place are one."""
    cells: _Cells = {Buffer.SCRATCH: [None] * program.scratch_chunks[rank]}
    for buffer, length in ((Buffer.INPUT, program.input_chunks), (Buffer.OUTPUT, program.output_chunks)):
        if _address(program, rank, buffer, 0)[0] is buffer:
            cells[buffer] = [None] * length
    if program.kind is not Kind.BROADCAST or rank == program.root:
        for chunk in range(program.input_chunks):
            buffer, offset = _address(program, rank, Buffer.INPUT, chunk)
            cells[buffer][offset] = _input_value(program, rank, chunk)
    return cells


def _address(program: CompiledProgram, rank: int, buffer: Buffer, offset: int) -> tuple[Buffer, int]:
    if not program.in_place:
        return buffer, offset
    return shared_address(rank, program.input_chunks, program.output_chunks, buffer, offset)


def _input_value(program: CompiledProgram, rank: int, chunk: int) -> ChunkValue:
    if program.kind is Kind.ALLGATHER:
        return ChunkValue(rank * program.input_chunks + chunk, 1 << rank)
    if program.kind is Kind.ALLTOALL:
        return ChunkValue(rank * program.input_chunks + chunk, 1 << rank)
    return ChunkValue(chunk, 1 << rank)


def _output_value(program: CompiledProgram, rank: int, chunk: int) -> ChunkValue:
    everybody, part = (1 << program.num_ranks) - 1, program.output_chunks // program.num_ranks
    match program.kind:
        case Kind.ALLREDUCE:
            return ChunkValue(chunk, everybody)
        case Kind.REDUCESCATTER:
            return ChunkValue(rank * program.output_chunks + chunk, everybody)
        case Kind.ALLGATHER:
            return ChunkValue(chunk, 1 << chunk // program.input_chunks)
        case Kind.ALLTOALL:
            src, offset = divmod(chunk, part)
            return ChunkValue(src * program.input_chunks + rank * part + offset, 1 << src)
        case Kind.BROADCAST:
            return ChunkValue(chunk, 1 << program.root)
    raise Trouble("", "collective", f"{program.kind} is none of the collectives that can be compiled")


def _run_round(program: CompiledProgram, memories: list[_Cells], number: int) -> None:
    """Operations of all ranks, then the exchange: what was sent is read before anything lands."""
    sent: defaultdict[tuple[int, int], list[list[ChunkValue | None]]] = defaultdict(list)
    for rank, cells in enumerate(memories):
        one, where = program.rounds[rank][number], f"gpu {rank} round {number}"
        for operation in one.operations:
            _operate(cells, operation, where)
        _require_apart(one.sends, one.receives, where)
        for message in one.sends:
            sent[rank, message.peer].append(_read(cells, message.region, where))
    for rank, cells in enumerate(memories):
        for message in program.rounds[rank][number].receives:
            where, queue = f"gpu {rank} round {number}", sent[message.peer, rank]
            values = queue.pop(0) if queue else []
            if len(values) != message.region.chunks:
                what = f"takes {message.region.chunks} chunks from rank {message.peer}, which sends {len(values)}"
                raise Trouble(where, "count-mismatch", what)
            _write(cells, message.region, values, where)
    for (src, dst), queue in sorted(sent.items()):
        if queue:
            raise Trouble(f"gpu {src} round {number}", "left-over", f"sends more to rank {dst} than that takes")


def _require_apart(sends: tuple[PeerMessage, ...], receives: tuple[PeerMessage, ...], where: str) -> None:
    """Nothing lands where something leaves, or something else lands, in the same round."""
    landing: set[tuple[Buffer, int]] = set()
    for message in receives:
        cells = {(message.region.buffer, chunk) for chunk in range(message.region.offset, message.region.end)}
        if cells & landing:
            raise Trouble(where, "race", "two messages of a round land in the same chunks")
        landing |= cells
    for message in sends:
        region = message.region
        if any((region.buffer, chunk) in landing for chunk in range(region.offset, region.end)):
            raise Trouble(where, "race", "a message lands in chunks that leave in the same round")


def _operate(cells: _Cells, operation: LocalOperation, where: str) -> None:
    target, first, second = operation
    for operand in (first, second):
        if operand is not None and operand.overlaps(target) and operand != target:
            raise Trouble(where, "race", "an operation overwrites a part of what it reads")
    values = _read(cells, first, where)
    if second is not None:
        values = [_combine(one, other, where) for one, other in zip(values, _read(cells, second, where), strict=True)]
    _write(cells, target, values, where)


def _combine(one: ChunkValue | None, other: ChunkValue | None, where: str) -> ChunkValue:
    if one is None or other is None:
        raise Trouble(where, "nothing-there", "combines a chunk into which nobody has written")
    if one.chunk != other.chunk or one.ranks & other.ranks:
        what = (
            f"combines chunk {one.chunk} with chunk {other.chunk}"
            if one.chunk != other.chunk
            else "adds a contribution twice"
        )
        raise Trouble(where, "wrong-sum", what)
    return ChunkValue(one.chunk, one.ranks | other.ranks)


def _read(cells: _Cells, region: ChunkRun, where: str) -> list[ChunkValue | None]:
    buffer = cells.get(region.buffer)
    if buffer is None or region.offset < 0 or region.end > len(buffer):
        raise Trouble(where, "outside-buffer", f"uses chunks {region.offset}..{region.end - 1} of {region.buffer}")
    return buffer[region.offset : region.end]


def _write(cells: _Cells, region: ChunkRun, values: list[ChunkValue | None], where: str) -> None:
    _read(cells, region, where)
    cells[region.buffer][region.offset : region.end] = values


def _check_end(program: CompiledProgram, rank: int, cells: _Cells) -> None:
    """The output is what was promised, and an input apart from it is what it was."""
    for chunk in range(program.output_chunks):
        buffer, offset = _address(program, rank, Buffer.OUTPUT, chunk)
        found, promised = cells[buffer][offset], _output_value(program, rank, chunk)
        if found != promised:
            what = "nobody has written" if found is None else f"chunk {found.chunk} of ranks {_ranks(found)} is"
            needed = f"chunk {promised.chunk} of ranks {_ranks(promised)}"
            raise Trouble(f"gpu {rank}", "wrong-result", f"in output chunk {chunk} {what}, and {needed} belongs there")
    if program.in_place or (program.kind is Kind.BROADCAST and rank != program.root):
        return
    for chunk, found in enumerate(cells[Buffer.INPUT]):
        if found != _input_value(program, rank, chunk):
            raise Trouble(
                f"gpu {rank}", "input-changed", f"overwrites chunk {chunk} of the input, which is the caller's"
            )


def _ranks(value: ChunkValue) -> str:
    return "+".join(str(rank) for rank in range(value.ranks.bit_length()) if value.ranks >> rank & 1)

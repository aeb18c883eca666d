"""Limits of a runtime that a program must keep; each one is tested before a program is returned."""

from __future__ import annotations

from taccl_py.collective import Kind
from taccl_py.errors import LoweringError
from taccl_py.lowering.program import Gpu, Program, Threadblock
from taccl_py.runtimes import (
    LEGACY,
    MAX_DEPENDENCY_THREADBLOCK,
    MAX_NAME,
    MAX_OFFSET,
    MAX_PEERS_PER_CHANNEL,
    MAX_XML_CHILDREN,
    MAX_XML_NODES,
    Runtime,
)

# The limit that a program misses whose chunks divide no size for which it may be used.
NO_CALL = "nchunksperloop"
_WIDEST_ELEMENT_BYTES = 8
_BUILT_IN_NAME = "2D"


def require_limits(program: Program, runtime: Runtime) -> None:
    """Refuse a program that the runtime cannot load or run.

    Raises
    ------
    LoweringError
        Naming the limit, what was found, and what helps.
    """
    require_name(program.name, program.kind, runtime)
    _require(runtime, "max_channels", "channels", program.num_channels, runtime.max_channels, "use fewer instances")
    _require(runtime, "children", "ranks", len(program.gpus), MAX_XML_CHILDREN, "use a smaller machine")
    for gpu in program.gpus:
        _require_gpu(gpu, len(program.gpus), runtime)


def require_sizes(program: Program, runtime: Runtime) -> None:
    """Refuse a program that the runtime would select at no size: it looks for sizes that the chunks divide.

    Raises
    ------
    LoweringError
        Naming the sizes, what must divide them, and what helps.
    """
    least, whole = max(program.min_bytes, 1), max(program.num_chunks_per_loop, 1)
    if program.max_bytes // whole * whole < least:
        raise no_call(program.min_bytes, program.max_bytes, whole, runtime)


def no_call(min_bytes: int, max_bytes: int, whole: int, runtime: Runtime) -> LoweringError:
    """Return the error that no size of a range is a multiple of so many bytes, one for each chunk of a program."""
    near = " and ".join(map(str, multiples_beside(max_bytes, whole)))
    return LoweringError(
        f"none of the sizes from {min_bytes} to {max_bytes} bytes is a multiple of the program's {whole} chunks, which the count of "
        f"elements must be, so {runtime.title} would never select it; ask for a wider range, which holds for example {near} bytes, "
        "or for fewer chunks or instances",
        runtime=runtime.name,
        limit=NO_CALL,
    )


def multiples_beside(size_bytes: int, divisor: int) -> list[int]:
    """Sizes next to one, the smaller first, that hold a multiple of so many elements of any type."""
    step = divisor * _WIDEST_ELEMENT_BYTES
    below = size_bytes // step * step
    return [size for size in (below, below + step) if size > 0]


def most_copies(program: Program) -> int:
    """Number of copies of a program, side by side in one file, up to which no rank reads more elements than a runtime has room for."""
    room = MAX_XML_NODES - 1 - len(program.gpus)
    return min((room // each for gpu in program.gpus if (each := _own_elements(gpu))), default=room)


def _own_elements(gpu: Gpu) -> int:
    return len(gpu.threadblocks) + sum(len(tb.steps) for tb in gpu.threadblocks)


def require_name(name: str, kind: Kind | None, runtime: Runtime) -> None:
    """Refuse a name that cannot stand in a file, or that means something else to the runtime.

    Raises
    ------
    LoweringError
        If the name is too long, unprintable or taken.
    """
    if len(name) > MAX_NAME or not name:
        raise LoweringError(
            f"the name {name!r} has {len(name)} characters; {runtime.title} takes 1 to {MAX_NAME}",
            runtime=runtime.name,
            limit="name",
        )
    if not name.isascii() or not name.isprintable() or any(sign in name for sign in "\"'<>&"):
        raise LoweringError(
            f"the name {name!r} has a character that algorithm files cannot hold; use letters, digits, '-', '_' and '.'",
            runtime=runtime.name,
            limit="name",
        )
    if runtime.name == LEGACY.name and kind is Kind.ALLTOALL and name == _BUILT_IN_NAME:
        raise LoweringError(
            f"{runtime.title} runs an algorithm of its own for an AllToAll named {name!r}; choose another name",
            runtime=runtime.name,
            limit="name",
        )


def _require_gpu(gpu: Gpu, num_ranks: int, runtime: Runtime) -> None:
    who = f"rank {gpu.rank}"
    fewer = "use fewer instances, or a schedule with fewer messages"
    _require(
        runtime, "max_threadblocks", f"threadblocks of {who}", len(gpu.threadblocks), runtime.max_threadblocks, fewer
    )
    _require(runtime, "children", f"threadblocks of {who}", len(gpu.threadblocks), MAX_XML_CHILDREN, fewer)
    elements = 1 + num_ranks + _own_elements(gpu)
    _require(runtime, "nodes", f"elements that {who} reads", elements, MAX_XML_NODES, fewer)
    for channel in sorted({tb.channel for tb in gpu.threadblocks}):
        here = [tb for tb in gpu.threadblocks if tb.channel == channel]
        senders = sum(tb.send_peer >= 0 for tb in here)
        receivers = sum(tb.recv_peer >= 0 for tb in here)
        both = max(senders, receivers)
        _require(
            runtime, "peers_per_channel", f"peers of {who} on channel {channel}", both, MAX_PEERS_PER_CHANNEL, fewer
        )
    for number, tb in enumerate(gpu.threadblocks):
        _require_threadblock(gpu.rank, number, tb, runtime)


def _require_threadblock(rank: int, number: int, tb: Threadblock, runtime: Runtime) -> None:
    where = f"threadblock {number} of rank {rank}"
    fewer = "use fewer chunks or fewer instances"
    _require(runtime, "max_steps", f"steps of {where}", len(tb.steps), runtime.max_steps, fewer)
    _require(runtime, "children", f"steps of {where}", len(tb.steps), MAX_XML_CHILDREN, fewer)
    offset = max((max(step.src.offset, step.dst.offset) for step in tb.steps), default=0)
    _require(runtime, "offset", f"the chunk offset in {where}", offset, MAX_OFFSET, fewer)
    target = max((step.depends_on[0] for step in tb.steps if step.depends_on), default=0)
    more = "use fewer instances or a lower limit of threadblocks"
    _require(runtime, "dependency", f"the threadblock that {where} waits for", target, MAX_DEPENDENCY_THREADBLOCK, more)


def _require(runtime: Runtime, limit: str, what: str, found: int, most: int, remedy: str) -> None:
    if found > most:
        raise LoweringError(
            f"{what}: {found}, but {runtime.title} allows {most}", runtime=runtime.name, limit=limit, remedy=remedy
        )

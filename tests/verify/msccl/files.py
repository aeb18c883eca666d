"""Small algorithm files made for these tests, as objects that can be broken on purpose and then written as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Attributes = dict[str, object]


@dataclass
class Block:
    attributes: Attributes
    steps: list[Attributes]


@dataclass
class GpuPart:
    attributes: Attributes
    blocks: list[Block] = field(default_factory=list)


@dataclass
class File:
    attributes: Attributes
    gpus: list[GpuPart]

    def step(self, gpu: int, block: int, index: int) -> Attributes:
        return self.gpus[gpu].blocks[block].steps[index]

    def text(self) -> str:
        lines = [f"<algo{_write(self.attributes)}>"]
        for gpu in self.gpus:
            lines.append(f"  <gpu{_write(gpu.attributes)}>")
            for block in gpu.blocks:
                lines.append(f"    <tb{_write(block.attributes)}>")
                lines += [f"      <step{_write({'s': s, **step})}/>" for s, step in enumerate(block.steps)]
                lines.append("    </tb>")
            lines.append("  </gpu>")
        lines.append("</algo>")
        return "\n".join(lines) + "\n"


def _write(attributes: Attributes) -> str:
    return "".join(f' {name}="{value}"' for name, value in attributes.items())


def step(
    kind: str, src: str = "i0", dst: str = "o0", cnt: int = 1, after: tuple[int, int] | None = None, flag: int = 0
) -> Attributes:
    """A step; addresses are written as ``o3``, `after` is the (threadblock, step) that it waits for."""
    depid, deps = after if after is not None else (-1, -1)
    return {
        "type": kind, "srcbuf": src[0], "srcoff": int(src[1:]), "dstbuf": dst[0], "dstoff": int(dst[1:]), "cnt": cnt,
        "depid": depid, "deps": deps, "hasdep": flag,
    }  # fmt: skip


def nop(after: tuple[int, int]) -> Attributes:
    return step("nop", "i-1", "o-1", 0, after)


def make_file(coll: str, num_ranks: int, ncl: int, sizes: tuple[int, int, int], **changes: object) -> File:
    """A file without threadblocks; `sizes` are i_chunks, o_chunks, s_chunks of every gpu."""
    attributes: Attributes = {
        "name": "test", "proto": "LL", "nchannels": 2, "nchunksperloop": ncl, "ngpus": num_ranks, "coll": coll,
        "inplace": 1, "outofplace": 1, "minBytes": 0, "maxBytes": 1 << 20,
    }  # fmt: skip
    attributes.update(changes)
    names = ("i_chunks", "o_chunks", "s_chunks")
    return File(attributes, [GpuPart({"id": r, **dict(zip(names, sizes, strict=True))}) for r in range(num_ranks)])


def add(file: File, gpu: int, send: int, recv: int, steps: list[Attributes], chan: int = 0) -> None:
    blocks = file.gpus[gpu].blocks
    blocks.append(Block({"id": len(blocks), "send": send, "recv": recv, "chan": chan}, steps))


def pair_allreduce() -> File:
    """Two ranks exchange halves over two channels and add them; out of place, with nops and a dependent reduction."""
    file = make_file("allreduce", 2, 2, (2, 2, 2), inplace=0)
    for rank in range(2):
        for half in range(2):
            steps = [step("s", f"i{half}"), step("r", dst=f"s{half}", flag=1)]
            add(file, rank, 1 - rank, 1 - rank, steps, chan=half)
        add(file, rank, -1, -1, [step("cpy", "i0", "o0", 2), nop((0, 1)), step("re", "s0", "o0", 2, (1, 1))])
    return file


def ring_allreduce(n: int = 4) -> File:
    """The classical ring with fused operations, right for both placements."""
    file = make_file("allreduce", n, n, (n, n, 0))
    for rank in range(n):
        chunk = [f"{(rank - k) % n}" for k in range(n + 1)]
        steps = [step("s", f"i{chunk[0]}")]
        steps += [step("rrs", f"i{chunk[k]}") for k in range(1, n - 1)]
        steps.append(step("rrcs", f"i{chunk[n - 1]}", f"o{chunk[n - 1]}"))
        steps += [step("rcs", dst=f"o{chunk[k]}") for k in range(n - 2)]
        steps.append(step("r", dst=f"o{chunk[n - 2]}"))
        add(file, rank, (rank + 1) % n, (rank - 1) % n, steps)
    return file


def pairs_allreduce(n: int = 4) -> File:
    """All pairs exchange parts, one threadblock adds them, all pairs exchange sums; in place, nothing fused."""
    file = make_file("allreduce", n, n, (n, 0, n - 1), outofplace=0)
    for rank in range(n):
        others = [peer for peer in range(n) if peer != rank]
        waits: list[Attributes] = [nop((block, 1)) for block in range(1, n - 1)]
        adds = [step("re", "s0", f"i{rank}", after=(n - 1, 1))]
        adds += [step("re", f"s{k}", f"i{rank}") for k in range(1, n - 1)]
        adds[-1]["hasdep"] = 1
        add(file, rank, -1, -1, waits + adds)
        done = (0, len(waits) + len(adds) - 1)
        for position, peer in enumerate(others):
            steps = [step("s", f"i{peer}"), step("r", dst=f"s{position}", flag=1)]
            steps += [step("s", f"i{rank}", after=done), step("r", dst=f"i{peer}")]
            add(file, rank, peer, peer, steps)
    return file


def ring_allgather(n: int = 3, per: int = 1) -> File:
    """A ring that forwards what it receives, and a local copy; right for both placements."""
    file = make_file("allgather", n, n * per, (per, n * per, 0))
    for rank in range(n):
        source = [(rank - k) % n * per for k in range(n)]
        steps = [step("s", cnt=per)]
        steps += [step("rcs", dst=f"o{source[k]}", cnt=per) for k in range(1, n - 1)]
        steps.append(step("r", dst=f"o{source[n - 1]}", cnt=per))
        add(file, rank, (rank + 1) % n, (rank - 1) % n, steps)
        add(file, rank, -1, -1, [step("cpy", "i0", f"o{rank * per}", per)])
    return file


def direct_alltoall(n: int = 3, per: int = 1) -> File:
    """One threadblock for each peer; out of place."""
    file = make_file("alltoall", n, n * per, (n * per, n * per, 0), inplace=0)
    for rank in range(n):
        for peer in range(n):
            if peer == rank:
                add(file, rank, -1, -1, [step("cpy", f"i{rank * per}", f"o{rank * per}", per)])
            else:
                there, back = f"i{peer * per}", f"o{peer * per}"
                add(file, rank, peer, peer, [step("s", there, cnt=per), step("r", dst=back, cnt=per)])
    return file


def chain_broadcast(n: int = 3, root: int = 0) -> File:
    """Root, next, next; the root copies for itself."""
    file = make_file("broadcast", n, 2, (2, 2, 0))
    for rank in range(n):
        position = (rank - root) % n
        send = (rank + 1) % n if position < n - 1 else -1
        recv = (rank - 1) % n if position else -1
        kind = "s" if position == 0 else "rcs" if send >= 0 else "r"
        add(file, rank, send, recv, [step(kind, "i0", "o0", 2)])
        if position == 0:
            add(file, rank, -1, -1, [step("cpy", "i0", "o0", 2)])
    return file


def chain_reduce(n: int = 3, root: int = 0) -> File:
    """Everybody adds his own and passes on; the root stores."""
    file = make_file("reduce", n, 2, (2, 2, 0))
    for rank in range(n):
        position = (rank - root - 1) % n
        send = (rank + 1) % n if position < n - 1 else -1
        recv = (rank - 1) % n if position else -1
        kind = "s" if position == 0 else "rrs" if send >= 0 else "rrc"
        add(file, rank, send, recv, [step(kind, "i0", "o0", 2)])
    return file


def ring_reducescatter(n: int = 3) -> File:
    """A ring in which every part ends at its rank; right for both placements."""
    file = make_file("reducescatter", n, n, (n, 1, 0))
    for rank in range(n):
        part = [(rank - 1 - k) % n for k in range(n)]
        steps = [step("s", f"i{part[0]}")]
        steps += [step("rrs", f"i{part[k]}") for k in range(1, n - 1)]
        steps.append(step("rrc", f"i{rank}", "o0"))
        add(file, rank, (rank + 1) % n, (rank - 1) % n, steps)
    return file


def direct_gather(n: int = 3, root: int = 0) -> File:
    """Everybody sends his share to the root."""
    file = make_file("gather", n, 2, (2, 0, 0))
    for rank in range(n):
        if rank != root:
            add(file, rank, root, -1, [step("s", cnt=2)])
            add(file, root, -1, rank, [step("r", dst=f"o{2 * rank}", cnt=2)])
    add(file, root, -1, -1, [step("cpy", "i0", f"o{2 * root}", 2)])
    file.gpus[root].attributes["o_chunks"] = 2 * n
    return file


def direct_scatter(n: int = 3, root: int = 0) -> File:
    """The root sends everybody his share."""
    file = make_file("scatter", n, 2, (0, 2, 0))
    for rank in range(n):
        if rank != root:
            add(file, root, rank, -1, [step("s", f"i{2 * rank}", cnt=2)])
            add(file, rank, -1, root, [step("r", dst="o0", cnt=2)])
    add(file, root, -1, -1, [step("cpy", f"i{2 * root}", "o0", 2)])
    file.gpus[root].attributes["i_chunks"] = 2 * n
    return file


RIGHT_FILES: dict[str, Callable[[], File]] = {
    "pair_allreduce": pair_allreduce,
    "ring_allreduce": ring_allreduce,
    "ring_allreduce_of_two": lambda: ring_allreduce(2),
    "pairs_allreduce": pairs_allreduce,
    "ring_allgather": ring_allgather,
    "ring_allgather_of_batches": lambda: ring_allgather(4, 3),
    "direct_alltoall": direct_alltoall,
    "direct_alltoall_of_batches": lambda: direct_alltoall(3, 2),
    "chain_broadcast": chain_broadcast,
    "chain_broadcast_from_1": lambda: chain_broadcast(4, 1),
    "chain_reduce": chain_reduce,
    "chain_reduce_to_2": lambda: chain_reduce(4, 2),
    "ring_reducescatter": ring_reducescatter,
    "direct_gather": direct_gather,
    "direct_gather_to_1": lambda: direct_gather(4, 1),
    "direct_scatter": direct_scatter,
    "direct_scatter_from_2": lambda: direct_scatter(3, 2),
}

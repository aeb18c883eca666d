"""A second, naive opinion: run a `File` many times in random interleavings on lists of contributions.

It shares nothing with the verifier. Each primitive reads its operands in one move and stores in another, so that other
threadblocks can come between, and between two primitives of a step; a nop blocks where it stands; nothing is fused. A run is bad when it gets stuck, leaves
messages behind, or ends with a wrong output.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterator

from tests.verify.msccl.files import Block, File

Value = tuple[tuple[int, int], ...]  # sorted (rank, input chunk) contributions
JUNK: Value = ((-1, -1),)
SENDS = ("s", "rcs", "rrs", "rrcs")
RECEIVES = ("r", "rcs", "rrs", "rrc", "rrcs")
READS = ("s", "rrs", "rrc", "rrcs", "cpy")
WRITES = ("r", "rcs", "rrc", "rrcs", "cpy")


class BadRun(Exception):
    """What went wrong."""


class World:
    """All memory, queues and flags of one run."""

    def __init__(self, file: File, in_place: bool, capacity: int, chunks_per_message: int) -> None:
        self.coll = str(file.attributes["coll"])
        self.n = int(str(file.attributes["ngpus"]))
        ncl = int(str(file.attributes["nchunksperloop"]))
        self.share = ncl // self.n if self.coll in ("allgather", "reducescatter", "alltoall") else ncl
        self.inputs = {"allgather": self.share, "scatter": self.n * ncl}.get(self.coll, ncl)
        self.outputs = {"reducescatter": self.share, "gather": self.n * ncl}.get(self.coll, ncl)
        self.in_place = in_place
        self.capacity = capacity
        self.chunks_per_message = chunks_per_message
        self.cells: dict[tuple[int, str, int], Value] = {}
        self.queues: dict[tuple[int, int, int], deque[list[Value]]] = {}
        self.flags: Counter[tuple[int, int]] = Counter()
        for rank in range(self.n):
            for k in range(self.inputs):
                self.cells[self.key(rank, "i", k)] = ((rank, k),)

    def key(self, rank: int, buffer: str, offset: int) -> tuple[int, str, int]:
        if buffer == "s" or not self.in_place:
            return rank, buffer, offset
        shifted = {"allgather": "i", "gather": "i", "reducescatter": "o", "scatter": "o"}.get(self.coll)
        return rank, "user", offset + (rank * self.share if buffer == shifted else 0)

    def check(self, root: int | None) -> None:
        if any(self.queues.values()):
            raise BadRun("messages are left")
        for rank in range(self.n):
            if self.coll in ("gather", "reduce") and rank != root:
                continue
            for k in range(self.outputs):
                found = self.cells.get(self.key(rank, "o", k))
                if found != self.expected(rank, k, root or 0):
                    raise BadRun(f"rank {rank} output {k} is {found}")

    def expected(self, rank: int, k: int, root: int) -> Value:
        if self.coll in ("allreduce", "reduce"):
            return tuple((r, k) for r in range(self.n))
        if self.coll == "reducescatter":
            return tuple((r, rank * self.share + k) for r in range(self.n))
        if self.coll == "broadcast":
            return ((root, k),)
        if self.coll == "scatter":
            return ((root, rank * self.share + k),)
        if self.coll == "alltoall":
            return ((k // self.share, rank * self.share + k % self.share),)
        return ((k // self.share, k % self.share),)


def run_once(file: File, root: int | None, in_place: bool, capacity: int, chunks_per_message: int, seed: int) -> None:
    """One random run.

    Raises
    ------
    BadRun
        If it is a bad one.
    """
    world = World(file, in_place, capacity, chunks_per_message)
    run_to_the_end(world, file, seed)
    world.check(root)


def outcome(world: World, file: File, seed: int) -> tuple[tuple[tuple[int, str, int], Value], ...]:
    """All cells after one random run."""
    run_to_the_end(world, file, seed)
    return tuple(sorted(world.cells.items()))


def run_to_the_end(world: World, file: File, seed: int) -> None:
    chance = random.Random(seed)
    running = [threadblock(world, int(str(gpu.attributes["id"])), block) for gpu in file.gpus for block in gpu.blocks]
    blocked = 0
    while running:
        index = chance.randrange(len(running)) if blocked < 4 * len(running) else blocked % len(running)
        try:
            moved = next(running[index])
        except StopIteration:
            del running[index]
            moved = True
        blocked = 0 if moved else blocked + 1
        if blocked > 6 * len(running):
            raise BadRun("it is stuck")


def threadblock(world: World, gpu: int, block: Block) -> Iterator[bool]:
    """Moves of one threadblock: True when it did something, False when it had to wait."""
    me = (gpu, int(str(block.attributes["id"])))
    for number, step in enumerate(block.steps):
        depid, deps = int(str(step["depid"])), int(str(step["deps"]))
        while depid >= 0 and world.flags[gpu, depid] < deps + 1:
            yield False
        count = 0 if step["type"] == "nop" else int(str(step["cnt"]))
        for first in range(0, count, world.chunks_per_message):
            yield from primitive(world, gpu, block, number, first, min(world.chunks_per_message, count - first))
        if step["hasdep"] == 1 and step["type"] != "nop":
            world.flags[me] = number + 1
        yield True


def primitive(world: World, gpu: int, block: Block, number: int, first: int, count: int) -> Iterator[bool]:
    step = block.steps[number]
    kind, chan = str(step["type"]), int(str(block.attributes["chan"]))
    source = [world.key(gpu, str(step["srcbuf"]), int(str(step["srcoff"])) + first + k) for k in range(count)]
    target = [world.key(gpu, str(step["dstbuf"]), int(str(step["dstoff"])) + first + k) for k in range(count)]
    inbound = world.queues.setdefault((int(str(block.attributes["recv"])), gpu, chan), deque())
    outbound = world.queues.setdefault((gpu, int(str(block.attributes["send"])), chan), deque())
    while (kind in RECEIVES and not inbound) or (kind in SENDS and len(outbound) >= world.capacity):
        yield False
    values: list[Value] = [()] * count
    if kind in READS:
        values = [world.cells.get(cell, JUNK) for cell in source]
    if kind == "re":
        values = [add(world.cells.get(a, JUNK), world.cells.get(b, JUNK)) for a, b in zip(source, target, strict=True)]
    yield True
    if kind in RECEIVES:
        message = inbound.popleft()
        if len(message) != count:
            raise BadRun("a message of another length arrives")
        values = [add(a, b) for a, b in zip(values, message, strict=True)]
    if kind in WRITES or kind == "re":
        world.cells.update(zip(target, values, strict=True))
    if kind in SENDS:
        outbound.append(values)
    yield True


def add(left: Value, right: Value) -> Value:
    return tuple(sorted(left + right))


def find_bad_run(file: File, root: int | None, runs: int) -> str | None:
    """Reason of the first bad run among some of every kind, or None when all are good."""
    declared = [place for place, name in ((False, "outofplace"), (True, "inplace")) if file.attributes[name]]
    for in_place in declared:
        for chunks_per_message in (1, 71):
            for seed in range(runs):
                try:
                    run_once(file, root, in_place, 8, chunks_per_message, seed)
                except BadRun as bad:
                    return f"in place {in_place}, {chunks_per_message} chunks per message, seed {seed}: {bad}"
    return None

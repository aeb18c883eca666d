"""A small symbolic executor of programs for tests: what a runtime does, with sets in place of numbers.

Memory cells hold (what, who): which cell of which chunk, and the ranks whose contributions are in it. A connection is a queue
of so many operations; a step of n cells is carried out in operations of at most `cells_per_operation` cells. Threadblocks
take turns at random, so that what is not ordered happens in either order; and every access is compared with all earlier ones
of the same memory by vector clocks, so that a race is found even when it does no harm.
"""

import random
from collections import deque
from dataclasses import dataclass, field

from taccl_py.collective import Buffer, Collective, Kind
from taccl_py.lowering.program import Op, Program


class Wrong(Exception):
    """The program does something that it must not do."""


@dataclass(eq=False)
class Block:
    rank: int
    number: int
    threadblock: object
    position: int = 0
    done_operations: int = 0
    clock: dict = field(default_factory=dict)

    @property
    def name(self):
        return f"rank {self.rank} threadblock {self.number} step {self.position}"

    @property
    def step(self):
        return self.threadblock.steps[self.position]

    @property
    def ended(self):
        return self.position == len(self.threadblock.steps)


class Execution:
    def __init__(
        self, program: Program, collective: Collective, *, instances, in_place, slots, cells_per_operation, seed
    ):
        self.program = program
        self.collective = collective
        self.in_place = in_place
        self.slots = slots
        self.cells_per_operation = cells_per_operation
        self.random = random.Random(seed)
        self.instances = instances
        self.memory = {}
        self.queues = {}
        self.flags = {}
        self.writes = {}
        self.reads = {}
        self.blocks = [
            Block(gpu.rank, number, tb) for gpu in program.gpus for number, tb in enumerate(gpu.threadblocks)
        ]
        self._fill()

    def place(self, rank, buffer, offset):
        """Physical cell."""
        if buffer == "o" and self.in_place:
            share = rank * self.collective.chunks_per_rank * self.instances
            if self.collective.kind in (Kind.ALLGATHER, Kind.GATHER):
                offset -= share
            elif self.collective.kind in (Kind.REDUCESCATTER, Kind.SCATTER):
                offset += share
            if 0 <= offset < self.collective.input_chunks * self.instances:
                return rank, "i", offset
            return rank, "o", offset - 10**6
        return rank, str(buffer), offset

    def touched(self, rank, address, step):
        """Physical cell of an access; raises when the program has not declared it."""
        gpu = self.program.gpus[rank]
        size = {"i": gpu.input_chunks, "o": gpu.output_chunks, "s": gpu.scratch_chunks}[address.buffer]
        if not 0 <= address.offset + step < size:
            raise Wrong(f"rank {rank} touches {address.buffer}{address.offset + step} of {size}")
        return self.place(rank, address.buffer, address.offset + step)

    def _fill(self):
        n = self.instances
        for chunk in range(self.collective.num_chunks):
            for rank in range(self.collective.num_ranks):
                address = self.collective.input_address(chunk, rank)
                for part in range(n) if address else ():
                    self.memory[rank, "i", address.offset * n + part] = (chunk * n + part, frozenset({rank}))

    def run(self):
        active = [block for block in self.blocks if not block.ended]
        while active:
            self.random.shuffle(active)
            moved = False
            for block in active:
                moved |= self.advance(block)
            if not moved:
                raise Wrong("stuck at " + ", ".join(f"{b.name} {b.step.op}" for b in active))
            active = [block for block in active if not block.ended]
        if any(self.queues.values()):
            raise Wrong("something is left in a queue")
        self.require_result()

    def advance(self, block):
        step = block.step
        if block.done_operations == 0 and not self.is_free(block, step):
            return False
        if step.op is Op.NOP:
            block.position += 1
            return True
        first = block.done_operations * self.cells_per_operation
        count = min(self.cells_per_operation, step.count - first)
        values = None
        if step.op.receives:
            queue = self.queues.setdefault(
                (block.threadblock.recv_peer, block.rank, block.threadblock.channel), deque()
            )
            if not queue:
                return False
        if step.op.sends:
            out = self.queues.setdefault((block.rank, block.threadblock.send_peer, block.threadblock.channel), deque())
            if len(out) >= self.slots:
                return False
        if step.op.receives:
            values, clock = queue.popleft()
            if len(values) != count:
                raise Wrong(f"{block.name} takes {count} cells and gets {len(values)}")
            merge(block.clock, clock)
        block.clock[block.rank, block.number] = block.clock.get((block.rank, block.number), 0) + 1
        values = self.compute(block, step, first, count, values)
        if step.op.sends:
            out.append((values, dict(block.clock)))
        self.finish_operation(block, step)
        return True

    def is_free(self, block, step):
        """Whether what the step waits for is done; then the block knows all that the other one knew."""
        if step.depends_on is None:
            return True
        target, position = step.depends_on
        waited = self.program.gpus[block.rank].threadblocks[target].steps[position]
        if waited.op is Op.NOP or not waited.has_dependent:
            raise Wrong(f"{block.name} waits for a step that raises no flag")
        flag = self.flags.get((block.rank, target), (-1, {}))
        if flag[0] < position:
            return False
        merge(block.clock, flag[1])
        return True

    def finish_operation(self, block, step):
        block.done_operations += 1
        if block.done_operations * self.cells_per_operation >= step.count:
            if step.has_dependent:
                self.flags[block.rank, block.number] = (block.position, dict(block.clock))
            block.position += 1
            block.done_operations = 0

    def compute(self, block, step, first, count, arrived):
        op = step.op
        if op in (Op.SEND, Op.COPY, Op.REDUCE, Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND):
            local = [self.read(block, step.src, first + i) for i in range(count)]
        if op in (Op.SEND, Op.COPY):
            values = local
        elif op is Op.REDUCE:
            values = [add(self.read(block, step.dst, first + i), local[i]) for i in range(count)]
        elif op in (Op.RECV, Op.RECV_COPY_SEND):
            values = arrived
        else:
            values = [add(a, b) for a, b in zip(local, arrived, strict=True)]
        if op is Op.COPY and self.place(block.rank, step.src.buffer, step.src.offset) == self.place(
            block.rank, step.dst.buffer, step.dst.offset
        ):
            return values  # onto itself: nobody can notice
        if op not in (Op.SEND, Op.RECV_REDUCE_SEND):
            for i, value in enumerate(values):
                self.write(block, step.dst, first + i, value)
        return values

    def read(self, block, address, step):
        place = self.touched(block.rank, address, step)
        if place not in self.memory:
            raise Wrong(f"{block.name} reads {place}, which nobody wrote")
        self.order(block, self.writes.get(place, {}), place)
        self.reads.setdefault(place, {})[block.rank, block.number] = block.clock[block.rank, block.number]
        return self.memory[place]

    def write(self, block, address, step, value):
        if address.buffer is Buffer.INPUT:
            raise Wrong(f"{block.name} writes to the input")
        place = self.touched(block.rank, address, step)
        self.order(block, self.writes.get(place, {}), place)
        self.order(block, self.reads.get(place, {}), place)
        self.writes[place] = {(block.rank, block.number): block.clock[block.rank, block.number]}
        self.reads[place] = {}
        self.memory[place] = value

    def order(self, block, before, place):
        for other, time in before.items():
            if other != (block.rank, block.number) and block.clock.get(other, 0) < time:
                raise Wrong(f"{block.name} and threadblock {other} race for {place}")

    def require_result(self):
        n, collective = self.instances, self.collective
        for chunk, wanting in enumerate(collective.wanted):
            who = frozenset(range(collective.num_ranks) if collective.reduces else [collective.source[chunk]])
            for rank in wanting:
                offset = collective.output_address(chunk, rank).offset * n
                for part in range(n):
                    found = self.memory.get(self.place(rank, "o", offset + part))
                    if found != (chunk * n + part, who):
                        raise Wrong(f"rank {rank} ends with {found} as part {part} of chunk {chunk}, not {sorted(who)}")


def merge(clock, other):
    for key, time in other.items():
        if clock.get(key, 0) < time:
            clock[key] = time


def add(one, other):
    if one[0] != other[0]:
        raise Wrong(f"adds {one} and {other}, which are different chunks")
    if one[1] & other[1]:
        raise Wrong(f"adds {one} and {other}, which counts a rank twice")
    return one[0], one[1] | other[1]


def execute(program, schedule, runtime, *, instances=1, seed=0):
    """Run the program for every placement that it is for: small data, and data of the largest size that it is for.

    Small data (every step is one operation) must go through connections that hold two operations, and through such that
    hold only one if nothing is passed on in the step that receives it and nothing is under way on a link for long.
    """
    cell_bytes = -(-program.max_bytes // program.num_chunks_per_loop)
    fewest = max(1, runtime.payload_bytes[program.protocol] // cell_bytes)
    slots = runtime.fifo_slots[program.protocol]
    fused = any(
        step.op.receives and step.op.sends for gpu in program.gpus for tb in gpu.threadblocks for step in tb.steps
    )
    least = 2 if fused or any(link.latency_us for link in schedule.topology.links) else 1
    for in_place in [True] * program.in_place + [False] * program.out_of_place:
        for slot_count, cells in ((least, 10**6), (slots, 10**6), (slots, fewest)):
            Execution(
                program, schedule.collective, instances=instances, in_place=in_place, slots=slot_count,
                cells_per_operation=cells, seed=seed,
            ).run()  # fmt: skip

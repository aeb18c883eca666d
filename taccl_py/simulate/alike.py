"""Threadblocks as they are replayed under a runtime profile, and those that do the same at the same time taken for one.

In a symmetric program most threadblocks have partners on other ranks, or towards other peers, that do the same with equal
neighbours. They are found by colour refinement and replayed once, which makes the replay of eight ranks as quick as that of one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

NOBODY = -1  # stands for no connection


@dataclass(frozen=True, slots=True)
class StepKind:
    """Kind of a step: its direction and its count; `sources` are the operands of a fused local sum, 0 for anything else."""

    receives: bool
    sends: bool
    copies: bool
    sources: int
    count: int


@dataclass(frozen=True, slots=True)
class StepWork:
    """A step as it is timed: see `StepKind`; `waits` are of (block, step)."""

    receives: bool
    sends: bool
    copies: bool
    sources: int
    count: int
    waits: tuple[tuple[int, int], ...]

    @property
    def kind(self) -> StepKind:
        """All of it but its waits."""
        return StepKind(self.receives, self.sends, self.copies, self.sources, self.count)


class ShapeLoad(NamedTuple):
    """Load of a message on a resource; `far` if only messages between nodes use it, `gpu` if it is all that a GPU sends in its node.

    The alpha is one that occupies the resource where alphas are `serial`, each of parallel connections a part of it; else it is a
    latency of the message.
    """

    resource: int
    alpha_us: float
    beta_us_per_mb: float
    far: bool
    serial: bool
    parallel: int
    gpu: bool = False
    together: int = 1  # messages that ask for it at the same time


@dataclass(slots=True)
class ReplayedBlock:
    """A threadblock that is replayed: steps, connections (numbers, or `NOBODY`), and resources with their share of a message's alpha."""

    rank: int
    works: list[StepWork]
    receives_from: int
    sends_to: int
    far_in: bool
    loads: tuple[ShapeLoad, ...]
    latency_us: float


def merge_alike(blocks: list[ReplayedBlock], num_connections: int) -> tuple[list[ReplayedBlock], int]:
    """One block of each class of blocks that do the same at the same time, and the number of connections between them.

    Classes come from colour refinement over blocks, connections and resources. Blocks are merged only if those that share a
    resource are of different classes, so that who is served first is the same everywhere. Only what a GPU sends altogether may be
    asked for by several of a class, and is then shared evenly among them.
    """
    ends = _ends(blocks, num_connections)
    if ends is None:
        return blocks, num_connections
    best = blocks, num_connections
    by_position, by_order = (_coloured(blocks, ends, places) for places in (_positions(blocks), _orders(blocks)))
    if by_order is not None and not _keeps_order(blocks, by_order):
        by_order = None
    for colours in (by_position, by_order):
        if colours is not None and len(set(colours)) < len(best[0]):
            best = _merged(blocks, colours, ends)
    return best


def _keeps_order(blocks: Sequence[ReplayedBlock], colours: Sequence[int]) -> bool:
    """True if the first blocks of the classes that share a resource come in the order of the blocks that do, for every resource."""
    firsts: dict[int, int] = {}
    last: dict[int, int] = {}
    for index, (block, colour) in enumerate(zip(blocks, colours, strict=True)):
        first = firsts.setdefault(colour, index)
        for load in _own_loads(block):
            if last.get(load.resource, NOBODY) >= first:
                return False
            last[load.resource] = first
    return True


def _own_loads(block: ReplayedBlock) -> list[ShapeLoad]:
    """Loads of a block on links and ports, in whose order it is served."""
    return [load for load in block.loads if not load.gpu]


def _positions(blocks: Sequence[ReplayedBlock]) -> list[Hashable]:
    """Place of every block among those of its rank."""
    firsts: dict[int, int] = {}
    for index, block in enumerate(blocks):
        firsts.setdefault(block.rank, index)
    return [index - firsts[block.rank] for index, block in enumerate(blocks)]


def _orders(blocks: Sequence[ReplayedBlock]) -> list[Hashable]:
    """Place of every block among those that share one of its resources, for each of them."""
    users: dict[int, int] = defaultdict(int)
    orders: list[Hashable] = []
    for block in blocks:
        orders.append(tuple(users[load.resource] for load in _own_loads(block)))
        for load in _own_loads(block):
            users[load.resource] += 1
    return orders


def _ends(blocks: Sequence[ReplayedBlock], num_connections: int) -> list[tuple[int, int]] | None:
    """(sending block, receiving block) of every connection; None if one is used by several, or has only one end."""
    senders, receivers = [NOBODY] * num_connections, [NOBODY] * num_connections
    for index, block in enumerate(blocks):
        for ends, connection in ((senders, block.sends_to), (receivers, block.receives_from)):
            if connection != NOBODY:
                if ends[connection] != NOBODY:
                    return None
                ends[connection] = index
    if NOBODY in senders or NOBODY in receivers:
        return None
    return list(zip(senders, receivers, strict=True))


def _coloured(
    blocks: Sequence[ReplayedBlock], ends: Sequence[tuple[int, int]], places: Sequence[Hashable]
) -> list[int] | None:
    """Class of every block; None if blocks of one class share a resource, or a block uses two resources of one class."""
    users: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for index, block in enumerate(blocks):
        for place, (resource, *_) in enumerate(block.loads):
            users[resource].append((place, index))
    own = [
        (
            place,
            tuple(work.kind for work in block.works),
            block.far_in, block.latency_us, tuple(load[1:] for load in block.loads),
        )
        for place, block in zip(places, blocks, strict=True)
    ]  # fmt: skip
    colours = _numbered(own)
    while True:
        of_resource = dict(zip(
            users, _numbered([tuple(sorted((place, colours[index]) for place, index in of_one)) for of_one in users.values()]), strict=True
        ))  # fmt: skip
        refined = _numbered([
            (
                colours[index],
                colours[ends[block.receives_from][0]] if block.receives_from != NOBODY else NOBODY,
                colours[ends[block.sends_to][1]] if block.sends_to != NOBODY else NOBODY,
                tuple(tuple(sorted((colours[other], step) for other, step in work.waits)) for work in block.works),
                tuple(of_resource[resource] for resource, *_ in block.loads),
            )
            for index, block in enumerate(blocks)
        ])  # fmt: skip
        if len(set(refined)) == len(set(colours)):
            break
        colours = refined
    gpus = {load.resource for block in blocks for load in block.loads if load.gpu}
    shared = any(
        len({colours[index] for _, index in of_one}) < len(of_one)
        for resource, of_one in users.items()
        if resource not in gpus
    )
    twice = any(len({of_resource[r] for r, *_ in block.loads}) < len(block.loads) for block in blocks)
    return None if shared or twice else refined


def _numbered(keys: Sequence[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _merged(
    blocks: Sequence[ReplayedBlock], colours: Sequence[int], ends: Sequence[tuple[int, int]]
) -> tuple[list[ReplayedBlock], int]:
    """The first block of every class; what they refer to is replaced by the class that it is of."""
    first: dict[int, int] = {}
    for index, colour in enumerate(colours):
        first.setdefault(colour, index)
    number = {colour: place for place, colour in enumerate(first)}
    users: dict[int, Counter[tuple[int, int]]] = defaultdict(Counter)
    for index, block in enumerate(blocks):
        for place, (resource, *_) in enumerate(block.loads):
            users[resource][place, colours[index]] += 1
    resources: dict[frozenset[tuple[int, int]], int] = {}
    connections: dict[int, int] = {}
    merged = []
    for index in first.values():
        block = blocks[index]
        works = [
            replace(work, waits=tuple(sorted({(number[colours[other]], step) for other, step in work.waits})))
            for work in block.works
        ]
        loads = tuple(
            load._replace(
                resource=resources.setdefault(frozenset(users[load.resource]), len(resources)),
                together=users[load.resource][place, colours[index]] if load.gpu else 1,
            )
            for place, load in enumerate(block.loads)
        )
        # A connection is known by the class of its sender.
        into = NOBODY if block.receives_from == NOBODY else colours[ends[block.receives_from][0]]
        out = NOBODY if block.sends_to == NOBODY else colours[index]
        merged.append(ReplayedBlock(
            block.rank, works,
            NOBODY if into == NOBODY else connections.setdefault(into, len(connections)),
            NOBODY if out == NOBODY else connections.setdefault(out, len(connections)),
            block.far_in, loads, block.latency_us,
        ))  # fmt: skip
    return merged, len(connections)

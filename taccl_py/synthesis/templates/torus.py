"""AllReduce on machines that rotations make a torus, all ranks of which are linked: rings, doubling, Swing, Trivance.

What a rank does along one dimension is a *ring pattern*, a ReduceScatter step by step. A plan runs it along all dimensions; the data
is cut into as many parts as there are dimensions, and every part begins with another one, so that the wires of all are busy. What
goes one way around a ring goes the other way in the other half of every part. An AllGather mirrors the ReduceScatter, and the last
steps may exchange whole sums instead, which halves their number: for small sizes all of them do.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from taccl_py.synthesis.templates.messages import TemplateMessage, TemplateMessages, TemplatePlan, in_turn, turned
from taccl_py.synthesis.templates.params import PARAMS
from taccl_py.synthesis.templates.ring_patterns import RINGS, RingPattern, ring_patterns
from taccl_py.synthesis.templates.site import TemplateSite
from taccl_py.topology.model import Topology
from taccl_py.topology.translations import translations_of


@dataclass(frozen=True)
class Torus:
    """Ranks by their coordinates, which rotations of the machine count.

    Attributes
    ----------
    topology
        The machine.
    sides
        How often each rotation has to be applied to change nothing.
    ranks
        Rank at every place.
    """

    topology: Topology
    sides: tuple[int, ...]
    ranks: dict[tuple[int, ...], int]

    @staticmethod
    def of(topology: Topology) -> Torus | None:
        """Return that of a machine; None where rotations do not make it one, or a message's path makes no difference."""
        size = topology.num_ranks
        far = {link.latency_us for link in topology.links}
        if len(topology.links_between) < size * (size - 1) or len(far) == 1:
            return None
        found = translations_of(topology)
        if found is None or not found.is_regular or prod(found.orders) != size:
            return None
        ranks = {tuple(place): rank for rank, place in enumerate(found.place.tolist())}
        return Torus(topology, found.orders, ranks)

    def moved(self, place: tuple[int, ...], dim: int, to: int) -> int:
        """Rank at a place of which one coordinate is another one."""
        return self.ranks[*place[:dim], to, *place[dim + 1 :]]


@dataclass(frozen=True)
class TorusMethod:
    """An AllReduce on a torus.

    Attributes
    ----------
    torus
        The machine.
    directions
        For every dimension its pattern in the order in which a part goes through them, [direction][order][dimension]; the second
        direction is the mirror image of the first.
    exchanged
        Steps, of the last ones, in which whole sums are exchanged.
    """

    torus: Torus
    directions: tuple[tuple[tuple[RingPattern, ...], ...], ...]
    exchanged: int

    @property
    def name(self) -> str:
        """Names of its patterns, and the steps that exchange."""
        exchanged = f", {self.exchanged} exchanged" if self.exchanged else ""
        return " then ".join(self.pattern_names) + exchanged + (", one direction" if self.goes_one_direction else "")

    @property
    def pattern_names(self) -> tuple[str, ...]:
        """Names of its patterns in the order in which a part goes through them."""
        return tuple(dict.fromkeys(patterns[0].name for patterns in self.directions[0]))

    @property
    def goes_one_direction(self) -> bool:
        """True if there is a mirror image that is not used."""
        return len(self.directions) == 1 and any(side % 2 == 0 for side in self.torus.sides)

    def parts(self) -> Iterator[_Part]:
        """Every part: what begins with each dimension, in each direction."""
        dims = len(self.torus.sides)
        for first, (number, direction) in itertools.product(range(dims), enumerate(self.directions)):
            order = tuple((first + i) % dims for i in range(dims))
            patterns = {dim: direction[position][dim] for position, dim in enumerate(order)}
            directions = tuple(
                {dim: each[position][dim] for position, dim in enumerate(order)} for each in self.directions
            )
            yield _Part(self.torus, first, number, order, patterns, directions, self.exchanged)

    @property
    def num_parts(self) -> int:
        """Number of its parts."""
        return len(self.torus.sides) * len(self.directions)

    def estimate_us(self, size_bytes: float) -> float:
        """Time of the steps of all parts on the rings through one rank, if every step waits for the one before.

        Parameters
        ----------
        size_bytes
            Of all data.
        """
        topology = self.torus.topology
        share = size_bytes / self.num_parts / topology.num_ranks
        origin = (0,) * len(self.torus.sides)
        steps: dict[tuple[int, bool], dict[tuple[int, int, int], float]] = {}
        for part in self.parts():
            for turn in part.turns():
                step = steps.setdefault((turn.number, turn.whole > 0), {})
                for at, sends in enumerate(part.patterns[turn.dim].sends[turn.step]):
                    src = self.torus.moved(origin, turn.dim, at)
                    for to, parts in sends:
                        lanes = topology.links_between[src, self.torus.moved(origin, turn.dim, to)]
                        link = lanes[part.direction % len(lanes)]
                        key = (link, *part.apart(turn.dim))
                        step[key] = step.get(key, 0.0) + turn.others * (turn.whole or len(parts)) * share
        return sum(
            (1 if whole else 2) * _together_us(topology, [(link, size) for (link, *_), size in step.items()])
            for (_, whole), step in steps.items()
        )

    def plan(self, chunks_per_rank: int | None) -> TemplatePlan | None:
        """Messages; None where chunks are given and do not fit."""
        scale, rest = divmod(chunks_per_rank or self.num_parts, self.num_parts)
        if rest:
            return None
        keys = {(part.first, part.direction, rank): key for part in self.parts() for rank, key in part.spots()}
        units = {each: number for number, each in enumerate(sorted(keys, key=lambda each: (each[0], keys[each])))}
        carried: dict[_Sent, list[int]] = {}
        for part in self.parts():
            for sent, owners in part.sent():
                for owner in owners:
                    unit = units[part.first, part.direction, owner]
                    carried.setdefault(sent, []).extend(range(unit * scale, (unit + 1) * scale))
        first, across = (
            _in_slots(self.torus.topology, {sent: chunks for sent, chunks in carried.items() if sent.whole == whole})
            for whole in (False, True)
        )
        messages = in_turn(_as_sums(first), _as_sums(across), turned(first, reduce=False))
        return TemplatePlan(self.num_parts * scale, messages, self.name)


@dataclass(frozen=True, slots=True)
class _DimensionStep:
    """One step of a part: dimension, step of its pattern, parts that a rank holds in other dimensions, and in this one if all go."""

    number: int
    dim: int
    step: int
    others: int
    whole: int


@dataclass(frozen=True, slots=True)
class _Sent:
    """One message: step, ends, and what keeps it apart from others of the same ends."""

    whole: bool
    number: int
    src: int
    dst: int
    apart: tuple[int, int]


@dataclass(frozen=True)
class _Part:
    """The data that begin with one dimension and go one way around its rings."""

    torus: Torus
    first: int
    direction: int
    order: tuple[int, ...]
    patterns: dict[int, RingPattern]
    directions: tuple[dict[int, RingPattern], ...]
    exchanged: int

    def steps(self) -> list[tuple[int, int]]:
        """Dimension and step of the pattern there; in turn if all are nested, else one dimension after the other."""
        found = [(dim, step) for dim in self.order for step in range(len(self.patterns[dim].sends))]
        if all(pattern.is_nested for pattern in self.patterns.values()):
            found.sort(key=lambda each: (each[1], self.order.index(each[0])))
        return found

    @property
    def most_exchanged(self) -> int:
        """Number of steps at the end that can exchange whole sums."""
        nested = [self.patterns[dim].is_nested for dim, _ in reversed(self.steps())]
        return [*nested, False].index(False)

    def apart(self, dim: int) -> tuple[int, int]:
        """Marks of what is never in one message: what goes both ways is in one with its mirror image, pairs meet others there."""
        return self.first, self.direction if self.patterns[dim].is_paired else 0

    def _done(self) -> Iterator[tuple[int, int, int, bool, dict[int, int]]]:
        """Number, dimension, step, whether it exchanges, and how far each dimension's ReduceScatter is before."""
        steps = self.steps()
        done = dict.fromkeys(self.order, 0)
        for number, (dim, step) in enumerate(steps):
            whole = number >= len(steps) - self.exchanged
            yield number, dim, step, whole, dict(done)
            done[dim] += not whole

    def turns(self) -> Iterator[_DimensionStep]:
        """Every step with how much is sent."""
        for number, dim, step, whole, done in self._done():
            held = {other: len(self.patterns[other].holds[at][0]) for other, at in done.items()}
            others = prod(size for other, size in held.items() if other != dim)
            yield _DimensionStep(number, dim, step, others, held[dim] if whole else 0)

    def sent(self) -> Iterator[tuple[_Sent, list[int]]]:
        """Every message with the owners of what it carries."""
        for number, dim, step, whole, done in self._done():
            for place, src in self.torus.ranks.items():
                held = [self.patterns[other].holds[done[other]][at] for other, at in enumerate(place)]
                for to, parts in self._sends(dim, step, place[dim], held):
                    owners = [self.torus.ranks[each] for each in itertools.product(*(parts if not whole else held))]
                    yield _Sent(whole, number, src, self.torus.moved(place, dim, to), self.apart(dim)), owners

    def _sends(
        self, dim: int, step: int, at: int, held: Sequence[frozenset[int]]
    ) -> Iterator[tuple[int, list[frozenset[int]]]]:
        """Receivers along a dimension, and what they get of each dimension's owners.

        What is as far both ways goes one way in one half of the data. Those halves lie together where another dimension follows
        whose parts do: they are then the parts of one half of its owners.
        """
        after = self.order[self.order.index(dim) + 1 :][:1]
        if self.patterns[dim].is_paired or not after or self.patterns[after[0]].is_paired:
            for to, parts in self.patterns[dim].sends[step][at]:
                yield to, [parts if other == dim else own for other, own in enumerate(held)]
            return
        for number, direction in enumerate(self.directions):
            half = frozenset(
                own for own in held[after[0]] if own * len(self.directions) // self.torus.sides[after[0]] == number
            )
            for to, parts in direction[dim].sends[step][at]:
                yield (
                    to,
                    [parts if other == dim else half if other == after[0] else own for other, own in enumerate(held)],
                )

    def spots(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """For every rank where its part lies, so that what goes together lies together: both halves of what goes both ways do."""
        alike = [dim for dim in self.order if not self.patterns[dim].is_paired]
        pairs = [(dim, step) for dim, step in self.steps() if dim not in alike]
        for place, rank in self.torus.ranks.items():
            inner = [min(self.patterns[dim].holds[step + 1][place[dim]]) for dim, step in pairs]
            yield rank, (*(place[dim] for dim in alike), self.direction, *inner)


def torus_plans(site: TemplateSite, chunks_per_rank: int | None) -> Iterator[TemplatePlan]:
    """AllReduce plans of a machine whose links share the wires of a torus, those that promise most first."""
    torus = Torus.of(site.topology)
    if torus is None:
        return
    size_bytes = site.chunk_bytes * site.topology.num_ranks
    methods = sorted(torus_methods(torus), key=lambda method: method.estimate_us(size_bytes))
    for method in methods[: PARAMS.most_torus_plans]:
        plan = method.plan(chunks_per_rank)
        if plan is not None:
            yield plan


def torus_methods(torus: Torus) -> Iterator[TorusMethod]:
    """Every pattern along the first dimension with every one along the others, and every number of steps that exchange.

    Pairs do not come before what goes both ways, whose halves would lie apart.
    """
    both = [
        [{p.name: p for p in ring_patterns(side, mirrored=direction)} for side in torus.sides]
        for direction in (False, True)
    ]
    names = dict.fromkeys(name for known in both[0] for name in known)
    for by_order in {(start, *(rest for _ in torus.sides[1:])): None for start in names for rest in names}:
        start, rest = by_order[0], by_order[-1]
        if start != rest and any(p[start].is_paired for p in both[0] if start in p):
            continue
        directions = tuple(tuple(tuple(p.get(name) or p[RINGS] for p in known) for name in by_order) for known in both)
        for some in (directions, directions[:1]) if directions[0] != directions[1] else (directions[:1],):
            method = TorusMethod(torus, some, 0)
            for exchanged in range(1 + next(method.parts()).most_exchanged):
                yield replace(method, exchanged=exchanged)


def _as_sums(messages: TemplateMessages) -> TemplateMessages:
    return tuple(replace(message, reduce=True) for message in messages)


def _together_us(topology: Topology, sends: Sequence[tuple[int, float]]) -> float:
    """Time of messages (link and bytes) that are ready at the same time, those first that fit first."""
    free_us: dict[int, float] = {}
    end_us = 0.0
    for place in _slots(topology, [link for link, _ in sends])[1]:
        link, size_bytes = sends[place]
        start_us = max(free_us.get(resource, 0.0) for resource in topology.resources_of[link])
        for resource in topology.resources_of[link]:
            free_us[resource] = start_us + topology.occupancy_us(resource, size_bytes)
        end_us = max(end_us, start_us + topology.message_us(link, size_bytes))
    return end_us


def _slots(topology: Topology, links: Sequence[int]) -> tuple[list[int], list[int]]:
    """Slot of every message, of which no two share a port in one slot, first come, first fit; and the messages in order of slots."""
    used: list[set[int]] = []
    slots = []
    for link in links:
        ports = topology.links[link].ports
        slot = next((i for i, taken in enumerate(used) if taken.isdisjoint(ports)), len(used))
        if slot == len(used):
            used.append(set())
        used[slot].update(ports)
        slots.append(slot)
    return slots, sorted(range(len(links)), key=slots.__getitem__)


def _in_slots(topology: Topology, carried: Mapping[_Sent, list[int]]) -> TemplateMessages:
    """Messages, those of each step in an order in which those are neighbours that share no wire."""
    found = []
    for time, number in enumerate(sorted({sent.number for sent in carried})):
        step = [sent for sent in carried if sent.number == number]
        lanes = [topology.links_between[sent.src, sent.dst] for sent in step]
        slots, order = _slots(
            topology, [links[sent.apart[1] % len(links)] for links, sent in zip(lanes, step, strict=True)]
        )
        for i in order:
            start = time + slots[i] / (2 * len(step))
            chunks = tuple(sorted(carried[step[i]]))
            found.append(TemplateMessage(step[i].src, step[i].dst, chunks, start, start + 0.5))
    return tuple(found)

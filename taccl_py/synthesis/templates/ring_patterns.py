"""Ring patterns: a ReduceScatter among the positions of a ring, whose messages may go over several hops.

Sources. Rings in both directions and recursive doubling: Chan et al., "Collective communication: theory, practice, and experience"
(2007). Swing: De Sensi et al., "Swing: Short-cutting rings for higher bandwidth allreduce" (NSDI 2024). Trivance: Juerss, Addanki,
Schmid, "Trivance: latency-optimal AllReduce by shortcutting multiport networks" (2026); here for sides that are no power of three too,
where only its ReduceScatter and AllGather remain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

# Who each position sends to, and the owners of the parts that are sent.
_Sends = tuple[tuple[tuple[int, frozenset[int]], ...], ...]

RINGS, DOUBLED, SWING, TRIVANCE, SKIPS = "bidirectional rings", "recursive doubling", "Swing", "Trivance", "skips"


@dataclass(frozen=True)
class RingPattern:
    """ReduceScatter among the positions of a ring.

    Attributes
    ----------
    name
        Of the pattern.
    sends
        For every step and position, who is sent to, and the owners of the parts that are sent.
    holds
        Owners of the parts whose sums each position holds before every step, and after the last one its own, [step][position].
    """

    name: str
    sends: tuple[_Sends, ...]
    holds: tuple[tuple[frozenset[int], ...], ...]

    @cached_property
    def is_paired(self) -> bool:
        """True if every position sends to one other at a time."""
        return all(len(sends) == 1 for step in self.sends for sends in step)

    @cached_property
    def is_nested(self) -> bool:
        """True if positions that hold a part in common hold the same ones, so that they can exchange sums of all of them."""
        return all(held[owner] == held[place] for held in self.holds for place, own in enumerate(held) for owner in own)


def ring_patterns(side: int, *, mirrored: bool) -> Iterator[RingPattern]:
    """Every pattern of so many positions, or its mirror image."""
    if side & (side - 1) == 0:
        for name, partner in ((DOUBLED, _doubled), (SWING, _swung)):
            found = _matched(name, side, partial(partner, side=side), mirrored=mirrored)
            if found is not None:
                yield found
    seen = set()
    for reach in range(side // 2, 0, -1):
        name = RINGS if reach == side // 2 else TRIVANCE if reach == 1 else f"{SKIPS} of {reach}"
        found = _skipping(name, side, reach, mirrored=mirrored)
        if len(found.sends) not in seen:
            seen.add(len(found.sends))
            yield found


def _doubled(step: int, place: int, side: int) -> int:
    del side
    return place ^ (1 << step)


def _swung(step: int, place: int, side: int) -> int:
    """One there, one back, three there, five back: (1 - (-2)^(step + 1)) / 3, which odd places take backwards."""
    distance = (1 - pow(-2, step + 1)) // 3
    return int(place + (-distance if place % 2 else distance)) % side


def _matched(name: str, side: int, partner: Callable[[int, int], int], *, mirrored: bool) -> RingPattern | None:
    """Pattern whose steps are pairs: each sends its partner what that one, or who it will meet later, owns; None if it does not cover all."""
    steps = side.bit_length() - 1

    def meets(step: int, place: int) -> int:
        return -partner(step, -place % side) % side if mirrored else partner(step, place)

    holds = [tuple(frozenset({place}) for place in range(side))]
    sends: list[_Sends] = []
    for step in reversed(range(steps)):
        after = holds[0]
        sends.insert(0, tuple(((meets(step, place), after[meets(step, place)]),) for place in range(side)))
        holds.insert(0, tuple(after[place] | after[meets(step, place)] for place in range(side)))
    covers = all(len(own) == side for own in holds[0])
    return RingPattern(name, tuple(sends), tuple(holds)) if covers else None


def _skipping(name: str, side: int, reach: int, *, mirrored: bool) -> RingPattern:
    """Pattern that all positions follow alike: `reach` steps to the neighbours, as many over what these covered, and so on.

    Each part goes the shorter way; what is as far both ways goes forwards, or backwards in the mirror image.
    """
    far = {0: 0}  # how far every distance (owner to holder) is by the steps so far
    lots: list[tuple[int, list[int], list[int]]] = []
    jumps = [1]
    while jumps[-1] * (2 * reach + 1) < side:
        jumps.append(jumps[-1] * (2 * reach + 1))
    for jump in (jump for jump in reversed(jumps) for _ in range(reach)):
        long = min(jump % side, -jump % side)
        shortest: dict[int, tuple[int, int]] = {}
        for sign in (1, -1)[:: -1 if mirrored else 1]:
            for known, length in far.items():
                there = (known + sign * jump) % side
                if there not in far and (there not in shortest or length + long < shortest[there][0]):
                    shortest[there] = (length + long, sign)
        far.update({there: length for there, (length, _) in shortest.items()})
        if shortest:
            ahead, behind = ([there for there, (_, other) in shortest.items() if other == sign] for sign in (1, -1))
            lots.append((jump, ahead, behind))
    held = {0}
    holds = [tuple(frozenset({place}) for place in range(side))]
    sends: list[_Sends] = []
    # An AllGather so far; backwards it is the ReduceScatter.
    for jump, ahead, behind in lots:
        held |= {*ahead, *behind}
        holds.insert(0, tuple(frozenset((place - there) % side for there in held) for place in range(side)))
        sends.insert(
            0,
            tuple(
                tuple(
                    ((place - sign * jump) % side, frozenset((place - there) % side for there in lot))
                    for sign, lot in ((1, ahead), (-1, behind))
                    if lot
                )
                for place in range(side)
            ),
        )
    return RingPattern(name, tuple(sends), tuple(holds))

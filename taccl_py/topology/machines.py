"""Machines by formula: ``ring:8``, ``torus:4x4``, ``mesh:4x4``, ``hypercube:3``, ``full:8``, ``switch:16``.

A formula is a shape, a colon, its size, and options after commas: ``ring:8,alpha_us=0.7,beta_us_per_mb=40``. All links of
a machine are alike and go both ways; the whole machine is one node. Ranks of a torus or a mesh are numbered row by row,
the last coordinate first.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from taccl_py.errors import InputError
from taccl_py.topology.model import Topology
from taccl_py.topology.template import MAX_LINKS, Cost, NodeLink, NodeSwitch, NodeTemplate, instantiate
from taccl_py.units import MAX_COST_US, MAX_RANKS

DEFAULT_ALPHA_US = 0.5
DEFAULT_BETA_US_PER_MB = 20.0  # 50 GB/s

_OPTIONS = ("alpha_us", "beta_us_per_mb")
_LOOKS_LIKE_FORMULA = re.compile(r"[A-Za-z]+:[^/\\]*")


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of formula.

    Attributes
    ----------
    name
        Word before the colon.
    example
        A formula of this kind.
    description
        What it stands for.
    """

    name: str
    example: str
    description: str


SHAPES = (
    Shape("ring", "ring:8", "each rank linked to the next and the previous one"),
    Shape("torus", "torus:4x4", "a grid of any dimension whose sides are rings"),
    Shape("mesh", "mesh:4x4", "a grid of any dimension whose sides are lines"),
    Shape("hypercube", "hypercube:3", "2^d ranks, linked where their numbers differ in one bit"),
    Shape("full", "full:8", "a link of its own for every pair"),
    Shape("switch", "switch:16", "every pair linked; one port out and one port in for each rank"),
)
_EXAMPLES = ", ".join(shape.example for shape in SHAPES)


def is_formula(text: str) -> bool:
    """Whether the text is meant as a formula (a word, a colon, no path separator), right or wrong."""
    return _LOOKS_LIKE_FORMULA.fullmatch(text) is not None


def formula_topology(text: str) -> Topology:
    """Return the machine that a formula stands for.

    Parameters
    ----------
    text
        The formula, for example ``torus:4x4x4,alpha_us=0.7``. Without options alpha is 0.5 us and beta 20 us/MB (50 GB/s).

    Raises
    ------
    InputError
        If the shape, its size or an option is not understood.
    """
    head, *options = text.split(",")
    word, colon, size = head.partition(":")
    shape = word.strip().lower()
    if not colon or shape not in _PARTS:
        near = difflib.get_close_matches(shape, _PARTS, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InputError(f"{text!r} has no known shape; {hint}write for example {_EXAMPLES}")
    parts = _PARTS[shape](_sides(shape, size.strip(), text), _cost(options, text))
    description = next(item.description for item in SHAPES if item.name == shape)
    return instantiate(
        NodeTemplate(
            name=f"{shape}-{size.strip().lower()}",
            description=description,
            source=f"the formula {text}; its costs are assumed, not measured",
            num_ranks=parts.num_ranks,
            links=parts.links,
            switches=parts.switches,
            symmetry=parts.symmetry,
        )
    )


@dataclass(frozen=True, slots=True)
class _Parts:
    num_ranks: int
    links: tuple[NodeLink, ...] = ()
    switches: tuple[NodeSwitch, ...] = ()
    symmetry: tuple[tuple[int, ...], ...] = ()


def _sides(shape: str, size: str, text: str) -> tuple[int, ...]:
    grid = shape in ("torus", "mesh")
    pattern = r"[0-9]{1,9}(x[0-9]{1,9})*" if grid else r"[0-9]{1,9}"
    if not re.fullmatch(pattern, size.lower()):
        allowed = "sides joined by x, as in 4x4" if grid else "one whole number"
        raise InputError(f"{text!r}: {size!r} is not a size of a {shape}; write {allowed}")
    sides = tuple(int(side) for side in size.lower().split("x"))
    least = 1 if shape == "hypercube" else 2
    if min(sides) < least:
        unit = "dimensions" if shape == "hypercube" else "ranks along each side" if grid else "ranks"
        raise InputError(f"{text!r}: found {min(sides)}, a {shape} has at least {least} {unit}")
    _check_size(shape, sides, text)
    return sides


def _check_size(shape: str, sides: Sequence[int], text: str) -> None:
    """Refuse what would not fit into memory, before anything is built."""
    if shape == "hypercube":
        num_ranks = 2.0 ** min(sides[0], 100)
        num_links = sides[0] * num_ranks
    else:
        num_ranks = math.prod(map(float, sides))
        num_links = num_ranks * (num_ranks - 1) if shape in ("full", "switch") else 2.0 * len(sides) * num_ranks
    for number, most, what in ((num_ranks, MAX_RANKS, "ranks"), (num_links, MAX_LINKS, "links")):
        if number > most:
            raise InputError(f"{text!r} would have more than {most} {what}; write a smaller size")


def _cost(options: Sequence[str], text: str) -> Cost:
    found: dict[str, float] = {}
    for option in options:
        key, equals, value = (part.strip() for part in option.partition("="))
        if not equals or key not in _OPTIONS:
            raise InputError(
                f"{text!r}: {option.strip()!r} is not an option; write {' or '.join(_OPTIONS)}, = and a number"
            )
        if key in found:
            raise InputError(f"{text!r}: {key} stands twice; keep one of them")
        try:
            found[key] = float(value)
        except ValueError:
            raise InputError(f"{text!r}: {value!r} is not a number; write for example {key}=0.7") from None
        if not 0 <= found[key] <= MAX_COST_US:
            raise InputError(f"{text!r}: found {key}={value}, a number from 0 to {MAX_COST_US:g} is needed")
    cost = Cost(found.get("alpha_us", DEFAULT_ALPHA_US), found.get("beta_us_per_mb", DEFAULT_BETA_US_PER_MB))
    if cost.alpha_us == 0 and cost.beta_us_per_mb == 0:
        raise InputError(f"{text!r}: alpha and beta are both 0; give the links a cost")
    return cost


def _grid_ranks(sides: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Coordinates of every rank, in order of rank."""
    return itertools.product(*(range(side) for side in sides))


def _rank_at(place: Sequence[int], sides: Sequence[int]) -> int:
    rank = 0
    for coordinate, side in zip(place, sides, strict=True):
        rank = rank * side + coordinate
    return rank


def _moved(place: Sequence[int], dimension: int, to: int) -> tuple[int, ...]:
    return (*place[:dimension], to, *place[dimension + 1 :])


def _torus(sides: tuple[int, ...], cost: Cost) -> _Parts:
    links = []
    for place in _grid_ranks(sides):
        for dimension, side in enumerate(sides):
            # On a side of 2 the next rank and the previous one are the same: one link, not two.
            for to in sorted({(place[dimension] + 1) % side, (place[dimension] - 1) % side}):
                neighbour = _rank_at(_moved(place, dimension, to), sides)
                links.append(NodeLink(_rank_at(place, sides), neighbour, cost))
    shifts = tuple(
        tuple(_rank_at(_moved(place, dim, (place[dim] + 1) % side), sides) for place in _grid_ranks(sides))
        for dim, side in enumerate(sides)
    )
    return _Parts(math.prod(sides), tuple(links), symmetry=shifts)


def _mesh(sides: tuple[int, ...], cost: Cost) -> _Parts:
    links = []
    for place in _grid_ranks(sides):
        for dimension, side in enumerate(sides):
            for to in (place[dimension] - 1, place[dimension] + 1):
                if 0 <= to < side:
                    neighbour = _rank_at(_moved(place, dimension, to), sides)
                    links.append(NodeLink(_rank_at(place, sides), neighbour, cost))
    return _Parts(math.prod(sides), tuple(links))


def _hypercube(sides: tuple[int, ...], cost: Cost) -> _Parts:
    bits = [1 << bit for bit in range(sides[0])]
    ranks = range(1 << sides[0])
    links = tuple(NodeLink(rank, rank ^ bit, cost) for rank in ranks for bit in bits)
    return _Parts(len(ranks), links, symmetry=tuple(tuple(rank ^ bit for rank in ranks) for bit in bits))


def _full(sides: tuple[int, ...], cost: Cost) -> _Parts:
    ranks = range(sides[0])
    links = tuple(NodeLink(src, dst, cost) for src in ranks for dst in ranks if src != dst)
    return _Parts(len(ranks), links, symmetry=(_rotation(len(ranks)),))


def _switch(sides: tuple[int, ...], cost: Cost) -> _Parts:
    ranks = tuple(range(sides[0]))
    return _Parts(len(ranks), switches=(NodeSwitch("switch", ranks, cost),), symmetry=(_rotation(len(ranks)),))


def _rotation(num_ranks: int) -> tuple[int, ...]:
    return tuple((rank + 1) % num_ranks for rank in range(num_ranks))


_PARTS: dict[str, Callable[[tuple[int, ...], Cost], _Parts]] = {
    "ring": _torus,  # a torus of one dimension
    "torus": _torus,
    "mesh": _mesh,
    "hypercube": _hypercube,
    "full": _full,
    "switch": _switch,
}

"""Machines by formula: ``ring:8``, ``torus:4x4``, ``twisted:4x8``, ``mesh:4x4``, ``fattree:4``, ``hpn:64`` and others.

A formula is a shape, a colon, its size, and options after commas: ``ring:8,alpha_us=0.7,beta_us_per_mb=40``. All links of
a machine are alike and go both ways; the whole machine is one node. Ranks of a torus or a mesh are numbered row by row,
the last coordinate first. Clusters (``hpn``, ``nvl72``) are sized by their number of nodes and have costs of their own, which
options replace: ``hpn:64,nic_gbps=25,nic_alpha_us=3.1``.

A twisted torus (Camara et al., "Twisted torus topologies for enhanced interconnection networks", IEEE TPDS 2010; the k x k x 2k
and k x 2k x 2k slices of TPU v4, Jouppi et al., ISCA 2023) is one whose last side, or sides, are twice as long as the others, and
where going around a short side also moves half way along every long one. ``torus:8x8,routed`` is a torus with routers (`tori`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from taccl_py.errors import InputError
from taccl_py.spelling import did_you_mean
from taccl_py.topology.fabrics import (
    NIC_ALPHA_US,
    NVSWITCH_ALPHA_US,
    NodeParts,
    dragonfly,
    dragonfly_ranks,
    fat_tree,
    fat_tree_ranks,
    rail_nodes,
    rotation,
)
from taccl_py.topology.model import Medium, Topology
from taccl_py.topology.template import MAX_LINKS, AlphaBeta, NodeLink, NodeSwitch, NodeTemplate, instantiate
from taccl_py.topology.tori import mesh, torus, twisted
from taccl_py.units import MAX_COST_US, MAX_RANKS

DEFAULT_ALPHA_US = 0.5
DEFAULT_BETA_US_PER_MB = 20.0  # 50 GB/s
DEFAULT_HOP_US = 0.1  # of routers; assumed, as the other costs are

_OPTIONS = ("alpha_us", "beta_us_per_mb")
_ROUTED = "routed"  # stands alone, without a number
_HOP = "hop_us"
_CLUSTER_OPTIONS = ("planes", "nvlink_alpha_us", "nvlink_gbps", "nic_alpha_us", "nic_gbps")
_LOOKS_LIKE_FORMULA = re.compile(r"[A-Za-z][A-Za-z0-9]*:[^/\\]*")
_MAX_PLANES = 16


@dataclass(frozen=True, slots=True)
class FormulaShape:
    """One kind of formula.

    Attributes
    ----------
    name
        Word before the colon.
    example
        A formula of this kind.
    description
        Machine that it stands for.
    """

    name: str
    example: str
    description: str


SHAPES = (
    FormulaShape("ring", "ring:8", "each rank linked to the next and the previous one"),
    FormulaShape(
        "torus",
        "torus:4x4",
        "a grid of any dimension whose sides are rings; with ,routed (and hop_us=0.1), as for ring, twisted and mesh, routers pass messages on",
    ),
    FormulaShape(
        "twisted",
        "twisted:4x4x8",
        "a torus k x 2k, k x k x 2k or k x 2k x 2k whose short sides close half way along the long ones",
    ),
    FormulaShape("mesh", "mesh:4x4", "a grid of any dimension whose sides are lines"),
    FormulaShape("hypercube", "hypercube:3", "2^d ranks, linked where their numbers differ in one bit"),
    FormulaShape(
        "circulant",
        "circulant:16x1x6",
        "so many ranks in a ring, linked in both directions at the distances that follow",
    ),
    FormulaShape(
        "kautz", "kautz:12x2", "generalized Kautz graph: so many ranks with so many links out, few steps apart"
    ),
    FormulaShape("full", "full:8", "a link of its own for every pair"),
    FormulaShape("switch", "switch:16", "every pair linked; one port out and one port in for each rank"),
    FormulaShape(
        "dragonfly", "dragonfly:2", "balanced: groups of 2h routers with h ranks and h channels out each; h is 2 here"
    ),
    FormulaShape("fattree", "fattree:4", "three levels of switches with so many ports, paths by the receiver's number"),
    FormulaShape(
        "hpn",
        "hpn:2",
        "so many nodes of 8 H800, 400 Gb/s rails; planes=2 tells the two ports of NICs apart, nic_gbps=45 sets a cost",
    ),
    FormulaShape("nvl72", "nvl72:1", "so many racks of 72 GPUs (GB200) on NVSwitch, 400 Gb/s rails; options as in hpn"),
)
_NAMES = tuple(shape.name for shape in SHAPES)
_EXAMPLES = ", ".join(shape.example for shape in SHAPES)


def formulas_of_gpu(gpu: str) -> tuple[str, ...]:
    """Examples of the formulas whose machines have a GPU."""
    return tuple(shape.example for shape in SHAPES if shape.name in _CLUSTERS and _CLUSTERS[shape.name].gpu == gpu)


def is_formula(text: str) -> bool:
    """True if the text is meant as a formula (a word, a colon, no path separator), right or wrong."""
    return _LOOKS_LIKE_FORMULA.fullmatch(text) is not None


# A command asks for its machine more than once, and one of hundreds of ranks takes a second.
@lru_cache(maxsize=2)
def formula_topology(text: str) -> Topology:
    """Return the machine that a formula stands for.

    Parameters
    ----------
    text
        The formula, for example ``torus:4x4x4,alpha_us=0.7``. Without options alpha is 0.5 us and beta 20 us/MB (50 GB/s). Of a
        cluster NVLink and NICs have an alpha (us) and a bandwidth (GB/s in each direction of a rank), and NICs so many planes.

    Raises
    ------
    InputError
        If the shape, its size or an option is not understood.
    """
    head, *options = text.split(",")
    word, colon, size = head.partition(":")
    shape = word.strip().lower()
    if not colon or shape not in _NAMES:
        raise InputError(f"{text!r} has no known shape; {did_you_mean(shape, _NAMES)}write for example {_EXAMPLES}")
    sides = _sides(shape, size.strip(), text)
    if shape in _CLUSTERS:
        return instantiate(_cluster_node(shape, options, text), sides[0])
    routed = shape in _TORI and _ROUTED in [option.strip() for option in options]
    if shape in _TORI and not routed:
        _refuse_hops(options, text)
    parts = _routed(shape, sides, options, text) if routed else _PARTS[shape](sides, _cost(options, text))
    description = next(item.description for item in SHAPES if item.name == shape)
    return instantiate(
        NodeTemplate(
            name=f"{shape}-{size.strip().lower()}{f'-{_ROUTED}' if routed else ''}",
            description=description,
            source=f"the formula {text}; its costs are assumed, not measured",
            num_ranks=parts.num_ranks,
            links=parts.links,
            switches=parts.switches,
            ports=parts.ports,
            symmetry=parts.symmetry,
            inside=Medium.NETWORK if shape in _NETWORKS else Medium.NVLINK,
        )
    )


@dataclass(frozen=True, slots=True)
class _Cluster:
    """Ranks of a node, and their bandwidths in one direction."""

    ranks_per_node: int
    nvlink_gbps: float
    nic_gbps: float
    gpu: str


_CLUSTERS = {"hpn": _Cluster(8, 200.0, 50.0, "h800"), "nvl72": _Cluster(72, 900.0, 50.0, "gb200")}
_NETWORKS = ("dragonfly", "fattree")  # every rank is a host
_GRIDS = ("torus", "twisted", "mesh")
# Their first number counts the ranks; those that follow are distances, or the number of links out.
_LISTS = ("circulant", "kautz")
# The least size of those that have no side of at least 2 ranks.
_LEAST = {"hypercube": 1, "dragonfly": 1, "hpn": 1, "nvl72": 1, "circulant": 1, "kautz": 1}
_UNITS = {
    "hypercube": "dimensions",
    "dragonfly": "channels out of a router",
    "fattree": "ports",
    "hpn": "nodes",
    "nvl72": "racks",
}


def _sides(shape: str, size: str, text: str) -> tuple[int, ...]:
    grid = shape in _GRIDS
    pattern = r"[0-9]{1,9}(x[0-9]{1,9})*" if grid or shape in _LISTS else r"[0-9]{1,9}"
    if not re.fullmatch(pattern, size.lower()):
        allowed = (
            "sides joined by x, as in 4x4" if grid else "numbers joined by x" if shape in _LISTS else "one whole number"
        )
        raise InputError(f"{text!r}: {size!r} is not a size of a {shape}; write {allowed}")
    sides = tuple(int(side) for side in size.lower().split("x"))
    least = _LEAST.get(shape, 2)
    if min(sides) < least:
        unit = "ranks along each side" if grid else _UNITS.get(shape, "ranks")
        raise InputError(f"{text!r}: found {min(sides)}, a {shape} has at least {least} {unit}")
    if shape == "fattree" and sides[0] % 2:
        raise InputError(f"{text!r}: found {sides[0]} ports, half of which go up; write an even number")
    if shape == "twisted" and (sorted({*sides}) != [sides[0], 2 * sides[0]] or list(sides) != sorted(sides)):
        raise InputError(
            f"{text!r}: the last side of a twisted torus, or sides, are twice each of those before; write for example 4x4x8 or 4x8x8"
        )
    if shape in _LISTS:
        _check_list(shape, sides, text)
    _check_size(shape, sides, text)
    return sides


def _check_list(shape: str, sides: Sequence[int], text: str) -> None:
    ranks, *others = sides
    if shape == "kautz" and (len(others) != 1 or not 2 <= others[0] < ranks):
        raise InputError(
            f"{text!r}: write the ranks and the links out of each, 2 or more and fewer than ranks, as in 12x2"
        )
    if shape == "circulant" and (not others or ranks < 2 or max(others) > ranks // 2 or len(set(others)) < len(others)):
        raise InputError(
            f"{text!r}: write the ranks and different distances, each at most half of the ranks, as in 16x1x6"
        )
    if shape == "circulant" and math.gcd(*sides) > 1:
        raise InputError(
            f"{text!r}: its numbers have a common divisor, so some ranks cannot be reached; write for example 16x1x6"
        )


def _check_size(shape: str, sides: Sequence[int], text: str) -> None:
    """Refuse what would not fit into memory, before anything is built."""
    num_ranks = math.prod(map(float, sides))
    num_links = num_ranks * (num_ranks - 1) if shape in ("full", "switch") else 2.0 * len(sides) * num_ranks
    if shape in _LISTS:
        num_ranks = float(sides[0])
        num_links = num_ranks * (2.0 * (len(sides) - 1) if shape == "circulant" else sides[1])
    elif shape == "hypercube":
        num_ranks = 2.0 ** min(sides[0], 100)
        num_links = sides[0] * num_ranks
    elif shape in ("dragonfly", "fattree"):
        num_ranks = float(dragonfly_ranks(sides[0]) if shape == "dragonfly" else fat_tree_ranks(sides[0]))
        num_links = num_ranks * (num_ranks - 1)
    elif shape in _CLUSTERS:
        return  # `instantiate` counts for itself
    for number, most, what in ((num_ranks, MAX_RANKS, "ranks"), (num_links, MAX_LINKS, "links")):
        if number > most:
            raise InputError(f"{text!r} would have more than {most} {what}; write a smaller size")


def _routed(shape: str, sides: tuple[int, ...], options: Sequence[str], text: str) -> NodeParts:
    """A grid with routers, whose links are all pairs of ranks, each with all hops of its path."""
    others = [option for option in options if option.strip() != _ROUTED]
    if len(others) < len(options) - 1:
        raise InputError(f"{text!r}: {_ROUTED} stands twice; keep one of them")
    if len(sides) * math.prod(map(float, sides)) ** 2 * max(sides) / 4 > MAX_LINKS:
        raise InputError(
            f"{text!r}: the links of all pairs would have more than {MAX_LINKS} hops; write a smaller size"
        )
    hop_us = _numbers(others, (*_OPTIONS, _HOP), text).get(_HOP, DEFAULT_HOP_US)
    return _TORI[shape](
        sides, _cost([option for option in others if option.partition("=")[0].strip() != _HOP], text), hop_us
    )


def _refuse_hops(options: Sequence[str], text: str) -> None:
    """Refuse the cost of a router's hop where there are no routers."""
    for option in options:
        if option.partition("=")[0].strip() == _HOP:
            raise InputError(
                f"{text!r}: {option.strip()!r} is not an option of links between neighbours alone; add ,{_ROUTED} for links "
                "between all ranks, which pass through routers"
            )


def _cost(options: Sequence[str], text: str) -> AlphaBeta:
    found = _numbers(options, _OPTIONS, text)
    cost = AlphaBeta(found.get("alpha_us", DEFAULT_ALPHA_US), found.get("beta_us_per_mb", DEFAULT_BETA_US_PER_MB))
    if cost.alpha_us == 0 and cost.beta_us_per_mb == 0:
        raise InputError(f"{text!r}: alpha and beta are both 0; give the links a cost")
    return cost


def _cluster_node(shape: str, options: Sequence[str], text: str) -> NodeTemplate:
    """One node of a cluster, with the costs that the formula gives in place of its own."""
    cluster, found = _CLUSTERS[shape], _numbers(options, _CLUSTER_OPTIONS, text)
    planes = found.pop("planes", 1)
    if planes not in range(1, _MAX_PLANES + 1):
        raise InputError(f"{text!r}: found planes={planes:g}, a whole number from 1 to {_MAX_PLANES} is needed")
    for key in ("nvlink_gbps", "nic_gbps"):
        if found.get(key) == 0:
            raise InputError(f"{text!r}: found {key}=0, a bandwidth above 0 is needed")
    node = rail_nodes(
        shape if planes == 1 else f"{shape}-{planes:g}-planes",
        cluster.ranks_per_node,
        found.get("nvlink_gbps", cluster.nvlink_gbps),
        found.get("nic_gbps", cluster.nic_gbps),
        int(planes),
        found.get("nvlink_alpha_us", NVSWITCH_ALPHA_US),
        found.get("nic_alpha_us", NIC_ALPHA_US),
    )
    source = f"{node.source}; {', '.join(found)} of the formula {text}" if found else node.source
    return replace(node, source=source, gpu=cluster.gpu)


def _numbers(options: Sequence[str], allowed: Sequence[str], text: str) -> dict[str, float]:
    """Options of a formula by their names, each a number that is not negative."""
    found: dict[str, float] = {}
    for option in options:
        key, equals, value = (part.strip() for part in option.partition("="))
        if not equals or key not in allowed:
            names = f"{', '.join(allowed[:-1])} or {allowed[-1]}" if len(allowed) > 2 else " or ".join(allowed)
            raise InputError(f"{text!r}: {option.strip()!r} is not an option; write {names}, = and a number")
        if key in found:
            raise InputError(f"{text!r}: {key} stands twice; keep one of them")
        try:
            found[key] = float(value)
        except ValueError:
            raise InputError(f"{text!r}: {value!r} is not a number; write for example {key}=0.7") from None
        if not 0 <= found[key] <= MAX_COST_US:
            raise InputError(f"{text!r}: found {key}={value}, a number from 0 to {MAX_COST_US:g} is needed")
    return found


def _hypercube(sides: tuple[int, ...], cost: AlphaBeta) -> NodeParts:
    bits = [1 << bit for bit in range(sides[0])]
    ranks = range(1 << sides[0])
    links = tuple(NodeLink(rank, rank ^ bit, cost) for rank in ranks for bit in bits)
    return NodeParts(len(ranks), links, symmetry=tuple(tuple(rank ^ bit for rank in ranks) for bit in bits))


def _circulant(sides: tuple[int, ...], cost: AlphaBeta) -> NodeParts:
    size, *distances = sides
    # Halfway around both ways lead to the same rank.
    steps = sorted({step for distance in distances for step in (distance, size - distance)})
    links = tuple(NodeLink(rank, (rank + step) % size, cost) for rank in range(size) for step in steps)
    return NodeParts(size, links, symmetry=(rotation(size),))


def _kautz(sides: tuple[int, ...], cost: AlphaBeta) -> NodeParts:
    """Links from i to -d i - j for j from 1 to d (Imase and Itoh 1983), all modulo the number of ranks, loops left out.

    Adding t to every rank keeps the links where (d + 1) t is 0.
    """
    size, degree = sides
    links = tuple(
        NodeLink(rank, to, cost)
        for rank in range(size)
        for to in dict.fromkeys((-degree * rank - j) % size for j in range(1, degree + 1))
        if to != rank
    )
    shift = size // math.gcd(size, degree + 1)
    return NodeParts(size, links, symmetry=(rotation(size, shift),) if shift < size else ())


def _full(sides: tuple[int, ...], cost: AlphaBeta) -> NodeParts:
    ranks = range(sides[0])
    links = tuple(NodeLink(src, dst, cost) for src in ranks for dst in ranks if src != dst)
    return NodeParts(len(ranks), links, symmetry=(rotation(len(ranks)),))


def _switch(sides: tuple[int, ...], cost: AlphaBeta) -> NodeParts:
    ranks = tuple(range(sides[0]))
    return NodeParts(len(ranks), switches=(NodeSwitch("switch", ranks, cost),), symmetry=(rotation(len(ranks)),))


def _dragonfly(sides: tuple[int, ...], cost: AlphaBeta) -> NodeParts:
    return dragonfly(sides[0], cost)


def _fat_tree(sides: tuple[int, ...], cost: AlphaBeta) -> NodeParts:
    return fat_tree(sides[0], cost)


_TORI = {"ring": torus, "torus": torus, "twisted": twisted, "mesh": mesh}  # a ring is a torus of one dimension
_PARTS: dict[str, Callable[[tuple[int, ...], AlphaBeta], NodeParts]] = {
    **_TORI,
    "hypercube": _hypercube,
    "circulant": _circulant,
    "kautz": _kautz,
    "full": _full,
    "switch": _switch,
    "dragonfly": _dragonfly,
    "fattree": _fat_tree,
}

"""Patterns: how a group of ranks that are alike spreads what each of them has, step by step.

A pattern is written in positions within a group; a machine's ranks are cut into groups along axes, as the coordinates of a
grid are: one axis runs inside nodes, say, and one across them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from taccl_py.synthesis.templates.messages import TemplateMessage, TemplateMessages
from taccl_py.synthesis.templates.site import TemplateSite
from taccl_py.topology.model import Topology

# Disjoint groups of ranks, all of one size.
Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Pass:
    """Position `src` gives position `dst` what the positions `origins` had at first."""

    src: int
    dst: int
    origins: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """Disjoint groups of ranks, and what they do at each step.

    Attributes
    ----------
    name
        Of the pattern.
    groups
        Ranks by position.
    steps
        The pattern.
    """

    name: str
    groups: Groups
    steps: tuple[tuple[Pass, ...], ...]


DIRECT, RING, DOUBLING = "direct", "ring", "doubling"
PATTERNS = (DIRECT, DOUBLING, RING)


def axis(site: TemplateSite, name: str, groups: Groups) -> Axis | None:
    """Axis on which all groups follow one pattern, or None where links for it are missing.

    Parameters
    ----------
    site
        The machine.
    name
        ``direct``: everyone to everyone in one step. ``doubling``: what is exchanged doubles at every step. ``ring``: in both directions
        around, as the ranks are numbered.
    groups
        Disjoint groups of one size.
    """
    size = len(groups[0])
    if name == DOUBLING and size & (size - 1) == 0:
        cubes = [site.cube(group) for group in groups]
        found = tuple(cube for cube in cubes if cube is not None)
        return Axis(name, found, _doubling(size)) if len(found) == len(groups) else None
    steps = {DIRECT: _direct, RING: _ring, DOUBLING: _bruck}[name](size)
    passes = [each for step in steps for each in step]
    if all(site.linked(group[each.src], group[each.dst]) for group in groups for each in passes):
        return Axis(name, groups, steps)
    return None


def _direct(size: int) -> tuple[tuple[Pass, ...], ...]:
    return (tuple(Pass(i, (i + shift) % size, (i,)) for shift in range(1, size) for i in range(size)),)


def _ring(size: int) -> tuple[tuple[Pass, ...], ...]:
    """Half of the others' parts come from each side."""
    steps = []
    for step in range(size // 2):
        passes = [Pass(i, (i + 1) % size, ((i - step) % size,)) for i in range(size)]
        if step < (size - 1) // 2:
            passes += [Pass(i, (i - 1) % size, ((i + step) % size,)) for i in range(size)]
        steps.append(tuple(passes))
    return tuple(steps)


def _doubling(size: int) -> tuple[tuple[Pass, ...], ...]:
    steps = []
    bit = 1
    while bit < size:
        held = [tuple(j for j in range(size) if j // bit == i // bit) for i in range(size)]
        steps.append(tuple(Pass(i, i ^ bit, held[i]) for i in range(size)))
        bit *= 2
    return tuple(steps)


def _bruck(size: int) -> tuple[tuple[Pass, ...], ...]:
    """Doubling for any number of ranks: to the rank `reach` before, which lacks what follows its own."""
    steps = []
    reach = 1
    while reach < size:
        num = min(reach, size - reach)
        steps.append(tuple(Pass(i, (i - reach) % size, tuple((i + j) % size for j in range(num))) for i in range(size)))
        reach *= 2
    return tuple(steps)


def spread(axes: tuple[Axis, ...], held: Mapping[int, tuple[int, ...]]) -> TemplateMessages:
    """AllGather along one axis after the other.

    Parameters
    ----------
    axes
        In order.
    held
        Chunks that each rank has at first; ranks of one group have different ones.
    """
    now = dict(held)
    messages: list[TemplateMessage] = []
    time = 0
    for each in axes:
        before = dict(now)
        for step in each.steps:
            for one in step:
                for group in each.groups:
                    chunks = sorted(c for origin in one.origins for c in before[group[origin]])
                    messages.append(TemplateMessage(group[one.src], group[one.dst], tuple(chunks), time, time + 1))
            time += 1
        for group in each.groups:
            together = tuple(chunk for rank in group for chunk in before[rank])
            now.update(dict.fromkeys(group, together))
    return tuple(messages)


def exchange(site: TemplateSite, groups: Groups, name: str, chunks: tuple[int, ...]) -> TemplateMessages | None:
    """Sum chunks within each group by exchanging partial sums, everyone at the same time.

    None where links are missing, or where those of a step share a port, which lets the first sums arrive before the last ones leave.
    """
    if name == RING or (name == DOUBLING and len(groups[0]) & (len(groups[0]) - 1)):
        return None
    along = axis(site, name, groups)
    num_bytes = len(chunks) * site.chunk_bytes
    if along is None or (len(groups[0]) > 2 and name == DIRECT and not _at_once(site, groups, num_bytes)):
        return None
    messages = []
    for time, step in enumerate(along.steps):
        messages += [
            TemplateMessage(group[one.src], group[one.dst], chunks, time, time + 1, reduce=True)
            for one in step
            for group in along.groups
        ]
    return tuple(messages)


def _at_once(site: TemplateSite, groups: Groups, num_bytes: float) -> bool:
    """True if everyone in each group can send to all others before anything arrives, if all of it goes in one piece or in many.

    Said of all that have parallel links, too, whose ports may be different ones.
    """
    topology = site.topology
    for group in groups:
        between = [topology.links_between[src, dst] for src in group for dst in group if src != dst]
        if any(len(links) > 1 for links in between):
            continue
        links = [link for (link,) in between]
        uses = Counter(resource for link in links for resource in topology.resources_of[link])
        if not any(_begins_before(topology, links, uses, size) for size in (num_bytes, 0.0)):
            return False
    return True


def _begins_before(topology: Topology, links: list[int], uses: Mapping[int, int], num_bytes: float) -> bool:
    """True if the last message on every resource begins before the first one over any of the links arrives."""
    first_us = min(topology.message_us(link, num_bytes) for link in links)
    return all(
        (number - 1) * topology.occupancy_us(resource, num_bytes) < first_us for resource, number in uses.items()
    )

"""Degraded machines: links that are missing, or slower than their kind."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from taccl_py.errors import InputError
from taccl_py.topology.files import require_connected
from taccl_py.topology.model import Topology

_LINK = re.compile(r"\s*([0-9]{1,9})\s*(->|-|>)\s*([0-9]{1,9})\s*")


@dataclass(frozen=True, slots=True)
class LinkChoice:
    """Links between two ranks: one direction, or both; all lanes of them."""

    src: int
    dst: int
    both_ways: bool = True

    def __str__(self) -> str:
        return f"{self.src}{'-' if self.both_ways else '->'}{self.dst}"

    def holds(self, src: int, dst: int) -> bool:
        """Whether a link with these ends is meant."""
        return (src, dst) == (self.src, self.dst) or (self.both_ways and (dst, src) == (self.src, self.dst))


@dataclass(frozen=True, slots=True)
class SlowLink:
    """Links that have only this part of their bandwidth, above 0 and below 1."""

    links: LinkChoice
    share: float

    def __str__(self) -> str:
        return f"{self.links}:{self.share:g}"


@dataclass(frozen=True, slots=True)
class Degradation:
    """What is wrong with a machine."""

    missing: tuple[LinkChoice, ...] = ()
    slow: tuple[SlowLink, ...] = ()


def parse_link(text: str) -> LinkChoice:
    """Links of a text: ``0-3`` for both directions, ``0->3`` (or ``0>3``, which a shell needs quoted too) for one.

    Raises
    ------
    InputError
        If the text is none of them.
    """
    match = _LINK.fullmatch(text)
    if match is None or int(match.group(1)) == int(match.group(3)):
        raise InputError(f"{text[:40]!r} is not a link; write for example 0-3, or '0->3' for one direction")
    return LinkChoice(int(match.group(1)), int(match.group(3)), both_ways=match.group(2) == "-")


def parse_slow_link(text: str) -> SlowLink:
    """Links and the part of their bandwidth that is left: ``0-3:0.5``.

    Raises
    ------
    InputError
        If the text is none, or the part is not above 0 and below 1.
    """
    link, colon, share = text.rpartition(":")
    try:
        number = float(share) if colon else -1.0
    except ValueError:
        number = -1.0
    if not 1e-9 <= number < 1:
        raise InputError(
            f"{text[:40]!r} is not a slow link; write a link, a colon and the part of its bandwidth that is left, as in 0-3:0.5"
        )
    return SlowLink(parse_link(link), number)


def degraded(topology: Topology, degradation: Degradation) -> Topology:
    """Return the machine without its missing links and with its slow ones, and with the symmetry that is left.

    The source says what was taken away. A slow link has a larger beta; ports and alphas stay.

    Parameters
    ----------
    topology
        The whole machine.
    degradation
        What is wrong with it.

    Raises
    ------
    InputError
        If there is no such link, or if some rank cannot reach another any more; ``field`` is ``missing`` or ``slow``.
    """
    if not degradation.missing and not degradation.slow:
        return topology
    links = list(topology.links)
    for choice in degradation.missing:
        _require(topology, choice, "missing")
        links = [link for link in links if not choice.holds(link.src, link.dst)]
    for slow in degradation.slow:
        _require(topology, slow.links, "slow")
        links = [
            replace(link, beta_us_per_mb=link.beta_us_per_mb / slow.share)
            if slow.links.holds(link.src, link.dst)
            else link
            for link in links
        ]
    words = [f"without {choice}" for choice in degradation.missing] + [f"slow {slow}" for slow in degradation.slow]
    machine = replace(
        topology, name=f"{topology.name}-degraded", links=tuple(links),
        source="; ".join(filter(None, [topology.source, f"declared: {', '.join(words)}"])),
    )  # fmt: skip
    try:
        require_connected(machine)
    except InputError as error:
        raise InputError(f"{error.what.partition(';')[0]} any more; leave other links", field="missing") from None
    from taccl_py.topology.automorphism import LinkImages  # loads numpy, which --help does without

    images = LinkImages(machine)
    symmetry = tuple(image for image in topology.symmetry if not isinstance(images.of(image), str))
    return replace(machine, symmetry=symmetry)


def _require(topology: Topology, choice: LinkChoice, field: str) -> None:
    wanted = [(choice.src, choice.dst)] + ([(choice.dst, choice.src)] if choice.both_ways else [])
    if not any(pair in topology.links_between for pair in wanted):
        near = sorted({dst for src, dst in topology.links_between if src == choice.src})
        hint = (
            f"rank {choice.src} has links to {', '.join(map(str, near[:8]))}" if near else "taccl topo show lists them"
        )
        raise InputError(f"{topology.name} has no link {choice}; {hint}", field=field)

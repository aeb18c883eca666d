"""Degraded machines: links and ports (NICs, whole nodes) that are missing, or slower than their kind."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from taccl_py.errors import InputError
from taccl_py.topology.files import require_connected
from taccl_py.topology.model import Link, Port, Topology
from taccl_py.units import natural_key

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
        """True if a link with these ends is meant."""
        return (src, dst) == (self.src, self.dst) or (self.both_ways and (dst, src) == (self.src, self.dst))


@dataclass(frozen=True, slots=True)
class SlowLink:
    """Links that have only this part of their bandwidth, above 0 and below 1."""

    links: LinkChoice
    share: float

    def __str__(self) -> str:
        return f"{self.links}:{self.share:g}"


@dataclass(frozen=True, slots=True)
class SlowPort:
    """Ports whose names fit a pattern and that have only this part of their bandwidth, above 0 and below 1."""

    pattern: str
    share: float

    def __str__(self) -> str:
        return f"{self.pattern}:{self.share:g}"


@dataclass(frozen=True, slots=True)
class Degradation:
    """Faults of a machine.

    Attributes
    ----------
    missing, slow
        Links.
    missing_ports
        Patterns of the names of ports that are gone, with all links that need them; ``*`` and ``?`` as in a shell.
    slow_ports
        See `SlowPort`.
    """

    missing: tuple[LinkChoice, ...] = ()
    slow: tuple[SlowLink, ...] = ()
    missing_ports: tuple[str, ...] = ()
    slow_ports: tuple[SlowPort, ...] = ()

    def words(self) -> list[str]:
        """Faults in words, for people."""
        gone = [f"without {choice}" for choice in (*self.missing, *self.missing_ports)]
        return gone + [f"slow {slow}" for slow in (*self.slow, *self.slow_ports)]


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
    link, share = _parted(text)
    if share is None:
        raise InputError(
            f"{text[:40]!r} is not a slow link; write a link, a colon and the part of its bandwidth that is left, as in 0-3:0.5"
        )
    return SlowLink(parse_link(link), share)


def parse_slow_port(text: str) -> SlowPort:
    """Pattern of the names of ports and the part of their bandwidth that is left: ``node 5 *:0.5``.

    Raises
    ------
    InputError
        If the text is none, or the part is not above 0 and below 1.
    """
    pattern, share = _parted(text)
    if share is None or not pattern.strip():
        raise InputError(
            f"{text[:40]!r} is not a slow port; write a name, in which * stands for anything, a colon and the part of its "
            "bandwidth that is left, as in 'node 5 *:0.5'"
        )
    return SlowPort(pattern.strip(), share)


def _parted(text: str) -> tuple[str, float | None]:
    """Text before the last colon, and the part of a bandwidth behind it, None if it is not one."""
    name, colon, share = text.rpartition(":")
    try:
        number = float(share) if colon else -1.0
    except ValueError:
        number = -1.0
    return name, number if 1e-9 <= number < 1 else None


def degraded(topology: Topology, degradation: Degradation, *, is_whole: bool = True) -> Topology:
    """Return the machine without what is missing and with what is slow, and with the symmetry that is left.

    The source says what was taken away. What is slow has a larger beta; alphas stay.

    Parameters
    ----------
    topology
        The whole machine.
    degradation
        Faults.
    is_whole
        Whether every rank has to reach every other one, which is not needed for a process group of some of them.

    Raises
    ------
    InputError
        If there is no such link or port, one is slow and missing, or some rank cannot reach another any more; ``field`` is that of
        `Degradation`.
    """
    words = degradation.words()
    if not words:
        return topology
    ports = _slowed(topology, degradation)
    gone = {port for pattern in degradation.missing_ports for port in _fitting(topology, pattern, "missing_ports")}
    links = _without_ports(topology, gone) if gone else list(topology.links)
    for choice in degradation.missing:
        _require(topology, choice, "missing")
        links = [link for link in links if not choice.holds(link.src, link.dst)]
    for slow in degradation.slow:
        _require(topology, slow.links, "slow")
        if not any(slow.links.holds(link.src, link.dst) for link in links):
            raise InputError(f"{slow.links} is missing as well as slow; leave one of both out", field="slow")
        links = [
            replace(link, beta_us_per_mb=link.beta_us_per_mb / slow.share)
            if slow.links.holds(link.src, link.dst)
            else link
            for link in links
        ]
    machine = replace(
        topology, name=f"{topology.name}-degraded", links=tuple(links), symmetry=(),
        ports=tuple(port for number, port in enumerate(ports) if number not in gone),
        # A switch whose links are not all there cannot be counted on to reach all its ranks at once.
        switches=topology.switches if len(links) == len(topology.links) else (),
        source="; ".join(filter(None, [topology.source, f"declared: {', '.join(words)}"])),
    )  # fmt: skip
    try:
        if is_whole:
            require_connected(machine)
    except InputError as error:
        field = "missing" if degradation.missing else "missing_ports"
        raise InputError(f"{error.what.partition(';')[0]} any more; leave other links", field=field) from None
    from taccl_py.topology.automorphism import LinkImages  # loads numpy, which --help does without

    images = LinkImages(machine)
    symmetry = tuple(image for image in topology.symmetry if not isinstance(images.of(image), str))
    return replace(machine, symmetry=symmetry) if symmetry else machine


def _slowed(topology: Topology, degradation: Degradation) -> list[Port]:
    """Ports of the machine, the slow ones slow."""
    ports = list(topology.ports)
    for slow in degradation.slow_ports:
        for port in _fitting(topology, slow.pattern, "slow_ports"):
            ports[port] = replace(ports[port], beta_us_per_mb=ports[port].beta_us_per_mb / slow.share)
    return ports


def _without_ports(topology: Topology, gone: set[int]) -> list[Link]:
    """Links that need none of the ports that are gone, with the numbers of those that are left."""
    number = {port: index for index, port in enumerate(p for p in range(len(topology.ports)) if p not in gone)}
    return [
        Link(k.src, k.dst, k.alpha_us, k.beta_us_per_mb, k.latency_us, tuple([number[port] for port in k.ports]))
        for k in topology.links
        if gone.isdisjoint(k.ports)
    ]


def _fitting(topology: Topology, pattern: str, field: str) -> list[int]:
    """Ports whose names fit a pattern."""
    found = [index for index, port in enumerate(topology.ports) if fnmatchcase(port.name, pattern)]
    if not found:
        kinds: dict[str, str] = {}  # the first port of each kind: names of one kind differ in their numbers alone
        for name in sorted((port.name for port in topology.ports), key=natural_key):
            kinds.setdefault(re.sub(r"[0-9]+", "#", name), name)
        names = ", ".join(map(repr, list(kinds.values())[:4]))
        hint = f"it has such as {names}" if names else "it has none at all; name links instead"
        raise InputError(f"{topology.name} has no port {pattern!r}; {hint}", field=field)
    return found


def _require(topology: Topology, choice: LinkChoice, field: str) -> None:
    wanted = [(choice.src, choice.dst)] + ([(choice.dst, choice.src)] if choice.both_ways else [])
    if not any(pair in topology.links_between for pair in wanted):
        near = sorted({dst for src, dst in topology.links_between if src == choice.src})
        hint = (
            f"rank {choice.src} has links to {', '.join(map(str, near[:8]))}" if near else "taccl topo show lists them"
        )
        raise InputError(f"{topology.name} has no link {choice}; {hint}", field=field)

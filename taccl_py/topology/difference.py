"""Differences between two descriptions of one machine: links and ports that came, went, or cost something else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from taccl_py.errors import InputError
from taccl_py.topology.model import Topology

# Relative difference up to which two figures are the same, if nothing else is said.
TOLERANCE = 0.05


class TopologyChange(StrEnum):
    """Difference of something in the second description."""

    MISSING = "missing"
    NEW = "new"
    SLOWER = "slower"
    FASTER = "faster"
    MIXED = "mixed"  # one figure is larger, another smaller


@dataclass(frozen=True, slots=True)
class ComparedCosts:
    """Figures of a link or a port; the latency of a port is 0."""

    alpha_us: float
    beta_us_per_mb: float
    latency_us: float = 0.0

    @property
    def figures(self) -> tuple[float, float, float]:
        """All of them, each the better the smaller."""
        return self.alpha_us, self.beta_us_per_mb, self.latency_us


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that differs.

    Attributes
    ----------
    what
        ``link 0->1``, ``link 0->1 (lane 1)`` or ``port NAME``.
    change
        How.
    before, after
        Its costs in the first and in the second description; None where it is missing.
    """

    what: str
    change: TopologyChange
    before: ComparedCosts | None
    after: ComparedCosts | None

    @property
    def is_worse(self) -> bool:
        """True if a machine that should be like the first is worse off: a link is gone or slower, a port is new or slower."""
        gone = TopologyChange.NEW if self.what.startswith("port ") else TopologyChange.MISSING
        return self.change in (gone, TopologyChange.SLOWER, TopologyChange.MIXED)


def differences(before: Topology, after: Topology, tolerance: float) -> tuple[Difference, ...]:
    """Return what differs by more than a tolerance, links in their order and then ports.

    Links are compared by their ends (parallel ones from the cheapest on), ports by the links that share them, whatever their
    names.

    Parameters
    ----------
    before, after
        Two descriptions with the same ranks.
    tolerance
        Relative difference of alpha, beta or latency up to which two figures are the same, for example 0.05.

    Raises
    ------
    InputError
        If the machines have different numbers of ranks.
    """
    if before.num_ranks != after.num_ranks:
        raise InputError(f"has {after.num_ranks} ranks, {before.name} has {before.num_ranks}; compare the same ranks")
    return (
        *_compare(_links(before), _links(after), tolerance),
        *_compare(_ports(before), _ports(after), tolerance, names=_port_names(before, after)),
    )


def _links(topology: Topology) -> dict[str, ComparedCosts]:
    found: dict[str, ComparedCosts] = {}
    for (src, dst), indices in topology.links_between.items():
        costs = [topology.links[index] for index in indices]
        ordered = sorted(ComparedCosts(k.alpha_us, k.beta_us_per_mb, k.latency_us).figures for k in costs)
        for lane, figures in enumerate(ordered):
            found[f"link {src}->{dst}" + (f" (lane {lane})" if lane else "")] = ComparedCosts(*figures)
    return found


def _sharers(topology: Topology) -> dict[int, str]:
    """For every port its sharers, as a text that sorts and compares."""
    pairs: dict[int, list[tuple[int, int]]] = {}
    for link in topology.links:
        for port in link.ports:
            pairs.setdefault(port, []).append((link.src, link.dst))
    return {port: repr(sorted(found)) for port, found in pairs.items()}


def _ports(topology: Topology) -> dict[str, ComparedCosts]:
    """Costs of the slowest port with the same sharers, by those; one port that nothing shares is no constraint of its own."""
    found: dict[str, ComparedCosts] = {}
    for port, key in sorted(_sharers(topology).items()):
        cost = ComparedCosts(topology.ports[port].alpha_us, topology.ports[port].beta_us_per_mb)
        if key not in found or cost.beta_us_per_mb > found[key].beta_us_per_mb:
            found[key] = cost
    return found


def _port_names(*topologies: Topology) -> dict[str, str]:
    names: dict[str, str] = {}
    for topology in topologies:
        for port, key in sorted(_sharers(topology).items()):
            names.setdefault(key, f"port {topology.ports[port].name}")
    return names


def _compare(
    before: Mapping[str, ComparedCosts],
    after: Mapping[str, ComparedCosts],
    tolerance: float,
    names: Mapping[str, str] | None = None,
) -> list[Difference]:
    found = []
    for key in dict.fromkeys([*before, *after]):
        old, new = before.get(key), after.get(key)
        change = _change(old, new, tolerance)
        if change is not None:
            found.append(Difference(names[key] if names else key, change, old, new))
    return found


def _change(before: ComparedCosts | None, after: ComparedCosts | None, tolerance: float) -> TopologyChange | None:
    if before is None or after is None:
        return TopologyChange.NEW if before is None else TopologyChange.MISSING
    pairs = list(zip(before.figures, after.figures, strict=True))
    slower = any(new > old * (1 + tolerance) for old, new in pairs)
    faster = any(old > new * (1 + tolerance) for old, new in pairs)
    if slower and faster:
        return TopologyChange.MIXED
    return TopologyChange.SLOWER if slower else TopologyChange.FASTER if faster else None

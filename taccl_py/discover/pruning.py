"""Ports that cannot bind are left out: fewer ports are quicker to search and easier to read, and times stay the same.

Two uses of a port's direction are the same where the same messages cross it. A port is never the slowest thing on a way if
something else on it is as slow and serves at least as many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from taccl_py.topology.template import AlphaBeta, Nic, NodeTemplate, PortSide, Side


@dataclass(frozen=True, slots=True, order=True)
class _Traffic:
    """Messages of one kind: over a link, or of a rank to or from a NIC."""

    kind: str
    device: int
    rank: int = -1


def prune_ports(node: NodeTemplate) -> NodeTemplate:
    """Return the node without ports that cannot bind; a NIC behind a slower port that all its traffic crosses is as slow.

    The port's alpha must be 0, as that of PCIe ports is; others stay.
    """
    node = replace(node, nics=tuple(_with_slot(node, nic) for nic in node.nics))
    cost_of = {port.name: port.cost for port in node.ports}
    crossing = _crossing(node)
    kept = {port.name for port in node.ports if any(use.port == port.name for use in crossing)}
    # Fast ones first: of two with the same traffic the slower stays.
    for port in sorted(node.ports, key=lambda port: (port.cost.beta_us_per_mb, port.name)):
        sides = [use for use in crossing if use.port == port.name]
        rivals = {use: crossing[use] for use in crossing if use.port in kept and use.port != port.name}
        if port.cost.alpha_us == 0 and all(_covered(node, crossing[use], port.cost, rivals, cost_of) for use in sides):
            kept.discard(port.name)
    return replace(
        node,
        ports=tuple(port for port in node.ports if port.name in kept),
        links=tuple(replace(k, ports=tuple(use for use in k.ports if use.port in kept)) for k in node.links),
        nics=tuple(replace(nic, via=_only(nic.via, kept)) for nic in node.nics),
    )


def _with_slot(node: NodeTemplate, nic: Nic) -> Nic:
    """The NIC, as slow as the slowest port that every one of its ranks crosses in the same direction."""
    cost_of = {port.name: port.cost for port in node.ports}
    common = set(nic.via.get(nic.ranks[0], ()))
    for rank in nic.ranks[1:]:
        common &= set(nic.via.get(rank, ()))
    beta = max([nic.cost.beta_us_per_mb, *(cost_of[use.port].beta_us_per_mb for use in common)])
    return replace(nic, cost=AlphaBeta(nic.cost.alpha_us, beta))


def _only(via: Mapping[int, tuple[PortSide, ...]], kept: set[str]) -> dict[int, tuple[PortSide, ...]]:
    left = {rank: tuple(use for use in uses if use.port in kept) for rank, uses in via.items()}
    return {rank: uses for rank, uses in left.items() if uses}


def _crossing(node: NodeTemplate) -> dict[PortSide, set[_Traffic]]:
    """Users of each direction of each port."""
    crossing: dict[PortSide, set[_Traffic]] = {}
    for index, link in enumerate(node.links):
        for use in link.ports:
            crossing.setdefault(use, set()).add(_Traffic("link", index))
    for index, nic in enumerate(node.nics):
        for rank, uses in nic.via.items():
            for use in uses:
                crossing.setdefault(use, set()).add(_Traffic(Side.OUT, index, rank))
                back = PortSide(use.port, use.side.opposite)
                crossing.setdefault(back, set()).add(_Traffic(Side.IN, index, rank))
    return crossing


def _covered(
    node: NodeTemplate,
    users: set[_Traffic],
    cost: AlphaBeta,
    rivals: Mapping[PortSide, set[_Traffic]],
    cost_of: Mapping[str, AlphaBeta],
) -> bool:
    """True if something at least as slow serves all who use a direction of a port, and perhaps others."""
    first = min(users)
    if len(users) == 1 and first.kind == "link":
        return node.links[first.device].cost.beta_us_per_mb >= cost.beta_us_per_mb
    one_nic = first.kind != "link" and {(user.kind, user.device) for user in users} == {(first.kind, first.device)}
    if one_nic and node.nics[first.device].cost.beta_us_per_mb >= cost.beta_us_per_mb:
        return True
    return any(
        users <= others and cost_of[use.port].beta_us_per_mb >= cost.beta_us_per_mb for use, others in rivals.items()
    )

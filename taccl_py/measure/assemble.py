"""A topology of samples: a fit for every pair that was measured, or one for each class of links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from taccl_py.discover.rates import GPU_LINK_ALPHA_US, NETWORK_ALPHA_US, PCI_ALPHA_US
from taccl_py.errors import InputError
from taccl_py.measure.experiment import MeasuredFlow
from taccl_py.measure.fitting import Fit, fit_rates, fit_samples
from taccl_py.measure.recorded_ports import infer_ports
from taccl_py.measure.samples import Sample
from taccl_py.topology.files import require_connected
from taccl_py.topology.model import Link, Medium, Port, Topology
from taccl_py.topology.template import AlphaBeta
from taccl_py.units import MIN_COST_US

ASSUMED = (
    "the samples of some links are bandwidths of one size, which do not tell alpha: it is NCCL 2.30.7's tuning constant for one LL "
    f"step of a ring (NVLink {GPU_LINK_ALPHA_US} us, else inside a node {PCI_ALPHA_US} us, network {NETWORK_ALPHA_US} us)"
)


class Grouping(StrEnum):
    """Links that share one fit."""

    PAIR = "pair"
    CLASS = "class"


@dataclass(frozen=True, slots=True)
class FittedLinks:
    """A fit, and the links (src, dst) that have it; alpha is assumed where the samples state bandwidths alone."""

    name: str
    pairs: tuple[tuple[int, int], ...]
    fit: Fit
    alpha_assumed: bool = False


@dataclass(frozen=True)
class Fitted:
    """A topology of samples, and the fits that it was made of."""

    topology: Topology
    groups: tuple[FittedLinks, ...]


def fit_topology(
    samples: Sequence[Sample],
    name: str,
    *,
    nodes: int = 1,
    ranks: int | None = None,
    grouping: Grouping = Grouping.PAIR,
    size_bytes: int | None = None,
    inside: Medium = Medium.UNKNOWN,
) -> Fitted:
    """Return the machine that samples describe.

    Where samples state bandwidths alone, alpha is assumed: NCCL's constant for NVLink, PCIe or the network.

    What ran alone gives the cost of links; only for links that never ran alone, what ran together with others. What links that
    ran alone too did together gives the ports that they share.

    Parameters
    ----------
    samples
        Measurements.
    name
        Name of the machine.
    nodes
        Number of nodes, all with equally many ranks, numbered node by node.
    ranks
        Number of ranks; None: as many as the samples name.
    grouping
        A fit and a link for each pair that was measured; or one fit for all pairs inside a node and one for all between nodes,
        and a link for every pair of a class that was measured.
    size_bytes
        Message size whose line counts where a fit has several (None: the largest sizes).
    inside
        Medium that joins the ranks of a node, which times do not tell.

    Raises
    ------
    InputError
        If a pair or class has fewer than two sizes, the ranks are not a multiple of the nodes, or a rank cannot be reached.
    """
    node_of = _nodes(samples, nodes, ranks)
    groups = _by_pair(samples, node_of, inside) if grouping is Grouping.PAIR else _by_class(samples, node_of, inside)
    costs: dict[MeasuredFlow, AlphaBeta] = {}
    for group in groups:
        line = group.fit.at(size_bytes)
        alpha_us = 0.0 if line.alpha_us < MIN_COST_US else line.alpha_us
        costs |= {MeasuredFlow(src, dst): AlphaBeta(alpha_us, line.beta_us_per_mb) for src, dst in group.pairs}
    found = infer_ports(samples, costs)
    links = [
        Link(
            flow.src, flow.dst, cost.alpha_us, cost.beta_us_per_mb,
            ports=tuple(index for index, port in enumerate(found) if flow in port.links),
        )
        for flow, cost in costs.items()
    ]  # fmt: skip
    ports = tuple(
        Port(f"{port.name} ({index})", port.cost.alpha_us, port.cost.beta_us_per_mb) for index, port in enumerate(found)
    )
    worst = max(group.fit.at(size_bytes).residual for group in groups)
    source = f"fitted to {len(samples)} measured samples, relative residual at most {100 * worst:.2g} %"
    if any(group.alpha_assumed for group in groups):
        source += f"; {ASSUMED}"
    topology = Topology(name, source, node_of, ports, tuple(links), inside=inside)
    try:
        require_connected(topology)
    except InputError as error:
        if grouping is Grouping.CLASS:
            raise
        reason = error.what.split(";")[0]
        raise InputError(
            f"only {len(groups)} of {len(node_of) * (len(node_of) - 1)} links were measured, and {reason}; measure the others too, "
            "or give all links of a class one cost with --by class"
        ) from None
    return Fitted(topology, tuple(groups))


def _nodes(samples: Sequence[Sample], nodes: int, ranks: int | None) -> tuple[int, ...]:
    """Node of every rank, node by node."""
    named = 1 + max(max(one.src, one.dst) for one in samples)
    total = named if ranks is None else ranks
    if total < named:
        raise InputError(
            f"{total} ranks are fewer than the samples name, {named}; write a larger number", field="ranks"
        )
    if total % nodes:
        raise InputError(f"{total} ranks are no multiple of {nodes} nodes; correct the number", field="nodes")
    return tuple(rank * nodes // total for rank in range(total))


def _by_pair(samples: Sequence[Sample], node_of: Sequence[int], inside: Medium) -> list[FittedLinks]:
    found: dict[tuple[int, int], list[Sample]] = {}
    for one in samples:
        found.setdefault((one.src, one.dst), []).append(one)
    return [
        _fit(
            f"{src}->{dst}", ((src, dst),), chosen, _assumed_alpha_us(inside if node_of[src] == node_of[dst] else None)
        )
        for (src, dst), chosen in sorted(found.items())
    ]


def _by_class(samples: Sequence[Sample], node_of: Sequence[int], inside: Medium) -> list[FittedLinks]:
    groups = []
    every = range(len(node_of))
    for near, word in ((True, "inside a node"), (False, "between nodes")):
        chosen = [one for one in samples if (node_of[one.src] == node_of[one.dst]) is near]
        pairs = tuple((a, b) for a in every for b in every if a != b and (node_of[a] == node_of[b]) is near)
        if chosen and pairs:
            groups.append(_fit(word, pairs, chosen, _assumed_alpha_us(inside if near else None)))
    return groups


def _assumed_alpha_us(inside: Medium | None) -> float:
    """NCCL's alpha of a link inside a node; None: between nodes."""
    if inside is None or inside is Medium.NETWORK:
        return NETWORK_ALPHA_US
    return GPU_LINK_ALPHA_US if inside is Medium.NVLINK else PCI_ALPHA_US


def _fit(
    name: str, pairs: tuple[tuple[int, int], ...], samples: Sequence[Sample], assumed_alpha_us: float
) -> FittedLinks:
    alone = [one for one in samples if not one.together]
    sizes = {one.megabytes for one in alone}
    if len(sizes) == 1 and all(one.rate_only for one in samples):
        return FittedLinks(name, pairs, fit_rates(samples, assumed_alpha_us), alpha_assumed=True)
    try:
        return FittedLinks(name, pairs, fit_samples(alone if len(sizes) > 1 else samples))
    except InputError as error:
        raise InputError(f"links {name}: {error.what}") from None

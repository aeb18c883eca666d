"""Networks of ASTRA-sim's analytical back end (astra-network-analytical 762bef8, ``congestion_aware``), and which machines they are like.

A network has one dimension: a Ring, FullyConnected, or a Switch, with one bandwidth and one latency for all links. A message occupies
a link for its bytes over the bandwidth, and arrives a latency later; times are cut to whole nanoseconds. The bandwidth's unit is
2^30 bytes a second (``common/NetworkFunction.cpp``). A Switch stores a message before it passes it on, so that each takes its bytes' time
twice: no machine of ours does that, and none is written as one.
"""

from __future__ import annotations

from dataclasses import dataclass

from taccl_py.errors import LoweringError
from taccl_py.topology.model import Topology

TARGET = "chakra"
_GIB = 1 << 30
_NS_PER_US = 1000.0
_HAIR = 1e-15


@dataclass(frozen=True, slots=True)
class AstraNetwork:
    """Network file of ASTRA-sim's analytical back end.

    Attributes
    ----------
    shape
        ``Ring`` or ``FullyConnected``.
    num_ranks
        Number of NPUs.
    bandwidth
        Of every link in 2^30 bytes a second.
    latency_ns
        Of every link.
    """

    shape: str
    num_ranks: int
    bandwidth: float
    latency_ns: float

    @property
    def text(self) -> str:
        """The file."""
        return (
            f"topology: [ {self.shape} ]\n"
            f"npus_count: [ {self.num_ranks} ]\n"
            f"bandwidth: [ {self.bandwidth!r} ]  # GB/s, a GB being 2^30 bytes\n"
            f"latency: [ {self.latency_ns!r} ]  # ns\n"
        )


def network_of(topology: Topology) -> AstraNetwork:
    """Network with the machine's links; where it has more links than the machine, no message uses them.

    Raises
    ------
    LoweringError
        If there is none: links share ports, are parallel, or differ, or take no time for a byte.
    """
    if topology.ports:
        raise _refusal(topology, f"its links share ports, such as {topology.ports[0].name!r}")
    doubled = next((pair for pair, links in topology.links_between.items() if len(links) > 1), None)
    if doubled is not None:
        raise _refusal(topology, f"{doubled[0]} and {doubled[1]} have several links")
    costs = {(link.alpha_us, link.beta_us_per_mb, link.latency_us) for link in topology.links}
    if len(costs) > 1:
        raise _refusal(topology, "its links have different costs")
    ((alpha_us, beta_us_per_mb, latency_us),) = costs
    if beta_us_per_mb <= 0:
        raise _refusal(topology, "its links take no time for a byte")
    shape = "Ring" if topology.num_ranks > 2 and _is_ring(topology) else "FullyConnected"
    return AstraNetwork(shape, topology.num_ranks, _bandwidth(beta_us_per_mb), (alpha_us + latency_us) * _NS_PER_US)


def _is_ring(topology: Topology) -> bool:
    """True if all links join neighbours in the order of the ranks."""
    last = topology.num_ranks - 1
    return all((link.dst - link.src) % topology.num_ranks in (1, last) for link in topology.links)


def _bandwidth(beta_us_per_mb: float) -> float:
    """Bandwidth, less a few last digits: ASTRA-sim drops what is behind the point of a nanosecond, and a hair too fast would lose one."""
    return 1000.0 / beta_us_per_mb * 1e9 / _GIB * (1 - _HAIR)


def _refusal(topology: Topology, why: str) -> LoweringError:
    return LoweringError(
        f"ASTRA-sim's analytical back end has no network like {topology.name}: {why}, and it knows links of one cost between two ranks "
        "alone; write the traces without a network file (--no-network), for a network of your own",
        runtime=TARGET,
        limit="network",
    )

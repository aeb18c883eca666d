"""Trees without detours: as much throughput, fewer hops.

Many packings are optimal, and the ones that a linear program finds wander about. Where links between nodes decide, nothing is
lost if every rank sends its own data to its place in the other nodes itself and only links inside nodes pass it on; no two
messages then compete for a port. And a link that leads away from the root, by more than some slack, helps no tree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from taccl_py.arrays import BoolArray, FloatArray
from taccl_py.solvers.limits import Over
from taccl_py.synthesis.distances import distances
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.packing import Packing, SpanningTree, pack_trees
from taccl_py.synthesis.trees.params import PARAMS


@dataclass(frozen=True)
class PackedMachine:
    """A machine, perhaps with fewer links or other costs, the packing on it, and whether only roots send to other nodes."""

    network: CapacityNetwork
    packing: Packing
    straight: bool = False


def shallow_machines(network: CapacityNetwork, packing: Packing, piece_mb: float, over: Over) -> list[PackedMachine]:
    """The machine with as few links as an (almost) best packing needs, with a few limits on detours.

    Parameters
    ----------
    network, packing
        The machine and its best packing.
    piece_mb
        Size of what follows each other down a tree; it says what a detour costs.
    over
        Whether time is up.
    """
    machine = PackedMachine(network, packing)
    rails = _rails(network)
    if rails is not None and not over():
        straight = PackedMachine(rails, pack_trees(rails, over), True)
        if _load_us(network, straight.packing) <= packing.load_us * PARAMS.shallow_factor:
            machine = straight
    found: list[PackedMachine] = []
    for slack in PARAMS.detours:
        if len(found) == PARAMS.most_layered or over():
            break
        layered = _layered(machine.network, slack, piece_mb)
        packed = pack_trees(layered, over)
        loss = max(packed.load_us / machine.packing.load_us, _load_us(network, packed) / packing.load_us)
        if loss <= PARAMS.shallow_factor:
            found.append(PackedMachine(layered, packed, machine.straight))
    return found or [machine]


def varied_trees(network: CapacityNetwork, piece_mb: float, over: Over) -> list[SpanningTree]:
    """Trees of many kinds to choose from: those of packings with more and fewer detours, with and without crossings at one place.

    Parameters
    ----------
    network, piece_mb, over
        As for `shallow_machines`.
    """
    rails = _rails(network)
    bases = [network] if rails is None else [network, rails]
    found: list[SpanningTree] = [] if rails is None else [*pack_trees(rails, over).known]
    for slack in PARAMS.varied_detours:
        for base in bases:
            if over():
                return found
            found += pack_trees(_layered(base, slack, piece_mb), over).known
    return found


def _load_us(network: CapacityNetwork, packing: Packing) -> float:
    """Load of the fullest resource at the costs of this machine."""
    loads = (amount * network.load(tree.used()) for tree, amount in zip(packing.trees, packing.amounts, strict=True))
    return float(sum(loads, np.zeros(network.num_resources)).max())


def _rails(network: CapacityNetwork) -> CapacityNetwork | None:
    """Only roots send to other nodes, to their own place there; None if not every node has such a place."""
    topology = network.problem.topology
    nodes = topology.node_ranks
    if len(nodes) < 2 or not topology.has_even_nodes:
        return None
    node_index, position = np.array(topology.node_of), np.array(topology.local_rank)
    crossing = node_index[network.src] != node_index[network.dst]
    permitted = network.permitted.copy()
    for index, root in enumerate(network.roots):
        straight = (network.src == root) & (position[network.dst] == position[root])
        permitted[index] &= ~crossing | straight
        if not np.isfinite(_distances(network, permitted[index], root, np.ones(len(network.src)))).all():
            return None
    beta = np.where(crossing[:, None], network.beta * PARAMS.fixed_crossing_price, network.beta)
    return replace(network, permitted=permitted, beta=beta)


def _layered(network: CapacityNetwork, slack: float, piece_mb: float) -> CapacityNetwork:
    """Without links that lead away from the root by more than a part of the path to the farthest rank."""
    length = network.least_message_us + network.beta.max(axis=1) * piece_mb
    permitted = network.permitted.copy()
    for index, root in enumerate(network.roots):
        distance = _distances(network, permitted[index], root, length)
        permitted[index] &= distance[network.src] + length <= distance[network.dst] + slack * distance.max()
    return replace(network, permitted=permitted)


def _distances(network: CapacityNetwork, permitted: BoolArray, root: int, length: FloatArray) -> FloatArray:
    """Shortest path from a root to every rank."""
    return distances(network.num_ranks, network.src[permitted], network.dst[permitted], [root], length[permitted])

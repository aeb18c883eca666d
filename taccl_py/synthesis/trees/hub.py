"""AllReduce through a hub: everything is summed at one rank and sent out from there, along trees that both share.

Nobody owns a part of a sum, so its root may be anywhere, and it is only the links of its tree that count, each of which carries sums
in one direction and results in the other. On a machine that costs the same in both directions no other sums and results load links and ports less:
turned around, and mixed half and half with themselves, they become such trees. Where ranks differ (the corners of a mesh), that is
less than a ReduceScatter and an AllGather, in which all ranks must get and give the same.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from taccl_py.synthesis.apportion import apportion
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.order import OrderChoice, left_shifted
from taccl_py.synthesis.trees.packing import hops_from
from taccl_py.synthesis.trees.params import PARAMS
from taccl_py.synthesis.uneven import usable_counts


def hub_of(network: CapacityNetwork) -> int:
    """The rank from which the farthest one is nearest, in hops, of those that are roots."""
    farthest = [float(hops_from(network, index).max()) for index in range(len(network.roots))]
    return network.roots[int(np.argmin(farthest))]


def both_directions(network: CapacityNetwork) -> CapacityNetwork:
    """The network in which a link occupies what the link back does, too.

    Every link must have one back; see `taccl_py.synthesis.trees.turnaround.is_own_reverse`.
    """
    back = np.array(network.problem.topology.reversed_link())
    resources = np.hstack([network.resources, network.resources[back]])
    return replace(network, resources=resources, beta=np.hstack([network.beta, network.beta[back]]))


def shared_out(demand: Demand, choice: OrderChoice, *, finely: bool = False) -> OrderChoice | None:
    """The plan in chunks of which every rank has equally many; None if sizes cannot be cut so finely.

    Parameters
    ----------
    demand
        The AllReduce.
    choice
        A plan whose chunks are those of all data.
    finely
        Whether more chunks are tried too, until they do not pay, as whole chunks are nearer to the sizes of pieces then.
    """
    (sizes,) = choice.costs.chunks
    ranks, whole = demand.topology.num_ranks, sum(sizes)
    counts = usable_counts(demand)
    exact = [count for count in counts if ranks * count % whole == 0]
    enough = [count for count in counts if ranks * count >= PARAMS.hub_piece_chunks * len(sizes)]
    if not exact and not enough:
        return None
    count = min([*exact[:1], *enough[:1]])
    best, failures = _in_chunks(choice, count, ranks), 0
    for finer in counts if finely else ():
        is_exact = best.plan.end_us <= choice.plan.end_us * (1 + PARAMS.least_gain)
        if is_exact or finer > PARAMS.most_resized_chunks or failures == PARAMS.most_failures:
            break
        if finer < PARAMS.chunk_step * count:
            continue
        count, other = finer, _in_chunks(choice, finer, ranks)
        is_better = other.plan.end_us < best.plan.end_us * (1 - PARAMS.least_gain)
        best, failures = (other, 0) if is_better else (best, failures + 1)
    return best


def _in_chunks(choice: OrderChoice, count: int, ranks: int) -> OrderChoice:
    """The plan in so many chunks of each rank."""
    (sizes,) = choice.costs.chunks
    chunks = tuple(apportion([float(size) for size in sizes], ranks * count))
    costs = replace(choice.costs.scaled(sum(sizes) / (ranks * count)), chunks=(chunks,))
    plan = left_shifted(choice.transfers, costs, choice.plan.messages)
    return replace(choice, costs=costs, num_chunks=count, plan=plan, sized=True)

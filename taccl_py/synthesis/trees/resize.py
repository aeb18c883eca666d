"""Pieces of free sizes: the sizes that suit a plan best, as multiples of a finer chunk.

The linear program is that of one orbit: what symmetry exchanges has the same size, so that machines are served for which a
program of all messages would be far too large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.sizes import Chains, MessageTime, PortTurn, apportion, best_sizes, undominated
from taccl_py.synthesis.trees.order import OrderChoice, PieceCosts, TreeMessage, left_shifted
from taccl_py.synthesis.trees.params import PARAMS


def resized(
    choice: OrderChoice, chunk_bytes: Callable[[int], float], counts: Sequence[int], limits: Limits
) -> OrderChoice | None:
    """The same order with better sizes; None if there are none.

    Parameters
    ----------
    choice
        A plan.
    chunk_bytes
        Size of a chunk, given their number.
    counts
        Numbers of chunks that a rank's share may have, ascending.
    limits
        Time, and the user's interrupt.

    Raises
    ------
    PackageMissing
        If highspy is not installed.
    """
    costs = choice.costs
    ends = list(accumulate((len(sizes) for sizes in costs.chunks), initial=0))
    shares = [range(first, end) for first, end in pairwise(ends)]
    least = PARAMS.resized_piece_chunks * max(map(len, shares))
    found = best_sizes(_chains(choice, shares), limits)
    if found is None or found.time_us >= choice.plan.end_us * (1 - PARAMS.least_resized_gain):
        return None
    best: OrderChoice | None = None
    for count in counts:
        if count > PARAMS.most_resized_chunks or count < max(
            least, 0 if best is None else PARAMS.chunk_step * best.num_chunks
        ):
            continue
        chunks = tuple(tuple(apportion([found.sizes[piece] for piece in share], count)) for share in shares)
        finer = replace(costs.scaled(chunk_bytes(count) / chunk_bytes(choice.num_chunks)), chunks=chunks)
        plan = left_shifted(choice.jobs, finer, choice.plan.batches)
        if plan.end_us < (choice if best is None else best).plan.end_us * (1 - PARAMS.least_resized_gain):
            best = replace(choice, costs=finer, num_chunks=count, plan=plan)
    return best


def _chains(choice: OrderChoice, shares: Sequence[Sequence[int]]) -> Chains:
    jobs, costs, batches = choice.jobs, choice.costs, choice.plan.batches
    batch_of = {index: number for number, batch in enumerate(batches) for index in batch.jobs}
    # Sizes are 1 on average in every share.
    usual = [choice.num_chunks / len(share) for share in shares]

    def lasting(batch: TreeMessage) -> list[MessageTime]:
        first = jobs[batch.jobs[0]]
        link = first.link
        latency_us = costs.latency_us[link]
        pairs = zip(costs.alpha_us[link], costs.chunk_us[link], strict=True)
        return undominated(
            [MessageTime(alpha_us + latency_us, chunk_us * usual[first.root]) for alpha_us, chunk_us in pairs]
        )

    return Chains(
        shares,
        [
            [piece for i in batch.jobs for piece in shares[jobs[i].root][jobs[i].piece : jobs[i].end]]
            for batch in batches
        ],
        [lasting(batch) for batch in batches],
        [sorted({batch_of[earlier] for index in batch.jobs for earlier in jobs[index].after}) for batch in batches],
        list(_turns(choice, costs, usual)),
        choice.plan.end_us,
    )


def _turns(choice: OrderChoice, costs: PieceCosts, usual: Sequence[float]) -> Iterator[PortTurn]:
    """Messages that follow each other on a link or a port; batches stand in this order."""
    last: dict[int, tuple[int, MessageTime]] = {}
    for number, batch in enumerate(choice.plan.batches):
        first = choice.jobs[batch.jobs[0]]
        link = first.link
        occupied = zip(costs.resources[link], costs.alpha_us[link], costs.chunk_us[link], strict=True)
        for resource, alpha_us, chunk_us in occupied:
            if resource in last:
                earlier, cost = last[resource]
                yield PortTurn(earlier, number, cost)
            last[resource] = number, MessageTime(alpha_us, chunk_us * usual[first.root])

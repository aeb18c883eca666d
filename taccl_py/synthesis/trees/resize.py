"""Pieces of free sizes: the sizes that suit a plan best, as multiples of a finer chunk.

The linear program is that of one orbit: what symmetry exchanges has the same size, so that machines are served for which a
program of all messages would be far too large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.apportion import apportion
from taccl_py.synthesis.sizes import Chains, MessageTime, PortTurn, best_sizes, undominated
from taccl_py.synthesis.trees.order import OrderChoice, PieceCosts, TreeMessage, left_shifted
from taccl_py.synthesis.trees.params import PARAMS
from taccl_py.synthesis.trees.transfers import PieceTransfer


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
        Numbers of chunks that a shard may have, ascending.
    limits
        Time, and the user's interrupt.

    Raises
    ------
    PackageMissing
        If highspy is not installed.
    """
    costs = choice.costs
    ends = list(accumulate((len(sizes) for sizes in costs.chunks), initial=0))
    shards = [range(first, end) for first, end in pairwise(ends)]
    least = PARAMS.resized_piece_chunks * max(map(len, shards))
    below_us = choice.plan.end_us * (1 - PARAMS.least_resized_gain)
    found = best_sizes(_chains(choice, shards), limits, below_us=below_us)
    if found is None or found.time_us >= below_us:
        return None
    best: OrderChoice | None = None
    for count in counts:
        if count > PARAMS.most_resized_chunks or count < max(
            least, 0 if best is None else PARAMS.chunk_step * best.num_chunks
        ):
            continue
        chunks = tuple(tuple(apportion([found.sizes[piece] for piece in shard], count)) for shard in shards)
        if max(map(max, chunks)) > costs.message_chunks:
            break  # what a step cannot carry becomes several messages, which hold ports for longer than one
        finer = replace(costs.scaled(chunk_bytes(count) / chunk_bytes(choice.num_chunks)), chunks=chunks)
        messages = list(in_steps(choice.transfers, finer, choice.plan.messages))
        plan = left_shifted(choice.transfers, finer, messages)
        if plan.end_us < (choice if best is None else best).plan.end_us * (1 - PARAMS.least_resized_gain):
            best = replace(choice, costs=finer, num_chunks=count, plan=plan)
    return best


def in_steps(
    transfers: Sequence[PieceTransfer], costs: PieceCosts, messages: Sequence[TreeMessage]
) -> Iterator[TreeMessage]:
    """Messages that steps can carry: larger ones are cut between their transfers, and the parts follow each other in their time.

    Between the parts, a port that is faster than the link is free for others, which the message as a whole would hide.
    """
    for message in messages:
        sizes = [costs.size((transfers[index],)) for index in message.transfers]
        total, most = sum(sizes), costs.message_chunks
        if total <= most or len(sizes) == 1:
            yield message
            continue
        lasting_us = message.end_us - message.start_us
        part: list[int] = []
        sent = held = 0
        for index, size in [*zip(message.transfers, sizes, strict=True), (None, most + 1)]:
            if part and held + size > most:
                begin_us, end_us = (message.start_us + lasting_us * each / total for each in (sent, sent + held))
                yield TreeMessage(tuple(part), begin_us, end_us)
                part, sent, held = [], sent + held, 0
            if index is not None:
                part.append(index)
            held += size


def _chains(choice: OrderChoice, shards: Sequence[Sequence[int]]) -> Chains:
    transfers, costs, messages = choice.transfers, choice.costs, choice.plan.messages
    message_of = {index: number for number, message in enumerate(messages) for index in message.transfers}
    # Sizes are 1 on average in every shard.
    usual = [choice.num_chunks / len(shard) for shard in shards]

    def lasting(message: TreeMessage) -> list[MessageTime]:
        first = transfers[message.transfers[0]]
        link = first.link
        latency_us = costs.latency_us[link]
        pairs = zip(costs.alpha_us[link], costs.chunk_us[link], strict=True)
        return undominated(
            [MessageTime(alpha_us + latency_us, chunk_us * usual[first.root]) for alpha_us, chunk_us in pairs]
        )

    return Chains(
        shards,
        [
            [
                piece
                for i in message.transfers
                for piece in shards[transfers[i].root][transfers[i].piece : transfers[i].end]
            ]
            for message in messages
        ],
        [lasting(message) for message in messages],
        [
            sorted({message_of[earlier] for index in message.transfers for earlier in transfers[index].after})
            for message in messages
        ],
        list(_turns(choice, costs, usual)),
        choice.plan.end_us,
    )


def _turns(choice: OrderChoice, costs: PieceCosts, usual: Sequence[float]) -> Iterator[PortTurn]:
    """Messages that follow each other on a link or a port; messages are in this order."""
    last: dict[int, tuple[int, MessageTime]] = {}
    for number, message in enumerate(choice.plan.messages):
        first = choice.transfers[message.transfers[0]]
        link = first.link
        occupied = zip(costs.resources[link], costs.alpha_us[link], costs.chunk_us[link], strict=True)
        for resource, alpha_us, chunk_us in occupied:
            if resource in last:
                earlier, cost = last[resource]
                yield PortTurn(earlier, number, cost)
            last[resource] = number, MessageTime(alpha_us, chunk_us * usual[first.root])

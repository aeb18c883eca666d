"""AllReduce among ranks of which some are slow: each owns sums in proportion to what its links and ports have time for.

Every rank sends what another one owns straight to it, and the owner sends the sums straight to all. A linear program says how much each
owns; one whose port is at half its rate owns nothing. Data goes in pieces, of which one is handed out while the next is summed, so that
slow ports have something to do both ways all the time.

Ranks form a ring, and in turn k everyone sends to the k-th rank after it. Those that own least stand side by side: what two slow ranks
send to one receiver then comes one after the other, and that receiver's port, which is faster, has time for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from taccl_py.arrays import FloatArray, IntArray
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.apportion import apportion
from taccl_py.synthesis.bounds.net import Net
from taccl_py.synthesis.engine import Demand
from taccl_py.synthesis.templates.messages import TemplateMessage, TemplatePlan
from taccl_py.synthesis.templates.params import PARAMS
from taccl_py.synthesis.uneven import ever_finer, usable_counts
from taccl_py.synthesis.weights import PlanPart, best_weights
from taccl_py.topology.model import Topology
from taccl_py.units import BYTES_PER_MB


def share_plans(demand: Demand) -> Iterator[TemplatePlan]:
    """The plan with the best shares in the number of pieces that suits it; none where shares are equal, or not every two ranks have a link."""
    topology = demand.topology
    pairs = topology.num_ranks * (topology.num_ranks - 1)
    if not len(topology.links) == len(topology.links_between) == pairs or 2 * pairs > PARAMS.most_share_messages:
        return
    shares = UnequalShares.of(topology)
    if shares is None:
        return
    found = [
        (shares.time_us(owned, demand.chunk_bytes(demand.collective(count))), count, owned)
        for count in _counts(demand)
        for owned in shares.pieces(count * topology.num_ranks)
    ]
    limit_us = min((each[0] for each in found), default=0.0) * (1 + PARAMS.least_pipeline_gain)
    chosen = next((each for each in found if each[0] <= limit_us), None)
    if chosen is not None:
        _, count, owned = chosen
        yield TemplatePlan(count, shares.messages(owned), f"unequal shares in {len(owned)} pieces")


def _counts(demand: Demand) -> Iterator[int]:
    """Chunks per rank with which the shares of pieces can be written down, ascending, with gaps between them."""
    if demand.chunks_per_rank is not None:
        yield demand.chunks_per_rank
        return
    most = PARAMS.most_share_chunks // demand.topology.num_ranks
    yield from ever_finer((count for count in usable_counts(demand) if count <= most), PARAMS.share_finer)


@dataclass(frozen=True)
class UnequalShares:
    """Parts of all sums that ranks own.

    Attributes
    ----------
    net
        The machine.
    share
        Part of every rank, [rank].
    """

    net: Net
    share: FloatArray

    @staticmethod
    def of(topology: Topology) -> UnequalShares | None:
        """Shares for which the busiest link or port is busy for the shortest time; None if all are as large."""
        net = Net.of(topology)
        loads = [
            net.sum_over_resources(((net.src == owner) | (net.dst == owner)).astype(np.float64)) * net.beta_us_per_mb
            for owner in range(net.num_ranks)
        ]
        weights = best_weights([PlanPart(0, 1.0, load) for load in loads], {0: 1.0}, Limits())
        if weights is None or max(weights) * net.num_ranks <= 1 + PARAMS.least_share_difference:
            return None
        return UnequalShares(net, np.array(weights))

    def pieces(self, num_chunks: int) -> Iterator[list[IntArray]]:
        """Numbers of chunks that ranks own in every piece, in ever more pieces; all are alike but for the last one."""
        known = set[bytes]()
        for number in PARAMS.share_pieces:
            each = np.rint(self.share * (num_chunks / number)).astype(np.int64)
            size = int(each.sum())
            if not 0 < size <= num_chunks or each.tobytes() in known:
                continue
            known.add(each.tobytes())
            whole, left = divmod(num_chunks, size)
            last = [np.array(apportion(self.share.tolist(), left), dtype=np.int64)] if left else []
            found = [each] * whole + last
            if 2 * len(self.net.src) * len(found) <= PARAMS.most_share_messages:
                yield found

    def time_us(self, owned: Sequence[IntArray], chunk_bytes: float) -> float:
        """About how long pieces take, of which ranks own so many chunks: one after the other, as long as the busiest port each."""
        none = np.zeros_like(owned[0])
        known: dict[tuple[bytes, bytes], float] = {}
        total_us = 0.0
        for before, now in zip([none, *owned], [*owned, none], strict=True):
            key = before.tobytes(), now.tobytes()
            if key not in known:
                known[key] = self._period_us(before, now, chunk_bytes)
            total_us += known[key]
        return total_us

    def _period_us(self, handed_out: IntArray, summed: IntArray, chunk_bytes: float) -> float:
        """Time for which the busiest link or port is busy while a piece is handed out and the next one is summed."""
        net = self.net
        copied, added = handed_out[net.src], summed[net.dst]
        number = net.sum_over_resources((copied > 0).astype(np.float64) + (added > 0))
        megabytes = net.sum_over_resources((copied + added).astype(np.float64)) * (chunk_bytes / BYTES_PER_MB)
        return float((number * net.alpha_us + megabytes * net.beta_us_per_mb).max())

    @cached_property
    def _turns(self) -> list[list[tuple[int, int]]]:
        """Senders and receivers of every turn."""
        ring = sorted(range(self.net.num_ranks), key=lambda rank: (self.share[rank], rank))
        size = len(ring)
        return [[(ring[i], ring[(i + step) % size]) for i in range(size)] for step in range(1, size)]

    def messages(self, owned: Sequence[IntArray]) -> tuple[TemplateMessage, ...]:
        """All messages; a piece is handed out in the period after the one in which it was summed."""
        chunks = _numbered(owned)
        nothing: list[tuple[int, ...]] = [()] * self.net.num_ranks
        found = []
        at = 0
        for before, now in zip([nothing, *chunks], [*chunks, nothing], strict=True):
            for pairs in self._turns:
                for src, dst in pairs:
                    if before[src]:
                        found.append(TemplateMessage(src, dst, before[src], at, at + 1))
                    if now[dst]:
                        found.append(TemplateMessage(src, dst, now[dst], at + 1, at + 2, reduce=True))
                at += 2
        return tuple(found)


def _numbered(owned: Sequence[IntArray]) -> list[list[tuple[int, ...]]]:
    """Chunks of every rank in every piece, piece after piece, [piece][rank]."""
    found = []
    at = 0
    for counts in owned:
        piece = []
        for count in counts.tolist():
            piece.append(tuple(range(at, at + count)))
            at += count
        found.append(piece)
    return found

"""Paths that chunks may take: those of the flow, and others that cost no more at its prices.

A flow is optimal if and only if all of its paths are cheapest at the dual prices of links and ports. The paths of one optimal
flow are too few to choose from when data comes in whole chunks, so further cheapest paths join them, those with few hops
first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from taccl_py.arrays import BoolArray, FloatArray, IntArray
from taccl_py.errors import LimitReached
from taccl_py.grouping import grouped
from taccl_py.synthesis.commodity_flow import CommodityFlow
from taccl_py.synthesis.distances import distances
from taccl_py.synthesis.flow.params import PARAMS
from taccl_py.synthesis.problem import Problem
from taccl_py.synthesis.symmetry import orbit_labels
from taccl_py.tolerances import ROUNDED
from taccl_py.topology.ends import ends_of
from taccl_py.topology.model import Topology
from taccl_py.units import BYTES_PER_MB


@dataclass(frozen=True, slots=True)
class Path:
    """A path and the part of its pair's data that the flow sends along it (0 for those that were added)."""

    links: tuple[int, ...]
    share: float


@dataclass(frozen=True, slots=True)
class FlowPair:
    """A chunk of the problem with one chunk per shard, for its whole orbit.

    Attributes
    ----------
    chunk
        Its number.
    members
        Size of its orbit.
    paths
        From its source to the rank that wants it, most of the flow first.
    """

    chunk: int
    members: int
    paths: tuple[Path, ...]


def find_pairs(
    problem: Problem, flow: CommodityFlow, told_to_stop: Callable[[], bool] = lambda: False
) -> tuple[FlowPair, ...]:
    """Every orbit of chunks that have to move, with its paths.

    Raises
    ------
    LimitReached
        If a pair has no path, which a search without symmetry may still find; or if told to stop.
    """
    collective = problem.collective
    label = orbit_labels(collective.num_chunks, [g.chunk for g in problem.generators])
    members = np.bincount(label, minlength=collective.num_chunks)
    moving = [c for c in range(collective.num_chunks) if collective.wanted[c][0] != collective.source[c]]
    chunks = [chunk for chunk in moving if label[chunk] == chunk]
    of_source = grouped((collective.source[chunk], chunk) for chunk in moving)
    shares = {
        chunk: paths
        for row, source in enumerate(flow.sources)
        for chunk, paths in _decompose(problem, flow.flow_mb[row], of_source[source]).items()
    }
    length, ends = _lengths(problem, flow), ends_of(problem.topology.links)
    pairs = []
    for chunk in chunks:
        if told_to_stop():
            raise LimitReached("the search was ended before every pair had a path; give more time with --time-limit")
        found = {path.links: path for path in shares.get(chunk, ())}
        for links in _cheapest(problem, ends, length, chunk):
            found.setdefault(links, Path(links, 0.0))
        if not found:
            raise LimitReached(f"no path was found for {collective.describe_chunk(chunk)}; use --engine milp")
        pairs.append(FlowPair(chunk, int(members[chunk]), tuple(sorted(found.values(), key=_by_share))))
    return tuple(pairs)


def _by_share(path: Path) -> tuple[float, int, tuple[int, ...]]:
    return -path.share, len(path.links), path.links


def _decompose(problem: Problem, flow_mb: FloatArray, chunks: list[int]) -> dict[int, list[Path]]:
    """Paths of the flow of one source; chunks take turns, each on its path with the fewest hops that still has flow."""
    collective, size_mb = problem.collective, flow_mb.max() * PARAMS.least_flow_part
    left_mb = flow_mb.copy()
    amount_mb = problem.chunk_bytes / BYTES_PER_MB
    wanted_mb = dict.fromkeys(chunks, amount_mb)
    found: dict[int, list[Path]] = {chunk: [] for chunk in chunks}
    waiting = deque(chunks)
    while waiting:
        chunk = waiting.popleft()
        usable = (left_mb > size_mb) & problem.permitted[chunk]
        links = _fewest_hops(problem.topology, usable, collective.source[chunk], collective.wanted[chunk][0])
        if links is None:
            continue
        moved_mb = min(wanted_mb[chunk], float(left_mb[list(links)].min()))
        left_mb[list(links)] -= moved_mb
        wanted_mb[chunk] -= moved_mb
        found[chunk].append(Path(links, moved_mb / amount_mb))
        if wanted_mb[chunk] > amount_mb * PARAMS.least_flow_part:
            waiting.append(chunk)
    return found


def _fewest_hops(topology: Topology, usable: BoolArray, source: int, sink: int) -> tuple[int, ...] | None:
    via = {source: -1}
    queue = deque([source])
    while queue and sink not in via:
        rank = queue.popleft()
        for link in topology.links_from[rank]:
            if usable[link] and (dst := topology.links[link].dst) not in via:
                via[dst] = link
                queue.append(dst)
    if sink not in via:
        return None
    path: list[int] = []
    rank = sink
    while rank != source:
        path.append(via[rank])
        rank = topology.links[via[rank]].src
    return tuple(reversed(path))


def _lengths(problem: Problem, flow: CommodityFlow) -> FloatArray:
    """Price of every link for a megabyte, with a little for the hop, [link]."""
    topology = problem.topology
    paid = flow.prices * np.array([cost[1] for cost in topology.resource_cost])
    length = np.array([sum(paid[r] for r in resources) for resources in topology.resources_of])
    return np.asarray(length + max(float(length.max()), 1e-12) * PARAMS.hop_price)


def _cheapest(
    problem: Problem, ends: tuple[IntArray, IntArray], length: FloatArray, chunk: int
) -> Iterator[tuple[int, ...]]:
    """Up to `Params.most_more_paths` cheapest paths of a chunk, the choice at every rank turned by the chunk's number."""
    collective, permitted = problem.collective, problem.permitted[chunk]
    source, sink = collective.source[chunk], collective.wanted[chunk][0]
    links, (src, dst) = problem.topology.links, ends
    left = distances(problem.topology.num_ranks, dst[permitted], src[permitted], [sink], length[permitted])
    if not np.isfinite(left[source]):
        return
    stack: list[tuple[int, tuple[int, ...]]] = [(source, ())]
    count = 0
    while stack and count < PARAMS.most_more_paths:
        rank, path = stack.pop()
        if rank == sink:
            count += 1
            yield path
            continue
        onward = [
            link
            for link in problem.topology.links_from[rank]
            if permitted[link] and length[link] + left[links[link].dst] <= left[rank] * (1 + ROUNDED)
        ]
        turn = (chunk + len(path)) % max(1, len(onward))
        stack += [(links[link].dst, (*path, link)) for link in onward[turn:] + onward[:turn]]

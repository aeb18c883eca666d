"""Local work, copies and sums in the memory of a rank: cut into parts where threadblocks are left for them, and shared out among threadblocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from taccl_py.lowering.actions import NONE, RankAction, RankWork
from taccl_py.lowering.cells import nearly_equal_runs

# Most parts of one piece of work, and least bytes of a part: a sum of fewer takes little more than the fixed cost of any. Measured: two MI300X
# nodes, `taccl synth mi300x COLLECTIVE --nodes 2 --size 64MiB --effort quick`, with 1, 2, 4 and 8 parts, us: AllReduce 674, 734, 559, 559,
# ReduceScatter 521, 398, 425, 454; with half the bytes the same.
_MOST_PARTS = 4
_LEAST_PART_BYTES = 1 << 17


def by_rank(actions: Iterable[RankAction], num_ranks: int) -> list[list[RankAction]]:
    """Actions of every rank, in their order."""
    found: list[list[RankAction]] = [[] for _ in range(num_ranks)]
    for action in actions:
        found[action.rank].append(action)
    return found


def local_groups(actions: Iterable[RankAction]) -> list[list[RankAction]]:
    """Local actions of a rank, those that write overlapping cells together; groups in the order of their first action."""
    local = [action for action in actions if action.is_local and action.beside == NONE]
    by_place = sorted(local, key=lambda a: (a.writes.buffer, a.writes.first) if a.writes else ("", 0))
    groups: list[list[RankAction]] = []
    buffer, end = None, 0
    for action in by_place:
        cells = action.writes
        if cells is None:
            continue
        if groups and cells.buffer is buffer and cells.first < end:
            groups[-1].append(action)
            end = max(end, cells.end)
        else:
            groups.append([action])
            buffer, end = cells.buffer, cells.end
    return sorted(groups, key=lambda group: min(action.order for action in group))


def shared_out(groups: Sequence[Sequence[RankAction]], number: int) -> Iterator[tuple[RankAction, ...]]:
    """Actions of so many threadblocks, in the order of time; those that write the same cells stay together where there are enough such groups."""
    if number > len(groups):
        # A group is too long for one threadblock: cut the whole in the order of time.
        local = sorted((action for group in groups for action in group), key=lambda action: action.order)
        groups = [local[first:end] for first, end in nearly_equal_runs(len(local), number)]
    for index in range(number):
        found = sorted((a for group in groups[index::number] for a in group), key=lambda a: a.order)
        if found:
            yield tuple(found)


def in_parts(work: RankWork, num_ranks: int, max_threadblocks: int, cell_bytes: float) -> RankWork:
    """Return the same work, with local actions cut into parts for the threadblocks of their rank that connections leave.

    Parameters
    ----------
    work
        Actions in the order of time.
    num_ranks
        Number of ranks.
    max_threadblocks
        Most threadblocks on a GPU.
    cell_bytes
        Size of a cell.
    """
    parts_of = [_parts(work, actions, max_threadblocks) for actions in by_rank(work.actions, num_ranks)]
    if max(parts_of, default=1) == 1:
        return work
    cut: list[RankAction] = []
    for action in work.actions:
        is_whole = not action.is_local or action.beside != NONE
        most = 1 if is_whole else min(action.count, int(action.count * cell_bytes / _LEAST_PART_BYTES))
        cut += _pieces(action, max(1, min(most, parts_of[action.rank])), len(cut))
    return RankWork(tuple(cut), work.transfers)


def _parts(work: RankWork, actions: Sequence[RankAction], max_threadblocks: int) -> int:
    """Number of parts for which a rank has threadblocks."""
    ends = set()
    for action in actions:
        for number in (action.arrives, action.leaves):
            if number != NONE:
                transfer = work.transfers[number]
                ends.add((transfer.src, transfer.dst, transfer.instance))
    groups = len(local_groups(actions))
    return max(1, min(_MOST_PARTS, (max_threadblocks - len(ends)) // groups)) if groups else 1


def _pieces(action: RankAction, parts: int, order: int) -> Iterator[RankAction]:
    """The action in so many pieces, nearly equal runs of its cells, numbered from some order on."""
    for index, (first, end) in enumerate(nearly_equal_runs(action.count, parts)):
        reads, writes = (cells.part(first, end - first) if cells else None for cells in (action.reads, action.writes))
        yield replace(action, order=order + index).on(reads, writes)

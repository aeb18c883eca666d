"""Attempts: the threadblocks of the whole program under some decisions, and other decisions if they do not fit.

Some limits can only be tested at the end: nops count as steps, and whether a plan can stop depends on everything. So lowering
lays out the program, looks at what is too long or can stop, decides that otherwise, and lays out again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from taccl_py.errors import LoweringError
from taccl_py.lowering.actions import NONE, RankAction, StepTransfer
from taccl_py.lowering.assemble import count_steps
from taccl_py.lowering.deadlock import FifoModel, Fifos
from taccl_py.lowering.dependencies import Dependencies
from taccl_py.lowering.threadblocks import Joint, UnfinishedThreadblock
from taccl_py.runtimes import MAX_COUNT, Runtime


@dataclass(frozen=True, slots=True)
class Decisions:
    """Decisions of an attempt, which a later one may change.

    Attributes
    ----------
    spread
        Channels per instance, for the links that need more than one.
    local
        Threadblocks for local work, for the ranks that need more than one per instance.
    apart
        Threadblocks that must not receive from one peer and send to another, or, by `Joint.receiver`, to any other.
    staged
        Messages that arrive in spare scratch.
    """

    spread: dict[int, int] = field(default_factory=dict)
    local: dict[int, int] = field(default_factory=dict)
    apart: frozenset[Joint] = frozenset()
    staged: frozenset[int] = frozenset()

    def with_spread(self, spread: Mapping[int, int]) -> Decisions:
        """The same decisions with at least so many channels for some links."""
        if all(self.spread.get(link, 1) >= number for link, number in spread.items()):
            return self
        most = {link: max(number, self.spread.get(link, 1)) for link, number in spread.items()}
        return replace(self, spread={**self.spread, **most})

    def not_yet_apart(self, joints: Iterable[Joint]) -> set[Joint]:
        """Joints, of some, that are not to be taken apart."""
        return {joint for joint in joints if not joint.is_among(self.apart)}


@dataclass(frozen=True)
class ProgramRevision:
    """Threadblocks of the whole program under some decisions; lists are indexed by rank.

    Attributes
    ----------
    blocks
        Threadblocks.
    transfers
        Transfers of the program.
    num_channels
        Channels used.
    scratch_cells
        The scratch that the threadblocks need; empty as long as nobody knows.
    dependencies
        Between the threadblocks; none as long as nobody knows.
    """

    blocks: tuple[tuple[UnfinishedThreadblock, ...], ...]
    transfers: tuple[StepTransfer, ...]
    num_channels: int
    scratch_cells: tuple[int, ...] = ()
    dependencies: Dependencies = field(default_factory=Dependencies)

    def joints(self, actions: Iterable[RankAction]) -> set[Joint]:
        """Threadblocks that receive from one peer and send to another and do some of these actions."""
        orders = {action.order for action in actions}
        joined = (block for rank in self.blocks for block in rank if block.is_joined)
        return {block.joint for block in joined if any(action.order in orders for action in block.actions)}

    @cached_property
    def fifos(self) -> Fifos:
        """Deadlock check with connections of limited capacity."""
        return Fifos(self.blocks, self.dependencies.waits, self.transfers)


def shorten(
    attempt: ProgramRevision, decisions: Decisions, runtime: Runtime, alike: Mapping[int, int] | None = None
) -> Decisions:
    """Return the decisions that give too long threadblocks less to do; the same ones if all are short enough.

    Parameters
    ----------
    attempt, decisions, runtime
        The attempt, under which decisions, for which runtime.
    alike
        Where one rank is lowered alone, a number for each of its links: what is decided for one is decided for all with the same
        number, as their other ends are at ranks that decide for themselves.
    """
    spread, local, apart = dict(decisions.spread), dict(decisions.local), set(decisions.apart)
    for block in (block for rank in attempt.blocks for block in rank):
        steps = count_steps(block, attempt.dependencies)
        if steps <= runtime.max_steps:
            continue
        if block.is_local:
            now = sum(other.is_local for other in attempt.blocks[block.rank])
            local[block.rank] = max(local.get(block.rank, 0), now + 1, -(-now * steps // runtime.max_steps))
        elif block.is_joined and not block.joint.is_among(apart):
            apart.add(block.joint)
        else:
            for link in sorted(set(_links(block, attempt.transfers))):
                now = decisions.spread.get(link, 1)
                spread[link] = max(spread.get(link, 1), now + 1, -(-now * steps // runtime.max_steps))
    if alike is not None:
        most: dict[int, int] = {}
        for link, channels in spread.items():
            most[alike[link]] = max(most.get(alike[link], 1), channels)
        spread = {link: most[number] for link, number in alike.items() if number in most}
    return Decisions(spread, local, frozenset(apart), decisions.staged)


def _links(block: UnfinishedThreadblock, transfers: tuple[StepTransfer, ...]) -> Iterator[int]:
    for action in block.actions:
        for transfer in (action.arrives, action.leaves):
            if transfer != NONE:
                yield transfers[transfer].link


def loosen(attempt: ProgramRevision, decisions: Decisions, stops: FifoModel, enough: FifoModel) -> Decisions | None:
    """Return decisions under which fewer actions wait for each other, or None if there is nothing left.

    A threadblock that receives and sends is taken apart first: it makes one wait for the other. Where what it receives stops with a
    second peer to send to, that has a threadblock of its own from then on. After that, messages that
    wait for their cells to become free arrive elsewhere: those at which the attempt stops, then those at which it would stop if
    these did not wait, and so on, as every attempt takes time.

    Parameters
    ----------
    attempt, decisions
        The attempt, under which decisions.
    stops
        Capacity of connections with which it stops.
    enough
        Capacity with which it need not stop any more.
    """
    execution, other = (attempt.fifos.start(model) for model in (stops, enough))
    stuck = execution.stuck()
    if joints := decisions.not_yet_apart(attempt.joints(stuck)):
        receivers = {joint.receiver for joint in decisions.apart}
        joints |= {joint.receiver for joint in joints} & receivers
        return replace(decisions, apart=decisions.apart | joints)
    held: dict[int, int] = {}  # messages by the order of their receives
    while not decisions.not_yet_apart(attempt.joints(stuck)):
        found = {
            action.order: attempt.transfers[action.arrives].message
            for action in stuck
            if action.arrives != NONE and action.order in attempt.dependencies.waits and action.order not in held
        }
        if not found:
            break
        held |= found
        execution.release(found)
        other.release(found)
        if not other.stuck():
            break
        stuck = execution.stuck()
    staged = decisions.staged | set(held.values())
    return replace(decisions, staged=staged) if staged != decisions.staged else None


def least_cells_per_operation(attempt: ProgramRevision, slots: int, runtime: Runtime) -> int:
    """Return the fewest cells that an operation must carry for the attempt to come to its end.

    Raises
    ------
    LoweringError
        If it stops even when every step is one operation.
    """
    if not attempt.fifos.stuck(FifoModel(slots, 1)):
        return 1
    if attempt.fifos.stuck(FifoModel(slots, MAX_COUNT)):
        raise LoweringError(
            f"the program would stop: it sends more before it receives than the {slots} operations that a connection of "
            f"{runtime.title} holds; allow more threadblocks, or use a schedule with fewer peers",
            runtime=runtime.name,
            limit="fifo_slots",
        )
    most = max((transfer.count for transfer in attempt.transfers), default=2)
    return bisect_left(range(most), True, 2, key=lambda cells: not attempt.fifos.stuck(FifoModel(slots, cells)))

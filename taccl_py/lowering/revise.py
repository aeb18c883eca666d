"""Attempts: a draft of the whole program under some decisions, and what to decide otherwise if it does not fit.

Some limits can only be tested at the end: nops count as steps, and whether a plan can stop depends on everything. So lowering
drafts the program, looks at what is too long or can stop, decides that otherwise, and drafts again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from taccl_py.errors import LoweringError
from taccl_py.lowering.actions import NONE, Action, Transfer
from taccl_py.lowering.assemble import count_steps
from taccl_py.lowering.dependencies import Dependencies
from taccl_py.lowering.fifo import FifoModel, Fifos
from taccl_py.lowering.threadblocks import Draft, Joint
from taccl_py.runtimes import MAX_COUNT, Runtime


@dataclass(frozen=True, slots=True)
class Decisions:
    """What an attempt may decide otherwise than the one before.

    Attributes
    ----------
    spread
        Channels per instance, for the links that need more than one.
    local
        Threadblocks for local work, for the ranks that need more than one per instance.
    apart
        Threadblocks that must not receive from one peer and send to another.
    staged
        Messages that arrive in spare scratch.
    """

    spread: dict[int, int] = field(default_factory=dict)
    local: dict[int, int] = field(default_factory=dict)
    apart: frozenset[Joint] = frozenset()
    staged: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Attempt:
    """A draft of the whole program; lists are indexed by rank.

    Attributes
    ----------
    drafts, scratch_cells
        Threadblocks, and the scratch that they need.
    dependencies
        Between them.
    transfers
        What is sent.
    num_channels
        Channels used.
    """

    drafts: tuple[tuple[Draft, ...], ...]
    scratch_cells: tuple[int, ...]
    dependencies: Dependencies
    transfers: tuple[Transfer, ...]
    num_channels: int

    @cached_property
    def fifos(self) -> Fifos:
        """What decides whether it comes to its end."""
        return Fifos(self.drafts, self.dependencies.waits, self.transfers)


def shorten(
    attempt: Attempt, decisions: Decisions, runtime: Runtime, alike: Mapping[int, int] | None = None
) -> Decisions:
    """Return the decisions that give too long threadblocks less to do; the same ones if all are short enough.

    Parameters
    ----------
    attempt, decisions, runtime
        What was drafted, under which decisions, for which runtime.
    alike
        Where one rank is lowered alone, a number for each of its links: what is decided for one is decided for all with the same
        number, as their other ends are at ranks that decide for themselves.
    """
    spread, local, apart = dict(decisions.spread), dict(decisions.local), set(decisions.apart)
    for draft in (draft for rank in attempt.drafts for draft in rank):
        steps = count_steps(draft, attempt.dependencies)
        if steps <= runtime.max_steps:
            continue
        if draft.is_local:
            now = sum(other.is_local for other in attempt.drafts[draft.rank])
            local[draft.rank] = max(local.get(draft.rank, 0), now + 1, -(-now * steps // runtime.max_steps))
        elif draft.is_joined and draft.joint not in apart:
            apart.add(draft.joint)
        else:
            for link in sorted(set(_links(draft, attempt.transfers))):
                now = decisions.spread.get(link, 1)
                spread[link] = max(spread.get(link, 1), now + 1, -(-now * steps // runtime.max_steps))
    if alike is not None:
        most: dict[int, int] = {}
        for link, channels in spread.items():
            most[alike[link]] = max(most.get(alike[link], 1), channels)
        spread = {link: most[number] for link, number in alike.items() if number in most}
    return Decisions(spread, local, frozenset(apart), decisions.staged)


def _links(draft: Draft, transfers: tuple[Transfer, ...]) -> Iterator[int]:
    for action in draft.actions:
        for transfer in (action.arrives, action.leaves):
            if transfer != NONE:
                yield transfers[transfer].link


def loosen(attempt: Attempt, decisions: Decisions, stuck: tuple[Action, ...]) -> Decisions | None:
    """Return decisions under which these actions need not wait for each other, or None if there is nothing left.

    A threadblock that receives and sends is taken apart first: it makes one wait for the other. After that, messages that
    wait for their cells to become free arrive elsewhere.
    """
    orders = {action.order for action in stuck}
    joints = {
        draft.joint
        for rank in attempt.drafts
        for draft in rank
        if draft.is_joined and any(action.order in orders for action in draft.actions)
    }
    if joints - decisions.apart:
        return replace(decisions, apart=decisions.apart | joints)
    held = {
        attempt.transfers[action.arrives].message
        for action in stuck
        if action.arrives != NONE and action.order in attempt.dependencies.waits
    }
    if held - decisions.staged:
        return replace(decisions, staged=decisions.staged | held)
    return None


def stuck_with(attempt: Attempt, slots: int, cells_per_operation: int) -> tuple[Action, ...]:
    """Return the actions at which the attempt stops for ever when connections hold so little."""
    return attempt.fifos.stuck(FifoModel(slots, cells_per_operation))


def least_cells_per_operation(attempt: Attempt, slots: int, runtime: Runtime) -> int:
    """Return the fewest cells that an operation must carry for the attempt to come to its end.

    Raises
    ------
    LoweringError
        If it stops even when every step is one operation.
    """
    if not stuck_with(attempt, slots, 1):
        return 1
    if stuck_with(attempt, slots, MAX_COUNT):
        raise LoweringError(
            f"the program would stop: it sends more before it receives than the {slots} operations that a connection of "
            f"{runtime.title} holds; allow more threadblocks, or use a schedule with fewer peers",
            runtime=runtime.name,
            limit="fifo_slots",
        )
    low, high = 2, max((transfer.count for transfer in attempt.transfers), default=2)
    while low < high:
        middle = (low + high) // 2
        if stuck_with(attempt, slots, middle):
            low = middle + 1
        else:
            high = middle
    return low

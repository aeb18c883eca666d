"""Errors of a running program: a place, the name of a rule, and a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taccl_py.errors import Violation


class Trouble(Exception):
    """The program does something that it cannot do."""

    def __init__(self, where: str, rule: str, what: str) -> None:
        self.violation = Violation(where, rule, what)
        super().__init__(str(self.violation))


@dataclass(frozen=True, slots=True, order=True)
class BlockName:
    """A threadblock of a rank."""

    rank: int
    threadblock: int

    def __str__(self) -> str:
        """As other parts of the tool name places."""
        return f"gpu {self.rank} tb {self.threadblock}"


@dataclass(frozen=True, slots=True)
class BlockedThreadblock:
    """A threadblock that cannot go on.

    Attributes
    ----------
    block, step
        Who, and at which step (counted from 0).
    what
        Object of the wait, to be read after "waits for".
    target
        Who could end that; None if nobody can.
    """

    block: BlockName
    step: int
    what: str
    target: BlockName | None


def explain_deadlock(waits: Sequence[BlockedThreadblock]) -> list[Violation]:
    """Sentences about threadblocks that all wait: first a cycle, or where a chain of them ends, then each of the others."""
    by_block = {wait.block: wait for wait in sorted(waits, key=lambda wait: wait.block)}
    chain = _chain(by_block)
    links = [f"waits for {chain[0].what}"]
    links += [f"{wait.block} step {wait.step} waits for {wait.what}" for wait in chain[1:]]
    last = chain[-1]
    if last.target is None:
        end = "and nobody can give it that"
    elif last.target in by_block:
        end = f"and so on around from {last.target}"
    else:
        end = f"and {last.target} has ended"
    first = chain[0]
    told = {wait.block for wait in chain}
    others = [
        Violation(f"{wait.block} step {wait.step}", "deadlock", f"waits for {wait.what}")
        for wait in by_block.values()
        if wait.block not in told
    ]
    return [Violation(f"{first.block} step {first.step}", "deadlock", f"{'; '.join(links)}; {end}"), *others]


def _chain(by_block: dict[BlockName, BlockedThreadblock]) -> list[BlockedThreadblock]:
    """Threadblocks of which each waits for the next one: a whole cycle, or a path to the one for whom nobody is left."""
    seen: list[BlockedThreadblock] = []
    wait = next(iter(by_block.values()))
    while wait not in seen:
        seen.append(wait)
        if wait.target is None or wait.target not in by_block:
            return seen[-3:]
        wait = by_block[wait.target]
    return seen[seen.index(wait) :]


def lost_rank(rank: int, timeout_seconds: float) -> Violation:
    """Error to a rank that does not answer."""
    what = f"it has not answered for {timeout_seconds:g} seconds, so its process has ended, was stopped, or needs a larger --timeout"
    return Violation(f"rank {rank}", "lost-rank", what)


def explain_left_over(src: int, dst: int, channel: int) -> Violation:
    """Error to messages that nobody took."""
    what = f"rank {src} sends more on channel {channel} than rank {dst} takes"
    return Violation(f"gpu {src}", "left-over", what)

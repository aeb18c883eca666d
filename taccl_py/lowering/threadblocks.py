"""Actions -> threadblocks.

At first every connection has a threadblock at each end, and local work has its own. Then a receiving and a sending one of a
rank become one where that saves work (a forward becomes a fused step, or at least needs no flag) and by the schedule's own
times holds nothing up. At last, if there are more than can run at the same time, those that lose least are joined.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from taccl_py.errors import LoweringError
from taccl_py.lowering.actions import NONE, RankAction, RankWork
from taccl_py.lowering.flow import DataFlow
from taccl_py.lowering.local_work import by_rank, local_groups, shared_out
from taccl_py.lowering.program import Op
from taccl_py.runtimes import Runtime
from taccl_py.tolerances import SAME_MOMENT


@dataclass(frozen=True, slots=True)
class Joint:
    """Names the threadblock of a rank that receives from one peer and sends to another."""

    rank: int
    recv_peer: int
    send_peer: int
    channel: int

    @property
    def receiver(self) -> Joint:
        """Name of all threadblocks of the rank that receive from the same peer, whichever they send to."""
        return replace(self, send_peer=NONE)

    def is_among(self, apart: Collection[Joint]) -> bool:
        """True if this threadblock, or all that receive from the peer, are among those to be taken apart."""
        return self in apart or self.receiver in apart


@dataclass(frozen=True, slots=True)
class UnfinishedThreadblock:
    """A threadblock in the making: actions in the order of time; -1 for no peer."""

    rank: int
    recv_peer: int
    send_peer: int
    channel: int
    actions: tuple[RankAction, ...]

    @property
    def joint(self) -> Joint:
        """Name of the threadblock, if it has both peers."""
        return Joint(self.rank, self.recv_peer, self.send_peer, self.channel)

    @property
    def is_local(self) -> bool:
        """True if the threadblock has no peers."""
        return self.recv_peer == NONE and self.send_peer == NONE

    @property
    def is_joined(self) -> bool:
        """True if the threadblock has both peers."""
        return self.recv_peer != NONE and self.send_peer != NONE


@dataclass(frozen=True, slots=True)
class ThreadblockRules:
    """Limits and choices on which threadblocks depend.

    Attributes
    ----------
    runtime
        Has the limits and knows whether there are fused steps.
    max_threadblocks
        Most threadblocks on a GPU.
    local
        Threadblocks for local work, for the ranks that need more than `local_default`.
    local_default
        Threadblocks for local work on the other ranks, if there is so much to do.
    apart
        Joints, and `Joint.receiver` of some, that have turned out to be bad; if they cannot be avoided, at least nothing is fused in them.
    fuse
        Whether forwards become fused steps. A fused step can be told to wait only before it receives, so where sends wait
        for their turn at a port, fusing would hold up what arrives.
    instances
        Number of instances, whose local work has a threadblock each in any case.
    exchange
        Whether one threadblock receives from a peer and sends to it, so that the flag of what is received says that what was sent
        before has been read.
    """

    runtime: Runtime
    max_threadblocks: int
    local: dict[int, int]
    local_default: int
    apart: frozenset[Joint]
    fuse: bool = True
    instances: int = 1
    exchange: bool = False


def make_threadblocks(
    work: RankWork, flow: DataFlow, channels: tuple[int, ...], num_ranks: int, rules: ThreadblockRules
) -> tuple[tuple[UnfinishedThreadblock, ...], ...]:
    """Return the threadblocks of every rank, by rank.

    Raises
    ------
    LoweringError
        If a rank needs more threadblocks than can run at the same time.
    """
    joiner = _Joiner(work, flow, rules)
    result: list[tuple[UnfinishedThreadblock, ...]] = []
    for rank, actions in enumerate(by_rank(work.actions, num_ranks)):
        blocks = list(_connection_blocks(work, channels, rank, actions))
        blocks += _local_blocks(rules, rank, actions, max(1, rules.max_threadblocks - len(blocks)))
        blocks = joiner.join_forwards(blocks)
        blocks = joiner.fit(rank, joiner.join_exchanges(blocks) if rules.exchange else blocks)
        result.append(
            tuple(sorted(blocks, key=lambda block: (block.is_local, block.channel, block.recv_peer, block.send_peer)))
        )
    return tuple(result)


def _connection_blocks(
    work: RankWork, channels: tuple[int, ...], rank: int, actions: list[RankAction]
) -> Iterator[UnfinishedThreadblock]:
    """One threadblock for each end of a connection."""
    receiving: dict[tuple[int, int], list[RankAction]] = {}
    sending: dict[tuple[int, int], list[RankAction]] = {}
    for action in actions:
        arrives = max(action.arrives, action.beside)
        if arrives != NONE:
            receiving.setdefault((work.transfers[arrives].src, channels[arrives]), []).append(action)
        elif action.leaves != NONE:
            sending.setdefault((work.transfers[action.leaves].dst, channels[action.leaves]), []).append(action)
    for (peer, channel), found in receiving.items():
        yield UnfinishedThreadblock(rank, peer, NONE, channel, tuple(found))
    for (peer, channel), found in sending.items():
        yield UnfinishedThreadblock(rank, NONE, peer, channel, tuple(found))


def _local_blocks(
    rules: ThreadblockRules, rank: int, actions: list[RankAction], room: int
) -> Iterator[UnfinishedThreadblock]:
    """Local work.

    By default it takes no more threadblocks than there is `room` for, but those of `local_default` on a small machine too.
    """
    groups = local_groups(actions)
    number = rules.local.get(rank, 0) or min(rules.local_default, len(groups), max(room, rules.instances))
    for found in shared_out(groups, number):
        yield UnfinishedThreadblock(rank, NONE, NONE, 0, found)


class _Joiner:
    """Joins threadblocks of one rank."""

    def __init__(self, work: RankWork, flow: DataFlow, rules: ThreadblockRules) -> None:
        self._actions = work.actions
        self._flow = flow
        self._rules = rules

    def join_forwards(self, blocks: list[UnfinishedThreadblock]) -> list[UnfinishedThreadblock]:
        """Join receivers and senders between which messages are forwarded, those with most forwards first."""
        maker_of = {a.order: i for i, block in enumerate(blocks) if block.recv_peer != NONE for a in block.actions}
        forwards: dict[tuple[int, int], int] = {}
        for index, block in enumerate(blocks):
            for action in block.actions if block.send_peer != NONE else ():
                maker = maker_of.get(self._flow.source[action.order])
                if maker is not None:
                    forwards[maker, index] = forwards.get((maker, index), 0) + 1
        taken: dict[int, UnfinishedThreadblock] = {}
        gone: set[int] = set()
        for (first, second), _ in sorted(forwards.items(), key=lambda item: (-item[1], item[0])):
            if first in taken or second in gone or not self._may_join(blocks[first], blocks[second]):
                continue
            joined = self._join(blocks[first], blocks[second])
            if not joined.joint.is_among(self._rules.apart) and self._delay_us(joined.actions) <= 0:
                taken[first] = joined
                gone.add(second)
        return [taken.get(index, block) for index, block in enumerate(blocks) if index not in gone]

    def join_exchanges(self, blocks: list[UnfinishedThreadblock]) -> list[UnfinishedThreadblock]:
        """Join what only receives from a peer and what only sends to it, on each channel."""
        ends: dict[tuple[int, int], list[UnfinishedThreadblock]] = {}
        others: list[UnfinishedThreadblock] = []
        for block in blocks:
            if block.is_local or block.is_joined:
                others.append(block)
            else:
                ends.setdefault((max(block.recv_peer, block.send_peer), block.channel), []).append(block)
        for pair in ends.values():
            joined = self._join(*pair) if len(pair) == 2 and self._may_join(*pair) else None
            others += pair if joined is None or joined.joint.is_among(self._rules.apart) else [joined]
        return others

    def fit(self, rank: int, blocks: list[UnfinishedThreadblock]) -> list[UnfinishedThreadblock]:
        """Join until there are few enough.

        Raises
        ------
        LoweringError
            If no two can be joined any more.
        """
        limit = self._rules.max_threadblocks
        while len(blocks) > limit:
            surplus = len(blocks) - limit
            pairs = self._harmless_pairs(blocks, surplus) or self._least_harmful_pairs(blocks, surplus)
            if not pairs:
                raise LoweringError(
                    f"rank {rank} needs {len(blocks)} threadblocks at once and may have {limit} on "
                    f"{self._rules.runtime.title}",
                    runtime=self._rules.runtime.name,
                    limit="threadblocks",
                    remedy="use fewer instances, or a schedule with fewer peers or messages",
                )
            merged = {pair.first: self._join(blocks[pair.first], blocks[pair.second]) for pair in pairs}
            gone = {pair.second for pair in pairs}
            blocks = [merged.get(index, block) for index, block in enumerate(blocks) if index not in gone]
        return blocks

    def _harmless_pairs(self, blocks: list[UnfinishedThreadblock], number: int) -> list[_MergeCandidate]:
        """At most so many disjoint pairs that can be joined without holding anything up, the first that are found."""
        used: set[int] = set()
        found: list[_MergeCandidate] = []
        for first in range(len(blocks)):
            if len(found) == number:
                break
            for second in range(first + 1, len(blocks)):
                pair = self._pair(blocks, first, second) if not used & {first, second} else None
                if pair is not None and pair.delay_us <= 0:
                    found.append(pair)
                    used.update((first, second))
                    break
        return found

    def _least_harmful_pairs(self, blocks: list[UnfinishedThreadblock], number: int) -> list[_MergeCandidate]:
        """At most so many disjoint pairs, those that lose least first."""
        every = [self._pair(blocks, i, j) for i in range(len(blocks)) for j in range(i + 1, len(blocks))]
        used: set[int] = set()
        found: list[_MergeCandidate] = []
        for pair in sorted((p for p in every if p is not None), key=lambda p: (p.delay_us, p.first, p.second)):
            if len(found) < number and not used & {pair.first, pair.second}:
                found.append(pair)
                used.update((pair.first, pair.second))
        return found

    def _pair(self, blocks: list[UnfinishedThreadblock], first: int, second: int) -> _MergeCandidate | None:
        one, other = blocks[first], blocks[second]
        if not self._may_join(one, other):
            return None
        actions = sorted((*one.actions, *other.actions), key=lambda action: action.order)
        return _MergeCandidate(self._delay_us(actions), first, second)

    def _may_join(self, one: UnfinishedThreadblock, other: UnfinishedThreadblock) -> bool:
        if len(one.actions) + len(other.actions) > self._rules.runtime.max_steps:
            return False
        if one.is_local or other.is_local:
            return True
        free = NONE in (one.recv_peer, other.recv_peer) and NONE in (one.send_peer, other.send_peer)
        return free and one.channel == other.channel

    def _join(self, one: UnfinishedThreadblock, other: UnfinishedThreadblock) -> UnfinishedThreadblock:
        """Join two threadblocks, with fused steps where something is forwarded as it arrives."""
        actions = sorted((*one.actions, *other.actions), key=lambda action: action.order)
        joined = UnfinishedThreadblock(
            one.rank,
            max(one.recv_peer, other.recv_peer),
            max(one.send_peer, other.send_peer),
            max(one.channel, other.channel),
            tuple(actions),
        )
        fuse = self._rules.fuse and self._rules.runtime.fused and not joined.joint.is_among(self._rules.apart)
        return replace(joined, actions=self._fused(actions)) if fuse else joined

    def _fused(self, actions: list[RankAction]) -> tuple[RankAction, ...]:
        """Let arrivals pass on what they get; the order of sends on their connection stays as it is."""
        present = {action.order: action for action in actions}
        passed: dict[int, RankAction] = {}
        last = NONE
        for action in actions:
            if action.leaves == NONE or action.arrives != NONE:
                last = action.order if action.leaves != NONE else last
                continue
            maker = present.get(self._flow.source[action.order])
            if maker is not None and last < maker.order not in passed and self._may_pass(maker, action):
                passed[maker.order] = action
                last = maker.order
            else:
                last = action.order
        sent = {action.order for action in passed.values()}
        return tuple(
            self._forward(action, passed[action.order]) if action.order in passed else action
            for action in actions
            if action.order not in sent
        )

    def _may_pass(self, arrival: RankAction, send: RankAction) -> bool:
        """True if one step may do both: it ends only when the message has left, and others may need the data before."""
        if arrival.arrives == NONE or arrival.leaves != NONE:
            return False
        left_us = send.ready_us + send.busy_us
        return all(
            reader == send.order or reader == len(self._actions) or left_us <= self._latest_us(reader)
            for reader in self._flow.readers[arrival.order]
        )

    def _latest_us(self, order: int) -> float:
        """Time at which an action must begin, with what counts as the same moment."""
        time_us = self._deadline_us(self._actions[order])
        return time_us + SAME_MOMENT * time_us

    def _forward(self, arrival: RankAction, send: RankAction) -> RankAction:
        """One step out of an arrival and the send of the same cells."""
        keeps = self._flow.readers[arrival.order] != (send.order,)
        op, writes = Op.RECV_COPY_SEND, arrival.writes
        if arrival.op is Op.RECV_REDUCE_COPY:
            op = Op.RECV_REDUCE_COPY_SEND if keeps else Op.RECV_REDUCE_SEND
            writes = arrival.writes if keeps else None
        return replace(arrival, op=op, writes=writes, leaves=send.leaves, busy_us=send.busy_us)

    def _delay_us(self, actions: Iterable[RankAction]) -> float:
        """Sum of the delays by which steps are held up by the steps before them, by the schedule's times."""
        now_us, total_us = 0.0, 0.0
        for action in actions:
            # A pure arrival is worked on while it comes in; one that is passed on is worked on when it is there.
            early_us = action.busy_us if action.arrives != NONE and action.leaves == NONE else 0.0
            now_us = max(now_us, action.ready_us - early_us)
            late_us = now_us - self._deadline_us(action)
            if late_us > SAME_MOMENT * now_us:
                total_us += late_us
            now_us += action.busy_us
        return total_us

    def _deadline_us(self, action: RankAction) -> float:
        return max(action.ready_us, self._flow.deadline_us[action.order])


@dataclass(frozen=True, slots=True)
class _MergeCandidate:
    """Two threadblocks that could be one, and what that would cost."""

    delay_us: float
    first: int
    second: int


def find_senders(blocks: Iterable[Iterable[UnfinishedThreadblock]]) -> dict[int, RankAction]:
    """Sending action of every transfer."""
    return {a.leaves: a for rank in blocks for block in rank for a in block.actions if a.leaves != NONE}


def find_receivers(blocks: Iterable[Iterable[UnfinishedThreadblock]]) -> dict[int, RankAction]:
    """Receiving action of every transfer."""
    return {a.arrives: a for rank in blocks for block in rank for a in block.actions if a.arrives != NONE}

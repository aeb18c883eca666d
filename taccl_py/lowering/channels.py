"""Transfers -> channels.

Between two ranks with several links, channel c uses link ``c mod number of links``; every instance has channels of its own;
and a link whose messages are too many for one threadblock is spread over several channels. On one GPU at most 32
threadblocks may send, and at most 32 receive, on one channel, so many peers need several channels, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taccl_py.errors import LoweringError
from taccl_py.lowering.actions import NONE, Work
from taccl_py.runtimes import MAX_PEERS_PER_CHANNEL, Runtime
from taccl_py.topology.model import Topology


@dataclass(frozen=True, slots=True)
class ChannelRules:
    """What channels depend on.

    Attributes
    ----------
    runtime
        Has the limits.
    instances
        Number of instances.
    spread
        For the links whose messages need more than one channel per instance: how many.
    turn
        Which links choose first, if not those between ranks whose numbers differ least. Where only one rank's links are known,
        both ends of a link must have it at the same place among their own.
    """

    runtime: Runtime
    instances: int
    spread: Mapping[int, int]
    turn: Mapping[int, int] | None = None

    def channels_of(self, link: int) -> int:
        """Number of channels that the link needs."""
        return self.instances * self.spread.get(link, 1)


def assign_channels(work: Work, topology: Topology, rules: ChannelRules) -> tuple[int, ...]:
    """Return the channel of every transfer.

    Raises
    ------
    LoweringError
        If the runtime has not enough channels.
    """
    group_of = _spread_messages(work, rules)
    channel_of = _link_channels(sorted({t.link for t in work.transfers}), topology, rules)
    return tuple(
        channel_of[transfer.link][group_of[transfer.message] * rules.instances + transfer.instance]
        for transfer in work.transfers
    )


def _spread_messages(work: Work, rules: ChannelRules) -> dict[int, int]:
    """Which of its link's channel groups each message uses: the first messages the first one, so that groups take turns once."""
    of_link: dict[int, dict[int, None]] = {}
    for action in work.actions:
        if action.leaves != NONE:
            transfer = work.transfers[action.leaves]
            of_link.setdefault(transfer.link, {})[transfer.message] = None
    group_of: dict[int, int] = {}
    for link, messages in of_link.items():
        groups = rules.spread.get(link, 1)
        group_of |= {message: place * groups // len(messages) for place, message in enumerate(messages)}
    return group_of


def _link_channels(links: list[int], topology: Topology, rules: ChannelRules) -> dict[int, list[int]]:
    """Give every link its channels: the lowest of its lane that neither end has used up."""
    num_ranks = topology.num_ranks
    ends = topology.links
    # Links of equal distance together: every rank has one of them, so all channels fill evenly.
    turn_of = rules.turn
    by_distance = sorted(
        links, key=lambda i: (turn_of[i] if turn_of is not None else (ends[i].dst - ends[i].src) % num_ranks, i)
    )
    found: dict[int, list[int]] = {link: [] for link in links}
    senders: dict[tuple[int, int], int] = {}
    receivers: dict[tuple[int, int], int] = {}
    for turn in range(max((rules.channels_of(link) for link in links), default=0)):
        for index in by_distance:
            if turn >= rules.channels_of(index):
                continue
            link = ends[index]
            lanes = len(topology.links_between[link.src, link.dst])
            first = found[index][-1] + lanes if found[index] else topology.lane[index]
            for channel in range(first, rules.runtime.max_channels, lanes):
                sent, received = senders.get((link.src, channel), 0), receivers.get((link.dst, channel), 0)
                if sent < MAX_PEERS_PER_CHANNEL and received < MAX_PEERS_PER_CHANNEL:
                    break
            else:
                raise _too_many(topology, index, rules)
            found[index].append(channel)
            senders[link.src, channel] = sent + 1
            receivers[link.dst, channel] = received + 1
    return found


def _too_many(topology: Topology, index: int, rules: ChannelRules) -> LoweringError:
    link = topology.links[index]
    lanes = len(topology.links_between[link.src, link.dst])
    spread = rules.spread.get(index, 1)
    return LoweringError(
        f"{topology.resource_name(index)} needs {rules.channels_of(index)} channels ({rules.instances} instances, "
        f"{spread} for its many messages) beside {lanes - 1} parallel links, and {rules.runtime.title} has "
        f"{rules.runtime.max_channels}; use fewer instances, or a schedule with fewer chunks",
        runtime=rules.runtime.name,
        limit="max_channels",
    )

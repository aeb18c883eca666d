"""Transfers -> channels.

Between two ranks with several links, channel c uses link ``c mod number of links``; every instance has channels of its own;
and a link whose messages are too many for one threadblock is spread over several channels. On one GPU at most 32
threadblocks may send, and at most 32 receive, on one channel, so many peers need several channels, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from taccl_py.errors import LoweringError
from taccl_py.lowering.actions import NONE, RankWork
from taccl_py.runtimes import MAX_PEERS_PER_CHANNEL, Runtime
from taccl_py.topology.model import Topology


@dataclass(frozen=True, slots=True)
class LinkOrbits:
    """Links that have the same channels, as symmetries take them to each other.

    Attributes
    ----------
    of
        Orbit of every link of one rank; an orbit has the number of one of its links.
    roles
        Of every orbit of the machine's links that carry something: the roles of the ranks that send and receive.
    spread
        For the orbits whose messages need more than one channel per instance: how many, as far as that is known from other ranks.
    """

    of: Mapping[int, int]
    roles: Mapping[int, Roles]
    spread: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Roles:
    """Roles of the ranks at the ends of a link."""

    src: int
    dst: int


@dataclass(frozen=True, slots=True)
class ChannelRules:
    """Limits and choices on which channels depend.

    Attributes
    ----------
    runtime
        Has the limits.
    instances
        Number of instances.
    spread
        For the links whose messages need more than one channel per instance: how many.
    in_turn
        Whether the channels of a link take turns message by message.
    orbits
        Where only one rank's links are known: those of all ranks, so that both ends of a link choose the same channels.
    """

    runtime: Runtime
    instances: int
    spread: Mapping[int, int]
    in_turn: bool
    orbits: LinkOrbits | None = None

    def channels_of(self, link: int) -> int:
        """Number of channels that the link, or orbit of links, needs."""
        return self.instances * self.spread.get(link, 1)


def assign_channels(work: RankWork, topology: Topology, rules: ChannelRules) -> tuple[int, ...]:
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


def _spread_messages(work: RankWork, rules: ChannelRules) -> dict[int, int]:
    """Channel group of each message among those of its link: in turn, or the first messages the first one, so that groups change seldom."""
    of_link: dict[int, dict[int, None]] = {}
    for action in work.actions:
        if action.leaves != NONE:
            transfer = work.transfers[action.leaves]
            of_link.setdefault(transfer.link, {})[transfer.message] = None
    group_of: dict[int, int] = {}
    for link, messages in of_link.items():
        groups = rules.spread.get(link, 1)
        group_of |= {
            message: place % groups if rules.in_turn else place * groups // len(messages)
            for place, message in enumerate(messages)
        }
    return group_of


def _link_channels(links: list[int], topology: Topology, rules: ChannelRules) -> dict[int, list[int]]:
    """Give every link its channels."""
    if rules.orbits is None:
        num_ranks, ends = topology.num_ranks, topology.links
        # Links of equal distance together: every rank has one of them, so all channels fill evenly.
        by_distance = sorted(links, key=lambda i: ((ends[i].dst - ends[i].src) % num_ranks, i))
        return _channels({link: Roles(ends[link].src, ends[link].dst) for link in by_distance}, topology, rules)
    of = rules.orbits.of
    spread = {**rules.orbits.spread, **{of[link]: number for link, number in rules.spread.items()}}
    roles = {orbit: rules.orbits.roles[orbit] for orbit in sorted(rules.orbits.roles)}
    found = _channels(roles, topology, replace(rules, spread=spread))
    return {link: found[of[link]] for link in links}


def _channels(roles: Mapping[int, Roles], topology: Topology, rules: ChannelRules) -> dict[int, list[int]]:
    """Give every link, or orbit of links, the lowest channels of its lane that neither end has used up, in this order."""
    found: dict[int, list[int]] = {link: [] for link in roles}
    senders: dict[tuple[int, int], int] = {}
    receivers: dict[tuple[int, int], int] = {}
    for turn in range(max((rules.channels_of(link) for link in roles), default=0)):
        for index, ends in roles.items():
            if turn >= rules.channels_of(index):
                continue
            link = topology.links[index]
            lanes = len(topology.links_between[link.src, link.dst])
            first = found[index][-1] + lanes if found[index] else topology.lane[index]
            for channel in range(first, rules.runtime.max_channels, lanes):
                sent, received = senders.get((ends.src, channel), 0), receivers.get((ends.dst, channel), 0)
                if sent < MAX_PEERS_PER_CHANNEL and received < MAX_PEERS_PER_CHANNEL:
                    break
            else:
                raise _too_many(topology, index, rules)
            found[index].append(channel)
            senders[ends.src, channel] = sent + 1
            receivers[ends.dst, channel] = received + 1
    return found


def _too_many(topology: Topology, index: int, rules: ChannelRules) -> LoweringError:
    link = topology.links[index]
    lanes = len(topology.links_between[link.src, link.dst])
    spread = rules.spread.get(index, 1)
    return LoweringError(
        f"{topology.resource_name(index)} needs {rules.channels_of(index)} channels ({rules.instances} instances, "
        f"{spread} for its many messages) beside {lanes - 1} parallel links, and {rules.runtime.title} has "
        f"{rules.runtime.max_channels}",
        runtime=rules.runtime.name,
        limit="max_channels",
        remedy="use fewer instances, or a schedule with fewer chunks",
    )

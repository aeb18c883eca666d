"""Search for links that share a port, by running them together.

Stars (all links of a rank out, or in) and matchings (links of different senders and receivers, which together hold every link)
are run at once and compared with what links alone, and the ports found so far, predict. What takes longer is shrunk to a
smallest set that still does; its time gives the port's cost, and one experiment for each other rank tells whether it belongs
too. A port is a set of senders or of receivers with a scope: inside nodes, between nodes, or both. Before that, all links of a
rank run in one direction, the other, and both at once: where the same processor sends and receives, that takes longer than
either alone, and they all share a port.

A port of several ranks that is as fast as one link of each together slows no matching: it is found in the star of each of them,
as a port of that rank alone.

Group testing keeps experiments few: with n links in a scope, a port that k flows reveal costs at most
k (2 + log2 n) + 5 r + 14 experiments (r ranks), twice as many where times are so near to what is expected that more messages
must decide, and all together never more than `most_port_experiments`; all subsets would be 2^n.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median_high

from taccl_py.measure.experiment import Counted, MeasuredFlow
from taccl_py.topology.template import AlphaBeta
from taccl_py.units import BYTES_PER_MB, format_ranks

LARGE_BYTES = 4_000_000
_SMALL_BYTES, _OTHER_SIZES = (
    64,
    4,
)  # sizes beside that, of which one tells the cost of a port: this, a fourth, four times
_CLEARLY = 1.25  # what is felt less keeps a port busy not quite always
EXPECTED_MESSAGES = 8  # so that a port is kept busy from the first message to the last
_SURE_MESSAGES = 32  # so that it does not matter when its flows start
_CLEAN = 1.02  # a port that makes a set slower by less does not hide another
_COST_MESSAGES = 16  # of each flow, when the cost of a port is measured: more, so that it does not matter who starts
_TIMES_A_PORT = 3  # experiments that tell the cost of a port, at each of two to four sizes
_OBVIOUSLY = 3.0  # times as much later than what is late, on average, needs no other experiments
_FAIR = 1.025  # flows that differ by less took turns; one message less is 3 % of those that one cost is measured with
_DEALS = 3  # sets in which the membership of a sender is tried
_LEAST_SLOWER, _DEVIATIONS = 1.08, 4.0  # times that differ by less, or by fewer deviations, are the same


@dataclass(frozen=True, slots=True)
class FoundPort:
    """A port: its name, its cost, and the links that share it."""

    name: str
    cost: AlphaBeta
    links: frozenset[MeasuredFlow]


def most_port_experiments(links: int, ranks: int, classes: int, ports: int) -> int:
    """Upper bound of the experiments of a `PortSearch`.

    Parameters
    ----------
    links, ranks
        Of the part of the machine that is probed.
    classes
        Costs that links have.
    ports
        Ports that are found.
    """
    big = 10 * ranks + (1 + classes) * (2 * math.ceil(links / max(1, ranks)) + ranks * (ranks - 1))
    each = (_DEALS + 2) * ranks + 2 + ranks * (2 + math.ceil(math.log2(max(2, ranks))))
    return 4 * big + ports * 2 * (each + 2 * _TIMES_A_PORT)


def expected_us(
    group: Sequence[MeasuredFlow],
    costs: Mapping[MeasuredFlow, AlphaBeta],
    ports: Sequence[FoundPort],
    messages: int = EXPECTED_MESSAGES,
    size_bytes: int = LARGE_BYTES,
) -> list[float]:
    """Longest that each flow of a set should take.

    Parameters
    ----------
    group
        Flows that start together.
    costs
        Alpha and beta of links alone.
    ports
        Ports that are known.
    messages, size_bytes
        Messages of each flow, and their size.
    """
    megabytes = size_bytes / BYTES_PER_MB
    alone = [_message_us(costs[flow], megabytes) for flow in group]
    latest = [messages * time for time in alone]
    for port in ports:
        users = [index for index, flow in enumerate(group) if flow in port.links]
        each = _message_us(port.cost, megabytes)
        for index in users if len(users) > 1 else []:  # alone, a link has the time that was measured alone
            busy = (messages * len(users) - 1) * each + max(each, alone[index])
            latest[index] = max(latest[index], busy)
    return latest


def slower_factor(spread: float) -> float:
    """Ratio of times from which on a time is longer, and not the same with noise of this relative standard deviation."""
    return max(_LEAST_SLOWER, 1 + _DEVIATIONS * spread)


class PortSearch:
    """The search for the smallest set of ports, as far as the sets that are tried go, that explains what links do together.

    Parameters
    ----------
    counted
        Where experiments run.
    costs
        Alpha and beta of every link that is to be looked at, alone.
    scope_of
        Kind of a link: links of different kinds are not run together.
    slower
        Ratio of times from which on a time is longer.
    large_bytes
        Size of messages that are run together.
    """

    def __init__(
        self,
        counted: Counted,
        costs: dict[MeasuredFlow, AlphaBeta],
        scope_of: Callable[[MeasuredFlow], str],
        slower: float,
        large_bytes: int = LARGE_BYTES,
    ) -> None:
        self._large_bytes = large_bytes
        self._counted = counted
        self._slower = slower
        self._costs = costs
        self._ports: list[FoundPort] = []
        self._times_us: dict[tuple[tuple[MeasuredFlow, ...], int], tuple[float, ...]] = {}
        self._scopes: dict[str, list[MeasuredFlow]] = {}
        for flow in sorted(costs):
            self._scopes.setdefault(scope_of(flow), []).append(flow)

    def run(self) -> None:
        """Look for ports until what was tried is explained."""
        for word, links in self._scopes.items():
            self._find_processors(links, word)
            self._run_matchings(links, word)
            for alike in self._alike(links):
                self._run_matchings(alike, word)
            for side in (_sender, _receiver):
                for rank in sorted({side(flow) for flow in links}):
                    self._explain([flow for flow in links if side(flow) == rank], links, word)
        if len(self._scopes) > 1:
            every = sorted(self._costs)
            for side in (_sender, _receiver):
                for rank in sorted({side(flow) for flow in every}):
                    self._explain([flow for flow in every if side(flow) == rank], every, "all")

    @property
    def found(self) -> tuple[FoundPort, ...]:
        """Ports so far, without those that others imply: all their links share another one that is as slow."""
        kept: list[FoundPort] = []
        for port in sorted(self._ports, key=lambda port: -len(port.links)):
            slow = port.cost.beta_us_per_mb / self._slower
            if not any(port.links <= other.links and other.cost.beta_us_per_mb >= slow for other in kept):
                kept.append(port)
        return tuple(sorted(kept, key=lambda port: self._ports.index(port)))

    def _run_matchings(self, links: Sequence[MeasuredFlow], word: str) -> None:
        """Look for what ranks share, before a rank's own links are looked at."""
        for matching in matchings(links):
            self._explain(matching, links, word)
        self._cover(links, word)

    def _alike(self, links: Sequence[MeasuredFlow]) -> list[list[MeasuredFlow]]:
        """Links that are equally fast, where there are several kinds: those over PCIe beside NVLink share other ports."""
        found: list[tuple[float, list[MeasuredFlow]]] = []
        for flow in links:
            time = _message_us(self._costs[flow], self._large_bytes / BYTES_PER_MB)
            for first, alike in found:
                if first / self._slower < time < first * self._slower:
                    alike.append(flow)
                    break
            else:
                found.append((time, [flow]))
        return [alike for _, alike in found if 1 < len(alike) < len(links)]

    def _explain(self, group: Sequence[MeasuredFlow], links: Sequence[MeasuredFlow], word: str) -> None:
        """Add ports until they explain the time of a group."""
        if len(group) < 2:
            return
        for _ in range(len(group)):
            if not self._unexplained(group):
                return
            least = self._shrink(list(group))
            if not self._is_sure(least):
                return
            members = self._members(least, links)
            known = [port.links for port in self._ports]
            if members in known:
                members = frozenset(least)  # the others' times are explained; those of this set are not
                if members in known:
                    return
            name = f"{word} {_ranks(members, _sender)} to {_ranks(members, _receiver)}"
            again = sum(port.name.partition(" (")[0] == name for port in self._ports)
            cost = self._cost(least)
            if cost.alpha_us == cost.beta_us_per_mb == 0:
                return  # it was only noise
            self._ports.append(FoundPort(f"{name} ({again + 1})" if again else name, cost, members))

    def _find_processors(self, links: Sequence[MeasuredFlow], word: str) -> None:
        """Add a port for each rank whose links take longer in both directions at once than in either: what sends also receives."""
        for rank in sorted({flow.src for flow in links} & {flow.dst for flow in links}):
            out, into = ([flow for flow in links if side(flow) == rank] for side in (_sender, _receiver))
            counts = (EXPECTED_MESSAGES, _SURE_MESSAGES)
            if all(self._is_slower_together(out, into, messages) for messages in counts):
                cost = self._cost([*out, *into])
                self._ports.append(FoundPort(f"{word} {rank} both ways", cost, frozenset([*out, *into])))

    def _is_slower_together(self, out: Sequence[MeasuredFlow], into: Sequence[MeasuredFlow], messages: int) -> bool:
        both = self._counted.last_us([*out, *into], self._large_bytes, messages)
        alone_us = (self._counted.last_us(flows, self._large_bytes, messages) for flows in (out, into))
        return both > self._slower * max(alone_us)

    def _cover(self, links: Sequence[MeasuredFlow], word: str) -> None:
        """Run every two senders, and every two receivers, together where no known port hides a new one."""
        left = {
            (side, pair): None
            for side in (_sender, _receiver)
            for pair in combinations(sorted({side(flow) for flow in links}), 2)
        }
        while left:
            side, (first, second) = next(iter(left))
            starts = ([a, b] for a in links if side(a) == first for b in links if side(b) == second)
            group = next((two for two in starts if _is_matching(two) and self._is_clean(two)), None)
            if group is None:
                del left[side, (first, second)]  # known ports slow them whatever they do
                continue
            for flow in links:
                new = any(
                    (side, (min(ends), max(ends))) in left
                    for side in (_sender, _receiver)
                    for ends in ((side(flow), side(other)) for other in group)
                )
                if new and _is_matching([*group, flow]) and self._is_clean([*group, flow]):
                    group.append(flow)
            self._explain(group, links, word)
            for side in (_sender, _receiver):
                for pair in combinations(sorted(map(side, group)), 2):
                    left.pop((side, pair), None)

    def _unexplained(self, group: Sequence[MeasuredFlow]) -> bool:
        """True if some flow of a group takes longer than alone and than its known ports explain."""
        late = self._lateness(group, EXPECTED_MESSAGES)
        if late <= self._slower or late > self._slower * (1 + 1 / EXPECTED_MESSAGES):
            return late > self._slower
        # Flows that take turns start up to one message apart, which says nothing about how fast they then are.
        return self._lateness(group, _SURE_MESSAGES) > self._slower

    def _is_sure(self, group: Sequence[MeasuredFlow]) -> bool:
        """True if a smallest set that was late among many, some of them by chance, is late in other experiments too.

        One flow of many is always late by chance, so they must also be late on average: in a smallest set none is without need.
        """
        first = self._factors(group, EXPECTED_MESSAGES)  # known from the search
        if sum(first) / len(first) > 1 + _OBVIOUSLY * (self._slower - 1):
            return True
        factors = [sorted(self._factors(group, _SURE_MESSAGES + extra)) for extra in (1, 2, 3)]
        last = sorted(late[-1] for late in factors)
        typical = sorted(sum(late) / len(late) for late in factors)
        return last[1] > self._slower and typical[1] > (1 + self._slower) / 2

    def _lateness(self, group: Sequence[MeasuredFlow], messages: int) -> float:
        """By which factor some flow of a group takes longer than is known why."""
        return max(self._factors(group, messages))

    def _factors(self, group: Sequence[MeasuredFlow], messages: int) -> list[float]:
        """By which factor each flow of a group takes longer than is known why."""
        asked = tuple(group), messages
        if asked not in self._times_us:
            self._times_us[asked] = self._counted.times_us(group, self._large_bytes, messages)
        times = self._times_us[asked]
        expected = expected_us(group, self._costs, self._ports, messages, self._large_bytes)
        return [time / limit for time, limit in zip(times, expected, strict=True)]

    def _shrink(self, group: list[MeasuredFlow]) -> list[MeasuredFlow]:
        """A subset that is unexplained and of which no part (as far as is tried) is: by halves, then one by one."""
        while len(group) > 2:
            half = len(group) // 2
            part = next((p for p in (group[:half], group[half:]) if len(p) > 1 and self._unexplained(p)), None)
            if part is None:
                break
            group = part
        for flow in list(group):
            rest = [other for other in group if other != flow]
            if len(rest) > 1 and self._unexplained(rest):
                group = rest
        return group

    def _members(self, least: list[MeasuredFlow], links: Sequence[MeasuredFlow]) -> frozenset[MeasuredFlow]:
        """Links of the port that a smallest set shares: those from some senders to some receivers."""
        for side in (_sender, _receiver):
            ranks = {side(flow) for flow in least}
            if len(ranks) == 1:
                return frozenset(flow for flow in links if side(flow) in ranks)
        exists = set(links)
        senders, receivers = {flow.src for flow in least}, {flow.dst for flow in least}
        wide = set(receivers)
        for rank in sorted({flow.dst for flow in links} - receivers):
            if self._belongs(_replaced(least, exists, dst=rank)):
                wide.add(rank)
        all_senders = set(senders)
        for rank in sorted({flow.src for flow in links} - senders):
            belongs = self._belongs(_replaced(least, exists, src=rank)) if wide == receivers else None
            if belongs is None:
                dealt = _dealt(rank, [flow.src for flow in least], sorted(wide), exists)
                belongs = self._belongs_everywhere(dealt)
            if belongs:
                all_senders.add(rank)
        return frozenset(flow for flow in links if flow.src in all_senders and flow.dst in wide)

    def _belongs(self, variants: list[list[MeasuredFlow]]) -> bool | None:
        """True if the first of these sets with a new rank that no known port slows takes longer than alone; None if there is none."""
        clean = next(filter(self._is_clean, variants), None)
        return None if clean is None else self._unexplained(clean)

    def _belongs_everywhere(self, variants: list[list[MeasuredFlow]]) -> bool:
        """True if all of some of these sets, those that no known port slows, take longer than alone."""
        dealt = list(filter(self._is_clean, variants))
        picked = dealt[:: max(1, len(dealt) // _DEALS)][: _DEALS + 1]
        return bool(picked) and all(self._unexplained(variant) for variant in picked)

    def _is_clean(self, group: Sequence[MeasuredFlow]) -> bool:
        """True if known ports do not slow a group."""
        megabytes = self._large_bytes / BYTES_PER_MB
        alone = [EXPECTED_MESSAGES * _message_us(self._costs[flow], megabytes) for flow in group]
        expected = expected_us(group, self._costs, self._ports, EXPECTED_MESSAGES, self._large_bytes)
        return all(time <= _CLEAN * limit for time, limit in zip(expected, alone, strict=True))

    def _cost(self, least: Sequence[MeasuredFlow]) -> AlphaBeta:
        """Cost of the port that a smallest set shares, from two sizes at which it is clearly felt."""
        large_bytes = self._large_bytes
        others = (_SMALL_BYTES, large_bytes // _OTHER_SIZES, large_bytes * _OTHER_SIZES)
        sizes = [large_bytes, next((s for s in others if self._port_us(least, s, _CLEARLY) > 0), 0)]
        if not sizes[1]:
            return AlphaBeta(
                0.0, self._port_us(least, self._large_bytes, self._slower) / (self._large_bytes / BYTES_PER_MB)
            )
        small, large = (self._port_us(least, size, 1.0) for size in sorted(sizes))
        beta = max(0.0, large - small) / (abs(sizes[0] - sizes[1]) / BYTES_PER_MB)
        # Where small messages take no shorter than large ones, what is shared is not the wire.
        return AlphaBeta(max(0.0, min(small, large) - beta * min(sizes) / BYTES_PER_MB), beta)

    def _port_us(self, least: Sequence[MeasuredFlow], size_bytes: int, slower: float) -> float:
        """Time that one message occupies the port: the middle one of some experiments; 0 if it slows flows by less."""
        found = []
        for messages in range(_COST_MESSAGES, _COST_MESSAGES + _TIMES_A_PORT):
            times = sorted(self._counted.times_us(least, size_bytes, messages))
            alone = max(_message_us(self._costs[flow], size_bytes / BYTES_PER_MB) for flow in least)
            if times[-1] <= slower * messages * alone:
                return 0.0  # not felt at this size
            found.append(self._each_us(times, messages, alone))
        return median_high(found)

    @staticmethod
    def _each_us(times: Sequence[float], messages: int, alone: float) -> float:
        """Time that one message occupies a port that flows with these times (in order) shared."""
        each = []
        for later, time in enumerate(reversed(times)):
            passed = messages * len(times) - later  # flows take turns, so they end one message after the other
            each.append(time / passed if time / passed >= alone else (time - alone) / (passed - 1))
        # Where they did not quite take turns, only the last one tells.
        return sum(each) / len(each) if max(each) < _FAIR * min(each) else each[0]


def _message_us(cost: AlphaBeta, megabytes: float) -> float:
    return cost.alpha_us + cost.beta_us_per_mb * megabytes


def _is_matching(links: Sequence[MeasuredFlow]) -> bool:
    """True if senders and receivers are all different."""
    return len({flow.src for flow in links}) == len(links) == len({flow.dst for flow in links})


def _sender(flow: MeasuredFlow) -> int:
    return flow.src


def _receiver(flow: MeasuredFlow) -> int:
    return flow.dst


def _matching_of(links: Sequence[MeasuredFlow]) -> list[MeasuredFlow]:
    """Links of different senders and receivers, in order, as many as fit."""
    senders: set[int] = set()
    receivers: set[int] = set()
    chosen = []
    for flow in links:
        if flow.src not in senders and flow.dst not in receivers:
            senders.add(flow.src)
            receivers.add(flow.dst)
            chosen.append(flow)
    return chosen


def matchings(links: Sequence[MeasuredFlow]) -> list[list[MeasuredFlow]]:
    """Matchings that together hold every link, the largest ones first.

    Parameters
    ----------
    links
        At least one; those of one offset are matched first, so that matchings are as large as can be.
    """
    size = 1 + max(max(flow.src, flow.dst) for flow in links)
    left = sorted(links, key=lambda flow: ((flow.dst - flow.src) % size, flow.src))
    found = []
    while left:
        chosen = _matching_of(left)
        found.append(sorted(chosen))
        taken = set(chosen)
        left = [flow for flow in left if flow not in taken]
    return found


def _replaced(
    least: Sequence[MeasuredFlow], exists: set[MeasuredFlow], *, src: int = -1, dst: int = -1
) -> list[list[MeasuredFlow]]:
    """The set with one flow's sender, or receiver, exchanged for a new one, for every flow where that is a link."""
    found = []
    for place in range(len(least) - 1, -1, -1):
        old = least[place]
        new = MeasuredFlow(old.src if src < 0 else src, old.dst if dst < 0 else dst)
        rest = [*least[:place], *least[place + 1 :]]
        if new in exists and all(flow.src != new.src and flow.dst != new.dst for flow in rest):
            found.append([*rest, new])
    return found


def _dealt(
    rank: int, senders: Sequence[int], receivers: Sequence[int], exists: set[MeasuredFlow]
) -> list[list[MeasuredFlow]]:
    """Sets of as many flows, from a new sender and all but one of the old ones, with the receivers dealt out in turn."""
    found = []
    for left_out in range(len(senders) - 1, -1, -1):
        kept = [*senders[:left_out], *senders[left_out + 1 :], rank]
        for stride in range(1, len(receivers)):
            for start in range(len(receivers)):
                ends = [receivers[(start + stride * place) % len(receivers)] for place in range(len(kept))]
                flows = [MeasuredFlow(src, dst) for src, dst in zip(kept, ends, strict=True)]
                if len(set(ends)) == len(ends) and all(flow in exists for flow in flows):
                    found.append(flows)
    return found


def _ranks(links: frozenset[MeasuredFlow], side: Callable[[MeasuredFlow], int]) -> str:
    return format_ranks(sorted({side(flow) for flow in links}))

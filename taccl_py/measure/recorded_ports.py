"""Ports of samples that were recorded: what ran together and took longer than alone shares something.

Nothing more can be asked of the machine, so the smallest groups speak first; a port grows by flows that are slowed as much
beside one of its own, unless some group shows that two of them do not disturb each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from taccl_py.errors import InputError
from taccl_py.measure.contention import FoundPort, expected_us, slower_factor
from taccl_py.measure.experiment import MeasuredFlow
from taccl_py.measure.fitting import fit_samples
from taccl_py.measure.samples import Sample
from taccl_py.topology.template import AlphaBeta
from taccl_py.units import BYTES_PER_MB, format_ranks

_LEAST_NOISE = 0.02  # relative error that recorded times are taken to have


@dataclass(frozen=True, slots=True)
class _SampleGroup:
    """Samples that ran at the same time, with equally many messages of one size."""

    samples: tuple[Sample, ...]

    @property
    def flows(self) -> tuple[MeasuredFlow, ...]:
        return tuple(MeasuredFlow(one.src, one.dst) for one in self.samples)

    @property
    def size_bytes(self) -> int:
        return round(self.samples[0].megabytes * BYTES_PER_MB)

    @property
    def messages(self) -> int:
        return self.samples[0].serial


def infer_ports(samples: Sequence[Sample], costs: Mapping[MeasuredFlow, AlphaBeta]) -> tuple[FoundPort, ...]:
    """Return ports that explain what flows did together.

    Parameters
    ----------
    samples
        Measurements; those with one label in `together` ran at the same time.
    costs
        Alpha and beta of links alone; what links did together that never ran alone is no evidence.

    Raises
    ------
    InputError
        If flows of one label sent other numbers of messages, or of other sizes.
    """
    alone = {MeasuredFlow(one.src, one.dst) for one in samples if not one.together}
    groups = [group for group in _groups(samples) if set(group.flows) <= alone]
    return _Inference(groups, costs).ports()


def _groups(samples: Sequence[Sample]) -> list[_SampleGroup]:
    labelled: dict[str, list[Sample]] = {}
    for one in samples:
        if one.together:
            labelled.setdefault(one.together, []).append(one)
    found = []
    for label, members in labelled.items():
        if len({(one.size_bytes, one.joined, one.serial) for one in members}) > 1:
            raise InputError(
                f"samples with together={label!r} have several sizes or numbers of messages; flows that are to tell what they "
                "share send the same",
            )
        if len(members) > 1:
            found.append(_SampleGroup(tuple(members)))
    # Small ones first, and of those the large messages, which ports slow most.
    return sorted(found, key=lambda group: (len(group.samples), -group.size_bytes))


class _Inference:
    def __init__(self, groups: Sequence[_SampleGroup], costs: Mapping[MeasuredFlow, AlphaBeta]) -> None:
        self._groups = groups
        self._costs = costs
        self._slower = slower_factor(_LEAST_NOISE)
        self._sharers: list[frozenset[MeasuredFlow]] = []
        self._known_costs: dict[frozenset[MeasuredFlow], AlphaBeta] = {}
        self._with: dict[MeasuredFlow, set[int]] = {}
        for number, group in enumerate(groups):
            for flow in group.flows:
                self._with.setdefault(flow, set()).add(number)

    def ports(self) -> tuple[FoundPort, ...]:
        for group in self._groups:
            late = self._late(group)
            if late:
                self._add(frozenset(late))
        return tuple(self._found(self._sharers))

    def _late(self, group: _SampleGroup) -> list[MeasuredFlow]:
        """Flows that take longer than links alone and ports so far explain; with one, those that it can have met."""
        expected = self._expected(group, self._found(self._sharers))
        late = [
            flow
            for flow, one, limit in zip(group.flows, group.samples, expected, strict=True)
            if one.time_us > self._slower * limit
        ]
        if len(late) != 1:
            return late
        (only,) = late
        near = [flow for flow in group.flows if flow.src == only.src or flow.dst == only.dst]
        return near if len(near) > 1 else list(group.flows)

    def _expected(self, group: _SampleGroup, ports: Sequence[FoundPort]) -> list[float]:
        return expected_us(group.flows, self._costs, ports, group.messages, group.size_bytes)

    def _add(self, late: frozenset[MeasuredFlow]) -> None:
        for place, known in enumerate(self._sharers):
            if known & late and not self._contradicted(known | late):
                self._sharers[place] = known | late
                break
        else:
            self._sharers.append(late)
        self._sharers = [
            one
            for place, one in enumerate(self._sharers)
            if not any(one < other or (one == other and place > at) for at, other in enumerate(self._sharers))
        ]

    def _contradicted(self, links: frozenset[MeasuredFlow]) -> bool:
        """True if some group was faster than it could be if these flows shared a port."""
        (port,) = self._found([links])
        for group in self._concerned(links):
            last = max(one.time_us for one in group.samples if MeasuredFlow(one.src, one.dst) in links)
            expected = self._expected(group, [port])
            users = [time for flow, time in zip(group.flows, expected, strict=True) if flow in links]
            if last * self._slower < max(users):
                return True
        return False

    def _concerned(self, links: frozenset[MeasuredFlow]) -> list[_SampleGroup]:
        """Groups that have two of these flows or more."""
        counts = Counter(number for flow in links for number in self._with.get(flow, ()))
        return [self._groups[number] for number in sorted(counts) if counts[number] > 1]

    def _found(self, sharers: Sequence[frozenset[MeasuredFlow]]) -> list[FoundPort]:
        for links in sharers:
            if links not in self._known_costs:
                self._known_costs[links] = self._cost(links)
        return [FoundPort(_name(links), self._known_costs[links], links) for links in sharers]

    def _cost(self, links: frozenset[MeasuredFlow]) -> AlphaBeta:
        """Cost of a port from the groups that use nothing else, or those with most of its flows."""
        each = []
        concerned = self._concerned(links)
        inside = [group for group in concerned if set(group.flows) <= links]
        for group in inside or concerned:
            users = [one for one in group.samples if MeasuredFlow(one.src, one.dst) in links]
            alone = max(one.alpha_us + one.beta_us_per_mb * users[0].megabytes for one in map(self._cost_of, users))
            last, total = max(one.time_us for one in users), group.messages * len(users)
            if last <= self._slower * group.messages * alone:
                continue  # not felt
            time = last / total if last / total >= alone else (last - alone) / (total - 1)
            each.append(Sample(users[0].src, users[0].dst, group.size_bytes, time))
        if not each:
            return AlphaBeta(0.0, 0.0)
        if len({one.size_bytes for one in each}) > 1:
            line = fit_samples(each).at(None)
            return line.cost
        largest = max(each, key=lambda one: (one.size_bytes, one.time_us))
        return AlphaBeta(0.0, largest.time_us / max(largest.megabytes, 1e-9))

    def _cost_of(self, one: Sample) -> AlphaBeta:
        return self._costs[MeasuredFlow(one.src, one.dst)]


def _name(links: frozenset[MeasuredFlow]) -> str:
    senders, receivers = (format_ranks(sorted(ranks)) for ranks in ({f.src for f in links}, {f.dst for f in links}))
    return f"shared {senders} to {receivers}"

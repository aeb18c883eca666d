"""Profile a machine: alpha and beta of its links, then the ports that they share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_high

from taccl_py.measure.contention import (
    EXPECTED_MESSAGES,
    LARGE_BYTES,
    FoundPort,
    PortSearch,
    expected_us,
    matchings,
    most_port_experiments,
    slower_factor,
)
from taccl_py.measure.equal_nodes import EqualNodes
from taccl_py.measure.experiment import Bench, Counted, MeasuredFlow, Stopped
from taccl_py.measure.fitting import FittedLine, fit_samples
from taccl_py.measure.samples import Sample
from taccl_py.topology.model import Link, Port, Topology
from taccl_py.topology.template import AlphaBeta

SIZES_BYTES = (64, 1024, 16_384, 262_144, 1_048_576, 4_194_304)
_SCREEN_BYTES = 1_048_576, 64
_ALIKE, _DEVIATIONS = 1.04, 4.0  # links whose times differ by less, or by fewer deviations, are of one class
_MANY = 8  # values of which a deviation is told
_SERIAL, _MOST_SERIAL = 8, 256  # messages one after the other, over which a start that is not quite common is spread
_LEAST_US = 300.0  # that they take together, if so many are enough


@dataclass(frozen=True)
class Profile:
    """Result of the measurements.

    Attributes
    ----------
    topology
        The machine.
    samples
        All times of links alone.
    lines
        Line of every class, and the links that have it.
    ports
        Ports found.
    experiments, busy_us
        How many experiments ran, and how long flows ran in all.
    assumed
        Links that were not measured before the user said stop, and count as the slowest of their kind.
    complete
        Whether it came to its end.
    """

    topology: Topology
    samples: tuple[Sample, ...]
    lines: tuple[tuple[FittedLine, tuple[MeasuredFlow, ...]], ...]
    ports: tuple[FoundPort, ...]
    experiments: int
    busy_us: float
    assumed: tuple[MeasuredFlow, ...] = ()
    complete: bool = True


def most_experiments(links: int, ranks: int, classes: int, ports: int) -> int:
    """Upper bound of the experiments of a profile of all links.

    Parameters
    ----------
    links, ranks
        Of the machine.
    classes, ports
        That are found in it.
    """
    alone = 16 + 2 * links + len(SIZES_BYTES) * (classes + 1)
    return alone + most_port_experiments(links, ranks, classes, ports)


def profile(counted: Counted, *, all_pairs: bool = False, largest_bytes: int = SIZES_BYTES[-1]) -> Profile:
    """Measure a machine without knowing anything but its ranks, its nodes and which pairs can send.

    Parameters
    ----------
    counted
        Where experiments run; which experiments run follows from the results alone, so with the same `known` ones a profile
        that was interrupted goes on where it stopped. When its `stop` is set, what is known by then comes out.
    all_pairs
        Measure every link at all sizes, instead of one of each class of links that take equally long.
    largest_bytes
        Largest message; alpha and beta are those of messages up to about this size.

    Raises
    ------
    Stopped
        If `stop` is set before anything is known.
    """
    equal = EqualNodes.of(counted.bench.node_of)
    survey = _MachineSurvey(counted, equal, all_pairs=all_pairs, largest_bytes=largest_bytes)
    try:
        if equal is not None and not survey.run():
            # Nodes turn out not to be alike, so each is measured; what is known is not measured again.
            survey = _MachineSurvey(counted, None, all_pairs=all_pairs, largest_bytes=largest_bytes)
        if survey.equal is None:
            survey.run()
    except Stopped:
        return survey.result(complete=False)
    return survey.result(complete=True)


class _MachineSurvey:
    """One pass through all stages, and its results so far.

    Parameters
    ----------
    counted
        Where experiments run.
    equal
        Nodes of which a few stand for all, or None.
    all_pairs
        Whether each link is a class of its own.
    largest_bytes
        Largest message.
    """

    def __init__(self, counted: Counted, equal: EqualNodes | None, *, all_pairs: bool, largest_bytes: int) -> None:
        self._sizes_bytes = (*(size for size in SIZES_BYTES if size < largest_bytes), largest_bytes)
        self._screen_bytes = min(_SCREEN_BYTES[0], largest_bytes), _SCREEN_BYTES[1]
        self._large_bytes = min(LARGE_BYTES, largest_bytes)
        self.equal = equal
        self._counted = counted
        self._all_pairs = all_pairs
        self._samples: list[Sample] = []
        self._lines: list[tuple[FittedLine, tuple[MeasuredFlow, ...]]] = []
        self._screened: list[_Class] = []
        self._search: PortSearch | None = None
        self._enough: dict[int, int] = {}

    def run(self) -> bool:
        """Go through all stages; False if nodes are not alike, and those that were measured do not stand for all."""
        counted, bench, equal = self._counted, self._counted.bench, self.equal
        links = [flow for flow in bench.pairs if self._model(flow) == flow]
        counted.stage = "links"
        spread = counted.spread(links[:1], self._screen_bytes[0], _SERIAL)
        if self._all_pairs:
            self._screened = [_Class((), [flow]) for flow in links]
        else:
            spread = max(spread, self._screen(links, max(_ALIKE, 1 + _DEVIATIONS * spread)))
        counted.stage = "alpha and beta"
        for one in self._screened:
            taken = [self._sample(one.members[len(one.members) // 2], size) for size in self._sizes_bytes]
            self._samples += taken
            self._lines.append((fit_samples(taken).at(None), tuple(one.members)))
        if not self._all_pairs:
            self._merge(spread)
        costs = self._costs()
        if len(costs) < len(bench.pairs):
            return False
        probed = costs if equal is None else {flow: cost for flow, cost in costs.items() if equal.probed(flow)}
        counted.stage = "ports"
        # Many at once may disturb each other, and a computer that has other things to do, more than one alone.
        spread = max(spread, counted.spread(matchings(list(probed))[0], self._large_bytes, EXPECTED_MESSAGES))
        self._search = PortSearch(counted, probed, self._scope, slower_factor(spread), self._large_bytes)
        self._search.run()
        counted.stage = "confirming"
        return equal is None or self._confirmed(equal, costs, slower_factor(spread))

    def result(self, *, complete: bool) -> Profile:
        """Result of the measurements so far.

        Raises
        ------
        Stopped
            If no link has been measured.
        """
        bench, costs = self._counted.bench, self._costs()
        if not costs:
            raise Stopped
        assumed = tuple(flow for flow in bench.pairs if flow not in costs)
        for flow in assumed:
            alike = [cost for other, cost in costs.items() if self._scope(other) == self._scope(flow)]
            costs[flow] = max(alike or costs.values(), key=lambda cost: cost.beta_us_per_mb)
        costs = {flow: costs[flow] for flow in bench.pairs}
        ports = self._ports()
        words = f"measured with taccl profile in {self._counted.experiments} experiments"
        if not complete:
            words += f", interrupted: {len(assumed)} links are taken to be like the slowest, and ports may be missing"
        return Profile(
            _topology(bench, costs, ports, words), tuple(self._samples), tuple(self._lines), ports,
            self._counted.experiments, self._counted.busy_us, assumed, complete,
        )  # fmt: skip

    def _model(self, flow: MeasuredFlow) -> MeasuredFlow:
        """The link that is measured for this one."""
        return flow if self.equal is None or self._all_pairs else self.equal.model(flow)

    def _scope(self, flow: MeasuredFlow) -> str:
        node_of = self._counted.bench.node_of
        return "node" if node_of[flow.src] == node_of[flow.dst] else "network"

    def _costs(self) -> dict[MeasuredFlow, AlphaBeta]:
        """Costs of links that have been measured, or are like one that has."""
        known = {flow: line.cost for line, members in self._lines for flow in members}
        for one in self._screened[len(self._lines) :] if not self._all_pairs else ():
            known |= dict.fromkeys(one.members, fit_samples(one.samples).at(None).cost)
        return {flow: known[self._model(flow)] for flow in self._counted.bench.pairs if self._model(flow) in known}

    def _ports(self) -> tuple[FoundPort, ...]:
        if self._search is None:
            return ()
        found = self._search.found
        return found if self.equal is None else self.equal.repeated(found, self._counted.bench.pairs)

    def _confirmed(self, equal: EqualNodes, costs: dict[MeasuredFlow, AlphaBeta], slower: float) -> bool:
        """True if all nodes take as long as the first ones predict."""
        ports = self._ports()
        for flows in equal.checks(set(self._counted.bench.pairs)):
            times = self._counted.times_us(flows, self._large_bytes, EXPECTED_MESSAGES)
            expected = expected_us(flows, costs, ports, EXPECTED_MESSAGES, self._large_bytes)
            if any(not limit / slower <= time <= slower * limit for time, limit in zip(times, expected, strict=True)):
                return False
        return True

    def _screen(self, links: Sequence[MeasuredFlow], alike: float) -> float:
        """Sort links into classes that take as long as each other, at a large size and at a small one.

        Returns the relative deviation of times of links of the largest class, which are more than those of one link were.
        """
        taken: dict[MeasuredFlow, tuple[Sample, ...]] = {}
        for flow in links:
            samples = taken[flow] = tuple(self._sample(flow, size) for size in self._screen_bytes)
            for one in self._screened:
                ratios = [mine.message_us / other.message_us for mine, other in zip(samples, one.samples, strict=True)]
                if all(1 / alike < ratio < alike for ratio in ratios):
                    one.members.append(flow)
                    break
            else:
                self._screened.append(_Class(samples, [flow]))
        largest = max((one.members for one in self._screened), key=len)
        return _deviation([math.log(taken[flow][0].message_us) for flow in largest])

    def _merge(self, spread: float) -> None:
        """Make one class of those whose times differ by no more than noise explains, at sizes that did not tell them apart.

        Of many links some are off by chance when they are sorted; other sizes are not.
        """
        measured = [
            self._samples[k * len(self._sizes_bytes) :][: len(self._sizes_bytes)] for k in range(len(self._lines))
        ]
        kept: list[int] = []
        for number, taken in enumerate(measured):
            same = next((other for other in kept if self._alike(measured[other], taken, spread)), None)
            if same is None:
                kept.append(number)
                continue
            self._screened[same].members.extend(self._screened[number].members)
            measured[same] = [*measured[same], *taken]
        self._screened = [self._screened[number] for number in kept]
        self._lines = [
            (fit_samples(measured[number]).at(None), tuple(one.members))
            for number, one in zip(kept, self._screened, strict=True)
        ]

    def _alike(self, some: Sequence[Sample], others: Sequence[Sample], spread: float) -> bool:
        sizes = [size for size in self._sizes_bytes if size not in self._screen_bytes] or list(self._sizes_bytes)
        for part in (sizes[: (len(sizes) + 1) // 2], sizes[len(sizes) // 2 :]):
            mine, theirs = (
                [math.log(one.message_us) for one in samples if one.size_bytes in part] for samples in (some, others)
            )
            noise = spread * math.sqrt(1 / len(mine) + 1 / len(theirs))
            difference = abs(sum(mine) / len(mine) - sum(theirs) / len(theirs))
            if difference > max(math.log(_ALIKE), _DEVIATIONS * noise):
                return False
        return True

    def _sample(self, flow: MeasuredFlow, size_bytes: int) -> Sample:
        messages = self._messages(size_bytes)
        return Sample(
            flow.src, flow.dst, size_bytes, self._counted.last_us([flow], size_bytes, messages), serial=messages
        )

    def _messages(self, size_bytes: int) -> int:
        """Messages of a size that are enough to be timed, by how long the first link takes for a few."""
        if size_bytes not in self._enough:
            once = self._counted.last_us([self._counted.bench.pairs[0]], size_bytes, _SERIAL)
            wanted = math.ceil(_SERIAL * _LEAST_US / max(once, 1e-3))
            self._enough[size_bytes] = min(_MOST_SERIAL, max(_SERIAL, 1 << (wanted - 1).bit_length()))
        return self._enough[size_bytes]


@dataclass(frozen=True, slots=True)
class _Class:
    """Links that take as long as the first of them, and how long that takes."""

    samples: tuple[Sample, ...]
    members: list[MeasuredFlow]


def _deviation(values: Sequence[float]) -> float:
    """Standard deviation, by the middle one of the distances from the middle; 0 of a few."""
    if len(values) < _MANY:
        return 0.0
    middle = median_high(values)
    return 1.4826 * median_high(abs(value - middle) for value in values)


def _topology(
    bench: Bench, costs: dict[MeasuredFlow, AlphaBeta], ports: tuple[FoundPort, ...], source: str
) -> Topology:
    ports_of: dict[MeasuredFlow, list[int]] = {flow: [] for flow in costs}
    for index, port in enumerate(ports):
        for flow in port.links:
            ports_of[flow].append(index)
    links = tuple(
        Link(flow.src, flow.dst, cost.alpha_us, cost.beta_us_per_mb, ports=tuple(ports_of[flow]))
        for flow, cost in costs.items()
    )
    return Topology(
        name=f"{bench.name}-profiled",
        source=source,
        node_of=bench.node_of,
        ports=tuple(Port(port.name, port.cost.alpha_us, port.cost.beta_us_per_mb) for port in ports),
        links=links,
    )

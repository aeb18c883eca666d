"""Profile a machine: alpha and beta of its links, then the ports that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taccl_py.measure.contention import (
    EXPECTED_MESSAGES,
    LARGE_BYTES,
    FoundPort,
    expected_us,
    find_ports,
    slower_factor,
)
from taccl_py.measure.experiment import Bench, Counted, Flow
from taccl_py.measure.fitting import Line, fit_samples
from taccl_py.measure.repeat import EqualNodes
from taccl_py.measure.samples import Sample
from taccl_py.topology.model import Link, Port, Topology
from taccl_py.topology.template import Cost

SIZES_BYTES = (64, 1024, 16_384, 262_144, 1_048_576, 4_194_304)
_SCREEN_BYTES = 1_048_576, 64
_ALIKE, _DEVIATIONS = 1.04, 4.0  # links whose times differ by less, or by fewer deviations, are of one class
_SERIAL = 8  # messages one after the other, over which a start that is not quite common is spread


@dataclass(frozen=True)
class Profile:
    """What was measured.

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
    """

    topology: Topology
    samples: tuple[Sample, ...]
    lines: tuple[tuple[Line, tuple[Flow, ...]], ...]
    ports: tuple[FoundPort, ...]
    experiments: int
    busy_us: float


def profile(counted: Counted, progress: Callable[[str, int], None] | None = None) -> Profile:
    """Measure a machine without knowing anything but its ranks, its nodes and which pairs can send.

    Parameters
    ----------
    counted
        Where experiments run; which experiments run follows from the results alone, so with the same `known` ones a profile
        that was interrupted goes on where it stopped.
    progress
        Called with the name of a stage and the number of experiments so far.
    """
    bench = counted.bench
    tell = progress or (lambda *_: None)
    tell("links", 0)
    equal = EqualNodes.of(bench.node_of)
    found = None if equal is None else _measured(counted, equal, tell)
    # Where nodes turn out not to be alike, each is measured; what is known is not measured again.
    return found or _complete(counted, tell)


def _complete(counted: Counted, tell: Callable[[str, int], None]) -> Profile:
    found = _measured(counted, None, tell)
    if found is None:
        raise ValueError("a profile of all nodes has nothing to confirm")
    return found


def _measured(counted: Counted, equal: EqualNodes | None, tell: Callable[[str, int], None]) -> Profile | None:
    """A profile of all links, or of some that stand for all; None if that is not so."""
    bench = counted.bench
    screened = [flow for flow in bench.pairs if equal is None or equal.model(flow) == flow]
    spread = counted.spread(screened[0], _SCREEN_BYTES[0], _SERIAL)
    classes = _classes(counted, screened, max(_ALIKE, 1 + _DEVIATIONS * spread))
    samples: list[Sample] = []
    lines = []
    for members in classes:
        taken = [_sample(counted, members[len(members) // 2], size) for size in SIZES_BYTES]
        samples += taken
        lines.append((fit_samples(taken).at(None), tuple(members)))
        tell("alpha and beta", counted.experiments)
    known = {flow: Cost(line.alpha_us, line.beta_us_per_mb) for line, members in lines for flow in members}
    if equal is not None and any(equal.model(flow) not in known for flow in bench.pairs):
        return None
    costs = known if equal is None else {flow: known[equal.model(flow)] for flow in bench.pairs}
    probed = costs if equal is None else {flow: cost for flow, cost in costs.items() if equal.probed(flow)}
    node_of = bench.node_of
    tell("ports", counted.experiments)
    ports = find_ports(
        counted, probed, lambda flow: "node" if node_of[flow.src] == node_of[flow.dst] else "network", spread
    )
    if equal is not None:
        ports = equal.repeated(ports, bench.pairs)
        if not _confirmed(counted, equal, costs, ports, slower_factor(spread)):
            return None
    machine = _topology(bench, costs, ports, counted.experiments)
    return Profile(machine, tuple(samples), tuple(lines), ports, counted.experiments, counted.busy_us)


def _confirmed(
    counted: Counted, equal: EqualNodes, costs: dict[Flow, Cost], ports: tuple[FoundPort, ...], slower: float
) -> bool:
    """Whether all nodes take as long as the first ones let expect."""
    for flows in equal.checks(set(counted.bench.pairs)):
        times = counted.times_us(flows, LARGE_BYTES, EXPECTED_MESSAGES)
        expected = expected_us(flows, costs, ports)
        if any(not limit / slower <= time <= slower * limit for time, limit in zip(times, expected, strict=True)):
            return False
    return True


def _sample(counted: Counted, flow: Flow, size_bytes: int) -> Sample:
    return Sample(flow.src, flow.dst, size_bytes, counted.last_us([flow], size_bytes, _SERIAL), serial=_SERIAL)


def _classes(counted: Counted, flows: Sequence[Flow], alike: float) -> list[list[Flow]]:
    """Links that take as long as each other, at a large size and at a small one."""
    classes: list[tuple[tuple[float, float], list[Flow]]] = []
    for flow in flows:
        large, small = (counted.last_us([flow], size, _SERIAL) for size in _SCREEN_BYTES)
        for (other_large, other_small), members in classes:
            if max(large / other_large, other_large / large, small / other_small, other_small / small) < alike:
                members.append(flow)
                break
        else:
            classes.append(((large, small), [flow]))
    return [members for _, members in classes]


def _topology(bench: Bench, costs: dict[Flow, Cost], ports: tuple[FoundPort, ...], experiments: int) -> Topology:
    links = tuple(
        Link(
            flow.src, flow.dst, cost.alpha_us, cost.beta_us_per_mb,
            ports=tuple(index for index, port in enumerate(ports) if flow in port.links),
        )
        for flow, cost in costs.items()
    )  # fmt: skip
    return Topology(
        name=f"{bench.name}-profiled",
        source=f"measured with taccl profile in {experiments} experiments",
        node_of=bench.node_of,
        ports=tuple(Port(port.name, port.cost.alpha_us, port.cost.beta_us_per_mb) for port in ports),
        links=links,
    )

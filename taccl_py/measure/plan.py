"""Number of experiments that a profile takes, before anything has been measured."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from taccl_py.measure.emulate import EmulatedBench
from taccl_py.measure.experiment import Bench, Counted, Experiment, MeasuredFlow
from taccl_py.measure.profiler import SIZES_BYTES, profile
from taccl_py.topology.model import Link, Port, Topology
from taccl_py.topology.template import AlphaBeta

# Assumptions about a machine that nobody has measured: a switch in every node, and a NIC of 200 Gbit/s for each rank.
_INSIDE, _BETWEEN = AlphaBeta(2.0, 10.0), AlphaBeta(5.0, 40.0)
_PROBE_BYTES, _PROBE_MESSAGES = 1_048_576, 8


@dataclass(frozen=True, slots=True)
class ProfilePlan:
    """Effort of a profile.

    Attributes
    ----------
    experiments
        How many experiments.
    seconds
        How long they take, about.
    all_pairs
        Experiments that every pair at every size would be, without any two of them together.
    """

    experiments: int
    seconds: float
    all_pairs: int


@dataclass(frozen=True, slots=True)
class Pace:
    """Speed of experiments.

    Attributes
    ----------
    start_seconds
        Of one run, beside the time of its messages.
    slower
        Time of messages, in times that of the machine that is assumed.
    """

    start_seconds: float = 0.001
    slower: float = 1.0


def find_pace(bench: Bench, machine: Topology) -> Pace:
    """Speed of experiments on a bench, by one that runs twice.

    Parameters
    ----------
    bench
        Where experiments will run.
    machine
        Assumptions about it.
    """
    experiment = Experiment((bench.pairs[0],), _PROBE_BYTES, _PROBE_MESSAGES)
    bench.run(experiment)
    begun = time.monotonic()
    (found_us,) = bench.run(experiment)
    seconds = time.monotonic() - begun
    (assumed_us,) = EmulatedBench(machine).run(experiment)
    return Pace(max(0.0, seconds - found_us / 1e6), found_us / assumed_us)


def plan_profile(machine: Topology, repeats: int, *, all_pairs: bool = False, pace: Pace | None = None) -> ProfilePlan:
    """Count what a profile of a machine takes, by profiling it emulated.

    Parameters
    ----------
    machine
        One like that which is to be profiled.
    repeats
        Runs of each experiment.
    all_pairs
        Whether every link is to be measured at all sizes.
    pace
        How fast experiments run; None: as on the machine, with a millisecond to start each.
    """
    pace = pace or Pace()
    found = profile(Counted(EmulatedBench(machine), repeats))
    experiments = found.experiments + (len(SIZES_BYTES) * len(machine.links) if all_pairs else 0)
    each_seconds = pace.slower * found.busy_us / 1e6 / found.experiments
    seconds = experiments * (each_seconds + repeats * pace.start_seconds)
    return ProfilePlan(experiments, seconds, machine.num_ranks * (machine.num_ranks - 1) * len(SIZES_BYTES))


def usual_machine(node_of: Sequence[int], pairs: Sequence[MeasuredFlow]) -> Topology:
    """A machine of which only the nodes and the pairs that can send are known.

    Every rank has a port out and a port in inside its node, and a NIC: most machines share more, which takes more
    experiments, or less.

    Parameters
    ----------
    node_of
        Node of every rank.
    pairs
        All that can send.
    """
    costs = {"node": _INSIDE, "network": _BETWEEN}
    names = [f"{kind} {rank} {side}" for kind in costs for rank in range(len(node_of)) for side in ("out", "in")]
    numbers = {name: number for number, name in enumerate(names)}
    links = []
    for flow in pairs:
        kind = "node" if node_of[flow.src] == node_of[flow.dst] else "network"
        ports = (numbers[f"{kind} {flow.src} out"], numbers[f"{kind} {flow.dst} in"])
        links.append(Link(flow.src, flow.dst, costs[kind].alpha_us, costs[kind].beta_us_per_mb, ports=ports))
    ports_of = tuple(Port(name, 0.0, costs[name.split()[0]].beta_us_per_mb) for name in names)
    return Topology("unknown", "assumed", tuple(node_of), ports_of, tuple(links))

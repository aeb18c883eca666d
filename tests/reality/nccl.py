"""Measured times of NCCL on named machines (``nccl.json``: a log each, its source with it), as observations to predict.

Rates are nominal: NVLink of a GPU and NICs in GB/s and one direction. ``named`` is false where the source leaves the GPU in doubt;
such logs are fitted to, but not counted. ``scripts/bench reality`` prints the same figures as the tests check.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from taccl_py.baselines.nccl_fit import NcclObservation, fit_scales, fit_shared, shared_profile
from taccl_py.baselines.nccl_ranks import generation_of, nccl_ranks_of
from taccl_py.baselines.nccl_time import NcclMachine, NcclTimes, nccl_machine, runs_of
from taccl_py.baselines.nccl_tuner import choose
from taccl_py.collective import Kind, busbw_factor
from taccl_py.profiles.catalog import load_profile, neutral_profile
from taccl_py.profiles.model import RuntimeProfile
from taccl_py.topology.model import Medium, Topology
from taccl_py.topology.template import AlphaBeta, Nic, NodeSwitch, NodeTemplate, instantiate

LARGE_BYTES = 16 << 20
GPUS = ("v100", "a100", "h100", "b200")


@dataclass(frozen=True)
class MeasuredLog:
    """A log with its machine."""

    name: str
    source: str
    named: bool
    observations: tuple[NcclObservation, ...]


def machine(gpu: str, ranks: int, nodes: int, nvlink_gbps: float, nics: int, nic_gbps: float) -> Topology:
    """GPUs on NVSwitch, ranks of a node sharing its NICs evenly."""
    everyone = tuple(range(ranks))
    each = ranks // nics if nics else 1
    ports = tuple(
        Nic(f"nic{i}", everyone[i * each : (i + 1) * each], AlphaBeta(2.6, 1000 / nic_gbps)) for i in range(nics)
    )
    switch = NodeSwitch("nvswitch", everyone, AlphaBeta(0.3, 1000 / nvlink_gbps))
    node = NodeTemplate(
        f"{ranks}-{gpu}",
        "as a log names it",
        "nominal rates",
        ranks,
        (),
        (switch,),
        ports,
        inside=Medium.NVLINK,
        gpu=gpu,
    )
    return instantiate(node, nodes)


@cache
def read_logs() -> tuple[MeasuredLog, ...]:
    """All logs of the table."""
    table = json.loads(Path(__file__).with_name("nccl.json").read_text())
    return tuple(_log(each) for each in table)


def _log(one: dict[str, Any]) -> MeasuredLog:
    topology = machine(one["gpu"], one["gpus_per_node"], one["nodes"], one["nvlink_gbps"], one["nics"], one["nic_gbps"])
    where = nccl_machine(topology, fabric=one["fabric"], gpus_per_process=one["gpus_per_process"])
    kind = Kind(one["collective"])
    rows = zip(one["size_bytes"], one["time_us"], strict=True)
    observations = tuple(NcclObservation(where, kind, size, time, one["algorithm"]) for size, time in rows)
    return MeasuredLog(one["name"], one["source"], one["named"], observations)


@cache
def fitted_without(name: str) -> dict[str, float]:
    """Figures fitted to all logs but one, or to all for the empty name."""
    logs = [log for log in read_logs() if log.name != name]
    observations = [each for log in logs for each in log.observations]
    names = [log.name for log in logs for _ in log.observations]
    return fit_shared(observations, names, {gpu: load_profile(f"executor-{gpu}") for gpu in GPUS})


@cache
def profile_without(name: str, gpu: str) -> RuntimeProfile:
    """Profile of a GPU with `fitted_without`."""
    return shared_profile(load_profile(f"executor-{gpu}"), fitted_without(name), "")


def predicted_us(one: NcclObservation, profile: RuntimeProfile) -> float:
    """Time under a profile, of what was forced or of the fastest."""
    times = NcclTimes(one.machine, profile)
    return min(times.parts(run).time_us for run in runs_of(one.machine, one.kind, one.size_bytes, one.algorithm))


def error(one: NcclObservation, profile: RuntimeProfile) -> float:
    """Predicted over measured, as a natural logarithm."""
    return math.log(predicted_us(one, profile) / one.time_us)


def tuner_error(one: NcclObservation) -> float | None:
    """Error of the time that NCCL's tuner expects of what it chooses; None where it has no model."""
    topology = one.machine.topology
    gpu = generation_of(topology.gpu)
    choice = (
        choose(nccl_ranks_of(topology, gpu, amd_cpu=topology.gpu == "a100"), one.kind, one.size_bytes) if gpu else None
    )
    return None if choice is None else math.log(choice.time_us / one.time_us)


def neutral_error(one: NcclObservation) -> float:
    """Error of links and ports alone: 0.3 us inside nodes and 2.6 us between them, nominal rates, the best of what schedules can be."""
    times = NcclTimes(one.machine, neutral_profile())
    runs = runs_of(one.machine, one.kind, one.size_bytes, "" if one.algorithm == "NVLS" else one.algorithm)
    found = [times.parts(run).time_us + 0.3 * run.near_steps + 2.6 * run.far_steps for run in runs if not run.switched]
    return math.log(min(found) / one.time_us)


def five_of(observations: Sequence[NcclObservation]) -> list[int]:
    """Places of five rows, evenly from the smallest size to the largest."""
    last = len(observations) - 1
    return sorted({round(i * last / 4) for i in range(5)})


def errors_after_five(log: MeasuredLog) -> list[tuple[float, float]]:
    """(size, error) of all but five rows of a log: the profile fitted without it, scaled to these five."""
    known = five_of(log.observations)
    if len(log.observations) <= len(known):
        return []
    gpu = log.observations[0].machine.topology.gpu
    scaled = fit_scales([log.observations[i] for i in known], profile_without(log.name, gpu)).profile
    return [
        (each.size_bytes, error(each, scaled)) for i, each in enumerate(log.observations) if i not in known
    ]  # fmt: skip


def errors_left_out(log: MeasuredLog) -> list[tuple[float, float]]:
    """(size, error) of a log under the profile fitted without it."""
    gpu = log.observations[0].machine.topology.gpu
    profile = profile_without(log.name, gpu)
    return [(each.size_bytes, error(each, profile)) for each in log.observations]


def median_and_p90(errors: Sequence[float]) -> tuple[float, float]:
    """Factors by which predictions are off: the median and the 90th percentile."""
    sizes = sorted(abs(each) for each in errors)

    def at(part: float) -> float:
        place = part * (len(sizes) - 1)
        low = int(place)
        high = min(low + 1, len(sizes) - 1)
        return sizes[low] + (place - low) * (sizes[high] - sizes[low])

    return math.exp(at(0.5)), math.exp(at(0.9))


def factors(errors: Sequence[float]) -> str:
    """`median_and_p90` as a text."""
    if not errors:
        return "-"
    median, p90 = median_and_p90(errors)
    return f"x{median:.2f} x{p90:.2f}"


def verified(log: MeasuredLog) -> dict[str, list[float]]:
    """Errors of a log: left out, after five rows of it, above 16 MiB with the machine's own fit, NCCL's tuner, links alone."""
    gpu = log.observations[0].machine.topology.gpu
    own = fit_scales(log.observations, profile_without(log.name, gpu)).profile
    expected = [tuner_error(each) for each in log.observations]
    return {
        "left_out": [one for _, one in errors_left_out(log)],
        "five": [one for _, one in errors_after_five(log)],
        "own_large": [error(each, own) for each in log.observations if each.size_bytes > LARGE_BYTES],
        "tuner": [one for one in expected if one is not None],
        "links": [neutral_error(each) for each in log.observations],
    }


@dataclass(frozen=True)
class Peak:
    """Bus bandwidth that is known of an algorithm on one node, and the log that it is known from."""

    gpu: str
    ranks: int
    nvlink_gbps: float
    algorithm: str
    log: str
    gbps: float
    within: float


PEAKS = (
    Peak("a100", 8, 300.0, "Ring", "4 A100", 230.0, 10.0),
    Peak("h100", 8, 450.0, "Ring", "8 H100, rings", 367.0, 10.0),
    Peak("v100", 12, 150.0, "Ring", "12 V100 of a DGX-2", 123.0, 8.0),
    Peak("h100", 8, 450.0, "NVLS", "8 H100, NVLS", 480.0, 20.0),
)


def peak_gbps(peak: Peak) -> tuple[float, float]:
    """Bus bandwidth of AllReduce of 16 GiB under the shipped profile, and under figures fitted without the log."""
    shipped = load_profile(f"executor-{peak.gpu}")
    return _busbw_gbps(peak, shipped), _busbw_gbps(peak, profile_without(peak.log, peak.gpu))


def _busbw_gbps(peak: Peak, profile: RuntimeProfile) -> float:
    where: NcclMachine = nccl_machine(machine(peak.gpu, peak.ranks, 1, peak.nvlink_gbps, 0, 0))
    one = NcclObservation(where, Kind.ALLREDUCE, 1 << 34, 1.0, peak.algorithm)
    return (1 << 34) / predicted_us(one, profile) / 1000 * busbw_factor(Kind.ALLREDUCE, peak.ranks)

"""Fits of runtime profiles to logs of NCCL itself: four scales for one machine, or about twenty figures for many machines.

The time of a run is linear in the profile's latencies, and its bytes are limited by one of three rates, so a fit needs no replay:
all runs of all observations stand in a few arrays, an observation takes the least time of its runs, and figures move one at a
time, as factors, while that lessens the error. Small penalties keep what the logs do not tell where it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from taccl_py.arrays import FloatArray, IntArray
from taccl_py.baselines.nccl_time import AlgorithmRun, NcclMachine, NcclTimes, runs_of, with_processes
from taccl_py.collective import Kind
from taccl_py.errors import InputError
from taccl_py.measure.nccl_tests import Log
from taccl_py.profiles.files import profile_from_json, profile_to_json
from taccl_py.profiles.model import RuntimeProfile

Floats = FloatArray

SCALES = ("launch and near hops", "far hops", "threadblocks", "links")
FITTED_TO_LOG = "scaled to a log of NCCL itself on this machine"
_LINKS = 3  # limits of the bytes of a run: its threadblock, a GPU's links, a node's NICs

# Places of figures that only algorithms of NCCL itself need.
_ONLY_NCCL = ("nvls_us", "fabric_us/", "shares/nvls", "shares/efa", "shares/tcpx", "shares/tcpxo")

# Sweeps over all figures, first step and last one (natural logarithms), and from where errors count as they are, not squared.
_SWEEPS, _FIRST_STEP, _LAST_STEP, _SMALL_ERROR = 60, 0.3, 1e-4, 0.1
_STARTS = ((0.0, 0.0, 0.0, 0.0), (0.0, 0.7, 0.0, 0.0), (0.5, 0.0, 0.0, 0.0))
_SCALE_PENALTY = 0.001
_SHARED_PENALTY = 0.0003
# A scale by which the times change less than this (natural logarithm) when it changes by a tenth is not identified.
_NOTICED = 0.001


@dataclass(frozen=True)
class NcclObservation:
    """One measured time of NCCL.

    Attributes
    ----------
    machine
        Where it was measured.
    kind, size_bytes
        The collective, and the size as nccl-tests counts it.
    time_us
        Measured time.
    algorithm
        Algorithm that ``NCCL_ALGO`` forced, one of `taccl_py.baselines.nccl_time.ALGORITHMS`; empty if NCCL chose.
    """

    machine: NcclMachine
    kind: Kind
    size_bytes: float
    time_us: float
    algorithm: str = ""


def log_observations(log: Log, machine: NcclMachine) -> list[NcclObservation]:
    """Observations of a log of NCCL itself: times out of place, or in place where only those were taken.

    Parameters
    ----------
    log
        The log; how many GPUs one process drove is taken from it.
    machine
        Where it was run.

    Raises
    ------
    InputError
        If the log does not name its collective, or is of another number of ranks.
    """
    if log.kind is None:
        raise InputError(
            "does not name its program, such as all_reduce_perf; add the line that starts it", path=log.path
        )
    if log.num_ranks is not None and log.num_ranks != machine.num_ranks:
        raise InputError(
            f"is of {log.num_ranks} ranks, and {machine.topology.name} has {machine.num_ranks}; name the machine that it was run on",
            path=log.path,
        )
    where, found = with_processes(machine, log.gpus_per_process), []
    for row in log.rows:
        time_us = row.out_of_place_us if row.out_of_place_us is not None else row.in_place_us
        if time_us is not None and row.size_bytes > 0:
            found.append(NcclObservation(where, log.kind, row.size_bytes, time_us))
    return found


class ScaleFit(NamedTuple):
    """Result of `fit_scales`.

    Attributes
    ----------
    profile
        The scaled profile.
    residual
        Median factor by which the scaled profile is wrong on the observations, at least 1.
    unidentified
        Names of `SCALES` that the observations do not tell; they stay as they were.
    """

    profile: RuntimeProfile
    residual: float
    unidentified: tuple[str, ...]


class _System:
    """Runs of observations as arrays: P figures, all of which are factors of a start; R runs, of which each observation has some.

    Parameters
    ----------
    latency_us
        (R, P) what each figure adds to a run at the start.
    constant_us
        (R,) what no figure changes.
    loads_us
        (R, 3) what the bytes take each limit at the start.
    rates
        (R, 3, P) 1 where a figure is a factor of the rate of a limit.
    owner
        (R,) observation of each run.
    """

    def __init__(
        self, latency_us: Floats, constant_us: Floats, loads_us: Floats, rates: Floats, owner: IntArray
    ) -> None:  # fmt: skip
        self._latency_us, self._constant_us, self._loads_us, self._rates = latency_us, constant_us, loads_us, rates
        self._first = np.flatnonzero(np.diff(owner, prepend=-1))

    def log_times(self, logs: Floats) -> Floats:
        """Logarithm of the time of every observation, for the logarithms of all factors."""
        fixed = self._latency_us @ np.exp(logs) + self._constant_us
        loads = self._loads_us * np.exp(-(self._rates @ logs))
        times: Floats = np.log(np.minimum.reduceat(fixed + loads.max(axis=1), self._first))
        return times


def _descend(loss: Callable[[Floats], float], start: Floats, first_step: float) -> tuple[float, Floats]:
    """Least loss that moving one figure at a time reaches."""
    place, steps = start.copy(), np.full(len(start), first_step)
    best = loss(place)
    for _ in range(_SWEEPS):
        for index in range(len(place)):
            for step in (steps[index], -steps[index]):
                tried = place.copy()
                tried[index] += step
                value = loss(tried)
                if value < best - 1e-9:
                    best, place = value, tried
                    steps[index] *= 1.5
                    break
            else:
                steps[index] *= 0.5
        if steps.max() < _LAST_STEP:
            break
    return best, place


def _softened(errors: Floats) -> Floats:
    """Errors squared where they are small, as they are where they are large."""
    size = np.abs(errors)
    return np.where(size < _SMALL_ERROR, size**2 / (2 * _SMALL_ERROR), size - _SMALL_ERROR / 2)


def fit_scales(observations: Sequence[NcclObservation], profile: RuntimeProfile) -> ScaleFit:
    """Scale a profile to what was measured of NCCL on one machine.

    Four factors are fitted: of launch and near hops, of far hops, of what threadblocks move, and of usable links. Five
    observations, from the smallest to the largest size, are enough.

    Parameters
    ----------
    observations
        Times of NCCL, of any collectives and sizes.
    profile
        Profile of the machine's GPUs, not the neutral one.

    Raises
    ------
    InputError
        If there are no observations, a time is not above 0, or the profile is neutral.
    """
    _check(observations)
    if profile.is_neutral:
        raise InputError(
            "a neutral profile has nothing to scale; name the profile of the machine's GPUs", field="--runtime-profile"
        )
    system = _scale_system(observations, profile)
    measured = np.log([each.time_us for each in observations])

    def loss(logs: Floats) -> float:
        return float(_softened(system.log_times(logs) - measured).mean() + _SCALE_PENALTY * (logs**2).sum())

    found = min((_descend(loss, np.array(start), _FIRST_STEP) for start in _STARTS), key=lambda each: each[0])[1]
    unidentified = []
    for index, name in enumerate(SCALES):
        moved = found.copy()
        moved[index] += 0.1
        if np.abs(system.log_times(moved) - system.log_times(found)).max() < _NOTICED:
            unidentified.append(name)
            found[index] = 0.0
    residual = math.exp(float(np.median(np.abs(system.log_times(found) - measured))))
    return ScaleFit(_scaled(profile, *np.exp(found)), residual, tuple(unidentified))


def _check(observations: Sequence[NcclObservation]) -> None:
    if not observations:
        raise InputError("there are no times of NCCL to fit to; name a log with at least five sizes")
    for each in observations:
        if not (math.isfinite(each.time_us) and each.time_us > 0 and each.size_bytes > 0):
            raise InputError(
                f"found {each.time_us} us for {each.size_bytes} bytes; times in microseconds and sizes in bytes above 0 are needed"
            )


def _runs(observations: Sequence[NcclObservation]) -> list[tuple[int, AlgorithmRun]]:
    return [
        (index, run)
        for index, each in enumerate(observations)
        for run in runs_of(each.machine, each.kind, each.size_bytes, each.algorithm)
    ]


def _scale_system(observations: Sequence[NcclObservation], profile: RuntimeProfile) -> _System:
    runs = _runs(observations)
    times = {id(each.machine): NcclTimes(each.machine, profile) for each in observations}
    parts = [times[id(observations[index].machine)].parts(run) for index, run in runs]
    latency = np.array([[part.fixed_us, part.far_us, 0, 0] for part in parts])
    loads = np.array([[part.block_us, part.near_link_us, part.far_link_us] for part in parts])
    rates = np.zeros((len(runs), _LINKS, len(SCALES)))
    rates[:, 0, 2] = rates[:, 1:, 3] = 1
    return _System(latency, np.zeros(len(runs)), loads, rates, np.array([index for index, _ in runs]))


def _scaled(profile: RuntimeProfile, near: float, far: float, blocks: float, links: float) -> RuntimeProfile:
    values: dict[str, float] = {
        "launch_per_gpu_us": near * profile.launch_per_gpu_us,
        "nvls_us": near * profile.nvls_us,
    }
    for name, costs in profile.protocols.items():
        values |= {
            f"protocols/{name}/launch_us": near * costs.launch_us,
            f"protocols/{name}/op_us": near * costs.op_us,
            f"protocols/{name}/hop_near_us": near * costs.hop_near_us,
            f"protocols/{name}/hop_far_us": max(0.0, far * (costs.op_us + costs.hop_far_us) - near * costs.op_us),
            f"protocols/{name}/tb_gbps": blocks * costs.tb_gbps,
        }
    values |= {f"fabric_us/{name}": far * extra for name, extra in profile.fabric_us.items()}
    values |= {f"shares/{name}": min(1.0, links * share.value) for name, share in profile.shares.items()}
    # Costs that only NCCL's algorithms need are measured so; costs of a runtime of XML files are not.
    own = {place: value for place, value in values.items() if place.startswith(_ONLY_NCCL)}
    scaled = with_figures(profile, values, FITTED_TO_LOG, measured=False)
    return with_figures(scaled, own, FITTED_TO_LOG, measured=True)


def with_figures(
    profile: RuntimeProfile, values: Mapping[str, float], source: str, *, measured: bool
) -> RuntimeProfile:  # fmt: skip
    """The profile with other values.

    Parameters
    ----------
    profile
        The profile.
    values
        New values by their place in the file, such as ``protocols/LL/op_us``; places that the profile does not have are left out.
    source
        Where they come from.
    measured
        Whether they were measured on such a GPU under such a runtime.
    """
    record: dict[str, Any] = profile_to_json(profile)
    for place, value in values.items():
        *folders, last = place.split("/")
        item = record
        for folder in folders:
            item = item.get(folder, {})
        if last not in item or not math.isfinite(value):
            continue
        old = item[last] if isinstance(item[last], dict) else {}
        item[last] = {**old, "value": value, "source": source, "measured": measured}
    return profile_from_json(record, profile.name)


# --- One fit for many machines ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prior:
    """A figure before any log was seen: its value, and by what factor (natural logarithm) it may easily be wrong."""

    value: float
    spread: float


# NCCL's constants where it has some (``src/graph/tuning.cc``, 2.23: bases, latencies, what it counts of NVLink), else plain guesses.
PRIORS = {
    "launch": Prior(6.6, 0.3),
    "near/LL": Prior(0.6, 0.2), "near/LL128": Prior(1.9, 0.2), "near/Simple": Prior(4.0, 0.2),
    "far/LL": Prior(5.0, 0.6), "far/LL128": Prior(8.5, 0.2), "far/Simple": Prior(14.0, 0.2),
    "fabric/efa": Prior(40.0, 1.0), "fabric/tcp": Prior(40.0, 1.0),
    "per gpu": Prior(4.0, 0.3), "nvls": Prior(25.0, 0.2),
    "share/nvlink/v100": Prior(0.8, 0.04), "share/nvlink/a100": Prior(0.8, 0.04), "share/nvlink/h100": Prior(0.824, 0.04),
    "share/nvlink/b200": Prior(0.802, 0.01), "share/nic": Prior(0.93, 0.05),
    "share/nvls/h100": Prior(0.6, 0.1), "share/nvls/b200": Prior(0.522, 0.04), "share/nvlstree": Prior(1.0, 0.1),
    "share/efa": Prior(0.8, 0.3), "share/tcpx": Prior(0.8, 0.3), "share/tcpxo": Prior(0.93, 0.1),
}  # fmt: skip
_TCP = ("tcpx", "tcpxo")


def fit_shared(
    observations: Sequence[NcclObservation], logs: Sequence[str], profiles: Mapping[str, RuntimeProfile]
) -> dict[str, float]:
    """Figures of NCCL on all kinds of GPUs, fitted together: one of each for all, shares of NVLink and NVLS by kind of GPU.

    Parameters
    ----------
    observations
        Times of NCCL on any machines.
    logs
        Log of each observation; the weight of a log grows with the square root of its rows.
    profiles
        Profiles by GPU, of which operations, threadblock rates and wire factors are taken as they are.

    Returns
    -------
    Values by the names of `PRIORS`; `shared_profile` puts them into a profile.

    Raises
    ------
    InputError
        If there are no observations, or a time is not above 0.
    """
    _check(observations)
    names = list(PRIORS)
    system = _shared_system(observations, profiles, names)
    measured = np.log([each.time_us for each in observations])
    weights = np.array([1 / math.sqrt(logs.count(log)) for log in logs])
    weights /= weights.sum()
    spread = np.array([PRIORS[name].spread for name in names])

    def loss(place: Floats) -> float:
        errors = np.abs(system.log_times(place) - measured)
        return float((weights * errors).sum() + _SHARED_PENALTY * ((place / spread) ** 2).sum())

    _, found = _descend(loss, np.zeros(len(names)), _FIRST_STEP / 2)
    return {name: PRIORS[name].value * math.exp(log) for name, log in zip(names, found, strict=True)}


def _shared_system(
    observations: Sequence[NcclObservation], profiles: Mapping[str, RuntimeProfile], names: Sequence[str]
) -> _System:
    runs, place = _runs(observations), {name: index for index, name in enumerate(names)}
    latency, loads = np.zeros((len(runs), len(names))), np.zeros((len(runs), _LINKS))
    constant, rates = np.zeros(len(runs)), np.zeros((len(runs), _LINKS, len(names)))
    start = {name: prior.value for name, prior in PRIORS.items()}
    under = {gpu: shared_profile(profile, start, "") for gpu, profile in profiles.items()}
    times = {id(each.machine): NcclTimes(each.machine, under[each.machine.topology.gpu]) for each in observations}
    for row, (index, run) in enumerate(runs):
        machine = observations[index].machine
        parts = times[id(machine)].parts(run)
        loads[row] = parts.block_us, parts.near_link_us, parts.far_link_us
        constant[row] = run.operations * profiles[machine.topology.gpu].costs_of(str(run.protocol)).op_us
        for name, times_used in _counts(run, machine).items():
            latency[row, place[name]] = times_used * PRIORS[name].value
        for limit, shares in enumerate(_shares(run, machine), 1):
            for name in shares:
                rates[row, limit, place[name]] = 1
    return _System(latency, constant, loads, rates, np.array([index for index, _ in runs]))


def _counts(run: AlgorithmRun, machine: NcclMachine) -> dict[str, float]:
    """Number of times that each latency counts in a run."""
    fabric = "tcp" if machine.fabric in _TCP else machine.fabric
    counts = {
        "launch": 1.0,
        "per gpu": machine.gpus_per_process - 1.0,
        f"near/{run.protocol}": run.near_steps,
        f"far/{run.protocol}": run.far_steps,
    }
    if fabric:
        counts[f"fabric/{fabric}"] = run.far_steps
    if run.switched:
        counts["nvls"] = 1.0
    return counts


def _shares(run: AlgorithmRun, machine: NcclMachine) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Shares of the rates of a GPU's links and a node's NICs."""
    gpu = machine.topology.gpu
    near: tuple[str, ...] = (f"share/nvlink/{gpu}",)
    if run.switched:
        near = (f"share/nvls/{gpu}", *(("share/nvlstree",) if machine.num_nodes > 1 else ()))
    return near, (f"share/{machine.fabric or 'nic'}",)


def shared_profile(
    profile: RuntimeProfile, values: Mapping[str, float], source: str, *, measured: bool = False
) -> RuntimeProfile:  # fmt: skip
    """A profile with the figures of `fit_shared`."""
    gpu = profile.gpu
    places = {
        "launch_per_gpu_us": values["per gpu"],
        "nvls_us": values["nvls"],
        "fabric_us/efa": values["fabric/efa"],
        "fabric_us/tcpx": values["fabric/tcp"],
        "fabric_us/tcpxo": values["fabric/tcp"],
        "shares/nic": values["share/nic"],
        "shares/nvlstree": values["share/nvlstree"],
    }
    places |= {f"shares/{name}": values[f"share/{name}"] for name in ("efa", *_TCP)}
    for medium in ("nvlink", "nvls"):
        if f"share/{medium}/{gpu}" in values:
            places[f"shares/{medium}"] = values[f"share/{medium}/{gpu}"]
    for name, costs in profile.protocols.items():
        places[f"protocols/{name}/launch_us"] = values["launch"]
        places[f"protocols/{name}/hop_near_us"] = max(0.0, values[f"near/{name}"] - costs.op_us)
        places[f"protocols/{name}/hop_far_us"] = max(0.0, values[f"far/{name}"] - costs.op_us)
    places = {place: min(1.0, value) if place.startswith("shares/") else value for place, value in places.items()}
    return with_figures(profile, places, source or profile.source, measured=measured)

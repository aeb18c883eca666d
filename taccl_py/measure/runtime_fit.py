"""Fit of a runtime profile to measured times: what launch, operations, hops, threadblocks and sums cost on this machine.

Every measured time is a `RuntimeObservation`: a number, and a function that predicts it under a profile. Unknown values are fitted together in
their logarithms by least squares of the logarithms of predicted over measured, with Huber's weights, so that a few odd rows do not bend
them, and with a weak preference for the starting profile, so that what rows do not tell stays where it was. A value that rows
leave uncertain by more than a factor of 1.5 is not identified: it keeps the value of the starting profile, and is named.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from taccl_py.arrays import FloatArray
from taccl_py.errors import InputError
from taccl_py.lowering.program import Op, Program
from taccl_py.profiles.catalog import AUTO, load_profile, select_profile
from taccl_py.profiles.model import Figure, RuntimeProfile, UsableShare
from taccl_py.profiles.view import is_far
from taccl_py.simulate.runtime_replay import RuntimeReplay
from taccl_py.topology.model import Medium, Topology

_HUBER = 0.05  # relative error above which a row counts less
# Deviations of the logarithm of a value from that of the starting profile before any row is seen: builds differ most in launch, machines
# in rates, and least in what a flag or an operation takes.
_SPREADS = {"launch_us": 2.0, "tb_gbps": 1.0, "reduce_us": 1.0, "reduce_gbps": 1.0, "copy_gbps": 1.0}
_SPREAD, _SPREAD_OF_SHARE = 0.7, 0.2
_UNSURE = math.log(1.5)  # deviation after all rows are seen, above which a value is not identified
_LEAST_ERROR = 0.02  # deviation of times in a log, at least
_STEP, _LONGEST_STEP = 0.02, 1.5  # of logarithms: for the Jacobian, and of one iteration
_DAMPINGS = (1e-3, 1e-1, 1.0, 10.0)
_ITERATIONS, _GAIN = 12, 1e-3
_ROUNDS = 4
_DIGITS = 4
# Where the starting profile has nothing to start from, as its rate is without a limit or its cost is 0.
_FALLBACK = {
    "launch_us": 8.0, "op_us": 0.5, "hop_near_us": 1.5, "hop_far_us": 10.0, "tb_gbps": 10.0, "copy_gbps": 20.0,
    "reduce_us": 1.0, "reduce_gbps": 20.0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RuntimeObservation:
    """One measured time.

    Attributes
    ----------
    source
        File or log that it is of.
    group
        Protocol, or another name of what only some parameters say something about.
    size_bytes
        Size of the call.
    time_us
        Measured time.
    predicted
        Time under a profile, in microseconds.
    """

    source: str
    group: str
    size_bytes: int
    time_us: float
    predicted: Callable[[RuntimeProfile], float]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value that is to be fitted.

    Attributes
    ----------
    place
        Its place in a profile, such as ``protocols/LL/op_us``; or a name.
    group
        Group of the observations that it has to do with; empty if with all.
    start
        Value of the starting profile, above 0.
    most
        Largest possible value.
    spread
        Deviation of the logarithm of the value from that of `start` before any row is seen.
    put
        Makes of a profile and a value the profile with that value.
    """

    place: str
    group: str
    start: float
    most: float
    spread: float
    put: Callable[[RuntimeProfile, float], RuntimeProfile]


@dataclass(frozen=True, slots=True)
class Residual:
    """Distances of predictions from measurements, as factors of at least 1.

    Attributes
    ----------
    rows
        Number of observations.
    median, p90
        Half and nine tenths of the observations are not further off than this.
    bias
        Geometric mean of predicted over measured.
    """

    rows: int
    median: float
    p90: float
    bias: float


@dataclass(frozen=True)
class FittedRuntime:
    """Result of a fit.

    Attributes
    ----------
    profile
        The starting profile with the fitted values.
    fitted
        Fitted values by place.
    unidentified
        Places of what the observations leave open.
    residual
        Over all observations.
    by_group, by_source
        Residuals by protocol and by file.
    """

    profile: RuntimeProfile
    fitted: Mapping[str, float]
    unidentified: tuple[str, ...]
    residual: Residual
    by_group: Mapping[str, Residual]
    by_source: Mapping[str, Residual]


def fit_runtime(
    start: RuntimeProfile, parameters: Sequence[Parameter], observations: Sequence[RuntimeObservation]
) -> FittedRuntime:
    """Fit parameters of a profile to observations.

    Parameters
    ----------
    start
        The profile that is started from.
    parameters
        Parameters that may change.
    observations
        Measured times; at least one.

    Raises
    ------
    InputError
        If there is no observation, or a prediction is refused.
    """
    if not observations:
        raise InputError(
            "there are no measured times to fit a profile to; give logs with rows that the files were run for"
        )
    problem = _FitProblem(start, parameters, observations)
    free = list(range(len(parameters)))
    x = problem.origin.copy()
    for turn in range(_ROUNDS):
        x, jacobian, errors = problem.solve(x, free)
        problem.deviation = min(_HUBER, max(_LEAST_ERROR, 1.4826 * float(np.median(np.abs(errors)))))
        known = _identified(jacobian, problem.deviation, free, problem.spreads)
        if known == free and turn:
            break
        lost = [each for each in free if each not in known]
        x[lost] = problem.origin[lost]
        free = known
    profile = problem.profile(x, free)
    fitted = {parameters[each].place: problem.value(each, x) for each in free}
    unidentified = tuple(each.place for each in parameters if each.place not in fitted)
    return FittedRuntime(
        profile, MappingProxyType(fitted), unidentified, *residuals(profile, observations),
    )  # fmt: skip


def residuals(
    profile: RuntimeProfile, observations: Sequence[RuntimeObservation]
) -> tuple[Residual, Mapping[str, Residual], Mapping[str, Residual]]:
    """Return residuals of a profile: over all observations, by group and by source."""
    errors = [math.log(each.predicted(profile) / each.time_us) for each in observations]
    groups: dict[str, list[float]] = defaultdict(list)
    sources: dict[str, list[float]] = defaultdict(list)
    for each, error in zip(observations, errors, strict=True):
        groups[each.group].append(error)
        sources[each.source].append(error)
    by_group, by_source = ({name: _residual(part) for name, part in parts.items()} for parts in (groups, sources))
    return _residual(errors), MappingProxyType(by_group), MappingProxyType(by_source)


def _residual(errors: Sequence[float]) -> Residual:
    sizes = sorted(map(abs, errors))
    p90 = sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]
    return Residual(
        len(sizes), math.exp(statistics.median(sizes)), math.exp(p90), math.exp(statistics.fmean(errors))
    )  # fmt: skip


class _FitProblem:
    """Parameters and observations; points are logarithms of values."""

    def __init__(
        self, start: RuntimeProfile, parameters: Sequence[Parameter], observations: Sequence[RuntimeObservation]
    ) -> None:
        self._start, self._parameters, self._observations = start, parameters, observations
        self.deviation = _HUBER  # of the errors of a row, which says how much the starting profile counts beside them
        self.origin = np.array([math.log(each.start) for each in parameters])
        self.spreads = np.array([each.spread for each in parameters])
        self._most = np.array([math.log(each.most) for each in parameters])
        # Observations that a parameter has to do with.
        self._touched = [
            [row for row, one in enumerate(observations) if each.group in ("", one.group)] for each in parameters
        ]

    def value(self, index: int, x: FloatArray) -> float:
        """Value of a parameter at a point, with as many digits as a profile has."""
        return float(f"{math.exp(x[index]):.{_DIGITS}g}")

    def profile(self, x: FloatArray, free: Sequence[int]) -> RuntimeProfile:
        """Profile at a point, of which only free parameters are put into the starting profile."""
        found = self._start
        for index in free:
            found = self._parameters[index].put(found, self.value(index, x))
        return found

    def _errors(self, x: FloatArray, free: Sequence[int], rows: Collection[int] | None = None) -> FloatArray:
        profile = self._start
        for index in free:
            profile = self._parameters[index].put(profile, math.exp(x[index]))
        chosen = range(len(self._observations)) if rows is None else rows
        return np.array([
            math.log(self._observations[row].predicted(profile) / self._observations[row].time_us) for row in chosen
        ])  # fmt: skip

    def _jacobian(self, x: FloatArray, errors: FloatArray, free: Sequence[int]) -> FloatArray:
        jacobian = np.zeros((len(errors), len(free)))
        for column, index in enumerate(free):
            step = _STEP if x[index] + _STEP <= self._most[index] else -_STEP
            moved = x.copy()
            moved[index] += step
            rows = self._touched[index]
            jacobian[rows, column] = (self._errors(moved, free, rows) - errors[rows]) / step
        return jacobian

    def solve(self, x: FloatArray, free: Sequence[int]) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Point that fits best, moving the free parameters only; with the Jacobian and the errors there."""
        errors = self._errors(x, free)
        for _ in range(_ITERATIONS):
            jacobian = self._jacobian(x, errors, free)
            best = self._step(x, errors, jacobian, free)
            gained = self._cost(x, errors, free) - self._cost(*best, free)
            if gained <= _GAIN * self._cost(x, errors, free):
                break
            x, errors = best
        return x, jacobian, errors

    def _step(
        self, x: FloatArray, errors: FloatArray, jacobian: FloatArray, free: Sequence[int]
    ) -> tuple[FloatArray, FloatArray]:
        """The best of some damped steps."""
        weights = np.minimum(1.0, _HUBER / np.maximum(np.abs(errors), 1e-12))
        prior = (self.deviation / self.spreads[list(free)]) ** 2
        hessian = jacobian.T @ (jacobian * weights[:, None]) + np.diag(prior)
        gradient = jacobian.T @ (errors * weights) + prior * (x - self.origin)[list(free)]
        found = (x, errors)
        for damping in _DAMPINGS:
            step = np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), -gradient)
            moved = x.copy()
            moved[list(free)] += np.clip(step, -_LONGEST_STEP, _LONGEST_STEP)
            moved = np.minimum(moved, self._most)
            tried = (moved, self._errors(moved, free))
            if self._cost(*tried, free) < self._cost(*found, free):
                found = tried
            elif found[0] is not x:
                break
        return found

    def _cost(self, x: FloatArray, errors: FloatArray, free: Sequence[int]) -> float:
        sizes = np.abs(errors)
        huber = np.where(sizes < _HUBER, sizes**2, 2 * _HUBER * sizes - _HUBER**2).sum()
        return float(huber + ((self.deviation * ((x - self.origin) / self.spreads)[list(free)]) ** 2).sum())


def _identified(jacobian: FloatArray, deviation: float, free: Sequence[int], spreads: FloatArray) -> list[int]:
    """Parameters that the errors pin down; the least certain one is fixed first, which may settle the others."""
    information = jacobian.T @ jacobian / deviation**2
    kept = list(range(len(free)))
    while kept:
        part = information[np.ix_(kept, kept)] + np.diag(spreads[[free[each] for each in kept]] ** -2.0)
        unsure = np.sqrt(np.diag(np.linalg.inv(part)))
        worst = int(np.argmax(unsure))
        if unsure[worst] <= _UNSURE:
            break
        del kept[worst]
    return [free[each] for each in kept]


# Profiles that a fit starts from where there is none for the GPUs of the machine: the nearest one of the runtime.
_NEAREST = {"executor": "executor-a100", "rccl": "rccl-mi300x", "legacy": "legacy-a100"}


def starting_profile(asked: str, runtime: str, topology: Topology) -> RuntimeProfile:
    """Return the profile that a fit starts from.

    Parameters
    ----------
    asked
        A name, a file, or ``auto``: that of the runtime on the machine's GPUs, else the nearest of the runtime, without its shares.
    runtime
        Name of the runtime.
    topology
        The machine.

    Raises
    ------
    InputError
        If there is no such profile, it is wrong or of another runtime, or has no costs.
    """
    found = select_profile(asked, runtime, topology).profile
    if not found.is_neutral:
        return found
    if asked != AUTO:
        raise InputError(
            f"profile {found.name} has no costs to start from; name another, or auto",
            path="command line",
            field="--start",
        )
    nearest = load_profile(_NEAREST[runtime])
    figures = {place: figure for place, figure in nearest.figures.items() if not place.startswith("shares/")}
    return replace(nearest, shares={}, figures=figures)


# Programs of the MSCCL family


def program_observations(
    program: Program, topology: Topology, profile: RuntimeProfile, rows: Sequence[tuple[int, float]], source: str
) -> list[RuntimeObservation]:
    """Measured times of one program.

    Parameters
    ----------
    program
        The program.
    topology
        The machine that it ran on.
    profile
        A profile that has the program's protocol.
    rows
        (size in bytes, microseconds) of calls.
    source
        Name of the file.

    Raises
    ------
    InputError
        If the program does not fit the machine or the profile.
    """
    replay = RuntimeReplay(program, topology, profile)

    def at(size_bytes: int) -> Callable[[RuntimeProfile], float]:
        return lambda changed: replay.under(changed).time_us(size_bytes)

    return [RuntimeObservation(source, str(program.protocol), size, time_us, at(size)) for size, time_us in rows]


def program_parameters(start: RuntimeProfile, topology: Topology, programs: Sequence[Program]) -> list[Parameter]:
    """Parameters that the times of some programs may tell: costs of their protocols, usable parts of the media that they use.

    Parameters
    ----------
    start
        The starting profile.
    topology
        The machine.
    programs
        Programs that were run.
    """
    used: dict[str, set[str]] = defaultdict(set)
    reached = {far for program in programs for far in _reach(program, topology)}
    for program in programs:
        names = used[str(program.protocol)]
        names |= {"launch_us", "op_us", "tb_gbps"}
        names |= {"hop_far_us" if far else "hop_near_us" for far in _reach(program, topology)}
        steps = {step.op for gpu in program.gpus for block in gpu.threadblocks for step in block.steps}
        names |= {"reduce_us", "reduce_gbps"} if Op.REDUCE in steps else set()
        names |= {"copy_gbps"} if Op.COPY in steps else set()
    found = [_cost(start, protocol, name) for protocol in sorted(used) for name in _FALLBACK if name in used[protocol]]
    media = [*([near_medium(start, topology)] if False in reached else []), *(["nic"] if True in reached else [])]
    return [*found, *(_share(start, medium) for medium in media if medium)]


def near_medium(profile: RuntimeProfile, topology: Topology) -> str:
    """Name of the share that is applied inside the nodes of a machine; empty if none is."""
    if topology.inside in (Medium.NVLINK, Medium.UNKNOWN):
        return "xgmi" if "xgmi" in profile.shares or profile.runtime == "rccl" else "nvlink"
    return "pcie" if topology.inside is Medium.PCIE else ""


def _reach(program: Program, topology: Topology) -> set[bool]:
    """Media of a program's messages: True for NICs, False for inside nodes, or both."""
    return {
        is_far(topology, gpu.rank, block.send_peer)
        for gpu in program.gpus
        for block in gpu.threadblocks
        if any(step.op.sends for step in block.steps)
    }


def _cost(start: RuntimeProfile, protocol: str, name: str) -> Parameter:
    """One cost of a protocol."""

    def put(profile: RuntimeProfile, value: float) -> RuntimeProfile:
        changed: dict[str, Any] = {name: value}
        costs = replace(profile.protocols[protocol], **changed)
        return replace(profile, protocols={**profile.protocols, protocol: costs})

    value = getattr(start.costs_of(protocol), name)
    usable = value if 0 < value < math.inf else _FALLBACK[name]
    return Parameter(
        f"protocols/{protocol}/{name}",
        protocol,
        usable,
        1e4 if name.endswith("_gbps") else 1e5,
        _SPREADS.get(name, _SPREAD),
        put,
    )


def _share(start: RuntimeProfile, medium: str) -> Parameter:
    """Usable share of a medium."""
    had = start.shares.get(medium, UsableShare(0.9))

    def put(profile: RuntimeProfile, value: float) -> RuntimeProfile:
        shares = {**profile.shares, medium: UsableShare(value, had.of_gbps)}
        return replace(profile, shares=shares)

    return Parameter(f"shares/{medium}", "", had.value, 1.0, _SPREAD_OF_SHARE, put)


def measured_profile(fit: FittedRuntime, start: RuntimeProfile, *, name: str, gpu: str, source: str) -> RuntimeProfile:
    """Profile of a fit with the origin of every value, as it is written to a file.

    Parameters
    ----------
    fit
        The fit.
    start
        The profile that it started from.
    name
        Name of the new profile.
    gpu
        Model of the GPUs that were measured; empty if not known.
    source
        Where the times come from, in a phrase.
    """
    figures = dict(start.figures)
    for place, figure in start.figures.items():
        if place.rpartition("/")[0].startswith("protocols") or place.startswith("shares"):
            kept = figure.measured and start.gpu == gpu and place not in fit.unidentified
            figures[place] = Figure(figure.value, f"of profile {start.name}: {figure.source}", kept)
    for place in fit.unidentified:
        value = figures[place].value if place in figures else math.nan
        figures[place] = Figure(value, f"not identified by the logs; of profile {start.name}", False)
    for place, value in fit.fitted.items():
        figures[place] = Figure(value, f"fitted to {source}", True)
    title = start.title if start.gpu == gpu else f"{start.runtime} on {gpu or 'GPUs that are not known'}"
    return replace(
        fit.profile, name=name, title=title, gpu=gpu, source=f"taccl runtime fit, started from {start.name}; fitted to {source}",
        figures=figures,
    )  # fmt: skip

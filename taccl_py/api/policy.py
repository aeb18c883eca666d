"""Defaults: engine, time limit and runtime where the user names none; and options that exclude each other."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from taccl_py.answer import OF_FIXED_CHUNKS
from taccl_py.errors import InputError
from taccl_py.lowering.buffers import CallPlacement
from taccl_py.runtimes import EXECUTOR, MSCCLPP, RCCL, RUNTIMES, PlanRuntime, Runtime
from taccl_py.solvers.limits import Limits
from taccl_py.topology.model import Topology

AUTO = "auto"
# Seconds of a search: with engine auto, with another engine, and for a range of sizes or a search for a sketch.
RACE_LIMIT_S, ENGINE_LIMIT_S, RANGE_LIMIT_S = 20.0, 7.0, 60.0
# Ranks up to which these hold; on more ranks engines take longer in proportion, up to the last one.
LIMIT_RANKS, RANGE_LIMIT_RANKS, MOST_LIMIT_S = 64, 16, 600.0
# Seconds of the search for a demand, and the ranks up to which one that is an AllToAll is searched as long as that.
DEMAND_LIMIT_S, EXCHANGE_RANKS = 4.0, 8
# Seconds of the search of a comparison.
COMPARE_LIMIT_S = 100.0
# Parts of a default budget that efforts are.
EFFORTS = {"quick": 0.25, "normal": 1.0, "thorough": 5.0}
# Solvers whose work is counted.
_COUNTING = (AUTO, "cp-sat", "highs")
# Engines whose solver can be chosen.
_SOLVED = ("auto", "milp", "cp")
# Names of AMD's GPUs begin so.
_AMD = "mi"


def default_engine(sketch: str, solver: str, *, ranged: bool = False) -> str:
    """Engine where none is named: ``milp`` with a sketch or a solver, which are for that, else the race ``auto``.

    Parameters
    ----------
    sketch
        Name or file of the sketch; empty without one.
    solver
        Name of the solver, or ``auto``.
    ranged
        Whether algorithms for a range of sizes are wanted.
    """
    return "milp" if (sketch or solver != AUTO) and not ranged else AUTO


def has_fixed_chunks(sketch: str, chunks: int | None, engine: str) -> bool:
    """Chunks are the user's, a sketch's, or what the engine's bound is for, so that lowering does not cut them."""
    return bool(sketch or chunks or engine in OF_FIXED_CHUNKS)


def default_seconds(engine: str, *, longer: bool) -> float:
    """Seconds of a search on few ranks.

    Parameters
    ----------
    engine
        The engine.
    longer
        Whether it is for a range of sizes, or for a sketch that has to be found.
    """
    if longer:
        return RANGE_LIMIT_S
    return RACE_LIMIT_S if engine == AUTO else ENGINE_LIMIT_S


def scaled_seconds(seconds: float, num_ranks: int, *, ranged: bool) -> float:
    """Default seconds of a search on so many ranks."""
    times = num_ranks / (RANGE_LIMIT_RANKS if ranged else LIMIT_RANKS)
    return min(MOST_LIMIT_S, seconds * max(1.0, times))


def budget(
    limits: Limits, seconds: float, *, effort: str | None, time_limit: float | None, solver: str = AUTO
) -> Limits:
    """Limits with a budget: of work, unless there is a time limit alone or a solver that counts none.

    Parameters
    ----------
    limits
        Seed, interrupt and the like.
    seconds
        Budget of effort ``normal``.
    effort
        A key of `EFFORTS`, or None.
    time_limit
        Seconds of the clock after which the search ends whatever it has done, or None.
    solver
        The solver; others than CP-SAT and HiGHS get seconds of the clock for those of work.

    Raises
    ------
    InputError
        If there is no such effort, or the time limit is not above 0.
    """
    if effort is not None and effort not in EFFORTS:
        raise InputError(f"found {effort!r}, use one of: {', '.join(EFFORTS)}", path="command line", field="--effort")
    if time_limit is not None and not time_limit > 0:
        raise InputError(
            f"found {time_limit!r}, a number of seconds above 0 is needed", path="command line", field="--time-limit"
        )
    if effort is None and time_limit is not None:
        return replace(limits, seconds=time_limit, by_work=False)
    seconds, most = seconds * EFFORTS[effort or "normal"], math.inf if time_limit is None else time_limit
    if solver.lower() not in _COUNTING:
        return replace(limits, seconds=min(seconds, most), by_work=False)
    return replace(limits, seconds=seconds, by_work=True, ends_at_s=time.monotonic() + most)


def require_of_engine(engine: str, solver: str, trees: int | None, scheduler: str) -> None:
    """Refuse options that the engine does not take.

    Raises
    ------
    InputError
        Naming the option.
    """
    if scheduler and engine != "greedy":
        raise InputError("only engine greedy takes it; add --engine greedy", path="command line", field="--scheduler")
    if solver != AUTO and engine not in _SOLVED:
        raise InputError(
            f"engine {engine} does not choose its solver by it; leave it out, or add --engine milp",
            path="command line", field="--solver",
        )  # fmt: skip
    if trees is not None and engine != "trees":
        raise InputError("only engine trees takes it; add --engine trees", path="command line", field="--trees")


def chosen_runtime(asked: str, topology: Topology | None) -> Runtime:
    """Runtime for XML by name; ``auto`` is RCCL on GPUs of AMD, else the executor, also where the machine is not known."""
    if asked != AUTO:
        return RUNTIMES[asked]
    return RCCL if topology is not None and topology.gpu.startswith(_AMD) else EXECUTOR


def runtime_named(asked: str, topology: Topology | None) -> Runtime:
    """Runtime for XML by a name that may be wrong; see `chosen_runtime`.

    Raises
    ------
    InputError
        If there is no such runtime.
    """
    if asked not in (AUTO, *RUNTIMES):
        known = ", ".join((AUTO, *RUNTIMES))
        raise InputError(f"found {asked!r}, use one of: {known}", path="command line", field="--runtime")
    return chosen_runtime(asked, topology)


def known_runtime(asked: str, topology: Topology | None) -> Runtime | PlanRuntime:
    """Runtime by a name that may be wrong, also MSCCL++.

    Raises
    ------
    InputError
        If there is no such runtime.
    """
    return MSCCLPP if asked == MSCCLPP.name else runtime_named(asked, topology)


def placement_of(name: str) -> CallPlacement:
    """Placement of a name: ``in``, ``out`` or ``both``.

    Raises
    ------
    InputError
        If it is none of them.
    """
    if name not in tuple(CallPlacement):
        raise InputError(
            f"found {name!r}, use one of: {', '.join(CallPlacement)}", path="command line", field="--placement"
        )
    return CallPlacement(name)

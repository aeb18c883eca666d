"""What engines and their strategies are worth: times of `auto`, of every engine alone, and of the best engine without each of its strategies.

The matrix is that of `scripts/bench ablate`: shipped machines, formulas, damaged and random ones, all under the same counted work.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from taccl_py.api.policy import RACE_LIMIT_S, budget, scaled_seconds
from taccl_py.collective import Kind
from taccl_py.errors import TacclError
from taccl_py.pipeline.views import search
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis import auto
from taccl_py.synthesis.engine import Demand, Events, Options
from taccl_py.synthesis.hierarchy import engine as hierarchy_engine
from taccl_py.synthesis.hierarchy import strategies as hierarchy_strategies
from taccl_py.synthesis.templates import engine as templates_engine
from taccl_py.synthesis.templates import library
from taccl_py.synthesis.trees import engine as trees_engine
from taccl_py.topology.catalog import load_topology
from taccl_py.topology.degrade import degraded
from taccl_py.topology.model import Topology

SHIPPED = (("ndv2", 1), ("ndv2", 2), ("ndv2", 4), ("dgx1", 1), ("dgx2", 1), ("dgx2", 2), ("ndv4", 1), ("ndv4", 2), ("ndv4", 4),
           ("ndv5", 1), ("ndv5", 2), ("ndv5", 4), ("mi300x", 1), ("mi300x", 2), ("mi250x", 1), ("mi250x", 2))  # fmt: skip
FORMULAS = ("ring:8", "torus:4x4", "torus:8x8", "torus:4x4,routed", "hypercube:4", "mesh:4x4", "full:8", "switch:16", "hpn:2",
            "dragonfly:1", "fattree:4", "twisted:4x8")  # fmt: skip
NUM_RANDOM = 20
KINDS = (Kind.ALLGATHER, Kind.ALLREDUCE, Kind.ALLTOALL, Kind.BROADCAST)
SIZES = (64 << 10, 1 << 20, 16 << 20, 256 << 20)
# `auto` may be slower than the best engine by so much; a strategy is worth its code where it saves so much in the mean.
SLOWER, WORTH = 0.005, 0.03


@dataclass(frozen=True)
class Instance:
    """One question of the matrix."""

    machine: str
    demand: Demand

    @property
    def name(self) -> str:
        """Machine, collective and size."""
        return f"{self.machine} {self.demand.kind} {int(self.demand.size_bytes) >> 10}KiB"


@dataclass(frozen=True)
class Measured:
    """Modelled times of an instance in us.

    Attributes
    ----------
    auto_us
        Of the race; the engines alone have the same effort.
    alone_us
        Of every engine, by name; those without an answer are left out.
    without_us
        Of the best engine without one of its strategies, by strategy; of those that the engine has for the demand.
    """

    auto_us: float
    alone_us: dict[str, float]
    without_us: dict[str, float]

    @property
    def best(self) -> str:
        """The fastest engine."""
        return min(self.alone_us, key=lambda engine: self.alone_us[engine])

    @property
    def gains(self) -> dict[str, float]:
        """Part of the time that is lost without the best engine, and without each of its strategies where another engine is no help."""
        best_us = self.alone_us[self.best]
        others_us = min((us for engine, us in self.alone_us.items() if engine != self.best), default=math.inf)
        lost = {self.best: others_us} | {row: min(us, others_us) for row, us in self.without_us.items()}
        return {row: us / best_us - 1 for row, us in lost.items()}


@dataclass
class Worth:
    """Gains of a row over the matrix: where it was tried, and where it saves anything."""

    tried: int = 0
    gains: list[float] = field(default_factory=list)

    def text(self, name: str) -> str:
        """One line of the table."""
        if not self.gains:
            return f"{name:44s} {self.tried:6d} {0:5d}"
        finite = [gain for gain in self.gains if gain < math.inf]
        mean = statistics.geometric_mean(1 + gain for gain in finite) - 1 if finite else math.inf
        alone = len(self.gains) - len(finite)
        return f"{name:44s} {self.tried:6d} {len(self.gains):5d} {alone:6d} {100 * mean:8.2f} {100 * max(finite, default=0.0):8.2f}"

    @property
    def is_worth_it(self) -> bool:
        """Whether it is the only answer somewhere, or saves enough in the mean of where it saves anything."""
        return bool(self.gains) and statistics.geometric_mean(1 + min(gain, 1e9) for gain in self.gains) - 1 >= WORTH


def matrix() -> Iterator[Instance]:
    """Instances: of every machine and collective one size, so that all sizes come as often."""
    for place, (name, machine) in enumerate(_machines()):
        for number, kind in enumerate(KINDS):
            yield Instance(name, Demand(machine, kind, float(SIZES[(place + number) % len(SIZES)])))


def _machines() -> Iterator[tuple[str, Topology]]:
    from taccl_py.topology.degrade import Degradation, LinkChoice, SlowPort
    from tests.random_machines import random_machine

    for name, nodes in SHIPPED:
        yield f"{name} x{nodes}", load_topology(name, nodes)
    for formula in FORMULAS:
        yield formula, load_topology(formula, None)
    nic = "node 1 ib3 *"
    for nodes, damage in itertools.product(
        (2, 4), (Degradation(slow_ports=(SlowPort(nic, 0.5),)), Degradation(missing_ports=(nic,)))
    ):
        yield f"ndv4 x{nodes} {damage.words()[0]}", degraded(load_topology("ndv4", nodes), damage)
    slow = Degradation(slow_ports=(SlowPort("node 0 rank 0 *", 0.75),))
    yield "switch:8 slow rank", degraded(load_topology("switch:8", None), slow)
    yield "dgx1 without 0-1", degraded(load_topology("dgx1", None), Degradation(missing=(LinkChoice(0, 1),)))
    for number in range(NUM_RANDOM):
        yield f"random{number}", random_machine(number)


def raced(demand: Demand, effort: str = "quick") -> Measured:
    """Times of an instance by `auto` and by every engine alone, without strategies; seconds of work each with effort ``quick``."""
    time_us = _timing(demand, effort)
    engines = dict.fromkeys(run.engine for run in auto.first_runs(demand))
    alone_us = {engine: us for engine in engines if (us := time_us(engine)) < math.inf}
    return Measured(time_us("auto"), alone_us, {})


def measured(demand: Demand, effort: str = "normal") -> Measured:
    """Times of an instance, also by the best engine without each of its strategies; some seconds to minutes of work."""
    found = raced(demand, effort)
    if found.best in _LISTS:
        time_us = _timing(demand, effort)
        seen = _seen(found.best, demand, time_us)
        found.without_us.update({f"{found.best}: {row}": _time_without(found.best, row, time_us) for row in seen})
    return found


def _timing(demand: Demand, effort: str) -> Callable[[str], float]:
    """Function that tells an engine's time for a demand, infinite where it has no answer."""
    seconds = scaled_seconds(RACE_LIMIT_S, demand.topology.num_ranks, ranged=False)
    limits = budget(Limits(workers=1), seconds, effort=effort, time_limit=None)

    def time_us(engine: str) -> float:
        try:
            return search(demand, engine, Options(limits=limits), None, Events()).schedule.makespan_us
        except TacclError:
            return math.inf

    return time_us


# Of the engines that try a list of strategies: which there are at an instance, and the search without one of them.
_HIERARCHY_ROWS = ("_gathers", "_tapers", "_triples", "_bundles", "_relays", "_exchanges", "_grids", "_halvings", "_sums",
                   "_broadcasts", "_shuttles", "_delegations")  # fmt: skip
_SIZES_ROW = "chunks of unequal size"
_MENDING_ROW = "plans of the whole machine"
_LISTS = ("hierarchy", "templates", "trees")


def _seen(engine: str, demand: Demand, time_us: Callable[[str], float]) -> list[str]:
    """Strategies that an engine has for a demand."""
    if engine == "templates":
        return [*dict.fromkeys(family(plan.name) for plan in library._plans(demand, lambda _us: True)), _SIZES_ROW]
    if engine == "trees":
        return [_SIZES_ROW]
    seen: dict[str, None] = {}
    with ExitStack() as patches:
        for row in _HIERARCHY_ROWS:
            patches.enter_context(_noted(row, seen))
        time_us(engine)
    return [*seen, _SIZES_ROW, _MENDING_ROW]


def _noted(row: str, seen: dict[str, None]) -> Any:
    original = getattr(hierarchy_strategies, row)

    def noting(*arguments: Any, **named: Any) -> Iterator[Any]:
        for strategy in original(*arguments, **named):
            seen[row.strip("_")] = None
            yield strategy

    return mock.patch.object(hierarchy_strategies, row, noting)


def family(plan: str) -> str:
    """Name of a template without its numbers, and what follows them."""
    words = re.sub(r"^\d+ ", "", plan.split(",")[0]).split()
    return " ".join(itertools.takewhile(lambda word: not re.search(r"\d", word), words)) or plan


def _time_without(engine: str, row: str, time_us: Callable[[str], float]) -> float:
    """Time of an engine without one of its strategies."""
    module = {"hierarchy": hierarchy_engine, "templates": templates_engine, "trees": trees_engine}[engine]
    if row == _SIZES_ROW:
        patch = mock.patch.object(module, "fit_to_size", lambda answer, *_, **__: answer)
    elif row == _MENDING_ROW:
        patch = mock.patch.object(module, "mended_schedules", return_value=[])
    elif engine == "hierarchy":
        patch = mock.patch.object(hierarchy_strategies, f"_{row}", return_value=())
    else:
        plans = library._plans
        patch = mock.patch.object(library, "_plans", lambda *asked: (p for p in plans(*asked) if family(p.name) != row))
    with patch:
        return time_us(engine)


def worths(found: list[Measured]) -> dict[str, Worth]:
    """What each row is worth, those that save most instances something first."""
    table: dict[str, Worth] = defaultdict(Worth)
    for one in found:
        for engine in one.alone_us:
            table[engine].tried += 1
        for row, gain in one.gains.items():
            table[row].tried += row not in one.alone_us
            if gain > 1e-9:
                table[row].gains.append(gain)
    return dict(sorted(table.items(), key=lambda item: (":" in item[0], item[0])))

"""Preferences of a sketch among equally fast schedules: TACCL's hyperedge policies and link-load strategies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from taccl_py.sketch.model import Policy, Strategy
from taccl_py.solvers.linear import LinearModel
from taccl_py.synthesis.models.task import ModelTask
from taccl_py.synthesis.plan import Plan
from taccl_py.synthesis.quotient import Quotient


@dataclass(frozen=True)
class Params:
    """Numbers of a sketch's policy.

    Attributes
    ----------
    policy_weight
        Weight of the policy against the makespan. Source: TACCL's code, mu.
    """

    policy_weight: float = 0.01


PARAMS = Params()


@dataclass(frozen=True)
class PolicyTerms:
    """Links of one node that a policy counts.

    Attributes
    ----------
    strategy
        Of the sketch.
    counted
        For every link orbit inside nodes under a uc policy: +1 to use few (uc-min), -1 to use many (uc-max).
    arcs_of
        Arcs of every link orbit inside nodes.
    """

    strategy: Strategy
    counted: Mapping[int, int]
    arcs_of: Mapping[int, tuple[int, ...]]

    @property
    def active(self) -> bool:
        """True if there is anything to prefer."""
        return bool(self.counted) or self.strategy in (Strategy.MINMAX, Strategy.MAXMIN)

    @staticmethod
    def of(quotient: Quotient) -> PolicyTerms:
        """Read the sketch of a problem."""
        problem = quotient.problem
        sketch, topology = problem.sketch, problem.topology
        arcs_of: dict[int, list[int]] = {}
        counted: dict[int, int] = {}
        if sketch is None:
            return PolicyTerms(Strategy.NONE, {}, {})
        for arc, index in enumerate(quotient.link.tolist()):
            link = topology.links[index]
            if not topology.is_inside(link):
                continue
            orbit = int(quotient.link_orbit[arc])
            arcs_of.setdefault(orbit, []).append(arc)
            ends = {topology.local_rank[link.src], topology.local_rank[link.dst]}
            groups = [group for group in sketch.switches if ends <= set(group.ranks)]
            policy = groups[min(topology.lane[index], len(groups) - 1)].policy if groups else Policy.FREE
            if policy is not Policy.FREE:
                counted[orbit] = 1 if policy is Policy.UC_MIN else -1
        return PolicyTerms(sketch.strategy, counted, {orbit: tuple(arcs) for orbit, arcs in arcs_of.items()})

    def value(self, task: ModelTask, plan: Plan) -> float:
        """Value of `integer_objective` for a given plan."""
        used = {int(task.quotient.link_orbit[arc]) for message in plan for arc in message.arcs}
        total = float(sum(sign for orbit, sign in self.counted.items() if orbit in used))
        if self.strategy in (Strategy.MINMAX, Strategy.MAXMIN):
            load = dict.fromkeys(self.arcs_of, 0)
            for message in plan:
                for arc in message.arcs:
                    orbit = int(task.quotient.link_orbit[arc])
                    if orbit in load:
                        load[orbit] += task.grid.alpha[arc] + task.grid.beta[arc]
            extreme = max if self.strategy is Strategy.MINMAX else min
            total += (1 if self.strategy is Strategy.MINMAX else -1) * extreme(load.values(), default=0)
        return total

    def linear_terms(self, model: LinearModel, task: ModelTask, x: Mapping[int, Any]) -> list[tuple[Any, float]]:
        """Objective terms for a routing MILP, weighted by TACCL's mu (in units of the smallest link cost)."""
        unit = PARAMS.policy_weight * min((task.grid.duration(a) for a in x), default=1)
        terms = []
        for orbit, sign in sorted(self.counted.items()):
            used = model.real(f"pair_{orbit}", 0.0, 1.0)
            arcs = [x[a] for a in self.arcs_of[orbit] if a in x]
            if sign > 0:
                for variable in arcs:
                    model.at_least([(used, 1.0), (variable, -1.0)], 0.0)
            else:
                model.at_most([(used, 1.0), *((variable, -1.0) for variable in arcs)], 0.0)
            terms.append((used, sign * unit))
        if self.strategy in (Strategy.MINMAX, Strategy.MAXMIN):
            terms.append(
                (
                    self._extreme_load(model, task, x),
                    PARAMS.policy_weight if self.strategy is Strategy.MINMAX else -PARAMS.policy_weight,
                )
            )
        return terms

    def _extreme_load(self, model: LinearModel, task: ModelTask, x: Mapping[int, Any]) -> Any:
        """Variable for the largest (minmax) or smallest (maxmin) load of a link inside a node."""
        extreme = model.real("extreme_load", 0.0, float(task.upper))
        for arcs in self.arcs_of.values():
            load = [(x[a], float(task.grid.alpha[a] + task.grid.beta[a])) for a in arcs if a in x]
            if self.strategy is Strategy.MINMAX:
                model.at_least([(extreme, 1.0), *((v, -c) for v, c in load)], 0.0)
            else:
                model.at_most([(extreme, 1.0), *((v, -c) for v, c in load)], 0.0)
        return extreme

    def integer_objective(self, model: Any, task: ModelTask, x: Mapping[int, Any]) -> Any:
        """Objective for CP-SAT once the makespan is fixed."""
        terms = []
        for orbit, sign in sorted(self.counted.items()):
            used = model.new_bool_var(f"pair{orbit}")
            arcs = [x[a] for a in self.arcs_of[orbit] if a in x]
            if sign > 0:
                for variable in arcs:
                    model.add_implication(variable, used)
            else:
                model.add_bool_or([*arcs, used.negated()])
            terms.append(sign * used)
        if self.strategy in (Strategy.MINMAX, Strategy.MAXMIN):
            extreme = model.new_int_var(0, task.upper, "extreme_load")
            for members in self.arcs_of.values():
                load = sum((task.grid.alpha[a] + task.grid.beta[a]) * x[a] for a in members if a in x)
                if self.strategy is Strategy.MINMAX:
                    model.add(extreme >= load)
                else:
                    model.add(extreme <= load)
            terms.append(extreme if self.strategy is Strategy.MINMAX else -1 * extreme)
        return sum(terms)

"""CP-SAT: sums of two nodes that reach everyone with one hop before, and two behind, one message of every rank to the other node.

Every rank holds one sum. ``x[s, v, t]``: the sum of rank v after t rounds has what rank s contributed, at most once. In a round a rank
adds what neighbours hold (``add``), or holds what one of them does instead (``copy``). Both nodes do the same:

* after one round ranks fall into groups, the sums of each of which make up the whole node's: every rank sends its sum across;
* each group's sums arrive around one *hub*, at the hub or next to it, whose neighbours pass on what they have;
* meanwhile the node's own sum has got to where the group's sums arrive, in parts: a receiver that holds no part of it lets go of
  what it holds (``keep`` is 0);
* so hubs have the sum of everything, and every rank is a hub or next to one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from taccl_py.solvers.cp_sat import import_cp_model, solve_cp
from taccl_py.solvers.limits import Limits


@dataclass(frozen=True, slots=True, order=True)
class SumStep:
    """Message of a rank to a neighbour in a round: added to what that holds, or in its place."""

    round: int
    src: int
    dst: int
    adds: bool


@dataclass(frozen=True, slots=True)
class NodeMeeting:
    """Message between two nodes, and the hub that its receiver passes it on to.

    Attributes
    ----------
    src, dst
        Sender in one node and receiver in the other, by their places.
    adds
        Whether it is added to what the receiver holds.
    hub
        To whom the receiver passes it on; itself, if it is one.
    """

    src: int
    dst: int
    adds: bool
    hub: int


@dataclass(frozen=True, slots=True)
class SumPlan:
    """An exchange of sums: rounds inside the nodes, and one message of every rank to the other node after the first round."""

    steps: tuple[SumStep, ...]
    meetings: tuple[NodeMeeting, ...]


def exchange_sums(neighbours: Sequence[Sequence[int]], rounds: int, groups: int, limits: Limits) -> SumPlan | None:
    """Find such an exchange; None where none is found.

    Parameters
    ----------
    neighbours
        From whom every rank of a node hears.
    rounds
        Rounds until the messages from the other node arrive.
    groups
        Number of groups, and of hubs.
    limits
        When to stop.
    """
    return _SumModel(neighbours, rounds, groups).solve(limits)


class _SumModel:
    """The model; letters as in the module's text."""

    def __init__(self, neighbours: Sequence[Sequence[int]], rounds: int, groups: int) -> None:
        self.model = import_cp_model().CpModel()
        self.neighbours, self.rounds, self.groups = neighbours, rounds, groups
        self.ranks = range(len(neighbours))
        self.steps: dict[SumStep, Any] = {}
        self.x = {(s, v, 0): self.model.new_constant(int(s == v)) for s in self.ranks for v in self.ranks}
        for t in range(rounds):
            for v in self.ranks:
                self._round(v, t)
        self.keep = [self._new() for _ in self.ranks]
        self.sends = [[self._new() for _ in range(groups)] for _ in self.ranks]
        self.hears = [[self._new() for _ in range(groups)] for _ in self.ranks]
        self.hub = [[self._new() for _ in range(groups)] for _ in self.ranks]
        self._groups()
        self._hubs()

    def solve(self, limits: Limits) -> SumPlan | None:
        outcome = solve_cp(self.model, limits)
        if not outcome.status.has_solution:
            return None

        def members(table: list[list[Any]], group: int) -> list[int]:
            return [rank for rank in self.ranks if outcome.value(table[rank][group])]

        meetings = []
        for group in range(self.groups):
            (hub,) = members(self.hub, group)
            for src, dst in zip(members(self.sends, group), members(self.hears, group), strict=True):
                meetings.append(NodeMeeting(src, dst, bool(outcome.value(self.keep[dst])), hub))
        steps = [step for step, used in self.steps.items() if outcome.value(used)]
        return SumPlan(_of_use(steps, meetings, self.rounds), tuple(meetings))

    def _new(self) -> Any:
        return self.model.new_bool_var("")

    def _both(self, one: Any, other: Any) -> Any:
        """Return a variable for the product of two."""
        both = self._new()
        self.model.add_implication(both, one)
        self.model.add_implication(both, other)
        self.model.add_bool_or([both, one.negated(), other.negated()])
        return both

    def _step(self, t: int, u: int, v: int, *, adds: bool) -> Any:
        return self.steps.setdefault(SumStep(t, u, v, adds), self._new())

    def _round(self, v: int, t: int) -> None:
        """A rank adds neighbours' sums to its own, or takes that of one instead; the first round only adds, which groups need."""
        copies = [self._step(t, u, v, adds=False) for u in self.neighbours[v]] if t else []
        adds = [self._step(t, u, v, adds=True) for u in self.neighbours[v]]
        stays = self._new()
        self.model.add_exactly_one([stays, *copies])
        for copy, add in product(copies, adds):
            self.model.add_implication(copy, add.negated())
        for s in self.ranks:
            heard = [self._both(used, self.x[s, u, t]) for u, used in zip(self.neighbours[v], adds, strict=True)]
            heard += [self._both(used, self.x[s, u, t]) for u, used in zip(self.neighbours[v], copies, strict=False)]
            self.x[s, v, t + 1] = self._new()
            self.model.add(self.x[s, v, t + 1] == sum([self._both(stays, self.x[s, v, t]), *heard]))

    def _groups(self) -> None:
        """Sums of each group make up the node's after one round; as many ranks hear from a group as it has."""
        for table in (self.sends, self.hears):
            for row in table:
                self.model.add_exactly_one(row)
        for group in range(self.groups):
            self.model.add(sum(row[group] for row in self.sends) == sum(row[group] for row in self.hears))
            for s in self.ranks:
                self._once(self._both(self.sends[u][group], self.x[s, u, 1]) for u in self.ranks)

    def _hubs(self) -> None:
        """One hub for each group, that hears or is next to all that hear of it, and gets the node's own sum as well."""
        for group in range(self.groups):
            self.model.add_exactly_one(row[group] for row in self.hub)
            for v in self.ranks:
                near = [self.hub[u][group] for u in (v, *self.neighbours[v])]
                self.model.add_bool_or([self.hears[v][group].negated(), *near])
                self.model.add_implication(self.hub[v][group], self.hears[v][group])
            of_group = [self._both(self.hears[v][group], self.keep[v]) for v in self.ranks]
            for s in self.ranks:
                self._once(self._both(of_group[v], self.x[s, v, self.rounds]) for v in self.ranks)
        for v in self.ranks:
            self.model.add_bool_or([h for u in (v, *self.neighbours[v]) for h in self.hub[u]])

    def _once(self, terms: Iterable[Any]) -> None:
        self.model.add_exactly_one(list(terms))


def _of_use(steps: Sequence[SumStep], meetings: Sequence[NodeMeeting], rounds: int) -> tuple[SumStep, ...]:
    """Steps without those whose sums nobody needs later."""
    needed = {meeting.dst for meeting in meetings if meeting.adds}
    kept: list[SumStep] = []
    for t in reversed(range(rounds)):
        if t == 0:
            needed |= {meeting.src for meeting in meetings}
        into = [step for step in steps if step.round == t and step.dst in needed]
        kept += into
        needed -= {step.dst for step in into if not step.adds}
        needed |= {step.src for step in into}
    return tuple(sorted(kept))

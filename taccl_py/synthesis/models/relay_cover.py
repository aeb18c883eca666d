"""Choice of messages between nodes that serve all pairs of ranks in time, where ports between nodes carry one message each.

Pairs are givers g and takers t; ``x[m]``: message m is sent. A pair is served by a message that starts when its sender has been told
by g and after which t can still be told:

    sum over m that serve (g, t) of x[m] >= 1    for all g, t
    sum over m of a group of x[m] <= 1           for all groups of messages that exclude each other

CP-SAT finds a choice at once where there is one; that there is none is proved by HiGHS much sooner.
"""

from __future__ import annotations

from dataclasses import dataclass

from taccl_py.solvers.cp_sat import Status, import_cp_model, solve_cp
from taccl_py.solvers.limits import Limits
from taccl_py.solvers.linear import LinearModel


@dataclass(frozen=True)
class Params:
    """Numbers of the choice of relays.

    Attributes
    ----------
    cp_work
        Deterministic time after which CP-SAT leaves it to HiGHS to prove that there is no choice. Guess.
    """

    cp_work: float = 0.5


PARAMS = Params()


@dataclass(frozen=True, slots=True)
class Relay:
    """A message from one node to another.

    Attributes
    ----------
    link
        What it crosses.
    start_us
        When it starts.
    told
        Givers who can have told its sender by then.
    reached
        Takers who can be told in time by its receiver.
    """

    link: int
    start_us: float
    told: frozenset[int]
    reached: frozenset[int]


@dataclass(frozen=True)
class RelayCover:
    """Messages between two nodes to choose from, so that every giver reaches every taker.

    Attributes
    ----------
    givers, takers
        Ranks; every giver has something for every taker.
    relays
        Messages that could be sent.
    groups
        Messages, by number, of which at most one can be sent.
    """

    givers: tuple[int, ...]
    takers: tuple[int, ...]
    relays: tuple[Relay, ...]
    groups: tuple[tuple[int, ...], ...]

    def serving(self, giver: int, taker: int) -> list[int]:
        """Messages that serve a pair."""
        return [i for i, relay in enumerate(self.relays) if giver in relay.told and taker in relay.reached]


def choose_relays(cover: RelayCover, limits: Limits) -> tuple[Relay, ...] | None:
    """Messages that serve all pairs; None where none are found with little work."""
    return _chosen(cover, limits)[0]


def has_no_choice(cover: RelayCover, limits: Limits) -> bool:
    """True if it is proved that no messages serve all pairs."""
    relays, status = _chosen(cover, limits)
    if relays is not None or status is Status.INFEASIBLE:
        return relays is None
    model = LinearModel("relays")
    x = [model.binary(f"x{i}") for i in range(len(cover.relays))]
    for group in cover.groups:
        model.at_most([(x[i], 1.0) for i in group], 1.0)
    for giver in cover.givers:
        for taker in cover.takers:
            model.at_least([(x[i], 1.0) for i in cover.serving(giver, taker)], 1.0)
    model.minimize([])
    return model.solve("highs", limits).status is Status.INFEASIBLE


def _chosen(cover: RelayCover, limits: Limits) -> tuple[tuple[Relay, ...] | None, Status]:
    model = import_cp_model().CpModel()
    x = [model.new_bool_var(f"x{i}") for i in range(len(cover.relays))]
    for group in cover.groups:
        model.add_at_most_one(x[i] for i in group)
    for giver in cover.givers:
        for taker in cover.takers:
            serving = cover.serving(giver, taker)
            if not serving:
                return None, Status.INFEASIBLE
            model.add_bool_or([x[i] for i in serving])
    outcome = solve_cp(model, limits.within(limits.seconds, PARAMS.cp_work))
    if not outcome.status.has_solution:
        return None, outcome.status
    return tuple(relay for relay, used in zip(cover.relays, x, strict=True) if outcome.value(used)), outcome.status

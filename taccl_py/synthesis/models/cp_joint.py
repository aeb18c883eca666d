"""CP-SAT: routing, order, contiguity and times in one model.

Letters: arcs ``a`` enter states ``q`` and leave states ``f``; ``p`` is the state that a's predecessor enters. All times are
units of a `Grid`.

* ``x[a]``: arc a is used.
* ``g[a]``: a travels in one message with its predecessor (the chunk just before its own on the same link).
* ``finish[q]``: when the slowest of link and ports is done with the chunk's own bytes;
  ``begin[q] = finish[q] - (alpha if not joined) - beta``.
* ``message[q]``: start of the message that brings q; ``arrive[q]``: when all of that message is there.

A message of n neighbours is n pieces back to back, the first of which pays alpha; all of them arrive with the last.
The optional-interval formulation needs no big-M; without joining it is the job-shop-like model with one interval for each
arc and no-overlap on every link and port.

With a `Focus` the model is a neighbourhood of a plan: only the states in focus may be entered anew; all other arcs, their
joins and their order among themselves stay, while times stay free.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any

from taccl_py.grouping import grouped
from taccl_py.solvers.cp_sat import SolverOutcome, import_cp_model, solve_cp
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.models.policy import PolicyTerms
from taccl_py.synthesis.models.task import ModelTask
from taccl_py.synthesis.plan import OrbitMessage, Plan


@dataclass(frozen=True)
class Focus:
    """Neighbourhood of a plan.

    Attributes
    ----------
    plan
        The plan, timed on the grid.
    free
        States that may be entered by any arc.
    regroup
        Whether joins of all arcs are open; otherwise only those that touch a free state.
    """

    plan: Plan
    free: frozenset[int]
    regroup: bool = False


@dataclass
class _JointVariables:
    x: dict[int, Any]
    g: dict[int, Any]
    decided: frozenset[int]  # arcs whose x is constant
    settled: frozenset[int]  # arcs whose g is constant
    arrive: list[Any]
    finish: list[Any]
    begin: list[Any]
    message: list[Any]
    makespan: Any


def solve_joint(
    task: ModelTask,
    limits: Limits,
    hint: Plan | None,
    on_progress: Callable[[float], None] | None = None,
    focus: Focus | None = None,
    policy: PolicyTerms | None = None,
) -> tuple[Plan | None, SolverOutcome]:
    """Best plan found, or None, and how the search ended.

    The makespan is minimized; in a neighbourhood, sooner arrivals count among equal makespans, and with a policy the makespan
    is only kept to ``task.upper`` and the policy is optimized.
    """
    model = import_cp_model().CpModel()
    v = _variables(model, task, focus)
    _every_wanted_state_is_entered_once(model, task, v)
    _chunks_are_sent_after_they_arrive(model, task, v)
    _messages_are_pieces_back_to_back(model, task, v)
    pieces = _pieces(model, task, v)
    _links_and_ports_serve_one_at_a_time(model, task, v, pieces)
    _own_chunks_go_first(model, task, v)
    if focus is not None:
        _the_rest_keeps_its_order(model, task, focus, pieces)
    _minimize(model, task, v, focus, policy)
    if hint is not None:
        _add_hint(model, task, v, hint)
    outcome = solve_cp(model, limits, on_progress)
    plan = _plan(task, v, outcome) if outcome.status.has_solution else None
    return plan, outcome


def _variables(model: Any, task: ModelTask, focus: Focus | None) -> _JointVariables:
    q, upper = task.quotient, task.upper
    arrive: list[Any] = []
    finish: list[Any] = []
    begin: list[Any] = []
    message: list[Any] = []
    for state in range(q.num_states):
        earliest = task.routes.earliest[state]
        if q.source[state]:
            arrive.append(0)
            finish.append(0)
            begin.append(0)
            message.append(0)
            continue
        arrive.append(model.new_int_var(min(earliest, upper), upper, f"arrive{state}"))
        finish.append(model.new_int_var(0, upper, f"finish{state}"))
        begin.append(model.new_int_var(0, upper, f"begin{state}"))
        message.append(model.new_int_var(0, upper, f"message{state}") if task.predecessor else begin[-1])
    decisions = _decisions(model, task, focus)
    makespan = model.new_int_var(task.lower, upper, "makespan")
    return _JointVariables(*decisions, arrive, finish, begin, message, makespan)


def _decisions(
    model: Any, task: ModelTask, focus: Focus | None
) -> tuple[dict[int, Any], dict[int, Any], frozenset[int], frozenset[int]]:
    """Use and join literals, and arcs for which each is constant; outside of the focus they are constants, and arcs that the plan does not use are left out."""
    q = task.quotient
    heads = q.head.tolist()
    if focus is None:
        x = {a: model.new_bool_var(f"x{a}") for a in range(q.num_arcs) if not q.source[heads[a]]}
        g = {a: model.new_bool_var(f"g{a}") for a, before in task.predecessor.items() if a in x and before in x}
        return x, g, frozenset(), frozenset()
    kept = {arc for planned in focus.plan for arc in planned.arcs if heads[arc] not in focus.free}
    joined = {
        arc for planned in focus.plan for arc in planned.arcs if task.predecessor.get(arc, -1) in set(planned.arcs)
    }
    always = model.new_constant(1)
    x = {arc: always for arc in sorted(kept)}
    for state in sorted(focus.free):
        x |= {a: model.new_bool_var(f"x{a}") for a in task.routes.into[state]}
    g = {}
    settled = set()
    for a, before in task.predecessor.items():
        if a not in x or before not in x:
            continue
        if focus.regroup or a not in kept or before not in kept:
            g[a] = model.new_bool_var(f"g{a}")
        elif a in joined:
            g[a] = always
            settled.add(a)
    return x, g, frozenset(kept), frozenset(settled)


def _every_wanted_state_is_entered_once(model: Any, task: ModelTask, v: _JointVariables) -> None:
    """Sum of x over the arcs into a state is 1 if the state is wanted, at most 1 otherwise."""
    q = task.quotient
    for state, arcs in enumerate(task.routes.into):
        entering = [v.x[a] for a in arcs if a in v.x]
        if q.source[state] or (not entering and not q.required[state]):
            continue
        if q.required[state]:
            model.add_exactly_one(entering)
            model.add(v.makespan >= v.arrive[state])
        else:
            model.add_at_most_one(entering)


def _chunks_are_sent_after_they_arrive(model: Any, task: ModelTask, v: _JointVariables) -> None:
    """x[a] implies message[q] >= arrive[f]; a relay state must itself be entered."""
    q = task.quotient
    for a, used in v.x.items():
        tail, head = int(q.tail[a]), int(q.head[a])
        model.add(v.message[head] >= v.arrive[tail]).only_enforce_if(used)
        if not q.source[tail] and not q.required[tail]:
            model.add_bool_or([*(v.x[b] for b in task.routes.into[tail] if b in v.x), used.negated()])


def _messages_are_pieces_back_to_back(model: Any, task: ModelTask, v: _JointVariables) -> None:
    """Relate begin, finish, message and arrival of every used arc (identities in the module's text)."""
    q, grid = task.quotient, task.grid
    for a, used in v.x.items():
        head = int(q.head[a])
        model.add(v.arrive[head] >= v.finish[head] + grid.latency[a]).only_enforce_if(used)
        if not task.predecessor:
            continue
        joined = v.g.get(a)
        alone = [used] if joined is None else [used, joined.negated()]
        model.add(v.message[head] == v.begin[head]).only_enforce_if(alone)
        if joined is None:
            continue
        before = task.predecessor[a]
        state = int(q.head[before])
        model.add_implication(joined, used)
        model.add_implication(joined, v.x[before])
        model.add(v.begin[head] == v.finish[state]).only_enforce_if(joined)
        model.add(v.message[head] == v.message[state]).only_enforce_if(joined)
        model.add(v.arrive[head] == v.arrive[state]).only_enforce_if(joined)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Use of a link or port by an arc: its interval and when that begins and ends, its length, and what is saved of that if it is joined."""

    interval: Any
    begin: Any
    end: Any
    units: int
    saved: int


def _pieces(model: Any, task: ModelTask, v: _JointVariables) -> dict[int, dict[int, _Piece]]:
    """Pieces on every link and port, by arc.

    A port that is faster than the link, or a link that is faster than the port, is taken for the whole of a message from its start on, as in
    schedules: there a piece begins when the one before it ends, and not when it begins on the slowest of them.
    """
    q, grid = task.quotient, task.grid
    users: dict[int, dict[int, _Piece]] = {}
    placed: set[int] = set()

    def place(a: int) -> None:
        if a in placed:
            return
        placed.add(a)
        used, begin, finish, joined = v.x[a], v.begin[int(q.head[a])], v.finish[int(q.head[a])], v.g.get(a)
        whole = grid.alpha[a] + grid.beta[a]
        size = whole if joined is None else whole - grid.alpha[a] * joined
        main = model.new_optional_interval_var(begin, size, finish, used, f"piece{a}")
        for resource, units, more in zip(q.resources[a], grid.occupancy[a], grid.added[a], strict=True):
            saved = 0 if joined is None else units - more
            if (units, more) == (whole, grid.beta[a]):
                piece = _Piece(main, begin, finish, units, saved)
            elif joined is None or a in v.settled:
                start = begin
                if joined is not None:
                    place(task.predecessor[a])
                    start = users[resource][task.predecessor[a]].end
                interval = model.new_optional_fixed_size_interval_var(start, units - saved, used, f"port{a}")
                piece = _Piece(interval, start, start + units - saved, units, saved)
            else:
                start, end = (
                    model.new_int_var(0, task.upper + units, f"{name}{a},{resource}") for name in ("from", "to")
                )
                interval = model.new_optional_interval_var(start, units - saved * joined, end, used, f"port{a}")
                piece = _Piece(interval, start, end, units, saved)
            users.setdefault(resource, {})[a] = piece

    depths = {a: _depth(task.predecessor, v.settled, a) if a in v.settled else 0 for a in v.x}
    for a in sorted(v.x, key=depths.__getitem__):  # settled pieces behind settled ones before them
        place(a)
    return users


def _links_and_ports_serve_one_at_a_time(
    model: Any, task: ModelTask, v: _JointVariables, pieces: Mapping[int, Mapping[int, _Piece]]
) -> None:
    """No two pieces overlap on a link or port, and each of them is busy before the makespan for all that it carries."""
    q = task.quotient
    for sharing in pieces.values():
        for a, piece in sharing.items():
            begin, joined = v.begin[int(q.head[a])], v.g.get(a)
            if joined is not None and a not in v.settled and piece.begin is not begin:
                model.add(piece.begin == begin).only_enforce_if([v.x[a], joined.negated()])
                model.add(piece.begin == sharing[task.predecessor[a]].end).only_enforce_if(joined)
        if len(sharing) < 2:
            continue
        model.add_no_overlap([piece.interval for piece in sharing.values()])
        # Not above the lower bound: a link that is not used at all says nothing.
        first = min(task.lower, *(task.routes.earliest[int(q.tail[a])] for a in sharing))
        load = [piece.units * v.x[a] for a, piece in sharing.items()]
        load += [-piece.saved * v.g[a] for a, piece in sharing.items() if piece.saved]
        model.add(v.makespan >= first + sum(load))


def _own_chunks_go_first(model: Any, task: ModelTask, v: _JointVariables) -> None:
    """On a link between nodes the sender's own chunks start no later than those that it relays (sketch own_first)."""
    for own, other in task.routes.own_first_pairs:
        if own not in v.x or other not in v.x:
            continue
        head_own, head_other = int(task.quotient.head[own]), int(task.quotient.head[other])
        model.add(v.message[head_other] >= v.message[head_own]).only_enforce_if([v.x[own], v.x[other]])


def _the_rest_keeps_its_order(
    model: Any, task: ModelTask, focus: Focus, pieces: Mapping[int, Mapping[int, _Piece]]
) -> None:
    """Arcs outside of the focus follow each other on every link and port as they do in the plan."""
    q, grid = task.quotient, task.grid
    last: dict[int, tuple[_Piece, int]] = {}
    for planned in focus.plan:
        for a in planned.arcs:
            if int(q.head[a]) in focus.free:
                continue
            for resource, more in zip(q.resources[a], grid.added[a], strict=True):
                piece = pieces[resource][a]
                if resource in last:
                    before, busy = last[resource]
                    model.add(piece.begin >= before.begin + busy)
                last[resource] = (piece, more)


def _minimize(model: Any, task: ModelTask, v: _JointVariables, focus: Focus | None, policy: PolicyTerms | None) -> None:
    if policy is not None:
        model.minimize(policy.integer_objective(model, task, v.x))
    elif focus is None or not focus.free:
        model.minimize(v.makespan)
    else:
        wanted = [v.arrive[state] for state in range(task.quotient.num_states) if task.quotient.required[state]]
        model.minimize(len(wanted) * v.makespan + sum(wanted))


def _add_hint(model: Any, task: ModelTask, v: _JointVariables, hint: Plan) -> None:
    q, grid = task.quotient, task.grid
    used = {arc for planned in hint for arc in planned.arcs}
    for a, literal in v.x.items():
        if a not in v.decided:
            model.add_hint(literal, int(a in used))
    joined = set()
    for planned in hint:
        members = set(planned.arcs)
        clock = round(planned.start)
        for a in sorted(planned.arcs, key=lambda arc: _depth(task.predecessor, members, arc)):
            head = int(q.head[a])
            follows = task.predecessor.get(a) in members and a in v.g
            if follows:
                joined.add(a)
            else:
                clock += grid.alpha[a] if clock > round(planned.start) else 0
            start = clock
            clock = start + grid.beta[a] + (0 if follows else grid.alpha[a])
            if not q.source[head]:
                model.add_hint(v.begin[head], start)
                model.add_hint(v.finish[head], clock)
                model.add_hint(v.arrive[head], round(planned.end))
                if task.predecessor:
                    model.add_hint(v.message[head], round(planned.start))
    for a, literal in v.g.items():
        if a not in v.settled:
            model.add_hint(literal, int(a in joined))
    model.add_hint(v.makespan, min(task.upper, round(max((b.end for b in hint), default=0))))


def _depth(predecessor: Mapping[int, int], members: Container[int], arc: int) -> int:
    depth = 0
    while predecessor.get(arc) in members:
        arc = predecessor[arc]
        depth += 1
    return depth


def _plan(task: ModelTask, v: _JointVariables, outcome: SolverOutcome) -> Plan:
    q = task.quotient
    messages = grouped(
        ((int(q.link_orbit[a]), outcome.value(v.message[int(q.head[a])])), a)
        for a, used in sorted(v.x.items())
        if outcome.value(used)
    )
    return tuple(
        OrbitMessage(tuple(arcs), float(start), float(max(outcome.value(v.arrive[int(q.head[a])]) for a in arcs)))
        for (_, start), arcs in sorted(messages.items(), key=lambda item: (item[0][1], item[0][0]))
    )

"""CP-SAT: messages of pieces of any size, each link with a few messages, whose routes, contents, order and times are one model.

Letters: ``p`` is a piece, ``l`` a link, ``k`` a place among the messages of a link.

* ``y[p, l, k]``: message k of link l carries piece p on its way from those who hold it to those who want it.
* ``g[p, l, k]``: it carries a partial sum of p towards the rank at which the sum is completed, its owner.
* ``own[p, r]``: rank r owns the sum p.
* ``start[l, k]``, ``end[l, k]``: when the message starts and arrives; it pays alpha once, whatever it carries.
* ``arrive[p, r]``: when all of p is at rank r; ``ready[p, r]``: when what r adds to its part of the sum is.

Copies enter a rank at most once, and partial sums leave it at most once, so both form trees, as all messages take time. Each link and port
serves one message at a time. Costs are whole units, rounded up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from taccl_py.grouping import by_number, grouped
from taccl_py.solvers.cp_sat import Status, import_cp_model, solve_cp
from taccl_py.solvers.limits import Limits
from taccl_py.topology.model import Topology
from taccl_py.units import BYTES_PER_MB
from taccl_py.work import count_work

# Links that are priced in the time in which a literal of the model is made.
_BUILDING = 4


@dataclass(frozen=True)
class MessagePiece:
    """Bytes that move as one.

    Attributes
    ----------
    size_bytes
        How many.
    terms
        Ranks that hold each term of the sum; one term for what is copied.
    wants
        Ranks to which it must come.
    """

    size_bytes: int
    terms: tuple[tuple[int, ...], ...]
    wants: tuple[int, ...]

    @property
    def is_sum(self) -> bool:
        """True if contributions are added."""
        return len(self.terms) > 1

    @property
    def holders(self) -> frozenset[int]:
        """Ranks that hold a term."""
        return frozenset(rank for term in self.terms for rank in term)


@dataclass(frozen=True, slots=True)
class CarriedPiece:
    """A piece in a message: copied, or a partial sum."""

    piece: int
    adds: bool


@dataclass(frozen=True, slots=True)
class TimedLoad:
    """A message of a plan: its link, its start in microseconds, and what it carries."""

    link: int
    start_us: float
    carried: tuple[CarriedPiece, ...]


@dataclass(frozen=True)
class MessageOutcome:
    """Plan that a solve found, and whether nothing of its class is faster; no plan where none was found in time."""

    loads: tuple[TimedLoad, ...] | None
    is_proved: bool


@dataclass
class _MessageVariables:
    y: dict[tuple[int, int, int], Any] = field(default_factory=dict)
    g: dict[tuple[int, int, int], Any] = field(default_factory=dict)
    own: dict[tuple[int, int], Any] = field(default_factory=dict)
    used: dict[tuple[int, int], Any] = field(default_factory=dict)
    start: dict[tuple[int, int], Any] = field(default_factory=dict)
    end: dict[tuple[int, int], Any] = field(default_factory=dict)
    arrive: dict[tuple[int, int], Any] = field(default_factory=dict)
    ready: dict[tuple[int, int], Any] = field(default_factory=dict)
    makespan: Any = None


@dataclass(frozen=True)
class MessageTask:
    """Pieces, the machine, and a plan to begin with.

    Attributes
    ----------
    topology, pieces
        The machine and what must move.
    hint
        A plan.
    lower_us, upper_us
        Known bounds on the time.
    units
        Units of time up to the upper bound.
    more
        Messages that a link may have beyond those of the plan.
    """

    topology: Topology
    pieces: Sequence[MessagePiece]
    hint: Sequence[TimedLoad]
    lower_us: float
    upper_us: float
    units: int
    more: int


def solve_messages(task: MessageTask, free: Collection[int] | None, limits: Limits) -> MessageOutcome:
    """Fastest plan that is found.

    Parameters
    ----------
    task
        What moves, and the plan to begin with.
    free
        Pieces that may be sent anew, where all others keep their messages; None is all of them.
    limits
        When to stop.
    """
    model = _MessageModel(task, free)
    outcome = solve_cp(model.model, limits)
    if not outcome.status.has_solution:
        return MessageOutcome(None, is_proved=False)
    return MessageOutcome(model.loads(outcome.value), free is None and outcome.status is Status.OPTIMAL)


class _MessageModel:
    """The model; letters as in the module's text."""

    def __init__(self, task: MessageTask, free: Collection[int] | None) -> None:
        self.model = import_cp_model().CpModel()
        topology, pieces, more = task.topology, task.pieces, task.more
        self.ends = [(link.src, link.dst) for link in topology.links]
        self.topology, self.pieces, self._scale = topology, pieces, task.units / task.upper_us
        self._into = by_number(topology.num_ranks, ((dst, link) for link, (_, dst) in enumerate(self.ends)))
        self._out = by_number(topology.num_ranks, ((src, link) for link, (src, _) in enumerate(self.ends)))
        hinted = sorted(task.hint, key=lambda load: (load.start_us, load.link))
        self._hinted = by_number(len(self.ends), ((load.link, load) for load in hinted))
        self._clock = _PlanClock(self, task.hint)
        self._upper = self._clock.end
        self._places = [len(loads) + (more if free is None or loads else 1) for loads in self._hinted]
        self._slots = [(link, k) for link, count in enumerate(self._places) for k in range(count)]
        self._free = frozenset(range(len(pieces)) if free is None else free)
        self.v = _MessageVariables(
            makespan=self.model.new_int_var(min(int(task.lower_us * self._scale), self._upper), self._upper, "makespan")
        )
        self._messages()
        for number, piece in enumerate(pieces):
            if piece.is_sum:
                self._gathered(number, piece)
            self._copied(number, piece)
        self._messages_carry_something()
        self._resources_serve_one_at_a_time()
        count_work("priced", _BUILDING * (len(self.v.y) + len(self.v.g)))
        self.model.minimize(self.v.makespan)
        self._hint()

    def _messages(self) -> None:
        for slot in self._slots:
            self.v.used[slot] = self.model.new_bool_var(f"used{slot}")
            self.v.start[slot] = self.model.new_int_var(0, self._upper, f"start{slot}")
            self.v.end[slot] = self.model.new_int_var(0, self._upper, f"end{slot}")
            link, k = slot
            if k:
                self.model.add_implication(self.v.used[slot], self.v.used[link, k - 1])
                self.model.add(self.v.start[link, k - 1] <= self.v.start[slot])

    def _literals(self, table: dict[tuple[int, int, int], Any], number: int, links: Sequence[int]) -> list[Any]:
        """Literals of a piece on some links; those of a piece that stays as it is are constants."""
        adds = table is self.v.g
        found = []
        for link in links:
            loads = self._hinted[link]
            for k in range(self._places[link]):
                key = (number, link, k)
                is_sent = k < len(loads) and CarriedPiece(number, adds) in loads[k].carried
                if key not in table and number in self._free:
                    table[key] = self.model.new_bool_var(f"{'g' if adds else 'y'}{key}")
                elif key not in table and is_sent:
                    table[key] = self.model.new_constant(1)
                if key in table:
                    found.append(table[key])
        return found

    def _gathered(self, number: int, piece: MessagePiece) -> None:
        """Every term leaves one of its holders once, or its holder is the owner; what relays only passes on what comes."""
        model, v = self.model, self.v
        holders = piece.holders
        self._owned(number, piece)
        leaving: dict[int, list[Any]] = {}
        for rank in range(self.topology.num_ranks):
            leaving[rank] = self._literals(v.g, number, self._out[rank])
            v.ready[number, rank] = model.new_int_var(0, self._upper, f"ready{number},{rank}")
        for rank in range(self.topology.num_ranks):
            own = [v.own[number, rank]] if (number, rank) in v.own else []
            model.add_at_most_one([*leaving[rank], *own])
        for term in piece.terms:
            owners = [v.own[number, rank] for rank in term if (number, rank) in v.own]
            model.add_exactly_one([*(one for rank in term for one in leaving[rank]), *owners])
        for (p, link, k), carries in list(v.g.items()):
            if p != number:
                continue
            src, dst = self.ends[link]
            model.add(v.ready[p, dst] >= v.end[link, k]).only_enforce_if(carries)
            model.add(v.start[link, k] >= v.ready[p, src]).only_enforce_if(carries)
            # What comes to a rank goes on from there.
            on = [*leaving[dst], *([v.own[p, dst]] if (p, dst) in v.own else [])]
            model.add_bool_or([*on, carries.negated()])
            if src not in holders:
                model.add_bool_or([*self._literals(v.g, p, self._into[src]), carries.negated()])

    def _owned(self, number: int, piece: MessagePiece) -> None:
        """One rank owns the sum: who alone wants it, or else any."""
        model, is_open = self.model, number in self._free and len(piece.wants) > 1
        settled = None if is_open else self._owner_of(number, piece)
        candidates = range(self.topology.num_ranks) if len(piece.wants) > 1 else piece.wants
        for rank in candidates:
            self.v.own[number, rank] = (
                model.new_bool_var(f"own{number},{rank}") if is_open else model.new_constant(int(rank == settled))
            )
        model.add_exactly_one(self.v.own[number, rank] for rank in candidates)

    def _owner_of(self, number: int, piece: MessagePiece) -> int:
        """Owner of a sum in the plan: where partial sums come to and do not leave."""
        adding = [
            self.ends[load.link]
            for loads in self._hinted
            for load in loads
            if CarriedPiece(number, True) in load.carried
        ]
        sources = {src for src, _ in adding}
        return next((dst for _, dst in adding if dst not in sources), piece.wants[0])

    def _copied(self, number: int, piece: MessagePiece) -> None:
        """Whoever wants a piece gets it once, from a rank that has it by then."""
        model, v = self.model, self.v
        if piece.is_sum and len(piece.wants) == 1:
            want = piece.wants[0]
            model.add(v.makespan >= v.ready[number, want])
            return
        holders = frozenset() if piece.is_sum else piece.holders
        entering: dict[int, list[Any]] = {}
        for rank in range(self.topology.num_ranks):
            if rank in holders:
                continue
            v.arrive[number, rank] = model.new_int_var(0, self._upper, f"arrive{number},{rank}")
            entering[rank] = self._literals(v.y, number, self._into[rank])
            if piece.is_sum:
                own = v.own[number, rank]
                entering[rank].append(own)
                model.add(v.arrive[number, rank] >= v.ready[number, rank]).only_enforce_if(own)
            if rank in piece.wants:
                model.add_exactly_one(entering[rank])
                model.add(v.makespan >= v.arrive[number, rank])
            else:
                model.add_at_most_one(entering[rank])
        for (p, link, k), carries in list(v.y.items()):
            if p != number:
                continue
            src, dst = self.ends[link]
            model.add(v.arrive[p, dst] >= v.end[link, k]).only_enforce_if(carries)
            if src in holders:
                continue
            model.add(v.start[link, k] >= v.arrive[p, src]).only_enforce_if(carries)
            model.add_bool_or([*entering[src], carries.negated()])

    def _messages_carry_something(self) -> None:
        """A message is used if it carries a piece; it carries either copies or partial sums."""
        carried: dict[tuple[int, int], tuple[list[Any], list[Any]]] = {slot: ([], []) for slot in self._slots}
        self._adding: dict[tuple[int, int], Any] = {}
        for adds, table in ((0, self.v.y), (1, self.v.g)):
            for (_, link, k), literal in table.items():
                carried[link, k][adds].append(literal)
        for slot, (copies, sums) in carried.items():
            self.model.add_bool_or([*copies, *sums, self.v.used[slot].negated()])
            for literal in (*copies, *sums):
                self.model.add_implication(literal, self.v.used[slot])
            if copies and sums:
                self._adding[slot] = adds = self.model.new_bool_var(f"adds{slot}")
                for literal in copies:
                    self.model.add_implication(literal, adds.negated())
                for literal in sums:
                    self.model.add_implication(literal, adds)

    def _resources_serve_one_at_a_time(self) -> None:
        """No two messages overlap on a link or port, each as long as alpha and its bytes take there."""
        carried: dict[tuple[int, int], list[tuple[int, Any]]] = {slot: [] for slot in self._slots}
        for table in (self.v.y, self.v.g):
            for (p, link, k), literal in table.items():
                carried[link, k].append((p, literal))
        intervals: dict[int, list[Any]] = {}
        loads: dict[int, list[Any]] = {}
        self._spans: dict[tuple[tuple[int, int], tuple[float, float]], tuple[Any, Any]] = {}
        for slot in self._slots:
            made: dict[tuple[float, float], Any] = {}
            latency = self.units_of(self.topology.links[slot[0]].latency_us)
            for resource in self.topology.resources_of[slot[0]]:
                cost = self.topology.resource_cost[resource]
                length = self.units_of(cost[0]) * self.v.used[slot] + sum(
                    self.units_of(cost[1] * self.pieces[p].size_bytes / BYTES_PER_MB) * literal
                    for p, literal in carried[slot]
                )
                if cost not in made:
                    busy = self.model.new_int_var(0, self._upper, f"busy{slot},{resource}")
                    done = self.model.new_int_var(0, self._upper, f"done{slot},{resource}")
                    self.model.add(busy == length)
                    self._spans[slot, cost] = busy, done
                    made[cost] = self.model.new_optional_interval_var(
                        self.v.start[slot], busy, done, self.v.used[slot], f"message{slot},{resource}"
                    )
                    self.model.add(self.v.end[slot] >= done + latency).only_enforce_if(self.v.used[slot])
                intervals.setdefault(resource, []).append(made[cost])
                loads.setdefault(resource, []).append(length)
        for resource, sharing in intervals.items():
            self.model.add_no_overlap(sharing)
            self.model.add(self.v.makespan >= sum(loads[resource]))

    def units_of(self, time_us: float) -> int:
        return -int(-time_us * self._scale // 1)

    def _hint(self) -> None:
        """Values of all variables in the plan."""
        v, clock = self.v, self._clock
        for (link, k), used in v.used.items():
            is_used = k < len(self._hinted[link])
            before = clock.start.get((link, len(self._hinted[link]) - 1), 0)
            self.model.add_hint(used, int(is_used))
            self.model.add_hint(v.start[link, k], clock.start.get((link, k), before))
            self.model.add_hint(v.end[link, k], clock.arrival.get((link, k), before))
        for (slot, cost), (busy, done) in self._spans.items():
            length = clock.busy.get((slot, cost), 0)
            self.model.add_hint(busy, length)
            self.model.add_hint(done, clock.start.get(slot, 0) + length)
        for slot, adds in self._adding.items():
            loads = self._hinted[slot[0]]
            self.model.add_hint(adds, int(slot[1] < len(loads) and loads[slot[1]].carried[0].adds))
        for is_sum, table in ((False, v.y), (True, v.g)):
            for (p, link, k), literal in table.items():
                if p in self._free:
                    loads = self._hinted[link]
                    self.model.add_hint(literal, int(k < len(loads) and CarriedPiece(p, is_sum) in loads[k].carried))
        for (p, rank), owns in v.own.items():
            if p in self._free and len(self.pieces[p].wants) > 1:
                self.model.add_hint(owns, int(self._owner_of(p, self.pieces[p]) == rank))
        for is_sum, times in ((False, v.arrive), (True, v.ready)):
            for (p, rank), at in times.items():
                self.model.add_hint(at, clock.have.get((p, rank, is_sum), 0))
        self.model.add_hint(v.makespan, clock.end)

    def loads(self, value: Callable[[Any], int]) -> tuple[TimedLoad, ...]:
        """Messages of a solution, by start."""
        carried = grouped(
            ((link, k), CarriedPiece(p, adds))
            for adds, table in ((False, self.v.y), (True, self.v.g))
            for (p, link, k), literal in table.items()
            if value(literal)
        )
        found = [
            TimedLoad(
                slot[0], value(self.v.start[slot]) / self._scale, tuple(sorted(pieces, key=lambda one: one.piece))
            )
            for slot, pieces in carried.items()
        ]
        return tuple(sorted(found, key=lambda load: (load.start_us, load.link)))


class _PlanClock:
    """Times of a plan in units, each message as early as its order on links and ports allows."""

    def __init__(self, model: _MessageModel, plan: Sequence[TimedLoad]) -> None:
        topology, pieces = model.topology, model.pieces
        self.start: dict[tuple[int, int], int] = {}
        self.arrival: dict[tuple[int, int], int] = {}
        self.busy: dict[tuple[tuple[int, int], tuple[float, float]], int] = {}
        self.have: dict[tuple[int, int, bool], int] = {}
        free: dict[int, int] = {}
        count: dict[int, int] = {}
        for load in sorted(plan, key=lambda load: (load.start_us, load.link)):
            link, (src, dst) = load.link, model.ends[load.link]
            slot = (link, count.get(link, 0))
            count[link] = slot[1] + 1
            begin = max([0, *(free.get(resource, 0) for resource in topology.resources_of[link])])
            for one in load.carried:
                begin = max(begin, self.have.get((one.piece, src, one.adds), 0))
            arrival = begin
            for resource in topology.resources_of[link]:
                alpha, beta = cost = topology.resource_cost[resource]
                length = model.units_of(alpha) + sum(
                    model.units_of(beta * pieces[one.piece].size_bytes / BYTES_PER_MB) for one in load.carried
                )
                self.busy[slot, cost] = length
                free[resource] = begin + length
                arrival = max(arrival, begin + length + model.units_of(topology.links[link].latency_us))
            self.start[slot], self.arrival[slot] = begin, arrival
            for one in load.carried:
                key = (one.piece, dst, one.adds)
                self.have[key] = max(self.have.get(key, 0), arrival)
                if one.adds and len(pieces[one.piece].wants) > 1:
                    # The owner has all of it once the last partial sum is there.
                    self.have[one.piece, dst, False] = self.have[key]
        self.end = max(self.arrival.values(), default=0)

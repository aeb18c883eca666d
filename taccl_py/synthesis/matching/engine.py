"""Engine ``greedy``: time-expanded matching on machines of any shape, thousands of ranks included.

Four strategies, of which the best is taken:

1. Where there are translations, one root (or one of each role) is solved and replicated (`replicate`).
2. Otherwise, and where that leaves something to gain, all chunks are matched with links moment by moment (`flood`), or sent along
   balanced paths (`exchange`, for AllToAll), a number of times with other choices among equals. The fastest is improved: chunks that
   hold up its end are taken out and are routed anew (`regrow`), a limited number of times.
3. On equal nodes with links between equal local numbers, blocks gather by `rails`, in few messages.
4. An AllReduce between unequal nodes (failed NICs, slow nodes) is summed by `owners`, in proportion to what their NICs carry.

Shares are cut finer while that pays. The search ends at the bound, or by an amount of work that depends on the machine alone.
Reduce and ReduceScatter are Broadcast and AllGather run backwards on the reversed machine; AllReduce is ReduceScatter and
AllGather.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

from taccl_py.collective import COMBINING, Collective, Kind
from taccl_py.errors import InputError, LimitReached
from taccl_py.schedule.group import MOST_EXPANDED
from taccl_py.schedule.ir import Schedule
from taccl_py.schedule.transform import dispatched
from taccl_py.synthesis.bounds import Bound, require_ways
from taccl_py.synthesis.engine import Demand, Events, Options, Proof, Synthesis
from taccl_py.synthesis.known import bound_of
from taccl_py.synthesis.matching.attempts import Attempts, MatchingVariant
from taccl_py.synthesis.matching.background_bound import bound_beside
from taccl_py.synthesis.matching.fabric import Fabric
from taccl_py.synthesis.matching.least import least_us
from taccl_py.synthesis.matching.owners import owner_schedule
from taccl_py.synthesis.matching.params import PARAMS
from taccl_py.synthesis.matching.rails import rail_schedule
from taccl_py.synthesis.matching.regrow import affordable_tries
from taccl_py.synthesis.matching.replicate import replicate, why_not
from taccl_py.synthesis.reversal import ROUTED
from taccl_py.synthesis.uneven import fit_to_size, usable_counts
from taccl_py.tolerances import RELATIVE
from taccl_py.topology.translations import translations_of

_BY_RAILS = (Kind.ALLGATHER, Kind.REDUCESCATTER, Kind.ALLREDUCE)


def synthesize_greedy(demand: Demand, options: Options, events: Events) -> Synthesis:
    """Engine entry point; see `taccl_py.synthesis.engine.Engine`. Without a number of chunks it chooses one."""
    if demand.kind not in ROUTED:
        raise InputError(f"engine greedy is for {', '.join(ROUTED)}, found {demand.kind}; use --engine milp or flow")
    if demand.sketch is not None:
        raise InputError("engine greedy does not look at sketches; use --engine milp or trees", field="sketch")
    require_ways(demand.topology, demand.kind, demand.root)
    run = _MatchingRun(demand, options, events)
    answer = run.answer()
    count, fits = answer.schedule.collective.chunks_per_rank, usable_counts(demand)
    if len(answer.schedule.messages) > PARAMS.most_reordered or (answer.proof is Proof.OPTIMAL and count in fits):
        return answer
    return fit_to_size(answer, demand, options.limits.within(run.deadline.left))


class _MatchingRun:
    """One call of the engine."""

    def __init__(self, demand: Demand, options: Options, events: Events) -> None:
        self.demand, self.limits, self.events = demand, options.limits, events
        self.deadline = options.limits.deadline()
        self.stage_seconds: dict[str, float] = {}
        self._inner_seconds = 0.0
        self._least_us: dict[int, float] = {}
        # The best of each number of chunks.
        self._found: list[Schedule] = []
        self._ending = ExitStack()
        translations = translations_of(demand.topology) if why_not(demand) is None else None
        self._may_replicate = translations is not None
        self._has_roles = translations is not None and not translations.is_regular
        self._bound = options.bound
        # What is needed at once is computed here.
        is_later = self._bound is None and not self._may_replicate
        self._later = bound_beside(demand, self.limits, self._ending) if is_later else None

    @property
    def bound(self) -> Bound:
        """Best bound that is known."""
        if self._bound is None:
            with self._stage("bound"):
                found = None if self._later is None else self._later.result(self.limits.stop)
                self._bound = found or bound_of(self.demand, self.limits)
                self.events.bound(self._bound.time_us)
        return self._bound

    def answer(self) -> Synthesis:
        """Bound, replicate or match, and turn into a schedule."""
        with self._ending:
            return self._best_path()

    def _best_path(self) -> Synthesis:
        best = self._replicated()
        for stage, search in (("rails", self._by_rails), ("owners", self._by_owners), ("matching", self._matched)):
            if best is not None and self._is_enough(best) and not self._may_be_resized(best):
                break
            with self._stage(stage):
                other = search(best)
            if best is None or (other is not None and other.makespan_us < best.makespan_us):
                best = other
        may_improve = best is not None and not self._is_enough(best) and not self.deadline.over()
        if best is not None and may_improve and len(best.messages) <= PARAMS.most_reordered:
            with self._stage("order"):
                best = dispatched(best)
        if best is None:
            raise LimitReached("no schedule was found; give more time with --time-limit")
        return Synthesis.of([best, *self._runners_up(best)], self.bound, "none", self.stage_seconds)

    def _runners_up(self, best: Schedule) -> tuple[Schedule, ...]:
        """Schedules of other numbers of chunks, whose unequal sizes may make them the better ones."""
        near = [
            found
            for found in self._found
            if len(found.messages) <= PARAMS.most_resized_messages
            and found.makespan_us <= PARAMS.resized_factor * best.makespan_us
        ]
        others = [found for found in near if found.collective != best.collective]
        return tuple(sorted(others, key=lambda found: found.makespan_us)[: PARAMS.most_resized_runners_up])

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        """Time a stage; what stages inside it take, as the bound that one asks for, is theirs alone."""
        self.events.stage(name)
        begun, outer_seconds, self._inner_seconds = time.monotonic(), self._inner_seconds, 0.0
        yield
        seconds = time.monotonic() - begun
        self.stage_seconds[name] = seconds - self._inner_seconds
        self._inner_seconds = outer_seconds + seconds

    def _is_enough(self, found: Schedule) -> bool:
        """True if nothing better can be found: what is sent chunk by chunk cannot be received any faster."""
        # Where blocks can go together there may be something better than chunk by chunk.
        alone = self.demand.topology.num_nodes == 1
        one_by_one_us = self._one_by_one_us(found.collective.chunks_per_rank) if alone else 0.0
        return self.bound.is_reached_by(found.makespan_us) or found.makespan_us <= one_by_one_us * (1 + RELATIVE)

    def _one_by_one_us(self, chunks_per_rank: int) -> float:
        """Time that messages of one chunk take at least."""
        if chunks_per_rank not in self._least_us:
            kind, topology = self.demand.kind, self.demand.topology
            chunk_bytes = self.demand.chunk_bytes(self.demand.collective(chunks_per_rank))
            routed = Collective(ROUTED[kind], topology.num_ranks, chunks_per_rank, self.demand.root)
            machines = [topology.reversed()] if kind in COMBINING else []
            machines += [topology] if kind not in COMBINING or kind is Kind.ALLREDUCE else []
            fabrics = [Fabric.of(machine, chunk_bytes) for machine in machines]
            times = [least_us(fabric, routed) for fabric in fabrics]
            # Where links differ, some ranks hand out sums while others still add up.
            is_even = len({sort.message_us for fabric in fabrics for sort in fabric.sorts}) == 1
            self._least_us[chunks_per_rank] = sum(times) if is_even else max(times)
        return self._least_us[chunks_per_rank]

    def _may_be_resized(self, found: Schedule) -> bool:
        """True if chunks of unequal size may make something else the better one, as where ranks differ."""
        return self._has_roles and not self.bound.is_reached_by(found.makespan_us)

    def _replicated(self) -> Schedule | None:
        """Schedule of one root with its translations, if there are some."""
        if not self._may_replicate:
            return None
        bound = self.bound
        with self._stage("one root"):
            group = replicate(self.demand, self.limits, bound)
        if group is None or group.num_messages > MOST_EXPANDED:
            return None
        self.events.incumbent(group.makespan_us)
        with self._stage("expansion"):
            return group.expanded()

    def _by_rails(self, before: Schedule | None) -> Schedule | None:
        """Schedule by rails where nothing but bandwidth rules it out."""
        demand, size = self.demand, self.demand.topology.num_ranks
        if (
            demand.kind not in _BY_RAILS
            or demand.chunks_per_rank not in (None, 1)
            or size * size > PARAMS.most_rail_chunks
        ):
            return None
        chunk_bytes = demand.chunk_bytes(demand.collective(1))
        if before is not None and before.makespan_us <= PARAMS.rail_gap_factor * self.bound.time_us:
            return None
        found = rail_schedule(demand.topology, demand.kind, chunk_bytes)
        if found is not None:
            self.events.incumbent(found.makespan_us)
        return found

    def _by_owners(self, before: Schedule | None) -> Schedule | None:
        """AllReduce by owners, where there may be something to gain."""
        demand = self.demand
        if demand.kind is not Kind.ALLREDUCE:
            return None
        if before is not None and before.makespan_us <= PARAMS.rail_gap_factor * self.bound.time_us:
            return None
        found = owner_schedule(demand.topology, demand.size_bytes, demand.chunks_per_rank)
        if found is not None:
            self.events.incumbent(found.makespan_us)
        return found

    def _matched(self, before: Schedule | None) -> Schedule | None:
        """Best schedule of a number of attempts with ever finer cuts; none where one attempt is too much work."""
        best: Schedule | None = None
        with Attempts(self.demand, self.limits, self.deadline.over, self.deadline) as attempts:
            for cuts in self._numbers_of_chunks(before):
                found = self._best_of(attempts, cuts)
                self._found += [] if found is None else [found]
                if found is None or (best is not None and best.makespan_us <= found.makespan_us):
                    break
                best = found
                self.events.incumbent(best.makespan_us)
                if self.deadline.over():
                    break
        return best

    def _best_of(self, attempts: Attempts, cuts: int) -> Schedule | None:
        """The best of all attempts with so many chunks, the fastest of which is improved."""
        tries = self._tries(cuts)
        best: Schedule | None = None
        leader = tries[0]
        with closing(attempts.results(tries, self._messages(cuts))) as results:
            for attempt, found in zip(tries, results, strict=False):
                if found is not None and (best is None or found.makespan_us < best.makespan_us):
                    best, leader = found, attempt
                if best is not None and (self._is_enough(best) or self.deadline.over()):
                    return best
        if best is None or leader.improved or not self._may_improve(best):
            return best
        (improved,) = attempts.results([replace(leader, improved=True)], 0)
        return best if improved is None or improved.makespan_us >= best.makespan_us else improved

    def _may_improve(self, found: Schedule) -> bool:
        """True if it is not too large for that."""
        halves = 2 if self.demand.kind is Kind.ALLREDUCE else 1
        return affordable_tries(len(found.topology.links), len(found.messages) // halves) > 0

    def _tries(self, cuts: int) -> list[MatchingVariant]:
        """Attempts with so many chunks."""
        number = self._starts(cuts)
        if self.demand.kind is Kind.ALLTOALL:
            return [
                MatchingVariant(
                    cuts, self.limits.seed, thrifty=True, most_reordered=PARAMS.most_reordered, improved=True
                )
            ]
        # Every other one lets chunks go into a node several times, which pays where links inside it are the bottleneck.
        return [
            MatchingVariant(cuts, self.limits.seed + start, start % 2 == 0, PARAMS.most_reordered // number)
            for start in range(number)
        ]

    def _messages(self, cuts: int) -> int:
        """Messages of one attempt, relays of AllToAll not counted."""
        size = self.demand.topology.num_ranks
        roots = 1 if self.demand.kind in (Kind.BROADCAST, Kind.REDUCE) else size
        return roots * (size - 1) * cuts * (2 if self.demand.kind is Kind.ALLREDUCE else 1)

    def _numbers_of_chunks(self, before: Schedule | None) -> list[int]:
        wanted = self.demand.chunks_per_rank
        most = PARAMS.most_exchange_messages if self.demand.kind is Kind.ALLTOALL else MOST_EXPANDED
        if self._messages(wanted or 1) > most or (before is not None and self._messages(1) > PARAMS.most_matched):
            if before is None:
                raise InputError(
                    f"{self.demand.kind} on {self.demand.topology.name} has {self._messages(wanted or 1)} messages without its "
                    f"relays, more than the {most} that engine greedy can match; use --engine templates"
                )
            return []
        return (
            [wanted]
            if wanted
            else [cuts for cuts in PARAMS.cuts if cuts == 1 or self._messages(cuts) <= PARAMS.most_matched]
        )

    def _starts(self, cuts: int) -> int:
        return max(1, min(PARAMS.most_starts, PARAMS.most_matched // self._messages(cuts)))

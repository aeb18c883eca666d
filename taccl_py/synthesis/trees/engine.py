"""Engine ``trees``: throughput-optimal spanning trees (after ForestColl and Blink), rounded, cut into pieces and pipelined.

1. `packing`: the best fractional packing of spanning trees over links and ports, and with it a lower bound.
2. `rounding`: a few whole trees for every root that load links and ports nearly as evenly, and as shallow as that allows.
   `disjoint`: where trees share links only, the lightest and shallow ones without a packing.
   `shared`: or a few of unequal weight, which load them as evenly and keep the full ones busy from beginning to end.
3. `order`: every tree's data is cut into pieces, which follow each other down the tree; how many trees and pieces pay is found by trying.

Reduce and ReduceScatter are Broadcast and AllGather run backwards on the reversed machine. AllReduce sums along trees of the
reversed machine and sends the sums out along trees of the machine, both in one plan: a piece turns around at its root.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product

import numpy as np

from taccl_py.collective import Collective, Kind
from taccl_py.errors import InputError, LimitReached
from taccl_py.runtimes import MAX_XML_NODES
from taccl_py.schedule.ir import Schedule
from taccl_py.schedule.transform import combining
from taccl_py.solvers.limits import Limits, until
from taccl_py.synthesis.bounds import Bound, demand_bound, raised
from taccl_py.synthesis.bounds.net import Net, OrbitMembers
from taccl_py.synthesis.bounds.roots import RootPacking, pack_roots, short_root_packings
from taccl_py.synthesis.engine import Demand, Events, Options, Synthesis
from taccl_py.synthesis.reversal import ROUTED, reduce_by_broadcast
from taccl_py.synthesis.templates.messages import cut
from taccl_py.synthesis.trees.bettering import Bettering
from taccl_py.synthesis.trees.hub import hub_of, shared_out
from taccl_py.synthesis.trees.justify import justified
from taccl_py.synthesis.trees.kept import best_of, coarser, rivals
from taccl_py.synthesis.trees.lift import lifted
from taccl_py.synthesis.trees.network import CapacityNetwork
from taccl_py.synthesis.trees.order import DispatchRule, OrderChoice, PieceCosts, TransferTimes, TreePlan, left_shifted
from taccl_py.synthesis.trees.params import PARAMS
from taccl_py.synthesis.trees.pipeline import Promise, promise_of
from taccl_py.synthesis.trees.rails import RailSearch, TreeRails
from taccl_py.synthesis.trees.rounding import TreeSet
from taccl_py.synthesis.trees.rounds import RoundSearch
from taccl_py.synthesis.trees.shallow import shallow_machines, varied_trees
from taccl_py.synthesis.trees.shallow_roots import PromisedParts, ShortPaths, handed_out
from taccl_py.synthesis.trees.shared_trees import SharedTreeSetFinder, shared_tree_sets
from taccl_py.synthesis.trees.taper import TaperedTreeSet, TaperSearch, even_tree_sets, uneven_tree_set
from taccl_py.synthesis.trees.through_roots import RootSearch, pieces_through_roots
from taccl_py.synthesis.trees.transfers import PieceTransfer, gather_transfers, reduce_transfers
from taccl_py.synthesis.trees.tree_packing import KINDS, TreePacking
from taccl_py.synthesis.trees.turnaround import turned_around
from taccl_py.synthesis.trees.work import StagesOnly, TreeSearch
from taccl_py.synthesis.uneven import PARAMS as UNEVEN
from taccl_py.synthesis.uneven import fit_to_size, usable_counts
from taccl_py.tolerances import DIGITS, ROUNDED
from taccl_py.units import BYTES_PER_MB

_RULES = (
    *(DispatchRule(patience, least) for patience, least in PARAMS.dispatch_rules),
    DispatchRule(backwards=True),
    DispatchRule(paced=True),
    DispatchRule(paced=True, backwards=True),
)


def synthesize_trees(demand: Demand, options: Options, events: Events) -> Synthesis:
    """Engine entry point; see `taccl_py.synthesis.engine.Engine`. Without a number of chunks it chooses one."""
    if demand.kind not in KINDS:
        raise InputError(f"engine trees is for {', '.join(KINDS)}, found {demand.kind}; use --engine milp or flow")
    if options.trees is not None and (demand.chunks_per_rank or options.trees) % options.trees:
        raise InputError(
            f"{demand.chunks_per_rank} chunks cannot be shared by {options.trees} trees; make --chunks a multiple of --trees",
            path="command line", field="--chunks",
        )  # fmt: skip
    if demand.kind is Kind.REDUCE and demand.sketch is None:
        return reduce_by_broadcast(synthesize_trees, demand, options, events)
    return _TreesRun(demand, TreeSearch(options.limits, events), options.trees, options.bound).answer()


class _TreesRun:
    """One call of the engine."""

    def __init__(
        self, demand: Demand, work: TreeSearch, trees: int | None = None, known_bound: Bound | None = None
    ) -> None:
        self.demand, self.work, self.trees, self.known_bound = demand, work, trees, known_bound
        self.bound = Bound(0.0, "nothing has to move")
        self.least_us = math.inf

    def answer(self) -> Synthesis:
        """Search, lift and bound."""
        demand = self.demand
        turned = demand.kind in (Kind.REDUCE, Kind.REDUCESCATTER)
        base = TreePacking(demand, self.work, backwards=turned)
        self.bound = self._bound(base)
        self.work.events.bound(self.bound.time_us)
        backward = None
        if demand.kind is Kind.ALLREDUCE:
            backward = TreePacking(demand, self.work, backwards=True)
            if not np.array_equal(base.network.images, backward.network.images):
                # A sketch turned around may have another symmetry; both directions must repeat alike.
                base, backward = (
                    TreePacking(demand, self.work, backwards=backwards, symmetric=False) for backwards in (False, True)
                )
            backward.take_trees_of(base)
        with_rivals = self._found(base, backward)
        schedules, sized = list[Schedule](), list[Schedule]()
        for packing, choices in with_rivals:
            with self.work.stage("schedule"):
                made = [self._schedule(packing, choice, turned=turned) for choice in choices]
            near_us = choices[0].plan.end_us * PARAMS.unsized_factor if choices[0].sized else math.inf
            sized += [s for c, s in zip(choices, made, strict=True) if c.sized or c.plan.end_us > near_us]
            schedules += made
        if len(with_rivals) > 1:
            schedules.sort(key=lambda each: each.makespan_us)
        solver = "highs" if "packing" in self.work.stage_seconds else "none"
        answer = Synthesis.of(schedules, self.bound, solver, self.work.stage_seconds)
        with self.work.stage("chunks"):
            return fit_to_size(answer, demand, self.work.left(), sized=sized)

    def _found(self, base: TreePacking, backward: TreePacking | None) -> list[tuple[TreePacking, list[OrderChoice]]]:
        """The best plans, the fastest first, and the machine that they are for; also those of rivals, whose sizes may become better ones."""
        if backward is None:
            return [(base, self._search(base, None))]
        # Of a direct machine that costs the same in both directions a hub often has lighter trees than several roots.
        has_rival = base.is_direct and backward.is_alike
        roots, through_roots = self._through_roots(base, has_rival=has_rival)
        is_best = through_roots and not has_rival and through_roots[0].plan.end_us <= self._gathers_us
        if self._is_enough(through_roots) or is_best:
            return [(roots, through_roots)]
        found = [self._gathered(base, backward), *([(roots, through_roots)] if through_roots else [])]
        return found if has_rival else [min(found, key=lambda each: each[1][0].plan.end_us)]

    def _gathered(self, base: TreePacking, backward: TreePacking) -> tuple[TreePacking, list[OrderChoice]]:
        """The best plans of an AllReduce through a hub, or of a ReduceScatter and an AllGather."""
        hub, through_hub = self._through_hub(base, backward)
        enough_us = PARAMS.hub_only_time * self._gathers_us if through_hub else 0.0
        if self._is_enough(through_hub) or (through_hub and through_hub[0].plan.end_us <= enough_us):
            return hub, through_hub
        found = self._search(base, backward)
        is_faster = not through_hub or found[0].plan.end_us <= through_hub[0].plan.end_us
        return (base, found) if is_faster else (hub, through_hub)

    def _through_hub(self, base: TreePacking, backward: TreePacking) -> tuple[TreePacking, list[OrderChoice]]:
        """Plans of an AllReduce through a hub, the fastest first, where a ReduceScatter and an AllGather would load links more."""
        is_small = base.network.num_ranks <= PARAMS.most_direct_hub_ranks
        if not (is_small and self._is_free and backward.is_alike and self._is_long(base.network)):
            return base, []
        if self._gathers_us < self.bound.time_us * PARAMS.hub_gain:
            return base, []
        demand = replace(self.demand, kind=Kind.BROADCAST, root=hub_of(base.network))
        forth, back = (
            TreePacking(demand, self.work, backwards=backwards, symmetric=False) for backwards in (False, True)
        )
        forth.let_links_carry_both_directions()
        back.take_trees_of(forth)
        if not forth.is_direct and base.network.num_ranks > PARAMS.most_hub_ranks:
            return base, []
        load_us = forth.least_load_us() * self.demand.size_bytes / BYTES_PER_MB
        if self._gathers_us < load_us * PARAMS.hub_gain:
            return base, []
        part = 1.0 if load_us < self._gathers_us * PARAMS.hub_only_load else 0.5
        run = _TreesRun(demand, TreeSearch(self.work.left(part), self.work.events, self.work))
        run.bound = self.bound
        found = [shared_out(self.demand, choice) for choice in run._search(forth, back)]
        return forth, sorted((choice for choice in found if choice is not None), key=lambda choice: choice.plan.end_us)

    def _through_roots(self, base: TreePacking, *, has_rival: bool) -> tuple[TreePacking, list[OrderChoice]]:
        """Plans of an AllReduce through roots with parts of any size, the fastest first, where other plans would load links more."""
        if not (self._is_free and self._is_long(base.network)):
            return base, []
        with self.work.stage("packing"):
            loads = self._root_packing(symmetric=True)
        size_mb = self.demand.size_bytes / BYTES_PER_MB
        if loads is None or loads.load_us * size_mb * PARAMS.least_gain_of_roots > self._gathers_us:
            return base, []
        with self.work.stage("packing"):
            packing = self._root_packing(symmetric=False)
            if packing is None:
                return base, []
            over = self.work.left(PARAMS.short_part).countdown()
            short = [*short_root_packings(Net.of(self.demand.topology), packing.load_us, over)]
        demand = replace(self.demand, kind=Kind.BROADCAST, root=packing.trees[0].root)
        forth = TreePacking(demand, self.work, backwards=False, symmetric=False)
        is_small_gain = loads.load_us * size_mb * PARAMS.roots_only_gain > self._gathers_us
        part = PARAMS.rival_part if has_rival else 0.5 if is_small_gain else 0.9
        run = _TreesRun(demand, TreeSearch(self.work.left(part), self.work.events, self.work))
        run.bound = self.bound
        with self.work.stage("packing"):
            promised = ShortPaths(forth.network, run._piece_bytes, run.work.left()).best(packing, short)
        found = run._on_roots(forth.network, promised)
        found = run._bettering(forth.network).bettered(found)
        near_us = best_of(found).plan.end_us * PARAMS.unsized_factor if found else 0.0
        shared = [shared_out(self.demand, each, finely=each.plan.end_us <= near_us) for each in found]
        return forth, sorted((choice for choice in shared if choice is not None), key=lambda choice: choice.plan.end_us)

    def _on_roots(self, network: CapacityNetwork, promised: Sequence[PromisedParts]) -> list[OrderChoice]:
        """Plans on trees through roots, the most promising ones first: of rounds on all of them, and by rules of dispatch."""
        rules = (*_RULES, *(replace(rule, in_turn=True) for rule in _RULES))
        found = self._rounds_on(network, promised)
        for each in promised:
            search = RootSearch(self.demand, network, each.parts, each.rounds, self._planned)
            found += search.choices(rules, lambda choices: self._is_enough_to_better([*found, *choices]))  # noqa: B023
        return found

    def _rounds_on(self, network: CapacityNetwork, promised: Sequence[PromisedParts]) -> list[OrderChoice]:
        """Plans of rounds on trees through roots, also with better sizes, and the best of each with its messages justified."""
        found, best = list[OrderChoice](), list[OrderChoice]()
        with self.work.stage("rounds"):
            for each in promised:
                once = pieces_through_roots(network, each.parts, 1)
                plans = self._round_search(network).plans(once.transfers, once.sizes)
                found += plans
                best += [best_of(plans)] if plans else []
            # In the order of rounds sizes are mostly found better than in that of justified messages.
            found += self._bettering(network).resized(found)
            found += [replace(one, plan=justified(TransferTimes(one.transfers, one.costs), one.plan)) for one in best]
            return found

    def _on_short_paths(self, base: TreePacking) -> list[OrderChoice]:
        """Plans of rounds on one root's trees with short paths, where they share more than links."""
        network = base.network
        if not (self._is_free and network.is_single and self._is_long(network)) or base.is_direct:
            return []
        if network.num_ranks - 1 > PARAMS.most_round_transfers:
            return []
        with self.work.stage("packing"):
            paths = ShortPaths(network, self._piece_bytes, self.work.left(), self.demand.root)
            promised = paths.best(handed_out(base.packing, self.demand.root))
        return self._rounds_on(network, promised)

    def _root_packing(self, *, symmetric: bool) -> RootPacking | None:
        topology = self.demand.topology
        orbits = OrbitMembers.of_machine(topology) if symmetric else OrbitMembers.of_images(topology, [])
        return pack_roots(Net.of(topology), orbits)

    @cached_property
    def _gathers_us(self) -> float:
        """Least time of a ReduceScatter and an AllGather, one after the other."""
        return self._bound_of(Kind.ALLGATHER).time_us + self._bound_of(Kind.REDUCESCATTER).time_us

    def _schedule(self, base: TreePacking, choice: OrderChoice, *, turned: bool) -> Schedule:
        demand = self.demand
        kind = Kind.ALLREDUCE if demand.kind is Kind.ALLREDUCE else ROUTED[demand.kind]
        collective = Collective(kind, demand.topology.num_ranks, choice.num_chunks, demand.root)
        schedule = lifted(base.network, choice, collective, self._piece_bytes(choice.num_chunks))
        return combining(schedule, demand.topology) if turned else schedule

    def _search(self, base: TreePacking, backward: TreePacking | None) -> list[OrderChoice]:
        """Best plan over numbers of trees, of pieces, and rules of dispatch, and nearly as fast ones with fewer pieces."""
        found = self._on_short_paths(base) if backward is None else []
        tapered = base.network.is_single and base.is_direct
        for tree_sets in self._tree_sets(base, backward):
            if self._is_enough_to_better(found):
                break
            if found and tree_sets[0].load_us * self._shard_mb >= best_of(found).plan.end_us:
                continue
            found += self._cut_finer(base, backward, tree_sets, found)
            # One root's trees take long to taper and seldom gain: other numbers of them come first.
            if not tapered and not base.network.is_single and not self._is_enough(found):
                tapered = True
                found += self._tapered(base, backward, found)
        if not tapered and found and not self._is_enough(found):
            found += self._tapered(base, backward, found)
        found = self._bettering(base.network).bettered(found)
        if not found:
            raise LimitReached("no schedule was found; give more time with --time-limit")
        return self._kept(base.network, found)

    def _bettering(self, network: CapacityNetwork) -> Bettering:
        counts = usable_counts(self.demand) if self._is_free and self._is_long(network) else ()
        return Bettering(self.work, self._is_enough, self._piece_bytes, counts)

    def _tree_sets(self, base: TreePacking, backward: TreePacking | None) -> Iterator[list[TreeSet]]:
        """Whole trees to try, and backwards."""
        bases = [base] if backward is None else [base, backward]
        if base.is_direct:
            grown = [tree_sets for parts in self._light(base) if (tree_sets := _grown(bases, parts, 0))]
            yield from self._fastest(bases, grown) if base.network.is_single else grown
            if grown and base.network.is_single:
                return
        for parts in self._promising(base):
            yield [one.tree_set(parts) for one in bases]

    def _fastest(self, bases: Sequence[TreePacking], grown: list[list[TreeSet]]) -> list[list[TreeSet]]:
        """Trees of one root that promise most, the best ones first, and instead of them others that promise more."""
        network = bases[0].network

        def promised_us(tree_sets: list[TreeSet]) -> float:
            return self._promise(network, tree_sets).time_us

        found = []
        for tree_sets in sorted(grown, key=promised_us)[: PARAMS.most_tree_counts]:
            parts = tree_sets[0].parts
            seeds = range(1, 1 + min(PARAMS.most_seeds, PARAMS.most_regrown_places // (parts * network.num_places)))
            others = [other for seed in seeds if (other := _grown(bases, parts, self.work.limits.seed + seed))]
            found.append(min([tree_sets, *others], key=promised_us))
        found.sort(key=promised_us)
        return [
            tree_sets for tree_sets in found if promised_us(tree_sets) < promised_us(found[0]) * PARAMS.promise_factor
        ]

    def _promise(self, network: CapacityNetwork, tree_sets: Sequence[TreeSet]) -> Promise:
        """Promise of direct trees of one root in no more pieces than can be."""
        most = tree_sets[0].parts * max(self._possible_cuts(network, tree_sets))
        return promise_of(network, tree_sets[0], self._shard_mb, most, both_directions=len(tree_sets) > 1)

    def _kept(self, network: CapacityNetwork, found: list[OrderChoice]) -> list[OrderChoice]:
        """The best plan, and others that may serve the size better or where that cannot be lowered."""
        best, most_sized = best_of(found), UNEVEN.most_messages / len(network.images)
        kept = [best, *coarser(found)]
        if self.demand.chunks_per_rank is None:
            counts = usable_counts(self.demand)
            usable = [choice for choice in found if choice.num_chunks in counts]
            if usable and best_of(usable) not in kept:
                kept.append(best_of(usable))
            if self._is_free:  # a plan of very many pieces that do not serve the size is not cut into others
                lasting = [c for c in kept[1:] if c.num_chunks in counts or len(c.plan.messages) <= most_sized]
                kept = [best, *lasting]
        return list({id(choice): choice for choice in (*kept, *rivals(best, found, most_sized))}.values())

    def _cut_finer(
        self, base: TreePacking, backward: TreePacking | None, tree_sets: Sequence[TreeSet], before: list[OrderChoice]
    ) -> list[OrderChoice]:
        """Plans with ever more pieces for the same trees, until that stops paying."""
        parts, network = tree_sets[0].parts, base.network
        rules = _RULES if backward is None else (*_RULES, *(replace(rule, in_turn=True) for rule in _RULES))
        found: list[OrderChoice] = []
        for cuts in self._numbers_of_cuts(base, tree_sets):
            all_found = [*before, *found]
            if self._is_enough(all_found) if _is_gaining(found) else self._is_enough_to_better(all_found):
                break
            if found and found.index(best_of(found)) < len(found) - PARAMS.most_failures:
                break
            sums = reduce_transfers(network, backward.network, tree_sets[1], cuts) if backward is not None else ()
            transfers = tuple(gather_transfers(network, tree_sets[0], cuts, sums))
            if len(transfers) > PARAMS.most_ruled_messages:
                rules = rules[:1]
            costs = PieceCosts.of(network, self._piece_bytes(parts * cuts), (1,) * (parts * cuts))
            plans = self._planned(transfers, costs, rules)
            ranked = sorted(plans, key=lambda rule: plans[rule].end_us)
            found.append(self._evened(OrderChoice(transfers, costs, parts * cuts, ranked[0], plans[ranked[0]])))
            rules = _with_prospects(ranked)
            self.work.events.incumbent(best_of([*all_found, found[-1]]).plan.end_us)
        return found

    def _round_search(self, network: CapacityNetwork) -> RoundSearch:
        return RoundSearch(network, self._piece_bytes, usable_counts(self.demand), self.work.left())

    def _planned(
        self, transfers: Sequence[PieceTransfer], costs: PieceCosts, rules: Sequence[DispatchRule]
    ) -> dict[DispatchRule, TreePlan]:
        """Plans by the rules for which there is time, and at least by the first."""
        plans: dict[DispatchRule, TreePlan] = {}
        times = TransferTimes(transfers, costs)
        with self.work.stage("order"):
            for rule in rules:
                if not (plans and self.work.over()):
                    plans[rule] = times.list_schedule(rule)
            room = PARAMS.most_justified_messages
            for rule in sorted(plans, key=lambda rule: plans[rule].end_us):
                self.least_us = min(self.least_us, plans[rule].end_us)
                room -= len(plans[rule].messages)
                is_hopeless = plans[rule].end_us > self.least_us * PARAMS.justified_factor
                if room < 0 or is_hopeless or self.work.over() or self._is_near(plans[rule]):
                    break
                plans[rule] = justified(times, plans[rule])
                self.least_us = min(self.least_us, plans[rule].end_us)
        return plans

    def _is_near(self, plan: TreePlan) -> bool:
        """True if there is next to nothing to gain over a plan."""
        return plan.end_us <= self.bound.time_us * PARAMS.enough_factor

    def _evened(self, choice: OrderChoice) -> OrderChoice:
        """The same with pieces of nearly as many chunks each, where there are too many for better sizes to be found."""
        counts = usable_counts(self.demand)
        count = min((count for count in counts if count >= PARAMS.evened_piece_chunks * choice.num_chunks), default=0)
        if (
            not self._is_free
            or choice.rule is None
            or not count
            or choice.num_chunks in counts
            or len(choice.transfers) <= PARAMS.most_sized_messages
        ):
            return choice
        finer = choice.costs.scaled(self._piece_bytes(count) / self._piece_bytes(choice.num_chunks))
        costs = replace(finer, chunks=(tuple(map(len, cut(count, choice.num_chunks))),) * len(finer.chunks))
        plan = left_shifted(choice.transfers, costs, choice.plan.messages)
        return replace(choice, costs=costs, num_chunks=count, plan=plan, sized=True)

    def _tapered(self, base: TreePacking, backward: TreePacking | None, before: list[OrderChoice]) -> list[OrderChoice]:
        """Plans whose messages between nodes, or pieces, become smaller to the end, if they are better."""
        if not self._is_free or not self._is_long(base.network) or (backward is not None and base.network.is_single):
            return []
        found = self._on_shallow_trees(base) if backward is None else self._turned_around(base, backward, before)
        return [choice for choice in found if choice.plan.end_us < best_of(before).plan.end_us]

    def _turned_around(self, base: TreePacking, backward: TreePacking, before: list[OrderChoice]) -> list[OrderChoice]:
        """Plans of an AllReduce that are one of a ReduceScatter and one of an AllGather."""
        least_us = (base.packing.bound_us + backward.packing.bound_us) * self._shard_mb
        if best_of(before).plan.end_us < least_us * PARAMS.turned_factor:
            return []
        rests = self._gathers(base, self.work.left(1.0 if backward.is_alike else 0.5))
        sums = rests if backward.is_alike else self._gathers(backward, self.work.left())
        turned = backward.network.problem.topology.reversed_link()
        with self.work.stage("order"):
            pairs = product(sums[: PARAMS.most_turned], rests[: PARAMS.most_turned])
            return [turned_around(base.network, turned, *pair) for pair in pairs]

    def _gathers(self, base: TreePacking, limits: Limits) -> list[OrderChoice]:
        """Plans of an AllGather, the fastest first."""
        demand = replace(self.demand, kind=Kind.ALLGATHER, topology=base.network.problem.topology)
        run = _TreesRun(demand, TreeSearch(limits, StagesOnly(self.work.events), self.work))
        run.bound = run._bound(base)
        return run._search(base, None)

    def _on_shallow_trees(self, base: TreePacking) -> list[OrderChoice]:
        """Tapering plans on trees from one root each."""
        counts = usable_counts(self.demand)
        with self.work.stage("packing"):
            piece_mb = self._shard_mb / PARAMS.usual_shard_pieces
            machines = shallow_machines(base.network, base.packing, piece_mb, self.work.over)
        found = self._on_rails(base.network) if machines[0].straight else []
        if found and base.network.num_places > PARAMS.few_places:
            # Trees of the whole machine have not been better where they are many, and take long.
            machines = []
        with self.work.stage("packing"):
            candidates: list[TaperedTreeSet] = []
            if machines and not machines[0].straight:
                # Where links between nodes decide, whole trees are even enough.
                known = (*base.packing.known, *varied_trees(base.network, piece_mb, self.work.over))
                finder = SharedTreeSetFinder(base.network, base.packing, known, self.work.left())
                candidates = [uneven_tree_set(shared) for shared in shared_tree_sets(finder.find)]
        with self.work.stage("rounding"):
            for machine in machines:
                candidates += even_tree_sets(machine, self.work.over)
        with self.work.stage("order"):
            for candidate in candidates:
                best = TaperSearch(base.network, candidate, self._piece_bytes, counts, self.work.over).best()
                found += [] if best is None else [best]
        return found

    def _on_rails(self, network: CapacityNetwork) -> list[OrderChoice]:
        """The best plan in which only roots send to other nodes, if there is one."""
        rails = TreeRails.of(network)
        if rails is None:
            return []
        with self.work.stage("rails"):
            best = RailSearch(rails, self._piece_bytes, usable_counts(self.demand), self.work.over).best()
        return [] if best is None else [best]

    @property
    def _is_free(self) -> bool:
        """True if numbers of trees and chunks may be chosen, and sizes."""
        return self.trees is None and self.demand.chunks_per_rank is None and self.demand.sketch is None

    def _is_long(self, network: CapacityNetwork) -> bool:
        """True if what is sent takes much longer than the alphas of some messages."""
        return self.bound.time_us >= PARAMS.long_alphas * float(network.least_message_us.max())

    def _is_enough_to_better(self, found: list[OrderChoice]) -> bool:
        """True if no more plans are wanted, also as what is left of the time is for making the best one better, where that may pay."""
        is_small = bool(found) and self._is_free and len(best_of(found).transfers) <= PARAMS.most_sized_messages
        return self._is_enough(found) or (is_small and self.work.left_part <= PARAMS.bettering_part)

    def _is_enough(self, found: list[OrderChoice]) -> bool:
        """True if the search may end: its time is up, or there is next to nothing to gain."""
        if not found:
            return False
        return self.work.over() or self._is_near(best_of(found).plan)

    def _piece_bytes(self, pieces: int) -> float:
        return self.demand.chunk_bytes(self.demand.collective(pieces))

    @property
    def _shard_mb(self) -> float:
        """Size of what every root has."""
        return self._piece_bytes(1) / BYTES_PER_MB

    def _promising(self, base: TreePacking) -> list[int]:
        """Numbers of trees for each root to try: the most even ones first, and the smallest ones, which are best for small sizes."""
        numbers = self._numbers_of_parts(base.network)
        numbers.sort(key=lambda parts: (round(base.least_load_us(parts), DIGITS), parts))
        made = list[int]()
        if base.network.num_places <= PARAMS.few_places:
            # Trees are of no use before their messages have an order.
            for parts in until(self.work.left(PARAMS.rounding_part).countdown(), numbers):
                base.tree_set(parts)
                made.append(parts)
            made.sort(key=lambda parts: (round(base.tree_set(parts).load_us, DIGITS), parts))
        numbers = list(dict.fromkeys([*made, *numbers]))
        kept = list(dict.fromkeys([*numbers[: PARAMS.most_tree_counts], *sorted(numbers)[: PARAMS.small_tree_counts]]))
        # Of few trees each has more pieces, which follow each other sooner.
        first = [parts for parts in kept if parts in made]
        first.sort(key=lambda parts: base.tree_set(parts).load_us * (1 + PARAMS.tree_price * parts))
        return [*first, *(parts for parts in kept if parts not in made)]

    def _light(self, base: TreePacking) -> list[int]:
        """Numbers of trees to try on a direct machine: those with less load than all smaller numbers first, the least load first."""
        lighter: list[int] = []
        loads: dict[int, float] = {}
        for parts in self._numbers_of_parts(base.network):
            if parts * base.network.num_places > PARAMS.most_grown_places:
                break
            loads[parts] = base.least_load_us(parts)
            if not lighter or loads[parts] < loads[lighter[0]] * (1 - ROUNDED):
                lighter.insert(0, parts)
        others = sorted((parts for parts in loads if parts not in lighter), key=lambda parts: (loads[parts], parts))
        return [*lighter, *others] if base.network.num_places < PARAMS.very_few_places else lighter

    def _numbers_of_parts(self, network: CapacityNetwork) -> list[int]:
        """Numbers of trees for each root that are possible."""
        if self.trees is not None:
            return [self.trees]
        wanted = self.demand.chunks_per_rank
        most = min(_most_pieces(network), max(1, PARAMS.most_messages // network.num_places))
        return [parts for parts in PARAMS.tree_counts if parts <= most and (wanted is None or wanted % parts == 0)]

    def _numbers_of_cuts(self, base: TreePacking, tree_sets: Sequence[TreeSet]) -> list[int]:
        """Numbers of pieces of each tree's data to try: where it is known about how many are best, coarser ones only to choose rules."""
        possible = self._possible_cuts(base.network, tree_sets)
        if not (base.is_direct and base.network.is_single) or len(possible) == 1:
            return possible
        best = self._promise(base.network, tree_sets).pieces / tree_sets[0].parts
        coarse, fine = (
            sorted(set(possible) & set(some))
            for some in (PARAMS.coarse_piece_counts, [c for c in possible if c >= best * PARAMS.least_promised_part])
        )
        return [cuts for cuts in coarse if cuts < fine[0]] + fine if fine else possible

    def _possible_cuts(self, network: CapacityNetwork, tree_sets: Sequence[TreeSet]) -> list[int]:
        """Numbers of pieces of each tree's data, which goes in one direction or two."""
        wanted, parts = self.demand.chunks_per_rank, tree_sets[0].parts
        if wanted is not None:
            return [wanted // parts]
        num_transfers = len(tree_sets) * len(network.roots) * (network.num_ranks - 1) * parts
        most_loaded = (MAX_XML_NODES - network.num_ranks) * PARAMS.step_part
        most = min(
            _most_pieces(network) // parts,
            PARAMS.most_tree_messages // num_transfers,
            PARAMS.most_messages // (num_transfers * len(network.images)),
            int(most_loaded / _busiest(network, tree_sets)),
        )
        return [cuts for cuts in PARAMS.piece_counts if cuts <= max(1, most)]

    def _bound(self, base: TreePacking) -> Bound:
        """Best of what holds for every algorithm on the machine and, per megabyte, for every packing under the sketch's restrictions."""
        bound = self.known_bound or self._bound_of(self.demand.kind)
        if self.demand.kind is Kind.ALLREDUCE:
            return bound
        if base.is_direct and self.demand.sketch is None:
            # There the worst cut says as much.
            return bound
        packed_us = base.packing.bound_us * self._shard_mb
        packed = Bound(packed_us, "bandwidth: the best fractional packing of spanning trees")
        return raised(bound, [packed])

    def _bound_of(self, kind: Kind) -> Bound:
        """Best of what holds for every algorithm for a collective of the demand's size."""
        demand = self.demand
        collective = demand.collective(1)
        size_bytes = demand.chunk_bytes(collective) * collective.chunks_per_size
        limits = self.work.left()
        with self.work.stage("bound"):
            return demand_bound(demand.topology, kind, demand.root, size_bytes, limits)


def _is_gaining(found: list[OrderChoice]) -> bool:
    """True if the last finer pieces saved so much that still finer ones are worth more than what is left of the time can save."""
    if len(found) < 2:
        return bool(found)
    before, last = found[-2:]
    return last.plan.end_us < before.plan.end_us * (1 - PARAMS.finer_gain)


def _with_prospects(ranked: Sequence[DispatchRule]) -> tuple[DispatchRule, ...]:
    """Rules for finer pieces: what was among the slower half will be so again, but for those that come into their own there."""
    most = max(PARAMS.fewest_rules, (len(ranked) + 1) // 2)
    return (*ranked[:most], *(rule for rule in ranked[most:] if rule.paced))


def _busiest(network: CapacityNetwork, tree_sets: Sequence[TreeSet]) -> int:
    """Messages that a rank sends and receives, at most, if every tree's data is one piece."""
    links = np.concatenate([tree.used() for tree_set in tree_sets for tree in tree_set.trees])
    of_trees = np.bincount(np.concatenate([network.src[links], network.dst[links]]), minlength=network.num_ranks)
    return int(sum(of_trees[image] for image in network.images).max())


def _grown(bases: Sequence[TreePacking], parts: int, seed: int) -> list[TreeSet]:
    """Direct trees, and backwards; nothing if there are none, or no time."""
    found = [tree_set for one in bases if (tree_set := one.grown(parts, seed)) is not None]
    return found if len(found) == len(bases) else []


def _most_pieces(network: CapacityNetwork) -> int:
    return PARAMS.most_pieces_of_one_root if network.is_single else PARAMS.most_pieces

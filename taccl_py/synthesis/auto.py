"""Engine ``auto``: a race of the engines that can win at a size.

The chunk count is part of the race. Answers with different chunks are compared by time only, and the bound is one that holds
for every algorithm on the machine, however it cuts its data.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from taccl_py.collective import Kind
from taccl_py.errors import LimitReached, TacclError
from taccl_py.schedule.ir import Origin
from taccl_py.synthesis.bounds import Bound, raised
from taccl_py.synthesis.catalog import load_engine
from taccl_py.synthesis.damage.healing import healed, healed_by_sort
from taccl_py.synthesis.damage.simpler import levelled_lanes, simpler_machines
from taccl_py.synthesis.engine import Demand, Events, Options, Proof, Synthesis, unlike
from taccl_py.synthesis.known import known_bound
from taccl_py.synthesis.params import COMMON
from taccl_py.synthesis.race import DIED, EngineRun, RaceOutcome, Racer, SecondRuns
from taccl_py.synthesis.suggest import connection_sketches
from taccl_py.synthesis.templates.site import TemplateSite
from taccl_py.tolerances import CLOSE_TO_BOUND
from taccl_py.topology.model import Topology
from taccl_py.topology.translations import Translations, translations_of


@dataclass(frozen=True)
class Params:
    """Numbers of engine ``auto``.

    Attributes
    ----------
    enough_gap
        Part of the bound above it within which an answer ends the race of all engines, and the runs behind it that have begun: then no engine
        alone is faster by more. Measured: AllToAll of 256 MB on two ND H100 v5 nodes, 15 -> 2.6 s, the same answer.
    least_process_seconds
        Seconds that must be left for other processes to be started once there is an answer; to start takes about as
        long. Guess.
    least_leading_seconds
        The same where a leading engine is still to run, which is else run alone in this process. Guess.
    mending_part
        Part of the time for the run that mends plans of a whole machine for a damaged one. Guess.
    mending_part_of_sorts
        The same where nodes are slow as a whole, as those of an older generation are: then other engines may be ahead. Measured:
        ndv2-x2+ndv4-x2, AllReduce of 256 MiB, `--effort quick`, 32.3 -> 30.7 ms.
    quick_part
        Part of the time for each run that is soon done. Guess.
    first_answer_part
        The same where they are far behind others, and only give a first answer. Guess.
    leading_part
        Part of the time for a leading run where templates are left out. Guess.
    searching_part
        Part of the time for a run of engine ``milp``, which is asked several times; engines that are asked once may take all, and so may its
        first run under a budget of work. Measured:
        AllReduce of 16 MiB on a mesh of 4 x 4, 295.1 us with 0.25, 288.7 with 0.5; what most runs find does not depend on it.
    least_left
        Time that must be left for a race, as a part of what the quick engines took: on a large machine every engine takes long to begin
        with. Measured: AllReduce of 16 MiB on hpn:16 ends in 2.1 s with a limit of 1 s, and in 4.3 s without this.
    far_gap
        Part of the bound above it beyond which there is a race however little of a budget of work is left. Measured: AllReduce of 256 MiB on
        a torus of 8 x 8, `--effort quick`, where templates take most of the work, 5124 -> 2683 us.
    node_bytes_without_templates
        Bytes for each node and microsecond of the least message between nodes from which templates are left out on nodes whose ranks are all
        linked: 256 KiB with 2.6 us. Measured: from there on no template is faster than engine hierarchy, for any collective but AllToAll, on
        two, four and eight ND A100 v4 nodes, two and four ND H100 v5 and HPN, two MI300X and DGX-2 (AllReduce of 64 MiB on eight ND A100 v4
        nodes in 5 s, 996 -> 648 us); with 64 KiB Broadcast on four HPN nodes is 22 % faster by templates.
    most_pairs
        Pairs of chunk and link up to which engine ``milp`` gets several chunks per rank: it solves about as many in a
        second. Guess.
    most_pairs_of_one_chunk
        Pairs up to which it gets one chunk per rank under a sketch. Guess.
    most_free_pairs
        The same without one. Measured: beyond, on 32 to 72 ranks of nine machines, 1 KiB to 16 MiB of four collectives, it was
        nowhere faster than all others, in ten seconds and more of each search.
    first_chunk_counts
        Chunks per rank that engine ``milp`` gets in its first run. Guess.
    second_chunk_counts
        Chunks per rank that it gets in second runs; there may be time for the first of them only. Measured: of 24 instances of the matrix of
        `scripts/bench ablate` where milp was ahead of other engines, four chunks were best at eight, two at three and one at five.
    greedy_ranks
        Ranks of irregular machines on which engine ``greedy`` runs: on fewer, others search everything; on more, it
        takes longer than a race. Guess.
    greedy_ranks_of_one_node
        The same for one node whose links differ. Measured: MI250X, AllGather of 16 MiB, 66.5 -> 60.3 us; dgx1 without link 0-3 and with 0.3 of
        link 4-7, AllReduce of 16 MiB, 241.2 -> 231.4 us.
    greedy_ranks_of_sparse_nodes
        The same for nodes inside which not all ranks are linked. Measured: two MI250X nodes, AllGather of 4 MiB, 33.6 -> 28.6 us. It begins
        before trees there, and for much data templates get little time. Measured: AllReduce of 16 MiB on the same, `--effort quick`, 215.9
        -> 147.5 us.
    most_greedy_ranks_of_rooted
        Ranks over nodes up to which engine ``greedy`` runs for Broadcast and Reduce, in up to four seconds. Measured:
        two ND A100 v4 nodes, 64 KiB, 5.75 -> 5.14 us.
    most_greedy_bytes_of_rooted
        Bytes up to which it does so where all ranks of a node are linked. Guess.
    most_greedy_ranks_in_a_node
        Ranks of one node up to which engine ``greedy`` runs for Broadcast and Reduce. Guess.
    most_greedy_bytes_in_a_node
        Bytes up to which it does so. Guess.
    most_steps_ranks_in_a_node
        Ranks of one node up to which engine ``steps`` runs for Broadcast and Reduce. Guess.
    most_steps_bytes_in_a_node
        Bytes up to which it does so. Guess.
    most_packed_ranks
        Ranks over nodes up to which trees are packed and all templates tried, in some seconds; more are left to engine
        ``hierarchy``, except for what one root has for all. Measured: 512 H800, AllGather of 1 MiB, 168.6 -> 14.3 us.
    """

    enough_gap: float = 0.005
    least_process_seconds: float = 1.0
    least_leading_seconds: float = 3.0
    mending_part: float = 0.9
    mending_part_of_sorts: float = 0.5
    quick_part: float = 0.5
    first_answer_part: float = 0.1
    leading_part: float = 0.8
    searching_part: float = 0.5
    least_left: float = 0.3
    far_gap: float = 0.5
    node_bytes_without_templates: float = (1 << 18) / 2.6
    most_pairs: int = 200_000
    most_pairs_of_one_chunk: int = 2_000_000
    most_free_pairs: int = 100_000
    first_chunk_counts: tuple[int, ...] = (1,)
    second_chunk_counts: tuple[int, ...] = (4, 2)
    greedy_ranks: range = range(32, 513)
    greedy_ranks_of_one_node: range = range(4, 32)
    greedy_ranks_of_sparse_nodes: range = range(17, 33)
    most_greedy_ranks_of_rooted: int = 64
    most_greedy_bytes_of_rooted: int = 8 << 20
    most_greedy_ranks_in_a_node: int = 32
    most_greedy_bytes_in_a_node: int = 8 << 20
    most_steps_ranks_in_a_node: int = 8
    most_steps_bytes_in_a_node: int = 1 << 20
    most_packed_ranks: int = 128


PARAMS = Params()

# The engine for nodes, the one that is asked several times, and engines whose own bounds hold however data is cut.
_HIERARCHY, _SEARCHING = "hierarchy", "milp"
_PROVING = frozenset({_HIERARCHY, "trees", "flow"})
# What is soon done goes first, in this process: other processes are not started for what it answers, nor for so few seconds as they
# take to start, or in which a leading run is better carried out in this one.
_QUICK = ("templates",)


def first_runs(demand: Demand) -> list[EngineRun]:
    """Runs that find the best answer for most sizes; on few processors the last ones may not be begun."""
    leading = leading_runs(demand)
    others = [*searching_runs(demand), *constructive_runs(demand), *quick_runs(demand)]
    return [*leading, *(run for run in others if run not in leading)]


def searching_runs(demand: Demand) -> list[EngineRun]:
    """First runs that use all the time they get."""
    return _milp_runs(demand, PARAMS.first_chunk_counts) if _is_searched(demand) else []


def constructive_runs(demand: Demand) -> list[EngineRun]:
    """First runs that end after some seconds."""
    if _hierarchy_replaces_trees(demand):
        return []
    packed = EngineRun("flow" if demand.kind in (Kind.ALLTOALL, Kind.GATHER, Kind.SCATTER) else "trees", demand)
    runs = [] if packed in left_out_runs(demand) else [packed]
    if _is_rooted_within(demand, PARAMS.most_steps_ranks_in_a_node, PARAMS.most_steps_bytes_in_a_node):
        runs.append(EngineRun("steps", demand))
    quick = any(run.engine == "greedy" for run in quick_runs(demand))
    greedy = [EngineRun("greedy", demand)] if _is_for_greedy(demand) and not quick else []
    return [*greedy, *runs] if _has_sparse_nodes(demand.topology) else [*runs, *greedy]


def quick_runs(demand: Demand) -> list[EngineRun]:
    """First runs that end after a second or two."""
    templates = EngineRun("templates", demand)
    runs = [] if templates in left_out_runs(demand) else [templates]
    if _has_hierarchy(demand):
        runs.append(EngineRun(_HIERARCHY, demand))
        # Data from one root is worth a search for the path to each rank, unless it is much and its path plain.
        rooted = (
            demand.kind in (Kind.BROADCAST, Kind.REDUCE)
            and demand.topology.num_ranks <= PARAMS.most_greedy_ranks_of_rooted
        )
        if rooted and (
            demand.size_bytes <= PARAMS.most_greedy_bytes_of_rooted or not _hierarchy_replaces_trees(demand)
        ):
            runs.append(EngineRun("greedy", demand))
    if _is_rooted_within(demand, PARAMS.most_greedy_ranks_in_a_node, PARAMS.most_greedy_bytes_in_a_node):
        runs.append(EngineRun("greedy", demand))
    return runs


def _is_rooted_within(demand: Demand, ranks: int, size_bytes: int) -> bool:
    """True if it is a Broadcast or Reduce on one node of at most so many ranks, and bytes."""
    topology = demand.topology
    is_free = demand.kind in (Kind.BROADCAST, Kind.REDUCE) and demand.sketch is None
    return is_free and topology.num_nodes == 1 and topology.num_ranks <= ranks and demand.size_bytes <= size_bytes


def leading_runs(demand: Demand) -> list[EngineRun]:
    """Quick runs that are seldom beaten by far, with which the others are compared."""
    return [EngineRun(_HIERARCHY, demand)] if _has_hierarchy(demand) else []


def mending_runs(demand: Demand) -> list[EngineRun]:
    """The run that goes before all others where links or ports are slow or gone: it alone knows the machine as it was."""
    if not _has_hierarchy(demand):
        return []
    topology = demand.topology
    is_damaged = any(whole(topology) is not None for whole in (healed, healed_by_sort)) or any(
        simpler_machines(topology)
    )
    return leading_runs(demand) if is_damaged else []


def _has_hierarchy(demand: Demand) -> bool:
    """True if engine hierarchy takes part."""
    return demand.topology.num_nodes > 1 and demand.sketch is None and demand.kind not in (Kind.GATHER, Kind.SCATTER)


def left_out_runs(demand: Demand) -> list[EngineRun]:
    """Runs that take long on so many ranks, or are no better than engine hierarchy, and are for where that finds nothing."""
    if not _has_hierarchy(demand):
        return []
    rooted, ranks = demand.kind in (Kind.BROADCAST, Kind.REDUCE), demand.topology.num_ranks
    engines = ["templates"] if _hierarchy_replaces_templates(demand) else []
    if rooted and _hierarchy_replaces_trees(demand) and ranks < PARAMS.greedy_ranks.stop:
        engines += ["trees", "greedy"]
    elif not rooted and ranks > PARAMS.most_packed_ranks:
        engines = ["templates"] if demand.kind is Kind.ALLTOALL else ["templates", "trees"]
    searching = (
        _milp_runs(demand, PARAMS.first_chunk_counts)
        if ranks <= PARAMS.most_packed_ranks and _hierarchy_replaces_milp(demand)
        else []
    )
    return [*(EngineRun(engine, demand) for engine in engines), *searching]


def _hierarchy_replaces_templates(demand: Demand) -> bool:
    """True if all ranks of a node are linked and there is enough data for pipelines over lanes, which no template is near."""
    topology = demand.topology
    is_free = demand.kind is not Kind.ALLTOALL and demand.chunks_per_rank is None
    return is_free and _is_large(demand) and TemplateSite(topology, 0.0).linked_inside_nodes


def _is_large(demand: Demand) -> bool:
    """True if there are several nodes and enough data for pipelines between them, which no template is near."""
    topology = demand.topology
    nodes = topology.node_of
    far = next((i for i, link in enumerate(topology.links) if nodes[link.src] != nodes[link.dst]), None)
    if far is None:
        return False
    per_us = PARAMS.node_bytes_without_templates * topology.num_nodes
    return demand.size_bytes >= per_us * topology.message_us(far, 0)


def _hierarchy_replaces_trees(demand: Demand) -> bool:
    """True if engine hierarchy packs what one root has for all, so that trees are no better and only take longer."""
    topology = demand.topology
    rooted = demand.kind in (Kind.BROADCAST, Kind.REDUCE) and demand.sketch is None
    return rooted and topology.num_nodes > 1 and TemplateSite(topology, 0.0).linked_inside_nodes


def _is_searched(demand: Demand) -> bool:
    """True if a search for the path of every chunk has a chance: not for what one root has for all on very many ranks of nodes."""
    is_small = demand.topology.num_ranks <= PARAMS.most_packed_ranks
    return not _hierarchy_replaces_milp(demand) and (is_small or not _hierarchy_replaces_trees(demand))


def _hierarchy_replaces_milp(demand: Demand) -> bool:
    """True if nodes are alike, but for AllToAll.

    Measured: AllGather, AllReduce and Broadcast of 64 KiB to 16 MiB on two nodes of ndv4, ndv2, MI300X and MI250X, and on 2 or 4 GPUs of
    each of two or three nodes of ndv4, 57 instances: engine milp was nowhere faster than the best of the others, with one chunk, and, in 34
    of them, with two or four chunks or under a sketch.
    """
    is_free = demand.kind is not Kind.ALLTOALL and demand.chunks_per_rank is None
    found = translations_of(demand.topology) if is_free and _has_hierarchy(demand) else None
    return found is not None and _takes_nodes_to_each_other(demand.topology, found)


def _takes_nodes_to_each_other(topology: Topology, translations: Translations) -> bool:
    return len({topology.node_of[rank] for rank in translations.rank_at[0].tolist()}) == topology.num_nodes


def _is_for_greedy(demand: Demand) -> bool:
    """True if greedy is quick, and nothing else follows links as they are, on a machine that is too large to search.

    That is so where links are missing or slow or nodes differ, between nodes of equally many ranks in AllReduce alone, where sums go to
    who has most bandwidth, and in AllToAll, whose paths it chooses one by one; and, but for AllToAll, on one node of fewer ranks whose links
    differ, and between few nodes inside which not all ranks are linked.
    """
    topology = demand.topology
    if demand.sketch is not None:
        return False
    if _has_sparse_nodes(topology):
        return demand.kind is not Kind.ALLTOALL
    if topology.num_nodes == 1 and topology.num_ranks in PARAMS.greedy_ranks_of_one_node:
        return len({link.beta_us_per_mb for link in topology.links}) > 1 and demand.kind is not Kind.ALLTOALL
    is_quick = not topology.has_even_nodes or topology.num_nodes == 1 or demand.kind in (Kind.ALLREDUCE, Kind.ALLTOALL)
    found = translations_of(topology)
    return topology.num_ranks in PARAMS.greedy_ranks and is_quick and (found is None or not found.is_regular)


def _has_sparse_nodes(topology: Topology) -> bool:
    """True if there are a few nodes inside which not all ranks are linked."""
    is_few = topology.num_nodes > 1 and topology.num_ranks in PARAMS.greedy_ranks_of_sparse_nodes
    return is_few and not TemplateSite(topology, 0.0).linked_inside_nodes


def _is_far_from_templates(demand: Demand) -> bool:
    """True if templates are far behind paths that follow the links inside nodes, and are for a first answer alone."""
    is_sparse = demand.kind is not Kind.ALLTOALL and _has_sparse_nodes(demand.topology)
    return is_sparse and _is_large(demand)


def second_runs(demand: Demand) -> list[EngineRun]:
    """Runs for where the first ones leave a gap: narrower searches, and finer chunks."""
    if not _is_searched(demand):
        return []
    finer = [] if demand.chunks_per_rank is not None else _milp_runs(demand, PARAMS.second_chunk_counts)
    return [*_sketched_runs(demand), *finer]


def _sketched_runs(demand: Demand) -> list[EngineRun]:
    """The milp engine with what a person would say of who talks between nodes: restricted, it gets further in the same time."""
    count = demand.chunks_per_rank or 1
    pairs = demand.collective(count).num_chunks * len(demand.topology.links)
    if demand.sketch is not None or demand.topology.num_nodes == 1 or pairs > PARAMS.most_pairs_of_one_chunk:
        return []
    return [
        EngineRun(_SEARCHING, replace(demand, chunks_per_rank=count, sketch=sketch), asked=demand)
        for sketch in connection_sketches(demand, count)  # the narrowest first: they are soon done
    ]


def _milp_runs(demand: Demand, counts: tuple[int, ...]) -> list[EngineRun]:
    if demand.chunks_per_rank is not None:
        return [EngineRun(_SEARCHING, demand)]
    # Finer chunks may be more than can be written down, which is no reason to count them in vain.
    pairs = demand.collective(1).num_chunks * len(demand.topology.links)
    most = PARAMS.most_free_pairs if demand.sketch is None else PARAMS.most_pairs_of_one_chunk
    return [
        EngineRun(_SEARCHING, replace(demand, chunks_per_rank=count), asked=demand)
        for count in counts
        if count * pairs <= (most if count == 1 else PARAMS.most_pairs)
    ]


def synthesize_auto(demand: Demand, options: Options, events: Events) -> Synthesis:
    """Engine entry point; see `taccl_py.synthesis.engine.Engine`."""
    begun = time.monotonic()
    bound = known_bound(demand, options)
    events.bound(bound.time_us)
    auto = _AutoRun(demand, options, events, bound)
    quick = auto.search()
    if not auto.answers and DIED in auto.reasons:
        raise LimitReached(f"no engine has an answer: {DIED}; ask for fewer chunks")
    if not auto.answers:
        auto.answers.append(_late_answer(quick, demand, replace(options, bound=auto.bound), events))
    return _joined(auto.answers, auto.bound, time.monotonic() - begun)


@dataclass
class _AutoRun:
    """One call of the engine.

    Attributes
    ----------
    bound
        The best one that is proved so far.
    answers
        Answers so far, the fastest first.
    reasons
        Why runs had none.
    """

    demand: Demand
    options: Options
    events: Events
    bound: Bound
    answers: list[Synthesis] = field(default_factory=list)
    reasons: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._seconds, self._deadline = self.options.limits.seconds, self.options.limits.deadline()
        self._first = first_runs(self.demand)

    def search(self) -> list[EngineRun]:
        """Run what is well ahead of others or soon done, then race for what may be faster; runs that soon have some answer are returned."""
        before = self._deadline.left
        part, runs = self._runs_before_others()
        is_closed = self._run(self._racer(part), runs)
        spent = before - self._deadline.left
        may_race = not self.answers or self._deadline.left >= PARAMS.least_left * spent
        if self.options.limits.by_work and not may_race:
            may_race = not _is_close(self.answers[0], self.bound, PARAMS.far_gap)
        if self.options.limits.by_work and all(run.engine in _QUICK for run in runs):
            # What they count is not taken from others, which with less than alone may just miss their best answers.
            self._deadline = self.options.limits.deadline()
        if self._deadline.left and may_race and not is_closed:
            self._race([run for run in self._first if run not in runs])
        return runs or leading_runs(self.demand)

    def _runs_before_others(self) -> tuple[float, list[EngineRun]]:
        """Runs that go first, alone, and the part of the time for each of them."""
        mending = mending_runs(self.demand)
        if mending:
            is_less_than_a_node = levelled_lanes(self.demand.topology) is None
            return PARAMS.mending_part if is_less_than_a_node else PARAMS.mending_part_of_sorts, mending
        quick = [run for run in self._first if run.engine in _QUICK]
        if quick:
            is_far = _is_far_from_templates(self.demand)
            return PARAMS.first_answer_part if is_far else PARAMS.quick_part, quick
        # Where lanes do not match, a leading run may be far behind others, which then need the time as well.
        return PARAMS.leading_part, leading_runs(self.demand) if self.demand.topology.has_even_nodes else []

    def _racer(self, part: float, workers: int = 1) -> Racer:
        """One for the time that is left, each run of which may take a part of the whole time."""
        left = replace(self.options, limits=self.options.limits.within(self._deadline.left))
        return Racer(left, self._seconds * part, workers, has_answer=bool(self.answers))

    def _race(self, runs: list[EngineRun]) -> None:
        """Race first runs, and second ones; those that engine hierarchy replaces only if that has no answer."""
        workers = self.options.limits.workers
        leading = [run for run in runs if run in leading_runs(self.demand)]
        least = PARAMS.least_leading_seconds if leading else PARAMS.least_process_seconds
        # By counted work it does not matter what it takes to start processes.
        if self.answers and self._deadline.left < least and not self.options.limits.by_work:
            runs, workers = leading, 1
        with self._racer(1.0, workers).running() as racer:
            second = _shared_out(second_runs(self.demand), PARAMS.searching_part)
            replaced = [run for run in left_out_runs(self.demand) if run not in self._first]
            left_out = [] if self._has_answer_of(_HIERARCHY) else replaced
            first_part = 1.0 if self.options.limits.by_work else PARAMS.searching_part
            is_closed = self._run(racer, _shared_out(runs, first_part), [] if left_out else second)
            if left_out and not is_closed and not racer.over:
                self._run(racer, [] if self._has_answer_of(_HIERARCHY) else left_out, second)

    def _run(self, racer: Racer, runs: list[EngineRun], second: Sequence[EngineRun] = ()) -> bool:
        """Carry out runs, and say whether nothing is much faster than the best answer so far."""
        first, others = ([replace(run, bound=self.bound) for run in some] for some in (runs, second))
        needed = SecondRuns(others, partial(_are_close, self.bound, tuple(self.answers[:1])))
        outcomes = racer.race(first, self.events, partial(_is_enough, self.bound), needed)
        self.bound = _raised(self.bound, outcomes)
        self.reasons.update(outcome.reason for outcome in outcomes)
        seed = self.options.limits.seed
        self.answers += [_signed(one.synthesis, one.run, seed) for one in outcomes if one.synthesis is not None]
        self.answers.sort(key=lambda answer: answer.schedule.makespan_us)
        if self.answers:
            self.events.incumbent(self.answers[0].schedule.makespan_us)
        return bool(self.answers) and _is_close(self.answers[0], self.bound, PARAMS.enough_gap)

    def _has_answer_of(self, engine: str) -> bool:
        origins = [answer.schedule.origin for answer in self.answers]
        return any(origin is not None and origin.engine == engine for origin in origins)


def _shared_out(runs: Sequence[EngineRun], part: float) -> list[EngineRun]:
    """Runs in the order of a race: those of the engine that is asked several times come last, each with a part of the time."""
    found = [replace(run, part=part) if run.engine == _SEARCHING else run for run in runs]
    return sorted(found, key=lambda run: run.engine == _SEARCHING)


def _late_answer(quick: list[EngineRun], demand: Demand, options: Options, events: Events) -> Synthesis:
    """First answer where time was over before one came: of an engine that is soon done, else of engine milp, for its error if nothing else."""
    for run in quick:
        with suppress(TacclError):
            return _signed(load_engine(run.engine)(run.demand, options, events), run, options.limits.seed)
    return load_engine(_SEARCHING)(demand, options, events)


def _is_enough(bound: Bound, outcome: RaceOutcome) -> bool:
    """True if nothing is much faster than what a run found, by the bound or a better one that it proved."""
    return outcome.synthesis is not None and _is_close(outcome.synthesis, _raised(bound, [outcome]), PARAMS.enough_gap)


def _are_close(bound: Bound, answers: Sequence[Synthesis], outcomes: Sequence[RaceOutcome]) -> bool:
    """True if something that was found, or an answer, is so close to the bound, as far as it is proved, that it is not searched for better ones."""
    known = _raised(bound, outcomes)
    found = [outcome.synthesis for outcome in outcomes if outcome.synthesis is not None]
    return any(_is_close(answer, known, CLOSE_TO_BOUND) for answer in [*answers, *found])


def _is_close(answer: Synthesis, bound: Bound, gap: float) -> bool:
    return answer.schedule.makespan_us <= bound.time_us * (1 + gap)


def _raised(bound: Bound, outcomes: Sequence[RaceOutcome]) -> Bound:
    """The bound, or a better one that an engine proved for however data is cut, and for no other sketch than the demand's."""
    free = [o for o in outcomes if o.run.engine in _PROVING and o.run.asked is None]
    found = [o.synthesis.bound for o in free if o.synthesis is not None]
    return raised(bound, found)


def _signed(answer: Synthesis, run: EngineRun, seed: int) -> Synthesis:
    """The answer, on whose schedules it is written which run they are from."""
    sketch = run.demand.sketch.name if run.demand.sketch is not None else ""
    bound = answer.bound
    origin = Origin(run.engine, answer.solver, sketch, seed, str(answer.proof), bound.time_us, bound.reason)
    others = tuple(schedule.with_origin(replace(origin, status=str(Proof.FEASIBLE))) for schedule in answer.runners_up)
    return replace(answer, schedule=answer.schedule.with_origin(origin), runners_up=others)


def _joined(answers: list[Synthesis], bound: Bound, seconds: float) -> Synthesis:
    """The best answer, with the next best ones of all engines as runners-up, and the best of each, if no runtime has room for those."""
    best = answers[0]
    fastest_us = best.schedule.makespan_us
    near = [schedule for answer in answers for schedule in (answer.schedule, *answer.runners_up)][1:]
    near = sorted(
        (s for s in near if s.makespan_us <= fastest_us * COMMON.runner_up_factor), key=lambda s: s.makespan_us
    )
    near = unlike([best.schedule, *near])[1 : COMMON.most_runners_up + 1]
    near += [answer.schedule for answer in answers[1:] if not any(answer.schedule is other for other in near)]
    return Synthesis.of([best.schedule, *near], bound, best.solver, {"race": seconds})

"""Work: carry out cases, several at a time, and take from the store what is there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from taccl_py.api.demands import demand_seconds
from taccl_py.api.lowering import deliver
from taccl_py.api.policy import AUTO, budget
from taccl_py.api.search import search_for
from taccl_py.campaign.case import Case
from taccl_py.campaign.demand_case import AnyCase, DemandCase
from taccl_py.campaign.store import Kept, Store, digest, machine_digest
from taccl_py.errors import Interrupted, TacclError
from taccl_py.lowering.lower import LoweringOptions
from taccl_py.pipeline.demands import synthesize_demand
from taccl_py.report.demands import demand_record
from taccl_py.report.tables import RESULT_FORMAT, record
from taccl_py.runtimes import RUNTIMES
from taccl_py.schedule.demand_files import write_demand_schedule
from taccl_py.schedule.files import write_schedule
from taccl_py.simulate.demand_replay import replay_demand
from taccl_py.solvers.cluster import connect
from taccl_py.solvers.limits import STOP, Limits
from taccl_py.solvers.processes import start_workers
from taccl_py.synthesis.engine import Events

# Searches end by their own limits long before; an answer that the clock has ended would not be the same everywhere.
GUARD_SECONDS = 3600.0
_POLL_SECONDS = 0.2
# Error of what the user's interrupt has kept from being finished.
INTERRUPTED = "interrupted"
# Cases not finished at an interrupt have no result, so they are only waited for as long as a finished result takes to be written.
_WRITING_SECONDS = 1.0


@dataclass(frozen=True)
class CaseOutcome:
    """Outcome of a case.

    Attributes
    ----------
    case
        It.
    key
        Of its result; empty if topology or sketch is wrong.
    kept
        Its result, or None.
    error
        Why there is no result.
    computed
        Whether it was computed now, and not found in the store.
    """

    case: AnyCase
    key: str
    kept: Kept | None
    error: str = ""
    computed: bool = False


@dataclass(frozen=True, slots=True)
class Force:
    """Processes that do the work.

    Attributes
    ----------
    workers
        Processes here; 1 does everything in this one.
    scheduler
        Address of a Dask scheduler, whose workers do it instead; empty for none.
    """

    workers: int = 1
    scheduler: str = ""


def carry_out(
    cases: Sequence[AnyCase],
    store: Store | None,
    force: Force,
    stop: threading.Event,
    done: Callable[[CaseOutcome], None],
) -> list[CaseOutcome]:
    """Carry out cases, several at a time; what is in the store is not computed again.

    Parameters
    ----------
    cases
        All.
    store
        Where results are looked for and kept, or None.
    force
        Who does it.
    stop
        Set by the user's interrupt: what is not finished then has no result.
    done
        Called for every outcome as soon as it is there.

    Returns
    -------
    list[CaseOutcome]
        One for every case, in their order, whoever was first.
    """
    found: dict[int, CaseOutcome] = {}
    todo: list[int] = []
    for index, case in enumerate(cases):
        known = known_outcome(case, store)
        if known is None:
            todo.append(index)
        else:
            found[index] = known
            done(known)
    if force.scheduler and todo:
        outcomes = _on_cluster(cases, todo, store, force.scheduler, stop)
    else:
        outcomes = _in_turn(cases, todo, store, force.workers, stop)
    for index, outcome in outcomes:
        found[index] = outcome
        done(outcome)
    return [found[index] for index in range(len(cases))]


def known_outcome(case: AnyCase, store: Store | None) -> CaseOutcome | None:
    """Outcome without any work: a kept result, or a case that cannot be."""
    try:
        key = case.key()
    except TacclError as error:
        return CaseOutcome(case, "", None, str(error))
    kept = store.read(key) if store is not None else None
    return CaseOutcome(case, key, kept) if kept is not None else None


def _in_turn(
    cases: Sequence[AnyCase], todo: Sequence[int], store: Store | None, workers: int, stop: threading.Event
) -> Iterator[tuple[int, CaseOutcome]]:
    if workers == 1 or len(todo) <= 1:
        for index in todo:
            yield index, compute(cases[index], store, stop)
        return
    with start_workers(min(workers, len(todo))) as processes:
        futures: dict[Future[CaseOutcome], int] = {processes.submit(_compute_here, cases[i], store): i for i in todo}
        pending = set(futures)
        stopped_at: float | None = None
        while pending:
            ready, pending = wait(pending, _POLL_SECONDS, FIRST_COMPLETED)
            if stop.is_set():
                processes.stop()
                pending -= {future for future in pending if future.cancel()}
                stopped_at = stopped_at or time.monotonic()
                if time.monotonic() - stopped_at > _WRITING_SECONDS:
                    processes.abandon()
            for future in sorted(ready, key=futures.__getitem__):
                yield futures[future], _result(future, cases[futures[future]], stop)
        for future, index in futures.items():
            if future.cancelled():
                yield index, CaseOutcome(cases[index], cases[index].key(), None, INTERRUPTED)


def _result(future: Future[CaseOutcome], case: AnyCase, stop: threading.Event) -> CaseOutcome:
    """A process' outcome, or that it was given up, or died, which takes all that were waiting for it along."""
    try:
        return future.result()
    except BrokenProcessPool:
        if stop.is_set():
            return CaseOutcome(case, case.key(), None, INTERRUPTED)
        return CaseOutcome(
            case, case.key(), None, "a process died before it was finished; use fewer --workers if memory is short"
        )


def _on_cluster(
    cases: Sequence[AnyCase], todo: Sequence[int], store: Store | None, scheduler: str, stop: threading.Event
) -> Iterator[tuple[int, CaseOutcome]]:
    """Let the workers of a Dask cluster compute; results are kept here, for workers may be on other machines.

    Raises
    ------
    PackageMissing
        If Dask is not installed.
    InputError
        If nobody answers at the address.
    """
    with connect(scheduler) as client:
        from distributed import as_completed

        futures = {client.submit(compute, cases[i], None, None, pure=False, retries=0): i for i in todo}
        waiting = set(todo)
        for future in as_completed(list(futures)):
            index = futures[future]
            waiting.discard(index)
            yield index, _from_cluster(cases[index], future.result(), store)
            if stop.is_set():
                client.cancel(list(futures))
                break
        for index in sorted(waiting):
            yield index, CaseOutcome(cases[index], cases[index].key(), None, INTERRUPTED)


def _from_cluster(case: AnyCase, outcome: CaseOutcome, store: Store | None) -> CaseOutcome:
    """A worker's outcome, kept if its code and its files are the same as ours."""
    key = case.key()
    if outcome.key != key:
        error = (
            "a worker of the cluster has another version of taccl_py, a solver or a file; install the same everywhere"
        )
        return CaseOutcome(case, key, None, error, computed=True)
    if outcome.kept is not None and store is not None:
        store.write(key, outcome.kept)
    return outcome


def _compute_here(case: AnyCase, store: Store | None) -> CaseOutcome:
    return compute(case, store, STOP)


def compute(case: AnyCase, store: Store | None, stop: threading.Event | None) -> CaseOutcome:
    """Carry out one case and keep its result; without a stop nobody interrupts it."""
    key = case.key()
    stop = stop or threading.Event()
    if stop.is_set():
        return CaseOutcome(case, key, None, INTERRUPTED)
    begun = time.monotonic()
    try:
        kept = _demand_result(case, stop) if isinstance(case, DemandCase) else _collective_result(case, stop)
    except TacclError as error:
        return CaseOutcome(case, key, None, INTERRUPTED if stop.is_set() else str(error), computed=not stop.is_set())
    if stop.is_set():
        return CaseOutcome(case, key, None, INTERRUPTED)
    if time.monotonic() - begun >= GUARD_SECONDS:
        return CaseOutcome(
            case, key, None, f"was not finished after {GUARD_SECONDS:g} s; make it smaller", computed=True
        )
    if store is not None:
        store.write(key, kept)
    return CaseOutcome(case, key, kept, computed=True)


def _collective_result(case: Case, stop: threading.Event) -> Kept:
    limits, runtime = Limits(seconds=GUARD_SECONDS, workers=1, seed=case.seed, stop=stop), RUNTIMES[case.runtime]
    answer = search_for(case.request(limits), runtime, Events(), is_guarded=True)
    if stop.is_set():
        raise Interrupted(INTERRUPTED)
    delivered = deliver(answer, LoweringOptions(runtime), None)
    # Seconds differ from run to run; what is kept must not.
    answer, lowered = delivered.answer, delivered.choice.lowered
    schedule = write_schedule(answer.schedule)
    facts = {**record(answer, lowered, ["schedule.json", "algorithm.xml"]), "runtime": runtime.name}
    digests = {"schedule_sha256": digest(schedule), "xml_sha256": digest(lowered.text)}
    digests |= {"machine_sha256": machine_digest(answer.schedule.topology)}
    return Kept({"format": RESULT_FORMAT, **facts, **digests}, schedule, lowered.text)


def _demand_result(case: DemandCase, stop: threading.Event) -> Kept:
    """Result of a demand: its search ends by counted work."""
    topology = case.machine()
    demand = case.demand(topology.num_ranks)
    seconds = demand_seconds(demand, AUTO)
    limits = budget(Limits(workers=1, seed=case.seed, stop=stop), seconds, effort="normal", time_limit=GUARD_SECONDS)
    answer = synthesize_demand(topology, demand, limits, Events())
    schedule = write_demand_schedule(answer.schedule)
    facts = {
        **demand_record(answer),
        "size_bytes": answer.schedule.demand.total_bytes,
        "replay_us": replay_demand(answer.schedule).makespan_us,
        "steps": answer.schedule.num_steps,
    }
    digests = {"schedule_sha256": digest(schedule), "xml_sha256": None, "machine_sha256": machine_digest(topology)}
    return Kept({"format": RESULT_FORMAT, **facts, **digests}, schedule, None)

"""New schedules for a machine on which something has failed: the old one in every form in which it still serves, and a new search.

The old schedule is timed anew on the machine as it is now, so that what is found is never slower than going on with it. Its chunks get
new sizes by a linear program; its routes get new weights, and ranks of a node stand in for one whose NIC is slow or gone
(`taccl_py.synthesis.damage`); and engine auto searches for what time is left. The program that is in use may still be the fastest one
(`taccl_py.api.kept`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from taccl_py.collective import Kind
from taccl_py.errors import Infeasible, InputError, InvalidArtifact, LimitReached
from taccl_py.pipeline.search import require_valid
from taccl_py.pipeline.views import retimed
from taccl_py.schedule.ir import Origin, Schedule
from taccl_py.solvers.limits import Limits
from taccl_py.synthesis.auto import synthesize_auto
from taccl_py.synthesis.damage.healing import link_images
from taccl_py.synthesis.damage.mending import mended
from taccl_py.synthesis.engine import Demand, Events, Options, Proof, Synthesis
from taccl_py.synthesis.known import bound_of
from taccl_py.synthesis.uneven import FinerChunks, recut
from taccl_py.topology.model import Topology

# Parts of the time for new sizes, and for new weights; a search takes what is left. Guesses.
_RESIZING, _REWEIGHING = 0.15, 0.35
# Sums that are others backwards have no weights of their own.
_BACKWARDS = (Kind.REDUCESCATTER, Kind.REDUCE)


class Remedy(StrEnum):
    """Treatment of a failure."""

    RETIMED = "re-timed"
    RESIZED = "resized"
    REWEIGHED = "reweighed"
    SEARCHED = "searched"


@dataclass(frozen=True)
class RemedyTried:
    """A remedy, and its schedule or why there is none."""

    remedy: Remedy
    schedule: Schedule | None
    reason: str = ""


@dataclass(frozen=True)
class Replanned:
    """Schedules that serve a damaged machine, and the fastest one.

    Attributes
    ----------
    tried
        All remedies, in the order in which they were tried.
    remedy
        The one whose schedule is the answer.
    synthesis
        The answer, with its bound on the damaged machine.
    """

    tried: tuple[RemedyTried, ...]
    remedy: Remedy
    synthesis: Synthesis

    def remedy_of(self, schedule: Schedule) -> Remedy:
        """Remedy of the answer or a runner-up, of which lowering takes one if its program is faster; whole, or with its messages in pieces."""
        if schedule is self.synthesis.schedule:
            return self.remedy
        for each in self.tried:
            if each.schedule is not None and each.schedule.messages == schedule.messages:
                return each.remedy
        return Remedy.SEARCHED if self.tried[-1].schedule is not None else self.remedy

    @property
    def retimed(self) -> Schedule | None:
        """The old schedule with the times of the damaged machine; None if it does not serve."""
        return next((each.schedule for each in self.tried if each.remedy is Remedy.RETIMED), None)


def replan(old: Schedule, topology: Topology, options: Options, events: Events) -> Replanned:
    """The fastest schedule for a damaged machine that is found from an old one and by a search.

    Parameters
    ----------
    old
        Valid schedule on the machine as it was.
    topology
        The machine as it is: the same ranks, links that are slower or gone.
    options
        Limits and seed.
    events
        Told of progress.

    Raises
    ------
    InputError
        If the machines have not the same ranks.
    Infeasible, LimitReached
        If some rank cannot be reached any more, or nothing serves and nothing was found in time.
    """
    _require_same_ranks(old, topology)
    demand = Demand(topology, old.collective.kind, old.size_bytes, old.collective.root)
    limits = options.limits
    deadline = limits.deadline()
    events.stage("bound")
    bound = bound_of(demand, limits)
    events.bound(bound.time_us)
    tried: list[RemedyTried] = []
    for each in _of_old(old, demand, limits, events):
        tried.append(each)
        if each.schedule is not None:
            events.incumbent(each.schedule.makespan_us)
    found: Synthesis | None = None
    served = [each for each in tried if each.schedule is not None]
    try:
        left = limits.within(deadline.left)
        if not served or not deadline.over():
            events.stage("search")
            found = synthesize_auto(demand, replace(options, limits=left, bound=bound), events)
            tried.append(RemedyTried(Remedy.SEARCHED, found.schedule))
        else:
            tried.append(RemedyTried(Remedy.SEARCHED, None, "no time was left"))
    except (Infeasible, LimitReached) as error:
        if not served:
            raise
        tried.append(RemedyTried(Remedy.SEARCHED, None, str(error)))
    best = min((each for each in tried if each.schedule is not None), key=_time_us)
    if best.schedule is None:
        raise ValueError("a remedy without a schedule was chosen")
    # On the machine's GPUs the program of the old schedule may be the fastest one, so it is lowered whatever the time.
    served.sort(key=lambda each: (each.remedy is not Remedy.RETIMED, _time_us(each)))
    others = tuple(each.schedule for each in served if each is not best and each.schedule)
    kept = int(Remedy.RETIMED in [each.remedy for each in served if each is not best])
    if found is not None and best.remedy is Remedy.SEARCHED:
        runners_up = (*others[:kept], *found.runners_up, *others[kept:])
        return Replanned(tuple(tried), best.remedy, replace(found, runners_up=runners_up, kept=kept))
    bound = found.bound if found is not None else bound
    proof = Proof.of(best.schedule.makespan_us, bound)
    origin = Origin("replan", "none", "", limits.seed, str(proof), bound.time_us, bound.reason, old.finder)
    searched = () if found is None else (found.schedule, *found.runners_up)
    runners_up = (*others, *searched)
    chosen = Synthesis(best.schedule.with_origin(origin), bound, proof, "none", {}, runners_up, kept)
    return Replanned(tuple(tried), best.remedy, chosen)


def _require_same_ranks(old: Schedule, topology: Topology) -> None:
    if old.topology.num_ranks != topology.num_ranks:
        raise InputError(
            f"the schedule is for {old.topology.num_ranks} ranks, and the machine has {topology.num_ranks}"
        )


def _of_old(old: Schedule, demand: Demand, limits: Limits, events: Events) -> Iterator[RemedyTried]:
    """Remedies made of the old schedule: as it is, with other sizes of its chunks, with other weights."""
    events.stage("old schedule")
    kept = schedule_on(old, demand.topology)
    if isinstance(kept, str):
        yield RemedyTried(Remedy.RETIMED, None, kept)
    else:
        yield RemedyTried(Remedy.RETIMED, kept)
        resizing = limits.within(limits.seconds * _RESIZING)
        resized = recut(kept, FinerChunks.of(demand), resizing)
        reason = "" if resized is not None else "no other sizes of its chunks are faster"
        yield _tried(Remedy.RESIZED, resized, reason)
    if demand.kind in _BACKWARDS:
        return
    reweighed = mended(old, demand, limits.within(limits.seconds * _REWEIGHING))
    reason = "" if reweighed is not None else "its routes cannot be weighed anew"
    yield _tried(Remedy.REWEIGHED, reweighed, reason)


def schedule_on(old: Schedule, topology: Topology) -> Schedule | str:
    """The old schedule with the times of the damaged machine, or why it does not serve any more."""
    images = link_images(old.topology, topology)
    gone = sorted({message.link for message in old.messages if images[message.link] is None})
    if gone:
        names = [f"{old.topology.links[link].src}->{old.topology.links[link].dst}" for link in gone]
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        return f"it uses what is gone: {', '.join(names[:4])}{more}"
    moved = []
    for message in old.messages:
        link = images[message.link]
        if link is not None:
            moved.append(replace(message, link=link))
    there = replace(old, topology=topology, messages=tuple(moved))
    found = next(retimed(there, topology), None)
    return found if found is not None else "its sums come out wrong with the new times"


def _tried(remedy: Remedy, schedule: Schedule | None, reason: str) -> RemedyTried:
    """A remedy with its schedule; a mistake of this program in one of them is told, and leaves the others to the user."""
    if schedule is None:
        return RemedyTried(remedy, None, reason)
    try:
        require_valid(schedule)
    except InvalidArtifact as error:
        return RemedyTried(remedy, None, f"its schedule is wrong, which is a mistake of taccl: {error}")
    return RemedyTried(remedy, schedule)


def _time_us(tried: RemedyTried) -> float:
    return float("inf") if tried.schedule is None else tried.schedule.makespan_us

"""Machines on which damage, or nodes of several generations, are in nobody's way, and schedules for them, which serve the machine as it is.

Where ports limit what leaves a rank, a slow link takes no bandwidth with it when it is left out, while plans in which all links take part
alike wait for it. Where some nodes are slow as a whole, what is planned for as slow nodes everywhere is as good as if all were of the oldest
generation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from statistics import median_low

from taccl_py.errors import Infeasible, InputError
from taccl_py.grouping import grouped
from taccl_py.schedule.ir import Schedule
from taccl_py.solvers.limits import Limits, Over
from taccl_py.synthesis.bounds import Bound
from taccl_py.synthesis.damage.healing import levelled, on_all_links
from taccl_py.synthesis.damage.mending import lane_rates
from taccl_py.synthesis.damage.params import PARAMS
from taccl_py.synthesis.engine import Demand, Synthesis
from taccl_py.synthesis.known import bound_of
from taccl_py.synthesis.templates.fitting import fitted
from taccl_py.synthesis.templates.messages import TemplateMessage, TemplatePlan
from taccl_py.tolerances import RELATIVE
from taccl_py.topology.model import Link, Topology
from taccl_py.topology.translations import translations_of


def simpler_machines(topology: Topology) -> Iterator[Topology]:
    """The machine without slow links, and the one with nodes as slow as the slowest, where they are others; none where all ranks are alike."""
    translations = translations_of(topology)
    if translations is not None and translations.is_regular:
        return
    for simpler in (without_slow_links(topology), levelled_lanes(topology)):
        if simpler is not None:
            yield simpler


def simpler_demands(demand: Demand, limits: Limits) -> list[tuple[Demand, Bound]]:
    """The demand on simpler machines that can do it, and what no algorithm is faster than there."""
    found = []
    for topology in simpler_machines(demand.topology):
        there = replace(demand, topology=topology)
        with suppress(InputError, Infeasible):
            found.append((there, bound_of(there, limits)))
    return found


def on_simpler_machines(
    demand: Demand,
    simpler: Iterable[tuple[Demand, Bound]],
    limits: Limits,
    search: Callable[[Demand, Bound, Limits], Synthesis],
) -> list[Schedule]:
    """Schedules that a search finds for simpler machines, on the machine as it is.

    Parameters
    ----------
    demand, simpler
        What is wanted, and the same on simpler machines, with bounds.
    limits
        Time, and the user's interrupt.
    search
        Finds an answer on some machine; InputError where there is none.
    """
    found: list[Schedule] = []
    deadline = limits.deadline()
    for there, own in simpler:
        with suppress(InputError, Infeasible):
            answer = search(there, own, limits.within(PARAMS.simpler_part * deadline.left))
            over = limits.within(deadline.left).countdown()
            for schedule in (answer.schedule, *answer.runners_up):
                moved = _moved(schedule, demand, over)
                found += [] if moved is None else [moved]
    return found


def _moved(schedule: Schedule, demand: Demand, over: Over) -> Schedule | None:
    """A schedule on the machine as it is: with its own times where links cost the same, else with new ones; None where sums do not come out right."""
    moved = on_all_links(schedule, demand.topology)
    links, topology = schedule.topology.links, schedule.topology
    if all(
        abs(
            topology.message_us(old.link, schedule.chunk_bytes)
            - demand.topology.message_us(new.link, schedule.chunk_bytes)
        )
        <= RELATIVE
        for old, new in zip(schedule.messages, moved.messages, strict=True)
    ):
        return moved
    messages = tuple(
        TemplateMessage(links[m.link].src, links[m.link].dst, m.chunks, m.start_us, m.end_us, m.reduce)
        for m in schedule.messages
    )
    return fitted(demand, TemplatePlan(schedule.collective.chunks_per_rank, messages), over)


def levelled_lanes(topology: Topology) -> Topology | None:
    """The machine with all nodes as slow as the slowest, where all lanes between them are alike then; else None: what is slow is less than a node."""
    level = levelled(topology)
    return level if level is not None and len(set(lane_rates(level))) == 1 else None


def without_slow_links(topology: Topology) -> Topology | None:
    """The machine without its slow links between nodes; None if there is none, or some nodes are joined by no other.

    A link is slow that is slower than most others of its sender, and than most others of its receiver: where a port is slow, all of its links
    are.
    """
    across = [
        (link, topology.us_per_mb(index)) for index, link in enumerate(topology.links) if not topology.is_inside(link)
    ]
    sent, received = grouped((k.src, beta) for k, beta in across), grouped((k.dst, beta) for k, beta in across)
    slow = {
        link
        for link, beta in across
        if beta > max(median_low(sent[link.src]), median_low(received[link.dst])) * (1 + RELATIVE)
    }
    kept = tuple(link for link in topology.links if link not in slow)
    if not slow or _joined(topology, kept) != _joined(topology, topology.links):
        return None
    return replace(topology, name=f"{topology.name}-spared", links=kept, symmetry=(), switches=())


def _joined(topology: Topology, links: Iterable[Link]) -> set[tuple[int, int]]:
    """Pairs of nodes with a link from one to the other."""
    return {(topology.node_of[link.src], topology.node_of[link.dst]) for link in links}

"""Traces for chrome://tracing and Perfetto: the JSON array format of Chrome's trace events, times in microseconds."""

from __future__ import annotations

from typing import Any

from taccl_py.lowering.program import Op, Program, Threadblock
from taccl_py.schedule.ir import Schedule
from taccl_py.simulate.schedule_replay import decisions
from taccl_py.simulate.timeline import RuntimeStep, RuntimeSteps, Timeline, Transfer
from taccl_py.topology.model import Topology
from taccl_py.units import format_ranks

# Names of steps, by what they do.
_OPS = {
    Op.SEND: "send", Op.RECV: "receive", Op.RECV_COPY_SEND: "receive, send on", Op.RECV_REDUCE_COPY: "receive, add",
    Op.RECV_REDUCE_SEND: "receive, add, send on", Op.RECV_REDUCE_COPY_SEND: "receive, add, store, send on", Op.COPY: "copy",
    Op.REDUCE: "add", Op.NOP: "wait",
}  # fmt: skip


def chrome_trace(topology: Topology, timeline: Timeline, schedule: Schedule | None) -> dict[str, Any]:
    """Return a trace: a process for every rank, in it a thread for every link out or every threadblock; a process for ports.

    Parameters
    ----------
    topology, timeline
        Transfers of the run.
    schedule
        Replayed schedule, or None for a program.
    """
    ports_process = topology.num_ranks
    events = [_named("process_name", f"rank {rank} sends", rank) for rank in range(topology.num_ranks)]
    if topology.ports:
        events.append(_named("process_name", "ports", ports_process))
    threads: dict[tuple[int, int], str] = {}
    slices: list[dict[str, Any]] = []
    for transfer in timeline.transfers:
        thread = transfer.link if schedule is not None else transfer.threadblock
        threads[transfer.src, thread] = (
            topology.resource_name(transfer.link) if schedule else f"threadblock {transfer.threadblock}"
        )
        slices.append(_slice(transfer, schedule, thread, topology))
        for resource in topology.resources_of[transfer.link][1:]:
            port = resource - len(topology.links)
            threads[ports_process, port] = topology.resource_name(resource)
            busy_us = topology.occupancy_us(resource, transfer.size_bytes)
            name = f"{transfer.src} -> {transfer.dst}"
            slices.append(_complete(name, ports_process, port, transfer.start_us, busy_us) | {"cat": "port"})
    for work in timeline.switched:
        threads[work.rank, work.threadblock] = f"threadblock {work.threadblock}"
        name = f"{'sum' if work.adds_up else 'store'} at {format_ranks(work.stored)}"
        arguments = {"bytes": work.size_bytes, "step": work.step}
        found = _complete(name, work.rank, work.threadblock, work.start_us, work.end_us - work.start_us)
        slices.append(found | {"cat": "switch", "args": arguments})
        for use in work.uses:
            if use.resource >= len(topology.links):
                port = use.resource - len(topology.links)
                threads[ports_process, port] = topology.resource_name(use.resource)
                name = f"{work.rank} by switch"
                slices.append(
                    _complete(name, ports_process, port, use.start_us, use.end_us - use.start_us) | {"cat": "port"}
                )
    events += [_named("thread_name", name, process, thread) for (process, thread), name in sorted(threads.items())]
    arrows = _arrows(schedule, timeline) if schedule is not None else []
    return {"displayTimeUnit": "ns", "traceEvents": [*events, *slices, *arrows]}


def runtime_trace(program: Program, steps: RuntimeSteps) -> dict[str, Any]:
    """Return a trace of a program under a runtime profile: a process for every rank, in it a thread for every threadblock.

    Parameters
    ----------
    program
        The program.
    steps
        Its steps as they were replayed.
    """
    events: list[dict[str, Any]] = []
    for gpu in program.gpus:
        events.append(_named("process_name", f"rank {gpu.rank}", gpu.rank))
        for number, tb in enumerate(gpu.threadblocks):
            events.append(_named("thread_name", f"threadblock {number}{_peers(tb)}", gpu.rank, number))
    launches = len(program.gpus)
    events += [_named("process_name", "launch", launches), _named("thread_name", "launch", launches)]
    slices = [_complete("launch", launches, 0, 0.0, steps.launch_us) | {"cat": "launch"}]
    for each in steps.steps:
        step = program.gpus[each.rank].threadblocks[each.threadblock].steps[each.step]
        arguments = {"step": each.step, "iteration": each.iteration, "bytes": each.size_bytes, "chunks": step.count}
        if step.depends_on is not None:
            arguments |= {"waits for threadblock": step.depends_on[0], "waits for step": step.depends_on[1]}
        found = _complete(_OPS[step.op], each.rank, each.threadblock, each.start_us, each.end_us - each.start_us)
        slices.append(found | {"cat": "step", "args": arguments})
    return {"displayTimeUnit": "ns", "traceEvents": [*events, *slices, *_deliveries(program, steps)]}


def _peers(tb: Threadblock) -> str:
    """Ranks that a threadblock receives from and sends to, and its channel."""
    texts = [f" from {tb.recv_peer}"] * (tb.recv_peer >= 0) + [f" to {tb.send_peer}"] * (tb.send_peer >= 0)
    return f":{''.join(texts)}, channel {tb.channel}" if texts else ": local"


def _deliveries(program: Program, steps: RuntimeSteps) -> list[dict[str, Any]]:
    """Arrows from every send to the step that receives it: messages of a connection arrive in their order."""
    sent: dict[tuple[int, int, int], list[RuntimeStep]] = {}
    received: dict[tuple[int, int, int], list[RuntimeStep]] = {}
    for each in steps.steps:
        tb = program.gpus[each.rank].threadblocks[each.threadblock]
        op = tb.steps[each.step].op
        if op.sends:
            sent.setdefault((each.rank, tb.send_peer, tb.channel), []).append(each)
        if op.receives:
            received.setdefault((tb.recv_peer, each.rank, tb.channel), []).append(each)
    found: list[dict[str, Any]] = []
    for connection, sends in sent.items():
        for before, after in zip(sends, received[connection], strict=True):
            begin = {"pid": before.rank, "tid": before.threadblock, "ts": _almost_end_us(before)}
            end = {"pid": after.rank, "tid": after.threadblock, "ts": _almost_end_us(after)}
            found += _arrow(len(found) // 2, begin, end)
    return found


def _arrow(number: int, begin: dict[str, float], end: dict[str, float]) -> list[dict[str, Any]]:
    """From one process, thread and moment to another."""
    common = {"name": "brings", "cat": "data", "id": number}
    return [{**common, "ph": "s", **begin}, {**common, "ph": "f", "bp": "e", **end}]


def _almost_end_us(drawn: Transfer | RuntimeStep) -> float:
    """A moment before the end: an arrow leaves from inside a slice."""
    return drawn.start_us + (drawn.end_us - drawn.start_us) * (1 - 1e-6)


def _named(what: str, name: str, process: int, thread: int = 0) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _complete(name: str, process: int, thread: int, start_us: float, duration_us: float) -> dict[str, Any]:
    return {"name": name, "ph": "X", "pid": process, "tid": thread, "ts": start_us, "dur": duration_us}


def _slice(transfer: Transfer, schedule: Schedule | None, thread: int, topology: Topology) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "to": transfer.dst,
        "link": topology.resource_name(transfer.link),
        "bytes": transfer.size_bytes,
    }
    name = f"to {transfer.dst}"
    if schedule is None:
        arguments |= {"step": transfer.step}
    else:
        message = schedule.messages[transfer.message]
        verb = "sum" if message.reduce else "copy"
        name = f"{verb} {_short(message.chunks)} to {transfer.dst}"
        arguments |= {
            "chunks": list(message.chunks),
            "message": transfer.message,
            "step": schedule.step_of[transfer.message],
        }
    found = _complete(name, transfer.src, thread, transfer.start_us, transfer.end_us - transfer.start_us)
    return found | {"cat": "message", "args": arguments}


def _short(chunks: tuple[int, ...]) -> str:
    return f"{chunks[0]}..{chunks[-1]}" if len(chunks) > 1 else str(chunks[0])


def _arrows(schedule: Schedule, timeline: Timeline) -> list[dict[str, Any]]:
    """From every message to those that wait for what it brings."""
    when = {transfer.message: transfer for transfer in timeline.transfers}
    found: list[dict[str, Any]] = []
    for index, turn in enumerate(decisions(schedule)):
        for other in turn.waits_for:
            before, after = when[other], when[index]
            begin = {"pid": before.src, "tid": before.link, "ts": _almost_end_us(before)}
            found += _arrow(len(found) // 2, begin, {"pid": after.src, "tid": after.link, "ts": after.start_us})
    return found

"""Views of a schedule or a program: a JSON record, tables, and a small timeline in characters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taccl_py.lowering.plan import Operation, Plan, PlanBlock, PlanGpu
from taccl_py.lowering.program import Program
from taccl_py.profiles.model import NEUTRAL
from taccl_py.report.structure import find_phases, structure_record
from taccl_py.report.tables import machine_facts, plain_table
from taccl_py.schedule.for_demand import DemandSchedule
from taccl_py.schedule.ir import Schedule
from taccl_py.simulate.critical_path import critical_path
from taccl_py.simulate.demand_replay import demand_critical_path
from taccl_py.simulate.timeline import SwitchWork, Timeline, Transfer
from taccl_py.topology.model import Topology
from taccl_py.units import format_size, format_time

if TYPE_CHECKING:
    from rich.table import Table

# Steps in a timeline, and the part of a cell below which a message is only a dot.
_LETTERS = "123456789abcdefghijklmnopqrstuvwxyz"
_LITTLE = 0.25
_LEAST_COLUMNS = 20


def schedule_record(schedule: Schedule | DemandSchedule, timeline: Timeline) -> dict[str, Any]:
    """Return the JSON object of a schedule of a collective or a demand, and its replay; times are microseconds."""
    origin = schedule.origin
    if isinstance(schedule, Schedule):
        chunks = {"chunks": schedule.collective.num_chunks, "chunk_bytes": schedule.chunk_bytes}
    else:
        chunks = {"chunks": len(schedule.demand.chunks)}
    return {
        **_facts(str(schedule.subject), schedule.topology, timeline),
        "engine": origin.engine if origin else None,
        "bound_us": origin.bound_us if origin else None,
        **chunks,
        "steps": _steps(schedule, timeline),
        "traffic": _traffic(schedule.topology, timeline),
        "transfers": [_transfer(each, schedule) for each in timeline.transfers],
        "critical_path": _critical_path(schedule),
    }


def _critical_path(schedule: Schedule | DemandSchedule) -> list[dict[str, Any]]:
    """Messages of the critical path at the schedule's own size."""
    found = []
    path = critical_path(schedule) if isinstance(schedule, Schedule) else demand_critical_path(schedule)
    for index in path:
        message = schedule.messages[index]
        link = schedule.topology.links[message.link]
        found.append({"src": link.src, "dst": link.dst, "start_us": message.start_us, "end_us": message.end_us})
    return found


def program_record(
    program: Program, topology: Topology | None, timeline: Timeline | None, demand: str = ""
) -> dict[str, Any]:
    """Return the JSON object of a program, with its replay where the machine is known; that of a demand is called by its name."""
    name = demand if program.kind is None else str(program.kind)
    return {
        **_replayed(name, len(program.gpus), topology, timeline),
        "name": program.name,
        "protocol": str(program.protocol),
        "channels": program.num_channels,
        "structure": [] if program.kind is None else structure_record(find_phases(program)),
        "gpus": _gpus(program),
        "pairs": _program_pairs(program),
    }


def _replayed(name: str, num_ranks: int, topology: Topology | None, timeline: Timeline | None) -> dict[str, Any]:
    facts: dict[str, Any] = {"collective": name, "num_ranks": num_ranks}
    if topology is not None and timeline is not None:
        facts |= _facts(name, topology, timeline)
        facts |= {"traffic": _traffic(topology, timeline)}
        facts |= {"transfers": [_transfer(each, None) for each in timeline.transfers]}
    return facts


def plan_record(plan: Plan, kind: str, topology: Topology | None, timeline: Timeline | None) -> dict[str, Any]:
    """Return the JSON object of an MSCCL++ plan, with its replay where the machine is known."""
    facts = _replayed(kind, len(plan.gpus), topology, timeline)
    if topology is not None and timeline is not None:
        facts |= {"switched": [_switched(each) for each in timeline.switched]}
    return {
        **facts,
        "name": plan.name,
        "in_place": plan.in_place,
        "gpus": [_plan_gpu(gpu) for gpu in plan.gpus],
        "pairs": _plan_pairs(plan),
    }


def _plan_gpu(gpu: PlanGpu) -> dict[str, Any]:
    names = Counter(operation.name for block in gpu.blocks for operation in block.all_operations)
    return {
        "rank": gpu.rank,
        "threadblocks": len(gpu.blocks),
        "operations": names.total(),
        "longest": max((block.num_operations for block in gpu.blocks), default=0),
        "scratch_chunks": gpu.scratch_chunks,
        "puts": sum(names[one] for one in ("put", "pws", "pwsf", "ppkt", "rppkt", "gstore")),
        "sums": sum(names[one] for one in ("re", "repkt", "glres")),
        "copies": sum(names[one] for one in ("copy", "cpkt", "upkt")),
        "signals": names["signal"] + names["pws"] + names["pwsf"],
        "semaphores": gpu.num_semaphores,
    }


def _plan_pairs(plan: Plan) -> list[dict[str, Any]]:
    """Chunks put from rank to rank, and the types of channels that they take."""
    return _pairs(
        (gpu.rank, rank, operation.target.count, operation.channel_type)
        for gpu in plan.gpus
        for block in gpu.blocks
        for operation in block.operations
        if operation.target is not None
        for rank in _receivers(gpu, block, operation)
    )


def _receivers(gpu: PlanGpu, block: PlanBlock, operation: Operation) -> tuple[int, ...]:
    """Other ranks into whose memory an operation writes."""
    if operation.stored is not None:
        group = gpu.groups[block.channels[operation.channel_type][operation.stored]]
        return tuple(rank for rank in group.ranks if rank != gpu.rank)
    if operation.remote is None:
        return ()
    return (gpu.remotes[block.remotes[operation.channel_type][operation.remote]].rank,)


def _facts(kind: str, topology: Topology, timeline: Timeline) -> dict[str, Any]:
    return {
        "collective": kind,
        **machine_facts(topology),
        "size_bytes": round(timeline.size_bytes),
        "runtime_profile": NEUTRAL,
        "makespan_us": timeline.makespan_us,
        "algbw_gbps": timeline.algbw_gbps,
        "busbw_gbps": timeline.busbw_gbps,
    }


def _steps(schedule: Schedule | DemandSchedule, timeline: Timeline) -> list[dict[str, Any]]:
    """One row for every step: messages that wait for data as often as each other."""
    groups: dict[int, list[Transfer]] = {}
    for transfer in timeline.transfers:
        groups.setdefault(schedule.step_of[transfer.message], []).append(transfer)
    rows = []
    for step, transfers in sorted(groups.items()):
        messages = [schedule.messages[transfer.message] for transfer in transfers]
        rows.append(
            {
                "step": step,
                "start_us": min(transfer.start_us for transfer in transfers),
                "end_us": max(transfer.end_us for transfer in transfers),
                "messages": len(transfers),
                "reduces": sum(message.reduce for message in messages),
                "chunks": sum(len(message.chunks) for message in messages),
                "bytes": sum(transfer.size_bytes for transfer in transfers),
                "links": len({transfer.link for transfer in transfers}),
            }
        )
    return rows


def _traffic(topology: Topology, timeline: Timeline) -> list[dict[str, Any]]:
    """Traffic on every link and port that is used, the busiest first."""
    messages: Counter[int] = Counter()
    size_bytes: Counter[int] = Counter()
    busy_us: dict[int, float] = {}

    def add(resource: int, moved_bytes: float) -> None:
        messages[resource] += 1
        size_bytes[resource] += round(moved_bytes)
        busy_us[resource] = busy_us.get(resource, 0.0) + topology.occupancy_us(resource, moved_bytes)

    for transfer in timeline.transfers:
        for resource in topology.resources_of[transfer.link]:
            add(resource, transfer.size_bytes)
    for use in (one for work in timeline.switched for one in work.uses):
        add(use.resource, use.size_bytes)
    order = sorted(busy_us, key=lambda resource: (-busy_us[resource], resource))
    return [
        {
            "name": topology.resource_name(resource),
            "is_port": resource >= len(topology.links),
            "messages": messages[resource],
            "bytes": size_bytes[resource],
            "busy_us": busy_us[resource],
            "busy": busy_us[resource] / timeline.makespan_us if timeline.makespan_us > 0 else 0.0,
        }
        for resource in order
    ]


def _transfer(transfer: Transfer, schedule: Schedule | DemandSchedule | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "src": transfer.src, "dst": transfer.dst, "start_us": transfer.start_us, "end_us": transfer.end_us, "bytes": transfer.size_bytes,
    }  # fmt: skip
    if schedule is None:
        return found | {"threadblock": transfer.threadblock, "step": transfer.step}
    message = schedule.messages[transfer.message]
    return found | {
        "chunks": list(message.chunks), "reduce": message.reduce, "step": schedule.step_of[transfer.message],
    }  # fmt: skip


def _switched(work: SwitchWork) -> dict[str, Any]:
    return {
        "rank": work.rank, "adds_up": work.adds_up, "stored": list(work.stored), "start_us": work.start_us,
        "end_us": work.end_us, "bytes": work.size_bytes, "threadblock": work.threadblock, "step": work.step,
    }  # fmt: skip


def _gpus(program: Program) -> list[dict[str, Any]]:
    rows = []
    for gpu in program.gpus:
        steps = [step for block in gpu.threadblocks for step in block.steps]
        rows.append(
            {
                "rank": gpu.rank,
                "threadblocks": len(gpu.threadblocks),
                "steps": len(steps),
                "longest": max((len(block.steps) for block in gpu.threadblocks), default=0),
                "scratch_chunks": gpu.scratch_chunks,
                "sends": sum(step.op.sends for step in steps),
                "receives": sum(step.op.receives for step in steps),
                "waits": sum(step.depends_on is not None for step in steps),
            }
        )
    return rows


def _program_pairs(program: Program) -> list[dict[str, Any]]:
    """Chunks from rank to rank, and the channels that they take."""
    return _pairs(
        (gpu.rank, block.send_peer, step.count, block.channel)
        for gpu in program.gpus
        for block in gpu.threadblocks
        for step in block.steps
        if step.op.sends
    )


def _pairs(sends: Iterable[tuple[int, int, int, Any]]) -> list[dict[str, Any]]:
    """A row for every two ranks, of sends by source, target, number of chunks, and channel."""
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for src, dst, count, channel in sends:
        row = rows.setdefault((src, dst), {"src": src, "dst": dst, "sends": 0, "chunks": 0, "channels": set()})
        row["sends"] += 1
        row["chunks"] += count
        row["channels"].add(channel)
    return [row | {"channels": sorted(row["channels"])} for _, row in sorted(rows.items())]


def view_tables(record: dict[str, Any], most_rows: int) -> list[Table]:
    """Tables of a record; those of links and pairs are cut after so many rows."""
    tables = []
    if "steps" in record:
        tables.append(_steps_table(record))
    if "gpus" in record:
        tables.append(_gpus_table(record))
        if "traffic" not in record:
            tables.append(_pairs_table(record, most_rows))
    if "traffic" in record:
        tables.append(_traffic_table(record, most_rows))
    return tables


def critical_line(record: dict[str, Any], columns: int) -> str:
    """One line with the messages of the critical path, as many as fit."""
    hops = [f"{hop['src']}->{hop['dst']}" for hop in record["critical_path"]]
    line = f"critical path, {len(hops)} messages: {' '.join(hops)}"
    return line if len(line) <= columns else f"{line[: columns - 4].rsplit(' ', 1)[0]} ..."


def _title(record: dict[str, Any]) -> str:
    machine = f" on {record['topology']}" if "topology" in record else ""
    size = f", {format_size(record['size_bytes'])}" if record.get("size_bytes") is not None else ""
    time = f": {format_time(record['makespan_us'])} (links and ports alone)" if "makespan_us" in record else ""
    return f"{record['collective']}{machine}, {record['num_ranks']} ranks{size}{time}"


def _steps_table(record: dict[str, Any]) -> Table:
    rows = [
        [
            str(row["step"]), format_time(row["start_us"]), format_time(row["end_us"]), str(row["messages"]),
            "sum" if row["reduces"] == row["messages"] else "copy" if not row["reduces"] else "both", str(row["chunks"]),
            format_size(row["bytes"]), str(row["links"]),
        ]
        for row in record["steps"]
    ]  # fmt: skip
    return plain_table(
        _title(record), ("step", "first start", "last end", "messages", "what", "chunks", "bytes", "links"), rows
    )


def _gpus_table(record: dict[str, Any]) -> Table:
    keys = list(record["gpus"][0])
    rows = [[str(row[key]) for key in keys] for row in record["gpus"]]
    return plain_table(f"{record['name']}: {_title(record)}", [key.replace("_", " ") for key in keys], rows)


def _cut(name: str, rows: Sequence[Any], most_rows: int) -> str:
    return f"{name}, {most_rows} of {len(rows)}; --rows shows more" if len(rows) > most_rows else name


def _pairs_table(record: dict[str, Any], most_rows: int) -> Table:
    pairs = record["pairs"]
    rows = [
        [f"{row['src']} -> {row['dst']}", str(row["sends"]), str(row["chunks"]), ", ".join(map(str, row["channels"]))]
        for row in pairs[:most_rows]
    ]
    return plain_table(_cut("traffic", pairs, most_rows), ("from -> to", "sends", "chunks", "channels"), rows)


def _traffic_table(record: dict[str, Any], most_rows: int) -> Table:
    traffic = record["traffic"]
    rows = [
        [
            row["name"], str(row["messages"]), format_size(row["bytes"]),
            format_time(row["busy_us"]), f"{100 * row['busy']:.1f} %",
        ]
        for row in traffic[:most_rows]
    ]  # fmt: skip
    title = _cut("traffic, the busiest first", traffic, most_rows)
    return plain_table(title, ("link or port", "messages", "bytes", "busy", "of the time"), rows)


def timeline_lines(record: dict[str, Any], ranks: Sequence[int], columns: int) -> list[str]:
    """Return a line for every rank: what it sends when, in so many columns altogether.

    A cell holds the step (1 to 9, then a to z) of the message that is longest on its way in it, a dot if there is little of
    one, and a blank if there is none. Messages of a program have no step; they are drawn as #, and what a switch stores for a rank
    as *, or as + where it adds up before.

    Parameters
    ----------
    record
        One with transfers.
    ranks
        Ranks to show, in order.
    columns
        Width of the longest line; it is at least what makes sense.
    """
    label = max((len(f"rank {rank}") for rank in ranks), default=0)
    cells = max(_LEAST_COLUMNS, columns - label - 3)
    makespan_us = record["makespan_us"]
    sent: dict[int, list[_MessageSpan]] = {rank: [] for rank in ranks}
    for transfer in record["transfers"]:
        if transfer["src"] in sent and makespan_us > 0:
            letter = "#" if "chunks" not in transfer else _LETTERS[min(transfer["step"], len(_LETTERS)) - 1]
            begin, end = (transfer[key] / makespan_us * cells for key in ("start_us", "end_us"))
            sent[transfer["src"]].append(_MessageSpan(begin, end, letter))
    for work in record.get("switched", ()):
        if work["rank"] in sent and makespan_us > 0:
            begin, end = (work[key] / makespan_us * cells for key in ("start_us", "end_us"))
            sent[work["rank"]].append(_MessageSpan(begin, end, "+" if work["adds_up"] else "*"))
    lines = [f"{f'rank {rank}':>{label}} |{_drawn(spans, cells)}|" for rank, spans in sent.items()]
    lines.append(f"{'':{label}}  0{format_time(makespan_us):>{cells - 1}}")
    return lines


@dataclass(frozen=True, slots=True)
class _MessageSpan:
    """A message in a timeline, in cells."""

    begin: float
    end: float
    letter: str


def _drawn(spans: Sequence[_MessageSpan], cells: int) -> str:
    """A character for every cell."""
    best = [(0.0, " ")] * cells
    for span in spans:
        for cell in range(int(span.begin), min(cells, int(span.end) + 1)):
            part = min(span.end, cell + 1) - max(span.begin, cell)
            if part > best[cell][0] + 1e-9:
                best[cell] = (part, span.letter)
    return "".join("." if 0 < part < _LITTLE else letter for part, letter in best)

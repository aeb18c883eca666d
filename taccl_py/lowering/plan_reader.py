"""The JSON of an execution plan -> records, for replays and tables; the verifier decides whether it is right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from taccl_py.collective import Buffer, Kind, parse_kind
from taccl_py.errors import InputError
from taccl_py.jsonio import Fields, parse_json
from taccl_py.lowering.cells import CellRange
from taccl_py.lowering.plan import (
    MEMORY,
    PACKETS,
    PORT,
    SIMPLE,
    SWITCH,
    Operation,
    Plan,
    PlanBlock,
    PlanGpu,
    RemoteBuffer,
    SwitchChannel,
)

# Operations of plans that copy and add up in the order of signals: what `Operation` can say.
_SYNCHRONIZES = ("nop", "signal", "wait", "rlxsignal", "rlxwait", "sem_acquire", "sem_release", "flush")
_MOVES = ("put", "pws", "pwsf", "copy", "re", "glres", "gstore", "ppkt", "rppkt", "cpkt", "upkt", "repkt")
_LOOP = "pipeline"
_TYPES = (MEMORY, PORT)
_ALL_TYPES = (MEMORY, PORT, SWITCH)
_MAX_BYTES = (1 << 64) - 1


def parse_plan(text: str, path: str) -> Plan:
    """Read a plan.

    Raises
    ------
    InputError
        If it is not JSON, a field is missing or of the wrong type, or it uses operations other than puts, local copies and sums,
        with or without packets, sums and multicasts by a switch, signals and semaphores, or has several destinations.
    """
    fields = Fields(parse_json(text, path), path)
    return Plan(
        name=fields.text("name"),
        collective=fields.text("collective"),
        in_place=fields.boolean("inplace"),
        alignment_bytes=fields.integer("buffer_alignment", 16, least=1),
        min_bytes=fields.integer("min_message_size", 0, least=0),
        max_bytes=fields.integer("max_message_size", _MAX_BYTES, least=0),
        gpus=tuple(_gpu(gpu) for gpu in fields.objects("gpus")),
        protocol=fields.choice("protocol", (SIMPLE, PACKETS)),
    )


def kind_of_plan(plan: Plan, path: str) -> Kind:
    """Collective of a plan.

    Raises
    ------
    InputError
        If there is none of that name.
    """
    try:
        return parse_kind(plan.collective)
    except InputError as error:
        raise InputError(error.what, path=path, field="/collective") from None


def _gpu(fields: Fields) -> PlanGpu:
    peers: dict[str, tuple[int, ...]] = {}
    groups: list[SwitchChannel] = []
    for channel in fields.objects("channels", []):
        kind = channel.choice("channel_type", _ALL_TYPES)
        if kind == SWITCH:
            buffer = Buffer(channel.choice("buffer_type", tuple(map(str, Buffer))))
            members = [tuple(one.integers("ranks", least=0)) for one in channel.objects("rank_groups")]
            groups += [SwitchChannel(buffer, ranks) for ranks in members]
            continue
        peers[kind] = (*peers.get(kind, ()), *channel.integers("connected_to", [], least=0))
    remotes = tuple(_remote(one) for one in fields.objects("remote_buffers", []))
    return PlanGpu(
        rank=fields.integer("id", least=0),
        input_chunks=fields.integer("input_chunks", least=0),
        output_chunks=fields.integer("output_chunks", least=0),
        scratch_chunks=fields.integer("scratch_chunks", least=0),
        peers=peers,
        remotes=remotes,
        num_semaphores=len(tuple(fields.objects("semaphores", []))),
        blocks=tuple(_block(block, remotes, groups) for block in fields.objects("threadblocks")),
        groups=tuple(groups),
    )


def _remote(fields: Fields) -> RemoteBuffer:
    kinds: list[Any] = fields.items("access_channel_types")
    kind = str(kinds[0]) if kinds else ""
    if kind not in _TYPES:
        fields.fail("access_channel_types", f"found {kind!r}, use one of: {', '.join(_TYPES)}")
    buffer = Buffer(fields.choice("type", tuple(map(str, Buffer))))
    return RemoteBuffer(fields.integer("rank", least=0), buffer, kind)


def _block(fields: Fields, all_remotes: tuple[RemoteBuffer, ...], groups: list[SwitchChannel]) -> PlanBlock:
    channels = {
        one.choice("channel_type", _ALL_TYPES): tuple(one.integers("channel_ids", least=0))
        for one in fields.objects("channels", [])
    }
    remotes = {
        one.choice("access_channel_type", _TYPES): tuple(one.integers("remote_buffer_ids", least=0))
        for one in fields.objects("remote_buffer_refs", [])
    }
    own_groups = [groups[n] for n in channels.get(SWITCH, ())]

    def placed(one: Fields) -> Operation:
        operation = _operation(one)
        if operation.target is not None and operation.remote is not None:
            numbers = remotes.get(operation.channel_type, ())
            if operation.remote >= len(numbers) or numbers[operation.remote] >= len(all_remotes):
                one.fail("dst_buff", f"names remote buffer {operation.remote}, which its threadblock does not have")
            buffer = all_remotes[numbers[operation.remote]].buffer
            operation = replace(operation, target=replace(operation.target, buffer=buffer))
        return _with_switch_buffers(one, operation, own_groups)

    def read(one: Fields) -> Operation:
        if one.text("name") != _LOOP:
            return placed(one)
        loop = one.object("iter_context")
        inner = tuple(placed(each) for each in one.objects("ops"))
        if any("pkt" in each.name for each in inner):
            one.fail("ops", "packets in a pipeline are not replayed; use signals")
        unit_bytes, count = loop.integer("unit_size", least=1), loop.integer("num_chunks", least=1)
        return Operation(_LOOP, inner=inner, unit_bytes=unit_bytes, count=count)

    return PlanBlock(tuple(read(one) for one in fields.objects("ops")), channels, remotes)


def _with_switch_buffers(fields: Fields, operation: Operation, groups: list[SwitchChannel]) -> Operation:
    """Operation with the buffers of its switch channels, by their places in the list of its threadblock."""
    for field, number in (("src_buff", operation.summed), ("dst_buff", operation.stored)):
        if number is not None and number >= len(groups):
            fields.fail(field, f"names switch channel {number}, which its threadblock does not have; correct it")
    if operation.summed is not None:
        buffer = groups[operation.summed].buffer
        operation = replace(operation, sources=tuple(replace(cells, buffer=buffer) for cells in operation.sources))
    if operation.stored is not None and operation.target is not None:
        buffer = groups[operation.stored].buffer
        operation = replace(operation, target=replace(operation.target, buffer=buffer))
    return operation


def _operation(fields: Fields) -> Operation:
    name = fields.text("name")
    if name not in (*_SYNCHRONIZES, *_MOVES):
        fields.fail("name", f"{name!r} is not among what is replayed: {', '.join((*_MOVES, *_SYNCHRONIZES))}")
    target, remote, stored, summed = None, None, None, None
    if name != "flush" and len(fields.items("dst_buff", [])) > 1:
        fields.fail("dst_buff", f"{name} has several destinations, which is not replayed; use one operation for each")
    for one in fields.objects("dst_buff", []) if name != "flush" else ():
        stored = _switch_of(one)
        remote = one.integer("buffer_id", least=0) if one.has("buffer_id") else None
        target = _cells(one)
    for one in fields.objects("src_buff", []):
        summed = _switch_of(one)
    for field, number, users in (("src_buff", summed, ("glres",)), ("dst_buff", stored, ("glres", "gstore"))):
        if (name in users) != (number is not None):
            fields.fail(field, f"{name} must{'' if name in users else ' not'} name a switch channel there; correct it")
    return Operation(
        name=name,
        channel_type=fields.choice("channel_type", ("", *_ALL_TYPES), ""),
        channels=tuple(fields.integers("channel_ids", [], least=0)),
        semaphores=tuple(fields.integers("semaphore_ids", [], least=0)),
        sources=tuple(_cells(one) for one in fields.objects("src_buff", [])),
        target=target,
        remote=remote,
        summed=summed,
        stored=stored,
        part=_part(fields),
    )


def _part(fields: Fields) -> tuple[int, int] | None:
    """Which part of its bytes a threadblock of a group does."""
    if not fields.has("tbg_info"):
        return None
    group = fields.object("tbg_info")
    return group.integer("tb_id", least=0), group.integer("tbg_size", least=1)


def _switch_of(fields: Fields) -> int | None:
    return fields.integer("switch_channel_id", least=0) if fields.has("switch_channel_id") else None


def _cells(fields: Fields) -> CellRange:
    """Cells; those of a remote buffer or a switch channel, which is looked up later, are said to be of the output."""
    buffer = Buffer(fields.choice("type", tuple(map(str, Buffer)))) if fields.has("type") else Buffer.OUTPUT
    return CellRange(buffer, fields.integer("index", least=0), fields.integer("size", least=1))

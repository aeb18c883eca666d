"""The JSON of a plan as records; nothing is tested here but that fields are there and of the right type.

What the runtime looks for has to be there, lists if only empty: it does not ask whether they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from taccl_py.collective import Buffer
from taccl_py.jsonio import Fields, parse_json

MEMORY, PORT, SWITCH = "memory", "port", "switch"
UNLIMITED_BYTES = (1 << 64) - 1  # what the runtime's own tools write when nobody says otherwise
_MOST_TOKENS = 1 << 16
_BUFFERS = tuple(map(str, Buffer))


@dataclass(frozen=True, slots=True)
class Operand:
    """Neighbouring chunks of a local buffer, of the threadblock's remote buffer `remote`, or of all ranks of its switch channel."""

    buffer: Buffer | None
    remote: int | None
    index: int
    size: int
    switch: int | None = None


@dataclass(frozen=True, slots=True)
class GroupSlice:
    """The part of an operation's bytes that is a threadblock's of a group: number `index` of `parts`."""

    index: int
    parts: int


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation as written.

    Attributes
    ----------
    slice
        The part of the bytes that is this threadblock's, if a group shares them.
    inner, unit_bytes, num_chunks
        Of a pipeline: operations that it repeats, for every so many bytes of so many chunks.
    """

    name: str
    channel_type: str
    channels: tuple[int, ...]
    semaphores: tuple[int, ...]
    sources: tuple[Operand, ...]
    targets: tuple[Operand, ...]
    barrier: int | None
    barrier_blocks: int
    slice: GroupSlice | None = None
    inner: tuple[Operation, ...] = ()
    unit_bytes: int = 0
    num_chunks: int = 0


@dataclass(frozen=True, slots=True)
class PlanThreadblock:
    """One threadblock: operations; by type, places of its channels and remote buffers in the lists of the GPU."""

    id: int
    operations: tuple[Operation, ...]
    channels: dict[str, tuple[int, ...]]
    remotes: dict[str, tuple[int, ...]]

    @property
    def all_operations(self) -> list[tuple[int, Operation]]:
        """Operations with the step where each stands, those in pipelines too, in the order in which the runtime stores them."""
        return [(step, one) for step, first in enumerate(self.operations) for one in (first, *first.inner)]


@dataclass(frozen=True, slots=True)
class Remote:
    """A buffer of another rank, and the types of channels by which it may be reached."""

    rank: int
    buffer: Buffer
    types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """A switch channel: a buffer of several ranks that is loaded from, added up, and stored to as one."""

    buffer: Buffer
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One rank; `peers` are those of its channels by type, `groups` its switch channels, `semaphores` the values at the start."""

    id: int
    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    peers: dict[str, tuple[int, ...]]
    groups: tuple[Group, ...]
    remotes: tuple[Remote, ...]
    semaphores: tuple[int, ...]
    blocks: tuple[PlanThreadblock, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan as written.

    Attributes
    ----------
    shares_scratch
        Whether its scratch is a buffer of fixed length, which all such plans use.
    doubles_scratch
        Whether calls use the two halves of a scratch of twice the length by turns.
    threads
        Of a threadblock.
    """

    name: str
    collective: str
    protocol: str
    in_place: bool
    shares_scratch: bool
    doubles_scratch: bool
    threads: int
    alignment_bytes: int
    min_bytes: int
    max_bytes: int
    gpus: tuple[Gpu, ...]

    @property
    def uses_packets(self) -> bool:
        """True if scratch has room for packets, which are twice as long as their data."""
        return self.protocol == "LL"


def is_plan(value: Any) -> bool:
    """True if a JSON value is meant to be a plan."""
    return isinstance(value, dict) and "gpus" in value and "format" not in value


def read_plan_text(text: str, path: str) -> Plan:
    """Read a plan.

    Raises
    ------
    InputError
        If it is not JSON, or a field is missing or of the wrong type.
    """
    fields = Fields(parse_json(text, path), path)
    gpus = tuple(_gpu(gpu) for gpu in fields.objects("gpus"))
    if not gpus:
        fields.fail("gpus", "is empty; a plan needs the programs of its ranks")
    return Plan(
        name=fields.text("name"),
        collective=fields.text("collective"),
        protocol=fields.choice("protocol", ("Simple", "LL")),
        in_place=fields.boolean("inplace"),
        shares_scratch=fields.boolean("reuse_resources", False),
        doubles_scratch=fields.boolean("use_double_scratch_buffer", False),
        threads=fields.integer("num_threads_per_block", 1024, least=0),
        alignment_bytes=fields.integer("buffer_alignment", 16, least=1),
        min_bytes=fields.integer("min_message_size", 0, least=0),
        max_bytes=fields.integer("max_message_size", UNLIMITED_BYTES, least=0),
        gpus=gpus,
    )


def _gpu(fields: Fields) -> Gpu:
    peers: dict[str, tuple[int, ...]] = {}
    groups: list[Group] = []
    for channel in fields.objects("channels"):
        kind = channel.choice("channel_type", (MEMORY, PORT, SWITCH))
        if kind == SWITCH:
            buffer = Buffer(channel.choice("buffer_type", _BUFFERS))
            groups += [Group(buffer, _members(group)) for group in channel.objects("rank_groups")]
            continue
        peers[kind] = (*peers.get(kind, ()), *channel.integers("connected_to", least=0))
    return Gpu(
        id=fields.integer("id", least=0),
        input_chunks=fields.integer("input_chunks", least=0),
        output_chunks=fields.integer("output_chunks", least=0),
        scratch_chunks=fields.integer("scratch_chunks", least=0),
        peers=peers,
        groups=tuple(groups),
        remotes=tuple(_remote(remote) for remote in fields.objects("remote_buffers")),
        semaphores=tuple(
            one.integer("init_value", least=0, most=_MOST_TOKENS) for one in fields.objects("semaphores", [])
        ),
        blocks=tuple(_block(block) for block in fields.objects("threadblocks")),
    )


def _members(fields: Fields) -> tuple[int, ...]:
    ranks = tuple(fields.integers("ranks", least=0))
    if fields.integer("size") != len(ranks) or len(set(ranks)) != len(ranks):
        fields.fail("ranks", f"found {len(ranks)} ranks, some twice or not as many as size says; correct it")
    return ranks


def _remote(fields: Fields) -> Remote:
    types = fields.items("access_channel_types")
    for kind in types:
        if kind not in (MEMORY, PORT):
            fields.fail("access_channel_types", f"found {kind!r}, use one of: memory, port")
    return Remote(fields.integer("rank", least=0), Buffer(fields.choice("type", _BUFFERS)), tuple(types))


def _block(fields: Fields) -> PlanThreadblock:
    channels, remotes = {}, {}
    for channel in fields.objects("channels"):
        kind = channel.choice("channel_type", (MEMORY, PORT, SWITCH))
        channels[kind] = tuple(channel.integers("channel_ids", least=0))
    for refs in fields.objects("remote_buffer_refs", []):
        kind = refs.choice("access_channel_type", (MEMORY, PORT))
        remotes[kind] = tuple(refs.integers("remote_buffer_ids", least=0))
    operations = tuple(_operation(operation) for operation in fields.objects("ops"))
    return PlanThreadblock(fields.integer("id", least=0), operations, channels, remotes)


def _operation(fields: Fields) -> Operation:
    loop, part = _object(fields, "iter_context"), _object(fields, "tbg_info")
    inner = tuple(_operation(one) for one in fields.objects("ops")) if loop is not None else ()
    return Operation(
        name=fields.text("name"),
        channel_type=_channel_type(fields),
        channels=tuple(fields.integers("channel_ids", [], least=0)),
        semaphores=tuple(fields.integers("semaphore_ids", [], least=0)),
        sources=tuple(_operand(operand) for operand in fields.objects("src_buff", [])),
        targets=tuple(_operand(operand) for operand in fields.objects("dst_buff", [])),
        barrier=fields.integer("barrier_id", least=0) if fields.has("barrier_id") else None,
        barrier_blocks=fields.integer("num_threadblocks", 0, least=0),
        slice=None if part is None else GroupSlice(part.integer("tb_id", least=0), part.integer("tbg_size", least=1)),
        inner=inner,
        unit_bytes=0 if loop is None else loop.integer("unit_size", least=0),
        num_chunks=0 if loop is None else loop.integer("num_chunks", least=0),
    )


def _channel_type(fields: Fields) -> str:
    found = fields.choice("channel_type", ("", "none", MEMORY, PORT, SWITCH), "")
    return "" if found == "none" else found


def _object(fields: Fields, key: str) -> Fields | None:
    return fields.object(key) if fields.has(key) else None


def _operand(fields: Fields) -> Operand:
    buffer = Buffer(fields.choice("type", _BUFFERS)) if fields.has("type") else None
    remote = fields.integer("buffer_id", least=0) if fields.has("buffer_id") else None
    switch = fields.integer("switch_channel_id", least=0) if fields.has("switch_channel_id") else None
    if sum(one is not None for one in (buffer, remote, switch)) != 1:
        fields.fail("", "names no buffer, or two; write one of type, buffer_id and switch_channel_id")
    return Operand(buffer, remote, fields.integer("index", least=0), fields.integer("size", least=1), switch)

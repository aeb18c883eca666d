"""MSCCL++ execution plans, read to be run: what each threadblock puts, adds, signals and waits for.

This reader believes a plan where it can: what does not exist is found out when it is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from taccl_py.collective import ROOTED, Address, Buffer, Kind, parse_kind
from taccl_py.errors import InputError
from taccl_py.execute.plan import ExecutablePlan, ExecutableRank
from taccl_py.jsonio import Fields, parse_json

_BUFFERS = tuple(map(str, Buffer))
_PUTS = ("put", "pws", "pwsf")
_TYPES = ("memory", "port", "switch")
_NAMES = (
    "nop", "barrier", "sem_acquire", "sem_release", "signal", "rlxsignal", "wait", "rlxwait", *_PUTS, "copy", "re", "glres",
    "gstore", "flush",
)  # fmt: skip


@dataclass(frozen=True, slots=True, order=True)
class Channel:
    """A channel as one rank sees it: the `number`-th of a type to a peer, which is the same one back."""

    rank: int
    peer: int
    type: str
    number: int

    @property
    def back(self) -> Channel:
        """The same channel as the peer sees it."""
        return Channel(self.peer, self.rank, self.type, self.number)


@dataclass(frozen=True, slots=True)
class Place:
    """Neighbouring chunks of a buffer of some rank."""

    rank: int
    address: Address
    count: int


@dataclass(frozen=True, slots=True)
class OneSidedOperation:
    """One operation.

    Attributes
    ----------
    name
        As written.
    channels, semaphores
        Channels and semaphores that it signals, waits on, releases or acquires; for a put by a proxy the channel that carries it.
    sources, target
        Places that it reads and writes.
    copies
        Further places that it writes: by a switch, the same cells of the other ranks.
    barrier, barrier_blocks
        Which barrier, and how many threadblocks meet there.
    """

    name: str
    channels: tuple[Channel, ...]
    semaphores: tuple[int, ...]
    sources: tuple[Place, ...]
    target: Place | None
    barrier: int
    barrier_blocks: int
    copies: tuple[Place, ...] = ()

    @property
    def is_proxied(self) -> bool:
        """True if a proxy carries out the operation."""
        return self.name in _PUTS and bool(self.channels) and self.channels[0].type == "port"


@dataclass(frozen=True, slots=True)
class OneSidedBlock:
    """Operations of a threadblock."""

    rank: int
    number: int
    operations: tuple[OneSidedOperation, ...]


@dataclass(frozen=True, slots=True)
class OneSidedPlan(ExecutablePlan):
    """An execution plan, ready to run.

    Attributes
    ----------
    alignment_bytes
        Every chunk is a multiple of it.
    semaphores
        Values at the start, by rank.
    blocks
        Threadblocks of all ranks.
    """

    alignment_bytes: int
    semaphores: tuple[tuple[int, ...], ...]
    blocks: tuple[OneSidedBlock, ...]


def is_one_sided(text: str, path: str) -> bool:
    """True if a JSON text is an execution plan, and not a schedule."""
    value = parse_json(text, path)
    return isinstance(value, dict) and "gpus" in value and "format" not in value


def read_one_sided(text: str, path: str, *, root: int | None = None) -> OneSidedPlan:
    """Read an execution plan.

    Parameters
    ----------
    text, path
        The file.
    root
        Root of a rooted collective, where the plan does not tell.

    Raises
    ------
    InputError
        If it is no plan, names what does not exist, or has operations that are not known here.
    """
    fields = Fields(parse_json(text, path), path)
    kind = fields.build("collective", lambda: parse_kind(fields.text("collective")))
    fields.choice("protocol", ("Simple",))
    gpus = list(fields.objects("gpus"))
    if len(gpus) < 2:
        fields.fail("gpus", f"has {len(gpus)} ranks, at least 2 are needed")
    readers = [_GpuReader(gpu, rank, len(gpus)) for rank, gpu in enumerate(gpus)]
    given, wanted = gpus[0].integer("input_chunks", least=1), gpus[0].integer("output_chunks", least=1)
    shard = wanted if kind in (Kind.REDUCESCATTER, Kind.SCATTER) else given
    if kind is Kind.ALLTOALL:
        shard //= len(gpus)
    blocks = tuple(block for reader in readers for block in reader.blocks())
    if root and kind not in ROOTED:
        raise InputError(f"{kind} has no root; leave --root out", path=path, field="collective")
    found = _find_root(kind, blocks, len(gpus)) if root is None else root
    if found is None or not 0 <= found < len(gpus):
        raise InputError(f"does not tell which of {len(gpus)} ranks is the root of its {kind}; add --root", path=path)
    in_place = fields.boolean("inplace")
    plan = OneSidedPlan(
        name=path,
        kind=kind,
        root=found,
        shard_chunks=max(shard, 1),
        protocol="Simple",
        in_place=in_place,
        out_of_place=not in_place,
        ranks=tuple(ExecutableRank(r, gpu.integer("scratch_chunks", least=0), ()) for r, gpu in enumerate(gpus)),
        alignment_bytes=fields.integer("buffer_alignment", 16, least=1),
        semaphores=tuple(
            tuple(one.integer("init_value", 0, least=0) for one in gpu.objects("semaphores", [])) for gpu in gpus
        ),
        blocks=blocks,
    )
    if (plan.input_chunks, plan.output_chunks) != (given, wanted):
        raise InputError(
            f"{given} and {wanted} chunks do not belong to {kind} over {len(gpus)} ranks; correct them",
            path=path,
            field="gpus.0.input_chunks",
        )
    return plan


def _find_root(kind: Kind, blocks: tuple[OneSidedBlock, ...], num_ranks: int) -> int | None:
    """Root of a rooted collective: the one rank into which nobody puts, or which puts into nobody's memory."""
    if kind not in ROOTED:
        return 0
    starts = kind in (Kind.BROADCAST, Kind.SCATTER)
    operations = [
        (block.rank, operation) for block in blocks for operation in block.operations if operation.target is not None
    ]
    puts = [
        (rank, place.rank)
        for rank, operation in operations
        for place in (operation.target, *operation.copies)
        if place is not None
    ]
    busy = {dst if starts else src for src, dst in puts if src != dst}
    idle = [rank for rank in range(num_ranks) if rank not in busy]
    return idle[0] if len(idle) == 1 else None


@dataclass(frozen=True, slots=True)
class _SwitchMembers:
    """A switch channel: ranks, and which buffer of theirs."""

    ranks: tuple[int, ...]
    buffer: Buffer


class _GpuReader:
    """Reads the threadblocks of one rank, and resolves what they name by number."""

    def __init__(self, fields: Fields, rank: int, num_ranks: int) -> None:
        self._fields = fields
        self._rank = rank
        self._num_ranks = num_ranks
        self._channels: dict[str, list[Channel]] = {}
        self._groups: list[_SwitchMembers] = []
        for channel in fields.objects("channels", []):
            kind = channel.choice("channel_type", _TYPES)
            if kind == "switch":
                self._groups += self._read_groups(channel)
                continue
            known = self._channels.setdefault(kind, [])
            for peer in channel.integers("connected_to", least=0):
                number = sum(one.peer == peer for one in known)
                known.append(Channel(rank, peer, kind, number))
        self._remotes = [
            (remote.integer("rank", least=0, most=num_ranks - 1), Buffer(remote.choice("type", _BUFFERS)))
            for remote in fields.objects("remote_buffers", [])
        ]
        self._num_semaphores = len(fields.items("semaphores", []))

    def _read_groups(self, fields: Fields) -> list[_SwitchMembers]:
        buffer = Buffer(fields.choice("buffer_type", _BUFFERS))
        groups = [
            _SwitchMembers(tuple(one.integers("ranks", least=0)), buffer) for one in fields.objects("rank_groups")
        ]
        for group in groups:
            if not group.ranks or max(group.ranks) >= self._num_ranks:
                fields.fail("rank_groups", f"names ranks that are not among the plan's {self._num_ranks}; correct it")
        return groups

    def blocks(self) -> list[OneSidedBlock]:
        """Return the threadblocks."""
        return [self._block(block, number) for number, block in enumerate(self._fields.objects("threadblocks"))]

    def _block(self, fields: Fields, number: int) -> OneSidedBlock:
        channels: dict[str, list[Any]] = {}
        for one in fields.objects("channels", []):
            kind = one.choice("channel_type", _TYPES)
            known: list[Any] = self._groups if kind == "switch" else self._channels.get(kind, [])
            channels[kind] = [_item(one, "channel_ids", known, i) for i in one.integers("channel_ids", least=0)]
        remotes: dict[str, list[Any]] = {}
        for one in fields.objects("remote_buffer_refs", []):
            kind = one.choice("access_channel_type", ("memory", "port"))
            ids = one.integers("remote_buffer_ids", least=0)
            remotes[kind] = [_item(one, "remote_buffer_ids", self._remotes, i) for i in ids]
        operations = tuple(self._operation(one, channels, remotes) for one in fields.objects("ops"))
        return OneSidedBlock(self._rank, number, operations)

    def _operation(
        self, fields: Fields, channels: dict[str, list[Any]], remotes: dict[str, list[Any]]
    ) -> OneSidedOperation:
        name = fields.text("name")
        if name not in _NAMES or fields.has("tbg_info"):
            shown = f"{name!r} by a group of threadblocks" if name in _NAMES else repr(name)
            fields.fail("name", f"found {shown}, which is not executed here; use one of: {', '.join(_NAMES)}")
        kind = fields.choice("channel_type", ("", *_TYPES), "")
        used = [_item(fields, "channel_ids", channels.get(kind, []), i) for i in fields.integers("channel_ids", [])]
        semaphores = fields.integers("semaphore_ids", [], least=0)
        for semaphore in semaphores:
            _item(fields, "semaphore_ids", range(self._num_semaphores), semaphore)
        known = channels.get(kind, []) if kind == "switch" else remotes.get(kind, [])
        # The operands of a flush are only counted.
        written = fields.objects("dst_buff", []) if name != "flush" else ()
        found = [self._places(one, known) for one in written]
        targets = [places[0] for places in found]
        sources = tuple(place for one in fields.objects("src_buff", []) for place in self._places(one, known))
        moves = name in (*_PUTS, "copy", "re", "glres", "gstore")
        if len(targets) != moves:
            fields.fail("dst_buff", f"has {len(targets)} places for {name}, and there must be {int(moves)}; correct it")
        if bool(sources) != moves:
            needed = "at least 1" if moves else "none"
            fields.fail("src_buff", f"has {len(sources)} places for {name}, and there must be {needed}; correct it")
        _require_switches(fields, name)
        if any(source.count != targets[0].count for source in sources):
            fields.fail("src_buff", "has another size than dst_buff; make them equal")
        return OneSidedOperation(
            name, tuple(used), tuple(semaphores), sources, targets[0] if targets else None,
            fields.integer("barrier_id", 0, least=0), fields.integer("num_threadblocks", 0, least=0),
            tuple(place for places in found for place in places[1:]),
        )  # fmt: skip

    def _places(self, fields: Fields, known: list[Any]) -> list[Place]:
        """Places that an operand names: of one rank, or by a switch of several; `known` are remote buffers or switch channels."""
        if fields.has("switch_channel_id"):
            group: _SwitchMembers = _item(
                fields, "switch_channel_id", known, fields.integer("switch_channel_id", least=0)
            )
            ranks, buffer = group.ranks, group.buffer
        elif fields.has("buffer_id"):
            rank, buffer = _item(fields, "buffer_id", known, fields.integer("buffer_id", least=0))
            ranks = (rank,)
        else:
            ranks, buffer = (self._rank,), Buffer(fields.choice("type", _BUFFERS))
        address = Address(buffer, fields.integer("index", least=0))
        return [Place(rank, address, fields.integer("size", least=1)) for rank in ranks]


def _require_switches(fields: Fields, name: str) -> None:
    """Refuse operands of a switch where the runtime would look for a rank's own buffer, and the reverse."""
    for field, users in (("src_buff", ("glres",)), ("dst_buff", ("glres", "gstore"))):
        for one in fields.objects(field, []):
            if one.has("switch_channel_id") != (name in users):
                fields.fail(
                    field, f"{name} must{'' if name in users else ' not'} name a switch channel there; correct it"
                )


def _item(fields: Fields, key: str, known: Any, number: int) -> Any:
    if not 0 <= number < len(known):
        fields.fail(key, f"names {number}, and there are {len(known)}; correct it")
    return known[number]

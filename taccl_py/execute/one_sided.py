"""MSCCL++ execution plans, read to be run: what each threadblock puts, adds, signals and waits for.

This reader believes a plan where it can: what does not exist is found out when it is used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from taccl_py.collective import ROOTED, Address, Buffer, Kind, parse_kind
from taccl_py.demand import DataDemand
from taccl_py.errors import InputError
from taccl_py.execute.plan import ExecutablePlan, ExecutableRank, buffer_chunks, demand_chunks
from taccl_py.jsonio import Fields, parse_json
from taccl_py.runtimes import CUSTOM

_BUFFERS = tuple(map(str, Buffer))
_TYPES = ("memory", "port", "switch")
_LOCAL, _FAR, _SWITCH, _PACKETS, _FAR_PACKETS = (
    "a local buffer",
    "a remote buffer",
    "a switch channel",
    "local packets",
    "remote packets",
)


@dataclass(frozen=True, slots=True)
class _Operands:
    """Operands of an operation: what each source and target is, the last one of `more` sides as often as wanted; or pairs of both."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    more: tuple[bool, bool] = (False, False)
    pairs: bool = False


_SUM, _BOTH = (True, False), (True, True)
_MOVES = {
    "put": _Operands((_LOCAL,), (_FAR,), pairs=True),
    "pws": _Operands((_LOCAL,), (_FAR,), pairs=True),
    "pwsf": _Operands((_LOCAL,), (_FAR,), pairs=True),
    "get": _Operands((_FAR,), (_LOCAL,), pairs=True),
    "copy": _Operands((_LOCAL,), (_LOCAL,)),
    "re": _Operands((_LOCAL, _LOCAL), (_LOCAL,), _SUM),
    "res": _Operands((_LOCAL, _LOCAL), (_LOCAL, _FAR), _BOTH),
    "rre": _Operands((_LOCAL, _FAR), (_LOCAL,), _SUM),
    "rres": _Operands((_LOCAL, _FAR), (_LOCAL, _FAR), _BOTH),
    "ppkt": _Operands((_LOCAL,), (_FAR_PACKETS,), pairs=True),
    "rppkt": _Operands((_PACKETS,), (_FAR_PACKETS, _FAR_PACKETS), (False, True)),
    "cpkt": _Operands((_LOCAL,), (_PACKETS,)),
    "upkt": _Operands((_PACKETS,), (_LOCAL,)),
    "repkt": _Operands((_LOCAL, _PACKETS), (_LOCAL,), _SUM),
    "respkt": _Operands((_LOCAL, _PACKETS), (_LOCAL, _FAR_PACKETS), _BOTH),
    "recpkt": _Operands((_LOCAL, _PACKETS), (_LOCAL, _PACKETS), _SUM),
    "recspkt": _Operands((_LOCAL, _PACKETS), (_LOCAL, _PACKETS, _FAR_PACKETS), _BOTH),
    "glres": _Operands((_SWITCH,), (_SWITCH,)),
    "gstore": _Operands((_LOCAL,), (_SWITCH,)),
    "gstorepkt": _Operands((_PACKETS,), (_SWITCH,)),
}
_NAMES = (
    "nop", "barrier", "sem_acquire", "sem_release", "signal", "rlxsignal", "wait", "rlxwait", "flush", "pipeline", *_MOVES,
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
    """Neighbouring chunks of a buffer of some rank.

    Attributes
    ----------
    packets
        Whether each of their elements is there as a packet: with a flag, at twice the offset.
    by_turns
        Whether calls use the halves of a doubled scratch by turns here.
    """

    rank: int
    address: Address
    count: int
    packets: bool = False
    by_turns: bool = False


@dataclass(frozen=True, slots=True)
class OperandTransfer:
    """Sums of all sources, stored at all targets; `channel` is that of the proxy that does it."""

    sources: tuple[Place, ...]
    targets: tuple[Place, ...]
    channel: Channel | None = None


@dataclass(frozen=True, slots=True)
class OneSidedOperation:
    """One operation.

    Attributes
    ----------
    name
        As written.
    channels, semaphores
        What it signals, waits on, flushes, releases or acquires.
    transfers
        What it moves.
    part
        Which part of the bytes is this threadblock's, and of how many.
    barrier, barrier_blocks
        Which barrier, and how many threadblocks meet there.
    inner, unit_bytes, num_chunks
        Of a pipeline: what it repeats for every so many bytes of so many chunks.
    """

    name: str
    channels: tuple[Channel, ...] = ()
    semaphores: tuple[int, ...] = ()
    transfers: tuple[OperandTransfer, ...] = ()
    part: tuple[int, int] = (0, 1)
    barrier: int = 0
    barrier_blocks: int = 0
    inner: tuple[OneSidedOperation, ...] = ()
    unit_bytes: int = 0
    num_chunks: int = 0


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
    halves
        2 if calls use the halves of a doubled scratch by turns, else 1.
    shares_scratch
        Whether its scratch has a fixed length.
    """

    alignment_bytes: int
    semaphores: tuple[tuple[int, ...], ...]
    blocks: tuple[OneSidedBlock, ...]
    halves: int = 1
    shares_scratch: bool = False


def is_one_sided(text: str, path: str) -> bool:
    """True if a JSON text is an execution plan, and not a schedule."""
    value = parse_json(text, path)
    return isinstance(value, dict) and "gpus" in value and "format" not in value


def read_one_sided(
    text: str, path: str, *, root: int | None = None, demand: DataDemand | None = None
) -> OneSidedPlan:  # fmt: skip
    """Read an execution plan.

    Parameters
    ----------
    text, path
        The file.
    root
        Root of a rooted collective, where the plan does not tell.
    demand
        The demand of a plan that is for one.

    Raises
    ------
    InputError
        If it is no plan, names what does not exist, or has operations that are not known here.
    """
    fields = Fields(parse_json(text, path), path)
    kind = _read_kind(fields, demand)
    protocol = fields.choice("protocol", ("Simple", "LL"))
    halves = 2 if fields.boolean("use_double_scratch_buffer", False) else 1
    copies = halves * (2 if protocol == "LL" else 1)
    gpus = list(fields.objects("gpus"))
    if len(gpus) < 2:
        fields.fail("gpus", f"has {len(gpus)} ranks, at least 2 are needed")
    readers = [_GpuReader(gpu, rank, len(gpus)) for rank, gpu in enumerate(gpus)]
    blocks = tuple(block for reader in readers for block in reader.blocks())
    if root and kind is not None and kind not in ROOTED:
        raise InputError(f"{kind} has no root; leave --root out", path=path, field="collective")
    found = _find_root(kind, blocks, len(gpus)) if root is None else root
    if found is None or not 0 <= found < len(gpus):
        raise InputError(f"does not tell which of {len(gpus)} ranks is the root of its {kind}; add --root", path=path)
    lengths = _read_lengths(gpus, kind, demand)
    shard = 0 if kind is None else _shard_of(kind, *lengths[0], len(gpus))
    in_place = fields.boolean("inplace")
    if demand is not None and in_place:
        fields.fail("inplace", "is for calls in place, and a demand has buffers apart; write false")
    return OneSidedPlan(
        name=path,
        kind=kind,
        root=found,
        shard_chunks=shard,
        protocol=protocol,
        in_place=in_place,
        out_of_place=not in_place,
        ranks=tuple(
            ExecutableRank(r, *lengths[r], gpu.integer("scratch_chunks", least=0) * copies, ())
            for r, gpu in enumerate(gpus)
        ),
        min_bytes=fields.integer("min_message_size", 0, least=0),
        max_bytes=fields.integer("max_message_size", 0, least=0),
        alignment_bytes=fields.integer("buffer_alignment", 16, least=1),
        semaphores=tuple(
            tuple(one.integer("init_value", 0, least=0) for one in gpu.objects("semaphores", [])) for gpu in gpus
        ),
        blocks=blocks,
        halves=halves,
        shares_scratch=fields.boolean("reuse_resources", False),
    )


def _read_kind(fields: Fields, demand: DataDemand | None) -> Kind | None:
    """Collective of a plan; None if it is for a demand."""
    word = fields.text("collective")
    if demand is None and word == CUSTOM:
        fields.fail("collective", "is custom, which does not say what it does; add --demand")
    if demand is not None and word != CUSTOM:
        fields.fail("collective", f"found {word!r}, and plans for demands have {CUSTOM!r}; leave --demand out")
    kind: Kind | None = None if word == CUSTOM else fields.build("collective", lambda: parse_kind(word))
    return kind


def _read_lengths(gpus: list[Fields], kind: Kind | None, demand: DataDemand | None) -> list[tuple[int, int]]:
    """Lengths of every rank's input and output, which for a collective are those of the first one."""
    if demand is None:
        given, wanted = gpus[0].integer("input_chunks", least=1), gpus[0].integer("output_chunks", least=1)
        if kind is not None and (given, wanted) != buffer_chunks(
            kind, _shard_of(kind, given, wanted, len(gpus)), len(gpus)
        ):
            gpus[0].fail(
                "input_chunks",
                f"{given} and {wanted} chunks do not belong to {kind} over {len(gpus)} ranks; correct them",
            )
        return [(given, wanted)] * len(gpus)
    counted = [tuple(gpu.integer(key, least=1) for key in ("input_chunks", "output_chunks")) for gpu in gpus]
    lengths: list[tuple[int, int]] = gpus[0].build(
        "input_chunks", lambda: demand_chunks(demand, len(gpus), max(map(max, counted)))
    )
    for gpu, found, length in zip(gpus, counted, lengths, strict=True):
        for key, number, chunks in zip(("input_chunks", "output_chunks"), found, length, strict=True):
            if number != max(1, chunks):  # what does not exist counts as one chunk, and nobody touches it
                gpu.fail(
                    key,
                    f"found {number}, and the demand makes that {max(1, chunks)}; give the one that it was made for",
                )
    return lengths


def _shard_of(kind: Kind, given: int, wanted: int, num_ranks: int) -> int:
    """Chunks of one rank's shard, for a rank with such an input and output."""
    shard = wanted if kind in (Kind.REDUCESCATTER, Kind.SCATTER) else given
    return max(1, shard // num_ranks if kind is Kind.ALLTOALL else shard)


def _find_root(kind: Kind | None, blocks: tuple[OneSidedBlock, ...], num_ranks: int) -> int | None:
    """Root of a rooted collective: the one rank into which nobody puts, or which puts into nobody's memory."""
    if kind not in ROOTED:
        return 0
    starts = kind in (Kind.BROADCAST, Kind.SCATTER)
    operations = [one for block in blocks for operation in block.operations for one in (operation, *operation.inner)]
    puts = [
        (source.rank, place.rank)
        for operation in operations
        for transfer in operation.transfers
        for source in transfer.sources
        for place in transfer.targets
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
        if name not in _NAMES:
            fields.fail("name", f"found {name!r}, which is not executed here; use one of: {', '.join(_NAMES)}")
        kind = fields.choice("channel_type", ("", "none", *_TYPES), "")
        ids = fields.integers("channel_ids", []) if kind == "port" or name not in _MOVES else []  # else nobody looks
        used = [_item(fields, "channel_ids", channels.get(kind, []), i) for i in ids]
        semaphores = fields.integers("semaphore_ids", [], least=0)
        for semaphore in semaphores:
            _item(fields, "semaphore_ids", range(self._num_semaphores), semaphore)
        if name == "pipeline":
            loop = fields.object("iter_context")
            inner = tuple(self._operation(one, channels, remotes) for one in fields.objects("ops"))
            unit, chunks = loop.integer("unit_size", least=1), loop.integer("num_chunks", least=0)
            return OneSidedOperation(name, inner=inner, unit_bytes=unit, num_chunks=chunks)
        if name == "flush":  # the runtime counts its destinations
            used = used[: len(fields.items("dst_buff", []))]
        known = channels.get(kind, []) if kind == "switch" else remotes.get(kind, [])
        transfers: tuple[OperandTransfer, ...] = ()
        if name in _MOVES:
            transfers = self._transfers(fields, name, kind, known, used)
        elif name != "flush" and (fields.items("dst_buff", []) or fields.items("src_buff", [])):
            fields.fail("dst_buff", f"names places, which {name} has none of; take them away")
        part = (0, 1)
        if fields.has("tbg_info"):
            group = fields.object("tbg_info")
            part = group.integer("tb_id", least=0), group.integer("tbg_size", least=1)
        return OneSidedOperation(
            name, tuple(used), tuple(semaphores), transfers, part,
            fields.integer("barrier_id", 0, least=0), fields.integer("num_threadblocks", 0, least=0),
        )  # fmt: skip

    def _transfers(
        self, fields: Fields, name: str, kind: str, known: list[Any], used: list[Any]
    ) -> tuple[OperandTransfer, ...]:  # fmt: skip
        shape = _MOVES[name]
        written, read = list(fields.objects("dst_buff", [])), list(fields.objects("src_buff", []))
        for key, given, wanted, more in (
            ("dst_buff", written, shape.targets, shape.more[1]),
            ("src_buff", read, shape.sources, shape.more[0]),
        ):
            least = len(wanted) - more
            if len(given) < least or (len(given) > least and not more and not shape.pairs):
                several = "at least " if more or shape.pairs else ""
                fields.fail(key, f"has {len(given)} places for {name}, and there must be {several}{least}; correct it")
            for number, one in enumerate(given):
                _require_operand(fields, one, name, key, wanted[min(number, len(wanted) - 1)])
        sizes = {one.integer("size", least=1) for one in (*read, *written)}
        if shape.pairs and len(read) != len(written):
            fields.fail("src_buff", f"has {len(read)} places for {len(written)} of dst_buff; name as many")
        if len(sizes) > 1 and not shape.pairs:
            fields.fail("src_buff", "has another size than dst_buff; make them equal")
        if shape.pairs:
            return self._pairs(fields, name, kind, known, used)
        sources, targets = (
            tuple(
                place
                for number, one in enumerate(given)
                for place in self._places(one, known, packets=_has_packets(name, wanted, number))
            )
            for given, wanted in ((read, shape.sources), (written, shape.targets))
        )
        if kind != "port":
            return (OperandTransfer(sources, targets),)
        if len(used) < len(targets):
            fields.fail("channel_ids", f"has {len(used)} channels for {len(targets)} places; name as many")
        return tuple(OperandTransfer(sources, (one,), channel) for one, channel in zip(targets, used, strict=False))

    def _pairs(
        self, fields: Fields, name: str, kind: str, known: list[Any], used: list[Any]
    ) -> tuple[OperandTransfer, ...]:
        read, written = list(fields.objects("src_buff", [])), list(fields.objects("dst_buff", []))
        if kind == "port" and len(used) < len(written):
            fields.fail("channel_ids", f"has {len(used)} channels for {len(written)} places; name as many")
        found = []
        for number, (one, other) in enumerate(zip(read, written, strict=True)):
            packets = name == "ppkt"
            (source,) = self._places(one, known, packets=packets and kind == "port")
            (target,) = self._places(other, known, packets=packets)
            if source.count != target.count:
                fields.fail("src_buff", "has another size than dst_buff; make them equal")
            if kind == "port":
                source = replace(source, by_turns=packets)
            elif name == "get":  # each side at the other's offset
                here, there = target.address, source.address
                source = replace(source, address=Address(there.buffer, here.offset))
                target = replace(target, address=Address(here.buffer, there.offset))
            else:  # all from the first one's buffer
                first = Buffer(read[0].choice("type", _BUFFERS))
                source = replace(source, address=Address(first, source.address.offset))
            found.append(OperandTransfer((source,), (target,), used[number] if kind == "port" else None))
        return tuple(found)

    def _places(self, fields: Fields, known: list[Any], *, packets: bool) -> list[Place]:
        """Places that an operand names: of one rank, or by a switch of several; `known` are remote buffers or switch channels."""
        own = False
        if fields.has("switch_channel_id"):
            number = fields.integer("switch_channel_id", least=0)
            group: _SwitchMembers = _item(fields, "switch_channel_id", known, number)
            ranks, buffer = group.ranks, group.buffer
        elif fields.has("buffer_id"):
            rank, buffer = _item(fields, "buffer_id", known, fields.integer("buffer_id", least=0))
            ranks = (rank,)
        else:
            ranks, buffer, own = (self._rank,), Buffer(fields.choice("type", _BUFFERS)), True
        if packets and buffer is not Buffer.SCRATCH:
            fields.fail("", "has packets, which are in scratch only; name that")
        address, count = Address(buffer, fields.integer("index", least=0)), fields.integer("size", least=1)
        return [Place(rank, address, count, packets, packets or own) for rank in ranks]


def _has_packets(name: str, kinds: tuple[str, ...], number: int) -> bool:
    return name == "gstorepkt" or kinds[min(number, len(kinds) - 1)] in (_PACKETS, _FAR_PACKETS)


def _require_operand(fields: Fields, operand: Fields, name: str, key: str, wanted: str) -> None:
    """Refuse what is no place of the kind that the runtime looks for."""
    needed = {_FAR: "buffer_id", _FAR_PACKETS: "buffer_id", _SWITCH: "switch_channel_id"}.get(wanted, "type")
    if not operand.has(needed):
        if operand.has("switch_channel_id") or needed == "switch_channel_id":
            answer = "" if needed == "switch_channel_id" else " not"
            fields.fail(key, f"{name} must{answer} name a switch channel there; correct it")
        fields.fail(key, f"{name} must name {wanted} there ({needed}); correct it")


def _item(fields: Fields, key: str, known: Any, number: int) -> Any:
    if not 0 <= number < len(known):
        fields.fail(key, f"names {number}, and there are {len(known)}; correct it")
    return known[number]

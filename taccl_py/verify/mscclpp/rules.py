"""Rules that can be tested without executing anything: limits, and that all that is named exists and fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from taccl_py.collective import Buffer, Kind
from taccl_py.runtimes import CUSTOM, MSCCLPP, PlanRuntime
from taccl_py.verify.msccl.findings import Findings, place, quoted
from taccl_py.verify.msccl.geometry import BufferLengths
from taccl_py.verify.mscclpp.grammar import (
    MEMORY,
    PORT,
    SWITCH,
    UNLIMITED_BYTES,
    Gpu,
    Operand,
    Operation,
    Plan,
    PlanThreadblock,
)

_LOCAL, _FAR, _SWITCH, _OWN_PACKETS, _FAR_PACKETS = "local", "far", "switch", "packets", "far packets"
_SHOWN = {
    _LOCAL: "a buffer of its own rank (type)",
    _FAR: "a remote buffer (buffer_id)",
    _SWITCH: "a switch channel (switch_channel_id)",
    _OWN_PACKETS: "scratch of its own rank, where packets are",
    _FAR_PACKETS: "remote scratch, where packets go",
}


@dataclass(frozen=True, slots=True)
class Form:
    """Form of an operation.

    Attributes
    ----------
    types
        Of which channel types it may be; empty: it does not matter.
    channels, semaphores
        Whether it names channels, semaphores.
    sources, targets
        What its operands are; the last one may be repeated if `repeats` says so.
    repeats
        Whether the last source, and the last target, may come more than once, or not at all.
    pairs
        Whether every source goes to the target with its number, and there may be any number of both.
    """

    types: tuple[str, ...] = ()
    channels: bool = False
    semaphores: bool = False
    sources: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    repeats: tuple[bool, bool] = (False, False)
    pairs: bool = False


_BOTH = (True, True)
# microsoft/mscclpp 1f5f065, src/core/include/execution_kernel.hpp: what each handler makes of its operands.
FORMS = {
    "nop": Form(),
    "barrier": Form(),
    "pipeline": Form(),
    "sem_acquire": Form(semaphores=True),
    "sem_release": Form(semaphores=True),
    "signal": Form((MEMORY, PORT), channels=True),
    "rlxsignal": Form((MEMORY, PORT), channels=True),
    "wait": Form((MEMORY, PORT), channels=True),
    "rlxwait": Form((MEMORY, PORT), channels=True),
    "flush": Form((PORT,), channels=True),
    "put": Form((MEMORY, PORT), sources=(_LOCAL,), targets=(_FAR,), pairs=True),
    "pws": Form((PORT,), sources=(_LOCAL,), targets=(_FAR,), pairs=True),
    "pwsf": Form((PORT,), sources=(_LOCAL,), targets=(_FAR,), pairs=True),
    "get": Form((MEMORY,), sources=(_FAR,), targets=(_LOCAL,), pairs=True),
    "copy": Form(sources=(_LOCAL,), targets=(_LOCAL,)),
    "re": Form(sources=(_LOCAL, _LOCAL), targets=(_LOCAL,), repeats=(True, False)),
    "res": Form((MEMORY,), sources=(_LOCAL, _LOCAL), targets=(_LOCAL, _FAR), repeats=_BOTH),
    "rre": Form((MEMORY,), sources=(_LOCAL, _FAR), targets=(_LOCAL,), repeats=(True, False)),
    "rres": Form((MEMORY,), sources=(_LOCAL, _FAR), targets=(_LOCAL, _FAR), repeats=_BOTH),
    "ppkt": Form((MEMORY, PORT), sources=(_LOCAL,), targets=(_FAR_PACKETS,), pairs=True),
    "rppkt": Form((MEMORY, PORT), sources=(_OWN_PACKETS,), targets=(_FAR_PACKETS, _FAR_PACKETS), repeats=(False, True)),
    "cpkt": Form(sources=(_LOCAL,), targets=(_OWN_PACKETS,)),
    "upkt": Form(sources=(_OWN_PACKETS,), targets=(_LOCAL,)),
    "repkt": Form(sources=(_LOCAL, _OWN_PACKETS), targets=(_LOCAL,), repeats=(True, False)),
    "respkt": Form((MEMORY,), sources=(_LOCAL, _OWN_PACKETS), targets=(_LOCAL, _FAR_PACKETS), repeats=_BOTH),
    "recpkt": Form(sources=(_LOCAL, _OWN_PACKETS), targets=(_LOCAL, _OWN_PACKETS), repeats=(True, False)),
    "recspkt": Form(
        (MEMORY,), sources=(_LOCAL, _OWN_PACKETS), targets=(_LOCAL, _OWN_PACKETS, _FAR_PACKETS), repeats=_BOTH
    ),
    "glres": Form((SWITCH,), sources=(_SWITCH,), targets=(_SWITCH,)),
    "gstore": Form((SWITCH,), sources=(_LOCAL,), targets=(_SWITCH,)),
    "gstorepkt": Form((SWITCH,), sources=(_OWN_PACKETS,), targets=(_SWITCH,)),
}


def find_geometry(plan: Plan, kind: Kind | None, findings: Findings) -> BufferLengths | None:
    """Lengths of the buffers, or None if they do not belong to the collective."""
    num_ranks, first = len(plan.gpus), plan.gpus[0]
    given = first.input_chunks, first.output_chunks
    for gpu in plan.gpus:
        if (gpu.input_chunks, gpu.output_chunks) != given:
            what = f"its buffers have {gpu.input_chunks} and {gpu.output_chunks} chunks, and those of gpu 0 {given[0]} and {given[1]}"
            findings.violation(place(gpu.id), "chunk-counts", f"{what}; all must be alike", fatal=True)
    if kind is None or findings.broken:
        return None
    shard = given[1] if kind in (Kind.REDUCESCATTER, Kind.SCATTER) else given[0]
    wanted = (shard, shard)
    if kind in (Kind.ALLGATHER, Kind.GATHER):
        wanted = (shard, shard * num_ranks)
    elif kind in (Kind.REDUCESCATTER, Kind.SCATTER):
        wanted = (shard * num_ranks, shard)
    elif kind is Kind.ALLTOALL:
        wanted = (shard // num_ranks * num_ranks,) * 2
        shard //= num_ranks
    if wanted != given or not shard:
        what = f"{given[0]} and {given[1]} chunks of input and output do not belong to {kind} over {num_ranks} ranks"
        findings.violation("", "chunk-counts", f"{what}; correct them", fatal=True)
        return None
    return BufferLengths(kind, num_ranks, shard, *given)


def check_plan(plan: Plan, runtime: PlanRuntime, findings: Findings) -> None:
    """Test the plan as a whole, and every GPU, threadblock and operation."""
    if plan.alignment_bytes % runtime.alignment_bytes:
        what = f"buffer_alignment {plan.alignment_bytes} is no multiple of {runtime.alignment_bytes}; write such a multiple"
        findings.violation("", "alignment", what)
    if not runtime.max_channels_at_once <= plan.threads <= runtime.max_threads:
        what = f"num_threads_per_block is {plan.threads}, and {runtime.max_channels_at_once} to {runtime.max_threads} are possible"
        findings.violation("", "thread-count", f"{what}; correct it")
    for index, gpu in enumerate(plan.gpus):
        if gpu.id != index:
            what = f"its id is {gpu.id}, and it is number {index} in the list; put GPUs in order"
            findings.violation(place(index), "gpu-id", what, fatal=True)
        if not gpu.input_chunks or not gpu.output_chunks:
            what = "input_chunks and output_chunks must be at least 1, as the runtime divides by them"
            findings.violation(place(gpu.id), "no-chunks", what, fatal=True)
    if findings.broken:
        return
    if plan.collective != CUSTOM:  # else no library counts a size, and whoever runs it knows the buffers
        _check_sizes(plan, runtime, findings)
    for gpu in plan.gpus:
        _check_gpu(plan, gpu, runtime, findings)


def size_unit_bytes(plan: Plan) -> int:
    """Of what a size is a multiple, as the runtime counts it, in which all chunks are equal and aligned."""
    first = plan.gpus[0]
    return plan.alignment_bytes * (first.output_chunks if plan.collective == Kind.ALLGATHER else first.input_chunks)


def _check_sizes(plan: Plan, runtime: PlanRuntime, findings: Findings) -> None:
    """Report a range without a size, and to sizes for which offsets or scratch are too small; the largest may be left open."""
    unit = size_unit_bytes(plan)
    largest = plan.max_bytes // unit * unit
    if largest < max(plan.min_bytes, 1):
        what = f"from min_message_size {plan.min_bytes} to max_message_size {plan.max_bytes} there is no multiple of {unit} bytes"
        findings.violation("", "size-range", f"{what}, so that the plan is never run; write a wider range")
        return
    if plan.max_bytes == UNLIMITED_BYTES:
        return
    counted = unit // plan.alignment_bytes
    longest = max(max(gpu.input_chunks, gpu.output_chunks, gpu.scratch_chunks) for gpu in plan.gpus)
    if largest // counted * longest > runtime.max_offset_bytes:
        what = f"at {largest} bytes a buffer has {largest // counted * longest}, and offsets only reach {runtime.max_offset_bytes}"
        findings.violation("", "offset-overflow", f"{what}; lower max_message_size")
    scratch_bytes = largest // counted * max(gpu.scratch_chunks for gpu in plan.gpus)
    scratch_bytes *= (2 if plan.uses_packets else 1) * (2 if plan.doubles_scratch else 1)
    if not has_pipelines(plan) and plan.shares_scratch and scratch_bytes > runtime.shared_scratch_bytes:
        what = f"at {largest} bytes it needs {scratch_bytes} of scratch, and reuse_resources gives it {runtime.shared_scratch_bytes}"
        findings.violation("", "scratch-overflow", f"{what}; lower max_message_size")


def _check_gpu(plan: Plan, gpu: Gpu, runtime: PlanRuntime, findings: Findings) -> None:
    where = place(gpu.id)
    if len(gpu.blocks) > runtime.max_threadblocks:
        what = f"{len(gpu.blocks)} threadblocks may not run at the same time; use at most {runtime.max_threadblocks}"
        findings.violation(where, "too-many-threadblocks", what)
    for kind, peers in gpu.peers.items():
        for peer, count in sorted(Counter(peers).items()):
            if peer >= len(plan.gpus) or peer == gpu.id:
                what = f"it has {kind} channels to gpu {peer}, which is no other GPU of this plan; correct that"
                findings.violation(where, "unpaired-channel", what, fatal=True)
                continue
            back = plan.gpus[peer].peers.get(kind, ()).count(gpu.id)
            if back < count:
                what = f"{where} has {count} {kind} channels to gpu {peer}, which has {back} back, so the runtime makes the others"
                findings.note(what)
    _check_groups(plan, gpu, findings)
    for remote in gpu.remotes:
        if remote.rank >= len(plan.gpus) or remote.rank == gpu.id:
            what = f"it names a remote buffer of gpu {remote.rank}, which is no other GPU of this plan; correct it"
            findings.violation(where, "no-such-buffer", what, fatal=True)
    _check_blocks(gpu, runtime, findings)
    _check_barriers(gpu, runtime, findings)
    if not findings.broken:
        _check_operations(plan, gpu, findings)


def _check_groups(plan: Plan, gpu: Gpu, findings: Findings) -> None:
    """Test that all ranks of a switch channel exist and have it: they make it together."""
    for group, count in Counter(gpu.groups).items():
        others = [rank for rank in group.ranks if rank != gpu.id]
        lonely = not others or len(others) == len(group.ranks) or max(group.ranks) >= len(plan.gpus)
        if lonely or any(plan.gpus[rank].groups.count(group) != count for rank in others):
            what = f"not every rank of its switch channel over {', '.join(map(str, group.ranks))} has that, as often"
            findings.violation(place(gpu.id), "unpaired-channel", f"{what}; write it for all of them", fatal=True)


def _check_blocks(gpu: Gpu, runtime: PlanRuntime, findings: Findings) -> None:
    for number, block in enumerate(gpu.blocks):
        if block.id != number:
            what = f"its id is {block.id}, and it is number {number} in the list; put threadblocks in order"
            findings.violation(place(gpu.id, number), "threadblock-id", what, fatal=True)
        _check_block(gpu, block, runtime, findings)


def _check_block(gpu: Gpu, block: PlanThreadblock, runtime: PlanRuntime, findings: Findings) -> None:
    where = place(gpu.id, block.id)
    number = len(block.all_operations)
    if number > runtime.max_operations:
        what = f"it has {number} operations, and the runtime loads {runtime.max_operations}; shard them out"
        findings.violation(where, "too-many-operations", what)
    for kind, ids in block.channels.items():
        if len(ids) > runtime.max_channels:
            what = f"it uses {len(ids)} {kind} channels, and the runtime has room for {runtime.max_channels}; use fewer"
            findings.violation(where, "too-many-channels", what)
        for channel in ids:
            if channel >= len(gpu.groups if kind == SWITCH else gpu.peers.get(kind, ())):
                what = f"{kind} channel {channel} is not one that is known of this GPU; correct it"
                findings.violation(where, "no-such-channel", what, fatal=True)
    for kind, ids in block.remotes.items():
        if len(ids) > runtime.max_channels:
            what = f"it uses {len(ids)} remote buffers by {kind} channels, and the runtime has room for {runtime.max_channels}"
            findings.violation(where, "too-many-buffers", f"{what}; shard them out among threadblocks")
        for remote in ids:
            if remote >= len(gpu.remotes):
                findings.violation(
                    where, "no-such-buffer", f"this GPU has no remote buffer {remote}; correct it", fatal=True
                )
            elif kind not in gpu.remotes[remote].types:
                what = f"remote buffer {remote} is not open to {kind} channels; add that to its access_channel_types"
                findings.violation(where, "no-access", what)


def _check_barriers(gpu: Gpu, runtime: PlanRuntime, findings: Findings) -> None:
    """Test that barriers exist, and that those who meet there count each other alike, as nobody else may come by."""
    users: dict[int, set[int]] = {}
    for block in gpu.blocks:
        for _, operation in block.all_operations:
            if operation.barrier is not None:
                users.setdefault(operation.barrier, set()).add(block.id)
    for number, blocks in sorted(users.items()):
        if number >= runtime.max_semaphores:
            what = f"it names barrier {number}, and there are barriers 0..{runtime.max_semaphores - 1}; use one of them"
            findings.violation(place(gpu.id, min(blocks)), "no-such-semaphore", what)
    for block in gpu.blocks:
        for index, operation in block.all_operations:
            if operation.barrier is None or operation.barrier_blocks == len(users[operation.barrier]):
                continue
            met = len(users[operation.barrier])
            what = f"num_threadblocks is {operation.barrier_blocks}, and {met} threadblocks meet at barrier {operation.barrier}"
            findings.violation(place(gpu.id, block.id, index), "barrier-count", f"{what}; write that number")


def _check_operations(plan: Plan, gpu: Gpu, findings: Findings) -> None:
    for block in gpu.blocks:
        for step, operation in enumerate(block.operations):
            where = place(gpu.id, block.id, step)
            _check_operation(plan, gpu, block, operation, where, findings)
            for inner, one in enumerate(operation.inner):
                if one.name == "pipeline" or one.inner:
                    what = "a pipeline in a pipeline stops the runtime; write its operations here"
                    findings.violation(f"{where}.{inner}", "pipeline", what, fatal=True)
                else:
                    _check_operation(plan, gpu, block, one, f"{where}.{inner}", findings)


def _check_operation(
    plan: Plan, gpu: Gpu, block: PlanThreadblock, operation: Operation, where: str, findings: Findings
) -> None:  # fmt: skip
    form = FORMS.get(operation.name)
    if form is None:
        what = f"there is no operation {quoted(operation.name)}; correct it"
        findings.violation(where, "unknown-operation", what, fatal=True)
        return
    _check_pipeline(plan, operation, where, findings)
    _check_form(operation, form, where, findings)
    if operation.name == "flush":  # its operands are only counted
        operation = replace(operation, sources=(), targets=())
    if not findings.broken:
        _check_names(gpu, block, operation, where, findings)
        if not findings.broken:
            _check_packets(plan, gpu, block, operation, form, where, findings)
            _check_operands(plan, gpu, block, operation, where, findings)


def has_pipelines(plan: Plan) -> bool:
    """True if some threadblock repeats operations."""
    return any(one.name == "pipeline" for gpu in plan.gpus for block in gpu.blocks for one in block.operations)


def _check_pipeline(plan: Plan, operation: Operation, where: str, findings: Findings) -> None:
    if (operation.name == "pipeline") != bool(operation.inner):
        what = "a pipeline has iter_context and operations (ops), and nothing else has; correct it"
        findings.violation(where, "pipeline", what, fatal=True)
    elif operation.inner and (not operation.unit_bytes or operation.unit_bytes % plan.alignment_bytes):
        what = f"its unit_size is {operation.unit_bytes} bytes; write a multiple of {plan.alignment_bytes}"
        findings.violation(where, "alignment", what, fatal=True)
    part = operation.slice
    if part is not None and part.index >= part.parts:
        what = f"tbg_info names part {part.index} of {part.parts}; the first one is 0"
        findings.violation(where, "no-such-part", what, fatal=True)


def _check_form(operation: Operation, form: Form, where: str, findings: Findings) -> None:
    """Test channel type and numbers of what is named."""
    runtime = MSCCLPP
    if form.types and operation.channel_type not in form.types:
        what = f"{operation.name} needs channel type {' or '.join(form.types)}, found {quoted(operation.channel_type)}"
        findings.violation(where, "wrong-channel", what, fatal=True)
    proxied = (operation.channel_type == PORT and form.pairs) or (
        operation.name == "rppkt" and operation.channel_type == PORT
    )
    if form.channels and not operation.channels:
        findings.violation(where, "channel-count", f"{operation.name} names no channel; correct it", fatal=True)
    if proxied and len(operation.channels) != len(operation.targets):
        what = f"{operation.name} names {len(operation.channels)} channels for {len(operation.targets)} destinations"
        findings.violation(where, "channel-count", f"{what}; name as many", fatal=True)
    if operation.name in ("nop", "barrier", "sem_acquire", "sem_release") and operation.channels:
        findings.violation(where, "channel-count", f"{operation.name} takes no channels; correct it", fatal=True)
    if form.semaphores != bool(operation.semaphores):
        what = f"{operation.name} must name its semaphores, and no others"
        findings.violation(where, "semaphore-count", what, fatal=True)
    if operation.name == "flush":
        _check_flush(operation, where, findings)
    else:
        _check_kinds(operation, form, where, findings)
    for number, most, name in (
        (len(operation.channels), runtime.max_channels_at_once, "channels"),
        (len(operation.semaphores), runtime.max_semaphores, "semaphores"),
    ):
        if number > most:
            what = f"it names {number} {name}, and there is room for {most}; use two operations"
            findings.violation(where, f"too-many-{name}", what, fatal=True)
    for given, name in ((operation.sources, "sources"), (operation.targets, "destinations")):
        if len(given) > runtime.max_buffers_at_once:
            what = (
                f"it names {len(given)} {name}, and there is room for {runtime.max_buffers_at_once}; use two operations"
            )
            findings.violation(where, "too-many-buffers", what, fatal=True)
    if operation.name == "barrier" and operation.barrier is None:
        findings.violation(where, "no-such-semaphore", "it names no barrier; add barrier_id", fatal=True)


def _check_flush(operation: Operation, where: str, findings: Findings) -> None:
    """Remark on channels for which the runtime does not wait: `handleFlush` takes the number of destinations for theirs."""
    if len(operation.targets) > len(operation.channels):
        what = f"it names {len(operation.channels)} channels, and {len(operation.targets)} destinations, by which the runtime counts"
        findings.violation(where, "operand-count", f"{what}; name as many", fatal=True)
    elif len(operation.targets) < len(operation.channels):
        done = f"only the first {len(operation.targets)}" if operation.targets else "none"
        what = f"{where}: the runtime flushes {done} of its {len(operation.channels)} channels, as it counts destinations (dst_buff)"
        findings.note(f"{what}; name as many")


def _check_kinds(operation: Operation, form: Form, where: str, findings: Findings) -> None:
    """Test that there are as many operands as needed, and that each is of the right kind."""
    sides = (
        (operation.sources, form.sources, form.repeats[0], "source"),
        (operation.targets, form.targets, form.repeats[1], "destination"),
    )
    for given, kinds, repeats, name in sides:
        least = len(kinds) - 1 if repeats else len(kinds)
        if len(given) < least or (len(given) > len(kinds) and not repeats and not form.pairs):
            more = " or more" if repeats or form.pairs else ""
            what = f"{operation.name} has {len(given)} {name}s and must have {least}{more}"
            findings.violation(where, "operand-count", f"{what}; correct it", fatal=True)
            continue
        for number, operand in enumerate(given):
            kind = kinds[min(number, len(kinds) - 1)]
            if _kind_of(operand) not in _KINDS[kind]:
                what = f"{operation.name} must name {_SHOWN[kind]} as {name} {number}; correct it"
                findings.violation(where, "wrong-buffer", what, fatal=True)
    if form.pairs and len(operation.sources) != len(operation.targets):
        what = f"{operation.name} has {len(operation.sources)} sources and {len(operation.targets)} destinations"
        findings.violation(
            where, "operand-count", f"{what}; the runtime takes them by pairs, so name as many", fatal=True
        )


_KINDS = {
    _LOCAL: (_LOCAL,), _OWN_PACKETS: (_LOCAL,), _FAR: (_FAR,), _FAR_PACKETS: (_FAR,), _SWITCH: (_SWITCH,),
}  # fmt: skip


def _kind_of(operand: Operand) -> str:
    if operand.switch is not None:
        return _SWITCH
    return _FAR if operand.remote is not None else _LOCAL


def _check_names(gpu: Gpu, block: PlanThreadblock, operation: Operation, where: str, findings: Findings) -> None:
    """Test that channels, semaphores and buffers exist, and fit each other."""
    kind = operation.channel_type
    channels = block.channels.get(kind, ())
    named = operation.channels if FORMS[operation.name].channels or kind == PORT else ()
    for channel in named:
        if channel >= len(channels):
            what = f"this threadblock has no {kind} channel {channel}; correct it"
            findings.violation(where, "no-such-channel", what, fatal=True)
    for semaphore in operation.semaphores:
        if semaphore >= len(gpu.semaphores):
            what = f"this GPU has no semaphore {semaphore}; correct it"
            findings.violation(where, "no-such-semaphore", what, fatal=True)
    remotes = block.remotes.get(kind, ())
    for operand in (*operation.sources, *operation.targets):
        if operand.remote is not None and operand.remote >= len(remotes):
            what = f"this threadblock has no remote buffer {operand.remote} for {kind or 'no'} channels; correct it"
            findings.violation(where, "no-such-buffer", what, fatal=True)
        if operand.switch is not None and operand.switch >= len(channels):
            what = f"this threadblock has no switch channel {operand.switch}; correct it"
            findings.violation(where, "no-such-channel", what, fatal=True)
    if not findings.broken and kind == PORT:
        _check_peer(gpu, channels, remotes, operation, where, findings)


def _check_packets(
    plan: Plan, gpu: Gpu, block: PlanThreadblock, operation: Operation, form: Form, where: str, findings: Findings
) -> None:  # fmt: skip
    """Test that packets are in scratch, where the runtime has room for them and looks for them."""
    given = ((operation.sources, form.sources), (operation.targets, form.targets))
    for operands, kinds in given:
        for number, operand in enumerate(operands):
            kind = kinds[min(number, len(kinds) - 1)]
            packets = kind in (_OWN_PACKETS, _FAR_PACKETS) or operation.name == "gstorepkt"
            packets = packets or (operation.name == "ppkt" and operation.channel_type == PORT)
            for _, buffer in owners_of(plan, gpu, block, operation, operand) if packets else ():
                if buffer is not Buffer.SCRATCH:
                    what = f"{operation.name} has packets in {buffer}, and the runtime has them in scratch; use that"
                    findings.violation(where, "wrong-buffer", what, fatal=True)
            if packets and not plan.uses_packets:
                what = f"{operation.name} has packets, for which scratch is too short with protocol {plan.protocol}; write LL"
                findings.violation(where, "outside-buffer", what, fatal=True)
    if operation.name == "ppkt" and operation.channel_type == PORT and not plan.shares_scratch:
        what = "a ppkt by a proxy takes the scratch of the first plan that the process has run (handlePutPackets)"
        findings.violation(where, "broken-operation", f"{what}; use rppkt, or reuse_resources in all plans")


def _check_peer(
    gpu: Gpu, channels: Sequence[int], remotes: Sequence[int], operation: Operation, where: str, findings: Findings
) -> None:  # fmt: skip
    """Test that a proxy's channel leads to the rank of the buffer."""
    for channel, target in zip(operation.channels, operation.targets, strict=False):
        rank = gpu.remotes[remotes[target.remote or 0]].rank
        peer = gpu.peers[PORT][channels[channel]]
        if peer != rank:
            what = f"its channel leads to gpu {peer}, and its buffer is on gpu {rank}; use a channel to that"
            findings.violation(where, "wrong-peer", what, fatal=True)


def _check_operands(
    plan: Plan, gpu: Gpu, block: PlanThreadblock, operation: Operation, where: str, findings: Findings
) -> None:
    """Test sizes and ends."""
    pairs = FORMS[operation.name].pairs
    sizes = {operand.size for operand in (*operation.sources, *operation.targets)}
    if pairs:
        together = zip(operation.sources, operation.targets, strict=True)
        sizes = next((found for a, b in together if len(found := {a.size, b.size}) > 1), set())
    if len(sizes) > 1:
        what = f"its buffers have different sizes ({', '.join(map(str, sorted(sizes)))}); make them equal"
        findings.violation(where, "size-mismatch", what, fatal=True)
    for operand in (*operation.sources, *operation.targets):
        for owner, buffer in owners_of(plan, gpu, block, operation, operand):
            lengths = {
                Buffer.INPUT: owner.input_chunks,
                Buffer.OUTPUT: owner.output_chunks,
                Buffer.SCRATCH: owner.scratch_chunks,
            }
            if operand.index + operand.size > lengths[buffer]:
                what = f"{buffer}[{operand.index}..{operand.index + operand.size - 1}] of gpu {owner.id} ends after {lengths[buffer]} chunks"
                findings.violation(where, "outside-buffer", f"{what}; keep inside", fatal=True)


def owners_of(
    plan: Plan, gpu: Gpu, block: PlanThreadblock, operation: Operation, operand: Operand
) -> list[tuple[Gpu, Buffer]]:  # fmt: skip
    """Whose buffers an operand is in, and which one of theirs: those of all ranks of a switch channel, else of one."""
    if operand.buffer is not None:
        return [(gpu, operand.buffer)]
    if operand.switch is not None:
        group = gpu.groups[block.channels[SWITCH][operand.switch]]
        return [(plan.gpus[rank], group.buffer) for rank in group.ranks]
    remote = gpu.remotes[block.remotes[operation.channel_type][operand.remote or 0]]
    return [(plan.gpus[remote.rank], remote.buffer)]

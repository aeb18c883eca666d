"""Rules that can be tested without executing anything: limits, and that all that is named exists and fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from taccl_py.collective import Buffer, Kind
from taccl_py.runtimes import PlanRuntime
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


@dataclass(frozen=True, slots=True)
class Form:
    """Form of an operation: channel types, whether it names channels or semaphores, how many operands.

    A number of operands is exact; None is at least one.
    """

    types: tuple[str, ...] = ()
    channels: bool = False
    semaphores: bool = False
    sources: int | None = 0
    targets: int | None = 0


FORMS = {
    "nop": Form(),
    "barrier": Form(),
    "sem_acquire": Form(semaphores=True),
    "sem_release": Form(semaphores=True),
    "signal": Form((MEMORY, PORT), channels=True),
    "rlxsignal": Form((MEMORY, PORT), channels=True),
    "wait": Form((MEMORY, PORT), channels=True),
    "rlxwait": Form((MEMORY, PORT), channels=True),
    "put": Form((MEMORY, PORT), sources=1, targets=1),
    "pws": Form((PORT,), channels=True, sources=1, targets=1),
    "pwsf": Form((PORT,), channels=True, sources=1, targets=1),
    "flush": Form((PORT,), channels=True, targets=None),
    "copy": Form(sources=1, targets=1),
    "re": Form(sources=None, targets=1),
    "glres": Form((SWITCH,), sources=1, targets=1),
    "gstore": Form((SWITCH,), sources=1, targets=1),
}
# They exist, and nothing is known here of what they do to the order of things.
UNSUPPORTED = frozenset({
    "get", "res", "rre", "rres", "ppkt", "rppkt", "cpkt", "upkt", "repkt", "recpkt", "respkt", "recspkt",
    "gstorepkt", "pipeline",
})  # fmt: skip


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
    share = given[1] if kind in (Kind.REDUCESCATTER, Kind.SCATTER) else given[0]
    wanted = (share, share)
    if kind in (Kind.ALLGATHER, Kind.GATHER):
        wanted = (share, share * num_ranks)
    elif kind in (Kind.REDUCESCATTER, Kind.SCATTER):
        wanted = (share * num_ranks, share)
    elif kind is Kind.ALLTOALL:
        wanted = (share // num_ranks * num_ranks,) * 2
        share //= num_ranks
    if wanted != given or not share:
        what = f"{given[0]} and {given[1]} chunks of input and output do not belong to {kind} over {num_ranks} ranks"
        findings.violation("", "chunk-counts", f"{what}; correct them", fatal=True)
        return None
    return BufferLengths(kind, num_ranks, share, *given)


def check_plan(plan: Plan, runtime: PlanRuntime, findings: Findings) -> None:
    """Test the plan as a whole, and every GPU, threadblock and operation."""
    if plan.protocol != "Simple":
        findings.violation("", "not-judged", "packets (LL) are not verified; use protocol Simple", fatal=True)
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
    if plan.shares_scratch and scratch_bytes > runtime.shared_scratch_bytes:
        what = f"at {largest} bytes it needs {scratch_bytes} of scratch, and reuse_resources gives it {runtime.shared_scratch_bytes}"
        findings.violation("", "scratch-overflow", f"{what}; lower max_message_size")


def _check_gpu(plan: Plan, gpu: Gpu, runtime: PlanRuntime, findings: Findings) -> None:
    where = place(gpu.id)
    if len(gpu.blocks) > runtime.max_threadblocks:
        what = f"{len(gpu.blocks)} threadblocks may not run at the same time; use at most {runtime.max_threadblocks}"
        findings.violation(where, "too-many-threadblocks", what)
    if len(gpu.semaphores) > runtime.max_semaphores:
        what = f"it has {len(gpu.semaphores)} semaphores, and the runtime {runtime.max_semaphores}; use fewer"
        findings.violation(where, "too-many-semaphores", what)
    for kind, peers in gpu.peers.items():
        for peer, count in sorted(Counter(peers).items()):
            back = plan.gpus[peer].peers.get(kind, ()).count(gpu.id) if peer < len(plan.gpus) else 0
            if back != count or peer == gpu.id:
                what = f"it has {count} {kind} channels to gpu {peer}, which has {back} back; write equally many"
                findings.violation(where, "unpaired-channel", what, fatal=True)
    _check_groups(plan, gpu, findings)
    for remote in gpu.remotes:
        if remote.rank >= len(plan.gpus) or remote.rank == gpu.id:
            what = f"it names a remote buffer of gpu {remote.rank}, which is no other GPU of this plan; correct it"
            findings.violation(where, "no-such-buffer", what, fatal=True)
    _check_blocks(gpu, runtime, findings)
    _check_barriers(gpu, runtime, findings)
    if not findings.broken:
        _check_operations(plan, gpu, runtime, findings)


def _check_groups(plan: Plan, gpu: Gpu, findings: Findings) -> None:
    """Test that all ranks of a switch channel exist and have it: they make it together."""
    for group, count in Counter(gpu.groups).items():
        others = [rank for rank in group.ranks if rank != gpu.id]
        lonely = not others or len(others) == len(group.ranks) or max(group.ranks) >= len(plan.gpus)
        if lonely or any(plan.gpus[rank].groups.count(group) != count for rank in others):
            what = f"not every rank of its switch channel over {', '.join(map(str, group.ranks))} has that, as often"
            findings.violation(place(gpu.id), "unpaired-channel", f"{what}; write it for all of them", fatal=True)


def _check_blocks(gpu: Gpu, runtime: PlanRuntime, findings: Findings) -> None:
    used: dict[tuple[str, int], int] = {}
    for number, block in enumerate(gpu.blocks):
        if block.id != number:
            what = f"its id is {block.id}, and it is number {number} in the list; put threadblocks in order"
            findings.violation(place(gpu.id, number), "threadblock-id", what, fatal=True)
        _check_block(gpu, block, runtime, findings)
        for kind, ids in block.channels.items():
            for channel in ids:
                if (kind, channel) in used:
                    what = (
                        f"threadblock {used[kind, channel]} uses {kind} channel {channel} too; name every channel once"
                    )
                    findings.violation(place(gpu.id, number), "shared-channel", what, fatal=True)
                used[kind, channel] = number


def _check_block(gpu: Gpu, block: PlanThreadblock, runtime: PlanRuntime, findings: Findings) -> None:
    where = place(gpu.id, block.id)
    if len(block.operations) > runtime.max_operations:
        what = (
            f"it has {len(block.operations)} operations, and the runtime loads {runtime.max_operations}; share them out"
        )
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
            findings.violation(where, "too-many-buffers", f"{what}; share them out among threadblocks")
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
        for operation in block.operations:
            if operation.barrier is not None:
                users.setdefault(operation.barrier, set()).add(block.id)
    for number, blocks in sorted(users.items()):
        if number >= runtime.max_semaphores:
            what = f"it names barrier {number}, and there are barriers 0..{runtime.max_semaphores - 1}; use one of them"
            findings.violation(place(gpu.id, min(blocks)), "no-such-semaphore", what)
    for block in gpu.blocks:
        for index, operation in enumerate(block.operations):
            if operation.barrier is None or operation.barrier_blocks == len(users[operation.barrier]):
                continue
            met = len(users[operation.barrier])
            what = f"num_threadblocks is {operation.barrier_blocks}, and {met} threadblocks meet at barrier {operation.barrier}"
            findings.violation(place(gpu.id, block.id, index), "barrier-count", f"{what}; write that number")


def _check_operations(plan: Plan, gpu: Gpu, runtime: PlanRuntime, findings: Findings) -> None:
    for block in gpu.blocks:
        for index, operation in enumerate(block.operations):
            where = place(gpu.id, block.id, index)
            form = FORMS.get(operation.name)
            if form is None or operation.grouped:
                _object_to_name(operation, where, findings)
                continue
            _check_form(operation, form, where, runtime, findings)
            _check_names(gpu, block, operation, form, where, findings)
            if not findings.broken:
                _check_operands(plan, gpu, block, operation, where, findings)


def _object_to_name(operation: Operation, where: str, findings: Findings) -> None:
    if operation.name in FORMS or operation.name in UNSUPPORTED:
        detail = " by a group of threadblocks" if operation.grouped else ""
        what = f"{operation.name}{detail} is not verified, so nothing can be said of this plan; use put, copy and re"
        findings.violation(where, "not-judged", what, fatal=True)
        return
    findings.violation(
        where, "unknown-operation", f"there is no operation {quoted(operation.name)}; correct it", fatal=True
    )


def _check_form(operation: Operation, form: Form, where: str, runtime: PlanRuntime, findings: Findings) -> None:
    """Test channel type and numbers of what is named."""
    if operation.name == "pwsf":
        what = (
            f"{runtime.version} puts from a wrong place in pwsf, which takes the address of its offsets for an offset"
        )
        findings.violation(where, "broken-operation", f"{what}; write pws, and flush in an operation of its own")
    if form.types and operation.channel_type not in form.types:
        what = f"{operation.name} needs channel type {' or '.join(form.types)}, found {quoted(operation.channel_type)}"
        findings.violation(where, "wrong-channel", what, fatal=True)
    proxied = operation.name == "put" and operation.channel_type == PORT
    if (form.channels or proxied) != bool(operation.channels):
        what = f"{operation.name} {'names no channel' if form.channels or proxied else 'takes no channels'}; correct it"
        # The memory put of the runtime's own tools may or may not name its channel.
        if not (operation.name == "put" and operation.channels):
            findings.violation(where, "channel-count", what, fatal=True)
    if form.semaphores != bool(operation.semaphores):
        findings.violation(
            where, "semaphore-count", f"{operation.name} must name its semaphores, and no others", fatal=True
        )
    for given, wanted, name in (
        (operation.sources, form.sources, "source"),
        (operation.targets, form.targets, "destination"),
    ):
        if len(given) != wanted if wanted is not None else not given:
            what = f"{operation.name} has {len(given)} {name}s and must have {wanted or 'at least 1'}"
            findings.violation(where, "operand-count", f"{what}; the runtime takes the first for all", fatal=True)
    if operation.name == "flush" and len(operation.targets) != len(operation.channels):
        what = f"it names {len(operation.channels)} channels, and {len(operation.targets)} destinations, by which the runtime counts"
        findings.violation(where, "operand-count", f"{what}; name as many", fatal=True)
    at_once = max(len(operation.channels), len(operation.semaphores))
    if at_once > runtime.max_channels_at_once:
        what = f"it names {at_once} channels or semaphores, and there is room for {runtime.max_channels_at_once}; use two operations"
        findings.violation(where, "too-many-channels", what)
    buffers = len(operation.sources) + len(operation.targets)
    if buffers > runtime.max_buffers_at_once:
        what = f"it names {buffers} buffers, and there is room for {runtime.max_buffers_at_once}; use two operations"
        findings.violation(where, "too-many-buffers", what)
    if operation.name == "barrier" and operation.barrier is None:
        findings.violation(where, "no-such-semaphore", "it names no barrier; add barrier_id", fatal=True)


def _check_names(
    gpu: Gpu, block: PlanThreadblock, operation: Operation, form: Form, where: str, findings: Findings
) -> None:
    """Test that channels, semaphores and buffers exist, and fit each other."""
    channels = block.channels.get(operation.channel_type, ())
    for channel in operation.channels:
        if channel >= len(channels):
            what = f"this threadblock has no {operation.channel_type} channel {channel}; correct it"
            findings.violation(where, "no-such-channel", what, fatal=True)
    for semaphore in operation.semaphores:
        if semaphore >= len(gpu.semaphores):
            findings.violation(
                where, "no-such-semaphore", f"this GPU has no semaphore {semaphore}; correct it", fatal=True
            )
    remotes = block.remotes.get(operation.channel_type, ())
    if operation.channel_type == SWITCH:
        _check_switches(channels, operation, where, findings)
        return
    for operand in (*operation.sources, *operation.targets):
        if operand.switch is not None:
            what = f"{operation.name} takes no switch channels; correct it"
            findings.violation(where, "wrong-buffer", what, fatal=True)
        far = operand.remote is not None
        wanted = operation.name in ("put", "pws", "pwsf") and operand in operation.targets
        if far != wanted:
            what = (
                f"{operation.name} {'must write a remote buffer' if wanted else 'takes local buffers only'}; correct it"
            )
            findings.violation(where, "wrong-buffer", what, fatal=True)
        elif operand.remote is not None and operand.remote >= len(remotes):
            what = f"this threadblock has no remote buffer {operand.remote} for {operation.channel_type}; correct it"
            findings.violation(where, "no-such-buffer", what, fatal=True)
    if not findings.broken and operation.channel_type == PORT and form.targets:
        _check_peer(gpu, channels, remotes, operation, where, findings)


def _check_peer(
    gpu: Gpu, channels: Sequence[int], remotes: Sequence[int], operation: Operation, where: str, findings: Findings
) -> None:  # fmt: skip
    """Test that a proxy's channel leads to the rank of the buffer."""
    rank = gpu.remotes[remotes[operation.targets[0].remote or 0]].rank
    for channel in operation.channels:
        peer = gpu.peers[PORT][channels[channel]]
        if peer != rank:
            what = f"its channel leads to gpu {peer}, and its buffer is on gpu {rank}; use a channel to that"
            findings.violation(where, "wrong-peer", what, fatal=True)


def _check_switches(channels: Sequence[int], operation: Operation, where: str, findings: Findings) -> None:
    """Test that the operands are of switch channels, which exist; what is multicast comes from a local buffer."""
    if operation.name == "gstore" and any(source.buffer is None for source in operation.sources):
        what = f"{operation.name} loads from a buffer of its own rank; name that (type)"
        findings.violation(where, "wrong-buffer", what, fatal=True)
    named = operation.targets if operation.name == "gstore" else (*operation.sources, *operation.targets)
    for operand in named:
        if operand.switch is None:
            what = f"{operation.name} names a buffer of one rank; name a switch channel (switch_channel_id)"
            findings.violation(where, "wrong-buffer", what, fatal=True)
        elif operand.switch >= len(channels):
            what = f"this threadblock has no switch channel {operand.switch}; correct it"
            findings.violation(where, "no-such-channel", what, fatal=True)


def _check_operands(
    plan: Plan, gpu: Gpu, block: PlanThreadblock, operation: Operation, where: str, findings: Findings
) -> None:
    """Test sizes and ends."""
    sizes = {operand.size for operand in (*operation.sources, *operation.targets)}
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

"""Rules about the ``algo`` and ``gpu`` elements and about whole threadblocks; `step_rules` has those about steps."""

from __future__ import annotations

from collections import Counter

from taccl_py.collective import Buffer, Kind
from taccl_py.runtimes import (
    CUSTOM,
    LEGACY,
    LOOP_LIMIT,
    MAX_COUNT,
    MAX_NAME,
    MAX_OFFSET,
    MAX_PEERS_PER_CHANNEL,
    MAX_XML_CHILDREN,
    MAX_XML_NODES,
    V100_THREADBLOCKS,
    Runtime,
)
from taccl_py.verify.msccl.findings import Findings, listing, place, quoted
from taccl_py.verify.msccl.geometry import BufferLengths, divides_among_ranks, geometry_of
from taccl_py.verify.msccl.grammar import AlgoElement, Gpu, Threadblock
from taccl_py.verify.msccl.operations import ALL_RANKS, Fifo, Wires

_SIMPLE_THREADS = 512  # threads that copy in Simple; one warp more does not
_WARP = 32
_PACK_BYTES = 8
_BUILT_IN_NAME = "2D"
_LARGE_SCRATCH_BYTES = 1 << 32


def find_geometry(
    algorithm: AlgoElement, runtime: Runtime, kind: Kind | None, findings: Findings, *, named: bool = False
) -> BufferLengths | None:
    """Geometry of the collective that the file names, or None when it names none or its chunks do not fit it.

    `named` says that it is known what a custom file is for, although that has no kind.
    """
    custom = algorithm.collective == CUSTOM and CUSTOM in runtime.collectives.values()
    found = kind if custom else _kind_of(algorithm, runtime, kind, findings)
    if found is None and not custom:
        return None
    if found is None and not named:
        findings.note("nobody named the collective of this custom file, so what it computes was not compared with one")
    n, whole = algorithm.num_ranks, algorithm.num_chunks_per_loop
    if n < 1:
        findings.violation("", "rank-count", f"ngpus={n}; there must be at least one rank", fatal=True)
        return None
    if whole < 1:
        findings.violation("", "chunks-per-loop", f"nchunksperloop={whole}; it must be at least 1", fatal=True)
        return None
    if divides_among_ranks(found, custom) and whole % n:
        what = f"nchunksperloop={whole} is no multiple of ngpus={n}, as {found} needs"
        findings.violation("", "chunks-per-loop", what, fatal=True)
        return None
    geometry = geometry_of(found, n, whole, custom=custom)
    longest = max(geometry.input_chunks, geometry.output_chunks)
    if longest > MAX_OFFSET + MAX_COUNT:
        what = f"a buffer of {longest} chunks cannot be addressed; offsets end at {MAX_OFFSET}"
        findings.violation("", "offset-limit", what, fatal=True)
        return None
    return geometry


def check_algorithm(algorithm: AlgoElement, runtime: Runtime, findings: Findings) -> None:
    """Rules about the attributes of ``algo``."""
    _check_name(algorithm, runtime, findings)
    _check_call(algorithm, runtime, findings)
    _check_protocol(algorithm, runtime, findings)
    _check_channel_count(algorithm, runtime, findings)
    _check_placement(algorithm, findings)
    _check_sizes(algorithm, runtime, findings)
    _check_threads(algorithm, runtime, findings)
    _check_scratch_size(algorithm, runtime, findings)


def check_gpu(
    gpu: Gpu, algorithm: AlgoElement, geometry: BufferLengths | None, runtime: Runtime, findings: Findings
) -> None:
    """Rules about everything that is counted on one GPU."""
    _check_scratch(gpu, findings)
    if geometry is not None:
        _check_chunk_counts(gpu, algorithm, geometry, runtime, findings)
    _check_nodes(gpu, algorithm, findings)
    _check_threadblock_ids(gpu, runtime, findings)
    for tb in gpu.threadblocks:
        _check_peers(gpu, tb, algorithm.num_ranks, findings)
        _check_channel(gpu, tb, algorithm, runtime, findings)
    _check_peers_per_channel(gpu, findings)


def check_connections(
    algorithm: AlgoElement, findings: Findings, *, compare_counts: bool, wires: Wires = ALL_RANKS
) -> None:
    """Rules about the two ends of each connection; counts are compared only where all steps could be read."""
    senders: dict[Fifo, list[Threadblock]] = {}
    receivers: dict[Fifo, list[Threadblock]] = {}
    for gpu in algorithm.gpus:
        for tb in gpu.threadblocks:
            filled, emptied = wires.filled_by(gpu.id, tb), wires.emptied_by(gpu.id, tb)
            if filled is not None:
                senders.setdefault(filled, []).append(tb)
            if emptied is not None:
                receivers.setdefault(emptied, []).append(tb)
    for connection in sorted({*senders, *receivers}):
        sending, receiving = senders.get(connection, []), receivers.get(connection, [])
        _check_ends(connection, sending, receiving, findings)
        if compare_counts and len(sending) == len(receiving) == 1:
            _check_counts(connection, sending[0], receiving[0], findings)


def largest_size(algorithm: AlgoElement, runtime: Runtime) -> int | None:
    """Largest size in bytes for which the runtime selects the file, inclusive; None when there is no limit."""
    if algorithm.max_bytes <= 0 and runtime.max_bytes_zero == "unlimited":
        return None  # compared without a sign, what is negative is larger than any size
    return max(algorithm.max_bytes - 1, 0) if runtime.max_bytes_exclusive else algorithm.max_bytes


def capped_threads(algorithm: AlgoElement) -> int | None:
    """Threads of a block where the file has a cap for them; a warp that does not copy is added to those of Simple."""
    threads = algorithm.num_threads
    if not threads or threads < 0:
        return None
    return threads + _WARP if algorithm.protocol == "Simple" else threads


def _kind_of(algorithm: AlgoElement, runtime: Runtime, kind: Kind | None, findings: Findings) -> Kind | None:
    spelled = {name: known for known, name in runtime.collectives.items() if name != CUSTOM}
    found = spelled.get(algorithm.collective)
    if found is None:
        known = " ".join(sorted({*runtime.collectives.values()}))
        what = f"coll={quoted(algorithm.collective)}: {runtime.title} selects none such; use one of: {known}"
        findings.violation("", "collective", what, fatal=True)
    elif kind is not None and kind is not found:
        findings.violation("", "collective", f"the file is for {found}, and {kind} was asked for")
    return found


def _check_call(algorithm: AlgoElement, runtime: Runtime, findings: Findings) -> None:
    if algorithm.collective in {runtime.collectives[kind] for kind in runtime.uncalled}:
        findings.note(
            f"{runtime.title} has no call for {algorithm.collective}, so it loads the file and never selects it"
        )


def _check_name(algorithm: AlgoElement, runtime: Runtime, findings: Findings) -> None:
    if len(algorithm.name.encode("utf-8", "surrogatepass")) > MAX_NAME:
        what = f"the name {quoted(algorithm.name)} has more than {MAX_NAME} bytes; a runtime cuts it, shorten it"
        findings.violation("", "name-length", what)
    if runtime.name == LEGACY.name and algorithm.name == _BUILT_IN_NAME and algorithm.collective == "alltoall":
        what = f"an alltoall named {_BUILT_IN_NAME!r} selects a built-in algorithm and not these steps; rename it"
        findings.violation("", "reserved-name", what)


def _check_protocol(algorithm: AlgoElement, runtime: Runtime, findings: Findings) -> None:
    if algorithm.protocol not in runtime.payload_bytes:
        known = ", ".join(runtime.payload_bytes)
        what = f"proto={quoted(algorithm.protocol)} is none of {known} (spelled exactly so)"
        findings.violation("", "protocol", what, fatal=True)
    elif algorithm.protocol == "Simple" and algorithm.collective in ("reduce", "broadcast"):
        findings.note(
            f"{algorithm.collective} with Simple hangs over a network, where host and kernel count its steps differently;"
            " use it inside one node, or LL"
        )
    elif algorithm.protocol == "LL128":
        findings.note(
            "LL128 needs links that keep 128 bytes together, such as NVLink; this is not checked by every runtime"
        )


def _check_channel_count(algorithm: AlgoElement, runtime: Runtime, findings: Findings) -> None:
    if not 1 <= algorithm.num_channels <= runtime.max_channels:
        what = f"nchannels={algorithm.num_channels}; {runtime.title} has 1..{runtime.max_channels}"
        findings.violation("", "channel-count", what)


def _check_placement(algorithm: AlgoElement, findings: Findings) -> None:
    if not algorithm.placed_in and not algorithm.placed_out:
        what = "inplace and outofplace are both 0, so the file is never selected; set the one that it is made for"
        findings.violation("", "placement", what)
    elif algorithm.collective in ("gather", "scatter") and algorithm.placed_in != algorithm.placed_out:
        findings.note(
            f"only the root of a {algorithm.collective} can be in place; a file for one placement is selected by some"
            " ranks and not by others when the root is in place"
        )


def _check_sizes(algorithm: AlgoElement, runtime: Runtime, findings: Findings) -> None:
    low, high = algorithm.min_bytes, largest_size(algorithm, runtime)
    for name, value in (("minBytes", low), ("maxBytes", algorithm.max_bytes)):
        if value < 0:
            what = f"{name}={value} is negative, which legacy MSCCL refuses and other runtimes take for a huge size; write 0 or more"
            findings.violation("", "size-range", what)
    if min(low, algorithm.max_bytes) < 0:
        return
    if high is None:
        findings.note(f'maxBytes="0" means no limit to {runtime.title}, and never to the legacy runtime')
        return
    whole = max(algorithm.num_chunks_per_loop, 1)
    if high < max(low, 1) or high // whole * whole < max(low, 1):
        limit = "exclusive" if runtime.max_bytes_exclusive else "inclusive"
        what = (
            f"minBytes={low} maxBytes={algorithm.max_bytes} ({limit}) holds no size that nchunksperloop={whole} divides, so"
            " the file is never selected"
        )
        findings.violation("", "size-range", what)
    _check_size_is_counted(algorithm, high, runtime, findings)
    payload = runtime.payload_bytes.get(algorithm.protocol, 0)
    if payload and high > whole * payload * LOOP_LIMIT:
        what = f"maxBytes={algorithm.max_bytes} needs more than {LOOP_LIMIT} rounds; at most {whole * payload * LOOP_LIMIT}"
        findings.violation("", "loop-limit", what)


def _check_size_is_counted(algorithm: AlgoElement, high: int, runtime: Runtime, findings: Findings) -> None:
    limit = runtime.max_size_bytes
    if high > limit:
        what = (
            f"maxBytes={algorithm.max_bytes}: {runtime.title} counts bytes or elements in an int, which ends at {limit}"
        )
        findings.violation("", "count-limit", f"{what}; write at most {limit + runtime.max_bytes_exclusive}")


def _check_threads(algorithm: AlgoElement, runtime: Runtime, findings: Findings) -> None:
    threads = algorithm.num_threads
    if not threads:
        return
    if threads < 0 or threads % _WARP:
        findings.violation("", "thread-count", f"nthreads={threads} is no multiple of {_WARP}")
        return
    payload = runtime.payload_bytes["Simple"]
    if algorithm.protocol == "Simple" and payload % (min(threads, _SIMPLE_THREADS) * _PACK_BYTES):
        what = f"nthreads={threads}: so many copying threads do not divide a slot of {payload} bytes; use {_SIMPLE_THREADS}"
        findings.violation("", "thread-count", what)


def _check_scratch_size(algorithm: AlgoElement, runtime: Runtime, findings: Findings) -> None:
    scratch = max((gpu.scratch_chunks for gpu in algorithm.gpus), default=0)
    if runtime.name != LEGACY.name or algorithm.num_chunks_per_loop < 1:
        return
    scratch_bytes = algorithm.max_bytes * scratch // algorithm.num_chunks_per_loop
    if scratch_bytes > _LARGE_SCRATCH_BYTES:
        findings.note(
            f"the legacy runtime allocates {scratch_bytes} bytes of scratch when it loads the file (from maxBytes)"
        )


def check_gpu_ids(algorithm: AlgoElement, findings: Findings) -> None:
    """Rules about which ``gpu`` elements there are."""
    n = algorithm.num_ranks
    counts = Counter(gpu.id for gpu in algorithm.gpus)
    for gpu, count in sorted(counts.items()):
        if count > 1:
            findings.violation(place(gpu), "gpu-ids", f"{count} <gpu> elements have id {gpu}; keep one", fatal=True)
        if not 0 <= gpu < n:
            findings.violation(place(gpu), "gpu-ids", f"no rank has id {gpu}; ids are 0..{n - 1}", fatal=True)
    if n > MAX_XML_CHILDREN or len(algorithm.gpus) > MAX_XML_CHILDREN:
        what = f"ngpus={n}, {len(algorithm.gpus)} <gpu> elements; more than {MAX_XML_CHILDREN} overwrite memory"
        findings.violation("", "child-limit", what, fatal=True)
    elif missing := [rank for rank in range(n) if rank not in counts]:
        what = f"there is no <gpu> element for rank {listing(missing)}; every rank needs one"
        findings.violation("", "gpu-ids", what, fatal=True)


def _check_scratch(gpu: Gpu, findings: Findings) -> None:
    if gpu.scratch_chunks < 0:
        what = f"s_chunks={gpu.scratch_chunks} is negative; write 0 for no scratch"
        findings.violation(place(gpu.id), "scratch-count", what, fatal=True)
    elif gpu.scratch_chunks > MAX_OFFSET + MAX_COUNT:
        what = f"s_chunks={gpu.scratch_chunks}; offsets end at {MAX_OFFSET}"
        findings.violation(place(gpu.id), "offset-limit", what, fatal=True)


def _check_chunk_counts(
    gpu: Gpu, algorithm: AlgoElement, geometry: BufferLengths, runtime: Runtime, findings: Findings
) -> None:
    """Each count is the true length, or 0 for a buffer that no step uses."""
    for buffer, name in ((Buffer.INPUT, "i_chunks"), (Buffer.OUTPUT, "o_chunks")):
        found, right = gpu.declared_chunks(buffer), geometry.chunks(buffer)
        if algorithm.collective == CUSTOM and runtime.checks_chunk_counts:
            right = algorithm.num_chunks_per_loop  # this runtime knows no shorter buffer of a custom collective
        if found not in (0, right):
            what = f"{name}={found}; {geometry.kind or CUSTOM} has {right} there, or 0 when it is not used"
            findings.violation(place(gpu.id), "chunk-counts", what, fatal=True)


def _check_nodes(gpu: Gpu, algorithm: AlgoElement, findings: Findings) -> None:
    steps = sum(len(tb.steps) for tb in gpu.threadblocks)
    nodes = 1 + algorithm.num_elements + len(gpu.threadblocks) + steps
    if nodes > MAX_XML_NODES:
        what = f"rank {gpu.id} keeps {nodes} elements; a runtime has room for {MAX_XML_NODES}"
        findings.violation(place(gpu.id), "node-limit", what)
    if len(gpu.threadblocks) > MAX_XML_CHILDREN:
        what = f"{len(gpu.threadblocks)} threadblocks; more than {MAX_XML_CHILDREN} overwrite memory"
        findings.violation(place(gpu.id), "child-limit", what)


def _check_threadblock_ids(gpu: Gpu, runtime: Runtime, findings: Findings) -> None:
    ids = Counter(tb.id for tb in gpu.threadblocks)
    if not ids:
        what = "it has no threadblock, and a kernel without blocks cannot be launched; give it one"
        findings.violation(place(gpu.id), "no-threadblock", what, fatal=True)
        return
    for tb, count in sorted(ids.items()):
        if count > 1:
            findings.violation(place(gpu.id, tb), "threadblock-ids", f"{count} threadblocks have id {tb}", fatal=True)
        if tb < 0:
            findings.violation(place(gpu.id, tb), "threadblock-ids", f"id {tb} is negative", fatal=True)
    highest = max(ids)
    # Ids can be huge; the least one that is missing is at most as large as their number.
    if missing := [tb for tb in range(min(highest, MAX_XML_CHILDREN + len(ids))) if tb not in ids]:
        what = f"threadblock {listing(missing)} is missing; ids are 0..k-1 without a gap"
        findings.violation(place(gpu.id), "threadblock-ids", what, fatal=True)
    if highest >= runtime.max_threadblocks:
        what = f"id {highest}; {runtime.title} has threadblocks 0..{runtime.max_threadblocks - 1}"
        findings.violation(place(gpu.id), "threadblock-limit", what)
    elif len(ids) > runtime.resident_threadblocks:
        what = (
            f"{len(ids)} threadblocks; only {runtime.resident_threadblocks} are sure to run at the same time, and the"
            " kernel hangs when one of them cannot start"
        )
        findings.violation(place(gpu.id), "resident-threadblocks", what)
    elif len(ids) > V100_THREADBLOCKS:
        findings.note(f"some GPUs have more than {V100_THREADBLOCKS} threadblocks, which hang on a V100")


def _check_peers(gpu: Gpu, tb: Threadblock, num_ranks: int, findings: Findings) -> None:
    for name, peer in (("send", tb.send_peer), ("recv", tb.recv_peer)):
        where = place(gpu.id, tb.id)
        if peer == gpu.id:
            findings.violation(where, "peer-self", f"{name}={peer} is the GPU itself; copy with a cpy step", fatal=True)
        elif not -1 <= peer < num_ranks:
            what = f"{name}={peer}; write a rank 0..{num_ranks - 1}, or -1 for none"
            findings.violation(where, "peer-range", what, fatal=True)


def _check_channel(gpu: Gpu, tb: Threadblock, algorithm: AlgoElement, runtime: Runtime, findings: Findings) -> None:
    where = place(gpu.id, tb.id)
    if not 0 <= tb.channel < runtime.max_channels:
        what = f"chan={tb.channel}; {runtime.title} has channels 0..{runtime.max_channels - 1}, for local work too"
        findings.violation(where, "channel-range", what)
    elif tb.channel >= algorithm.num_channels and (tb.send_peer >= 0 or tb.recv_peer >= 0):
        what = f"chan={tb.channel} gets no connection with nchannels={algorithm.num_channels}"
        findings.violation(where, "channel-undeclared", what)
    elif tb.channel >= algorithm.num_channels:
        what = (
            f"chan={tb.channel} is not below nchannels={algorithm.num_channels}; a threadblock without peers may use 0"
        )
        findings.violation(where, "channel-undeclared", what)


def _check_peers_per_channel(gpu: Gpu, findings: Findings) -> None:
    counts = Counter(("sending", tb.channel) for tb in gpu.threadblocks if tb.send_peer >= 0)
    counts.update(("receiving", tb.channel) for tb in gpu.threadblocks if tb.recv_peer >= 0)
    for (what_they_do, channel), count in sorted(counts.items()):
        if count > MAX_PEERS_PER_CHANNEL:
            what = f"{count} {what_they_do} threadblocks on channel {channel}; at most {MAX_PEERS_PER_CHANNEL}, use more channels"
            findings.violation(place(gpu.id), "peers-per-channel", what)


def _check_ends(connection: Fifo, senders: list[Threadblock], receivers: list[Threadblock], findings: Findings) -> None:
    src, dst, channel = connection.src, connection.dst, connection.channel
    name = f"connection {src}->{dst} on channel {channel}"
    for gpu, verb, ends in ((src, "send", senders), (dst, "receive", receivers)):
        if len(ends) > 1:
            ids = listing(sorted(tb.id for tb in ends))
            what = f"threadblocks {ids} all {verb} on {name} and mix up their data; use one channel each"
            findings.violation(place(gpu), "shared-connection", what, fatal=True)
    if not receivers:
        what = f"{name} has no threadblock on gpu {dst} with recv={src}; the ranks hang when they connect"
        findings.violation(place(src, senders[0].id), "missing-counterpart", what, fatal=True)
    elif not senders:
        what = f"{name} has no threadblock on gpu {src} with send={dst}; the ranks hang when they connect"
        findings.violation(place(dst, receivers[0].id), "missing-counterpart", what, fatal=True)


def _check_counts(connection: Fifo, sender: Threadblock, receiver: Threadblock, findings: Findings) -> None:
    sent = [step for step in sender.steps if step.does.sends]
    received = [step for step in receiver.steps if step.does.receives]
    where = place(connection.src, sender.id)
    other = place(connection.dst, receiver.id)
    for position, (out, back) in enumerate(zip(sent, received, strict=False)):
        if out.count != back.count:
            what = (
                f"message {position} to gpu {connection.dst} has cnt={out.count} at step {out.index}, and {other} receives"
                f" cnt={back.count} at step {back.index}; both must be equal"
            )
            findings.violation(where, "count-mismatch", what, fatal=True)
            return
    if len(sent) != len(received):
        what = f"it sends {len(sent)} messages to gpu {connection.dst}, and {other} receives {len(received)}"
        findings.violation(where, "message-mismatch", what, fatal=True)

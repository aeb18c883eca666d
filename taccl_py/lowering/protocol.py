"""Protocol of a program, and the sizes for which it is chosen.

Protocol latencies are NCCL's own tuning constants for a step of a ring (microseconds, LL / LL128 / Simple): 0.6 / 1.9 / 3.4 over
NVLink, 2.7 / 4.0 / 14 over a network. LL sends a flag with every word (twice the bytes), LL128 sends 16 bytes for 15. They
order the protocols by size; they are not measurements of a machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from taccl_py.collective import Kind
from taccl_py.errors import LoweringError
from taccl_py.lowering.buffers import BufferSizes
from taccl_py.lowering.program import Protocol
from taccl_py.lowering.subject import CellSchedule
from taccl_py.runtimes import LOOP_LIMIT, MAX_COUNT, RCCL, Runtime
from taccl_py.topology.model import Medium, Topology
from taccl_py.units import BYTES_PER_MB

_WIRE_BYTES = {Protocol.LL: 2.0, Protocol.LL128: 16 / 15, Protocol.SIMPLE: 1.0}
_NEAR_US = {Protocol.LL: 0.6, Protocol.LL128: 1.9, Protocol.SIMPLE: 3.4}
_FAR_US = {Protocol.LL: 2.7, Protocol.LL128: 4.0, Protocol.SIMPLE: 14.0}

_MAX_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class ProtocolChoice:
    """A protocol, and whether the user asked for it."""

    protocol: Protocol
    asked: bool


def choose_protocol(
    schedule: CellSchedule, asked: Protocol | None, runtime: Runtime, *, barred: frozenset[Protocol] = frozenset()
) -> ProtocolChoice:
    """Return the protocol that is asked for, or the one with the least time for all messages one by one.

    Parameters
    ----------
    schedule
        Its sizes are those for which the protocol is chosen.
    asked
        User's choice, or None.
    runtime
        For the error.
    barred
        Not chosen if there is another one.

    Raises
    ------
    LoweringError
        If the one that is asked for hangs.
    """
    topology = schedule.topology
    no_simple = _has_network(topology) and schedule.collective.kind in (Kind.BROADCAST, Kind.REDUCE)
    if asked is not None:
        if asked is Protocol.SIMPLE and no_simple:
            raise LoweringError(
                f"{schedule.collective.kind} over a network hangs with protocol Simple: {runtime.title} counts the "
                "operations of its network connections for another pipeline depth than it runs; use LL",
                runtime=runtime.name,
                limit="protocol",
            )
        return ProtocolChoice(asked, asked=True)
    possible = possible_protocols(topology, schedule.collective.kind)
    allowed = [protocol for protocol in possible if protocol not in barred] or possible
    return ProtocolChoice(min(allowed, key=lambda p: _total_us(schedule, p)), asked=False)


def possible_protocols(topology: Topology, kind: Kind | None) -> tuple[Protocol, ...]:
    """Protocols that are right for a collective on a machine: those that hang, or could tear data, are left out."""
    possible = [Protocol.LL]
    if topology.keeps_stores_whole:
        possible.append(Protocol.LL128)
    if not (_has_network(topology) and kind in (Kind.BROADCAST, Kind.REDUCE)):
        possible.append(Protocol.SIMPLE)
    return tuple(possible)


def _has_network(topology: Topology) -> bool:
    return topology.num_nodes > 1 or topology.inside is Medium.NETWORK


def _total_us(schedule: CellSchedule, protocol: Protocol) -> float:
    """Sum of the times of all messages: the protocol's latency for such a hop, and its bytes at the link's rate."""
    topology = schedule.topology
    total_us = 0.0
    for message in schedule.messages:
        link = topology.links[message.link]
        near = topology.is_inside(link) and topology.inside is not Medium.NETWORK
        total_us += (_NEAR_US if near else _FAR_US)[protocol]
        size_bytes = len(message.chunks) * schedule.chunk_bytes
        total_us += _WIRE_BYTES[protocol] * link.beta_us_per_mb * size_bytes / BYTES_PER_MB
    return total_us


def flag_is_early(runtime: Runtime, protocol: Protocol) -> bool:
    """True if a threadblock may raise the flag of a send before all its threads have read what they send."""
    return runtime.name == RCCL.name and protocol is Protocol.LL


def largest_size_bytes(geometry: BufferSizes, runtime: Runtime, protocol: Protocol) -> int:
    """Largest size, as the runtime counts it, for which its loop and its integers hold; inclusive."""
    limit = geometry.chunks_per_loop * runtime.payload_bytes[protocol] * (LOOP_LIMIT - 1)
    return min(limit, runtime.max_size_bytes, _MAX_BYTES)


def largest_size_with(cells: int, geometry: BufferSizes, runtime: Runtime, protocol: Protocol) -> int:
    """Largest size for which one operation still carries `cells` cells."""
    return geometry.chunks_per_loop * (runtime.payload_bytes[protocol] // cells)


def cells_per_operation(size_bytes: int, geometry: BufferSizes, runtime: Runtime, protocol: Protocol) -> int:
    """Cells that one operation carries in a call of that size."""
    cell_bytes = -(-size_bytes // geometry.chunks_per_loop)
    return min(MAX_COUNT, max(1, runtime.payload_bytes[protocol] // max(1, cell_bytes)))

"""The graph of a schedule: per rank a node for every message that it sends or receives, and what each waits for.

* A send waits for the receives that bring what it passes on (``data_deps``), as the schedule's own times were found.
* A receive that adds waits for the receives that stored what it adds to (``data_deps``).
* A send waits for the one before it on its link (``ctrl_deps``) where a message occupies the link until it has arrived, so that the
  schedule's order is kept. Where a link is free before the message arrives (its alpha is 0, its latency is not) nothing holds it back.

Sums and copies inside a rank cost nothing in a schedule, and ASTRA-sim takes at least 1 ns for a node of computing: there are none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from taccl_py.lowering.chakra.wire import bytes_field, delimited, integer_field, packed_field
from taccl_py.schedule.ir import Schedule
from taccl_py.schedule.timing import find_deliveries
from taccl_py.schedule.transform import untimed_messages
from taccl_py.topology.model import Link

_SCHEMA = "0.0.4"


class TraceNodeType(IntEnum):
    """Types of nodes that are written, by their numbers in ``et_def.proto``."""

    SEND = 5
    RECEIVE = 6
    COLLECTIVE = 7


# Fields of the message Node, and of AttributeProto: its name, and its value by type.
_ID, _NAME, _TYPE, _CTRL_DEPS, _DATA_DEPS, _ATTR = 1, 2, 3, 4, 5, 10
_ATTR_NAME, _INT32, _INT64, _BOOL = 1, 7, 9, 27


@dataclass(frozen=True, slots=True)
class MessageNode:
    """A message as one of its two ranks sees it.

    Attributes
    ----------
    id
        Unique in its rank's file.
    type
        Send or receive.
    src, dst
        Ranks.
    message
        Position in the schedule, which both ranks' nodes have as their tag.
    num_bytes
        Size.
    reduce
        Whether the receiver adds it.
    data_deps, ctrl_deps
        Nodes of the same rank that must be done before; see the module's text.
    """

    id: int
    type: TraceNodeType
    src: int
    dst: int
    message: int
    num_bytes: int
    reduce: bool
    data_deps: tuple[int, ...]
    ctrl_deps: tuple[int, ...]

    @property
    def name(self) -> str:
        """Name for people."""
        if self.type is TraceNodeType.SEND:
            return f"message {self.message}: send to {self.dst}"
        return f"message {self.message}: receive from {self.src}{', add' if self.reduce else ''}"


def trace_ranks(schedule: Schedule) -> tuple[tuple[MessageNode, ...], ...]:
    """Nodes of every rank, in the order in which the schedule's messages start.

    A message's size is rounded to whole bytes, and is one byte at least.
    """
    links, messages = schedule.topology.links, schedule.messages
    deliveries = find_deliveries(schedule.topology, untimed_messages(schedule))
    counts = [0] * schedule.topology.num_ranks
    ids: list[tuple[int, int]] = []
    for message in messages:
        link = links[message.link]
        ids.append((counts[link.src], counts[link.dst]))
        counts[link.src] += 1
        counts[link.dst] += 1
    found: list[list[MessageNode]] = [[] for _ in counts]
    previous: dict[int, int] = {}
    for i, message in enumerate(messages):
        link = links[message.link]
        num_bytes = max(1, round(len(message.chunks) * schedule.chunk_bytes))
        brought = {
            at: sorted(ids[j][1] for j in deliveries[i] if links[messages[j].link].dst == at)
            for at in (link.src, link.dst)
        }
        before = (previous[message.link],) if message.link in previous and _occupies_to_the_end(link) else ()
        previous[message.link] = ids[i][0]
        both = (link.src, link.dst, i, num_bytes, message.reduce)
        found[link.src].append(MessageNode(ids[i][0], TraceNodeType.SEND, *both, tuple(brought[link.src]), before))
        found[link.dst].append(MessageNode(ids[i][1], TraceNodeType.RECEIVE, *both, tuple(brought[link.dst]), ()))
    return tuple(map(tuple, found))


def _occupies_to_the_end(link: Link) -> bool:
    """True if the link is busy until its message has arrived, False if it is free before that."""
    return link.alpha_us > 0 or link.latency_us == 0


def encode_trace(nodes: Sequence[MessageNode]) -> bytes:
    """File of one rank's nodes: the metadata, then the nodes, each after its length."""
    return _metadata() + b"".join(delimited(_encode(node)) for node in nodes)


def encode_call(name: str, comm_type: int, num_bytes: int) -> bytes:
    """File of one rank with a single node that calls a collective.

    Parameters
    ----------
    name
        Name of the node.
    comm_type
        Number of the collective in the enum CollectiveCommType.
    num_bytes
        Its size.
    """
    attributes = (
        _attribute("is_cpu_op", _BOOL, 0), _attribute("comm_type", _INT64, comm_type), _attribute("comm_size", _INT64, num_bytes),
    )  # fmt: skip
    parts = [
        integer_field(_ID, 0),
        bytes_field(_NAME, name.encode()),
        integer_field(_TYPE, TraceNodeType.COLLECTIVE),
        *attributes,
    ]
    return _metadata() + delimited(b"".join(parts))


def _metadata() -> bytes:
    return delimited(bytes_field(1, _SCHEMA.encode()))


def _encode(node: MessageNode) -> bytes:
    return b"".join(_parts(node))


def _parts(node: MessageNode) -> Iterator[bytes]:
    yield integer_field(_ID, node.id)
    yield bytes_field(_NAME, node.name.encode())
    yield integer_field(_TYPE, node.type)
    yield packed_field(_CTRL_DEPS, node.ctrl_deps)
    yield packed_field(_DATA_DEPS, node.data_deps)
    yield _attribute("is_cpu_op", _BOOL, 0)
    yield _attribute("comm_src", _INT32, node.src)
    yield _attribute("comm_dst", _INT32, node.dst)
    yield _attribute("comm_tag", _INT32, node.message)
    yield _attribute("comm_size", _INT64, node.num_bytes)


def _attribute(name: str, kind: int, value: int) -> bytes:
    return bytes_field(_ATTR, bytes_field(_ATTR_NAME, name.encode()) + integer_field(kind, value))

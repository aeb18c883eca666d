"""A compiled program bound to a rank: flat lists of which regions are combined, sent and received when.

A call makes one view of each region that is used, and then runs through the lists. On GPUs all of it is put on the current stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from taccl_py.collective import Buffer
from taccl_py.torch.steps import ChunkRun, CompiledProgram


@dataclass(frozen=True, slots=True)
class BoundRound:
    """One round by numbers of regions.

    Attributes
    ----------
    operations
        Target, first, and second or -1.
    messages
        Whether it is sent, its region, and the peer as torch counts ranks in its whole world.
    """

    operations: tuple[tuple[int, int, int], ...]
    messages: tuple[tuple[bool, int, int], ...]


class BoundProgram:
    """Program of one rank, for any size.

    Parameters
    ----------
    program, rank
        What to run, and as which rank.
    peers
        Ranks of the group as torch counts them in its whole world.

    Attributes
    ----------
    scratch_chunks
        Length of the scratch.
    """

    def __init__(self, program: CompiledProgram, rank: int, peers: Sequence[int]) -> None:
        self._regions: dict[ChunkRun, int] = {}
        self.scratch_chunks = program.scratch_chunks[rank]
        self._rounds = []
        for one in program.rounds[rank]:
            operations = tuple(
                (self._number(target), self._number(first), -1 if second is None else self._number(second))
                for target, first, second in one.operations
            )
            messages = [(True, self._number(each.region), peers[each.peer]) for each in one.sends]
            messages += [(False, self._number(each.region), peers[each.peer]) for each in one.receives]
            if operations or messages:
                self._rounds.append(BoundRound(operations, tuple(messages)))

    def _number(self, region: ChunkRun) -> int:
        return self._regions.setdefault(region, len(self._regions))

    def run(self, buffers: dict[Buffer, Any], chunk_elements: int, wire: MessageCarrier, combine: Any) -> None:
        """Run it.

        Parameters
        ----------
        chunk_elements
            Elements of a chunk.
        buffers
            Tensors in one dimension and of one type, for all buffers that it uses.
        wire
            What carries messages.
        combine
            Function of torch that takes two operands and ``out``.
        """
        views = [
            buffers[buffer].narrow(0, first * chunk_elements, chunks * chunk_elements)
            for buffer, first, chunks in self._regions
        ]
        # gloo's thread lets go of a message a little after it has come, and who throws the message away before waits for that.
        held = []
        for one in self._rounds:
            for target, first, second in one.operations:
                if second < 0:
                    views[target].copy_(views[first])
                else:
                    combine(views[first], views[second], out=views[target])
            if one.messages:
                held.append(wire.exchange(one.messages, views))


class MessageCarrier:
    """Messages of a round through ``batch_isend_irecv``.

    Parameters
    ----------
    distributed
        ``torch.distributed``.
    group
        The process group.
    tag
        Of all messages of a call, where the backend knows tags: messages of two different calls never meet.
    as_bytes
        ``torch.uint8`` where the backend does not know the type of the elements; else None.
    """

    def __init__(self, distributed: Any, group: Any, tag: int, as_bytes: Any = None) -> None:
        self._send, self._receive = distributed.isend, distributed.irecv
        self._operation, self._exchange = distributed.P2POp, distributed.batch_isend_irecv
        self._group, self._tag, self._as_bytes = group, tag, as_bytes

    def exchange(self, messages: Sequence[tuple[bool, int, int]], views: Sequence[Any]) -> list[Any]:
        """Send and receive all of them, and return what stands for them; on GPUs the stream waits, and this process does not."""
        make, group, tag = self._operation, self._group, self._tag
        if self._as_bytes is not None:
            views = [view.view(self._as_bytes) for view in views]
        send, receive = self._send, self._receive
        works: list[Any] = self._exchange(
            [make(send if sends else receive, views[region], peer, group, tag) for sends, region, peer in messages]
        )
        for work in works:
            work.wait()
        return works

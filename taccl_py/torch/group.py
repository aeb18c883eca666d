"""One process group: this process's place in it, calls that its ranks have agreed on, and the agreement itself."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from taccl_py.collective import Buffer, Kind
from taccl_py.errors import InputError
from taccl_py.torch.agreement import CallRecord, require_agreement
from taccl_py.torch.bound import BoundProgram, MessageCarrier
from taccl_py.torch.catalog import FileChoice
from taccl_py.torch.tensors import TensorCall, is_known_to_nccl

_LOG = logging.getLogger("taccl_py.torch")
_TAGS = 1 << 30
_RECENT = 16  # calls that ranks may be apart, and still find out where they parted
_CLOSING_TAG = _TAGS + 1  # of a message that nobody sends


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A call that all ranks have agreed on.

    Attributes
    ----------
    text
        The call, and what carries it out.
    choice
        The file, or why it is left to the backend.
    bound
        The program of this rank; None for the backend's own collective.
    carrier
        What carries its messages.
    """

    text: str
    choice: FileChoice
    bound: BoundProgram | None = None
    carrier: MessageCarrier | None = None


@dataclass(slots=True)
class GroupSeat:
    """The place of this process in a process group.

    Attributes
    ----------
    group
        Of torch.
    rank, peers
        This rank in the group, and its ranks as torch counts them in its whole world.
    place
        The same on all ranks of the group.
    recent
        Numbers and texts of the last calls.
    prepared
        Calls that have been agreed on.
    """

    torch: Any
    group: Any
    rank: int
    peers: tuple[int, ...]
    place: str
    recent: deque[tuple[int, str]] = field(default_factory=lambda: deque([(0, "")], maxlen=_RECENT))
    prepared: dict[Hashable, PreparedCall] = field(default_factory=dict)
    _bound: dict[tuple[Path, bool], BoundProgram] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)

    @property
    def num_ranks(self) -> int:
        """Ranks of the group."""
        return len(self.peers)

    def count(self, text: str) -> None:
        """Remember a call that begins."""
        self.recent.append((self.recent[-1][0] + 1, text))

    def agree(self, record: CallRecord, where: str) -> None:
        """Tell all ranks what this one is about to do, and hear it from them.

        Raises
        ------
        InputError
            On all ranks, if they are not about to do the same.
        """
        heard: list[Any] = [None] * self.num_ranks
        own = (record.call, record.choice, record.error, self.place)
        self.torch.distributed.all_gather_object(heard, own, group=self.group)
        self.place = heard[0][3]  # communicators are counted in each process, and not all may have made as many
        try:
            require_agreement([CallRecord(*each[:3]) for each in heard], where)
        except InputError:
            self.recent[-1] = (self.recent[-1][0], "refused")  # by all, who go on together
            raise

    def prepare(self, call: TensorCall, choice: FileChoice) -> PreparedCall:
        """Compile a call for this rank."""
        text = f"{call.text} by {choice.label}"
        if choice.file is None:
            return PreparedCall(text, choice)
        key = choice.file.path, choice.in_place
        if key not in self._bound:
            program = choice.file.compiled(in_place=choice.in_place)
            self._bound[key] = BoundProgram(program, self.rank, self.peers)
        as_bytes = None if call.output.device.type == "cpu" or is_known_to_nccl(call.output) else self.torch.uint8
        tag = int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()[:4], "big") % _TAGS
        carrier = MessageCarrier(self.torch.distributed, self.group, tag, as_bytes)
        return PreparedCall(text, choice, self._bound[key], carrier)

    def close(self) -> None:
        """Close the connections of the group: a process that waits for another one on it gets an error."""
        distributed = self.torch.distributed
        if "gloo" not in str(distributed.get_backend_config(self.group)):
            with contextlib.suppress(RuntimeError, AttributeError):
                self.group.abort()
            return
        # gloo closes all connections when a process gives up waiting on one; on one that is closed already it does not wait.
        for peer in (peer for rank, peer in enumerate(self.peers) if rank != self.rank):
            with contextlib.suppress(RuntimeError, ValueError):
                nobody = self.torch.empty(1)
                distributed.irecv(nobody, peer, self.group, _CLOSING_TAG).wait(timedelta(milliseconds=1))

    def tell(self, choice: FileChoice) -> None:
        """Say why calls are left to the backend, once for each reason: one rank aloud, the others for those who look closer."""
        if choice.why_not and choice.why_not not in self._told:
            self._told.add(choice.why_not)
            level = logging.WARNING if self.rank == 0 else logging.DEBUG
            detail = f" ({choice.detail})" if choice.detail else ""
            _LOG.log(level, "the backend's own collective is called, as %s%s; said once", choice.why_not, detail)


def find_seat(torch: Any, group: Any, number: int) -> GroupSeat:
    """Seat of this process in a group; None is the default group, `number` that of the communicator in this process.

    Raises
    ------
    InputError
        If there are no process groups, or it is none, or this process is not in it.
    """
    distributed = torch.distributed
    if not distributed.is_initialized():
        raise InputError("there is no process group; call torch.distributed.init_process_group first", path="group")
    group = distributed.group.WORLD if group is None else group
    if group is distributed.GroupMember.NON_GROUP_MEMBER:
        raise InputError("this process is not in the group; make the call on its ranks only", path="group")
    if not isinstance(group, distributed.ProcessGroup):
        raise InputError(f"found {type(group).__name__}, a process group of torch.distributed is needed", path="group")
    rank = int(distributed.get_rank(group))
    if rank < 0:
        raise InputError("this process is not in the group; make the call on its ranks only", path="group")
    peers = tuple(map(int, distributed.get_process_group_ranks(group)))
    return GroupSeat(torch, group, rank, peers, f"taccl_py/{number}/{group.group_name}")


def default_store(distributed: Any) -> Any:
    """Store that all processes write into and read from; None where torch does not tell."""
    try:
        return distributed.distributed_c10d._get_default_store()
    except (AttributeError, ValueError, RuntimeError):
        return None


def run_prepared(
    call: TensorCall, prepared: PreparedCall, seat: GroupSeat, scratch: Callable[[int, Any], Any]
) -> None:  # fmt: skip
    """Run the program of a prepared call on its tensors; `scratch` gives as many elements like those of a tensor."""
    file, bound, carrier, shape = prepared.choice.file, prepared.bound, prepared.carrier, call.shape
    if file is None or bound is None or carrier is None:
        raise ValueError("the backend makes this call")
    output, source = call.output, call.source
    if call.arithmetic.is_mean:  # before the sum, which may be larger than the type holds
        source = source.div_(seat.num_ranks) if shape.in_place else source / seat.num_ranks
    buffers = {Buffer.OUTPUT: output}
    if not prepared.choice.in_place:
        buffers[Buffer.INPUT] = source.clone() if shape.in_place else source
    elif shape.kind is Kind.REDUCESCATTER:
        buffers = {Buffer.INPUT: source}
    elif not shape.in_place:
        first = seat.rank * source.numel() if shape.kind is Kind.ALLGATHER else 0
        output.narrow(0, first, source.numel()).copy_(source)
    chunk_elements = shape.elements // file.chunks
    if bound.scratch_chunks:
        buffers[Buffer.SCRATCH] = scratch(bound.scratch_chunks * chunk_elements, output)
    bound.run(buffers, chunk_elements, carrier, call.arithmetic.function)

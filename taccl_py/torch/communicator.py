"""Collectives with the signatures of torch.distributed, carried out by algorithm files of a directory."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, Self

from taccl_py.collective import Kind
from taccl_py.errors import InputError, PackageMissing, TacclError
from taccl_py.torch.agreement import CallRecord
from taccl_py.torch.catalog import FileChoice, InstalledFiles
from taccl_py.torch.group import GroupSeat, default_store, find_seat, run_prepared
from taccl_py.torch.tensors import FUNCTIONS, Arithmetic, CallRequest, TensorCall, call_backend, describe_call
from taccl_py.torch.watch import CallWatch, OpenCall

STALL_SECONDS = 5.0
_NUMBERS = itertools.count()


def load(path: str | Path, *, stall_seconds: float = STALL_SECONDS) -> Communicator:
    """Return collectives that are carried out by the algorithm files of a directory.

    Parameters
    ----------
    path
        Directory that ``taccl install`` or ``taccl synth --sizes`` has written, for executor or rccl; the same on all ranks.
    stall_seconds
        After which a call that has not ended is looked into: ranks that have made different calls get an error then.

    Raises
    ------
    InputError
        If the directory cannot be read, holds no algorithm file, or one does not say what it is for; if the time is none.
    PackageMissing
        If there is no torch.
    """
    if not stall_seconds > 0:
        raise InputError(f"found {stall_seconds}, more than 0 is needed", path="load", field="stall_seconds")
    return Communicator(InstalledFiles(Path(path)), str(path), stall_seconds)


class Communicator:
    """Collectives with the signatures of torch.distributed, over any of its process groups; made by `load`.

    Where no file serves a call the backend's own collective is called, and the log of ``taccl_py.torch`` says why, once for each reason.
    Before the first message of a call with a new function, size, type, operator or placement all ranks agree on what carries it out.
    Calls are made by one thread, in the same order on all ranks of a group. On GPUs they are put on the current stream.
    """

    def __init__(self, files: InstalledFiles, name: str, stall_seconds: float) -> None:
        self._torch = _load_torch()
        self._files, self._name = files, name
        self._number = next(_NUMBERS)
        self._watch = CallWatch(stall_seconds)
        self._seats: dict[Any, GroupSeat] = {}
        self._pool: Any = None
        self._is_closed = False
        weakref.finalize(self, self._watch.stop)
        operators, torch = self._torch.distributed.ReduceOp, self._torch
        self._arithmetic = {
            operators.SUM: Arithmetic("sum", torch.add),
            operators.PRODUCT: Arithmetic("product", torch.mul),
            operators.MIN: Arithmetic("min", torch.minimum),
            operators.MAX: Arithmetic("max", torch.maximum),
            operators.AVG: Arithmetic("avg", torch.add, is_mean=True),
        }

    def __repr__(self) -> str:
        """The directory that it was made of."""
        return f"Communicator({self._name!r})"

    def __enter__(self) -> Self:
        """Begin a block that ends with `close`."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the block."""
        self.close()

    def close(self) -> None:
        """End the watch of calls, and let go of groups and scratch; calls are refused afterwards."""
        self._is_closed = True
        self._watch.stop()
        self._seats.clear()
        self._pool = None

    def all_reduce(self, tensor: Any, op: Any = None, group: Any = None, async_op: bool = False) -> None:
        """Combine the tensors of all ranks into each of them; `op` is SUM if None.

        Raises
        ------
        InputError
            On all ranks, if they cannot make the call, or make different ones.
        InvalidArtifact
            On all ranks, if the file for the call is wrong.
        """
        self._call(Kind.ALLREDUCE, (("tensor", tensor),), group, async_op, op=op)

    def all_gather_into_tensor(
        self, output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False
    ) -> None:  # fmt: skip
        """Put the inputs of all ranks into each output, one after the other; in place if the input is this rank's part of it.

        Raises
        ------
        InputError, InvalidArtifact
            As `all_reduce`.
        """
        self._call(Kind.ALLGATHER, (("output_tensor", output_tensor), ("input_tensor", input_tensor)), group, async_op)

    def reduce_scatter_tensor(
        self, output: Any, input: Any, op: Any = None, group: Any = None, async_op: bool = False
    ) -> None:  # fmt: skip
        """Combine the inputs of all ranks, and keep this rank's part; in place if the output is that part of the input.

        In place, the other parts of the input hold anything afterwards.

        Raises
        ------
        InputError, InvalidArtifact
            As `all_reduce`.
        """
        self._call(Kind.REDUCESCATTER, (("output", output), ("input", input)), group, async_op, op=op)

    # Names that newer versions of torch have for the same.
    all_gather_single, reduce_scatter_single = all_gather_into_tensor, reduce_scatter_tensor

    def all_to_all_single(
        self,
        output: Any,
        input: Any,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        group: Any = None,
        async_op: bool = False,
    ) -> None:
        """Send part d of the input to rank d, and put what comes from rank s into part s of the output.

        With split sizes the backend's own is called.

        Raises
        ------
        InputError, InvalidArtifact
            As `all_reduce`.
        """
        splits = (output_split_sizes, input_split_sizes) if output_split_sizes or input_split_sizes else None
        self._call(Kind.ALLTOALL, (("output", output), ("input", input)), group, async_op, splits=splits)

    def broadcast(
        self,
        tensor: Any,
        src: int | None = None,
        group: Any = None,
        async_op: bool = False,
        group_src: int | None = None,
    ) -> None:
        """Give all ranks the tensor of one: `src` as torch counts ranks in its whole world, or `group_src` in the group.

        Raises
        ------
        InputError, InvalidArtifact
            As `all_reduce`.
        """
        self._call(Kind.BROADCAST, (("tensor", tensor),), group, async_op, source=(src, group_src))

    # One call

    def _call(self, kind: Kind, tensors: tuple[tuple[str, Any], ...], group: Any, async_op: bool, **words: Any) -> None:
        """Make a call; `words` are `op`, `source` and `splits`, for the collectives that have them."""
        if self._is_closed:
            raise InputError("the communicator is closed; load the directory again", path=FUNCTIONS[kind])
        seat = self._seat(group)
        request = CallRequest(kind, tensors, **words)
        with self._torch.no_grad():
            try:
                if async_op:
                    raise InputError("is not supported; leave it out", path=FUNCTIONS[kind], field="async_op")
                call = describe_call(self._torch, request, seat.rank, seat.peers, self._arithmetic)
                known = seat.prepared.get(call.key)
                prepared = known or seat.prepare(call, self._choose(call))
            except TacclError as error:
                self._refuse(seat, FUNCTIONS[kind], error)
            with self._watched(seat, prepared.text):
                if known is None:
                    seat.agree(CallRecord(call.text, prepared.choice.label), self._name)
                    seat.tell(prepared.choice)
                    seat.prepared[call.key] = prepared
                if prepared.bound is None:
                    call_backend(self._torch.distributed, request, seat.group, seat.peers)
                else:
                    run_prepared(call, prepared, seat, self._scratch)

    def _refuse(self, seat: GroupSeat, function: str, error: TacclError) -> NoReturn:
        """Tell the others that this rank cannot make a call, so that they do not wait for it."""
        text = f"{function}: {error}"
        with self._watched(seat, text), contextlib.suppress(InputError):
            seat.agree(CallRecord(function, "", str(error)), self._name)
        raise error

    @contextlib.contextmanager
    def _watched(self, seat: GroupSeat, text: str) -> Iterator[None]:
        """Watch what is done for a call; where it fails because of what other ranks do, the error says that."""
        seat.count(text)
        opened = OpenCall(seat.place, seat.rank, seat.num_ranks, text, seat.recent, seat.close)
        self._watch.begin(opened)
        try:
            yield
        except RuntimeError as error:
            found = self._watch.explain(opened)
            if found:
                seat.close()
                raise InputError(f"{found}; all must make the same", path=self._name) from error
            error.add_note(f"taccl_py.torch, rank {seat.rank}: in {text}")
            raise
        finally:
            self._watch.end()

    def _choose(self, call: TensorCall) -> FileChoice:
        return (
            FileChoice(None, why_not=call.left_to_backend) if call.left_to_backend else self._files.choose(call.shape)
        )

    def _seat(self, group: Any) -> GroupSeat:
        if group is None:
            group = self._torch.distributed.group.WORLD
        seat = self._seats.get(id(group))
        if seat is None:
            seat = find_seat(self._torch, group, self._number)
            self._seats[id(group)] = seat  # which keeps the group, so that no other one gets its id
            self._watch.start(default_store(self._torch.distributed))
        return seat

    def _scratch(self, elements: int, like: Any) -> Any:
        """Scratch of so many elements; of calls on processors, which end before the next one begins, it is always the same."""
        if like.device.type != "cpu":
            return self._torch.empty(elements, dtype=like.dtype, device=like.device)
        size = elements * like.element_size()
        if self._pool is None or self._pool.numel() < size:
            self._pool = self._torch.empty(size, dtype=self._torch.uint8)
        return self._pool.narrow(0, 0, size).view(like.dtype)


def _load_torch() -> Any:
    try:
        import torch
        import torch.distributed
    except ImportError as error:
        raise PackageMissing(
            f"taccl_py.torch needs torch ({error})", "install it with: pip install '.[torch]'"
        ) from None
    return torch

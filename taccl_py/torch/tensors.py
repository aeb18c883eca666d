"""The user's tensors: what a call on them is, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taccl_py.collective import COMBINING, Kind
from taccl_py.errors import InputError
from taccl_py.torch.catalog import CallShape

FUNCTIONS = {
    Kind.ALLREDUCE: "all_reduce",
    Kind.ALLGATHER: "all_gather_into_tensor",
    Kind.REDUCESCATTER: "reduce_scatter_tensor",
    Kind.ALLTOALL: "all_to_all_single",
    Kind.BROADCAST: "broadcast",
}
# Types whose contributions are combined here; calls with others are left to the backend.
SUMMED = ("int8", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
# Types that NCCL and RCCL know; others travel as bytes.
_KNOWN_TO_NCCL = ("int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A call as the user makes it.

    Attributes
    ----------
    kind
        The collective.
    tensors
        Its tensors and the names of their parameters, the output first; the last one is the input.
    op
        Operator of torch; None is its default.
    source
        Root of Broadcast as torch counts ranks in its whole world, and in the group; None is not given.
    splits
        Split sizes of AllToAll, of output and input.
    """

    kind: Kind
    tensors: tuple[tuple[str, Any], ...]
    op: Any = None
    source: tuple[int | None, int | None] = (None, None)
    splits: tuple[Sequence[int] | None, Sequence[int] | None] | None = None


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Operators by which contributions are combined.

    Attributes
    ----------
    name
        Name of the operator; empty where nothing is combined.
    function
        Function of torch with two operands and ``out``; None if the backend must do it.
    is_mean
        Whether the sum is divided by the number of ranks at the end.
    """

    name: str
    function: Any = None
    is_mean: bool = False


@dataclass(frozen=True, slots=True)
class TensorCall:
    """A call on tensors, checked.

    Attributes
    ----------
    shape
        What a file is chosen by.
    arithmetic
        How contributions are combined.
    left_to_backend
        Why no file can carry it out, whatever files there are; empty if one can.
    output, source
        Tensors of the call, in one dimension; one and the same for AllReduce and Broadcast.
    """

    shape: CallShape
    arithmetic: Arithmetic
    left_to_backend: str
    output: Any
    source: Any
    _split: bool = False

    @property
    def key(self) -> Hashable:
        """Equal for calls that are carried out alike."""
        return self.shape, self.arithmetic.name, self._split, self.output.dtype, self.output.device.type

    @property
    def text(self) -> str:
        """The call, for people, and the same on two ranks if they make the same."""
        shape, data_type = self.shape, type_name(self.output)
        if self._split:
            return f"{FUNCTIONS[shape.kind]} of {data_type} elements with split sizes"
        words = [f"{FUNCTIONS[shape.kind]} of {shape.elements} {data_type} elements"]
        words += [f"({self.arithmetic.name})"] if self.arithmetic.name else []
        words += [f"from rank {shape.root}"] if shape.kind is Kind.BROADCAST else []
        words += ["out of place"] if not shape.in_place else []
        return " ".join(words)


def type_name(tensor: Any) -> str:
    """Type of a tensor's elements, as numpy says it."""
    return str(tensor.dtype).removeprefix("torch.")


def is_known_to_nccl(tensor: Any) -> bool:
    """True if NCCL and RCCL have a type for its elements."""
    return type_name(tensor) in _KNOWN_TO_NCCL


def describe_call(
    torch: Any, request: CallRequest, rank: int, peers: Sequence[int], known: Mapping[Any, Arithmetic]
) -> TensorCall:
    """Check a request and return what it is.

    Parameters
    ----------
    torch, request
        The module, and what the user asks for.
    rank, peers
        This rank in the group, and its ranks as torch counts them in its whole world.
    known
        Operators by what torch calls them.

    Raises
    ------
    InputError
        If it is nothing that any backend would do.
    """
    kind, num_ranks = request.kind, len(peers)
    _check_dense(torch, request)
    output, source = request.tensors[0][1], request.tensors[-1][1]
    elements = max(int(output.numel()), int(source.numel()))
    if request.splits is None:
        _check_lengths(request, num_ranks)
    arithmetic = _arithmetic(torch, FUNCTIONS[kind], request.op, known) if kind in COMBINING else Arithmetic("")
    shape = CallShape(
        kind=kind,
        num_ranks=num_ranks,
        root=_root(request, peers) if kind is Kind.BROADCAST else 0,
        elements=elements if request.splits is None else 0,
        element_bytes=int(output.element_size()),
        in_place=request.splits is None and is_in_place(kind, output, source, rank),
    )
    return TensorCall(
        shape, arithmetic, _why_backend(shape, arithmetic, output, request), output.view(-1), source.view(-1),
        request.splits is not None,
    )  # fmt: skip


def _check_dense(torch: Any, request: CallRequest) -> None:
    """Refuse what is no contiguous tensor, and tensors of different types or devices.

    Raises
    ------
    InputError
        If there is any.
    """
    function, output = FUNCTIONS[request.kind], request.tensors[0][1]
    for name, tensor in request.tensors:
        if not isinstance(tensor, torch.Tensor):
            raise _wrong(function, name, f"found {type(tensor).__name__}, a tensor is needed")
        if tensor.layout is not torch.strided:
            raise _wrong(function, name, "is sparse; call .to_dense() on it")
        if not tensor.is_contiguous():
            raise _wrong(function, name, "is not contiguous; call .contiguous() on it")
        if tensor.dtype != output.dtype:
            raise _wrong(function, name, f"is of {type_name(tensor)}, the output of {type_name(output)}; use one type")
        if tensor.device != output.device:
            raise _wrong(function, name, f"is on {tensor.device}, the output on {output.device}; use one device")


def _check_lengths(request: CallRequest, num_ranks: int) -> None:
    """Refuse outputs and inputs whose lengths do not fit.

    Raises
    ------
    InputError
        If they do not.
    """
    kind, function = request.kind, FUNCTIONS[request.kind]
    (name, output), (other, source) = request.tensors[0], request.tensors[-1]
    had, given = int(output.numel()), int(source.numel())
    if kind is Kind.ALLGATHER and had != given * num_ranks:
        raise _wrong(function, name, f"has {had} elements, {num_ranks} ranks with {given} need {given * num_ranks}")
    if kind is Kind.REDUCESCATTER and given != had * num_ranks:
        raise _wrong(function, other, f"has {given} elements, {num_ranks} ranks with {had} need {had * num_ranks}")
    if kind is not Kind.ALLTOALL:
        return
    if had != given:
        raise _wrong(function, other, f"has {given} elements, and the output {had}; use as many")
    for one, tensor in request.tensors:
        first = int(tensor.shape[0]) if tensor.dim() else 1
        if first % num_ranks:
            what = f"its first dimension, {first}, is no multiple of the {num_ranks} ranks; give split sizes"
            raise _wrong(function, one, what)


def _root(request: CallRequest, peers: Sequence[int]) -> int:
    """Root of a Broadcast in the group.

    Raises
    ------
    InputError
        If it is not given once, or not in the group.
    """
    in_world, in_group = request.source
    if (in_world is None) == (in_group is None):
        raise _wrong(FUNCTIONS[request.kind], "src", "give either src or group_src")
    if in_group is not None:
        if not 0 <= in_group < len(peers):
            raise _wrong(FUNCTIONS[request.kind], "group_src", f"found {in_group}, ranks are 0..{len(peers) - 1}")
        return in_group
    if in_world not in peers:
        raise _wrong(FUNCTIONS[request.kind], "src", f"rank {in_world} is not in the group")
    return peers.index(in_world)


def _arithmetic(torch: Any, function: str, op: Any, known: Mapping[Any, Arithmetic]) -> Arithmetic:
    """Arithmetic of an operator of torch; those that are not known are the backend's.

    Raises
    ------
    InputError
        If it is no operator of torch.
    """
    operators = torch.distributed.ReduceOp
    op = (
        operators.SUM if op is None else getattr(op, "op", op)
    )  # an object, as of operators with a factor, has a plain one
    if not isinstance(op, operators.RedOpType):
        raise _wrong(function, "op", f"found {op!r}, an operator of torch.distributed.ReduceOp is needed")
    return known.get(op) or Arithmetic(str(op))


def _why_backend(shape: CallShape, arithmetic: Arithmetic, output: Any, request: CallRequest) -> str:
    """Why the backend's own is called whatever files there are."""
    function, data_type = FUNCTIONS[shape.kind], type_name(output)
    if request.splits is not None:
        return f"{function} with split sizes is left to it"
    if shape.num_ranks == 1:
        return "the group has one rank"
    if not shape.elements:
        return f"the tensors of {function} are empty"
    if shape.kind not in COMBINING:
        return ""
    if arithmetic.function is None:
        return f"{function} with {arithmetic.name} is left to it"
    if data_type not in SUMMED or (arithmetic.is_mean and not output.is_floating_point()):
        return f"{function} ({arithmetic.name}) of {data_type} is left to it"
    return ""


def call_backend(distributed: Any, request: CallRequest, group: Any, peers: Sequence[int]) -> None:
    """Call the backend's own collective."""
    tensors, op = [tensor for _, tensor in request.tensors], request.op or distributed.ReduceOp.SUM
    match request.kind:
        case Kind.ALLREDUCE:
            distributed.all_reduce(*tensors, op=op, group=group)
        case Kind.ALLGATHER:
            _newest(distributed, "all_gather_single", "all_gather_into_tensor")(*tensors, group=group)
        case Kind.REDUCESCATTER:
            _newest(distributed, "reduce_scatter_single", "reduce_scatter_tensor")(*tensors, op=op, group=group)
        case Kind.ALLTOALL:
            distributed.all_to_all_single(*tensors, *(request.splits or ()), group=group)
        case Kind.BROADCAST:
            distributed.broadcast(*tensors, src=peers[_root(request, peers)], group=group)


def _newest(distributed: Any, name: str, older: str) -> Any:
    """Function of torch that has got a new name."""
    return getattr(distributed, name, None) or getattr(distributed, older)


def is_in_place(kind: Kind, output: Any, source: Any, rank: int) -> bool:
    """True if input and output share memory as a call in place has them.

    Raises
    ------
    InputError
        If they share it in another order.
    """
    if output is source or kind in (Kind.ALLREDUCE, Kind.BROADCAST):
        return True
    start, size = source.data_ptr(), source.numel() * source.element_size()
    other, other_size = output.data_ptr(), output.numel() * output.element_size()
    if start >= other + other_size or other >= start + size:
        return False
    longer, shorter, part = (other, start, size) if size < other_size else (start, other, other_size)
    if shorter - longer == (rank * part if size != other_size else 0):
        return True
    what = "input and output share memory, and not as in a call in place"
    place = f": rank {rank}'s is part {rank} of the longer one" if size != other_size else ""
    raise _wrong(FUNCTIONS[kind], "input", f"{what}{place}; use other memory")


def _wrong(function: str, name: str, what: str) -> InputError:
    return InputError(what, path=function, field=name)

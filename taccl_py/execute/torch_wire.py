"""Transports between processes of torch: gloo and the processors' memory, or NCCL and that of GPUs."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from taccl_py.errors import InputError
from taccl_py.execute.plan import Backend, DataType
from taccl_py.execute.torch_cells import TorchCells, measure_on_gpu

# NCCL's own watchdog ends the process without a word; it is for what is still there when we have said ours.
_WATCHDOG_FACTOR = 10
# With a host of their own ranks may share a GPU in every version of NCCL, and talk through sockets; with the flag, which
# NCCL has from 2.28 on, they may share it as they are.
_HOST, _FLAG = "NCCL_HOSTID", "NCCL_MULTI_RANK_GPU_ENABLE"


class MessageWire(Protocol):
    """Transport of messages, and how long they take."""

    @property
    def group(self) -> Any:
        """Processes among which they travel; None for all, over torch's default group."""

    def cells(self, data_type: DataType) -> TorchCells:
        """Return where elements live."""

    def measure(self, work: Callable[[], None], timeout_seconds: float) -> float:
        """Do work and return the seconds that it took.

        Raises
        ------
        TimeoutError, RuntimeError
            If it does not end in time.
        """


class GlooWire:
    """Sockets and the memory of processors."""

    group: Any = None

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        torch.set_num_threads(1)

    def cells(self, data_type: DataType) -> TorchCells:
        """Return where elements live."""
        return TorchCells(self._torch, data_type)

    def measure(self, work: Callable[[], None], timeout_seconds: float) -> float:  # noqa: ARG002
        """Do work and return the seconds that it took; gloo has the time-out of its group."""
        start = time.perf_counter()
        work()
        return time.perf_counter() - start


class NcclWire:
    """NCCL, and the memory of the GPU with the number of this process on its node.

    Raises
    ------
    InputError
        If NCCL does not start.
    """

    def __init__(self, torch: Any, local_rank: int, timeout_seconds: float) -> None:
        self._torch = torch
        number = local_rank % torch.cuda.device_count()
        torch.cuda.set_device(number)
        self._device = f"cuda:{number}"
        try:
            self.group = torch.distributed.new_group(
                backend=str(Backend.NCCL), timeout=timedelta(seconds=_WATCHDOG_FACTOR * timeout_seconds)
            )
            # All have to take part in the first exchange of a group, and in a round perhaps not all do.
            torch.distributed.all_reduce(torch.zeros(1, device=self._device), group=self.group)
            torch.cuda.synchronize()
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise InputError(
                f"NCCL does not start ({reason}); look at what it says with NCCL_DEBUG=WARN, or use --backend {Backend.GLOO}",
                path="command line",
                field="--backend",
            ) from None

    def cells(self, data_type: DataType) -> TorchCells:
        """Return where elements live."""
        return TorchCells(self._torch, data_type, self._device)

    def measure(self, work: Callable[[], None], timeout_seconds: float) -> float:
        """Do work and return the seconds that it took, by events on the device."""
        return measure_on_gpu(self._torch, work, timeout_seconds)


@dataclass(frozen=True, slots=True)
class ProcessSeat:
    """Seat of a process.

    Attributes
    ----------
    host, local_rank
        Its host, and its number there.
    gpu
        Name of the GPU that it would use; None if NCCL could not use any.
    """

    host: str
    local_rank: int
    gpu: str | None


def take_seat(torch: Any, rank: int) -> ProcessSeat:
    """Seat of this process."""
    host, local = socket.gethostname(), int(torch.distributed.get_node_local_rank(fallback_rank=rank))
    if not (torch.distributed.is_nccl_available() and torch.cuda.is_available()):
        return ProcessSeat(host, local, None)
    number = local % int(torch.cuda.device_count())
    # Processes may number their GPUs differently; older versions of torch do not tell the names.
    return ProcessSeat(host, local, str(getattr(torch.cuda.get_device_properties(number), "uuid", number)))


def _is_shared(seats: Sequence[ProcessSeat]) -> bool:
    """True if processes share a GPU."""
    return len({(seat.host, seat.gpu) for seat in seats}) < len(seats)


def choose_backend(wanted: Backend, seats: Sequence[ProcessSeat]) -> Backend:
    """Backend for processes that sit so: NCCL where each has a GPU for itself, if nothing was asked for.

    Raises
    ------
    InputError
        If NCCL is asked for, and somebody has no GPU.
    """
    if wanted is Backend.AUTO:
        usable = all(seat.gpu is not None for seat in seats) and not _is_shared(seats)
        return Backend.NCCL if usable else Backend.GLOO
    without = [rank for rank, seat in enumerate(seats) if seat.gpu is None]
    if wanted is Backend.NCCL and without:
        raise InputError(
            f"nccl needs a GPU, and torch finds none that it can use on the host of rank {without[0]}; use {Backend.GLOO}",
            path="command line",
            field="--backend",
        )
    return wanted


def let_share(seats: Sequence[ProcessSeat], rank: int, environment: MutableMapping[str, str]) -> None:
    """Set what NCCL needs if ranks share a GPU: a host of its own for each, unless the user has set the flag."""
    if _is_shared(seats) and _FLAG not in environment:
        environment.setdefault(_HOST, f"{seats[rank].host}-{rank}")

"""Elements in torch's tensors, on CPUs or a GPU, and the time that work takes there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from taccl_py.errors import PackageMissing
from taccl_py.execute.arithmetic import Array, storage_type
from taccl_py.execute.plan import DataType, Operator

# Whole numbers without a sign, for which torch has hardly any operator, are computed as those with one.
_SIGNED = {DataType.UINT32: "int32", DataType.UINT64: "int64"}
_NAP_SECONDS = 1e-4


def load_torch() -> Any:
    """Return torch with its distributed part.

    Raises
    ------
    PackageMissing
        If it is not installed.
    """
    try:
        import torch
        import torch.distributed
    except ImportError as error:
        raise PackageMissing(f"--with torch needs torch ({error})", "install it with: pip install '.[torch]'") from None
    return torch


class TorchCells:
    """Elements in torch's tensors.

    Parameters
    ----------
    torch
        The module.
    data_type
        Type of the elements.
    device
        Where they are, as torch names it.
    """

    def __init__(self, torch: Any, data_type: DataType, device: str = "cpu") -> None:
        self.data_type = data_type
        self._torch = torch
        self._device = device
        self._stored = getattr(torch, _SIGNED.get(data_type, str(data_type)))

    def empty(self, rows: int, columns: int) -> Any:
        """Return cells that hold anything."""
        return self._torch.empty((rows, columns), dtype=self._stored, device=self._device)

    def set_bytes(self, cells: Any, byte: int) -> None:
        """Give all bytes of cells a value."""
        cells.view(self._torch.uint8)[...] = byte

    def load(self, values: Array) -> Any:
        """Return elements of numpy as cells in a row."""
        raw = np.array(values).view(np.uint8)
        return self._torch.from_numpy(raw).view(self._stored).to(self._device)

    def unload(self, cells: Any) -> Array:
        """Return cells as elements of numpy in a row."""
        raw = cells.reshape(-1).view(self._torch.uint8).cpu().numpy()
        return np.asarray(raw.view(storage_type(self.data_type)))

    def length(self, cells: Any) -> int:
        """Return the number of elements."""
        return int(cells.numel())

    def copy(self, cells: Any) -> Any:
        """Return the same in one piece of memory of its own."""
        return cells.clone(memory_format=self._torch.contiguous_format)

    def combine(self, operator: Operator, one: Any, other: Any) -> Any:
        """Combine contributions of two sides, element by element."""
        torch = self._torch
        if operator in (Operator.SUM, Operator.AVG):
            return torch.add(one, other)
        if operator is Operator.PROD:
            return torch.mul(one, other)
        function = torch.minimum if operator is Operator.MIN else torch.maximum
        if self.data_type not in _SIGNED:
            return function(one, other)
        # Turning the highest bit around orders them as if they had no sign.
        top = torch.iinfo(self._stored).min
        return torch.bitwise_xor(function(torch.bitwise_xor(one, top), torch.bitwise_xor(other, top)), top)

    def combine_into(self, operator: Operator, one: Any, other: Any) -> Any:
        """Combine them, in the memory of the first where that is one operation."""
        if operator in (Operator.SUM, Operator.AVG):
            return one.add_(other)
        if operator is Operator.PROD:
            return one.mul_(other)
        return self.combine(operator, one, other)

    def combine_to(self, operator: Operator, target: Any, one: Any, other: Any) -> None:
        """Combine them, and store the result."""
        target[...] = self.combine_into(operator, one, other)


def measure_on_gpu(torch: Any, work: Callable[[], None], timeout_seconds: float) -> float:
    """Put work on the current stream and return the seconds that it took there, by events on the device.

    Raises
    ------
    TimeoutError
        If it does not end in time.
    """
    cuda = torch.cuda
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    cuda.synchronize()
    start.record()
    work()
    end.record()
    deadline = time.perf_counter() + timeout_seconds
    while not end.query():
        if time.perf_counter() > deadline:
            raise TimeoutError
        time.sleep(_NAP_SECONDS)
    return float(start.elapsed_time(end)) / 1e3

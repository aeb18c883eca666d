"""One process for each rank under mpiexec: MSCCL++ loads the plan and executes it on the GPUs, and all elements are compared.

What loads and calls it is `taccl_py.execute.taccl_plans`, the module that an installation of plans has beside them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from taccl_py.collective import Buffer
from taccl_py.errors import InputError, InvalidArtifact, PackageMissing, Violation
from taccl_py.execute import taccl_plans
from taccl_py.execute.arithmetic import CellArithmetic
from taccl_py.execute.compare import total
from taccl_py.execute.memory import RankMemory
from taccl_py.execute.mpi import MpiSession
from taccl_py.execute.one_sided import OneSidedPlan
from taccl_py.execute.one_sided_local import cut_aligned, require_sum
from taccl_py.execute.plan import DataType, ExecutablePlan
from taccl_py.execute.runs import Call, CallOutcome, Conditions, Measured, collective_data, make_outcome
from taccl_py.execute.torch_cells import TorchCells, load_torch, measure_on_gpu
from taccl_py.jsonio import parse_json, read_text
from taccl_py.runtimes import MSCCLPP

_TYPES = (DataType.INT32, DataType.UINT32, DataType.FLOAT16, DataType.FLOAT32, DataType.BFLOAT16)
_LAST_WORDS_SECONDS = 2.0  # in which rank 0 says what has happened, if it can


def load_mscclpp() -> Any:
    """Return MSCCL++'s Python package.

    Raises
    ------
    PackageMissing
        If it is not installed, or is one in which no program loads plans as algorithms.
    """
    try:
        return taccl_plans.load_mscclpp()
    except taccl_plans.PlanError as error:
        raise PackageMissing(
            f"--with mscclpp needs the Python package mscclpp: {error}",
            f"take {MSCCLPP.version}, as https://microsoft.github.io/mscclpp/quickstart.html says",
        ) from None


class Device(Protocol):
    """Device on which MSCCL++ runs."""

    def cells(self, data_type: DataType) -> CellArithmetic:
        """Return where elements live."""

    def address(self, cells: Any) -> int:
        """Return the address of the first element."""

    def measure(self, launch: Callable[[int], None], timeout_seconds: float) -> float:
        """Launch work on a stream and return the seconds that it took.

        Raises
        ------
        TimeoutError
            If it does not end in time.
        """


class CudaDevice:
    """The GPU of this process: the one with its number on the node.

    Raises
    ------
    PackageMissing
        If torch is not installed.
    InputError
        If torch finds no GPU.
    """

    def __init__(self, local_rank: int) -> None:
        self._torch = load_torch()
        if not self._torch.cuda.is_available():
            raise InputError(
                "mscclpp needs a GPU for each rank, and there is none", path="command line", field="--with"
            )
        self._torch.cuda.set_device(local_rank % self._torch.cuda.device_count())

    def cells(self, data_type: DataType) -> CellArithmetic:
        """Return where elements live."""
        return TorchCells(self._torch, data_type, "cuda")

    def address(self, cells: Any) -> int:
        """Return the address of the first element."""
        return int(cells.data_ptr())

    def measure(self, launch: Callable[[int], None], timeout_seconds: float) -> float:
        """Launch work on a stream and return the seconds that it took, by events on the device."""
        stream = int(self._torch.cuda.current_stream().cuda_stream)
        return measure_on_gpu(self._torch, lambda: launch(stream), timeout_seconds)


class MscclppSession(MpiSession):
    """One process among the ranks.

    Parameters
    ----------
    timeout_seconds
        How long a call may take.
    device
        None is the GPU of this process.

    Raises
    ------
    PackageMissing
        If mscclpp, MPI or torch is not installed.
    """

    def __init__(self, timeout_seconds: float, device: Device | None = None) -> None:
        self._mscclpp = load_mscclpp()
        super().__init__(timeout_seconds)
        local = self._data.Split_type(self._mpi.COMM_TYPE_SHARED)
        self._device = device if device is not None else CudaDevice(int(local.rank))
        self._group = self._mscclpp.CommGroup(mpi_comm=self._data)
        self._executor = self._mscclpp.Executor(self._group.communicator)

    def run(self, plan: ExecutablePlan, call: Call, conditions: Conditions) -> CallOutcome:
        """Make a call; every process calls this with the same arguments, and has the same outcome.

        Raises
        ------
        InputError
            If it is no plan, or the runtime has no such type or operator.
        InvalidArtifact
            If the plan does not end in time; `end_all_at_exit` is needed then.
        """
        if not isinstance(plan, OneSidedPlan):
            raise InputError(
                "mscclpp executes MSCCL++ plans only; make one with taccl lower --to mscclpp-json", path=plan.name
            )
        require_sum(plan, call)
        _require_own_memory(plan)
        if call.data_type not in _TYPES:
            raise InputError(
                f"MSCCL++ has no {call.data_type}; use one of: {', '.join(_TYPES)}",
                path="command line",
                field="--datatype",
            )
        cut, cells = cut_aligned(plan, call), self._device.cells(call.data_type)
        data = collective_data(plan, cut, call, conditions.seed)
        memory = RankMemory(plan, cut, cells, self.rank, in_place=call.in_place)
        # A rank without such a buffer still has to name one.
        given = memory.whole(Buffer.INPUT, cells.empty(plan.input_chunks, cut.chunk_elements))
        wanted = memory.whole(Buffer.OUTPUT, cells.empty(plan.output_chunks, cut.chunk_elements))
        described = taccl_plans.describe(parse_json(read_text(Path(plan.name)), plan.name), plan.name, plan.root)
        plans = taccl_plans.PlanRegistry((described,), Path(), self.rank, plan.num_ranks)
        size_bytes = described.counted_chunks * cut.chunk_elements * call.data_type.size_bytes

        def launch(stream: int) -> None:
            plans.run(
                described, self._group.communicator, self._executor, self._device.address(given), self._device.address(wanted),
                size_bytes, getattr(self._mscclpp.DataType, str(call.data_type)), stream,
            )  # fmt: skip

        seconds, found = 0.0, []
        for _ in range(conditions.repeats):
            data.fill(memory, self.rank)
            self._control.barrier()
            own = self._measure(plan, launch, conditions.timeout_seconds)
            comparison = data.check(memory, self.rank)
            gathered = self._control.allgather((own, comparison))
            seconds += max(each[0] for each in gathered)
            found += [each[1] for each in gathered]
        return make_outcome(plan, call, cut, Measured(1e6 * seconds / conditions.repeats, total(found)))

    def _measure(self, plan: OneSidedPlan, launch: Callable[[int], None], timeout_seconds: float) -> float:
        try:
            return self._device.measure(launch, timeout_seconds)
        except TimeoutError:
            if not self.speaks:
                time.sleep(_LAST_WORDS_SECONDS)
                self.speaks = True
            what = f"the plan has not ended on its GPU for {timeout_seconds:g} seconds; ask taccl check, or use a larger --timeout"
            raise InvalidArtifact(plan.name, [Violation(f"rank {self.rank}", "stopped", what)]) from None


def _require_own_memory(plan: OneSidedPlan) -> None:
    """Refuse plans that need memory which a switch can reach at all ranks at once: torch allocates none."""
    operations = (
        one for block in plan.blocks for operation in block.operations for one in (operation, *operation.inner)
    )
    if any(operation.name in ("glres", "gstore", "gstorepkt") for operation in operations):
        raise InputError(
            "uses switch channels, which need buffers that MSCCL++ has allocated for that, and the run's are torch's; leave "
            "--with out, or install the plan and run your own program",
            path=plan.name,
        )

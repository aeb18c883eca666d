"""Time that operations of an MSCCL++ plan take beside links and ports."""

from __future__ import annotations

from dataclasses import dataclass

from taccl_py.lowering.plan import PORT, Operation
from taccl_py.profiles.model import ProtocolCosts

PUTS = frozenset({"put", "pws", "pwsf", "ppkt", "rppkt"})
READS_PACKETS = frozenset({"upkt", "rppkt", "repkt"})
_COPIES, _SUMS = frozenset({"copy", "cpkt", "upkt"}), frozenset({"re", "repkt"})


@dataclass(frozen=True, slots=True)
class PlanPace:
    """Costs of operations beside links and ports, and the hop of a relaxed signal."""

    costs: ProtocolCosts
    relaxed_us: float

    def moves_us(self, size_bytes: float) -> float:
        """Time of a threadblock to put so many bytes."""
        return self.costs.op_us + _rate_us(size_bytes, self.costs.tb_gbps)

    def works_us(self, operation: Operation, chunk_bytes: float) -> float:
        """Time of a threadblock before an operation, of chunks of which it does so many bytes, has been done or asked of somebody else."""
        costs = self.costs
        read_bytes = sum(cells.count for cells in operation.sources) * chunk_bytes
        if operation.name in _COPIES:
            return costs.op_us + _rate_us(read_bytes, costs.copy_gbps)
        if operation.name in _SUMS:
            return costs.reduce_us + _rate_us(read_bytes, costs.reduce_gbps)
        if operation.name in PUTS and operation.channel_type == PORT:
            return costs.op_us
        return 0.0


FREE = PlanPace(ProtocolCosts(), 0.0)


def _rate_us(size_bytes: float, rate_gbps: float) -> float:
    return size_bytes / (rate_gbps * 1000)

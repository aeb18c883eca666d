"""Names of the formats that can be imported."""

from __future__ import annotations

from enum import StrEnum


class DumpFormat(StrEnum):
    """Formats that `import_machine` reads."""

    NCCL = "nccl"
    NCCL_GRAPH = "nccl-graph"
    NVIDIA_SMI = "nvidia-smi"
    AMD_SMI = "amd-smi"
    NETWORKX = "networkx"
    TECCL = "te-ccl"
    SCCL = "sccl"
    SYCCL = "syccl"
    TACCL = "taccl"

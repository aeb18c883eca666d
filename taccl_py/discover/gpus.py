"""GPUs by the names that the command line knows them by, wherever it asks for one.

Rates are those that NCCL 2.30.7 (``graph/topo.h``) and RCCL (``graph/topo.h``) count with, in GB/s and per direction.
"""

from __future__ import annotations

from dataclasses import dataclass

from taccl_py.errors import InputError


@dataclass(frozen=True, slots=True)
class GpuModel:
    """What is known of a kind of GPU.

    Attributes
    ----------
    name, generation
        Its names on the command line, either of which will do.
    link_gbps
        One NVLink or xGMI link, one direction.
    links
        How many of them a GPU has.
    pci_gbps
        Its PCIe slot, one direction.
    net_gbps
        A NIC of the machines that it is usually in.
    """

    name: str
    generation: str
    link_gbps: float
    links: int
    pci_gbps: float
    net_gbps: float


GPU_MODELS = {
    model.name: model
    for model in (
        GpuModel("p100", "pascal", 18.0, 4, 12.0, 12.5),
        GpuModel("v100", "volta", 20.0, 6, 12.0, 12.5),
        GpuModel("a100", "ampere", 20.0, 12, 24.0, 25.0),
        GpuModel("h100", "hopper", 20.6, 18, 48.0, 50.0),
        GpuModel("b200", "blackwell", 40.1, 18, 48.0, 50.0),
        GpuModel("mi250x", "cdna2", 36.0, 8, 24.0, 25.0),
        GpuModel("mi300x", "cdna3", 48.0, 7, 48.0, 50.0),
    )
}
AUTO = "auto"
_BY_NAME = GPU_MODELS | {model.generation: model for model in GPU_MODELS.values()}


def gpu_names() -> str:
    """All names, for help texts and errors."""
    return ", ".join(f"{model.name} ({model.generation})" for model in GPU_MODELS.values())


def parse_gpu(text: str) -> GpuModel | None:
    """Model of a name, in letters of either case; None for ``auto``, which leaves it to what else is known.

    Raises
    ------
    InputError
        If there is none of this name.
    """
    name = text.strip().lower()
    if name == AUTO:
        return None
    if name not in _BY_NAME:
        raise InputError(f"{text!r} is no GPU that is known; known are {AUTO} and {gpu_names()}")
    return _BY_NAME[name]

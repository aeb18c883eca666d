"""GPUs by the names that the command line knows them by, wherever it asks for one.

Rates are those that NCCL 2.30.7 (``graph/topo.h``) and RCCL (``graph/topo.h``) count with, in GB/s and per direction.
"""

from __future__ import annotations

from dataclasses import dataclass

from taccl_py.errors import InputError
from taccl_py.profiles.alike import ALIKE_GPUS
from taccl_py.spelling import did_you_mean


@dataclass(frozen=True, slots=True)
class GpuModel:
    """Links, rates and names of a kind of GPU.

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
    pair_links
        Links that join two GPUs where every two are joined and a text does not say how many.
    """

    name: str
    generation: str
    link_gbps: float
    links: int
    pci_gbps: float
    net_gbps: float
    pair_links: int = 1

    @property
    def is_amd(self) -> bool:
        """True for an Instinct of AMD, false for a GPU of NVIDIA."""
        return self.generation.startswith("cdna")


# Of GPUs of one generation the first here is the one that the generation's name means.
GPU_MODELS = {
    model.name: model
    for model in (
        GpuModel("p100", "pascal", 18.0, 4, 12.0, 12.5),
        GpuModel("v100", "volta", 20.0, 6, 12.0, 12.5),
        GpuModel("a100", "ampere", 20.0, 12, 24.0, 25.0),
        GpuModel("a40", "ampere", 12.0, 4, 24.0, 25.0),
        GpuModel("h100", "hopper", 20.6, 18, 48.0, 50.0),
        GpuModel("b200", "blackwell", 40.1, 18, 48.0, 50.0),
        GpuModel("mi250x", "cdna2", 36.0, 8, 24.0, 25.0),
        GpuModel("mi210", "cdna2", 36.0, 3, 24.0, 25.0),
        GpuModel("mi300x", "cdna3", 48.0, 7, 48.0, 50.0),
        GpuModel("mi300a", "cdna3", 48.0, 6, 48.0, 25.0, pair_links=2),
    )
}
AUTO = "auto"
_BY_NAME = (
    {model.generation: model for model in reversed(GPU_MODELS.values())}
    | {name: GPU_MODELS[model] for name, model in ALIKE_GPUS.items()}
    | GPU_MODELS
)
_COMPUTE_CAPABILITIES = {60: "p100", 70: "v100", 80: "a100", 86: "a40", 90: "h100", 100: "b200", 103: "b200"}
_ARCHITECTURES = {"gfx90a": "mi250x", "gfx910": "mi250x", "gfx942": "mi300x"}


def gpu_names() -> str:
    """All names, for help texts and errors."""
    models = [f"{model.name} ({model.generation})" for model in GPU_MODELS.values()]
    return f"{', '.join(models)}, and {', '.join(ALIKE_GPUS)}, counted as one of them"


def model_of_architecture(compute_capability: int, architecture: str) -> str:
    """Name in `GPU_MODELS` of the GPU that a dump describes; empty where that is not known.

    Parameters
    ----------
    compute_capability
        Of an NVIDIA GPU, 80 for an A100; of no importance with `architecture`.
    architecture
        Name of an AMD GPU's architecture, ``gfx942`` or ``942``; empty for an NVIDIA GPU.
    """
    if architecture:
        name = architecture if architecture.startswith("gfx") else f"gfx{architecture}"
        return _ARCHITECTURES.get(name.split(":")[0], "")
    return _COMPUTE_CAPABILITIES.get(compute_capability, "")


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
        raise InputError(
            f"{text!r} is no GPU that is known; {did_you_mean(name, _BY_NAME)}known are {AUTO} and {gpu_names()}"
        )
    return _BY_NAME[name]

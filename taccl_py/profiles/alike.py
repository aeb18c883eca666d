"""GPUs without figures of their own that are much like one with figures, and the runtime profiles that stand in for theirs.

They differ from it in memory, in what they are joined to, or in how many of their NVLinks are in use, not in what a threadblock does.
"""

from __future__ import annotations

from dataclasses import replace

from taccl_py.profiles.model import RuntimeProfile, UsableShare

# GPUs that are counted as another model.
ALIKE_GPUS = {
    "a6000": "a40", "rtx3090": "a40", "a800": "a100", "h200": "h100", "h800": "h100", "gh200": "h100", "gb200": "b200", "b300": "b200", "gb300": "b200",
    "mi250": "mi250x", "mi325x": "mi300x",
}  # fmt: skip
# One direction of all NVLinks of a GPU that has fewer than the model that it is like: NVIDIA names 400 GB/s in both directions.
_NVLINK_GBPS = {"a800": 200.0, "h800": 200.0}
_OF_NVLINK = ("nvlink", "nvls")


def stand_in(name: str, gpu: str, alike: RuntimeProfile) -> RuntimeProfile:
    """Return the profile of a runtime on a GPU with the figures of one that is much the same, of which none counts as measured.

    Parameters
    ----------
    name, gpu
        Name of the profile, and model of its GPU.
    alike
        Profile of the other GPU.
    """
    shares = dict(alike.shares)
    for medium in _OF_NVLINK:
        if gpu in _NVLINK_GBPS and medium in shares:
            shares[medium] = UsableShare(shares[medium].value, _NVLINK_GBPS[gpu])
    return replace(
        alike,
        name=name,
        title=f"{gpu.upper()} with the figures of {alike.title}",
        gpu=gpu,
        source=f"the figures of {alike.name}, whose GPU is much the same",
        shares=shares,
        figures={place: replace(figure, measured=False) for place, figure in alike.figures.items()},
    )

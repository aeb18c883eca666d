"""Runtime profiles by name: the shipped ones, files, and the default of a runtime on a machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from taccl_py.errors import InputError
from taccl_py.profiles.files import read_profile
from taccl_py.profiles.model import NEUTRAL, RuntimeProfile
from taccl_py.profiles.slowest import slowest_of
from taccl_py.spelling import did_you_mean
from taccl_py.topology.model import GPUS_TOGETHER, Topology

AUTO = "auto"
# GPUs that are counted as another model.
ALIKE_GPUS = {
    "a6000": "a40", "rtx3090": "a40", "a800": "a100", "h200": "h100", "h800": "h100", "gh200": "h100", "gb200": "b200", "b300": "b200", "gb300": "b200",
    "mi250": "mi250x", "mi325x": "mi300x",
}  # fmt: skip


@dataclass(frozen=True)
class Selection:
    """A profile for a runtime on a machine.

    Attributes
    ----------
    profile
        The profile.
    note
        Why it is the neutral one, of links and ports alone, although none was asked for; empty otherwise.
    """

    profile: RuntimeProfile
    note: str = ""


def list_profiles() -> tuple[RuntimeProfile, ...]:
    """Return the shipped profiles in order of name."""
    return tuple(_shipped(name) for name in sorted(_files()))


def profile_names() -> tuple[str, ...]:
    """Return the names of the shipped profiles."""
    return tuple(sorted(_files()))


def neutral_profile() -> RuntimeProfile:
    """Return the profile without costs."""
    return _shipped(NEUTRAL)


def load_profile(name_or_path: str) -> RuntimeProfile:
    """Return the profile of a shipped name, or of a file (a text that ends in ``.json`` or holds a separator).

    The name of a runtime on several GPUs, such as ``executor-a100+h100``, has of every figure the slowest one of theirs.

    Raises
    ------
    InputError
        If there is no such profile, or its file is wrong.
    """
    path = Path(name_or_path)
    if path.suffix == ".json" or path.name != name_or_path:
        return read_profile(path)
    if _is_shipped(name_or_path):
        return _shipped(name_or_path)
    hint = did_you_mean(name_or_path, _files())
    raise InputError(
        f"{name_or_path!r} is not a runtime profile; {hint}shipped are {', '.join(sorted(_files()))}, a file ends in .json",
        path="command line", field="--runtime-profile",
    )  # fmt: skip


def select_profile(asked: str, runtime: str, topology: Topology) -> Selection:
    """Return the profile that is asked for, or the shipped one of the runtime on the machine's GPUs.

    Parameters
    ----------
    asked
        A name, a file, or ``auto``.
    runtime
        Name of the runtime: ``executor``, ``rccl``, ``legacy`` or ``mscclpp``.
    topology
        The machine.

    Raises
    ------
    InputError
        If the profile does not exist, is wrong, or is one of another runtime.
    """
    if asked != AUTO:
        profile = load_profile(asked)
        if profile.runtime and profile.runtime != runtime:
            raise InputError(
                f"profile {profile.name} is of {profile.runtime}, but the runtime is {runtime}; name a profile of {runtime}, or neutral",
                path="command line", field="--runtime-profile",
            )  # fmt: skip
        return Selection(profile)
    name = f"{runtime}-{topology.gpu}"
    if topology.gpu and _is_shipped(name):
        return Selection(_shipped(name))
    missing = next((part for part in _parts(name) if part not in _files()), name)
    why = f"there is no runtime profile {missing}" if topology.gpu else f"the GPU of {topology.name} is not known"
    alike = GPUS_TOGETHER.join(sorted({ALIKE_GPUS.get(model, model) for model in topology.gpu_models}))
    named = f"{runtime}-{alike} is of GPUs that are much the same" if _is_shipped(f"{runtime}-{alike}") else "names one"
    return Selection(neutral_profile(), f"{why} (--runtime-profile {named})")


@lru_cache(maxsize=1)
def _files() -> dict[str, Path]:
    return {path.stem: path for path in sorted(Path(__file__).resolve().parent.glob("*.json"))}


def _parts(name: str) -> list[str]:
    """Names of the profiles that a name stands for: ``executor-a100`` and ``executor-h100`` for ``executor-a100+h100``, in whatever order."""
    runtime, _, gpus = name.partition("-")
    return sorted({f"{runtime}-{gpu}" for gpu in gpus.split(GPUS_TOGETHER)}) if gpus else [name]


def _is_shipped(name: str) -> bool:
    return all(part in _files() for part in _parts(name))


@cache
def _shipped(name: str) -> RuntimeProfile:
    found = [read_profile(_files()[part]) for part in _parts(name)]
    if len(found) == 1:
        return found[0]
    return slowest_of(f"{found[0].runtime}-{GPUS_TOGETHER.join(each.gpu for each in found)}", found)

"""Runtime profiles by name: the shipped ones, files, and the default of a runtime on a machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from taccl_py.errors import InputError
from taccl_py.profiles.alike import ALIKE_GPUS, stand_in
from taccl_py.profiles.files import read_profile
from taccl_py.profiles.model import NEUTRAL, RuntimeProfile
from taccl_py.profiles.slowest import slowest_of
from taccl_py.spelling import did_you_mean
from taccl_py.topology.model import GPUS_TOGETHER, Topology

AUTO = "auto"


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

    The name of a runtime on several GPUs, such as ``executor-a100+h100``, has of every figure the slowest one of theirs; that of a GPU
    without figures of its own, such as ``executor-h800``, has those of one that is much the same (`taccl_py.profiles.alike`).

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
    missing = next((part for part in _parts(name) if not _origin(part)), name)
    why = f"there is no runtime profile {missing}" if topology.gpu else f"the GPU of {topology.name} is not known"
    return Selection(neutral_profile(), f"{why} (--runtime-profile names one)")


@lru_cache(maxsize=1)
def _files() -> dict[str, Path]:
    return {path.stem: path for path in sorted(Path(__file__).resolve().parent.glob("*.json"))}


def _parts(name: str) -> list[str]:
    """Names of the profiles that a name stands for: ``executor-a100`` and ``executor-h100`` for ``executor-a100+h100``, in whatever order."""
    runtime, _, gpus = name.partition("-")
    return sorted({f"{runtime}-{gpu}" for gpu in gpus.split(GPUS_TOGETHER)}) if gpus else [name]


def _origin(part: str) -> str:
    """Name of the shipped file that a profile of one GPU is made of; empty if there is none."""
    runtime, _, gpu = part.partition("-")
    names = (part, f"{runtime}-{ALIKE_GPUS.get(gpu, gpu)}")
    return next((name for name in names if name in _files()), "")


def _is_shipped(name: str) -> bool:
    return all(_origin(part) for part in _parts(name))


@cache
def _shipped(name: str) -> RuntimeProfile:
    found = [_of_one_gpu(part) for part in _parts(name)]
    if len(found) == 1:
        return found[0]
    return slowest_of(f"{found[0].runtime}-{GPUS_TOGETHER.join(each.gpu for each in found)}", found)


def _of_one_gpu(part: str) -> RuntimeProfile:
    origin = _origin(part)
    profile = read_profile(_files()[origin])
    return profile if origin == part else stand_in(part, part.partition("-")[2], profile)

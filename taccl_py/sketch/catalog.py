"""Sketches by name: the ones that come with the program, and files."""

from __future__ import annotations

from pathlib import Path

from taccl_py.errors import InputError
from taccl_py.sketch.files import read_sketch
from taccl_py.sketch.model import Sketch, machine_name
from taccl_py.spelling import did_you_mean
from taccl_py.topology.catalog import canonical_name, data_dir


def list_sketches() -> tuple[Sketch, ...]:
    """Return the shipped sketches, in order of name.

    Raises
    ------
    InputError
        If a shipped file was damaged.
    """
    return tuple(read_sketch(path) for path in _shipped().values())


def sketch_names() -> tuple[str, ...]:
    """Return the names of the shipped sketches."""
    return tuple(_shipped())


def load_sketch(name_or_path: str, topology: str = "") -> Sketch:
    """Return a shipped sketch (``ndv2-sk-1``, or ``sk-1`` for topology ``ndv2``) or the sketch of a file.

    Parameters
    ----------
    name_or_path
        Name, or a path that ends in ``.json``.
    topology
        Name of the topology, which may be left out of the sketch's name.

    Raises
    ------
    InputError
        If there is no such sketch, or its file is wrong.
    """
    shipped = _shipped()
    machine = machine_name(canonical_name(topology)).split(":")[0]
    for name in (name_or_path, f"{machine}-{name_or_path}"):
        if name in shipped:
            return read_sketch(shipped[name])
    path = Path(name_or_path)
    if path.suffix == ".json" or path.is_file():
        return read_sketch(path)
    hint = did_you_mean(f"{machine}-{name_or_path}" if machine else name_or_path, shipped)
    raise InputError(
        f"{name_or_path!r} is not a sketch; {hint}'taccl sketch list' shows the shipped ones, a file ends in .json"
    )


def _shipped() -> dict[str, Path]:
    return {path.stem: path for path in sorted(data_dir("sketches").glob("*.json"))}

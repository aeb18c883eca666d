"""Versions on which a result depends beside its request: the code of this package, and the solvers."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import metadata
from pathlib import Path

from taccl_py import __version__

# Folders without a part in a result, and packages with one.
_WITHOUT_PART = ("cli", "report", "campaign")
_SOLVERS = ("highspy", "numpy", "ortools")


@cache
def code_digest() -> str:
    """Digest of the package's code that results depend on, its version, and the versions of the solvers."""
    digest = hashlib.sha256(__version__.encode())
    package = Path(__file__).resolve().parents[1]
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package)
        if name.parts[0] not in _WITHOUT_PART:
            digest.update(name.as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    for solver in _SOLVERS:
        digest.update(f"{solver} {metadata.version(solver)}".encode())
    return digest.hexdigest()

"""Folder of the user's verdicts: `TACCL_CACHE_DIR`, or the place for such files of the platform."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from taccl_py.portfolio.remembered import Verdicts

VARIABLE = "TACCL_CACHE_DIR"


def cache_folder() -> Path | None:
    """Return the folder; None where `TACCL_CACHE_DIR` is set and empty, or nobody knows the user's home.

    Relative paths do not count, as they would be another folder in every working directory.
    """
    given = os.environ.get(VARIABLE)
    if given is not None:
        return Path(given) if os.path.isabs(given) else None
    if os.path.isabs(os.environ.get("XDG_CACHE_HOME", "")):
        return Path(os.environ["XDG_CACHE_HOME"]) / "taccl"
    if sys.platform == "win32" and os.path.isabs(os.environ.get("LOCALAPPDATA", "")):
        return Path(os.environ["LOCALAPPDATA"]) / "taccl" / "cache"
    try:
        home = Path.home()
    except RuntimeError:
        return None
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "taccl"


def verdicts() -> Verdicts:
    """Return the verifier that remembers in the user's folder."""
    folder = cache_folder()
    return Verdicts(None if folder is None else folder / "verdicts")

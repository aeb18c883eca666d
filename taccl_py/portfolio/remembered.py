"""Verdicts on files that were verified before, kept in a folder of the user.

A verdict is a function of the file's bytes (which also say the placement), the runtime and the collective that was asked for, and of the
verifier. All of them make the key, so that one changed byte, another runtime or another version of the verifier is verified again.
Only verdicts without errors are kept. A folder or file that cannot be read, written or understood is as if it were not there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from taccl_py import __version__
from taccl_py.collective import Kind
from taccl_py.errors import InputError
from taccl_py.jsonio import canonical_json, parse_json, write_atomically
from taccl_py.runtimes import MSCCLPP, Runtime
from taccl_py.verify.msccl import ProgramFacts, ProgramVerdict, verify_program
from taccl_py.verify.mscclpp import PlanFacts, PlanVerdict, verify_plan

FORMAT, VERSION = "taccl-verdict", 1
_Facts = TypeVar("_Facts", ProgramFacts, PlanFacts)


class Verdicts:
    """Verifies files, and remembers those to which there is no error.

    Parameters
    ----------
    folder
        Where verdicts are kept; None: only as long as this object.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._programs: dict[str, ProgramVerdict] = {}

    def verify_program(
        self, text: str, runtime: Runtime, *, kind: Kind | None = None, root: int | None = None
    ) -> ProgramVerdict:
        """Verdict of `taccl_py.verify.msccl.verify_program`, remembered where no root was asked for."""
        if root is not None:
            return verify_program(text, runtime, kind=kind, root=root)
        key = _key(text, runtime.name, kind)
        found = self._programs.get(key) or self._read_program(key)
        if found is None:
            found = verify_program(text, runtime, kind=kind)
            self.remember_program(text, runtime, kind, found)
        self._programs[key] = found
        return found

    def remember_program(self, text: str, runtime: Runtime, kind: Kind | None, verdict: ProgramVerdict) -> None:
        """Keep the verdict on a text for a collective; a root that was asked for too makes no difference to a good one."""
        if not verdict.violations and not verdict.unsupported and verdict.facts is not None:
            self._write(_key(text, runtime.name, kind), asdict(verdict.facts), list(verdict.notes))

    def verify_plan(self, text: str, path: str) -> PlanVerdict:
        """Verdict of `taccl_py.verify.mscclpp.verify_plan`, remembered."""
        key = _key(text, MSCCLPP.name, None)
        stored = self._read(key, PlanFacts)
        if stored is not None:
            return PlanVerdict(stored[0], (), stored[1])
        verdict = verify_plan(text, path)
        if not verdict.violations and not verdict.unsupported:
            self._write(key, asdict(verdict.facts), list(verdict.notes))
        return verdict

    def _read_program(self, key: str) -> ProgramVerdict | None:
        stored = self._read(key, ProgramFacts)
        return None if stored is None else ProgramVerdict(stored[0], (), stored[1])

    def _read(self, key: str, make: Callable[..., _Facts]) -> tuple[_Facts, tuple[str, ...]] | None:
        """Facts and notes of a key, if its file is whole and of this version."""
        if self._folder is None:
            return None
        path = self._path(key)
        try:
            value = parse_json(path.read_text(encoding="utf-8"), str(path))
            record, notes = value["facts"], value["notes"]
            whole = value["sha256"] == _digest(key, record, notes) and all(isinstance(note, str) for note in notes)
        except (OSError, ValueError, InputError, LookupError, TypeError, RecursionError):
            return None
        facts = _facts(make, record) if whole and isinstance(record, dict) else None
        return None if facts is None else (facts, tuple(notes))

    def _write(self, key: str, facts: dict[str, Any], notes: list[str]) -> None:
        if self._folder is None:
            return
        record = {
            "format": FORMAT,
            "version": VERSION,
            "sha256": _digest(key, facts, notes),
            "facts": facts,
            "notes": notes,
        }
        # Without a word: the answer is right, only the next one is not sooner there.
        with contextlib.suppress(OSError, InputError):
            write_atomically(self._path(key), canonical_json(record))

    def _path(self, key: str) -> Path:
        folder = self._folder or Path()
        return folder / key[:2] / f"{key}.json"


def _key(text: str, runtime: str, kind: Kind | None) -> str:
    content = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    return hashlib.sha256("\0".join((content, _verifier(), runtime, kind or "")).encode()).hexdigest()


def _digest(key: str, facts: Any, notes: Any) -> str:
    return hashlib.sha256(json.dumps([key, facts, notes], sort_keys=True).encode()).hexdigest()


@cache
def _verifier() -> str:
    """Version of the tool, and its verifier's own bytes, which a checkout changes without a new version."""
    package = Path(__file__).resolve().parents[1]
    sources = [*sorted((package / "verify").rglob("*.py")), package / "runtimes.py", package / "collective.py"]
    digest = hashlib.sha256(__version__.encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _facts(make: Callable[..., _Facts], value: dict[str, Any]) -> _Facts | None:
    """Facts of a record; None if it is not one of this version."""
    hints = get_type_hints(make)
    names = [field.name for field in fields(make)]  # type: ignore[arg-type]
    if set(names) != set(value):
        return None
    found = {}
    for name in names:
        given = value[name]
        if hints[name] == Kind | None and isinstance(given, str):
            given = next((kind for kind in Kind if kind == given), given)
        if not isinstance(given, hints[name]) or (isinstance(given, bool) and hints[name] is not bool):
            return None
        found[name] = given
    return make(**found)

"""Store: results in a folder, each under its key, so that whoever is killed and starts again goes on where he was.

A result is three files, ``results/KEY/schedule.json``, ``algorithm.xml`` and ``result.json``. Every file is complete before it
gets its name, ``result.json`` comes last, and it holds the digests of the other two: what does not match is no result.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taccl_py.errors import InputError
from taccl_py.jsonio import canonical_json, parse_json, write_atomically
from taccl_py.report.tables import RESULT_FILE, RESULT_FORMAT
from taccl_py.topology.files import topology_to_json
from taccl_py.topology.model import Topology

# Folder of all results.
RESULTS = "results"
_SCHEDULE, _PROGRAM = "schedule.json", "algorithm.xml"
_LOCK = ".lock"


@dataclass(frozen=True)
class Kept:
    """A result.

    Attributes
    ----------
    record
        JSON object of the synthesis with the digests of both texts and of the machine.
    schedule, program
        Texts of the files; a demand's schedule has no program.
    """

    record: dict[str, Any]
    schedule: str
    program: str | None


def machine_digest(topology: Topology) -> str:
    """Digest of links, ports and media of a machine; its name and where figures come from make no difference."""
    content = topology_to_json(topology)
    for field in ("name", "source"):
        content.pop(field, None)
    return digest(canonical_json(content))


def digest(text: str) -> str:
    """SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Store:
    """A folder of results."""

    folder: Path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others out, and clear away what somebody who was killed has left.

        Raises
        ------
        InputError
            If another process uses the folder, or it cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = (self.folder / _LOCK).open("a")
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", path=str(self.folder)) from None
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(
                    "another process writes results there; wait for it or name another folder", path=str(self.folder)
                ) from None
            for left_over in self.folder.glob(f"{RESULTS}/*/.*"):
                left_over.unlink(missing_ok=True)
            yield

    def place(self, key: str) -> Path:
        """Folder of a result."""
        return self.folder / RESULTS / key

    def read(self, key: str) -> Kept | None:
        """Return a result, or None if there is none or it is damaged."""
        place = self.place(key)
        try:
            texts = [(place / name).read_text(encoding="utf-8") for name in (RESULT_FILE, _SCHEDULE)]
            record = parse_json(texts[0], str(place / RESULT_FILE))
            has_program = isinstance(record, dict) and record.get("xml_sha256") is not None
            program = (place / _PROGRAM).read_text(encoding="utf-8") if has_program else None
        except (OSError, UnicodeDecodeError, InputError):
            return None
        kept = Kept(record, texts[1], program)
        return kept if isinstance(record, dict) and _matches(kept) else None

    def write(self, key: str, kept: Kept) -> None:
        """Keep a result.

        Raises
        ------
        InputError
            If it cannot be written.
        """
        place = self.place(key)
        write_atomically(place / _SCHEDULE, kept.schedule)
        if kept.program is not None:
            write_atomically(place / _PROGRAM, kept.program)
        write_atomically(place / RESULT_FILE, canonical_json(kept.record))


def _matches(kept: Kept) -> bool:
    record = kept.record
    digests = (record.get("schedule_sha256"), record.get("xml_sha256"))
    return record.get("format") == RESULT_FORMAT and digests == (
        digest(kept.schedule),
        None if kept.program is None else digest(kept.program),
    )

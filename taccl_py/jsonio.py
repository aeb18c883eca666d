"""Strict JSON: errors name the file and the field; writing is canonical and never leaves half a file.

`Fields` walks one JSON object and answers typed questions about its fields. Each question that fails raises an
`InputError` naming file, field, what was found and what was expected; `Fields.finish` refuses fields that nobody
asked for, so a misspelt key is an error and never silently ignored.
"""

from __future__ import annotations

import codecs
import json
import math
import os
import re
import select
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from io import RawIOBase
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from taccl_py.errors import InputError
from taccl_py.spelling import MISSPELT, did_you_mean, near_names

# First characters of texts of these forms.
_BEGINS = {"JSON": ("{", "["), "XML": ("<",)}
_MARK = "\ufeff"
# Bytes read at a time, and at most: of a file, and of a pipe or a device, which may have no end.
_BLOCK_BYTES, _MOST_BYTES, _MOST_STREAM_BYTES = 1 << 20, 1 << 32, 1 << 27
# Characters of a name that a temporary file beside it begins with: names have an end too.
_NAME_KEPT = 40
# How long somebody may take to open a named pipe to write.
_PIPE_SECONDS = 30.0
# Files of ours say first what they are, so that large ones need not be read twice.
_FORMAT_FIRST = re.compile(r'\s*\{\s*"format"\s*:\s*"([^"\\]*)"')


def read_text(path: Path) -> str:
    """Text of a UTF-8 file, a pipe or a device, without a byte-order mark; XML keeps it, as runtimes stumble over it.

    Raises
    ------
    InputError
        If it cannot be read, is not UTF-8, is full of NULs, or is longer than any file of this program can be.
    """
    try:
        is_file = path.is_file()
        with open(path, "rb", buffering=0, opener=_opened) as file:
            first = b"" if is_file else _await_writer(file.fileno(), str(path))
            return _decode(_blocks(first, file), str(path), is_file=is_file)
    except FileNotFoundError:
        raise InputError("there is no such file", path=str(path)) from None
    except IsADirectoryError:
        raise InputError("is a directory, a file is needed", path=str(path)) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=str(path)) from None


def _opened(path: str, flags: int) -> int:
    """Open a file without waiting for somebody who writes to a pipe."""
    handle = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISFIFO(os.fstat(handle).st_mode):
        os.set_blocking(handle, True)
    return handle


def _await_writer(handle: int, path: str) -> bytes:
    """Wait until somebody has opened a pipe to write; returns what was read from it meanwhile."""
    if not stat.S_ISFIFO(os.fstat(handle).st_mode):
        return b""
    poll, end, first = select.poll(), time.monotonic() + _PIPE_SECONDS, b""
    poll.register(handle, select.POLLIN)
    with suppress(BlockingIOError):  # somebody has, and writes later
        while not first and not poll.poll(50):
            first = os.read(handle, 1)
            if time.monotonic() > end:
                raise InputError(
                    f"is a pipe to which nobody writes (for {_PIPE_SECONDS:g} s); start its writer", path=path
                )
    os.set_blocking(handle, True)
    return first


def _blocks(first: bytes, file: RawIOBase) -> Iterator[bytes]:
    """Blocks of a file: what was read already, and the rest of it."""
    if first:
        yield first
    while block := file.read(_BLOCK_BYTES):
        yield block


def _decode(blocks: Iterable[bytes], path: str, *, is_file: bool) -> str:
    """Text of blocks of a file, or of what may have no end; lines end as on this system."""
    most = _MOST_BYTES if is_file else _MOST_STREAM_BYTES
    decoder = codecs.getincrementaldecoder("utf-8")()
    texts, done = [], 0
    for block in chain(blocks, [b""]):
        waiting = len(decoder.getstate()[0])
        try:
            texts.append(decoder.decode(block, final=not block))
        except UnicodeDecodeError as error:
            raise InputError(f"is not UTF-8 text (byte {done - waiting + error.start})", path=path) from None
        if block.count(b"\0") * 2 > len(block):  # a device or a sparse file; single ones are the verifiers' business
            raise InputError(f"is no text: byte {done + block.find(0)} is NUL; name another file", path=path)
        done += len(block)
        if done > most:
            raise InputError(f"holds more than {most >> 20} MiB; name a smaller file", path=path)
    text = "".join(texts).replace("\r\n", "\n").replace("\r", "\n")
    return text[1:] if text.startswith(_MARK) and text[1:].lstrip()[:1] not in _BEGINS["XML"] else text


def is_json(path: Path, text: str) -> bool:
    """True if a file is meant to be JSON, by its name or by how it begins."""
    return path.suffix == ".json" or text.lstrip()[:1] == "{"


def refuse_form(text: str, path: str, form: str, needed: str, advice: str) -> None:
    """Refuse a text that is of the other form, XML or JSON, which a parser would only call malformed.

    Raises
    ------
    InputError
        If it begins as that form does; the error says what is `needed`, and the advice.
    """
    if text.lstrip()[:1] in _BEGINS[form]:
        raise InputError(f"is {form}, and {needed} is needed here; {advice}", path=path)


def parse_json(text: str, path: str) -> Any:
    """Value of a JSON text; duplicate keys, NaN and halves of characters are refused.

    Raises
    ------
    InputError
        If the text is not strict JSON.
    """
    refuse_form(text, path, "XML", "JSON", "name another file")

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in pairs:
            if key in result:
                raise InputError(f"the key {key!r} stands twice in one object; keep one of them", path=path)
            result[key] = value
        return result

    def no_constant(name: str) -> NoReturn:
        raise InputError(f"{name} is not a number in JSON; write a finite number", path=path)

    try:
        value = json.loads(text, object_pairs_hook=no_duplicates, parse_constant=no_constant)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except json.JSONDecodeError as error:
        raise InputError(
            f"is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})", path=path
        ) from None
    except UnicodeEncodeError:
        raise InputError("holds half of a character (\\ud800 to \\udfff); write all of it", path=path) from None
    except ValueError as error:  # a number with thousands of digits
        raise InputError(f"holds a number that cannot be read ({error})", path=path) from None
    except RecursionError:
        raise InputError("is nested too deeply", path=path) from None


def read_json(path: Path) -> Any:
    """Value of a JSON file, read strictly."""
    return parse_json(read_text(path), str(path))


def format_of(text: str, path: str) -> str | None:
    """Format that a file of ours names, wherever it stands in it; None for all other files, XML among them.

    Raises
    ------
    InputError
        If the text seems to be a JSON object and is not strict JSON.
    """
    first = _FORMAT_FIRST.match(text)
    if first is not None:
        return first[1]
    found = parse_json(text, path).get("format") if text.lstrip()[:1] == "{" else None
    return found if isinstance(found, str) else None


def canonical_json(value: Any) -> str:
    """The one text of a value: sorted as given, two spaces, lists of scalars on one line, final newline."""
    return _render(value, "") + "\n"


def _render(value: Any, indent: str) -> str:
    inner = indent + "  "
    if isinstance(value, dict):
        if not value:
            return "{}"
        flat = _scalar_line(value)
        if flat is not None and indent and len(flat) + len(indent) <= 110:
            return flat
        rows = [f"{inner}{json.dumps(key)}: {_render(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, (list, tuple)):
        if not any(isinstance(item, (dict, list, tuple)) for item in value):
            return json.dumps(list(value), allow_nan=False)
        return "[\n" + ",\n".join(inner + _render(item, inner) for item in value) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False)


def _scalar_line(value: dict[str, Any]) -> str | None:
    for item in value.values():
        nested = item if isinstance(item, (list, tuple)) else ()
        if isinstance(item, dict) or any(isinstance(part, (dict, list, tuple)) for part in nested):
            return None
    return json.dumps(value, allow_nan=False)


def write_atomically(path: Path, text: str | bytes) -> None:
    """Write a file through a temporary file beside it, so that nobody ever sees half of it.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    write_all({path: text})


def write_all(texts: Mapping[Path, str | bytes]) -> None:
    """Write several files, texts in UTF-8: every one is complete under another name before the first gets its own.

    So if one cannot be written, as on a full disk, none of them is there. Only if a name cannot be given in the end, do those before
    it have theirs already. A device or a pipe, such as /dev/null, stays what it is, and takes its text when all files are complete.

    Raises
    ------
    InputError
        If a file cannot be written.
    """
    temporary: dict[Path, Path] = {}
    streams = [path for path in texts if path.exists() and not path.is_file() and not path.is_dir()]
    try:
        for path, text in texts.items():
            if path not in streams:
                temporary[path] = _write_beside(path, text)
        for path in texts:
            if path.is_dir():
                raise InputError("cannot be written: it is a directory; name another output", path=str(path))
        for path in streams:
            _write_to(path, texts[path])
        for path, written in temporary.items():
            _replace(written, path)
    finally:
        for written in temporary.values():
            written.unlink(missing_ok=True)


def require_writable(path: Path, *, is_file: bool = False) -> None:
    """Refuse an output for which no file can be made, before there is anything to lose; nothing is left behind.

    Parameters
    ----------
    path
        A directory that exists, or a file or a directory to be made; of a pipe or a device nothing is asked.
    is_file
        Whether it can only be a file.

    Raises
    ------
    InputError
        If it is a directory and must be a file, or a file cannot be made there, or in the nearest directory above it that exists.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        return
    if is_file and path.is_dir():
        raise InputError("cannot be written: it is a directory; name a file", path=str(path))
    folders = [path, *path.parents] if path.is_dir() else path.parents
    nearest = next((folder for folder in folders if folder.exists()), path.parent)
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", path=str(path)) from None


def append_text(path: Path, text: str) -> None:
    """Add a text to the end of a file, which is made if it is not there; if not all of it can be written, none of it stays.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            before = os.fstat(file.fileno()).st_size
            try:
                left = _bytes(text)
                while left:
                    left = left[file.write(left) :]
            except OSError:
                if path.is_file():
                    file.truncate(before)
                raise
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", path=str(path)) from None


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _write_beside(path: Path, text: str | bytes) -> Path:
    """Complete copy of a file under a temporary name in its folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:_NAME_KEPT]}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_bytes(text))
            os.chmod(name, 0o666 & ~_umask())
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", path=str(path)) from None
    return Path(name)


def _write_to(path: Path, text: str | bytes) -> None:
    try:
        path.write_bytes(_bytes(text))
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", path=str(path)) from None


def _replace(written: Path, path: Path) -> None:
    try:
        os.replace(written, path)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", path=str(path)) from None


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _kind(value: Any) -> str:
    """Name a JSON value as a user would."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"the number {value}" if abs(value) < 1e30 else "a huge number"
    if isinstance(value, str):
        return f"the text {value!r}" if len(value) < 40 else "a text"
    return "a list" if isinstance(value, list) else "an object"


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        return False


class Fields:
    """Typed, checked access to the fields of one JSON object.

    Parameters
    ----------
    value
        The JSON value; anything but an object is refused.
    path
        File name for error messages.
    pointer
        JSON pointer of the object inside the file, for error messages.
    """

    def __init__(self, value: Any, path: str, pointer: str = "") -> None:
        self.path = path
        self.pointer = pointer
        if not isinstance(value, dict):
            self.fail("", f"found {_kind(value)}, an object {{...}} is needed")
        self._value: dict[str, Any] = value
        self._asked: set[str] = set()

    def fail(self, key: str, what: str) -> NoReturn:
        """Raise an `InputError` about one field of this object (or, with an empty key, about the object)."""
        pointer = f"{self.pointer}/{key}" if key else self.pointer
        raise InputError(what, path=self.path, field=pointer.lstrip("/").replace("/", ".") or None)

    def has(self, key: str) -> bool:
        """True if the field is present."""
        self._asked.add(key)
        return key in self._value

    def raw(self, key: str) -> Any:
        """Return the value of a required field, of whatever type."""
        self._asked.add(key)
        if key not in self._value:
            self.missing(key)
        return self._value[key]

    def missing(self, *keys: str) -> NoReturn:
        """Raise an `InputError` as a field is missing, or all of several that say the same; a field of nearly that name may be meant for it."""
        others = [key for key in self._value if key not in self._asked]
        for key in keys:
            for other in near_names(key, others, MISSPELT)[:1]:
                self.fail(key, f"is missing; did you mean it by {other}? correct that name, or add it")
        self.fail(keys[0], f"is missing; add {' or '.join(('it', *keys[1:]))}")

    def text(self, key: str, default: str | None = None) -> str:
        """Return a non-empty text."""
        if default is not None and not self.has(key):
            return default
        value = self.raw(key)
        if not isinstance(value, str) or (not value and default is None):
            self.fail(key, f"found {_kind(value)}, a text is needed")
        return str(value)

    def choice(self, key: str, allowed: tuple[str, ...], default: str | None = None) -> str:
        """Return one of a few words."""
        value = self.text(key, default)
        if value not in allowed:
            self.fail(key, f"found {value!r}, use one of: {', '.join(allowed)}")
        return value

    def header(self, file_format: str, version: int) -> None:
        """Refuse a file of another format or version than this program reads."""
        if self.text("format") != file_format:
            self.fail("format", f"found {self.text('format')!r}, {file_format!r} is needed")
        found = self.integer("version")
        if found != version:
            self.fail("version", f"found {found}, this program reads version {version}")

    def integer(
        self, key: str, default: int | None = None, *, least: int | None = None, most: int | None = None
    ) -> int:
        """Return a whole number, at least `least` and at most `most`."""
        if default is not None and not self.has(key):
            return default
        value = self._integer(self.raw(key), key, least)
        self._check_most(key, value, most)
        return value

    def number(
        self,
        key: str,
        default: float | None = None,
        *,
        least: float | None = 0.0,
        above: float | None = None,
        most: float | None = None,
    ) -> float:
        """Return a finite number, at least `least`, more than `above` and at most `most`."""
        if default is not None and not self.has(key):
            return default
        value = self.raw(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not _is_finite(value):
            self.fail(key, f"found {_kind(value)}, a finite number is needed")
        if above is not None and not value > above:
            self.fail(key, f"found {value}, a number above {above:g} is needed")
        if least is not None and value < least:
            self.fail(key, f"found {value}, a number of at least {least:g} is needed")
        self._check_most(key, value, most)
        return float(value)

    def boolean(self, key: str, default: bool | None = None) -> bool:
        """Return true or false."""
        if default is not None and not self.has(key):
            return default
        value = self.raw(key)
        if not isinstance(value, bool):
            self.fail(key, f"found {_kind(value)}, true or false is needed")
        return bool(value)

    def items(self, key: str, default: list[Any] | None = None) -> list[Any]:
        """Return a list, unchecked inside."""
        if default is not None and not self.has(key):
            return default
        value = self.raw(key)
        if not isinstance(value, list):
            self.fail(key, f"found {_kind(value)}, a list [...] is needed")
        return list(value)

    def integers(self, key: str, default: list[int] | None = None, *, least: int | None = None) -> list[int]:
        """Return a list of whole numbers."""
        if default is not None and not self.has(key):
            return default
        return [self._integer(item, f"{key}/{i}", least) for i, item in enumerate(self.items(key))]

    def numbers(self, key: str, *, least: float | None = 0.0, most: float | None = None) -> list[float]:
        """Return a list of finite numbers."""
        result = []
        for i, item in enumerate(self.items(key)):
            sub = Fields({"x": item}, self.path, self.pointer)
            try:
                result.append(sub.number("x", least=least, most=most))
            except InputError as error:
                self.fail(f"{key}/{i}", error.what)
        return result

    def object(self, key: str) -> Fields:
        """Return a nested object."""
        return Fields(self.raw(key), self.path, f"{self.pointer}/{key}")

    def objects(self, key: str, default: list[Any] | None = None) -> Iterator[Fields]:
        """Yield the objects of a list."""
        for i, item in enumerate(self.items(key, default)):
            yield Fields(item, self.path, f"{self.pointer}/{key}/{i}")

    def names(self) -> list[str]:
        """Return all keys; for objects that are maps, where every key is meaningful."""
        self._asked.update(self._value)
        return list(self._value)

    def build(self, key: str, make: Callable[[], Any]) -> Any:
        """Call `make`, turning an `InputError` without a place into one about this field."""
        try:
            return make()
        except InputError as error:
            if error.path is None:
                self.fail(key, error.what)
            raise

    def finish(self) -> None:
        """Refuse fields that were never asked for."""
        for key in self._value:
            if key not in self._asked:
                known = sorted(self._asked)
                hint = did_you_mean(key, known)
                self.fail(key, f"is not a known field; {hint}remove it or correct its name (known: {', '.join(known)})")

    def _check_most(self, key: str, value: float, most: float | None) -> None:
        if most is not None and value > most:
            self.fail(key, f"found {_kind(value).removeprefix('the number ')}, at most {most:g} is possible")

    def _integer(self, value: Any, key: str, least: int | None) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(key, f"found {_kind(value)}, a whole number is needed")
        if least is not None and value < least:
            self.fail(key, f"found {value}, a whole number of at least {least} is needed")
        return int(value)

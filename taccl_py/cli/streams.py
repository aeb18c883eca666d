"""Standard input, output and error of the command: what becomes of them when they are closed, full, or a pipe without a reader.

A standard error that cannot be written costs its words and nothing else. A standard output that cannot be written ends the command:
with an error, or in silence, as any other program, where its reader has gone away.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from taccl_py.errors import InputError

# Exit code that a shell reports of a program that a closed pipe has ended: 128 and the number of SIGPIPE.
CLOSED_PIPE_EXIT_CODE = 141
_STANDARD = (0, 1, 2)


class PipeClosed(Exception):
    """Nobody reads standard output, or standard error, any more."""


class _Stream:
    """A standard stream whose errors have names.

    Parameters
    ----------
    stream
        The stream.
    name
        Name in errors; empty if text that cannot be written is dropped instead.
    """

    def __init__(self, stream: Any, name: str) -> None:
        self._stream, self._name = stream, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text; returns its length.

        Raises
        ------
        PipeClosed
            If the reader has gone away.
        InputError
            If it cannot be written for another reason.
        """
        try:
            if text != "":  # an empty one is how click asks what kind of stream this is
                self._stream.write(text)
        except OSError as error:
            self._lose(error)
        return len(text)

    def flush(self) -> None:
        """Write what waits; raises what `write` does."""
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        # Buffered text must go somewhere, or the interpreter tries again at its end.
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
        if isinstance(error, BrokenPipeError):
            raise PipeClosed from None
        if self._name:
            raise InputError(f"cannot be written: {error.strerror}; write it elsewhere", path=self._name) from None


@contextmanager
def standard_streams() -> Iterator[None]:
    """Streams that a command can use: closed ones lead nowhere, and what goes wrong with the others has its error."""
    _open_closed()
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Stream(sys.stdout, "standard output"), _Stream(sys.stderr, "")
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _open_closed() -> None:
    """Open the null device in the place of streams that were closed, or the next file that is opened would be taken for them."""
    for number in _STANDARD:
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, this one
            os.set_inheritable(number, True)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115

"""Arguments of Python calls: what they may be, and errors that name them."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from taccl_py.collective import Kind, parse_kind
from taccl_py.errors import InputError, TacclError
from taccl_py.units import SizeRange, parse_size, parse_size_range

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")

# Options of the command line whose argument has another name in Python.
_RENAMED = {"topology": "machine", "collective": "kind", "size": "size", "to": "runtime"}
_OPTION = re.compile(r"(?<![\w-])--([a-z]+(?:-[a-z]+)*)")


def names_arguments(call: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Let the errors of a call name its arguments, where those of the library name options of the command line."""

    @functools.wraps(call)
    def named(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        try:
            return call(*args, **kwargs)
        except InputError as error:
            path = "arguments" if error.path == "command line" else error.path
            field = None if error.field is None else _argument(error.field)
            raise InputError(_in_python(error.what), path=path, field=field) from error
        except TacclError as error:
            error.args = tuple(_in_python(each) if isinstance(each, str) else each for each in error.args)
            raise

    return named


def _in_python(text: str) -> str:
    """A sentence with arguments in place of options."""
    return _OPTION.sub(lambda match: _word(match.group(1)), text)


def _argument(field: str) -> str:
    return "machine" if field == "TOPOLOGY" else _in_python(field)


def _word(option: str) -> str:
    return _RENAMED.get(option, option.replace("-", "_"))


def kind_of(kind: Kind | str) -> Kind:
    """Collective of a name.

    Raises
    ------
    InputError
        If there is no such collective.
    """
    return kind if isinstance(kind, Kind) else parse_kind(_text(kind, "kind"))


def size_of(size: int | float | str | None) -> int | None:
    """Bytes of a size: a number of bytes, a text such as ``16MB``, or None.

    Raises
    ------
    InputError
        If it is not a positive number of whole bytes.
    """
    if size is None:
        return None
    if isinstance(size, str):
        return parse_size(size)
    if isinstance(size, bool) or not isinstance(size, int | float) or not 0 < size < 1 << 62 or size != int(size):
        raise InputError(
            f"found {size!r}; give a number of bytes, or a text such as '16MB'", path="arguments", field="size"
        )
    return int(size)


def range_of(sizes: str | tuple[int | str, int | str]) -> SizeRange:
    """Range of sizes: a text such as ``1KiB:1GiB``, or the smallest and the largest.

    Raises
    ------
    InputError
        If it is neither.
    """
    if isinstance(sizes, str):
        return parse_size_range(sizes)
    if not isinstance(sizes, tuple | list) or len(sizes) != 2:
        raise InputError(
            f"found {sizes!r}; give a text such as '1KiB:1GiB', or two sizes", path="arguments", field="sizes"
        )
    return parse_size_range(":".join(str(size_of(each)) for each in sizes))


def path_of(path: str | Path) -> Path:
    """File of a name.

    Raises
    ------
    InputError
        If it is neither text nor a path.
    """
    return path if isinstance(path, Path) else Path(_text(path, "path"))


def _text(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"found {value!r}, a text is needed", path="arguments", field=field)
    return value

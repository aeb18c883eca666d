"""Arguments of Python calls: what they may be, and errors that name them."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from taccl_py.collective import Kind, parse_kind
from taccl_py.errors import InputError, TacclError
from taccl_py.topology.model import Topology
from taccl_py.units import MAX_SEED, SizeRange, parse_size, parse_size_range

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_Value = TypeVar("_Value")

# Options of the command line whose argument has another name in Python.
_RENAMED = {"topology": "machine", "collective": "kind", "size": "size", "to": "runtime"}
_OPTION = re.compile(r"(?<![\w-])--([a-z]+(?:-[a-z]+)*)")


def names_arguments(call: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Let the errors of a call name its arguments, where those of the library name options of the command line.

    Numbers of numpy come to the call as Python's own, and what is no number is refused.
    """
    signature = inspect.signature(call)

    @functools.wraps(call)
    def named(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        try:
            values, keywords = _as_declared(signature, args, kwargs)
            return call(*values, **keywords)
        except InputError as error:
            path = "arguments" if error.path == "command line" else error.path
            field = None if error.field is None else _argument(error.field)
            raise InputError(_in_python(error.what), path=path, field=field) from error
        except TacclError as error:
            error.args = tuple(_in_python(each) if isinstance(each, str) else each for each in error.args)
            raise

    return named


def _as_declared(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Arguments of a call, each as its annotation says."""
    try:
        given = signature.bind(*args, **kwargs)
    except TypeError:  # the call itself says it, with its name
        return args, kwargs
    for name, value in given.arguments.items():
        read = _seed if name == "seed" else _READ.get(signature.parameters[name].annotation)
        if read is not None:
            given.arguments[name] = read(value, name)
    return given.args, given.kwargs


def _whole(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(f"found {value!r}, a whole number is needed", path="arguments", field=field)
    return int(value)


def _seed(value: object, field: str) -> int:
    seed = _whole(value, field)
    if not 0 <= seed <= MAX_SEED:
        raise InputError(f"found {seed}, a seed is a whole number from 0 to {MAX_SEED}", path="arguments", field=field)
    return seed


def _whole_or_none(value: object, field: str) -> int | None:
    return None if value is None else _whole(value, field)


def _number_or_none(value: object, field: str) -> float | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
        raise InputError(f"found {value!r}, a number is needed", path="arguments", field=field)
    return value if value is None or isinstance(value, int) else float(value)


# Reads an argument, by its annotation.
_READ: Mapping[str, Callable[[object, str], object]] = {
    "int": _whole,
    "int | None": _whole_or_none,
    "float | None": _number_or_none,
}


def _in_python(text: str) -> str:
    """A sentence with arguments in place of options."""
    return _OPTION.sub(lambda match: _word(match.group(1)), text)


def _argument(field: str) -> str:
    return "machine" if field == "TOPOLOGY" else _in_python(field)


def _word(option: str) -> str:
    return _RENAMED.get(option, option.replace("-", "_"))


def machine_of(machine: Topology | str | Path) -> Topology | str:
    """Machine, or its name.

    Raises
    ------
    InputError
        If it is neither, nor the path of a file.
    """
    if isinstance(machine, Topology | str):
        return machine
    if not isinstance(machine, Path):
        raise InputError(
            f"found {machine!r}, a Topology or the name of a machine or of its file is needed",
            path="arguments", field="machine",
        )  # fmt: skip
    return str(machine)


def kind_of(kind: Kind | str) -> Kind:
    """Collective of a name.

    Raises
    ------
    InputError
        If there is no such collective.
    """
    return kind if isinstance(kind, Kind) else parsed(parse_kind, _text(kind, "kind"), "kind")


def parsed(parse: Callable[[str], _Value], word: str, field: str) -> _Value:
    """Value of an argument, as a function makes it of its word.

    Raises
    ------
    InputError
        That of the function, naming the argument.
    """
    try:
        return parse(word)
    except InputError as error:
        raise InputError(error.what, path="arguments", field=field) from None


def size_of(size: int | float | str | None) -> int | None:
    """Bytes of a size: a number of bytes, a text such as ``16MB``, or None.

    Raises
    ------
    InputError
        If it is not a positive number of whole bytes.
    """
    return None if size is None else bytes_of(size, "size")


def bytes_of(size: int | float | str, field: str) -> int:
    """Bytes of an argument: a number of bytes, or a text such as ``16MB``.

    Raises
    ------
    InputError
        If it is not a positive number of whole bytes.
    """
    if isinstance(size, str):
        return parsed(parse_size, size, field)
    if isinstance(size, bool) or not isinstance(size, Real) or not 0 < size < 1 << 62 or size != int(size):
        raise InputError(
            f"found {size!r}; give a number of bytes, or a text such as '16MB'", path="arguments", field=field
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
        return parsed(parse_size_range, sizes, "sizes")
    if not isinstance(sizes, tuple | list) or len(sizes) != 2:
        raise InputError(
            f"found {sizes!r}; give a text such as '1KiB:1GiB', or two sizes", path="arguments", field="sizes"
        )
    return parsed(parse_size_range, ":".join(str(bytes_of(each, "sizes")) for each in sizes), "sizes")


def path_of(path: str | Path) -> Path:
    """File of a name.

    Raises
    ------
    InputError
        If it is neither text nor a path.
    """
    if isinstance(path, Path):
        return path
    if "\n" in _text(path, "path"):
        raise InputError("found a text of several lines, the name of a file is needed", path="arguments", field="path")
    return Path(path)


def _text(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"found {value!r}, a text is needed", path="arguments", field=field)
    return value

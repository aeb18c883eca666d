"""Counts of elements: read from CSV, JSON and numpy files, or drawn from a skewed distribution."""

from __future__ import annotations

import re
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from taccl_py.errors import InputError
from taccl_py.jsonio import parse_json, read_text
from taccl_py.units import MAX_SIZE_BYTES

_SKEW = re.compile(r"\s*zipf\s*:\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*")
_MOST_SKEW = 100.0


def read_counts(path: Path) -> list[list[int]]:
    """Rows of counts of a file: CSV (lines with commas or blanks), a JSON list, or a numpy array of integers (``.npy``).

    One list or line of counts, or one in a line each, is one row.

    Raises
    ------
    InputError
        If the file cannot be read, or holds something else.
    """
    return read_rows(path, least=0)


def read_rows(path: Path, *, least: int) -> list[list[int]]:
    """Rows of whole numbers of a file, as `read_counts` reads them, none of them below `least`.

    Raises
    ------
    InputError
        If the file cannot be read, or holds something else.
    """
    if path.suffix == ".npy":
        return _read_npy(path, least)
    text = read_text(path).removeprefix("\ufeff")
    if text.lstrip()[:1] == "[":
        return _rows(parse_json(text, str(path)), path, least)
    lines = [line.split("#")[0] for line in text.splitlines()]
    rows = [re.split(r"\s*[,;]\s*|\s+", line.strip().removesuffix(",")) for line in lines if line.strip(" \t,;")]
    if rows and all(len(row) == 1 for row in rows):
        rows = [[row[0] for row in rows]]
    return [
        [_count(word, path, f"row {number}", least) for word in row] for number, row in enumerate(rows)
    ] or _nothing(path)


def _read_npy(path: Path, least: int) -> list[list[int]]:
    try:
        array = np.load(BytesIO(path.read_bytes()), allow_pickle=False)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=str(path)) from None
    except (ValueError, EOFError, BadZipFile) as error:
        raise InputError(
            f"is no numpy array ({str(error).splitlines()[0]}); name another file", path=str(path)
        ) from None
    if not isinstance(array, np.ndarray) or not np.issubdtype(array.dtype, np.integer):
        raise InputError(
            f"holds {getattr(array, 'dtype', 'several arrays')}, an array of integers is needed", path=str(path)
        )
    if array.ndim not in (1, 2):
        raise InputError(f"has {array.ndim} dimensions, 1 or 2 are needed", path=str(path))
    return _rows(array.tolist(), path, least)


def _rows(value: Any, path: Path, least: int) -> list[list[int]]:
    if not isinstance(value, list) or not value:
        return _nothing(path)
    rows = value if all(isinstance(row, list) for row in value) else [value]
    return [[_count(item, path, f"row {number}", least) for item in row] for number, row in enumerate(rows)]


def _nothing(path: Path) -> list[list[int]]:
    raise InputError("holds no counts; write one line for each rank", path=str(path))


def _count(item: Any, path: Path, field: str, least: int) -> int:
    if isinstance(item, str) and re.fullmatch(r"-?[0-9]{1,19}", item):
        item = int(item)
    if isinstance(item, bool) or not isinstance(item, int):
        raise InputError(f"found {item!r}, a whole number is needed", path=str(path), field=field)
    if not least <= item <= MAX_SIZE_BYTES:
        raise InputError(f"found {item}, {least} to {MAX_SIZE_BYTES} are possible", path=str(path), field=field)
    return item


def read_pairs(path: Path) -> list[tuple[int, int, int]]:
    """(Source, destination, elements) of a file's lines or JSON lists, as `read_counts` reads them.

    Raises
    ------
    InputError
        If the file cannot be read, or a line does not have three numbers.
    """
    found = []
    for number, row in enumerate(read_counts(path)):
        if len(row) != 3:
            raise InputError(
                f"found {len(row)} numbers; source, destination and elements are needed",
                path=str(path),
                field=f"row {number}",
            )
        found.append((row[0], row[1], row[2]))
    return found


def parse_skew(text: str) -> float:
    """Exponent of a skew such as ``zipf:0.5``.

    Raises
    ------
    InputError
        If it is none.
    """
    match = _SKEW.fullmatch(text.lower())
    exponent = float(match[1]) if match else -1.0
    if not 0 <= exponent <= _MOST_SKEW:
        raise InputError(f"{text!r} is no skew; write zipf:0 (even), zipf:0.5 or zipf:1, up to zipf:{_MOST_SKEW:g}")
    return exponent


def zipf_counts(num_ranks: int, per_rank: int, exponent: float, seed: int) -> list[list[int]]:
    """Matrix of counts: each rank sends `per_rank` elements, spread over the receivers by Zipf's law.

    The receivers' popularity is 1, 1/2^e, 1/3^e and so on, in an order drawn with the seed, the same for all senders. As many go to a rank
    as its part of the whole, rounded so that every row has the same sum.
    """
    order = np.random.default_rng(seed).permutation(num_ranks)
    weights = np.empty(num_ranks)
    weights[order] = 1.0 / np.arange(1, num_ranks + 1) ** exponent
    edges = np.floor(np.cumsum(weights) / weights.sum() * per_rank + 0.5).astype(np.int64)
    edges = np.minimum(edges, per_rank)  # beyond 2^53 floats overshoot
    edges[-1] = per_rank
    row = [int(count) for count in np.diff(edges, prepend=0)]
    return [list(row) for _ in range(num_ranks)]

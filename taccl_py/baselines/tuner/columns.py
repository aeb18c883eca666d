"""Lines of comma-separated words, and what the words must be."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from taccl_py.collective import Kind
from taccl_py.errors import InputError

_OPENING, _CLOSING = "[(", "])"


def columns(text: str) -> Iterator[tuple[int, list[str]]]:
    """Number and words of every line but comments and empty ones; commas inside brackets part nothing."""
    for place, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        cells, depth = [""], 0
        for letter in line:
            depth += (letter in _OPENING) - (letter in _CLOSING)
            if letter == "," and depth == 0:
                cells.append("")
            else:
                cells[-1] += letter
        yield place, [cell.strip() for cell in cells]


def parsed_kind(word: str, kinds: Collection[Kind], path: str, field: str) -> Kind:
    """Collective of a word.

    Raises
    ------
    InputError
        If it is none of them.
    """
    return Kind(parsed_word(word, [str(kind) for kind in kinds], "collective", path, field))


def parsed_word(word: str, words: Collection[str], what: str, path: str, field: str) -> str:
    """One of some words.

    Raises
    ------
    InputError
        If it is none of them.
    """
    if word not in words:
        raise InputError(f"found the {what} {word!r}, use one of: {', '.join(words)}", path=path, field=field)
    return word


def whole_number(word: str, path: str, field: str, *, least: int = 0) -> int:
    """Whole number of a word.

    Raises
    ------
    InputError
        If it is none, or too small.
    """
    try:
        found = int(word)
    except ValueError:
        found = least - 1
    if found < least:
        raise InputError(f"found {word!r}, a whole number of at least {least} is needed", path=path, field=field)
    return found
